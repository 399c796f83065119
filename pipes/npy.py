"""Tensors in .npy files: read whole or mapped, written whole, never by pickle.

A mapped tensor is a private, copy-on-write mapping: processes share the pages of the file, and a
write in place changes the process's own copy of a page, never the file. The system reads ahead in
files of up to half of the memory that the process may use; of larger ones just the pages asked for.

A mapped file must keep its length: the system ends a process (SIGBUS) that reads a page which is
gone from the file, and no exception can be raised. A new file moved to its place does no harm.
"""

from __future__ import annotations

import math
import mmap
import os
import sys
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from hopline.pipes.usable_memory import usable_memory

__all__ = ["NpyLayout", "npy_layout", "read_npy", "write_npy"]

# Python names it from version 3.13 on; this is its value where torch has wheels.
NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)

LARGE = 2  # files above 1 / LARGE of the usable memory are mapped without reading ahead

# Types that .npy has no name for: stored as raw bits of an integer type.
RAW_BITS = {"bfloat16": (torch.bfloat16, np.dtype(np.int16))}


class NpyLayout(NamedTuple):
    """Where and how an array lies in its file.

    Attributes:
        shape: of the array.
        dtype: of its elements.
        offset: byte of the file at which the first element starts; C order from there.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    offset: int


def read_npy(
    path: str | os.PathLike[str], *, in_memory: bool = False, dtype: str | None = None
) -> torch.Tensor:
    """Reads or maps the array of a .npy file.

    Args:
        path: the file; C order, little-endian (or one byte an element) when it is mapped.
        in_memory: read the array; else map it.
        dtype: "bfloat16" when the file holds the raw bits of such values as int16 or uint16.

    Returns:
        A tensor of the file's shape.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is no .npy array, is cut short, holds Python objects or a type that
            torch lacks, or has an order of elements or bytes that cannot be mapped.
    """
    path = Path(path)
    shape, order, stored, offset = _checked_header(path)
    count = math.prod(shape)
    if not in_memory:
        _check_order(path, order, stored)
    array: np.ndarray[Any, Any]
    if in_memory or count == 0:  # nothing cannot be mapped
        array = np.fromfile(path, stored, count, offset=offset)
        if len(array) != count:
            raise ValueError(f"{path}: was cut short while it was read")
        array = array.reshape(shape, order=order)
        array = np.ascontiguousarray(array, stored.newbyteorder("=")).reshape(shape)
    else:
        array = _map(path, stored, shape, offset)
    return _as_tensor(path, array, dtype)


def npy_layout(path: str | os.PathLike[str], *, dtype: str | None = None) -> NpyLayout:
    """Where the array of a .npy file is, for readers that neither read nor map it whole.

    Args:
        path: the file; C order, little-endian (or one byte an element).
        dtype: "bfloat16" when the file holds the raw bits of such values as int16 or uint16.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: as `read_npy` for a file that is to be mapped.
    """
    path = Path(path)
    shape, order, stored, offset = _checked_header(path)
    _check_order(path, order, stored)
    return NpyLayout(shape, _as_tensor(path, np.empty(0, stored), dtype).dtype, offset)


def _checked_header(
    path: Path,
) -> tuple[tuple[int, ...], Literal["C", "F"], np.dtype[Any], int]:
    """Shape, order, type and first byte of an array of numbers that is all there."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; expected an array in .npy format")
    shape, fortran, stored, offset = _read_header(path)
    if stored.hasobject:
        raise ValueError(
            f"{path}: holds Python objects (dtype {stored}); expected numbers, since objects are "
            "read by pickle, which runs code"
        )
    if stored.fields is not None or stored.kind not in "biufc":
        raise ValueError(f"{path}: holds dtype {stored}; expected numbers")
    length = math.prod(shape) * stored.itemsize
    if (found := path.stat().st_size - offset) < length:
        raise ValueError(
            f"{path}: cut short: shape {shape} of {stored} needs {length} bytes, the file has "
            f"{found} after its header"
        )
    return shape, "F" if fortran and len(shape) > 1 else "C", stored, offset


