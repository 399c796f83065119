"""Exchange: questions to other ranks and their answers.

A question goes from the thread that asks straight to the rank that is asked, where a thread waits
for questions of each other rank, and answers them. So ranks need not be at the same place of their
epochs, and one that has finished goes on answering. Where several threads ask at once, each has a
lane of its own.

Besides, there is a beat of all ranks, by which a rank that is stopped is noticed where nobody asks
it, and which ends when all have closed. All this has a process group of its own: what else the
ranks exchange is not in its way.

A rank that notices that another one is gone closes its connections, so that all others notice at
once; then a roll call finds out which one it was.
"""

from __future__ import annotations

import atexit
import itertools
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch.distributed as dist

from hopline.partition.answers import Answerer, Message, RankError, answer, text_of
from hopline.partition.asking import ask_once
from hopline.partition.links import ConnectionLost, Links
from hopline.partition.messages import Incoming, encode
from hopline.partition.roll_call import RollCall, Verdict
from hopline.partition.serving import (
    beat,
    join,
    lanes_of,
    let_go,
    listen,
    on_thread,
    start,
)

__all__ = ["Exchange", "RankError"]

PAUSE = 0.02  # seconds until a rank where nobody answers so far is asked again
SOON = 0.1  # seconds; one thread's wait that is over has others notice, maybe before itself
SETTLED = 10.0  # seconds in which whoever noticed a loss first finds out whose it is
SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE")  # number of ranks that torchrun, mpirun has started
WITHOUT_CLOSE = "left the exchange without close(), as after an error of its own"

Array = np.ndarray[Any, Any]

_numbers = itertools.count()  # exchanges of this process: all ranks make them in the same order


