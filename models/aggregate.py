"""Sum, mean and maximum over in-neighbours: one hop of messages, without a tensor of messages."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from hopline.models.checks import check_block, check_on_block, check_tensor
from hopline.models.kernels import (
    dot_rows,
    max_rows,
    spread_max,
    spread_rows,
    spread_weighted_rows,
    sum_rows,
    sum_weighted_rows,
)
from hopline.pipes.subgraph import Block

__all__ = ["max_aggregate", "mean_aggregate", "sum_aggregate"]

HALF = (torch.float16, torch.bfloat16)


def check_kernel(bad: int, num_src: int, num_edges: int) -> None:
    """Raises IndexError where a kernel met a column that does not fit."""
    if bad >= 0:
        raise IndexError(
            f"destination {bad} of the block has a source outside [0, {num_src}) or more "
            f"edges than the {num_edges} of the block; was the block changed by hand?"
        )


class _SumOnCpu(torch.autograd.Function):
    """Sum or mean over in-neighbours of float32 and float64 rows."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, indptr: torch.Tensor, indices: torch.Tensor, mean: bool
    ) -> torch.Tensor:
        x = x.detach().contiguous()
        out = x.new_empty((len(indptr) - 1, x.shape[1]))
        bad = sum_rows(indptr.numpy(), indices.numpy(), x.numpy(), mean, out.numpy())
        check_kernel(bad, len(x), len(indices))
        ctx.save_for_backward(indptr, indices)
        ctx.num_src, ctx.mean = len(x), mean
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: torch.Tensor) -> tuple[torch.Tensor | None, None, None, None]:
        if not ctx.needs_input_grad[0]:
            return None, None, None, None
        indptr, indices = ctx.saved_tensors
        grad_out = grad_out.contiguous()
        grad_x = grad_out.new_zeros((ctx.num_src, grad_out.shape[1]))
        spread_rows(indptr.numpy(), indices.numpy(), grad_out.numpy(), ctx.mean, grad_x.numpy())
        return grad_x, None, None, None


class _WeightedSumOnCpu(torch.autograd.Function):
    """Sum of weight times row, by heads, of float32 and float64 rows."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        indptr: torch.Tensor,
        indices: torch.Tensor,
    ) -> torch.Tensor:
        x, weight = x.detach().contiguous(), weight.detach().contiguous()
        out = x.new_empty((len(indptr) - 1, weight.shape[1], x.shape[2]))
        bad = sum_weighted_rows(
            indptr.numpy(), indices.numpy(), weight.numpy(), x.numpy(), out.numpy()
        )
        check_kernel(bad, len(x), len(indices))
        # Only what the gradients at hand need is kept alive.
        needs_x, needs_weight = ctx.needs_input_grad[:2]
        ctx.save_for_backward(
            indptr, indices, weight if needs_x else None, x if needs_weight else None
        )
        ctx.x_shape, ctx.weight_shape = x.shape, weight.shape
        return out

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_out: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, None, None]:
        indptr, indices, weight, x = ctx.saved_tensors
        grad_out = grad_out.contiguous()
        grad_x = grad_weight = None
        if weight is not None:
            grad_x = grad_out.new_zeros(ctx.x_shape)
            spread_weighted_rows(
                indptr.numpy(), indices.numpy(), weight.numpy(), grad_out.numpy(), grad_x.numpy()
            )
        if x is not None:
            grad_weight = grad_out.new_zeros(ctx.weight_shape)
            dot_rows(
                indptr.numpy(), indices.numpy(), x.numpy(), grad_out.numpy(), grad_weight.numpy()
            )
        return grad_x, grad_weight, None, None


class _MaxOnCpu(torch.autograd.Function):
    """Elementwise maximum over in-neighbours of float32 and float64 rows."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, indptr: torch.Tensor, indices: torch.Tensor
    ) -> torch.Tensor:
        x = x.detach().contiguous()
        out = x.new_empty((len(indptr) - 1, x.shape[1]))
        winner = torch.empty(out.shape, dtype=indices.dtype)
        bad = max_rows(indptr.numpy(), indices.numpy(), x.numpy(), out.numpy(), winner.numpy())
        check_kernel(bad, len(x), len(indices))
        ctx.save_for_backward(winner)
        ctx.num_src = len(x)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: torch.Tensor) -> tuple[torch.Tensor | None, None, None]:
        if not ctx.needs_input_grad[0]:
            return None, None, None
        (winner,) = ctx.saved_tensors
        grad_out = grad_out.contiguous()
        grad_x = grad_out.new_zeros((ctx.num_src, grad_out.shape[1]))
        spread_max(winner.numpy(), grad_out.numpy(), grad_x.numpy())
        return grad_x, None, None


