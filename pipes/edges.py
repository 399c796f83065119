"""Sets of edges as pairs of ids: their checks, their reverses, and leaving them out of a hop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hopline.pipes.checks import check_values, holds_integers
from hopline.pipes.etypes import etype_str_to_tuple
from hopline.pipes.features.buffers import empty_array
from hopline.pipes.kernels import edges as kernels
from hopline.pipes.kernels.dispatch import on_device

if TYPE_CHECKING:
    from hopline.pipes.graph import FusedCSCSamplingGraph

__all__ = [
    "add_reverse_edges",
    "check_edges",
    "check_reverse_etypes",
    "has_edges",
    "unlisted_edges",
]

Edges = torch.Tensor | dict[str, torch.Tensor]
Array = np.ndarray[Any, Any]


def check_edges(edges: Any, what: str) -> torch.Tensor:
    """The edges as they are, if they are integers of shape [N, 2].

    Raises:
        TypeError: not a tensor of integers.
        ValueError: another shape.
    """
    if not isinstance(edges, torch.Tensor):
        raise TypeError(
            f"{what} are a {type(edges).__name__}; expected an integer tensor of shape [N, 2], one "
            "row (source, destination) an edge"
        )
    if not holds_integers(edges):
        raise TypeError(f"{what} have dtype {edges.dtype}; expected integers")
    if edges.dim() != 2 or edges.shape[1] != 2:
        on_its_side = edges.dim() == 2 and edges.shape[0] == 2
        raise ValueError(
            f"{what} have shape {tuple(edges.shape)}; expected [N, 2], one row (source, "
            "destination) an edge" + (": transpose them by .T" if on_its_side else "")
        )
    return edges


def check_reverse_etypes(mapping: Any) -> dict[str, str]:
    """A mapping from edge types to the types of their reverse edges, as a dict.

    Raises:
        TypeError: not a mapping of strings.
        ValueError: a name is no edge type, or its reverse does not run between the same node types
            the other way.
    """
    if not isinstance(mapping, Mapping):
        raise TypeError(
            f"reverse_etypes_mapping is a {type(mapping).__name__}; expected {{edge type: edge "
            "type of its reverse}, e.g. {'user:buys:item': 'item:bought_by:user'}"
        )
    for etype, reverse in mapping.items():
        for name in (etype, reverse):
            if not isinstance(name, str):
                raise TypeError(
                    f"reverse_etypes_mapping has {name!r}, a {type(name).__name__}; expected names "
                    "of edge types, 'source:relation:destination'"
                )
        source, _, destination = etype_str_to_tuple(etype)
        back, _, to = etype_str_to_tuple(reverse)
        if (back, to) != (destination, source):
            raise ValueError(
                f"reverse_etypes_mapping has {etype!r}: {reverse!r}; the reverse of edges from "
                f"{source!r} to {destination!r} runs from {destination!r} to {source!r}"
            )
    return dict(mapping)


def add_reverse_edges(
    edges: Edges, reverse_etypes_mapping: Mapping[str, str] | None = None
) -> Edges:
    """The edges, and each of them the other way round.

    Args:
        edges: integer[N, 2], rows (source, destination); or `{edge type: integer[N, 2]}`.
        reverse_etypes_mapping: `{edge type: edge type of its reverse}`, for typed edges only; the
            edges of a type without an entry have no reverse.

    Returns:
        integer[2 * N, 2], first the edges as given; or, by type, the edges given, each type
        followed by the reverse edges that are of this type. Repeats are kept.

    Raises:
        TypeError: edges are not tensors of integers; a mapping comes with edges without types, or
            is not one of strings.
        ValueError: edges are not of shape [N, 2]; typed edges come without a mapping, or it maps a
            type to one between other node types.

    >>> add_reverse_edges(torch.tensor([[0, 1], [2, 3]])).tolist()
    [[0, 1], [2, 3], [1, 0], [3, 2]]
    >>> typed = {"user:buys:item": torch.tensor([[0, 5]])}
    >>> add_reverse_edges(typed, {"user:buys:item": "item:bought_by:user"})["item:bought_by:user"]
    tensor([[5, 0]])
    """
    if not isinstance(edges, dict):
        pairs = check_edges(edges, "edges")
        if reverse_etypes_mapping is not None:
            raise TypeError("reverse_etypes_mapping is for edges by type; these are one tensor")
        return torch.cat((pairs, pairs.flip(1)))
    if reverse_etypes_mapping is None:
        raise ValueError(
            "edges come by type; pass reverse_etypes_mapping={edge type: edge type of its reverse}"
        )
    mapping = check_reverse_etypes(reverse_etypes_mapping)
    both = {etype: check_edges(pairs, f"edges of type {etype!r}") for etype, pairs in edges.items()}
    for etype, pairs in edges.items():
        if etype in mapping:
            reverse = pairs.flip(1)
            known = both.get(mapping[etype])
            both[mapping[etype]] = reverse if known is None else torch.cat((known, reverse))
    return both


def unlisted_edges(
    indptr: torch.Tensor,
    indices: torch.Tensor,
    rows: torch.Tensor | None,
    columns: torch.Tensor,
    listed: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Finds the edges of compressed columns that are not listed.

    The search runs where the edges are: on the CPU in time proportional to edges and list, on a GPU
    in the edges times the logarithm of the list.

    Args:
        indptr: int64[num_columns + 1].
        indices: integer[num_edges], positions in rows.
        rows: integer[num_rows], ids of the sources; None if indices are ids.
        columns: integer[num_columns], ids of the destinations.
        listed: integer[N, 2], rows (source id, destination id).

    Returns:
        int64[num_columns + 1] and int64[kept]: the new pointers, and the positions of the edges
        that stay, ascending; None if all stay.

    Raises:
        ValueError: the columns are damaged.
    """
    if len(listed) == 0 or len(indices) == 0:
        return None
    if len(indptr) != len(columns) + 1:
        raise ValueError(
            f"indptr has {len(indptr)} entries for {len(columns)} destinations; expected one more "
            "than destinations"
        )
    check_values(listed, "edges to exclude")
    if on_device(indices):
        return _unlisted_on_device(indptr, indices, rows, columns, listed)
    pairs = listed.to(torch.int64).cpu().numpy()
    kept_indptr = empty_array(len(indptr), np.int64)
    kept = empty_array(len(indices), np.int64)
    count = kernels.keep_edges(
        _array(indptr.to(torch.int64)), _array(indices),
        _array(columns[:0] if rows is None else rows), rows is not None, _array(columns),
        np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1]), kept_indptr, kept,
    )  # fmt: skip
    if count < 0:
        raise _damaged(-1 - count, indices, rows)
    if count == len(indices):
        return None
    return torch.from_numpy(kept_indptr), torch.from_numpy(kept[:count])


