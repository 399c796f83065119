"""CPU kernels: Numba, serial, without the GIL.

Parallelism is over mini-batches: several threads run these kernels at once, each on its own
output. All helpers live in this file, since Numba's cache does not see edits in another one.

Random draws repeat `hopline.pipes.random.fold` word for word; tests compare the two.
Memory latency is hidden by software prefetching: each loop asks for what it needs a few
iterations before it needs it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from hopline.pipes.kernels.compiling import kernel

__all__ = [
    "count_destinations",
    "count_picks",
    "first_bad_column",
    "first_mistyped_edge",
    "first_out_of_range",
    "pick_neighbors",
    "place_edges",
    "shuffled_range",
]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_A = np.uint64(0xBF58476D1CE4E5B9)
MIX_B = np.uint64(0x94D049BB133111EB)
ONE = np.uint64(1)
U27 = np.uint64(27)
U30 = np.uint64(30)
U31 = np.uint64(31)
U32 = np.uint64(32)
LOW = np.uint64(0xFFFFFFFF)

CHUNK = 64  # columns whose draws are made before their neighbours are read
AHEAD = 32  # entries between a prefetch and its use
SHORT_RUN = 24  # picks up to which comparing all pairs is the fastest way to sort them
LANE_PICKS = 64  # picks up to which many segments are drawn at once, and compared all with all
LARGEST_LANE = (1 << 32) - 1  # edges of a segment up to which that is done in words of 32 bits


# ---------------------------------------------------------------------------------------------
# Machine operations that Python has no word for


@intrinsic
def _prefetch_far(typingctx: Any, array: Any, position: Any) -> Any:
    """Asks for the cache line of array[position]; never faults, changes nothing.

    Into the second level of the cache: many more lines can be under way there than into the first.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array_type, _ = signature.args
        data = context.make_array(array_type)(context, builder, args[0]).data
        pointer = builder.gep(data, [args[1]])
        pointer = builder.bitcast(pointer, cgutils.voidptr_t)
        word = ir.IntType(32)
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, word, word, word]),
            "llvm.prefetch.p0",
        )
        builder.call(function, [pointer, word(0), word(2), word(1)])
        return context.get_dummy_value()

    return types.void(array, types.intp), codegen


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
    """Maps a random word to [0, bound); Lemire's multiply-shift, bias below bound / 2**64."""
    return np.int64(_mulhi(word, np.uint64(bound)))


# ---------------------------------------------------------------------------------------------
# Order of items


@kernel
def shuffled_range(round_keys, total, start, out):
    """Writes entries start, start + 1, ... of a random permutation of [0, total) to out.

    The swap-or-not shuffle (Hoang, Morris, Rogaway: "An enciphering scheme based on a card
    shuffle", CRYPTO 2012): every entry is computed by itself, whatever total is.

    Args:
        round_keys: uint64[rounds], one key a round.
        total: number of items.
        start: first position.
        out: int64[count]; start + count <= total.
    """
    for i in range(len(out)):
        out[i] = start + i
    for r in range(len(round_keys)):
        key = round_keys[r]
        offset = _below(key, total)
        # Without a branch, so that LLVM may take several entries at once.
        for i in range(len(out)):
            x = out[i]
            partner = offset - x
            partner += total if partner < 0 else 0
            swap = _fold(key, max(x, partner)) & ONE
            out[i] = partner if swap else x


# ---------------------------------------------------------------------------------------------
# One hop of neighbour sampling
#
# A column has one segment per edge type when each type has a fanout of its own, else one segment.
# Segment s belongs to column s // T and, when T > 1, to edge type s % T.


