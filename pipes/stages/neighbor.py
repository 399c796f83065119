"""NeighborSampler: in-neighbours of the seeds, hop by hop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from hopline.pipes.checks import check_count, check_flag
from hopline.pipes.graph import FusedCSCSamplingGraph
from hopline.pipes.stages.hops import HopSampler

if TYPE_CHECKING:
    from hopline.pipes.gpu_graph_cache import GPUGraphCache

__all__ = ["NeighborSampler"]


class NeighborSampler(HopSampler):
    """Samples in-neighbours; `chain.sample_neighbor(graph, [15, 10, 5])`.

    As GraphSAGE does (Hamilton, Ying, Leskovec: "Inductive representation learning on large
    graphs", NeurIPS 2017). With weights and without replacement, an edge is drawn after another in
    proportion to the weights of those left.

    It sets `sampled_subgraphs` and `input_nodes`. Node seeds come first in each node list, in their
    order, repeats included, so the last layer has one output row a seed. For edge seeds the list
    begins with their ends, each once, and `compacted_seeds` says where.

    Args:
        source: the chain before it.
        graph: the graph to sample.
        fanouts: one entry a hop, outermost first: the last one is for the seeds. An int is the
            number of edges to draw for a node, over all edge types together; a sequence or integer
            tensor has one for each edge type, in the order of their ids. -1 takes all edges.
        replace: draw with replacement: as many edges as the fanout says, for any node with one
            edge or more.
        prob_name: edge attribute of weights that need not sum to 1: an edge is drawn in proportion
            to its weight, and never if that is 0. A negative, infinite or NaN weight is refused
            when a seed's edges are looked at.
        deduplicate: number each node once. Otherwise every sampled edge has a source row of its
            own; a node that occurs twice is sampled alike at both places.
        overlap_fetch, asynchronous: accepted for GraphBolt's scripts; loader threads overlap all
            stages.
        num_gpu_cached_edges: edges that a GPU keeps of a pinned graph, the in-edges of nodes that
            have been sampled for often; 0 for none. What is drawn is the same. Weighted draws read
            the pinned graph itself.
        gpu_cache_threshold: how often a node must have been sampled for.
        cooperative: accepted if False.

    Raises:
        TypeError, ValueError: an argument of wrong kind, number or value.
        KeyError: the graph has no attribute of that name.
    """

    def __init__(
        self,
        source: Any,
        graph: FusedCSCSamplingGraph,
        fanouts: Sequence[Any],
        replace: bool = False,
        prob_name: str | None = None,
        deduplicate: bool = True,
        overlap_fetch: bool = False,
        num_gpu_cached_edges: int = 0,
        gpu_cache_threshold: int = 1,
        cooperative: bool = False,
        asynchronous: bool = False,
    ) -> None:
        super().__init__(source, graph, fanouts, replace, prob_name, deduplicate)
        check_flag(cooperative, "cooperative")
        if cooperative:
            raise ValueError("cooperative is True; cooperative mini-batching is not supported")
        self.num_gpu_cached_edges = check_count(num_gpu_cached_edges, "num_gpu_cached_edges")
        self.gpu_cache_threshold = check_count(gpu_cache_threshold, "gpu_cache_threshold", 1)

    def graph_cache(self, device: torch.device) -> GPUGraphCache | None:
        """The neighbourhoods that a GPU keeps of a graph in host memory; None if it keeps none."""
        graph = self.graph
        if not self.num_gpu_cached_edges or self.prob_name is not None or graph.indices.is_cuda:
            return None
        return graph.residence.graph_cache(
            graph, self.num_gpu_cached_edges, self.gpu_cache_threshold, device
        )
