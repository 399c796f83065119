"""find_cached, admit_columns: what a cache of in-neighborhoods does on the GPU.

A node's entry in `slots` is the place of its first edge in the cache, or -1 - how often it was
seen while it had none. While columns are let in, an entry may also hold a claim: CLAIM + i, by the
first column i of the node in the call.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hopline.pipes.kernels.cuda.cached_edges import NOT_CACHED
from hopline.pipes.kernels.cuda.launching import ceil_div, launch, tile

__all__ = ["admit_columns", "find_cached"]

AWAY = tl.constexpr(NOT_CACHED)
CLAIM = tl.constexpr(-(1 << 62))  # below any number of times that a node was seen

# A call lets no further node in when it has so many edges to copy: it copies fewer than these and
# the degree of one node, so that no mini-batch waits long.
EDGES_PER_CALL = 1 << 20
COLUMNS_TILE = 256
COPY_TILE = 1024
COPY_PROGRAMS = 512


@triton.jit(do_not_specialize=["count", "num_nodes"])
def _find_cached(
    slots, columns, begin, shift, misses, count, num_nodes, T: tl.constexpr, BLOCK: tl.constexpr
):
    """Writes the columns' shifts, and adds the number of those without a place to misses[0]."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = i < count
    column = tl.load(columns + i, mask=there, other=0).to(tl.int64)
    known = there & (column >= 0) & (column < num_nodes)
    slot = tl.load(slots + column, mask=known, other=-1)
    first = tl.load(begin + i * T, mask=there, other=0)
    tl.store(shift + i, tl.where(slot >= 0, slot - first, AWAY), mask=there)
    missing = tl.sum((there & (slot < 0)).to(tl.int64), axis=0)
    tl.atomic_add(misses, missing, sem="relaxed")


@triton.jit(do_not_specialize=["count", "num_nodes"])
def _count_seen(slots, columns, count, num_nodes, BLOCK: tl.constexpr):
    """Counts each column without a place as seen once more."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    column = tl.load(columns + i, mask=i < count, other=-1).to(tl.int64)
    known = (column >= 0) & (column < num_nodes)
    slot = tl.load(slots + column, mask=known, other=0)
    one = tl.full([BLOCK], -1, tl.int64)
    tl.atomic_add(slots + column, one, mask=known & (slot < 0), sem="relaxed")


@triton.jit(do_not_specialize=["count", "num_nodes", "threshold"])
def _claim(slots, columns, count, num_nodes, threshold, BLOCK: tl.constexpr):
    """Leaves the number of a node's first column in its entry, if it was seen often enough."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    column = tl.load(columns + i, mask=i < count, other=-1).to(tl.int64)
    known = (column >= 0) & (column < num_nodes)
    slot = tl.load(slots + column, mask=known, other=0)
    often = known & (slot < -threshold)
    tl.atomic_min(slots + column, i + CLAIM, mask=often, sem="relaxed")


@triton.jit
def _claimant(slots, columns, begin, degree, i, there, free, num_nodes, T: tl.constexpr):
    """(column, whether it holds its node's claim, edges of those that do and may fit)."""
    column = tl.load(columns + i, mask=there, other=-1).to(tl.int64)
    known = (column >= 0) & (column < num_nodes)
    holds = known & (tl.load(slots + column, mask=known, other=0) == i + CLAIM)
    end = tl.load(begin + i * T + (T - 1), mask=holds, other=0)
    end += tl.load(degree + i * T + (T - 1), mask=holds, other=0)
    edges = end - tl.load(begin + i * T, mask=holds, other=0)
    fits = holds & (edges <= free)
    return column, holds, fits, tl.where(fits, edges, 0)


