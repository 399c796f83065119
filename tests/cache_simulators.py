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


SIMULATORS = {"sieve": Sieve, "s3-fifo": S3FIFO, "lru": LRU, "clock": Clock}