def _unlisted_on_device(
    indptr: torch.Tensor,
    indices: torch.Tensor,
    rows: torch.Tensor | None,
    columns: torch.Tensor,
    listed: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor] | None:
    from hopline.pipes.host_reads import HostReads
    from hopline.pipes.kernels.cuda.edges import keep_edges

    device = indices.device
    pairs = listed.to(device, torch.int64, non_blocking=True)
    kept_indptr, kept, count, bad = keep_edges(
        indptr.to(device, torch.int64).contiguous(), indices.contiguous(),
        None if rows is None else rows.to(device).contiguous(), columns.to(device).contiguous(),
        pairs[:, 0].contiguous(), pairs[:, 1].contiguous(),
    )  # fmt: skip
    reads = HostReads(device)
    reads.expect_nothing(bad, lambda column: _damaged(column, indices, rows))
    (stay,) = reads.read(count)
    return None if stay == len(indices) else (kept_indptr, kept[:stay])


def _damaged(column: int, indices: torch.Tensor, rows: torch.Tensor | None) -> ValueError:
    return ValueError(
        f"destination {column} of the subgraph is damaged: expected pointers that never descend, "
        f"from 0 to {len(indices)}, and sources below {'2**63' if rows is None else len(rows)}"
    )


def _array(tensor: torch.Tensor) -> Array:
    array: Array = tensor.cpu().contiguous().numpy()
    return array


def has_edges(
    graph: FusedCSCSamplingGraph, sources: Array, columns: Array, edge_type: int = 0
) -> Array:
    """bool[n]: whether there is an edge of a type from each source to its column.

    Args:
        graph: a graph in host memory.
        sources: int64[n], fused ids.
        columns: int64[n], fused ids, all in range.
        edge_type: its number; not read of a graph without types.

    Raises:
        ValueError: the graph is damaged.
    """
    found = np.empty(len(columns), bool)
    kinds = NO_TYPES if graph.type_per_edge is None else graph.type_per_edge.numpy()
    bad = kernels.find_edges(
        graph.csc_indptr.numpy(), graph.indices.numpy(), kinds, edge_type, sources, columns, found
    )
    if bad >= 0:
        raise ValueError(f"csc_indptr is damaged at node {columns[bad]}: {graph}")
    return found


NO_TYPES: Array = np.empty(0, np.uint8)
