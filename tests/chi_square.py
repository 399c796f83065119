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
