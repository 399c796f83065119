"""What all converters share: edges out of a graph, attributes into one."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hopline.pipes.etypes import etype_str_to_tuple
from hopline.pipes.features.rows import gather
from hopline.pipes.graph import ORIGINAL_EDGE_ID, FusedCSCSamplingGraph
from hopline.pipes.tensor_functions import expand_indptr

__all__ = [
    "EdgeList",
    "as_tensor",
    "check_graph",
    "edges_by_type",
    "library",
    "nodes_by_type",
    "shared_attributes",
]


@dataclass(slots=True)
class EdgeList:
    """The edges of one type.

    Attributes:
        src: int64[num_edges], sources, local to their type.
        dst: int64[num_edges], destinations.
        attributes: `{name: tensor of num_edges rows}`.
    """

    src: torch.Tensor
    dst: torch.Tensor
    attributes: dict[str, torch.Tensor]


def as_tensor(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """A tensor of an array's values, whatever its order of bytes and elements.

    Raises:
        TypeError: torch has no such dtype.
    """
    if np.ma.is_masked(array):
        raise TypeError("got a masked array; fill in or drop what is masked")
    try:
        # Some types have two names in NumPy, of which torch knows one.
        native = np.dtype(f"{array.dtype.kind}{array.dtype.itemsize}")
        return torch.from_numpy(np.ascontiguousarray(array).astype(native, copy=False).view(native))
    except TypeError as error:
        raise TypeError(f"got dtype {array.dtype}, which torch lacks: {error}") from error


def library(name: str, what: str) -> Any:
    """Imports another library.

    Args:
        name: the module.
        what: the function that needs it.

    Raises:
        ImportError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.split(".")[0]
        raise ImportError(
            f"{what} needs {package}, which cannot be imported ({error}); pip install {package}"
        ) from error


def check_graph(graph: Any) -> FusedCSCSamplingGraph:
    """Refuses what is no graph of this package.

    Raises:
        TypeError: it is something else.
    """
    if not isinstance(graph, FusedCSCSamplingGraph):
        raise TypeError(f"graph is a {type(graph).__name__}; expected a FusedCSCSamplingGraph")
    return graph


def edges_by_type(graph: FusedCSCSamplingGraph) -> dict[str | None, EdgeList]:
    """The edges of a graph by type, in the order of type ids; the key is None without types.

    Edges come in the order of the graph's input if it keeps their numbers, which their order then
    says and no attribute needs to; else in CSC order.
    """
    graph = check_graph(graph).to("cpu")
    columns = expand_indptr(graph.csc_indptr, torch.int64, output_size=graph.total_num_edges)
    attributes = graph.edge_attributes or {}
    if graph.edge_type_to_id is None:
        return {None: _edge_list(graph.indices, columns, attributes, None, 0, 0)}
    assert graph.type_per_edge is not None
    assert graph.node_type_to_id is not None
    assert graph.node_type_offset is not None
    offsets = graph.node_type_offset.tolist()
    types = graph.type_per_edge.numpy()
    lists: dict[str | None, EdgeList] = {}
    for name, number in sorted(graph.edge_type_to_id.items(), key=lambda item: item[1]):
        source, _, destination = etype_str_to_tuple(name)
        lists[name] = _edge_list(
            graph.indices, columns, attributes, np.flatnonzero(types == number),
            offsets[graph.node_type_to_id[source]], offsets[graph.node_type_to_id[destination]],
        )  # fmt: skip
    return lists


