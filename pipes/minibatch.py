"""MiniBatch: what flows through the chain."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import torch

from hopline.pipes.move import check_device, move
from hopline.pipes.pinning import is_pinned
from hopline.pipes.subgraph import Block, SampledSubgraph

__all__ = ["MiniBatch", "check_minibatch"]

Value = torch.Tensor | dict[str, torch.Tensor]

# Attributes that GraphBolt's mini-batches had once, and what to use.
FORMER = {
    "compacted_node_pairs": "compacted_seeds[labels == 1].T",
    "negative_node_pairs": "compacted_seeds[labels == 0].T",
    "negative_srcs": "seeds[labels == 0][:, 0]",
    "negative_dsts": "seeds[labels == 0][:, 1]",
    "node_pairs": "seeds",
    "node_pairs_with_labels": "compacted_seeds.T and labels",
    "positive_node_pairs": "compacted_seeds[labels == 1].T",
    "seed_nodes": "seeds",
    "to_dgl": "the mini-batch itself, which has blocks",
    "to_dgl_blocks": "blocks",
}


@dataclass(repr=False, kw_only=True)
class MiniBatch:
    """Seeds, and what the stages have found for them so far.

    Attributes:
        seeds: integer[B] nodes, integer[B, 2] edges, integer[B, k] hyperlinks; or `{type: seeds}`.
        labels: one row a seed; or `{type: labels}`.
        indexes: int64[B], the query that each seed belongs to.
        timestamp: int64[B], the time of each seed.
        sampled_subgraphs: one a hop, outermost first: number 0 feeds the first layer.
        input_nodes: integer[N], the nodes whose features the first layer reads.
        node_features: `{name: tensor of N rows}`, or `{(node type, name): tensor}`.
        edge_features: one dict a hop, `{name: tensor}` or `{(edge type, name): tensor}`; rows
            follow that hop's `original_edge_ids`.
        compacted_seeds: seeds of two dimensions as positions in the last layer's output.
        key: (seed, epoch, index) from which every random draw in it follows.
        extra: any further named column of the item set, or attribute that a stage sets; also read
            and written as an attribute of the mini-batch.
    """

    seeds: Value | None = None
    labels: Value | None = None
    indexes: Value | None = None
    timestamp: Value | None = None
    sampled_subgraphs: list[SampledSubgraph] | None = None
    input_nodes: Value | None = None
    node_features: dict[Any, torch.Tensor] | None = None
    edge_features: list[dict[Any, torch.Tensor]] | None = None
    compacted_seeds: Value | None = None
    key: tuple[int, int, int] | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_columns(cls, columns: dict[str, Any]) -> MiniBatch:
        """A mini-batch of named columns; unknown names go to `extra`.

        Raises:
            TypeError: not a dict by strings.
            ValueError: a name is one that mini-batches use for something else.
        """
        if not isinstance(columns, dict):
            raise TypeError(f"columns are a {type(columns).__name__}; expected {{name: column}}")
        for name in columns:
            if not isinstance(name, str):
                raise TypeError(f"a column name is {name!r}; expected a string")
        fields = {name: value for name, value in columns.items() if name in COLUMNS}
        rest = {name: value for name, value in columns.items() if name not in COLUMNS}
        if rest and (taken := (set(dir(cls)) | set(cls.__dataclass_fields__)) & set(rest)):
            raise ValueError(
                f"item sets may not name a column {sorted(taken)}: mini-batches use the name"
            )
        return cls(**fields, extra=rest)

    def __getattr__(self, name: str) -> Any:
        extra = self.__dict__.get("extra", {})
        if name in extra:
            return extra[name]
        hint = f"; use {FORMER[name]}" if name in FORMER else ""
        raise AttributeError(
            f"MiniBatch has no attribute {name!r}{hint}; further columns here: {sorted(extra)}"
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if name in type(self).__dataclass_fields__ or hasattr(type(self), name):
            object.__setattr__(self, name, value)
        else:
            self.extra[name] = value  # where `to` and repr find it

    @property
    def blocks(self) -> list[Any] | None:
        """One `Block` a hop, outermost first; `{edge type: Block}` when heterogeneous."""
        if self.sampled_subgraphs is None:
            return None
        blocks: list[Block | dict[str, Block]] = [s.block() for s in self.sampled_subgraphs]
        return blocks

    def compute_blocks(self) -> list[Any] | None:
        """The blocks; the property `blocks` computes them too, at each access, and keeps none."""
        return self.blocks

    def num_layers(self) -> int:
        """Number of sampled hops."""
        return len(self.sampled_subgraphs or [])

    def node_ids(self) -> Value | None:
        """The nodes whose features the first layer reads: `input_nodes`."""
        return self.input_nodes

    def edge_ids(self, layer_id: int) -> Value | None:
        """Original edge ids of one hop, if it has any.

        Raises:
            IndexError: there is no such hop.
            TypeError: layer_id is no int.
        """
        if isinstance(layer_id, bool) or not isinstance(layer_id, int):
            raise TypeError(f"layer_id is {layer_id!r}; expected an int")
        if not 0 <= layer_id < self.num_layers():
            raise IndexError(f"layer {layer_id} of a mini-batch with {self.num_layers()} hops")
        assert self.sampled_subgraphs is not None
        return self.sampled_subgraphs[layer_id].original_edge_ids

    def set_node_features(self, node_features: dict[Any, torch.Tensor]) -> None:
        """Replaces `node_features`."""
        self.node_features = node_features

    def set_edge_features(self, edge_features: list[dict[Any, torch.Tensor]]) -> None:
        """Replaces `edge_features`, one dict a hop."""
        self.edge_features = edge_features

    def to_pyg_data(self) -> Any:
        """The mini-batch as a `torch_geometric.data.Data`; needs PyTorch Geometric.

        For node classification on a homogeneous graph. All hops come as one graph over
        `input_nodes`, seeds first, as a PyG model of as many layers as there are hops takes it.

        Returns:
            Data with x (the node feature, or None), edge_index int64[2, E], y (the labels),
            batch_size (number of seeds), n_id (`input_nodes`), e_id int64[E] (original ids of the
            edges), and edge_attr if each hop has one edge feature. Edges come in the order of
            sampling, from the seeds outwards; an edge that several hops drew comes once.

        Raises:
            ImportError: PyTorch Geometric is not installed.
            ValueError: nothing is sampled, nodes or edges have types, seeds are not nodes, or there
                are several node features or several edge features in a hop.
        """
        from hopline.pipes.converters.pyg_batch import to_pyg_data

        return to_pyg_data(self)

    def pin_memory(self) -> MiniBatch:
        """Moves everything to page-locked memory, in place; what torch's own loader calls.

        Returns:
            This mini-batch.

        Raises:
            RuntimeError: torch finds no GPU, so there is nothing to pin for.
        """
        return self.to("pinned")

    def is_pinned(self) -> bool:
        """Whether all its tensors are in page-locked memory."""
        return is_pinned([getattr(self, f.name) for f in dataclasses.fields(self)])

    def to(self, device: torch.device | str, non_blocking: bool = False) -> MiniBatch:
        """Moves everything to a device, or to "pinned" memory, in place.

        Returns:
            This mini-batch.

        Raises:
            ValueError: there is no such device.
        """
        device = check_device(device, pinned=True)
        for f in dataclasses.fields(self):
            if f.name != "key":
                setattr(self, f.name, move(getattr(self, f.name), device, non_blocking))
        return self

    def __repr__(self) -> str:
        parts = [f"key={self.key}"]
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if f.name != "key" and value is not None and value != {}:
                parts.append(f"{f.name}={_short(value)}")
        return f"MiniBatch({', '.join(parts)})"


# What a column of an item set may be called to become an attribute of its own.
COLUMNS = frozenset(f.name for f in dataclasses.fields(MiniBatch)) - {
    "edge_features",  # no rows of tensors, these
    "extra",
    "key",
    "node_features",
    "sampled_subgraphs",
}


def check_minibatch(minibatch: Any, what: str) -> MiniBatch:
    """Refuses what is no mini-batch.

    Args:
        minibatch: to be checked.
        what: who takes it, for the message.

    Raises:
        TypeError: it is something else.
    """
    if not isinstance(minibatch, MiniBatch):
        raise TypeError(f"{what} got a {type(minibatch).__name__}; expected a MiniBatch")
    return minibatch


def _short(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k!r}: {_short(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return (
            f"[{', '.join(_short(v) for v in value)}]" if len(value) < 9 else f"list[{len(value)}]"
        )
    return repr(value)
