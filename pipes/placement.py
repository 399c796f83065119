"""Where a graph's arrays are, and how the kernels of a GPU get at them.

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
from hopline.pipes.kernels.dispatch import check_triton, on_device
from hopline.pipes.kernels.ranks import repeated_edges
from hopline.pipes.kernels.smallest import NEAR
from hopline.pipes.move import check_device
from hopline.pipes.page_lock import PageLock, page_lock, version_of

if TYPE_CHECKING:
    from hopline.pipes.gpu_graph_cache import GPUGraphCache
    from hopline.pipes.graph import FusedCSCSamplingGraph

__all__ = ["Residence", "host_array", "move_graph", "sampling_device"]

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
        # By name: what an array was made from, its version then, and what kernels read.
        self._arrays: dict[Any, tuple[torch.Tensor, int, torch.Tensor, PageLock | None]] = {}
        # By name: an array of a GPU, and the streams that its memory has been recorded for.
        self._streams: dict[Any, tuple[torch.Tensor, set[int]]] = {}
        # By name: an attribute, its version, and its values in a dtype that kernels know.
        self._attributes: dict[Any, tuple[torch.Tensor, int, torch.Tensor]] = {}
        # Within a column, or within a type of one: what they were counted on, and the ranks.
        self.parallel_ranks: dict[bool, tuple[Any, Any, torch.Tensor]] = {}
        # Likewise: what `repeats` gives on the CPU.
        self._repeats: dict[bool, tuple[Any, Any, tuple[Array, Array, Array]]] = {}
        self._caches: dict[Any, tuple[Any, GPUGraphCache]] = {}
        self._lock = fork_safe_lock()

    def repeats(self, graph: FusedCSCSamplingGraph, by_type: bool) -> tuple[Array, Array, Array]:
        """The edges that have a parallel one before them, found once.

        Args:
            graph: the graph, on the CPU.
            by_type: whether edges of different types are told apart.

        Returns:
            (near, repeats, times_before), as `kernels.smallest.pick_smallest` takes them.
        """
        state = (graph.csc_indptr, graph.indices, graph.type_per_edge if by_type else None)
        versions = tuple(None if tensor is None else version_of(tensor) for tensor in state)
        with self._lock:  # one thread looks through the graph, the others wait for what it finds
            known = self._repeats.get(by_type)
            if (
                known is None
                or known[1] != versions
                or any(a is not b for a, b in zip(known[0], state, strict=True))
            ):
                positions, before = repeated_edges(*state)
                starts = np.arange(0, len(graph.indices) + NEAR + 1, NEAR)
                near = np.searchsorted(positions, starts)
                known = self._repeats[by_type] = (state, versions, (near, positions, before))
        return known[2]

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
        if not _is_of(known, tensor):
            # By one thread: of two locks one would end while the other thread starts its kernels.
            with self._lock:
                known = self._arrays.get(name)
                if not _is_of(known, tensor):
                    with torch.inference_mode(False):  # what is kept outlives it
                        known = self._arrays[name] = self._place(tensor, device)
        assert known is not None
        return self._in_use(name, known[2])

    def _place(
        self, tensor: torch.Tensor, device: torch.device
    ) -> tuple[torch.Tensor, int, torch.Tensor, PageLock | None]:
        version = version_of(tensor)
        if self.pinned:
            lock = page_lock(tensor.cpu().contiguous())
            return tensor, version, lock.tensor, lock
        placed = tensor.to(device).contiguous()
        if placed.is_cuda:
            # Once for an array: kernels of other streams may read it from now on.
            torch.cuda.current_stream(device).synchronize()
        return tensor, version, placed, None

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
        if known is None or known[0] is not value or known[1] != version_of(value):
            with torch.inference_mode(False):  # tensors of that mode have no version
                array = torch.from_numpy(graph.attribute_array(domain, name, dtype))
            known = self._attributes[key] = (value, version_of(value), array)
        return self.array(key, known[2], device)

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

        indptr, indices, types = graph.csc_indptr, graph.indices, graph.type_per_edge
        arrays = [(a, version_of(a)) for a in (indptr, indices, types) if a is not None]
        key = (device, num_edges, threshold)
        with self._lock:
            known = self._caches.get(key)
            if known is None or not _same(known[0], arrays):
                with torch.inference_mode(False):  # the cache outlives it
                    cache = GPUGraphCache(
                        graph.total_num_nodes,
                        min(num_edges, graph.total_num_edges),
                        threshold,
                        indices.dtype,
                        None if types is None else types.dtype,
                        device,
                    )
                known = self._caches[key] = (arrays, cache)
        return known[1]


def _is_of(known: tuple[torch.Tensor, int, Any, Any] | None, tensor: torch.Tensor) -> bool:
    """Whether an array was made from a tensor as it is now."""
    return known is not None and known[0] is tensor and known[1] == version_of(tensor)


def _same(known: list[Any], arrays: list[Any]) -> bool:
    return len(known) == len(arrays) and all(
        a is b and version == now for (a, version), (b, now) in zip(known, arrays, strict=True)
    )


def host_array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """An array of a graph, for the kernels of the CPU."""
    array: np.ndarray[Any, Any] = tensor.cpu().numpy()
    return array


def sampling_device(graph: FusedCSCSamplingGraph, seeds: Any) -> torch.device | None:
    """The GPU that samples for some seeds; None for the CPU.

    A graph in a GPU's memory is sampled there, wherever the seeds are; a pinned one by the GPU that
    has the seeds; any other on the CPU.

    Args:
        graph: the graph.
        seeds: a tensor or a dict of tensors; anything else is for others to refuse.
    """
    if on_device(graph.indices):
        return graph.indices.device
    if graph.is_pinned():
        for tensor in seeds.values() if isinstance(seeds, dict) else (seeds,):
            if isinstance(tensor, torch.Tensor) and on_device(tensor):
                return tensor.device
    return None


def move_graph(
    graph: FusedCSCSamplingGraph, device: torch.device | str | int
) -> FusedCSCSamplingGraph:
    """See `FusedCSCSamplingGraph.to`."""
    target = check_device(device, pinned=True)
    if target == "pinned":
        return _copy(graph, torch.device("cpu")).pin_memory_()
    assert isinstance(target, torch.device)
    if target.type == "cuda":
        check_triton()
        if target.index is None:
            target = torch.device("cuda", torch.cuda.current_device())
    elif target.type != "cpu":
        raise ValueError(
            f"graph.to({str(device)!r}): graphs are sampled on the CPU and on NVIDIA GPUs; "
            "expected 'cpu', 'cuda' or 'pinned'"
        )
    if graph.indices.device == target and not graph.is_pinned():
        return graph
    copy: FusedCSCSamplingGraph = _copy(graph, target)
    return copy


def _copy(graph: FusedCSCSamplingGraph, device: torch.device) -> FusedCSCSamplingGraph:
    """A graph of the same arrays, each on the device; those that are there already are shared."""
    from hopline.pipes.graph import FusedCSCSamplingGraph

    def there(tensor: torch.Tensor | None) -> Any:
        return None if tensor is None else tensor.to(device)

    def all_there(attributes: dict[str, torch.Tensor] | None) -> Any:
        return None if attributes is None else {k: there(v) for k, v in attributes.items()}

    return FusedCSCSamplingGraph(
        there(graph.csc_indptr),
        there(graph.indices),
        graph.node_type_offset,  # a few numbers that the host reads
        there(graph.type_per_edge),
        graph.node_type_to_id,
        graph.edge_type_to_id,
        all_there(graph.node_attributes),
        all_there(graph.edge_attributes),
        path=graph.path if device.type == "cpu" else None,
    )
