"""Links: messages from rank to rank, and a beat of all ranks, on a process group of their own."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from hopline.partition.messages import HEAD_BYTES, Incoming

__all__ = ["ConnectionLost", "Links", "Receipt"]

Array = np.ndarray[Any, Any]

EVER = timedelta(days=10_000)
NOTHING = -2  # where a head says how many arrays there are, until it has come
END_TAG = 0  # on which nobody sends


class ConnectionLost(RuntimeError):
    """Another rank has closed its connections, or does not come in time."""


class Receipt:
    """A message that is awaited; made by `Links.expect`."""

    __slots__ = ("head", "rank", "tag", "work")

    def __init__(self, rank: int, tag: int, head: Array, work: Any) -> None:
        self.rank, self.tag, self.head, self.work = rank, tag, head, work


class Links:
    """Connections to all ranks; making them is collective.

    Messages of two ranks with one tag come in the order in which they were sent. Any thread may
    send and receive, but one at a time with one tag.

    Args:
        rank: this one.
        world_size: number of ranks.
        timeout: seconds that a beat, or what is told so, waits for another rank.

    Raises:
        ConnectionLost: another rank is not there in time.
    """

    def __init__(self, rank: int, world_size: int, timeout: float) -> None:
        self._rank, self._world_size = rank, world_size
        self._timeout = timedelta(seconds=timeout)
        self._ending = threading.Lock()  # of whoever ends them
        self._counting = threading.Lock()
        self._group: Any = None
        self.bytes_sent = 0
        try:
            self._group = dist.new_group(backend="gloo", timeout=self._timeout)
        except (RuntimeError, ValueError) as error:
            text = _first_line(error)
        else:
            return
        raise ConnectionLost(text)

    def expect(self, rank: int, tag: int) -> Receipt:
        """Makes ready for a message, whose head then comes without a question back."""
        head = np.empty(HEAD_BYTES, np.uint8)
        head.view(np.int64)[1] = NOTHING
        return Receipt(rank, tag, head, self._receive_into(head, rank, tag))

    def receive(self, receipt: Receipt, seconds: float | None) -> Incoming:
        """Waits for a message, as many seconds at most if they are told.

        Raises:
            ConnectionLost: the rank has gone, or does not send in time; all connections are closed
                then.
            MessageError: what came is no message.
        """
        self._wait(
            receipt.work, EVER if seconds is None else timedelta(seconds=max(0.001, seconds))
        )
        message = Incoming(receipt.head)
        following = message.following
        while following:
            works = [self._receive_into(part, receipt.rank, receipt.tag) for part in following]
            for work in works:
                self._wait(work, self._timeout)
            following = message.more()
        return message

    def send(self, rank: int, tag: int, message: Sequence[Array]) -> Callable[[float], None]:
        """Sends a message that `encode` made; returns what waits until it is on its way.

        What waits is given seconds to wait beyond the timeout.

        Raises:
            ConnectionLost: the rank has gone; of the waiting, it does not receive in time.
        """
        # Kept until it is sent; torch takes no arrays that cannot be written to.
        parts = [part if part.flags.writeable else part.copy() for part in message]
        works = [self._send_from(part, rank, tag) for part in parts]
        with self._counting:
            self.bytes_sent += sum(len(part) for part in parts)

        def wait(more: float) -> None:
            longest = self._timeout + timedelta(seconds=more)
            for _, work in zip(parts, works, strict=True):
                self._wait(work, longest)

        return wait

    def gather(self, row: Sequence[int]) -> Array:
        """A row of each rank: int64[world_size, len(row)]; all ranks call it.

        Raises:
            ConnectionLost: a rank has gone, or does not come in time.
            RuntimeError: the script has destroyed the process groups.
        """
        if not dist.is_initialized():
            raise RuntimeError(
                "the process group was destroyed before the exchange was closed; call close() of "
                "the graph or exchange before torch.distributed.destroy_process_group"
            )
        table = torch.empty((self._world_size, len(row)), dtype=torch.int64)
        mine = torch.tensor(row, dtype=torch.int64)
        work = self._do("allgather", [list(table.unbind())], [mine])
        self._wait(work, self._timeout)
        return table.numpy()

    def begin_end(self) -> bool:
        """Whether the caller is the first to end the links, which it is to do with `end`."""
        return self._ending.acquire(blocking=False)

    def end(self) -> None:
        """Closes the connections: whoever waits, here and on other ranks, waits no more."""
        group, self._group = self._group, None
        if group is None:
            return
        # Gloo closes all connections of a group when anything that is waited for does not come in
        # time, and lets go all who wait. On a connection that is closed nothing can be waited for;
        # where all are, nobody waits any more.
        nothing = torch.empty(1, dtype=torch.uint8)
        for other in range(self._world_size):
            if other != self._rank:
                try:
                    work = group.recv([nothing], other, END_TAG)
                except (RuntimeError, ValueError):
                    continue
                with contextlib.suppress(RuntimeError, ValueError):
                    work.wait(timedelta(milliseconds=1))
        # The group has gone where the script has destroyed all of them.
        with contextlib.suppress(RuntimeError, ValueError, KeyError, AssertionError):
            dist.destroy_process_group(group)

    def _receive_into(self, part: Array, rank: int, tag: int) -> Any:
        return self._do("recv", [torch.from_numpy(part)], rank, tag)

    def _send_from(self, part: Array, rank: int, tag: int) -> Any:
        return self._do("send", [torch.from_numpy(part)], rank, tag)

    def _do(self, name: str, *args: Any) -> Any:
        group = self._group
        text = "closed"
        if group is not None:
            try:
                return getattr(group, name)(*args)
            except (RuntimeError, ValueError) as error:
                text = _first_line(error)
        # Not raised from the other: its traceback holds the group, and the connections with it.
        raise ConnectionLost(text)

    def _wait(self, work: Any, longest: timedelta) -> None:
        try:
            work.wait(longest)
        except (RuntimeError, ValueError) as error:
            text = _first_line(error)
        else:
            return
        raise ConnectionLost(text)


def _first_line(error: BaseException) -> str:
    line = re.sub(r"^\[[^]]*\.cc:\d+\] ", "", str(error).strip().split("\n")[0])
    return line.split(". This is typically")[0][:300]
