"""Moves whatever a mini-batch carries to a device."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
from typing import Any

import torch

from hopline.pipes.streams import upload

__all__ = ["check_device", "move", "move_fields"]


def check_device(device: Any, *, pinned: bool = False) -> Any:
    """The device as torch knows it, or "pinned".

    Args:
        device: a torch device, its name, or the number of a GPU.
        pinned: whether "pinned" will do too.

    Raises:
        ValueError: there is no such device, or torch finds no such GPU.
    """
    if pinned and isinstance(device, str) and device == "pinned":
        return device
    if not isinstance(device, torch.device):
        try:
            if isinstance(device, bool) or not isinstance(device, str | int):
                raise TypeError
            device = (
                torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
            )
        except (RuntimeError, TypeError) as error:
            raise ValueError(f"device is {device!r}; expected a torch device") from error
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            raise ValueError(
                f"device is {str(device)!r}, but torch finds {count or 'no'} GPUs here"
            )
    return device


def move(value: Any, device: torch.device | str, non_blocking: bool = False) -> Any:
    """The value with every tensor in it on the device; what is there already is kept.

    Args:
        value: a tensor, an object with a method `to`, a dataclass, or dicts, lists and tuples of
            such; anything else is passed through.
        device: torch device, or "pinned" for page-locked host memory.
        non_blocking: do not wait for copies to a GPU. They are queued on the current stream; what
            is in ordinary memory goes through page-locked memory.

    Returns:
        The same structure; the containers are new.

    Raises:
        RuntimeError: memory is to be pinned, and torch finds no GPU to pin it for.
    """
    pinned = isinstance(device, str) and device == "pinned"
    if isinstance(value, torch.Tensor):
        if not pinned:
            if non_blocking and value.device.type == "cpu" and torch.device(device).type == "cuda":
                return upload(value, device)
            return value.to(device, non_blocking=non_blocking)
        if not torch.cuda.is_available():
            raise RuntimeError("pinning memory needs a GPU, and torch finds none here")
        return value if value.is_cuda else value.pin_memory()
    if isinstance(value, dict):
        return {key: move(item, device, non_blocking) for key, item in value.items()}
    if isinstance(value, list | tuple) and not hasattr(value, "to"):
        items = [move(item, device, non_blocking) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, type):
        return value
    if dataclasses.is_dataclass(value) and not hasattr(value, "to"):
        return move_fields(value, device, non_blocking)
    if pinned and hasattr(value, "pin_memory"):
        return value.pin_memory()
    if hasattr(value, "to") and (not pinned or dataclasses.is_dataclass(value)):
        kind: Any = type(value)
        options = {"non_blocking": True} if non_blocking and _knows_non_blocking(kind) else {}
        return value.to(device, **options)
    return value


@functools.lru_cache(maxsize=128)
def _knows_non_blocking(kind: Any) -> bool:
    """Whether a class's `to` knows non_blocking."""
    try:
        parameters = inspect.signature(kind.to).parameters.values()
    except (AttributeError, TypeError, ValueError):
        return False
    return any(p.name == "non_blocking" or p.kind is p.VAR_KEYWORD for p in parameters)


def move_fields(value: Any, device: torch.device | str, non_blocking: bool = False) -> Any:
    """A copy of a dataclass's object with every field moved.

    Raises:
        ValueError: there is no such device.
    """
    device = check_device(device, pinned=True)
    other = copy.copy(value)
    for field in dataclasses.fields(value):
        moved = move(getattr(value, field.name), device, non_blocking)
        object.__setattr__(other, field.name, moved)  # frozen ones included
    return other
