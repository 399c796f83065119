"""Moves whatever a mini-batch carries to a device."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

__all__ = ["move"]


def move(value: Any, device: torch.device | str, non_blocking: bool = False) -> Any:
    """A copy of value with every tensor in it on the device; what is there already is kept.

    Args:
        value: a tensor, an object with a method `to`, a dataclass, or dicts, lists and tuples of
            such; anything else is passed through.
        device: torch device, or "pinned" for page-locked host memory.
        non_blocking: copy from pinned memory without waiting.

    Returns:
        The same structure; the containers are new.
    """
    if isinstance(value, torch.Tensor):
        if device == "pinned":
            return value if value.is_cuda else value.pin_memory()
        return value.to(device, non_blocking=non_blocking)
    if isinstance(value, dict):
        return {key: move(item, device, non_blocking) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(move(item, device, non_blocking) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(move(item, device, non_blocking) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            field.name: move(getattr(value, field.name), device, non_blocking)
            for field in dataclasses.fields(value)
        }
        return dataclasses.replace(value, **fields)
    return value
