"""TensorParallelGCN: a GCN over the whole graph, each rank with some columns of every row."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from hopline.models.aggregate import sum_aggregate
from hopline.models.checks import (
    check_floating,
    check_key,
    check_on_block,
    check_optimizer,
    check_tensor,
)
from hopline.models.conjugate import copy_to_ranks, sum_over_ranks
from hopline.models.gcn import GCN
from hopline.models.kept_block import KeptBlock
from hopline.models.layers import in_dtype_of
from hopline.models.node_dropout import Key, NodeDropout
from hopline.models.normalised_product import Factors, factors_of, normalised_product, scaled
from hopline.models.rank_agreement import StepNotes, check_same
from hopline.models.tensor_columns import columns_of_rank
from hopline.models.uncompiled import uncompiled
from hopline.pipes.checks import check_count
from hopline.pipes.graph import FusedCSCSamplingGraph

__all__ = ["TensorParallelGCN"]


class TensorParallelGCN(nn.Module):
    """`GCN` whose features and weights are split over ranks; every rank has the whole structure.

    A rank sums over in-neighbours in its own columns, and multiplies by its rows of the layer's
    weight; the products are added up over ranks. Needs no partition, and all ranks have the same
    work, whatever the graph. Each layer sends N x (width of its output) values forward; backward,
    all but the first N x (width of their input), since what a layer's input gets from all ranks is
    added up too: Megatron's pair, `hopline.models.conjugate`. After `backward` gradients are
    complete: there is nothing to sum.

    Collective, as its backward pass is. Without a process group there is one rank. Optimisers are
    to take each value for itself, as Adam and SGD do. Norms, as of `clip_grad_norm_`, would be
    those of the rank's columns, and what all ranks have alike, the biases, would come apart.

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
        group: process group of the ranks; None for the default one. Its timeout is for how long a
            rank waits for another.

    Raises:
        TypeError: graph is no FusedCSCSamplingGraph.
        ValueError: the graph has types, or this process is no rank of the group; otherwise as
            `GCN`.
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
        group: Any = None,
    ) -> None:
        super().__init__()
        if not isinstance(graph, FusedCSCSamplingGraph):
            raise TypeError(f"graph is a {type(graph).__name__}; expected a FusedCSCSamplingGraph")
        if graph.node_type_to_id is not None:
            raise ValueError(f"{graph} has node types; expected a homogeneous graph")
        grouped = dist.is_available() and dist.is_initialized()
        self.group = group
        self.rank = dist.get_rank(group) if grouped else 0
        self.world_size = dist.get_world_size(group) if grouped else 1
        if self.rank < 0:
            raise ValueError("this process is no rank of group; make the model on its ranks alone")
        nodes = graph.total_num_nodes
        self.block = KeptBlock(graph.csc_indptr, graph.indices, nodes, nodes)
        incoming = graph.csc_indptr.diff()
        outgoing = torch.bincount(graph.indices.long(), minlength=nodes)
        self.degrees = incoming, outgoing
        self.norm, self.self_loop = norm, self_loop
        self._factors = dict[torch.dtype, Factors]()
        # Drawn as the whole model, of which a rank keeps its columns.
        model = GCN(in_size, hidden_size, out_size, num_layers, dropout, norm=norm)
        self.sizes = [in_size, *[hidden_size] * (num_layers - 1), out_size]
        self.weights = nn.ParameterList(
            nn.Parameter(layer.get_parameter("weight").detach()[:, self.columns(i)].clone())
            for i, layer in enumerate(model.layers)
        )
        self.biases = nn.ParameterList(layer.bias for layer in model.layers)
        self.dropout = NodeDropout(dropout)
        self._agreed, self._notes = False, StepNotes(self.block.device)

    def __deepcopy__(self, memo: dict[int, Any]) -> TensorParallelGCN:
        """With weights of its own, and the same process group and structure, which stay."""
        memo[id(self.group)] = self.group
        memo[id(self)] = copied = type(self).__new__(type(self))
        copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return copied

    def columns(self, i: int) -> slice:
        """The rank's columns of layer i's input; of the features for 0.

        Raises:
            IndexError: there is no such layer.
        """
        if not 0 <= check_count(i, "layer", None) < len(self.sizes) - 1:
            raise IndexError(f"layer {i} of {len(self.sizes) - 1}")
        return columns_of_rank(self.sizes[i], self.rank, self.world_size)

    @uncompiled
    def forward(
        self,
        x: torch.Tensor,
        key: Key = (0, 0, 0),
        edge_weight: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Applies the layers; not compiled by torch.compile.

        Args:
            x: [num_nodes, width], the rank's columns of all rows: `features[:, model.columns(0)]`.
                Another floating-point dtype than the weights' is converted.
            key: (seed, epoch, step), of which dropout is a function.
            edge_weight: float[num_edges], factors of the messages, the same on all ranks. The whole
                gradient reaches it on each.

        Returns:
            [num_nodes, out_size], the same on all ranks: compute the loss on each.

        Raises:
            TypeError: x or edge_weight is no tensor of floating point, or key no tuple of ints.
            ValueError: x or edge_weight has another shape, or is on another device than the graph;
                another rank has another model, other biases, or another key in training.
        """
        check_tensor(x, "x")
        check_floating(x, "x")
        expected = (self.block.num_dst_nodes(), self.weights[0].shape[1])
        if tuple(x.shape) != expected:
            raise ValueError(
                f"x has shape {tuple(x.shape)}; expected {expected}, all rows of columns "
                f"{self.columns(0)}"
            )
        check_on_block(self.block, x, "x")
        check_key(key)
        x = in_dtype_of(x, self.weights[0])
        self._agree(key)
        if edge_weight is not None:
            check_tensor(edge_weight, "edge_weight")
            check_floating(edge_weight, "edge_weight")
            if edge_weight.shape != (self.block.num_edges(),):
                raise ValueError(
                    f"edge_weight has shape {tuple(edge_weight.shape)}; expected "
                    f"[{self.block.num_edges()}], one for each edge"
                )
            edge_weight = copy_to_ranks(edge_weight, self.group)
        nodes = torch.arange(expected[0], device=x.device)
        last = len(self.weights) - 1
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            product = self._sum(x, edge_weight) @ weight.T
            x = sum_over_ranks(product, self.group) + bias
            if i < last:
                x = self.dropout(x.relu(), nodes, key, i)
                x = copy_to_ranks(x, self.group)[:, self.columns(i + 1)]
        return x

    def _agree(self, key: Key) -> None:
        """Finds ranks that have another model, or make this step of training with another key."""
        if not self._agreed:
            sizes = f"{self.sizes} {self.norm} {self.self_loop} {self.dropout.p}"
            check_same(self.rank, self.world_size, self.group, "the model", sizes)
            self._agreed = True
        if self.training and torch.is_grad_enabled():
            self._notes.add(key, self.biases, self.dropout.p > 0)
            told = self._notes.message(self.rank, self.world_size)
            if self.world_size > 1:
                dist.all_reduce(told, group=self.group)
            self._notes.check(told, self.rank)

    def _sum(self, x: torch.Tensor, edge_weight: torch.Tensor | None) -> torch.Tensor:
        if x.dtype not in self._factors:
            with torch.inference_mode(False):  # as they are kept
                self._factors[x.dtype] = factors_of(
                    *self.degrees, self.norm, self.self_loop, x.dtype
                )
        factors = self._factors[x.dtype]
        if edge_weight is None:
            return normalised_product(x, self.block, factors, self.self_loop)
        return scaled(
            x, lambda rows: sum_aggregate(self.block, rows, edge_weight), factors, self.self_loop
        )

    def whole_state_dict(self) -> dict[str, torch.Tensor]:
        """The `state_dict` of a `GCN` with all columns, on every rank; collective."""
        state = {}
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            state[f"layers.{i}.weight"] = self._whole(weight.detach(), i)
            state[f"layers.{i}.bias"] = bias.detach().clone()
        return state

    def _whole(self, part: torch.Tensor, i: int) -> torch.Tensor:
        """All columns of what goes with layer i's weight; collective."""
        whole = part.new_zeros(self.sizes[i + 1], self.sizes[i])
        whole[:, self.columns(i)] = part
        if self.world_size > 1:
            dist.all_reduce(whole, group=self.group)
        return whole

    def load_whole_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Takes the rank's columns of the `state_dict` of a `GCN`.

        Raises:
            TypeError: it is no dict, or has something else than tensors of floating point.
            ValueError: a layer is missing, or there are more, or the sizes differ.
        """
        if not isinstance(state, Mapping):
            raise TypeError(f"state is a {type(state).__name__}; expected a GCN's state_dict")
        for i, (width, rows) in enumerate(zip(self.sizes, self.sizes[1:], strict=False)):
            for name, shape in (("weight", (rows, width)), ("bias", (rows,))):
                value = state.get(f"layers.{i}.{name}")
                if value is None:
                    raise ValueError(f"layers.{i}.{name} has nothing; expected shape {shape}")
                check_tensor(value, f"layers.{i}.{name}")
                check_floating(value, f"layers.{i}.{name}")
                if tuple(value.shape) != shape:
                    raise ValueError(
                        f"layers.{i}.{name} has shape {tuple(value.shape)}; expected {shape}"
                    )
        own = {
            f"layers.{i}.{name}" for i in range(len(self.weights)) for name in ("weight", "bias")
        }
        if more := sorted(map(str, state.keys() - own)):
            raise ValueError(
                f"state has {more}, of which this model of {len(self.weights)} layers has nothing; "
                "expected the state_dict of a GCN of the same sizes"
            )
        with torch.no_grad():
            for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
                weight.copy_(state[f"layers.{i}.weight"][:, self.columns(i)])
                bias.copy_(state[f"layers.{i}.bias"])

    def whole_optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """The `state_dict` of an optimiser of that `GCN`, on every rank; collective.

        With `whole_state_dict` it is what a checkpoint needs, of one file, which may be resumed on
        another number of ranks, or over parts.

        Args:
            optimizer: over `parameters()`, in one group.

        Raises:
            TypeError: it is no optimiser.
            ValueError: it is over other parameters, or in several groups, or keeps something of a
                weight that is not one value for each of the weight's.
        """
        own = self._state_of(optimizer)
        state: dict[int, dict[str, Any]] = {}
        for number, values in sorted(own["state"].items()):
            layer, is_bias = self._place(number)
            shape = self.weights[layer].shape
            state[2 * layer + is_bias] = {
                name: _copied(value)
                if is_bias or not _is_of(shape, name, value)
                else self._whole(value, layer)
                for name, value in values.items()
            }
        return {"state": state, "param_groups": own["param_groups"]}

    def load_whole_optimizer_state(
        self, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]
    ) -> None:
        """Takes the rank's columns of the `state_dict` of an optimiser of a `GCN`.

        Raises:
            TypeError: optimizer is none, or state is no such dict.
            ValueError: optimizer or state is over other parameters; as `whole_optimizer_state`.
        """
        own = self._state_of(optimizer)
        numbers = _parameters_of(state)
        if numbers != [group["params"] for group in own["param_groups"]]:
            raise ValueError(
                f"state is over the parameters {numbers}; expected those of a GCN with "
                f"{len(self.weights)} layers, in one group"
            )
        kinds = [
            sorted(group, key=str) for group in (state["param_groups"][0], own["param_groups"][0])
        ]
        if kinds[0] != kinds[1]:
            raise ValueError(
                f"state is of an optimizer with {kinds[0]}, this is a {type(optimizer).__name__} "
                f"with {kinds[1]}; expected the same kind"
            )
        parts: dict[int, dict[str, Any]] = {}
        for number in numbers[0]:
            layer, is_bias = self._place(number)
            rows, columns = self.sizes[layer + 1], self.sizes[layer]
            shape = torch.Size([rows] if is_bias else [rows, columns])
            values = state["state"].get(2 * layer + is_bias, {})
            parts[number] = {
                name: value[:, self.columns(layer)].clone()
                if _is_of(shape, name, value) and not is_bias
                else _copied(value)
                for name, value in values.items()
            }
        parts = {number: values for number, values in parts.items() if values}
        optimizer.load_state_dict({"state": parts, "param_groups": [*state["param_groups"]]})

    def _state_of(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        check_optimizer(optimizer)
        groups = [[id(p) for p in group["params"]] for group in optimizer.param_groups]
        if groups != [[id(p) for p in self.parameters()]]:
            raise ValueError(
                f"optimizer has groups of {[len(group) for group in groups]} parameters; expected "
                "one, of model.parameters()"
            )
        return optimizer.state_dict()

    def _place(self, number: int) -> tuple[int, bool]:
        """(layer, whether it is the bias) of a parameter; weights come first here."""
        layers = len(self.weights)
        return number % layers, number >= layers


def _parameters_of(state: Any) -> list[list[int]]:
    """An optimiser's parameters, group by group; raises TypeError where it is no `state_dict`."""
    kept = state.get("state") if isinstance(state, Mapping) else None
    if not isinstance(kept, Mapping) or not all(isinstance(v, Mapping) for v in kept.values()):
        got = f"a dict with {sorted(map(str, state))}" if isinstance(state, Mapping) else None
        raise TypeError(
            f"state is {got or f'a {type(state).__name__}'}; expected an optimizer's state_dict, "
            "with 'state' and 'param_groups'"
        )
    groups = state.get("param_groups")
    listed = isinstance(groups, list) and all(isinstance(each, Mapping) for each in groups)
    if not listed or not all(isinstance(each.get("params"), list) for each in groups):
        raise TypeError(
            f"state has 'param_groups' {groups!r:.60}; expected a list of groups, as in an "
            "optimizer's state_dict"
        )
    return [group["params"] for group in groups]


def _copied(value: Any) -> Any:
    """Another tensor of the same values: optimisers change theirs in place, and may share them."""
    return value.clone() if isinstance(value, torch.Tensor) else value


def _is_of(shape: torch.Size, name: str, value: Any) -> bool:
    """Whether an optimiser keeps it for each value of a parameter; not so a number of steps."""
    if not isinstance(value, torch.Tensor) or value.dim() == 0:
        return False
    if value.shape != shape:
        raise ValueError(
            f"the optimizer's {name} has shape {tuple(value.shape)}; expected {tuple(shape)}, as "
            "the parameter it goes with"
        )
    return True
