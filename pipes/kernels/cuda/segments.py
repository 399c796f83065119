"""count_picks, accumulate_typed_counts: the segments of a hop, their edges and their picks.

A column has one segment per edge type when each type has a fanout of its own, else one segment.
Segment s belongs to column s // T and, when T > 1, to edge type s % T. A slot is the place of one
pick in the output: segment s has slots picked[s] to picked[s + 1].
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hopline.pipes.kernels.cuda.launching import NONE, NOTHING, ceil_div, launch, tile

__all__ = ["SLOTS_TILE", "accumulate_typed_counts", "count_picks", "segment_of"]

SEGMENTS_TILE = 256
SLOTS_TILE = 512


# ---------------------------------------------------------------------------------------------
# Before the draw


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


@triton.jit
def segment_of(picked, slot, there, num_segments):
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
    column = segment_of(picked, slot, falls, num_columns)
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
