"""Writing a .npy file piece by piece, so that memory holds one piece."""

from __future__ import annotations

import io
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from hopline.pipes.datasets.checksum import Array, add_rows, sum_of_file

__all__ = ["Array", "NpyWriter", "holds", "holds_rows", "sync_folder", "sync_names"]


class NpyWriter:
    """A .npy file of known shape, filled from its first row to its last.

    Args:
        path: the file to make.
        dtype: of the array, in native byte order.
        shape: of the array.
        rows: rows that the file holds already, from a run that was stopped; what follows them is
            cut off. With 0 it is made anew.
        total: of those rows, see `checksum`.
    """

    def __init__(
        self,
        path: Path,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        rows: int = 0,
        total: int = 0,
    ) -> None:
        self.path = path
        self.dtype = dtype.newbyteorder("=")
        self.shape = shape
        self.rows = rows
        self.total = total  # of all rows so far
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("r+b" if rows else "wb")
        self._file.write(_header(self.dtype, shape))
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
            self.total = add_rows(self.total, block, self.rows)
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


def holds_rows(
    path: Path, dtype: np.dtype[Any], shape: tuple[int, ...], rows: int, total: int
) -> bool:
    """Whether a .npy file of that dtype and shape holds the rows that were written.

    Args:
        path: the file.
        dtype: of the array.
        shape: of the array.
        rows: how many of its rows have been written.
        total: of those, as `NpyWriter` gave it.
    """
    dtype = dtype.newbyteorder("=")
    header = _header(dtype, shape)
    try:
        with path.open("rb") as file:
            if file.read(len(header)) != header:
                return False
    except OSError:
        return False
    return sum_of_file(path, dtype, shape[1:], [(0, rows)], len(header)) == total


def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    out = io.BytesIO()
    header = {
        "descr": np.lib.format.dtype_to_descr(dtype),
        "fortran_order": False,
        "shape": shape,
    }
    np.lib.format.write_array_header_1_0(out, header)
    return out.getvalue()


def sync_names(path: Path, root: Path) -> None:
    """Brings a file's name to the disk, and those of its folders below `root`."""
    for folder in path.parents:
        if folder.is_relative_to(root):
            sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Brings the names in a folder to the disk, where the system has a way."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
