"""pick_scored: the edges with the smallest scores, for draws by weight and for LABOR."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hopline.pipes.kernels.cuda.by_weight import draw_by_weight, draw_listed_by_weight, weight_of
from hopline.pipes.kernels.cuda.launching import NOTHING, ceil_div, launch, tile
from hopline.pipes.kernels.cuda.segment_picks import (
    LAST,
    Listing,
    SegmentPicks,
    list_edges,
    list_slots,
    no_picks,
    pack_picks,
    running_sum,
    width,
    write_picks,
)
from hopline.pipes.kernels.cuda.segment_reads import column_of, edges_of, seen, stream_of, times_of
from hopline.pipes.kernels.cuda.words import exponential, fold, unit

__all__ = ["pick_scored"]

MOST_ARRIVALS = 1 << 14  # of one segment: what a program has registers for


@triton.jit
def _word_of(source, layer):
    """LABOR's word of source nodes; `layer` as in `pick_scored`."""
    key = tl.load(layer).to(tl.uint64)
    other = tl.load(layer + 1).to(tl.uint64)
    switch = tl.load(layer + 2).to(tl.uint64)
    share = tl.load(layer + 3).to(tl.uint64)
    return fold(tl.where(fold(switch, source) < share, other, key), source)


@triton.jit
def _score(
    off, ok, first, number, stream, low, high, indices, weights, layer, node_times, edge_times,
    parallel, num_nodes, bad, ARRIVALS: tl.constexpr,
):  # fmt: skip
    """(score, word, weight) of edges; scores are int64 of the same order, `LAST` for no edge.

    Args:
        off: int64, the edges' numbers in their segments.
        ok: bool, where there is one.
        first: int64, position of the segment's first edge.
        number: int64, the first edge's number among all that are looked at.
        stream: uint64, of the segment.
        low: int64, earliest time of the segment.
        high: int64, its end.
        indices: as in `pick_scored`, like all pointers.
        weights: numbers or None.
        layer: int64[4] or None.
        node_times: int64 or None.
        edge_times: int64 or None.
        parallel: int32 or None.
        num_nodes: length of node_times.
        bad: int64[1], the least number of an edge with a bad weight, in and out; or None.
        ARRIVALS: scores are the edges' first arrivals, and words those of all their arrivals.
    """
    position = first + off
    if weights is not None:
        ok, w = weight_of(weights, position, ok, number + off, bad)
    else:
        w = tl.full((), 1.0, tl.float64) + tl.zeros_like(off).to(tl.float64)
    ok = seen(position, ok, low, high, indices, node_times, edge_times, num_nodes)
    if layer is not None:
        word = _word_of(tl.load(indices + position, mask=ok, other=0).to(tl.int64), layer)
        if parallel is not None:
            rank = tl.load(parallel + position, mask=ok, other=0)
            word = tl.where(rank > 0, fold(word, rank), word)
    else:
        word = fold(stream, off)
    if ARRIVALS:
        score = _wait(word, tl.zeros_like(off), w).to(tl.int64, bitcast=True)
    elif weights is not None:
        # Bits of floats that are not negative have the floats' order.
        score = (exponential(unit(word)) / w).to(tl.int64, bitcast=True)
    else:
        score = (word >> 11).to(tl.int64)
    return tl.where(ok, score, LAST), word, w


@triton.jit
def _wait(word, j, w):
    """Time before arrival j of edges, in LABOR with replacement."""
    return exponential(unit(fold(word, j))) / w


