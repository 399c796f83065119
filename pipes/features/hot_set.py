"""Hot sets: which rows mini-batches ask for most, for a cache that holds just those.

Lin et al., "PaGraph: scaling GNN training on large graphs via computation-aware caching", SoCC
2020, takes the nodes of highest out-degree; Yang et al., "GNNLab", EuroSys 2022, counts over some
mini-batches.
"""

from __future__ import annotations

import sys
from itertools import islice
from typing import Any

import numpy as np
import torch

from hopline.pipes.graph import FusedCSCSamplingGraph
from hopline.pipes.loader import DataLoader
from hopline.pipes.placement import host_array
from hopline.pipes.stage import Chain

__all__ = ["hot_set_by_degree", "hot_set_by_presampling"]

CHUNK = 1 << 24  # edges counted at a time

Array = np.ndarray[Any, Any]
Ids = torch.Tensor | dict[str, torch.Tensor]


def hot_set_by_degree(graph: FusedCSCSamplingGraph, count: int) -> Ids:
    """The nodes that are the source of most edges: sampling meets a source once an edge.

    Args:
        graph: the graph; its edges are read once, in chunks.
        count: how many nodes, over all types together.

    Returns:
        int64[k] ids, most edges first, equal ones by id, without nodes that are no source; or
        `{node type: ids}`.

    Raises:
        TypeError: count is no int, or there is no graph.
        ValueError: count is negative, or an index names no node: the graph is damaged.

    >>> from hopline.pipes import from_coo
    >>> graph = from_coo(torch.tensor([2, 2, 1]), torch.tensor([0, 1, 0]), 4)
    >>> hot_set_by_degree(graph, 3).tolist()
    [2, 1]
    """
    count = _checked_count("count", count, 0)
    if not isinstance(graph, FusedCSCSamplingGraph):
        raise TypeError(f"graph is a {type(graph).__name__}; expected a FusedCSCSamplingGraph")
    graph.check_indices()
    indices = host_array(graph.indices)
    degrees = np.zeros(graph.total_num_nodes, np.int64)
    for start in range(0, len(indices), CHUNK):
        degrees += np.bincount(indices[start : start + CHUNK], minlength=len(degrees))
    hot = _most(degrees, count)
    if graph.node_type_offset is None or graph.node_type_to_id is None:
        return torch.from_numpy(hot)
    offsets = graph.node_type_offset.tolist()
    return {
        kind: torch.from_numpy(hot[(hot >= offsets[i]) & (hot < offsets[i + 1])] - offsets[i])
        for kind, i in graph.node_type_to_id.items()
    }


def hot_set_by_presampling(chain: Chain, count: int, batches: int) -> Ids:
    """The nodes that most of the chain's first mini-batches ask for, from the first epoch on.

    Args:
        chain: samples; give the part before `fetch_feature`. It is left as it is.
        count: how many nodes, over all types together.
        batches: how many mini-batches to count.

    Returns:
        int64[k] ids, most wanted first, equal ones by id (by type, then by id), without nodes that
        were not met; or `{node type: ids}`.

    Raises:
        TypeError: count or batches is no int, or there is no chain.
        ValueError: count or batches is out of range, or a mini-batch has no input_nodes.
    """
    count = _checked_count("count", count, 0)
    batches = _checked_count("batches", batches, 1)
    if not isinstance(chain, Chain):
        raise TypeError(f"chain is a {type(chain).__name__}; expected a chain that samples")
    seen: dict[str | None, Array] = {}
    with DataLoader(chain) as loader:
        while batches:
            read = 0
            for minibatch in islice(loader, min(batches, sys.maxsize)):
                _add(seen, minibatch.input_nodes)
                read += 1
            if not read:
                break
            batches -= read
    counts = np.concatenate([np.empty(0, np.int64), *seen.values()])
    hot = _most(counts, count)
    if None in seen or not seen:
        return torch.from_numpy(hot)
    result, start = {}, 0
    for kind, own in seen.items():
        assert kind is not None
        mine = hot[(hot >= start) & (hot < start + len(own))] - start
        result[kind] = torch.from_numpy(mine)
        start += len(own)
    return result


def _add(seen: dict[str | None, Array], nodes: Any) -> None:
    """Counts the nodes of a mini-batch, each once."""
    if nodes is None:
        raise ValueError(
            "a mini-batch has no input_nodes to count; give a chain with sample_neighbor or the "
            "like"
        )
    for kind, ids in (nodes if isinstance(nodes, dict) else {None: nodes}).items():
        array = np.unique(ids.cpu().numpy())
        counts = seen.get(kind, np.zeros(0, np.int64))
        if len(array) and array[-1] >= len(counts):
            counts = np.concatenate(
                [counts, np.zeros(max(int(array[-1]) + 1 - len(counts), len(counts)), np.int64)]
            )
        counts[array] += 1
        seen[kind] = counts


def _most(counts: Array, count: int) -> Array:
    """int64[<= count], positions of the largest counts above 0, largest first, then by position."""
    count = min(count, int(np.count_nonzero(counts)))
    if not count:
        return np.empty(0, np.int64)
    least = np.partition(counts, len(counts) - count)[len(counts) - count]
    above = np.flatnonzero(counts > least)
    hot = np.concatenate([above, np.flatnonzero(counts == least)[: count - len(above)]])
    order: Array = hot[np.lexsort((hot, -counts[hot]))]
    return order


def _checked_count(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} is {value!r}; expected an int")
    if value < least:
        raise ValueError(f"{name} is {value}; expected {least} or more")
    return int(value)
