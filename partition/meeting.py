"""Meeting: steps that all ranks take together, by questions of the exchange."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from hopline.partition.alike import as_message, check_alike
from hopline.partition.exchange import Exchange, RankError

__all__ = ["Meeting"]

Array = np.ndarray[Any, Any]
Message = list[Array]
T = TypeVar("T")

LOOK = 0.5  # seconds between looks whether the exchange still works


class Meeting:
    """Each rank has something for each; nobody goes on before it has heard of all.

    Making one is collective, and every call is: all ranks make the same calls in the same order, on
    one thread. What comes is laid in a box by the exchange's thread, which waits for nothing; who
    calls waits for the box to fill.

    Args:
        exchange: between the ranks; its timeout is that of a meeting.
    """

    def __init__(self, exchange: Exchange) -> None:
        self.rank, self.world_size = exchange.rank, exchange.world_size
        self._exchange = exchange
        self._number = 0  # of meetings so far
        self._box: dict[tuple[int, int], Message] = {}  # by (number of the meeting, rank)
        self._came = threading.Condition()
        self._kind = exchange.claim(1)
        exchange.answer(self._kind, self._receive)

    def swap(self, messages: list[Message]) -> list[Message]:
        """Gives a message to each rank, and returns what each has for this one.

        Args:
            messages: one a rank, in the order of ranks.

        Raises:
            RankError: a rank has gone, or does not come in time.
        """
        number = self._number
        self._number += 1
        if self.world_size == 1:
            return messages
        head = np.array([number], np.int64)
        self._exchange.ask(
            self._kind, {rank: [head, *message] for rank, message in enumerate(messages)}
        )
        deadline = time.monotonic() + self._exchange.timeout
        while missing := self._wait(number, deadline):
            if time.monotonic() >= deadline:
                names = ", ".join(f"rank {rank}" for rank in missing)
                raise RankError(
                    f"{names} did not come to a step of all ranks within "
                    f"{self._exchange.timeout:g} s; all must save, load and step alike"
                )
            self._exchange.ask(self._kind, {rank: [] for rank in missing})  # names who has gone
        with self._came:
            return [self._box.pop((number, rank)) for rank in range(self.world_size)]

    def gather(self, value: int) -> list[int]:
        """A number of each rank; nobody goes on before all are here.

        Raises:
            RankError: a rank has gone, or does not come in time.
        """
        told = self.swap([[np.array([value], np.int64)]] * self.world_size)
        return [int(message[0][0]) for message in told]

    def agree(self, what: str, values: Mapping[str, Any]) -> None:
        """Refuses, on all ranks, values that are not the same on all.

        Args:
            what: the things that have them, for the message, e.g. "tables".
            values: by name; compared by their `repr`.

        Raises:
            ValueError: a rank differs; names it, and both values.
            RankError: a rank has gone, does not come in time, or is at another step.
        """
        if self.world_size > 1:
            told = self.swap([[as_message(values)]] * self.world_size)
            check_alike(what, [message[0] for message in told])

    def together(self, work: Callable[[], T]) -> T:
        """Does some work on every rank, and fails on all where it fails on one.

        Raises:
            Exception: what the work raised here.
            RankError: it failed on another rank, or a rank has gone.
        """
        error: Exception | None = None
        try:
            result = work()
        except Exception as raised:
            error = raised
        failed = self.gather(int(error is not None))
        if error is not None:
            raise error
        if any(failed):
            names = ", ".join(f"rank {rank}" for rank, bad in enumerate(failed) if bad)
            raise RankError(f"{names} could not do its part; its own error says why")
        return result

    def _wait(self, number: int, deadline: float) -> list[int]:
        """Ranks that have not come, after a while in which they might."""

        def absent() -> list[int]:
            return [r for r in range(self.world_size) if (number, r) not in self._box]

        with self._came:
            self._came.wait_for(
                lambda: not absent(), max(0.0, min(LOOK, deadline - time.monotonic()))
            )
            return absent()

    def _receive(self, rank: int, message: Message) -> Message:
        if message:
            with self._came:
                self._box[int(message[0][0]), rank] = [array.copy() for array in message[1:]]
                self._came.notify_all()
        return []
