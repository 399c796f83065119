"""CacheIndex: which keys a feature cache holds, in which slots, and which one goes next.

SIEVE: Zhang et al., "SIEVE is simpler than LRU", NSDI 2024. S3-FIFO: Yang et al., "FIFO queues are
all you need for cache eviction", SOSP 2023. Both keep keys in the order of their arrival and only
mark a key that is met again, so that a hit moves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hopline.pipes.features.buffers import empty_array
from hopline.pipes.kernels import cache as kernels

__all__ = ["POLICIES", "CacheIndex", "Request", "check_policy"]

POLICIES = {
    "sieve": kernels.SIEVE,
    "s3-fifo": kernels.S3_FIFO,
    "lru": kernels.LRU,
    "clock": kernels.CLOCK,
    "static": kernels.STATIC,
}
MAX_CAPACITY = 1 << 30  # slot numbers are int32, and tables twice as long

Array = np.ndarray[Any, Any]


@dataclass(slots=True)
class Request:
    """The answer to a bulk look-up.

    Attributes:
        ids: int64[n], what was asked for.
        offset: what was added to the ids.
        call: number of the look-up.
        since: number of the last filling before it.
        source: int64[n], -1 - slot where the cache has the row, else which row of the reading.
        missing: int64[m], positions in ids of the rows to read.
    """

    ids: Array
    offset: int
    call: int
    since: int
    source: Array
    missing: Array


class CacheIndex:
    """The part of a cache that knows no rows. Its caller holds a lock around every method.

    Args:
        capacity: number of slots.
        policy: "sieve", "s3-fifo", "lru", "clock", or "static".
        hot_keys: int64[k], the keys that "static" holds, hottest first; those beyond the capacity
            are left out.

    Raises:
        ValueError: no such policy, too many slots, or hot_keys that do not go with the policy.
    """

    def __init__(self, capacity: int, policy: str, hot_keys: Array | None = None) -> None:
        check_policy(capacity, policy, hot_keys, list(POLICIES))
        self.capacity = capacity
        self.policy = policy
        self.requests = 0
        self.misses = 0
        self._policy = POLICIES[policy]
        self._calls = 0
        self._fillings = 0
        self._arrays = _arrays(capacity, policy)
        if hot_keys is not None:
            kernels.preload(self._arrays, np.ascontiguousarray(hot_keys, np.int64))

    def request(self, ids: Array, offset: int) -> Request:
        """Looks the keys ids + offset up, one after the other, and lets in what is missing.

        Args:
            ids: int64[n].
            offset: what to add to them.
        """
        self._calls += 1
        source, missing = empty_array(len(ids), np.int64), empty_array(len(ids), np.int64)
        count = kernels.plan(self._policy, self._arrays, self._calls, ids, offset, source, missing)
        self.requests += len(ids)
        self.misses += int(count)
        return Request(ids, offset, self._calls, self._fillings, source, missing[:count])

    def recheck(self, request: Request) -> None:
        """Moves rows that were overwritten since the request to what is missing."""
        if request.since == self._fillings:
            return
        count = len(request.missing)
        missing = empty_array(len(request.ids), np.int64)
        missing[:count] = request.missing
        total = int(kernels.torn(self._arrays, request.since, request.source, missing, count))
        self.misses += total - count
        request.missing = missing[:total]

    def settle(
        self, ids: Array, positions: Array, offset: int, calls: Array | int
    ) -> tuple[Array, Array]:
        """Marks rows that have been read as present, where that is still wanted.

        Args:
            ids: int64[n].
            positions: int64[m], position in ids of each row read.
            offset: what to add to the ids.
            calls: the request's number, or int64[m].

        Returns:
            int64[k] slots, and int64[k] which of the m rows to write there, before the lock is
            let go.
        """
        self._fillings += 1
        m = len(positions)
        slots, rows = empty_array(m, np.int64), empty_array(m, np.int64)
        owners = np.full(m, calls, np.int64) if isinstance(calls, int) else calls
        count = kernels.settle(
            self._arrays, owners, ids, positions, offset, self._fillings, slots, rows
        )
        return slots[:count], rows[:count]

    def admit(self, ids: Array, offset: int) -> int:
        """Lets keys in without counting a request; the number of a call that owns their slots."""
        self._calls += 1
        kernels.admit(self._policy, self._arrays, self._calls, ids, offset)
        return self._calls

    def forget(self, ids: Array, offset: int) -> None:
        """Drops the rows of these keys, also those being read now; the policy goes on as it was."""
        kernels.forget(self._arrays, ids, offset)

    def forget_range(self, low: int, high: int) -> None:
        """Drops the rows of all keys in [low, high)."""
        kernels.forget_range(self._arrays, low, high)

    def resident(self) -> Array:
        """int64[k], the keys that have a slot, ascending; for tests and curiosity."""
        keys, values = self._arrays.table[::2], self._arrays.table[1::2]
        return np.sort(keys[(values >= 0) & (values < self.capacity)])

    @property
    def miss_rate(self) -> float:
        """Share of the requested rows that had to be read; 0.0 before the first request."""
        return self.misses / self.requests if self.requests else 0.0


def check_policy(capacity: int, policy: Any, hot_keys: Array | None, known: list[str]) -> None:
    """Refuses a policy that is not known, or settings that do not go with it.

    Raises:
        ValueError: no such policy, too many slots, or hot_keys that do not go with the policy.
    """
    if not isinstance(policy, str) or policy not in known:
        raise ValueError(f"policy is {policy!r}; expected one of {known}")
    if not 0 <= capacity <= MAX_CAPACITY:
        raise ValueError(f"the cache has {capacity} rows; expected 0 to {MAX_CAPACITY}")
    if (policy == "static") != (hot_keys is not None):
        raise ValueError(
            f"policy is {policy!r} and hot ids are {'' if hot_keys is not None else 'not '}"
            "given; the policy 'static' needs them, and the others take none"
        )


def _arrays(capacity: int, policy: str) -> kernels.CacheArrays:
    ghosts = capacity - max(1, capacity // 10) if policy == "s3-fifo" and capacity else 0
    marks = np.full(kernels.NUM_MARKS, -1, np.int64)
    marks[[kernels.MAIN + 2, kernels.SMALL + 2, kernels.GHOST + 2]] = 0
    marks[kernels.HAND] = 0 if policy == "clock" else -1
    marks[kernels.FREE], marks[kernels.GHOST_FREE] = capacity, ghosts
    return kernels.CacheArrays(
        table=_table(capacity + ghosts),
        keys=np.full(capacity, -1, np.int64),
        owner=np.full(capacity, kernels.NOBODY, np.int64),
        ticket=np.zeros(capacity, np.int64),
        filled_at=np.zeros(capacity, np.int64),
        bits=np.zeros(capacity, np.uint8),
        next=np.full(capacity, -1, np.int32),
        previous=np.full(capacity, -1, np.int32),
        # A stack: slot 0 is given out first.
        free=np.arange(capacity - 1, -1, -1, dtype=np.int32),
        ghost_keys=np.full(ghosts, -1, np.int64),
        ghost_next=np.full(ghosts, -1, np.int32),
        ghost_previous=np.full(ghosts, -1, np.int32),
        ghost_free=np.arange(ghosts - 1, -1, -1, dtype=np.int32),
        marks=marks,
    )


def _table(entries: int) -> Array:
    """An empty key table, at most half full with so many entries."""
    return np.full(2 << max(1, (2 * entries - 1).bit_length()), -1, np.int64)