@kernel
def count_picks(indptr, edge_types, columns, fanouts, replace, num_edges, begin, degree, picked):
    """Finds each segment's range of edges and how many of them will be picked.

    Args:
        indptr: int64[num_nodes + 1].
        edge_types: integer[num_edges], ascending within a column; not read when T == 1.
        columns: integer[n], destinations, all in range.
        fanouts: int64[T]; -1 takes all.
        replace: bool.
        num_edges: edges of the graph.
        begin: int64[n * T], out: first edge position of each segment.
        degree: int64[n * T], out: edges of each segment.
        picked: int64[n * T + 1], out: running sum of picks.

    Returns:
        The number of picks in all; -1 - i if the pointers of column i descend or leave the graph.
    """
    n = len(columns)
    num_types = len(fanouts)
    total = np.int64(0)
    picked[0] = 0
    for i in range(n):
        if i + 2 * AHEAD < n:
            _prefetch_far(indptr, np.int64(columns[i + 2 * AHEAD]))
        if num_types > 1 and i + AHEAD < n:
            ahead = columns[i + AHEAD]
            _prefetch_far(edge_types, indptr[ahead])
            _prefetch_far(edge_types, indptr[ahead + 1])
        column = columns[i]
        first = indptr[column]
        end = indptr[column + 1]
        if first < 0 or first > end or end > num_edges:
            return np.int64(-1 - i)
        low = first
        # The lowest type above t that the last search met: for types below it, another search would
        # take the same turns and end in the same place.
        next_type = np.int64(0)
        for t in range(num_types):
            high = end
            if num_types > 1 and low < end:
                high = low
                if t >= next_type:
                    # First edge of a type above t: binary search in the whole column, as on a GPU,
                    # so that both find the same even if the types are in disorder.
                    next_type = np.int64(num_types)
                    left = first
                    right = end
                    while left < right:
                        middle = (left + right) >> 1
                        kind = np.int64(edge_types[middle])
                        # Without a branch: half of them would be foreseen wrongly.
                        below = kind <= t
                        left = middle + 1 if below else left
                        right = right if below else middle
                        next_type = next_type if below else min(next_type, kind)
                    high = left
            d = high - low
            k = d
            if fanouts[t] >= 0:
                if replace:
                    k = fanouts[t] if d > 0 else 0
                else:
                    k = min(d, fanouts[t])
            s = i * num_types + t
            begin[s] = low
            degree[s] = d
            total += k
            picked[s + 1] = total
            low = high
    return total


@kernel
def _sort_run(array, low, high, scratch):
    """Sorts array[low:high]; a short run without a branch that depends on its values.

    Args:
        array: int64[n].
        low: begin of the run.
        high: its end.
        scratch: int64[SHORT_RUN].
    """
    count = high - low
    if count > SHORT_RUN:
        array[low:high].sort()
        return
    for i in range(count):
        scratch[i] = array[low + i]
    for i in range(count):
        value = scratch[i]
        rank = 0
        for j in range(count):
            rank += scratch[j] < value
        for j in range(i):
            rank += scratch[j] == value
        array[low + rank] = value


@kernel
def _pick_many(stream, first, d, k, out, at):
    """Floyd's draw with a hash set, for many picks of one segment."""
    capacity = 1
    while capacity < 2 * k:
        capacity *= 2
    mask = np.uint64(capacity - 1)
    chosen = np.full(capacity, -1, np.int64)
    for j in range(k):
        last = d - k + j
        t = _below(_fold(stream, j), last + 1)
        for _attempt in range(2):
            slot = _mix64(np.uint64(t)) & mask
            while chosen[slot] != -1 and chosen[slot] != t:
                slot = (slot + ONE) & mask
            if chosen[slot] == -1:
                chosen[slot] = t
                break
            t = last  # was drawn before: the last of the range was not
        out[at + j] = first + t


