"""DistGCN, DistSAGE: models over the whole graph, each rank with its part; what all share."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from hopline.models.checks import check_floating, check_key, check_on_block, check_tensor
from hopline.models.dist_spmm import DistSpmm
from hopline.models.gcn import GCN
from hopline.models.halo_plan import HaloPlan, check_plan
from hopline.models.layers import in_dtype_of
from hopline.models.node_dropout import Key, NodeDropout
from hopline.models.rank_agreement import check_same, needs_gradients
from hopline.models.sage import SAGE
from hopline.models.uncompiled import uncompiled

__all__ = ["DistGCN", "DistSAGE", "FullGraph"]


class FullGraph(nn.Module):
    """What the models share: layers one after another, dropout drawn by node.

    Args:
        plan: the rank's nodes and edges.
        layers: as those of the model over blocks, so that either loads the other's `state_dict`.
        dropout: probability with which a value between layers is set to 0 in training.
    """

    def __init__(self, plan: HaloPlan, layers: Any, dropout: float) -> None:
        super().__init__()
        self.plan, self.layers = check_plan(plan), layers
        self.dropout = NodeDropout(dropout)
        self._agreed = False

    @uncompiled
    def forward(self, x: torch.Tensor, key: Key = (0, 0, 0)) -> torch.Tensor:
        """Applies the layers; collective, as its backward pass is. Not compiled by torch.compile.

        Args:
            x: [own, in_size], rows of the rank's own nodes. Another floating-point dtype than the
                weights' is converted.
            key: (seed, epoch, step), of which dropout is a function, and of the nodes' ids in the
                whole graph: it does not depend on the ranks.

        Returns:
            [own, out_size].

        Raises:
            TypeError: x is no tensor of floating point, or key no tuple of three ints.
            ValueError: x has another shape, or is on another device; at the first call, another
                rank has another model.
        """
        return self._applied(x, key, None)

    def _applied(self, x: torch.Tensor, key: Key, edge_weight: torch.Tensor | None) -> torch.Tensor:
        check_tensor(x, "x")
        check_floating(x, "x")
        expected = (len(self.plan.own), self.layers[0].in_size)
        if tuple(x.shape) != expected:
            raise ValueError(f"x has shape {tuple(x.shape)}; expected {expected}, own nodes' rows")
        check_on_block(self.plan.local, x, "x")
        check_key(key)
        x = in_dtype_of(x, next(self.layers.parameters()))
        self._agree(x, key)
        for i in range(len(self.layers)):
            x = self._layer(i, x, key, edge_weight)
            if i < len(self.layers) - 1:
                x = self.dropout(x, self.plan.original_nodes, key, i)
        return x

    def _agree(self, x: torch.Tensor, key: Key) -> None:
        """Finds ranks that have another model: its sizes at once, weights in `global_mean`."""
        plan = self.plan
        if not self._agreed:
            needs = ", x needs gradients" * needs_gradients(x)
            text = " ".join(f"{self!r} of {x.dtype}{needs}".split())
            check_same(plan.rank, plan.world_size, plan.group, "the model", text)
            self._agreed = True
        if self.training and torch.is_grad_enabled():
            plan.notes.add(key, self.layers.parameters(), self._draws())

    def _draws(self) -> bool:
        return self.dropout.p > 0

    def _layer(
        self, i: int, x: torch.Tensor, key: Key, edge_weight: torch.Tensor | None
    ) -> torch.Tensor:
        raise NotImplementedError


class DistGCN(FullGraph):
    """`GCN` over the whole graph, with the degrees of the whole graph.

    Args:
        plan: the rank's nodes and edges.
        in_size: values of an input row.
        hidden_size: values of a row between layers.
        out_size: values of an output row, e.g. the number of classes.
        num_layers: number of layers.
        dropout: probability with which a value between layers is set to 0 in training.
        norm: as in `GCNConv`.
        self_loop: as in `GCNConv`; False for a graph that has its self edges.
        mode: as of `DistSpmm`; so are wire_dtype, stale and boundary_rate.
        wire_dtype: in which rows are sent.
        stale: whether to train with the halo rows and gradients of the step before.
        boundary_rate: probability with which a halo node takes part in a step of training.

    Raises:
        TypeError: as `DistSpmm`.
        ValueError: as `GCN` and `DistSpmm`.
    """

    def __init__(
        self,
        plan: HaloPlan,
        in_size: int,
        hidden_size: int,
        out_size: int,
        num_layers: int = 2,
        dropout: float = 0.5,
        *,
        norm: str = "both",
        self_loop: bool = True,
        mode: str = "halo",
        wire_dtype: torch.dtype | None = None,
        stale: bool = False,
        boundary_rate: float = 1.0,
    ) -> None:
        model = GCN(
            in_size, hidden_size, out_size, num_layers, dropout, norm=norm, self_loop=self_loop
        )
        super().__init__(plan, model.layers, dropout)
        self.spmm = DistSpmm(
            plan, norm, self_loop=self_loop, mode=mode, wire_dtype=wire_dtype, stale=stale,
            boundary_rate=boundary_rate,
        )  # fmt: skip

    @uncompiled
    def forward(
        self,
        x: torch.Tensor,
        key: Key = (0, 0, 0),
        edge_weight: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Applies the layers; collective, as its backward pass is. Not compiled by torch.compile.

        Args:
            x: [own, in_size], rows of the rank's own nodes. Another floating-point dtype than the
                weights' is converted.
            key: (seed, epoch, step), of which dropout is a function, and of the nodes' ids in the
                whole graph: it does not depend on the ranks.
            edge_weight: float[num_edges], factors of the messages, in the order of `plan.block`;
                on all ranks or on none. Gradients reach it.

        Returns:
            [own, out_size].

        Raises:
            TypeError: x or edge_weight is no tensor of floating point, or key no tuple of ints.
            ValueError: x or edge_weight has another shape, or is on another device; at the first
                call, another rank has another model.
        """
        return self._applied(x, key, edge_weight)

    def _draws(self) -> bool:
        return super()._draws() or self.spmm.boundary_rate < 1

    def _layer(
        self, i: int, x: torch.Tensor, key: Key, edge_weight: torch.Tensor | None
    ) -> torch.Tensor:
        layer = self.layers[i]
        # Sum and linear map commute; the narrower rows are sent.
        if layer.out_size < layer.in_size:
            x = self.spmm(x @ layer.weight.T, edge_weight, key=key, layer=i)
        else:
            x = self.spmm(x, edge_weight, key=key, layer=i) @ layer.weight.T
        x = x + layer.bias.to(x.dtype)
        return x.relu() if i < len(self.layers) - 1 else x


