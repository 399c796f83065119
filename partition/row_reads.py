"""RowReads: rows of features from their owners, of several features in one question."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hopline.partition.batch_kernels import find_parts, localise
from hopline.partition.hot_rows import HotRows
from hopline.partition.placing import in_order
from hopline.partition.questions import Question
from hopline.pipes.checks import check_id_tensor
from hopline.pipes.features.buffers import empty, empty_array
from hopline.pipes.features.rows import gather, gather_to, scatter

if TYPE_CHECKING:
    from hopline.partition.dist_graph import DistGraph

__all__ = ["RowReads"]

Array = np.ndarray[Any, Any]
Key = tuple[str, str | None, str]

# What messages hold as the raw bits of an integer type.
RAW_BITS = {torch.bfloat16: torch.int16}
HEAD_WORDS = 2  # of a group of features that are read for the same ids


@dataclass(slots=True)
class Group:
    """Features that are read for the same ids, which are sorted by part.

    Attributes:
        numbers: of the features.
        order: int64[n], places of the ids in the order of parts.
        bounds: int64[num_parts + 2], where those of each part begin in it, at last the hot ones.
        local: integer[n], rows within the parts, in that order.
        hot: rows that are kept, if any are.
        outputs: of each feature, to be filled.
    """

    numbers: list[int]
    order: Array
    bounds: Array
    local: Array
    hot: HotRows | None
    outputs: list[torch.Tensor]


class RowReads:
    """Asks owners for rows, and answers for one's own parts.

    Args:
        graph: whose parts are asked.
        keys: all features, in an order that is the same on all ranks.
    """

    def __init__(self, graph: DistGraph, keys: Sequence[Key]) -> None:
        self._graph = graph
        self._keys = list(keys)
        self._numbers = {key: number for number, key in enumerate(self._keys)}
        # By part, of each feature.
        self._rows: Mapping[int, list[torch.Tensor]] = {
            number: [part.features[key] for key in self._keys]
            for number, part in graph.parts.items()
        }
        self._hot: dict[tuple[str, str | None], HotRows] = {}
        self._here = np.zeros(graph.book.num_parts, bool)
        self._here[list(self._rows)] = True
        graph.exchange.answer(graph.kind(Question.READ), self._answer)

    def keeps(self, key: Key) -> bool:
        """Whether there are copies of a feature's rows of other ranks."""
        hot = self._hot.get(key[:2])
        return hot is not None and self._numbers[key] in hot.rows

    def keep(self, domain: str, kind: str | None, ids: Array, keys: Sequence[Key]) -> None:
        """Reads some rows from copies that are here, from now on; none, if there are no ids.

        Args:
            domain: "node" or "edge".
            kind: their type.
            ids: int64[k], new ids within the type, ascending, each once.
            keys: features of the type.
        """
        self._hot.pop((domain, kind), None)
        if len(ids):
            asked = torch.from_numpy(ids)
            rows = self.read([(key, asked) for key in keys])
            numbers = [self._numbers[key] for key in keys]
            count = int(self._graph.book.starts(domain, kind)[-1])
            self._hot[domain, kind] = HotRows(ids, count, dict(zip(numbers, rows, strict=True)))

    def renew(self, key: Key, ids: Array, rows: torch.Tensor) -> None:
        """Writes rows that have changed over their copies, if there are any.

        Args:
            key: of the feature.
            ids: int64[n], new ids within the type.
            rows: n rows.
        """
        hot = self._hot.get(key[:2])
        if hot is not None:
            hot.renew(self._numbers[key], ids, rows)

    def read(self, requests: Sequence[tuple[Key, torch.Tensor]]) -> list[torch.Tensor]:
        """Rows for each request, in the order of its ids, with one question to each owner.

        Args:
            requests: (key of a feature, integer[n] new ids within its type).

        Raises:
            IndexError: an id is out of range.
            RankError: a rank failed, has gone, or does not answer in time.
        """
        found: list[torch.Tensor] = []
        groups: dict[tuple[str, str | None, int, bool], Group] = {}
        for key, ids in requests:
            domain, kind, _ = key
            number = self._numbers[key]
            hot = self._hot.get((domain, kind))
            if hot is not None and number not in hot.rows:
                hot = None
            alike = domain, kind, id(ids), hot is None
            group = groups.get(alike)
            if group is None:
                group = groups[alike] = self._group(domain, kind, ids, hot)
            rows = next(iter(self._rows.values()))[number]
            found.append(empty((len(ids), *rows.shape[1:]), rows.dtype))
            group.numbers.append(number)
            group.outputs.append(found[-1])
        asked = self._questions(list(groups.values()))
        own = asked.pop(self._graph.exchange.rank, [])
        answers = self._graph.exchange.ask(
            self._graph.kind(Question.READ),
            {rank: _message(pieces) for rank, pieces in asked.items()},
            lambda: self._read_here(list(groups.values()), own),
        )
        for rank, pieces in asked.items():
            self._take(rank, pieces, answers[rank])
        return found

    def _group(
        self, domain: str, kind: str | None, ids: torch.Tensor, hot: HotRows | None
    ) -> Group:
        check_id_tensor(ids, f"{domain} ids", torch.int64)
        array = ids.detach().cpu().numpy()
        starts = self._graph.book.starts(domain, kind)
        num_parts = self._graph.book.num_parts
        parts = empty_array(len(array), np.int32)
        bad = find_parts(array, starts, num_parts, parts)
        if bad >= 0:
            raise IndexError(f"{domain} id {array[bad]} at {bad} is outside [0, {starts[-1]})")
        if hot is not None:
            hot.find(array, num_parts, self._here, parts)
        order, bounds = in_order(parts, num_parts + 1)
        narrow = int(np.diff(starts).max(initial=0)) < 2**31
        local = empty_array(len(array), np.int32 if narrow else np.int64)
        localise(array, order, bounds[:-1], starts, local)
        if hot is not None:
            hot.place(array, order, int(bounds[-2]), local)
        return Group([], order, bounds, local, hot, [])

    def _questions(self, groups: list[Group]) -> dict[int, list[_Piece]]:
        """What each rank is asked, group by group."""
        asked: dict[int, list[_Piece]] = {}
        for group in groups:
            for rank, low, high, parts, counts in self._graph.placing.by_rank(group.bounds[:-1]):
                asked.setdefault(rank, []).append(_Piece(group, low, high, parts, counts))
        return asked

    def _read_here(self, groups: list[Group], pieces: list[_Piece]) -> None:
        """Copies own and kept rows to where they are wanted."""
        for group in groups:
            if group.hot is not None:
                low = int(group.bounds[-2])
                places, order = group.local[low:], group.order[low:]
                for number, out in zip(group.numbers, group.outputs, strict=True):
                    gather_to(group.hot.rows[number], places, order, out)
        for piece in pieces:
            low = piece.low
            for part, count in zip(piece.parts.tolist(), piece.counts.tolist(), strict=True):
                mine = slice(low, low + count)
                for number, out in zip(piece.group.numbers, piece.group.outputs, strict=True):
                    rows = self._rows[part][number]
                    gather_to(rows, piece.group.local[mine], piece.group.order[mine], out)
                low += count

    def _take(self, rank: int, pieces: list[_Piece], answer: list[Array]) -> None:
        """Copies a rank's rows to where they are wanted.

        Raises:
            ValueError: they are not what was asked for.
        """
        rows = iter(answer)
        for piece in pieces:
            places = piece.group.order[piece.low : piece.high]
            for number, out in zip(piece.group.numbers, piece.group.outputs, strict=True):
                expected = (len(places), *out.shape[1:])
                got = next(rows, None)
                bits = RAW_BITS.get(out.dtype, out.dtype)
                if got is None or got.shape != expected or torch.from_numpy(got).dtype != bits:
                    what = "nothing" if got is None else f"{got.dtype} of shape {got.shape}"
                    raise ValueError(
                        f"rank {rank} answered with {what} for {self._keys[number]}; expected "
                        f"{bits} of shape {expected}"
                    )
                scatter(torch.from_numpy(got), places, out)

    def _answer(self, rank: int, message: list[Array]) -> list[Array]:
        answer = []
        for numbers, parts, counts, local in _groups_of(message):
            bounds = np.concatenate([[0], np.cumsum(counts)]).tolist()
            for number in numbers:
                if not 0 <= number < len(self._keys):
                    raise ValueError(f"there is no feature {number}; there are {self._keys}")
                pieces = [
                    self._rows_of(part, number, local[low:high])
                    for part, low, high in zip(parts, bounds[:-1], bounds[1:], strict=True)
                ]
                rows = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
                answer.append(rows.view(RAW_BITS.get(rows.dtype, rows.dtype)).numpy())
        return answer

    def _rows_of(self, part: int, number: int, ids: Array) -> torch.Tensor:
        if part not in self._rows:
            raise ValueError(f"part {part} is not here; here are {list(self._rows)}")
        rows = self._rows[part][number]
        if len(ids) and not (ids.min() >= 0 and ids.max() < len(rows)):
            raise IndexError(f"rows {ids.min()} to {ids.max()} of {len(rows)} in part {part}")
        return gather(rows, ids)