def destinations_of_edges(indptr: torch.Tensor, num_edges: int) -> torch.Tensor:
    """int64[num_edges], the destination row of each edge."""
    rows = torch.arange(len(indptr) - 1, device=indptr.device)
    return torch.repeat_interleave(rows, torch.diff(indptr), output_size=num_edges)


def sum_segments(values: torch.Tensor, indptr: torch.Tensor) -> torch.Tensor:
    """Sums the rows of each column by torch's own operation, which adds in one fixed order."""
    return torch.segment_reduce(values, "sum", offsets=indptr, initial=0, unsafe=True)


def _sum_on_device(
    x: torch.Tensor, indptr: torch.Tensor, indices: torch.Tensor, mean: bool
) -> torch.Tensor:
    """The same by torch's own operations."""
    total = sum_segments(x.index_select(0, indices), indptr)
    if not mean:
        return total
    return total / torch.diff(indptr).clamp(min=1).to(x.dtype).unsqueeze(1)


def _weighted_sum_on_device(
    x: torch.Tensor, weight: torch.Tensor, indptr: torch.Tensor, indices: torch.Tensor
) -> torch.Tensor:
    messages = x.index_select(0, indices) * weight.unsqueeze(2)
    shape = (len(indptr) - 1, weight.shape[1], x.shape[2])
    return sum_segments(messages.flatten(1), indptr).view(shape)


