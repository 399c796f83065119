"""DistSpmm: a product with the adjacency of a graph whose parts are on several ranks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from hopline.models.aggregate import sum_aggregate
from hopline.models.checks import check_floating, check_tensor
from hopline.models.dist_modes import BroadcastSum, ColumnSum, rows_sent
from hopline.models.halo_exchange import Halo, start_halo, wait_halo
from hopline.models.halo_plan import HaloPlan, check_plan

__all__ = ["DistSpmm", "normalised_sum"]

NORMS = ("none", "right", "both")
MODES = ("halo", "broadcast", "columns", "auto")


class DistSpmm(nn.Module):
    """Sums the in-neighbours' rows of own nodes: `out_i = sum over edges (j, i) of w_ij c_ij x_j`.

    c is by `norm`: 1 for "none"; `1 / in-degree of i` for "right", the mean; and for "both"
    `1 / sqrt(out-degree of j * in-degree of i)`, of Kipf and Welling, "Semi-supervised
    classification with graph convolutional networks", ICLR 2017. Degrees are those of the whole
    graph. With `self_loop` every node has one more edge, from itself, of weight 1.

    Forward, rank by rank the rows that others need are sent while the sum over own sources is
    computed; backward, gradients go the same way back, along the transpose, so they are exact for
    directed graphs too. A call is collective, and so is its backward pass.

    There are other ways than the halo: to send every row to every rank ("broadcast"), and to bring
    each rank all rows of some columns, and the sums back ("columns"), for which every rank keeps
    the whole structure. "auto" takes the way by which least is sent, halo or columns; the result is
    the same up to rounding.

    Args:
        plan: the rank's nodes and edges.
        norm: "none", "right" or "both".
        self_loop: whether to add self edges.
        mode: "halo", "broadcast", "columns" or "auto".
        wire_dtype: in which rows and gradients are sent, such as torch.bfloat16, which is not
            exact; None for their own.

    Raises:
        TypeError: plan is no HaloPlan.
        ValueError: the norm or the mode is not known, or the mode has no wire_dtype.

    Attributes:
        mode: the way that is taken.
        bytes_sent: by this rank so far, forward and backward, without what stays here.
    """

    def __init__(
        self,
        plan: HaloPlan,
        norm: str = "none",
        *,
        self_loop: bool = False,
        mode: str = "halo",
        wire_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_plan(plan)
        if norm not in NORMS:
            raise ValueError(f"norm is {norm!r}; expected 'none', 'right' or 'both'")
        if mode not in MODES:
            raise ValueError(f"mode is {mode!r}; expected one of {', '.join(MODES)}")
        if wire_dtype is not None and mode in ("broadcast", "columns"):
            raise ValueError(f"mode {mode!r} sends rows as they are; leave out wire_dtype")
        if mode == "auto":
            sent = rows_sent(plan)
            columns = sent["columns"] < sent["halo"] and wire_dtype is None
            mode = "columns" if columns else "halo"
        self.mode = mode
        self.plan, self.norm, self.self_loop, self.wire_dtype = plan, norm, self_loop, wire_dtype
        self.bytes_sent = 0
        self._every = BroadcastSum(plan, self._count) if mode == "broadcast" else None
        self._columns = ColumnSum(plan, self._count) if mode == "columns" else None

    def forward(self, x: torch.Tensor, edge_weight: torch.Tensor | None = None) -> torch.Tensor:
        """Applies it.

        Args:
            x: float[own, width], rows of the own nodes.
            edge_weight: float[num_edges], in the order of `plan.block`; gradients reach it.

        Returns:
            float[own, width].

        Raises:
            TypeError: something is no tensor of floating point.
            ValueError: x or edge_weight has another length; edge_weight in mode "columns".
        """
        plan, degrees = self.plan, (self.plan.in_degrees, self.plan.out_degrees)
        _check(x, "x", len(plan.own))
        if edge_weight is not None:
            _check(edge_weight, "edge_weight", plan.block.num_edges())
        if self._columns is not None:
            if edge_weight is not None:
                raise ValueError('got edge_weight in mode "columns"; use mode="halo" for weights')
            return normalised_sum(x, self._columns, degrees, self.norm, self.self_loop)
        if self._every is not None:
            every = self._every
            return normalised_sum(
                x, lambda rows: every(rows, edge_weight), degrees, self.norm, self.self_loop
            )
        inner, outer = None, None
        if edge_weight is not None:
            inner = edge_weight.index_select(0, plan.local_edges)
            outer = edge_weight.index_select(0, plan.remote_edges)
        halo = Halo(plan, self.wire_dtype, self._count)

        def sum_rows(rows: torch.Tensor) -> torch.Tensor:
            started = start_halo(rows, halo)
            own = sum_aggregate(plan.local, rows, inner)
            return own + sum_aggregate(plan.remote, wait_halo(started, halo), outer)

        return normalised_sum(x, sum_rows, degrees, self.norm, self.self_loop)

    def _count(self, size: int) -> None:
        self.bytes_sent += size

    def extra_repr(self) -> str:
        """Norm, way and dtype, for print."""
        return (
            f"norm={self.norm!r}, self_loop={self.self_loop}, mode={self.mode!r}, "
            f"wire_dtype={self.wire_dtype}"
        )


def normalised_sum(
    x: torch.Tensor,
    sum_rows: Callable[[torch.Tensor], torch.Tensor],
    degrees: tuple[torch.Tensor, torch.Tensor],
    norm: str,
    self_loop: bool,
) -> torch.Tensor:
    """Sum over in-neighbours with the factors of `DistSpmm`.

    Args:
        x: float[n, width].
        sum_rows: sums the rows of in-neighbours.
        degrees: int64[n] in-degrees, int64[n] out-degrees, in the whole graph.
        norm: "none", "right" or "both".
        self_loop: whether there are self edges besides.
    """
    incoming, outgoing = degrees
    extra = int(self_loop)
    if norm == "both":
        x = x * (outgoing + extra).clamp(min=1).to(x.dtype).pow(-0.5).unsqueeze(1)
    out = sum_rows(x)
    if self_loop:
        out = out + x
    if norm == "none":
        return out
    power = -0.5 if norm == "both" else -1.0
    return out * (incoming + extra).clamp(min=1).to(x.dtype).pow(power).unsqueeze(1)


def _check(value: torch.Tensor, name: str, length: int) -> None:
    check_tensor(value, name)
    check_floating(value, name)
    if value.dim() == 0 or len(value) != length:
        raise ValueError(f"{name} has shape {tuple(value.shape)}; expected {length} rows")
