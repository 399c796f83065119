"""Residence: how the kernels of a GPU get at the arrays of a graph.

A graph is in host memory, in host memory that is page-locked ("pinned"), which a GPU's kernels read
in place, or in a GPU's own memory. Public attributes of a graph are what they were set to; kernels
read what is in here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hopline.pipes.checks import check_rows
from hopline.pipes.features.fork_safe import fork_safe_lock
from hopline.pipes.page_lock import PageLock, page_lock
from hopline.pipes.snapshot import Snapshot

if TYPE_CHECKING:
    from hopline.pipes.gpu_graph_cache import GPUGraphCache
    from hopline.pipes.graph import FusedCSCSamplingGraph

__all__ = ["Residence"]

Array = np.ndarray[Any, Any]

# Dtypes of attributes that kernels read as they are; others are converted on the host.
TIMES = (torch.int64,)
WEIGHTS = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float32,
    torch.float64,
)  # fmt: skip


class Residence:
    """The arrays of one graph as the kernels of GPUs read them, made when they are first asked for.

    Args:
        pinned: keep them in page-locked host memory.
    """

    def __init__(self, pinned: bool = False) -> None:
        self.pinned = pinned
        # By name: what an array was made from, and what kernels read.
        self._arrays: dict[Any, tuple[Snapshot, torch.Tensor, PageLock | None]] = {}
        # By name: an array of a GPU, and the streams that its memory has been recorded for.
        self._streams: dict[Any, tuple[torch.Tensor, set[int]]] = {}
        # By name: an attribute, and its values in a dtype that kernels know.
        self._attributes: dict[Any, tuple[Snapshot, torch.Tensor]] = {}
        # By device and settings: the graph's arrays, and the cache of their edges.
        self._caches: dict[Any, tuple[Snapshot, GPUGraphCache]] = {}
        self._lock = fork_safe_lock()

    def array(self, name: Any, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        """An array where kernels of a device can read it, contiguous.

        Args:
            name: what it is; one array is kept for each name.
            tensor: the array, on the CPU or a GPU.
            device: where the kernels run.
        """
        there = tensor.device == device and tensor.is_contiguous()
        # What is on the GPU itself, e.g. an attribute of a pinned graph, is read there.
        if there and (tensor.is_cuda or not self.pinned):
            return self._in_use(name, tensor)
        known = self._arrays.get(name)
        if known is None or not known[0].is_of(tensor):
            # By one thread: of two locks one would end while the other thread starts its kernels.
            with self._lock:
                known = self._arrays.get(name)
                if known is None or not known[0].is_of(tensor):
                    with torch.inference_mode(False):  # what is kept outlives it
                        known = self._arrays[name] = self._place(tensor, device)
        return self._in_use(name, known[1])

    def _place(
        self, tensor: torch.Tensor, device: torch.device
    ) -> tuple[Snapshot, torch.Tensor, PageLock | None]:
        snapshot = Snapshot(tensor)
        if self.pinned:
            lock = page_lock(tensor.cpu().contiguous())
            return snapshot, lock.tensor, lock
        placed = tensor.to(device).contiguous()
        if placed.is_cuda:
            # Once for an array: kernels of other streams may read it from now on.
            torch.cuda.current_stream(device).synchronize()
        return snapshot, placed, None

    def _in_use(self, name: Any, tensor: torch.Tensor) -> torch.Tensor:
        """Keeps an array's memory from being used anew while kernels of this stream may read it."""
        if not tensor.is_cuda:
            return tensor
        stream = torch.cuda.current_stream(tensor.device)
        known, streams = self._streams.get(name, (None, set()))
        if known is not tensor:
            known, streams = self._streams[name] = tensor, set()
        if stream.cuda_stream not in streams:
            tensor.record_stream(stream)
            streams.add(stream.cuda_stream)
        return tensor

    def attribute(
        self,
        graph: FusedCSCSamplingGraph,
        domain: str,
        name: str,
        dtype: Any,
        device: torch.device,
    ) -> torch.Tensor:
        """An attribute of one number a row where kernels of a device can read it.

        Args:
            graph: the graph.
            domain: "node" or "edge".
            name: its name.
            dtype: as of `FusedCSCSamplingGraph.attribute_array`.
            device: where the kernels run.

        Raises:
            KeyError, TypeError, ValueError: as `attribute_array` does.
        """
        of = graph.node_attribute if domain == "node" else graph.edge_attribute
        value = of(name)
        assert value is not None
        known_dtypes = WEIGHTS if dtype is None else TIMES
        if value.device == device and value.dim() == 1 and value.dtype in known_dtypes:
            rows = graph.total_num_nodes if domain == "node" else graph.total_num_edges
            check_rows(value, rows, f"{domain} attribute {name!r}")
            return self.array((domain, name), value, device)
        key = (domain, name, dtype, device)
        known = self._attributes.get(key)
        if known is None or not known[0].is_of(value):
            snapshot = Snapshot(value)
            with torch.inference_mode(False):  # tensors of that mode have no version
                array = torch.from_numpy(graph.attribute_array(domain, name, dtype))
            known = self._attributes[key] = snapshot, array
        return self.array(key, known[1], device)

    def graph_cache(
        self,
        graph: FusedCSCSamplingGraph,
        num_edges: int,
        threshold: int,
        device: torch.device,
    ) -> GPUGraphCache:
        """The cache of a GPU for this graph; samplers with the same settings share it.

        Args:
            graph: the graph.
            num_edges: edges that it may hold.
            threshold: how often a node must have been a column.
            device: the GPU.
        """
        from hopline.pipes.gpu_graph_cache import GPUGraphCache

        indices, types = graph.indices, graph.type_per_edge
        arrays = graph.csc_indptr, indices, types
        key = (device, num_edges, threshold)
        with self._lock:
            known = self._caches.get(key)
            if known is None or not known[0].is_of(*arrays):
                snapshot = Snapshot(*arrays)
                with torch.inference_mode(False):  # the cache outlives it
                    cache = GPUGraphCache(
                        graph.total_num_nodes,
                        min(num_edges, graph.total_num_edges),
                        threshold,
                        indices.dtype,
                        None if types is None else types.dtype,
                        device,
                    )
                known = self._caches[key] = snapshot, cache
        return known[1]
