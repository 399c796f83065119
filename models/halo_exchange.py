"""start_halo, wait_halo: halo rows from their owners, with gradients that go back to them.

Between the two calls rows are under way: what needs own rows alone is computed meanwhile. In the
backward pass it is the other way round: gradients of halo rows start when those of `wait_halo` are
known, and are waited for where `start_halo` needs them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from hopline.models.halo_plan import HaloPlan

__all__ = ["Halo", "start_halo", "wait_halo"]


class Halo:
    """Rows under way, in the forward pass and in the backward pass.

    Args:
        plan: who sends what to whom.
        wire_dtype: in which values are sent; None for that of the rows.
        count: told how many bytes go to other ranks, each time.
    """

    def __init__(
        self, plan: HaloPlan, wire_dtype: torch.dtype | None, count: Callable[[int], None]
    ) -> None:
        self.plan, self.wire_dtype, self._count = plan, wire_dtype, count
        self._work: Any = None
        self._sent: torch.Tensor | None = None  # kept until it has gone
        self._received: torch.Tensor | None = None

    def start(self, rows: torch.Tensor, back: bool) -> None:
        """Sends own rows to who needs them, or back, gradients of halo rows to their owners."""
        plan = self.plan
        counts = plan.receive_counts, plan.send_counts
        outgoing, incoming = counts if back else counts[::-1]
        sent = rows.to(self.wire_dtype or rows.dtype).contiguous()
        self._sent = sent
        self._received = sent.new_empty((sum(incoming), *rows.shape[1:]))
        self._count(sent.numel() * sent.element_size())
        if plan.group is not None:
            self._work = dist.all_to_all_single(
                self._received, sent, incoming, outgoing, group=plan.group, async_op=True
            )

    def wait(self, dtype: torch.dtype) -> torch.Tensor:
        """What has come, when it has."""
        assert self._received is not None
        if self._work is not None:
            self._work.wait()
        received = self._received.to(dtype)
        self._work = self._sent = self._received = None
        return received


class _Start(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, halo: Halo) -> torch.Tensor:
        ctx.halo, ctx.shape = halo, x.shape
        halo.start(x.index_select(0, halo.plan.send_rows), back=False)
        return x.new_empty(0)  # of which the gradient says that those of the rows are under way

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        gradient = grads[0].new_zeros(ctx.shape)
        rows = ctx.halo.wait(gradient.dtype)
        return gradient.index_add_(0, ctx.halo.plan.send_rows, rows), None


class _Wait(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, started: torch.Tensor, halo: Halo, dtype: torch.dtype) -> torch.Tensor:
        ctx.halo = halo
        ctx.empty = started
        return halo.wait(dtype)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        ctx.halo.start(grads[0], back=True)
        return torch.zeros_like(ctx.empty), None, None


def start_halo(x: torch.Tensor, halo: Halo) -> torch.Tensor:
    """Sends the own rows that others need.

    Args:
        x: float[own, ...].
        halo: used for this exchange alone.

    Returns:
        What `wait_halo` takes.
    """
    started: torch.Tensor = _Start.apply(x, halo)  # type: ignore[no-untyped-call]
    return started


def wait_halo(started: torch.Tensor, halo: Halo) -> torch.Tensor:
    """The halo rows.

    Args:
        started: of `start_halo`.
        halo: the same.

    Returns:
        float[h, ...], of the dtype of x, in the order of `plan.halo`.
    """
    rows: torch.Tensor = _Wait.apply(  # type: ignore[no-untyped-call]
        started, halo, started.dtype
    )
    return rows
