"""RowReader: rows of a file by number, with many requests in flight and none of the GIL.

The rows of a call are sorted by their place in the file. Rows in the same or in neighbouring blocks
of 4 KiB become one request, and a row that is asked for several times is read once. A few threads
share the requests; each of them is in one call of a kernel for hundreds of requests. Through the
page cache the system is also told of some requests in advance, which puts more of them in flight
than there are threads. The threads live as long as the call.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import weakref
from collections import deque
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hopline.pipes.features.buffers import empty_array
from hopline.pipes.kernels import disk
from hopline.pipes.usable_memory import usable_memory

__all__ = ["RowReader"]

LIMIT = 32 * disk.BLOCK  # bytes of one request of several rows
SLICE = 512  # requests in one call of the kernel: between calls, Ctrl-C and errors are seen
AHEAD = 16  # requests a thread that the system is told of in advance

# Threads, and requests that are worth the start of one.
THREADS, LEAST = 32, 8  # with one request in flight each
THREADS_AHEAD, LEAST_AHEAD = 4, 64  # with AHEAD of them

Array = np.ndarray[Any, Any]

# Systems without reads at an offset move the position of the file that all threads share.
_position = threading.Lock()


class _Plan(NamedTuple):
    """What a call reads, and where to."""

    ids: Array  # int64[n], sorted
    order: Array  # int64[n], the row of out that each id is for
    requests: Array  # int64[m + 1], the first row of each request, and n
    out: Array  # uint8[n * row_bytes]


class RowReader:
    """Reads rows of equal length from an open file; from several threads at once if need be.

    Args:
        path: the file; kept open, so what replaces it under its name is not seen.
        offset: its byte at which row 0 starts.
        row_bytes: bytes a row.
        direct: read past the page cache; None for where the file is larger than half of the
            machine's memory and its filesystem can.
        num_threads: the most that read for one call, the calling one included; all calls share
            num_threads - 1 others. None for 4 through the page cache, where each thread has several
            requests in flight, and 32 past it.

    Raises:
        ValueError: num_threads is not positive, or direct is something else.
        OSError: the file cannot be opened, or read past the page cache as asked for.
    """

    def __init__(
        self,
        path: Path,
        offset: int,
        row_bytes: int,
        *,
        direct: bool | None = None,
        num_threads: int | None = None,
    ) -> None:
        if num_threads is not None and (type(num_threads) is not int or num_threads < 1):
            raise ValueError(f"num_threads is {num_threads!r}; expected a positive int, or None")
        if direct not in (None, False, True):
            raise ValueError(f"direct is {direct!r}; expected True, False or None")
        self.path = path
        self._offset = offset
        self._row_bytes = row_bytes
        if direct is None:
            large = 2 * path.stat().st_size > usable_memory()
            self._descriptor, self.direct = _open(path, direct=large)
        else:
            self._descriptor, self.direct = _open(path, direct=direct)
            if direct and not self.direct:
                os.close(self._descriptor)
                raise OSError(
                    errno.EOPNOTSUPP,
                    "cannot be read past the page cache here; leave direct at None or False",
                    str(path),
                )
        weakref.finalize(self, os.close, self._descriptor).atexit = False
        self._ahead = AHEAD if disk.HAS_ADVICE and not self.direct else 0
        self.num_threads = num_threads or (THREADS_AHEAD if self._ahead else THREADS)
        self._set_slots()

    def _set_slots(self) -> None:
        # A thread takes one to run beside the threads that call. There is no lock, which a fork
        # might find taken: a deque's ends are safe to use from all threads.
        self._slots = deque(range(self.num_threads - 1))
        self._process = os.getpid()

    def read(self, ids: Array, out: Array) -> None:
        """Reads rows.

        Args:
            ids: integer[n], not negative, may repeat.
            out: uint8[n * row_bytes], out.

        Raises:
            OSError: the file cannot be read, or has become shorter.
        """
        if not len(ids) or not self._row_bytes:
            return
        order = np.argsort(ids)
        ids = ids[order].astype(np.int64, copy=False)
        requests = np.empty(len(ids) + 1, np.int64)
        count = int(disk.plan_requests(ids, self._row_bytes, self._offset, LIMIT, requests))
        self._share(_Plan(ids, order.astype(np.int64, copy=False), requests[: count + 1], out))

    def _share(self, plan: _Plan) -> None:
        """Reads all requests, with as many threads as are worth it and free."""
        if self._process != os.getpid():  # a fork: the threads that held slots are not here
            self._set_slots()
        count = len(plan.requests) - 1
        least = LEAST_AHEAD if self._ahead else LEAST
        slots: list[int] = []
        while len(slots) + 1 < min(self.num_threads, -(-count // least)):
            try:
                slots.append(self._slots.pop())
            except IndexError:
                break
        parts = len(slots) + 1
        errors: list[BaseException] = []  # the first one ends the work of all
        threads: list[threading.Thread] = []
        done = count // parts  # this thread's; those of the others follow
        try:
            for i in range(2, parts + 1):
                part = (done, count * i // parts)
                # No daemon: the end of the interpreter would meet it in the middle of something.
                thread = threading.Thread(
                    target=self._slotted,
                    args=(self._slots, slots[-1], plan, *part, _aligned(LIMIT), errors),
                    name="hopline-disk",
                    daemon=False,
                )
                try:
                    thread.start()
                except RuntimeError:  # no more threads: this one reads what is left
                    break
                threads.append(thread)
                slots.pop()
                done = part[1]
            scratch = _aligned(LIMIT)
            self._part(plan, 0, count // parts, scratch, errors)
            self._part(plan, done, count, scratch, errors)
            for thread in threads:
                thread.join()
        except BaseException:  # Ctrl-C
            errors.append(InterruptedError())
            raise
        finally:
            self._slots.extend(slots)
            for thread in threads:
                thread.join()
        if errors:
            # Kept in no variable or list, which its traceback would make a cycle of references.
            del errors[1:]
            raise errors.pop()

    def _slotted(self, free: deque[int], slot: int, *part: Any) -> None:
        """What a thread runs: its part, after which its slot is free."""
        try:
            self._part(*part)
        finally:
            free.append(slot)

    def _part(
        self, plan: _Plan, low: int, high: int, scratch: Array, errors: list[BaseException]
    ) -> None:
        """Reads the requests in [low, high), unless there is an error anywhere."""
        try:
            while low < high and not errors:
                until = min(low + SLICE, high)
                failed = self._call(plan, low, until, high, scratch)
                if failed >= 0:
                    self._one(plan, failed)  # which may go well: a signal had interrupted it
                    until = failed + 1
                low = until
        except BaseException as error:
            errors.append(error)

    def _call(self, plan: _Plan, low: int, high: int, end: int, scratch: Array) -> int:
        """Reads the requests in [low, high); -1, or the one that could not be read."""
        if not disk.HAS_PREAD:
            return low
        return int(
            disk.read_requests(
                self._descriptor,
                self._offset,
                self._row_bytes,
                plan.ids,
                plan.order,
                plan.requests,
                low,
                high,
                end,
                disk.BLOCK if self.direct else 1,
                self._ahead,
                os.POSIX_FADV_WILLNEED if self._ahead else 0,
                scratch,
                plan.out,
            )
        )

    def _one(self, plan: _Plan, request: int) -> None:
        """Reads one request by Python's own calls, which tell what is wrong."""
        low, high = plan.requests[request : request + 2].tolist()
        ids, size = plan.ids[low:high], self._row_bytes
        start, stop = self._offset + int(ids[0]) * size, self._offset + (int(ids[-1]) + 1) * size
        align = disk.BLOCK if self.direct else 1
        at = start // align * align
        scratch = _aligned(-(-(stop - at) // align) * align)
        got = 0
        while at + got < stop:
            try:
                n = _read_at(self._descriptor, scratch.data[got:], at + got)
            except OSError as error:
                message = f"{error.strerror}, reading row {self._row_at(ids, at + got)}"
                raise OSError(error.errno, message, str(self.path)) from error
            if n <= 0 or (n % align and at + got + n < stop):
                row = self._row_at(ids, at + got + n)
                message = f"ends before the end of row {row}; it was cut short while in use"
                raise OSError(errno.EIO, message, str(self.path))
            got += n
        rows = plan.out.reshape(-1, size)
        for row, target in zip(ids.tolist(), plan.order[low:high].tolist(), strict=True):
            begin = self._offset + row * size - at
            rows[target] = scratch[begin : begin + size]

    def _row_at(self, ids: Array, position: int) -> int:
        """The first of the rows that ends behind the position in the file."""
        return int(ids[np.searchsorted(ids, (position - self._offset) // self._row_bytes)])


def _open(path: Path, *, direct: bool) -> tuple[int, bool]:
    """A descriptor, and whether it reads past the page cache; not all filesystems can."""
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    if direct and hasattr(os, "O_DIRECT"):
        try:
            descriptor = os.open(path, flags | os.O_DIRECT)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
        else:
            try:
                # Some filesystems open the file, and refuse to read it.
                _read_at(descriptor, _aligned(disk.BLOCK).data, 0)
                return descriptor, True
            except OSError:
                os.close(descriptor)
    descriptor = os.open(path, flags)
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):  # it is but advice
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead
    return descriptor, False


def _aligned(size: int) -> Array:
    """uint8[size] that starts at a multiple of the block."""
    memory = empty_array(size + disk.BLOCK, np.uint8)
    skip = -memory.ctypes.data % disk.BLOCK
    return memory[skip : skip + size]


def _read_at(descriptor: int, buffer: memoryview, offset: int) -> int:
    """Reads into the buffer; the number of bytes, fewer than it has room for at times."""
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [buffer], offset)
    if hasattr(os, "pread"):
        data = os.pread(descriptor, len(buffer), offset)
    else:
        with _position:
            os.lseek(descriptor, offset, os.SEEK_SET)
            data = os.read(descriptor, len(buffer))
    buffer[: len(data)] = data
    return len(data)