class Exchange:
    """Questions and answers between the ranks of the default process group.

    Making one is collective: all ranks make it, and as many, in the same order. Without a process
    group this process is the only rank. As a context manager it is closed at the end, and left
    after an exception, of which the other ranks are told.

    Args:
        timeout: seconds to wait for another rank.

    Raises:
        RankError: a rank does not make one in time.
        RuntimeError: torchrun or mpirun has started this process as one of several, and there is no
            process group.
        ValueError: timeout is not above 0 and finite.

    Attributes:
        rank: of this process.
        world_size: number of ranks.
    """

    def __init__(self, timeout: float = 60.0) -> None:
        number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
        if not number or not 0 < timeout < math.inf:
            raise ValueError(f"timeout is {timeout!r}; expected seconds, above 0 and finite")
        if dist.is_available() and dist.is_initialized():
            self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        elif name := next((name for name in SIZES if os.environ.get(name, "1") != "1"), None):
            raise RuntimeError(
                f"{name} is {os.environ[name]}, but there is no process group; call "
                "torch.distributed.init_process_group first, or hopline.models.join_ranks"
            )
        else:
            self.rank, self.world_size = 0, 1
        self.timeout = float(timeout)
        self._process = os.getpid()
        self._answerers: dict[int, Answerer] = {}
        self._claimed = 0
        self._change = threading.Condition()
        # Under it: lanes that no question is on, and what has become of the exchange.
        self._lanes = list(range(lanes_of(self.world_size)))
        self._asking = 0
        # What is under way: rank that is waited for, until when.
        self._waits: dict[Hashable, tuple[int, float]] = {}
        self._closing = self._ended = self._finished = False
        self._error: RankError | None = None
        self._links: Links | None = None
        if self.world_size > 1:
            self._connect()

    def _connect(self) -> None:
        itself = weakref.ref(self)

        def told(verdict: Verdict) -> None:
            exchange = itself()
            if exchange is not None and exchange._links is not None:  # else it asks, in time
                exchange._end(exchange._told(verdict.text, verdict.ranks))

        name = f"hopline-exchange-{next(_numbers)}"
        roll_call = RollCall(name, self.rank, self.world_size, told)
        try:
            missing = roll_call.start(self.timeout)
            if missing is not None:
                raise self._told(missing.text, missing.ranks)
            try:
                links = self._made_links()
            except ConnectionLost as error:
                verdict = roll_call.verdict()
                raise self._told(f"{verdict.text} ({error})", verdict.ranks) from None
        except RankError:
            raise
        except BaseException:  # such as Ctrl-C: the others need not find out
            roll_call.leave(WITHOUT_CLOSE)
            raise
        self._links, self._roll_call, self._nudge = links, roll_call, threading.Event()
        self._threads = [start(beat, itself, links, self._nudge)]
        for rank in range(self.world_size):
            if rank != self.rank:
                self._threads += [start(listen, itself, links, rank, k) for k in self._lanes]
        weakref.finalize(self, let_go, links, roll_call, self._threads).atexit = False
        _open.add(self)

    def _made_links(self) -> Links:
        """Links to all ranks, or `ConnectionLost`.

        On a thread: gloo tries five times, each for the timeout, and hears of no Ctrl-C meanwhile.
        """
        making = on_thread(Links, self.rank, self.world_size, self.timeout)
        try:
            links: Links = making.result(self.timeout + SETTLED)
        except BaseException as error:
            making.add_done_callback(_end_made)
            if isinstance(error, TimeoutError):
                raise ConnectionLost("a rank did not connect in time") from None
            raise
        return links

    @property
    def bytes_sent(self) -> int:
        """Bytes of questions and answers to other ranks so far."""
        return 0 if self._links is None else self._links.bytes_sent

    def claim(self, count: int) -> int:
        """The first of so many kinds of questions that nobody else uses; the same on all ranks."""
        first = self._claimed
        self._claimed += count
        return first

    def answer(self, kind: int, answerer: Answerer) -> None:
        """Says who answers questions of a kind.

        Args:
            kind: int, of the caller's choice; the same on all ranks.
            answerer: called with the rank that asks and the arrays, on threads of the exchange,
                several at once, or on the asking one for questions to oneself; returns arrays. An
                exception is told to whoever asked.

        Raises:
            ValueError: questions of that kind are answered already.
        """
        if kind in self._answerers:
            raise ValueError(f"questions of kind {kind} are answered already")
        self._answerers[kind] = answerer

    def ask(
        self,
        kind: int,
        messages: dict[int, Message],
        meanwhile: Callable[[], None] | None = None,
    ) -> dict[int, Message]:
        """Asks some ranks, waits, and returns their answers; any thread may call it.

        Args:
            kind: of the question.
            messages: `{rank: arrays}`; what is asked of oneself is answered meanwhile, without the
                exchange.
            meanwhile: called once when the others have been asked.

        Raises:
            RankError: a rank failed while it answered, has gone, or does not answer in time.
            RuntimeError: the exchange is closed, or was made before this process was forked.
            TypeError: arrays of other types than numbers and bool.
            ValueError: there is no such rank.
        """
        if unknown := [rank for rank in messages if not 0 <= rank < self.world_size]:
            raise ValueError(f"there is no rank {unknown[0]}; ranks are below {self.world_size}")
        others = {r: encode(kind, message) for r, message in messages.items() if r != self.rank}
        answers: dict[int, Message] = {}

        def here() -> None:
            if self.rank in messages:
                answers[self.rank] = self._answer_myself(kind, messages[self.rank])
            if meanwhile is not None:
                meanwhile()

        if not others:
            here()
            return answers
        self._check_process()
        if threading.current_thread() is not threading.main_thread():
            return answers | self._ask(kind, here, others)
        # The main thread hears of Ctrl-C only if it does not wait for other ranks itself. What is
        # under way comes to its end all the same.
        replies: dict[int, Message] = on_thread(self._ask, kind, here, others).result()
        return answers | replies

    def _ask(
        self, kind: int, here: Callable[[], None], others: dict[int, list[Array]]
    ) -> dict[int, Message]:
        deadline = time.monotonic() + self.timeout
        answers: dict[int, Message] = {}
        while True:
            with self._lane() as lane:
                answers |= self._ask_once(lane, here, others)
            here, others = _nothing, {r: m for r, m in others.items() if r not in answers}
            if not others:
                return answers
            if time.monotonic() > deadline:
                rank = min(others)
                raise RankError(
                    f"rank {rank} has nobody for questions of kind {kind}; do all ranks make the "
                    "same DistGraph and DistFeatureStore?",
                    (rank,),
                )
            time.sleep(PAUSE)

    def _ask_once(
        self, lane: int, here: Callable[[], None], others: dict[int, list[Array]]
    ) -> dict[int, Message]:
        """Answers, of those ranks where somebody answers such questions by now."""
        assert self._links is not None
        deadline = time.monotonic() + self.timeout

        def seconds_for(rank: int) -> float:
            self._waits[lane] = rank, deadline
            return deadline - time.monotonic()

        try:
            answers, failure = ask_once(self._links, self.rank, lane, others, here, seconds_for)
        except ConnectionLost as lost:
            self._lost(str(lost))
            raise self._why_not() from None
        except BaseException as own:  # what is under way on the lane is not known any more
            self._fail(text_of(own))
            raise
        finally:
            self._waits.pop(lane, None)
        if failure is not None:
            raise failure
        return answers

    def _answer_myself(self, kind: int, message: Message) -> Message:
        if kind not in self._answerers:
            raise RuntimeError(f"nobody answers questions of kind {kind}")
        return self._answerers[kind](self.rank, message)

    @contextmanager
    def _lane(self) -> Iterator[int]:
        """A lane for one question; waits until one is free."""
        with self._change:
            self._change.wait_for(lambda: self._lanes or self._closing or self._ended)
            if self._closing or self._ended:
                raise self._why_not()
            lane = self._lanes.pop()
            self._asking += 1
        try:
            yield lane
        finally:
            with self._change:
                self._lanes.append(lane)
                self._asking -= 1
                self._change.notify_all()
            if self._closing:
                self._nudge.set()

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError(
                "the exchange was made before this process was forked; ask in the process that "
                "made it, e.g. with a DataLoader of threads"
            )

    def _told(self, text: str, ranks: tuple[int, ...]) -> RankError:
        return RankError(
            f"{text}; rank {self.rank} cannot go on (the exchange's timeout is {self.timeout:g} s)",
            ranks,
        )

    def _why_not(self) -> Exception:
        """Why nobody can ask any more, as a new object for each who asks."""
        if self._error is None:
            return RuntimeError("the exchange is closed")
        return RankError(str(self._error), self._error.ranks)

    def close(self) -> None:
        """Goes on answering until all ranks have called this, then ends; a second time is nothing.

        Raises:
            RankError: a rank has gone, or does not answer in time.
        """
        if self._links is None or self._finished:
            return
        self._check_process()
        with self._change:
            self._closing = True
            self._change.notify_all()
            self._nudge.set()
            self._change.wait_for(lambda: self._ended)
        self._finish()
        if self._error is not None:
            raise self._why_not()

    def leave(self) -> None:
        """Ends without waiting for the other ranks, which are told so; for use after an error."""
        if self._links is None or self._finished or os.getpid() != self._process:
            return
        if self._links.begin_end():
            # First the reason, then the connections, whose end the others notice.
            try:
                self._roll_call.leave(WITHOUT_CLOSE)
            finally:  # also after a second Ctrl-C
                self._end(None)
        self._finish()

    def _finish(self) -> None:
        """Waits for the threads, which end now that the links do."""
        with self._change:
            self._change.wait_for(lambda: self._ended, SETTLED)
        join(self._threads)
        self._finished = True
        _open.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.leave()

    # ---------------------------------------------------------------------------------------------
    # On the threads

    def _reply(self, rank: int, question: Incoming) -> list[Array]:
        return answer(self._answerers, rank, question)

    def _may_close(self) -> bool:
        """Whether this rank has nothing more to ask."""
        with self._change:
            return self._closing and not self._asking

    def _all_closed(self) -> None:
        if self._links is not None and self._links.begin_end():
            self._roll_call.stop()
            self._end(None)

    def _lost(self, lost: str) -> None:
        """Finds out who has gone; of all threads that notice, the first does."""
        assert self._links is not None
        if self._links.begin_end():
            self._links.end()
            now = time.monotonic() + SOON
            late = {rank for rank, deadline in list(self._waits.values()) if deadline <= now}
            verdict = self._roll_call.verdict(sorted(late))
            self._end(self._told(f"{verdict.text} ({lost})", verdict.ranks))
        else:
            with self._change:
                self._change.wait_for(lambda: self._ended, SETTLED)

    def _fail(self, text: str) -> None:
        """Leaves after an error of the exchange's own."""
        assert self._links is not None
        if self._links.begin_end():
            why = f"left the exchange: {text}"
            self._roll_call.leave(why)
            self._end(self._told(f"rank {self.rank} {why}", (self.rank,)))

    def _end(self, error: RankError | None) -> None:
        """Whoever waits is told; nobody can ask any more."""
        assert self._links is not None
        with self._change:
            if self._error is None and not self._ended:
                self._error = error
            self._ended = True
            self._change.notify_all()
        self._links.end()


def _end_made(making: Future[Links]) -> None:
    """Ends links that came too late."""
    if making.exception() is None:
        making.result().end()


def _nothing() -> None:
    """What is to be done meanwhile when it has been done."""


_open: weakref.WeakSet[Exchange] = weakref.WeakSet()


@atexit.register
def _leave_all() -> None:
    """Threads that wait for other ranks when Python ends would be ended inside torch's code."""
    for exchange in list(_open):
        exchange.leave()
