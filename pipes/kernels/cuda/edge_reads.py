"""Reads of as many entries as a kernel before has counted, without asking the host how many."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hopline.pipes.kernels.cuda.launching import NONE, NOTHING, ceil_div, launch, tile

__all__ = ["first_bad_neighbor", "read_edges"]


@triton.jit(do_not_specialize_on_alignment=["total"])
def _read(array, positions, total, out, B: tl.constexpr):
    """out[e] = array[positions[e]] for e below total[0]."""
    e = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    there = e < tl.load(total)
    position = tl.load(positions + e, mask=there, other=0)
    tl.store(out + e, tl.load(array + position, mask=there, other=0), mask=there)


def read_edges(
    array: torch.Tensor, positions: torch.Tensor, segments: torch.Tensor
) -> torch.Tensor:
    """An edge array at the positions that were picked.

    Args:
        array: number[num_edges], on the GPU or in page-locked memory.
        positions: int64[room], the first segments[-1] of them in range.
        segments: int64[s + 1].

    Returns:
        number[room], undefined from segments[-1] on.
    """
    room = len(positions)
    out = torch.empty(room, dtype=array.dtype, device=positions.device)
    block = tile(room, 1024)
    launch(_read, ceil_div(room, block), out, array, positions, segments[-1:], out, B=block)
    return out


@triton.jit(do_not_specialize=["num_nodes"], do_not_specialize_on_alignment=["total"])
def _find_bad(neighbors, total, num_nodes, bad, B: tl.constexpr):
    """bad[0] becomes the first e below total[0] whose neighbour is no node."""
    e = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    there = e < tl.load(total)
    node = tl.load(neighbors + e, mask=there, other=0).to(tl.int64)
    wrong = there & ((node < 0) | (node >= num_nodes))
    if tl.max(wrong.to(tl.int32), axis=0) > 0:
        first = tl.min(tl.where(wrong, e, NONE), axis=0)
        tl.atomic_min(bad, first, sem="relaxed")


def first_bad_neighbor(
    neighbors: torch.Tensor, segments: torch.Tensor, num_nodes: int
) -> torch.Tensor:
    """int64[1], the first pick outside [0, num_nodes), or NOTHING.

    Args:
        neighbors: integer[room], of which segments[-1] are defined.
        segments: int64[s + 1].
        num_nodes: nodes of the graph.
    """
    room = len(neighbors)
    bad = torch.full((1,), NOTHING, dtype=torch.int64, device=neighbors.device)
    block = tile(room, 1024)
    total = segments[-1:]
    launch(_find_bad, ceil_div(room, block), bad, neighbors, total, num_nodes, bad, B=block)
    return bad
