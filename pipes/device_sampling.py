"""sample_on_device: one mini-batch of a sampler that goes hop by hop, on a GPU."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from hopline.pipes.device_hop import RuleWords, start_hop
from hopline.pipes.device_ids import SampledDeviceHop, subgraphs_on_device
from hopline.pipes.device_table import DeviceNodeList
from hopline.pipes.fused_ids import fuse_seeds
from hopline.pipes.host_reads import HostReads
from hopline.pipes.minibatch import MiniBatch
from hopline.pipes.stages.subgraph_sampler import seeds_of

if TYPE_CHECKING:
    from hopline.pipes.stages.hops import HopSampler

__all__ = ["sample_on_device"]


def sample_on_device(sampler: HopSampler, minibatch: MiniBatch, device: torch.device) -> MiniBatch:
    """Samples one mini-batch by the kernels of a GPU; the same mini-batch as on the CPU.

    The host waits for the device once a hop, for the sizes of the hop and of the list of nodes; and
    once more for a hop whose number of picks must be known before (a fanout of -1, also above 64
    where every edge is looked at, or room for more than 2**24 picks), for the distinct ends of edge
    seeds, for a column of time windows, and for the sizes of types.

    Args:
        sampler: whose rules to draw by.
        minibatch: with seeds and a key.
        device: the GPU.

    Raises:
        ValueError: it has no seeds, no key, or seeds of mixed dimensions; or the graph is damaged.
        IndexError: a seed is not a node.
    """
    graph = sampler.graph
    reads = HostReads(device)
    seeds = fuse_seeds(graph, seeds_of(minibatch), reads.check_ids)
    if minibatch.key is None:
        raise ValueError("the mini-batch has no key (seed, epoch, index) to draw by")
    restriction = sampler.times(minibatch, seeds)
    times, earliest = restriction or (None, None)
    nodes = seeds.nodes
    once = sampler.deduplicate and restriction is None
    cache = sampler.graph_cache(device)
    rules = [sampler.rule(minibatch.key, i, f) for i, f in enumerate(reversed(sampler.fanouts))]
    hops: list[SampledDeviceHop] = []
    lend: Any = graph.device_tables.lend(device) if once else nullcontext(DeviceNodeList())
    with lend as table:
        if not (seeds.two_dimensional and once):
            table.start(nodes)
            places = torch.arange(len(nodes), dtype=torch.int32, device=device)
        else:
            table.start(nodes[:0])
            count = torch.full((1,), len(nodes), device=device)
            places, fresh = table.append(nodes, count)
            table.settle(*reads.read(fresh))
        destinations = len(table.nodes)
        for rule, words in zip(rules, RuleWords.of(rules, device), strict=True):
            columns = table.nodes
            hop = start_hop(graph, columns, rule, words, times, earliest, reads, cache)
            local, fresh = table.append(hop.neighbors, hop.total)
            total, new = reads.read(hop.total, fresh)
            table.settle(new)
            hop = hop.settled(total)
            hops.append((hop, local[:total], len(table.nodes)))
            if times is not None:
                picks = torch.diff(hop.segments[:: max(hop.num_types, 1)])
                if not hop.num_types:  # of a graph without edge types there are no segments
                    picks = torch.zeros(len(columns), dtype=torch.int64, device=device)
                times, earliest = (
                    old
                    if old is None
                    else torch.cat((old, torch.repeat_interleave(old, picks, output_size=total)))
                    for old in (times, earliest)
                )
        nodes = table.nodes
    minibatch.sampled_subgraphs, minibatch.input_nodes, compacted = subgraphs_on_device(
        graph, nodes, destinations, hops, seeds, places, reads
    )
    if compacted is not None:
        minibatch.compacted_seeds = compacted
    return minibatch
