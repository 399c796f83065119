"""Weighted sum of in-neighbours' rows, by heads: an operator on the CPU, torch's own elsewhere."""

from __future__ import annotations

from typing import Any

import torch

from hopline.models.checks import check_kernel
from hopline.models.kept_block import turn
from hopline.models.kernels import dot_rows, spread_weighted_rows, sum_weighted_rows
from hopline.models.operators import operator
from hopline.models.ranges import bounds_by_edges, in_ranges, rows_like
from hopline.models.sums import sum_segments

__all__ = ["weighted_sum_on_cpu", "weighted_sum_on_device"]


def _weighted_run(
    x: torch.Tensor,
    weight: torch.Tensor,
    indptr: torch.Tensor,
    indices: torch.Tensor,
    *turned: torch.Tensor | None,
) -> torch.Tensor:
    x, weight = x.contiguous(), weight.contiguous()
    shape = len(indptr) - 1, weight.shape[1], x.shape[2]
    out = rows_like(x, *shape)
    arrays, target = (indptr.numpy(), indices.numpy(), weight.numpy(), x.numpy()), out.numpy()

    def run(low: int, high: int) -> int:
        bad: int = sum_weighted_rows(*arrays, low, high, target)
        return bad

    bounds = bounds_by_edges(indptr, shape[1] * shape[2])
    check_kernel(in_ranges(bounds, run), len(x), len(indices))
    return out


def _spread_weighted_run(
    grad_out: torch.Tensor,
    weight: torch.Tensor,
    indptr: torch.Tensor,
    indices: torch.Tensor,
    num_src: int,
    num_heads: int,
    starts: torch.Tensor | None,
    columns: torch.Tensor | None,
    edges: torch.Tensor | None,
) -> torch.Tensor:
    """Each source reads its edges, so nothing is written twice."""
    grad_out, weight = grad_out.contiguous(), weight.contiguous()
    grad_x = rows_like(grad_out, num_src, num_heads, grad_out.shape[2])
    if starts is None or columns is None or edges is None:
        starts, columns, edges = turn(indptr, indices, num_src)
    by_source = starts.numpy(), columns.numpy(), edges.numpy()
    arrays, target = (*by_source, weight.numpy(), grad_out.numpy()), grad_x.numpy()
    bounds = bounds_by_edges(starts, grad_out.shape[1] * grad_out.shape[2])
    in_ranges(bounds, lambda low, high: spread_weighted_rows(*arrays, low, high, target))
    return grad_x


def _dot_run(
    grad_out: torch.Tensor, x: torch.Tensor, indptr: torch.Tensor, indices: torch.Tensor
) -> torch.Tensor:
    grad_out, x = grad_out.contiguous(), x.contiguous()
    grad_weight = grad_out.new_zeros((len(indices), grad_out.shape[1]))
    arrays = indptr.numpy(), indices.numpy(), x.numpy(), grad_out.numpy()
    target = grad_weight.numpy()
    bounds = bounds_by_edges(indptr, grad_out.shape[1] * grad_out.shape[2])
    in_ranges(bounds, lambda low, high: dot_rows(*arrays, low, high, target))
    return grad_weight


def _weighted_save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, weight, indptr, indices, *turned = inputs
    # Only what the gradients at hand need is kept alive.
    needs_x, needs_weight = ctx.needs_input_grad[:2]
    ctx.save_for_backward(
        indptr, indices, weight if needs_x else None, x if needs_weight else None, *turned
    )
    ctx.x_shape = x.shape[:2]


def _weighted_backward(ctx: Any, grad_out: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    indptr, indices, weight, x, *turned = ctx.saved_tensors
    grad_x = grad_weight = None
    if weight is not None:
        grad_x = _spread_weighted_on_cpu(grad_out, weight, indptr, indices, *ctx.x_shape, *turned)
    if x is not None:
        grad_weight = _dot_on_cpu(grad_out, x, indptr, indices)
    return grad_x, grad_weight, None, None, None, None, None


# Sum of weight times row, by heads, of float32 and float64 rows. The last three arguments are those
# of `turned_of`: without them, the edges are turned round in each backward pass.
weighted_sum_on_cpu = operator(
    "sum_weighted_rows(Tensor x, Tensor weight, Tensor indptr, Tensor indices, Tensor? starts, "
    "Tensor? columns, Tensor? edges) -> Tensor",
    _weighted_run,
    lambda x, weight, indptr, indices, *turned: x.new_empty(
        (indptr.shape[0] - 1, weight.shape[1], x.shape[2])
    ),
    save=_weighted_save,
    backward=_weighted_backward,
)
_spread_weighted_on_cpu = operator(
    "spread_weighted_rows(Tensor grad_out, Tensor weight, Tensor indptr, Tensor indices, "
    "SymInt num_src, SymInt num_heads, Tensor? starts, Tensor? columns, Tensor? edges) -> Tensor",
    _spread_weighted_run,
    lambda grad_out, weight, indptr, indices, num_src, num_heads, *turned: grad_out.new_empty(
        (num_src, num_heads, grad_out.shape[2])
    ),
)
_dot_on_cpu = operator(
    "dot_rows(Tensor grad_out, Tensor x, Tensor indptr, Tensor indices) -> Tensor",
    _dot_run,
    lambda grad_out, x, indptr, indices: grad_out.new_empty((indices.shape[0], grad_out.shape[1])),
)


def weighted_sum_on_device(
    x: torch.Tensor, weight: torch.Tensor, indptr: torch.Tensor, indices: torch.Tensor
) -> torch.Tensor:
    """`weighted_sum_on_cpu` by torch's own operations."""
    messages = x.index_select(0, indices) * weight.unsqueeze(2)
    shape = (len(indptr) - 1, weight.shape[1], x.shape[2])
    return sum_segments(messages.flatten(1), indptr).view(shape)
