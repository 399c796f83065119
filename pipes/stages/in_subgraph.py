"""InSubgraphSampler: all in-edges of the seeds."""

from __future__ import annotations

from typing import Any

from hopline.pipes.graph import FusedCSCSamplingGraph
from hopline.pipes.stages.hops import HopSampler

__all__ = ["InSubgraphSampler"]


class InSubgraphSampler(HopSampler):
    """One hop with every in-edge of the seeds; `chain.sample_in_subgraph(graph)`.

    Args:
        source: the chain before it.
        graph: the graph to read.
    """

    def __init__(self, source: Any, graph: FusedCSCSamplingGraph) -> None:
        super().__init__(source, graph, [-1])
