"""keep_edges: edges that are not among given pairs, on the GPU.

The pairs are sorted by destination, then by source: those of a column's destination lie together,
and the source of an edge is searched among them. What stays is what the kernel in
`hopline.pipes.kernels.edges` keeps.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hopline.pipes.kernels.cuda.launching import NOTHING, ceil_div, launch, tile
from hopline.pipes.kernels.cuda.words import mix64
from hopline.pipes.kernels.edges import MARKS

__all__ = ["keep_edges"]

BLOCK = 512  # pairs, columns or edges of a program


@triton.jit(do_not_specialize=["count", "capacity"])
def _mark(destinations, marks, count, capacity, BLOCK: tl.constexpr):
    """Sets the mark of each destination."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = at < count
    word = tl.load(destinations + at, mask=there, other=0).to(tl.uint64)
    slot = (mix64(word) & (capacity - 1).to(tl.uint64)).to(tl.int64)
    tl.store(marks + slot, tl.full((BLOCK,), 1, tl.int8), mask=there)


@triton.jit(do_not_specialize=["num_columns", "num_edges", "capacity"])
def _check_columns(
    indptr, columns, marks, marked, bad, num_columns, num_edges, capacity, BLOCK: tl.constexpr
):  # fmt: skip
    """marked[i] = the mark of column i; lowers bad[0] to the first column of damaged pointers."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = at < num_columns
    low = tl.load(indptr + at, mask=there, other=0)
    high = tl.load(indptr + at + 1, mask=there, other=0)
    damaged = there & ((low < 0) | (low > high) | (high > num_edges))
    tl.atomic_min(bad + at * 0, at, mask=damaged, sem="relaxed")
    word = tl.load(columns + at, mask=there, other=0).to(tl.int64).to(tl.uint64)
    slot = (mix64(word) & (capacity - 1).to(tl.uint64)).to(tl.int64)
    tl.store(marked + at, tl.load(marks + slot, mask=there, other=0), mask=there)


@triton.jit(do_not_specialize=["num_columns", "num_edges", "num_rows"])
def _keep(
    indptr, indices, rows, marked, begins, ends, sources, bad, damaged, keep,
    num_columns, num_edges, num_rows, RELABELLED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """keep[e] = 1 if edge e lies in a column and is not listed.

    Lowers damaged[0] to the first column with a source that is no row. Only columns before bad[0]
    are looked at: up to there, pointers ascend.
    """
    edge = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = edge < num_edges
    sound = tl.minimum(tl.load(bad), num_columns)
    # The first column that ends behind the edge.
    left = tl.zeros((BLOCK,), tl.int64)
    right = tl.where(there, sound, 0)
    while tl.max((left < right).to(tl.int32), axis=0) > 0:
        searching = left < right
        middle = (left + right) >> 1
        behind = tl.load(indptr + middle + 1, mask=searching, other=0) > edge
        right = tl.where(searching & behind, middle, right)
        left = tl.where(searching & (behind == 0), middle + 1, left)
    column = left
    there = there & (column < sound)
    there = there & (tl.load(indptr + column, mask=there, other=0) <= edge)
    search = there & (tl.load(marked + column, mask=there, other=0) > 0)
    source = tl.load(indices + edge, mask=search, other=0).to(tl.int64)
    if RELABELLED:
        outside = search & ((source < 0) | (source >= num_rows))
        tl.atomic_min(damaged + edge * 0, column, mask=outside, sem="relaxed")
        search = search & (outside == 0)
        source = tl.load(rows + source, mask=search, other=0).to(tl.int64)
    # The first pair of the destination whose source is not below the edge's.
    left = tl.load(begins + column, mask=search, other=0)
    last = tl.load(ends + column, mask=search, other=0)
    right = last
    while tl.max((left < right).to(tl.int32), axis=0) > 0:
        searching = left < right
        middle = (left + right) >> 1
        before = tl.load(sources + middle, mask=searching, other=0) < source
        left = tl.where(searching & before, middle + 1, left)
        right = tl.where(searching & (before == 0), middle, right)
    found = search & (left < last)
    listed = found & (tl.load(sources + left, mask=found, other=0) == source)
    tl.store(keep + edge, (there & (listed == 0)).to(tl.int32), mask=edge < num_edges)


@triton.jit(do_not_specialize=["num_columns", "num_edges"])
def _write_kept(indptr, keep, sums, kept_indptr, kept, num_columns, num_edges, BLOCK: tl.constexpr):
    """Writes the positions of the edges that stay, and where each column's begin."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    stays = tl.load(keep + at, mask=at < num_edges, other=0) > 0
    place = tl.load(sums + at, mask=stays, other=1) - 1
    tl.store(kept + place, at, mask=stays)
    pointer = tl.load(indptr + at, mask=at <= num_columns, other=0)
    pointer = tl.minimum(pointer, num_edges)
    before = tl.load(sums + pointer - 1, mask=pointer > 0, other=0)
    tl.store(kept_indptr + at, before, mask=at <= num_columns)