def _max_on_device(x: torch.Tensor, indptr: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    # Find the first winning edge of each value, then read it: the gradient follows the reading.
    num_edges, num_dst = len(indices), len(indptr) - 1
    if num_edges == 0:
        return sum_segments(x.index_select(0, indices), indptr)  # zeros, with a gradient
    with torch.no_grad():
        messages = x.index_select(0, indices)
        columns = destinations_of_edges(indptr, num_edges).unsqueeze(1).expand(messages.shape)
        best = messages.new_zeros((num_dst, x.shape[1]))
        best = best.scatter_reduce(0, columns, messages, "amax", include_self=False)
        wins = (messages == best.gather(0, columns)) | messages.isnan()
        edges = torch.arange(num_edges, device=x.device).unsqueeze(1)
        edges = torch.where(wins, edges, num_edges - 1)
        first = torch.full((num_dst, x.shape[1]), num_edges - 1, device=x.device)
        first = first.scatter_reduce(0, columns, edges, "amin")
        winner = indices.long()[first]
    found = x.gather(0, winner)
    return torch.where(torch.diff(indptr).unsqueeze(1) > 0, found, found.new_zeros(()))


def check_rows(block: Block, x: torch.Tensor, dims: int = 2) -> None:
    """Raises where x is no floating-point tensor of a row a source on the block's device."""
    check_block(block)
    check_tensor(x, "x")
    if x.dim() != dims or x.shape[0] != block.num_src_nodes():
        shape = ["width"] if dims == 2 else ["heads", "width"]
        raise ValueError(
            f"x has shape {tuple(x.shape)}; expected [{block.num_src_nodes()}, "
            f"{', '.join(shape)}], one row for each source of {block}"
        )
    check_floating(x, "x")
    check_on_block(block, x, "x")


def check_floating(x: torch.Tensor, name: str) -> None:
    """Raises TypeError where a tensor is not of a floating-point dtype."""
    if not x.dtype.is_floating_point:
        raise TypeError(
            f"{name} has dtype {x.dtype}; expected a floating-point dtype, e.g. {name}.float()"
        )


def sum_aggregate(
    block: Block, x: torch.Tensor, edge_weight: torch.Tensor | None = None
) -> torch.Tensor:
    """Sum of the in-neighbours' rows, each times its edge's weight, for each destination.

    Parallel edges count as often as they occur. The result does not depend on the number of
    threads. On the CPU Numba kernels sum the rows where they are; gradients reach x and
    edge_weight, and are left out where they are not needed.

    Args:
        block: the edges.
        x: float[num_src, width], on the block's device. Half precision is summed in float32. With
            a weight a head, float[num_src, heads, width], or [num_src, 1, width] for rows that all
            heads share.
        edge_weight: float[num_edges], or float[num_edges, heads]; without it every weight is 1.
            Another dtype is converted to the one in which x is summed.

    Returns:
        float[num_dst, width], or float[num_dst, heads, width], of x's dtype; zeros for a
        destination without in-neighbours.

    Raises:
        IndexError: the block's edges point outside x (checked on the CPU only).
        TypeError: x or edge_weight is not a floating-point tensor.
        ValueError: x does not have one row a source, or edge_weight not one row an edge; or their
            heads differ.

    >>> block = Block(torch.tensor([0, 2, 2]), torch.tensor([2, 1], dtype=torch.int32), 3, 2)
    >>> x = torch.tensor([[1.0], [2.0], [4.0]])
    >>> sum_aggregate(block, x)
    tensor([[6.],
            [0.]])
    >>> sum_aggregate(block, x, torch.tensor([0.5, 10.0]))
    tensor([[22.],
            [ 0.]])
    """
    if edge_weight is None:
        check_rows(block, x)
        return _sum(block, x, mean=False)
    return _weighted_sum(block, x, edge_weight)


def mean_aggregate(block: Block, x: torch.Tensor) -> torch.Tensor:
    """Mean of the in-neighbours' rows, for each destination of a block.

    Parallel edges count as often as they occur. The result does not depend on the number of
    threads. On the CPU a Numba kernel sums the rows where they are; the gradient with regard to x
    is the transposed sum, and is left out when x does not need it.

    Args:
        block: the edges.
        x: float[num_src, width], on the block's device. Half precision is summed in float32.

    Returns:
        float[num_dst, width], of x's dtype; zeros for a destination without in-neighbours.

    Raises:
        IndexError: the block's edges point outside x (checked on the CPU only).
        TypeError: x is not a floating-point tensor.
        ValueError: x does not have one row a source.

    >>> block = Block(torch.tensor([0, 2, 2]), torch.tensor([2, 1], dtype=torch.int32), 3, 2)
    >>> mean_aggregate(block, torch.tensor([[1.0], [2.0], [4.0]]))
    tensor([[3.],
            [0.]])
    """
    check_rows(block, x)
    return _sum(block, x, mean=True)


def max_aggregate(block: Block, x: torch.Tensor) -> torch.Tensor:
    """Elementwise maximum of the in-neighbours' rows, for each destination of a block.

    The gradient goes to the row that gave the value: of equal ones, to that of the first edge. A
    NaN among the values gives NaN.

    Args:
        block: the edges.
        x: float[num_src, width], on the block's device.

    Returns:
        float[num_dst, width], of x's dtype; zeros for a destination without in-neighbours.

    Raises:
        IndexError: the block's edges point outside x (checked on the CPU only).
        TypeError: x is not a floating-point tensor.
        ValueError: x does not have one row a source.

    >>> block = Block(torch.tensor([0, 2, 2]), torch.tensor([2, 1], dtype=torch.int32), 3, 2)
    >>> max_aggregate(block, torch.tensor([[1.0], [2.0], [-4.0]]))
    tensor([[2.],
            [0.]])
    """
    check_rows(block, x)
    if x.device.type != "cpu":
        return _max_on_device(x, block.indptr, block.indices)
    if x.dtype in HALF:  # values are picked, so nothing is lost
        return max_aggregate(block, x.float()).to(x.dtype)
    out: torch.Tensor = _MaxOnCpu.apply(x, block.indptr, block.indices)  # type: ignore[no-untyped-call]
    return out


def _sum(block: Block, x: torch.Tensor, mean: bool) -> torch.Tensor:
    if x.dtype in HALF:
        return _sum(block, x.float(), mean).to(x.dtype)
    if x.device.type != "cpu":
        return _sum_on_device(x, block.indptr, block.indices, mean)
    out: torch.Tensor = _SumOnCpu.apply(x, block.indptr, block.indices, mean)  # type: ignore[no-untyped-call]
    return out


def _weighted_sum(block: Block, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    check_block(block)
    check_tensor(weight, "edge_weight")
    check_floating(weight, "edge_weight")
    if weight.dim() not in (1, 2) or len(weight) != block.num_edges():
        raise ValueError(
            f"edge_weight has shape {tuple(weight.shape)}; expected [{block.num_edges()}] or "
            f"[{block.num_edges()}, heads], one row for each edge of {block}"
        )
    check_rows(block, x, dims=2 if weight.dim() == 1 else 3)
    if weight.dim() == 1:
        return _weighted_sum(block, x.unsqueeze(1), weight.unsqueeze(1)).squeeze(1)
    if x.shape[1] not in (1, weight.shape[1]):
        raise ValueError(
            f"x has {x.shape[1]} heads and edge_weight {weight.shape[1]}; expected as many, or 1 "
            "in x"
        )
    if x.dtype in HALF:
        return _weighted_sum(block, x.float(), weight).to(x.dtype)
    weight = weight.to(x.dtype)
    if x.device.type != "cpu":
        return _weighted_sum_on_device(x, weight, block.indptr, block.indices)
    out: torch.Tensor = _WeightedSumOnCpu.apply(x, weight, block.indptr, block.indices)  # type: ignore[no-untyped-call]
    return out
