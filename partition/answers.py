"""Answers of a rank to the questions of another, as bytes, and what whoever asked makes of them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any

import numpy as np

from hopline.partition.messages import MessageError, join, split, to_bytes, unpack

__all__ = [
    "Answerer",
    "Message",
    "PendingQuestion",
    "RankError",
    "answer_all",
    "hand_out",
    "text_of",
]

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


class PendingQuestion:
    """What one thread asks some ranks; its future gets their answers."""

    def __init__(self, kind: int, messages: dict[int, Array], deadline: float) -> None:
        self.kind = kind
        self.messages = messages  # those without an answer
        self.deadline = deadline  # for ranks on which nobody answers such questions, so far
        self.answers: dict[int, Message] = {}
        self.future: Future[dict[int, Message]] = Future()

    def fail(self, error: BaseException) -> None:
        """Whoever asked gets an exception, unless there is an answer or one already."""
        with contextlib.suppress(InvalidStateError):
            self.future.set_exception(error)


def answer_all(answerers: Mapping[int, Answerer], rank: int, data: Array) -> Array:
    """The answers to a rank's questions, in their order; none if the bytes are no questions.

    Args:
        answerers: by kind of question.
        rank: that asks.
        data: uint8[n], questions that `join` has joined by their kinds.

    Returns:
        uint8[m], answers joined by their states.
    """
    try:
        questions = split(data)
    except MessageError:
        return join([])  # which the other rank finds too few
    answers: list[tuple[int, Array]] = []
    for kind, content in questions:
        answerer = answerers.get(kind)
        if answerer is None:
            answers.append((UNKNOWN, to_bytes([])))
            continue
        try:
            answers.append((DONE, to_bytes(answerer(rank, unpack(content)))))
        except BaseException as error:  # SystemExit as well: the other rank waits
            text = text_of(error).encode(errors="replace")[:ERROR_BYTES]
            answers.append((FAILED, to_bytes([np.frombuffer(text, np.uint8)])))
    return join(answers)


def hand_out(
    questions: Sequence[PendingQuestion], returned: Sequence[Array], rank: int
) -> list[PendingQuestion]:
    """Gives each question its answers.

    Args:
        questions: in the order in which they were sent.
        returned: uint8[n] of each rank, which `answer_all` has made there.
        rank: this one.

    Returns:
        Questions that are to be asked again, as somewhere nobody answers such questions so far.
    """
    for other, data in enumerate(returned):
        asked = [question for question in questions if other in question.messages]
        try:
            answers = split(data)
        except MessageError:
            answers = []
        if len(answers) != len(asked):
            for question in asked:
                question.fail(_no_answer(other, "sent no messages; do releases differ?"))
            continue
        for question, (status, content) in zip(asked, answers, strict=True):
            _take_answer(question, other, status, content, rank)
    again = []
    for question in questions:
        if question.future.done():
            continue
        if question.messages:
            again.append(question)
        else:
            with contextlib.suppress(InvalidStateError):  # a roll call has failed it meanwhile
                question.future.set_result(question.answers)
    return again


def _take_answer(
    question: PendingQuestion, other: int, status: int, content: Array, rank: int
) -> None:
    if status == UNKNOWN:
        if time.monotonic() > question.deadline:
            text = f"has nobody for questions of kind {question.kind}; do all ranks make the same "
            question.fail(_no_answer(other, text + "DistGraph and DistFeatureStore?"))
        return
    try:
        message = unpack(content)
    except MessageError as error:
        question.fail(_no_answer(other, f"sent no message: {error}"))
        return
    if status == DONE:
        del question.messages[other]
        question.answers[other] = message
    else:
        text = message[0].tobytes().decode(errors="replace") if message else ""
        question.fail(_no_answer(other, f"could not answer rank {rank}: {text}"))


def _no_answer(rank: int, text: str) -> RankError:
    return RankError(f"rank {rank} {text}", (rank,))


def text_of(error: BaseException) -> str:
    """Type and message of an exception, whatever it is."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__
