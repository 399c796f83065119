"""HopSampler: what all samplers that go hop by hop share."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hopline.pipes.checks import check_values
from hopline.pipes.fused_ids import FusedSeeds, SampledHop, fuse_seeds, subgraphs_from_hops
from hopline.pipes.graph import FusedCSCSamplingGraph
from hopline.pipes.hop import HopRule
from hopline.pipes.minibatch import MiniBatch
from hopline.pipes.random import Purpose, batch_key, fold, fold_range
from hopline.pipes.relabel import NodeList
from hopline.pipes.stages.subgraph_sampler import SubgraphSampler, seeds_of

if TYPE_CHECKING:
    from hopline.pipes.gpu_graph_cache import GPUGraphCache

__all__ = ["HopSampler", "check_fanouts"]

Array = np.ndarray[Any, Any]


class HopSampler(SubgraphSampler):
    """Samples hop by hop, from the seeds outwards.

    Each hop samples again for all nodes found so far. The draws of a column are a function of the
    mini-batch's key, the hop and the node's id.

    Args:
        source: the chain before it.
        graph: the graph to sample.
        fanouts: one entry a hop, outermost first: the last one is for the seeds. An int is the
            number of edges to draw for a node, over all edge types together; a sequence or integer
            tensor has one for each edge type, in the order of their ids. -1 takes all edges.
        replace: draw with replacement: as many edges as the fanout says, for any node with one
            edge or more.
        prob_name: edge attribute of weights that need not sum to 1: an edge is drawn in proportion
            to its weight, and never if that is 0.
        deduplicate: number each node once. Otherwise every sampled edge has a source of its own.

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
    ) -> None:
        super().__init__(source)
        if not hasattr(graph, "sample_one_hop"):
            raise TypeError(
                f"graph is a {type(graph).__name__}; expected a FusedCSCSamplingGraph, e.g. from "
                "from_coo(src, dst, num_nodes)"
            )
        for name, value in (("replace", replace), ("deduplicate", deduplicate)):
            if not isinstance(value, bool):
                raise TypeError(f"{name} is {value!r}; expected True or False")
        self.graph = graph
        self.fanouts = check_fanouts(fanouts, graph.num_edge_types)
        self.replace = replace
        self.prob_name = prob_name
        self.deduplicate = deduplicate
        if prob_name is not None:
            graph.attribute_array("edge", prob_name)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "sample_subgraphs" in cls.__dict__:
            raise TypeError(
                f"{cls.__name__} has a sample_subgraphs, which a sampler that goes hop by hop does "
                "not call; derive it from SubgraphSampler, or override __call__"
            )

    def rule(self, key: tuple[int, int, int], hop: int, fanouts: Array) -> HopRule:
        """How a hop draws, in the mini-batch of a key (seed, epoch, index).

        Args:
            key: the mini-batch's.
            hop: its number, 0 for the seeds' own.
            fanouts: int64[1], or one for each edge type.
        """
        seed, epoch, index = key
        hop_key = fold(batch_key(seed, Purpose.SAMPLE, epoch, index), hop)
        keys = fold_range(hop_key, len(fanouts))
        return HopRule(fanouts, self.replace, keys, self.prob_name)

    def times(
        self, minibatch: MiniBatch, seeds: FusedSeeds
    ) -> tuple[torch.Tensor, torch.Tensor | None] | None:
        """Time and first time of the window of each seed node; None where time plays no part.

        Args:
            minibatch: with the seeds' times.
            seeds: its seeds.

        Returns:
            int64[n] each, where the seeds' nodes are.
        """
        return None

    def graph_cache(self, device: torch.device) -> GPUGraphCache | None:
        """The neighbourhoods that a GPU keeps of a graph in host memory; None if it keeps none."""
        return None

    def __call__(self, minibatch: MiniBatch) -> MiniBatch:
        """Samples one mini-batch.

        Raises:
            ValueError: it has no seeds, no key, or seeds of mixed dimensions; or the graph is
                damaged.
            IndexError: a seed is not a node.
        """
        given = seeds_of(minibatch)
        self.graph.check()
        device = self.graph.sampling_device(given)
        if device is not None:
            from hopline.pipes.device_sampling import sample_on_device

            return sample_on_device(self, minibatch, device)
        seeds = fuse_seeds(self.graph, given)
        if minibatch.key is None:
            raise ValueError("the mini-batch has no key (seed, epoch, index) to draw by")
        restriction = self.times(minibatch, seeds)
        times, earliest = (
            None if part is None else part.numpy() for part in restriction or (None, None)
        )
        # A node that is seen at two times is two nodes: the earlier one must not see the later.
        once = self.deduplicate and restriction is None
        nodes = seeds.nodes.numpy()
        hops: list[SampledHop] = []
        with self.graph.node_tables.lend() if once else nullcontext(NodeList()) as table:
            if not (seeds.two_dimensional and once):
                table.start(nodes)
                places = np.arange(len(nodes), dtype=np.int32)
            else:
                table.start(nodes[:0])
                places = table.relabel(nodes)
            destinations = len(table.nodes)
            for number, fanouts in enumerate(reversed(self.fanouts)):
                rule = self.rule(minibatch.key, number, fanouts)
                columns = table.nodes
                hop = self.graph.sample_one_hop(columns, columns, rule, times, earliest)
                local = table.relabel(hop.neighbors)
                hops.append((hop, local, len(table.nodes)))
                if times is not None:
                    # Of a graph without edge types there are no segments, and no picks.
                    picks = np.diff(hop.segments[:: max(hop.num_types, 1)])
                    picks = picks if hop.num_types else np.zeros(len(columns), np.int64)
                    times = np.concatenate([times, np.repeat(times, picks)])
                    if earliest is not None:
                        earliest = np.concatenate([earliest, np.repeat(earliest, picks)])
            nodes = table.nodes
        minibatch.sampled_subgraphs, minibatch.input_nodes, compacted = subgraphs_from_hops(
            self.graph, nodes, destinations, hops, seeds, places
        )
        if compacted is not None:
            minibatch.compacted_seeds = compacted
        return _to_device_of(given, minibatch)

    def settings(self) -> dict[str, Any]:
        """Everything that decides what is sampled."""
        fanouts = [int(f[0]) if len(f) == 1 else f.tolist() for f in self.fanouts]
        found = {
            "fanouts": fanouts,
            "replace": self.replace,
            "nodes": self.graph.total_num_nodes,
            "edges": self.graph.total_num_edges,
        }
        if self.prob_name is not None:
            found["prob_name"] = self.prob_name
        if not self.deduplicate:
            found["deduplicate"] = False
        return found


