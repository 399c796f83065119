"""Exchange: questions to other ranks and their answers, in rounds of collectives on a thread.

All ranks go through the same rounds: first each tells all others how many bytes it has for whom,
and if anybody has any, questions go out and answers come back, all to all. In a round every rank
may ask something else, or nothing; so ranks need not be at the same place of their epochs, and one
that has finished goes on answering. Where nobody asks, a round is one small message, now and then,
by which a dead rank is noticed.

The rounds have a process group of their own: what else the ranks exchange is not in their way.

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
from collections import deque
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch.distributed as dist

from hopline.partition.answers import (
    Answerer,
    Message,
    PendingQuestion,
    RankError,
    answer_all,
    hand_out,
    text_of,
)
from hopline.partition.messages import join, to_bytes
from hopline.partition.roll_call import RollCall, Verdict
from hopline.partition.rounds import ConnectionLost, Rounds

__all__ = ["Exchange", "RankError"]

Array = np.ndarray[Any, Any]

SHORTEST_PAUSE, LONGEST_PAUSE = 0.0002, 0.02  # seconds between rounds in which nobody asks
LEAVE = 5.0  # seconds that leaving waits for a round
CLOSING = 1  # a rank has nothing more to ask
LEAVING = 2  # a rank goes without waiting for the others
WITHOUT_CLOSE = "left the exchange without close(), as after an error of its own"

_numbers = itertools.count()  # exchanges of this process: all ranks make them in the same order


class Exchange:
    """Questions and answers between the ranks of the default process group.

    Making one is collective: all ranks make it, and as many, in the same order. Without a process
    group this process is the only rank. As a context manager it is closed at the end, and left
    after an exception, of which the other ranks are told.

    Args:
        timeout: seconds that a round waits for another rank.

    Raises:
        RankError: a rank does not make one in time.
        RuntimeError: torchrun has started this process as one of several, and there is no process
            group.
        ValueError: timeout is not above 0 and finite.
    """

    def __init__(self, timeout: float = 60.0) -> None:
        number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
        if not number or not 0 < timeout < math.inf:
            raise ValueError(f"timeout is {timeout!r}; expected seconds, above 0 and finite")
        if dist.is_available() and dist.is_initialized():
            self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        elif os.environ.get("WORLD_SIZE", "1") != "1":
            raise RuntimeError(
                f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, but there is no process group; call "
                "torch.distributed.init_process_group first, or hopline.models.join_ranks"
            )
        else:
            self.rank, self.world_size = 0, 1
        self.timeout = float(timeout)
        self._process = os.getpid()
        self._answerers: dict[int, Answerer] = {}
        self._claimed = 0
        self._questions: deque[PendingQuestion] = deque()
        self._taken: list[PendingQuestion] = []  # in the round that is under way
        self._wake = threading.Condition()
        self._state = 0
        self._error: RankError | None = None
        self._ended = False
        self.bytes_sent = 0  # to other ranks, questions and answers
        self.rounds = 0  # in which somebody asked
        self._thread: threading.Thread | None = None
        self._done = threading.Event()  # of the thread
        self._roll_call: RollCall | None = None
        if self.world_size == 1:
            return
        itself = weakref.ref(self)

        def told(verdict: Verdict) -> None:
            exchange = itself()
            if exchange is not None:
                exchange._end(exchange._told(verdict.text, verdict.ranks))

        name = f"hopline-exchange-{next(_numbers)}"
        roll_call = RollCall(name, self.rank, self.world_size, told)
        missing = roll_call.start(self.timeout)
        if missing:
            names = ", ".join(f"rank {rank}" for rank in missing)
            raise RankError(
                f"{names} made no exchange (DistGraph) within {self.timeout:g} s of rank "
                f"{self.rank}; all ranks make it, in the same order",
                tuple(missing),
            )
        try:
            rounds = Rounds(self.rank, self.world_size, self.timeout)
        except ConnectionLost as error:
            verdict = roll_call.verdict()
            raise self._told(f"{verdict.text} ({error})", verdict.ranks) from None
        self._roll_call = roll_call
        # A thread that waits for other ranks keeps nobody alive, and ends before Python does.
        self._thread = threading.Thread(
            target=_run,
            args=(itself, rounds, roll_call, self._done),
            name="hopline-exchange",
            daemon=True,
        )
        self._thread.start()
        _open.add(self)

    def claim(self, count: int) -> int:
        """The first of so many kinds of questions that nobody else uses; the same on all ranks."""
        first = self._claimed
        self._claimed += count
        return first

    def answer(self, kind: int, answerer: Answerer) -> None:
        """Says who answers questions of a kind.

        Args:
            kind: int, of the caller's choice; the same on all ranks.
            answerer: called with the rank that asks and the arrays, on the exchange's thread, or on
                the asking one for questions to oneself; returns arrays. An exception is told to
                whoever asked.
        """
        if kind in self._answerers:
            raise ValueError(f"questions of kind {kind} are answered already")
        self._answerers[kind] = answerer

    def ask(self, kind: int, messages: dict[int, Message]) -> dict[int, Message]:
        """Asks some ranks, waits, and returns their answers; any thread may call it.

        Args:
            kind: of the question.
            messages: `{rank: arrays}`; what is asked of oneself is answered meanwhile, without the
                exchange.

        Raises:
            RankError: a rank failed while it answered, has gone, or does not answer in time.
            RuntimeError: the exchange is closed, or was made before this process was forked.
            TypeError: arrays of other types than numbers and bool.
            ValueError: there is no such rank.
        """
        if unknown := [rank for rank in messages if not 0 <= rank < self.world_size]:
            raise ValueError(f"there is no rank {unknown[0]}; ranks are below {self.world_size}")
        others = {
            rank: to_bytes(message) for rank, message in messages.items() if rank != self.rank
        }
        # A copy: the thread takes out who has answered, maybe before this one is through.
        question = PendingQuestion(kind, dict(others), time.monotonic() + self.timeout)
        if others:
            self._submit(question)
        answers: dict[int, Message] = {}
        if self.rank in messages:
            if kind not in self._answerers:
                raise RuntimeError(f"nobody answers questions of kind {kind}")
            answers[self.rank] = self._answerers[kind](self.rank, messages[self.rank])
        if others:
            answers |= question.future.result()
        return answers

    def _submit(self, question: PendingQuestion) -> None:
        self._check_process()
        with self._wake:
            if self._error is not None:
                raise self._again()
            if self._state or self._ended or self._thread is None:
                raise RuntimeError("the exchange is closed")
            self._questions.append(question)
            self._wake.notify_all()

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

    def _again(self) -> RankError:
        """The error that ended the exchange, as a new object for each who asks."""
        assert self._error is not None
        return RankError(str(self._error), self._error.ranks)

    def close(self) -> None:
        """Goes on answering until all ranks have called this, then ends; a second time is nothing.

        Raises:
            RankError: a rank has gone, or does not answer in time.
        """
        if self._thread is None:
            return
        self._check_process()
        self._finish(CLOSING, None)
        if self._error is not None:
            raise self._again()

    def leave(self) -> None:
        """Ends without waiting for the other ranks, which are told so; for use after an error."""
        if self._thread is not None and os.getpid() == self._process:
            self._finish(LEAVING, LEAVE)
            if (
                not self._done.is_set() and self._roll_call is not None
            ):  # others are busy in their round
                self._roll_call.leave(WITHOUT_CLOSE)

    def _finish(self, state: int, seconds: float | None) -> None:
        thread = self._thread
        assert thread is not None
        with self._wake:
            self._state |= state
            self._wake.notify_all()
        # Not by join alone: after Ctrl-C in it, Python 3.11 holds the thread for ended.
        if self._done.wait(seconds):
            thread.join()
        self._thread = None
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
    # On the thread

    def _take(self, pause: float) -> tuple[int, list[PendingQuestion]]:
        """The state, and all questions that wait; after a pause, none."""
        with self._wake:
            if not self._questions and not self._state:
                self._wake.wait(pause)
            self._taken = list(self._questions)
            self._questions.clear()
            # Together: after the state says that all is asked, no question comes.
            return self._state, self._taken

    def _round(self, rounds: Rounds, state: int, questions: list[PendingQuestion]) -> bool | None:
        """One round; returns whether anybody asked, or None if it was the last one."""
        outgoing = [
            join([(q.kind, q.messages[rank]) for q in questions if rank in q.messages])
            for rank in range(self.world_size)
        ]
        table = rounds.gather([state, *(len(data) for data in outgoing)])
        states, sizes = table[:, 0], table[:, 1:]
        if state & LEAVING:
            return None
        left = np.flatnonzero(states & LEAVING).tolist()
        if left:
            names = ", ".join(f"rank {rank}" for rank in left)
            raise self._told(f"{names} {WITHOUT_CLOSE}", tuple(left))
        if wrong := np.flatnonzero((sizes < 0).any(axis=1)).tolist():
            raise self._told(f"rank {wrong[0]} sends a size below 0", tuple(wrong))
        if not sizes.any():
            return None if bool((states & CLOSING).all()) else False
        incoming = rounds.swap(outgoing, sizes[:, self.rank].tolist())
        answers = [answer_all(self._answerers, rank, data) for rank, data in enumerate(incoming)]
        lengths = rounds.swap_numbers([len(data) for data in answers])
        if wrong := [rank for rank, length in enumerate(lengths) if length < 0]:
            raise self._told(f"rank {wrong[0]} sends a size below 0", tuple(wrong))
        returned = rounds.swap(answers, lengths)
        for data in (*outgoing, *answers):
            self.bytes_sent += len(data)
        self.rounds += 1
        again = hand_out(questions, returned, self.rank)
        with self._wake:
            self._questions.extendleft(reversed(again))
            self._taken = []
        if again:
            time.sleep(LONGEST_PAUSE)
        return True

    def _end(self, error: RankError | None) -> None:
        """Whoever waits is told; nobody can ask any more."""
        with self._wake:
            if error is not None and self._error is None:
                self._error = error
            self._ended = True
            waiting = [*self._taken, *self._questions]
            self._questions.clear()
        for question in waiting:
            question.fail(
                RuntimeError("the exchange is closed") if self._error is None else self._again()
            )


def _run(
    reference: weakref.ref[Exchange], rounds: Rounds, roll_call: RollCall, done: threading.Event
) -> None:
    """The thread's work; it ends when the exchange is closed, or has gone."""
    error: RankError | None = None
    why = "left the exchange"
    try:
        error, why = _serve(reference, rounds, roll_call)
    finally:
        # First the reason, then the connections, whose end the others notice.
        if why:
            roll_call.leave(why)
        else:
            roll_call.stop()
        rounds.end()
        exchange = reference()
        if exchange is not None:
            exchange._end(error)
        done.set()


