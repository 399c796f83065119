"""The graph of a data set: its description checked, its arrays written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hopline.pipes.coo import smallest_type_dtype
from hopline.pipes.datasets.arrays import RawArray, open_edges
from hopline.pipes.datasets.csc import write_csc
from hopline.pipes.datasets.edge_source import EdgeList
from hopline.pipes.datasets.metadata import OnDiskGraph, OnDiskGraphAttribute
from hopline.pipes.datasets.workplace import (
    Sizes,
    Workplace,
    attribute_dtype,
    check_unique,
)
from hopline.pipes.datasets.yaml_file import Place, show
from hopline.pipes.etypes import etype_str_to_tuple
from hopline.pipes.graph import ORIGINAL_EDGE_ID
from hopline.pipes.graph_files import attribute_file, write_graph_yaml

__all__ = ["GraphInputs", "count_nodes", "open_graph", "write_graph"]

MAX_NAME = 200  # bytes of an attribute's file name


def count_nodes(graph: OnDiskGraph, place: Place) -> Sizes:
    """Numbers of nodes; types are numbered in the order of their names.

    Raises:
        MetadataError: entries with and without types are mixed, a type is given twice, or an edge
            type is malformed or names an unknown node type.
    """
    entries = [(place.at("nodes").at(i), node.type) for i, node in enumerate(graph.nodes)]
    entries += [(place.at("edges").at(i), edge.type) for i, edge in enumerate(graph.edges)]
    typed = any(name is not None for _, name in entries)
    for at, name in entries:
        if typed and name is None:
            raise at.at("type").error(
                "is missing, though other entries have one; expected a type everywhere (or "
                "nowhere, for a graph of one node and one edge type)"
            )
        if not typed and at.key.endswith("[1]"):
            raise at.error(
                "is a second entry without a type; give each entry a type, or keep one of nodes "
                "and one of edges"
            )
    if typed:
        check_unique((at.at("type"), (name,)) for at, name in entries)
    nodes = {node.type: node.num for node in graph.nodes}
    if typed:
        nodes = dict(sorted(nodes.items(), key=lambda item: str(item[0])))
    for i, node in enumerate(graph.nodes):
        if node.type is not None and ":" in node.type:
            at = place.at("nodes").at(i).at("type")
            raise at.error(
                f"got {node.type!r}; expected a name without ':', which joins the parts of an edge "
                "type"
            )
    sizes = Sizes(nodes)
    total = 0
    for name, number in nodes.items():
        sizes.offsets[name] = total
        total += number
    for i, edge in enumerate(graph.edges):
        if edge.type is not None:
            _check_edge_type(edge.type, sizes, place.at("edges").at(i).at("type"))
    return sizes


def _check_edge_type(name: str, sizes: Sizes, place: Place) -> None:
    try:
        source, _, destination = etype_str_to_tuple(name)
    except ValueError as error:
        raise place.error(
            f"got {name!r}; expected three names, 'source:relation:destination'"
        ) from error
    for end in (source, destination):
        if end not in sizes.nodes:
            raise place.error(
                f"got {name!r}, which names node type {end!r}; expected one of "
                f"{show(list(sizes.nodes), 200)}"
            )


@dataclass(frozen=True, slots=True)
class GraphInputs:
    """A graph's opened inputs.

    Attributes:
        edges: of each edge type, in the order of type ids.
        attributes: `{(domain, name): [(place, array of each type, in the order of type ids)]}`.
    """

    edges: list[EdgeList]
    attributes: dict[tuple[str, str], list[tuple[Place, RawArray]]]

    @property
    def num_edges(self) -> int:
        """Edges of all types."""
        return sum(len(edges.src) for edges in self.edges)


def open_edge_lists(graph: OnDiskGraph, work: Workplace, place: Place) -> list[EdgeList]:
    """Opens the edges of each type, and notes their numbers in the sizes."""
    sizes = work.sizes
    order = sorted(range(len(graph.edges)), key=lambda i: graph.edges[i].type or "")
    lists: list[EdgeList] = []
    first = 0
    for i in order:
        edge = graph.edges[i]
        at = place.at("edges").at(i)
        src, dst = open_edges(edge, work.files[edge.path], at, work.scratch)
        source: str | None = None
        destination: str | None = None
        if edge.type is not None:
            source, _, destination = etype_str_to_tuple(edge.type)
        lists.append(
            EdgeList(
                place=at,
                src=src,
                dst=dst,
                src_type=sizes.describe("node", source),
                dst_type=sizes.describe("node", destination),
                src_offset=sizes.offsets[source],
                dst_offset=sizes.offsets[destination],
                num_src=sizes.nodes[source],
                num_dst=sizes.nodes[destination],
                first=first,
            )
        )
        sizes.edges[edge.type] = len(src)
        first += len(src)
    return lists


def open_graph(graph: OnDiskGraph, work: Workplace, place: Place) -> GraphInputs:
    """Opens edges and attributes; checks what needs no look at the edges themselves.

    Raises:
        MetadataError: an input is damaged, or does not fit the numbers of nodes and edges.
    """
    edges = open_edge_lists(graph, work, place)
    sizes = work.sizes
    given: dict[tuple[str, str], dict[str | None, tuple[Place, OnDiskGraphAttribute]]] = {}
    entries = [(place.at("feature_data").at(i), e) for i, e in enumerate(graph.feature_data)]
    for at, entry in entries:
        domain = str(entry.domain)
        if domain == "graph":
            raise at.at("domain").error("got graph; expected node or edge")
        if entry.name == ORIGINAL_EDGE_ID:
            raise at.at("name").error(f"{entry.name} is kept for edge ids; choose another name")
        if len(attribute_file(domain, entry.name).encode()) > MAX_NAME:
            raise at.at("name").error(f"{show(entry.name)} is too long for a file name; shorten it")
        sizes.check_type(domain, entry.type, at)
        given.setdefault((domain, entry.name), {})[entry.type] = (at, entry)
    check_unique((at, (str(e.domain), e.type, e.name)) for at, e in entries)
    attributes = {}
    for (domain, name), parts in given.items():
        missing = [kind for kind in sizes.of(domain) if kind not in parts]
        if missing:
            at = next(iter(parts.values()))[0]
            raise at.at("type").error(
                f"{domain} attribute {name!r} is given for {list(parts)}; expected it for every "
                f"{domain} type: add {missing}"
            )
        attributes[domain, name] = _open_attribute(domain, parts, work)
    return GraphInputs(edges, attributes)


def _open_attribute(
    domain: str, parts: dict[str | None, tuple[Place, OnDiskGraphAttribute]], work: Workplace
) -> list[tuple[Place, RawArray]]:
    opened: list[tuple[Place, RawArray]] = []
    for kind, count in work.sizes.of(domain).items():
        at, entry = parts[kind]
        raw = work.open(entry, at)
        if len(raw.array) != count:
            raise at.at("path").error(
                f"{entry.path} has {len(raw.array)} rows; expected {count}, one for each of "
                f"{work.sizes.describe(domain, kind)}"
            )
        first = opened[0][1] if opened else raw
        if (raw.dtype, raw.array.shape[1:]) != (first.dtype, first.array.shape[1:]):
            raise at.at("path").error(
                f"{entry.path} has rows of {raw.dtype}{raw.array.shape[1:]}; expected "
                f"{first.dtype}{first.array.shape[1:]}, as for the first type"
            )
        if entry.name == "timestamp" and raw.dtype != "bfloat16":
            work.check_finite(raw.array, "timestamp", at)
        opened.append((at, raw))
    return opened


def write_graph(
    inputs: GraphInputs,
    work: Workplace,
    *,
    auto_cast: bool,
    include_original_edge_id: bool,
) -> None:
    """Writes the graph's folder.

    Args:
        inputs: from `open_graph`.
        work: the run.
        auto_cast: narrow ids and types; else all int64.
        include_original_edge_id: keep each edge's number in the input, by type.

    Raises:
        MetadataError: an edge names a node that does not exist.
        OSError: the disk has no room for the graph.
    """
    sizes = work.sizes
    folder = work.folder / "graph"
    folder.mkdir(exist_ok=True)
    dtypes: dict[str, dict[str, str]] = {"node": {}, "edge": {}}
    edge_files = {}
    for (domain, name), parts in inputs.attributes.items():
        dtype = [attribute_dtype(raw, at) for at, raw in parts][-1]
        raw_bits = parts[0][1].dtype == "bfloat16"
        dtypes[domain][name] = "bfloat16" if raw_bits else dtype.name
        path = folder / attribute_file(domain, name)
        if domain == "edge":
            edge_files[path] = (dtype, [raw.array for _, raw in parts])
            continue
        shape = (sum(sizes.nodes.values()), *parts[0][1].array.shape[1:])
        name = path.relative_to(work.folder).as_posix()
        work.write(name, dtype, shape, (raw.array for _, raw in parts))
    edge_ids: tuple[Any, np.dtype[Any]] | None = None
    if include_original_edge_id:
        small = auto_cast and inputs.num_edges < 2**31
        edge_dtype = np.dtype(np.int32 if small else np.int64)
        edge_ids = (folder / attribute_file("edge", ORIGINAL_EDGE_ID), edge_dtype)
        dtypes["edge"][ORIGINAL_EDGE_ID] = edge_dtype.name
    type_dtype = None
    if sizes.typed:
        narrow = str(smallest_type_dtype(len(sizes.edges))).removeprefix("torch.")
        type_dtype = np.dtype(narrow if auto_cast else np.int64)
    write_csc(
        folder,
        inputs.edges,
        sum(sizes.nodes.values()),
        index_dtype=work.seed_dtype,
        type_dtype=type_dtype,
        edge_ids=edge_ids,
        attributes=edge_files,
        max_memory=work.max_memory,
        scratch=work.scratch.folder,
        journal=work.journal,
        progress=work.progress,
    )
    tables: dict[str, Any] = {}
    if sizes.typed:
        tables["node_type_offset"] = [*sizes.offsets.values(), sum(sizes.nodes.values())]
        tables["node_type_to_id"] = {str(name): i for i, name in enumerate(sizes.nodes)}
        tables["edge_type_to_id"] = {str(name): i for i, name in enumerate(sizes.edges)}
    write_graph_yaml(
        folder, node_attributes=dtypes["node"], edge_attributes=dtypes["edge"], **tables
    )
