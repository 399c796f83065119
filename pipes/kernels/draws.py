"""CPU kernels of draws that look at every edge: weighted, LABOR, and restricted in time.

Like `hopline.pipes.kernels.cpu`: serial, without the GIL, all helpers in this file. Floating-point
results use additions, multiplications and divisions in one fixed order, so that every device that
follows IEEE 754 draws the same edges.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from hopline.pipes.kernels.compiling import kernel

__all__ = ["has_parallel_edges", "pick_before", "pick_scored"]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_A = np.uint64(0xBF58476D1CE4E5B9)
MIX_B = np.uint64(0x94D049BB133111EB)
ONE = np.uint64(1)
U11 = np.uint64(11)
U12 = np.uint64(12)
U27 = np.uint64(27)
U30 = np.uint64(30)
U31 = np.uint64(31)

AHEAD = 16  # segments between a prefetch and its use
SHORT_RUN = 24  # picks up to which comparing all pairs is the fastest way to sort them
LINEAR_PICKS = 64  # picks of one segment up to which membership is a scan of the picks themselves
LN2 = np.log(2.0)
SQRT2 = np.sqrt(2.0)
TINY = 2.0**-52
SMALLEST_WEIGHT = 1e-300  # so that sums and quotients of weights stay numbers
LARGEST_WEIGHT = 1e300
ALMOST = 1.0 - 1e-9  # rounding errors of a score are far below the rest
FRACTION = (1 << 52) - 1
ONE_EXPONENT = 1023 << 52


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
def _bits(typingctx: Any, number: Any) -> Any:
    """The 64 bits of a float64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(64))

    return types.int64(types.float64), codegen


@intrinsic
def _from_bits(typingctx: Any, bits: Any) -> Any:
    """The float64 of 64 bits."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.int64), codegen


@intrinsic
def _quotient(typingctx: Any, a: Any, b: Any) -> Any:
    """A / b, b not being 0; a check of that would keep a loop from being done by vectors."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fdiv(args[0], args[1])

    return types.float64(types.float64, types.float64), codegen


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


@kernel(inline="always")
def _unit(word):
    """A number in (0, 1): the middle of one of 2**52 equal steps."""
    return (np.float64(word >> U12) + 0.5) * TINY


@kernel
def _exponential(unit):
    """-log(unit), for unit in (0, 1): exponentially distributed when unit is uniform.

    log(m) = 2 artanh((m - 1) / (m + 1)) by its series, for m in (sqrt(1/2), sqrt(2)]: eleven
    terms leave an error below the rounding.
    """
    bits = _bits(unit)
    exponent = (bits >> 52) - 1023
    m = _from_bits((bits & FRACTION) | ONE_EXPONENT)
    if m > SQRT2:
        m = m * 0.5
        exponent += 1
    f = m - 1.0
    s = _quotient(f, 2.0 + f)
    z = s * s
    p = 1.0 / 21.0
    p = p * z + 1.0 / 19.0
    p = p * z + 1.0 / 17.0
    p = p * z + 1.0 / 15.0
    p = p * z + 1.0 / 13.0
    p = p * z + 1.0 / 11.0
    p = p * z + 1.0 / 9.0
    p = p * z + 1.0 / 7.0
    p = p * z + 1.0 / 5.0
    p = p * z + 1.0 / 3.0
    p = p * z + 1.0
    return -(np.float64(exponent) * LN2 + 2.0 * s * p)


# ---------------------------------------------------------------------------------------------
# Edges that a seed of a given time may see


@kernel(inline="always")
def _seen(position, indices, at, times, earliest, node_times, edge_times):
    """Whether an edge, and its source, are older than the column's time and not too old."""
    ok = True
    if len(edge_times) > 0:
        ok = earliest[at] <= edge_times[position] and edge_times[position] < times[at]
    if ok and len(node_times) > 0:
        time = node_times[indices[position]]
        ok = earliest[at] <= time and time < times[at]
    return ok


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
def _floyd(stream, count, k, out, at):
    """Floyd's draw of k distinct numbers below count, as out[at:at + k]."""
    if k <= LINEAR_PICKS:
        for j in range(k):
            last = count - k + j
            t = _below(_fold(stream, j), last + 1)
            for i in range(at, at + j):
                if out[i] == t:
                    t = last
                    break
            out[at + j] = t
        return
    capacity = 1
    while capacity < 2 * k:
        capacity *= 2
    mask = np.uint64(capacity - 1)
    chosen = np.full(capacity, -1, np.int64)
    for j in range(k):
        last = count - k + j
        t = _below(_fold(stream, j), last + 1)
        for _attempt in range(2):
            slot = _mix64(np.uint64(t)) & mask
            while chosen[slot] != -1 and chosen[slot] != t:
                slot = (slot + ONE) & mask
            if chosen[slot] == -1:
                chosen[slot] = t
                break
            t = last
        out[at + j] = t


