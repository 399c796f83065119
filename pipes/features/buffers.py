"""Host memory for big outputs, used again when the last tensor on it dies.

The features of a mini-batch are often above 100 MB. The pages of a fresh allocation are cleared by
the kernel one fault at a time, which costs more than filling them, and threads that allocate at
once wait for each other. A buffer from the pool has its pages already.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from hopline.pipes.features.fork_safe import fork_safe_lock

__all__ = ["BufferPool", "empty", "empty_array", "page_locked_outputs", "settle"]

SMALLEST_POOLED = 1 << 16  # bytes; smaller outputs come from the allocator, which keeps them
STEPS = 8  # sizes between a power of two and the next, so at most 1 / STEPS of a new one is unused
SPARE = 4  # a buffer is lent to who needs less, if at most 1 / SPARE of what is needed is too much
WINDOW = 256  # loans, some ten mini-batches, over which the most lent at once is looked for
SLACK = 8  # 1 / SLACK of it may be idle besides, since mini-batches differ a little

Buffer = np.ndarray[Any, Any]


class _Loan(weakref.ref[Buffer]):
    """Tells when what was lent has died; knows the buffer that it was a part of."""

    __slots__ = ("buffer",)

    buffer: Buffer


class BufferPool:
    """Buffers of host memory; `empty` lends one, the death of its last tensor returns it.

    What is lent and what is idle are together no more than was lent at once of late (in the last
    256 to 512 loans), and an eighth. Beyond it, what was idle longest is freed, at the next loan or
    `settle`.

    Args:
        max_idle_bytes: the most memory kept for later, in any case.
    """

    def __init__(self, max_idle_bytes: int = 1 << 30) -> None:
        self.max_idle_bytes = max_idle_bytes
        self._lock = fork_safe_lock()
        # Under the lock: idle buffers by their number, the longest idle first, and by their size.
        self._idle: OrderedDict[int, Buffer] = OrderedDict()
        self._by_size: dict[int, list[int]] = {}
        self._idle_bytes = 0
        self._next_number = 0
        self._lent_bytes = 0
        self._most_lent = [0, 0]  # at once, in the window under way and in the one before
        self._number_lent = 0
        self._loans: dict[int, _Loan] = {}  # by their ids, to keep them until they end
        # Ended loans, filed by whoever holds the lock next. The callback of a loan is the method
        # `append` itself: it needs no lock, for it may run inside any allocation, and no Python
        # code, where Ctrl-C would be raised and lost, since nothing leaves a callback.
        self._ended: deque[weakref.ref[Buffer]] = deque()

    @property
    def idle_bytes(self) -> int:
        """Bytes of buffers that wait for their next use."""
        self.settle()
        return self._idle_bytes

    def clear(self) -> None:
        """Frees the idle buffers."""
        with self._lock:
            try:
                self._collect()
            finally:
                self._forget()

    def settle(self) -> None:
        """Frees what is more than allowed; done with each loan, and for when there is none soon."""
        with self._lock:
            try:
                self._collect()
            except BaseException:
                self._forget()
                raise

    def _forget(self) -> None:
        """Frees the idle buffers, whatever state their lists are in; under the lock."""
        # Between assignments of one line no signal is looked at.
        self._idle, self._by_size, self._idle_bytes = OrderedDict(), {}, 0

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised CPU tensor."""
        size = math.prod(shape) * dtype.itemsize
        if size < SMALLEST_POOLED:
            return torch.empty(shape, dtype=dtype, device="cpu")
        flat = self._lent(size)
        return flat.view(dtype).view(shape)

    def _lent(self, size: int) -> torch.Tensor:
        """uint8[size] in a buffer that comes back with the last tensor on it."""
        buffer = self._take(_rounded(size))
        lent = buffer[:size]  # its own array object: it lives as long as the tensor's storage
        loan = _Loan(lent, self._ended.append)
        loan.buffer = buffer
        self._loans[id(loan)] = loan
        return torch.from_numpy(lent)

    def _take(self, size: int) -> Buffer:
        with self._lock:
            try:
                self._collect()
                buffer = self._idle_buffer(size)
                self._lend(size if buffer is None else buffer.nbytes)
            except BaseException:  # Ctrl-C, anywhere in it
                self._forget()
                raise
        if buffer is not None:
            return buffer
        try:
            return np.empty(size, np.uint8)
        except MemoryError:
            with self._lock:
                self._lent_bytes -= size
            raise

    def _idle_buffer(self, size: int) -> Buffer | None:
        """The smallest idle buffer that is large enough and not much too large; under the lock."""
        found = size
        if size not in self._by_size:
            fitting = [known for known in self._by_size if size < known <= size + size // SPARE]
            if not fitting:
                return None
            found = min(fitting)
        return self._remove(self._by_size[found][-1])

    def _remove(self, number: int) -> Buffer:
        """Takes a buffer off the list of those idle; under the lock."""
        buffer = self._idle.pop(number)
        numbers = self._by_size[buffer.nbytes]
        numbers.remove(number)
        if not numbers:
            del self._by_size[buffer.nbytes]
        self._idle_bytes -= buffer.nbytes
        return buffer

    def _lend(self, size: int) -> None:
        """Counts a loan, and makes room for it before it is allocated; under the lock."""
        if self._number_lent % WINDOW == 0:
            self._most_lent = [0, self._most_lent[0]]
        self._number_lent += 1
        self._lent_bytes += size
        if self._lent_bytes > self._most_lent[0]:
            self._most_lent[0] = self._lent_bytes
        self._trim()

    def _collect(self) -> None:
        """Files what was returned, and frees what is too much; under the lock."""
        if not self._ended:
            return
        while self._ended:
            loan = self._loans.pop(id(self._ended[0]), None)
            if loan is not None:  # else Ctrl-C came just here before
                buffer = loan.buffer
                self._lent_bytes -= buffer.nbytes
                self._idle[self._next_number] = buffer
                self._by_size.setdefault(buffer.nbytes, []).append(self._next_number)
                self._idle_bytes += buffer.nbytes
                self._next_number += 1
            self._ended.popleft()
        self._trim()

    def _trim(self) -> None:
        """Frees what has been idle longest, down to what is allowed; under the lock."""
        if not self._idle:
            return
        most = max(self._most_lent)
        allowed = min(self.max_idle_bytes, most + most // SLACK - self._lent_bytes)
        while self._idle and self._idle_bytes > allowed:
            self._remove(next(iter(self._idle)))


def _rounded(size: int) -> int:
    """The next size that buffers have: mini-batches of like size share buffers."""
    step = max(1, (1 << (size.bit_length() - 1)) // STEPS)
    return -(-size // step) * step


_pool = BufferPool()
_thread = threading.local()


def settle() -> None:
    """Frees what the pool that all stages share has idle above its limit; see `BufferPool`."""
    _pool.settle()


@contextmanager
def page_locked_outputs() -> Iterator[None]:
    """Big outputs of this thread come in page-locked memory while the block runs.

    From there they are copied to a GPU beside other work. Without a GPU nothing changes.
    """
    before = getattr(_thread, "page_locked", False)
    _thread.page_locked = True
    try:
        yield
    finally:
        _thread.page_locked = before


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """An uninitialised CPU tensor, from the pool that all stages share if it is big.

    Inside `page_locked_outputs` torch's caching host allocator is that pool. It notes copies that
    do not wait, and lends their memory anew only when they are done.
    """
    locked = getattr(_thread, "page_locked", False) and torch.cuda.is_available()
    if locked and math.prod(shape) * dtype.itemsize >= SMALLEST_POOLED:
        return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=True)
    return _pool.empty(shape, dtype)


def empty_array(length: int, dtype: Any) -> np.ndarray[Any, Any]:
    """An uninitialised array of one dimension and a numpy dtype, from the same pool if big.

    Never page-locked: tensors made of its parts would not be known to torch's allocator, and their
    memory be lent anew while they are copied.
    """
    dtype = np.dtype(dtype)
    if length * dtype.itemsize < SMALLEST_POOLED:
        return np.empty(length, dtype)
    # By way of a tensor: numpy's views would refer to the buffer alone, not to who was lent it.
    array: np.ndarray[Any, Any] = _pool.empty((length * dtype.itemsize,), torch.uint8).numpy()
    return array.view(dtype)
