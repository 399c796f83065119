"""Pages of host memory: whose they are, what file is mapped there, and new ones of our own.

What is registered with CUDA is registered by page. A copy to a GPU that begins on a registered page
and runs beyond what was registered fails, so pages are left alone that other arrays have a part of.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

__all__ = [
    "PAGE",
    "FileRange",
    "file_range",
    "is_own_memory",
    "is_shared",
    "map_file",
    "new_pages",
    "owns_pages",
    "page_span",
    "same_bytes",
    "tensor_like",
]

PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
# Blocks from here on glibc always maps on their own, unless it is told otherwise: the threshold,
# 128 KiB at first, rises with what is freed, but not above.
ALWAYS_MAPPED = 32 << 20
HUGE = 4 << 20  # bytes from which large pages pay
COMPARED = 64 << 20  # bytes that are compared at once
WORD = ctypes.sizeof(ctypes.c_size_t)
MAPPED = 2  # the flag of a block that glibc has mapped, in the word before it
FLAGS = 15
# On it the pages of a file are memory, which may be locked for writing without any harm.
IN_MEMORY = "/dev/shm/"


@dataclass(frozen=True, slots=True)
class _Mapping:
    """A line of /proc/self/maps."""

    start: int
    end: int
    permissions: str
    offset: int
    inode: str
    path: str

    @property
    def stays(self) -> bool:
        """Whether what is written here, if anything can be, does not reach the file."""
        return "w" not in self.permissions or "p" in self.permissions


@dataclass(frozen=True, slots=True)
class FileRange:
    """Bytes of a file that are mapped somewhere.

    Attributes:
        path: of the file, as it was when it was mapped.
        offset: of the first byte.
        size: number of bytes.
    """

    path: str
    offset: int
    size: int


def page_span(start: int, size: int) -> tuple[int, int]:
    """Addresses of the first page of some memory, and behind the last."""
    return start // PAGE * PAGE, -(-(start + size) // PAGE) * PAGE


def owns_pages(start: int, size: int) -> bool:
    """Whether memory has its pages for itself: nothing else in use lies on any of them.

    So it is for a whole mapping, and for a big block of malloc, which is one. Where that cannot be
    told (another allocator, another system), blocks of 32 MiB or more are taken to be alone.

    Args:
        start: address of a storage's memory.
        size: its bytes.
    """
    low, high = page_span(start, size)
    found = _mappings(low, high)
    if any(m.inode != "0" for m in found):  # shared memory, or a file
        alone = found[0].start == low and found[-1].end == high
        return alone and not any(m.stays for m in found)
    if (low, high) == (start, start + size) or _is_mapped_block(start, size):
        return True
    if size < ALWAYS_MAPPED or any(m.path == "[heap]" for m in found):
        return False
    return not _is_heap_block(start, size) and not _blocks_tell()


def file_range(start: int, size: int) -> FileRange | None:
    """What file is mapped at some memory, privately or read-only; None if there is none.

    Args:
        start: address of a storage's memory.
        size: its bytes.
    """
    found = _mappings(start, start + size)
    if not found or any(m.inode == "0" or not m.stays for m in found):
        return None
    first = found[0]
    for m in found:
        if (m.inode, m.path, m.start - m.offset) != (
            first.inode, first.path, first.start - first.offset,
        ):  # fmt: skip
            return None
    return FileRange(first.path, first.offset + start - first.start, size)


def is_own_memory(start: int, size: int) -> bool:
    """Whether memory is this process's own: of no file, not shared, and to be written to.

    Args:
        start: address of a storage's memory.
        size: its bytes.
    """
    found = _mappings(start, start + size)
    return bool(found) and all(m.inode == "0" and {*"rwp"} <= {*m.permissions} for m in found)


def is_shared(start: int) -> bool:
    """Whether an address is in shared memory, or in a file's."""
    return any(m.inode != "0" for m in _mappings(start, start + 1))


def map_file(file: FileRange, writable: bool = False) -> tuple[Any, tuple[int, ...]] | None:
    """Maps bytes of a file once more, shared with all who do.

    Args:
        file: which bytes.
        writable: as far as page tables go, for whom locks the pages; nobody may write there. Only
            for files in memory.

    Returns:
        The memory (see `tensor_like`), and what names these bytes of this file; None if the file is
        gone, shorter, or not to be opened like that.
    """
    if writable and not file.path.startswith(IN_MEMORY):
        return None
    flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_NONBLOCK  # it may have become a pipe
    try:
        descriptor = os.open(file.path, flags)
    except OSError:
        return None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return None
        first = file.offset - file.offset % mmap.ALLOCATIONGRANULARITY
        pages = mmap.mmap(
            descriptor,
            file.offset + file.size - first,
            flags=mmap.MAP_SHARED,
            prot=mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0),
            offset=first,
        )
    except (OSError, ValueError):
        return None
    finally:
        os.close(descriptor)
    _advise(pages, "MADV_WILLNEED")
    key = (found.st_dev, found.st_ino, file.offset, file.size, int(writable))
    return _memory(pages, file.offset - first, file.size), key


