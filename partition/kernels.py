"""CPU kernels of partitioning, and of answers that come from several parts.

Like `hopline.pipes.kernels.cpu`: serial, without the GIL, all helpers in this file.
"""

from __future__ import annotations

import numpy as np

from hopline.pipes.kernels.compiling import kernel

__all__ = [
    "attachment",
    "copy_columns",
    "count_cut",
    "count_edges_of_parts",
    "count_ends",
    "count_halo",
    "fill_neighbors",
    "mark_sources",
    "merge_neighbors",
    "move_nodes",
    "number_edges",
    "stream_nodes",
]


# ---------------------------------------------------------------------------------------------
# The undirected adjacency


@kernel
def count_ends(indptr, indices, starts):
    """Adds to starts[v + 1] the entries that node v will have, repeats included."""
    for v in range(len(indptr) - 1):
        for e in range(indptr[v], indptr[v + 1]):
            u = indices[e]
            if u != v:
                starts[u + 1] += 1
                starts[v + 1] += 1


@kernel
def fill_neighbors(indptr, indices, cursor, neighbors):
    """Enters both ends of every edge; cursor[v] is where node v's next entry goes."""
    for v in range(len(indptr) - 1):
        for e in range(indptr[v], indptr[v + 1]):
            u = indices[e]
            if u != v:
                neighbors[cursor[u]] = v
                cursor[u] += 1
                neighbors[cursor[v]] = u
                cursor[v] += 1


@kernel
def merge_neighbors(starts, neighbors):
    """Sorts each node's entries and drops repeats, in place; returns how many are left."""
    kept = np.int64(0)
    low = starts[0]
    for v in range(len(starts) - 1):
        high = starts[v + 1]
        neighbors[low:high].sort()
        starts[v] = kept
        for e in range(low, high):
            if e == low or neighbors[e] != neighbors[e - 1]:
                neighbors[kept] = neighbors[e]
                kept += 1
        low = high
    starts[-1] = kept
    return kept


# ---------------------------------------------------------------------------------------------
# Quality


@kernel
def count_cut(indptr, indices, parts, edges):
    """Counts the in-edges of each part; returns how many come from another."""
    cut = np.int64(0)
    for v in range(len(indptr) - 1):
        own = parts[v]
        edges[own] += indptr[v + 1] - indptr[v]
        for e in range(indptr[v], indptr[v + 1]):
            cut += parts[indices[e]] != own
    return cut


@kernel
def count_halo(indptr, indices, parts, order, stamps, halo):
    """Counts the distinct sources of other parts; order lists the nodes part by part."""
    for v in order:
        own = parts[v]
        for e in range(indptr[v], indptr[v + 1]):
            u = indices[e]
            if parts[u] != own and stamps[u] != own:
                stamps[u] = own
                halo[own] += 1


# ---------------------------------------------------------------------------------------------
# Linear deterministic greedy


@kernel
def stream_nodes(indptr, indices, order, capacity, parts, sizes, counts):
    """One pass: puts each node of order where most of its in-neighbours are.

    Args:
        indptr: int64[num_nodes + 1].
        indices: integer[num_edges], sources.
        order: int64[num_nodes], all nodes.
        capacity: most nodes of a part; times the number of parts, as many as there are nodes.
        parts: int32[num_nodes], -1 where a node has no part yet; changed.
        sizes: int64[num_parts], nodes of each part; changed.
        counts: int64[num_parts], zeros; zeros again at the end.
    """
    for v in order:
        if parts[v] >= 0:
            sizes[parts[v]] -= 1
        for e in range(indptr[v], indptr[v + 1]):
            u = indices[e]
            if u != v and parts[u] >= 0:
                counts[parts[u]] += 1
        best = -1
        best_score = -1.0
        for p in range(len(sizes)):
            if sizes[p] >= capacity:
                continue
            score = np.float64(counts[p]) * (1.0 - np.float64(sizes[p]) / np.float64(capacity))
            if score > best_score or (score == best_score and sizes[p] < sizes[best]):
                best = p
                best_score = score
        for e in range(indptr[v], indptr[v + 1]):
            u = indices[e]
            if u != v and parts[u] >= 0:
                counts[parts[u]] = 0
        parts[v] = best
        sizes[best] += 1


# ---------------------------------------------------------------------------------------------
# Balance


