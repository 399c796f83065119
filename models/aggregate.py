"""Sum, mean and maximum over in-neighbours: one hop of messages, without a tensor of messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from hopline.models.checks import check_block, check_on_block, check_tensor
from hopline.models.kernels import (
    dot_rows,
    max_rows,
    spread_max,
    spread_rows,
    spread_weighted_rows,
    sum_rows,
    sum_weighted_rows,
    transpose_edges,
)
from hopline.models.operators import operator
from hopline.models.ranges import bounds_by_edges, in_ranges, rows_like
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
    starts = np.zeros(num_src + 2, np.int64)
    columns = np.empty(len(indices), np.int32 if num_dst < 1 << 31 else np.int64)
    transpose_edges(indptr.numpy(), indices.numpy(), starts, columns)
    source = grad_out.view(num_dst, parts, width).numpy()
    arrays, target = (starts, columns, indptr.numpy(), source), grad_x.numpy()
    bounds = bounds_by_edges(torch.from_numpy(starts[: num_src + 1]), width)
    in_ranges(bounds, lambda low, high: spread_rows(*arrays, mean, low, high, target))
    return grad_x


def _sum_save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, indptr, indices, ctx.mean = inputs
    ctx.save_for_backward(indptr, indices)
    ctx.num_src = x.shape[0]


def _sum_backward(ctx: Any, grad_out: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
    indptr, indices = ctx.saved_tensors
    return _spread_on_cpu(grad_out, indptr, indices, ctx.num_src, ctx.mean), None, None, None


# Sum or mean over in-neighbours of float32 and float64 rows.
_sum_on_cpu = operator(
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


def _weighted_run(
    x: torch.Tensor, weight: torch.Tensor, indptr: torch.Tensor, indices: torch.Tensor
) -> torch.Tensor:
    x, weight = x.contiguous(), weight.contiguous()
    out = x.new_empty((len(indptr) - 1, weight.shape[1], x.shape[2]))
    bad = sum_weighted_rows(indptr.numpy(), indices.numpy(), weight.numpy(), x.numpy(), out.numpy())
    check_kernel(bad, len(x), len(indices))
    return out


def _spread_weighted_run(
    grad_out: torch.Tensor,
    weight: torch.Tensor,
    indptr: torch.Tensor,
    indices: torch.Tensor,
    num_src: int,
    num_heads: int,
) -> torch.Tensor:
    grad_out, weight = grad_out.contiguous(), weight.contiguous()
    grad_x = grad_out.new_zeros((num_src, num_heads, grad_out.shape[2]))
    spread_weighted_rows(
        indptr.numpy(), indices.numpy(), weight.numpy(), grad_out.numpy(), grad_x.numpy()
    )
    return grad_x


def _dot_run(
    grad_out: torch.Tensor, x: torch.Tensor, indptr: torch.Tensor, indices: torch.Tensor
) -> torch.Tensor:
    grad_out, x = grad_out.contiguous(), x.contiguous()
    grad_weight = grad_out.new_zeros((len(indices), grad_out.shape[1]))
    dot_rows(indptr.numpy(), indices.numpy(), x.numpy(), grad_out.numpy(), grad_weight.numpy())
    return grad_weight


def _weighted_save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, weight, indptr, indices = inputs
    # Only what the gradients at hand need is kept alive.
    needs_x, needs_weight = ctx.needs_input_grad[:2]
    ctx.save_for_backward(indptr, indices, weight if needs_x else None, x if needs_weight else None)
    ctx.x_shape = x.shape[:2]


def _weighted_backward(
    ctx: Any, grad_out: torch.Tensor
) -> tuple[torch.Tensor | None, torch.Tensor | None, None, None]:
    indptr, indices, weight, x = ctx.saved_tensors
    grad_x = grad_weight = None
    if weight is not None:
        grad_x = _spread_weighted_on_cpu(grad_out, weight, indptr, indices, *ctx.x_shape)
    if x is not None:
        grad_weight = _dot_on_cpu(grad_out, x, indptr, indices)
    return grad_x, grad_weight, None, None


# Sum of weight times row, by heads, of float32 and float64 rows.
_weighted_on_cpu = operator(
    "sum_weighted_rows(Tensor x, Tensor weight, Tensor indptr, Tensor indices) -> Tensor",
    _weighted_run,
    lambda x, weight, indptr, indices: x.new_empty(
        (indptr.shape[0] - 1, weight.shape[1], x.shape[2])
    ),
    save=_weighted_save,
    backward=_weighted_backward,
)
_spread_weighted_on_cpu = operator(
    "spread_weighted_rows(Tensor grad_out, Tensor weight, Tensor indptr, Tensor indices, "
    "SymInt num_src, SymInt num_heads) -> Tensor",
    _spread_weighted_run,
    lambda grad_out, weight, indptr, indices, num_src, num_heads: grad_out.new_empty(
        (num_src, num_heads, grad_out.shape[2])
    ),
)
_dot_on_cpu = operator(
    "dot_rows(Tensor grad_out, Tensor x, Tensor indptr, Tensor indices) -> Tensor",
    _dot_run,
    lambda grad_out, x, indptr, indices: grad_out.new_empty((indices.shape[0], grad_out.shape[1])),
)


def _max_run(
    x: torch.Tensor, indptr: torch.Tensor, indices: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    x = x.contiguous()
    out = x.new_empty((len(indptr) - 1, x.shape[1]))
    winner = torch.empty(out.shape, dtype=indices.dtype)
    bad = max_rows(indptr.numpy(), indices.numpy(), x.numpy(), out.numpy(), winner.numpy())
    check_kernel(bad, len(x), len(indices))
    return out, winner


def _max_empty(
    x: torch.Tensor, indptr: torch.Tensor, indices: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (indptr.shape[0] - 1, x.shape[1])
    return x.new_empty(shape), indices.new_empty(shape)


def _spread_max_run(grad_out: torch.Tensor, winner: torch.Tensor, num_src: int) -> torch.Tensor:
    grad_out = grad_out.contiguous()
    grad_x = grad_out.new_zeros((num_src, grad_out.shape[1]))
    spread_max(winner.contiguous().numpy(), grad_out.numpy(), grad_x.numpy())
    return grad_x


def _max_save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    ctx.save_for_backward(output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.num_src = inputs[0].shape[0]


def _max_backward(ctx: Any, grad_out: torch.Tensor, _: Any) -> tuple[torch.Tensor, None, None]:
    return _spread_max_on_cpu(grad_out, *ctx.saved_tensors, ctx.num_src), None, None


# Elementwise maximum over in-neighbours of float32 and float64 rows, and the rows it came from.
_max_on_cpu = operator(
    "max_rows(Tensor x, Tensor indptr, Tensor indices) -> (Tensor, Tensor)",
    _max_run,
    _max_empty,
    save=_max_save,
    backward=_max_backward,
)
_spread_max_on_cpu = operator(
    "spread_max(Tensor grad_out, Tensor winner, SymInt num_src) -> Tensor",
    _spread_max_run,
    lambda grad_out, winner, num_src: grad_out.new_empty((num_src, grad_out.shape[1])),
)


def _count_run(indices: torch.Tensor, num_src: int) -> torch.Tensor:
    counts = torch.bincount(indices, minlength=num_src)
    if len(counts) > num_src:
        raise IndexError(
            f"the block has a source {len(counts) - 1} outside [0, {num_src}); was the block "
            "changed by hand?"
        )
    return counts


_count_on_cpu = operator(
    "count_rows(Tensor indices, SymInt num_src) -> Tensor",
    _count_run,
    lambda indices, num_src: indices.new_empty((num_src,), dtype=torch.int64),
)


def count_out_degrees(block: Block) -> torch.Tensor:
    """int64[num_src], edges that leave each source row."""
    if block.device.type == "cpu":
        counts: torch.Tensor = _count_on_cpu(block.indices, block.num_src_nodes())
        return counts
    return _count_on_device(block.indices, block.num_src_nodes())


def _count_on_device(indices: torch.Tensor, num_src: int) -> torch.Tensor:
    # Not bincount, which makes the host wait for the largest value.
    counts = torch.zeros(num_src, dtype=torch.int64, device=indices.device)
    return counts.index_add(0, indices, torch.ones_like(indices, dtype=torch.int64))


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
    out: torch.Tensor = _max_on_cpu(x, block.indptr, block.indices)[0]
    return out


def _sum(block: Block, x: torch.Tensor, mean: bool) -> torch.Tensor:
    if x.dtype in HALF:
        return _sum(block, x.float(), mean).to(x.dtype)
    if x.device.type != "cpu":
        return _sum_on_device(x, block.indptr, block.indices, mean)
    out: torch.Tensor = _sum_on_cpu(x, block.indptr, block.indices, mean)
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
    out: torch.Tensor = _weighted_on_cpu(x, weight, block.indptr, block.indices)
    return out
