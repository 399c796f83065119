"""WhoHasGone: names the rank behind an error that tells of a lost connection alone."""

from __future__ import annotations

import time

import numpy as np
import torch.distributed as dist

from hopline.partition.answers import text_of
from hopline.partition.exchange import Exchange, RankError

__all__ = ["WhoHasGone", "tells_of_loss"]

GRACE = 3.0  # seconds for the others to be at a loss as well
STEP = 0.1  # seconds between questions whether they are

# What gloo, NCCL and the store say when a connection is lost, or nothing comes in time.
WORDS = ("gloo", "nccl", "connection closed", "connection reset", "broken pipe", "pair closure",
         "timed out waiting")  # fmt: skip


def tells_of_loss(error: BaseException) -> bool:
    """Whether an exception says that another rank is not there any more, though not which."""
    if isinstance(error, dist.DistError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    text = text_of(error).lower()
    return any(word in text for word in WORDS)


class WhoHasGone:
    """Asks all ranks whether they are there, and at a loss too; making one is collective.

    When a rank dies, the others' gradients do not come through either. That error names no rank, or
    the address of one that has only noticed earlier; the exchange finds out which it was. Where all
    live, it was a rank that did not come: one that has lost nothing itself.

    Args:
        exchange: between the ranks.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._lost = False
        self._kind = exchange.claim(1)
        exchange.answer(self._kind, lambda rank, message: [np.array([self._lost])])

    def __call__(self, error: BaseException | None) -> RankError | None:
        """The error to raise instead of one that tells of a loss; None for any other.

        Args:
            error: what has been raised.
        """
        if error is None or isinstance(error, RankError) or not tells_of_loss(error):
            return None
        self._lost = True
        exchange = self._exchange
        others = [rank for rank in range(exchange.world_size) if rank != exchange.rank]
        absent = others
        deadline = time.monotonic() + GRACE
        while time.monotonic() < deadline:
            try:
                told = exchange.ask(self._kind, {rank: [] for rank in others})
            except RankError as named:
                if set(named.ranks) & {*absent} or not named.ranks:
                    return named
                break  # a rank has found out earlier who is absent, and left
            except RuntimeError:  # the exchange is closed
                return None
            absent = [rank for rank in others if not told[rank][0][0]]
            if not absent:
                return RankError(
                    f"all {exchange.world_size} ranks are there, and wait for each other in vain; "
                    "all must make the same collective calls, as often: the same steps, and the "
                    "same end by values that are equal on all "
                    f"({text_of(error).splitlines()[0][:300]})"
                )
            time.sleep(STEP)
        names = ", ".join(f"rank {rank}" for rank in absent)
        return RankError(
            f"{names} lives, but did not come in time to what all ranks do together; rank "
            f"{exchange.rank} cannot go on ({text_of(error).splitlines()[0][:300]})",
            tuple(absent),
        )
