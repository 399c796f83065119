"""Streams: loader threads work on CUDA streams of their own, and hand mini-batches over.

A thread queues a mini-batch's work on its stream and records an event behind it. The reader's
stream waits for the event on the device, the host does not. Memory stays with the mini-batch until
the reader's stream is through with it, by `record_stream`.

Nothing here touches CUDA for a chain that copies to no GPU.
"""

from __future__ import annotations

import dataclasses
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from hopline.pipes.page_lock import is_page_locked

if TYPE_CHECKING:
    from hopline.pipes.cursor import Task
    from hopline.pipes.minibatch import MiniBatch

__all__ = ["Cuda", "HandedOver", "WorkerStreams", "cuda_tensors", "upload"]

# CUDA takes copies of up to 64 KiB from ordinary memory into its own hands before the call returns,
# so that staging would only add a copy.
SMALLEST_STAGED = 1 << 16


class Cuda:
    """What the loader and its copies ask of CUDA, in one place; tests put a fake in its stead."""

    def initialized(self) -> bool:
        """Whether this process uses CUDA; asking does not make it do so."""
        return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]

    def current_device(self) -> int:
        """The current GPU of this thread."""
        return torch.cuda.current_device()

    def set_device(self, device: int) -> None:
        """Makes a GPU the current one of this thread."""
        torch.cuda.set_device(device)

    def new_stream(self, device: int) -> torch.cuda.Stream:
        """A stream beside all others."""
        return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def current_stream(self, device: int) -> torch.cuda.Stream:
        """The stream that this thread's work on a GPU goes to."""
        return torch.cuda.current_stream(device)

    def set_stream(self, stream: torch.cuda.Stream) -> None:
        """Sends this thread's work on the stream's GPU there, and makes that GPU the current."""
        torch.cuda.set_stream(stream)

    def record_stream(self, tensor: torch.Tensor, stream: torch.cuda.Stream) -> None:
        """Keeps the tensor's memory, once freed, from new use until the stream is through."""
        tensor.record_stream(stream)

    def page_lock(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor in page-locked memory of torch's caching host allocator."""
        if is_page_locked(tensor):
            return tensor
        # Not `pin_memory`, which cannot write to a tensor expanded over one element.
        return torch.empty_like(tensor, pin_memory=True).copy_(tensor)

    def page_locked_outputs(self) -> AbstractContextManager[Any]:
        """Big outputs of this thread come in page-locked memory inside the block."""
        from hopline.pipes.features.buffers import page_locked_outputs

        context: AbstractContextManager[Any] = page_locked_outputs()
        return context

    def upload(self, tensor: torch.Tensor, device: torch.device | str) -> torch.Tensor:
        """The tensor on a GPU; the host does not wait."""
        return tensor.to(device, non_blocking=True)


cuda = Cuda()


def upload(tensor: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    """Copies a tensor to a GPU by way of page-locked memory, without waiting.

    The copy is queued on the current stream. From ordinary memory it would wait for the stream's
    earlier work, and run beside nothing.

    Args:
        tensor: in host memory; small ones and page-locked ones are copied directly.
        device: a GPU; without a number, the current one.
    """
    if tensor.layout == torch.strided and tensor.nbytes > SMALLEST_STAGED:
        # Nobody keeps the staging tensor. Its memory comes from torch's caching host allocator,
        # which notes copies that do not wait and lends it anew only when they are done.
        tensor = cuda.page_lock(tensor)
    return cuda.upload(tensor, device)


# -------------------------------------------------------------------------------------------------
# What is handed over


def cuda_tensors(value: Any) -> list[torch.Tensor]:
    """The tensors on a GPU in what a mini-batch carries, one for each storage.

    Args:
        value: as for `hopline.pipes.move.move`; of objects with a method `to`, their attributes.
    """
    found: dict[tuple[torch.device, int], torch.Tensor] = {}
    for tensor in _tensors(value, set()):
        if tensor.is_cuda:
            found.setdefault((tensor.device, tensor.untyped_storage()._cdata), tensor)
    return list(found.values())


def _tensors(value: Any, seen: set[int]) -> Iterator[torch.Tensor]:
    """The tensors with a storage of their own in a value, some more than once."""
    if isinstance(value, torch.Tensor):
        if value.layout == torch.strided:
            yield value
        else:
            for part in _PARTS.get(value.layout, ()):
                yield getattr(value, part)()
        return
    if value is None or isinstance(value, str | bytes | int | float | type | types.ModuleType):
        return
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Mapping):
        items: Any = value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        items = value
    elif dataclasses.is_dataclass(value):
        items = [getattr(value, f.name) for f in dataclasses.fields(value)]
    elif hasattr(value, "to"):
        items = list(getattr(value, "__dict__", {}).values())
    else:
        return
    for item in items:
        yield from _tensors(item, seen)


# Methods that give the dense tensors of which others are made.
_PARTS: dict[torch.layout, tuple[str, ...]] = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
    torch.jagged: ("values", "offsets"),
}