@triton.jit(do_not_specialize=["num_segments", "num_nodes"])
def _pick_smallest(
    indices, node_ids, keys, fanouts, begin, degree, picked, starts, weights, layer, times,
    earliest, node_times, edge_times, parallel, num_segments, num_types, num_nodes, places, counts,
    bad, ARRIVALS: tl.constexpr, LISTED: tl.constexpr, K: tl.constexpr, B: tl.constexpr,
    R: tl.constexpr,
):  # fmt: skip
    """The edges of each segment with the smallest scores, ties in order of position.

    The best ones so far are in K lanes, in any order; the worst one leaves when an edge with a
    smaller score comes. An edge whose arrival was taken comes again with its next one. K is no less
    than any fanout; B edges are looked at in a step; R segments make a program. LISTED writes the
    edges' numbers in any order, else positions in order.
    """
    s = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    live = s < num_segments
    i, t = column_of(s, num_types)
    fanout = tl.load(fanouts + t, mask=live, other=0)
    # Segments of which all is taken are listed elsewhere.
    fanout = tl.maximum(fanout, 0)
    first, d = edges_of(s, live, fanout, begin, degree)
    at = tl.load(picked + s, mask=live, other=0)
    k = tl.load(picked + s + 1, mask=live & (d > 0), other=0)
    k = tl.where(d > 0, k - at, 0)
    rest = tl.max(d, axis=0) if ARRIVALS else tl.max(d - k, axis=0)
    k = k[:, None]
    low, high = times_of(i, live, times, earliest)
    low = low[:, None]
    high = high[:, None]
    stream = stream_of(i, t, live, keys, node_ids, times)[:, None]
    number = tl.load(starts + s, mask=live, other=0)[:, None]
    start = first[:, None]
    d = d[:, None]
    step = tl.arange(0, B)[None, :]
    lane = tl.arange(0, K)[None, :].to(tl.int64)

    # best: scores, -1 in lanes beyond the fanout. tag: the edge and the lane; all are different.
    if ARRIVALS:
        best = tl.where(lane < k, tl.full((), LAST, tl.int64), -1)
        tag = lane + tl.zeros_like(start)
        offset = tl.zeros_like(d)
    else:
        leading = lane + tl.zeros_like(start)
        leads, _, _ = _score(
            leading, leading < k, start, number, stream, low, high, indices, weights, layer,
            node_times, edge_times, parallel, num_nodes, bad, ARRIVALS,
        )  # fmt: skip
        best = tl.where(lane < k, leads, -1)
        tag = leading * K + lane
        offset = k
    worst = tl.max(best, axis=1)

    while rest > 0:
        off = offset + step
        score, word, w = _score(
            off, off < d, start, number, stream, low, high, indices, weights, layer, node_times,
            edge_times, parallel, num_nodes, bad, ARRIVALS,
        )  # fmt: skip
        arrivals = tl.zeros_like(off)
        least = tl.min(score, axis=1)
        better = least < worst
        while tl.max(better.to(tl.int32), axis=0) > 0:
            edge = tl.min(tl.where(score == least[:, None], off, LAST), axis=1)
            leaves = tl.max(tl.where(best == worst[:, None], tag, -1), axis=1)
            here = (off == edge[:, None]) & better[:, None]
            slot = (tag == leaves[:, None]) & better[:, None]
            best = tl.where(slot, least[:, None], best)
            tag = tl.where(slot, edge[:, None] * K + lane, tag)
            if ARRIVALS:
                arrivals += here.to(tl.int64)
                j = tl.sum(tl.where(here, arrivals, 0), axis=1)
                its_word = tl.sum(tl.where(here, word.to(tl.int64), 0), axis=1).to(tl.uint64)
                its_w = tl.sum(tl.where(here, w, 0.0), axis=1)
                now = tl.where(better, least, 0).to(tl.float64, bitcast=True)
                now += _wait(its_word, j, tl.where(better, its_w, 1.0))
                score = tl.where(here, now.to(tl.int64, bitcast=True)[:, None], score)
            else:
                score = tl.where(here, LAST, score)
            worst = tl.max(best, axis=1)
            least = tl.min(score, axis=1)
            better = least < worst
        offset += B
        rest -= B

    taken = (best >= 0) & (best < LAST)
    edge = tag // K
    if LISTED:
        tl.store(places + at[:, None] + lane, number + edge, mask=taken)
    else:
        # In order of position, repeats side by side.
        order = tl.where(taken, tag, LAST)
        place = tl.sum((order[:, None, :] < order[:, :, None]).to(tl.int32), axis=2)
        tl.store(places + at[:, None] + place, start + edge, mask=taken)
        tl.store(counts + s, tl.sum(taken.to(tl.int64), axis=1), mask=live)


@triton.jit(do_not_specialize=["looked", "num_nodes"])
def _score_listed(
    indices, node_ids, keys, fanouts, begin, starts, segment, weights, layer, times, earliest,
    node_times, edge_times, parallel, looked, num_types, num_nodes, scores, bad, B: tl.constexpr,
):  # fmt: skip
    """The score of each listed edge, `LAST` if it is not to be drawn."""
    number = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    live = number < looked
    s = tl.load(segment + number, mask=live, other=0)
    i, t = column_of(s, num_types)
    start = tl.load(starts + s, mask=live, other=0)
    first = tl.load(begin + s, mask=live, other=0)
    low, high = times_of(i, live, times, earliest)
    score, _, _ = _score(
        number - start, live & (tl.load(fanouts + t, mask=live, other=0) != 0), first, start,
        stream_of(i, t, live, keys, node_ids, times), low, high, indices, weights, layer,
        node_times, edge_times, parallel, num_nodes, bad, False,
    )  # fmt: skip
    tl.store(scores + number, score, mask=live)


