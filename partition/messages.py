"""Messages between ranks: arrays as bytes, and back, checked before they are used.

A message is a list of arrays. Its bytes are a table of int64 (number of arrays; of each its type,
number of dimensions and shape), then each array from a multiple of 8 bytes on. Nothing in it is a
Python object.

Several messages in a row are joined: each behind a number of the sender's choice and its size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["MessageError", "join", "pack", "packed_size", "split", "to_bytes", "unpack"]

Array = np.ndarray[Any, Any]

# In the message as their places in this list: never change the order.
DTYPES = [
    np.dtype(name)
    for name in ("int64", "int32", "uint64", "uint8", "int16", "int8", "bool", "float32",
                 "float64", "float16", "uint16", "uint32", "complex64", "complex128")
]  # fmt: skip
CODES = {dtype: code for code, dtype in enumerate(DTYPES)}
WORD = 8  # bytes
MOST_ARRAYS = 1 << 16
MOST_DIMENSIONS = 8


class MessageError(ValueError):
    """Bytes that are no message."""


def _aligned(size: int) -> int:
    return -(-size // WORD) * WORD


def _table_size(arrays: Sequence[Array]) -> int:
    return WORD * (1 + sum(2 + array.ndim for array in arrays))


def packed_size(arrays: Sequence[Array]) -> int:
    """Bytes of a message; a multiple of 8."""
    return _table_size(arrays) + sum(_aligned(array.nbytes) for array in arrays)


def pack(arrays: Sequence[Array], out: Array) -> None:
    """Writes a message.

    Args:
        arrays: of the dtypes of numbers and bool, in native byte order.
        out: uint8[packed_size(arrays)], out; at a multiple of 8 bytes.

    Raises:
        KeyError: an array is of another dtype.
    """
    table = [len(arrays)]
    for array in arrays:
        table += [CODES[array.dtype], array.ndim, *array.shape]
    words = np.array(table, np.int64).view(np.uint8)
    out[: len(words)] = words
    at = len(words)
    for array in arrays:
        size = array.nbytes
        out[at : at + size] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        out[at + size : at + _aligned(size)] = 0
        at += _aligned(size)


def unpack(data: Array) -> list[Array]:
    """The arrays of a message, as views of its bytes.

    Args:
        data: uint8[n], at a multiple of 8 bytes.

    Raises:
        MessageError: the bytes are no message, or more than one.
    """
    if len(data) % WORD or len(data) < WORD:
        raise MessageError(f"a message has {len(data)} bytes; expected a multiple of {WORD}")
    words = data.view(np.int64)
    count = int(words[0])
    if not 0 <= count <= MOST_ARRAYS:
        raise MessageError(f"a message says that it has {count} arrays")
    at = 1
    plan: list[tuple[np.dtype[Any], tuple[int, ...]]] = []
    for _ in range(count):
        if at + 2 > len(words):
            raise MessageError("a message ends within its table")
        code, dimensions = int(words[at]), int(words[at + 1])
        if not (0 <= code < len(DTYPES) and 0 <= dimensions <= MOST_DIMENSIONS):
            raise MessageError(f"a message has an array of type {code} and {dimensions} dimensions")
        if at + 2 + dimensions > len(words):
            raise MessageError("a message ends within its table")
        shape = tuple(words[at + 2 : at + 2 + dimensions].tolist())
        if any(n < 0 for n in shape):
            raise MessageError(f"a message has an array of shape {shape}")
        plan.append((DTYPES[code], shape))
        at += 2 + dimensions
    low = at * WORD
    arrays: list[Array] = []
    for dtype, shape in plan:
        size = math.prod(shape) * dtype.itemsize
        if low + size > len(data):
            raise MessageError(f"a message has no room for an array of shape {shape}")
        part = data[low : low + size]
        if dtype == np.bool_ and len(part) and part.max() > 1:
            raise MessageError("a message has a truth value that is neither 0 nor 1")
        arrays.append(part.view(dtype).reshape(shape))
        low += _aligned(size)
    if low != len(data):
        raise MessageError(f"a message of {low} bytes came with {len(data)}")
    return arrays


def to_bytes(arrays: Sequence[Array]) -> Array:
    """A message as uint8[n].

    Raises:
        TypeError: something is no array of numbers or bool in native byte order.
    """
    for array in arrays:
        if not isinstance(array, np.ndarray) or array.dtype not in CODES:
            kind = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
            raise TypeError(
                f"a message has a {kind}; expected arrays of numbers or bool, in native byte order"
            )
    out = np.empty(packed_size(arrays), np.uint8)
    pack(arrays, out)
    return out


def join(messages: Sequence[tuple[int, Array]]) -> Array:
    """The bytes of (number, message) after each other, each behind its number and its size."""
    pieces = [np.empty(0, np.uint8)]
    for number, message in messages:
        pieces += [np.array([number, len(message)], np.int64).view(np.uint8), message]
    return np.concatenate(pieces)


def split(data: Array) -> list[tuple[int, Array]]:
    """(number, message) of bytes that `join` has made; the messages' content is not checked.

    Raises:
        MessageError: the bytes are not such.
    """
    if len(data) % WORD:
        raise MessageError(f"messages have {len(data)} bytes; expected a multiple of {WORD}")
    data = np.ascontiguousarray(data)
    if data.ctypes.data % WORD:
        data = data.copy()
    parts = []
    at = 0
    while at < len(data):
        if at + 2 * WORD > len(data):
            raise MessageError("messages end within a number and a size")
        number, size = data[at : at + 2 * WORD].view(np.int64).tolist()
        at += 2 * WORD
        if size < 0 or size % WORD or size > len(data) - at:
            raise MessageError(f"messages say that one has {size} bytes; left are {len(data) - at}")
        parts.append((number, data[at : at + size]))
        at += size
    return parts
