"""CPU kernels of dropout, and of ReLU and dropout in one pass: Numba, serial, without the GIL."""

from __future__ import annotations

import math

import numpy as np

from hopline.pipes.kernels.compiling import kernel

__all__ = ["draw_kept", "drop_relu", "drop_relu_gradient", "plain_relu"]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_A = np.uint64(0xBF58476D1CE4E5B9)
MIX_B = np.uint64(0x94D049BB133111EB)
ONE = np.uint64(1)
U27 = np.uint64(27)
U30 = np.uint64(30)
U31 = np.uint64(31)

VALUES = 256  # values that one round draws for
WORDS = VALUES // 4  # words of 64 bits, each cut in four

# NaNs tell the gradient by their signs, which nothing else looks at, whether they were kept.
NAN_KEPT = math.nan
NAN_DROPPED = math.copysign(math.nan, -1)


@kernel(inline="always")
def _mix64(word):
    word = (word ^ (word >> U30)) * MIX_A
    word = (word ^ (word >> U27)) * MIX_B
    return word ^ (word >> U31)


@kernel(inline="always")
def _fold(key, counter):
    return _mix64(key + GOLDEN * (np.uint64(counter) + ONE))


@kernel
def draw_kept(key, threshold, low, high, out):
    """out[k] = draw k >= threshold.

    Draw k is the word of 16 bits number k % 4 of `fold(key, k // 4)`.

    Args:
        key: uint64.
        threshold: uint16.
        low: first value of those to do, a multiple of VALUES.
        high: the value behind them.
        out: bool[n].
    """
    words = np.empty(WORDS, np.uint64)
    draws = words.view(np.uint16)
    for start in range(low, high, VALUES):
        for w in range(WORDS):
            words[w] = _fold(key, start // 4 + w)
        kept = out[start : min(start + VALUES, high)]
        for k in range(kept.shape[0]):
            kept[k] = draws[k] >= threshold


@kernel
def drop_relu(key, x, threshold, scale, low, high, out):
    """out[k] = max(x[k], 0) * (scale if draw k >= threshold else 0); NaN stays NaN.

    Draws are those of `draw_kept`. A NaN that was kept has a sign of 0; one that was dropped, or
    that a dropped infinity became, of 1.

    Args:
        key: uint64.
        x: float[n].
        threshold: uint16.
        scale: of x's dtype.
        low: first value of those to do, a multiple of VALUES.
        high: the value behind them.
        out: float[n], of x's dtype.
    """
    words = np.empty(WORDS, np.uint64)
    draws = words.view(np.uint16)
    zero = x.dtype.type(0)
    nan_kept, nan_dropped = x.dtype.type(NAN_KEPT), x.dtype.type(NAN_DROPPED)
    for start in range(low, high, VALUES):
        for w in range(WORDS):
            words[w] = _fold(key, start // 4 + w)
        stop = min(start + VALUES, high)
        values, kept = x[start:stop], out[start:stop]
        for k in range(values.shape[0]):
            value = values[k]
            factor = scale if draws[k] >= threshold else zero
            nan = nan_kept if draws[k] >= threshold else nan_dropped
            value = (zero if value <= zero else value) * factor
            kept[k] = value if value == value else nan


@kernel
def plain_relu(x, low, high, out):
    """out[k] = max(x[k], 0); NaN stays NaN, of sign 0.

    Args:
        x: float[n].
        low: first value of those to do.
        high: the value behind them.
        out: float[n], of x's dtype.
    """
    zero, nan_kept = x.dtype.type(0), x.dtype.type(NAN_KEPT)
    values, kept = x[low:high], out[low:high]
    for k in range(values.shape[0]):
        value = values[k]
        value = zero if value <= zero else value
        kept[k] = value if value == value else nan_kept


@kernel
def drop_relu_gradient(out, grad_out, scale, low, high, grad_x):
    """Gradient of `drop_relu` and, with a scale of 1, of `plain_relu`.

    Args:
        out: float[n], as they give it: 0 or a NaN of sign 1 just where the gradient is 0.
        grad_out: float[n].
        scale: of out's dtype.
        low: first value of those to do.
        high: the value behind them.
        grad_x: float[n].
    """
    zero = out.dtype.type(0)
    # Views, of which LLVM knows that no position counts from the end: it then uses vectors.
    kept, above, below = out[low:high], grad_out[low:high], grad_x[low:high]
    for k in range(kept.shape[0]):
        value = above[k] * scale
        below[k] = zero if kept[k] <= zero or np.signbit(kept[k]) else value