class DistSAGE(FullGraph):
    """`SAGE` over the whole graph: the mean is over all in-neighbours.

    Args:
        plan: the rank's nodes and edges.
        in_size: values of an input row.
        hidden_size: values of a row between layers.
        out_size: values of an output row, e.g. the number of classes.
        num_layers: number of layers.
        dropout: probability with which a value between layers is set to 0 in training.
        mode: as of `DistSpmm`; so are wire_dtype, stale and boundary_rate.
        wire_dtype: in which rows are sent.
        stale: whether to train with the halo rows and gradients of the step before.
        boundary_rate: probability with which a halo node takes part in a step of training.

    Raises:
        TypeError: as `DistSpmm`.
        ValueError: as `SAGE` and `DistSpmm`.
    """

    def __init__(
        self,
        plan: HaloPlan,
        in_size: int,
        hidden_size: int,
        out_size: int,
        num_layers: int = 3,
        dropout: float = 0.5,
        *,
        mode: str = "halo",
        wire_dtype: torch.dtype | None = None,
        stale: bool = False,
        boundary_rate: float = 1.0,
    ) -> None:
        model = SAGE(in_size, hidden_size, out_size, num_layers, dropout)
        super().__init__(plan, model.layers, dropout)
        self.spmm = DistSpmm(
            plan, "right", mode=mode, wire_dtype=wire_dtype, stale=stale,
            boundary_rate=boundary_rate,
        )  # fmt: skip

    def _layer(
        self, i: int, x: torch.Tensor, key: Key, edge_weight: torch.Tensor | None
    ) -> torch.Tensor:
        layer = self.layers[i]
        if layer.out_size < layer.in_size:
            neighbors = self.spmm(layer.fc_neigh(x), key=key, layer=i)
        else:
            neighbors = layer.fc_neigh(self.spmm(x, key=key, layer=i))
        x = layer.fc_self(x) + neighbors
        return x.relu() if i < len(self.layers) - 1 else x
