"""Placing: which rank answers for which part, and what goes to whom."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from hopline.partition.book import PartitionBook

__all__ = ["Placing"]

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
        # First fused id of each part of each type: the part of an id is that of the last which
        # begins at or below it; empty parts share it with the next.
        self._starts = np.array(
            [
                low + book.node_range(part, kind).start
                for kind, low in zip(book.node_types, self.offsets.tolist(), strict=False)
                for part in range(parts)
            ],
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
        """
        found: Array = (np.searchsorted(self._starts, columns, side="right") - 1) % self._num_parts
        return found

    def sort(self, columns: Array, here: Array, home: Array) -> tuple[Array, Array, Array]:
        """Puts columns in the order of who is asked.

        Args:
            columns: integer[n], new fused ids.
            here: bool[n], whether one of the own parts can answer.
            home: int64[n], which one, where here.

        Returns:
            (int64[n] part that is asked for each, int64[n] the columns' order by rank and part,
            int64[ranks + 1] where each rank's begin in that order).
        """
        parts = np.where(here, home, self.part_of(columns))
        ranks = np.where(here, self.ranks[self.own_parts[0]], self.ranks[parts])
        order = np.lexsort((parts, ranks))
        most = int(ranks.max()) + 1 if len(ranks) else 0
        bounds = np.searchsorted(ranks[order], np.arange(most + 1))
        return parts[order], order, bounds

    def by_rank(self, parts: Array, bounds: Array) -> Iterator[tuple[int, int, int, Array, Array]]:
        """(rank, begin, end, its parts, columns of each) of each rank that is asked."""
        for rank in range(len(bounds) - 1):
            low, high = int(bounds[rank]), int(bounds[rank + 1])
            if low < high:
                numbers, counts = np.unique(parts[low:high], return_counts=True)
                yield rank, low, high, numbers.astype(np.int64), counts.astype(np.int64)
