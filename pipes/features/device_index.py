"""DeviceIndex: which keys a cache on a GPU holds, in which slots; kept and searched on the GPU.

The host only counts. `SetLRUIndex` keeps what was asked for lately: a key has one set of up to 32
slots ("ways"), and takes the place of the one in it that was asked for longest ago. Every way
carries a stamp, the number of the call that touched it last. `StaticIndex` holds the keys it was
given.

An index is exact and repeatable: of the same calls in the same order, the same keys are in the same
ways. Its caller holds a lock around every method, and has its streams wait for each other.
"""

from __future__ import annotations

import numpy as np
import torch

__all__ = ["DeviceIndex", "SetLRUIndex", "StaticIndex", "distinct"]

NO_KEY = (1 << 63) - 1  # above every key


class DeviceIndex:
    """What indexes on a GPU have in common.

    Args:
        capacity: number of slots.
        policy: its name.
        device: where the index is.

    Attributes:
        requests: rows asked for.
        misses: rows that had to be read; a row that one call asks for twice is read once.
    """

    def __init__(self, capacity: int, policy: str, device: torch.device) -> None:
        self.capacity = capacity
        self.policy = policy
        self.device = device
        self.requests = 0
        self.misses = 0
        self._calls = 0
        # The last call before rows were dropped: what it and earlier ones read may be out of date.
        self._dropped_after = 0

    @property
    def miss_rate(self) -> float:
        """Share of the requested rows that had to be read; 0.0 before the first request."""
        return self.misses / self.requests if self.requests else 0.0

    def next_call(self) -> int:
        """The number of a new call, above 0."""
        self._calls += 1
        return self._calls

    def is_current(self, call: int) -> bool:
        """Whether nothing was dropped since a call began: what it has read may be kept."""
        return call > 0 and self._dropped_after < call

    def drop(self) -> None:
        """Notes that rows are dropped: no call before this may store what it reads."""
        self._dropped_after = self._calls

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """What is on the device."""
        raise NotImplementedError

    def look_up(self, ids: torch.Tensor, offset: int, call: int) -> torch.Tensor:
        """int64[n], the slot of each key ids + offset, below 0 where its row is not there.

        Args:
            ids: contiguous int64[n].
            offset: what to add.
            call: its number.
        """
        raise NotImplementedError

    def place(self, ids: torch.Tensor, offset: int, call: int) -> torch.Tensor:
        """Lets keys in and takes their rows to be there; those that it has keep their place.

        Args:
            ids: contiguous int64[m], distinct.
            offset: what to add.
            call: its number.

        Returns:
            int64[m], the slot of each, to be written to before the lock is let go; below 0 where
            the row is not kept.
        """
        raise NotImplementedError

    def forget(self, ids: torch.Tensor, offset: int) -> None:
        """Drops the rows of keys.

        Args:
            ids: contiguous int64[n], which may repeat.
            offset: what to add.
        """
        raise NotImplementedError

    def forget_range(self, low: int, high: int) -> None:
        """Drops the rows of all keys in [low, high)."""
        raise NotImplementedError

    def resident(self) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        """int64, the key in each way, -1 where there is none; for tests and curiosity."""
        raise NotImplementedError


