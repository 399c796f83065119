"""NeighborSampler: in-neighbours of the seeds, hop by hop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from hopline.pipes.fused_ids import SampledHop, fuse_nodes, subgraphs_from_hops
from hopline.pipes.graph import FusedCSCSamplingGraph
from hopline.pipes.minibatch import MiniBatch
from hopline.pipes.random import Purpose, batch_key, fold
from hopline.pipes.stage import Stage

__all__ = ["NeighborSampler"]

Array = np.ndarray[Any, Any]


class NeighborSampler(Stage):
    """Samples in-neighbours; `chain.sample_neighbor(graph, [15, 10, 5])`.

    Each hop samples again for all nodes found so far, as GraphSAGE does (Hamilton, Ying, Leskovec:
    "Inductive representation learning on large graphs", NeurIPS 2017). The draws of a column are a
    function of the mini-batch's key, the hop and the node's id.

    It sets `sampled_subgraphs` and `input_nodes`. Seeds come first in each node list, in their
    order, repeats included, so the last layer has one output row a seed.

    Args:
        source: the chain before it.
        graph: the graph to sample.
        fanouts: one entry a hop, outermost first: the last one is for the seeds. An int is the
            number of edges to draw for a node, over all edge types together; a sequence or integer
            tensor has one for each edge type, in the order of their ids. -1 takes all edges.
        replace: draw with replacement: as many edges as the fanout says, for any node with one
            edge or more.
        overlap_fetch: accepted for GraphBolt's scripts; loader threads overlap all stages.
        asynchronous: accepted likewise.

    Raises:
        TypeError, ValueError: fanouts of wrong kind, number or value.
    """

    def __init__(
        self,
        source: Any,
        graph: FusedCSCSamplingGraph,
        fanouts: Sequence[Any],
        replace: bool = False,
        *,
        overlap_fetch: bool = False,
        asynchronous: bool = False,
    ) -> None:
        super().__init__(source)
        if not hasattr(graph, "sample_one_hop"):
            raise TypeError(
                f"graph is a {type(graph).__name__}; expected a FusedCSCSamplingGraph, e.g. from "
                "from_coo(src, dst, num_nodes)"
            )
        if not isinstance(replace, bool):
            raise TypeError(f"replace is {replace!r}; expected True or False")
        self.graph = graph
        self.fanouts = [_fanouts(f, k, graph) for k, f in enumerate(_sequence(fanouts))]
        self.replace = replace

    def __call__(self, minibatch: MiniBatch) -> MiniBatch:
        """Samples one mini-batch.

        Raises:
            ValueError: it has no seeds, no key, or seeds of two dimensions.
            IndexError: a seed is not a node.
        """
        seeds = fuse_nodes(self.graph, _node_seeds(minibatch), "seeds")
        if minibatch.key is None:
            raise ValueError("the mini-batch has no key (seed, epoch, index) to draw by")
        seed, epoch, index = minibatch.key
        key = batch_key(seed, Purpose.SAMPLE, epoch, index)
        hops: list[SampledHop] = []
        with self.graph.node_tables.lend() as table:
            table.start(seeds)
            for number, fanouts in enumerate(reversed(self.fanouts)):
                hop_key = fold(key, number)
                keys = np.array([fold(hop_key, t) for t in range(len(fanouts))], np.uint64)
                columns = table.nodes
                hop = self.graph.sample_one_hop(columns, fanouts, self.replace, keys, columns)
                local = table.relabel(hop.neighbors)
                hops.append((hop, local, len(table.nodes)))
            nodes = table.nodes
        minibatch.sampled_subgraphs, minibatch.input_nodes = subgraphs_from_hops(
            self.graph, nodes, len(seeds), hops
        )
        return minibatch

    def settings(self) -> dict[str, Any]:
        """Everything that decides what is sampled."""
        fanouts = [f.tolist() if len(f) > 1 else int(f[0]) for f in self.fanouts]
        return {
            "fanouts": fanouts,
            "replace": self.replace,
            "nodes": self.graph.total_num_nodes,
            "edges": self.graph.total_num_edges,
        }


def _node_seeds(minibatch: MiniBatch) -> Any:
    seeds = minibatch.seeds
    if seeds is None:
        raise ValueError("the mini-batch has no seeds; name a column of the item set 'seeds'")
    for value in seeds.values() if isinstance(seeds, dict) else [seeds]:
        if isinstance(value, torch.Tensor) and value.dim() != 1:
            raise ValueError(
                f"seeds have shape {tuple(value.shape)}; sample_neighbor expects node ids of one "
                "dimension"
            )
    return seeds


def _sequence(fanouts: Any) -> list[Any]:
    if isinstance(fanouts, torch.Tensor):
        fanouts = fanouts.tolist()
    if isinstance(fanouts, str | bytes | dict) or not isinstance(fanouts, Sequence):
        raise TypeError(
            f"fanouts is {fanouts!r}; expected a list with one entry a hop, e.g. [10, 5]"
        )
    if not fanouts:
        raise ValueError("fanouts is empty; expected one entry a hop, e.g. [10, 5]")
    return list(fanouts)


def _fanouts(value: Any, hop: int, graph: FusedCSCSamplingGraph) -> Array:
    """int64[1], or int64[num_edge_types] for a fanout of each edge type."""
    what = f"fanouts[{hop}]"
    if isinstance(value, torch.Tensor):
        value = value.tolist()
    values = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    for v in values:
        if isinstance(v, bool) or not isinstance(v, int | np.integer):
            raise TypeError(f"{what} is {value!r}; expected an int, or one for each edge type")
        if not -1 <= v < 1 << 31:
            raise ValueError(f"{what} is {value!r}; expected -1 for all edges, or 0 to 2**31 - 1")
    if len(values) not in (1, graph.num_edge_types):
        raise ValueError(
            f"{what} has {len(values)} entries; the graph has {graph.num_edge_types} edge types: "
            "expected one entry, or one for each"
        )
    return np.array(values, np.int64)
