"""LayerNeighborSampler: LABOR, neighbour sampling in which columns share their draws."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from hopline.pipes.checks import check_flag
from hopline.pipes.graph import FusedCSCSamplingGraph
from hopline.pipes.hop import HopRule
from hopline.pipes.random import Purpose, batch_key, fold
from hopline.pipes.stages.hops import HopSampler

__all__ = ["LayerNeighborSampler", "SharedVariates", "layer_words"]

Array = np.ndarray[Any, Any]
SWITCH = -1  # in place of a period, which counts from 0


class SharedVariates(HopSampler):
    """What samplers by LABOR share: a variate a source, in place of one an edge."""

    layer_dependency: bool
    batch_dependency: int

    def share_variates(self, layer_dependency: Any, batch_dependency: Any) -> None:
        """Sets over what a source keeps its variate.

        Raises:
            TypeError: of wrong kind.
        """
        if not isinstance(layer_dependency, bool):
            raise TypeError(f"layer_dependency is {layer_dependency!r}; expected True or False")
        if isinstance(batch_dependency, bool) or not isinstance(batch_dependency, int):
            raise TypeError(f"batch_dependency is {batch_dependency!r}; expected an int")
        self.layer_dependency = layer_dependency
        self.batch_dependency = batch_dependency

    def rule(self, key: tuple[int, int, int], hop: int, fanouts: Array) -> HopRule:
        """How a hop draws: see `HopSampler.rule`."""
        words = layer_words(key, 0 if self.layer_dependency else hop, self.batch_dependency)
        return dataclasses.replace(super().rule(key, hop, fanouts), layer=words)

    def settings(self) -> dict[str, Any]:
        """Everything that decides what is sampled."""
        return {
            **super().settings(),
            "layer_dependency": self.layer_dependency,
            "batch_dependency": self.batch_dependency,
        }


class LayerNeighborSampler(SharedVariates):
    """Samples by LABOR; `chain.sample_layer_neighbor(graph, [15, 10, 5])`.

    Each source has one random variate, which all columns of a hop share, and a column takes the
    edges with the smallest. For one column that is the distribution of `sample_neighbor`, but
    columns agree on their sources, so a mini-batch has fewer distinct nodes and needs fewer
    features (Balin, Catalyurek: "Layer-neighbor sampling: defusing neighborhood explosion in
    GNNs", NeurIPS 2023).

    Args:
        source: the chain before it.
        graph: the graph to sample.
        fanouts: as in `NeighborSampler`.
        replace: draw with replacement.
        prob_name: edge attribute of weights, as in `NeighborSampler`.
        deduplicate: number each node once, as in `NeighborSampler`.
        layer_dependency: all hops share the variates, not just the columns of one.
        batch_dependency: mini-batches over which a source keeps its variate. 1: new ones in each
            mini-batch. k > 1: a source changes its variate once in k consecutive mini-batches, each
            source at a time of its own, so that neighbouring mini-batches share most of their
            nodes; every epoch begins with new ones. 0 or less: variates never change.
        overlap_fetch, asynchronous: accepted for GraphBolt's scripts, as in `NeighborSampler`.
        num_gpu_cached_edges, gpu_cache_threshold: accepted likewise; a GPU reads the graph itself.
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
        layer_dependency: bool = False,
        batch_dependency: int = 1,
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
        self.share_variates(layer_dependency, batch_dependency)


def layer_words(key: tuple[int, int, int], hop: int, batch_dependency: int) -> Array:
    """uint64[4] of LABOR, as `kernels.draws.pick_scored` takes them.

    Args:
        key: the mini-batch's (seed, epoch, index).
        hop: number of the hop; 0 for all hops that share their variates.
        batch_dependency: as in `LayerNeighborSampler`.
    """
    seed, epoch, index = key
    switch = 0
    if batch_dependency < 1:
        first, second, share = fold(seed, Purpose.LAYER), 0, 0
    else:
        period, step = divmod(index, batch_dependency)
        first = batch_key(seed, Purpose.LAYER, epoch, period)
        second = batch_key(seed, Purpose.LAYER, epoch, period + 1)
        # The same in all periods: a source changes its variate every batch_dependency mini-batches.
        switch = fold(seed, Purpose.LAYER, epoch, SWITCH, hop)
        share = (step << 64) // batch_dependency
    return np.array([fold(first, hop), fold(second, hop), switch, share], np.uint64)
