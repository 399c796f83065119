"""cut_part: the graph that one part holds, with its halo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hopline.partition.kernels import copy_columns, mark_sources, number_edges
from hopline.partition.part_memory import check_part_memory, part_memory
from hopline.partition.relabel import NewIds
from hopline.pipes.features.rows import gather
from hopline.pipes.graph import ORIGINAL_EDGE_ID, FusedCSCSamplingGraph

__all__ = ["PartGraph", "cut_part", "edge_ids_by_position"]

Array = np.ndarray[Any, Any]

INT32_NODES = 1 << 31


@dataclass(frozen=True, slots=True)
class PartGraph:
    """A part: its own nodes with their in-edges, and the halo.

    Rows are numbered within the part: for each node type first the own nodes, then the halo, each
    in the order of their new ids.

    Attributes:
        graph: over the rows. Own nodes have all their in-edges, in the order of the whole graph;
            halo nodes have theirs if they are less than `num_hops` hops away, else none. Its
            attribute `_ORIGINAL_EDGE_ID` is int64, the new id of each edge within its type.
        rows: one int64 array a node type, fused ids before of the rows of the type.
        num_own: own nodes of each type.
        levels: one uint8 array a node type: hops from the own nodes to each halo node.
        edges: one int64 array an edge type, the ids before of the own edges, by their new ids.
    """

    graph: FusedCSCSamplingGraph
    rows: list[Array]
    num_own: list[int]
    levels: list[Array]
    edges: list[Array]


def _types(graph: FusedCSCSamplingGraph) -> Array | None:
    return None if graph.type_per_edge is None else graph.type_per_edge.numpy()


def _in_edges(graph: FusedCSCSamplingGraph, columns: Array) -> tuple[Array, Array]:
    """(degrees, positions) of the in-edges of columns, one after another."""
    indptr = graph.csc_indptr.numpy()
    degrees = indptr[columns + 1] - indptr[columns]
    starts = np.concatenate([[0], np.cumsum(degrees)])
    positions = np.arange(starts[-1]) + np.repeat(indptr[columns] - starts[:-1], degrees)
    return degrees, positions


def edge_ids_by_position(graph: FusedCSCSamplingGraph, ids: NewIds, out: Array) -> None:
    """Writes the new id within its type of every edge.

    Args:
        graph: the whole graph.
        ids: its new ids.
        out: int64[num_edges], out, by position in the whole graph.
    """
    kinds = _types(graph)
    for part in range(ids.num_parts):
        columns = np.concatenate(ids.own(part))
        _, positions = _in_edges(graph, columns)
        bounds = np.array([ids.edge_ranges[kind][part] for kind in ids.edge_types], np.int64)
        numbers = np.empty(len(positions), np.int64)
        mine = np.empty(0, np.uint8) if kinds is None else kinds[positions]
        number_edges(mine, bounds, numbers)
        out[positions] = numbers


def cut_part(
    graph: FusedCSCSamplingGraph,
    ids: NewIds,
    part: int,
    num_hops: int = 1,
    edge_ids: Array | None = None,
    max_memory: int | None = None,
) -> PartGraph:
    """Cuts one part out of a graph; it takes what `part_memory` says.

    Args:
        graph: the whole graph, checked.
        ids: the new ids of its nodes.
        part: which part.
        num_hops: nodes up to so many hops from an own node are rows of the part.
        edge_ids: int64[num_edges] from `edge_ids_by_position`; needed where num_hops is above 1.
        max_memory: bytes that it may take; None for any number.

    Raises:
        MemoryError: it would take more.
    """
    indptr, indices = graph.csc_indptr.numpy(), graph.indices.numpy()
    own = ids.own(part)
    levels = np.zeros(graph.total_num_nodes, np.uint8)  # hops + 1 of the rows; 0 for other nodes
    columns = np.concatenate(own)
    levels[columns] = 1
    for hop in range(1, num_hops + 1):
        mark_sources(indptr, indices, columns, levels)
        columns = np.flatnonzero(levels == 2)
        levels[columns] = hop + 3  # out of the way of the mark
    levels[levels > 1] -= 2
    rows: list[Array] = []
    for mine, low, high in zip(own, ids.offsets[:-1], ids.offsets[1:], strict=True):
        halo = low + np.flatnonzero(levels[low:high] > 1)
        # By new ids: by part, and within a part as before.
        rows.append(np.concatenate([mine, halo[np.argsort(ids.new[halo])]]))
    fused = np.concatenate(rows)
    places = np.full(graph.total_num_nodes, -1, np.int32 if len(fused) < INT32_NODES else np.int64)
    places[fused] = np.arange(len(fused))
    complete = levels[fused] <= num_hops
    degrees = np.where(complete, indptr[fused + 1] - indptr[fused], 0)
    part_indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    own_edges = sum(ids.edge_ranges[kind][part + 1] - ids.edge_ranges[kind][part]
                    for kind in ids.edge_types)  # fmt: skip
    needed = part_memory(graph, len(fused), own_edges, int(part_indptr[-1]))
    check_part_memory(f"part {part}", int(part_indptr[-1]), needed, max_memory)
    part_indices = np.empty(part_indptr[-1], places.dtype)
    positions = np.empty(part_indptr[-1], np.int64)
    copy_columns(
        indptr, indices, np.where(complete, fused, -1), places, part_indptr, part_indices, positions
    )
    kinds = _types(graph)
    part_kinds = None if kinds is None else kinds[positions]
    numbers, edges = _edge_numbers(graph, ids, part, positions, part_kinds, degrees, rows, own,
                                   edge_ids)  # fmt: skip
    return PartGraph(
        graph=_sampling_graph(
            graph, rows, fused, part_indptr, part_indices, positions, part_kinds, numbers
        ),
        rows=rows,
        num_own=[len(mine) for mine in own],
        levels=[levels[r[len(mine) :]] - 1 for r, mine in zip(rows, own, strict=True)],
        edges=edges,
    )


def _edge_numbers(
    graph: FusedCSCSamplingGraph, ids: NewIds, part: int, positions: Array, kinds: Array | None,
    degrees: Array, rows: list[Array], own: list[Array], edge_ids: Array | None,
) -> tuple[Array, list[Array]]:  # fmt: skip
    """New id of each edge of the part; and of each type, the ids before of the own edges."""
    owned = np.concatenate(
        [np.arange(len(r)) < len(mine) for r, mine in zip(rows, own, strict=True)]
    )
    own_edge = slice(None) if edge_ids is None else np.repeat(owned, degrees)
    assert edge_ids is not None or degrees[~owned].sum() == 0, "edges of halo nodes need edge_ids"
    own_positions = positions[own_edge]
    own_kinds = np.empty(0, np.uint8) if kinds is None else kinds[own_edge]
    bounds = np.array([ids.edge_ranges[kind][part] for kind in ids.edge_types], np.int64)
    own_numbers = np.empty(len(own_positions), np.int64)
    number_edges(own_kinds, bounds, own_numbers)
    if edge_ids is None:
        numbers = own_numbers
    else:
        numbers = np.asarray(edge_ids[positions])
        assert np.array_equal(numbers[own_edge], own_numbers)
    before = (graph.edge_attributes or {}).get(ORIGINAL_EDGE_ID)
    original = own_positions if before is None else gather(before, own_positions).numpy()
    original = original.astype(np.int64, copy=False)
    if kinds is None:
        return numbers, [original][: len(ids.edge_types)]
    return numbers, [original[own_kinds == t] for t in range(len(ids.edge_types))]


def _sampling_graph(
    graph: FusedCSCSamplingGraph, rows: list[Array], fused: Array, indptr: Array, indices: Array,
    positions: Array, kinds: Array | None, numbers: Array,
) -> FusedCSCSamplingGraph:  # fmt: skip
    node_attributes = {
        name: gather(value.contiguous(), fused)
        for name, value in (graph.node_attributes or {}).items()
    }
    edge_attributes = {
        name: gather(value.contiguous(), positions)
        for name, value in (graph.edge_attributes or {}).items()
        if name != ORIGINAL_EDGE_ID
    }
    edge_attributes[ORIGINAL_EDGE_ID] = torch.from_numpy(numbers)
    offsets = np.concatenate([[0], np.cumsum([len(r) for r in rows])])
    return FusedCSCSamplingGraph(
        torch.from_numpy(indptr),
        torch.from_numpy(indices),
        None if graph.node_type_offset is None else torch.from_numpy(offsets),
        None if kinds is None else torch.from_numpy(kinds),
        graph.node_type_to_id,
        graph.edge_type_to_id,
        node_attributes,
        edge_attributes,
    )
