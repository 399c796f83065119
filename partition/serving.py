"""The threads of an exchange: those that answer each other rank, and the one that keeps the beat.

They know the exchange by a weak reference only, so that one that is let go of ends as well.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from hopline.partition.answers import failed, text_of
from hopline.partition.links import ConnectionLost, Links
from hopline.partition.messages import Incoming, MessageError
from hopline.partition.roll_call import RollCall

if TYPE_CHECKING:
    from hopline.partition.exchange import Exchange

__all__ = ["beat", "join", "lanes_of", "let_go", "listen", "on_thread", "start", "tags_of"]

NAME = "hopline-exchange"
LISTENERS = 16  # threads that answer, about, over all other ranks
MOST_LANES = 4
BEAT = 0.2  # seconds between beats
LONGER = 1.0  # seconds; an asker may wait for a third rank, as long, before it takes an answer
ENDED = 10.0  # seconds in which threads end when their links have
BEAT_RANKS = 32  # of more ranks, a beat costs more, and comes less often


def lanes_of(world_size: int) -> int:
    """How many threads of a rank can ask at once; the same on all ranks."""
    return max(1, min(MOST_LANES, LISTENERS // max(1, world_size - 1)))


def tags_of(lane: int) -> tuple[int, int]:
    """(tag of questions, tag of their answers)."""
    return 2 * lane + 1, 2 * lane + 2


def start(call: Callable[..., None], *args: Any) -> threading.Thread:
    """A thread that keeps nobody alive."""
    thread = threading.Thread(target=call, args=args, name=NAME, daemon=True)
    thread.start()
    return thread


def on_thread(call: Callable[..., Any], *args: Any) -> Future[Any]:
    """What a call on a thread of its own returns, or raises."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(call(*args))
        except BaseException as error:
            future.set_exception(error)

    start(run)
    return future


def listen(reference: weakref.ref[Exchange], links: Links, rank: int, lane: int) -> None:
    """Answers the questions that a rank asks on a lane, until the links end."""
    asked, answered = tags_of(lane)
    try:
        receipt = links.expect(rank, asked)
        while True:
            question: Incoming | MessageError
            try:
                question = links.receive(receipt, None)
            except MessageError as error:
                question = error
            receipt = links.expect(rank, asked)
            exchange = reference()
            if exchange is None:
                return
            if isinstance(question, MessageError):
                answer = failed(question)
            else:
                answer = exchange._reply(rank, question)
            waits, timeout = exchange._waits, exchange.timeout
            del exchange, question  # nobody is kept while this waits
            wait = links.send(rank, answered, answer)
            waits[rank, lane] = rank, time.monotonic() + timeout + LONGER
            wait(LONGER)
            del waits[rank, lane], answer, wait
    except ConnectionLost as lost:
        _tell(reference, str(lost))
    except BaseException as own:
        _fail(reference, own)


def beat(reference: weakref.ref[Exchange], links: Links, nudge: threading.Event) -> None:
    """Comes together with all ranks now and then, until all have closed.

    Args:
        reference: the exchange.
        links: its links.
        nudge: set when something has changed that the others should hear of.
    """
    try:
        while (exchange := reference()) is not None:
            nudge.clear()
            closing = exchange._may_close()
            pause = BEAT * max(1.0, exchange.world_size / BEAT_RANKS)
            del exchange
            if links.gather([int(closing)]).all():
                break
            nudge.wait(pause)
    except ConnectionLost as lost:
        if (exchange := reference()) is not None:
            exchange._lost(str(lost))
    except BaseException as own:
        _fail(reference, own)
    else:
        if (exchange := reference()) is not None:
            exchange._all_closed()


_ending: set[threading.Thread] = set()


def let_go(links: Links, roll_call: RollCall, threads: list[threading.Thread]) -> None:
    """Ends the links of an exchange that nobody has any more; nothing if it was closed."""

    def end() -> None:
        try:
            if links.begin_end():
                roll_call.leave("let go of its exchange (DistGraph) without close()")
                links.end()
            join(threads)
        finally:
            _ending.discard(threading.current_thread())

    # The garbage collector, which calls this, cannot wait.
    if any(thread.is_alive() for thread in threads):
        _ending.add(start(end))


def join(threads: Iterable[threading.Thread]) -> None:
    """Waits for threads that end soon, as their links have ended."""
    deadline = time.monotonic() + ENDED
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(max(0.0, deadline - time.monotonic()))


@atexit.register
def _join_all() -> None:
    """Threads that wait for other ranks when Python ends would be ended inside torch's code."""
    join(list(_ending))


def _tell(reference: weakref.ref[Exchange], lost: str) -> None:
    exchange = reference()
    if exchange is not None and not exchange._may_close():  # else the beat tells, if need be
        exchange._lost(lost)


def _fail(reference: weakref.ref[Exchange], own: BaseException) -> None:
    exchange = reference()
    if exchange is not None:
        exchange._fail(text_of(own))
