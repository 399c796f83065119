"""scaled_sum: sums of in-neighbours' rows with factors on both sides, for blocks that stay."""

from __future__ import annotations

from typing import Any

import torch

from hopline.models.aggregate import sum_aggregate
from hopline.models.checks import check_kernel
from hopline.models.kept_block import KeptBlock, turn
from hopline.models.kernels import sum_scaled_rows
from hopline.models.operators import operator
from hopline.models.ranges import bounds_by_edges, in_ranges, rows_like
from hopline.pipes.subgraph import Block

__all__ = ["gathered", "picks", "scaled_rows", "scaled_sum"]

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
    return _run(x, block.indptr, block.indices, source, target, self_loop, out)


def scaled_rows(
    block: Block,
    x: torch.Tensor,
    source: torch.Tensor | None,
    target: torch.Tensor | None,
    self_loop: bool,
) -> torch.Tensor:
    """`scaled_sum` on the CPU, with gradients with regard to x; an operator of torch.

    Args:
        block: the edges.
        x: float32 or float64[num_src, width].
        source: float[num_src], of x's dtype; None for ones.
        target: float[num_dst], of x's dtype; None for ones.
        self_loop: whether each destination has an edge from the source of its number besides.

    Returns:
        float[num_dst, width].

    Raises:
        IndexError: a source is out of range.
    """
    starts = columns = None
    if isinstance(block, KeptBlock) and x.requires_grad and torch.is_grad_enabled():
        starts, columns = block.transposed.indptr, block.transposed.indices
    out: torch.Tensor = _scaled_on_cpu(
        x, block.indptr, block.indices, source, target, self_loop, starts, columns
    )
    return out


def _run(
    x: torch.Tensor,
    indptr: torch.Tensor,
    indices: torch.Tensor,
    source: torch.Tensor | None,
    target: torch.Tensor | None,
    own: bool,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    x, add = x.contiguous(), out is not None
    if out is None:
        out = rows_like(x, len(indptr) - 1, x.shape[1])
    nothing = x.new_empty(0)
    factors = [(nothing if each is None else each).numpy() for each in (source, target)]
    arrays, written = (indptr.numpy(), indices.numpy(), x.numpy(), *factors), out.numpy()

    def run(low: int, high: int) -> int:
        bad: int = sum_scaled_rows(*arrays, own, add, low, high, written)
        return bad

    check_kernel(in_ranges(bounds_by_edges(indptr, x.shape[1]), run), len(x), len(indices))
    return out


def _run_forward(
    x: torch.Tensor,
    indptr: torch.Tensor,
    indices: torch.Tensor,
    source: torch.Tensor | None,
    target: torch.Tensor | None,
    own: bool,
    *turned: torch.Tensor | None,
) -> torch.Tensor:
    return _run(x, indptr, indices, source, target, own)


def _run_backward(
    grad_out: torch.Tensor,
    indptr: torch.Tensor,
    indices: torch.Tensor,
    source: torch.Tensor | None,
    target: torch.Tensor | None,
    own: bool,
    num_src: int,
    starts: torch.Tensor | None,
    columns: torch.Tensor | None,
) -> torch.Tensor:
    if starts is None or columns is None:
        starts, columns, _ = turn(indptr, indices, num_src, named=False)
    return _run(grad_out, starts, columns, target, source, own)


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, indptr, indices, source, target, ctx.own, *turned = inputs
    ctx.save_for_backward(indptr, indices, source, target, *turned)
    ctx.num_src = x.shape[0]


def _backward(ctx: Any, grad_out: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    *arrays, starts, columns = ctx.saved_tensors
    grad_x = _spread_on_cpu(grad_out, *arrays, ctx.own, ctx.num_src, starts, columns)
    return grad_x, *[None] * 7


# Factors are of degrees, which have no gradients. The last two arguments are of a kept block.
_scaled_on_cpu = operator(
    "sum_scaled_rows(Tensor x, Tensor indptr, Tensor indices, Tensor? source, Tensor? target, "
    "bool own, Tensor? starts, Tensor? columns) -> Tensor",
    _run_forward,
    lambda x, indptr, *rest: x.new_empty((indptr.shape[0] - 1, x.shape[1])),
    save=_save,
    backward=_backward,
)
_spread_on_cpu = operator(
    "spread_scaled_rows(Tensor grad_out, Tensor indptr, Tensor indices, Tensor? source, "
    "Tensor? target, bool own, SymInt num_src, Tensor? starts, Tensor? columns) -> Tensor",
    _run_backward,
    lambda grad_out, indptr, indices, source, target, own, num_src, *turned: grad_out.new_empty(
        (num_src, grad_out.shape[1])
    ),
)


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
