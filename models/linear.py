"""linear: a product with a weight, whose result lies in memory that is used again.

Of a mini-batch's first layer the result is often above 32 MB. The allocator of the C library takes
such a tensor from the system and gives it back each time, and the system clears its pages: about
as much time as the product itself.
"""

from __future__ import annotations

from typing import Any

import torch

from hopline.models.operators import operator
from hopline.models.ranges import rows_like

__all__ = ["linear"]


def _run(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    out = rows_like(x, len(x), len(weight))
    if bias is None:
        return torch.mm(x, weight.T, out=out)
    return torch.addmm(bias, x, weight.T, out=out)


def _input_gradient_run(grad_out: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.mm(grad_out, weight, out=rows_like(grad_out, len(grad_out), weight.shape[1]))


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, weight, _ = inputs
    # Only what the gradients at hand need is kept alive.
    needs_x, needs_weight = ctx.needs_input_grad[:2]
    ctx.save_for_backward(x if needs_weight else None, weight if needs_x else None)


def _backward(
    ctx: Any, grad_out: torch.Tensor
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    x, weight = ctx.saved_tensors
    grad_x = None if weight is None else _input_gradient_on_cpu(grad_out, weight)
    grad_weight = None if x is None else grad_out.T @ x
    grad_bias = grad_out.sum(0) if ctx.needs_input_grad[2] else None
    return grad_x, grad_weight, grad_bias


_on_cpu = operator(
    "linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor",
    _run,
    lambda x, weight, bias: x.new_empty((x.shape[0], weight.shape[0])),
    save=_save,
    backward=_backward,
)
_input_gradient_on_cpu = operator(
    "linear_input_gradient(Tensor grad_out, Tensor weight) -> Tensor",
    _input_gradient_run,
    lambda grad_out, weight: grad_out.new_empty((grad_out.shape[0], weight.shape[1])),
)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """`x @ weight.T + bias` on the CPU.

    Args:
        x: float32 or float64[rows, in_size].
        weight: [out_size, in_size], of x's dtype.
        bias: [out_size], of x's dtype; or None.

    Returns:
        [rows, out_size], of x's dtype.
    """
    out: torch.Tensor = _on_cpu(x, weight, bias)
    return out