def keep_edges(
    indptr: torch.Tensor,
    indices: torch.Tensor,
    rows: torch.Tensor | None,
    columns: torch.Tensor,
    sources: torch.Tensor,
    destinations: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Finds the edges that are not among given pairs.

    Args:
        indptr: contiguous int64[num_columns + 1].
        indices: contiguous integer[num_edges], positions in rows, or ids if rows is None.
        rows: contiguous integer[num_rows], ids.
        columns: contiguous integer[num_columns], ids.
        sources: int64[n], ids.
        destinations: int64[n], ids.

    Returns:
        int64[num_columns + 1]: the new pointers; int64[num_edges]: positions of the edges that
        stay, ascending; int64[1]: how many these are; int64[1]: the first column whose pointers or
        indices are damaged, or NOTHING. If a column is damaged, the others mean nothing.
    """
    device, num_columns, num_edges = columns.device, len(columns), len(indices)
    by_source, order = torch.sort(sources)
    by_destination, stable = torch.sort(destinations[order], stable=True)
    by_source = by_source[stable]
    # The CPU kernel's marks, so that both look at the indices of the same columns.
    capacity = 4
    while capacity < 2 * len(sources):
        capacity *= 2
    capacity *= MARKS
    marks = torch.zeros(capacity, dtype=torch.int8, device=device)
    block = tile(len(sources), BLOCK)
    launch(
        _mark, ceil_div(len(sources), block), marks, by_destination, marks, len(sources), capacity,
        BLOCK=block,
    )  # fmt: skip
    bad = torch.full((1,), NOTHING, dtype=torch.int64, device=device)
    marked = torch.empty(num_columns, dtype=torch.int8, device=device)
    block = tile(num_columns, BLOCK)
    launch(
        _check_columns, ceil_div(num_columns, block), marked, indptr, columns, marks, marked, bad,
        num_columns, num_edges, capacity, BLOCK=block,
    )  # fmt: skip
    ids = columns.to(torch.int64)
    begins = torch.searchsorted(by_destination, ids)
    ends = torch.searchsorted(by_destination, ids, right=True)
    damaged = bad.clone()
    keep = torch.empty(num_edges, dtype=torch.int32, device=device)
    block = tile(num_edges, BLOCK)
    launch(
        _keep, ceil_div(num_edges, block), keep, indptr, indices, columns if rows is None else rows,
        marked, begins, ends, by_source, bad, damaged, keep, num_columns, num_edges,
        0 if rows is None else len(rows), RELABELLED=rows is not None, BLOCK=block,
    )  # fmt: skip
    sums = torch.cumsum(keep, 0, dtype=torch.int64)
    kept_indptr = torch.empty(num_columns + 1, dtype=torch.int64, device=device)
    kept = torch.empty(num_edges, dtype=torch.int64, device=device)
    block = tile(max(num_edges, num_columns + 1), BLOCK)
    launch(
        _write_kept, ceil_div(max(num_edges, num_columns + 1), block), kept, indptr, keep, sums,
        kept_indptr, kept, num_columns, num_edges, BLOCK=block,
    )  # fmt: skip
    if num_edges:
        return kept_indptr, kept, sums[-1:], damaged
    return kept_indptr, kept, torch.zeros(1, dtype=torch.int64, device=device), damaged
