"""A sampling graph as a folder: one .npy file an array, and graph.yaml that names them.

graph.yaml                 format_version, type tables, attributes
csc_indptr.npy             int64[num_nodes + 1]
indices.npy                int32 or int64[num_edges]
type_per_edge.npy          uint8 or signed integer[num_edges], ascending within each column;
                           heterogeneous graphs only
node_attributes/NAME.npy   num_nodes rows
edge_attributes/NAME.npy   num_edges rows, in CSC order
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch
import yaml

from hopline.pipes.checks import check_graph_arrays, check_name, check_rows
from hopline.pipes.csc import check_types
from hopline.pipes.graph import FusedCSCSamplingGraph
from hopline.pipes.npy import read_npy, write_npy
from hopline.pipes.plain_yaml import read_plain_yaml, show

__all__ = ["GRAPH_FORMAT", "attribute_file", "load_graph", "save_graph", "write_graph_yaml"]

GRAPH_FORMAT = 1
CLAIM = "graph.yaml.tmp"  # becomes graph.yaml
KEYS: dict[str, type] = {
    "format_version": int,
    "node_type_offset": list,
    "node_type_to_id": dict,
    "edge_type_to_id": dict,
    "node_attributes": dict,
    "edge_attributes": dict,
}
TYPE_KEYS = {"node_type_offset", "node_type_to_id", "edge_type_to_id"}
INTEGERS = {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
WIDER = {torch.uint16: torch.int32, torch.uint32: torch.int64, torch.uint64: torch.int64}


def attribute_file(domain: str, name: str) -> str:
    """Path of an attribute's file inside the folder; any name makes a valid file name."""
    return f"{domain}_attributes/{quote(name, safe='')}.npy"


def write_graph_yaml(
    folder: Path,
    *,
    node_type_offset: list[int] | None = None,
    node_type_to_id: Mapping[str, int] | None = None,
    edge_type_to_id: Mapping[str, int] | None = None,
    node_attributes: Mapping[str, str] | None = None,
    edge_attributes: Mapping[str, str] | None = None,
) -> None:
    """Writes graph.yaml; written last, it marks the folder as whole.

    Args:
        folder: the graph's folder.
        node_type_offset: first fused id of each node type, and the number of nodes.
        node_type_to_id: `{type: id}`.
        edge_type_to_id: `{type: id}`.
        node_attributes: `{name: dtype}`, as `write_npy` returned it.
        edge_attributes: `{name: dtype}`.
    """
    document: dict[str, Any] = {"format_version": GRAPH_FORMAT}
    if node_type_to_id is not None:
        document["node_type_offset"] = node_type_offset
        document["node_type_to_id"] = dict(node_type_to_id)
        document["edge_type_to_id"] = dict(edge_type_to_id or {})
    document["node_attributes"] = dict(node_attributes or {})
    document["edge_attributes"] = dict(edge_attributes or {})
    temporary = folder / CLAIM
    with temporary.open("w", encoding="utf-8") as file:
        yaml.safe_dump(document, file, sort_keys=False)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / "graph.yaml")


def save_graph(graph: FusedCSCSamplingGraph, path: str | os.PathLike[str]) -> None:
    """Writes a graph to a new or empty folder; what is written can be loaded.

    Unsigned edge types of more than a byte are written as signed ones that hold them.

    Raises:
        FileExistsError: the folder holds something.
        TypeError: an array of the graph is no tensor, or of a wrong dtype.
        ValueError: arrays of the graph do not fit each other.
    """
    check_graph_arrays(graph)
    for name, value in (graph.node_attributes or {}).items():
        check_rows(value, graph.total_num_nodes, f"node attribute {name!r}")
    for name, value in (graph.edge_attributes or {}).items():
        check_rows(value, graph.total_num_edges, f"edge attribute {name!r}")
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    _claim(folder)
    write_npy(folder / "csc_indptr.npy", graph.csc_indptr)
    write_npy(folder / "indices.npy", graph.indices)
    if graph.type_per_edge is not None:
        types = graph.type_per_edge
        write_npy(folder / "type_per_edge.npy", types.to(WIDER.get(types.dtype, types.dtype)))
    dtypes: dict[str, dict[str, str]] = {"node": {}, "edge": {}}
    for domain, attributes in (("node", graph.node_attributes), ("edge", graph.edge_attributes)):
        for name, value in (attributes or {}).items():
            check_name(name, f"the name of a {domain} attribute")
            file = folder / attribute_file(domain, name)
            file.parent.mkdir(exist_ok=True)
            dtypes[domain][name] = write_npy(file, value)
    write_graph_yaml(
        folder,
        node_type_offset=None
        if graph.node_type_offset is None
        else graph.node_type_offset.tolist(),
        node_type_to_id=graph.node_type_to_id,
        edge_type_to_id=graph.edge_type_to_id,
        node_attributes=dtypes["node"],
        edge_attributes=dtypes["edge"],
    )


