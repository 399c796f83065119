"""NewIds: ids by which the nodes of a part, and its edges, are ranges."""

from __future__ import annotations

from typing import Any

import numpy as np

from hopline.partition.kernels import count_edges_of_parts
from hopline.pipes.graph import FusedCSCSamplingGraph

__all__ = ["NewIds", "edge_types_of", "node_types_of"]

Array = np.ndarray[Any, Any]


def node_types_of(graph: FusedCSCSamplingGraph) -> list[str]:
    """Node types in the order of their ids; [""] for a homogeneous graph."""
    ids = graph.node_type_to_id
    return [""] if ids is None else sorted(ids, key=ids.__getitem__)


def edge_types_of(graph: FusedCSCSamplingGraph) -> list[str]:
    """Edge types in the order of their ids; [""] for a homogeneous graph."""
    ids = graph.edge_type_to_id
    return [""] if ids is None else sorted(ids, key=ids.__getitem__)


class NewIds:
    """New ids of all nodes: within a type ordered by part, within a part as before.

    Args:
        graph: the graph.
        parts: int32[num_nodes], part of each node, by fused id.
        num_parts: number of parts.

    Attributes:
        offsets: int64[num_node_types + 1], first fused id of each type; the same before and after.
        new: int64[num_nodes], new fused id of each node.
        original: int64[num_nodes], fused id before, by new fused id.
        node_ranges: `{node type: P + 1 bounds}`, ids within the type.
        edge_ranges: `{edge type: P + 1 bounds}`.
    """

    def __init__(self, graph: FusedCSCSamplingGraph, parts: Array, num_parts: int) -> None:
        self.num_parts = num_parts
        self.node_types, self.edge_types = node_types_of(graph), edge_types_of(graph)
        if graph.node_type_offset is None:
            self.offsets = np.array([0, graph.total_num_nodes], np.int64)
        else:
            self.offsets = graph.node_type_offset.numpy().astype(np.int64)
        self.new = np.empty(graph.total_num_nodes, np.int64)
        self.original = np.empty(graph.total_num_nodes, np.int64)
        self.node_ranges: dict[str, list[int]] = {}
        for kind, low, high in zip(
            self.node_types, self.offsets[:-1].tolist(), self.offsets[1:].tolist(), strict=True
        ):
            order = np.argsort(parts[low:high], kind="stable")
            self.original[low:high] = order + low
            self.new[order + low] = np.arange(low, high)
            counts = np.bincount(parts[low:high], minlength=num_parts)
            self.node_ranges[kind] = [0, *np.cumsum(counts).tolist()]
        edges = np.zeros((max(1, len(self.edge_types)), num_parts), np.int64)
        typed = graph.type_per_edge is not None
        types = graph.type_per_edge.numpy() if typed else np.empty(0, np.uint8)  # type: ignore[union-attr]
        if len(self.edge_types):
            count_edges_of_parts(graph.csc_indptr.numpy(), types, parts, edges)
        self.edge_ranges = {
            kind: [0, *np.cumsum(counts).tolist()]
            for kind, counts in zip(self.edge_types, edges, strict=False)
        }

    def own(self, part: int) -> list[Array]:
        """Fused ids, as before, of the nodes that a part owns: one array a node type."""
        owned = []
        for kind, low in zip(self.node_types, self.offsets.tolist(), strict=False):
            bounds = self.node_ranges[kind]
            owned.append(self.original[low + bounds[part] : low + bounds[part + 1]])
        return owned

    def owner(self, new: Array) -> Array:
        """int64[n]: the part of each node, by new fused id."""
        out = np.empty(len(new), np.int64)
        kinds = np.searchsorted(self.offsets, new, side="right") - 1
        for i, kind in enumerate(self.node_types):
            mine = kinds == i
            local = new[mine] - self.offsets[i]
            out[mine] = np.searchsorted(self.node_ranges[kind], local, side="right") - 1
        return out
