"""FixedSum: sums over in-neighbours for a block that stays: its transpose is made only once."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch

from hopline.models.aggregate import sum_aggregate
from hopline.models.checks import check_kernel
from hopline.models.kernels import sum_scaled_rows, transpose_edges
from hopline.models.ranges import bounds_by_edges, in_ranges, rows_like
from hopline.pipes.subgraph import Block

__all__ = ["FixedSum", "gathered", "picks", "scaled_sum", "transposed"]

PLAIN = (torch.float32, torch.float64)


class FixedSum:
    """A block of which sums are taken again and again, forward and, transposed, backward.

    Args:
        block: the edges.
    """

    def __init__(self, block: Block) -> None:
        self.block = block

    @cached_property
    def transposed(self) -> Block:
        """The block of the backward pass, made when it is first needed."""
        return transposed(self.block)


def scaled_sum(
    block: Block,
    x: torch.Tensor,
    source: torch.Tensor | None = None,
    target: torch.Tensor | None = None,
    *,
    self_loop: bool = False,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Sums of in-neighbours' rows, scaled on both sides, in one pass; without gradients.

    Args:
        block: the edges, whose sources are in range.
        x: float[num_src, width].
        source: float[num_src], by which rows are multiplied; None for ones.
        target: float[num_dst], by which sums are multiplied; None for ones.
        self_loop: whether each destination has an edge from the source of its number besides.
        out: float[num_dst, width], added to the sums before they are multiplied; written over
            where that can be.

    Returns:
        float[num_dst, width], of x's dtype.

    Raises:
        IndexError: on the CPU, a source is out of range after all.
    """
    if x.device.type != "cpu" or x.dtype not in PLAIN:
        rows = x if source is None else x * source.unsqueeze(1)
        total = sum_aggregate(block, rows)
        if self_loop:
            total = total + rows[: len(total)]
        if out is not None:
            total = total + out
        return total if target is None else total * target.unsqueeze(1)
    x, add = x.contiguous(), out is not None
    if out is None:
        out = rows_like(x, block.num_dst_nodes(), x.shape[1])
    nothing = x.new_empty(0)
    factors = [(nothing if each is None else each).numpy() for each in (source, target)]
    arrays = block.indptr.numpy(), block.indices.numpy(), x.numpy(), *factors
    written = out.numpy()

    def run(low: int, high: int) -> int:
        bad: int = sum_scaled_rows(*arrays, self_loop, add, low, high, written)
        return bad

    bounds = bounds_by_edges(block.indptr, x.shape[1])
    check_kernel(in_ranges(bounds, run), len(x), block.num_edges())
    return out


def picks(rows: torch.Tensor, num_src: int) -> FixedSum:
    """The sum that takes one source row for each of `rows`; transposed, it adds what comes back.

    Args:
        rows: int64[n], below num_src.
        num_src: number of source rows.
    """
    indptr = torch.arange(len(rows) + 1, device=rows.device)
    return FixedSum(Block(indptr, rows, num_src, len(rows)))


def gathered(picked: FixedSum, x: torch.Tensor, source: torch.Tensor | None = None) -> torch.Tensor:
    """The rows of `picks`, each times its source's factor; without gradients.

    Args:
        picked: of `picks`.
        x: float[num_src, width].
        source: float[num_src]; None for ones.

    Returns:
        float[n, width].
    """
    if x.device.type == "cpu" and x.dtype in PLAIN:
        return scaled_sum(picked.block, x, source)
    rows = picked.block.indices
    return x[rows] if source is None else x[rows] * source[rows].unsqueeze(1)


def transposed(block: Block) -> Block:
    """The block with every edge turned round; the edges of a row in the order of the block's.

    Args:
        block: edges whose sources are in range.
    """
    turn = _turned_by_kernel if block.device.type == "cpu" else _turned_by_torch
    indptr, indices = turn(block, torch.int32 if block.num_dst < 1 << 31 else torch.int64)
    return Block(indptr, indices, block.num_dst, block.num_src)


def _turned_by_kernel(block: Block, kind: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    starts = np.zeros(block.num_src + 2, np.int64)
    indices = torch.empty(block.num_edges(), dtype=kind)
    transpose_edges(block.indptr.numpy(), block.indices.numpy(), starts, indices.numpy())
    return torch.from_numpy(starts[:-1].copy()), indices


def _turned_by_torch(block: Block, kind: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    rows = torch.arange(block.num_dst, dtype=kind, device=block.device)
    ends = rows.repeat_interleave(block.in_degrees(), output_size=block.num_edges())
    counts = torch.bincount(block.indices, minlength=block.num_src)
    indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    return indptr, ends[block.indices.argsort(stable=True)]
