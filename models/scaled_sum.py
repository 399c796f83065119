"""scaled_sum: sums of in-neighbours' rows with factors on both sides, for blocks that stay."""

from __future__ import annotations

import torch

from hopline.models.aggregate import sum_aggregate
from hopline.models.checks import check_kernel
from hopline.models.kept_block import KeptBlock
from hopline.models.kernels import sum_scaled_rows
from hopline.models.ranges import bounds_by_edges, in_ranges, rows_like
from hopline.pipes.subgraph import Block

__all__ = ["gathered", "picks", "scaled_sum"]

PLAIN = (torch.float32, torch.float64)


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


def picks(rows: torch.Tensor, num_src: int) -> KeptBlock:
    """The block whose sums take one source row each; transposed, it adds what comes back.

    Args:
        rows: int64[n], below num_src.
        num_src: number of source rows.
    """
    indptr = torch.arange(len(rows) + 1, device=rows.device)
    return KeptBlock(indptr, rows, num_src, len(rows))


def gathered(
    picked: KeptBlock, x: torch.Tensor, source: torch.Tensor | None = None
) -> torch.Tensor:
    """The rows of `picks`, each times its source's factor; without gradients.

    Args:
        picked: of `picks`.
        x: float[num_src, width].
        source: float[num_src]; None for ones.

    Returns:
        float[n, width].
    """
    if x.device.type == "cpu" and x.dtype in PLAIN:
        return scaled_sum(picked, x, source)
    rows = picked.indices
    return x[rows] if source is None else x[rows] * source[rows].unsqueeze(1)
