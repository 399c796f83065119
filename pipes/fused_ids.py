"""The border between types and the fused id space: the only place that converts.

Inside, a mini-batch has one list of fused node ids; outside, one list a node type. The list of a
type is the subsequence of the fused list, so both keep the seeds first and the order of first
occurrence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from hopline.pipes.checks import check_ids, check_rows
from hopline.pipes.etypes import etype_str_to_tuple, seed_type_str_to_ntypes
from hopline.pipes.features.buffers import empty_array
from hopline.pipes.features.rows import gather
from hopline.pipes.graph import ORIGINAL_EDGE_ID, FusedCSCSamplingGraph
from hopline.pipes.hop import Hop
from hopline.pipes.kernels import typed
from hopline.pipes.subgraph import SampledSubgraph, trusted_csc

__all__ = [
    "FusedSeeds",
    "check_original_ids",
    "fuse_nodes",
    "fuse_seeds",
    "subgraphs_from_hops",
]

Array = np.ndarray[Any, Any]
CheckIds = Callable[[Any, int, str, torch.dtype], torch.Tensor]
SampledHop = tuple[Hop, Array, int]  # the hop, its relabelled sources, rows of the list after it


def check_original_ids(graph: FusedCSCSamplingGraph, ids: torch.Tensor) -> None:
    """Refuses original edge ids that are not one integer an edge.

    Raises:
        TypeError: not integers of one dimension.
        ValueError: not one for each edge.
    """
    check_rows(ids, graph.total_num_edges, f"edge attribute {ORIGINAL_EDGE_ID!r}")
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool or ids.dim() != 1:
        raise TypeError(
            f"edge attribute {ORIGINAL_EDGE_ID!r} is {ids.dtype} of shape {tuple(ids.shape)}; "
            "expected integers, one for each edge"
        )


def fuse_nodes(
    graph: FusedCSCSamplingGraph, nodes: Any, what: str, check: CheckIds = check_ids
) -> torch.Tensor:
    """Fused ids of nodes, in the dtype of the graph's indices.

    Args:
        graph: the graph.
        nodes: integer[n]; or `{node type: integer[n]}`, taken in the order of the types' ids.
        what: what the nodes are, for messages: "seeds".
        check: gives the ids as a tensor of the wanted dtype; as `check_ids`, which gives it on the
            CPU.

    Raises:
        TypeError: a dict for a homogeneous graph or a tensor for a heterogeneous one; not integers.
        ValueError: a type is unknown, or a tensor is not 1-D.
        IndexError: an id is out of range.
    """
    dtype = graph.id_dtype
    if graph.node_type_to_id is None:
        if isinstance(nodes, dict):
            raise TypeError(
                f"{what} come by type ({list(nodes)}), but the graph has no types; pass one tensor"
            )
        return check(nodes, graph.total_num_nodes, what, dtype)
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
    parts = []
    for name, i in sorted(graph.node_type_to_id.items(), key=lambda item: item[1]):
        if name in nodes:
            count = offsets[i + 1] - offsets[i]
            ids = check(nodes[name], count, f"{what} of type {name!r}", dtype)
            parts.append(ids + offsets[i])
    return torch.cat(parts) if parts else check(NO_IDS, 0, what, dtype)


@dataclass(frozen=True, slots=True)
class FusedSeeds:
    """A mini-batch's seeds as one list of nodes.

    Attributes:
        nodes: integer[n], fused ids: node seeds as they are, the ends of edge seeds row by row; on
            the device that samples.
        parts: (seed type or None, number of seeds, ends of each) in the order of nodes.
        two_dimensional: whether they are edges or hyperlinks, not nodes.
    """

    nodes: torch.Tensor
    parts: list[tuple[str | None, int, int]]
    two_dimensional: bool

    def compacted(self, places: torch.Tensor) -> Any:
        """Seeds of two dimensions, each end replaced by its place; None for node seeds.

        Args:
            places: integer[n], of each node.
        """
        if not self.two_dimensional:
            return None
        found: dict[str | None, torch.Tensor] = {}
        at = 0
        for kind, count, ends in self.parts:
            part = places[at : at + count * ends].to(torch.int64)
            found[kind] = part.reshape(count, ends)
            at += count * ends
        return found.get(None, found)


def fuse_seeds(graph: FusedCSCSamplingGraph, seeds: Any, check: CheckIds = check_ids) -> FusedSeeds:
    """Seeds of a mini-batch in fused ids.

    Args:
        graph: the graph.
        seeds: integer[n] nodes, or integer[n, k] edges (k = 2: source, destination) or hyperlinks;
            a dict of these by node type, or by seed type: "source:relation:destination" for edges,
            the node type of each end for hyperlinks, "a:b:c". Edge types are taken in the order of
            their ids, others by name.
        check: as in `fuse_nodes`.

    Raises:
        TypeError, ValueError, IndexError: as `fuse_nodes`; or seeds of one and of two dimensions
            are mixed.
    """
    values = list(seeds.values()) if isinstance(seeds, dict) else [seeds]
    for value in values:
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"seeds are a {type(value).__name__}; expected a torch.Tensor")
    shapes = {value.dim() for value in values}
    if shapes <= {1}:
        nodes = fuse_nodes(graph, seeds, "seeds", check)
        if not isinstance(seeds, dict):
            return FusedSeeds(nodes, [(None, len(seeds), 1)], False)
        assert graph.node_type_to_id is not None
        kinds = sorted(seeds, key=graph.node_type_to_id.__getitem__)
        return FusedSeeds(nodes, [(kind, len(seeds[kind]), 1) for kind in kinds], False)
    if shapes != {2}:
        raise ValueError(
            f"seeds have shapes {[tuple(v.shape) for v in values]}; expected nodes [n], or edges "
            "[n, 2], for all types alike"
        )
    if not isinstance(seeds, dict):
        nodes = fuse_nodes(graph, seeds.reshape(-1), "seeds", check)
        return FusedSeeds(nodes, [(None, *seeds.shape)], True)
    if graph.node_type_to_id is None:
        raise TypeError(
            f"seeds come by type ({list(seeds)}), but the graph has no types; pass one tensor"
        )
    assert graph.edge_type_to_id is not None
    assert graph.node_type_offset is not None
    order = graph.edge_type_to_id
    dtype = graph.id_dtype
    parts = []
    rows: list[tuple[str | None, int, int]] = []
    for kind in sorted(seeds, key=lambda kind: (order.get(kind, len(order)), kind)):
        value = seeds[kind]
        columns = []
        for end, ntype in enumerate(seed_type_str_to_ntypes(kind, value.shape[1])):
            if ntype not in graph.node_type_to_id:
                raise ValueError(
                    f"seeds of type {kind!r} name node type {ntype!r}; the graph has "
                    f"{list(graph.node_type_to_id)}"
                )
            i = graph.node_type_to_id[ntype]
            low, high = graph.node_type_offset[i : i + 2].tolist()
            what = f"seeds[:, {end}] of type {kind!r}"
            columns.append(check(value[:, end], high - low, what, dtype) + low)
        parts.append(torch.stack(columns, dim=1).reshape(-1))
        rows.append((kind, *value.shape))
    return FusedSeeds(torch.cat(parts), rows, True)


def subgraphs_from_hops(
    graph: FusedCSCSamplingGraph,
    nodes: Array,
    columns: int,
    hops: list[SampledHop],
    seeds: FusedSeeds,
    places: Array,
) -> tuple[list[SampledSubgraph], Any, Any]:
    """Turns a mini-batch's hops into subgraphs, outermost first.

    Args:
        graph: the graph they come from.
        nodes: integer[rows], the mini-batch's list of fused ids.
        columns: number of destinations of the first hop.
        hops: from the seeds outwards.
        seeds: the seeds.
        places: int32[n], positions of the seeds' nodes in the list.

    Returns:
        The subgraphs; the input nodes, integer[rows] or `{node type: ids}`; and the compacted
        seeds: int64 of the seeds' shape, or `{seed type: int64}`, or None for node seeds.
    """
    if graph.node_type_to_id is None:
        compacted = seeds.compacted(torch.from_numpy(places))
        return *_homogeneous(graph, nodes, columns, hops), compacted
    return _heterogeneous(graph, nodes, columns, hops, seeds, places)


def _original(graph: FusedCSCSamplingGraph, positions: Array) -> torch.Tensor:
    ids = (graph.edge_attributes or {}).get(ORIGINAL_EDGE_ID)
    if ids is None:
        return torch.from_numpy(positions)
    check_original_ids(graph, ids)
    return gather(ids, positions).to(torch.int64)


def _homogeneous(
    graph: FusedCSCSamplingGraph, nodes: Array, columns: int, hops: list[SampledHop]
) -> tuple[list[SampledSubgraph], torch.Tensor]:
    ids = torch.from_numpy(nodes)
    subgraphs = []
    for hop, local, rows in hops:
        csc = trusted_csc(torch.from_numpy(hop.segments), torch.from_numpy(local))
        edge_ids = _original(graph, hop.positions)
        subgraphs.append(SampledSubgraph(csc, ids[:columns], ids[:rows], edge_ids))
        columns = rows
    return subgraphs[::-1], ids


def _heterogeneous(
    graph: FusedCSCSamplingGraph,
    nodes: Array,
    columns: int,
    hops: list[SampledHop],
    seeds: FusedSeeds,
    seed_places: Array,
) -> tuple[list[SampledSubgraph], dict[str, torch.Tensor], Any]:
    assert graph.node_type_to_id is not None
    assert graph.edge_type_to_id is not None
    assert graph.node_type_offset is not None
    offsets = graph.node_type_offset.numpy().astype(np.int64, copy=False)
    node_types, edge_types, sources, destinations = _types(
        tuple(graph.node_type_to_id.items()), tuple(graph.edge_type_to_id.items())
    )
    # Nodes of each type among the first destinations, and after each hop.
    bounds = np.array([columns, *(rows for _, _, rows in hops)], np.int64)
    counts = np.empty((len(bounds), len(node_types)), np.int64)
    types, ranks = empty_array(2 * len(nodes), np.int32).reshape(2, -1)
    typed.typed_ranks(nodes, offsets, bounds, types, ranks, counts)
    by_type = empty_array(len(nodes), nodes.dtype)
    typed.split_nodes(nodes, offsets, types, ranks, counts[-1], by_type)
    lists = torch.from_numpy(by_type).split_with_sizes(counts[-1].tolist())
    prefixes = [
        {name: part[:n] for name, part, n in zip(node_types, lists, row, strict=True)}
        for row in counts.tolist()
    ]
    subgraphs = []
    for number, (hop, local, _) in enumerate(hops):
        lengths = counts[number][destinations] + 1
        indptr = empty_array(int(lengths.sum()), np.int64)
        indices, positions = empty_array(len(local), np.int32), empty_array(len(local), np.int64)
        starts = np.empty(len(edge_types) + 1, np.int64)
        wrong = np.empty(len(edge_types), np.int64)
        placed = typed.split_hop(
            hop.segments, local, hop.neighbors, hop.positions, counts[number], sources,
            destinations, offsets, types, ranks, indptr, indices, positions, starts, wrong,
        )  # fmt: skip
        for etype, source, bad in zip(edge_types, sources, wrong.tolist(), strict=True):
            if bad >= 0:
                raise ValueError(
                    f"edge {bad} is of type {etype!r}, but its source is not of type "
                    f"{node_types[source]!r}: the graph is damaged: {graph}"
                )
        if placed != len(local):
            raise ValueError(
                f"{len(local) - placed} edges have a type that does not end in their destination's "
                f"type: the graph is damaged: {graph}"
            )
        sizes = np.diff(starts).tolist()
        pointers = torch.from_numpy(indptr).split_with_sizes(lengths.tolist())
        parts = map(trusted_csc, pointers, torch.from_numpy(indices).split_with_sizes(sizes))
        csc = dict(zip(edge_types, parts, strict=True))
        ids = _original(graph, positions).split_with_sizes(sizes)
        edge_ids = dict(zip(edge_types, ids, strict=True))
        subgraphs.append(
            SampledSubgraph(csc, prefixes[number], dict(prefixes[number + 1]), edge_ids)
        )
    compacted = seeds.compacted(torch.from_numpy(ranks[seed_places]))
    return subgraphs[::-1], dict(prefixes[-1]), compacted


@lru_cache(maxsize=64)
def _types(
    node_type_to_id: tuple[tuple[str, int], ...], edge_type_to_id: tuple[tuple[str, int], ...]
) -> tuple[list[str], list[str], Array, Array]:
    """Names in the order of their ids, and the node types that each edge type joins.

    Returns:
        (node types, edge types, int64[T] source type of each edge type, int64[T] destination type).
    """
    node_types, edge_types = (
        [name for name, _ in sorted(ids, key=lambda entry: entry[1])]
        for ids in (node_type_to_id, edge_type_to_id)
    )
    numbers = dict(node_type_to_id)
    ends = [etype_str_to_tuple(etype) for etype in edge_types]
    sources, destinations = (
        np.array([numbers[end[side]] for end in ends], np.int64) for side in (0, 2)
    )
    return node_types, edge_types, sources, destinations


NO_IDS = torch.empty(0, dtype=torch.int64)