@kernel
def pick_before(
    indices, node_ids, keys, fanouts, replace, begin, degree, times, earliest, node_times,
    edge_times, segments, positions, neighbors,
):  # fmt: skip
    """Draws evenly among the edges of each segment that its column may see.

    Draw j of column v with time x and type t is fold(fold(fold(keys[t], id of v), x), j), on the
    edges that v may see, by Floyd's method. Picks ascend in position.

    Args:
        indices: integer[num_edges], sources, in range.
        node_ids: integer[n], the columns' original ids.
        keys: uint64[T].
        fanouts: int64[T].
        replace: bool.
        begin: int64[n * T], from `cpu.count_picks`.
        degree: int64[n * T], from `cpu.count_picks`.
        times: int64[n], each column's time: edges and sources must be older.
        earliest: int64[n]: and no older than this.
        node_times: int64[num_nodes], or empty: sources have no time.
        edge_times: int64[num_edges], or empty: edges have no time.
        segments: int64[n * T + 1], out: running sum of picks.
        positions: int64[room], out, room being the picks that `cpu.count_picks` counts.
        neighbors: integer[room], out.

    Returns:
        Number of picks.
    """
    num_types = len(fanouts)
    longest = np.int64(0)
    for s in range(len(degree)):
        longest = max(longest, degree[s])
    valid = np.empty(longest, np.int64)
    scratch = np.empty(SHORT_RUN, np.int64)
    at = np.int64(0)
    segments[0] = 0
    for s in range(len(begin)):
        if s + AHEAD < len(begin):
            if len(edge_times) > 0:
                _prefetch(edge_times, begin[s + AHEAD])
            if len(node_times) > 0:
                _prefetch(indices, begin[s + AHEAD])
        i = s // num_types
        t = s % num_types
        if fanouts[t] == 0:
            segments[s + 1] = at
            continue
        count = 0
        for e in range(begin[s], begin[s] + degree[s]):
            if _seen(e, indices, i, times, earliest, node_times, edge_times):
                valid[count] = e
                count += 1
        k = count
        if fanouts[t] >= 0:
            if replace:
                k = fanouts[t] if count > 0 else 0
            else:
                k = min(count, fanouts[t])
        if replace and fanouts[t] > 0:
            stream = _fold(_fold(keys[t], node_ids[i]), times[i])
            for j in range(k):
                positions[at + j] = valid[_below(_fold(stream, j), count)]
        elif k == count:
            positions[at : at + k] = valid[:k]
        else:
            stream = _fold(_fold(keys[t], node_ids[i]), times[i])
            _floyd(stream, count, k, positions, at)
            for j in range(k):
                positions[at + j] = valid[positions[at + j]]
        if k < count or replace:
            _sort_run(positions, at, at + k, scratch)
        for j in range(at, at + k):
            neighbors[j] = indices[positions[j]]
        at += k
        segments[s + 1] = at
    return at


# ---------------------------------------------------------------------------------------------
# Edges with the smallest scores


@kernel(inline="always")
def _above(scores, where, i, j):
    """Whether entry i is to leave the heap before entry j."""
    return scores[i] > scores[j] or (scores[i] == scores[j] and where[i] > where[j])


@kernel
def _sink(scores, where, i, count):
    """Moves entry i of a heap down to its place."""
    while True:
        top = 2 * i + 1
        if top >= count:
            return
        if top + 1 < count and _above(scores, where, top + 1, top):
            top += 1
        if not _above(scores, where, top, i):
            return
        scores[i], scores[top] = scores[top], scores[i]
        where[i], where[top] = where[top], where[i]
        i = top


