"""How draws that look at every edge keep and write their picks.

A segment is a column's edges, or those of one edge type; `begin`, `degree` and `picked` are those
of `segments.count_picks`. A hop with small fanouts walks each segment's edges in one program, and
keeps its picks in registers. Any other hop lists all edges that it looks at, in order of (segment,
edge): an edge's place in this list is its number here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from hopline.pipes.kernels.cuda.launching import NOTHING, ceil_div, launch, tile

__all__ = [
    "FUSED_PICKS",
    "LAST",
    "Listing",
    "SegmentPicks",
    "Slots",
    "list_edges",
    "list_slots",
    "needs_expansion",
    "no_picks",
    "pack_picks",
    "running_sum",
    "width",
    "write_picks",
]

LAST = tl.constexpr(NOTHING)  # in kernels: behind all scores and positions
FUSED_PICKS = 64  # of one segment, up to which they are kept in registers

SegmentPicks = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def needs_expansion(fanouts: list[int]) -> bool:
    """Whether a hop lists its edges, so that the host has to know their number.

    Args:
        fanouts: one, or one for each edge type; -1 takes all.
    """
    return any(fanout < 0 or fanout > FUSED_PICKS for fanout in fanouts)


def width(largest: int) -> int:
    """The power of two, at least 2, with which a segment's picks are kept in registers."""
    return int(triton.next_power_of_2(max(largest, 2)))


def no_picks(begin: torch.Tensor, indices: torch.Tensor, room: int) -> SegmentPicks:
    """What `pack_picks` gives where nothing is picked, for segments that begin so."""
    segments = begin.new_zeros(len(begin) + 1)
    return segments, begin.new_zeros(room), begin.new_zeros(room, dtype=indices.dtype)


# -------------------------------------------------------------------------------------------------
# Picks of each segment in its own room, in order


@triton.jit(do_not_specialize=["num_segments"])
def _pack(
    places, counts, picked, segments, indices, positions, neighbors, num_segments,
    K: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """Closes the gaps between the segments' picks, and reads their sources."""
    s = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    live = s < num_segments
    count = tl.load(counts + s, mask=live, other=0)
    lane = tl.arange(0, K)[None, :].to(tl.int64)
    taken = lane < count[:, None]
    start = tl.load(picked + s, mask=live, other=0)
    end = tl.load(segments + s, mask=live, other=0)
    position = tl.load(places + start[:, None] + lane, mask=taken, other=0)
    tl.store(positions + end[:, None] + lane, position, mask=taken)
    source = tl.load(indices + position, mask=taken, other=0)
    tl.store(neighbors + end[:, None] + lane, source, mask=taken)


def running_sum(counts: torch.Tensor) -> torch.Tensor:
    """int64[n + 1] of integer[n]: 0, and the sums of the first 1, 2, ... counts."""
    sums = counts.new_zeros(len(counts) + 1, dtype=torch.int64)
    torch.cumsum(counts, 0, dtype=torch.int64, out=sums[1:])
    return sums


def pack_picks(
    places: torch.Tensor,
    counts: torch.Tensor,
    picked: torch.Tensor,
    indices: torch.Tensor,
    widest: int,
) -> SegmentPicks:
    """Closes the gaps between the segments' picks.

    Args:
        places: int64[room], edge positions; those of segment s begin at picked[s].
        counts: int64[S], picks of each segment.
        picked: int64[S + 1].
        indices: integer[num_edges], sources.
        widest: power of two, no less than any of counts.

    Returns:
        (segments int64[S + 1], positions int64[room], neighbors of the dtype of indices [room]);
        behind segments[-1] are zeros.
    """
    segments = running_sum(counts)
    positions = torch.zeros_like(places)
    neighbors = places.new_zeros(len(places), dtype=indices.dtype)
    rows = tile(len(counts), max(1, 256 // widest), 8192 // widest)
    launch(
        _pack, ceil_div(len(counts), rows), positions,
        places, counts, picked, segments, indices, positions, neighbors, len(counts),
        K=widest, R=rows,
    )  # fmt: skip
    return segments, positions, neighbors


# -------------------------------------------------------------------------------------------------
# All edges in one list


@dataclass(frozen=True, slots=True)
class Listing:
    """The edges that a hop looks at, segment by segment.

    Attributes:
        starts: int64[S], number of each segment's first edge.
        ends: int64[S].
        segment: int64[edges], each edge's segment.
    """

    starts: torch.Tensor
    ends: torch.Tensor
    segment: torch.Tensor


@dataclass(frozen=True, slots=True)
class Slots:
    """The room for a hop's picks, slot by slot.

    Attributes:
        segment: int64[room].
        number: int64[room], of the slot in its segment.
        used: bool[room], whether the segment has so many picks.
    """

    segment: torch.Tensor
    number: torch.Tensor
    used: torch.Tensor


def list_edges(degree: torch.Tensor, looked: int) -> Listing:
    """Lists the edges of all segments.

    Args:
        degree: int64[S], edges of each segment.
        looked: their sum.
    """
    ends = torch.cumsum(degree, 0)
    numbers = torch.arange(len(degree), device=degree.device)
    segment = torch.repeat_interleave(numbers, degree, output_size=looked)
    return Listing(ends - degree, ends, segment)


def list_slots(picked: torch.Tensor, counts: torch.Tensor, room: int) -> Slots:
    """Lists the room for picks.

    Args:
        picked: int64[S + 1], where each segment's room begins.
        counts: int64[S], S > 0: picks of each segment.
        room: slots in all, no less than picked[-1].
    """
    at = torch.arange(room, device=picked.device)
    segment = torch.searchsorted(picked, at, right=True) - 1
    segment = segment.clamp_(max=len(counts) - 1)
    number = at - picked[segment]
    return Slots(segment, number, number < counts[segment])


@triton.jit(do_not_specialize=["looked", "room"])
def _resolve(
    chosen, segment, starts, begin, indices, positions, neighbors, looked, room, B: tl.constexpr
):
    """Turns numbers of listed edges into positions, and reads their sources."""
    o = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    number = tl.load(chosen + o, mask=o < room, other=looked)
    taken = number < looked
    s = tl.load(segment + number, mask=taken, other=0)
    first = tl.load(begin + s, mask=taken, other=0)
    position = first + number - tl.load(starts + s, mask=taken, other=0)
    tl.store(positions + o, position, mask=taken)
    tl.store(neighbors + o, tl.load(indices + position, mask=taken, other=0), mask=taken)


def write_picks(
    chosen: torch.Tensor,
    counts: torch.Tensor,
    listing: Listing,
    begin: torch.Tensor,
    indices: torch.Tensor,
) -> SegmentPicks:
    """Writes picks in order of (segment, edge).

    Args:
        chosen: int64[room], numbers of listed edges, in any order; `NOTHING` where there is none.
        counts: int64[S], picks of each segment.
        listing: the edges.
        begin: int64[S].
        indices: integer[num_edges], sources.

    Returns:
        As `pack_picks`.
    """
    room, looked = len(chosen), len(listing.segment)
    chosen = torch.sort(chosen)[0]
    positions = torch.zeros_like(chosen)
    neighbors = chosen.new_zeros(room, dtype=indices.dtype)
    size = tile(room, 256)
    launch(
        _resolve, ceil_div(room, size), positions,
        chosen, listing.segment, listing.starts, begin, indices, positions, neighbors, looked, room,
        B=size,
    )  # fmt: skip
    return running_sum(counts), positions, neighbors
