"""Snapshot: tells whether tensors are still as they were when something was computed from them."""

from __future__ import annotations

import torch

from hopline.pipes.page_lock import version_of

__all__ = ["Snapshot"]


class Snapshot:
    """Some tensors and their versions; it is taken before the computation that reads them.

    Args:
        tensors: in a fixed order; None where there is none.
    """

    __slots__ = ("_tensors", "_versions")

    def __init__(self, *tensors: torch.Tensor | None) -> None:
        self._tensors = tensors
        self._versions = [_version(tensor) for tensor in tensors]

    def is_of(self, *tensors: torch.Tensor | None) -> bool:
        """Whether these are the same tensors, none of them changed in place since."""
        return len(tensors) == len(self._tensors) and all(
            now is then and _version(now) == version
            for now, then, version in zip(tensors, self._tensors, self._versions, strict=True)
        )


def _version(tensor: torch.Tensor | None) -> int:
    return -1 if tensor is None else version_of(tensor)
