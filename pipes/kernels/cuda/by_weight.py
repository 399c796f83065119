"""Draws by weight with replacement: inversions of each segment's running sum of weights.

A running sum is one addition after another, in the order of the edges, as on the CPU; so one lane
walks a segment, and many segments make a program.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hopline.pipes.kernels.cuda.launching import INTERPRETED, ceil_div, launch, tile
from hopline.pipes.kernels.cuda.segment_picks import LAST, Listing, Slots, width
from hopline.pipes.kernels.cuda.segment_reads import column_of, edges_of, seen, stream_of, times_of
from hopline.pipes.kernels.cuda.words import fold, unit

__all__ = ["draw_by_weight", "draw_listed_by_weight", "weight_of"]

SMALLEST_WEIGHT = tl.constexpr(1e-300)
LARGEST_WEIGHT = tl.constexpr(1e300)
AT_ONCE = 1 if INTERPRETED else 4  # edges of a segment whose weights are on their way together


@triton.jit
def weight_of(weights, position, ok, number, bad):
    """(where `ok`, whether an edge has a weight above 0; the weight, or 1).

    Args:
        weights: pointer to numbers.
        position: int64, of the edges.
        ok: bool, where there is one.
        number: int64, the edges' numbers among all that are looked at.
        bad: pointer to the least number of an edge whose weight is none, in and out; or None.
    """
    w = tl.load(weights + position, mask=ok, other=0).to(tl.float64)
    good = w >= tl.full((), SMALLEST_WEIGHT, tl.float64)
    good = ok & good & (w <= tl.full((), LARGEST_WEIGHT, tl.float64))
    if bad is not None:
        # Also if the weight is NaN.
        wrong = ok & (good == 0) & (w != tl.full((), 0.0, tl.float64))
        # Relaxed: the default is a fence of the whole GPU's memory and a barrier, for every edge.
        tl.atomic_min(bad + tl.zeros_like(number), number, mask=wrong, sem="relaxed")
    return good, tl.where(good, w, tl.full((), 1.0, tl.float64))


@triton.jit(do_not_specialize=["num_segments", "num_nodes"])
def _draw(
    indices, node_ids, keys, fanouts, begin, degree, picked, starts, weights, times, earliest,
    node_times, edge_times, num_segments, num_types, num_nodes, places, counts, bad,
    AT_ONCE: tl.constexpr, K: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """Walks R segments' edges twice: for the sum of weights, then for the edges drawn."""
    s = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    live = s < num_segments
    i, t = column_of(s, num_types)
    fanout = tl.load(fanouts + t, mask=live, other=0)
    first, d = edges_of(s, live, fanout, begin, degree)
    number = tl.load(starts + s, mask=live, other=0)
    low, high = times_of(i, live, times, earliest)
    stream = stream_of(i, t, live, keys, node_ids, times)
    longest = tl.max(d, axis=0)

    last = tl.zeros_like(d) - 1  # edge that may be drawn
    total = tl.zeros_like(d).to(tl.float64)
    off = tl.zeros_like(d)
    rest = longest
    while rest > 0:
        for _ in tl.static_range(AT_ONCE):
            ok, w = weight_of(weights, first + off, off < d, number + off, bad)
            ok = seen(first + off, ok, low, high, indices, node_times, edge_times, num_nodes)
            total = tl.where(ok, total + w, total)
            last = tl.where(ok, off, last)
            off += 1
        rest -= AT_ONCE

    lane = tl.arange(0, K)[None, :].to(tl.int64)
    x = unit(fold(stream[:, None], lane)) * total[:, None]
    found = tl.zeros_like(x).to(tl.int64) - 1
    running = tl.zeros_like(d).to(tl.float64)
    off = tl.zeros_like(d)
    rest = longest
    while rest > 0:
        for _ in tl.static_range(AT_ONCE):
            ok, w = weight_of(weights, first + off, off < d, off, None)
            ok = seen(first + off, ok, low, high, indices, node_times, edge_times, num_nodes)
            running = tl.where(ok, running + w, running)
            above = ok[:, None] & (running[:, None] > x) & (found < 0)
            found = tl.where(above, off[:, None], found)
            off += 1
        rest -= AT_ONCE
    # Where the product was rounded up to the total.
    found = tl.where(found < 0, last[:, None], found)

    k = tl.where(last >= 0, fanout, 0)
    taken = lane < k[:, None]
    # In order of position, repeats side by side. All pairs at once would take too many registers.
    order = tl.where(taken, found * K + lane, LAST)
    place = tl.zeros_like(order)
    for j in range(K):
        other = tl.min(tl.where(lane == j, order, LAST), axis=1)
        place += (other[:, None] < order).to(tl.int64)
    at = tl.load(picked + s, mask=live, other=0)
    tl.store(places + at[:, None] + place, first[:, None] + found, mask=taken)
    tl.store(counts + s, k, mask=live)