@kernel
def _draw_lanes(
    indices, stream, bound, lanes, k, replace, ordered, drawn, marks, first, place, positions
):
    """K draws of many segments at once, a segment a lane, so that LLVM takes several in one step.

    Args:
        indices: integer[num_edges], asked for where edges are drawn.
        stream: uint64[CHUNK], each segment's word.
        bound: uint64[CHUNK], its edges; less k without replacement. Below 2**32.
        lanes: number of segments.
        k: picks of each, LANE_PICKS at most.
        replace: bool.
        ordered: bool, sort each segment's picks.
        drawn: uint32[LANE_PICKS, CHUNK], scratch.
        marks: uint32[CHUNK], scratch.
        first: int64[CHUNK], its first edge.
        place: int64[CHUNK], where its picks begin.
        positions: int64[picks], out.
    """
    for j in range(k):
        counter = GOLDEN * np.uint64(j + 1)
        more = np.uint64(0 if replace else j + 1)
        row = drawn[j]
        for s in range(lanes):
            # _below(word, below) in halves of 32 bits, which vectors have products of.
            word = _mix64(stream[s] + counter)
            below = (bound[s] + more) & LOW
            row[s] = ((word >> U32) * below + (((word & LOW) * below) >> U32)) >> U32
        if replace:
            continue
        marks[:lanes] = 0
        for i in range(j):
            before = drawn[i]
            for s in range(lanes):
                marks[s] |= before[s] == row[s]
        for s in range(lanes):
            # Drawn before: the last of the range was not.
            row[s] = bound[s] + np.uint64(j) if marks[s] else row[s]
    for j in range(k):
        row = drawn[j]
        marks[:lanes] = 0 if ordered else j
        if ordered:
            for i in range(j):
                other = drawn[i]
                for s in range(lanes):
                    marks[s] += other[s] <= row[s]
            for i in range(j + 1, k):
                other = drawn[i]
                for s in range(lanes):
                    marks[s] += other[s] < row[s]
        for s in range(lanes):
            position = first[s] + np.int64(row[s])
            positions[place[s] + np.int64(marks[s])] = position
            _prefetch_far(indices, position)


@kernel
def pick_neighbors(
    indices, edge_types, node_ids, keys, fanouts, replace, ordered, begin, degree, picked,
    positions, neighbors, kinds,
):  # fmt: skip
    """Draws each segment's edges and reads their sources.

    Without replacement: Floyd's draw (Bentley, Floyd: "A sample of brilliance", CACM 1987), each
    subset of the wanted size with equal probability. Draw j of column v and type t is
    fold(fold(keys[t], id of v), j).

    Args:
        indices: integer[num_edges], sources.
        edge_types: integer[num_edges]; not read when kinds is empty.
        node_ids: integer[n], the columns' original ids, which key the draws.
        keys: uint64[T], one key per edge type for this hop.
        fanouts: int64[T].
        replace: bool.
        ordered: bool, sort each segment's picks by position.
        begin: int64[n * T], from `count_picks`.
        degree: int64[n * T], from `count_picks`.
        picked: int64[n * T + 1], from `count_picks`.
        positions: int64[picks], out: edge positions in CSC order.
        neighbors: integer[picks], out: sources, of the dtype of indices.
        kinds: integer[picks], out: the edges' types; or empty, if they are not wanted.
    """
    n = len(node_ids)
    num_types = len(fanouts)
    typed = len(kinds) > 0
    scratch = np.empty(SHORT_RUN, np.int64)
    stream = np.zeros(CHUNK, np.uint64)
    bound = np.zeros(CHUNK, np.uint64)
    start = np.zeros(CHUNK, np.int64)
    place = np.zeros(CHUNK, np.int64)
    drawn = np.zeros((LANE_PICKS, CHUNK), np.uint32)
    marks = np.zeros(CHUNK, np.uint32)
    for low in range(0, n, CHUNK):
        high = min(low + CHUNK, n)
        for t in range(num_types):
            again = replace and fanouts[t] >= 0
            lanes = 0
            for i in range(low, high):
                s = i * num_types + t
                at = picked[s]
                k = picked[s + 1] - at
                d = degree[s]
                first = begin[s]
                if k == d and not again:
                    for j in range(k):
                        positions[at + j] = first + j
                        _prefetch_far(indices, first + j)
                elif 0 < k <= LANE_PICKS and d < LARGEST_LANE:
                    # All lanes have the same k: the fanout of their type.
                    stream[lanes] = _fold(keys[t], node_ids[i])
                    bound[lanes] = d if replace else d - k
                    start[lanes] = first
                    place[lanes] = at
                    lanes += 1
                elif k > 0:
                    word = _fold(keys[t], node_ids[i])
                    if replace:
                        for j in range(k):
                            positions[at + j] = first + _below(_fold(word, j), d)
                    else:
                        _pick_many(word, first, d, k, positions, at)
                    if ordered:
                        _sort_run(positions, at, at + k, scratch)
            if lanes > 0:
                _draw_lanes(
                    indices, stream, bound, lanes, fanouts[t], replace, ordered, drawn, marks,
                    start, place, positions,
                )  # fmt: skip
        begins = picked[low * num_types]
        ends = picked[high * num_types]
        if typed:
            for e in range(begins, ends):
                _prefetch_far(edge_types, positions[e])
        for e in range(begins, ends):
            neighbors[e] = indices[positions[e]]
        if typed:
            for e in range(begins, ends):
                kinds[e] = edge_types[positions[e]]