def _smallest(
    indices: torch.Tensor, node_ids: torch.Tensor, keys: torch.Tensor, fanouts: torch.Tensor,
    largest: int, replace: bool, begin: torch.Tensor, degree: torch.Tensor, picked: torch.Tensor,
    starts: torch.Tensor, weights: torch.Tensor | None, layer: torch.Tensor | None,
    times: torch.Tensor | None, earliest: torch.Tensor | None, node_times: torch.Tensor | None,
    edge_times: torch.Tensor | None, parallel: torch.Tensor | None, places: torch.Tensor,
    counts: torch.Tensor | None, bad: torch.Tensor | None,
) -> None:  # fmt: skip
    """Writes each segment's edges with the smallest scores to its room.

    Args but for those of `pick_scored`:
        starts: int64[S], number of each segment's first edge among all that are looked at.
        places: int64[room], out: positions in order; without counts, numbers in any order.
        counts: int64[S], out; or None.
        bad: int64[1], the least number of an edge with a bad weight, in and out; or None.
    """
    num_segments = len(begin)
    k = width(largest)
    rows = tile(num_segments, 1, max(1, 8192 // k))
    launch(
        _pick_smallest, ceil_div(num_segments, rows), places,
        indices, node_ids, keys, fanouts, begin, degree, picked, starts, weights, layer, times,
        earliest, node_times, edge_times, parallel, num_segments, len(fanouts),
        0 if node_times is None else len(node_times), places, counts, bad,
        ARRIVALS=replace, LISTED=counts is None, K=k, B=128, R=rows,
        num_warps=min(16, max(1, k // 256)),
    )  # fmt: skip


def _pick_listed(
    indices: torch.Tensor, node_ids: torch.Tensor, keys: torch.Tensor, fanouts: torch.Tensor,
    largest: int, replace: bool, begin: torch.Tensor, degree: torch.Tensor, picked: torch.Tensor,
    room: int, listing: Listing, weights: torch.Tensor | None, layer: torch.Tensor | None,
    times: torch.Tensor | None, earliest: torch.Tensor | None, node_times: torch.Tensor | None,
    edge_times: torch.Tensor | None, parallel: torch.Tensor | None, bad: torch.Tensor,
) -> SegmentPicks:  # fmt: skip
    """`pick_scored` for any fanouts, but for the position of the bad edge."""
    num_types, num_segments, looked = len(fanouts), len(begin), len(listing.segment)
    num_nodes = 0 if node_times is None else len(node_times)
    scores = torch.empty(looked, dtype=torch.int64, device=begin.device)
    size = tile(looked, 256)
    launch(
        _score_listed, ceil_div(looked, size), scores,
        indices, node_ids, keys, fanouts, begin, listing.starts, listing.segment, weights, layer,
        times, earliest, node_times, edge_times, parallel, looked, num_types, num_nodes, scores,
        bad,
        B=size,
    )  # fmt: skip
    ranks = running_sum(scores < NOTHING)
    n = ranks[listing.ends] - ranks[listing.starts]
    fanout = fanouts.repeat(num_segments // num_types)
    k = torch.where(n > 0, fanout, 0) if replace else torch.minimum(n, fanout)
    k = torch.where(fanout < 0, n, k)
    slots = list_slots(picked, k, room)
    if not replace:
        # By segment and score; edges that are not to be drawn are their segment's last.
        order = torch.sort(scores, stable=True)[1]
        order = order[torch.sort(listing.segment[order], stable=True)[1]]
        place = listing.starts[slots.segment] + slots.number
        chosen = torch.where(slots.used, order[place.clamp_(max=looked - 1)], NOTHING)
        return write_picks(chosen, k, listing, begin, indices)
    # All edges that may be drawn, where the fanout is -1.
    wanted = ranks[listing.starts][slots.segment] + slots.number
    chosen = torch.searchsorted(ranks[1:], wanted, right=True)
    whole = slots.used & (fanout < 0)[slots.segment]
    chosen = torch.where(whole, chosen, NOTHING)
    if layer is None:
        assert weights is not None
        draw_listed_by_weight(
            indices, node_ids, keys, fanouts, begin, degree, weights, times, earliest, node_times,
            edge_times, listing, slots, chosen,
        )  # fmt: skip
    else:
        _smallest(
            indices, node_ids, keys, fanouts, largest, replace, begin, degree, picked,
            listing.starts, weights, layer, times, earliest, node_times, edge_times, parallel,
            chosen, None, None,
        )  # fmt: skip
    return write_picks(chosen, k, listing, begin, indices)


def _position_of(number: torch.Tensor, begin: torch.Tensor, degree: torch.Tensor) -> torch.Tensor:
    """Position of the edge with a number among all that are looked at: int64[1] of int64[1]."""
    ends = torch.cumsum(degree, 0)
    segment = torch.searchsorted(ends, number, right=True).clamp_(max=len(begin) - 1)
    position = begin[segment] + number - (ends - degree)[segment]
    return torch.where(number == NOTHING, number, position)


def pick_scored(
    indices: torch.Tensor, node_ids: torch.Tensor, keys: torch.Tensor, fanouts: torch.Tensor,
    largest: int, replace: bool, begin: torch.Tensor, degree: torch.Tensor, picked: torch.Tensor,
    room: int, looked: int | None, weights: torch.Tensor | None, layer: torch.Tensor | None,
    times: torch.Tensor | None, earliest: torch.Tensor | None, node_times: torch.Tensor | None,
    edge_times: torch.Tensor | None, parallel: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Draws the edges with the smallest scores, or by weight with replacement.

    The picks are those of `hopline.pipes.kernels.draws.pick_scored`; an edge with a bad weight is
    not drawn.

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
        weights: number[num_edges], not half or bfloat16; or None, with LABOR: all 1.
        layer: int64[4], the bits of LABOR's uint64[4]; or None: no LABOR.
        times: int64[n], or None: no restriction in time.
        earliest: int64[n], as in `before.pick_before`; None without times.
        node_times: int64[num_nodes], or None.
        edge_times: int64[num_edges], or None.
        parallel: int32[num_edges], as `hopline.pipes.kernels.ranks.rank_parallel_edges` gives it;
            None: there are no parallel edges.

    Returns:
        (segments int64[n * T + 1], running sum of picks; positions int64[room]; neighbors of the
        dtype of indices [room]; bad int64[1]); behind segments[-1] are zeros. bad is the position
        of the first edge in order of (segment, edge) whose weight is neither 0 nor from 1e-300 to
        1e300, or `launching.NOTHING`.

    Raises:
        ValueError: LABOR with replacement and a fanout above 2**14.
    """
    bad = torch.full((1,), NOTHING, dtype=torch.int64, device=begin.device)
    if len(begin) == 0 or room == 0 or looked == 0:
        return *no_picks(begin, indices, room), bad
    if replace and layer is not None and largest > MOST_ARRIVALS:
        raise ValueError(
            f"fanout {largest} of LABOR with replacement; expected at most {MOST_ARRIVALS} on a "
            "GPU: use a smaller one, or sample on the CPU"
        )
    if weights is not None and weights.dtype == torch.bool:
        weights = weights.view(torch.uint8)
    if times is None:
        node_times = edge_times = None
    if layer is None:
        parallel = None
    if looked is not None:
        picks = _pick_listed(
            indices, node_ids, keys, fanouts, largest, replace, begin, degree, picked, room,
            list_edges(degree, looked), weights, layer, times, earliest, node_times, edge_times,
            parallel, bad,
        )  # fmt: skip
        return *picks, bad if weights is None else _position_of(bad, begin, degree)
    places = torch.empty(room, dtype=torch.int64, device=begin.device)
    counts = torch.empty(len(begin), dtype=torch.int64, device=begin.device)
    starts = torch.cumsum(degree, 0) - degree
    if replace and layer is None:
        assert weights is not None
        draw_by_weight(
            indices, node_ids, keys, fanouts, largest, begin, degree, picked, starts, weights,
            times, earliest, node_times, edge_times, places, counts, bad,
        )  # fmt: skip
    else:
        _smallest(
            indices, node_ids, keys, fanouts, largest, replace, begin, degree, picked, starts,
            weights, layer, times, earliest, node_times, edge_times, parallel, places, counts, bad,
        )  # fmt: skip
    picks = pack_picks(places, counts, picked, indices, width(largest))
    return *picks, bad if weights is None else _position_of(bad, begin, degree)
