"""pick_neighbors: uniform neighbour sampling on the GPU, of the segments of `segments.count_picks`.

Few picks a segment are drawn by one kernel, which holds a segment's picks in registers. Many are
drawn by one small kernel a step over all slots, whatever the degrees; so are segments taken whole.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from hopline.pipes.kernels.cuda.cached_edges import AWAY, CachedEdges, read_edge
from hopline.pipes.kernels.cuda.launching import NONE, NOTHING, ceil_div, launch, tile
from hopline.pipes.kernels.cuda.many_draws import draw_many
from hopline.pipes.kernels.cuda.segments import SLOTS_TILE, segment_of
from hopline.pipes.kernels.cuda.words import below, fold

__all__ = ["Picks", "pick_neighbors"]

FEW_PICKS = 64  # picks of a segment up to which they are drawn in registers
FEW_TILE = 512  # picks that one program draws so
INTERPRETED_PICKS = 1 << 16


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


@triton.jit
def _take(
    indices, edge_types, near_indices, near_types, position, shift, slot, there, positions,
    neighbors, kinds, num_nodes, KINDS: tl.constexpr, CACHED: tl.constexpr,
):  # fmt: skip
    """Writes picks to their slots; gives the slots of those whose neighbor is no node, or NONE."""
    tl.store(positions + slot, position, mask=there)
    neighbor = read_edge(indices, near_indices, position, shift, there, CACHED)
    tl.store(neighbors + slot, neighbor, mask=there)
    if KINDS:
        kind = read_edge(edge_types, near_types, position, shift, there, CACHED)
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
    s = segment_of(picked, slot, there, num_segments)
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
        begin: int64[n * T], from `segments.count_picks`.
        degree: int64[n * T], from `segments.count_picks`.
        picked: int64[n * T + 1], from `segments.count_picks`.
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
        owner, base, draws = draw_many(
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
