"""from_coo: a sampling graph from pairs of source and destination."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from hopline.pipes.checks import check_flag, check_ids, check_mapping, check_rows
from hopline.pipes.etypes import etype_str_to_tuple
from hopline.pipes.graph import ORIGINAL_EDGE_ID, FusedCSCSamplingGraph
from hopline.pipes.kernels import cpu

__all__ = ["from_coo", "smallest_type_dtype"]

MOST_NODES = 2**48  # above, a number is a slip; sums of such numbers fit in int64

Pair = tuple[torch.Tensor, torch.Tensor]


def smallest_type_dtype(num_types: int) -> torch.dtype:
    """The narrowest integer type that holds the ids of so many edge types."""
    for dtype in (torch.uint8, torch.int16, torch.int32):
        if num_types - 1 <= torch.iinfo(dtype).max:
            return dtype
    return torch.int64


def from_coo(
    src: torch.Tensor | Mapping[str, Pair],
    dst: torch.Tensor | None = None,
    num_nodes: int | Mapping[str, int] | None = None,
    *,
    node_attributes: Mapping[str, Any] | None = None,
    edge_attributes: Mapping[str, Any] | None = None,
    include_original_edge_id: bool | None = None,
) -> FusedCSCSamplingGraph:
    """Builds a graph from its edges; edge attributes follow their edges.

    Within a column, edges keep the order of the input (by type first, in a heterogeneous graph).
    Parallel edges and self-loops are kept.

    Args:
        src: integer[num_edges], sources; or, heterogeneous,
            `{"source:relation:destination": (src, dst)}` with ids local to each type.
        dst: integer[num_edges], destinations; None when src is a dict.
        num_nodes: number of nodes, or `{node type: number}`; the order of types is the order
            of this dict, and edge types are numbered in the order of src.
        node_attributes: `{name: tensor}`, or `{name: {node type: tensor}}` that covers all types.
        edge_attributes: `{name: tensor}` in the order of the input, or
            `{name: {edge type: tensor}}` that covers all types.
        include_original_edge_id: keep each edge's number in the input (in that of its type), by
            which edge features are read. None keeps them if the order of the edges changes.

    Returns:
        The graph.

    Raises:
        TypeError, ValueError: arguments of wrong kind or shape.
        IndexError: an end is not a node.

    >>> g = from_coo(torch.tensor([0, 1, 2, 0]), torch.tensor([2, 0, 1, 1]), 3,
    ...              edge_attributes={"weight": torch.tensor([10, 11, 12, 13])})
    >>> g.indices.tolist(), g.edge_attributes["weight"].tolist()
    ([1, 2, 0, 0], [11, 12, 13, 10])
    """
    check_mapping(node_attributes, "node_attributes", "{name: tensor}")
    check_mapping(edge_attributes, "edge_attributes", "{name: tensor}")
    check_flag(include_original_edge_id, "include_original_edge_id", optional=True)
    if isinstance(src, Mapping):
        if dst is not None or not isinstance(num_nodes, Mapping):
            raise TypeError(
                "for edges by type, pass from_coo({edge type: (src, dst)}, num_nodes={type: n})"
            )
        return _from_typed(
            src, num_nodes, node_attributes, edge_attributes, include_original_edge_id
        )
    if dst is None or isinstance(num_nodes, bool) or not isinstance(num_nodes, int):
        raise TypeError(
            f"got dst {type(dst).__name__}, num_nodes {num_nodes!r}; expected "
            "from_coo(src, dst, num_nodes) with two tensors and an int"
        )
    indptr, indices, permutation = _sort([("", src, dst, 0, num_nodes, 0, num_nodes)], num_nodes)
    attributes = {}
    for name, value in (edge_attributes or {}).items():
        check_rows(value, len(src), f"edge attribute {name!r}")
        attributes[name] = _permuted(value, permutation)
    _keep_ids(attributes, permutation, include_original_edge_id)
    for name, value in (node_attributes or {}).items():
        check_rows(value, num_nodes, f"node attribute {name!r}")
    return FusedCSCSamplingGraph(
        indptr, indices, node_attributes=node_attributes or None, edge_attributes=attributes or None
    )


def _from_typed(
    edges: Mapping[str, Pair],
    num_nodes: Mapping[str, int],
    node_attributes: Mapping[str, Mapping[str, torch.Tensor]] | None,
    edge_attributes: Mapping[str, Mapping[str, torch.Tensor]] | None,
    include_original_edge_id: bool | None,
) -> FusedCSCSamplingGraph:
    for name, count in num_nodes.items():
        if isinstance(count, bool) or not isinstance(count, int) or not isinstance(name, str):
            raise TypeError(f"num_nodes has {name!r}: {count!r}; expected a string and an int")
        if count < 0:
            raise ValueError(f"num_nodes[{name!r}] is {count}; expected 0 or more")
    _check_total(sum(num_nodes.values()))
    node_types = {name: i for i, name in enumerate(num_nodes)}
    offsets = np.concatenate([[0], np.cumsum(list(num_nodes.values()))]).astype(np.int64)
    total = int(offsets[-1])
    lists = []
    for name, pair in edges.items():
        if not isinstance(name, str):
            raise TypeError(
                f"edge type is {name!r}; expected a string, 'source:relation:destination'"
            )
        source, _, destination = etype_str_to_tuple(name)
        if not isinstance(pair, Sequence | torch.Tensor) or len(pair) != 2:
            raise ValueError(f"edges of type {name!r} are {pair!r:.100}; expected (src, dst)")
        src, dst = pair
        for end in (source, destination):
            if end not in node_types:
                raise ValueError(
                    f"edge type {name!r} names node type {end!r}; num_nodes has {list(num_nodes)}"
                )
        s, d = node_types[source], node_types[destination]
        lists.append(
            (name, src, dst, int(offsets[s]), num_nodes[source], int(offsets[d]),
             num_nodes[destination])
        )  # fmt: skip
    indptr, indices, permutation = _sort(lists, total)
    first = np.concatenate([[0], np.cumsum([len(item[1]) for item in lists])]).astype(np.int64)
    types = torch.bucketize(permutation, torch.from_numpy(first[1:]), right=True)
    attributes: dict[str, torch.Tensor] = {}
    for name, parts in (edge_attributes or {}).items():
        tensors = _parts(parts, {item[0]: len(item[1]) for item in lists}, f"edge {name!r}")
        attributes[name] = _permuted(torch.cat(tensors), permutation)
    numbers = permutation - torch.from_numpy(first)[types]
    _keep_ids(attributes, numbers, include_original_edge_id)
    nodes = {
        name: torch.cat(_parts(parts, num_nodes, f"node {name!r}"))
        for name, parts in (node_attributes or {}).items()
    }
    return FusedCSCSamplingGraph(
        indptr,
        indices,
        torch.from_numpy(offsets),
        types.to(smallest_type_dtype(len(lists))),
        node_types,
        {name: i for i, name in enumerate(edges)},
        nodes or None,
        attributes or None,
    )


def _permuted(value: torch.Tensor, permutation: torch.Tensor) -> torch.Tensor:
    """Rows in another order; torch 2.9 does not index tensors of wide unsigned integers."""
    if value.dtype not in (torch.uint16, torch.uint32, torch.uint64):
        return value[permutation]
    return torch.from_numpy(value.numpy()[permutation.numpy()])


def _keep_ids(
    attributes: dict[str, torch.Tensor], numbers: torch.Tensor, wanted: bool | None
) -> None:
    """Adds the edges' numbers to the attributes, if wanted or if positions would not do."""
    if wanted is None:
        wanted = not torch.equal(numbers, torch.arange(len(numbers), device="cpu"))
    if wanted:
        attributes[ORIGINAL_EDGE_ID] = numbers


