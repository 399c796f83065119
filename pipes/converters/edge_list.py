"""Edges as a list of pairs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from hopline.pipes.checks import check_values
from hopline.pipes.converters.common import as_tensor, edges_by_type
from hopline.pipes.coo import from_coo
from hopline.pipes.etypes import etype_str_to_tuple
from hopline.pipes.graph import FusedCSCSamplingGraph

__all__ = ["from_edge_list", "to_edge_list"]


def from_edge_list(
    edges: Any,
    num_nodes: int | Mapping[str, int] | None = None,
    *,
    node_attributes: Mapping[str, Any] | None = None,
    edge_attributes: Mapping[str, Any] | None = None,
    include_original_edge_id: bool = False,
) -> FusedCSCSamplingGraph:
    """Builds a graph from pairs (source, destination).

    Args:
        edges: a list of pairs of ints, or an integer tensor or array [E, 2]; or
            `{edge type: such edges}`.
        num_nodes: number of nodes, or `{node type: number}`; None takes one more than the highest
            id, of each type in the order in which the edge types name them.
        node_attributes: as in `from_coo`.
        edge_attributes: as in `from_coo`, in the order of edges.
        include_original_edge_id: keep each edge's place in edges.

    Returns:
        The graph.

    Raises:
        TypeError: the ends are not integers.
        ValueError: not pairs, or an argument does not fit the others.
        IndexError: an id is negative, or not below the number of nodes.

    >>> g = from_edge_list([(0, 2), (1, 0)])
    >>> g.num_nodes, g.csc_indptr.tolist(), g.indices.tolist()
    (3, [0, 1, 1, 2], [1, 0])
    """
    options: dict[str, Any] = {
        "node_attributes": node_attributes,
        "edge_attributes": edge_attributes,
        "include_original_edge_id": include_original_edge_id,
    }
    if not isinstance(edges, Mapping):
        src, dst = _pairs(edges, "edges")
        if num_nodes is None:
            num_nodes = max(_size(src), _size(dst))
        return from_coo(src, dst, num_nodes, **options)
    pairs = {name: _pairs(part, f"edges of type {name!r}") for name, part in edges.items()}
    if num_nodes is None:
        sizes: dict[str, int] = {}
        for name, (src, dst) in pairs.items():
            source, _, destination = etype_str_to_tuple(name)
            sizes[source] = max(sizes.get(source, 0), _size(src))
            sizes[destination] = max(sizes.get(destination, 0), _size(dst))
        num_nodes = sizes
    return from_coo(pairs, num_nodes=num_nodes, **options)


def _size(ids: torch.Tensor) -> int:
    return int(ids.to(torch.int64).max()) + 1 if len(ids) else 0


def _pairs(edges: Any, what: str) -> tuple[torch.Tensor, torch.Tensor]:
    if isinstance(edges, torch.Tensor):
        check_values(edges, what)
        tensor = edges.cpu()
    else:
        try:
            array = edges if isinstance(edges, np.ndarray) else np.asarray(list(edges))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{what}: {error}; expected pairs (source, destination)") from error
        if array.size == 0 and array.ndim == 1:
            array = np.empty((0, 2), np.int64)
        if array.dtype.kind not in "iu":
            raise TypeError(
                f"{what} have dtype {array.dtype}; expected pairs of ints: number nodes from 0, or "
                "use from_networkx for nodes of any kind"
            )
        tensor = as_tensor(array)
    if tensor.dim() != 2 or tensor.shape[1] != 2:
        raise ValueError(
            f"{what} have shape {tuple(tensor.shape)}; expected [E, 2], rows (source, destination)"
        )
    return tensor[:, 0], tensor[:, 1]


def to_edge_list(graph: FusedCSCSamplingGraph) -> torch.Tensor | dict[str, torch.Tensor]:
    """The edges as int64[E, 2], rows (source, destination); or `{edge type: edges}`.

    Args:
        graph: edges come in the order of its input if it keeps their numbers, else in CSC order.

    Raises:
        TypeError: graph is none of this package.
    """
    lists = {
        name: torch.stack((edges.src, edges.dst), dim=1)
        for name, edges in edges_by_type(graph).items()
    }
    if None in lists:
        return lists[None]
    return {name: edges for name, edges in lists.items() if name is not None}
