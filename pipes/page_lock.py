"""page_lock: page-locks a tensor's memory, so that kernels of a GPU read it in place.

Memory is registered with CUDA page by page. What has its pages for itself is registered where it
is, once, however many tensors lie on it, and for as long as one of them is locked: views of one
tensor, slices, and the same tensor twice are all one to it. What shares pages with other memory, as
small arrays do, is copied: registered pages would make copies to a GPU fail that begin on them and
run beyond.

Bytes of a file that is mapped privately or read-only are mapped once more, shared, and registered
there: all processes that do so have one copy of them between them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from hopline.pipes import host_pages
from hopline.pipes.host_pages import PAGE, page_span

__all__ = [
    "PAGE",
    "CudaDriver",
    "PageLock",
    "is_page_locked",
    "page_lock",
    "page_locked_copy",
    "version_of",
]

# Flags of cudaHostRegister.
FOR_ALL_DEVICES_AND_MAPPED = 1 | 2
READ_ONLY = 8


class CudaDriver:
    """The calls that page-locking comes down to, in one place; tests put a fake in its stead."""

    def __init__(self) -> None:
        self._cuda: Any = torch.cuda
        self._device: int | None = None  # the GPU by whose context memory is registered

    def available(self) -> bool:
        """Whether there is a GPU to lock memory for."""
        # In a fork of a process that has used CUDA, torch finds GPUs and cannot use them.
        return torch.cuda.is_available() and not self._cuda._is_in_bad_fork()

    def register(self, address: int, size: int, read_only: bool) -> str | None:
        """Page-locks memory; what went wrong, or None."""
        if self._device is None:
            current = torch.cuda.current_device()
            in_use = list(self._in_use())
            # On a thread that has chosen no GPU it is the first one, perhaps another rank's.
            self._device = current if current in in_use or not in_use else in_use[0]
        flags = FOR_ALL_DEVICES_AND_MAPPED | (READ_ONLY if read_only else 0)
        with torch.cuda.device(self._device):
            return self._failure(self._cuda.cudart().cudaHostRegister(address, size, flags))

    def unregister(self, address: int) -> str | None:
        """Gives memory back that was registered at this address; what went wrong, or None."""
        # The collector may call on any thread, of which the first GPU would be the current one.
        with torch.cuda.device(self._device):
            return self._failure(self._cuda.cudart().cudaHostUnregister(address))

    def _failure(self, status: Any) -> str | None:
        code = int(status)
        if code == 0:
            return None
        cudart = self._cuda.cudart()
        message = f"{cudart.cudaGetErrorString(cudart.cudaError(code))} (error {code})"
        # CUDA remembers the failure, and the next kernel of this thread would be blamed for it: one
        # that does nothing else takes it.
        with contextlib.suppress(RuntimeError):
            torch.ones(1, device="cuda")
        return message

    def synchronize(self) -> None:
        """Waits for all that this process has handed to GPUs."""
        if self._cuda.is_initialized():
            for device in self._in_use():
                torch.cuda.synchronize(device)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether the start of a CPU tensor is in page-locked memory, as far as CUDA knows."""
        # Without a GPU torch may raise at the question; with one that is not in use yet, it would
        # take it into use. The answer is no.
        return self.available() and any(True for _ in self._in_use()) and tensor.is_pinned()

    def _in_use(self) -> Iterator[int]:
        """The GPUs that this process has a context on; being asked for, others would get one."""
        core: Any = torch._C
        if self._cuda._is_compiled():
            for device in range(core._cuda_getDeviceCount()):
                if core._cuda_hasPrimaryContext(device):
                    yield device