class HandedOver:
    """A mini-batch as its worker leaves it: work on GPUs is queued, not done.

    Args:
        minibatch: the mini-batch.
        tensors: its tensors on GPUs, one for each storage.
        devices: further GPUs that its making used.
    """

    __slots__ = ("_events", "_tensors", "minibatch")

    def __init__(
        self, minibatch: Any, tensors: Sequence[torch.Tensor] = (), devices: Sequence[int] = ()
    ) -> None:
        self.minibatch = minibatch
        self._tensors = tensors
        self._events = {
            device: cuda.current_stream(device).record_event()
            for device in dict.fromkeys((*devices, *(t.device.index for t in tensors)))
        }

    def receive(self) -> MiniBatch:
        """The mini-batch, for use on the current streams of this thread; the host does not wait."""
        streams = {device: cuda.current_stream(device) for device in self._events}
        for device, event in self._events.items():
            streams[device].wait_event(event)
        for tensor in self._tensors:
            # Its memory belongs to the stream that made it, which would use it again at once.
            cuda.record_stream(tensor, streams[tensor.device.index])
        minibatch: MiniBatch = self.minibatch
        return minibatch


# -------------------------------------------------------------------------------------------------
# Streams of workers

# Streams that no loader uses now, by GPU: as many as were ever used at once, whatever the number of
# loaders. Lists are popped and appended to in one step, so there is no lock.
_idle: dict[int, list[torch.cuda.Stream]] = {}


def _take(device: int) -> torch.cuda.Stream:
    try:
        return _idle[device].pop()
    except (KeyError, IndexError):
        return cuda.new_stream(device)


class WorkerStreams:
    """How the threads of one epoch use GPUs. Made by the reader, at the epoch's start.

    Every thread gets a stream on each GPU that the chain copies to, and a current GPU: the reader's
    if the chain copies there, else the first one named. All streams wait for what the reader has
    queued before, such as the upload of the graph.

    Args:
        devices: the GPUs that the chain copies to, in its order; without a number, the reader's
            current one.
        workers: number of threads.
    """

    def __init__(self, devices: Sequence[torch.device], workers: int) -> None:
        self._copies = bool(devices)
        self._current = 0
        self._start: dict[int, Any] = {}
        if devices and workers:
            current = cuda.current_device()
            numbers = [current if d.index is None else d.index for d in devices]
            self._current = current if current in numbers else numbers[0]
            self._start = {d: cuda.current_stream(d).record_event() for d in dict.fromkeys(numbers)}
        self._taken = [{d: _take(d) for d in self._start} for _ in range(workers)]
        self._unassigned = list(self._taken)
        self._thread = threading.local()

    def page_locked_outputs(self) -> AbstractContextManager[Any]:
        """For tasks: what they read is page-locked at once if they go on to a GPU."""
        return cuda.page_locked_outputs() if self._copies else nullcontext()

    def task(self, task: Task) -> Callable[[], HandedOver]:
        """A task for a worker thread; called on the reader's thread."""
        item = task.item
        tensors = cuda_tensors(item) if item is not None and self._touches_cuda() else []
        return _StreamTask(self, task, HandedOver(item, tensors) if tensors else None)

    def run(self, task: Task, given: HandedOver | None) -> HandedOver:
        """Does a task on the calling thread's streams."""
        if self._start:
            self._enter()
        if given is not None:
            # A walked source reads on the reader's stream.
            given.receive()
        with self.page_locked_outputs():
            minibatch = task()
        tensors = cuda_tensors(minibatch) if self._touches_cuda() else []
        return HandedOver(minibatch, tensors, list(self._start))

    def _touches_cuda(self) -> bool:
        # Stages may use a GPU that the chain does not name, e.g. for a cache.
        return self._copies or cuda.initialized()

    def _enter(self) -> None:
        """Gives the thread its streams, once: torch's current GPU and streams are per thread."""
        thread = self._thread
        if getattr(thread, "ready", False):
            return
        if not hasattr(thread, "streams"):
            thread.streams = self._unassigned.pop()
        for device, stream in thread.streams.items():
            cuda.set_stream(stream)
            stream.wait_event(self._start[device])
        cuda.set_device(self._current)
        thread.ready = True

    def close(self) -> None:
        """Leaves the streams to other loaders.

        A thread may still be in a task. Streams keep the order of all that is queued on them, by
        whatever thread, so the next user is safe.
        """
        while self._taken:
            for device, stream in self._taken.pop().items():
                _idle.setdefault(device, []).append(stream)


class _StreamTask:
    """A task, and the streams to do it on."""

    __slots__ = ("_given", "_streams", "_task")

    def __init__(self, streams: WorkerStreams, task: Task, given: HandedOver | None) -> None:
        self._streams = streams
        self._task = task
        self._given = given

    def __call__(self) -> HandedOver:
        return self._streams.run(self._task, self._given)
