"""count_picks, pick_neighbors, accumulate_typed_counts: uniform neighbour sampling on the GPU.

A column has one segment per edge type when each type has a fanout of its own, else one segment.
Segment s belongs to column s // T and, when T > 1, to edge type s % T. A slot is the place of one
pick in the output: segment s has slots picked[s] to picked[s + 1].

Few picks a segment are drawn by one kernel, which holds a segment's picks in registers. Many are
drawn by one small kernel a step over all slots, whatever the degrees; so are segments taken whole.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from hopline.pipes.kernels.cuda.launching import NOTHING, ceil_div, launch, tile
from hopline.pipes.kernels.cuda.words import below, fold

__all__ = [
    "NOT_CACHED",
    "CachedEdges",
    "Picks",
    "accumulate_typed_counts",
    "count_picks",
    "pick_neighbors",
]

NOT_CACHED = -NOTHING  # no shift: positions and places in a cache are at least 0 and far below
NONE = tl.constexpr(NOTHING)
AWAY = tl.constexpr(NOT_CACHED)

FEW_PICKS = 64  # picks of a segment up to which they are drawn in registers
FEW_TILE = 512  # picks that one program draws so
SEGMENTS_TILE = 256
SLOTS_TILE = 512
INTERPRETED_PICKS = 1 << 16


class CachedEdges(NamedTuple):
    """Edges of some columns that need not be read from the graph.

    Attributes:
        shift: int64[n], what leads from the position of a column's edge to its place in the
            arrays; NOT_CACHED for columns whose edges are not in them.
        indices: of the dtype of the graph's indices, sources.
        edge_types: of the dtype of the graph's edge types; None without them.
    """

    shift: torch.Tensor
    indices: torch.Tensor
    edge_types: torch.Tensor | None


class Picks(NamedTuple):
    """What was picked; entries from the number of picks on are undefined.

    Attributes:
        positions: int64[room], edge positions in CSC order.
        neighbors: [room] of the dtype of indices, sources.
        kinds: [room] of the dtype of edge_types, the edges' types; None if not wanted.
        bad: int64[1], the first pick whose neighbor is no node; NOTHING if there is none.
    """

    positions: torch.Tensor
    neighbors: torch.Tensor
    kinds: torch.Tensor | None
    bad: torch.Tensor


# ---------------------------------------------------------------------------------------------
# Degrees


@triton.jit(do_not_specialize=["num_segments", "num_nodes", "num_edges"])
def _count_picks(
    indptr, edge_types, columns, fanouts, begin, degree, counts, bad, num_segments, num_nodes,
    num_edges, T: tl.constexpr, REPLACE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Range of edges and number of picks of each segment; counts[s + 1] is that of segment s."""
    s = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = s < num_segments
    i = s // T
    column = tl.load(columns + i, mask=there, other=0).to(tl.int64)
    known = there & (column >= 0) & (column < num_nodes)
    low = tl.load(indptr + column, mask=known, other=0)
    high = tl.load(indptr + column + 1, mask=known, other=0)
    sound = known & (low >= 0) & (low <= high) & (high <= num_edges)
    first = tl.min(tl.where(there & ~sound, i, NONE), axis=0)
    if first < NONE:
        tl.atomic_min(bad, first, sem="relaxed")
    low = tl.where(sound, low, 0)
    high = tl.where(sound, high, 0)
    t = s % T
    if T > 1:
        # The first edge of type t, and the first of a type above, by two searches at once. Both
        # begin with the whole column, so that they do not cross even if the types are in disorder.
        left, right = low, tl.where(t == 0, low, high)
        low_next, high_next = low, high
        while tl.max(((left < right) | (low_next < high_next)).to(tl.int32), axis=0) > 0:
            open = left < right
            middle = (left + right) >> 1
            kind = tl.load(edge_types + middle, mask=open, other=0).to(tl.int64)
            left = tl.where(open & (kind < t), middle + 1, left)
            right = tl.where(open & (kind >= t), middle, right)
            open = low_next < high_next
            middle = (low_next + high_next) >> 1
            kind = tl.load(edge_types + middle, mask=open, other=0).to(tl.int64)
            low_next = tl.where(open & (kind <= t), middle + 1, low_next)
            high_next = tl.where(open & (kind > t), middle, high_next)
        low, high = left, low_next
    d = high - low
    fanout = tl.load(fanouts + t, mask=there, other=0).to(tl.int64)
    if REPLACE:
        k = tl.where(d > 0, fanout, 0)
    else:
        k = tl.minimum(d, fanout)
    k = tl.where(fanout >= 0, k, d)
    tl.store(begin + s, low, mask=there)
    tl.store(degree + s, d, mask=there)
    tl.store(counts + s + 1, k, mask=there)
    tl.store(counts + s, 0, mask=s == 0)


