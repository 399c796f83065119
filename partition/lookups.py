"""Lookups: what is asked of nodes' owners beside hops: whether edges exist, and nodes' times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from hopline.partition.part_sampler import PartSampler
from hopline.partition.placing import in_order
from hopline.partition.questions import EdgeQuestion, Question

if TYPE_CHECKING:
    from hopline.partition.dist_graph import DistGraph

__all__ = ["Lookups"]

Array = np.ndarray[Any, Any]

ROWS = 1 << 22  # times of a part that are asked for at once


class Lookups:
    """Questions of one `DistGraph` about edges and times, and the answers to those of others.

    Args:
        graph: whose parts are asked.
        samplers: of the parts that are here, by number.
    """

    def __init__(self, graph: DistGraph, samplers: Mapping[int, PartSampler]) -> None:
        self._graph, self._samplers = graph, samplers
        self._times: dict[str, Array] = {}
        graph.exchange.answer(graph.kind(Question.EDGES), self._answer_edges)
        graph.exchange.answer(graph.kind(Question.NODE_TIMES), self._answer_times)

    def has_edges(self, sources: Array, columns: Array, edge_type: int) -> Array:
        """bool[n]: whether there is an edge; see `DistGraph.has_edges`."""
        graph = self._graph
        order, bounds = in_order(graph.parts_asked(columns), graph.book.num_parts)
        asked: dict[int, EdgeQuestion] = {}
        for rank, low, high, numbers, counts in graph.placing.by_rank(bounds):
            mine = order[low:high]
            asked[rank] = EdgeQuestion(edge_type, numbers, counts, sources[mine], columns[mine])
        answers = graph.exchange.ask(
            graph.kind(Question.EDGES), {rank: q.to_message() for rank, q in asked.items()}
        )
        found = np.empty(len(columns), bool)
        at = 0
        for rank, question in asked.items():
            answer = answers[rank][0]
            if answer.shape != question.columns.shape or answer.dtype != bool:
                raise ValueError(
                    f"rank {rank} answered for {answer.shape} pairs; expected "
                    f"{question.columns.shape}"
                )
            found[order[at : at + len(answer)]] = answer
            at += len(answer)
        return found

    def _answer_edges(self, rank: int, message: list[Array]) -> list[Array]:
        question = EdgeQuestion.from_message(message)
        answer = np.empty(len(question.columns), bool)
        low = 0
        for number, count in zip(question.parts.tolist(), question.counts.tolist(), strict=True):
            pairs = slice(low, low + count)
            answer[pairs] = self._sampler(number).has_edges(
                question.sources[pairs], question.columns[pairs], question.edge_type
            )
            low += count
        return [answer]

    def node_times(self, name: str) -> Array:
        """int64[num_nodes]: times by new fused id, read once; see `DistGraph.node_times`."""
        if name not in self._times:
            graph = self._graph
            graph.attribute_array("node", name, np.int64)  # here, it is no other rank that failed
            times = np.empty(graph.total_num_nodes, np.int64)
            for number, kind in enumerate(graph.book.node_types):
                self._read_times(name, number, kind, times)
            self._times[name] = times
        return self._times[name]

    def _read_times(self, name: str, number: int, kind: str, out: Array) -> None:
        graph = self._graph
        ranges = [graph.book.node_range(part, kind) for part in range(graph.book.num_parts)]
        first = int(graph.placing.offsets[number])
        text = np.frombuffer(name.encode(), np.uint8)
        for low in range(0, max(map(len, ranges)), ROWS):
            parts: dict[int, list[int]] = {}
            for part, nodes in enumerate(ranges):
                if len(nodes) > low:
                    parts.setdefault(int(graph.placing.ranks[part]), []).append(part)
            words = np.array([number, low, low + ROWS], np.int64)
            answers = graph.exchange.ask(
                graph.kind(Question.NODE_TIMES),
                {rank: [words, np.array(mine, np.int64), text] for rank, mine in parts.items()},
            )
            for rank, mine in parts.items():
                for part, rows in zip(mine, answers[rank], strict=True):
                    begin = first + ranges[part].start + low
                    end = min(begin + ROWS, first + ranges[part].stop)
                    if rows.shape != (end - begin,) or rows.dtype != np.int64:
                        raise ValueError(
                            f"rank {rank} answered with {rows.dtype} of shape {rows.shape} for "
                            f"part {part}; expected {end - begin} of int64"
                        )
                    out[begin:end] = rows

    def _answer_times(self, rank: int, message: list[Array]) -> list[Array]:
        if len(message) != 3 or any(a.ndim != 1 or a.dtype.kind != "i" for a in message[:2]):
            raise ValueError("a question for times is not two arrays of integers and a name")
        words, parts, text = message
        kinds = len(self._graph.book.node_types)
        if len(words) != 3 or not 0 <= words[0] < kinds or not 0 <= words[1] <= words[2]:
            raise ValueError(f"a question for times has {words}; expected type, first, last row")
        number, low, high = words.tolist()
        name = bytes(text).decode()
        return [self._sampler(p).node_times(name, number)[low:high] for p in parts.tolist()]

    def _sampler(self, part: int) -> PartSampler:
        if part not in self._samplers:
            raise ValueError(f"part {part} is not here; here are {list(self._samplers)}")
        return self._samplers[part]