def _serve(
    reference: weakref.ref[Exchange], rounds: Rounds, roll_call: RollCall
) -> tuple[RankError | None, str]:
    """Rounds until one is the last: (what whoever asks is told, what the other ranks are told)."""
    pause = SHORTEST_PAUSE
    while (exchange := reference()) is not None:
        state, taken = exchange._take(pause)
        try:
            asked = exchange._round(rounds, state, taken)
        except ConnectionLost as lost:
            rounds.end()
            if exchange._state & LEAVING:
                return None, WITHOUT_CLOSE
            verdict = roll_call.verdict()
            return exchange._told(f"{verdict.text} ({lost})", verdict.ranks), ""
        except RankError as told:
            return told, ""
        except BaseException as own:
            why = f"left the exchange: {text_of(own)}"
            return exchange._told(f"rank {exchange.rank} {why}", (exchange.rank,)), why
        if asked is None:
            return None, ""
        pause = SHORTEST_PAUSE if asked else min(2 * pause, LONGEST_PAUSE)
        del exchange, taken
    return None, "let go of its exchange (DistGraph) without close()"


_open: weakref.WeakSet[Exchange] = weakref.WeakSet()


@atexit.register
def _leave_all() -> None:
    """Threads that are in a collective when Python ends would be ended inside torch's code."""
    for exchange in list(_open):
        exchange.leave()
