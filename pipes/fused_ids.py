"""The border between types and the fused id space: the only place that converts.

Inside, a mini-batch has one list of fused node ids; outside, one list a node type. The list of a
type is the subsequence of the fused list, so both keep the seeds first and the order of first
occurrence.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from hopline.pipes.checks import check_ids
from hopline.pipes.etypes import etype_str_to_tuple
from hopline.pipes.features.buffers import empty_array
from hopline.pipes.features.rows import gather
from hopline.pipes.graph import ORIGINAL_EDGE_ID, FusedCSCSamplingGraph, Hop
from hopline.pipes.kernels import typed
from hopline.pipes.subgraph import CSCFormatBase, SampledSubgraph

__all__ = ["fuse_nodes", "subgraphs_from_hops"]

Array = np.ndarray[Any, Any]
SampledHop = tuple[Hop, Array, int]  # the hop, its relabelled sources, rows of the list after it


def fuse_nodes(graph: FusedCSCSamplingGraph, nodes: Any, what: str) -> Array:
    """Fused ids of nodes, in the dtype of the graph's indices.

    Args:
        graph: the graph.
        nodes: integer[n]; or `{node type: integer[n]}`, taken in the order of the types' ids.
        what: what the nodes are, for messages: "seeds".

    Raises:
        TypeError: a dict for a homogeneous graph or a tensor for a heterogeneous one; not integers.
        ValueError: a type is unknown, or a tensor is not 1-D.
        IndexError: an id is out of range.
    """
    dtype = graph.indices.dtype
    if graph.node_type_to_id is None:
        if isinstance(nodes, dict):
            raise TypeError(
                f"{what} come by type ({list(nodes)}), but the graph has no types; pass one tensor"
            )
        return check_ids(nodes, graph.total_num_nodes, what, dtype).numpy()
    if not isinstance(nodes, dict):
        raise TypeError(
            f"{what} are a {type(nodes).__name__}, but the graph has node types "
            f"{list(graph.node_type_to_id)}; pass {{type: tensor}}"
        )
    if unknown := set(nodes) - set(graph.node_type_to_id):
        raise ValueError(
            f"{what} name node types {sorted(unknown)}; the graph has {list(graph.node_type_to_id)}"
        )
    assert graph.node_type_offset is not None
    offsets = graph.node_type_offset.tolist()
    parts = [np.empty(0, np.int32 if dtype == torch.int32 else np.int64)]
    for name, i in sorted(graph.node_type_to_id.items(), key=lambda item: item[1]):
        if name in nodes:
            count = offsets[i + 1] - offsets[i]
            ids = check_ids(nodes[name], count, f"{what} of type {name!r}", dtype)
            parts.append((ids + offsets[i]).numpy())
    return np.concatenate(parts)


def subgraphs_from_hops(
    graph: FusedCSCSamplingGraph, nodes: Array, columns: int, hops: list[SampledHop]
) -> tuple[list[SampledSubgraph], Any]:
    """Turns a mini-batch's hops into subgraphs, outermost first.

    Args:
        graph: the graph they come from.
        nodes: integer[rows], the mini-batch's list of fused ids.
        columns: number of destinations of the first hop, the seeds.
        hops: from the seeds outwards.

    Returns:
        The subgraphs, and the input nodes: integer[rows] or `{node type: ids}`.
    """
    if graph.node_type_to_id is None:
        return _homogeneous(graph, nodes, columns, hops)
    return _heterogeneous(graph, nodes, columns, hops)


def _original(graph: FusedCSCSamplingGraph, positions: Array) -> torch.Tensor:
    ids = (graph.edge_attributes or {}).get(ORIGINAL_EDGE_ID)
    if ids is None:
        return torch.from_numpy(positions)
    return gather(ids, positions).to(torch.int64)


def _homogeneous(
    graph: FusedCSCSamplingGraph, nodes: Array, columns: int, hops: list[SampledHop]
) -> tuple[list[SampledSubgraph], torch.Tensor]:
    ids = torch.from_numpy(nodes)
    subgraphs = []
    for hop, local, rows in hops:
        csc = CSCFormatBase(torch.from_numpy(hop.segments), torch.from_numpy(local))
        edge_ids = _original(graph, hop.positions)
        subgraphs.append(SampledSubgraph(csc, ids[:columns], ids[:rows], edge_ids))
        columns = rows
    return subgraphs[::-1], ids


def _heterogeneous(
    graph: FusedCSCSamplingGraph, nodes: Array, columns: int, hops: list[SampledHop]
) -> tuple[list[SampledSubgraph], dict[str, torch.Tensor]]:
    assert graph.node_type_to_id is not None
    assert graph.edge_type_to_id is not None
    assert graph.node_type_offset is not None
    offsets = graph.node_type_offset.numpy()
    names = sorted(graph.node_type_to_id, key=graph.node_type_to_id.__getitem__)
    ranks, types = empty_array(len(nodes), np.int32), empty_array(len(nodes), np.int32)
    typed.typed_ranks(nodes, offsets, types, ranks)
    places = [np.flatnonzero(types == i) for i in range(len(names))]  # ascending
    lists = [
        torch.from_numpy(nodes[p] - nodes.dtype.type(offsets[i])) for i, p in enumerate(places)
    ]

    def first(rows: int) -> dict[str, torch.Tensor]:
        return {
            name: lists[i][: int(np.searchsorted(places[i], rows))] for i, name in enumerate(names)
        }

    subgraphs = []
    for hop, local, rows in hops:
        csc, edge_ids = {}, {}
        placed = 0
        for etype, t in sorted(graph.edge_type_to_id.items(), key=lambda item: item[1]):
            source, _, destination = etype_str_to_tuple(etype)
            mine = places[graph.node_type_to_id[destination]]
            mine = mine[: int(np.searchsorted(mine, columns))]
            starts = mine * hop.num_types + t
            count = int((hop.segments[starts + 1] - hop.segments[starts]).sum())
            indptr = empty_array(len(mine) + 1, np.int64)
            indices, positions = empty_array(count, np.int32), empty_array(count, np.int64)
            bad = typed.split_segments(
                hop.segments, starts, local, graph.node_type_to_id[source], types, ranks,
                hop.positions, indptr, indices, positions,
            )  # fmt: skip
            if bad >= 0:
                raise ValueError(
                    f"edge {bad} is of type {etype!r}, but its source is not of type {source!r}: "
                    f"the graph is damaged: {graph}"
                )
            placed += count
            csc[etype] = CSCFormatBase(torch.from_numpy(indptr), torch.from_numpy(indices))
            edge_ids[etype] = _original(graph, positions)
        if placed != len(local):
            raise ValueError(
                f"{len(local) - placed} edges have a type that does not end in their destination's "
                f"type: the graph is damaged: {graph}"
            )
        subgraphs.append(SampledSubgraph(csc, first(columns), first(rows), edge_ids))
        columns = rows
    return subgraphs[::-1], first(len(nodes))
