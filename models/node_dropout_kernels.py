"""CPU kernel of dropout by node: Numba, serial, without the GIL."""

from __future__ import annotations

import numpy as np

from hopline.pipes.kernels.compiling import kernel

__all__ = ["drop_rows"]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_A = np.uint64(0xBF58476D1CE4E5B9)
MIX_B = np.uint64(0x94D049BB133111EB)
ONE = np.uint64(1)
U27 = np.uint64(27)
U30 = np.uint64(30)
U31 = np.uint64(31)


@kernel(inline="always")
def _mix64(word):
    word = (word ^ (word >> U30)) * MIX_A
    word = (word ^ (word >> U27)) * MIX_B
    return word ^ (word >> U31)


@kernel(inline="always")
def _fold(key, counter):
    return _mix64(key + GOLDEN * (np.uint64(counter) + ONE))


@kernel
def drop_rows(key, ids, x, stride, first_column, least, scale, low, high, out):
    """out[i, k] = x[i, k] * (scale if `fold(key, ids[i], first_column + k)` >= least else 0).

    Args:
        key: uint64.
        ids: int64[n].
        x: float[m], contiguous; row i is the values from i * stride on.
        stride: int64.
        first_column: int64.
        least: uint64.
        scale: of x's dtype.
        low: first row of those to do.
        high: the row behind them.
        out: float[n, width], of x's dtype.
    """
    width = out.shape[1]
    zero = x.dtype.type(0)
    for i in range(low, high):
        row = _fold(key, ids[i])
        # Views, of which LLVM knows that no position counts from the end: it then uses vectors.
        values, kept = x[i * stride : i * stride + width], out[i]
        for k in range(width):
            kept[k] = values[k] * (scale if _fold(row, first_column + k) >= least else zero)
