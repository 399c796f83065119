"""The counter-based generator: the only source of randomness.

A random word is a pure function of the counters that name it. `fold` mixes one more counter into
a key; a chain of folds over (seed, purpose, epoch, batch index, hop, node id, draw number) gives
every draw of the pipeline, in any order, on any thread or device. There is no generator state.

The mixing function is the finaliser of SplitMix64 (Steele, Lea, Flood: "Fast splittable
pseudorandom number generators", OOPSLA 2014, with the constants of Stafford's variant 13);
`fold(key, 0), fold(key, 1), ...` is that generator's output stream for the state `key`.
"""

from __future__ import annotations

import itertools
import secrets
from enum import IntEnum
from typing import Any

import numpy as np

__all__ = ["Purpose", "batch_key", "draw_seed", "fold", "fold_many", "fold_range", "mix64", "seed"]

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


class Purpose(IntEnum):
    """What a key is used for: keys of different purposes never meet."""

    SEED = 0
    SHUFFLE = 1
    SAMPLE = 2
    NEGATIVE = 3
    LAYER = 4
    DROPOUT = 5
    EMBEDDING = 6
    BOUNDARY = 7
    ROUNDING = 8


def mix64(word: int) -> int:
    """Bijection of 64-bit words that flips about half of the bits for each bit flipped."""
    word &= MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)


def fold(key: int, *counters: int) -> int:
    """Mixes counters into a key, one after another.

    Args:
        key: 64-bit word.
        counters: integers, taken modulo 2**64.

    Returns:
        64-bit word in [0, 2**64).

    >>> fold(7, 1, 2) == fold(fold(7, 1), 2)
    True
    """
    for counter in counters:
        key = mix64(key + GOLDEN * (counter + 1))
    return key


def fold_range(key: int, count: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """uint64[count]: `fold(key, i)` for i = 0, 1, ...

    >>> fold_range(7, 2).tolist() == [fold(7, 0), fold(7, 1)]
    True
    """
    if count == 1:
        return np.array([fold(key, 0)], np.uint64)
    word = np.uint64(key) + np.uint64(GOLDEN) * np.arange(1, count + 1, dtype=np.uint64)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


def fold_many(
    keys: np.ndarray[Any, np.dtype[np.uint64]], counters: np.ndarray[Any, Any]
) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """`fold(key, counter)` for arrays of both, of shapes that broadcast.

    >>> fold_many(np.array([7], np.uint64), np.array([3, 9])).tolist() == [fold(7, 3), fold(7, 9)]
    True
    """
    word = keys + np.uint64(GOLDEN) * (counters.astype(np.uint64) + np.uint64(1))
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray[Any, np.dtype[np.uint64]] = word ^ (word >> np.uint64(31))
    return mixed


def batch_key(seed: int, purpose: Purpose, epoch: int, index: int) -> int:
    """The key from which all draws of one purpose in one mini-batch follow.

    Args:
        seed: seed of the run.
        purpose: what the draws are for.
        epoch: epoch number, from 0.
        index: global index of the mini-batch in its epoch, from 0.

    Returns:
        64-bit word in [0, 2**64).
    """
    return fold(seed, purpose, epoch, index)


# What `seed` has laid down, and the number of the next one: counting needs no lock, which a fork
# might find taken.
_seeds: tuple[int, itertools.count[int]] | None = None


def seed(val: int | None) -> None:
    """Settles the seeds of all item samplers made from now on without a seed of their own.

    They draw the same seeds in every run, in the order in which they are made. It is the one state
    that chains share: a sampler reads it once, when it is made, and no random draw depends on it
    later. No other library's generator is touched.

    Args:
        val: int in [0, 2**63); None goes back to seeds from the system's entropy.

    Raises:
        TypeError: val is neither an int nor None.
        ValueError: val is out of range.

    >>> from hopline.pipes import ItemSampler, ItemSet
    >>> def new_seed():
    ...     return ItemSampler(ItemSet(5, names="seeds"), batch_size=2, shuffle=True).seed
    >>> seed(7)
    >>> seeds = [new_seed(), new_seed()]
    >>> seed(7)
    >>> [new_seed(), new_seed()] == seeds, seeds[0] == seeds[1]
    (True, False)
    >>> seed(None)
    """
    global _seeds
    if val is not None and (isinstance(val, bool) or not isinstance(val, int)):
        raise TypeError(f"val is {val!r}; expected an int or None")
    if val is not None and not 0 <= val < 1 << 63:
        raise ValueError(f"val is {val}; expected an int in [0, 2**63)")
    _seeds = None if val is None else (val, itertools.count())


def draw_seed() -> int:
    """A fresh seed in [0, 2**63): the next one that `seed` settled, else of the system's entropy.

    No global generator is read.
    """
    settled = _seeds
    if settled is None:
        return secrets.randbits(63)
    value, numbers = settled
    return fold(value, Purpose.SEED, next(numbers)) >> 1
