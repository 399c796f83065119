"""draw_destinations: destinations of negatives, on the GPU.

They are those that the kernel in `hopline.pipes.kernels.edges` draws.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hopline.pipes.kernels.cuda.launching import NONE, NOTHING, ceil_div, launch, tile
from hopline.pipes.kernels.cuda.words import below, fold

__all__ = ["draw_destinations"]

ATTEMPTS = tl.constexpr(64)
NO_DESTINATION = tl.constexpr(-1)
SCANNED = 128  # edges of a column that are looked at together
DRAWN = 256  # negatives of a program that looks at no edges


@triton.jit
def _is_edge(
    indptr, indices, edge_types, num_columns, num_edges, etype, source, column, active,
    TYPED: tl.constexpr, SCAN: tl.constexpr,
):  # fmt: skip
    """1 if the column has an in-edge of the type from the source, 0 if not, -1 if damaged."""
    inside = active & (column >= 0) & (column < num_columns)
    low = tl.load(indptr + column, mask=inside, other=-1)
    high = tl.load(indptr + column + 1, mask=inside, other=-1)
    damaged = active & ((low < 0) | (low > high) | (high > num_edges))
    readable = active & (damaged == 0)
    low = tl.where(readable, low, 0)
    high = tl.where(readable, high, 0)
    if TYPED:
        # The type's edges lie together: the first at or above it.
        end = high
        while tl.max((low < end).to(tl.int32), axis=0) > 0:
            searching = low < end
            middle = (low + end) >> 1
            kind = tl.load(edge_types + middle, mask=searching, other=0).to(tl.int64)
            low = tl.where(searching & (kind < etype), middle + 1, low)
            end = tl.where(searching & (kind >= etype), middle, end)
    state = tl.where(damaged, -1, 0)
    while tl.max((low < high).to(tl.int32), axis=0) > 0:
        edge = low[:, None] + tl.arange(0, SCAN)[None, :]
        there = edge < high[:, None]
        hit = tl.load(indices + edge, mask=there, other=0).to(tl.int64) == source[:, None]
        at = tl.min(tl.where(there & hit, edge, NONE), axis=1)
        end = high
        if TYPED:
            other = tl.load(edge_types + edge, mask=there, other=0).to(tl.int64) != etype
            end = tl.minimum(end, tl.min(tl.where(there & other, edge, NONE), axis=1))
        state = tl.where(at < end, 1, state)
        low = tl.where((at < end) | (end < low + SCAN), high, low + SCAN)
    return state


@triton.jit
def _stride(stream, count, active):
    """A drawn step in [1, count) without a common divisor with count."""
    searching = active & (count >= 3)
    drawn = 1 + below(fold(stream, tl.full((), ATTEMPTS + 1, tl.int64)), count - 1)
    step = tl.where(searching, drawn, 1)
    while tl.max(searching.to(tl.int32), axis=0) > 0:
        divided = count
        divisor = tl.where(searching, step, 0)
        while tl.max((divisor != 0).to(tl.int32), axis=0) > 0:
            left = divisor != 0
            rest = divided % tl.where(left, divisor, 1)
            divided = tl.where(left, divisor, divided)
            divisor = tl.where(left, rest, 0)
        searching = searching & (divided != 1)
        step = tl.where(searching, tl.where(step + 1 < count, step + 1, 1), step)
    return step


@triton.jit(
    do_not_specialize=["key", "total", "ratio", "first", "num_columns", "num_edges", "etype"]
)
def _draw(
    counts, order, sources, indptr, indices, edge_types, out, bad,
    key, total, ratio, first, num_columns, num_edges, etype,
    ORDERED: tl.constexpr, AVOID: tl.constexpr, TYPED: tl.constexpr,
    SCAN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Draws a destination for each negative; lowers bad[0] to the first without one."""
    n = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = n < total
    pair = n // ratio
    count = tl.load(counts + pair, mask=there, other=0)
    stream = fold(key.to(tl.int64).to(tl.uint64), n)
    active = there & (count > 0)
    result = tl.full((BLOCK,), NO_DESTINATION, tl.int64)
    if AVOID:
        source = tl.load(sources + pair, mask=there, other=0)
    attempt = tl.full((), 0, tl.int64)
    while (attempt < ATTEMPTS) & (tl.max(active.to(tl.int32), axis=0) > 0):
        destination = below(fold(stream, attempt), count)
        if ORDERED:
            destination = tl.load(order + destination, mask=active, other=0).to(tl.int64)
        if AVOID:
            state = _is_edge(
                indptr, indices, edge_types, num_columns, num_edges, etype, source,
                first + destination, active, TYPED, SCAN,
            )  # fmt: skip
            result = tl.where(active & (state < 0), -2 - (first + destination), result)
            result = tl.where(active & (state == 0), destination, result)
            active = active & (state > 0)
        else:
            result = tl.where(active, destination, result)
            active = active & (count < 0)
        attempt += 1
    if AVOID:
        # All candidates in turn, from a drawn one with a drawn stride.
        at = below(fold(stream, tl.full((), ATTEMPTS, tl.int64)), count)
        step = _stride(stream, count, active)
        visit = tl.full((), 0, tl.int64)
        while tl.max(active.to(tl.int32), axis=0) > 0:
            destination = at
            if ORDERED:
                destination = tl.load(order + at, mask=active, other=0).to(tl.int64)
            state = _is_edge(
                indptr, indices, edge_types, num_columns, num_edges, etype, source,
                first + destination, active, TYPED, SCAN,
            )  # fmt: skip
            result = tl.where(active & (state < 0), -2 - (first + destination), result)
            result = tl.where(active & (state == 0), destination, result)
            visit += 1
            active = active & (state > 0) & (visit < count)
            at += step
            at = tl.where(at >= count, at - count, at)
    tl.store(out + n, result, mask=there)
    tl.atomic_min(bad + n * 0, n, mask=there & (result < 0), sem="relaxed")