def _to_device_of(seeds: Any, minibatch: MiniBatch) -> MiniBatch:
    """Moves what has been sampled on the CPU to the GPU that has the seeds, if one does."""
    for value in seeds.values() if isinstance(seeds, dict) else (seeds,):
        if value.device.type != "cpu":
            return minibatch.to(value.device)
    return minibatch


def check_fanouts(fanouts: Any, num_edge_types: int) -> list[Array]:
    """Fanouts as int64[1] or int64[num_edge_types] a hop.

    Raises:
        TypeError, ValueError: of wrong kind, number or value.
    """
    if isinstance(fanouts, torch.Tensor):
        fanouts = _listed(fanouts, "fanouts")
    if isinstance(fanouts, str | bytes | dict) or not isinstance(fanouts, Sequence):
        raise TypeError(
            f"fanouts is {fanouts!r}; expected a list with one entry a hop, e.g. [10, 5]"
        )
    if not fanouts:
        raise ValueError("fanouts is empty; expected one entry a hop, e.g. [10, 5]")
    return [_fanouts(value, hop, num_edge_types) for hop, value in enumerate(fanouts)]


def _fanouts(value: Any, hop: int, num_edge_types: int) -> Array:
    what = f"fanouts[{hop}]"
    if isinstance(value, torch.Tensor):
        value = _listed(value, what)
    values = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    for v in values:
        if isinstance(v, bool) or not isinstance(v, int | np.integer):
            raise TypeError(f"{what} is {value!r}; expected an int, or one for each edge type")
        if not -1 <= v < 1 << 31:
            raise ValueError(f"{what} is {value!r}; expected -1 for all edges, or 0 to 2**31 - 1")
    if len(values) not in (1, num_edge_types):
        raise ValueError(
            f"{what} has {len(values)} entries; the graph has {num_edge_types} edge types: "
            "expected one entry, or one for each"
        )
    return np.array(values, np.int64)


def _listed(values: torch.Tensor, what: str) -> Any:
    """The numbers of a tensor that has them."""
    if values.layout != torch.strided or values.is_quantized or values.is_nested:
        raise TypeError(f"{what} is a tensor of {values.layout}; expected a dense one of integers")
    check_values(values, what)
    return values.tolist()
