"""ask_once: one question to several ranks, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hopline.partition.answers import Message, RankError, taken
from hopline.partition.links import Links
from hopline.partition.messages import MessageError
from hopline.partition.serving import tags_of

__all__ = ["ask_once"]

Array = np.ndarray[Any, Any]


def ask_once(
    links: Links,
    rank: int,
    lane: int,
    others: Mapping[int, list[Array]],
    here: Callable[[], None],
    seconds_for: Callable[[int], float],
) -> tuple[dict[int, Message], BaseException | None]:
    """Asks other ranks, does something meanwhile, and waits for all answers.

    Args:
        links: to them.
        rank: this one.
        lane: on which no other question is under way.
        others: `{rank: question}`, of `encode`.
        here: called when they have been asked.
        seconds_for: told of each rank before its answer is waited for; says how long to.

    Returns:
        (the answers, without those of ranks where nobody answers such questions so far; the first
        error: of what was done meanwhile, or a rank's `RankError`). All answers have come then.

    Raises:
        ConnectionLost: a rank has gone.
    """
    asked, answered = tags_of(lane)
    answers: dict[int, Message] = {}
    failure: BaseException | None = None
    receipts = [(other, links.expect(other, answered)) for other in others]
    sent = [links.send(other, asked, message) for other, message in others.items()]
    try:
        here()
    except BaseException as error:  # the others have been asked: their answers come
        failure = error
    for other, receipt in receipts:
        try:
            reply = taken(links.receive(receipt, seconds_for(other)), other, rank)
        except MessageError as error:
            failure = failure or RankError(f"rank {other} sent no message: {error}", (other,))
        except RankError as error:
            failure = failure or error
        else:
            if reply is not None:
                answers[other] = reply
    for wait in sent:
        wait(0.0)
    return answers, failure
