"""Messages between ranks: arrays as bytes, and back, checked before they are used.

A message is a number of the sender's choice and a list of arrays. What is sent is its head: int64
words (the number, how many arrays; of each its type, number of dimensions and shape) and the short
arrays, each from a multiple of 8 bytes on; then each long array, from where it lies to where it is
wanted. A head without room for its own words says how many bytes it has, and they follow. Nothing
in it is a Python object.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hopline.pipes.features.buffers import empty_array

__all__ = ["HEAD_BYTES", "Incoming", "MessageError", "encode"]

Array = np.ndarray[Any, Any]

# In the message as their places in this list: never change the order.
DTYPES = [
    np.dtype(name)
    for name in ("int64", "int32", "uint64", "uint8", "int16", "int8", "bool", "float32",
                 "float64", "float16", "uint16", "uint32", "complex64", "complex128")
]  # fmt: skip
CODES = {dtype: code for code, dtype in enumerate(DTYPES)}
WORD = 8  # bytes
HEAD_BYTES = 1 << 15  # the most of a head
SHORT = 1 << 12  # bytes; longer arrays are sent from where they lie
MOST_ARRAYS = 1 << 16
MOST_DIMENSIONS = 8
APART = -1  # instead of the number of arrays: the words follow


class MessageError(ValueError):
    """Bytes that are no message."""


def _aligned(size: int) -> int:
    return -(-size // WORD) * WORD


def _within(sizes: Sequence[int], room: int) -> list[bool]:
    """Which arrays are in the head: the short ones, in their order, as far as there is room."""
    within = []
    for size in sizes:
        fits = size <= SHORT and _aligned(size) <= room
        room -= _aligned(size) if fits else 0
        within.append(fits)
    return within


def encode(number: int, arrays: Sequence[Array]) -> list[Array]:
    """What to send: the head, then what follows it, each uint8 of one dimension.

    Raises:
        TypeError: something is no array of numbers or bool in native byte order.
    """
    table = [len(arrays)]
    flat: list[Array] = []
    for array in arrays:
        if not isinstance(array, np.ndarray) or array.dtype not in CODES:
            kind = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
            raise TypeError(
                f"a message has a {kind}; expected arrays of numbers or bool, in native byte order"
            )
        table += [CODES[array.dtype], array.ndim, *array.shape]
        flat.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    words = np.array([number, *table], np.int64).view(np.uint8)
    if len(words) > HEAD_BYTES:
        apart = np.array([number, APART, len(words)], np.int64).view(np.uint8)
        return [apart, words, *(data for data in flat if len(data))]
    within = _within([len(data) for data in flat], HEAD_BYTES - len(words))
    pieces, following = [words], []
    for data, fits in zip(flat, within, strict=True):
        if not fits:
            following.append(data)
        elif len(data):
            pieces += [data, np.zeros(_aligned(len(data)) - len(data), np.uint8)]
    return [np.concatenate(pieces), *following]


class Incoming:
    """A message as its bytes come in.

    Args:
        head: uint8[HEAD_BYTES], of which the beginning was received, and its first two words are
            zeros where nothing was.

    Raises:
        MessageError: the head is none.

    Attributes:
        number: of the sender's choice.
        following: uint8 arrays, to be filled with what follows, in this order; then `more`.
    """

    def __init__(self, head: Array) -> None:
        self._head = head
        words = head.view(np.int64)
        self.number = int(words[0])
        self.following: list[Array] = []
        self._arrays: list[Array] = []
        self._words: Array | None = None
        if int(words[1]) != APART:
            self._plan(words, HEAD_BYTES)
            return
        size = int(words[2])
        if not HEAD_BYTES < size <= WORD * MOST_ARRAYS * (2 + MOST_DIMENSIONS) or size % WORD:
            raise MessageError(f"a message says that its words have {size} bytes")
        self._words = np.empty(size // WORD, np.int64)
        self.following = [self._words.view(np.uint8)]

    def more(self) -> list[Array]:
        """What is to be filled next, after `following`; nothing, mostly.

        Raises:
            MessageError: what followed is no table of arrays.
        """
        if self._words is None:
            return []
        self.following = []
        self._plan(self._words, 0)
        self._words = None
        return self.following

    def arrays(self) -> list[Array]:
        """The arrays, when all is filled; short ones are views of the head.

        Raises:
            MessageError: a truth value is neither 0 nor 1.
        """
        for array in self._arrays:
            if array.dtype == np.bool_ and array.size and array.view(np.uint8).max() > 1:
                raise MessageError("a message has a truth value that is neither 0 nor 1")
        return self._arrays

    def _plan(self, words: Array, room: int) -> None:
        """Reads the table, and makes the arrays: of the head's bytes, or to be filled."""
        count = int(words[1])
        if not 0 <= count <= MOST_ARRAYS:
            raise MessageError(f"a message says that it has {count} arrays")
        at = 2
        plan: list[tuple[np.dtype[Any], tuple[int, ...]]] = []
        for _ in range(count):
            if at + 2 > len(words):
                raise MessageError("a message ends within its table")
            code, dimensions = int(words[at]), int(words[at + 1])
            if not (0 <= code < len(DTYPES) and 0 <= dimensions <= MOST_DIMENSIONS):
                raise MessageError(
                    f"a message has an array of type {code} and {dimensions} dimensions"
                )
            if at + 2 + dimensions > len(words):
                raise MessageError("a message ends within its table")
            shape = tuple(words[at + 2 : at + 2 + dimensions].tolist())
            if any(n < 0 for n in shape) or math.prod(shape) > 1 << 48:
                raise MessageError(f"a message has an array of shape {shape}")
            plan.append((DTYPES[code], shape))
            at += 2 + dimensions
        sizes = [math.prod(shape) * dtype.itemsize for dtype, shape in plan]
        within = _within(sizes, room - at * WORD) if room else [size == 0 for size in sizes]
        low = at * WORD
        for (dtype, shape), size, fits in zip(plan, sizes, within, strict=True):
            if fits:
                data = self._head[low : low + size] if size else np.empty(0, np.uint8)
                low += _aligned(size)
            else:
                data = empty_array(size, np.uint8)
                self.following.append(data)
            self._arrays.append(data.view(dtype).reshape(shape))
