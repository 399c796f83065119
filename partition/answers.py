"""Answers: what a rank says to a question of another, and what whoever asked makes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hopline.partition.messages import Incoming, MessageError, encode

__all__ = ["Answerer", "Message", "RankError", "answer", "failed", "taken", "text_of"]

Array = np.ndarray[Any, Any]
Message = list[Array]
Answerer = Callable[[int, Message], Message]

DONE, FAILED, UNKNOWN = 0, 1, 2  # of an answer; UNKNOWN: nobody answers such questions, so far
ERROR_BYTES = 4000  # of an error's text


class RankError(RuntimeError):
    """Another rank has failed, or does not answer; the message names it.

    Attributes:
        ranks: numbers of the ranks that failed, as far as known.
    """

    def __init__(self, message: str, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks


def answer(answerers: Mapping[int, Answerer], rank: int, question: Incoming) -> list[Array]:
    """The answer to a rank's question, to be sent; it says so if there is none.

    Args:
        answerers: by kind of question.
        rank: that asks.
        question: its number is its kind.
    """
    answerer = answerers.get(question.number)
    if answerer is None:
        return encode(UNKNOWN, [])
    try:
        return encode(DONE, answerer(rank, question.arrays()))
    except BaseException as error:  # SystemExit as well: the other rank waits
        return failed(error)


def failed(error: BaseException) -> list[Array]:
    """An answer that says why there is none, to be sent."""
    text = text_of(error).encode(errors="replace")[:ERROR_BYTES]
    return encode(FAILED, [np.frombuffer(text, np.uint8)])


def taken(reply: Incoming, other: int, rank: int) -> Message | None:
    """The arrays of another rank's answer; None if nobody answers such questions there, so far.

    Raises:
        RankError: it failed, or this is no answer.
    """
    try:
        message = reply.arrays()
    except MessageError as error:
        raise RankError(f"rank {other} sent no message: {error}", (other,)) from None
    if reply.number == DONE:
        return message
    if reply.number == UNKNOWN:
        return None
    if reply.number != FAILED or not message:
        raise RankError(f"rank {other} sent no answer; do releases differ?", (other,))
    text = message[0].tobytes().decode(errors="replace")
    raise RankError(f"rank {other} could not answer rank {rank}: {text}", (other,))


def text_of(error: BaseException) -> str:
    """Type and message of an exception, whatever it is."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__
