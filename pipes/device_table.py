"""DeviceNodeTable, DeviceNodeList: node ids to positions in a mini-batch's list, on a GPU.

The same lists as those of `hopline.pipes.relabel`. Work is enqueued on the current stream; how many
nodes were new is known on the device first, and the caller reads it together with whatever else a
hop has to tell.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hopline.pipes.relabel import LAST, check_length

__all__ = ["DeviceNodeList", "DeviceNodeTable", "DeviceTablePool"]

# A slot a node is cleared for each mini-batch, 4 bytes a node; above this many nodes, a hash table
# of the mini-batch's own size takes less.
DENSE_LIMIT = 1 << 25
SMALLEST = 1 << 12
NO_LIMIT = (1 << 63) - 1


class DeviceNodeList:
    """A list in which every occurrence of a node is an entry of its own.

    `append` enqueues work on the device of the seeds; what it appends counts once `settle` has been
    told how much it is.
    """

    def __init__(self) -> None:
        self._list = torch.empty(0, dtype=torch.int64, device="cpu")
        self._count = 0
        self._pending = False

    @property
    def nodes(self) -> torch.Tensor:
        """Integer[rows], the list so far, without what is pending."""
        return self._list[: self._count]

    def start(self, seeds: torch.Tensor) -> None:
        """Begins a list with the seeds, repeats included.

        Args:
            seeds: contiguous integer[n], ids from 0 on, on the device to work on.

        Raises:
            OverflowError: there are more than 2**30.
        """
        check_length(len(seeds))
        self._list = seeds
        self._count = len(seeds)
        self._pending = False

    def clear(self) -> None:
        """Ends the list and lets go of its memory; that of a table stays for the next one."""
        self.start(torch.empty(0, dtype=torch.int64, device="cpu"))

    def append(
        self, neighbors: torch.Tensor, total: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Enqueues the appending of neighbours; `settle` ends it.

        Args:
            neighbors: contiguous integer[room] on the device.
            total: int64[1] on the device, how many of them are real.

        Returns:
            int32[room]: positions in the list, of which the first `total` count; int64[1]: how many
            nodes join the list, to be read by the caller and given to `settle`.

        Raises:
            OverflowError: the list could pass 2**30 nodes.
            RuntimeError: the last append has not been settled.
        """
        if self._pending:
            raise RuntimeError("an append is pending; call settle with the number of fresh nodes")
        appended = self._append(neighbors, total)
        self._pending = True
        return appended

    def settle(self, fresh: int) -> None:
        """Ends an append.

        Args:
            fresh: what its second tensor holds.

        Raises:
            RuntimeError: no append is pending.
            ValueError: fresh is negative or more than what was appended.
        """
        if not self._pending:
            raise RuntimeError("no append is pending; call append first")
        if not 0 <= fresh <= len(self._list) - self._count:
            raise ValueError(
                f"fresh is {fresh}; expected 0 to {len(self._list) - self._count}, as read from "
                "what append returned"
            )
        self._count += fresh
        self._pending = False

    def relabel(self, neighbors: torch.Tensor) -> torch.Tensor:
        """Int32 positions of the neighbours; waits for the device once.

        Raises:
            OverflowError: the list could pass 2**30 nodes.
        """
        total = torch.full((1,), len(neighbors), dtype=torch.int64, device=self._list.device)
        local, fresh = self.append(neighbors, total)
        self.settle(int(fresh))
        return local

    def _append(
        self, neighbors: torch.Tensor, total: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        room = len(neighbors)
        check_length(self._count + room)
        self._list = torch.cat((self.nodes, neighbors.to(self._list.dtype)))
        local = torch.arange(
            self._count, self._count + room, dtype=torch.int32, device=self._list.device
        )
        return local, total.clamp(max=room)


class DeviceNodeTable(DeviceNodeList):
    """A list in which a node is one entry, but for repeated seeds; for one stream at a time.

    Positions are those of the first occurrence. Ids that are no nodes get position -1 and do not
    join the list.

    Args:
        device: where ids and positions are.
        num_nodes: number of nodes of the graph; None if unknown.
    """

    def __init__(self, device: torch.device, num_nodes: int | None = None) -> None:
        super().__init__()
        self._device = device
        self._limit = NO_LIMIT if num_nodes is None else num_nodes
        self._dense = self._limit <= DENSE_LIMIT
        self._seeds = 0
        self._entered = False
        self._keys: torch.Tensor | None = None
        self._values: torch.Tensor | None = None

    def start(self, seeds: torch.Tensor) -> None:
        """Begins a list with the seeds, repeats included; a repeat counts as its first.

        Args:
            seeds: contiguous integer[n] on the device, ids from 0 on.

        Raises:
            OverflowError: there are more than 2**30.
        """
        super().start(seeds)
        self._seeds = len(seeds)
        # Entered at the first append, when it is known how large a table that takes.
        self._entered = False

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Keeps the table's memory until a stream is done with it; for tables that change streams.

        Args:
            stream: where the table is going to be used.
        """
        for tensor in (self._keys, self._values):
            if tensor is not None:
                tensor.record_stream(stream)

    def _append(
        self, neighbors: torch.Tensor, total: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        from hopline.pipes.kernels.cuda import relabel as kernels

        room = len(neighbors)
        # Nodes that the list may have in the end, and ids that the table may hold.
        longest = min(self._count + room, self._seeds + self._limit)
        check_length(longest)
        # The kernel numbers all that it is given by int32, also nodes that are in the list.
        if self._count + room > LAST:
            check_length(self._count + room)
        values = self._table(min(longest, self._limit))
        if len(self._list) < longest:
            longer = torch.empty(longest, dtype=self._list.dtype, device=self._device)
            longer[: self._count] = self.nodes
            self._list = longer
        return kernels.relabel(
            self._keys, values, self._list, self._count, neighbors, total, self._limit
        )

    def _table(self, ids: int) -> torch.Tensor:
        """The values of a table with room for so many ids, which holds the list."""
        from hopline.pipes.kernels.cuda import relabel as kernels

        capacity = self._limit if self._dense else max(SMALLEST, 1 << (2 * ids - 1).bit_length())
        values = self._values
        if values is None or len(values) < capacity:
            # Freed first, so that the old table's memory may serve the new one.
            values = self._keys = self._values = None
            # A table outlives an inference mode, in which it may be made.
            with torch.inference_mode(False):
                values = torch.empty(capacity, dtype=torch.int32, device=self._device)
                if not self._dense:
                    self._keys = torch.empty(capacity, dtype=torch.int64, device=self._device)
            self._values = values
            self._entered = False
        if not self._entered:
            values.fill_(kernels.EMPTY)
            if self._keys is not None:
                self._keys.fill_(-1)
            kernels.insert(self._keys, values, self.nodes, self._limit)
            self._entered = True
        return values


class DeviceTablePool:
    """Tables of one graph, lent to one mini-batch at a time; as many as run at once.

    Args:
        num_nodes: number of nodes of the graph; None if unknown.
    """

    def __init__(self, num_nodes: int | None = None) -> None:
        self._num_nodes = num_nodes
        # Appending to and popping from a deque is atomic, as is setdefault: no lock.
        self._idle: dict[torch.device, deque[tuple[DeviceNodeTable, torch.cuda.Event | None]]] = {}

    @contextmanager
    def lend(self, device: torch.device) -> Iterator[DeviceNodeTable]:
        """A table for the duration of a `with` block, which works on the current stream.

        Args:
            device: where the mini-batch's ids are.
        """
        idle = self._idle.setdefault(device, deque())
        stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        try:
            table, done = idle.pop()
        except IndexError:
            table = DeviceNodeTable(device, self._num_nodes)
        else:
            if stream is not None and done is not None:
                stream.wait_event(done)
                table.record_stream(stream)
        yield table
        # A table whose block failed is dropped: its state is unknown.
        table.clear()
        idle.append((table, stream.record_event() if stream is not None else None))

    def __reduce__(self) -> tuple[type[DeviceTablePool], tuple[int | None]]:
        return DeviceTablePool, (self._num_nodes,)
