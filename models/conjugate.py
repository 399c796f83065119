"""copy_to_ranks, sum_over_ranks: a pair of collectives, each of which is the other's gradient.

Shoeybi, Patwary, Puri, LeGresley, Casper, Catanzaro: "Megatron-LM: training multi-billion parameter
language models using model parallelism", 2019, section 3 (f and g).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

__all__ = ["copy_to_ranks", "sum_over_ranks"]


def _sum(x: torch.Tensor, group: Any) -> torch.Tensor:
    total = x.contiguous().clone()
    if dist.is_initialized():
        dist.all_reduce(total, group=group)
    return total


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _sum(grads[0], ctx.group), None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        return _sum(x, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0], None


def copy_to_ranks(x: torch.Tensor, group: Any = None) -> torch.Tensor:
    """What all ranks have alike, for each to work on: its gradient is the sum of the ranks'.

    Args:
        x: any tensor, the same on all ranks.
        group: process group; None for the default one. Without process groups there is one rank.
    """
    copied: torch.Tensor = _Copy.apply(x, group)  # type: ignore[no-untyped-call]
    return copied


def sum_over_ranks(x: torch.Tensor, group: Any = None) -> torch.Tensor:
    """Sum of what the ranks have, on all of them; each one's gradient is that of the sum.

    Args:
        x: any tensor, of one shape on all ranks.
        group: as for `copy_to_ranks`.
    """
    summed: torch.Tensor = _Sum.apply(x, group)  # type: ignore[no-untyped-call]
    return summed
