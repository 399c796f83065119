"""draw_many: uniform draws of segments with many picks, by a small kernel a step over all slots."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hopline.pipes.kernels.cuda.launching import NONE, ceil_div, launch, tile
from hopline.pipes.kernels.cuda.segments import SLOTS_TILE, segment_of
from hopline.pipes.kernels.cuda.words import below, fold

__all__ = ["draw_many"]


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
    s = segment_of(picked, slot, there, num_segments)
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


def draw_many(
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
