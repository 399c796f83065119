"""DiskBasedFeature: rows of a .npy file, read as they are asked for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from hopline.pipes.features.tensor import TorchBasedFeature
from hopline.pipes.npy import read_npy

__all__ = ["DiskBasedFeature"]


class DiskBasedFeature(TorchBasedFeature):
    """Rows of a mapped .npy file; reads go through the page cache, without the GIL.

    Args:
        path: array of two dimensions or more, in C order.
        metadata: what else is known of it; `dtype: bfloat16` marks a file of raw bits.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it cannot be mapped as an array of rows.
    """

    def __init__(
        self, path: str | os.PathLike[str], metadata: dict[str, Any] | None = None
    ) -> None:
        self._path = Path(path).absolute()
        raw = (metadata or {}).get("dtype")
        tensor = read_npy(self._path, dtype=raw if raw == "bfloat16" else None)
        if tensor.dim() < 2:
            raise ValueError(
                f"{self._path}: has shape {tuple(tensor.shape)}; expected two dimensions or more"
            )
        super().__init__(tensor, metadata)

    def update(self, value: torch.Tensor, ids: torch.Tensor | None = None) -> None:
        """Refused: the file is not written to.

        Raises:
            TypeError: always.
        """
        raise TypeError(
            f"{self._path} is read-only here; use feature.read_into_memory().update(...)"
        )

    def read_into_memory(self) -> TorchBasedFeature:
        """All rows, as a feature in memory."""
        return TorchBasedFeature(self._tensor.clone(), self._metadata)

    def to(self, device: torch.device | str) -> TorchBasedFeature:
        """The rows on a device, or in "pinned" memory, as a feature in memory; this on the CPU."""
        if device != "pinned" and torch.device(device).type == "cpu":
            return self
        return TorchBasedFeature(self._tensor, self._metadata).to(device)

    def pin_memory_(self) -> TorchBasedFeature:
        """Refused: the rows are in a file.

        Raises:
            TypeError: always.
        """
        raise TypeError(f"{self._path} is not in memory; use feature.to('pinned')")

    def is_pinned(self) -> bool:
        """False: the rows are in a file."""
        return False

    def __reduce__(self) -> tuple[Any, ...]:
        # Travels as its path: the other process maps the same pages.
        return DiskBasedFeature, (self._path, self._metadata)

    def __repr__(self) -> str:
        return f"DiskBasedFeature({self.count()} rows of {tuple(self.size())}, {self._path})"
