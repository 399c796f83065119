"""start_hop: one hop of sampling on a GPU, the same draws as `hopline.pipes.hop.sample_hop`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from hopline.pipes.hop import ANY_TIME, NO_LAYER, HopRule, check_picks
from hopline.pipes.host_reads import HostReads
from hopline.pipes.kernels.cuda import before, picks, scored
from hopline.pipes.kernels.cuda.edge_reads import first_bad_neighbor, read_edges
from hopline.pipes.kernels.cuda.segment_picks import needs_expansion
from hopline.pipes.kernels.cuda.segments import accumulate_typed_counts, count_picks

if TYPE_CHECKING:
    from hopline.pipes.gpu_graph_cache import GPUGraphCache
    from hopline.pipes.graph import FusedCSCSamplingGraph

__all__ = ["DeviceHop", "RuleWords", "start_hop"]

# Entries of an output up to which it is made as large as it can get: its true size is then read
# together with others, not by itself.
ROOM = 1 << 24


@dataclass(frozen=True, slots=True)
class RuleWords:
    """The numbers of a `HopRule` where the kernels read them.

    Attributes:
        fanouts: int64[1] or int64[num_edge_types].
        keys: int64 of as many, the bits of uint64.
        layer: int64[4], the bits of uint64; or None.
    """

    fanouts: torch.Tensor
    keys: torch.Tensor
    layer: torch.Tensor | None

    @staticmethod
    def of(rules: Sequence[HopRule], device: torch.device) -> list[RuleWords]:
        """Those of all hops, by one copy."""
        parts = [
            part.view(np.int64)
            for rule in rules
            for part in (rule.fanouts, rule.keys, NO_LAYER if rule.layer is None else rule.layer)
        ]
        words = torch.from_numpy(np.concatenate(parts)).to(device, non_blocking=True)
        split = torch.split(words, [len(part) for part in parts])
        fanouts, keys, layers = split[0::3], split[1::3], split[2::3]
        return [
            RuleWords(fanout, key, None if rule.layer is None else layer)
            for rule, fanout, key, layer in zip(rules, fanouts, keys, layers, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class DeviceHop:
    """What one hop picked, in fused ids, before relabelling; as `hopline.pipes.hop.Hop`.

    Attributes:
        segments: int64[n * num_types + 1], running sum of picks over (column, edge type).
        num_types: edge types T that segments tell apart.
        neighbors: integer[room], sources; segments[-1] of them, the rest undefined.
        positions: int64[room], likewise.
    """

    segments: torch.Tensor
    num_types: int
    neighbors: torch.Tensor
    positions: torch.Tensor

    @property
    def total(self) -> torch.Tensor:
        """int64[1], number of picks."""
        return self.segments[-1:]

    def settled(self, total: int) -> DeviceHop:
        """The hop without the undefined entries."""
        return DeviceHop(
            self.segments, self.num_types, self.neighbors[:total], self.positions[:total]
        )


def start_hop(
    graph: FusedCSCSamplingGraph,
    columns: torch.Tensor,
    rule: HopRule,
    words: RuleWords,
    times: torch.Tensor | None,
    earliest: torch.Tensor | None,
    reads: HostReads,
    cache: GPUGraphCache | None = None,
) -> DeviceHop:
    """Draws in-edges of each column, by kernels that may still be at work when this returns.

    Args:
        graph: the graph, where kernels of the columns' device can read it.
        columns: integer[n], fused ids; they key the draws too.
        rule: how to draw.
        words: its numbers on the device.
        times: int64[n], the columns' times; None: no restriction.
        earliest: int64[n]: nothing older; None: no restriction.
        reads: where errors are left for the next read.
        cache: holds edges of the graph on the device; None: all are read from the graph.

    Returns:
        The picks, in arrays that may be longer than there are picks.

    Raises:
        ValueError: the graph's arrays are damaged, by the next read; likewise a bad weight.
        OverflowError: more than 2**30 picks.
    """
    device = columns.device
    indptr, indices = (
        graph.residence.array(name, tensor, device)
        for name, tensor in (("csc_indptr", graph.csc_indptr), ("indices", graph.indices))
    )
    edge_types = None
    if graph.type_per_edge is not None:
        edge_types = graph.residence.array("type_per_edge", graph.type_per_edge, device)
    fanouts, limits, keys = rule.fanouts.tolist(), words.fanouts, words.keys
    begin, degree, picked, bad = count_picks(
        indptr, edge_types, columns, limits, rule.replace, len(indices)
    )
    reads.expect_nothing(
        bad,
        lambda at: ValueError(f"csc_indptr is damaged at node {int(columns[at])}: {graph}"),
    )
    reads_every_edge = rule.prob_name is not None or rule.layer is not None or times is not None
    room = len(columns) * sum(fanouts) if min(fanouts, default=0) >= 0 else None
    if room is not None and not rule.replace:
        room = min(room, len(columns) * len(indices))
    looked = None
    if reads_every_edge and needs_expansion(fanouts):
        room, looked = reads.read(picked[-1:], degree.sum())
    elif room is None or room > ROOM:
        (room,) = reads.read(picked[-1:])
    check_picks(room, len(columns))
    if reads_every_edge:
        return _pick_reading_every_edge(
            graph, columns, rule, times, earliest, reads,
            _Draw(indices, edge_types, words, fanouts, begin, degree, picked, room, looked),
        )  # fmt: skip
    typed = edge_types is not None
    together = typed and len(fanouts) == 1
    told_apart = together and graph.num_edge_types > 1
    near = None if cache is None else cache.look_up(columns, begin)
    found = picks.pick_neighbors(
        indices, edge_types, columns, keys, limits, max([0, *fanouts]), rule.replace, together,
        begin, degree, picked, room, graph.total_num_nodes, told_apart, near,
        some_whole=min(fanouts, default=0) < 0,
    )  # fmt: skip
    if cache is not None:
        cache.admit(columns, begin, degree, indices, edge_types)
    reads.expect_nothing(
        found.bad,
        lambda at: _bad_index(graph, int(found.positions[at]), int(found.neighbors[at])),
    )
    if found.kinds is not None:
        return _tell_apart(graph, picked, found.positions, found.neighbors, found.kinds, reads)
    types = graph.num_edge_types if typed else 1
    return DeviceHop(picked, types, found.neighbors, found.positions)


@dataclass(frozen=True, slots=True)
class _Draw:
    """What the kernels that look at every edge need.

    Attributes:
        indices: integer[num_edges], sources.
        edge_types: integer[num_edges], or None.
        words: the rule's numbers on the device.
        fanouts: those on the host.
        begin: int64[n * T], first edge of each segment.
        degree: int64[n * T], its edges.
        picked: int64[n * T + 1], running sum of the most that it can pick.
        room: entries of the outputs, no less than picked[-1].
        looked: sum of degree; None where no kernel needs it.
    """

    indices: torch.Tensor
    edge_types: torch.Tensor | None
    words: RuleWords
    fanouts: list[int]
    begin: torch.Tensor
    degree: torch.Tensor
    picked: torch.Tensor
    room: int
    looked: int | None


def _pick_reading_every_edge(
    graph: FusedCSCSamplingGraph,
    columns: torch.Tensor,
    rule: HopRule,
    times: torch.Tensor | None,
    earliest: torch.Tensor | None,
    reads: HostReads,
    draw: _Draw,
) -> DeviceHop:
    """Draws that look at every edge of a column."""
    device = columns.device
    residence = graph.residence
    node_times = edge_times = None
    if times is not None:
        if rule.node_time_name is not None:
            node_times = residence.attribute(graph, "node", rule.node_time_name, np.int64, device)
            graph.check_indices()
        if rule.edge_time_name is not None:
            edge_times = residence.attribute(graph, "edge", rule.edge_time_name, np.int64, device)
        if earliest is None:
            earliest = torch.full_like(times, int(ANY_TIME))
    largest = max([0, *draw.fanouts])
    if rule.prob_name is None and rule.layer is None:
        assert times is not None
        assert earliest is not None
        segments, positions, neighbors = before.pick_before(
            draw.indices, columns, draw.words.keys, draw.words.fanouts, largest, rule.replace,
            draw.begin, draw.degree, draw.picked, draw.room, draw.looked, times, earliest,
            node_times, edge_times,
        )  # fmt: skip
    else:
        weights = parallel = None
        if rule.prob_name is not None:
            weights = residence.attribute(graph, "edge", rule.prob_name, None, device)
        if rule.layer is not None and graph.has_parallel_edges():
            parallel = graph.parallel_edges.ranks(graph, len(draw.fanouts) > 1, device)
        segments, positions, neighbors, bad = scored.pick_scored(
            draw.indices, columns, draw.words.keys, draw.words.fanouts, largest, rule.replace,
            draw.begin, draw.degree, draw.picked, draw.room, draw.looked, weights,
            draw.words.layer, times, earliest, node_times, edge_times, parallel,
        )  # fmt: skip
        reads.expect_nothing(bad, lambda edge: _bad_weight(graph, rule, edge))
    reads.expect_nothing(
        first_bad_neighbor(neighbors, segments, graph.total_num_nodes),
        lambda at: _bad_index(graph, int(positions[at]), int(neighbors[at])),
    )
    if draw.edge_types is None:
        return DeviceHop(segments, 1, neighbors, positions)
    if len(draw.fanouts) > 1 or graph.num_edge_types == 1:
        return DeviceHop(segments, graph.num_edge_types, neighbors, positions)
    kinds = read_edges(draw.edge_types, positions, segments)
    return _tell_apart(graph, segments, positions, neighbors, kinds, reads)


def _tell_apart(
    graph: FusedCSCSamplingGraph,
    by_column: torch.Tensor,
    positions: torch.Tensor,
    neighbors: torch.Tensor,
    kinds: torch.Tensor,
    reads: HostReads,
) -> DeviceHop:
    """Splits the segments of columns by the types of the edges."""
    types = graph.num_edge_types
    segments, bad = accumulate_typed_counts(kinds, by_column, types)
    reads.expect_nothing(
        bad,
        lambda at: ValueError(
            f"type_per_edge[{int(positions[at])}] is {int(kinds[at])}; expected types below "
            f"{types} that ascend within a column: the graph is damaged: {graph}"
        ),
    )
    return DeviceHop(segments, types, neighbors, positions)


def _bad_index(graph: FusedCSCSamplingGraph, position: int, neighbor: int) -> ValueError:
    return ValueError(
        f"indices[{position}] is {neighbor}; expected a node in [0, {graph.total_num_nodes}): the "
        f"graph is damaged: {graph}"
    )


def _bad_weight(graph: FusedCSCSamplingGraph, rule: HopRule, edge: int) -> ValueError:
    weights = graph.edge_attribute(rule.prob_name)
    assert weights is not None
    return ValueError(
        f"edge attribute {rule.prob_name!r} is {weights.reshape(-1)[edge].item()} at edge {edge} "
        "(CSC order); expected 0, or a weight from 1e-300 to 1e300"
    )