@dataclass(frozen=True, slots=True)
class _Piece:
    """What of a group one rank is asked: parts, how many rows of each, and where they lie."""

    group: Group
    low: int
    high: int
    parts: Array
    counts: Array


def _message(pieces: list[_Piece]) -> list[Array]:
    """As arrays: all numbers, then the rows of each group."""
    words: list[int] = []
    for piece in pieces:
        words += [len(piece.group.numbers), len(piece.parts), *piece.group.numbers]
        words += [*piece.parts.tolist(), *piece.counts.tolist()]
    return [
        np.array(words, np.int64),
        *(piece.group.local[piece.low : piece.high] for piece in pieces),
    ]


def _groups_of(message: list[Array]) -> Iterator[tuple[list[int], list[int], list[int], Array]]:
    """(numbers of features, parts, rows of each part, rows within the parts) of each group.

    Raises:
        ValueError: the arrays are no such question.
    """
    if not message or any(array.ndim != 1 or array.dtype.kind != "i" for array in message):
        raise ValueError("a question for rows is not arrays of integers")
    words = message[0].tolist()
    at = 0
    for local in message[1:]:
        features, parts = words[at : at + HEAD_WORDS] if at + HEAD_WORDS <= len(words) else (0, 0)
        at += HEAD_WORDS
        end = at + features + 2 * parts
        if features < 1 or parts < 1 or end > len(words):
            raise ValueError("a question for rows does not fit together")
        counts = words[end - parts : end]
        if min(counts) < 0 or sum(counts) != len(local):
            raise ValueError(f"a question for rows asks for {sum(counts)}, and names {len(local)}")
        yield words[at : at + features], words[at + features : end - parts], counts, local
        at = end
