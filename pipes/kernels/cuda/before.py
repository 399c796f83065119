"""pick_before: even draws among the edges that a column of a given time may see."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hopline.pipes.kernels.cuda.launching import NOTHING, ceil_div, launch, tile
from hopline.pipes.kernels.cuda.segment_picks import (
    LAST,
    SegmentPicks,
    Slots,
    list_edges,
    list_slots,
    no_picks,
    pack_picks,
    running_sum,
    width,
    write_picks,
)
from hopline.pipes.kernels.cuda.segment_reads import column_of, edges_of, seen, stream_of, times_of
from hopline.pipes.kernels.cuda.words import below, fold

__all__ = ["pick_before"]


@triton.jit(do_not_specialize=["num_segments", "num_nodes"])
def _pick_before(
    indices, node_ids, keys, fanouts, begin, degree, picked, times, earliest, node_times,
    edge_times, num_segments, num_types, num_nodes, places, counts,
    REPLACE: tl.constexpr, K: tl.constexpr, B: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """Counts the edges that each segment's column sees, draws ranks among them, and finds them.

    K is no less than any fanout; B edges are looked at in a step; R segments make a program.
    """
    s = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    live = s < num_segments
    i, t = column_of(s, num_types)
    fanout = tl.load(fanouts + t, mask=live, other=0)
    first, d = edges_of(s, live, fanout, begin, degree)
    low, high = times_of(i, live, times, earliest)
    start = first[:, None]
    low = low[:, None]
    high = high[:, None]
    step = tl.arange(0, B)[None, :]
    longest = tl.max(d, axis=0)

    n = d
    if edge_times is not None or node_times is not None:
        n = tl.zeros_like(d)
        offset = longest * 0
        while offset < longest:
            off = offset + step
            ok = seen(
                start + off, off < d[:, None], low, high, indices, node_times, edge_times, num_nodes
            )
            n += tl.sum(ok.to(tl.int32), axis=1)
            offset += B

    stream = stream_of(i, t, live, keys, node_ids, times)
    lane = tl.arange(0, K)[None, :].to(tl.int64)
    if REPLACE:
        k = tl.where(n > 0, fanout, 0)
        ranks = below(fold(stream[:, None], lane), tl.maximum(n, 1)[:, None])
    else:
        k = tl.minimum(n, fanout)
        ranks = lane + tl.zeros_like(start)
        # Floyd's draw, but where all edges are taken.
        drawn = tl.where(k < n, k, 0)
        most = tl.max(drawn, axis=0)
        j = most * 0
        while j < most:
            last = tl.maximum(n - k + j, 0)
            rank = below(fold(stream, tl.zeros_like(s) + j), last + 1)
            met = tl.max(((ranks == rank[:, None]) & (lane < j)).to(tl.int32), axis=1)
            rank = tl.where(met > 0, last, rank)
            ranks = tl.where((lane == j) & (j < drawn)[:, None], rank[:, None], ranks)
            j += 1

    # found: each rank's edge, counted from the segment's first.
    found = ranks
    if edge_times is not None or node_times is not None:
        found = tl.zeros_like(ranks)
        before = tl.zeros_like(d)
        offset = longest * 0
        while offset < longest:
            off = offset + step
            ok = seen(
                start + off, off < d[:, None], low, high, indices, node_times, edge_times, num_nodes
            )
            rank = tl.cumsum(ok.to(tl.int32), axis=1)  # from 1, where ok
            wanted = ranks - before[:, None] + 1
            wanted = tl.where((wanted > 0) & (wanted <= B), wanted, -1).to(tl.int32)
            rank = tl.where(ok, rank, 0)
            here = (step + 1 + tl.zeros_like(rank))[:, None, :]
            hit = tl.sum(tl.where(rank[:, None, :] == wanted[:, :, None], here, 0), axis=2)
            found = tl.where(hit > 0, offset + hit - 1, found)
            before += tl.max(rank, axis=1)
            offset += B

    # In order of position, repeats side by side.
    taken = lane < k[:, None]
    order = tl.where(taken, found * K + lane, LAST)
    place = tl.sum((order[:, None, :] < order[:, :, None]).to(tl.int32), axis=2)
    at = tl.load(picked + s, mask=live, other=0)
    tl.store(places + at[:, None] + place, start + found, mask=taken)
    tl.store(counts + s, k, mask=live)


@triton.jit(do_not_specialize=["looked", "num_nodes"])
def _see(
    indices, fanouts, begin, starts, segment, times, earliest, node_times, edge_times, looked,
    num_types, num_nodes, visible, B: tl.constexpr,
):  # fmt: skip
    """Whether each listed edge may be drawn."""
    number = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    live = number < looked
    s = tl.load(segment + number, mask=live, other=0)
    i, t = column_of(s, num_types)
    ok = live & (tl.load(fanouts + t, mask=live, other=0) != 0)
    position = tl.load(begin + s, mask=live, other=0) + number
    position -= tl.load(starts + s, mask=live, other=0)
    low, high = times_of(i, live, times, earliest)
    ok = seen(position, ok, low, high, indices, node_times, edge_times, num_nodes)
    tl.store(visible + number, ok.to(tl.int8), mask=live)


@triton.jit(do_not_specialize=["room"])
def _draw_ranks(
    keys, node_ids, fanouts, times, segment, numbers, used, n, k, room, num_types, raw,
    REPLACE: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """The draw of each slot, as a rank; Floyd's may meet an earlier one."""
    o = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    s = tl.load(segment + o, mask=o < room, other=0)
    live = tl.load(used + o, mask=o < room, other=0) != 0
    j = tl.load(numbers + o, mask=live, other=0)
    i, t = column_of(s, num_types)
    count = tl.load(n + s, mask=live, other=1)
    bound = count
    if not REPLACE:
        bound = count - tl.load(k + s, mask=live, other=0) + j + 1
    rank = below(fold(stream_of(i, t, live, keys, node_ids, times), j), bound)
    fanout = tl.load(fanouts + t, mask=live, other=-1)
    tl.store(raw + o, tl.where(fanout < 0, j, rank), mask=o < room)