class PageLock:
    """Keeps a tensor's memory page-locked for as long as it lives; `page_lock` makes it.

    Whoever starts kernels that read the tensor's memory holds the lock until they are started; its
    end waits until they are through. Memory that the lock made itself stays locked as long as there
    is a tensor on it.

    Attributes:
        tensor: the tensor to use: the given one, or one elsewhere of the same values.
        writable: whether it may be written to. Writing to a file's pages would end the process, or
            change them for all who have mapped the file.
    """

    def __init__(self, tensor: torch.Tensor, part: _Part | None = None) -> None:
        self.tensor = tensor
        self.writable = True
        self._version: int | None = None  # of the tensor that was locked, if this is another
        self._finalizer = None
        if part is not None:
            self._finalizer = weakref.finalize(self, _let_go, part)
            self._finalizer.atexit = False  # the process's end is the end of its registrations

    def is_current(self, tensor: torch.Tensor) -> bool:
        """Whether `tensor` has the values of the tensor that was locked, as far as torch knows.

        Args:
            tensor: what was locked; it may have been changed in place since.
        """
        return self._version is None or self._version == version_of(tensor)

    def stands_for(self, tensor: torch.Tensor) -> None:
        """Says that the values are now those of a tensor elsewhere; `is_current` is of that."""
        self._version = version_of(tensor)

    def release(self) -> None:
        """Lets go at once, after all that GPUs are doing; once or more often."""
        if self._finalizer is not None:
            self._finalizer()

    def wait(self) -> None:
        """Waits until no kernel that was started before reads the memory: it may be written to."""
        if self._finalizer is not None:
            _driver.synchronize()

    def __repr__(self) -> str:
        return f"PageLock({tuple(self.tensor.shape)}, {self.tensor.dtype})"


@dataclass(slots=True, eq=False)
class _Segment:
    """Pages that were registered by one call.

    Attributes:
        start: address of the first page.
        end: address behind the last.
        owners: how many locks need them; memory that was made for a lock counts as one.
        memory: what they were registered for; it must outlive the registration.
    """

    start: int
    end: int
    owners: int
    memory: Any


@dataclass(slots=True, eq=False)
class _Part:
    """What one lock holds.

    Attributes:
        registry: where it counts; a fork of the process has another, and nothing to undo.
        segment: with all pages of it; None if torch allocated it page-locked.
        memory: kept until kernels that read it are through.
    """

    registry: _Registry
    segment: _Segment | None
    memory: Any


class _Registry:
    """What is registered in this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.segments: list[_Segment] = []
        # One file is mapped by one thread at a time, so that it is registered once.
        self.mapping = threading.Lock()
        self.files: weakref.WeakValueDictionary[Any, Any] = weakref.WeakValueDictionary()
        # Without the lock: a finaliser may run inside any allocation, also in one under the lock.
        self.let_go: deque[_Part] = deque()


_driver = CudaDriver()
_registry = _Registry()
_forks_are_seen = False


def page_lock(tensor: torch.Tensor) -> PageLock:
    """Page-locks the memory of a CPU tensor: the whole storage that it is a view of.

    It is locked where it is if it has its pages for itself: whole mappings, also of shared memory,
    and blocks of malloc that are large enough (128 KiB to 32 MiB) to be mappings. The lock's
    `tensor` is another one in three cases:

    - The memory is a file's, mapped privately or read-only, as it is in the file: `tensor` is on a
      shared mapping of the file, and not to be written to. Locking costs no memory but the file's
      pages, for all processes of the machine together. This takes a driver that locks read-only
      memory, or a file in /dev/shm that this user may write to.
    - Another file's memory, or where CUDA refuses: `tensor` is a page-locked copy.
    - Other memory that shares pages, e.g. of small arrays: likewise. A change of the given tensor
      is not seen in the copy; see `PageLock.is_current`.

    Memory that torch page-locked itself is left as it is.

    Args:
        tensor: dense, on the CPU, of any dtype; also of no elements.

    Returns:
        The lock. The memory stays locked until the last lock on it dies or is released.

    Raises:
        TypeError: not a dense tensor.
        ValueError: it is not on the CPU.
        RuntimeError: there is no GPU, or CUDA cannot lock so much memory.
    """
    _check(tensor)
    if tensor.untyped_storage().nbytes() == 0:
        return PageLock(tensor)
    lock = _in_place(tensor)
    if lock is not None:
        return lock
    version = version_of(tensor)
    mapped = _on_shared_file(tensor)
    return _made(_copy(tensor) if mapped is None else mapped, version, mapped is None)


def page_locked_copy(tensor: torch.Tensor) -> PageLock:
    """A contiguous copy of a CPU tensor in page-locked memory, which is the lock's `tensor`.

    Not by torch's allocator, which takes up to twice the memory.

    Args:
        tensor: dense, on the CPU, of any dtype; also of no elements.

    Raises:
        TypeError: not a dense tensor.
        ValueError: it is not on the CPU.
        RuntimeError: there is no GPU, or CUDA cannot lock so much memory.
    """
    _check(tensor)
    if tensor.numel() == 0:
        return PageLock(tensor.detach().clone())
    return _made(_copy(tensor))


def is_page_locked(tensor: torch.Tensor) -> bool:
    """Whether all of a CPU tensor's memory is page-locked, by `page_lock` or by torch."""
    if tensor.device.type != "cpu" or not _driver.available():
        return False
    storage = tensor.untyped_storage()
    start, size = storage.data_ptr(), storage.nbytes()
    if size == 0:
        return True
    low, high = page_span(start, size)
    with _registry.lock:
        near = _overlapping(low, high)
    _settle()
    if near:  # of memory that is locked in part, CUDA would look at the first byte only
        return near[0].start <= low and high <= near[0].end
    return _driver.is_pinned(tensor)