@kernel
def _keep(scores, where, n, k, score, e):
    """Offers an entry to a heap of the k smallest that holds n; returns how many it holds then."""
    if n < k:
        scores[n] = score
        where[n] = e
        n += 1
        if n == k:
            for i in range(k // 2 - 1, -1, -1):
                _sink(scores, where, i, k)
    elif score < scores[0] or (score == scores[0] and e < where[0]):
        scores[0] = score
        where[0] = e
        _sink(scores, where, 0, k)
    return n


@kernel(inline="always")
def _variate(layer, source):
    """The word of a source node, the same for all columns; `layer` as in `pick_scored`."""
    key = layer[0]
    if layer[3] != 0 and _fold(layer[2], source) < layer[3]:
        key = layer[1]
    return _fold(key, source)


@kernel
def has_parallel_edges(indptr, indices, seen):
    """Whether a column has two edges from one source.

    Args:
        indptr: int64[num_nodes + 1], checked.
        indices: integer[num_edges], checked.
        seen: int64[num_nodes], all -1; overwritten.
    """
    for v in range(len(indptr) - 1):
        for e in range(indptr[v], indptr[v + 1]):
            if seen[indices[e]] == v:
                return True
            seen[indices[e]] = v
    return False


@kernel
def _rank_parallel_edges(indices, first, degree, segment, keys, stamps, counts, ranks):
    """ranks[j]: how many edges before edge j of a segment have its source.

    Args:
        indices: integer[num_edges].
        first: position of the segment's first edge.
        degree: edges of the segment.
        segment: its number; no other segment uses it as a stamp.
        keys: int64[capacity], a hash table; capacity a power of two, at least 2 * degree.
        stamps: int64[capacity].
        counts: int64[capacity].
        ranks: int64[degree], out.
    """
    mask = np.uint64(len(keys) - 1)
    for j in range(degree):
        source = np.int64(indices[first + j])
        slot = _mix64(np.uint64(source)) & mask
        while stamps[slot] == segment and keys[slot] != source:
            slot = (slot + ONE) & mask
        if stamps[slot] != segment:
            stamps[slot] = segment
            keys[slot] = source
            counts[slot] = 0
        else:
            counts[slot] += 1
        ranks[j] = counts[slot]


@kernel
def _draw_by_weight(stream, sums, valid, count, k, out, at):
    """K draws with replacement among count edges, each in proportion to its weight."""
    total = sums[count - 1]
    for j in range(k):
        x = _unit(_fold(stream, j)) * total
        left = 0
        right = count - 1  # also where the product was rounded up to the total
        while left < right:
            middle = (left + right) >> 1
            if sums[middle] > x:
                right = middle
            else:
                left = middle + 1
        out[at + j] = valid[left]


@kernel
def pick_scored(
    indices, node_ids, keys, fanouts, replace, begin, degree, room, weights, layer, source_names,
    times, earliest, node_times, edge_times, parallel, segments, positions, neighbors,
):  # fmt: skip
    """Draws the edges with the smallest scores, or by weight with replacement.

    Weighted: edge j of a segment has the score E / w, E being exponentially distributed by the word
    fold(stream, j); stream is fold(keys[t], id of v), folded with the column's time if it has one.
    The k smallest scores are a draw without replacement in proportion to the weights (Efraimidis,
    Spirakis: "Weighted random sampling with a reservoir", Inf. Process. Lett. 2006). With
    replacement, draw j is an inversion of the running sums at unit(fold(stream, j)).

    LABOR (Balin, Catalyurek: "Layer-neighbor sampling", NeurIPS 2023): the word belongs to the
    source node instead, so that all columns favour the same sources; the second of several parallel
    edges has fold(word, 1), the third fold(word, 2), and so on. With replacement, source s has
    arrivals at the sums of E_0, E_1, ... over w, by the words fold(word of s, 0), ...; the first k
    arrivals over all edges of the segment are k draws.

    Edges of weight 0 are never drawn. Picks ascend in position. Without replacement and times,
    `smallest.pick_smallest` draws the same in less time.

    Args:
        indices: integer[num_edges], sources, in range.
        node_ids: integer[n], the columns' original ids.
        keys: uint64[T].
        fanouts: int64[T].
        replace: bool.
        begin: int64[n * T], from `cpu.count_picks`.
        degree: int64[n * T], from `cpu.count_picks`.
        room: int64[n * T + 1], from `cpu.count_picks`.
        weights: number[num_edges], or empty: all 1.
        layer: uint64[4], or empty: no LABOR. Key of the sources' words; key of the words that some
            sources have instead; key of the words that decide which, those below layer[3].
        source_names: integer[num_edges], the sources' original ids, by which they have words.
        times: int64[n], or empty: no restriction in time.
        earliest: int64[n], as in `pick_before`.
        node_times: int64[num_nodes], or empty.
        edge_times: int64[num_edges], or empty.
        parallel: bool, whether the graph may have parallel edges.
        segments: int64[n * T + 1], out: running sum of picks.
        positions: int64[room[-1]], out.
        neighbors: integer[room[-1]], out.

    Returns:
        Number of picks; -1 - e if the weight of edge e is neither 0 nor from 1e-300 to 1e300.
    """
    num_types = len(fanouts)
    weighted = len(weights) > 0
    layered = len(layer) > 0
    filtered = len(times) > 0 and (len(node_times) > 0 or len(edge_times) > 0)
    longest = np.int64(0)
    largest = np.int64(0)
    for s in range(len(degree)):
        longest = max(longest, degree[s])
        largest = max(largest, room[s + 1] - room[s])
    by_sums = replace and not layered
    valid = np.empty(longest if by_sums else 0, np.int64)
    sums = np.empty(longest if by_sums else 0, np.float64)
    scores = np.empty(largest, np.float64)
    where = np.empty(largest, np.int64)
    scratch = np.empty(SHORT_RUN, np.int64)
    ranked = layered and parallel
    capacity = 1
    while ranked and capacity < 2 * longest:
        capacity *= 2
    table = np.empty(capacity, np.int64)
    stamps = np.full(capacity, -1, np.int64)
    counts = np.empty(capacity, np.int64)
    ranks = np.empty(longest if ranked else 0, np.int64)
    at = np.int64(0)
    segments[0] = 0
    for s in range(len(begin)):
        if s + AHEAD < len(begin):
            ahead = begin[s + AHEAD]
            if weighted:
                _prefetch(weights, ahead)
            _prefetch(indices, ahead)
        i = s // num_types
        t = s % num_types
        fanout = fanouts[t]
        segments[s + 1] = at
        if fanout == 0 or degree[s] == 0:
            continue
        everything = fanout < 0
        k = room[s + 1] - room[s]
        stream = _fold(keys[t], node_ids[i])
        if len(times) > 0:
            stream = _fold(stream, times[i])
        if ranked and not everything:
            _rank_parallel_edges(indices, begin[s], degree[s], s, table, stamps, counts, ranks)
        n = 0
        total = 0.0
        for e in range(begin[s], begin[s] + degree[s]):
            w = 1.0
            if weighted:
                w = np.float64(weights[e])
                if w == 0.0:
                    continue
                if not (w >= SMALLEST_WEIGHT and w <= LARGEST_WEIGHT):
                    return -1 - e
            if filtered and not _seen(e, indices, i, times, earliest, node_times, edge_times):
                continue
            if everything:
                positions[at + n] = e
                n += 1
            elif by_sums:
                total += w
                sums[n] = total
                valid[n] = e
                n += 1
            elif replace:
                word = _variate(layer, source_names[e])
                if ranked and ranks[e - begin[s]] > 0:
                    word = _fold(word, ranks[e - begin[s]])
                arrival = 0.0
                for j in range(k):
                    arrival += _exponential(_unit(_fold(word, j))) / w
                    if n == k and arrival >= scores[0]:
                        break
                    n = _keep(scores, where, n, k, arrival, e)
            else:
                if layered:
                    word = _variate(layer, source_names[e])
                    if ranked and ranks[e - begin[s]] > 0:
                        word = _fold(word, ranks[e - begin[s]])
                else:
                    word = _fold(stream, e - begin[s])
                if weighted:
                    unit = _unit(word)
                    # -log(unit) is above 1 - unit: most edges need no logarithm.
                    if n == k and (1.0 - unit) * ALMOST >= scores[0] * w:
                        continue
                    n = _keep(scores, where, n, k, _exponential(unit) / w, e)
                else:
                    n = _keep(scores, where, n, k, np.float64(word >> U11), e)
        if by_sums and not everything:
            if n > 0:
                _draw_by_weight(stream, sums, valid, n, k, positions, at)
                n = k
            _sort_run(positions, at, at + n, scratch)
        elif not everything:
            positions[at : at + n] = where[:n]
            _sort_run(positions, at, at + n, scratch)
        for j in range(at, at + n):
            neighbors[j] = indices[positions[j]]
        at += n
        segments[s + 1] = at
    return at