def new_pages(size: int) -> Any:
    """Uninitialised memory on pages of its own; see `tensor_like`.

    Args:
        size: bytes, above 0.
    """
    low, high = page_span(0, size)
    if hasattr(mmap, "MAP_PRIVATE"):
        pages = mmap.mmap(-1, high - low, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    else:  # not on this system
        pages = mmap.mmap(-1, high - low)
    if size >= HUGE:
        _advise(pages, "MADV_HUGEPAGE")
    return _memory(pages, 0, high - low)


def tensor_like(tensor: torch.Tensor, memory: Any, offset: int | None = None) -> torch.Tensor:
    """A tensor of the same dtype and shape on other memory, which lives as long as its storage.

    Args:
        tensor: dense, on the CPU.
        memory: what `new_pages` or `map_file` gave; long enough.
        offset: the new tensor begins at so many elements, and has the strides of the given one;
            None for a contiguous one from the beginning.
    """
    flat = torch.frombuffer(memory, dtype=torch.uint8)
    if offset is None:
        return flat[: tensor.numel() * tensor.element_size()].view(tensor.dtype).view(tensor.shape)
    storage = flat.untyped_storage()
    bare = torch.empty(0, dtype=tensor.dtype, device="cpu")
    return bare.set_(storage, offset, tensor.shape, tensor.stride())


def same_bytes(first: int, second: int, size: int) -> bool:
    """Whether memory at two addresses holds the same; no more is needed for it."""
    compare = ctypes.CDLL(None).memcmp  # holds no GIL
    compare.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    return all(
        compare(first + low, second + low, min(COMPARED, size - low)) == 0
        for low in range(0, size, COMPARED)
    )


def _memory(pages: mmap.mmap, offset: int, size: int) -> Any:
    """A buffer on some of the pages, at its attribute `pages`.

    It passes for writable, also where it must not be written to: torch would print a warning of
    others.
    """
    held = np.frombuffer(pages, np.uint8)
    memory: Any = (ctypes.c_ubyte * size).from_address(held.ctypes.data + offset)
    memory.pages = held
    return memory


def _advise(pages: mmap.mmap, how: str) -> None:
    advice = getattr(mmap, how, None)
    if advice is not None:
        with contextlib.suppress(OSError):
            pages.madvise(advice)


def _mappings(low: int, high: int) -> list[_Mapping]:
    """The mappings that [low, high) lies in, without a gap; none if that cannot be told."""
    found: list[_Mapping] = []
    at = low
    for mapping in _overlapping(low, high):
        if mapping.start > at:
            return []
        found.append(mapping)
        at = mapping.end
    return found if at >= high else []


def _overlapping(low: int, high: int) -> Iterator[_Mapping]:
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
            lines = maps.read().split("\n")
    except OSError:  # no such file: not on Linux
        return
    for line in lines:
        span, _, rest = line.partition(" ")
        start, _, end = span.partition("-")
        if rest and int(start, 16) < high and low < int(end, 16):
            permissions, offset, _, inode, *path = rest.split(maxsplit=4)
            name = path[0].replace("\\012", "\n") if path else ""
            yield _Mapping(int(start, 16), int(end, 16), permissions, int(offset, 16), inode, name)


def _words_before(start: int) -> tuple[int, int] | None:
    """What glibc writes before a block: where it begins, for one that is mapped; and its size."""
    found = _mappings(start - 2 * WORD, start)
    if not found or not all(m.permissions.startswith("r") for m in found):
        return None
    first, second = (ctypes.c_size_t * 2).from_address(start - 2 * WORD)
    return first, second


def _is_mapped_block(start: int, size: int) -> bool:
    """Whether memory is a block of malloc that was mapped on its own, as its header says."""
    words = _words_before(start)
    if words is None or words[1] & FLAGS != MAPPED:
        return False
    header = start - 2 * WORD
    low, high = header - (words[0] & ~FLAGS), header + (words[1] & ~FLAGS)
    if low % PAGE or high % PAGE or not low <= header < start + size <= high:
        return False
    found = _mappings(low, high)
    return bool(found) and all(m.inode == "0" for m in found)


def _is_heap_block(start: int, size: int) -> bool:
    """Whether memory is, by its header, a block of malloc among others."""
    words = _words_before(start)
    if words is None or words[1] & MAPPED:
        return False
    # Up to an eighth of a block may be unused.
    return size + WORD <= (words[1] & ~FLAGS) <= size + size // 4 + 2 * PAGE


@functools.cache
def _blocks_tell() -> bool:
    """Whether big blocks have the headers by which a block is told from a part of one."""
    blocks = (
        torch.from_numpy(np.empty(2 * ALWAYS_MAPPED, np.uint8)),
        torch.empty(2 * ALWAYS_MAPPED, dtype=torch.uint8, device="cpu"),
    )
    return all(_is_mapped_block(block.data_ptr(), block.nbytes) for block in blocks)
