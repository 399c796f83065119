"""NodeTable: global node ids to positions in the list of a mini-batch's nodes.

The list begins with the seeds as they were given, then holds every other node in the order of its
first occurrence. Each hop's destinations are thus a prefix of its sources.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from hopline.pipes.features.buffers import empty_array
from hopline.pipes.kernels import relabel as kernels

__all__ = [
    "DenseNodeTable",
    "HashNodeTable",
    "NodeList",
    "NodeTable",
    "NodeTablePool",
    "check_length",
]

# A slot a node costs 4 bytes a node and thread; above this many nodes, a hash table of the
# mini-batch's own size takes less memory and is as fast (both miss the caches).
DENSE_LIMIT = 1 << 26
LAST = np.iinfo(np.int32).max


class NodeTable:
    """One mini-batch's list of nodes, by `start` and `relabel`; used again for the next one."""

    def __init__(self) -> None:
        self._base = 1
        self._nodes: np.ndarray[Any, Any] = np.empty(0, np.int64)

    @property
    def nodes(self) -> np.ndarray[Any, Any]:
        """Integer[rows], the list so far."""
        return self._nodes

    def start(self, seeds: np.ndarray[Any, Any]) -> None:
        """Begins a list with the seeds, repeats included; a repeat counts as its first."""
        self._base += len(self._nodes)
        if self._base > LAST // 2:
            self._clear()
            self._base = 1
        self._nodes = seeds
        self._insert(seeds)

    def relabel(self, neighbors: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Int32 positions of the neighbours; new ones join the list.

        Raises:
            OverflowError: the list would pass 2**30 nodes.
        """
        count = len(self._nodes)
        check_length(count + len(neighbors))
        local = empty_array(len(neighbors), np.int32)
        nodes = empty_array(count + len(neighbors), self._nodes.dtype)
        nodes[:count] = self._nodes
        fresh = self._append(neighbors, local, nodes[count:])
        self._nodes = nodes[: count + fresh]
        return local

    def _clear(self) -> None:
        raise NotImplementedError

    def _insert(self, seeds: np.ndarray[Any, Any]) -> None:
        raise NotImplementedError

    def _append(
        self,
        neighbors: np.ndarray[Any, Any],
        local: np.ndarray[Any, Any],
        new: np.ndarray[Any, Any],
    ) -> int:
        raise NotImplementedError


class DenseNodeTable(NodeTable):
    """A slot for every node of the graph: 4 bytes a node."""

    def __init__(self, num_nodes: int) -> None:
        super().__init__()
        self._table = np.zeros(num_nodes, np.int32)

    def _clear(self) -> None:
        self._table[:] = 0

    def _insert(self, seeds: np.ndarray[Any, Any]) -> None:
        kernels.insert(self._table, self._base, seeds)

    def _append(
        self,
        neighbors: np.ndarray[Any, Any],
        local: np.ndarray[Any, Any],
        new: np.ndarray[Any, Any],
    ) -> int:
        return int(
            kernels.relabel(self._table, self._base, len(self._nodes), neighbors, local, new)
        )


class HashNodeTable(NodeTable):
    """A hash table as large as the largest mini-batch so far: 24 bytes a node of it or more."""

    def __init__(self) -> None:
        super().__init__()
        self._allocate(1 << 12)

    def _allocate(self, capacity: int) -> None:
        self._keys = np.empty(capacity, np.int64)
        self._values = np.zeros(capacity, np.int32)

    def _clear(self) -> None:
        self._values[:] = 0

    def _insert(self, seeds: np.ndarray[Any, Any]) -> None:
        self._reserve(len(seeds))
        kernels.hash_insert(self._keys, self._values, self._base, 0, seeds)

    def _reserve(self, entries: int) -> bool:
        """Makes room; True if the table was made anew and is empty."""
        capacity = len(self._keys)
        while capacity < 2 * entries:
            capacity *= 2
        if capacity == len(self._keys):
            return False
        self._allocate(capacity)
        return True

    def _append(
        self,
        neighbors: np.ndarray[Any, Any],
        local: np.ndarray[Any, Any],
        new: np.ndarray[Any, Any],
    ) -> int:
        if self._reserve(len(self._nodes) + len(neighbors)):
            kernels.hash_insert(self._keys, self._values, self._base, 0, self._nodes)
        return int(
            kernels.hash_relabel(
                self._keys, self._values, self._base, len(self._nodes), neighbors, local, new
            )
        )


class NodeList:
    """A list in which every occurrence of a node is an entry of its own; as `NodeTable`."""

    def __init__(self) -> None:
        self.nodes: np.ndarray[Any, Any] = np.empty(0, np.int64)

    def start(self, seeds: np.ndarray[Any, Any]) -> None:
        """Begins a list with the seeds."""
        self.nodes = seeds

    def relabel(self, neighbors: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Int32 positions of the neighbours, which all join the list.

        Raises:
            OverflowError: the list would pass 2**30 nodes.
        """
        count = len(self.nodes)
        check_length(count + len(neighbors))
        nodes = empty_array(count + len(neighbors), self.nodes.dtype)
        nodes[:count] = self.nodes
        nodes[count:] = neighbors
        self.nodes = nodes
        local = empty_array(len(neighbors), np.int32)
        local[:] = np.arange(count, len(nodes), dtype=np.int32)
        return local


def check_length(rows: int) -> None:
    """Refuses a list whose positions would not fit.

    Raises:
        OverflowError: more than 2**30 nodes.
    """
    if rows > LAST // 2:
        raise OverflowError(
            f"a mini-batch with up to {rows} nodes is above {LAST // 2}; use a smaller batch_size "
            "or smaller fanouts"
        )


class NodeTablePool:
    """Tables of one graph, lent to one mini-batch at a time; as many as run at once.

    Args:
        num_nodes: number of nodes of the graph.
    """

    def __init__(self, num_nodes: int) -> None:
        self._num_nodes = num_nodes
        # Appending to and popping from a deque is atomic: no lock.
        self._idle: deque[NodeTable] = deque()

    @contextmanager
    def lend(self) -> Iterator[NodeTable]:
        """A table for the duration of a `with` block."""
        try:
            table = self._idle.pop()
        except IndexError:
            dense = self._num_nodes <= DENSE_LIMIT
            table = DenseNodeTable(self._num_nodes) if dense else HashNodeTable()
        yield table
        # A table whose block failed is dropped: its state is unknown.
        self._idle.append(table)

    def __reduce__(self) -> tuple[type[NodeTablePool], tuple[int]]:
        return NodeTablePool, (self._num_nodes,)
