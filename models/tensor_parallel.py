"""TensorParallelGCN: a GCN over the whole graph, each rank with some columns of every row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from hopline.models.aggregate import sum_aggregate
from hopline.models.checks import check_floating, check_tensor
from hopline.models.conjugate import copy_to_ranks, sum_over_ranks
from hopline.models.dist_spmm import normalised_sum
from hopline.models.gcn import GCN
from hopline.models.node_dropout import Key, NodeDropout
from hopline.models.tensor_columns import columns_of_rank
from hopline.pipes.checks import check_count
from hopline.pipes.graph import FusedCSCSamplingGraph
from hopline.pipes.subgraph import Block

__all__ = ["TensorParallelGCN"]


class TensorParallelGCN(nn.Module):
    """`GCN` whose features and weights are split over ranks; every rank has the whole structure.

    A rank sums over in-neighbours in its own columns, and multiplies by its rows of the layer's
    weight; the products are added up over ranks. Needs no partition, and all ranks have the same
    work, whatever the graph; each layer sends N x (width of its output) values forward and as many
    backward. Backward, what a layer's input gets from all ranks is added up too: Megatron's pair,
    `hopline.models.conjugate`. After `backward` gradients are complete: there is nothing to sum.

    Collective, as its backward pass is. Without a process group there is one rank.

    Args:
        graph: homogeneous, the same on all ranks.
        in_size: values of an input row, of all ranks together.
        hidden_size: values of a row between layers, any.
        out_size: values of an output row, e.g. the number of classes.
        num_layers: number of layers.
        dropout: probability with which a value between layers is set to 0 in training, drawn by
            node and column.
        norm: as in `GCNConv`.
        self_loop: as in `GCNConv`; False for a graph that has its self edges.

    Raises:
        TypeError: graph is no FusedCSCSamplingGraph.
        ValueError: the graph has types; otherwise as `GCN`.
    """

    def __init__(
        self,
        graph: FusedCSCSamplingGraph,
        in_size: int,
        hidden_size: int,
        out_size: int,
        num_layers: int = 2,
        dropout: float = 0.5,
        *,
        norm: str = "both",
        self_loop: bool = True,
    ) -> None:
        super().__init__()
        if not isinstance(graph, FusedCSCSamplingGraph):
            raise TypeError(f"graph is a {type(graph).__name__}; expected a FusedCSCSamplingGraph")
        if graph.node_type_to_id is not None:
            raise ValueError(f"{graph} has node types; expected a homogeneous graph")
        grouped = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if grouped else 0
        self.world_size = dist.get_world_size() if grouped else 1
        self.group: Any = dist.new_group() if self.world_size > 1 else None
        nodes = graph.total_num_nodes
        self.block = Block(graph.csc_indptr, graph.indices, nodes, nodes)
        incoming = graph.csc_indptr.diff()
        outgoing = torch.bincount(graph.indices.long(), minlength=nodes)
        self.degrees = incoming, outgoing
        self.norm, self.self_loop = norm, self_loop
        # Drawn as the whole model, of which a rank keeps its columns.
        model = GCN(in_size, hidden_size, out_size, num_layers, dropout, norm=norm)
        self.sizes = [in_size, *[hidden_size] * (num_layers - 1), out_size]
        self.weights = nn.ParameterList(
            nn.Parameter(layer.get_parameter("weight").detach()[:, self.columns(i)].clone())
            for i, layer in enumerate(model.layers)
        )
        self.biases = nn.ParameterList(layer.bias for layer in model.layers)
        self.dropout = NodeDropout(dropout)

    def columns(self, i: int) -> slice:
        """The rank's columns of layer i's input; of the features for 0.

        Raises:
            IndexError: there is no such layer.
        """
        if not 0 <= check_count(i, "layer", None) < len(self.sizes) - 1:
            raise IndexError(f"layer {i} of {len(self.sizes) - 1}")
        return columns_of_rank(self.sizes[i], self.rank, self.world_size)

    def forward(self, x: torch.Tensor, key: Key = (0, 0, 0)) -> torch.Tensor:
        """Applies the layers.

        Args:
            x: [num_nodes, width], the rank's columns of all rows: `features[:, model.columns(0)]`.
            key: (seed, epoch, step), of which dropout is a function.

        Returns:
            [num_nodes, out_size], the same on all ranks: compute the loss on each.

        Raises:
            TypeError: x is no tensor of floating point.
            ValueError: x has another shape.
        """
        check_tensor(x, "x")
        check_floating(x, "x")
        expected = (self.block.num_dst_nodes(), self.weights[0].shape[1])
        if tuple(x.shape) != expected:
            raise ValueError(
                f"x has shape {tuple(x.shape)}; expected {expected}, all rows of columns "
                f"{self.columns(0)}"
            )
        nodes = torch.arange(expected[0], device=x.device)
        last = len(self.weights) - 1
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            product = self._sum(x) @ weight.T
            x = sum_over_ranks(product, self.group) + bias
            if i < last:
                x = self.dropout(x.relu(), nodes, key, i)
                x = copy_to_ranks(x, self.group)[:, self.columns(i + 1)]
        return x

    def _sum(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] == 0:  # of a rank beyond the columns
            return x
        return normalised_sum(
            x, lambda rows: sum_aggregate(self.block, rows), self.degrees, self.norm, self.self_loop
        )

    def whole_state_dict(self) -> dict[str, torch.Tensor]:
        """The `state_dict` of a `GCN` with all columns, on every rank; collective."""
        state = {}
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            whole = torch.zeros(self.sizes[i + 1], self.sizes[i], dtype=weight.dtype,
                                device=weight.device)  # fmt: skip
            whole[:, self.columns(i)] = weight.detach()
            if self.group is not None:
                dist.all_reduce(whole, group=self.group)
            state[f"layers.{i}.weight"], state[f"layers.{i}.bias"] = whole, bias.detach().clone()
        return state

    def load_whole_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Takes the rank's columns of the `state_dict` of a `GCN`.

        Raises:
            TypeError: it is no dict.
            ValueError: a layer is missing, or the sizes differ.
        """
        if not isinstance(state, Mapping):
            raise TypeError(f"state is a {type(state).__name__}; expected a GCN's state_dict")
        for i, (width, rows) in enumerate(zip(self.sizes, self.sizes[1:], strict=False)):
            for name, shape in (("weight", (rows, width)), ("bias", (rows,))):
                value = state.get(f"layers.{i}.{name}")
                if value is None or tuple(value.shape) != shape:
                    got = "nothing" if value is None else f"shape {tuple(value.shape)}"
                    raise ValueError(f"layers.{i}.{name} has {got}; expected shape {shape}")
        with torch.no_grad():
            for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
                weight.copy_(state[f"layers.{i}.weight"][:, self.columns(i)])
                bias.copy_(state[f"layers.{i}.bias"])
