"""Placing: which rank answers for which part, and what goes to whom."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from hopline.partition.batch_kernels import find_parts, sort_parts
from hopline.partition.book import PartitionBook

__all__ = ["Placing", "in_order"]

Array = np.ndarray[Any, Any]


class Placing:
    """Parts on ranks, seen from one rank.

    With as many ranks as parts or more, some ranks after each other share a part; with fewer, each
    has some parts after each other. Of the ranks that share a part, each asks those of another part
    that have its own place among them.

    Args:
        book: owners of nodes.
        rank: this rank.
        world_size: number of ranks.

    Raises:
        ValueError: neither number is a multiple of the other.

    Attributes:
        own_parts: parts that this rank opens.
        ranks: int64[num_parts], who is asked for each part: this rank for its own.
        offsets: int64[num_node_types + 1], first fused id of each node type.
    """

    def __init__(self, book: PartitionBook, rank: int, world_size: int) -> None:
        parts = book.num_parts
        if world_size % parts and parts % world_size:
            raise ValueError(
                f"there are {world_size} ranks and {parts} parts; expected one to be a multiple of "
                "the other: start another number of ranks, or partition the graph again"
            )
        self._num_parts, self._world_size = parts, world_size
        self.own_parts = self.parts_of(rank)
        if world_size >= parts:
            share = world_size // parts
            self.ranks = np.arange(parts) * share + rank % share
        else:
            self.ranks = np.arange(parts) // (parts // world_size)
        counts = [book.num_nodes(kind) for kind in book.node_types]
        self.offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        # First fused id of each part of each type, and the end; empty parts share it with the next.
        self._starts = np.array(
            [
                low + book.node_range(part, kind).start
                for kind, low in zip(book.node_types, self.offsets.tolist(), strict=False)
                for part in range(parts)
            ]
            + [int(self.offsets[-1])],
            np.int64,
        )

    def parts_of(self, rank: int) -> list[int]:
        """The parts that a rank opens."""
        if self._world_size >= self._num_parts:
            return [rank // (self._world_size // self._num_parts)]
        share = self._num_parts // self._world_size
        return list(range(rank * share, (rank + 1) * share))

    def part_of(self, columns: Array) -> Array:
        """int64[n]: the part that owns each node.

        Args:
            columns: integer[n], new fused ids.

        Raises:
            IndexError: an id is out of range.
        """
        parts = np.empty(len(columns), np.int64)
        bad = find_parts(columns, self._starts, self._num_parts, parts)
        if bad >= 0:
            raise IndexError(
                f"node {columns[bad]} (new fused id) is outside [0, {self._starts[-1]})"
            )
        return parts

    def by_rank(self, bounds: Array) -> Iterator[tuple[int, int, int, Array, Array]]:
        """(rank, begin, end, its parts, how many of each) of each rank that is asked.

        Args:
            bounds: int64[num_parts + 1], where those of each part begin, in the order of parts.
        """
        counts = np.diff(bounds)
        asked = np.flatnonzero(counts)
        ranks = self.ranks[asked]  # ascending, as the parts are
        for rank in dict.fromkeys(ranks.tolist()):
            numbers = asked[ranks == rank]
            low, high = int(bounds[numbers[0]]), int(bounds[numbers[-1] + 1])
            yield rank, low, high, numbers.astype(np.int64), counts[numbers]


def in_order(parts: Array, num_parts: int) -> tuple[Array, Array]:
    """Puts nodes or edges in the order of their parts.

    Args:
        parts: integer[n], of each.
        num_parts: number of parts P.

    Returns:
        (int64[n] the order, int64[P + 1] where those of each part begin in it).
    """
    order, bounds = np.empty(len(parts), np.int64), np.empty(num_parts + 1, np.int64)
    sort_parts(parts, order, bounds)
    return order, bounds
