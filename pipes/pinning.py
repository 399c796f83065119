"""is_pinned: whether what a mini-batch carries is in page-locked memory."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from hopline.pipes.page_lock import is_page_locked

__all__ = ["is_pinned"]


def is_pinned(value: Any) -> bool:
    """Whether every tensor in a value is page-locked; True if there is none.

    Args:
        value: as for `hopline.pipes.move.move`, whose device "pinned" brings this about.
    """
    if isinstance(value, torch.Tensor):
        if value.layout == torch.strided:
            return is_page_locked(value)
        # Without a GPU torch may raise at the question; the answer is no.
        return torch.cuda.is_available() and value.is_pinned()
    if isinstance(value, dict):
        return all(is_pinned(item) for item in value.values())
    if isinstance(value, list | tuple):
        return all(is_pinned(item) for item in value)
    if dataclasses.is_dataclass(value):
        return all(is_pinned(getattr(value, f.name)) for f in dataclasses.fields(value))
    if callable(answer := getattr(value, "is_pinned", None)) and not isinstance(value, type):
        return bool(answer())
    return True