def _settle(
    raw: torch.Tensor, slots: Slots, drawn: torch.Tensor, n: torch.Tensor, k: torch.Tensor,
    most: int,
) -> torch.Tensor:  # fmt: skip
    """Floyd's draws from their words' numbers: slot j takes n - k + j if its number was met before.

    It was met if an earlier slot has the same number, or if it is n - k + m and slot m took that:
    chains of slots, which are followed by jumps of doubling length.

    Args:
        raw: int64[room], each slot's number, at most n - k + j.
        slots: of the room.
        drawn: bool[room], where there is anything to draw.
        n: int64[S], edges to draw from.
        k: int64[S], how many.
        most: the largest k of a segment that draws.
    """
    at = torch.arange(len(raw), device=raw.device)
    base = (n - k)[slots.segment]
    first = (running_sum(n)[:-1])[slots.segment]
    value, order = torch.sort(torch.where(drawn, first + raw, NOTHING), stable=True)
    again = torch.zeros_like(drawn)
    again[1:] = value[1:] == value[:-1]
    met = torch.zeros_like(drawn).scatter_(0, order, again)
    m = raw - base
    linked = drawn & ~met & (m >= 0) & (m < slots.number)
    link = torch.where(linked, at - slots.number + m, at)
    for _ in range(min(most, len(raw)).bit_length()):
        met = met | met[link]
        link = link[link]
    return torch.where(met, base + slots.number, raw)


