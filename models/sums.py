"""Sum and mean of in-neighbours' rows: an operator on the CPU, torch's own elsewhere."""

from __future__ import annotations

from typing import Any

import torch

from hopline.models.checks import check_kernel
from hopline.models.kept_block import turn
from hopline.models.kernels import divide_rows, spread_rows, sum_rows
from hopline.models.operators import operator
from hopline.models.ranges import bounds_by_edges, even_bounds, in_ranges, rows_like
from hopline.pipes.subgraph import Block

__all__ = ["join_mean", "sum_on_cpu", "sum_on_device", "sum_segments"]


def _sum_run(
    x: torch.Tensor, indptr: torch.Tensor, indices: torch.Tensor, mean: bool
) -> torch.Tensor:
    return _sum_parts(x, indptr, indices, mean, 1)


def _join_run(x: torch.Tensor, indptr: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    return _sum_parts(x, indptr, indices, True, 2)


def _sum_parts(
    x: torch.Tensor, indptr: torch.Tensor, indices: torch.Tensor, mean: bool, parts: int
) -> torch.Tensor:
    """[num_dst, parts * width]: sums, or means; behind the destination's own row if there are 2."""
    x = x.contiguous()
    num_dst, width = len(indptr) - 1, x.shape[1]
    if parts > 1 and len(x) < num_dst:
        raise IndexError(
            f"x has {len(x)} rows for {num_dst} destinations; expected a row for each source, "
            "destinations first"
        )
    out = rows_like(x, num_dst, parts * width)
    arrays = indptr.numpy(), indices.numpy(), x.numpy()
    target = out.view(num_dst, parts, width).numpy()

    def run(low: int, high: int) -> int:
        bad: int = sum_rows(*arrays, mean, low, high, target)
        return bad

    check_kernel(in_ranges(bounds_by_edges(indptr, width), run), len(x), len(indices))
    return out


def _spread_run(
    grad_out: torch.Tensor, indptr: torch.Tensor, indices: torch.Tensor, num_src: int, mean: bool
) -> torch.Tensor:
    return _spread_parts(grad_out, indptr, indices, num_src, mean, 1)


def _spread_joined_run(
    grad_out: torch.Tensor, indptr: torch.Tensor, indices: torch.Tensor, num_src: int
) -> torch.Tensor:
    return _spread_parts(grad_out, indptr, indices, num_src, True, 2)


def _spread_parts(
    grad_out: torch.Tensor,
    indptr: torch.Tensor,
    indices: torch.Tensor,
    num_src: int,
    mean: bool,
    parts: int,
) -> torch.Tensor:
    """Gradient of `_sum_parts`. Each source reads its edges, so nothing is written twice."""
    grad_out = grad_out.contiguous()
    num_dst, width = len(grad_out), grad_out.shape[1] // parts
    grad_x = rows_like(grad_out, num_src, width)
    starts, columns, _ = turn(indptr, indices, num_src, named=False)
    source = grad_out.view(num_dst, parts, width)
    rows = source[:, 0]
    if mean:
        rows = rows_like(grad_out, num_dst, width)
        ends, found, quotients = indptr.numpy(), source.numpy(), rows.numpy()
        in_ranges(
            even_bounds(num_dst, num_dst * width),
            lambda low, high: divide_rows(ends, found, low, high, quotients),
        )
    arrays = starts.numpy(), columns.numpy(), rows.numpy(), source.numpy()
    bounds, target = bounds_by_edges(starts, width), grad_x.numpy()
    in_ranges(bounds, lambda low, high: spread_rows(*arrays, low, high, target))
    return grad_x


def _sum_save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, indptr, indices, ctx.mean = inputs
    ctx.save_for_backward(indptr, indices)
    ctx.num_src = x.shape[0]


def _sum_backward(ctx: Any, grad_out: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
    indptr, indices = ctx.saved_tensors
    return _spread_on_cpu(grad_out, indptr, indices, ctx.num_src, ctx.mean), None, None, None


# Sum or mean over in-neighbours of float32 and float64 rows.
sum_on_cpu = operator(
    "sum_rows(Tensor x, Tensor indptr, Tensor indices, bool mean) -> Tensor",
    _sum_run,
    lambda x, indptr, indices, mean: x.new_empty((indptr.shape[0] - 1, x.shape[1])),
    save=_sum_save,
    backward=_sum_backward,
)
_spread_on_cpu = operator(
    "spread_rows(Tensor grad_out, Tensor indptr, Tensor indices, SymInt num_src, bool mean) "
    "-> Tensor",
    _spread_run,
    lambda grad_out, indptr, indices, num_src, mean: grad_out.new_empty(
        (num_src, grad_out.shape[1])
    ),
)


def _join_save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, indptr, indices = inputs
    ctx.save_for_backward(indptr, indices)
    ctx.num_src = x.shape[0]


def _join_backward(ctx: Any, grad_out: torch.Tensor) -> tuple[torch.Tensor, None, None]:
    return _spread_joined_on_cpu(grad_out, *ctx.saved_tensors, ctx.num_src), None, None


# A destination's own row, and behind it the mean over its in-neighbours.
_join_on_cpu = operator(
    "join_mean(Tensor x, Tensor indptr, Tensor indices) -> Tensor",
    _join_run,
    lambda x, indptr, indices: x.new_empty((indptr.shape[0] - 1, 2 * x.shape[1])),
    save=_join_save,
    backward=_join_backward,
)
_spread_joined_on_cpu = operator(
    "spread_joined(Tensor grad_out, Tensor indptr, Tensor indices, SymInt num_src) -> Tensor",
    _spread_joined_run,
    lambda grad_out, indptr, indices, num_src: grad_out.new_empty(
        (num_src, grad_out.shape[1] // 2)
    ),
)


def join_mean(block: Block, x: torch.Tensor) -> torch.Tensor:
    """[num_dst, 2 * width]: each destination's own row, and the mean of its in-neighbours' rows.

    One product with weights side by side then does the work of two.

    Args:
        block: the edges, on the CPU; the destinations are its first sources.
        x: float32 or float64[num_src, width].

    Raises:
        IndexError: the block's edges point outside x, or a destination has no row.
    """
    out: torch.Tensor = _join_on_cpu(x, block.indptr, block.indices)
    return out


def sum_segments(values: torch.Tensor, indptr: torch.Tensor) -> torch.Tensor:
    """Sums the rows of each column by torch's own operation, which adds in one fixed order."""
    return torch.segment_reduce(values, "sum", offsets=indptr, initial=0, unsafe=True)


def sum_on_device(
    x: torch.Tensor, indptr: torch.Tensor, indices: torch.Tensor, mean: bool
) -> torch.Tensor:
    """`sum_on_cpu` by torch's own operations."""
    total = sum_segments(x.index_select(0, indices), indptr)
    if not mean:
        return total
    return total / torch.diff(indptr).clamp(min=1).to(x.dtype).unsqueeze(1)
