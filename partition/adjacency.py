"""Adjacency: the undirected graph that partitioners cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hopline.partition.kernels import count_ends, fill_neighbors, merge_neighbors
from hopline.pipes.kernels import cpu

__all__ = ["Adjacency", "check_edges", "undirected"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Adjacency:
    """Neighbours of every node: each edge in both directions, no self-loops, no repeats.

    Attributes:
        starts: int64[num_nodes + 1].
        neighbors: int64[entries], ascending within a node.
    """

    starts: Array
    neighbors: Array

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(self.starts) - 1


def check_edges(csc_indptr: torch.Tensor, indices: torch.Tensor) -> tuple[Array, Array]:
    """Pointers and sources that can be followed.

    Args:
        csc_indptr: int64[num_nodes + 1].
        indices: integer[num_edges].

    Raises:
        ValueError: a pointer descends or leaves the graph, or a source is no node.
    """
    indptr, sources = csc_indptr.numpy(), indices.numpy()
    bad = int(cpu.first_bad_column(indptr, len(sources)))
    if bad >= 0 or indptr[0] != 0 or indptr[-1] != len(sources):
        raise ValueError(
            f"csc_indptr is damaged at node {max(bad, 0)}; expected entries that never descend, "
            f"from 0 to {len(sources)}, the number of edges"
        )
    bad = int(cpu.first_out_of_range(sources, 0, len(indptr) - 1))
    if bad >= 0:
        raise ValueError(
            f"indices[{bad}] is {sources[bad]}; expected a node in [0, {len(indptr) - 1})"
        )
    return indptr, sources


def undirected(csc_indptr: torch.Tensor, indices: torch.Tensor) -> Adjacency:
    """The adjacency of a graph; memory for 16 bytes an edge.

    Args:
        csc_indptr: int64[num_nodes + 1], the graph's.
        indices: integer[num_edges], sources.

    Raises:
        ValueError: as `check_edges`.
    """
    indptr, sources = check_edges(csc_indptr, indices)
    starts = np.zeros(len(indptr), np.int64)
    count_ends(indptr, sources, starts)
    np.cumsum(starts, out=starts)
    neighbors = np.empty(int(starts[-1]), np.int64)
    fill_neighbors(indptr, sources, starts[:-1].copy(), neighbors)
    kept = merge_neighbors(starts, neighbors)
    return Adjacency(starts, neighbors[:kept])
