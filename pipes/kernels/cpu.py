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
    "gather_rows",
    "hash_insert",
    "hash_relabel",
    "insert",
    "pick_neighbors",
    "place_edges",
    "relabel",
    "shuffled_range",
]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_A = np.uint64(0xBF58476D1CE4E5B9)
MIX_B = np.uint64(0x94D049BB133111EB)
ONE = np.uint64(1)
U27 = np.uint64(27)
U30 = np.uint64(30)
U31 = np.uint64(31)

CHUNK = 64  # columns whose draws are made before their neighbours are read
AHEAD = 32  # entries between a prefetch and its use
SHORT_RUN = 24  # picks up to which comparing all pairs is the fastest way to sort them
LINEAR_PICKS = 64  # picks of one column up to which membership is a scan of the picks themselves


# ---------------------------------------------------------------------------------------------
# Machine operations that Python has no word for


@intrinsic
def _prefetch(typingctx: Any, array: Any, position: Any) -> Any:
    """Asks for the cache line of array[position]; never faults, changes nothing."""

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
        builder.call(function, [pointer, word(0), word(3), word(1)])
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


@intrinsic
def _copy_bytes(typingctx: Any, out: Any, to: Any, source: Any, start: Any, count: Any) -> Any:
    """memcpy(out + to, source + start, count) over arrays of bytes."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        out_type, _, source_type, _, _ = signature.args
        out_data = context.make_array(out_type)(context, builder, args[0]).data
        source_data = context.make_array(source_type)(context, builder, args[2]).data
        cgutils.raw_memcpy(
            builder,
            builder.gep(out_data, [args[1]]),
            builder.gep(source_data, [args[3]]),
            args[4],
            1,
        )
        return context.get_dummy_value()

    return types.void(out, types.intp, source, types.intp, types.intp), codegen


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
        if i + AHEAD < n:
            _prefetch(indptr, np.int64(columns[i + AHEAD]))
        column = columns[i]
        first = indptr[column]
        end = indptr[column + 1]
        if first < 0 or first > end or end > num_edges:
            return np.int64(-1 - i)
        low = first
        for t in range(num_types):
            high = end
            if num_types > 1 and low < end:
                # First edge of a type above t: binary search in the whole column, as on a GPU, so
                # that both find the same even if the types are in disorder.
                left = first
                right = end
                while left < right:
                    middle = (left + right) >> 1
                    if edge_types[middle] <= t:
                        left = middle + 1
                    else:
                        right = middle
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
    num_segments = len(begin)
    num_types = len(fanouts)
    typed = len(kinds) > 0
    scratch = np.empty(SHORT_RUN, np.int64)
    for low in range(0, num_segments, CHUNK):
        high = min(low + CHUNK, num_segments)
        for s in range(low, high):
            at = picked[s]
            k = picked[s + 1] - at
            d = degree[s]
            first = begin[s]
            t = s % num_types
            if k == d and not (replace and fanouts[t] >= 0):
                for j in range(k):
                    positions[at + j] = first + j
                    _prefetch(indices, first + j)
                continue
            stream = _fold(keys[t], node_ids[s // num_types])
            if replace:
                for j in range(k):
                    position = first + _below(_fold(stream, j), d)
                    positions[at + j] = position
                    _prefetch(indices, position)
            elif k <= LINEAR_PICKS:
                for j in range(k):
                    last = d - k + j
                    position = first + _below(_fold(stream, j), last + 1)
                    seen = False
                    for i in range(at, at + j):
                        seen |= positions[i] == position
                    if seen:
                        position = first + last
                    positions[at + j] = position
                    _prefetch(indices, position)
            else:
                _pick_many(stream, first, d, k, positions, at)
            if ordered:
                _sort_run(positions, at, at + k, scratch)
        if typed:
            for e in range(picked[low], picked[high]):
                _prefetch(edge_types, positions[e])
        for e in range(picked[low], picked[high]):
            neighbors[e] = indices[positions[e]]
        if typed:
            for e in range(picked[low], picked[high]):
                kinds[e] = edge_types[positions[e]]


# ---------------------------------------------------------------------------------------------
# Relabelling: global id -> position in the list of a mini-batch's nodes, by first occurrence
#
# A slot holds base + position when its node is in the current list. base grows by the length of
# each finished list, so that what a finished list has left in the table reads as empty and nothing
# has to be cleared.


@kernel
def insert(table, base, nodes):
    """Enters a list of nodes, which may repeat; the first occurrence counts.

    Args:
        table: int32[num_nodes].
        base: int, above all earlier entries of the table.
        nodes: integer[n], positions 0..n-1.
    """
    for i in range(len(nodes)):
        node = nodes[i]
        if table[node] < base:
            table[node] = base + i


@kernel
def relabel(table, base, count, neighbors, local, new):
    """Replaces ids by positions; ids not met before are appended to the list.

    Args:
        table: int32[num_nodes].
        base: int, as in `insert`.
        count: length of the list so far.
        neighbors: integer[m].
        local: int32[m], out: positions.
        new: integer[>= number of ids not met before], out: those ids in order of first occurrence.

    Returns:
        How many ids were new.
    """
    m = len(neighbors)
    fresh = 0
    free = base + count
    for e in range(m):
        if e + AHEAD < m:
            _prefetch(table, np.int64(neighbors[e + AHEAD]))
        node = neighbors[e]
        value = np.int64(table[node])
        if value < base:
            value = free + fresh
            table[node] = value
            new[fresh] = node
            fresh += 1
        local[e] = value - base
    return fresh


@kernel
def hash_insert(keys, values, base, start, nodes):
    """`insert` for an open-addressing table: keys int64[2**b], values int32[2**b].

    Args:
        keys: int64[capacity].
        values: int32[capacity]; capacity a power of two, at most half full.
        base: int, as in `insert`.
        start: position of nodes[0].
        nodes: integer[n].
    """
    mask = np.uint64(len(keys) - 1)
    for i in range(len(nodes)):
        node = np.int64(nodes[i])
        slot = _mix64(np.uint64(node)) & mask
        while values[slot] >= base and keys[slot] != node:
            slot = (slot + ONE) & mask
        if values[slot] < base:
            keys[slot] = node
            values[slot] = base + start + i


@kernel
def hash_relabel(keys, values, base, count, neighbors, local, new):
    """`relabel` for an open-addressing table with room for all of neighbors."""
    mask = np.uint64(len(keys) - 1)
    m = len(neighbors)
    fresh = 0
    for e in range(m):
        if e + AHEAD < m:
            ahead = np.int64(_mix64(np.uint64(neighbors[e + AHEAD])) & mask)
            _prefetch(keys, ahead)
            _prefetch(values, ahead)
        node = np.int64(neighbors[e])
        slot = _mix64(np.uint64(node)) & mask
        while values[slot] >= base and keys[slot] != node:
            slot = (slot + ONE) & mask
        if values[slot] < base:
            keys[slot] = node
            values[slot] = base + count + fresh
            new[fresh] = node
            fresh += 1
        local[e] = values[slot] - base
    return fresh


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


@kernel
def gather_rows(source, row_bytes, ids, out):
    """Copies rows, whatever they hold.

    Args:
        source: uint8[num_rows * row_bytes].
        row_bytes: bytes a row.
        ids: integer[n], all in range.
        out: uint8[n * row_bytes], out.
    """
    n = len(ids)
    ahead = 8
    lines = min((row_bytes + 63) // 64, 8)
    for i in range(n):
        if i + ahead < n:
            start = np.int64(ids[i + ahead]) * row_bytes
            for line in range(lines):
                _prefetch(source, start + 64 * line)
        _copy_bytes(out, i * row_bytes, source, np.int64(ids[i]) * row_bytes, row_bytes)


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
