"""Cache policies in plain Python, from the papers' rules: what the kernels must agree with.

Each class has `access(key) -> bool` (hit or miss) and `resident() -> set`. The newest is first in
every list, as the papers draw them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable


class LRU:
    """Least recently used goes first."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.order: OrderedDict[int, None] = OrderedDict()

    def access(self, key: int) -> bool:
        if key in self.order:
            self.order.move_to_end(key)
            return True
        if self.capacity:
            if len(self.order) == self.capacity:
                self.order.popitem(last=False)
            self.order[key] = None
        return False

    def resident(self) -> set[int]:
        return set(self.order)


class Clock:
    """FIFO; a key that was met again since it was last put in is put in again."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.queue: list[int] = []
        self.bit: dict[int, bool] = {}

    def access(self, key: int) -> bool:
        if key in self.bit:
            self.bit[key] = True
            return True
        if self.capacity:
            while len(self.queue) == self.capacity:
                oldest = self.queue.pop()
                if self.bit[oldest]:
                    self.bit[oldest] = False
                    self.queue.insert(0, oldest)
                else:
                    del self.bit[oldest]
            self.queue.insert(0, key)
            self.bit[key] = False
        return False

    def resident(self) -> set[int]:
        return set(self.bit)


class Sieve:
    """SIEVE, NSDI 2024, algorithm 1: a hand walks from the tail to the head, and around."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.queue: list[int] = []
        self.visited: dict[int, bool] = {}
        self.hand: int | None = None  # a key

    def access(self, key: int) -> bool:
        if key in self.visited:
            self.visited[key] = True
            return True
        if self.capacity:
            if len(self.queue) == self.capacity:
                self.evict()
            self.queue.insert(0, key)
            self.visited[key] = False
        return False

    def evict(self) -> None:
        at = len(self.queue) - 1 if self.hand is None else self.queue.index(self.hand)
        while self.visited[self.queue[at]]:
            self.visited[self.queue[at]] = False
            at = at - 1 if at > 0 else len(self.queue) - 1
        self.hand = self.queue[at - 1] if at > 0 else None
        del self.visited[self.queue.pop(at)]

    def resident(self) -> set[int]:
        return set(self.visited)


class S3FIFO:
    """S3-FIFO, SOSP 2023, algorithm 1: small 10 %, main the rest, as many ghosts as main.

    The small queue has at least one place; bits are cleared when a key moves to the main queue.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.small_size = max(1, capacity // 10)
        self.main_size = capacity - self.small_size
        self.small: list[int] = []
        self.main: list[int] = []
        self.ghost: list[int] = []
        self.freq: dict[int, int] = {}

    def access(self, key: int) -> bool:
        if key in self.freq:
            self.freq[key] = min(self.freq[key] + 1, 3)
            return True
        if self.capacity:
            while len(self.small) + len(self.main) >= self.capacity:
                self.evict()
            if key in self.ghost:
                self.ghost.remove(key)
                self.main.insert(0, key)
            else:
                self.small.insert(0, key)
            self.freq[key] = 0
        return False

    def evict(self) -> None:
        if len(self.small) >= self.small_size:
            self.evict_small()
        else:
            self.evict_main()

    def evict_small(self) -> None:
        while self.small:
            tail = self.small.pop()
            if self.freq[tail] <= 1:
                del self.freq[tail]
                if self.main_size:
                    self.ghost.insert(0, tail)
                    del self.ghost[self.main_size :]
                return
            if len(self.main) >= self.main_size:
                self.evict_main()
            self.freq[tail] = 0
            self.main.insert(0, tail)

    def evict_main(self) -> None:
        while self.main:
            tail = self.main.pop()
            if self.freq[tail] == 0:
                del self.freq[tail]
                return
            self.freq[tail] -= 1
            self.main.insert(0, tail)

    def resident(self) -> set[int]:
        return set(self.freq)


class Static:
    """Holds the keys it was given, as many as fit, for ever."""

    def __init__(self, capacity: int, keys: Iterable[int]) -> None:
        self.keys = set(list(dict.fromkeys(keys))[:capacity])

    def access(self, key: int) -> bool:
        return key in self.keys

    def resident(self) -> set[int]:
        return set(self.keys)


def mix64(word: int) -> int:
    """The finaliser of SplitMix64."""
    word &= (1 << 64) - 1
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % (1 << 64)
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB % (1 << 64)
    return word ^ (word >> 31)


class SetLRU:
    """What a cache on a GPU holds: sets of up to 32 ways, a call at a time; and what it counts."""

    def __init__(self, capacity: int) -> None:
        count = -(-capacity // 32)
        sizes = [capacity // count + (s < capacity % count) for s in range(count)]
        # Of each way: a key, or -1, and the call that touched it last.
        self.sets: list[list[list[int]]] = [[[-1, 0] for _ in range(size)] for size in sizes]
        self.call = self.requests = self.misses = 0

    def home(self, key: int) -> list[list[int]]:
        return self.sets[mix64(key) % len(self.sets)] if self.sets else []

    def request(self, keys: Iterable[int]) -> list[int]:
        """The keys that are missing, each once, by first occurrence; they are let in."""
        self.call += 1
        new: dict[int, None] = {}
        for key in keys:
            self.requests += 1
            ways = [way for way in self.home(key) if way[0] == key]
            for way in ways:
                way[1] = self.call
            if not ways:
                new[key] = None
        self.misses += len(new)
        order = [sorted((w for w in s if w[1] != self.call), key=lambda w: w[1]) for s in self.sets]
        for key in new:
            if self.sets and (victims := order[mix64(key) % len(self.sets)]):
                victims.pop(0)[:] = key, self.call
        return list(new)

    def forget(self, keys: Iterable[int]) -> None:
        for key in keys:
            for way in self.home(key):
                if way[0] == key:
                    way[:] = -1, 0

    def resident(self) -> list[list[int]]:
        """The key in each way of each set."""
        return [[w[0] for w in s] + [-1] * (32 - len(s)) for s in self.sets]


class StaticRows:
    """What a cache on a GPU holds of a hot set: rows that were asked for; and what it counts."""

    def __init__(self, capacity: int, hot: Iterable[int]) -> None:
        self.filled = dict.fromkeys(sorted(list(dict.fromkeys(hot))[:capacity]), False)
        self.requests = self.misses = 0

    def request(self, keys: Iterable[int]) -> list[int]:
        """The keys whose rows are missing, each once, by first occurrence; hot ones are kept."""
        keys = list(keys)
        new = list(dict.fromkeys(key for key in keys if not self.filled.get(key)))
        self.requests += len(keys)
        self.misses += len(new)
        self.filled.update((key, True) for key in new if key in self.filled)
        return new

    def forget(self, keys: Iterable[int]) -> None:
        self.filled.update((key, False) for key in keys if key in self.filled)

    def resident(self) -> list[int]:
        """The key in each way."""
        return [key if there else -1 for key, there in self.filled.items()]


SIMULATORS = {"sieve": Sieve, "s3-fifo": S3FIFO, "lru": LRU, "clock": Clock}