def _check_order(path: Path, order: str, stored: np.dtype[Any]) -> None:
    """Refuses what cannot be used as it lies in the file."""
    if not stored.isnative or order == "F":
        what = "Fortran order" if stored.isnative else "big-endian"
        raise ValueError(
            f"{path}: is {what} and cannot be mapped; save numpy.ascontiguousarray(array, "
            f"dtype='{stored.newbyteorder('=').str}'), or set in_memory: true"
        )


def _as_tensor(path: Path, array: np.ndarray[Any, Any], dtype: str | None) -> torch.Tensor:
    """The tensor on the array's memory, of the type that `dtype` names."""
    if dtype in RAW_BITS:
        wanted, bits = RAW_BITS[dtype]
        if array.dtype.itemsize != bits.itemsize or array.dtype.kind not in "iu":
            raise ValueError(f"{path}: holds {array.dtype}; {dtype} is stored as {bits} bits")
        return torch.from_numpy(array.view(bits)).view(wanted)
    if dtype is not None and dtype != str(array.dtype):
        raise ValueError(f"{path}: holds dtype {array.dtype}; expected {dtype}")
    try:
        return torch.from_numpy(array)
    except TypeError as error:
        raise ValueError(
            f"{path}: torch has no type for {array.dtype}; convert the file"
        ) from error


def _map(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int) -> Any:
    """The array at offset, privately mapped; see `np.memmap`, whose mode "c" this is.

    Linux counts a private mapping that may be written to as memory in use and refuses one that is
    larger than the machine's memory, unless no swap is to be reserved for it.
    """
    first = offset - offset % mmap.ALLOCATIONGRANULARITY
    length = offset + math.prod(shape) * dtype.itemsize - first
    with path.open("rb") as file:
        try:
            if sys.platform == "linux":
                pages = mmap.mmap(
                    file.fileno(),
                    length,
                    flags=mmap.MAP_PRIVATE | NO_RESERVE,
                    prot=mmap.PROT_READ | mmap.PROT_WRITE,
                    offset=first,
                )
            else:
                pages = mmap.mmap(file.fileno(), length, access=mmap.ACCESS_COPY, offset=first)
        except OSError as error:
            raise OSError(
                error.errno, f"{error.strerror} to map {length} bytes", str(path)
            ) from error
    if length > usable_memory() // LARGE and hasattr(mmap, "MADV_RANDOM"):
        # Rows and edges are read here and there. Reading ahead (up to megabytes, as the system is
        # set) warms a file that fits in memory, and drives out of one that does not what is needed.
        pages.madvise(mmap.MADV_RANDOM)
    return np.ndarray(shape, dtype, pages, offset - first)


def _read_header(path: Path) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, whether in Fortran order, type of the elements, and where the first one is."""
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    try:
        with path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            if version not in readers:
                raise ValueError(f"version {version} is unknown")
            shape, fortran, dtype = readers[version](file)
            if any(type(n) is not int or n < 0 for n in shape):
                raise ValueError(f"shape is {shape}")
            return shape, fortran, dtype, file.tell()
    except OSError:
        raise
    # A damaged header can bring any exception out of the parser.
    except Exception as error:
        raise ValueError(
            f"{path}: not a .npy array ({error}); write it with numpy.save(path, array)"
        ) from error


def write_npy(path: str | os.PathLike[str], tensor: torch.Tensor) -> str:
    """Writes a tensor and brings it to the disk.

    Returns:
        The name to give as `dtype` to `read_npy`, e.g. "float32" or "bfloat16".
    """
    tensor = tensor.detach().cpu().contiguous()
    name = str(tensor.dtype).removeprefix("torch.")
    if name in RAW_BITS:
        tensor = tensor.view(torch.int16)
    with Path(path).open("wb") as file:
        np.save(file, tensor.numpy(), allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())
    return name
