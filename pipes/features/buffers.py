"""Host memory for big outputs, used again when the last tensor on it dies.

The features of a mini-batch are often above 100 MB. The pages of a fresh allocation are cleared by
the kernel one fault at a time, which costs more than filling them; a buffer from the pool has its
pages already.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

import numpy as np
import torch

__all__ = ["BufferPool", "empty"]

SMALLEST_POOLED = 1 << 20  # bytes; smaller outputs come from the allocator, which reuses well
GRAIN = 1 << 21  # bytes; sizes are rounded up, so that batches of like size share buffers


class BufferPool:
    """Buffers of host memory; `empty` lends one, the death of its last tensor returns it.

    Args:
        max_idle: buffers kept for later; when more are returned, the oldest is freed.
    """

    def __init__(self, max_idle: int = 16) -> None:
        # A finaliser may run inside any allocation, on any thread: no lock, only atomic steps.
        self._idle: deque[np.ndarray[Any, Any]] = deque(maxlen=max_idle)

    @property
    def idle_bytes(self) -> int:
        """Bytes of buffers that wait for their next use."""
        return sum(buffer.nbytes for buffer in tuple(self._idle))

    def clear(self) -> None:
        """Frees the idle buffers."""
        self._idle.clear()

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised CPU tensor."""
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if size < SMALLEST_POOLED:
            return torch.empty(shape, dtype=dtype)
        buffer = self._take(size)
        lent = buffer[:size]  # its own array object: it lives as long as the tensor's storage
        weakref.finalize(lent, self._idle.append, buffer).atexit = False
        return torch.from_numpy(lent).view(dtype).view(shape)

    def _take(self, size: int) -> np.ndarray[Any, Any]:
        """The first idle buffer that fits without wasting half of it, else a new one."""
        for _ in range(len(self._idle)):
            try:
                buffer = self._idle.popleft()
            except IndexError:  # another thread took the last one
                break
            if size <= buffer.nbytes <= 2 * size + GRAIN:
                return buffer
            self._idle.append(buffer)
        # Room for a somewhat larger batch: a sixteenth more, in whole grains.
        return np.empty(-(-(size + size // 16) // GRAIN) * GRAIN, np.uint8)


_pool = BufferPool()


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """An uninitialised CPU tensor from the pool that all features share."""
    return _pool.empty(shape, dtype)
