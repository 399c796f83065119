"""Mean over in-neighbours: one hop of messages, without a tensor of messages."""

from __future__ import annotations

from typing import Any

import torch
from numba import njit
from torch.autograd.function import once_differentiable

from hopline.pipes.subgraph import Block

__all__ = ["mean_aggregate"]

# A row is added to the output row while that stays in the first-level cache, so each edge costs one
# read of a source row. Views of rows let LLVM use vector instructions.


@njit(nogil=True, cache=True)
def _mean_rows(indptr, indices, x, out):  # type: ignore[no-untyped-def]
    """out[i] = mean of x[indices[e]] over the edges e of column i; 0 where there are none.

    Args:
        indptr: int64[num_dst + 1].
        indices: integer[num_edges].
        x: float[num_src, width].
        out: float[num_dst, width], of x's dtype.

    Returns:
        -1; or the first column with an edge or a bound out of range, and nothing past it is done.
    """
    for i in range(out.shape[0]):
        first, last = indptr[i], indptr[i + 1]
        if first < 0 or last < first or last > indices.shape[0]:
            return i
        total = out[i]
        for k in range(total.shape[0]):
            total[k] = 0
        for e in range(first, last):
            if indices[e] < 0 or indices[e] >= x.shape[0]:
                return i
            row = x[indices[e]]
            for k in range(total.shape[0]):
                total[k] += row[k]
        if last - first > 1:
            count = x.dtype.type(last - first)
            for k in range(total.shape[0]):
                total[k] /= count
    return -1


@njit(nogil=True, cache=True)
def _spread_rows(indptr, indices, grad_out, grad_x):  # type: ignore[no-untyped-def]
    """Transpose of `_mean_rows`: adds grad_out[i] / degree to grad_x[indices[e]].

    Args:
        indptr: int64[num_dst + 1].
        indices: integer[num_edges], in range: the forward pass has looked.
        grad_out: float[num_dst, width].
        grad_x: float[num_src, width], of grad_out's dtype, zeros.
    """
    for i in range(grad_out.shape[0]):
        first, last = indptr[i], indptr[i + 1]
        if first == last:
            continue
        count = grad_out.dtype.type(last - first)
        row = grad_out[i]
        for e in range(first, last):
            total = grad_x[indices[e]]
            for k in range(row.shape[0]):
                total[k] += row[k] / count


class _MeanOnCpu(torch.autograd.Function):
    """Mean over in-neighbours of float32 and float64 rows."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, indptr: torch.Tensor, indices: torch.Tensor
    ) -> torch.Tensor:
        x = x.contiguous()
        out = x.new_empty((len(indptr) - 1, x.shape[1]))
        bad = _mean_rows(indptr.numpy(), indices.numpy(), x.detach().numpy(), out.numpy())
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
        _spread_rows(indptr.numpy(), indices.numpy(), grad_out.numpy(), grad_x.numpy())
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
