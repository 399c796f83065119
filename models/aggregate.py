"""Sum, mean and maximum over in-neighbours: one hop of messages, without a tensor of messages."""

from __future__ import annotations

import torch

from hopline.models.checks import check_block, check_floating, check_source_rows, check_tensor
from hopline.models.kept_block import turned_of
from hopline.models.maxima import max_on_cpu, max_on_device
from hopline.models.operators import HALF
from hopline.models.sums import sum_on_cpu, sum_on_device
from hopline.models.weighted_sums import weighted_sum_on_cpu, weighted_sum_on_device
from hopline.pipes.subgraph import Block

__all__ = ["max_aggregate", "mean_aggregate", "sum_aggregate"]


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
        check_source_rows(block, x, "width")
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
    check_source_rows(block, x, "width")
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
    check_source_rows(block, x, "width")
    if x.device.type != "cpu":
        return max_on_device(x, block.indptr, block.indices)
    if x.dtype in HALF:  # values are picked, so nothing is lost
        return max_aggregate(block, x.float()).to(x.dtype)
    out: torch.Tensor = max_on_cpu(x, block.indptr, block.indices)[0]
    return out


def _sum(block: Block, x: torch.Tensor, mean: bool) -> torch.Tensor:
    if x.dtype in HALF:
        return _sum(block, x.float(), mean).to(x.dtype)
    if x.device.type != "cpu":
        return sum_on_device(x, block.indptr, block.indices, mean)
    out: torch.Tensor = sum_on_cpu(x, block.indptr, block.indices, mean)
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
    if weight.dim() == 1:
        check_source_rows(block, x, "width")
        return _weighted_sum(block, x.unsqueeze(1), weight.unsqueeze(1)).squeeze(1)
    check_source_rows(block, x, "heads", "width")
    if x.shape[1] not in (1, weight.shape[1]):
        raise ValueError(
            f"x has {x.shape[1]} heads and edge_weight {weight.shape[1]}; expected as many, or 1 "
            "in x"
        )
    if x.dtype in HALF:
        return _weighted_sum(block, x.float(), weight).to(x.dtype)
    weight = weight.to(x.dtype)
    if x.device.type != "cpu":
        return weighted_sum_on_device(x, weight, block.indptr, block.indices)
    out: torch.Tensor = weighted_sum_on_cpu(
        x, weight, block.indptr, block.indices, *turned_of(block, x)
    )
    return out
