"""columns_of_rank: how columns are shared out to ranks."""

from __future__ import annotations

__all__ = ["columns_of_rank"]


def columns_of_rank(width: int, rank: int, world_size: int) -> slice:
    """The columns of a rank: as many as on any other, or one more; none on ranks beyond the width.

    >>> [columns_of_rank(5, rank, 3) for rank in range(3)]
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    each, more = divmod(width, world_size)
    low = rank * each + min(rank, more)
    return slice(low, low + each + (rank < more))
