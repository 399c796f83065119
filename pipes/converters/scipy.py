"""Sparse matrices of SciPy: row u, column v is an edge from u to v."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from hopline.pipes.checks import check_name
from hopline.pipes.converters.common import as_tensor, edges_by_type, library, nodes_by_type
from hopline.pipes.coo import from_coo
from hopline.pipes.etypes import etype_str_to_tuple
from hopline.pipes.graph import FusedCSCSamplingGraph

__all__ = ["from_scipy", "to_scipy"]


def from_scipy(
    matrix: Any,
    value_name: str | None = "weight",
    include_original_edge_id: bool = False,
) -> FusedCSCSamplingGraph:
    """Converts an adjacency matrix: each stored entry (u, v), zeros too, is an edge u -> v.

    Args:
        matrix: sparse, square; or `{edge type: matrix}` of shape (sources, destinations), node
            types being numbered as the edge types name them.
        value_name: edge attribute for the values; None drops them.
        include_original_edge_id: keep each edge's place among the entries of `matrix.tocoo()`.

    Returns:
        The graph. Entries given twice are parallel edges.

    Raises:
        TypeError: value_name is no string; or not a sparse matrix, or one of values that torch
            has no type for.
        ValueError: not square, or two matrices disagree about the number of nodes of a type.

    >>> from scipy.sparse import coo_array
    >>> g = from_scipy(coo_array(([0.5, 2.0], ([0, 1], [2, 2])), shape=(3, 3)))
    >>> g.indices.tolist(), g.csc_indptr.tolist(), g.edge_attributes["weight"].tolist()
    ([0, 1], [0, 0, 0, 2], [0.5, 2.0])
    """
    if value_name is not None and not isinstance(value_name, str):
        raise TypeError(f"value_name is {value_name!r}; expected a string, or None")
    if hasattr(matrix, "tocoo") or not isinstance(matrix, Mapping):  # dok matrices are dicts
        src, dst, values, shape = _entries(matrix, "matrix")
        if shape[0] != shape[1]:
            raise ValueError(
                f"matrix has shape {shape}; expected as many rows as columns: for edges between "
                "two node types pass {'source:relation:destination': matrix}"
            )
        attributes = {} if value_name is None else {value_name: values}
        return from_coo(
            src,
            dst,
            shape[0],
            edge_attributes=attributes,
            include_original_edge_id=include_original_edge_id,
        )
    pairs, parts = {}, {}
    num_nodes: dict[str, int] = {}
    for name, part in matrix.items():
        source, _, destination = etype_str_to_tuple(name)
        src, dst, parts[name], shape = _entries(part, f"matrix of {name!r}")
        pairs[name] = (src, dst)
        for kind, count in zip((source, destination), shape, strict=True):
            if num_nodes.setdefault(kind, count) != count:
                raise ValueError(
                    f"matrix of {name!r} has shape {shape}, but there are {num_nodes[kind]} nodes "
                    f"of type {kind!r} by an earlier one"
                )
    dtypes = {values.dtype for values in parts.values()}
    if value_name is not None and len(dtypes) > 1:
        raise ValueError(
            f"values of the matrices have dtypes {sorted(map(str, dtypes))}; expected one: convert "
            "them, or pass value_name=None"
        )
    return from_coo(
        pairs,
        num_nodes=num_nodes,
        edge_attributes=None if value_name is None else {value_name: parts},
        include_original_edge_id=include_original_edge_id,
    )


def _entries(
    matrix: Any, what: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, tuple[int, int]]:
    """Rows, columns, values, shape."""
    if not hasattr(matrix, "tocoo"):
        raise TypeError(f"{what} is a {type(matrix).__name__}; expected a sparse matrix of SciPy")
    coo = matrix.tocoo()
    if len(coo.shape) != 2:
        raise ValueError(f"{what} has shape {coo.shape}; expected two dimensions")
    try:
        values = as_tensor(coo.data)
    except TypeError as error:
        raise TypeError(f"values of {what}: {error}") from error
    src, dst = (torch.from_numpy(np.ascontiguousarray(ids, np.int64)) for ids in (coo.row, coo.col))
    return src, dst, values, (int(coo.shape[0]), int(coo.shape[1]))


def to_scipy(graph: FusedCSCSamplingGraph, value_name: str | None = "weight") -> Any:
    """Makes the adjacency matrix as a `scipy.sparse.coo_array`; needs SciPy.

    Args:
        graph: edges come in the order of its input if it keeps their numbers, else in CSC order.
        value_name: edge attribute of one dimension for the values; None writes ones, as does
            "weight" for a graph without it.

    Returns:
        The matrix of shape (sources, destinations), parallel edges being entries of their own
        until it is converted; or `{edge type: matrix}`.

    Raises:
        ImportError: SciPy is not installed.
        TypeError: graph is none of this package.
        KeyError: there is no such attribute.
        ValueError: the attribute has more than one value an edge.
    """
    edges, nodes = edges_by_type(graph), nodes_by_type(graph)
    if value_name is not None:
        check_name(value_name, "value_name")
    if value_name == "weight" and "weight" not in (graph.edge_attributes or {}):
        value_name = None
    if value_name is not None:
        attribute = graph.edge_attribute(value_name)
        if attribute is None or attribute.dim() != 1:
            shape = None if attribute is None else tuple(attribute.shape)
            raise ValueError(
                f"edge attribute {value_name!r} has shape {shape}; expected one value an edge"
            )
    sparse = library("scipy.sparse", "to_scipy")
    matrices = {}
    for name, edge_list in edges.items():
        source, _, destination = (None,) * 3 if name is None else etype_str_to_tuple(name)
        if value_name is None:
            values = np.ones(len(edge_list.src), np.float32)
        else:
            values = edge_list.attributes[value_name].numpy()
        ends = (edge_list.src.numpy(), edge_list.dst.numpy())
        shape = (nodes[source][0], nodes[destination][0])
        matrices[name] = sparse.coo_array((values, ends), shape=shape)
    return matrices.get(None, matrices)