@triton.jit(do_not_specialize=["ratio"])
def _explain(out, errors, ratio):
    """errors[1] = the pair of negative errors[0], or errors[2] = the damaged column it has met."""
    n = tl.load(errors)
    failed = n < NONE
    code = tl.load(out + n, mask=failed, other=0)
    tl.store(errors + 1, n // ratio, mask=failed & (code == NO_DESTINATION))
    tl.store(errors + 2, -2 - code, mask=failed & (code < NO_DESTINATION))


def draw_destinations(
    key: int,
    ratio: int,
    counts: torch.Tensor,
    order: torch.Tensor | None,
    avoid: bool,
    sources: torch.Tensor,
    first: int,
    indptr: torch.Tensor,
    indices: torch.Tensor,
    edge_types: torch.Tensor | None,
    etype: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Draws the destinations of negatives, each evenly among its candidates.

    The draws are those of `hopline.pipes.kernels.edges.draw_destinations`. order, indptr, indices
    and edge_types may be in page-locked host memory.

    Args:
        key: uint64, the key of the mini-batch and the edge type.
        ratio: negatives a pair.
        counts: contiguous int64[pairs], number of candidates of each pair, 1 or more.
        order: contiguous integer[nodes], the pair's candidates are its first entries; or None:
            candidates are 0, 1, ...
        avoid: leave out destinations that the source has an edge to.
        sources: contiguous int64[pairs], fused ids; not read unless avoid.
        first: fused id of destination 0.
        indptr: contiguous int64[num_nodes + 1]; first plus any candidate is a column.
        indices: contiguous integer[num_edges].
        edge_types: contiguous integer[num_edges], ascending within a column; or None: one type.
        etype: the edge type to avoid.

    Returns:
        int64[pairs * ratio]: destinations, from 0 within their type; int64[1]: the pair of the
        first negative without one, or NOTHING; int64[1]: instead, the damaged column that the first
        negative has met, or NOTHING.
    """
    total = len(counts) * ratio
    out = torch.empty(total, dtype=torch.int64, device=counts.device)
    errors = torch.full((3,), NOTHING, dtype=torch.int64, device=counts.device)
    # One warp for one negative, which looks at the edges of a column side by side.
    block = tile(total, 1 if avoid else DRAWN, limit=256)
    launch(
        _draw, ceil_div(total, block), out, counts, counts if order is None else order, sources,
        indptr, indices, indices if edge_types is None else edge_types, out, errors,
        key - (1 << 64) if key >> 63 else key, total, ratio, first, len(indptr) - 1, len(indices),
        etype, ORDERED=order is not None, AVOID=avoid, TYPED=edge_types is not None,
        SCAN=tile(len(indices), SCANNED, limit=16), BLOCK=block, num_warps=1 if avoid else 4,
    )  # fmt: skip
    launch(_explain, min(total, 1), errors, out, errors, ratio)
    return out, errors[1:2], errors[2:3]
