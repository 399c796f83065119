"""start_halo, wait_halo: halo rows from their owners, with gradients that go back to them.

Between the two calls rows are under way: what needs own rows alone is computed meanwhile. In the
backward pass it is the other way round: gradients of halo rows start when those of `wait_halo` are
known, and are waited for where `start_halo` needs them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from hopline.models.aggregate import sum_aggregate
from hopline.models.kept_block import KeptBlock
from hopline.models.node_dropout import Key
from hopline.models.scaled_sum import gathered
from hopline.models.wire import check_wire_dtype, decode, encode
from hopline.pipes.random import Purpose, batch_key, fold

__all__ = ["Halo", "Halos", "Route", "StaleHalo", "check_halos", "start_halo", "wait_halo"]


class Route(Protocol):
    """Who sends which rows to whom: all halo rows by a `HaloPlan`, or a sample of them.

    Attributes:
        rank: of this process.
        group: process group; None for one rank.
        send_counts: int[ranks], how many each rank is sent.
        receive_counts: int[ranks], how many come from each rank.
    """

    rank: int
    group: Any
    send_counts: list[int]
    receive_counts: list[int]

    @property
    def sends(self) -> KeptBlock:
        """Gathers the own rows that others get, rank by rank; transposed, adds what comes back."""


class Halo:
    """Rows under way, in the forward pass and in the backward pass.

    Args:
        route: who sends what to whom.
        wire_dtype: in which values are sent; None for that of the rows.
        count: told how many bytes go to other ranks, each time.

    Attributes:
        word: 64 bits, the key of what is drawn for rounding.
    """

    def __init__(
        self, route: Route, wire_dtype: torch.dtype | None, count: Callable[[int], None]
    ) -> None:
        self.route, self.wire_dtype, self._count, self.word = route, wire_dtype, count, 0
        self._under_way: dict[bool, Message] = {}

    def start(self, rows: torch.Tensor, back: bool) -> None:
        """Sends own rows to who needs them, or back, gradients of halo rows to their owners."""
        self._under_way[back] = self._send(rows, back)

    def wait(self, back: bool) -> torch.Tensor:
        """What has come, when it has."""
        return self._under_way.pop(back).wait()

    def _send(self, rows: torch.Tensor, back: bool) -> Message:
        route = self.route
        counts = route.receive_counts, route.send_counts
        outgoing, incoming = counts if back else counts[::-1]
        sent = encode(rows, self.wire_dtype, fold(self.word, route.rank, back))
        self._count(sent.numel() * sent.element_size())
        received = sent.new_empty((sum(incoming), sent.shape[1]))
        work = None
        if route.group is not None:
            work = dist.all_to_all_single(
                received, sent, incoming, outgoing, group=route.group, async_op=True
            )
        return Message(work, sent, received, rows.shape[1], rows.dtype, self.wire_dtype)


class Message:
    """One exchange under way. What is sent is kept until it has gone."""

    def __init__(
        self,
        work: Any,
        sent: torch.Tensor | None,
        received: torch.Tensor,
        width: int,
        dtype: torch.dtype,
        wire_dtype: torch.dtype | None,
    ) -> None:
        self.work, self.sent, self.received = work, sent, received
        self.width, self.dtype, self.wire_dtype = width, dtype, wire_dtype

    def wait(self) -> torch.Tensor:
        """The rows, when they have come."""
        if self.work is not None:
            self.work.wait()
            self.work = self.sent = None
        return decode(self.received, self.dtype, self.wire_dtype)


class StaleHalo(Halo):
    """Rows and gradients of the step before, while those of this step are under way.

    The first step waits for its own. Used for the same layer in every step, once, with a backward
    pass in each or in none: not with `torch.utils.checkpoint`, which computes a layer twice.

    Wan, Li, Wolfe, Kyrillidis, Kim, Lin: "PipeGCN: efficient full-graph training of graph
    convolutional networks with pipelined feature communication", ICLR 2022, algorithm 1.
    """

    def __init__(
        self, route: Route, wire_dtype: torch.dtype | None, count: Callable[[int], None]
    ) -> None:
        super().__init__(route, wire_dtype, count)
        self._last: dict[bool, Message] = {}

    def start(self, rows: torch.Tensor, back: bool) -> None:
        """Sends rows or gradients, for the next step."""
        last = self._last.get(back)
        if last is not None and (last.width, last.dtype) != (rows.shape[1], rows.dtype):
            raise ValueError(
                f"rows of {rows.shape[1]} values of {rows.dtype} follow those of {last.width} of "
                f"{last.dtype} of the step before; give each layer a number of its own"
            )
        message = self._last[back] = self._send(rows, back)
        self._under_way[back] = message if last is None else last


class Halos:
    """A `Halo` for each exchange of a model, kept from step to step where they are stale.

    Args:
        wire_dtype: as of `Halo`.
        stale: whether training has the rows of the step before.
        count: as of `Halo`.
    """

    def __init__(
        self, wire_dtype: torch.dtype | None, stale: bool, count: Callable[[int], None]
    ) -> None:
        self._wire_dtype, self._stale, self._count = wire_dtype, stale, count
        self._layers: dict[int, StaleHalo] = {}

    def of(self, route: Route, key: Key, layer: int, training: bool) -> Halo:
        """That of a layer, in the step that the key names."""
        if self._stale and training:
            if layer not in self._layers:
                self._layers[layer] = StaleHalo(route, self._wire_dtype, self._count)
            halo: Halo = self._layers[layer]
        else:
            halo = Halo(route, self._wire_dtype, self._count)
        seed, epoch, step = key
        halo.word = fold(batch_key(seed, Purpose.ROUNDING, epoch, step), layer)
        return halo

    def __deepcopy__(self, memo: dict[int, Any]) -> Halos:
        """That of a copied model, whose first step waits for its own rows."""
        return Halos(self._wire_dtype, self._stale, copy.deepcopy(self._count, memo))

    def __repr__(self) -> str:
        return f"wire_dtype={self._wire_dtype}, stale={self._stale}"


def check_halos(wire_dtype: object, stale: object) -> None:
    """Raises `TypeError` where `Halos` cannot have them."""
    check_wire_dtype(wire_dtype)
    if not isinstance(stale, bool):
        raise TypeError(f"stale is {stale!r}; expected a bool")


class _Start(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, halo: Halo) -> torch.Tensor:
        ctx.halo = halo
        halo.start(gathered(halo.route.sends, x), back=False)
        return x.new_empty(0)  # of which the gradient says that those of the rows are under way

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return sum_aggregate(ctx.halo.route.sends.transposed, ctx.halo.wait(back=True)), None


class _Wait(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, started: torch.Tensor, halo: Halo) -> torch.Tensor:
        ctx.halo = halo
        ctx.empty = started
        return halo.wait(back=False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.halo.start(grads[0], back=True)
        return torch.zeros_like(ctx.empty), None


def start_halo(x: torch.Tensor, halo: Halo) -> torch.Tensor:
    """Sends the own rows that others need.

    Args:
        x: float[own, width].
        halo: used for this exchange alone; a `StaleHalo`, for those of one layer.

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
        float[h, width], of the dtype of x, as the route has them: `plan.halo`.
    """
    rows: torch.Tensor = _Wait.apply(started, halo)  # type: ignore[no-untyped-call]
    return rows
