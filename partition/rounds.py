"""Rounds: the collectives that an exchange is made of, on a process group of their own."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

__all__ = ["ConnectionLost", "Rounds"]

Array = np.ndarray[Any, Any]


class ConnectionLost(RuntimeError):
    """A collective failed: another rank has closed its connections, or does not come in time."""


class Rounds:
    """Collectives of all ranks; making one is collective.

    Args:
        rank: this one.
        world_size: number of ranks.
        timeout: seconds that a collective waits for another rank.

    Raises:
        ConnectionLost: another rank is not there in time.
    """

    def __init__(self, rank: int, world_size: int, timeout: float) -> None:
        self._rank, self._world_size = rank, world_size
        self._group: Any = None
        try:
            self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
        except (RuntimeError, ValueError) as error:
            text = _first_line(error)
        else:
            return
        raise ConnectionLost(text)

    def gather(self, row: Sequence[int]) -> Array:
        """A row of each rank: int64[world_size, len(row)]."""
        table = torch.empty((self._world_size, len(row)), dtype=torch.int64)
        self._call(dist.all_gather, list(table.unbind()), torch.tensor(row, dtype=torch.int64))
        return table.numpy()

    def swap_numbers(self, numbers: Sequence[int]) -> list[int]:
        """Sends a number to each rank, and returns one from each."""
        received = torch.empty(self._world_size, dtype=torch.int64)
        self._call(dist.all_to_all_single, received, torch.tensor(numbers, dtype=torch.int64))
        return received.tolist()

    def swap(self, outgoing: Sequence[Array], sizes: list[int]) -> list[Array]:
        """Sends bytes to each rank, and receives as many as told from each."""
        lengths = [len(part) for part in outgoing]
        received = torch.empty(sum(sizes), dtype=torch.uint8)
        sent = torch.from_numpy(np.concatenate(outgoing))
        self._call(dist.all_to_all_single, received, sent, sizes, lengths)
        return [part.numpy() for part in received.split_with_sizes(sizes)]

    def end(self) -> None:
        """Closes the connections, by which the other ranks' collectives fail at once."""
        group, self._group = self._group, None
        # The group has gone where the script has destroyed all of them.
        with contextlib.suppress(RuntimeError, ValueError, KeyError, AssertionError):
            if group is not None:
                dist.destroy_process_group(group)

    def _call(self, collective: Callable[..., Any], *args: Any) -> None:
        text = "destroyed"
        if dist.is_initialized():
            try:
                collective(*args, group=self._group)
            except (RuntimeError, ValueError) as error:
                text = _first_line(error)
            else:
                return
        if not dist.is_initialized():
            raise RuntimeError(
                "the process group was destroyed before the exchange was closed; call close() of "
                "the graph or exchange before torch.distributed.destroy_process_group"
            )
        # Not raised from the other: its traceback holds the group, and the connections with it.
        raise ConnectionLost(text)


def _first_line(error: BaseException) -> str:
    line = re.sub(r"^\[[^]]*\.cc:\d+\] ", "", str(error).strip().split("\n")[0])
    return line.split(". This is typically")[0][:300]
