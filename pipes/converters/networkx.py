"""Graphs of NetworkX."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import torch

from hopline.pipes.converters.common import (
    edges_by_type,
    library,
    nodes_by_type,
    shared_attributes,
)
from hopline.pipes.coo import from_coo
from hopline.pipes.etypes import etype_str_to_tuple
from hopline.pipes.graph import FusedCSCSamplingGraph

__all__ = ["from_networkx", "to_networkx"]

ONE = ""  # the type of nodes and edges of a graph without types


def from_networkx(
    g: Any,
    include_original_edge_id: bool = False,
    *,
    node_attributes: Collection[str] | None = None,
    edge_attributes: Collection[str] | None = None,
    node_type: str | None = None,
    edge_type: str | None = None,
) -> FusedCSCSamplingGraph:
    """Converts a graph; nodes of any kind are numbered in the order of `g.nodes`.

    Each edge of an undirected graph becomes two, (u, v) and then (v, u), and a self-loop one.

    Args:
        g: Graph, DiGraph, MultiGraph or MultiDiGraph.
        include_original_edge_id: keep each edge's number, in the order of `g.edges`;
            each edge of an undirected graph is two, (u, v) and (v, u).
        node_attributes: names of numbers, or of lists of numbers, to take; None takes all that
            each node has. bool, int64 and float64 tensors.
        edge_attributes: the same of edges.
        node_type: node attribute that names each node's type; nodes are then numbered within
            their type. Types come in the order in which `g.nodes` has them.
        edge_type: edge attribute that names each edge's type, "source:relation:destination".

    Returns:
        The graph; with types if node_type and edge_type are given.

    Raises:
        TypeError: g is no such graph.
        ValueError: an attribute that was asked for is missing on a node or edge or has no number,
            only one of node_type and edge_type is given, g is undirected and has types, or the ends
            of an edge are not of the types that its own type names.
    """
    if not all(hasattr(g, name) for name in ("nodes", "edges", "is_directed")):
        raise TypeError(f"g is a {type(g).__name__}; expected a graph of NetworkX")
    typed = node_type is not None
    if typed != (edge_type is not None):
        raise ValueError(
            f"node_type is {node_type!r}, edge_type {edge_type!r}; expected both or neither"
        )
    if typed and not g.is_directed():
        raise ValueError(
            "g is undirected, so its edges have no type of their own in each direction; expected a "
            "directed graph with types, see g.to_directed()"
        )
    places: dict[Any, tuple[str, int]] = {}  # node: its type and number
    nodes: dict[str, list[dict[str, Any]]] = {} if typed else {ONE: []}
    for node, values in g.nodes(data=True):
        kind = _type_of(values, node_type, f"node {node!r}")
        rows = nodes.setdefault(kind, [])
        places[node] = (kind, len(rows))
        rows.append(values)
    pairs: dict[str, list[tuple[int, int]]] = {} if typed else {ONE: []}
    edges: dict[str, list[dict[str, Any]]] = {} if typed else {ONE: []}
    for u, v, values in g.edges(data=True):
        name = _type_of(values, edge_type, f"edge {u!r} -> {v!r}")
        (source, src), (destination, dst) = places[u], places[v]
        if typed:
            ends = etype_str_to_tuple(name)
            if (ends[0], ends[2]) != (source, destination):
                raise ValueError(
                    f"edge {u!r} -> {v!r} has type {name!r}, but its ends are of types {source!r} "
                    f"and {destination!r}"
                )
        pairs.setdefault(name, []).append((src, dst))
        edges.setdefault(name, []).append(values)
        if not g.is_directed() and u != v:
            pairs[name].append((dst, src))
            edges[name].append(values)
    num_nodes = {kind: len(rows) for kind, rows in nodes.items()}
    num_edges = {name: len(rows) for name, rows in edges.items()}
    node_data = shared_attributes(_columns(nodes, node_type), num_nodes, node_attributes, "node")
    edge_data = shared_attributes(_columns(edges, edge_type), num_edges, edge_attributes, "edge")
    tensors = {
        name: torch.tensor(part, dtype=torch.int64, device="cpu").view(-1, 2)
        for name, part in pairs.items()
    }
    if not typed:
        return from_coo(
            tensors[ONE][:, 0],
            tensors[ONE][:, 1],
            num_nodes[ONE],
            node_attributes={name: parts[ONE] for name, parts in node_data.items()},
            edge_attributes={name: parts[ONE] for name, parts in edge_data.items()},
            include_original_edge_id=include_original_edge_id,
        )
    return from_coo(
        {name: (part[:, 0], part[:, 1]) for name, part in tensors.items()},
        num_nodes=num_nodes,
        node_attributes=node_data,
        edge_attributes=edge_data,
        include_original_edge_id=include_original_edge_id,
    )


def _type_of(values: dict[str, Any], attribute: str | None, what: str) -> str:
    if attribute is None:
        return ONE
    kind = values.get(attribute)
    if not isinstance(kind, str) or not kind:
        raise ValueError(f"{what} has {attribute} {kind!r}; expected the name of its type")
    return kind


def _columns(
    rows: dict[str, list[dict[str, Any]]], type_attribute: str | None
) -> dict[str, dict[str, Any]]:
    """`{type: {name: tensor, or what stands in its place}}`."""
    columns: dict[str, dict[str, Any]] = {}
    for kind, entries in rows.items():
        names = dict.fromkeys(name for values in entries for name in values)
        columns[kind] = {
            name: _column([values.get(name) for values in entries])
            for name in names
            if name != type_attribute
        }
    return columns


def _column(values: list[Any]) -> Any:
    """A tensor; or, where it cannot be one, a value that shows why."""
    try:
        return torch.from_numpy(np.array(values))
    except (TypeError, ValueError, OverflowError):
        # None where a value is missing, text, lists of unequal length
        return next((v for v in values if not isinstance(v, int | float)), values)


def to_networkx(graph: FusedCSCSamplingGraph) -> Any:
    """Makes a `networkx.MultiDiGraph`; needs NetworkX.

    Nodes are 0, 1, ...; or, with types, pairs (type, number) with the attribute "type", as edges
    have it too, so that `from_networkx(g, node_type="type", edge_type="type")` leads back.

    Args:
        graph: each edge's key is its number in the graph's input if it keeps them, else its place
            in CSC order; with types, the pair (edge type, number).

    Returns:
        The graph; attributes are numbers, or lists where they have several values.

    Raises:
        ImportError: NetworkX is not installed.
        TypeError: graph is none of this package.
    """
    nodes, edges = nodes_by_type(graph), edges_by_type(graph)
    g = library("networkx", "to_networkx").MultiDiGraph()
    for kind, (count, attributes) in nodes.items():
        rows = {name: value.tolist() for name, value in attributes.items()}
        fixed = {} if kind is None else {"type": kind}
        for i in range(count):
            node = i if kind is None else (kind, i)
            g.add_node(node)
            g.nodes[node].update({name: column[i] for name, column in rows.items()} | fixed)
    for name, edge_list in edges.items():
        rows = {key: value.tolist() for key, value in edge_list.attributes.items()}
        source, _, destination = (None,) * 3 if name is None else etype_str_to_tuple(name)
        fixed = {} if name is None else {"type": name}
        ends = zip(edge_list.src.tolist(), edge_list.dst.tolist(), strict=True)
        for i, (u, v) in enumerate(ends):
            tail = u if source is None else (source, u)
            head = v if destination is None else (destination, v)
            key = g.add_edge(tail, head, key=i if name is None else (name, i))
            values = {column: rows[column][i] for column in rows}
            g.edges[tail, head, key].update(values | fixed)
    return g
