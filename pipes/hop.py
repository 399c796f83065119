"""sample_hop: one hop of sampling on a graph in memory, by the rule of the sampler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hopline.pipes.features.buffers import empty_array
from hopline.pipes.kernels import cpu, draws, smallest
from hopline.pipes.kernels import typed as typed_kernels

if TYPE_CHECKING:
    from hopline.pipes.graph import FusedCSCSamplingGraph

__all__ = ["Hop", "HopRule", "check_picks", "sample_hop"]

MAX_PICKS = 1 << 30  # of one hop: positions in a mini-batch's node list are int32
ANY_TIME = np.iinfo(np.int64).min

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Hop:
    """What one hop of sampling picked, in fused ids, before relabelling.

    Attributes:
        segments: int64[n * num_types + 1], running sum of picks over (column, edge type).
        num_types: edge types T that segments tell apart.
        neighbors: integer[picks], sources.
        positions: int64[picks], the edges' positions in CSC order.
    """

    segments: Array
    num_types: int
    neighbors: Array
    positions: Array


@dataclass(frozen=True, slots=True)
class HopRule:
    """How one hop draws.

    Attributes:
        fanouts: int64[1], over all edges of a column together, or int64[num_edge_types]; -1 takes
            all edges.
        replace: draw with replacement.
        keys: uint64 of the shape of fanouts, the hop's key for each edge type.
        prob_name: edge attribute with the edges' weights, or None.
        layer: uint64[4] of LABOR, as `kernels.draws.pick_scored` takes it, or None.
        node_time_name: node attribute with the nodes' times, or None.
        edge_time_name: edge attribute with the edges' times, or None.
    """

    fanouts: Array
    replace: bool
    keys: Array
    prob_name: str | None = None
    layer: Array | None = None
    node_time_name: str | None = None
    edge_time_name: str | None = None


def check_picks(total: int, columns: int) -> None:
    """Refuses a hop whose picks could not be numbered.

    Raises:
        OverflowError: more than 2**30 picks.
    """
    if total > MAX_PICKS:
        raise OverflowError(
            f"one hop from {columns} nodes would pick {total} edges, above {MAX_PICKS}; use a "
            "smaller batch_size or smaller fanouts"
        )


def sample_hop(
    graph: FusedCSCSamplingGraph,
    columns: Array,
    node_ids: Array,
    rule: HopRule,
    times: Array | None = None,
    earliest: Array | None = None,
    source_names: Array | None = None,
) -> Hop:
    """Draws in-edges of each column.

    Args:
        graph: the graph.
        columns: integer[n], fused ids, all in range.
        node_ids: integer[n], the columns' original ids; they key the draws.
        rule: how to draw.
        times: int64[n], the columns' times: what is drawn is older. None: no restriction.
        earliest: int64[n]: and no older than this. None: no restriction.
        source_names: integer[num_edges], the sources' original ids, which key LABOR's draws. None:
            the graph's own ids are the original ones.

    Returns:
        The picks; `num_types` is the number of edge types.

    Raises:
        ValueError: the graph's arrays are damaged, or a weight is negative, infinite, NaN or
            beyond 1e-300 to 1e300.
        OverflowError: more than 2**30 picks.
    """
    indptr, indices = graph.csc_indptr.numpy(), graph.indices.numpy()
    fanouts = rule.fanouts
    typed = graph.type_per_edge is not None
    edge_types = graph.type_per_edge.numpy() if graph.type_per_edge is not None else NO_TYPES
    segments = len(columns) * len(fanouts)
    begin, degree = empty_array(2 * segments, np.int64).reshape(2, -1)
    picked = empty_array(segments + 1, np.int64)
    total = cpu.count_picks(
        indptr, edge_types, columns, fanouts, rule.replace, len(indices), begin, degree, picked
    )
    if total < 0:
        raise ValueError(f"csc_indptr is damaged at node {columns[-total - 1]}: {graph}")
    check_picks(total, len(columns))
    timed = times is not None
    # One fanout over several edge types: the picks of a column are told apart afterwards.
    together = typed and len(fanouts) == 1
    told_apart = together and graph.num_edge_types > 1
    if rule.prob_name is None and rule.layer is None and not timed:
        positions, neighbors = empty_array(total, np.int64), empty_array(total, indices.dtype)
        kinds = empty_array(total if told_apart else 0, edge_types.dtype)
        cpu.pick_neighbors(
            indices, edge_types, node_ids, rule.keys, fanouts, rule.replace, together, begin,
            degree, picked, positions, neighbors, kinds,
        )  # fmt: skip
    else:
        picked, positions, neighbors = _pick_by_looking(
            graph, node_ids, rule, begin, degree, picked, times, earliest,
            indices if source_names is None else source_names,
        )  # fmt: skip
        kinds = edge_types[positions] if told_apart else edge_types[:0]
    bad = cpu.first_out_of_range(neighbors, 0, graph.total_num_nodes)
    if bad >= 0:
        raise ValueError(
            f"indices[{positions[bad]}] is {neighbors[bad]}; expected a node in "
            f"[0, {graph.total_num_nodes}): the graph is damaged: {graph}"
        )
    if told_apart:
        by_column = picked
        picked = empty_array(len(columns) * graph.num_edge_types + 1, np.int64)
        bad = typed_kernels.accumulate_typed_counts(kinds, by_column, graph.num_edge_types, picked)
        if bad >= 0:
            raise ValueError(
                f"type_per_edge[{positions[bad]}] is {kinds[bad]}; expected types below "
                f"{graph.num_edge_types} that ascend within a column: the graph is damaged: {graph}"
            )
    return Hop(picked, graph.num_edge_types if typed else 1, neighbors, positions)


def _pick_by_looking(
    graph: FusedCSCSamplingGraph,
    node_ids: Array,
    rule: HopRule,
    begin: Array,
    degree: Array,
    room: Array,
    times: Array | None,
    earliest: Array | None,
    source_names: Array,
) -> tuple[Array, Array, Array]:
    """Draws that look at every edge of a column; (segments, positions, neighbors)."""
    indices = graph.indices.numpy()
    node_times = edge_times = no_times = NO_TIMES
    if times is None:
        times = earliest = no_times
    else:
        if rule.node_time_name is not None:
            node_times = graph.attribute_array("node", rule.node_time_name, np.int64)
            # Damaged indices would be followed before anything else looks at them.
            graph.check_indices()
        if rule.edge_time_name is not None:
            edge_times = graph.attribute_array("edge", rule.edge_time_name, np.int64)
        if earliest is None:
            earliest = np.full(len(times), ANY_TIME, np.int64)
    segments = empty_array(len(room), np.int64)
    positions = empty_array(int(room[-1]) + 1, np.int64)
    neighbors = empty_array(int(room[-1]), indices.dtype)
    if rule.prob_name is None and rule.layer is None:
        total = draws.pick_before(
            indices, node_ids, rule.keys, rule.fanouts, rule.replace, begin, degree, times,
            earliest, node_times, edge_times, segments, positions, neighbors,
        )  # fmt: skip
    else:
        weights = NO_WEIGHTS
        if rule.prob_name is not None:
            weights = graph.attribute_array("edge", rule.prob_name)
        layer = NO_LAYER if rule.layer is None else rule.layer
        parallel = rule.layer is not None and graph.has_parallel_edges()
        # A huge graph's parallel edges are found column by column, as they are drawn from.
        if rule.replace or len(times) > 0 or (parallel and graph.is_huge()):
            total = draws.pick_scored(
                indices, node_ids, rule.keys, rule.fanouts, rule.replace, begin, degree, room,
                weights, layer, source_names, times, earliest, node_times, edge_times, parallel,
                segments, positions, neighbors,
            )  # fmt: skip
        else:
            repeats = NO_REPEATS
            if parallel:
                repeats = graph.parallel_edges.repeats(graph, len(rule.fanouts) > 1)
            total = smallest.pick_smallest(
                indices, node_ids, rule.keys, rule.fanouts, begin, degree, room, weights, layer,
                source_names, *repeats, segments, positions, neighbors,
            )  # fmt: skip
        if total < 0:
            edge = -1 - total
            raise ValueError(
                f"edge attribute {rule.prob_name!r} is {weights[edge]} at edge {edge} (CSC order); "
                "expected 0, or a weight from 1e-300 to 1e300"
            )
    return segments, positions[:total], neighbors[:total]


NO_REPEATS = (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int32))
NO_TYPES: Array = np.empty(0, np.uint8)
NO_TIMES: Array = np.empty(0, np.int64)
NO_WEIGHTS: Array = np.empty(0, np.float32)
NO_LAYER: Array = np.empty(0, np.uint64)
