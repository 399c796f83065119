"""DistGCN, DistSAGE, DistGAT: models over the whole graph, each rank with its part."""

from __future__ import annotations

from functools import cached_property, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from hopline.models.checks import check_floating, check_key, check_on_block, check_tensor
from hopline.models.dist_spmm import DistSpmm
from hopline.models.gat import GAT
from hopline.models.gcn import GCN
from hopline.models.halo_exchange import Halos, check_halos, start_halo, wait_halo
from hopline.models.halo_plan import HaloPlan, check_plan
from hopline.models.layers import in_dtype_of
from hopline.models.node_dropout import Key, NodeDropout
from hopline.models.rank_agreement import check_same
from hopline.models.sage import SAGE
from hopline.models.uncompiled import uncompiled

__all__ = ["DistGAT", "DistGCN", "DistSAGE"]


class _FullGraph(nn.Module):
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
        self._agree(x.dtype, key)
        for i in range(len(self.layers)):
            x = self._layer(i, x, key, edge_weight)
            if i < len(self.layers) - 1:
                x = self.dropout(x, self.plan.original_nodes, key, i)
        return x

    def _agree(self, dtype: torch.dtype, key: Key) -> None:
        """Finds ranks that have another model: its sizes at once, weights in `global_mean`."""
        plan = self.plan
        if not self._agreed:
            text = " ".join(f"{self!r} of {dtype}".split())
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


class DistGCN(_FullGraph):
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


class DistSAGE(_FullGraph):
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


class DistGAT(_FullGraph):
    """`GAT` over the whole graph: attention is over all in-edges.

    Args:
        plan: the rank's nodes and edges.
        in_size: values of an input row.
        hidden_size: values of a row of each head between layers.
        out_size: values of an output row, e.g. the number of classes.
        num_layers: number of layers.
        num_heads: heads of each hidden layer.
        num_out_heads: heads of the last layer.
        dropout: probability with which a value between layers is set to 0 in training.
        attn_drop: probability with which an edge's attention is set to 0 in training, drawn by
            the edge's id in the whole graph and head; of self edges by node and head.
        negative_slope: as in `GATConv`.
        self_loop: as in `GATConv`; False for a graph that has its self edges.
        wire_dtype: as of `DistSpmm`; so is stale.
        stale: whether to train with the halo rows and gradients of the step before.

    Raises:
        TypeError: as `DistSpmm`; a probability is no number.
        ValueError: as `GAT`.
    """

    def __init__(
        self,
        plan: HaloPlan,
        in_size: int,
        hidden_size: int,
        out_size: int,
        num_layers: int = 2,
        num_heads: int = 4,
        num_out_heads: int = 1,
        dropout: float = 0.5,
        *,
        attn_drop: float = 0.0,
        negative_slope: float = 0.2,
        self_loop: bool = True,
        wire_dtype: torch.dtype | None = None,
        stale: bool = False,
    ) -> None:
        check_halos(wire_dtype, stale)
        model = GAT(
            in_size, hidden_size, out_size, num_layers, num_heads, num_out_heads,
            feat_drop=0.0, negative_slope=negative_slope, self_loop=self_loop,
        )  # fmt: skip
        super().__init__(plan, model.layers, dropout)
        self.attn_drop = NodeDropout(attn_drop)
        self.bytes_sent = 0
        self._halos = Halos(wire_dtype, stale, self._count)

    def _layer(
        self, i: int, x: torch.Tensor, key: Key, edge_weight: torch.Tensor | None
    ) -> torch.Tensor:
        halo = self._halos.of(self.plan, key, i, self.training)
        rows = torch.cat([x, wait_halo(start_halo(x, halo), halo)])
        attn_drop = partial(self._drop_attention, i, key) if self._drops_attention else None
        out: torch.Tensor = self.layers[i](self.plan.block, rows, attn_drop=attn_drop)
        return out.mean(1) if i == len(self.layers) - 1 else F.elu(out.flatten(1))

    def _draws(self) -> bool:
        return super()._draws() or self.attn_drop.p > 0

    @property
    def _drops_attention(self) -> bool:
        return self.attn_drop.training and self.attn_drop.p > 0.0

    def _drop_attention(self, i: int, key: Key, attention: torch.Tensor) -> torch.Tensor:
        # Layer ~i: other draws than those of values behind layer i.
        dropped: torch.Tensor = self.attn_drop(attention, self._edge_names, key, ~i)
        return dropped

    @cached_property
    def _edge_names(self) -> torch.Tensor:
        """What draws know the layers' edges by: ids from 0 up, ~v for the self edge of node v."""
        edges, nodes = self.plan.original_edges, self.plan.original_nodes
        if not self.layers[0].self_loop:
            return edges
        # Each destination's last, see `add_self_edges`.
        last = self.plan.block.indptr[1:] + torch.arange(len(nodes), device=nodes.device)
        names = edges.new_empty(len(edges) + len(nodes))
        given = torch.ones_like(names, dtype=torch.bool).index_fill(0, last, False)
        names[last], names[given] = ~nodes, edges
        return names

    def _count(self, size: int) -> None:
        self.bytes_sent += size
