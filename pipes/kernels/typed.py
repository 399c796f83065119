"""CPU kernels at the border between fused ids and types; see `hopline.pipes.kernels.cpu`."""

from __future__ import annotations

import numpy as np

from hopline.pipes.kernels.compiling import kernel

__all__ = [
    "accumulate_typed_counts",
    "first_in_disorder",
    "split_hop",
    "split_nodes",
    "typed_ranks",
]

FEW_TYPES = 8  # node types up to which a comparison with each is faster than bisection


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
def typed_ranks(nodes, offsets, bounds, node_types, ranks, counts):
    """Type of each node, and its position among the list's nodes of that type.

    Args:
        nodes: integer[n], fused ids, all in range.
        offsets: int64[num_node_types + 1].
        bounds: int64[b], ascending, n at most: lengths of beginnings of the list.
        node_types: int32[n], out.
        ranks: int32[n], out.
        counts: int64[b, num_node_types], out: nodes of each type in each beginning.
    """
    num_types = len(offsets) - 1
    seen = np.zeros(num_types, np.int32)
    low = 0
    for b in range(len(bounds)):
        for i in range(low, bounds[b]):
            # Empty types share their offset with the next one: the last that starts at or below.
            node = np.int64(nodes[i])
            t = 0
            if num_types <= FEW_TYPES:
                for j in range(1, num_types):
                    t += node >= offsets[j]
            else:
                t = int(np.searchsorted(offsets, node, side="right")) - 1
            node_types[i] = t
            ranks[i] = seen[t]
            seen[t] += 1
        low = bounds[b]
        for t in range(num_types):
            counts[b, t] = seen[t]


@kernel
def split_nodes(nodes, offsets, node_types, ranks, counts, out):
    """Lists the nodes of each type, one type after another, by ids within the type.

    Args:
        nodes: integer[n], fused ids.
        offsets: int64[num_node_types + 1].
        node_types: int32[n], from `typed_ranks`.
        ranks: int32[n], from `typed_ranks`.
        counts: int64[num_node_types], nodes of each type.
        out: integer[n], out.
    """
    starts = np.zeros(len(counts), np.int64)
    for t in range(1, len(counts)):
        starts[t] = starts[t - 1] + counts[t - 1]
    for i in range(len(nodes)):
        t = node_types[i]
        out[starts[t] + ranks[i]] = nodes[i] - offsets[t]


@kernel
def split_hop(
    segments, local, neighbors, positions, columns, sources, destinations, offsets, node_types,
    ranks, indptr, indices, edge_ids, starts, wrong,
):  # fmt: skip
    """Splits a fused hop by edge type, one type after another.

    Args:
        segments: int64[n * T + 1].
        local: int32[picks], positions in the fused list.
        neighbors: integer[picks], the sources' fused ids: nodes of the list at local.
        positions: int64[picks].
        columns: int64[num_node_types], destinations of each type; n in all.
        sources: int64[T], node type that each edge type starts from.
        destinations: int64[T], node type that each edge type ends in.
        offsets: int64[num_node_types + 1], first fused id of each node type.
        node_types: int32[rows], from `typed_ranks`; only of the destinations.
        ranks: int32[rows], from `typed_ranks`.
        indptr: int64[...], out: pointers of each edge type, one more than its destinations.
        indices: int32[picks], out: positions in the list of the source type.
        edge_ids: int64[picks], out: positions in CSC order.
        starts: int64[T + 1], out: where each edge type begins in indices and edge_ids.
        wrong: int64[T], out: -1, or the position of the first edge of the type whose source is of
            another.

    Returns:
        Edges in all; below the number of picks if some have a type that does not end in the type
        of their destination.
    """
    num_types = len(sources)
    # The destinations of each node type, in order.
    ends = np.cumsum(columns)
    cursor = ends - columns
    listed = np.empty(columns.sum(), np.int64)
    for i in range(len(listed)):
        d = node_types[i]
        listed[cursor[d]] = i
        cursor[d] += 1
    at = np.int64(0)
    to = np.int64(0)
    starts[0] = 0
    for t in range(num_types):
        # Read one after another, sources tell their types sooner than the list does.
        lowest = offsets[sources[t]]
        beyond = offsets[sources[t] + 1]
        d = destinations[t]
        others = 0
        indptr[at] = 0
        at += 1
        for x in range(ends[d] - columns[d], ends[d]):
            s = listed[x] * num_types + t
            for e in range(segments[s], segments[s + 1]):
                source = np.int64(neighbors[e])
                others += (source < lowest) | (source >= beyond)
                indices[to] = ranks[local[e]]
                edge_ids[to] = positions[e]
                to += 1
            indptr[at] = to - starts[t]
            at += 1
        starts[t + 1] = to
        wrong[t] = -1
        if others > 0:
            wrong[t] = _first_other(
                segments, neighbors, positions, listed[ends[d] - columns[d] : ends[d]], t,
                num_types, lowest, beyond,
            )  # fmt: skip
    return to


@kernel
def _first_other(segments, neighbors, positions, listed, t, num_types, lowest, beyond):
    """Position of the first edge of type t whose source is of another type; it has one."""
    for i in listed:
        s = i * num_types + t
        for e in range(segments[s], segments[s + 1]):
            if neighbors[e] < lowest or neighbors[e] >= beyond:
                return positions[e]
    return np.int64(-1)
