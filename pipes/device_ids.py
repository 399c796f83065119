"""subgraphs_on_device: the border between fused ids and types, for hops sampled on a GPU.

The counterpart of `hopline.pipes.fused_ids.subgraphs_from_hops`, in operations of torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from hopline.pipes.device_hop import DeviceHop
from hopline.pipes.etypes import etype_str_to_tuple
from hopline.pipes.fused_ids import FusedSeeds, check_original_ids
from hopline.pipes.graph import ORIGINAL_EDGE_ID
from hopline.pipes.host_reads import HostReads
from hopline.pipes.kernels.cuda.launching import NOTHING
from hopline.pipes.kernels.cuda.rows import gather_rows
from hopline.pipes.subgraph import CSCFormatBase, SampledSubgraph

if TYPE_CHECKING:
    from hopline.pipes.graph import FusedCSCSamplingGraph

__all__ = ["SampledDeviceHop", "subgraphs_on_device"]

# The hop, its relabelled sources, rows of the list after it.
SampledDeviceHop = tuple[DeviceHop, torch.Tensor, int]


def subgraphs_on_device(
    graph: FusedCSCSamplingGraph,
    nodes: torch.Tensor,
    columns: int,
    hops: list[SampledDeviceHop],
    seeds: FusedSeeds,
    places: torch.Tensor,
    reads: HostReads,
) -> tuple[list[SampledSubgraph], Any, Any]:
    """Turns a mini-batch's hops into subgraphs, outermost first.

    Args:
        graph: the graph they come from.
        nodes: integer[rows], the mini-batch's list of fused ids.
        columns: number of destinations of the first hop.
        hops: from the seeds outwards.
        seeds: the seeds.
        places: int32[n], positions of the seeds' nodes in the list.
        reads: for the sizes of types.

    Returns:
        The subgraphs; the input nodes, integer[rows] or `{node type: ids}`; and the compacted
        seeds: int64 of the seeds' shape, or `{seed type: int64}`, or None for node seeds.

    Raises:
        ValueError: an edge's ends are not of the edge's types: the graph is damaged.
    """
    if graph.node_type_to_id is not None:
        return _Types(graph, nodes, columns, hops, reads).subgraphs(seeds, places)
    subgraphs = []
    for hop, local, rows in hops:
        csc = CSCFormatBase(hop.segments, local)
        edge_ids = _original(graph, hop.positions)
        subgraphs.append(SampledSubgraph(csc, nodes[:columns], nodes[:rows], edge_ids))
        columns = rows
    return subgraphs[::-1], nodes, seeds.compacted(places)


def _original(graph: FusedCSCSamplingGraph, positions: torch.Tensor) -> torch.Tensor:
    ids = (graph.edge_attributes or {}).get(ORIGINAL_EDGE_ID)
    if ids is None:
        return positions
    check_original_ids(graph, ids)
    there = graph.residence.array(("edge", ORIGINAL_EDGE_ID), ids, positions.device)
    return gather_rows(there, positions).to(torch.int64)


class _Types:
    """A heterogeneous mini-batch: each type's own lists, and each edge type's own columns.

    Args:
        graph, nodes, columns, hops, reads: as of `subgraphs_on_device`.
    """

    def __init__(
        self,
        graph: FusedCSCSamplingGraph,
        nodes: torch.Tensor,
        columns: int,
        hops: list[SampledDeviceHop],
        reads: HostReads,
    ) -> None:
        assert graph.node_type_to_id is not None
        assert graph.edge_type_to_id is not None
        assert graph.node_type_offset is not None
        self._graph = graph
        self._hops = hops
        self._names = sorted(graph.node_type_to_id, key=graph.node_type_to_id.__getitem__)
        self._etypes = [
            (etype, graph.node_type_to_id[ends[0]], graph.node_type_to_id[ends[2]])
            for etype, _ in sorted(graph.edge_type_to_id.items(), key=lambda item: item[1])
            for ends in [etype_str_to_tuple(etype)]
        ]
        self._device = nodes.device
        offsets = graph.node_type_offset.to(self._device, non_blocking=True)
        # Empty types share their offset with the next one: the last that starts at or below.
        self._types = torch.searchsorted(offsets, nodes.to(torch.int64), right=True) - 1
        # The list of a type is the subsequence of the fused list, so a stable sort gives it.
        self._order = torch.argsort(self._types, stable=True)
        self._nodes, self._offsets = nodes, offsets
        self._bounds = [columns, *(rows for _, _, rows in hops)]
        edges = [self._by_type(hop, local, reads) for hop, local, _ in hops]
        # Of each hop, its picks sorted stably by edge type.
        self._pick_orders = [order for order, _ in edges]
        # Counted in what is sorted already: atomic additions to so few numbers would queue up.
        places = torch.arange(len(nodes), device=self._device)
        ranked = (self._types * len(nodes) + places)[self._order]
        firsts = torch.arange(len(self._names), device=self._device) * len(nodes)
        starts = torch.searchsorted(ranked, firsts)
        rows = [torch.searchsorted(ranked, firsts + bound) - starts for bound in self._bounds]
        sizes = reads.read(*rows, *(counts for _, counts in edges))
        width = len(self._names)
        self._rows = [sizes[i * width : (i + 1) * width] for i in range(len(rows))]
        sizes = sizes[len(rows) * width :]
        width = len(self._etypes)
        self._sizes = [sizes[i * width : (i + 1) * width] for i in range(len(hops))]
        for order, found, (_, local, _) in zip(self._pick_orders, self._sizes, hops, strict=True):
            assert len(order) == len(local) == sum(found)

    def _by_type(
        self, hop: DeviceHop, local: torch.Tensor, reads: HostReads
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The picks of a hop sorted stably by edge type; picks of each type."""
        sizes = torch.diff(hop.segments)
        numbers = torch.arange(len(sizes), device=self._device)
        segment = torch.repeat_interleave(numbers, sizes, output_size=len(local))
        kinds = segment % max(hop.num_types, 1)
        column = torch.div(segment, max(hop.num_types, 1), rounding_mode="floor")
        ends = torch.tensor([(s, d) for _, s, d in self._etypes], dtype=torch.int64).reshape(-1, 2)
        ends = ends.to(self._device, non_blocking=True)
        for side, place, at in (("source", local.to(torch.int64), 0), ("destination", column, 1)):
            wrong = self._types[place] != ends[:, at][kinds]
            edges = torch.arange(len(local), device=self._device)
            first = torch.where(wrong, edges, NOTHING)
            nothing = torch.full((1,), NOTHING, device=self._device)
            reads.expect_nothing(
                torch.cat((first, nothing)).amin().view(1), self._mistyped(hop, kinds, side)
            )
        ranked, order = torch.sort(kinds, stable=True)
        starts = torch.arange(len(self._etypes) + 1, device=self._device)
        return order, torch.diff(torch.searchsorted(ranked, starts))

    def _mistyped(
        self, hop: DeviceHop, kinds: torch.Tensor, side: str
    ) -> Callable[[int], ValueError]:
        """Makes the error from the number of the pick whose end is of a wrong type."""

        def error(at: int) -> ValueError:
            etype, source, destination = self._etypes[int(kinds[at])]
            wanted = self._names[source if side == "source" else destination]
            return ValueError(
                f"edge {int(hop.positions[at])} is of type {etype!r}, but its {side} is not of "
                f"type {wanted!r}: the graph is damaged: {self._graph}"
            )

        return error

    def _first(self, bound: int) -> dict[str, torch.Tensor]:
        """The lists of all types, as far as they are among the first rows of the fused list."""
        found, at = {}, 0
        for i, name in enumerate(self._names):
            mine = self._order[at : at + self._rows[bound][i]]
            found[name] = self._nodes[mine] - self._offsets[i].to(self._nodes.dtype)
            at += self._rows[-1][i]
        return found

    def subgraphs(
        self, seeds: FusedSeeds, places: torch.Tensor
    ) -> tuple[list[SampledSubgraph], dict[str, torch.Tensor], Any]:
        """What `subgraphs_on_device` returns."""
        starts = [0]
        for count in self._rows[-1]:
            starts.append(starts[-1] + count)
        first_of_type = torch.tensor(starts).to(self._device, non_blocking=True)
        ranks = torch.empty_like(self._order)
        ranks[self._order] = torch.arange(len(self._order), device=self._device)
        ranks = (ranks - first_of_type[self._types]).to(torch.int32)
        subgraphs = []
        for number, (hop, local, _) in enumerate(self._hops):
            order = self._pick_orders[number]
            indices = ranks[local[order].to(torch.int64)]
            positions = hop.positions[order]
            sizes = torch.diff(hop.segments).view(-1, max(hop.num_types, 1))
            csc, edge_ids, at = {}, {}, 0
            for t, (etype, _, destination) in enumerate(self._etypes):
                count = self._sizes[number][t]
                low = starts[destination]
                mine = self._order[low : low + self._rows[number][destination]]
                indptr = torch.zeros(len(mine) + 1, dtype=torch.int64, device=self._device)
                torch.cumsum(sizes[mine, t], 0, out=indptr[1:])
                csc[etype] = CSCFormatBase(indptr, indices[at : at + count])
                edge_ids[etype] = _original(self._graph, positions[at : at + count])
                at += count
            columns, rows = self._first(number), self._first(number + 1)
            subgraphs.append(SampledSubgraph(csc, columns, rows, edge_ids))
        input_nodes = self._first(len(self._hops))
        return subgraphs[::-1], input_nodes, seeds.compacted(ranks[places.to(torch.int64)])
