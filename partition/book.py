"""PartitionBook: who owns a node or an edge, in memory for a few numbers a part."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from hopline.pipes.checks import check_count, check_id_tensor

__all__ = ["PartitionBook"]

Array = np.ndarray[Any, Any]
Ranges = Mapping[str, list[int]]


class PartitionBook:
    """Owners and local ids. The ids of a type that a part owns are one range.

    Args:
        num_parts: number of parts P.
        node_ranges: `{node type: P + 1 bounds}`: part p owns the ids from bounds[p] to
            bounds[p + 1]. Of a homogeneous graph the type is "".
        edge_ranges: likewise; an edge belongs to the part of its destination.

    Raises:
        TypeError: bounds are no lists of ints.
        ValueError: bounds are of a wrong number, do not begin with 0, or descend.

    >>> book = PartitionBook(2, {"": [0, 3, 5]}, {"": [0, 4, 9]})
    >>> book.node_owner(torch.tensor([0, 2, 3, 4])).tolist()
    [0, 0, 1, 1]
    >>> book.local_node_ids(torch.tensor([3, 4])).tolist(), book.num_nodes(), book.num_nodes(part=1)
    ([0, 1], 5, 2)
    """

    def __init__(self, num_parts: int, node_ranges: Ranges, edge_ranges: Ranges) -> None:
        self.num_parts = check_count(num_parts, "num_parts", 1)
        self._nodes = {kind: self._bounds(b, kind, "node") for kind, b in node_ranges.items()}
        self._edges = {kind: self._bounds(b, kind, "edge") for kind, b in edge_ranges.items()}

    def _bounds(self, bounds: Any, kind: str, what: str) -> Array:
        name = f"ranges of {what} type {kind!r}" if kind else f"{what} ranges"
        if not isinstance(bounds, list) or any(type(b) is not int for b in bounds):
            raise TypeError(f"{name} are {bounds!r}; expected a list of ints")
        if len(bounds) != self.num_parts + 1:
            raise ValueError(
                f"{name} have {len(bounds)} bounds; expected one more than the "
                f"{self.num_parts} parts"
            )
        if bounds[0] != 0 or any(a > b for a, b in pairwise(bounds)):
            raise ValueError(f"{name} are {bounds}; expected bounds from 0 that never descend")
        return np.array(bounds, np.int64)

    @property
    def node_types(self) -> list[str]:
        """Node types, [""] for a homogeneous graph."""
        return list(self._nodes)

    @property
    def edge_types(self) -> list[str]:
        """Edge types, [""] for a homogeneous graph."""
        return list(self._edges)

    @property
    def is_homogeneous(self) -> bool:
        """Whether the graph has no types."""
        return self.node_types == [""]

    def num_nodes(self, node_type: str | None = None, part: int | None = None) -> int:
        """Nodes of a type, of all parts or of one."""
        return self._count(self._of(self._nodes, node_type, "node"), part)

    def num_edges(self, edge_type: str | None = None, part: int | None = None) -> int:
        """Edges of a type, of all parts or of one."""
        return self._count(self._of(self._edges, edge_type, "edge"), part)

    def node_range(self, part: int, node_type: str | None = None) -> range:
        """The node ids that a part owns."""
        return self._range(self._of(self._nodes, node_type, "node"), part)

    def edge_range(self, part: int, edge_type: str | None = None) -> range:
        """The edge ids that a part owns."""
        return self._range(self._of(self._edges, edge_type, "edge"), part)

    def node_owner(self, ids: torch.Tensor, node_type: str | None = None) -> torch.Tensor:
        """The part of each node.

        Args:
            ids: integer[n], of one type.
            node_type: their type; None in a homogeneous graph.

        Returns:
            int64[n], on the CPU.

        Raises:
            IndexError: an id is outside the graph.
            KeyError: there is no such type.
        """
        return self._owner(self._of(self._nodes, node_type, "node"), ids, "node")

    def edge_owner(self, ids: torch.Tensor, edge_type: str | None = None) -> torch.Tensor:
        """The part of each edge; as `node_owner`."""
        return self._owner(self._of(self._edges, edge_type, "edge"), ids, "edge")

    def local_node_ids(self, ids: torch.Tensor, node_type: str | None = None) -> torch.Tensor:
        """int64[n], on the CPU: each node's position among its owner's of its type."""
        bounds = self._of(self._nodes, node_type, "node")
        return self._local(bounds, ids, "node")

    def local_edge_ids(self, ids: torch.Tensor, edge_type: str | None = None) -> torch.Tensor:
        """int64[n], on the CPU: each edge's position among its owner's of its type."""
        bounds = self._of(self._edges, edge_type, "edge")
        return self._local(bounds, ids, "edge")

    def starts(self, domain: str, kind: str | None = None) -> Array:
        """Where the ids of each part begin, and the end: int64[num_parts + 1], not to be changed.

        Args:
            domain: "node" or "edge".
            kind: the node or edge type; None without types.

        Raises:
            KeyError: there is no such type.
        """
        return self._of(self._nodes if domain == "node" else self._edges, kind, domain)

    def _of(self, ranges: dict[str, Array], kind: str | None, what: str) -> Array:
        if (kind or "") not in ranges:
            raise KeyError(
                f"there is no {what} type {kind!r}; the parts have {[k or None for k in ranges]}"
            )
        return ranges[kind or ""]

    def _count(self, bounds: Array, part: int | None) -> int:
        return int(bounds[-1]) if part is None else len(self._range(bounds, part))

    def _range(self, bounds: Array, part: int) -> range:
        if check_count(part, "part") >= self.num_parts:
            raise ValueError(f"part is {part}; expected 0 to {self.num_parts - 1}")
        return range(int(bounds[part]), int(bounds[part + 1]))

    def _owner(self, bounds: Array, ids: torch.Tensor, what: str) -> torch.Tensor:
        check_id_tensor(ids, f"{what} ids", torch.int64)
        array = ids.detach().cpu().numpy()
        if len(array) and not (array.min() >= 0 and array.max() < bounds[-1]):
            bad = int(np.flatnonzero((array < 0) | (array >= bounds[-1]))[0])
            raise IndexError(f"{what} id {array[bad]} at {bad} is outside [0, {bounds[-1]})")
        # Empty parts share a bound with the next one: the last that begins at or below the id.
        return torch.from_numpy(np.searchsorted(bounds, array, side="right") - 1)

    def _local(self, bounds: Array, ids: torch.Tensor, what: str) -> torch.Tensor:
        owners = self._owner(bounds, ids, what)
        return ids.detach().cpu().to(torch.int64) - torch.from_numpy(bounds)[owners]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PartitionBook):
            return NotImplemented
        return self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for a file."""
        return {
            "num_parts": self.num_parts,
            "node_ranges": {kind: bounds.tolist() for kind, bounds in self._nodes.items()},
            "edge_ranges": {kind: bounds.tolist() for kind, bounds in self._edges.items()},
        }

    def __repr__(self) -> str:
        nodes = sum(self.num_nodes(kind) for kind in self._nodes)
        edges = sum(self.num_edges(kind) for kind in self._edges)
        return f"PartitionBook(num_parts={self.num_parts}, num_nodes={nodes}, num_edges={edges})"
