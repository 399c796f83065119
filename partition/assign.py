"""assign_nodes: which part each node belongs to."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hopline.partition.adjacency import check_edges, undirected
from hopline.partition.balance import Loads, move_surplus
from hopline.partition.groups import balance_groups
from hopline.partition.ldg import ldg_parts, random_parts
from hopline.partition.metis import KAMINPAR_BYTES, METIS_BYTES, kaminpar_parts, metis_parts
from hopline.partition.quality import PartitionQuality, measure_quality
from hopline.pipes.checks import check_count, check_ids
from hopline.pipes.datasets.disk_space import show_bytes
from hopline.pipes.graph import FusedCSCSamplingGraph
from hopline.pipes.random import fold
from hopline.pipes.usable_memory import usable_memory

__all__ = ["METHODS", "Assignment", "assign_nodes", "estimate_memory"]

METHODS = ("metis", "kaminpar", "ldg", "random")
MOST_PARTS = 1 << 15
MOST_WARNINGS = 5
ADJACENCY_BYTES = 16  # an edge: both ends, 8 bytes each
NODE_BYTES = 64  # a node, whatever the method: parts, loads, orders, stamps
LDG, RANDOM = 1, 2  # what keys are for

Array = np.ndarray[Any, Any]
Parts = torch.Tensor | Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Assignment:
    """Which part each node belongs to.

    Attributes:
        parts: int32[num_nodes], in fused ids.
        num_parts: number of parts; some may be empty.
        method: how it was found, or "given".
        quality: what it costs.
        eps: what balance was asked for.
        moved: nodes that were moved for the sake of balance.
    """

    parts: torch.Tensor
    num_parts: int
    method: str
    quality: PartitionQuality
    eps: float
    moved: int = 0


def estimate_memory(graph: FusedCSCSamplingGraph, method: str) -> int:
    """Bytes that `assign_nodes` takes at most, beside the graph; by measurements of each method.

    Args:
        graph: to be cut.
        method: one of METHODS; "given" for an assignment that is there.
    """
    edges, size = graph.total_num_edges, NODE_BYTES * graph.total_num_nodes
    if method in ("metis", "kaminpar"):
        entry = METIS_BYTES if method == "metis" else KAMINPAR_BYTES
        size += (ADJACENCY_BYTES + 2 * entry) * edges
    return size


def assign_nodes(
    graph: FusedCSCSamplingGraph,
    num_parts: int,
    method: str | Parts = "metis",
    *,
    balance_ntypes: Parts | None = None,
    balance_edges: bool = False,
    eps: float = 0.1,
    recursive: bool = False,
    objective: str = "cut",
    seed: int = 0,
    max_memory: int | None = None,
) -> Assignment:
    """Assigns every node of a graph to a part; the same for the same graph, arguments and seed.

    Args:
        graph: on the CPU, in memory or mapped.
        num_parts: number of parts.
        method: "metis" (fewest edges between parts; needs pymetis), "kaminpar" (as good, a third of
            the memory; needs kaminpar), "ldg" (restreaming LDG: a few bytes a node, a larger cut),
            "random" (equal parts, for comparison); or the parts themselves: integer[num_nodes], or
            `{node type: integer[n]}`.
        balance_ntypes: groups of nodes of which every part is to have an equal share: integer or
            bool[num_nodes], e.g. the training mask, or `{node type: integer[n]}`. None: the node
            types of a heterogeneous graph. Ignored where parts are given.
        balance_edges: parts are to have equal shares of the edges too. Likewise.
        eps: how far above the mean a part may be, for all that is balanced: 0.1 is 1.1 times.
        recursive: METIS bisects over and over.
        objective: what METIS keeps low: "cut", edges between parts; "vol", halo rows (with
            "metis" alone, and not recursive).
        seed: int in [0, 2**31).
        max_memory: bytes that may be used beside the graph; None asks the system.

    Raises:
        TypeError, ValueError: an argument is of wrong kind or value, or the graph is damaged.
        MemoryError: the method would take more than max_memory.
        RuntimeError: the method's package is not installed.

    Warns:
        UserWarning: a limit could not be kept.

    >>> from hopline.pipes import from_coo
    >>> ring = from_coo(torch.arange(8), (torch.arange(8) + 1) % 8, num_nodes=8)
    >>> assign_nodes(ring, 2, "random").quality.nodes
    [4, 4]
    """
    if not isinstance(graph, FusedCSCSamplingGraph):
        raise TypeError(
            f"graph is a {type(graph).__name__}; expected a FusedCSCSamplingGraph, e.g. the graph "
            "of a data set"
        )
    if graph.csc_indptr.device.type != "cpu" or graph.indices.device.type != "cpu":
        raise ValueError(
            f"graph is on {graph.indices.device}; expected one on the CPU: graph.to('cpu')"
        )
    num_parts = check_count(num_parts, "num_parts", 1)
    if num_parts > MOST_PARTS:
        raise ValueError(f"num_parts is {num_parts}; expected {MOST_PARTS} at most")
    if isinstance(eps, bool) or not isinstance(eps, int | float | np.integer | np.floating):
        raise TypeError(f"eps is {eps!r}; expected a number")
    if not 0 <= eps < float("inf"):
        raise ValueError(f"eps is {eps!r}; expected 0 or more, e.g. 0.1")
    seed = check_count(seed, "seed")
    if seed >= 1 << 31:
        raise ValueError(f"seed is {seed}; expected an int in [0, 2**31)")
    if objective not in ("cut", "vol"):
        raise ValueError(f"objective is {objective!r}; expected 'cut' or 'vol'")
    if recursive and objective == "vol":
        raise ValueError("objective is 'vol' with recursive=True, which knows 'cut' only; drop one")
    name = method if isinstance(method, str) else "given"
    if isinstance(method, str) and method not in METHODS:
        raise ValueError(f"method is {method!r}; expected one of {METHODS}, or each node's part")
    if objective == "vol" and name != "metis":
        raise ValueError(
            f"objective is 'vol' with method {name!r}; only 'metis' knows it: drop one"
        )
    _check_memory(graph, name, max_memory)
    indptr, indices = check_edges(graph.csc_indptr, graph.indices)
    groups, names = balance_groups(graph, balance_ntypes)
    moved = 0
    if not isinstance(method, str):
        parts = _given(graph, method, num_parts)
    elif num_parts == 1 or graph.total_num_nodes == 0:
        parts = np.zeros(graph.total_num_nodes, np.int32)
    else:
        starts, neighbors = indptr, indices
        # With a part for each node there is nothing to cut, and METIS complains of empty parts.
        if method == "random" or num_parts >= graph.total_num_nodes:
            parts = random_parts(graph.total_num_nodes, num_parts, fold(seed, RANDOM))
        elif method == "ldg":
            parts = ldg_parts(indptr, indices, num_parts, fold(seed, LDG))
        else:
            adjacency = undirected(graph.csc_indptr, graph.indices)
            starts, neighbors = adjacency.starts, adjacency.neighbors
            if method == "metis":
                parts = metis_parts(
                    adjacency, num_parts, seed, recursive=recursive, objective=objective
                )
            else:
                parts = kaminpar_parts(adjacency, num_parts, seed)
        loads = Loads.of(
            indptr, parts, num_parts, groups, len(names), eps=eps, balance_edges=balance_edges
        )
        moved = move_surplus(starts, neighbors, indptr, parts, groups, loads)
        _warn(loads, names, eps)
    quality = measure_quality(indptr, indices, parts, num_parts, groups, names)
    return Assignment(torch.from_numpy(parts), num_parts, name, quality, float(eps), moved)


def _check_memory(graph: FusedCSCSamplingGraph, method: str, max_memory: int | None) -> None:
    if max_memory is not None:
        check_count(max_memory, "max_memory", 1)
    bound = usable_memory() if max_memory is None else max_memory
    needed = estimate_memory(graph, method)
    if needed > bound:
        other = "kaminpar" if method == "metis" else "ldg"
        hint = "" if method not in ("metis", "kaminpar") else f"; method={other!r} takes less"
        raise MemoryError(
            f"method={method!r} would take up to {show_bytes(needed)} for "
            f"{graph.total_num_nodes:,} nodes and {graph.total_num_edges:,} edges, above the "
            f"{show_bytes(bound)} of max_memory{hint}"
        )


def _given(graph: FusedCSCSamplingGraph, parts: Parts, num_parts: int) -> Array:
    """Parts that the caller has found, in fused ids."""
    if graph.node_type_to_id is None:
        pieces = [_checked(parts, graph.total_num_nodes, num_parts, "method")]
    else:
        if not isinstance(parts, Mapping) or set(parts) != set(graph.node_type_to_id):
            raise TypeError(
                f"method is a {type(parts).__name__}; expected {{node type: parts}} for "
                f"{list(graph.node_type_to_id)}"
            )
        assert isinstance(graph.num_nodes, dict)
        pieces = [
            _checked(parts[name], graph.num_nodes[name], num_parts, f"method[{name!r}]")
            for name in sorted(graph.node_type_to_id, key=graph.node_type_to_id.__getitem__)
        ]
    return np.concatenate(pieces)


def _checked(parts: Any, count: int, num_parts: int, what: str) -> Array:
    checked = check_ids(parts, num_parts, what, torch.int32)
    if len(checked) != count:
        raise ValueError(f"{what} has {len(checked)} entries; expected one for each of {count}")
    array: Array = checked.numpy().astype(np.int32, copy=True)
    return array


def _warn(loads: Loads, names: list[str], eps: float) -> None:
    rows = ["nodes", "edges", *names]
    surplus = loads.surplus()
    if len(surplus) > MOST_WARNINGS:
        warnings.warn(
            f"{len(surplus)} limits could not be kept; these {MOST_WARNINGS} are exceeded most:",
            stacklevel=3,
        )
    for row, part in surplus[:MOST_WARNINGS]:
        warnings.warn(
            f"part {part} has {loads.loads[row, part]:,} of {loads.loads[row].sum():,} "
            f"{rows[row]}, above the limit {loads.limits[row]:,}, which is 1 + eps = {1 + eps:g} "
            "times the mean: no node could be moved without another limit; give a larger eps",
            stacklevel=3,
        )