def _edge_list(
    indices: torch.Tensor,
    columns: torch.Tensor,
    attributes: Mapping[str, torch.Tensor],
    places: np.ndarray[Any, Any] | None,
    src_offset: int,
    dst_offset: int,
) -> EdgeList:
    """Edges at some places, or all of them, put in the order of the input."""
    if places is None:
        places = np.arange(len(indices))
    attributes = dict(attributes)
    if ORIGINAL_EDGE_ID in attributes:
        numbers = attributes[ORIGINAL_EDGE_ID].numpy()[places].astype(np.int64)
        order = np.argsort(numbers, kind="stable")
        if np.array_equal(numbers[order], np.arange(len(order))):
            places = places[order]
            del attributes[ORIGINAL_EDGE_ID]
    src = gather(indices, places).to(torch.int64) - src_offset
    dst = gather(columns, places) - dst_offset
    picked = {name: gather(value.contiguous(), places) for name, value in attributes.items()}
    return EdgeList(src, dst, picked)


def nodes_by_type(
    graph: FusedCSCSamplingGraph,
) -> dict[str | None, tuple[int, dict[str, torch.Tensor]]]:
    """Number of nodes and their attributes by type, in the order of type ids."""
    check_graph(graph)
    attributes = graph.node_attributes or {}
    if graph.node_type_to_id is None:
        return {None: (graph.total_num_nodes, dict(attributes))}
    assert graph.node_type_offset is not None
    offsets = graph.node_type_offset.tolist()
    return {
        name: (
            offsets[i + 1] - offsets[i],
            {key: value[offsets[i] : offsets[i + 1]] for key, value in attributes.items()},
        )
        for name, i in sorted(graph.node_type_to_id.items(), key=lambda item: item[1])
    }


def shared_attributes(
    found: Mapping[str, Mapping[str, Any]],
    rows: Mapping[str, int],
    wanted: Collection[str] | None,
    domain: str,
) -> dict[str, dict[str, torch.Tensor]]:
    """Attributes that every type has, alike in dtype and shape of a row, as a graph keeps them.

    Args:
        found: `{type: {name: value}}`.
        rows: `{type: number of nodes or edges}`.
        wanted: the names to take; None takes what can be taken, and warns of the rest.
        domain: "node" or "edge", for messages.

    Returns:
        `{name: {type: tensor}}`.

    Raises:
        TypeError: wanted is a string or holds something else.
        ValueError: a name was asked for that some type lacks or that differs between types.
    """
    listed = isinstance(wanted, Collection) and not isinstance(wanted, str)
    if wanted is not None and not (listed and all(isinstance(name, str) for name in wanted)):
        raise TypeError(f"{domain}_attributes is {wanted!r}; expected a list of names, or None")
    names = list(dict.fromkeys(name for values in found.values() for name in values))
    taken: dict[str, dict[str, torch.Tensor]] = {}
    left: list[str] = []
    for name in names if wanted is None else dict.fromkeys(wanted):
        values = {kind: found[kind].get(name) for kind in rows}
        reason = _obstacle(values, rows)
        if reason is None:
            taken[name] = {kind: _to_cpu(value) for kind, value in values.items()}
        elif wanted is not None:
            raise ValueError(f"{domain} attribute {name!r} {reason}; there are {names}")
        else:
            left.append(f"{name!r} {reason}")
    if left:
        warnings.warn(
            f"{domain} attributes are left out of the graph: {'; '.join(left)}. Put them into a "
            f"feature store, or name those to take in {domain}_attributes",
            stacklevel=3,
        )
    return taken


def _obstacle(values: Mapping[str, Any], rows: Mapping[str, int]) -> str | None:
    """Why an attribute cannot be one of the graph's; None if it can."""
    kinds = set()
    for kind, value in values.items():
        of = f" of type {kind!r}" if kind else ""
        if value is None:
            return f"is missing{of}"
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            return f"is a {type(value).__name__}{of}, not a dense tensor"
        if value.dim() == 0 or len(value) != rows[kind]:
            return f"has shape {tuple(value.shape)}{of} for {rows[kind]} rows"
        kinds.add((value.dtype, value.shape[1:]))
    if len(kinds) > 1:
        return f"differs between types: {sorted(map(str, kinds))}"
    return None


def _to_cpu(value: Any) -> torch.Tensor:
    tensor: torch.Tensor = value.detach().cpu()
    return tensor
