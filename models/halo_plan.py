"""HaloPlan: which rows ranks send each other for a product with the whole graph's adjacency."""

from __future__ import annotations

from datetime import timedelta
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
import torch.distributed as dist

from hopline.models.kept_block import KeptBlock
from hopline.models.rank_agreement import StepNotes
from hopline.models.scaled_sum import picks
from hopline.partition import DistGraph
from hopline.pipes.graph import ORIGINAL_EDGE_ID
from hopline.pipes.subgraph import Block

__all__ = ["HaloPlan", "check_plan"]

Array = np.ndarray[Any, Any]


class HaloPlan:
    """A rank's nodes, their in-edges, and the rows of other ranks that these begin at.

    Made once, from the same parts that mini-batches are sampled from. Making one is collective, as
    every product with it is: all ranks of the default process group do the same in the same order.
    Own nodes are the range of new ids that the rank's parts have; halo nodes are the other sources
    of in-edges of own nodes, by new ids, and so by rank. Messages go over a process group of their
    own, which all plans of a graph share, and which stays until the default one ends.

    Args:
        graph: homogeneous; each rank has a part of its own, or several.
        device: where rows are.

    Raises:
        TypeError: graph is no DistGraph.
        ValueError: the graph has types, or ranks share a part.

    Attributes:
        rank, world_size: of this process, among the ranks.
        device: where rows are.
        group: process group of the messages; None for one rank.
        num_nodes: of the whole graph.
        rank_starts: int[ranks + 1], ranks' ranges of new ids.
        notes: `StepNotes`, by which ranks that differ are noticed.
        summed: shapes and dtypes of parameters that all ranks have the same in `sum_gradients`.
        own: range, new ids of the own nodes.
        original_nodes: int64[own], ids in the whole graph of the own nodes.
        halo: int64[h], new ids of the halo nodes, ascending.
        local: `KeptBlock`, in-edges from own nodes to own nodes.
        remote: `KeptBlock`, in-edges from halo nodes to own nodes.
        block: `Block`, all in-edges; sources are the own nodes, then the halo.
        num_edges: number of in-edges of own nodes.
        edge_ids: int64[num_edges], new edge ids, in the order of `block`.
        original_edges: int64[num_edges], their ids in the whole graph, read at each call.
        local_edges, remote_edges: int64[...], which edges of `block` the two other blocks have.
        in_degrees: int64[own], of own nodes.
        out_degrees: int64[own], of own nodes, over the in-edges of all ranks' nodes.
        send_rows: int64[s], own rows that others need, rank by rank.
        sends: `KeptBlock` whose sums gather them.
        send_counts: int[ranks], how many each rank is sent.
        receive_counts: int[ranks], how many come from each rank.
    """

    @torch.inference_mode(False)  # training cannot use what that mode made
    def __init__(self, graph: DistGraph, device: torch.device | str = "cpu") -> None:
        if not isinstance(graph, DistGraph):
            raise TypeError(f"graph is a {type(graph).__name__}; expected a DistGraph")
        if graph.node_type_to_id is not None:
            raise ValueError(f"{graph} has node types; expected a homogeneous graph")
        ranks = graph.exchange
        self.rank, self.world_size = ranks.rank, ranks.world_size
        book = graph.book
        if self.world_size > book.num_parts:
            raise ValueError(
                f"{self.world_size} ranks share {book.num_parts} parts; expected as many parts as "
                "ranks, or more: start fewer ranks, or cut the graph into more parts"
            )
        self.device = torch.device(device)
        starts = book.starts("node")
        share = book.num_parts // self.world_size
        self.num_nodes = int(starts[-1])
        self.rank_starts = [int(starts[rank * share]) for rank in range(self.world_size + 1)]
        self.own = range(self.rank_starts[self.rank], self.rank_starts[self.rank + 1])
        self.group = _group_of(graph) if self.world_size > 1 else None
        self.notes = StepNotes(self.device)
        self.summed: list[list[tuple[tuple[int, ...], str]]] = []
        self._parts = list(graph.parts.values())
        indptr, sources = _edges_of(graph)
        self.num_edges = len(sources)
        inside = (sources >= self.own.start) & (sources < self.own.stop)
        halo, places = np.unique(sources[~inside], return_inverse=True)
        self.halo = torch.from_numpy(halo)
        self.original_nodes = torch.cat(
            [part.original_nodes[""][: part.num_own[""]] for part in self._parts]
        ).to(self.device)
        self._inside = torch.from_numpy(inside).to(self.device)
        # Of edges before each own node's, those from own nodes.
        before = np.concatenate([[0], np.cumsum(inside, dtype=np.int64)])[indptr]
        self.local = self._block(before, sources[inside] - self.own.start, len(self.own))
        self.remote = self._block(indptr - before, places, len(halo))
        bounds = np.searchsorted(halo, self.rank_starts)
        self.receive_counts: list[int] = np.diff(bounds).tolist()
        self._agree_on_rows(halo)
        self.in_degrees = torch.from_numpy(np.diff(indptr)).to(self.device)
        self.out_degrees = self._add_up(
            torch.bincount(self.local.indices, minlength=len(self.own)),
            torch.bincount(self.remote.indices, minlength=len(halo)),
        )

    @cached_property
    def sends(self) -> KeptBlock:
        """Gathers the rows that others need; transposed, adds what comes back to own rows."""
        return picks(self.send_rows, len(self.own))

    @cached_property
    def local_edges(self) -> torch.Tensor:
        """Which edges of `block` those of `local` are."""
        with torch.inference_mode(False):  # as it is kept: training cannot use what that mode made
            return self._inside.nonzero().squeeze(1)

    @cached_property
    def remote_edges(self) -> torch.Tensor:
        """Which edges of `block` those of `remote` are."""
        with torch.inference_mode(False):
            return self._inside.logical_not().nonzero().squeeze(1)

    @cached_property
    def block(self) -> Block:
        """All in-edges; made when it is first needed, as not every product needs it."""
        num_src = len(self.own) + len(self.halo)
        kind = torch.int32 if num_src < 1 << 31 else torch.int64
        with torch.inference_mode(False):
            rows = torch.empty(self.num_edges, dtype=kind, device=self.device)
            rows[self._inside] = self.local.indices.to(kind)
            rows[~self._inside] = self.remote.indices.to(kind) + len(self.own)
            return Block(self.local.indptr + self.remote.indptr, rows, num_src, len(self.own))

    @cached_property
    def edge_ids(self) -> torch.Tensor:
        """New edge ids, on the CPU; read from the parts when they are first needed."""
        ids = [torch.empty(0, dtype=torch.int64)]
        for part in self._parts:
            count = int(part.graph.csc_indptr[part.num_own[""]])
            assert part.graph.edge_attributes is not None
            ids.append(part.graph.edge_attributes[ORIGINAL_EDGE_ID][:count])
        return torch.cat(ids)

    @property
    def original_edges(self) -> torch.Tensor:
        """Ids in the whole graph of the edges of `block`; read from the parts, and not kept."""
        ids = [torch.empty(0, dtype=torch.int64)]
        for part in self._parts:
            count = int(part.graph.csc_indptr[part.num_own[""]])
            assert part.graph.edge_attributes is not None
            new = part.graph.edge_attributes[ORIGINAL_EDGE_ID][:count]
            ids.append(part.original_edges[""][new - part.book.edge_range(part.number).start])
        return torch.cat(ids).to(self.device)

    def _block(self, indptr: Array, rows: Array, num_src: int) -> KeptBlock:
        kind = np.int32 if num_src < 2**31 else np.int64
        return KeptBlock(
            torch.from_numpy(indptr).to(self.device),
            torch.from_numpy(rows.astype(kind)).to(self.device),
            num_src,
            len(self.own),
        )

    def _agree_on_rows(self, halo: Array) -> None:
        """Tells each rank which of its rows this one needs."""
        if self.group is None:
            self.send_counts: list[int] = [0]
            self.send_rows = torch.empty(0, dtype=torch.int64, device=self.device)
            return
        wanted = torch.tensor(self.receive_counts, device=self.device)
        asked = torch.empty_like(wanted)
        dist.all_to_all_single(asked, wanted, group=self.group)
        self.send_counts = asked.tolist()
        ids = torch.from_numpy(halo).to(self.device)
        rows = torch.empty(sum(self.send_counts), dtype=torch.int64, device=self.device)
        dist.all_to_all_single(rows, ids, self.send_counts, self.receive_counts, group=self.group)
        self.send_rows = rows - self.own.start

    def _add_up(self, own: torch.Tensor, halo: torch.Tensor) -> torch.Tensor:
        """Counts of own nodes, and of those that other ranks have in their halo."""
        if self.group is not None:
            back = own.new_empty(len(self.send_rows))
            dist.all_to_all_single(
                back, halo, self.send_counts, self.receive_counts, group=self.group
            )
            own.index_add_(0, self.send_rows, back)
        return own

    def __deepcopy__(self, memo: object) -> HaloPlan:
        """Itself: it stays as it is, so a copied model may share it, and its process group."""
        return self

    def __repr__(self) -> str:
        return (
            f"HaloPlan(rank {self.rank} of {self.world_size}: {len(self.own)} own nodes, "
            f"{len(self.halo)} halo nodes, {self.num_edges} in-edges)"
        )


