"""CPU kernels at the border between fused ids and types; see `hopline.pipes.kernels.cpu`."""

from __future__ import annotations

import numpy as np

from hopline.pipes.kernels.compiling import kernel

__all__ = ["accumulate_typed_counts", "first_in_disorder", "split_segments", "typed_ranks"]

FEW_TYPES = 8  # node types up to which looking at one after another is faster than bisection


@kernel
def accumulate_typed_counts(kinds, picked, num_types, out):
    """Turns a running sum over columns into one over (column, edge type).

    Args:
        kinds: integer[picks], types of the edges picked, ascending within a column.
        picked: int64[n + 1].
        num_types: number of edge types T.
        out: int64[n * T + 1], out.

    Returns:
        -1, or the first pick whose type is unknown or out of order.
    """
    out[:] = 0
    for i in range(len(picked) - 1):
        previous = np.int64(0)
        for e in range(picked[i], picked[i + 1]):
            t = np.int64(kinds[e])
            if t < previous or t >= num_types:
                return e
            previous = t
            out[i * num_types + t + 1] += 1
    for s in range(1, len(out)):
        out[s] += out[s - 1]
    return np.int64(-1)


@kernel
def first_in_disorder(indptr, edge_types, num_types):
    """First edge of unknown type, or of one below that of the edge before in its column; or -1.

    Args:
        indptr: int64[num_nodes + 1], ascending, to the number of edges at most.
        edge_types: integer[num_edges].
        num_types: number of edge types.
    """
    for v in range(len(indptr) - 1):
        previous = np.int64(0)
        for e in range(indptr[v], indptr[v + 1]):
            t = np.int64(edge_types[e])
            if t < previous or t >= num_types:
                return e
            previous = t
    return np.int64(-1)


@kernel
def typed_ranks(nodes, offsets, node_types, ranks):
    """Type of each node, and its position among the list's nodes of that type.

    Args:
        nodes: integer[n], fused ids.
        offsets: int64[num_node_types + 1].
        node_types: int32[n], out.
        ranks: int32[n], out.
    """
    counts = np.zeros(len(offsets) - 1, np.int32)
    for i in range(len(nodes)):
        # Empty types share their offset with the next one: the last that starts at or below.
        node = np.int64(nodes[i])
        t = 0
        if len(offsets) - 1 <= FEW_TYPES:
            while node >= offsets[t + 1]:
                t += 1
        else:
            t = int(np.searchsorted(offsets, node, side="right")) - 1
        node_types[i] = t
        ranks[i] = counts[t]
        counts[t] += 1


@kernel
def split_segments(
    segments, starts, local, source_type, node_types, ranks, positions, indptr, indices, edge_ids
):
    """Copies one edge type's segments out of a fused hop.

    Args:
        segments: int64[n * T + 1].
        starts: int64[c], the segments to copy.
        local: int32[picks], positions in the fused list.
        source_type: node type that the edge type starts from.
        node_types: int32[rows], from `typed_ranks`.
        ranks: int32[rows], from `typed_ranks`.
        positions: int64[picks].
        indptr: int64[c + 1], out.
        indices: int32[edges], out: positions in the list of the source type.
        edge_ids: int64[edges], out: positions in CSC order.

    Returns:
        -1, or the position of the first edge whose source is of another type.
    """
    at = np.int64(0)
    indptr[0] = 0
    for i in range(len(starts)):
        for e in range(segments[starts[i]], segments[starts[i] + 1]):
            if node_types[local[e]] != source_type:
                return positions[e]
            indices[at] = ranks[local[e]]
            edge_ids[at] = positions[e]
            at += 1
        indptr[i + 1] = at
    return np.int64(-1)
