"""DistGCN, DistSAGE, DistGAT: models over the whole graph, each rank with its part."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from hopline.models.checks import check_floating, check_tensor
from hopline.models.dist_spmm import DistSpmm
from hopline.models.gat import GAT
from hopline.models.gcn import GCN
from hopline.models.halo_exchange import Halo, start_halo, wait_halo
from hopline.models.halo_plan import HaloPlan, check_plan
from hopline.models.node_dropout import Key, NodeDropout
from hopline.models.sage import SAGE

__all__ = ["DistGAT", "DistGCN", "DistSAGE", "global_mean", "sum_gradients"]


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

    def forward(self, x: torch.Tensor, key: Key = (0, 0, 0)) -> torch.Tensor:
        """Applies the layers; collective, as its backward pass is.

        Args:
            x: [own, in_size], rows of the rank's own nodes.
            key: (seed, epoch, step), of which dropout is a function, and of the nodes' ids in the
                whole graph: it does not depend on the ranks.

        Returns:
            [own, out_size].

        Raises:
            TypeError: x is no tensor of floating point.
            ValueError: x has another shape.
        """
        check_tensor(x, "x")
        check_floating(x, "x")
        expected = (len(self.plan.own), self.layers[0].in_size)
        if tuple(x.shape) != expected:
            raise ValueError(f"x has shape {tuple(x.shape)}; expected {expected}, own nodes' rows")
        for i in range(len(self.layers)):
            x = self._layer(i, x)
            if i < len(self.layers) - 1:
                x = self.dropout(x, self.plan.original_nodes, key, i)
        return x

    def _layer(self, i: int, x: torch.Tensor) -> torch.Tensor:
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
        mode: as of `DistSpmm`; so is wire_dtype.
        wire_dtype: in which rows are sent.

    Raises:
        ValueError: as `GCN`.
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
    ) -> None:
        model = GCN(
            in_size, hidden_size, out_size, num_layers, dropout, norm=norm, self_loop=self_loop
        )
        super().__init__(plan, model.layers, dropout)
        self.spmm = DistSpmm(plan, norm, self_loop=self_loop, mode=mode, wire_dtype=wire_dtype)

    def _layer(self, i: int, x: torch.Tensor) -> torch.Tensor:
        layer = self.layers[i]
        # Sum and linear map commute; the narrower rows are sent.
        if layer.out_size < layer.in_size:
            x = self.spmm(x @ layer.weight.T)
        else:
            x = self.spmm(x) @ layer.weight.T
        x = x + layer.bias
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
        mode: as of `DistSpmm`; so is wire_dtype.
        wire_dtype: in which rows are sent.

    Raises:
        ValueError: as `SAGE`.
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
    ) -> None:
        model = SAGE(in_size, hidden_size, out_size, num_layers, dropout)
        super().__init__(plan, model.layers, dropout)
        self.spmm = DistSpmm(plan, "right", mode=mode, wire_dtype=wire_dtype)

    def _layer(self, i: int, x: torch.Tensor) -> torch.Tensor:
        layer = self.layers[i]
        if layer.out_size < layer.in_size:
            neighbors = self.spmm(layer.fc_neigh(x))
        else:
            neighbors = layer.fc_neigh(self.spmm(x))
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
        negative_slope: as in `GATConv`.
        self_loop: as in `GATConv`; False for a graph that has its self edges.
        wire_dtype: as of `DistSpmm`.

    Raises:
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
        negative_slope: float = 0.2,
        self_loop: bool = True,
        wire_dtype: torch.dtype | None = None,
    ) -> None:
        model = GAT(
            in_size, hidden_size, out_size, num_layers, num_heads, num_out_heads,
            feat_drop=0.0, negative_slope=negative_slope, self_loop=self_loop,
        )  # fmt: skip
        super().__init__(plan, model.layers, dropout)
        self.wire_dtype = wire_dtype
        self.bytes_sent = 0

    def _layer(self, i: int, x: torch.Tensor) -> torch.Tensor:
        halo = Halo(self.plan, self.wire_dtype, self._count)
        rows = torch.cat([x, wait_halo(start_halo(x, halo), halo)])
        out: torch.Tensor = self.layers[i](self.plan.block, rows)
        return out.mean(1) if i == len(self.layers) - 1 else F.elu(out.flatten(1))

    def _count(self, size: int) -> None:
        self.bytes_sent += size


def global_mean(values: torch.Tensor, plan: HaloPlan) -> torch.Tensor:
    """This rank's share of a mean over all ranks: the shares, and their gradients, add up to it.

    Args:
        values: float[n], such as losses of the rank's training nodes; n may be 0.
        plan: of the ranks.

    Returns:
        Sum of values over the number of all ranks' values, for `backward`.

    Raises:
        TypeError: plan is no HaloPlan, or values no tensor.
    """
    check_plan(plan)
    check_tensor(values, "values")
    count = torch.tensor([float(len(values))], dtype=torch.float64, device=values.device)
    if plan.group is not None:
        dist.all_reduce(count, group=plan.group)
    return values.sum() / count.clamp(min=1).to(values.dtype).squeeze(0)


def sum_gradients(parameters: Iterable[nn.Parameter], plan: HaloPlan) -> None:
    """Adds up what all ranks have as gradients, in one message; after `backward`, before a step.

    Args:
        parameters: the same on all ranks; those without a gradient count as zeros.
        plan: of the ranks.

    Raises:
        TypeError: plan is no HaloPlan.
    """
    check_plan(plan)
    wanted = [p for p in parameters if p.requires_grad]
    for p in wanted:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    if plan.group is None or not wanted:
        return
    for dtype in dict.fromkeys(p.dtype for p in wanted):
        mine = [p.grad for p in wanted if p.dtype == dtype and p.grad is not None]
        flat = torch.cat([gradient.reshape(-1) for gradient in mine])
        dist.all_reduce(flat, group=plan.group)
        low = 0
        for gradient in mine:
            gradient.copy_(flat[low : low + gradient.numel()].view_as(gradient))
            low += gradient.numel()
