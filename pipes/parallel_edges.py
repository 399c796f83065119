"""ParallelEdges: which edges of a graph have the same ends; found when first asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hopline.pipes.features.fork_safe import fork_safe_lock
from hopline.pipes.kernels import cpu, draws
from hopline.pipes.kernels.ranks import rank_parallel_edges, repeated_edges
from hopline.pipes.kernels.smallest import NEAR
from hopline.pipes.placement import host_array
from hopline.pipes.snapshot import Snapshot

if TYPE_CHECKING:
    from hopline.pipes.graph import FusedCSCSamplingGraph

__all__ = ["ParallelEdges"]

Array = np.ndarray[Any, Any]


class ParallelEdges:
    """What is known of one graph's parallel edges; each method looks again at a graph that changed.

    Where `by_type` is true, edges of different types are told apart: they are not parallel.
    """

    def __init__(self) -> None:
        # What `exist` found; what `repeats` and `ranks` found, by their `by_type`.
        self._exist: tuple[Snapshot, bool] | None = None
        self._repeats: dict[bool, tuple[Snapshot, tuple[Array, Array, Array]]] = {}
        self._ranks: dict[bool, tuple[Snapshot, torch.Tensor]] = {}
        self._lock = fork_safe_lock()

    def exist(self, graph: FusedCSCSamplingGraph) -> bool:
        """Whether two edges of a graph have the same ends.

        Args:
            graph: the graph; all its indices are nodes.

        Raises:
            ValueError: csc_indptr descends, or types do not ascend within a column: the graph is
                damaged.
        """
        arrays = graph.indices, graph.csc_indptr, graph.type_per_edge
        known = self._exist
        if known is None or not known[0].is_of(*arrays):
            known = self._exist = Snapshot(*arrays), _has_parallel_edges(graph)
        return known[1]

    def repeats(self, graph: FusedCSCSamplingGraph, by_type: bool) -> tuple[Array, Array, Array]:
        """The edges that have a parallel one before them, for the kernels of the CPU.

        Returns:
            (near, repeats, times_before), as `kernels.smallest.pick_smallest` takes them.

        Raises:
            ValueError: as `kernels.ranks.repeated_edges` does.
        """
        arrays = _arrays(graph, by_type)
        with self._lock:  # one thread looks through the graph, the others wait for what it finds
            known = self._repeats.get(by_type)
            if known is None or not known[0].is_of(*arrays):
                snapshot = Snapshot(*arrays)
                positions, before = repeated_edges(*arrays)
                starts = np.arange(0, len(graph.indices) + NEAR + 1, NEAR)
                near = np.searchsorted(positions, starts)
                known = self._repeats[by_type] = snapshot, (near, positions, before)
        return known[1]

    def ranks(
        self, graph: FusedCSCSamplingGraph, by_type: bool, device: torch.device
    ) -> torch.Tensor:
        """int32[num_edges]: how many edges before each one are parallel to it; for a GPU's kernels.

        Raises:
            ValueError: as `kernels.ranks.rank_parallel_edges` does.
        """
        arrays = _arrays(graph, by_type)
        known = self._ranks.get(by_type)
        if known is None or not known[0].is_of(*arrays):
            snapshot, (indptr, indices, types) = Snapshot(*arrays), arrays
            with torch.inference_mode(False):  # tensors of that mode have no version
                ranks = rank_parallel_edges(
                    indptr.cpu(), indices.cpu(), None if types is None else types.cpu()
                )
            known = self._ranks[by_type] = snapshot, ranks
        return graph.residence.array(("parallel", by_type), known[1], device)


def _arrays(
    graph: FusedCSCSamplingGraph, by_type: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    return graph.csc_indptr, graph.indices, graph.type_per_edge if by_type else None


def _has_parallel_edges(graph: FusedCSCSamplingGraph) -> bool:
    columns = host_array(graph.csc_indptr)
    bad = cpu.first_bad_column(columns, graph.total_num_edges)
    if bad >= 0:
        raise ValueError(f"csc_indptr is damaged at node {bad}: {graph}")
    graph.check_edge_types()
    seen = np.full(graph.total_num_nodes, -1, np.int64)
    return bool(draws.has_parallel_edges(columns, host_array(graph.indices), seen))
