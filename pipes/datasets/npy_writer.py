"""Writing a .npy file piece by piece, so that memory holds one piece."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

__all__ = ["Array", "NpyWriter", "holds", "sync_folder"]

Array = npt.NDArray[Any]


class NpyWriter:
    """A .npy file of known shape, filled from its first row to its last.

    Args:
        path: the file to make.
        dtype: of the array, in native byte order.
        shape: of the array.
        rows: rows that the file holds already, from a run that was stopped; what follows them is
            cut off. With 0 it is made anew.
    """

    def __init__(
        self, path: Path, dtype: np.dtype[Any], shape: tuple[int, ...], rows: int = 0
    ) -> None:
        self.path = path
        self.dtype = dtype.newbyteorder("=")
        self.shape = shape
        self.rows = rows
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("r+b" if rows else "wb")
        header = {
            "descr": np.lib.format.dtype_to_descr(self.dtype),
            "fortran_order": False,
            "shape": shape,
        }
        np.lib.format.write_array_header_1_0(self._file, header)
        if rows:
            row_bytes = self.dtype.itemsize * int(np.prod(shape[1:]))
            end = self._file.seek(rows * row_bytes, os.SEEK_CUR)
            if not holds(path, end):
                self._file.close()
                raise OSError(f"{path} ends too early; preprocess again")
            self._file.truncate(end)

    def append(self, rows: Array) -> None:
        """Writes the next rows, cast to the file's dtype.

        Raises:
            OSError: the disk is full, for one; names the file.
        """
        block = np.ascontiguousarray(rows, dtype=self.dtype)
        if block.shape[1:] != self.shape[1:]:
            raise ValueError(f"{self.path}: rows of shape {block.shape[1:]}, not {self.shape[1:]}")
        if block.size:
            try:
                self._file.write(block.reshape(-1).view(np.uint8).data)
            except OSError as error:
                raise type(error)(error.errno, error.strerror, str(self.path)) from error
        self.rows += len(block)

    def sync(self) -> None:
        """Brings the rows written so far to the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Brings the file to the disk.

        Raises:
            ValueError: rows are missing or too many.
        """
        if self._file.closed:
            return
        with self._file:
            self.sync()
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


def holds(path: Path, size: int) -> bool:
    """Whether a file is there and has so many bytes, or more."""
    try:
        return path.stat().st_size >= size
    except OSError:
        return False


def sync_folder(folder: Path) -> None:
    """Brings the names in a folder to the disk, where the system has a way."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