# ---------------------------------------------------------------------------------------------
# Rows and checks


@kernel
def first_out_of_range(ids, low, high):
    """Position of the first id outside [low, high), or -1."""
    # A branch-free sweep first: it runs at memory speed, and bad ids are rare.
    bad = 0
    for i in range(len(ids)):
        bad += (ids[i] < low) | (ids[i] >= high)
    if bad:
        for i in range(len(ids)):
            if ids[i] < low or ids[i] >= high:
                return i
    return -1


# ---------------------------------------------------------------------------------------------
# COO -> CSC


@kernel
def count_destinations(dst, offset, counts):
    """Adds each destination's number of edges to counts.

    Args:
        dst: integer[m], in range.
        offset: added to each destination.
        counts: int64[num_nodes], in and out.
    """
    for e in range(len(dst)):
        counts[dst[e] + offset] += 1


@kernel
def place_edges(
    src, dst, src_offset, dst_offset, first_edge, low, high, start, cursor, indices, permutation
):
    """Puts edges with a destination in [low, high) at the next free place of their column.

    Called with the edges in order, this sorts them stably by destination.

    Args:
        src: integer[m], sources.
        dst: integer[m], destinations.
        src_offset: added to each source.
        dst_offset: added to each destination.
        first_edge: number of src[0] in the input.
        low: first column of the range.
        high: end of the range.
        start: first place of column `low`: indices[0] and permutation[0] stand for it.
        cursor: int64[num_nodes], next free place of each column, in and out.
        indices: integer[places], out: sources.
        permutation: int64[places] or int64[0], out: the edge's number in the input.

    Returns:
        Number of edges without a place: above 0 only if the input is not what was counted.
    """
    keep = len(permutation) > 0
    lost = 0
    for e in range(len(dst)):
        column = dst[e] + dst_offset
        if column < low or column >= high:
            continue
        place = cursor[column] - start
        if place < 0 or place >= len(indices):
            lost += 1
            continue
        cursor[column] += 1
        indices[place] = src[e] + src_offset
        if keep:
            permutation[place] = first_edge + e
    return lost


@kernel
def first_bad_column(indptr, num_edges):
    """First column whose pointers descend or leave [0, num_edges], or -1."""
    for v in range(len(indptr) - 1):
        if indptr[v] < 0 or indptr[v] > indptr[v + 1] or indptr[v + 1] > num_edges:
            return v
    return -1


@kernel
def first_mistyped_edge(indptr, indices, edge_types, node_offsets, src_types, dst_types):
    """First edge whose type is unknown, out of order in its column, or at odds with its ends.

    Args:
        indptr: int64[num_nodes + 1], checked.
        indices: integer[num_edges], checked.
        edge_types: integer[num_edges].
        node_offsets: int64[num_node_types + 1].
        src_types: int64[num_edge_types], node type of each edge type's sources.
        dst_types: int64[num_edge_types], node type of its destinations.

    Returns:
        (position of the edge or -1, its column).
    """
    for v in range(len(indptr) - 1):
        previous = np.int64(0)
        for e in range(indptr[v], indptr[v + 1]):
            t = np.int64(edge_types[e])
            if t < previous or t >= len(src_types):
                return e, v
            previous = t
            s = src_types[t]
            d = dst_types[t]
            if indices[e] < node_offsets[s] or indices[e] >= node_offsets[s + 1]:
                return e, v
            if v < node_offsets[d] or v >= node_offsets[d + 1]:
                return e, v
    return -1, -1
