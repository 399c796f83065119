"""Random words and scores on the GPU; each repeats one of the CPU kernels, bit for bit.

Floating-point results use additions, multiplications and divisions in the order of
`hopline.pipes.kernels.draws`, and kernels are launched without fused multiply-add.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

__all__ = ["below", "exponential", "fold", "mix64", "unit"]

GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
MIX_A = tl.constexpr(0xBF58476D1CE4E5B9)
MIX_B = tl.constexpr(0x94D049BB133111EB)
LN2 = tl.constexpr(math.log(2.0))
SQRT2 = tl.constexpr(math.sqrt(2.0))
TINY = tl.constexpr(2.0**-52)
FRACTION = tl.constexpr((1 << 52) - 1)
ONE_EXPONENT = tl.constexpr(1023 << 52)


@triton.jit
def mix64(word):
    """The finaliser of SplitMix64; word: uint64."""
    word = (word ^ (word >> 30)) * MIX_A
    word = (word ^ (word >> 27)) * MIX_B
    return word ^ (word >> 31)


@triton.jit
def fold(key, counter):
    """`hopline.pipes.random.fold` of uint64 words; counter: a tensor of integers."""
    return mix64(key + GOLDEN * (counter.to(tl.uint64) + 1))


@triton.jit
def below(word, bound):
    """Maps a random word to [0, bound), as int64; bound: a tensor of positive integers."""
    return tl.umulhi(word, bound.to(tl.uint64)).to(tl.int64)


@triton.jit
def unit(word):
    """A number in (0, 1): the middle of one of 2**52 equal steps."""
    half = tl.full((), 0.5, tl.float64)
    return ((word >> 12).to(tl.float64) + half) * tl.full((), TINY, tl.float64)


@triton.jit
def _term(p, z, constant: tl.constexpr):
    return p * z + tl.full((), constant, tl.float64)


@triton.jit
def exponential(x):
    """-log(x) for float64 in (0, 1), by the series of the CPU's kernel."""
    one = tl.full((), 1.0, tl.float64)
    two = tl.full((), 2.0, tl.float64)
    bits = x.to(tl.int64, bitcast=True)
    exponent = (bits >> 52) - 1023
    m = ((bits & FRACTION) | ONE_EXPONENT).to(tl.float64, bitcast=True)
    large = m > tl.full((), SQRT2, tl.float64)
    m = tl.where(large, m * tl.full((), 0.5, tl.float64), m)
    exponent = tl.where(large, exponent + 1, exponent)
    f = m - one
    s = f / (two + f)
    z = s * s
    p = _term(tl.full((), 1.0 / 21.0, tl.float64), z, 1.0 / 19.0)
    p = _term(p, z, 1.0 / 17.0)
    p = _term(p, z, 1.0 / 15.0)
    p = _term(p, z, 1.0 / 13.0)
    p = _term(p, z, 1.0 / 11.0)
    p = _term(p, z, 1.0 / 9.0)
    p = _term(p, z, 1.0 / 7.0)
    p = _term(p, z, 1.0 / 5.0)
    p = _term(p, z, 1.0 / 3.0)
    p = _term(p, z, 1.0)
    return -(exponent.to(tl.float64) * tl.full((), LN2, tl.float64) + two * s * p)
