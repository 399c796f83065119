"""balance_groups: the groups of nodes of which each part is to have its share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from hopline.pipes.checks import check_values
from hopline.pipes.graph import FusedCSCSamplingGraph

__all__ = ["balance_groups"]

MOST_GROUPS = 64

Array = np.ndarray[Any, Any]


def balance_groups(
    graph: FusedCSCSamplingGraph, balance_ntypes: torch.Tensor | Mapping[str, torch.Tensor] | None
) -> tuple[Array, list[str]]:
    """The group of each node, and the groups' names.

    Args:
        graph: the graph.
        balance_ntypes: integer or bool[num_nodes], a value a group; or `{node type: integer[n]}`,
            where a type without an entry is a group of its own. None: a group a node type, or no
            group where there are no types.

    Returns:
        (int32[num_nodes], -1 for nodes of no group; names).

    Raises:
        TypeError: a dict for a homogeneous graph, a tensor for a heterogeneous one, no integers.
        ValueError: of other length, an unknown type, or more than 64 groups.
    """
    if graph.node_type_to_id is None:
        if balance_ntypes is None:
            return np.full(graph.total_num_nodes, -1, np.int32), []
        if isinstance(balance_ntypes, Mapping):
            raise TypeError(
                f"balance_ntypes comes by type ({list(balance_ntypes)}), but the graph has no "
                "types; pass one tensor"
            )
        return _limited(*_values(balance_ntypes, graph.total_num_nodes, "balance_ntypes", ""))
    given = {} if balance_ntypes is None else balance_ntypes
    if not isinstance(given, Mapping):
        raise TypeError(
            f"balance_ntypes is a {type(given).__name__}, but the graph has node types "
            f"{list(graph.node_type_to_id)}; pass {{type: tensor}}"
        )
    if unknown := set(given) - set(graph.node_type_to_id):
        raise ValueError(
            f"balance_ntypes names node types {sorted(unknown)}; the graph has "
            f"{list(graph.node_type_to_id)}"
        )
    pieces: list[Array] = []
    names: list[str] = []
    assert isinstance(graph.num_nodes, dict)
    for name in sorted(graph.node_type_to_id, key=graph.node_type_to_id.__getitem__):
        count = graph.num_nodes[name]
        piece, found = np.zeros(count, np.int32), [name]
        if name in given:
            piece, found = _values(given[name], count, f"balance_ntypes[{name!r}]", f"{name} ")
        pieces.append(piece + len(names))
        names += found
    return _limited(np.concatenate(pieces).astype(np.int32), names)


def _values(given: Any, count: int, what: str, prefix: str) -> tuple[Array, list[str]]:
    """Groups numbered from 0 in the order of their values."""
    if not isinstance(given, torch.Tensor):
        raise TypeError(f"{what} is a {type(given).__name__}; expected a torch.Tensor")
    if given.is_floating_point() or given.is_complex():
        raise TypeError(f"{what} has dtype {given.dtype}; expected integers or bool")
    check_values(given, what)
    if tuple(given.shape) != (count,):
        raise ValueError(f"{what} has shape {tuple(given.shape)}; expected ({count},)")
    values, groups = np.unique(given.detach().cpu().numpy(), return_inverse=True)
    return groups.astype(np.int32).reshape(-1), [f"{prefix}group {value}" for value in values]


def _limited(groups: Array, names: list[str]) -> tuple[Array, list[str]]:
    if len(names) > MOST_GROUPS:
        raise ValueError(
            f"balance_ntypes makes {len(names)} groups; expected {MOST_GROUPS} at most, such as a "
            "training mask or a few classes"
        )
    return groups, names
