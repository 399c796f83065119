"""move_surplus: repairs an assignment that has too much of something in a part.

A partitioner with one constraint bounds the number of nodes. What else is to be balanced (edges,
training nodes, node types) is brought below its limit afterwards: nodes leave a part that has too
many, those with the fewest neighbours there first, for the part with most of their neighbours that
has room for all that they bring.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hopline.partition.kernels import attachment, move_nodes

__all__ = ["Loads", "move_surplus"]

Array = np.ndarray[Any, Any]

ROUNDS = 4  # over all that is to be balanced; room appears as other nodes move
NODES, EDGES, GROUPS = 0, 1, 2  # rows of the loads; a row for each group from GROUPS on
UNBOUNDED = 1 << 62


@dataclass(frozen=True, slots=True)
class Loads:
    """What each part carries, and may carry.

    Attributes:
        loads: int64[2 + num_groups, num_parts], nodes, edges, and nodes of each group.
        limits: int64[2 + num_groups].
    """

    loads: Array
    limits: Array

    @staticmethod
    def of(
        indptr: Array, parts: Array, num_parts: int, groups: Array, num_groups: int, *,
        eps: float, balance_edges: bool,
    ) -> Loads:  # fmt: skip
        """The loads of an assignment.

        Args:
            indptr: int64[num_nodes + 1]; edges belong to the part of their destination.
            parts: int32[num_nodes].
            num_parts: number of parts.
            groups: int32[num_nodes], the group of each node, -1 for none.
            num_groups: number of groups.
            eps: how far above the mean a part may be: 0.1 allows 1.1 times the mean.
            balance_edges: bound the edges too.
        """
        degrees = np.diff(indptr)
        loads = np.zeros((GROUPS + num_groups, num_parts), np.int64)
        loads[NODES] = np.bincount(parts, minlength=num_parts)
        np.add.at(loads[EDGES], parts, degrees)
        member = groups >= 0
        np.add.at(loads, (groups[member] + GROUPS, parts[member]), 1)
        totals = loads.sum(axis=1)
        limits = np.maximum(-(-totals // num_parts), ((1 + eps) * totals / num_parts).astype(int))
        if not balance_edges:
            limits[EDGES] = UNBOUNDED
        return Loads(loads, limits)

    def surplus(self) -> list[tuple[int, int]]:
        """(row, part) of every load above its limit, the largest excess over its limit first."""
        rows, parts = np.nonzero(self.loads > self.limits[:, None])
        excess = self.loads[rows, parts] / np.maximum(self.limits[rows], 1)
        order = np.argsort(-excess, kind="stable")
        return [(int(rows[i]), int(parts[i])) for i in order]


def move_surplus(
    starts: Array,
    neighbors: Array,
    indptr: Array,
    parts: Array,
    groups: Array,
    loads: Loads,
) -> int:
    """Moves nodes until no load is above its limit, or no node has anywhere to go.

    Args:
        starts: int64[num_nodes + 1], of the adjacency that tells neighbours.
        neighbors: integer[entries].
        indptr: int64[num_nodes + 1], of the graph.
        parts: int32[num_nodes]; changed.
        groups: int32[num_nodes], -1 for none.
        loads: of these parts; changed with them.

    Returns:
        Nodes moved.
    """
    degrees = np.diff(indptr)
    counts = np.zeros(loads.loads.shape[1], np.int64)
    total = 0
    for _ in range(ROUNDS):
        moved = 0
        for row, part in loads.surplus():
            counted = parts == part
            if row == EDGES:
                counted &= degrees > 0
            elif row >= GROUPS:
                counted &= groups == row - GROUPS
            candidates = np.flatnonzero(counted)
            attached = np.empty(len(candidates), np.int64)
            attachment(starts, neighbors, parts, candidates, counts, attached)
            candidates = candidates[np.argsort(attached, kind="stable")]
            moved += move_nodes(
                starts, neighbors, degrees, groups, candidates, row, part, parts, loads.loads,
                loads.limits, counts,
            )  # fmt: skip
        total += moved
        if not moved:
            break
    return total
