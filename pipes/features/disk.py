"""DiskBasedFeature: rows of a .npy file, read as they are asked for."""

from __future__ import annotations

import functools
import math
import os
from pathlib import Path
from typing import Any

import torch

from hopline.pipes.checks import check_ids
from hopline.pipes.features.buffers import empty
from hopline.pipes.features.feature import Feature
from hopline.pipes.features.row_reader import RowReader
from hopline.pipes.features.rows import outputs_for, sent
from hopline.pipes.features.tensor import TorchBasedFeature
from hopline.pipes.npy import npy_layout

__all__ = ["DiskBasedFeature"]

PIECE = 1 << 20  # rows, and
PIECE_BYTES = 1 << 26  # bytes of a read of all rows that are planned at once


class DiskBasedFeature(Feature):
    """Rows of a .npy file; a read has many requests in flight, and does not hold the GIL.

    Rows that lie close to each other are read together, and repeated ones once. The file stays
    open: what is moved to its path later is not seen. A pickle holds the path.

    Args:
        path: array of two dimensions or more, in C order.
        metadata: what else is known of it; `dtype: bfloat16` marks a file of raw bits.
        direct: False to read through the page cache, which keeps the pages asked for and no more,
            as far as memory goes; True to read past it; None to read past it if the file is larger
            than half of the memory that the process may use and its filesystem can.
        num_threads: the most threads that read at once, besides those that call; None for a number
            that keeps a disk busy: 4 through the page cache, 32 past it.

    Attributes:
        direct: whether reads go past the page cache.
        num_threads: the most threads that read at once.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it cannot be used as an array of rows, or a setting is out of range.
        OSError: the filesystem cannot read past the page cache, and direct is True.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        metadata: dict[str, Any] | None = None,
        num_threads: int | None = None,
        *,
        direct: bool | None = None,
    ) -> None:
        self._path = Path(path).absolute()
        self._metadata = dict(metadata or {})
        self._settings = direct, num_threads
        raw = self._metadata.get("dtype")
        shape, self._dtype, offset = npy_layout(
            self._path, dtype=raw if raw == "bfloat16" else None
        )
        if len(shape) < 2:
            raise ValueError(f"{self._path}: has shape {shape}; expected two dimensions or more")
        self._shape = torch.Size(shape)
        self._row_bytes = math.prod(shape[1:]) * self._dtype.itemsize
        self._reader = RowReader(
            self._path, offset, self._row_bytes, direct=direct, num_threads=num_threads
        )
        self.direct = self._reader.direct
        self.num_threads = self._reader.num_threads

    def read(self, ids: torch.Tensor | None = None) -> torch.Tensor:
        """Rows by id, on the device of the ids; see `Feature.read`.

        Raises:
            IndexError: an id is out of range; negative ids are.
            OSError: the file cannot be read, or was cut short since it was opened.
        """
        if ids is None:
            return self._read_all()
        wide = isinstance(ids, torch.Tensor) and ids.dtype == torch.int64
        checked = check_ids(ids, self.count(), "feature ids", torch.int64 if wide else torch.int32)
        with outputs_for(ids.device):
            rows = empty((len(checked), *self.size()), self._dtype)
        self._reader.read(checked.numpy(), _bytes(rows))
        return sent(rows, ids.device)

    def _read_all(self) -> torch.Tensor:
        rows = empty(self._shape, self._dtype)
        step = max(1, min(PIECE, PIECE_BYTES // max(1, self._row_bytes)))
        for low in range(0, len(rows), step):
            piece = rows[low : low + step]
            ids = torch.arange(low, low + len(piece), device="cpu")
            self._reader.read(ids.numpy(), _bytes(piece))
        return rows

    def size(self) -> torch.Size:
        """Shape of one row."""
        return self._shape[1:]

    def count(self) -> int:
        """Number of rows."""
        return self._shape[0]

    def metadata(self) -> dict[str, Any]:
        """What was given as metadata."""
        return dict(self._metadata)

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
        return TorchBasedFeature(self._read_all(), self._metadata)

    def to(self, device: torch.device | str) -> Feature:
        """The rows on a device, or in "pinned" memory, as a feature in memory; this on the CPU."""
        if device != "pinned" and torch.device(device).type == "cpu":
            return self
        rows = self.read_into_memory()
        return rows.pin_memory_() if device == "pinned" else rows.to(device)

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
        # Travels as its path: the other process opens the file itself.
        direct, num_threads = self._settings
        make = functools.partial(type(self), direct=direct, num_threads=num_threads)
        return make, (self._path, self._metadata)

    def __repr__(self) -> str:
        return f"DiskBasedFeature({self.count()} rows of {tuple(self.size())}, {self._path})"


def _bytes(rows: torch.Tensor) -> Any:
    """uint8[...], the memory of a contiguous tensor."""
    return rows.reshape(-1).view(torch.uint8).numpy()