def _claim(folder: Path) -> None:
    """Makes the folder this writer's alone; FileExistsError where it holds something."""
    try:
        (folder / CLAIM).open("x").close()
        empty = len(list(folder.iterdir())) == 1
        if not empty:
            (folder / CLAIM).unlink()
    except FileExistsError:
        empty = False
    if not empty:
        raise FileExistsError(f"{folder} is not empty; give a new folder")


def load_graph(path: str | os.PathLike[str], *, in_memory: bool = False) -> FusedCSCSamplingGraph:
    """Maps a graph, or reads it into memory.

    Sizes and tables are checked here; the entries of the arrays as they are used, since reading all
    of a mapped graph would cost more than many an epoch. Edge types must ascend within a column,
    which `fused_csc_sampling_graph` checks and loading does not: what draws from a whole column
    raises ValueError where they do not, but a fanout for each type finds its edges by bisection,
    and would take edges of another type.

    Args:
        path: folder that `save_graph` wrote.
        in_memory: read the arrays; else map them, so that processes share their pages.

    Raises:
        FileNotFoundError: the folder or one of its files is missing.
        ValueError: a file is damaged or does not fit the others.
    """
    folder = Path(path).absolute()
    document = _read_yaml(folder / "graph.yaml")

    def read(name: str, dtype: str | None = None) -> torch.Tensor:
        return read_npy(folder / name, in_memory=in_memory, dtype=dtype)

    indptr, indices = read("csc_indptr.npy"), read("indices.npy")
    if indptr.dtype != torch.int64 or indptr.dim() != 1 or len(indptr) < 1:
        raise ValueError(
            f"{folder / 'csc_indptr.npy'}: {indptr.dtype} of shape {tuple(indptr.shape)}; "
            "expected int64[num_nodes + 1]"
        )
    if indices.dtype not in (torch.int32, torch.int64) or indices.dim() != 1:
        raise ValueError(
            f"{folder / 'indices.npy'}: {indices.dtype} of shape {tuple(indices.shape)}; "
            "expected int32 or int64 of one dimension"
        )
    if indptr[0] != 0 or indptr[-1] != len(indices):
        raise ValueError(
            f"{folder / 'csc_indptr.npy'}: runs from {int(indptr[0])} to {int(indptr[-1])}; "
            f"expected 0 to {len(indices)}, the length of indices.npy"
        )
    offset = types = None
    if "node_type_to_id" in document:
        offset = torch.tensor(document["node_type_offset"], dtype=torch.int64, device="cpu")
        try:
            check_types(
                offset, document["node_type_to_id"], document["edge_type_to_id"], len(indptr) - 1
            )
        except (TypeError, ValueError) as error:
            raise ValueError(f"{folder / 'graph.yaml'}: {error}") from error
        types = read("type_per_edge.npy")
        if types.dtype not in INTEGERS or types.shape != indices.shape:
            raise ValueError(
                f"{folder / 'type_per_edge.npy'}: {types.dtype} of shape {tuple(types.shape)}; "
                f"expected uint8 or signed integers of shape {tuple(indices.shape)}, one for each "
                "edge"
            )
    attributes: dict[str, dict[str, torch.Tensor]] = {"node": {}, "edge": {}}
    for domain, rows in (("node", len(indptr) - 1), ("edge", len(indices))):
        for name, dtype in document.get(f"{domain}_attributes", {}).items():
            file = attribute_file(domain, name)
            attributes[domain][name] = read(file, dtype)
            check_rows(attributes[domain][name], rows, str(folder / file))
    return FusedCSCSamplingGraph(
        indptr, indices, offset, types, document.get("node_type_to_id"),
        document.get("edge_type_to_id"), attributes["node"] or None, attributes["edge"] or None,
        path=None if in_memory else folder,
    )  # fmt: skip


def _read_yaml(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; expected a folder that graph.save() wrote")
    try:
        document = read_plain_yaml(path)
    except ValueError as error:
        raise ValueError(f"{path}: not YAML: {error}") from error
    if not isinstance(document, dict) or document.get("format_version") != GRAPH_FORMAT:
        found = document.get("format_version") if isinstance(document, dict) else document
        raise ValueError(
            f"{path}: format_version is {show(found)}; this version reads {GRAPH_FORMAT}"
        )
    if unknown := set(document) - set(KEYS):
        raise ValueError(
            f"{path}: unknown keys {show(sorted(unknown, key=str))}; expected {list(KEYS)}"
        )
    if 0 < len(TYPE_KEYS & set(document)) < len(TYPE_KEYS):
        raise ValueError(f"{path}: expected all or none of the keys {sorted(TYPE_KEYS)}")
    for key, kind in KEYS.items():
        if not isinstance(document.get(key, kind()), kind):
            raise ValueError(f"{path}: {key} is {show(document[key])}; expected a {kind.__name__}")
    for i in document.get("node_type_offset", []):
        if type(i) is not int or not 0 <= i < 1 << 63:
            raise ValueError(f"{path}: node_type_offset has {show(i)}; expected ints of 0 or more")
    for key in ("node_attributes", "edge_attributes"):
        for name, dtype in document.get(key, {}).items():
            if not isinstance(name, str) or not isinstance(dtype, str):
                raise ValueError(f"{path}: {key} has {show({name: dtype})}; expected two strings")
    return document
