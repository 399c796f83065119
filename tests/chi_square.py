"""Chi-square tests. All draws in tests have fixed seeds, so that a result never changes."""

from __future__ import annotations

import math

import numpy as np


def standard_normal(statistic: float, freedom: int) -> float:
    """Wilson and Hilferty's transform: about N(0, 1) when the statistic is chi-square."""
    spread = 2 / (9 * freedom)
    return ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)


def assert_uniform(counts: np.ndarray) -> None:
    """Independent draws, all cells equally likely: too uneven fails, and so does too even."""
    counts = np.asarray(counts, np.float64).ravel()
    expected = counts.sum() / len(counts)
    assert expected >= 5, "too few draws to tell"
    z = standard_normal(((counts - expected) ** 2).sum() / expected, len(counts) - 1)
    assert abs(z) < 4, f"counts are {z:.1f} standard deviations from uniform: {counts}"


def assert_equal_inclusion(counts: np.ndarray, draws: int, taken: int, members: int = 1) -> None:
    """Draws of `taken` distinct ones, all subsets equally likely.

    Args:
        counts: how often each was taken; or each group, all groups being of `members`.
        draws: number of draws.
        taken: how many each draw takes.
        members: how many a group has.
    """
    counts = np.asarray(counts, np.float64)
    groups, population = len(counts), len(counts) * members
    expected = draws * taken / groups
    assert counts.sum() == draws * taken
    if taken == population:
        assert (counts == expected).all()
        return
    # Draws from a finite population vary less: see any text on sampling surveys.
    variance = expected * (population - taken) / (population - 1)
    assert variance >= 5, "too few draws to tell"
    z = standard_normal(((counts - expected) ** 2).sum() / variance, groups - 1)
    assert abs(z) < 4, f"inclusion is {z:.1f} standard deviations from equal: {counts}"


def assert_follows(counts: object, chances: object) -> None:
    """Independent draws, cells with given chances: too far off fails, and so does too close."""
    seen, expected = np.asarray(counts, np.float64), np.asarray(chances, np.float64)
    assert abs(expected.sum() - 1) < 1e-9
    expected = expected * seen.sum()
    assert expected.min() >= 5, "too few draws to tell"
    z = standard_normal(((seen - expected) ** 2 / expected).sum(), len(seen) - 1)
    # With one or two degrees of freedom the transform is rough below, and 0 is no wonder.
    low = -4 if len(seen) > 3 else -math.inf
    assert low < z < 4, f"counts are {z:.1f} standard deviations from {expected}: {seen}"
