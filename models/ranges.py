"""in_ranges: runs a CPU kernel on ranges of rows, on as many threads as torch's operations use.

A row is written by one thread, in one order, so results have the same bits on any number of
threads. Kernels drop the GIL; the threads live as long as the call.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import torch

from hopline.pipes.features.buffers import empty

__all__ = ["bounds_by_edges", "even_bounds", "in_ranges", "rows_like"]

SMALLEST_PART = 1 << 18  # values of a part for which a thread of its own pays
LINE = 64  # bytes of a cache line, and of the widest vector


def even_bounds(count: int, values: int, step: int = 1) -> list[int]:
    """Bounds of ranges of about the same length, one for each of torch's threads at most.

    Args:
        count: length of the whole.
        values: how many values are read or written in all; few are not worth a second thread.
        step: bounds but for the last are multiples of it.

    Returns:
        Rising numbers from 0 to count, one more than ranges.

    >>> even_bounds(10, 100)
    [0, 10]
    """
    parts = _parts(values)
    steps = -(-count // step)
    return [min(steps * k // parts * step, count) for k in range(parts)] + [count]


def bounds_by_edges(indptr: torch.Tensor, width: int) -> list[int]:
    """Bounds of ranges of columns with about as many edges each, as `even_bounds` gives them.

    Args:
        indptr: int64[columns + 1]; where it is not rising, the ranges are just less even.
        width: values of an edge's row.
    """
    columns = len(indptr) - 1
    array = indptr.numpy()
    edges = int(array[-1]) if columns > 0 else 0
    parts = _parts((edges + columns) * width)
    targets = [edges * k // parts for k in range(1, parts)]
    inner = np.minimum(np.searchsorted(array, targets), columns)
    return [0, *np.maximum.accumulate(inner).tolist(), columns]


def _parts(values: int) -> int:
    return max(1, min(torch.get_num_threads(), values // SMALLEST_PART))


def in_ranges(bounds: Sequence[int], run: Callable[[int, int], int | None]) -> int:
    """Calls `run(low, high)` for each range that is not empty, the first one on this thread.

    Args:
        bounds: as `even_bounds` gives them.
        run: a kernel on rows [low, high); it gives -1 or None, or the first bad row.

    Returns:
        -1, or the first bad row of all.

    Raises:
        BaseException: whatever `run` raised in a range.
    """
    ranges = [(a, b) for a, b in pairwise(bounds) if a < b]
    if not ranges:
        return -1
    results: list[int | None] = [None] * len(ranges)
    errors: list[BaseException] = []

    def work(k: int) -> None:
        try:
            results[k] = run(*ranges[k])
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=work, args=(k,), name="hopline-range", daemon=True)
        for k in range(1, len(ranges))
    ]
    started = 0
    with contextlib.suppress(RuntimeError):  # no more threads: this one does what is left
        for thread in threads:
            thread.start()
            started += 1
    for k in (0, *range(started + 1, len(ranges))):
        work(k)
    for thread in threads[:started]:
        thread.join()
    if errors:
        raise errors[0]
    bad = [row for row in results if row is not None and row >= 0]
    return min(bad, default=-1)


def rows_like(x: torch.Tensor, *shape: int) -> torch.Tensor:
    """An uninitialised CPU tensor of x's dtype, from the pool of big outputs.

    It begins at a cache line, which matrix products gain from.
    """
    count, itemsize = int(np.prod(shape, dtype=np.int64)), x.dtype.itemsize
    flat = empty((count + LINE // itemsize,), x.dtype)
    skip = -flat.data_ptr() % LINE // itemsize
    return flat[skip : skip + count].view(shape)