def count_picks(
    indptr: torch.Tensor,
    edge_types: torch.Tensor | None,
    columns: torch.Tensor,
    fanouts: torch.Tensor,
    replace: bool,
    num_edges: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Finds each segment's range of edges and how many of them will be picked.

    Args:
        indptr: int64[num_nodes + 1]; on the device or in page-locked host memory.
        edge_types: integer[num_edges], ascending within a column, where indptr may be; needed
            when T > 1.
        columns: integer[n], destinations.
        fanouts: int64[T]; -1 takes all.
        replace: draw with replacement.
        num_edges: edges of the graph.

    Returns:
        (begin int64[n * T], degree int64[n * T], picked int64[n * T + 1], bad int64[1]): first
        edge and edges of each segment, running sum of picks, and the position of the first column
        that is no node or whose pointers descend or leave the graph, NOTHING if there is none.
        Such a column has no edges.
    """
    device, num_types = columns.device, len(fanouts)
    num_segments = len(columns) * num_types
    begin = torch.empty(num_segments, dtype=torch.int64, device=device)
    degree = torch.empty_like(begin)
    counts = torch.empty(num_segments + 1, dtype=torch.int64, device=device)
    bad = torch.full((1,), NOTHING, dtype=torch.int64, device=device)
    block = tile(num_segments, SEGMENTS_TILE)
    launch(
        _count_picks, max(1, ceil_div(num_segments, block)), counts, indptr,
        indptr if edge_types is None else edge_types, columns, fanouts, begin, degree, counts, bad,
        num_segments, len(indptr) - 1, num_edges, T=max(1, num_types), REPLACE=replace, BLOCK=block,
    )  # fmt: skip
    return begin, degree, counts.cumsum(0), bad


# ---------------------------------------------------------------------------------------------
# Draws


@triton.jit
def _segment_of(picked, slot, there, num_segments):
    """Segment of each slot: the last one that begins at or below it."""
    left = tl.zeros_like(slot)
    right = left + num_segments
    while tl.max((there & (right - left > 1)).to(tl.int32), axis=0) > 0:
        middle = (left + right) >> 1
        open = there & (right - left > 1)
        at = tl.load(picked + middle, mask=open, other=0)
        left = tl.where(open & (at <= slot), middle, left)
        right = tl.where(open & (at > slot), middle, right)
    return left


@triton.jit
def _edge(array, near, position, shift, there, CACHED: tl.constexpr):
    """array[position], or its copy in a cache."""
    if CACHED:
        hit = there & (shift != AWAY)
        copy = tl.load(near + (position + shift), mask=hit, other=0)
        value = tl.load(array + position, mask=there & (shift == AWAY), other=0)
        value = tl.where(hit, copy, value)
    else:
        value = tl.load(array + position, mask=there, other=0)
    return value


@triton.jit
def _take(
    indices, edge_types, near_indices, near_types, position, shift, slot, there, positions,
    neighbors, kinds, num_nodes, KINDS: tl.constexpr, CACHED: tl.constexpr,
):  # fmt: skip
    """Writes picks to their slots; gives the slots of those whose neighbor is no node, or NONE."""
    tl.store(positions + slot, position, mask=there)
    neighbor = _edge(indices, near_indices, position, shift, there, CACHED)
    tl.store(neighbors + slot, neighbor, mask=there)
    if KINDS:
        kind = _edge(edge_types, near_types, position, shift, there, CACHED)
        tl.store(kinds + slot, kind, mask=there)
    node = neighbor.to(tl.int64)
    return tl.where(there & ((node < 0) | (node >= num_nodes)), slot, NONE)


@triton.jit(do_not_specialize=["num_segments", "num_nodes"])
def _pick_few(
    indices, edge_types, near_indices, near_types, shifts, node_ids, keys, fanouts, begin, degree,
    picked, positions, neighbors, kinds, bad, num_segments, num_nodes, T: tl.constexpr,
    REPLACE: tl.constexpr, ORDERED: tl.constexpr, KINDS: tl.constexpr, CACHED: tl.constexpr,
    K: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Picks of segments that have a fanout, at most K: a row of the tile is a segment."""
    s = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = s < num_segments
    i = s // T
    t = s % T
    here = here & (tl.load(fanouts + t, mask=here, other=-1) >= 0)
    d = tl.load(degree + s, mask=here, other=0)
    first = tl.load(begin + s, mask=here, other=0)
    at = tl.load(picked + s, mask=here, other=0)
    k = tl.load(picked + s + 1, mask=here, other=0) - at
    j = tl.arange(0, K).to(tl.int64)[None, :]
    chosen = tl.zeros([BLOCK, K], tl.int64) + j  # among the segment's edges
    place = chosen  # among its slots
    if REPLACE:
        drawn = k > 0
    else:
        drawn = k < d
    most = tl.max(tl.where(drawn, k, 0), axis=0)
    if most > 0:
        key = tl.load(keys + t, mask=here, other=0).to(tl.uint64)
        stream = fold(key, tl.load(node_ids + i, mask=here, other=0))
        word = fold(stream[:, None], chosen)
        if REPLACE:
            draw = below(word, tl.zeros([BLOCK, K], tl.int64) + d[:, None])
        else:
            # Floyd's draw: what was drawn before gives way to the last of the range, which was
            # not. Pick e is settled when all before it have been compared with its first draw.
            last = (d - k)[:, None] + j
            raw = below(word, last + 1)
            taken = raw < 0
            for e in range(0, most - 1):
                settled = tl.where(taken, last, raw)
                settled = tl.sum(tl.where(j == e, settled, 0), axis=1)
                taken = taken | ((j > e) & (raw == settled[:, None]))
            draw = tl.where(taken, last, raw)
        chosen = tl.where(drawn[:, None], draw, j)
        if ORDERED:
            rank = tl.zeros([BLOCK, K], tl.int64)
            for e in range(0, most):
                other = tl.sum(tl.where(j == e, chosen, 0), axis=1)[:, None]
                before = (other < chosen) | ((other == chosen) & (j > e))
                rank += (before & (k > e)[:, None]).to(tl.int64)
            place = tl.where(drawn[:, None], rank, j)
    shift = first
    if CACHED:
        shift = tl.load(shifts + i, mask=here, other=AWAY)
    slots = _take(
        indices, edge_types, near_indices, near_types, first[:, None] + chosen, shift[:, None],
        at[:, None] + place, j < k[:, None], positions, neighbors, kinds, num_nodes, KINDS, CACHED,
    )  # fmt: skip
    worst = tl.min(tl.min(slots, axis=1), axis=0)
    if worst < NONE:
        tl.atomic_min(bad, worst, sem="relaxed")


@triton.jit(do_not_specialize=["num_segments", "num_nodes"])
def _pick_whole(
    indices, edge_types, near_indices, near_types, shifts, fanouts, begin, picked, positions,
    neighbors, kinds, bad, num_segments, num_nodes, T: tl.constexpr, KINDS: tl.constexpr,
    CACHED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Picks of segments without a fanout: an entry is a slot."""
    slot = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = slot < tl.load(picked + num_segments)
    s = _segment_of(picked, slot, there, num_segments)
    there = there & (tl.load(fanouts + s % T, mask=there, other=0) < 0)
    first = tl.load(begin + s, mask=there, other=0)
    position = first + slot - tl.load(picked + s, mask=there, other=0)
    shift = first
    if CACHED:
        shift = tl.load(shifts + s // T, mask=there, other=AWAY)
    slots = _take(
        indices, edge_types, near_indices, near_types, position, shift, slot, there, positions,
        neighbors, kinds, num_nodes, KINDS, CACHED,
    )  # fmt: skip
    worst = tl.min(slots, axis=0)
    if worst < NONE:
        tl.atomic_min(bad, worst, sem="relaxed")


@triton.jit(do_not_specialize=["num_segments", "room"])
def _draw_many(
    node_ids, keys, fanouts, degree, base, picked, owner, draws, last, parent, num_segments, room,
    T: tl.constexpr, REPLACE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """First draws of all segments: an entry is a slot. A draw is that of an edge plus base[s].

    parent is the slot whose last of the range the draw is, if it is before this slot; else itself.
    """
    slot = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = slot < tl.load(picked + num_segments)
    s = _segment_of(picked, slot, there, num_segments)
    at = tl.load(picked + s, mask=there, other=0)
    k = tl.load(picked + s + 1, mask=there, other=0) - at
    d = tl.load(degree + s, mask=there, other=0)
    start = tl.load(base + s, mask=there, other=0)
    j = slot - at
    fanout = tl.load(fanouts + s % T, mask=there, other=-1)
    key = tl.load(keys + s % T, mask=there, other=0).to(tl.uint64)
    stream = fold(key, tl.load(node_ids + s // T, mask=there, other=0))
    word = fold(stream, j)
    if REPLACE:
        draw = tl.where(fanout >= 0, below(word, d), j)
    else:
        drawn = k < d
        end = tl.where(drawn, d - k + j, j)
        draw = tl.where(drawn, below(word, end + 1), j)
        behind = draw - (d - k)
        follows = there & drawn & (behind >= 0) & (behind < j)
        tl.store(parent + slot, tl.where(follows, at + behind, slot), mask=slot < room)
        tl.store(last + slot, tl.where(there, start + end, NONE), mask=slot < room)
    tl.store(owner + slot, s, mask=there)
    tl.store(draws + slot, tl.where(there, start + draw, NONE), mask=slot < room)


@triton.jit(do_not_specialize=["num_segments", "num_nodes"])
def _pick_drawn(
    indices, edge_types, near_indices, near_types, shifts, begin, base, picked, owner, draws,
    positions, neighbors, kinds, bad, num_segments, num_nodes, T: tl.constexpr,
    KINDS: tl.constexpr, CACHED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Picks that `_draw_many` has drawn, and that have been settled since."""
    slot = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = slot < tl.load(picked + num_segments)
    s = tl.load(owner + slot, mask=there, other=0)
    position = tl.load(begin + s, mask=there, other=0) - tl.load(base + s, mask=there, other=0)
    position += tl.load(draws + slot, mask=there, other=0)
    shift = position
    if CACHED:
        shift = tl.load(shifts + s // T, mask=there, other=AWAY)
    slots = _take(
        indices, edge_types, near_indices, near_types, position, shift, slot, there, positions,
        neighbors, kinds, num_nodes, KINDS, CACHED,
    )  # fmt: skip
    worst = tl.min(slots, axis=0)
    if worst < NONE:
        tl.atomic_min(bad, worst, sem="relaxed")


def pick_neighbors(
    indices: torch.Tensor,
    edge_types: torch.Tensor | None,
    node_ids: torch.Tensor,
    keys: torch.Tensor,
    fanouts: torch.Tensor,
    largest: int,
    replace: bool,
    ordered: bool,
    begin: torch.Tensor,
    degree: torch.Tensor,
    picked: torch.Tensor,
    room: int,
    num_nodes: int,
    want_kinds: bool,
    cache: CachedEdges | None = None,
    *,
    some_whole: bool | None = None,
) -> Picks:
    """Draws each segment's edges and reads their sources, as `hopline.pipes.kernels.cpu` does.

    Args:
        indices: integer[num_edges], sources; on the device or in page-locked host memory.
        edge_types: integer[num_edges], where indices may be; needed when kinds are wanted.
        node_ids: integer[n], the columns' original ids, which key the draws.
        keys: int64[T], the bits of uint64, one key per edge type for this hop.
        fanouts: int64[T].
        largest: the largest of them that is not -1; 0 if there is none.
        replace: draw with replacement.
        ordered: sort each segment's picks by position.
        begin: int64[n * T], from `count_picks`.
        degree: int64[n * T], from `count_picks`.
        picked: int64[n * T + 1], from `count_picks`.
        room: entries of the output, at least picked[-1].
        num_nodes: nodes of the graph.
        want_kinds: read the edges' types as well.
        cache: edges to read from there; what is picked does not depend on it.
        some_whole: whether a fanout is -1; None if that is not known.

    Returns:
        The picks.
    """
    device, num_types, num_segments = node_ids.device, len(fanouts), len(begin)
    positions = torch.empty(room, dtype=torch.int64, device=device)
    neighbors = torch.empty(room, dtype=indices.dtype, device=device)
    kinds = None
    if want_kinds:
        assert edge_types is not None
        kinds = torch.empty(room, dtype=edge_types.dtype, device=device)
    bad = torch.full((1,), NOTHING, dtype=torch.int64, device=device)
    picks = Picks(positions, neighbors, kinds, bad)
    if room == 0 or num_segments == 0:
        return picks
    # What a kernel does not read it is given all the same: any array will do.
    near_indices, near_types, shift = indices, indices, begin
    if cache is not None:
        shift, near_indices = cache.shift, cache.indices
        near_types = near_indices if cache.edge_types is None else cache.edge_types
    far = indices, indices if edge_types is None else edge_types, near_indices, near_types, shift
    out = positions, neighbors, positions if kinds is None else kinds, bad
    flags = {"T": num_types, "KINDS": want_kinds, "CACHED": cache is not None}
    if some_whole is None:
        some_whole = num_types > 1 or largest == 0
    block = tile(room, SLOTS_TILE)
    if largest > FEW_PICKS:
        owner, base, draws = _many_draws(
            node_ids, keys, fanouts, largest, replace, ordered, degree, picked, room
        )
        launch(
            _pick_drawn, ceil_div(room, block), positions, *far, begin, base, picked, owner, draws,
            *out, num_segments, num_nodes, **flags, BLOCK=block,
        )  # fmt: skip
        return picks
    if largest > 0:
        wide = max(2, triton.next_power_of_2(largest))
        rows = tile(num_segments, FEW_TILE // wide, limit=INTERPRETED_PICKS // wide)
        launch(
            _pick_few, ceil_div(num_segments, rows), positions, *far, node_ids, keys, fanouts,
            begin, degree, picked, *out, num_segments, num_nodes, REPLACE=replace, ORDERED=ordered,
            **flags, K=wide, BLOCK=rows,
        )  # fmt: skip
    if some_whole:
        launch(
            _pick_whole, ceil_div(room, block), positions, *far, fanouts, begin, picked, *out,
            num_segments, num_nodes, **flags, BLOCK=block,
        )  # fmt: skip
    return picks


def _many_draws(
    node_ids: torch.Tensor,
    keys: torch.Tensor,
    fanouts: torch.Tensor,
    largest: int,
    replace: bool,
    ordered: bool,
    degree: torch.Tensor,
    picked: torch.Tensor,
    room: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The draws of all slots: (owner int64[room], base int64[n * T], draws int64[room]).

    The slot belongs to segment owner, and draws - base[owner] is the number of an edge in it:
    by the base, numbers of different segments differ, and ascend with the segments.
    """
    base = degree.cumsum(0) - degree
    owner = torch.empty(room, dtype=torch.int64, device=node_ids.device)
    draws = torch.empty_like(owner)
    last, parent = (draws, owner) if replace else (torch.empty_like(owner), torch.empty_like(owner))
    block = tile(room, SLOTS_TILE)
    launch(
        _draw_many, ceil_div(room, block), owner, node_ids, keys, fanouts, degree, base, picked,
        owner, draws, last, parent, len(degree), room, T=len(fanouts), REPLACE=replace, BLOCK=block,
    )  # fmt: skip
    if not replace:
        # A draw was taken before if an earlier one of its segment is the same, or if it is the
        # last of an earlier slot's range and that slot had to give way to it, and so on back.
        values, order = torch.sort(draws, stable=True)
        again = torch.zeros(room, dtype=torch.bool, device=owner.device)
        again[1:] = values[1:] == values[:-1]
        taken = torch.empty_like(again).scatter_(0, order, again)
        for _ in range(min(largest, room).bit_length()):
            taken = taken | taken[parent]
            parent = parent[parent]
        draws = torch.where(taken, last, draws)
    if ordered:
        draws = torch.sort(draws).values
    return owner, base, draws


# ---------------------------------------------------------------------------------------------
# Edge types after the draw


@triton.jit(do_not_specialize=["num_segments"])
def _typed_ends(kinds, picked, out, num_segments, T: tl.constexpr, BLOCK: tl.constexpr):
    """out[s + 1]: the first pick of column s // T whose type is above s % T."""
    s = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = s < num_segments
    t = s % T
    left = tl.load(picked + s // T, mask=there, other=0)
    right = tl.load(picked + s // T + 1, mask=there, other=0)
    while tl.max((left < right).to(tl.int32), axis=0) > 0:
        open = left < right
        middle = (left + right) >> 1
        kind = tl.load(kinds + middle, mask=open, other=0).to(tl.int64)
        left = tl.where(open & (kind <= t), middle + 1, left)
        right = tl.where(open & (kind > t), middle, right)
    tl.store(out + s + 1, left, mask=there)
    tl.store(out + s, 0, mask=s == 0)


@triton.jit(do_not_specialize=["num_columns", "num_types"])
def _check_types(kinds, picked, bad, num_columns, num_types, BLOCK: tl.constexpr):
    """Lowers bad[0] to the first pick of unknown type, or of one below that of the pick before."""
    slot = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = slot < tl.load(picked + num_columns)
    kind = tl.load(kinds + slot, mask=there, other=0).to(tl.int64)
    previous = tl.load(kinds + slot - 1, mask=there & (slot > 0), other=0).to(tl.int64)
    wrong = there & ((kind < 0) | (kind >= num_types))
    # Only where a column begins may types descend.
    falls = there & (kind < previous) & ~wrong
    column = _segment_of(picked, slot, falls, num_columns)
    wrong = wrong | (falls & (tl.load(picked + column, mask=falls, other=0) < slot))
    first = tl.min(tl.where(wrong, slot, NONE), axis=0)
    if first < NONE:
        tl.atomic_min(bad, first, sem="relaxed")


def accumulate_typed_counts(
    kinds: torch.Tensor, picked: torch.Tensor, num_types: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Turns a running sum over columns into one over (column, edge type).

    Args:
        kinds: integer[room], types of the edges picked, ascending within a column; entries from
            picked[-1] on are not read.
        picked: int64[n + 1].
        num_types: number of edge types T.

    Returns:
        (int64[n * T + 1], bad int64[1]): the running sum, and the first pick whose type is unknown
        or out of order, NOTHING if there is none.
    """
    num_columns = len(picked) - 1
    num_segments = num_columns * num_types
    out = torch.empty(num_segments + 1, dtype=torch.int64, device=picked.device)
    bad = torch.full((1,), NOTHING, dtype=torch.int64, device=picked.device)
    block = tile(num_segments, SEGMENTS_TILE)
    launch(
        _typed_ends, max(1, ceil_div(num_segments, block)), out, kinds, picked, out, num_segments,
        T=max(1, num_types), BLOCK=block,
    )  # fmt: skip
    block = tile(len(kinds), SLOTS_TILE)
    launch(
        _check_types, ceil_div(len(kinds), block), bad, kinds, picked, bad, num_columns, num_types,
        BLOCK=block,
    )  # fmt: skip
    return out, bad