class SetLRUIndex(DeviceIndex):
    """Sets of up to 32 ways; in each, what was asked for longest ago goes first.

    All keys of a call are looked up before any is let in. The r-th new key of a set, by first
    occurrence, takes the way that is r-th in the order of stamps, equal ones by number; empty ways
    have the smallest stamp. A way that the call itself touched is never taken: what is too much is
    not kept.

    Args:
        capacity: number of slots, spread evenly over as few sets as will do.
        device: where the index is.
    """

    def __init__(self, capacity: int, device: torch.device) -> None:
        super().__init__(capacity, "set-lru", device)
        self.sets = -(-capacity // 32)
        # The first sets have one way more.
        self._most = -(-capacity // self.sets) if self.sets else 0
        self._larger = capacity - (self._most - 1) * self.sets
        # The last entry is for what has no way.
        self._nowhere = 32 * self.sets
        self._keys = torch.full((self._nowhere + 1,), -1, dtype=torch.int64, device=device)
        self._stamps = torch.zeros_like(self._keys)

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """See `DeviceIndex.tensors`."""
        return self._keys, self._stamps

    def look_up(self, ids: torch.Tensor, offset: int, call: int) -> torch.Tensor:
        """See `DeviceIndex.look_up`."""
        return self._slots(self._probe(ids, offset, call))

    def place(self, ids: torch.Tensor, offset: int, call: int) -> torch.Tensor:
        """See `DeviceIndex.place`."""
        from hopline.pipes.kernels.cuda.cache import choose

        found = self._probe(ids, offset, call)
        if not self.sets:
            return found
        homes = torch.where(found < 0, -1 - found, self.sets)
        ordered, order = torch.sort(homes, stable=True)
        ranks = torch.empty_like(order)
        positions = torch.arange(len(order), device=self.device)
        ranks[order] = positions - torch.searchsorted(ordered, ordered)
        chosen = choose(homes, ranks, self.sets, self._stamps, call, self._most, self._larger)
        ways = torch.where(found < 0, chosen, found)
        places = torch.where(ways < 0, self._nowhere, ways)
        self._keys.index_copy_(0, places, ids + offset)
        self._stamps.index_fill_(0, places, call)
        return self._slots(ways)

    def forget(self, ids: torch.Tensor, offset: int) -> None:
        """See `DeviceIndex.forget`."""
        self.drop()
        ways = self._probe(ids, offset, None)
        places = torch.where(ways < 0, self._nowhere, ways)
        self._keys.index_fill_(0, places, -1)
        self._stamps.index_fill_(0, places, 0)

    def forget_range(self, low: int, high: int) -> None:
        """See `DeviceIndex.forget_range`."""
        self.drop()
        gone = (self._keys >= low) & (self._keys < high)
        self._keys.masked_fill_(gone, -1)
        self._stamps.masked_fill_(gone, 0)

    def resident(self) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        """int64[sets, 32]; see `DeviceIndex.resident`."""
        return self._keys[:-1].cpu().view(-1, 32).numpy()

    def _probe(self, ids: torch.Tensor, offset: int, call: int | None) -> torch.Tensor:
        """int64[n], the way of each key, or below 0."""
        from hopline.pipes.kernels.cuda.cache import probe

        if not self.sets:
            return torch.full_like(ids, -1)
        return probe(ids, offset, self.sets, self._keys, self._stamps, call)

    def _slots(self, ways: torch.Tensor) -> torch.Tensor:
        """The slots of ways: those of a set follow each other, and sets too."""
        sets = ways >> 5
        before = sets * self._most - torch.clamp(sets - self._larger, min=0)
        return torch.where(ways < 0, -1, before + (ways & 31))


class StaticIndex(DeviceIndex):
    """Holds the keys it was given, for ever; rows are read when they are first asked for.

    Args:
        capacity: number of slots.
        hot_keys: int64[k], hottest first; those beyond the capacity are left out.
        device: where the index is.
    """

    def __init__(
        self,
        capacity: int,
        hot_keys: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
        device: torch.device,
    ) -> None:
        super().__init__(capacity, "static", device)
        unique, first = np.unique(hot_keys, return_index=True)
        held = np.sort(unique[np.argsort(first)[:capacity]])
        # Slot i is for the i-th key; the last entry is for the keys that are not held.
        self._keys = torch.from_numpy(np.append(held, NO_KEY)).to(device)
        self._filled = torch.zeros(len(held) + 1, dtype=torch.bool, device=device)

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """See `DeviceIndex.tensors`."""
        return self._keys, self._filled

    def look_up(self, ids: torch.Tensor, offset: int, call: int) -> torch.Tensor:
        """See `DeviceIndex.look_up`."""
        places = self._places(ids, offset)
        return torch.where(self._filled[places], places, -1)

    def place(self, ids: torch.Tensor, offset: int, call: int) -> torch.Tensor:
        """See `DeviceIndex.place`."""
        places = self._places(ids, offset)
        self._filled.index_fill_(0, places, True)
        self._filled[-1:].fill_(False)
        return torch.where(places < len(self._keys) - 1, places, -1)

    def forget(self, ids: torch.Tensor, offset: int) -> None:
        """See `DeviceIndex.forget`."""
        self.drop()
        self._filled.index_fill_(0, self._places(ids, offset), False)

    def forget_range(self, low: int, high: int) -> None:
        """See `DeviceIndex.forget_range`."""
        self.drop()
        self._filled.masked_fill_((self._keys >= low) & (self._keys < high), False)

    def resident(self) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        """int64[capacity or less]; see `DeviceIndex.resident`."""
        return torch.where(self._filled, self._keys, -1)[:-1].cpu().numpy()

    def _places(self, ids: torch.Tensor, offset: int) -> torch.Tensor:
        """int64[n], where each key is among those held; the last entry if it is not."""
        keys = ids + offset
        places = torch.searchsorted(self._keys, keys).clamp_(max=len(self._keys) - 1)
        return torch.where(self._keys[places] == keys, places, len(self._keys) - 1)


def distinct(keys: torch.Tensor, wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers the distinct ones of some keys, in the order in which they first occur.

    Args:
        keys: int64[n], below 2**63 - 1.
        wanted: bool[n], which of them to number.

    Returns:
        int64[n], each key's number, or -1 where it is not wanted; and bool[n], whether it is the
        first of its number.
    """
    positions = torch.arange(len(keys), device=keys.device)
    ordered, order = torch.sort(torch.where(wanted, keys, NO_KEY), stable=True)
    # Of equal keys the sort, being stable, leaves the first in front.
    leader = torch.empty_like(order)
    leader[order] = order[torch.searchsorted(ordered, ordered)]
    first = wanted & (leader == positions)
    numbers = torch.cumsum(first, 0) - 1
    return torch.where(wanted, numbers[leader], -1), first
