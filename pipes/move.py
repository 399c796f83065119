"""Moves whatever a mini-batch carries to a device."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import torch

__all__ = ["move", "move_fields"]


def move(value: Any, device: torch.device | str, non_blocking: bool = False) -> Any:
    """The value with every tensor in it on the device; what is there already is kept.

    Args:
        value: a tensor, an object with a method `to`, a dataclass, or dicts, lists and tuples of
            such; anything else is passed through.
        device: torch device, or "pinned" for page-locked host memory.
        non_blocking: copy from pinned memory without waiting.

    Returns:
        The same structure; the containers are new.

    Raises:
        RuntimeError: memory is to be pinned, and torch finds no GPU to pin it for.
    """
    pinned = isinstance(device, str) and device == "pinned"
    if isinstance(value, torch.Tensor):
        if not pinned:
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
        # Not every `to` knows non_blocking.
        options = {"non_blocking": True} if non_blocking else {}
        return value.to(device, **options)
    return value


def move_fields(value: Any, device: torch.device | str, non_blocking: bool = False) -> Any:
    """A copy of a dataclass's object with every field moved."""
    other = copy.copy(value)
    for field in dataclasses.fields(value):
        moved = move(getattr(value, field.name), device, non_blocking)
        object.__setattr__(other, field.name, moved)  # frozen ones included
    return other
