"""rank_parallel_edges: which of several parallel edges each edge is, for LABOR on a GPU."""

from __future__ import annotations

import numpy as np
import torch

from hopline.pipes.kernels import cpu
from hopline.pipes.kernels.compiling import kernel

__all__ = ["rank_parallel_edges"]


@kernel
def _rank(indptr, indices, edge_types, stamps, counts, ranks):
    """How many edges before each edge have its source, in its column, or column and type.

    Args:
        indptr: int64[num_nodes + 1], checked.
        indices: integer[num_edges], checked.
        edge_types: integer[num_edges], or empty: types do not matter.
        stamps: int64[num_nodes], all -1; overwritten.
        counts: int32[num_nodes]; overwritten.
        ranks: int32[num_edges], out.
    """
    typed = len(edge_types) > 0
    segment = np.int64(0)
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
            ranks[e] = counts[source]


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
    kinds = np.empty(0, np.uint8) if edge_types is None else edge_types.numpy()
    ranks = np.zeros(len(sources), np.int32)
    stamps = np.full(num_nodes, -1, np.int64)
    _rank(columns, sources, kinds, stamps, np.empty(num_nodes, np.int32), ranks)
    return torch.from_numpy(ranks)
