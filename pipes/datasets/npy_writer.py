"""Writing a .npy file piece by piece, so that memory holds one piece."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

__all__ = ["Array", "NpyWriter", "sync_folder"]

Array = npt.NDArray[Any]


class NpyWriter:
    """A .npy file of known shape, filled from its first row to its last.

    Args:
        path: the file to make.
        dtype: of the array, in native byte order.
        shape: of the array.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self.path = path
        self.dtype = dtype.newbyteorder("=")
        self.shape = shape
        self.rows = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("wb")
        header = {
            "descr": np.lib.format.dtype_to_descr(self.dtype),
            "fortran_order": False,
            "shape": shape,
        }
        np.lib.format.write_array_header_1_0(self._file, header)

    def append(self, rows: Array) -> None:
        """Writes the next rows, cast to the file's dtype."""
        block = np.ascontiguousarray(rows, dtype=self.dtype)
        if block.shape[1:] != self.shape[1:]:
            raise ValueError(f"{self.path}: rows of shape {block.shape[1:]}, not {self.shape[1:]}")
        if block.size:
            self._file.write(block.reshape(-1).view(np.uint8).data)
        self.rows += len(block)

    def close(self) -> None:
        """Brings the file to the disk.

        Raises:
            ValueError: rows are missing or too many.
        """
        if self._file.closed:
            return
        with self._file:
            self._file.flush()
            os.fsync(self._file.fileno())
        if self.rows != self.shape[0]:
            raise ValueError(f"{self.path}: {self.rows} rows written, not {self.shape[0]}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._file.close()


def sync_folder(folder: Path) -> None:
    """Brings the names in a folder to the disk, where the system has a way."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
