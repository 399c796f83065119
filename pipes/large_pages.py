"""LargePages: moves an array to large pages of memory, bit by bit as it is read.

Random rows of a big array cost a walk through the page tables each, with pages of 4 KiB; in a
virtual machine two. With pages of 2 MiB the processor keeps all translations. NumPy asks for such
pages when it allocates; other allocators do not, and a page that is there stays until the kernel is
told to move it (MADV_COLLAPSE of Linux 6.1). That is a copy, so it is done in parts.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import threading
from pathlib import Path

import torch

from hopline.pipes.host_pages import PAGE, is_own_memory

__all__ = ["LargePages", "large_page_bytes"]

SETTINGS = Path("/sys/kernel/mm/transparent_hugepage")
SMALLEST = 64 << 20  # bytes of an array; translations of smaller ones are found in the caches
LARGEST_PAGE = 32 << 20  # where they are larger than this, an array would seldom fill one
SHARE = 8  # bytes read for one that is moved
FAILURES = 8  # in a row, after which no large pages are to be had
COLLAPSE = 25  # MADV_COLLAPSE, of which Python has no name
# Bits of an entry of /proc/self/pagemap.
PRESENT = 1 << 63
EXCLUSIVE = 1 << 56  # mapped by this process alone


class LargePages:
    """The memory of one tensor, on its way to large pages.

    Only private memory of this process is moved: never what is shared, mapped from a file,
    page-locked, or still shared with a process that was forked. Where the kernel cannot do it,
    or is set not to, nothing happens.

    Args:
        tensor: dense, on the CPU, not page-locked; its memory lives as long as this is used.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.start, self.size = tensor.data_ptr(), tensor.nbytes
        self._page = large_page_bytes() if self.size >= SMALLEST else 0
        self._lock = threading.Lock()
        self._next = self._end = self._owed = self._failed = 0
        if self._page and is_own_memory(self.start, self.size):
            self._next = -(-self.start // self._page) * self._page
            self._end = (self.start + self.size) // self._page * self._page

    @property
    def done(self) -> bool:
        """Whether nothing is left to move."""
        return self._next >= self._end

    def is_of(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor lies where this one's memory is."""
        return (self.start, self.size) == (tensor.data_ptr(), tensor.nbytes)

    def advance(self, used: int) -> None:
        """Moves an eighth as many bytes as have been read; threads do not wait for each other.

        Args:
            used: bytes that were read from the tensor since the last call.
        """
        if self.done or not self._lock.acquire(blocking=False):
            return
        try:
            self._owed += used // SHARE
            if self._owed < self._page:
                return
            with open("/proc/self/pagemap", "rb", buffering=0) as pages:
                while self._owed >= self._page and not self.done:
                    self._owed -= self._page
                    if _alone(pages.fileno(), self._next):
                        self._move()
                    self._next += self._page
        except OSError:  # cannot be told whose the pages are
            self._next = self._end
        finally:
            self._lock.release()

    def _move(self) -> None:
        if _madvise()(self._next, self._page, COLLAPSE) == 0:
            self._failed = 0
            return
        self._failed += 1
        if self._failed == FAILURES:
            self._next = self._end


@functools.cache
def large_page_bytes() -> int:
    """Size of the large pages that memory may be moved to; 0 where the system has or allows none.

    Linux would move memory even where large pages are switched off; here that is respected.
    """
    if sys.platform != "linux":
        return 0
    try:
        enabled = (SETTINGS / "enabled").read_text()
        size = int((SETTINGS / "hpage_pmd_size").read_text())
    except (OSError, ValueError):
        return 0
    return 0 if "[never]" in enabled or not PAGE < size <= LARGEST_PAGE else size


def _alone(pagemap: int, address: int) -> bool:
    """Whether the page at an address is in memory, and no other process has it."""
    entry = os.pread(pagemap, 8, address // PAGE * 8)
    wanted = PRESENT | EXCLUSIVE
    return int.from_bytes(entry, sys.byteorder) & wanted == wanted


@functools.cache
def _madvise() -> ctypes._NamedFuncPointer:
    function = ctypes.CDLL(None).madvise  # holds no GIL
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return function