def _check(tensor: Any) -> None:
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
        kind = getattr(tensor, "layout", type(tensor).__name__)
        raise TypeError(f"memory to page-lock: got a {kind}; expected a dense torch.Tensor")
    if tensor.device.type != "cpu":
        raise ValueError(
            f"memory to page-lock: got a tensor on {tensor.device}; expected one on the CPU: use "
            "tensor.cpu()"
        )
    if not _driver.available():
        raise RuntimeError("pinning memory needs a GPU, and torch finds none here")
    _watch_forks()


def version_of(tensor: torch.Tensor) -> int:
    """Counts the changes of a tensor in place; of one made in inference mode nobody counts them."""
    return -1 if tensor.is_inference() else tensor._version


def _overlapping(start: int, end: int) -> list[_Segment]:
    """Segments with a page in [start, end); under the lock."""
    return [s for s in _registry.segments if s.start < end and start < s.end]


def _in_place(tensor: torch.Tensor) -> PageLock | None:
    """The lock of a tensor's memory where it is; None if that is to be left as it is."""
    storage = tensor.untyped_storage()
    start, size = storage.data_ptr(), storage.nbytes()
    low, high = page_span(start, size)
    # Before any is added: what was let go of may be the very memory that is asked for.
    _settle()
    failure, lock = None, None
    with _registry.lock:
        near = _overlapping(low, high)
        covered = bool(near) and near[0].start <= low and high <= near[0].end
        segment = near[0] if covered else None
        here = covered or (not near and _driver.is_pinned(tensor))
        if not here and not near and host_pages.owns_pages(start, size):
            failure = _driver.register(low, high - low, read_only=False)
            if failure is None:
                segment, here = _Segment(low, high, 0, storage), True
                _registry.segments.append(segment)
        if here:
            if segment is not None:
                segment.owners += 1
            lock = PageLock(tensor, _Part(_registry, segment, storage))
    _settle()
    if failure is not None and not host_pages.is_shared(start):
        raise _refused(size, failure)
    return lock


