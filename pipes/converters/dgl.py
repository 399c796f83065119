"""Graphs of DGL, and whatever else has their interface."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from hopline.pipes.checks import check_count
from hopline.pipes.converters.common import (
    edges_by_type,
    library,
    nodes_by_type,
    shared_attributes,
)
from hopline.pipes.coo import from_coo
from hopline.pipes.etypes import etype_str_to_tuple, etype_tuple_to_str
from hopline.pipes.graph import ORIGINAL_EDGE_ID, FusedCSCSamplingGraph

__all__ = ["from_dglgraph", "to_dglgraph"]

NODE, EDGE = "_N", ("_N", "_E", "_N")  # DGL's names in graphs without types


def from_dglgraph(
    g: Any,
    is_homogeneous: bool = False,
    include_original_edge_id: bool = False,
    *,
    node_attributes: Collection[str] | None = None,
    edge_attributes: Collection[str] | None = None,
) -> FusedCSCSamplingGraph:
    """Converts a DGLGraph; every edge attribute follows its edge.

    The library itself is not needed: of `g` are read `ntypes`, `canonical_etypes`,
    `num_nodes(ntype)`, `edges(form="uv", order="eid", etype=...)`, `nodes[ntype].data` and
    `edges[etype].data`.

    Args:
        g: the graph.
        is_homogeneous: make a graph without types, of all nodes and edges of g together, numbered
            type after type. Else types have the names and the order of g's, also when there is one.
        include_original_edge_id: keep each edge's number in its type in g.
        node_attributes: names of node data to take; None takes all that each type has alike.
        edge_attributes: names of edge data to take; None takes all that each type has alike.

    Returns:
        The graph.

    Raises:
        TypeError: g lacks a part of that interface.
        ValueError: an attribute that was asked for is not of all types alike, or a name has ":".
    """
    if missing := [
        name
        for name in ("ntypes", "canonical_etypes", "num_nodes", "edges", "nodes")
        if not hasattr(g, name)
    ]:
        raise TypeError(f"g is a {type(g).__name__} without {missing}; expected a DGLGraph")
    num_nodes = {k: check_count(g.num_nodes(k), f"num_nodes of {k!r}") for k in g.ntypes}
    edges, found = {}, {}
    for canonical in g.canonical_etypes:
        name = etype_tuple_to_str(tuple(canonical))
        src, dst = g.edges(form="uv", order="eid", etype=canonical)
        edges[name] = (src.cpu(), dst.cpu())
        found[name] = g.edges[canonical].data
    graph = from_coo(
        edges,
        num_nodes=num_nodes,
        node_attributes=shared_attributes(
            {kind: g.nodes[kind].data for kind in g.ntypes}, num_nodes, node_attributes, "node"
        ),
        edge_attributes=shared_attributes(
            found, {name: len(src) for name, (src, _) in edges.items()}, edge_attributes, "edge"
        ),
        include_original_edge_id=include_original_edge_id,
    )
    if not is_homogeneous:
        return graph
    attributes = dict(graph.edge_attributes or {})
    if ORIGINAL_EDGE_ID in attributes and graph.type_per_edge is not None:
        counts = torch.tensor([len(src) for src, _ in edges.values()], device="cpu")
        first = torch.cumsum(counts, 0) - counts  # edges are numbered type after type
        numbers = attributes[ORIGINAL_EDGE_ID] + first[graph.type_per_edge.long()]
        attributes[ORIGINAL_EDGE_ID] = numbers
    return FusedCSCSamplingGraph(
        graph.csc_indptr,
        graph.indices,
        node_attributes=graph.node_attributes,
        edge_attributes=attributes or None,
    )


def to_dglgraph(graph: FusedCSCSamplingGraph) -> Any:
    """Makes a DGLGraph with the same nodes, edges and attributes; needs DGL.

    Args:
        graph: edges come in the order of its input if it keeps their numbers, else in CSC order.

    Raises:
        ImportError: DGL is not installed.
        TypeError: graph is none of this package.
    """
    nodes, edges = nodes_by_type(graph), edges_by_type(graph)
    dgl = library("dgl", "to_dglgraph")
    data: dict[tuple[str, str, str], tuple[torch.Tensor, torch.Tensor]] = {}
    for name, edge_list in edges.items():
        data[_canonical(name)] = (edge_list.src, edge_list.dst)
    g = dgl.heterograph(data, {kind or NODE: count for kind, (count, _) in nodes.items()})
    for kind, (_, attributes) in nodes.items():
        for key, value in attributes.items():
            g.nodes[kind or NODE].data[key] = value
    for name, edge_list in edges.items():
        for key, value in edge_list.attributes.items():
            g.edges[_canonical(name)].data[key] = value
    return g


def _canonical(name: str | None) -> tuple[str, str, str]:
    return EDGE if name is None else etype_str_to_tuple(name)
