"""fused_csc_sampling_graph: a sampling graph from compressed sparse columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from hopline.pipes.checks import check_integers, check_mapping, check_rows
from hopline.pipes.etypes import etype_str_to_tuple
from hopline.pipes.graph import FusedCSCSamplingGraph
from hopline.pipes.kernels import cpu

__all__ = ["check_types", "fused_csc_sampling_graph"]

Array = np.ndarray[Any, Any]


def fused_csc_sampling_graph(
    csc_indptr: torch.Tensor,
    indices: torch.Tensor,
    node_type_offset: torch.Tensor | None = None,
    type_per_edge: torch.Tensor | None = None,
    node_type_to_id: Mapping[str, int] | None = None,
    edge_type_to_id: Mapping[str, int] | None = None,
    node_attributes: Mapping[str, torch.Tensor] | None = None,
    edge_attributes: Mapping[str, torch.Tensor] | None = None,
) -> FusedCSCSamplingGraph:
    """Builds a graph from compressed sparse columns, after checking all of it.

    Args:
        csc_indptr: integer[num_nodes + 1], non-descending from 0 to num_edges.
        indices: integer[num_edges], sources, each in [0, num_nodes).
        node_type_offset: integer[num_node_types + 1], first fused id of each type.
        type_per_edge: integer[num_edges], edge type ids, ascending within each column.
        node_type_to_id: `{type: id}`, ids 0, 1, ...
        edge_type_to_id: `{"source:relation:destination": id}`, ids 0, 1, ...
        node_attributes: `{name: tensor of num_nodes rows}`.
        edge_attributes: `{name: tensor of num_edges rows in CSC order}`.

    Returns:
        The graph; csc_indptr as int64, indices as int32 where the node count allows.

    Raises:
        TypeError: an argument is no tensor of integers, or a type's name or id has a wrong type.
        ValueError: shapes, ranges, order or type tables do not fit each other.

    >>> g = fused_csc_sampling_graph(torch.tensor([0, 0, 1, 3]), torch.tensor([0, 0, 1]))
    >>> g.num_nodes, g.num_edges
    (3, 3)
    """
    indptr = _integers(csc_indptr, "csc_indptr").to(torch.int64)
    num_nodes, num_edges = len(indptr) - 1, len(_integers(indices, "indices"))
    if num_nodes < 0:
        raise ValueError("csc_indptr is empty; expected num_nodes + 1 entries")
    bad = int(cpu.first_bad_column(indptr.numpy(), num_edges))
    if bad >= 0 or indptr[0] != 0 or indptr[-1] != num_edges:
        # A column ends where the next one begins: that is the entry which does not fit.
        at = 0 if indptr[0] != 0 else bad + 1 if bad >= 0 else num_nodes
        raise ValueError(
            f"csc_indptr is {int(indptr[at])} at {at}; expected entries that never descend, from "
            f"0 to {num_edges}, the length of indices"
        )
    bad = int(cpu.first_out_of_range(indices.numpy(), 0, num_nodes))
    if bad >= 0:
        raise ValueError(
            f"indices[{bad}] is {indices.numpy()[bad]}; expected a node in [0, {num_nodes})"
        )
    indices = indices.to(torch.int32 if num_nodes < 2**31 else torch.int64)
    typed = [node_type_offset, type_per_edge, node_type_to_id, edge_type_to_id]
    if any(x is not None for x in typed):
        if any(x is None for x in typed):
            raise ValueError(
                "a heterogeneous graph needs node_type_offset, type_per_edge, node_type_to_id and "
                "edge_type_to_id together; a homogeneous one none of them"
            )
        assert node_type_offset is not None
        assert type_per_edge is not None
        assert node_type_to_id is not None
        assert edge_type_to_id is not None
        node_type_offset = _integers(node_type_offset, "node_type_offset").to(torch.int64)
        _integers(type_per_edge, "type_per_edge")
        sources, destinations = check_types(
            node_type_offset, node_type_to_id, edge_type_to_id, num_nodes
        )
        if len(type_per_edge) != num_edges:
            raise ValueError(
                f"type_per_edge has {len(type_per_edge)} entries for {num_edges} edges"
            )
        edge, column = cpu.first_mistyped_edge(
            indptr.numpy(), indices.numpy(), type_per_edge.numpy(), node_type_offset.numpy(),
            sources, destinations,
        )  # fmt: skip
        if edge >= 0:
            raise ValueError(
                f"edge {edge} ({int(indices[edge])} -> {column}) has type "
                f"{type_per_edge.numpy()[edge]}: expected types that ascend within a column and "
                "whose source and destination types hold the edge's ends; types are "
                f"{edge_type_to_id}"
            )
        if type_per_edge.dtype in (torch.uint16, torch.uint32, torch.uint64):
            type_per_edge = type_per_edge.to(torch.int64)
    check_mapping(node_attributes, "node_attributes", "{name: tensor}")
    check_mapping(edge_attributes, "edge_attributes", "{name: tensor}")
    for name, value in (node_attributes or {}).items():
        check_rows(value, num_nodes, f"node attribute {name!r}")
    for name, value in (edge_attributes or {}).items():
        check_rows(value, num_edges, f"edge attribute {name!r}")
    return FusedCSCSamplingGraph(
        indptr, indices, node_type_offset, type_per_edge, node_type_to_id, edge_type_to_id,
        node_attributes, edge_attributes,
    )  # fmt: skip


def _integers(value: torch.Tensor, what: str) -> torch.Tensor:
    check_integers(value, what)
    if value.device.type != "cpu":
        raise ValueError(f"{what} is on {value.device}; build the graph on the CPU, then move it")
    return value


def check_types(
    node_type_offset: torch.Tensor,
    node_type_to_id: Mapping[str, int],
    edge_type_to_id: Mapping[str, int],
    num_nodes: int,
) -> tuple[Array, Array]:
    """Checks the tables of a heterogeneous graph.

    Returns:
        int64[num_edge_types] twice: node type id of each edge type's sources and destinations.

    Raises:
        TypeError: a table is no mapping, a name not a string or an id not an int.
        ValueError: ids are not 0, 1, ..., an end is unknown, or the offsets do not fit.
    """
    for table, what in ((node_type_to_id, "node_type_to_id"), (edge_type_to_id, "edge_type_to_id")):
        if not isinstance(table, Mapping):
            raise TypeError(f"{what} is a {type(table).__name__}; expected {{type: id}}")
        for name, i in table.items():
            if not isinstance(name, str) or isinstance(i, bool) or not isinstance(i, int):
                raise TypeError(f"{what} has {name!r}: {i!r}; expected a string and an int")
        if sorted(table.values()) != list(range(len(table))):
            raise ValueError(f"{what} is {dict(table)}; expected the ids 0..{len(table) - 1}")
    offsets = node_type_offset.tolist()
    if (
        len(offsets) != len(node_type_to_id) + 1
        or offsets[0] != 0
        or offsets[-1] != num_nodes
        or sorted(offsets) != offsets
    ):
        raise ValueError(
            f"node_type_offset is {offsets}; expected {len(node_type_to_id) + 1} entries that "
            f"never descend, from 0 to {num_nodes}"
        )
    sources = np.empty(len(edge_type_to_id), np.int64)
    destinations = np.empty(len(edge_type_to_id), np.int64)
    for name, i in edge_type_to_id.items():
        source, _, destination = etype_str_to_tuple(name)
        for end in (source, destination):
            if end not in node_type_to_id:
                raise ValueError(
                    f"edge type {name!r} names node type {end!r}; there are {list(node_type_to_id)}"
                )
        sources[i], destinations[i] = node_type_to_id[source], node_type_to_id[destination]
    return sources, destinations
