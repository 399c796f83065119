"""Which of several parallel edges each edge is, for LABOR: of all edges, or a list of repeats."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from hopline.pipes.kernels import cpu
from hopline.pipes.kernels.compiling import kernel

__all__ = ["rank_parallel_edges", "repeated_edges"]

Array = np.ndarray[Any, Any]

CHUNK = 1 << 22  # edges that `repeated_edges` looks at between two extensions of its list


@kernel
def _rank(indptr, indices, edge_types, first, segment, stamps, counts, ranks):
    """How many edges before each edge have its source, in its column, or column and type.

    Args:
        indptr: int64[columns + 1], checked; of consecutive columns.
        indices: integer[num_edges], checked.
        edge_types: integer[num_edges], or empty: types do not matter.
        first: position that ranks[0] stands for.
        segment: as for the columns before returned; 0 at first.
        stamps: int64[num_nodes], all -1 at first; overwritten.
        counts: int32[num_nodes]; overwritten.
        ranks: int32[edges of the columns], out.

    Returns:
        Number of the last segment, a stamp.
    """
    typed = len(edge_types) > 0
    for v in range(len(indptr) - 1):
        segment += 1
        for e in range(indptr[v], indptr[v + 1]):
            if typed and e > indptr[v] and edge_types[e] != edge_types[e - 1]:
                segment += 1
            source = indices[e]
            if stamps[source] != segment:
                stamps[source] = segment
                counts[source] = 0
            else:
                counts[source] += 1
            ranks[e - first] = counts[source]
    return segment


def rank_parallel_edges(
    indptr: torch.Tensor, indices: torch.Tensor, edge_types: torch.Tensor | None
) -> torch.Tensor:
    """How many edges before each edge have the same source and the same column.

    Args:
        indptr: int64[num_nodes + 1], on the CPU.
        indices: integer[num_edges], sources, on the CPU.
        edge_types: integer[num_edges], ascending within a column, on the CPU: edges of different
            types are not parallel. None: they are.

    Returns:
        int32[num_edges]; 0 for the first of several parallel edges.

    Raises:
        ValueError: a pointer or an index is out of range: the graph is damaged.
    """
    columns, sources, kinds = _checked(indptr, indices, edge_types)
    ranks = np.zeros(len(sources), np.int32)
    stamps, counts = _scratch(len(columns) - 1)
    _rank(columns, sources, kinds, 0, np.int64(0), stamps, counts, ranks)
    return torch.from_numpy(ranks)


def repeated_edges(
    indptr: torch.Tensor, indices: torch.Tensor, edge_types: torch.Tensor | None
) -> tuple[Array, Array]:
    """The edges that have a parallel one before them; memory is for these, and for some at a time.

    Args:
        indptr: as in `rank_parallel_edges`.
        indices: likewise.
        edge_types: likewise.

    Returns:
        (int64[r], their positions, ascending; int32[r], how many are before each).

    Raises:
        ValueError: as in `rank_parallel_edges`.
    """
    columns, sources, kinds = _checked(indptr, indices, edge_types)
    stamps, counts = _scratch(len(columns) - 1)
    segment, low = np.int64(0), 0
    positions, before = [np.empty(0, np.int64)], [np.empty(0, np.int32)]
    while low < len(columns) - 1:
        fits = int(np.searchsorted(columns, columns[low] + CHUNK, side="right")) - 1
        high = min(max(fits, low + 1), len(columns) - 1)
        first = int(columns[low])
        ranks = np.zeros(int(columns[high]) - first, np.int32)
        part = columns[low : high + 1]
        segment = _rank(part, sources, kinds, first, segment, stamps, counts, ranks)
        found = np.flatnonzero(ranks)
        positions.append(found + first)
        before.append(ranks[found])
        low = high
    return np.concatenate(positions), np.concatenate(before)


def _scratch(num_nodes: int) -> tuple[Array, Array]:
    """(stamps, counts) of `_rank`."""
    return np.full(num_nodes, -1, np.int64), np.empty(num_nodes, np.int32)


def _checked(
    indptr: torch.Tensor, indices: torch.Tensor, edge_types: torch.Tensor | None
) -> tuple[Array, Array, Array]:
    """Pointers, sources and types of a graph that can be followed."""
    columns, sources = indptr.numpy(), indices.numpy()
    num_nodes = len(columns) - 1
    bad = cpu.first_bad_column(columns, len(sources))
    if bad >= 0:
        raise ValueError(
            f"indptr is damaged at node {bad}: [{columns[bad]}, {columns[bad + 1]}); expected an "
            f"ascending range within [0, {len(sources)}]"
        )
    bad = cpu.first_out_of_range(sources, 0, num_nodes)
    if bad >= 0:
        raise ValueError(
            f"indices[{bad}] is {sources[bad]}; expected a node in [0, {num_nodes}): the graph is "
            "damaged"
        )
    if edge_types is not None and len(edge_types) != len(sources):
        raise ValueError(
            f"edge_types has {len(edge_types)} entries; expected one for each of the "
            f"{len(sources)} edges"
        )
    return columns, sources, np.empty(0, np.uint8) if edge_types is None else edge_types.numpy()
