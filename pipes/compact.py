"""Compaction: ids of nodes to positions in a list of them, by first occurrence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from hopline.pipes.checks import (
    MASK_HINT,
    check_count,
    check_flag,
    check_values,
    holds_integers,
    too_large_for_int64,
)
from hopline.pipes.etypes import etype_str_to_tuple
from hopline.pipes.relabel import HashNodeTable, NodeList
from hopline.pipes.subgraph import CSCFormatBase
from hopline.pipes.tensor_functions import expand_indptr

__all__ = ["compact_csc_format", "unique_and_compact", "unique_and_compact_csc_formats"]

Nodes = torch.Tensor | dict[str, torch.Tensor]
Edges = CSCFormatBase | dict[str, CSCFormatBase]
ONE = ""  # stands for the node type of edges without types


class _Done:
    """A result that is there already, for callers that ask for it by `wait`."""

    def __init__(self, result: Any) -> None:
        self._result = result

    def wait(self) -> Any:
        """The result."""
        return self._result


def unique_and_compact(
    nodes: Sequence[torch.Tensor] | Mapping[str, Sequence[torch.Tensor]],
    rank: int = 0,
    world_size: int = 1,
    async_op: bool = False,
) -> Any:
    """Lists each node once, and gives positions in that list in place of ids.

    Args:
        nodes: integer tensors of one dimension; or such lists by node type.
        rank: 0.
        world_size: 1.
        async_op: return an object whose `wait()` gives the result.

    Returns:
        The nodes in the order of first occurrence, the list of compacted tensors, and None (the
        offsets of ranks, of which there is one); each of the first two by type if the nodes were.
        int32 ids give int32 positions, all others int64.

    Raises:
        TypeError: not lists of integer tensors.
        ValueError: a tensor is not of one dimension, or there is more than one rank.

    >>> unique, compacted, _ = unique_and_compact([torch.tensor([9, 4]), torch.tensor([4, 7, 9])])
    >>> unique.tolist(), [c.tolist() for c in compacted]
    ([9, 4, 7], [[0, 1], [1, 2, 0]])
    """
    _check_one_rank(rank, world_size, async_op)
    result: Any
    if isinstance(nodes, Mapping):
        unique, compacted = {}, {}
        for kind, tensors in nodes.items():
            unique[kind], compacted[kind] = _unique_and_compact(tensors, f"nodes of type {kind!r}")
        result = (unique, compacted, None)
    else:
        result = (*_unique_and_compact(nodes, "nodes"), None)
    return _Done(result) if async_op else result


def _unique_and_compact(
    tensors: Sequence[torch.Tensor], what: str
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    if isinstance(tensors, torch.Tensor) or not isinstance(tensors, Sequence):
        raise TypeError(f"{what} are a {type(tensors).__name__}; expected a list of tensors")
    arrays = [_array(tensor, what) for tensor in tensors]
    dtype = np.result_type(*arrays) if arrays else np.dtype(np.int64)
    device = tensors[0].device if tensors else "cpu"
    table = HashNodeTable()
    table.start(np.empty(0, dtype))
    everything = np.concatenate([np.empty(0, dtype), *arrays])
    local = torch.from_numpy(table.relabel(everything)).to(device)
    if dtype == np.int64:
        local = local.to(torch.int64)
    unique = torch.from_numpy(table.nodes).to(device)
    return unique, list(torch.split(local, [len(array) for array in arrays]))


def unique_and_compact_csc_formats(
    csc_formats: Edges,
    unique_dst_nodes: Nodes,
    rank: int = 0,
    world_size: int = 1,
    async_op: bool = False,
) -> Any:
    """Relabels one hop: ids of sources to positions in the list of its rows.

    Args:
        csc_formats: edges whose indices are ids; or `{edge type: edges}`, with ids local to types.
        unique_dst_nodes: integer[columns], the destinations; or `{node type: ids}`. A destination
            that repeats keeps a row for each time, and sources mean its first.
        rank: 0.
        world_size: 1.
        async_op: return an object whose `wait()` gives the result.

    Returns:
        The rows, destinations first, then new sources by first occurrence; the edges, their
        indices int32 positions in the rows of their source type; and None, as there is one rank.
        By type: rows for every node type, those of unique_dst_nodes first, in its order.

    Raises:
        TypeError: edges come by type and destinations do not, or the reverse; not integers.
        ValueError: destinations do not fit indptr, indptr not indices, or there are more ranks.

    >>> csc = CSCFormatBase(torch.tensor([0, 2, 3]), torch.tensor([9, 7, 5]))
    >>> rows, compacted, _ = unique_and_compact_csc_formats(csc, torch.tensor([5, 9]))
    >>> rows.tolist(), compacted.indices.tolist()
    ([5, 9, 7], [1, 2, 0])
    """
    _check_one_rank(rank, world_size, async_op)
    rows, compacted = _relabel(csc_formats, unique_dst_nodes, HashNodeTable)
    return _Done((rows, compacted, None)) if async_op else (rows, compacted, None)


def compact_csc_format(
    csc_formats: Edges, dst_nodes: Nodes, dst_timestamps: Nodes | None = None
) -> Any:
    """Gives every edge a row of its own, so that each source keeps the time of its destination.

    Args:
        csc_formats: edges whose indices are ids; or `{edge type: edges}`, with ids local to types.
        dst_nodes: integer[columns], the destinations; or `{node type: ids}`.
        dst_timestamps: int64[columns], the time of each destination; or `{node type: times}`.

    Returns:
        The rows: destinations, then the source of each edge, repeats included; the edges, their
        indices int32 positions in the rows of their source type; and, if times were given, the
        time of each row. By type in the same order as `unique_and_compact_csc_formats`.

    Raises:
        TypeError: some of the arguments come by type and others do not; not integers.
        ValueError: destinations do not fit indptr or times, or indptr not indices.

    >>> csc = CSCFormatBase(torch.tensor([0, 2, 3]), torch.tensor([9, 7, 9]))
    >>> rows, compacted, times = compact_csc_format(
    ...     csc, torch.tensor([5, 9]), torch.tensor([100, 200]))
    >>> rows.tolist(), compacted.indices.tolist(), times.tolist()
    ([5, 9, 9, 7, 9], [2, 3, 4], [100, 200, 100, 100, 200])
    """
    rows, compacted = _relabel(csc_formats, dst_nodes, NodeList)
    if dst_timestamps is None:
        return rows, compacted
    edges, nodes, _ = _by_type(csc_formats, dst_nodes)
    if isinstance(dst_timestamps, dict) != isinstance(csc_formats, dict):
        raise TypeError(
            f"dst_timestamps are a {type(dst_timestamps).__name__}, the edges a "
            f"{type(csc_formats).__name__}; expected both by type or neither"
        )
    given = dst_timestamps if isinstance(dst_timestamps, dict) else {ONE: dst_timestamps}
    times: dict[str, list[torch.Tensor]] = {}
    for kind, ids in nodes.items():
        time = given.get(kind, torch.empty(0, dtype=torch.int64, device=ids.device))
        if not isinstance(time, torch.Tensor):
            raise TypeError(
                f"dst_timestamps{_of_type(kind)} are a {type(time).__name__}; expected a "
                "torch.Tensor"
            )
        if time.shape != ids.shape:
            raise ValueError(
                f"dst_timestamps{_of_type(kind)} have shape {tuple(time.shape)}; expected one for "
                f"each of {len(ids)} destinations"
            )
        times[kind] = [time]
    for (source, destination), csc in edges.values():
        spread = expand_indptr(csc.indptr, node_ids=times[destination][0])
        times[source].append(spread)
    joined = {kind: torch.cat(parts) for kind, parts in times.items()}
    return rows, compacted, joined if isinstance(csc_formats, dict) else joined[ONE]


def _relabel(csc_formats: Edges, dst_nodes: Nodes, table_type: Any) -> tuple[Nodes, Edges]:
    edges, nodes, dtype = _by_type(csc_formats, dst_nodes)
    tables = {}
    for kind, ids in nodes.items():
        tables[kind] = table_type()
        tables[kind].start(_array(ids, "destinations").astype(dtype, copy=False))
    compacted = {}
    for name, ((source, _), csc) in edges.items():
        indices = _array(csc.indices, "indices").astype(dtype, copy=False)
        local = torch.from_numpy(tables[source].relabel(indices)).to(csc.indices.device)
        compacted[name] = CSCFormatBase(csc.indptr, local)
    rows = {
        kind: torch.from_numpy(table.nodes).to(nodes[kind].device) for kind, table in tables.items()
    }
    if isinstance(csc_formats, dict):
        return rows, compacted
    return rows[ONE], compacted[ONE]


def _by_type(
    csc_formats: Edges, dst_nodes: Nodes
) -> tuple[
    dict[str, tuple[tuple[str, str], CSCFormatBase]], dict[str, torch.Tensor], np.dtype[Any]
]:
    """Checked: edges with their node types, destinations of every node type, dtype of the ids."""
    typed = isinstance(csc_formats, dict)
    if typed != isinstance(dst_nodes, dict):
        raise TypeError(
            f"edges are a {type(csc_formats).__name__}, destinations a {type(dst_nodes).__name__}; "
            "expected both by type or neither"
        )
    formats: dict[str, Any] = csc_formats if isinstance(csc_formats, dict) else {ONE: csc_formats}
    nodes = dict(dst_nodes) if isinstance(dst_nodes, dict) else {ONE: dst_nodes}
    arrays = [_array(ids, f"destinations{_of_type(kind)}") for kind, ids in nodes.items()]
    edges = {}
    for name, csc in formats.items():
        what = f"edges{_of_type(name)}"
        source, _, destination = etype_str_to_tuple(name) if typed else (ONE, ONE, ONE)
        if not isinstance(csc, CSCFormatBase):
            raise TypeError(f"{what} are a {type(csc).__name__}; expected a CSCFormatBase")
        arrays.append(_array(csc.indices, f"indices of {what}"))
        # Types that no destination has still have rows, in the order in which edges name them.
        for end in (source, destination):
            nodes.setdefault(end, csc.indices[:0])
        if len(csc.indptr) != len(nodes[destination]) + 1:
            raise ValueError(
                f"{what}: {len(nodes[destination])} destinations for {len(csc.indptr) - 1} "
                "columns of indptr; expected as many of each"
            )
        edges[name] = (source, destination), csc
    dtype = np.result_type(*arrays) if arrays else np.dtype(np.int64)
    return edges, nodes, dtype


def _array(tensor: torch.Tensor, what: str) -> np.ndarray[Any, Any]:
    """int32[n] as it is, any other integers as int64[n]."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{what}: got a {type(tensor).__name__}; expected a tensor of integers")
    if not holds_integers(tensor):
        hint = MASK_HINT if tensor.dtype == torch.bool else ""
        raise TypeError(f"{what}: got dtype {tensor.dtype}; expected integers{hint}")
    if tensor.dim() != 1:
        raise ValueError(f"{what}: got shape {tuple(tensor.shape)}; expected one dimension")
    check_values(tensor, what)
    too_large = too_large_for_int64(tensor)
    if too_large is not None:
        raise ValueError(f"{what}: id {too_large} does not fit int64; expected ids below 2**63")
    if tensor.dtype != torch.int32:
        tensor = tensor.to(torch.int64)
    array: np.ndarray[Any, Any] = tensor.detach().cpu().contiguous().numpy()
    return array


def _of_type(name: str) -> str:
    return f" of type {name!r}" if name else ""


def _check_one_rank(rank: int, world_size: int, async_op: bool) -> None:
    check_count(rank, "rank", None)
    check_count(world_size, "world_size", None)
    check_flag(async_op, "async_op")
    if world_size != 1 or rank != 0:
        raise ValueError(
            f"rank {rank} of world_size {world_size}: one mini-batch for several ranks "
            "(cooperative mini-batches) is not supported; expected rank 0 of 1"
        )
