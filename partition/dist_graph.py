"""DistGraph: a partitioned graph, sampled like one that is here."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch

from hopline.partition.exchange import Exchange
from hopline.partition.lookups import Lookups
from hopline.partition.manifest import type_file
from hopline.partition.merge import merge_hops
from hopline.partition.part import Part, load_part, load_partition
from hopline.partition.part_sampler import PartSampler
from hopline.partition.placing import Placing, in_order
from hopline.partition.questions import HopQuestion, Question
from hopline.partition.who_has_gone import WhoHasGone
from hopline.pipes.hop import Hop, HopRule
from hopline.pipes.npy import read_npy
from hopline.pipes.relabel import NodeTablePool

__all__ = ["DistGraph"]

Array = np.ndarray[Any, Any]


class DistGraph:
    """The graph of a partitioned data set, of which each rank opens its own parts.

    It takes the place of the graph in `sample_neighbor` and the other samplers. Nodes and edges go
    by their new ids; draws are keyed by the ids before, so that every mini-batch is that of the
    whole graph. Making one is collective.

    Ranks share a part, or have several: the larger of both numbers is a multiple of the other.
    Ranks of a machine come one after another, so a machine needs the parts of its ranks.

    Args:
        path: the folder that `partition_graph` wrote; parts of other ranks need not be there.
        exchange: what to ask other ranks by, which stays open; None makes one.
        timeout: seconds to wait for another rank.
        check: see `load_part`.

    Raises:
        PartitionError: a part is missing, damaged or of another partition.
        TypeError: exchange is something else.
        ValueError: ranks and parts are no multiples.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        exchange: Exchange | None = None,
        timeout: float = 60.0,
        check: str = "content",
    ) -> None:
        if exchange is not None and not callable(getattr(exchange, "ask", None)):
            raise TypeError(
                f"exchange is {exchange!r:.80}; expected an Exchange, or None for one of its own"
            )
        manifest = load_partition(path)
        self.path = Path(path)
        self.manifest = manifest
        self.book = manifest.book()
        self.node_type_to_id = manifest.node_type_to_id
        self.edge_type_to_id = manifest.edge_type_to_id
        self._own_exchange = exchange is None
        self.exchange = Exchange(timeout) if exchange is None else exchange
        try:
            self._open(path, check)
        except BaseException:
            if self._own_exchange:
                self.exchange.leave()
            raise
        self._who_has_gone = WhoHasGone(self.exchange)

    def _open(self, path: str | os.PathLike[str], check: str) -> None:
        manifest = self.manifest
        self.placing = Placing(self.book, self.exchange.rank, self.exchange.world_size)
        self._offsets = self.placing.offsets
        self.id_dtype = torch.int32 if self.total_num_nodes < 2**31 else torch.int64
        manifest.check_files(self.path, content=check == "content")
        self.parts: dict[int, Part] = {
            number: load_part(path, number, check=check) for number in self.placing.own_parts
        }
        self._samplers = {
            number: PartSampler(part, self._offsets, self.id_dtype, manifest.num_hops)
            for number, part in self.parts.items()
        }
        self.node_tables = NodeTablePool(self.total_num_nodes)
        self._draw_order: dict[str, Array] = {}
        self._first_kind = self.exchange.claim(len(Question))
        self.exchange.answer(self.kind(Question.HOP), self._answer_hop)
        self._lookups = Lookups(self, self._samplers)

    def kind(self, question: Question) -> int:
        """Number of a question about this graph."""
        return self._first_kind + question

    @property
    def num_nodes(self) -> int | dict[str, int]:
        """Number of nodes; `{type: number}` for a heterogeneous graph."""
        counts = {kind: self.book.num_nodes(kind) for kind in self.book.node_types}
        return counts[""] if self.book.is_homogeneous else counts

    @property
    def num_edges(self) -> int | dict[str, int]:
        """Number of edges; `{type: number}` for a heterogeneous graph."""
        counts = {kind: self.book.num_edges(kind) for kind in self.book.edge_types}
        return counts[""] if self.book.is_homogeneous else counts

    @property
    def total_num_nodes(self) -> int:
        """Number of nodes of all types."""
        return sum(self.book.num_nodes(kind) for kind in self.book.node_types)

    @property
    def total_num_edges(self) -> int:
        """Number of edges of all types."""
        return sum(self.book.num_edges(kind) for kind in self.book.edge_types)

    @property
    def num_edge_types(self) -> int:
        """Number of edge types, 1 for a homogeneous graph."""
        return 1 if self.edge_type_to_id is None else len(self.edge_type_to_id)

    @property
    def node_type_offset(self) -> torch.Tensor | None:
        """int64[num_node_types + 1], first fused id of each type; None without types."""
        return None if self.node_type_to_id is None else torch.from_numpy(self._offsets)

    @property
    def edge_attributes(self) -> None:
        """None: attributes are with the edges' owners."""
        return None

    def attribute_array(self, domain: str, name: str, dtype: Any = None) -> Array:
        """An attribute of one of this rank's parts, for a look at its name and dtype.

        Raises:
            KeyError: the graph has no attribute of that name.
        """
        return next(iter(self.parts.values())).graph.attribute_array(domain, name, dtype)

    def check(self) -> None:
        """Looks whether the parts' arrays are such that kernels may read them.

        Raises:
            TypeError, ValueError: an array is of wrong dtype or length.
        """
        for part in self.parts.values():
            part.graph.check()

    def sampling_device(self, seeds: Any) -> torch.device | None:
        """None: parts are sampled by the CPU."""
        return None

    def draw_order(self, node_type: str | None) -> Array:
        """New ids of a type's nodes in the order of the ids before, which draws count by."""
        kind = node_type or ""
        if kind not in self._draw_order:
            self._draw_order[kind] = read_npy(self.path / type_file("new_ids", kind)).numpy()
        return self._draw_order[kind]

    def is_huge(self) -> bool:
        """True: no question is answered by a look at all of it."""
        return True

    def sample_one_hop(
        self,
        columns: Array,
        node_ids: Array,
        rule: HopRule,
        times: Array | None = None,
        earliest: Array | None = None,
    ) -> Hop:
        """Draws in-edges of each column, where they are.

        Args:
            columns: integer[n], new fused ids, all in range.
            node_ids: not read: owners know the ids before, which key the draws.
            rule: how to draw.
            times: as of `sample_hop`.
            earliest: as of `sample_hop`.

        Returns:
            The picks; positions are the edges' new ids.

        Raises:
            RankError: a rank failed, has gone, or does not answer in time.
        """
        order, bounds = in_order(self.parts_asked(columns), self.book.num_parts)
        asked: dict[int, HopQuestion] = {}
        pieces: list[tuple[int, int]] = []
        for rank, low, high, numbers, counts in self.placing.by_rank(bounds):
            mine = order[low:high]
            asked[rank] = HopQuestion(
                numbers, counts, columns[mine], rule,
                None if times is None else times[mine],
                None if earliest is None else earliest[mine],
            )  # fmt: skip
            pieces.append((rank, high - low))
        answers = self.exchange.ask(
            self.kind(Question.HOP), {rank: q.to_message() for rank, q in asked.items()}
        )
        return merge_hops(
            [answers[rank] for rank, _ in pieces],
            order,
            self.num_edge_types if self.edge_type_to_id is not None else 1,
            self.id_dtype,
        )

    def has_edges(self, sources: Array, columns: Array, edge_type: int = 0) -> Array:
        """Whether edges exist, as their destinations' owners know.

        Args:
            sources: integer[n], new fused ids.
            columns: integer[n], new fused ids, all in range.
            edge_type: number of their type.

        Returns:
            bool[n]: whether there is an edge from each source to its column.

        Raises:
            RankError: a rank failed, has gone, or does not answer in time.
        """
        return self._lookups.has_edges(sources, columns, edge_type)

    def node_times(self, name: str) -> Array:
        """Reads an attribute of integers of all nodes from their owners, once.

        Args:
            name: of the node attribute.

        Returns:
            int64[num_nodes], by new fused id.

        Raises:
            KeyError: there is no such attribute.
            TypeError, ValueError: it is not one integer a node.
            RankError: a rank failed, has gone, or does not answer in time.
        """
        return self._lookups.node_times(name)

    def parts_asked(self, columns: Array) -> Array:
        """int64[n]: the part that is asked for each column: its owner, or one here that knows it.

        Args:
            columns: integer[n], new fused ids.

        Raises:
            IndexError: an id is out of range.
        """
        parts = self.placing.part_of(columns)
        for number, sampler in self._samplers.items():
            near = sampler.near(columns)
            if near is not None:
                parts[near] = number
        return parts

    def _answer_hop(self, rank: int, message: list[Array]) -> list[Array]:
        question = HopQuestion.from_message(message)
        answer: list[Array] = []
        low = 0
        for number, count in zip(question.parts.tolist(), question.counts.tolist(), strict=True):
            if number not in self._samplers:
                raise ValueError(f"part {number} is not here; here are {list(self._samplers)}")
            part = slice(low, low + count)
            hop = self._samplers[number].sample(
                question.columns[part],
                question.rule,
                None if question.times is None else question.times[part],
                None if question.earliest is None else question.earliest[part],
            )
            answer += [np.diff(hop.segments), hop.neighbors, hop.positions]
            low += count
        return answer

    def close(self) -> None:
        """Goes on answering until all ranks have called this; a given exchange stays open.

        Raises:
            RankError: a rank has gone, or does not answer in time.
        """
        if self._own_exchange:
            self.exchange.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Closes; after an exception, tells the other ranks that this one has gone.

        Raises:
            RankError: instead of an error by which a connection is lost; names the rank that has
                gone.
        """
        if self._own_exchange:
            named = self._who_has_gone(error)
            self.exchange.__exit__(kind, error, traceback)
            if named is not None:
                raise named from error

    def __repr__(self) -> str:
        return (
            f"DistGraph(num_nodes={self.num_nodes}, num_edges={self.num_edges}, "
            f"parts={list(self.parts)} of {self.book.num_parts}, path={str(self.path)!r})"
        )
