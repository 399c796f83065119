"""MiniBatch: what flows through the chain."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import torch

from hopline.pipes.move import move
from hopline.pipes.subgraph import Block, SampledSubgraph

__all__ = ["MiniBatch"]

Value = torch.Tensor | dict[str, torch.Tensor]


@dataclass(repr=False)
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
        """A mini-batch of named columns; unknown names go to `extra`."""
        reserved = {"key", "extra"}
        known = {f.name for f in dataclasses.fields(cls)} - reserved
        if taken := (set(dir(cls)) | reserved) & set(columns) - known:
            raise ValueError(
                f"item sets may not name a column {sorted(taken)}: mini-batches use the name"
            )
        fields = {name: value for name, value in columns.items() if name in known}
        rest = {name: value for name, value in columns.items() if name not in known}
        return cls(**fields, extra=rest)

    def __getattr__(self, name: str) -> Any:
        extra = self.__dict__.get("extra", {})
        if name in extra:
            return extra[name]
        raise AttributeError(
            f"MiniBatch has no attribute {name!r}; further columns here: {sorted(extra)}"
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

    def num_layers(self) -> int:
        """Number of sampled hops."""
        return len(self.sampled_subgraphs or [])

    def node_ids(self) -> Value | None:
        """The nodes whose features the first layer reads: `input_nodes`."""
        return self.input_nodes

    def edge_ids(self, layer_id: int) -> Value:
        """Original edge ids of one hop.

        Raises:
            IndexError: there is no such hop.
        """
        if not 0 <= layer_id < self.num_layers():
            raise IndexError(f"layer {layer_id} of a mini-batch with {self.num_layers()} hops")
        assert self.sampled_subgraphs is not None
        return self.sampled_subgraphs[layer_id].original_edge_ids

    def to(self, device: torch.device | str, non_blocking: bool = False) -> MiniBatch:
        """Moves everything to a device, or to "pinned" memory, in place.

        Returns:
            This mini-batch.
        """
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