def _on_shared_file(tensor: torch.Tensor) -> torch.Tensor | None:
    """The same tensor on a registered shared mapping of the file that its memory is of, or None."""
    storage = tensor.untyped_storage()
    start, size = storage.data_ptr(), storage.nbytes()
    file = host_pages.file_range(start, size)
    if file is None or tensor.is_conj() or tensor.is_neg():
        return None
    with _registry.mapping:
        for writable in (False, True):
            mapped = host_pages.map_file(file, writable)
            if mapped is None:
                continue
            memory, key = mapped
            known = _registry.files.get(key)
            if known is None:
                if _register(memory, read_only=not writable) is not None:
                    continue
                _registry.files[key] = known = memory
            # The file may be another by now, or the tensor have been written to.
            if not host_pages.same_bytes(start, ctypes.addressof(known), size):
                return None
            return host_pages.tensor_like(tensor, known, int(tensor.storage_offset()))
    return None


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy on pages of its own, registered."""
    size = max(1, tensor.numel() * tensor.element_size())
    memory = host_pages.new_pages(size)
    copy = host_pages.tensor_like(tensor, memory)
    copy.copy_(tensor.detach())
    failure = _register(memory, read_only=False)
    if failure is not None:
        raise _refused(size, failure)
    return copy


def _register(memory: Any, read_only: bool) -> str | None:
    """Registers memory of our own until it dies; what went wrong, or None."""
    low, high = page_span(ctypes.addressof(memory), ctypes.sizeof(memory))
    _settle()
    with _registry.lock:
        failure = _driver.register(low, high - low, read_only)
        if failure is None:
            segment = _Segment(low, high, 1, memory.pages)
            _registry.segments.append(segment)
            # The pages stay until they are no longer registered: the memory itself may go first.
            part = _Part(_registry, segment, memory.pages)
            weakref.finalize(memory, _let_go, part).atexit = False
    _settle()
    return failure


def _made(tensor: torch.Tensor, version: int | None = None, writable: bool = True) -> PageLock:
    """The lock of a tensor on memory that is registered as long as it lives."""
    lock = _in_place(tensor)
    assert lock is not None
    lock._version, lock.writable = version, writable
    return lock


def _refused(size: int, failure: str) -> RuntimeError:
    return RuntimeError(
        f"cannot page-lock {size} bytes: {failure}. The limit of locked memory (ulimit -l) is "
        f"{_limit()}; raise it (in a container: --ulimit memlock=-1), or keep graph and features "
        "in ordinary memory: mode cpu-cuda"
    )


def _limit() -> str:
    try:
        import resource
    except ImportError:  # not on this system
        return "unknown"
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return "not set" if soft == resource.RLIM_INFINITY else f"{soft} bytes"


def _let_go(part: _Part) -> None:
    _registry.let_go.append(part)
    _settle()


def _settle() -> None:
    """Undoes what was let go of.

    Never waits for the lock: whoever holds it, perhaps this very thread, comes here afterwards.
    """
    while _registry.let_go and _registry.lock.acquire(blocking=False):
        parts: list[_Part] = []
        try:
            while _registry.let_go:
                part = _registry.let_go.popleft()
                if part.registry is _registry:
                    parts.append(part)
            if parts:
                _undo(parts)
        except BaseException:
            _registry.let_go.extend(parts)  # for the next one who comes
            raise
        finally:
            _registry.lock.release()


def _undo(parts: list[_Part]) -> None:
    """Takes parts off the list as they are undone; under the lock."""
    # Kernels may still read it. Torch, too, would lend its memory anew at once.
    _driver.synchronize()
    while parts:
        part = parts.pop()
        segment = part.segment
        if segment is None:
            continue
        segment.owners -= 1
        if segment.owners == 0:
            _registry.segments.remove(segment)
            failure = _driver.unregister(segment.start)
            if failure is not None:
                size = segment.end - segment.start
                raise RuntimeError(f"cannot unlock {size} bytes of memory: {failure}")


def _watch_forks() -> None:
    global _forks_are_seen
    if not _forks_are_seen and hasattr(os, "register_at_fork"):
        _forks_are_seen = True
        os.register_at_fork(after_in_child=_forget_all)


def _forget_all() -> None:
    """In a forked process: registrations are the parent's, and the lock may have been held."""
    global _registry
    _registry = _Registry()