@triton.jit(do_not_specialize=["num_segments", "num_nodes"])
def _add_up(
    indices, fanouts, begin, degree, starts, weights, times, earliest, node_times, edge_times,
    num_segments, num_types, num_nodes, sums, totals, lasts,
    AT_ONCE: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """Writes the running sums of R segments' weights, their totals, and the last edges in them."""
    s = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    live = s < num_segments
    i, t = column_of(s, num_types)
    # Where all is taken, no sum is needed.
    fanout = tl.maximum(tl.load(fanouts + t, mask=live, other=0), 0)
    first, d = edges_of(s, live, fanout, begin, degree)
    number = tl.load(starts + s, mask=live, other=0)
    low, high = times_of(i, live, times, earliest)
    last = tl.zeros_like(d) - 1
    total = tl.zeros_like(d).to(tl.float64)
    off = tl.zeros_like(d)
    rest = tl.max(d, axis=0)
    while rest > 0:
        for _ in tl.static_range(AT_ONCE):
            ok, w = weight_of(weights, first + off, off < d, off, None)
            ok = seen(first + off, ok, low, high, indices, node_times, edge_times, num_nodes)
            total = tl.where(ok, total + w, total)
            last = tl.where(ok, off, last)
            tl.store(sums + number + off, total, mask=off < d)
            off += 1
        rest -= AT_ONCE
    tl.store(totals + s, total, mask=live)
    tl.store(lasts + s, last, mask=live)


@triton.jit(do_not_specialize=["room"])
def _invert(
    node_ids, keys, fanouts, times, starts, segment, numbers, used, sums, totals, lasts, room,
    num_types, chosen, B: tl.constexpr,
):  # fmt: skip
    """Finds each slot's edge in the running sums, by bisection."""
    o = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    live = tl.load(used + o, mask=o < room, other=0) != 0
    s = tl.load(segment + o, mask=live, other=0)
    j = tl.load(numbers + o, mask=live, other=0)
    i, t = column_of(s, num_types)
    live = live & (tl.load(fanouts + t, mask=live, other=0) > 0)
    x = unit(fold(stream_of(i, t, live, keys, node_ids, times), j))
    x = x * tl.load(totals + s, mask=live, other=0)
    start = tl.load(starts + s, mask=live, other=0)
    # The first edge whose sum is above x adds to it; else the last one that does.
    left = tl.zeros_like(o)
    right = tl.load(lasts + s, mask=live, other=0)
    while tl.max((left < right).to(tl.int32), axis=0) > 0:
        open_ = left < right
        middle = (left + right) >> 1
        above = tl.load(sums + start + middle, mask=live & open_, other=0) > x
        right = tl.where(open_ & above, middle, right)
        left = tl.where(open_ & (above == 0), middle + 1, left)
    tl.store(chosen + o, start + left, mask=live)


def draw_by_weight(
    indices: torch.Tensor, node_ids: torch.Tensor, keys: torch.Tensor, fanouts: torch.Tensor,
    largest: int, begin: torch.Tensor, degree: torch.Tensor, picked: torch.Tensor,
    starts: torch.Tensor, weights: torch.Tensor, times: torch.Tensor | None,
    earliest: torch.Tensor | None, node_times: torch.Tensor | None,
    edge_times: torch.Tensor | None, places: torch.Tensor, counts: torch.Tensor, bad: torch.Tensor,
) -> None:  # fmt: skip
    """Writes each segment's draws to its room.

    Args but for those of `scored.pick_scored`:
        starts: int64[S], number of each segment's first edge among all that are looked at.
        places: int64[room], out: positions in order.
        counts: int64[S], out.
        bad: int64[1], the least number of an edge with a bad weight, in and out.
    """
    num_segments, k = len(begin), width(largest)
    rows = tile(num_segments, max(1, min(32, 512 // k)), 8192 // k)
    launch(
        _draw, ceil_div(num_segments, rows), places,
        indices, node_ids, keys, fanouts, begin, degree, picked, starts, weights, times, earliest,
        node_times, edge_times, num_segments, len(fanouts),
        0 if node_times is None else len(node_times), places, counts, bad,
        AT_ONCE=AT_ONCE, K=k, R=rows, num_warps=1,
    )  # fmt: skip


def draw_listed_by_weight(
    indices: torch.Tensor, node_ids: torch.Tensor, keys: torch.Tensor, fanouts: torch.Tensor,
    begin: torch.Tensor, degree: torch.Tensor, weights: torch.Tensor,
    times: torch.Tensor | None, earliest: torch.Tensor | None, node_times: torch.Tensor | None,
    edge_times: torch.Tensor | None, listing: Listing, slots: Slots, chosen: torch.Tensor,
) -> None:  # fmt: skip
    """Draws for each slot in use of segments with a fanout above 0.

    Args but for those of `scored.pick_scored`:
        listing: the edges.
        slots: room for the picks.
        chosen: int64[room], out: numbers of edges; other slots stay as they are.
    """
    num_segments, looked, room = len(begin), len(listing.segment), len(chosen)
    sums = torch.empty(looked, dtype=torch.float64, device=begin.device)
    totals = torch.empty(num_segments, dtype=torch.float64, device=begin.device)
    lasts = torch.empty(num_segments, dtype=torch.int64, device=begin.device)
    rows = tile(num_segments, 32)
    launch(
        _add_up, ceil_div(num_segments, rows), sums,
        indices, fanouts, begin, degree, listing.starts, weights, times, earliest, node_times,
        edge_times, num_segments, len(fanouts), 0 if node_times is None else len(node_times), sums,
        totals, lasts,
        AT_ONCE=AT_ONCE, R=rows, num_warps=1,
    )  # fmt: skip
    size = tile(room, 256)
    launch(
        _invert, ceil_div(room, size), chosen,
        node_ids, keys, fanouts, times, listing.starts, slots.segment, slots.number, slots.used,
        sums, totals, lasts, room, len(fanouts), chosen,
        B=size,
    )  # fmt: skip
