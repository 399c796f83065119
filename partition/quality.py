"""PartitionQuality: how good an assignment of nodes to parts is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hopline.partition.kernels import count_cut, count_halo

__all__ = ["PartitionQuality", "measure_quality"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class PartitionQuality:
    """What an assignment costs: each part's share of the work, and what parts ask of each other.

    Attributes:
        nodes: nodes of each part.
        edges: edges of each part: those that end in its nodes.
        halo_nodes: distinct nodes of other parts that have an edge into each part: the rows that a
            layer of full-graph training receives.
        cut_edges: edges between two parts.
        groups: `{name: nodes of it in each part}`, for what was to be balanced besides.
    """

    nodes: list[int]
    edges: list[int]
    halo_nodes: list[int]
    cut_edges: int
    groups: dict[str, list[int]] = field(default_factory=dict)

    @property
    def num_parts(self) -> int:
        """Number of parts."""
        return len(self.nodes)

    @property
    def cut_fraction(self) -> float:
        """Share of the edges that join two parts; 0 without edges."""
        return self.cut_edges / max(1, sum(self.edges))

    @property
    def halo_fraction(self) -> float:
        """Halo nodes of all parts over the number of nodes."""
        return sum(self.halo_nodes) / max(1, sum(self.nodes))

    def imbalance(self) -> dict[str, float]:
        """The largest part over the mean, of nodes, edges and each group; 1 is perfect balance."""
        counts = {"nodes": self.nodes, "edges": self.edges, **self.groups}
        return {name: _imbalance(parts) for name, parts in counts.items()}

    def to_dict(self) -> dict[str, Any]:
        """As plain numbers, for a file."""
        return {
            "nodes": self.nodes,
            "edges": self.edges,
            "halo_nodes": self.halo_nodes,
            "cut_edges": self.cut_edges,
            "groups": self.groups,
        }

    def __str__(self) -> str:
        columns: dict[str, list[int]] = {
            "nodes": self.nodes, "edges": self.edges, "halo": self.halo_nodes, **self.groups,
        }  # fmt: skip
        widths = {
            name: max(len(name), *(len(f"{n:,}") for n in parts), 6)
            for name, parts in columns.items()
        }
        lines = ["part  " + "  ".join(name.rjust(widths[name]) for name in columns)]
        for part in range(self.num_parts):
            row = (f"{parts[part]:,}".rjust(widths[name]) for name, parts in columns.items())
            lines.append(f"{part:>4}  " + "  ".join(row))
        most = (
            f"{_imbalance(parts):.3f}".rjust(widths[name]) if name != "halo" else " " * widths[name]
            for name, parts in columns.items()
        )
        lines.append("      " + "  ".join(most) + "  largest over mean")
        lines.append(
            f"cut {self.cut_edges:,} of {sum(self.edges):,} edges ({self.cut_fraction:.1%}); "
            f"halo rows {self.halo_fraction:.2f} times the nodes"
        )
        return "\n".join(lines)


def _imbalance(parts: list[int]) -> float:
    total = sum(parts)
    return max(parts) * len(parts) / total if total else 1.0


def measure_quality(
    indptr: Array,
    indices: Array,
    parts: Array,
    num_parts: int,
    groups: Array,
    names: Sequence[str],
) -> PartitionQuality:
    """Measures an assignment.

    Args:
        indptr: int64[num_nodes + 1], checked.
        indices: integer[num_edges], sources, checked.
        parts: int32[num_nodes], each in [0, num_parts).
        num_parts: number of parts.
        groups: int32[num_nodes], the group of each node, to be counted besides; -1 for none.
        names: the groups' names.
    """
    edges, halo = np.zeros(num_parts, np.int64), np.zeros(num_parts, np.int64)
    cut = count_cut(indptr, indices, parts, edges)
    order = np.argsort(parts, kind="stable")
    count_halo(indptr, indices, parts, order, np.full(len(parts), -1, np.int32), halo)
    counted = {
        name: np.bincount(parts[groups == i], minlength=num_parts).tolist()
        for i, name in enumerate(names)
    }
    nodes = np.bincount(parts, minlength=num_parts).tolist()
    return PartitionQuality(nodes, edges.tolist(), halo.tolist(), int(cut), counted)
