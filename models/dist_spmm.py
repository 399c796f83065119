"""DistSpmm: a product with the adjacency of a graph whose parts are on several ranks."""

from __future__ import annotations

import torch
from torch import nn

from hopline.models.aggregate import sum_aggregate
from hopline.models.boundary_sample import BoundarySample
from hopline.models.checks import (
    check_floating,
    check_key,
    check_on_block,
    check_probability,
    check_tensor,
)
from hopline.models.dist_modes import BroadcastSum, ColumnSum, rows_sent
from hopline.models.halo_exchange import (
    Halo,
    Halos,
    Route,
    check_halos,
    start_halo,
    wait_halo,
)
from hopline.models.halo_plan import HaloPlan, check_plan
from hopline.models.node_dropout import Key
from hopline.models.normalised_product import (
    Factors,
    Remote,
    factors_of,
    normalised_product,
    scaled,
)
from hopline.models.rank_agreement import check_same, needs_gradients
from hopline.models.uncompiled import uncompiled
from hopline.pipes.checks import check_count

__all__ = ["DistSpmm"]

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
    directed graphs too. A call is collective, and so is its backward pass: x needs gradients on all
    ranks or on none, and so does edge_weight. Gradients have no gradients themselves.

    There are other ways than the halo: to send every row to every rank ("broadcast"), and to bring
    each rank all rows of some columns, and the sums back ("columns"), for which every rank keeps
    the whole structure. "auto" takes the way by which least is sent, halo or columns, and rank 0
    prints which; the result is the same up to rounding.

    What is not exact is off unless asked for: a wire_dtype narrower than the rows; and, in training
    alone, `stale` (`StaleHalo`) and `boundary_rate` (`BoundarySample`).

    Args:
        plan: the rank's nodes and edges.
        norm: "none", "right" or "both".
        self_loop: whether to add self edges.
        mode: "halo", "broadcast", "columns" or "auto".
        wire_dtype: in which rows and gradients are sent: torch.bfloat16, float16, float32, or int8
            for integers of 8 bits (`hopline.models.wire`); None for their own.
        stale: whether to train with the halo rows and gradients of the step before, which are under
            way meanwhile. The first step waits for its own. Each layer once a step, so not with
            `torch.utils.checkpoint`, which goes with all else.
        boundary_rate: probability in (0, 1] with which a halo node takes part in a step of
            training, its row divided by it.

    Raises:
        TypeError: plan is no HaloPlan, wire_dtype not one of those, or self_loop or stale no bool.
        ValueError: the norm or the mode is not known, boundary_rate is no such probability, or a
            mode other than the halo is to approximate, or two ways of it at once.

    Attributes:
        mode: the way that is taken.
        bytes_sent: by this rank so far, forward and backward, without what stays here and, of mode
            "broadcast", without padding.
    """

    def __init__(
        self,
        plan: HaloPlan,
        norm: str = "none",
        *,
        self_loop: bool = False,
        mode: str = "halo",
        wire_dtype: torch.dtype | None = None,
        stale: bool = False,
        boundary_rate: float = 1.0,
    ) -> None:
        super().__init__()
        check_plan(plan)
        if norm not in NORMS:
            raise ValueError(f"norm is {norm!r}; expected 'none', 'right' or 'both'")
        if not isinstance(self_loop, bool):
            raise TypeError(f"self_loop is {self_loop!r}; expected a bool")
        if mode not in MODES:
            raise ValueError(f"mode is {mode!r}; expected one of {', '.join(MODES)}")
        approximates = _check_approximation(mode, wire_dtype, stale, boundary_rate)
        self.mode = mode if mode != "auto" else _least_sent(plan, approximates)
        self.plan, self.norm, self.self_loop = plan, norm, self_loop
        self.boundary_rate = boundary_rate
        self.bytes_sent = 0
        self._halos = Halos(wire_dtype, stale, self._count)
        self._every = BroadcastSum(plan, self._count) if self.mode == "broadcast" else None
        self._columns = ColumnSum(plan, self._count) if self.mode == "columns" else None
        self._sample: BoundarySample | None = None
        self._agreed: set[tuple[object, ...]] = set()
        self._known_factors: dict[torch.dtype, Factors] = {}

    @uncompiled
    def forward(
        self,
        x: torch.Tensor,
        edge_weight: torch.Tensor | None = None,
        *,
        key: Key = (0, 0, 0),
        layer: int = 0,
    ) -> torch.Tensor:
        """Applies it.

        Args:
            x: float[own, width], rows of the own nodes.
            edge_weight: float[num_edges], in the order of `plan.block`; gradients reach it.
            key: (seed, epoch, step), of which what approximations draw is a function.
            layer: number of the layer; with `stale`, each has rows of its own of the step before.

        Returns:
            float[own, width].

        Raises:
            TypeError: something is no tensor of floating point, key no tuple of three ints, or
                layer no int.
            ValueError: x or edge_weight has another shape, or is on another device; ranks differ
                in the width, the dtype, or what needs gradients; with `stale`, x has another width
                than in the layer's step before.
        """
        plan = self.plan
        _check(plan, x, "x", len(plan.own), 2)
        if edge_weight is not None:
            _check(plan, edge_weight, "edge_weight", plan.num_edges, 1)
        check_key(key)
        check_count(layer, "layer", None)
        self._agree(x, layer, edge_weight)
        other = self._every or self._columns
        if other is None and edge_weight is None:
            return self._over_halo(x, key, layer)

        def sum_rows(rows: torch.Tensor) -> torch.Tensor:
            if other is not None:
                return other(rows, edge_weight)
            assert edge_weight is not None
            return self._weighted(rows, edge_weight, key, layer)

        return scaled(x, sum_rows, self._factors(x.dtype), self.self_loop)

    def _agree(self, x: torch.Tensor, layer: int, weight: torch.Tensor | None) -> None:
        """Finds ranks that would wait in vain, and rows that the transport would abort."""
        plan, needs = self.plan, (needs_gradients(x), needs_gradients(weight))
        kind = None if weight is None else weight.dtype
        seen = (layer, x.shape[1], x.dtype, self.training, kind, *needs)
        if plan.group is not None and seen not in self._agreed:
            text = f"{self!r} for layer {layer}, rows of {x.shape[1]} of {x.dtype}"
            text += " that need gradients" * needs[0] + ", training" * self.training
            text += f", edge_weight of {kind}" * (kind is not None) + " that needs them" * needs[1]
            check_same(plan.rank, plan.world_size, plan.group, "a product", text)
            self._agreed.add(seen)

    def _over_halo(self, x: torch.Tensor, key: Key, layer: int) -> torch.Tensor:
        plan, remote = self.plan, None
        if plan.world_size > 1:
            sample = self._sample_of(key)
            if sample is None:
                remote = Remote(plan.remote, self._halo(plan, key, layer))
            else:
                halo = self._halo(sample, key, layer)
                remote = Remote(sample.remote, halo, sample.scale)
        factors = self._factors(x.dtype)
        return normalised_product(x, plan.local, factors, self.self_loop, remote)

    def _weighted(
        self, rows: torch.Tensor, weight: torch.Tensor, key: Key, layer: int
    ) -> torch.Tensor:
        plan, sample = self.plan, self._sample_of(key)
        halo = self._halo(sample or plan, key, layer)
        started = start_halo(rows, halo)
        own = sum_aggregate(plan.local, rows, weight.index_select(0, plan.local_edges))
        outer = weight.index_select(0, plan.remote_edges)
        others = wait_halo(started, halo)
        if sample is None:
            return own + sum_aggregate(plan.remote, others, outer)
        outer = outer[sample.remote_edges] * sample.scale
        return own + sum_aggregate(sample.remote, others, outer)

    def _halo(self, route: Route, key: Key, layer: int) -> Halo:
        return self._halos.of(route, key, layer, self.training)

    def _factors(self, dtype: torch.dtype) -> Factors:
        if dtype not in self._known_factors:
            with torch.inference_mode(False):  # as they are kept, and training uses them too
                self._known_factors[dtype] = factors_of(
                    self.plan.in_degrees, self.plan.out_degrees, self.norm, self.self_loop, dtype
                )
        return self._known_factors[dtype]

    def _sample_of(self, key: Key) -> BoundarySample | None:
        """The sample of a step, which its layers share; None for all halo nodes."""
        if not self.training or self.boundary_rate == 1:
            return None
        if self._sample is None or self._sample.key != key:
            plan = self.plan  # of another key, rows would be sent to whom they are not for
            check_same(plan.rank, plan.world_size, plan.group, "key", str(key))
            with torch.inference_mode(False):  # the next pass with the key may be one of training
                self._sample = BoundarySample(self.plan, self.boundary_rate, key)
        return self._sample

    def _count(self, size: int) -> None:
        self.bytes_sent += size

    def extra_repr(self) -> str:
        """Norm, way and dtype, for print."""
        return (
            f"norm={self.norm!r}, self_loop={self.self_loop}, mode={self.mode!r}, "
            f"{self._halos}, boundary_rate={self.boundary_rate}"
        )


def _check_approximation(mode: str, wire_dtype: object, stale: bool, rate: float) -> bool:
    """Whether something is approximated; raises where it cannot be."""
    check_halos(wire_dtype, stale)
    check_probability(rate, "boundary_rate")
    if rate == 0:
        raise ValueError("boundary_rate is 0; expected a probability above 0")
    if stale and rate < 1:
        raise ValueError(
            f"stale and boundary_rate={rate} were given; the rows of the step before are of "
            "another sample: choose one"
        )
    given = [name for name, yes in (("wire_dtype", wire_dtype is not None), ("stale", stale),
                                    ("boundary_rate", rate < 1)) if yes]  # fmt: skip
    if given and mode in ("broadcast", "columns"):
        raise ValueError(f"mode {mode!r} sends rows as they are; leave out {' and '.join(given)}")
    return bool(given)


def _least_sent(plan: HaloPlan, approximates: bool) -> str:
    """The way by which least is sent; rank 0 prints it."""
    sent = rows_sent(plan)
    mode = "columns" if sent["columns"] < sent["halo"] and not approximates else "halo"
    if plan.rank == 0:
        rows = ", ".join(f"{name} {count:,.0f}" for name, count in sent.items())
        print(f"DistSpmm: mode {mode!r} (rows sent by all ranks for a product: {rows})", flush=True)
    return mode


def _check(plan: HaloPlan, value: torch.Tensor, name: str, length: int, dimensions: int) -> None:
    check_tensor(value, name)
    check_floating(value, name)
    if value.dim() != dimensions or len(value) != length:
        wanted = f"[{length}, width]" if dimensions == 2 else f"[{length}]"
        raise ValueError(f"{name} has shape {tuple(value.shape)}; expected {wanted}")
    check_on_block(plan.local, value, name)
