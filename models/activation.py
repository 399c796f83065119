"""relu_dropout: ReLU and dropout in one pass over the rows between two layers.

One after another, torch's operations write five tensors of the rows' size forward and three
backward, each in fresh memory. This writes one each way, in memory that is used again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from hopline.models.activation_kernels import VALUES, drop_relu, drop_relu_gradient, plain_relu
from hopline.models.checks import is_plain
from hopline.models.dropout import LEVELS, Dropout, draw_key
from hopline.models.operators import operator
from hopline.models.ranges import even_bounds, in_ranges, rows_like

__all__ = ["relu_dropout"]

PLAIN = (torch.float32, torch.float64)


def _run(x: torch.Tensor, p: float) -> torch.Tensor:
    out = rows_like(x, *x.shape)
    source, target = x.contiguous().view(-1).numpy(), out.view(-1).numpy()
    bounds = even_bounds(len(source), len(source), VALUES)
    threshold = np.uint16(round(p * LEVELS))
    if threshold == 0:
        in_ranges(bounds, lambda low, high: plain_relu(source, low, high, target))
        return out
    key, scale = draw_key(), source.dtype.type(1 / (1 - p))
    in_ranges(bounds, lambda low, high: drop_relu(key, source, threshold, scale, low, high, target))
    return out


def _gradient_run(grad_out: torch.Tensor, out: torch.Tensor, p: float) -> torch.Tensor:
    grad_x = rows_like(out, *out.shape)
    arrays = out.contiguous().view(-1).numpy(), grad_out.contiguous().view(-1).numpy()
    target = grad_x.view(-1).numpy()
    scale = target.dtype.type(1 / (1 - p) if round(p * LEVELS) else 1)
    bounds = even_bounds(len(target), len(target), VALUES)
    in_ranges(bounds, lambda low, high: drop_relu_gradient(*arrays, scale, low, high, target))
    return grad_x


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(output)
    ctx.p = inputs[1]


def _backward(ctx: Any, grad_out: torch.Tensor) -> tuple[torch.Tensor, None]:
    return _gradient_on_cpu(grad_out, *ctx.saved_tensors, ctx.p), None


_on_cpu = operator(
    "relu_dropout(Tensor x, float p) -> Tensor",
    _run,
    lambda x, p: x.new_empty(x.shape),
    save=_save,
    backward=_backward,
    random=True,
)
_gradient_on_cpu = operator(
    "relu_dropout_gradient(Tensor grad_out, Tensor out, float p) -> Tensor",
    _gradient_run,
    lambda grad_out, out, p: out.new_empty(out.shape),
)


def relu_dropout(x: torch.Tensor, dropout: torch.nn.Module) -> torch.Tensor:
    """`dropout(torch.relu(x))`.

    Args:
        x: floating-point, of any shape.
        dropout: `Dropout`, which is then done in the same pass where that can be (float32 and
            float64 on the CPU, no hooks); or any other module, which is called.

    Returns:
        A tensor like x, with the draws that `dropout` itself makes.
    """
    if x.device.type == "cpu" and x.dtype in PLAIN and isinstance(dropout, Dropout):
        p = dropout.p if dropout.training else 0.0
        plain = is_plain(dropout, Dropout)
        # Of a probability that is 0 or 1 in 16 bits alone, torch makes the draws.
        if plain and (p == 0 or 0 < round(p * LEVELS) < LEVELS):
            fused: torch.Tensor = _on_cpu(x, p)
            return fused
    out: torch.Tensor = dropout(torch.relu(x))
    return out