def _pick_listed(
    indices: torch.Tensor, node_ids: torch.Tensor, keys: torch.Tensor, fanouts: torch.Tensor,
    largest: int, replace: bool, begin: torch.Tensor, degree: torch.Tensor, picked: torch.Tensor,
    room: int, looked: int, times: torch.Tensor, earliest: torch.Tensor,
    node_times: torch.Tensor | None, edge_times: torch.Tensor | None,
) -> SegmentPicks:  # fmt: skip
    """`pick_before` for any fanouts."""
    num_types, num_segments = len(fanouts), len(begin)
    listing = list_edges(degree, looked)
    visible = torch.empty(looked, dtype=torch.int8, device=begin.device)
    size = tile(looked, 256)
    launch(
        _see, ceil_div(looked, size), visible,
        indices, fanouts, begin, listing.starts, listing.segment, times, earliest, node_times,
        edge_times, looked, num_types, 0 if node_times is None else len(node_times), visible,
        B=size,
    )  # fmt: skip
    ranks = running_sum(visible)
    n = ranks[listing.ends] - ranks[listing.starts]
    fanout = fanouts.repeat(num_segments // num_types)
    k = torch.where(n > 0, fanout, 0) if replace else torch.minimum(n, fanout)
    k = torch.where(fanout < 0, n, k)
    slots = list_slots(picked, k, room)
    raw = torch.empty(room, dtype=torch.int64, device=begin.device)
    size = tile(room, 256)
    launch(
        _draw_ranks, ceil_div(room, size), raw,
        keys, node_ids, fanouts, times, slots.segment, slots.number, slots.used, n, k, room,
        num_types, raw,
        REPLACE=replace, B=size,
    )  # fmt: skip
    if not replace:
        drawn = slots.used & (k < n)[slots.segment]
        raw = torch.where(drawn, _settle(raw, slots, drawn, n, k, largest), slots.number)
    # The first edge behind which the running sum is above the rank.
    wanted = ranks[listing.starts][slots.segment] + raw
    chosen = torch.searchsorted(ranks[1:], wanted, right=True)
    chosen = torch.where(slots.used, chosen, NOTHING)
    return write_picks(chosen, k, listing, begin, indices)


def pick_before(
    indices: torch.Tensor, node_ids: torch.Tensor, keys: torch.Tensor, fanouts: torch.Tensor,
    largest: int, replace: bool, begin: torch.Tensor, degree: torch.Tensor, picked: torch.Tensor,
    room: int, looked: int | None, times: torch.Tensor, earliest: torch.Tensor,
    node_times: torch.Tensor | None, edge_times: torch.Tensor | None,
) -> SegmentPicks:  # fmt: skip
    """Draws evenly among the edges of each segment that its column may see.

    The picks are those of `hopline.pipes.kernels.draws.pick_before`.

    Args:
        indices: integer[num_edges], sources, in range.
        node_ids: integer[n], the columns' original ids.
        keys: int64[T], the bits of uint64.
        fanouts: int64[T].
        largest: the largest fanout that is not -1, or 0.
        replace: draw with replacement.
        begin: int64[n * T], as `hopline.pipes.kernels.cpu.count_picks` gives it.
        degree: int64[n * T], likewise.
        picked: int64[n * T + 1], likewise.
        room: length of the results, no less than picked[-1].
        looked: sum of degree where `segment_picks.needs_expansion` says so, else None.
        times: int64[n], each column's time: edges and sources must be older.
        earliest: int64[n]: and no older than this.
        node_times: int64[num_nodes], or None: sources have no time.
        edge_times: int64[num_edges], or None: edges have no time.

    Returns:
        (segments int64[n * T + 1], running sum of picks; positions int64[room]; neighbors of the
        dtype of indices [room]); behind segments[-1] are zeros.
    """
    if len(begin) == 0 or room == 0 or looked == 0:
        return no_picks(begin, indices, room)
    if looked is not None:
        return _pick_listed(
            indices, node_ids, keys, fanouts, largest, replace, begin, degree, picked, room, looked,
            times, earliest, node_times, edge_times,
        )  # fmt: skip
    num_segments = len(begin)
    k = width(largest)
    places = torch.empty(room, dtype=torch.int64, device=begin.device)
    counts = torch.empty(num_segments, dtype=torch.int64, device=begin.device)
    rows = tile(num_segments, 1, 8192 // k)
    launch(
        _pick_before, ceil_div(num_segments, rows), places,
        indices, node_ids, keys, fanouts, begin, degree, picked, times, earliest, node_times,
        edge_times, num_segments, len(fanouts), 0 if node_times is None else len(node_times),
        places, counts,
        REPLACE=replace, K=k, B=min(128, 2048 // k), R=rows, num_warps=1,
    )  # fmt: skip
    return pack_picks(places, counts, picked, indices, k)