@kernel
def attachment(starts, neighbors, parts, candidates, counts, out):
    """out[i]: neighbours of candidate i in its own part, less those in the best other part.

    Args:
        starts: int64[num_nodes + 1].
        neighbors: integer[entries].
        parts: int32[num_nodes].
        candidates: int64[n].
        counts: int64[num_parts], zeros; zeros again at the end.
        out: int64[n], out.
    """
    for i in range(len(candidates)):
        v = candidates[i]
        own = parts[v]
        best = np.int64(0)
        for e in range(starts[v], starts[v + 1]):
            p = parts[neighbors[e]]
            counts[p] += 1
            if p != own:
                best = max(best, counts[p])
        out[i] = counts[own] - best
        for e in range(starts[v], starts[v + 1]):
            counts[parts[neighbors[e]]] = 0


@kernel
def move_nodes(
    starts, neighbors, degrees, groups, candidates, row, part, parts, loads, limits, counts
):
    """Moves candidates out of a part until its load of a row is within the limit.

    Args:
        starts: int64[num_nodes + 1].
        neighbors: integer[entries].
        degrees: int64[num_nodes], edges that a node brings.
        groups: int32[num_nodes], -1 for none.
        candidates: int64[n], nodes of the part that count in the row.
        row: which load.
        part: the part.
        parts: int32[num_nodes]; changed.
        loads: int64[rows, num_parts]; changed.
        limits: int64[rows].
        counts: int64[num_parts], zeros; zeros again at the end.

    Returns:
        Nodes moved.
    """
    moved = 0
    for v in candidates:
        if loads[row, part] <= limits[row]:
            break
        for e in range(starts[v], starts[v + 1]):
            counts[parts[neighbors[e]]] += 1
        group = np.int64(groups[v]) + 2
        best = -1
        for q in range(loads.shape[1]):
            if q == part or loads[0, q] + 1 > limits[0]:
                continue
            if loads[1, q] + degrees[v] > limits[1]:
                continue
            if group >= 2 and loads[group, q] + 1 > limits[group]:
                continue
            if (
                best < 0
                or counts[q] > counts[best]
                or (counts[q] == counts[best] and loads[row, q] < loads[row, best])
            ):
                best = q
        for e in range(starts[v], starts[v + 1]):
            counts[parts[neighbors[e]]] = 0
        if best < 0:
            continue
        parts[v] = best
        for p, change in ((part, -1), (best, 1)):
            loads[0, p] += change
            loads[1, p] += change * degrees[v]
            if group >= 2:
                loads[group, p] += change
        moved += 1
    return moved


# ---------------------------------------------------------------------------------------------
# New ids


@kernel
def count_edges_of_parts(indptr, edge_types, parts, counts):
    """Adds each edge to counts[type, part of its destination]; edge_types may be empty."""
    for v in range(len(indptr) - 1):
        part = parts[v]
        if len(edge_types) == 0:
            counts[0, part] += indptr[v + 1] - indptr[v]
            continue
        for e in range(indptr[v], indptr[v + 1]):
            counts[edge_types[e], part] += 1


# ---------------------------------------------------------------------------------------------
# Parts


@kernel
def mark_sources(indptr, indices, columns, found):
    """Marks the sources of the columns' edges that are not yet marked: found[v] becomes 2.

    Args:
        indptr: int64[num_nodes + 1].
        indices: integer[num_edges].
        columns: int64[n].
        found: uint8[num_nodes], 0 where a node is not among the rows; changed.
    """
    for v in columns:
        for e in range(indptr[v], indptr[v + 1]):
            if found[indices[e]] == 0:
                found[indices[e]] = 2


@kernel
def copy_columns(indptr, indices, columns, places, out_indptr, out_indices, positions):
    """Copies the in-edges of columns, their sources as rows of the part.

    Args:
        indptr: int64[num_nodes + 1].
        indices: integer[num_edges].
        columns: int64[rows], fused ids; -1 for a row without edges.
        places: int32[num_nodes], row of each node.
        out_indptr: int64[rows + 1], as `columns` has them; read.
        out_indices: integer[edges], out.
        positions: int64[edges], out: the edges' positions in the whole graph.
    """
    for i in range(len(columns)):
        if columns[i] < 0:
            continue
        first = indptr[columns[i]]
        at = out_indptr[i]
        for j in range(out_indptr[i + 1] - at):
            out_indices[at + j] = places[indices[first + j]]
            positions[at + j] = first + j


@kernel
def number_edges(edge_types, bounds, out):
    """out[e] = bounds[type of e] + how many edges of its type come before it.

    Args:
        edge_types: integer[edges], or empty: one type.
        bounds: int64[T]; changed.
        out: int64[edges], out.
    """
    for e in range(len(out)):
        t = np.int64(edge_types[e]) if len(edge_types) > 0 else np.int64(0)
        out[e] = bounds[t]
        bounds[t] += 1
