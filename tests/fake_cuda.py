"""A machine with GPUs that exist on paper: it runs at once, and tells what a real one would mix up.

Tensors compute on the CPU and say that they are on a GPU. Every operation has a stream and a number
on it. An operation must know, by way of events, that what it reads has been written; memory must
not be freed while a stream that its owner has not heard of reads it.
"""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from contextlib import contextmanager

import torch
from torch.utils._pytree import tree_flatten, tree_map

from hopline.pipes import streams
from hopline.pipes.streams import Cuda

__all__ = ["FakeCuda", "OnGPU", "install"]

_names = itertools.count()


class FakeStream:
    """A queue. `seen` says of every stream up to which operation it is known to be through."""

    def __init__(self, device: int) -> None:
        self.device = torch.device("cuda", device)
        self.name = next(_names)
        self.seen: dict[int, int] = defaultdict(int)

    def step(self) -> int:
        self.seen[self.name] += 1
        return self.seen[self.name]

    def record_event(self) -> dict[int, int]:
        return dict(self.seen)

    def wait_event(self, event: dict[int, int]) -> None:
        for name, number in event.items():
            self.seen[name] = max(self.seen[name], number)


class Memory:
    """What tensors and their views share: who made it, wrote it last and read it, and who keeps."""

    def __init__(self, machine: FakeCuda, stream: FakeStream) -> None:
        self.machine = machine
        self.owner = stream
        self.reads: dict[int, int] = {}
        self.kept: set[int] = set()
        self.write(stream)

    def write(self, stream: FakeStream) -> None:
        self.writer, self.written = stream.name, stream.step()

    def read(self, stream: FakeStream) -> None:
        if stream.seen[self.writer] < self.written:
            self.machine.errors.append(
                f"stream {stream.name} reads what stream {self.writer} may not have written yet"
            )
        self.reads[stream.name] = stream.step()

    def __del__(self) -> None:
        # The owner's next tensor may take this memory, behind all that the owner has heard of.
        for name, number in self.reads.items():
            if name not in self.kept and self.owner.seen[name] < number:
                self.machine.errors.append(f"memory is freed while stream {name} may read it")


class OnGPU(torch.Tensor):
    """A tensor that says it is on a GPU; its values are those of `inner`, on the CPU."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor, device: torch.device, memory: Memory) -> OnGPU:
        self = torch.Tensor._make_wrapper_subclass(
            cls, inner.size(), strides=inner.stride(), dtype=inner.dtype, device=device
        )
        self.inner, self.memory = inner, memory
        return self

    def untyped_storage(self):
        return self.inner.untyped_storage()

    def to(self, device, *, non_blocking=False):
        return self.memory.machine.move(self, torch.device(device))

    def cpu(self):
        return self.to("cpu")

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        flat, _ = tree_flatten((args, kwargs or {}))
        given = [x for x in flat if isinstance(x, OnGPU)]
        (device,) = {x.device for x in given}
        machine = given[0].memory.machine
        stream = machine.current_stream(device.index)
        for x in given:
            x.memory.read(stream)
        args, kwargs = tree_map(
            lambda x: x.inner if isinstance(x, OnGPU) else x, (args, kwargs or {})
        )
        place = {x.inner.untyped_storage()._cdata: x.memory for x in given}

        def wrap(x):
            if not isinstance(x, torch.Tensor):
                return x
            memory = place.get(x.untyped_storage()._cdata) or Memory(machine, stream)
            return OnGPU(x, device, memory)

        return tree_map(wrap, func(*args, **kwargs))


class FakeCuda(Cuda):
    """Stands for `hopline.pipes.streams.cuda`; see `install`.

    Attributes:
        errors: what would have gone wrong.
        log: (what, name of the thread, detail) of every call, in order.
    """

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.log: list[tuple] = []
        self._default = {device: FakeStream(device) for device in range(2)}
        self._thread = threading.local()

    def calls(self, what: str) -> list:
        """The details of the calls of one kind."""
        return [detail for name, _, detail in self.log if name == what]

    def _note(self, what: str, detail=None) -> None:
        self.log.append((what, threading.current_thread().name, detail))

    # What the loader asks

    def initialized(self) -> bool:
        return True

    def current_device(self) -> int:
        return getattr(self._thread, "device", 0)

    def set_device(self, device: int) -> None:
        self._note("set_device", device)
        self._thread.device = device

    def new_stream(self, device: int) -> FakeStream:
        self._note("new_stream", device)
        return FakeStream(device)

    def current_stream(self, device: int) -> FakeStream:
        return getattr(self._thread, "streams", {}).get(device, self._default[device])

    def set_stream(self, stream: FakeStream) -> None:
        self._note("set_stream", stream.name)
        streams = getattr(self._thread, "streams", {})
        self._thread.streams = {**streams, stream.device.index: stream}
        self._thread.device = stream.device.index

    def record_stream(self, tensor: OnGPU, stream: FakeStream) -> None:
        self._note("record_stream", tensor.untyped_storage()._cdata)
        tensor.memory.kept.add(stream.name)

    def page_lock(self, tensor: torch.Tensor) -> torch.Tensor:
        if getattr(tensor, "page_locked", False):
            return tensor
        locked = torch.empty_like(tensor).copy_(tensor)
        locked.page_locked = True
        return locked

    @contextmanager
    def page_locked_outputs(self):
        self._thread.locked = True
        yield
        self._thread.locked = False

    @property
    def locks_outputs(self) -> bool:
        """Whether this thread is inside `page_locked_outputs`."""
        return getattr(self._thread, "locked", False)

    def upload(self, tensor: torch.Tensor, device) -> OnGPU:
        self._note("upload", (tensor.nbytes, getattr(tensor, "page_locked", False)))
        return self._make(tensor.clone(), torch.device(device))

    # What tests and tensors ask

    def move(self, tensor: OnGPU, device: torch.device):
        """A copy on another GPU, in the order that torch gives it, or on the host."""
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", self.current_device())
        if device == tensor.device:
            return tensor
        stream = self.current_stream(tensor.device.index)
        tensor.memory.read(stream)
        if device.type == "cpu":
            return tensor.inner.clone()
        self.current_stream(device.index).wait_event(stream.record_event())
        return self._make(tensor.inner.clone(), device)

    def _make(self, inner: torch.Tensor, device: torch.device) -> OnGPU:
        index = self.current_device() if device.index is None else device.index
        memory = Memory(self, self.current_stream(index))
        return OnGPU(inner, torch.device("cuda", index), memory)


def install(monkeypatch) -> FakeCuda:
    """Puts two GPUs in place for the rest of a test."""
    machine = FakeCuda()
    monkeypatch.setattr(streams, "cuda", machine)
    monkeypatch.setattr(streams, "_idle", {})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    return machine
