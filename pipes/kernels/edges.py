"""CPU kernels over pairs of nodes: negative destinations, and edges to be left out.

Like `hopline.pipes.kernels.cpu`: serial, without the GIL, all helpers in this file.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from hopline.pipes.kernels.compiling import kernel

__all__ = [
    "ATTEMPTS",
    "MARKS",
    "draw_destinations",
    "find_edges",
    "keep_edges",
    "propose_destinations",
]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_A = np.uint64(0xBF58476D1CE4E5B9)
MIX_B = np.uint64(0x94D049BB133111EB)
ONE = np.uint64(1)
U27 = np.uint64(27)
U30 = np.uint64(30)
U31 = np.uint64(31)

MARKS = 16  # marks of columns for each slot of the set of pairs
ATTEMPTS = 64  # draws of a destination before all candidates are looked at in turn


@intrinsic
def _mulhi(typingctx: Any, a: Any, b: Any) -> Any:
    """High 64 bits of the 128-bit product of two unsigned words."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(args[0], wide), builder.zext(args[1], wide))
        return builder.trunc(builder.lshr(product, wide(64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), codegen


@kernel(inline="always")
def _mix64(word):
    word = (word ^ (word >> U30)) * MIX_A
    word = (word ^ (word >> U27)) * MIX_B
    return word ^ (word >> U31)


@kernel(inline="always")
def _fold(key, counter):
    return _mix64(key + GOLDEN * (np.uint64(counter) + ONE))


@kernel(inline="always")
def _below(word, bound):
    return np.int64(_mulhi(word, np.uint64(bound)))


# ---------------------------------------------------------------------------------------------
# Negative destinations


@kernel
def _is_edge(indptr, indices, edge_types, etype, source, column):
    """1 if the column has an in-edge of the type from the source, 0 if not, -1 if damaged."""
    low = indptr[column]
    high = indptr[column + 1]
    if low < 0 or low > high or high > len(indices):
        return -1
    if len(edge_types) > 0:
        # The type's edges lie together: binary search for the first at or above it.
        end = high
        while low < high:
            middle = (low + high) >> 1
            if edge_types[middle] < etype:
                low = middle + 1
            else:
                high = middle
        high = end
    for e in range(low, high):
        if len(edge_types) > 0 and edge_types[e] != etype:
            return 0
        if indices[e] == source:
            return 1
    return 0


@kernel
def _stride(stream, count):
    """A drawn step in [1, count) without a common divisor: it visits all of [0, count)."""
    if count < 3:
        return 1
    step = 1 + _below(_fold(stream, ATTEMPTS + 1), count - 1)
    while True:
        a = np.int64(count)
        b = np.int64(step)
        while b != 0:
            a, b = b, a % b
        if a == 1:
            return step
        step = step + 1 if step + 1 < count else 1


@kernel
def draw_destinations(
    key, ratio, counts, order, avoid, sources, first, indptr, indices, edge_types, etype, out
):
    """Draws the destinations of negatives, each evenly among its candidates.

    Attempt a for negative n is fold(fold(key, n), a), n counting the negatives of all pairs. Where
    true edges are avoided and ATTEMPTS draws have met nothing else, the candidates are looked at in
    turn, from a drawn one with a drawn stride: about evenly, wherever the free ones lie.

    Args:
        key: uint64, the key of the mini-batch and the edge type.
        ratio: negatives a pair.
        counts: int64[pairs], number of candidates of each pair, 1 or more.
        order: integer[nodes], the pair's candidates are its first entries; or empty: candidates
            are 0, 1, ...
        avoid: bool, leave out destinations that the source has an edge to.
        sources: int64[pairs], fused ids; not read unless avoid.
        first: fused id of destination 0.
        indptr: int64[num_nodes + 1]; first plus any candidate is a column.
        indices: integer[num_edges].
        edge_types: integer[num_edges], ascending within a column, or empty: one type.
        etype: the edge type to avoid.
        out: int64[pairs * ratio], out: destinations, from 0 within their type.

    Returns:
        -1; or the first pair without a destination; or -2 - v if the pointers of column v are
        damaged.
    """
    for n in range(len(out)):
        i = n // ratio
        count = counts[i]
        stream = _fold(key, n)
        found = False
        for attempt in range(ATTEMPTS):
            at = _below(_fold(stream, attempt), count)
            destination = np.int64(order[at]) if len(order) > 0 else at
            state = 0
            if avoid:
                state = _is_edge(
                    indptr, indices, edge_types, etype, sources[i], first + destination
                )
            if state < 0:
                return -2 - (first + destination)
            if state == 0:
                out[n] = destination
                found = True
                break
        if found:
            continue
        at = _below(_fold(stream, ATTEMPTS), count)
        step = _stride(stream, count)
        for _visit in range(count):
            destination = np.int64(order[at]) if len(order) > 0 else at
            state = _is_edge(indptr, indices, edge_types, etype, sources[i], first + destination)
            if state < 0:
                return -2 - (first + destination)
            if state == 0:
                out[n] = destination
                found = True
                break
            at += step
            if at >= count:
                at -= count
        if not found:
            return i
    return -1


@kernel
def propose_destinations(key, ratio, counts, order, wanted, first, cursors, out):
    """The draws of `draw_destinations`, for whoever looks elsewhere whether they are edges.

    Args:
        key: as of `draw_destinations`; so are ratio, counts and order.
        ratio: negatives a pair.
        counts: int64[pairs].
        order: integer[nodes], or empty.
        wanted: int64[k], numbers of negatives.
        first: number of a draw: below ATTEMPTS it is made by itself, from there on candidates are
            taken in turn, of which none has been left out.
        cursors: int64[k], -1 before the turn begins, else which candidate is next; changed.
        out: int64[k, draws], out: destinations of draws first, first + 1, ... of each; -1 once all
            candidates have had their turn.
    """
    for i in range(len(wanted)):
        n = wanted[i]
        count = counts[n // ratio]
        stream = _fold(key, n)
        step = np.int64(0)
        for j in range(out.shape[1]):
            draw = first + j
            if draw < ATTEMPTS:
                at = _below(_fold(stream, draw), count)
            elif draw - ATTEMPTS >= count:
                out[i, j] = -1
                continue
            else:
                if step == 0:
                    step = _stride(stream, count)
                at = cursors[i]
                if at < 0:
                    at = _below(_fold(stream, ATTEMPTS), count)
                cursors[i] = at + step if at + step < count else at + step - count
            out[i, j] = np.int64(order[at]) if len(order) > 0 else at


@kernel
def find_edges(indptr, indices, edge_types, etype, sources, columns, out):
    """out[i]: whether there is an edge of a type from a source to a column.

    Args:
        indptr: int64[num_columns + 1].
        indices: integer[num_edges].
        edge_types: integer[num_edges], ascending within a column, or empty: one type.
        etype: which type.
        sources: int64[n], as indices name them.
        columns: int64[n], all in range.
        out: bool[n], out.

    Returns:
        -1; or the first i whose column has damaged pointers.
    """
    for i in range(len(sources)):
        state = _is_edge(indptr, indices, edge_types, etype, sources[i], columns[i])
        if state < 0:
            return i
        out[i] = state == 1
    return -1


# ---------------------------------------------------------------------------------------------
# Edges to be left out


@kernel
def keep_edges(
    indptr, indices, rows, relabelled, columns, sources, destinations, kept_indptr, kept
):
    """Finds the edges that are not among given pairs, by a hash set of the pairs.

    Args:
        indptr: int64[num_columns + 1].
        indices: integer[num_edges], positions in rows if relabelled, else ids.
        rows: integer[num_rows], ids.
        relabelled: bool.
        columns: integer[num_columns], ids.
        sources: int64[n], ids.
        destinations: int64[n], ids.
        kept_indptr: int64[num_columns + 1], out.
        kept: int64[num_edges], out: positions of the edges that stay, ascending.

    Returns:
        How many stay; -1 - i if the pointers or indices of column i are damaged.
    """
    capacity = 4
    while capacity < 2 * len(sources):
        capacity *= 2
    mask = np.uint64(capacity - 1)
    table = np.full(capacity, -1, np.int64)
    # A column whose mark is not set has no edge in the set: most columns of outer hops. With so
    # many marks, few columns find one that another has set.
    marks = np.zeros(capacity * MARKS, np.bool_)
    mark_mask = np.uint64(capacity * MARKS - 1)
    for p in range(len(sources)):
        marks[_mix64(np.uint64(destinations[p])) & mark_mask] = True
        slot = _mix64(np.uint64(sources[p]) * GOLDEN + np.uint64(destinations[p])) & mask
        while table[slot] != -1:
            q = table[slot]
            if sources[q] == sources[p] and destinations[q] == destinations[p]:
                break
            slot = (slot + ONE) & mask
        if table[slot] == -1:
            table[slot] = p
    count = np.int64(0)
    kept_indptr[0] = 0
    for i in range(len(columns)):
        low = indptr[i]
        high = indptr[i + 1]
        if low < 0 or low > high or high > len(indices) or count + high - low > len(kept):
            return -1 - i
        destination = np.int64(columns[i])
        if not marks[_mix64(np.uint64(destination)) & mark_mask]:
            for e in range(low, high):
                kept[count] = e
                count += 1
            kept_indptr[i + 1] = count
            continue
        for e in range(low, high):
            source = np.int64(indices[e])
            if relabelled:
                if source < 0 or source >= len(rows):
                    return -1 - i
                source = np.int64(rows[source])
            slot = _mix64(np.uint64(source) * GOLDEN + np.uint64(destination)) & mask
            listed = False
            while table[slot] != -1:
                q = table[slot]
                if sources[q] == source and destinations[q] == destination:
                    listed = True
                    break
                slot = (slot + ONE) & mask
            if not listed:
                kept[count] = e
                count += 1
        kept_indptr[i + 1] = count
    return count