# Connections and threads are dear: all plans of a graph have the same.
_groups: WeakKeyDictionary[DistGraph, Any] = WeakKeyDictionary()


def _group_of(graph: DistGraph) -> Any:
    if graph not in _groups:
        # A new group waits for half an hour by itself, whatever the default group does.
        _groups[graph] = dist.new_group(timeout=timedelta(seconds=graph.exchange.timeout))
    return _groups[graph]


def check_plan(plan: object) -> HaloPlan:
    """The plan; `TypeError` if it is none."""
    if not isinstance(plan, HaloPlan):
        raise TypeError(f"plan is a {type(plan).__name__}; expected a HaloPlan")
    return plan


def _edges_of(graph: DistGraph) -> tuple[Array, Array]:
    """(pointers, sources by new ids) of the in-edges of the rank's nodes."""
    pointers, sources = [np.zeros(1, np.int64)], [np.empty(0, np.int64)]
    total = 0
    for number, part in graph.parts.items():
        own = part.num_own[""]
        indptr = part.graph.csc_indptr[: own + 1].numpy()
        count = int(indptr[-1])
        known = np.concatenate(
            [np.arange(own) + graph.book.node_range(number).start, part.halo[""].numpy()]
        )
        sources.append(known[part.graph.indices[:count].numpy()])
        pointers.append(indptr[1:].astype(np.int64) + total)
        total += count
    return np.concatenate(pointers), np.concatenate(sources)
