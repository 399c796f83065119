"""Ranks of a DistGraph in one process: an exchange by calls, for tests of what is asked."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from hopline.partition import DistFeatureStore, DistGraph


class CallExchange:
    """One rank's end; what is asked and answered is copied, as it would be on the way."""

    def __init__(self, everybody: list[CallExchange], rank: int, world_size: int) -> None:
        self.rank, self.world_size, self.timeout = rank, world_size, 60.0
        self.everybody = everybody
        self.claimed = 0
        self.answerers: dict[int, Any] = {}
        self.asked: list[tuple[int, set[int]]] = []  # (kind, ranks) of each call of ask
        self.lock = threading.Lock()

    def claim(self, count: int) -> int:
        first, self.claimed = self.claimed, self.claimed + count
        return first

    def answer(self, kind: int, answerer: Any) -> None:
        assert kind not in self.answerers
        self.answerers[kind] = answerer

    def ask(self, kind: int, messages: dict[int, Any], meanwhile: Any = None) -> dict[int, Any]:
        with self.lock:
            self.asked.append((kind, set(messages)))
        if meanwhile is not None:
            meanwhile()
        # Those with higher numbers answer first: nobody may rely on an order.
        answers = {}
        for rank in sorted(messages, reverse=True):
            answer = self.everybody[rank].answerers[kind](self.rank, sent(messages[rank]))
            answers[rank] = sent(answer)
        return answers

    def close(self) -> None:
        pass

    leave = close


def sent(message: Any) -> list[Any]:
    for array in message:
        assert isinstance(array, np.ndarray)
        assert array.dtype.kind in "biufc"
    return [np.array(array, order="C") for array in message]


def open_on_ranks(folder: Any, ranks: int) -> list[tuple[DistGraph, DistFeatureStore]]:
    """Graph and features of each rank."""
    exchanges: list[CallExchange] = []
    for rank in range(ranks):
        exchanges.append(CallExchange(exchanges, rank, ranks))
    opened: list[Any] = []
    for exchange in exchanges:
        graph = DistGraph(folder, exchange=exchange)  # type: ignore[arg-type]
        opened.append((graph, DistFeatureStore(graph)))
    return opened
