"""Errors of lost connections become errors that name a rank; all others stay as they are."""

import numpy as np
import pytest
import torch.distributed as dist

from hopline.partition.exchange import RankError
from hopline.partition.who_has_gone import WhoHasGone, tells_of_loss

LOST = RuntimeError("[/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:1")
GONE = RankError("rank 2 has gone or is stopped", (2,))


class OfThree:
    """An exchange of rank 1 of three, where asking ends as told, the last time again and again."""

    rank, world_size = 1, 3

    def __init__(self, *ends):
        self.ends, self.asked = list(ends), 0

    def claim(self, count):
        return 7

    def answer(self, kind, answerer):
        assert kind == 7
        self.answerer = answerer

    def ask(self, kind, messages):
        assert (kind, messages) == (7, {0: [], 2: []})
        assert self.answerer(0, [])[0].tolist() == [True]  # at a loss
        self.asked += 1
        end = self.ends.pop(0) if len(self.ends) > 1 else self.ends[0]
        if isinstance(end, Exception):
            raise end
        return {rank: [np.array([lost])] for rank, lost in end.items()}


@pytest.mark.parametrize(
    "text",
    [
        "Application timeout caused pair closure",
        "Timed out waiting 6000ms for recv operation to complete",
        "Read error [10.0.0.3]:2: Connection reset by peer",
        "NCCL error: unhandled system error",
    ],
)
def test_what_tells_of_a_loss(text):
    assert tells_of_loss(RuntimeError(text))
    assert not tells_of_loss(ValueError(text))
    assert tells_of_loss(dist.DistNetworkError("any"))
    assert not tells_of_loss(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


def test_an_error_whose_text_is_not_to_be_had():
    class Mute(RuntimeError):
        def __str__(self):
            raise KeyError

    assert not tells_of_loss(Mute())


def test_the_rank_that_has_gone_is_named():
    exchange = OfThree(GONE)
    who_has_gone = WhoHasGone(exchange)
    assert exchange.answerer(0, [])[0].tolist() == [False]
    assert who_has_gone(LOST) is GONE
    assert WhoHasGone(OfThree({0: True, 2: False}, GONE))(LOST) is GONE
    unknown = RankError("ranks have lost their connections, though all of them live")
    assert WhoHasGone(OfThree(unknown))(LOST) is unknown


def test_where_the_exchange_is_closed_the_error_stays():
    exchange = OfThree(RuntimeError("the exchange is closed"))
    assert WhoHasGone(exchange)(LOST) is None
    assert exchange.asked == 1


def test_where_nobody_has_gone_the_ranks_wait_for_each_other():
    exchange = OfThree({0: True, 2: True})
    named = WhoHasGone(exchange)(LOST)
    assert "all 3 ranks are there, and wait for each other in vain; all must make" in str(named)
    assert str(LOST) in str(named)
    assert named.ranks == ()
    assert exchange.asked == 1


@pytest.mark.parametrize("error", [None, KeyError("own"), GONE, KeyboardInterrupt()])
def test_of_other_errors_nobody_is_asked(error):
    exchange = OfThree(GONE)
    assert WhoHasGone(exchange)(error) is None
    assert exchange.asked == 0
