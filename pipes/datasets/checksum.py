"""Sums that tell whether rows in a file are still those that were written.

Each word of the rows is multiplied by a number that depends on its place, so that the sum sees
both a changed word and words that have changed places; rows may be added in any order.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hopline.pipes.kernels import sorting

__all__ = ["add_rows", "add_segments", "sum_of_file"]

Array = npt.NDArray[Any]

PIECE = 1 << 18  # bytes of a file in memory
MASK = (1 << 64) - 1


def add_rows(total: int, rows: Array, first: int) -> int:
    """A sum with more rows.

    Args:
        total: of the rows before; 0 if there are none.
        rows: in C order.
        first: place of the first of them.
    """
    words = _words(rows)
    per_row = len(words) // max(1, len(rows))
    return (total + int(sorting.add_up(words, first * per_row))) & MASK


def add_segments(total: int, rows: Array, counts: Array, places: Array) -> int:
    """A sum with more rows, which come in segments.

    Args:
        total: of the rows before; 0 if there are none.
        rows: of all segments, in C order.
        counts: int64[segments], rows of each.
        places: int64[segments], place of the first row of each.
    """
    words = _words(rows)
    per_row = len(words) // max(1, len(rows))
    return (total + int(sorting.add_up_segments(words, counts * per_row, places * per_row))) & MASK


def sum_of_file(
    path: Path,
    dtype: np.dtype[Any],
    row: tuple[int, ...],
    ranges: Iterable[tuple[int, int]],
    offset: int = 0,
) -> int | None:
    """The sum of rows in a file; None if it does not hold them.

    Args:
        path: the file.
        dtype: of its values.
        row: shape of a row.
        ranges: first place and end of the rows to add.
        offset: byte of the file at which place 0 is.
    """
    row_bytes = dtype.itemsize * int(np.prod(row))
    total = 0
    if row_bytes == 0:
        return total
    step = max(1, PIECE // row_bytes)
    try:
        with path.open("rb", buffering=0) as file:
            for low, high in ranges:
                file.seek(offset + low * row_bytes)
                for first in range(low, high, step):
                    rows = np.empty((min(step, high - first), *row), dtype)
                    left = rows.reshape(-1).view(np.uint8).data
                    while len(left):
                        got = file.readinto(left)
                        if not got:
                            return None
                        left = left[got:]
                    total = add_rows(total, rows, first)
    except OSError:
        return None
    return total


def _words(rows: Array) -> Array:
    """The rows' bits as unsigned integers, the widest that rows are made of."""
    row_bytes = rows.dtype.itemsize * int(np.prod(rows.shape[1:]))
    size = next(size for size in (8, 4, 2, 1) if row_bytes % size == 0)
    return rows.reshape(-1).view(f"u{size}")
