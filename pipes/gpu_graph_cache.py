"""GPUGraphCache: in-neighbourhoods of a graph in host memory, kept on the GPU once they are hot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from hopline.pipes.checks import INTEGERS, check_array, check_count
from hopline.pipes.features.fork_safe import fork_safe_lock
from hopline.pipes.kernels.dispatch import check_triton, on_device
from hopline.pipes.move import check_device

if TYPE_CHECKING:
    from hopline.pipes.kernels.cuda.cached_edges import CachedEdges

__all__ = ["GPUGraphCache"]

INDICES = (torch.int32, torch.int64)


class GPUGraphCache:
    """Whole in-neighbourhoods of nodes that were columns of sampling often enough.

    Nodes enter in the order in which they come, until the cache is full, and never leave: what the
    cache holds changes where edges are read, never which are drawn. Neither looking up nor
    admitting waits for the GPU; several threads on several streams may share a cache, and take
    turns on the device as they do on the host. A pickled cache travels empty.

    Args:
        num_nodes: nodes of the graph.
        num_edges: edges to hold; memory for them is taken at once.
        threshold: how often a node is a column before its edges are kept, 1 or more.
        indices_dtype: of the graph's indices, torch.int32 or torch.int64.
        types_dtype: of its edge types; None without them.
        device: where the cache is; None for the current GPU.

    Raises:
        TypeError: an argument is of the wrong kind.
        ValueError: a number is out of range, a dtype will not do, or there is no such device.
        RuntimeError: Triton is missing; or there is no GPU, and no device was named.
    """

    def __init__(
        self,
        num_nodes: int,
        num_edges: int,
        threshold: int,
        indices_dtype: torch.dtype,
        types_dtype: torch.dtype | None = None,
        device: torch.device | str | int | None = None,
    ) -> None:
        self.num_nodes = check_count(num_nodes, "num_nodes")
        self.num_edges = check_count(num_edges, "num_edges")
        self.threshold = check_count(threshold, "threshold", least=1)
        _check_dtype(indices_dtype, "indices_dtype", INDICES)
        if types_dtype is not None:
            _check_dtype(types_dtype, "types_dtype", INTEGERS)
        if device is None:
            if not torch.cuda.is_available():
                raise RuntimeError(
                    "a cache of the graph on the GPU needs a GPU, and torch finds none here"
                )
            device = torch.device("cuda", torch.cuda.current_device())
        device = check_device(device)
        check_triton()
        if not on_device(torch.empty(0, device=device)):
            raise ValueError(f"device is {str(device)!r}; expected a GPU, e.g. 'cuda'")
        self._settings = (
            num_nodes, num_edges, threshold, indices_dtype, types_dtype, device,
        )  # fmt: skip
        self._slots = torch.full((num_nodes,), -1, dtype=torch.int64, device=device)
        self._indices = torch.empty(num_edges, dtype=indices_dtype, device=device)
        self._types: torch.Tensor | None = None
        if types_dtype is not None:
            self._types = torch.empty(num_edges, dtype=types_dtype, device=device)
        # int64[1] each: edges held, and columns that had no place when they were looked up.
        self._filled = torch.zeros(1, dtype=torch.int64, device=device)
        self._misses = torch.zeros(1, dtype=torch.int64, device=device)
        self._looked_up = 0
        self._lock = fork_safe_lock()
        # The last use: kernels of another stream wait for it on the device. The first use waits
        # for the stream on which the arrays were made.
        self._last_use: torch.cuda.Event | None = None
        if self.device.type == "cuda":
            self._last_use = torch.cuda.current_stream(self.device).record_event()

    @property
    def device(self) -> torch.device:
        """Where the cache is."""
        return self._slots.device

    @property
    def miss_rate(self) -> float:
        """Share of the columns looked up that had no place in the cache; waits for the GPU."""
        with self._lock, self._in_turn():
            return int(self._misses) / self._looked_up if self._looked_up else 0.0

    @property
    def num_cached_edges(self) -> int:
        """How many edges the cache holds; waits for the GPU."""
        with self._lock, self._in_turn():
            return int(self._filled)

    def look_up(self, columns: torch.Tensor, begin: torch.Tensor) -> CachedEdges:
        """Where the cache has the columns' edges, for `pick_neighbors` on the same stream.

        Args:
            columns: integer[n].
            begin: int64[n * T], from `count_picks`.

        Returns:
            Their places and the cache's arrays; what comes in later changes none of them.

        Raises:
            TypeError: an array is no tensor, or of another dtype.
            ValueError: an array is on another device, or the lengths do not go together.
        """
        from hopline.pipes.kernels.cuda.cached_edges import CachedEdges
        from hopline.pipes.kernels.cuda.graph_cache import find_cached

        self._check(columns, begin, begin)
        with self._lock, self._in_turn():
            self._looked_up += len(columns)
            shift = find_cached(self._slots, columns, begin, self._misses)
            return CachedEdges(shift, self._indices, self._types)

    def admit(
        self,
        columns: torch.Tensor,
        begin: torch.Tensor,
        degree: torch.Tensor,
        indices: torch.Tensor,
        edge_types: torch.Tensor | None = None,
    ) -> None:
        """Counts the columns as seen, and keeps the edges of those seen often enough.

        A node in several columns counts as often. Nodes enter in the order of their first columns,
        as long as there is room; one that is too big for what was free before the call is passed
        over. So that no call takes long, no further node enters when 2**20 edges are to be copied:
        a call copies fewer than these and the degree of one node. A node that did not enter is
        tried again when it is next seen.

        Args:
            columns: integer[n].
            begin: int64[n * T], from `count_picks`.
            degree: int64[n * T], from `count_picks`.
            indices: [num_edges] of indices_dtype, sources; on the cache's device or in page-locked
                host memory.
            edge_types: [num_edges] of types_dtype, where indices may be; None without types.

        Raises:
            TypeError: an array is no tensor, or of another dtype.
            ValueError: an array is on another device, or the lengths do not go together.
        """
        from hopline.pipes.kernels.cuda.graph_cache import admit_columns

        self._check(columns, begin, degree)
        check_array(indices, "indices", (self._indices.dtype,), 0)
        if (edge_types is None) != (self._types is None):
            raise TypeError(
                f"edge_types is {'None' if edge_types is None else 'given'}, but the cache was "
                f"made with{'out' if self._types is None else ''} types_dtype"
            )
        if self._types is not None:
            check_array(edge_types, "edge_types", (self._types.dtype,), len(indices))
        with self._lock, self._in_turn():
            admit_columns(
                self._slots, self._indices, self._types, self._filled, self.threshold, columns,
                begin, degree, indices, edge_types,
            )  # fmt: skip

    def _check(self, columns: torch.Tensor, begin: torch.Tensor, degree: torch.Tensor) -> None:
        """Refuses what is not of the cache's device, or not of these columns."""
        check_array(columns, "columns", INDICES, 0)
        for array, name in ((begin, "begin"), (degree, "degree")):
            check_array(array, name, (torch.int64,), 0)
            if array.device != columns.device or array.device != self.device:
                raise ValueError(
                    f"columns are on {columns.device}, and {name} on {array.device}; expected "
                    f"{self.device}, where the cache is"
                )
            if len(array) != len(begin) or len(array) % max(1, len(columns)):
                raise ValueError(
                    f"{name} has {len(array)} entries, and begin {len(begin)}; expected as many, "
                    f"and a multiple of the {len(columns)} columns"
                )

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        """Orders uses of the cache on all streams as their callers hold the lock, without a wait.

        A place may be found as soon as it is written; its edges have been copied then, since
        whoever finds it comes after the whole call that let them in.
        """
        if self.device.type != "cuda":
            yield
            return
        stream = torch.cuda.current_stream(self.device)
        assert self._last_use is not None
        stream.wait_event(self._last_use)
        for array in (self._slots, self._indices, self._types, self._filled, self._misses):
            if array is not None:
                array.record_stream(stream)
        try:
            yield
        finally:
            self._last_use = stream.record_event()

    def __getstate__(self) -> tuple[Any, ...]:
        return self._settings  # travels empty: another process fills its own

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"GPUGraphCache({self.num_edges} edges, threshold={self.threshold}, {self.device})"


def _check_dtype(dtype: Any, name: str, choices: tuple[torch.dtype, ...]) -> None:
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"{name} is {dtype!r}; expected a torch.dtype")
    if dtype not in choices:
        wanted = "torch.int32 or torch.int64" if choices is INDICES else "a dtype of integers"
        raise ValueError(f"{name} is {dtype}; expected {wanted}")
