"""What ranks ask each other by number, and how a hop is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from hopline.pipes.hop import HopRule

__all__ = ["EdgeQuestion", "HopQuestion", "Question"]

Array = np.ndarray[Any, Any]

WORDS = 7  # of a hop's first array
REPLACE, WEIGHTED, LAYERED, TIMED, NODE_TIMED, EDGE_TIMED = (1 << i for i in range(6))


class Question(IntEnum):
    """Kinds of questions: the first of each `DistGraph` is 0, of the next one more."""

    HOP = 0
    READ = 1
    UPDATE = 2
    EDGES = 3
    NODE_TIMES = 4


@dataclass(frozen=True, slots=True)
class HopQuestion:
    """In-edges of nodes of some parts, by a rule.

    Attributes:
        parts: int64[k], the parts that are asked.
        counts: int64[k], columns of each.
        columns: integer[n], new fused ids, those of one part after those of another.
        rule: how to draw.
        times: int64[n], or None.
        earliest: int64[n], or None.
    """

    parts: Array
    counts: Array
    columns: Array
    rule: HopRule
    times: Array | None = None
    earliest: Array | None = None

    def to_message(self) -> list[Array]:
        """As arrays."""
        rule = self.rule
        names = [rule.prob_name, rule.node_time_name, rule.edge_time_name]
        flags = (
            REPLACE * rule.replace
            | WEIGHTED * (rule.prob_name is not None)
            | LAYERED * (rule.layer is not None)
            | TIMED * (self.times is not None)
            | NODE_TIMED * (rule.node_time_name is not None)
            | EDGE_TIMED * (rule.edge_time_name is not None)
        )
        text = "\0".join(name or "" for name in names).encode()
        message = [
            np.array([flags], np.int64), self.parts, self.counts, self.columns, rule.fanouts,
            rule.keys, np.frombuffer(text, np.uint8),
        ]  # fmt: skip
        if rule.layer is not None:
            message.append(rule.layer)
        if self.times is not None:
            message.append(self.times)
            message.append(np.empty(0, np.int64) if self.earliest is None else self.earliest)
        return message

    @staticmethod
    def from_message(message: list[Array]) -> HopQuestion:
        """From arrays of another rank.

        Raises:
            ValueError: they are no such question.
        """
        if len(message) < WORDS:
            raise ValueError(f"a question for a hop has {len(message)} arrays")
        words, parts, counts, columns, fanouts, keys, text = message[:WORDS]
        rest = iter(message[WORDS:])
        flags = int(words[0])
        names = bytes(text).decode().split("\0")
        integers = [words, parts, counts, columns, fanouts]
        if (
            len(names) != 3
            or any(a.ndim != 1 or a.dtype.kind != "i" for a in integers)
            or keys.dtype != np.uint64
            or len(keys) != len(fanouts)
            or len(parts) != len(counts)
            or int(counts.sum()) != len(columns)
            or (counts < 0).any()
        ):
            raise ValueError("a question for a hop does not fit together")
        layer = next(rest) if flags & LAYERED else None
        times = next(rest) if flags & TIMED else None
        earliest = next(rest) if flags & TIMED else None
        if times is not None and len(times) != len(columns):
            raise ValueError("a question for a hop has not one time for each column")
        rule = HopRule(
            fanouts=fanouts,
            replace=bool(flags & REPLACE),
            keys=keys,
            prob_name=names[0] if flags & WEIGHTED else None,
            layer=layer,
            node_time_name=names[1] if flags & NODE_TIMED else None,
            edge_time_name=names[2] if flags & EDGE_TIMED else None,
        )
        if earliest is not None and len(earliest) == 0 and len(columns):
            earliest = None
        return HopQuestion(parts, counts, columns, rule, times, earliest)


@dataclass(frozen=True, slots=True)
class EdgeQuestion:
    """Whether there are edges to nodes of some parts.

    Attributes:
        edge_type: number of the edges' type.
        parts: int64[k], the parts that are asked.
        counts: int64[k], pairs of each.
        sources: integer[n], new fused ids, those of one part after those of another.
        columns: integer[n], new fused ids.
    """

    edge_type: int
    parts: Array
    counts: Array
    sources: Array
    columns: Array

    def to_message(self) -> list[Array]:
        """As arrays."""
        words = np.array([self.edge_type], np.int64)
        return [words, self.parts, self.counts, self.sources, self.columns]

    @staticmethod
    def from_message(message: list[Array]) -> EdgeQuestion:
        """From arrays of another rank.

        Raises:
            ValueError: they are no such question.
        """
        if len(message) != 5 or any(a.ndim != 1 or a.dtype.kind != "i" for a in message):
            raise ValueError("a question for edges is not five arrays of integers")
        words, parts, counts, sources, columns = message
        if (
            len(words) != 1
            or len(parts) != len(counts)
            or (counts < 0).any()
            or not int(counts.sum()) == len(sources) == len(columns)
        ):
            raise ValueError("a question for edges does not fit together")
        return EdgeQuestion(int(words[0]), parts, counts, sources, columns)
