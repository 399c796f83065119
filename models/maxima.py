"""Elementwise maximum over in-neighbours: an operator on the CPU, torch's own elsewhere."""

from __future__ import annotations

from typing import Any

import torch

from hopline.models.block_edges import destinations_of_edges
from hopline.models.checks import check_kernel
from hopline.models.kernels import max_rows, spread_max
from hopline.models.operators import operator
from hopline.models.sums import sum_segments

__all__ = ["max_on_cpu", "max_on_device"]


def _max_run(
    x: torch.Tensor, indptr: torch.Tensor, indices: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    x = x.contiguous()
    out = x.new_empty((len(indptr) - 1, x.shape[1]))
    winner = torch.empty(out.shape, dtype=indices.dtype, device="cpu")
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
max_on_cpu = operator(
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


def max_on_device(x: torch.Tensor, indptr: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """`max_on_cpu`'s first result, by torch's own operations."""
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
