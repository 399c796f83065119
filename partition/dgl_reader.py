"""Reader: goes through a file of DGL's, little-endian, whose arrays are views on the mapped file.

Every length is compared with what is left of the file before it is used.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

__all__ = ["Reader", "StoredArray"]

Array = np.ndarray[Any, Any]

META_GRAPH = 0xDD3C5FFE20046ABF
CSR = 0xDD6CD31205DFF127
NDARRAY = 0xDD5E40F096B4A13F

MOST_DIMENSIONS = 32
LONGEST = 1 << 16  # bytes of a name

# By code and bits of DLPack, which has 4 for bfloat16.
DTYPES = {
    (0, 8): np.int8, (0, 16): np.int16, (0, 32): np.int32, (0, 64): np.int64, (1, 8): np.uint8,
    (2, 16): np.float16, (2, 32): np.float32, (2, 64): np.float64, (4, 16): np.int16,
}  # fmt: skip


class StoredArray(NamedTuple):
    """An array in a file.

    Attributes:
        values: as NumPy has them; int16 for the bits of bfloat16.
        dtype: torch's.
    """

    values: Array
    dtype: torch.dtype


class Reader:
    """Goes through a file from its begin to its end.

    All methods raise a ValueError that names the file and the place where there is something else.

    Args:
        path: the file, which stays mapped while an array of it is in use.
        what: what it should be, for messages.
    """

    def __init__(self, path: Path, what: str) -> None:
        self._path, self._what, self._at = path, what, 0
        try:
            if not path.is_file():
                raise ValueError(f"{path}: no such file; expected {what}")
            if path.stat().st_size == 0:
                raise ValueError(f"{path}: is empty; expected {what}")
            self._bytes = np.memmap(path, np.uint8, "r")
        except OSError as error:
            raise ValueError(f"{path}: cannot be read ({error})") from error

    def error(self, text: str) -> ValueError:
        """An error at this place."""
        return ValueError(f"{self._path}: {text} at byte {self._at}; expected {self._what}")

    def go_to(self, place: int) -> None:
        """Goes on at a byte."""
        if not 0 <= place <= len(self._bytes):
            raise self.error(f"points to byte {place} of {len(self._bytes)}")
        self._at = place

    def take(self, size: int) -> Array:
        """uint8[size], the next bytes."""
        left = len(self._bytes) - self._at
        if size > left:
            raise self.error(f"is cut short: {size} bytes are to follow, {left} are left")
        found = self._bytes[self._at : self._at + size]
        self._at += size
        return found

    def word(self) -> int:
        """An unsigned integer of 8 bytes."""
        return int.from_bytes(self.take(8).tobytes(), "little")

    def number(self, number: int, what: str) -> None:
        """Goes past the number by which a structure begins."""
        found = self.word()
        if found != number:
            self._at -= 8
            raise self.error(f"has {found:016x} where {what} has {number:016x}")

    def count(self, least: int) -> int:
        """Of things that follow, each of some bytes at least."""
        found, left = self.word(), len(self._bytes) - self._at
        if found * least > left:
            raise self.error(f"is cut short: {found} entries are to follow, {left} bytes are left")
        return found

    def text(self) -> str:
        """A name."""
        size = self.count(1)
        if size > LONGEST:
            raise self.error(f"has a name of {size} bytes")
        try:
            return self.take(size).tobytes().decode()
        except UnicodeDecodeError:
            raise self.error("has a name that is not UTF-8") from None

    def array(self) -> StoredArray:
        """An array of numbers."""
        self.number(NDARRAY, "an array")
        self.take(16)  # nothing, and the device
        dimensions, code, bits, lanes = struct.unpack("<iBBH", self.take(8).tobytes())
        if not 0 <= dimensions <= MOST_DIMENSIONS:
            raise self.error(f"has an array of {dimensions} dimensions")
        shape = struct.unpack(f"<{dimensions}q", self.take(8 * dimensions).tobytes())
        dtype = DTYPES.get((code, bits))
        if dtype is None or lanes != 1:
            raise self.error(f"has an array of type {code} with {bits} bits, {lanes} a value,")
        size = self.word()
        if min(shape, default=0) < 0 or size != math.prod(shape) * np.dtype(dtype).itemsize:
            raise self.error(f"has an array of shape {shape} in {size} bytes")
        values = self.take(size).view(np.ndarray)
        values = np.frombuffer(values, dtype).reshape(shape)
        name = torch.bfloat16 if code == 4 else torch.from_numpy(np.empty(0, dtype)).dtype
        return StoredArray(values, name)

    def named_arrays(self) -> dict[str, StoredArray]:
        """Arrays by name."""
        found: dict[str, StoredArray] = {}
        for _ in range(self.count(8)):
            name = self.text()
            if name in found:
                raise self.error(f"has {name!r} twice")
            found[name] = self.array()
        return found

    def ids(self) -> Array:
        """An array of whole numbers along one dimension."""
        values = self.array().values
        if values.ndim != 1 or values.dtype.kind != "i":
            raise self.error(f"has {values.dtype}{list(values.shape)} where ids should be")
        return values

    def csr(self) -> tuple[int, Array, Array, Array]:
        """(number of columns, of rows their begins, columns, number of each entry)."""
        self.number(CSR, "a CSR matrix")
        width, height = self.word(), self.word()
        begins, ends, numbers = self.ids(), self.ids(), self.ids()
        self.take(1)  # whether it is sorted
        if len(begins) + len(numbers) + len(ends) == 0:
            return width, begins, ends, numbers
        if (
            len(begins) != height + 1
            or begins[0] != 0
            or begins[-1] != len(ends)
            or (np.diff(begins) < 0).any()
            or len(numbers) not in (0, len(ends))
        ):
            raise self.error("has a CSR matrix that does not fit together")
        return width, begins, ends, numbers

    def meta_graph(self) -> None:
        """Goes past a graph of node types."""
        self.number(META_GRAPH, "a graph of types")
        self.csr()
