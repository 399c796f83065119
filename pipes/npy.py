"""Tensors in .npy files: read whole or mapped, written whole, never by pickle.

A mapped tensor is a private, copy-on-write mapping: processes share the pages of the file, and a
write in place changes the process's own copy of a page, never the file.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch

__all__ = ["read_npy", "write_npy"]

# Types that .npy has no name for: stored as raw bits of an integer type.
RAW_BITS = {"bfloat16": (torch.bfloat16, np.dtype(np.int16))}


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
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; expected an array in .npy format")
    try:
        array = np.load(path, mmap_mode="c", allow_pickle=False) if path.stat().st_size else None
    except (ValueError, EOFError, OSError, SyntaxError) as error:
        array = _read_empty(path, error)
    if array is None or not isinstance(array, np.ndarray):
        raise ValueError(f"{path}: not a .npy array; write it with numpy.save(path, array)")
    if array.dtype.hasobject or array.dtype.fields is not None or array.dtype.kind not in "biufc":
        raise ValueError(
            f"{path}: holds dtype {array.dtype}; expected numbers, since others need pickle"
        )
    foreign = not array.dtype.isnative
    if (foreign or not array.flags.c_contiguous) and not in_memory:
        found = "big-endian" if foreign else "Fortran order"
        raise ValueError(
            f"{path}: is {found} and cannot be mapped; save numpy.ascontiguousarray(array, "
            f"dtype='{array.dtype.newbyteorder('=').str}'), or set in_memory: true"
        )
    if in_memory:
        array = np.array(array, dtype=array.dtype.newbyteorder("="), order="C")
    array = np.asarray(array)
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


def _read_empty(path: Path, error: Exception) -> np.ndarray:
    """An array without elements, which cannot be mapped; else the error, told clearly."""
    try:
        with path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            read = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }.get(version)
            if read is None:
                raise ValueError(f"{path}: .npy version {version} is not supported")
            shape, _, dtype = read(file)
    except (ValueError, EOFError, SyntaxError):
        raise ValueError(
            f"{path}: not a .npy array ({error}); write it with numpy.save(path, array)"
        ) from error
    if dtype.hasobject:
        raise ValueError(
            f"{path}: holds Python objects (dtype {dtype}); expected numbers, since objects are "
            "read by pickle, which runs code"
        ) from error
    if 0 in shape:
        return np.empty(shape, dtype)
    raise ValueError(
        f"{path}: cut short: shape {shape} of {dtype} needs {int(np.prod(shape)) * dtype.itemsize} "
        f"bytes, the file has {path.stat().st_size} with its header"
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
