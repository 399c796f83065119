"""Mean over in-neighbours: one hop of messages, without a tensor of messages."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from hopline.models.kernels import mean_rows, spread_rows
from hopline.pipes.subgraph import Block

__all__ = ["mean_aggregate"]


class _MeanOnCpu(torch.autograd.Function):
    """Mean over in-neighbours of float32 and float64 rows."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, indptr: torch.Tensor, indices: torch.Tensor
    ) -> torch.Tensor:
        x = x.contiguous()
        out = x.new_empty((len(indptr) - 1, x.shape[1]))
        bad = mean_rows(indptr.numpy(), indices.numpy(), x.detach().numpy(), out.numpy())
        if bad >= 0:
            raise IndexError(
                f"destination {bad} of the block has a source outside [0, {x.shape[0]}) or more "
                f"edges than the {len(indices)} of the block; was the block changed by hand?"
            )
        ctx.save_for_backward(indptr, indices)
        ctx.num_src = x.shape[0]
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: torch.Tensor) -> tuple[torch.Tensor | None, None, None]:
        if not ctx.needs_input_grad[0]:
            return None, None, None
        indptr, indices = ctx.saved_tensors
        grad_out = grad_out.contiguous()
        grad_x = grad_out.new_zeros((ctx.num_src, grad_out.shape[1]))
        spread_rows(indptr.numpy(), indices.numpy(), grad_out.numpy(), grad_x.numpy())
        return grad_x, None, None


def _mean_on_device(x: torch.Tensor, indptr: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """The same by torch's own operations, which sum a segment in one fixed order."""
    messages = x.index_select(0, indices)
    total = torch.segment_reduce(messages, "sum", offsets=indptr, initial=0, unsafe=True)
    return total / torch.diff(indptr).clamp(min=1).to(x.dtype).unsqueeze(1)


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
    if x.dim() != 2 or x.shape[0] != block.num_src_nodes():
        raise ValueError(
            f"x has shape {tuple(x.shape)}; expected [{block.num_src_nodes()}, width], one row for "
            f"each source of {block}"
        )
    if not x.dtype.is_floating_point:
        raise TypeError(f"x has dtype {x.dtype}; expected a floating-point dtype, e.g. x.float()")
    if x.dtype in (torch.float16, torch.bfloat16):
        return mean_aggregate(block, x.float()).to(x.dtype)
    if x.device.type != "cpu":
        return _mean_on_device(x, block.indptr, block.indices)
    out: torch.Tensor = _MeanOnCpu.apply(x, block.indptr, block.indices)  # type: ignore[no-untyped-call]
    return out
