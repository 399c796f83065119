"""SampledSubgraph and Block: one hop of message passing, in compressed sparse columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from hopline.pipes.etypes import etype_str_to_tuple
from hopline.pipes.move import move_fields

__all__ = ["Block", "CSCFormatBase", "SampledSubgraph"]

Ids = torch.Tensor | dict[str, torch.Tensor]


@dataclass(slots=True)
class CSCFormatBase:
    """Edges of one type: the sources of column i are `indices[indptr[i]:indptr[i + 1]]`.

    Attributes:
        indptr: int64[num_columns + 1].
        indices: integer[num_edges]. Positions in the source list once relabelled.
    """

    indptr: torch.Tensor
    indices: torch.Tensor

    def to(self, device: torch.device | str, non_blocking: bool = False) -> CSCFormatBase:
        """The same edges on a device, or in "pinned" memory."""
        moved: CSCFormatBase = move_fields(self, device, non_blocking)
        return moved

    def __repr__(self) -> str:
        return f"CSCFormatBase(columns={len(self.indptr) - 1}, edges={len(self.indices)})"


@dataclass(slots=True)
class SampledSubgraph:
    """What one hop of sampling found; a dict by type throughout when the graph is heterogeneous.

    Destinations are a prefix of the sources (of their type): sources are numbered destinations
    first, then by first occurrence.

    Attributes:
        sampled_csc: the edges, `indices` being positions in the source list of the edge type's
            source type; or `{edge type: edges}` for every edge type, in the order of their ids.
        original_column_node_ids: integer[num_columns], destinations; or `{node type: ids}`.
        original_row_node_ids: integer[num_rows], sources; or `{node type: ids}`.
        original_edge_ids: int64[num_edges], each edge's number in the input if the graph keeps it,
            else its position in CSC order; or `{edge type: ids}`.
    """

    sampled_csc: CSCFormatBase | dict[str, CSCFormatBase]
    original_column_node_ids: Ids
    original_row_node_ids: Ids
    original_edge_ids: Ids

    def to(self, device: torch.device | str, non_blocking: bool = False) -> SampledSubgraph:
        """The same subgraph on a device, or in "pinned" memory."""
        moved: SampledSubgraph = move_fields(self, device, non_blocking)
        return moved

    def block(self) -> Block | dict[str, Block]:
        """What a layer takes: one block, or one for each edge type."""
        if isinstance(self.sampled_csc, dict):
            blocks = {}
            for name, csc in self.sampled_csc.items():
                source, _, destination = etype_str_to_tuple(name)
                blocks[name] = self._block(csc, source, destination, name)
            return blocks
        return self._block(self.sampled_csc, None, None, None)

    def _block(
        self, csc: CSCFormatBase, source: str | None, destination: str | None, name: str | None
    ) -> Block:
        return Block(
            csc.indptr,
            csc.indices,
            len(_of(self.original_row_node_ids, source)),
            len(_of(self.original_column_node_ids, destination)),
            _of(self.original_edge_ids, name),
        )

    def __repr__(self) -> str:
        return f"SampledSubgraph({self.sampled_csc})"


def _of(ids: Any, key: str | None) -> torch.Tensor:
    tensor: torch.Tensor = ids if key is None else ids[key]
    return tensor


@dataclass(slots=True)
class Block:
    """The bipartite graph of one layer: messages go from source rows to destination rows.

    With one node type, the first `num_dst_nodes()` source rows are the destination rows.

    Attributes:
        indptr: int64[num_dst + 1].
        indices: int32[num_edges], source row of each edge.
        num_src: number of source rows.
        num_dst: number of destination rows.
        original_edge_ids: int64[num_edges], as in `SampledSubgraph`.
    """

    indptr: torch.Tensor
    indices: torch.Tensor
    num_src: int
    num_dst: int
    original_edge_ids: torch.Tensor | None = None

    def num_src_nodes(self) -> int:
        """Number of source rows."""
        return self.num_src

    def num_dst_nodes(self) -> int:
        """Number of destination rows."""
        return self.num_dst

    def num_edges(self) -> int:
        """Number of edges."""
        return len(self.indices)

    @property
    def device(self) -> torch.device:
        """Where the block's tensors are."""
        return self.indices.device

    def in_degrees(self) -> torch.Tensor:
        """int64[num_dst], edges that end in each destination row."""
        return torch.diff(self.indptr)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Block:
        """The same block on a device, or in "pinned" memory."""
        moved: Block = move_fields(self, device, non_blocking)
        return moved

    def __repr__(self) -> str:
        return f"Block(src={self.num_src}, dst={self.num_dst}, edges={len(self.indices)})"