def _parts(parts: Any, rows: Mapping[str, int], what: str) -> list[torch.Tensor]:
    """The tensor of every type, in the types' order."""
    if not rows:
        raise ValueError(
            f"attribute of {what}: there are no types that could have it; leave it out"
        )
    if not isinstance(parts, Mapping) or set(parts) != set(rows):
        found = sorted(parts) if isinstance(parts, Mapping) else type(parts).__name__
        raise ValueError(
            f"attribute of {what}: got {found}; expected a tensor for each of {list(rows)}"
        )
    for name, count in rows.items():
        check_rows(parts[name], count, f"attribute of {what} for {name!r}")
    return [parts[name] for name in rows]


def _check_total(total: int) -> None:
    if not 0 <= total <= MOST_NODES:
        raise ValueError(f"num_nodes is {total}; expected 0 or more, {MOST_NODES} or fewer")


def _sort(
    lists: list[tuple[str, torch.Tensor, torch.Tensor, int, int, int, int]], total: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Counting sort by destination, stable over the lists and the edges in them.

    Args:
        lists: (edge type, src, dst, first source id, sources, first destination id, destinations).
        total: number of nodes.

    Returns:
        csc_indptr, indices, and each edge's number in the concatenated input.
    """
    _check_total(total)
    try:
        counts = np.zeros(total + 1, np.int64)
    except MemoryError as error:
        raise MemoryError(
            f"csc_indptr of {total} nodes takes {8 * (total + 1)} bytes, which are not there; are "
            "nodes numbered from 0 without gaps?"
        ) from error
    checked = []
    for name, src, dst, src_offset, num_src, dst_offset, num_dst in lists:
        kind = f" of type {name!r}" if name else ""
        source = check_ids(src, num_src, f"sources{kind}", torch.int64).numpy()
        destination = check_ids(dst, num_dst, f"destinations{kind}", torch.int64).numpy()
        if len(source) != len(destination):
            raise ValueError(
                f"edges{kind}: {len(source)} sources and {len(destination)} destinations; "
                "expected as many of each"
            )
        cpu.count_destinations(destination, dst_offset + 1, counts)
        checked.append((source, destination, src_offset, dst_offset))
    indptr = np.cumsum(counts)
    num_edges = int(indptr[-1])
    indices = np.empty(num_edges, np.int32 if total < 2**31 else np.int64)
    permutation = np.empty(num_edges, np.int64)
    cursor = indptr[:-1].copy()
    first = 0
    for source, destination, src_offset, dst_offset in checked:
        cpu.place_edges(
            source, destination, src_offset, dst_offset, first, 0, total, 0, cursor, indices,
            permutation,
        )  # fmt: skip
        first += len(source)
    return torch.from_numpy(indptr), torch.from_numpy(indices), torch.from_numpy(permutation)
