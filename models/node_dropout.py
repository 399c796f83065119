"""NodeDropout: dropout whose draws belong to nodes, so that ranks draw what one process draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from hopline.models.checks import check_floating, check_probability, check_tensor
from hopline.models.node_dropout_kernels import drop_rows
from hopline.models.operators import HALF, operator
from hopline.models.ranges import even_bounds, in_ranges, rows_like
from hopline.pipes.random import Purpose, batch_key, fold

__all__ = ["NodeDropout"]

BITS = 24  # of a draw
GOLDEN, MIX_A, MIX_B = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB

Key = tuple[int, int, int]


def _word(seed: int, epoch: int, step: int, layer: int) -> int:
    return fold(batch_key(seed, Purpose.DROPOUT, epoch, step), layer)


def _run(
    x: torch.Tensor, ids: torch.Tensor, seed: int, epoch: int, step: int, layer: int,
    first_column: int, p: float,
) -> torch.Tensor:  # fmt: skip
    out = rows_like(x, *x.shape)
    count, width = x.shape
    if out.numel() == 0:
        return out
    if width > 1 and x.stride(1) != 1:
        x = x.contiguous()
    stride = x.stride(0)
    # The rows and what stands between them, such as the columns of other ranks.
    source = x.as_strided(((count - 1) * stride + width,), (1,)).numpy()
    key, least = np.uint64(_word(seed, epoch, step, layer)), np.uint64(_threshold(p) << 64 - BITS)
    names, target, scale = ids.contiguous().numpy(), out.numpy(), source.dtype.type(1 / (1 - p))
    in_ranges(
        even_bounds(count, count * width),
        lambda low, high: drop_rows(
            key, names, source, stride, first_column, least, scale, low, high, target
        ),
    )
    return out


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(inputs[1])
    ctx.rest = inputs[2:]


def _backward(ctx: Any, grad_out: torch.Tensor) -> tuple[Any, ...]:
    # Drawn again, in less time than reading a mask takes.
    return _on_cpu(grad_out, *ctx.saved_tensors, *ctx.rest), *[None] * 7


_on_cpu = operator(
    "node_dropout(Tensor x, Tensor ids, SymInt seed, SymInt epoch, SymInt step, SymInt layer, "
    "SymInt first_column, float p) -> Tensor",
    _run,
    lambda x, *rest: x.new_empty(x.shape),
    save=_save,
    backward=_backward,
)


def _on_device(
    x: torch.Tensor, ids: torch.Tensor, seed: int, epoch: int, step: int, layer: int,
    first_column: int, p: float,
) -> torch.Tensor:  # fmt: skip
    """The same by torch's own operations, with numbers of 8 bytes a value."""
    rows = _folded(_signed(_word(seed, epoch, step, layer)), ids).unsqueeze(1)
    columns = torch.arange(first_column, first_column + x.shape[1], device=x.device)
    kept = _shifted(_folded(rows, columns), 64 - BITS) >= _threshold(p)
    return x * (kept.to(x.dtype) * (1 / (1 - p)))


class NodeDropout(nn.Module):
    """Sets values of nodes' rows to 0 with a probability, in training; scales the others.

    Whether value c of a node is kept is a function of the key, the node's id and c alone, by the
    mixing function of Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA
    2014. So it does not depend on which rank has the node, or which columns of it. Nothing of x's
    size is kept for the backward pass on the CPU, which draws again.

    Args:
        p: probability of a 0, met to within 2**-24.

    Raises:
        TypeError: p is no number.
        ValueError: p is not in [0, 1].
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        check_probability(p, "dropout")
        self.p = p

    def forward(
        self, x: torch.Tensor, ids: torch.Tensor, key: Key, layer: int, first_column: int = 0
    ) -> torch.Tensor:
        """Applies it.

        Args:
            x: float[n, width], rows of nodes. Half precision is computed in float32.
            ids: int64[n], their ids in the whole graph, or other numbers that name them.
            key: (seed, epoch, step).
            layer: number of the layer, or any other that tells it from the rest of the step.
            first_column: number of x's first column, where x has a part of the columns.

        Returns:
            float[n, width], of x's dtype.

        Raises:
            TypeError: x is not of floating point, or ids not of int64.
            ValueError: there are not as many ids as rows.
        """
        if not self.training or self.p == 0.0:
            return x
        check_tensor(x, "x")
        check_tensor(ids, "ids")
        check_floating(x, "x")
        if ids.dtype != torch.int64:
            raise TypeError(f"ids have dtype {ids.dtype}; expected torch.int64")
        if x.dim() != 2 or ids.shape != x.shape[:1]:
            raise ValueError(
                f"x and ids have shapes {tuple(x.shape)} and {tuple(ids.shape)}; expected "
                "[n, width] and [n], an id for each row"
            )
        if _threshold(self.p) == 1 << BITS:
            return x * 0.0
        if x.dtype in HALF:
            return self.forward(x.float(), ids, key, layer, first_column).to(x.dtype)
        dropped: Any = _on_cpu if x.device.type == "cpu" else _on_device
        counters = (_in_int64(counter) for counter in (*key, layer))
        out: torch.Tensor = dropped(x, ids, *counters, first_column, self.p)
        return out

    def extra_repr(self) -> str:
        """The probability, for print."""
        return f"p={self.p}"


def _threshold(p: float) -> int:
    """Draws below it are of zeros."""
    return round(p * (1 << BITS))


def _folded(key: torch.Tensor | int, counters: torch.Tensor) -> torch.Tensor:
    """`fold(key, counter)` as int64; torch's int64 wraps around as uint64 does."""
    words = (counters + 1) * _signed(GOLDEN) + key
    words = (words ^ _shifted(words, 30)) * _signed(MIX_A)
    words = (words ^ _shifted(words, 27)) * _signed(MIX_B)
    return words ^ _shifted(words, 31)


def _shifted(words: torch.Tensor, bits: int) -> torch.Tensor:
    """To the right, with zeros from the left."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    """The int64 of the same 64 bits."""
    return word - (1 << 64) if word >= 1 << 63 else word


def _in_int64(counter: int) -> int:
    """The counter, which counts modulo 2**64, as an operator takes it."""
    return counter if -(1 << 63) <= counter < 1 << 63 else _signed(counter % (1 << 64))