@triton.jit(do_not_specialize=["count", "num_nodes", "capacity"])
def _measure(
    slots, columns, begin, degree, filled, edges, count, num_nodes, capacity, T: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """edges[i]: what column i has to copy; 0 without a claim, and if it does not fit by itself."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = i < count
    free = capacity - tl.load(filled)
    _, _, _, wanted = _claimant(slots, columns, begin, degree, i, there, free, num_nodes, T)
    tl.store(edges + i, wanted, mask=there)


@triton.jit(do_not_specialize=["count", "num_nodes", "capacity", "threshold", "most"])
def _place(
    slots, columns, begin, degree, filled, ends, total, count, num_nodes, capacity, threshold,
    most, T: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Turns claims into places, or back into a number of times seen; raises total[0] to what fits.

    ends is the running sum of what `_measure` found. Both it and where a column would begin ascend,
    so that those let in are the first ones of all that have something to copy.
    """
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = i < count
    fill = tl.load(filled)
    free = capacity - fill
    column, holds, fits, wanted = _claimant(
        slots, columns, begin, degree, i, there, free, num_nodes, T
    )
    end = tl.load(ends + i, mask=there, other=0)
    start = end - wanted
    enters = fits & (end <= free) & (start < most)
    tl.store(slots + column, tl.where(enters, fill + start, -1 - threshold), mask=holds)
    last = tl.max(tl.where(enters, end, 0), axis=0)
    if last > 0:
        tl.atomic_max(total, last, sem="relaxed")


@triton.jit(do_not_specialize=["count", "programs"])
def _copy_edges(
    indices, edge_types, near_indices, near_types, begin, ends, filled, total, count, programs,
    T: tl.constexpr, TYPED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Copies the edges of all columns let in; an entry is an edge, whatever column it is of."""
    program = tl.program_id(0).to(tl.int64)
    fill = tl.load(filled)
    count_edges = tl.load(total)
    low = program * BLOCK
    while low < count_edges:
        edge = low + tl.arange(0, BLOCK)
        there = edge < count_edges
        # The first column that ends above the edge.
        left = tl.zeros_like(edge)
        right = left + count
        while tl.max((there & (left < right)).to(tl.int32), axis=0) > 0:
            open = there & (left < right)
            middle = (left + right) >> 1
            end = tl.load(ends + middle, mask=open, other=0)
            left = tl.where(open & (end <= edge), middle + 1, left)
            right = tl.where(open & (end > edge), middle, right)
        start = tl.load(ends + left - 1, mask=there & (left > 0), other=0)
        position = tl.load(begin + left * T, mask=there, other=0) + edge - start
        neighbor = tl.load(indices + position, mask=there)
        tl.store(near_indices + fill + edge, neighbor, mask=there)
        if TYPED:
            kind = tl.load(edge_types + position, mask=there)
            tl.store(near_types + fill + edge, kind, mask=there)
        low += programs.to(tl.int64) * BLOCK


def find_cached(
    slots: torch.Tensor, columns: torch.Tensor, begin: torch.Tensor, misses: torch.Tensor
) -> torch.Tensor:
    """Where the cache has the columns' edges.

    Args:
        slots: int64[num_nodes], the nodes' entries.
        columns: integer[n].
        begin: int64[n * T], from `segments.count_picks`.
        misses: int64[1], in and out: grows by the number of columns that have no place.

    Returns:
        int64[n], `cached_edges.CachedEdges.shift`.
    """
    count = len(columns)
    if len(begin) == 0:  # no columns, or no edge types: nothing will be read
        return torch.full((count,), NOT_CACHED, dtype=torch.int64, device=columns.device)
    shift = torch.empty(count, dtype=torch.int64, device=columns.device)
    block = tile(count, COLUMNS_TILE)
    launch(
        _find_cached, ceil_div(count, block), shift, slots, columns, begin, shift, misses, count,
        len(slots), T=len(begin) // count, BLOCK=block,
    )  # fmt: skip
    return shift


def admit_columns(
    slots: torch.Tensor,
    near_indices: torch.Tensor,
    near_types: torch.Tensor | None,
    filled: torch.Tensor,
    threshold: int,
    columns: torch.Tensor,
    begin: torch.Tensor,
    degree: torch.Tensor,
    indices: torch.Tensor,
    edge_types: torch.Tensor | None,
) -> None:
    """Counts columns as seen, and copies the edges of those seen `threshold` times, if they fit.

    A node that is in several columns counts as often, and takes the turn of its first one. In
    turn, nodes enter until one does not fit any more or EDGES_PER_CALL edges are to be copied; a
    node with more edges than were free before the call is passed over. A node that did not enter
    is tried again when it is next seen.

    Args:
        slots: int64[num_nodes], in and out, the nodes' entries.
        near_indices: integer[capacity], in and out, the cache's sources.
        near_types: integer[capacity], in and out, the cache's edge types; None without them.
        filled: int64[1], in and out, the cache's number of edges.
        threshold: 1 or more.
        columns: integer[n].
        begin: int64[n * T], from `segments.count_picks`.
        degree: int64[n * T], from `segments.count_picks`.
        indices: integer[num_edges], sources; on the device or in page-locked host memory.
        edge_types: integer[num_edges], where indices may be; None without near_types.
    """
    count, num_nodes, capacity = len(columns), len(slots), len(near_indices)
    if count == 0 or len(begin) == 0:
        return
    num_types = len(begin) // count
    edges = torch.empty(count, dtype=torch.int64, device=columns.device)
    total = torch.zeros(1, dtype=torch.int64, device=columns.device)
    block = tile(count, COLUMNS_TILE)
    programs = ceil_div(count, block)
    launch(_count_seen, programs, slots, slots, columns, count, num_nodes, BLOCK=block)
    launch(_claim, programs, slots, slots, columns, count, num_nodes, threshold, BLOCK=block)
    launch(
        _measure, programs, edges, slots, columns, begin, degree, filled, edges, count, num_nodes,
        capacity, T=num_types, BLOCK=block,
    )  # fmt: skip
    ends = edges.cumsum(0)
    launch(
        _place, programs, slots, slots, columns, begin, degree, filled, ends, total, count,
        num_nodes, capacity, threshold, EDGES_PER_CALL, T=num_types, BLOCK=block,
    )  # fmt: skip
    block = tile(capacity, COPY_TILE)
    programs = min(COPY_PROGRAMS, ceil_div(capacity, block))
    typed = near_types is not None and edge_types is not None
    launch(
        _copy_edges, programs, near_indices, indices, edge_types if typed else indices,
        near_indices, near_types if typed else near_indices, begin, ends, filled, total, count,
        programs, T=num_types, TYPED=typed, BLOCK=block,
    )  # fmt: skip
    filled.add_(total)
