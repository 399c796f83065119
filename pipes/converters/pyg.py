"""Data and HeteroData of PyTorch Geometric."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from hopline.pipes.checks import check_count, check_values
from hopline.pipes.converters.common import (
    edges_by_type,
    library,
    nodes_by_type,
    shared_attributes,
)
from hopline.pipes.coo import from_coo
from hopline.pipes.etypes import etype_str_to_tuple, etype_tuple_to_str
from hopline.pipes.graph import ORIGINAL_EDGE_ID, FusedCSCSamplingGraph

__all__ = ["from_pyg", "to_pyg"]

ONE = ""  # the type of nodes and edges of a Data
NODE_NAMES, EDGE_NAMES = ("x", "y", "pos"), ("edge_attr", "edge_weight")


def from_pyg(
    data: Any,
    include_original_edge_id: bool = False,
    *,
    node_attributes: Collection[str] | None = None,
    edge_attributes: Collection[str] | None = None,
) -> FusedCSCSamplingGraph:
    """Converts a Data or HeteroData; every edge attribute follows its edge.

    The library itself is not needed: of a Data are read `edge_index`, `num_nodes` and the
    attributes; of a HeteroData `node_types`, `edge_types` and these of `data[type]`. Which
    attributes belong to nodes and which to edges is what `node_attrs()` and `edge_attrs()` say.
    In a Data with as many edges as nodes they go by the name, so name yours to be sure.

    Args:
        data: the graph. `edge_index[0]` are sources.
        include_original_edge_id: keep each edge's place in its `edge_index`.
        node_attributes: names to take; None takes all tensors that each type has alike.
        edge_attributes: names to take; None takes all tensors that each type has alike.

    Returns:
        The graph, with types if data is a HeteroData, in their order there.

    Raises:
        TypeError: data is neither, or a number of nodes no int.
        ValueError: there is no edge_index, a number of nodes is unknown, an attribute that was
            asked for is not of all types alike, or a name has ":".
    """
    if hasattr(data, "node_types") and hasattr(data, "edge_types"):
        nodes = {kind: data[kind] for kind in data.node_types}
        edges = {etype_tuple_to_str(tuple(kind)): data[kind] for kind in data.edge_types}
    elif hasattr(data, "edge_index") and hasattr(data, "num_nodes"):
        nodes, edges = {ONE: data}, {ONE: data}
    else:
        raise TypeError(f"data is a {type(data).__name__}; expected a PyG Data or HeteroData")
    num_nodes = {kind: _num_nodes(store, kind) for kind, store in nodes.items()}
    pairs = {name: _pair(store, name) for name, store in edges.items()}
    node_data = shared_attributes(
        {k: _attributes(s, "node_attrs", NODE_NAMES, node_attributes) for k, s in nodes.items()},
        num_nodes, node_attributes, "node",
    )  # fmt: skip
    edge_data = shared_attributes(
        {k: _attributes(s, "edge_attrs", EDGE_NAMES, edge_attributes) for k, s in edges.items()},
        {name: len(src) for name, (src, _) in pairs.items()}, edge_attributes, "edge",
    )  # fmt: skip
    if ONE in pairs:
        return from_coo(
            *pairs[ONE],
            num_nodes[ONE],
            node_attributes={name: parts[ONE] for name, parts in node_data.items()},
            edge_attributes={name: parts[ONE] for name, parts in edge_data.items()},
            include_original_edge_id=include_original_edge_id,
        )
    return from_coo(
        pairs,
        num_nodes=num_nodes,
        node_attributes=node_data,
        edge_attributes=edge_data,
        include_original_edge_id=include_original_edge_id,
    )


def _num_nodes(store: Any, kind: str) -> int:
    count = getattr(store, "num_nodes", None)
    if count is None:
        raise ValueError(f"num_nodes of {kind or 'data'!r} is unknown; set it")
    if isinstance(count, torch.Tensor):
        count = _one_number(count)
    return check_count(count, f"num_nodes of {kind or 'data'!r}")


def _one_number(count: torch.Tensor) -> Any:
    """The number that a tensor holds; the tensor, if it holds none or several."""
    return count if count.is_meta or count.numel() != 1 else count.item()


def _pair(store: Any, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    edge_index = getattr(store, "edge_index", None)
    if not isinstance(edge_index, torch.Tensor) or edge_index.dim() != 2 or len(edge_index) != 2:
        shape = tuple(edge_index.shape) if isinstance(edge_index, torch.Tensor) else edge_index
        raise ValueError(
            f"edge_index of {name or 'data'!r} is {shape!r:.80}; expected an integer tensor of "
            "shape [2, num_edges]"
        )
    if edge_index.layout != torch.strided:
        raise TypeError(f"edge_index of {name or 'data'!r} is sparse; expected a dense tensor")
    check_values(edge_index, f"edge_index of {name or 'data'!r}")
    plain = edge_index.as_subclass(torch.Tensor).cpu()
    return plain[0], plain[1]


def _attributes(
    store: Any, method: str, usual: tuple[str, ...], wanted: Collection[str] | None
) -> dict[str, Any]:
    names = list(getattr(store, method)()) if hasattr(store, method) else list(usual)
    names = [name for name in names if name not in ("edge_index", "adj_t", "num_nodes")]
    if wanted is not None:
        names = list(wanted)
    found = {name: getattr(store, name, None) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def to_pyg(graph: FusedCSCSamplingGraph) -> Any:
    """Makes a Data, or a HeteroData if the graph has types; needs PyTorch Geometric.

    Args:
        graph: edges come in the order of its input if it keeps their numbers, else in CSC order.
            Numbers that are no order of the edges become the edge attribute `e_id`.

    Raises:
        ImportError: PyTorch Geometric is not installed.
        TypeError: graph is none of this package.
        ValueError: nodes and edges of a graph without types have an attribute of the same name.
    """
    nodes, edges = nodes_by_type(graph), edges_by_type(graph)
    if None in nodes and (
        both := set(nodes[None][1]) & {_name(key) for key in edges[None].attributes}
    ):
        raise ValueError(
            f"nodes and edges both have attributes {sorted(both)}, for which a Data has one place; "
            "rename the ones"
        )
    module = library("torch_geometric.data", "to_pyg")
    data = module.Data() if None in nodes else module.HeteroData()
    for kind, (count, attributes) in nodes.items():
        store = data if kind is None else data[kind]
        store.num_nodes = count
        for key, value in attributes.items():
            setattr(store, key, value)
    for name, edge_list in edges.items():
        store = data if name is None else data[etype_str_to_tuple(name)]
        store.edge_index = torch.stack((edge_list.src, edge_list.dst))
        for key, value in edge_list.attributes.items():
            setattr(store, _name(key), value)
    return data


def _name(key: str) -> str:
    return "e_id" if key == ORIGINAL_EDGE_ID else key
