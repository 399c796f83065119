"""FakeDriver: stands for CUDA where memory is page-locked, and is stricter than CUDA."""

from __future__ import annotations

import gc
import mmap
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hopline.pipes import page_lock
from hopline.pipes.page_lock import PAGE

__all__ = ["FakeDriver", "covered", "in_cudas_stead", "on_own_pages"]


def on_own_pages(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that no other memory shares a page with, which for malloc is a matter of luck."""
    size = -(-tensor.nbytes // PAGE) * PAGE
    flat = torch.frombuffer(mmap.mmap(-1, size), dtype=tensor.dtype)[: tensor.numel()]
    return flat.view(tensor.shape).copy_(tensor)


class FakeDriver:
    """Refuses to register a page twice; notices memory that is gone while it is registered.

    Attributes:
        ranges: `{address: size}` of what is registered.
        refuses: what `register` says to memory for which it is asked to; None for nothing.
        calls: what was asked of it, in order.
    """

    def __init__(self) -> None:
        self.ranges: dict[int, int] = {}
        self.read_only: set[int] = set()
        self.refuses = lambda address, size, read_only: None
        self.calls: list[str] = []
        self.own: set[int] = set()  # addresses of memory that "torch" has pinned

    def available(self) -> bool:
        return True

    def register(self, address: int, size: int, read_only: bool) -> str | None:
        assert address % PAGE == size % PAGE == 0 < size, "not whole pages"
        for low, length in self.ranges.items():
            assert address + size <= low or low + length <= address, "registered twice"
        refusal = self.refuses(address, size, read_only)
        if refusal is None:
            self.ranges[address] = size
            self.calls.append("register")
            if read_only:
                self.read_only.add(address)
        return refusal

    def unregister(self, address: int) -> str | None:
        assert self.calls[-1] != "register", "kernels may still read it"
        assert address in self.ranges, "not registered"
        with open("/proc/self/maps") as maps:
            spans = [line.split()[0].split("-") for line in maps]
        mapped = any(int(low, 16) <= address < int(high, 16) for low, high in spans)
        assert mapped, "the memory was freed first"
        del self.ranges[address]
        self.read_only.discard(address)
        self.calls.append("unregister")
        return None

    def synchronize(self) -> None:
        self.calls.append("synchronize")

    def is_pinned(self, tensor) -> bool:
        start = tensor.data_ptr()
        locked = any(low <= start < low + size for low, size in self.ranges.items())
        return locked or tensor.untyped_storage().data_ptr() in self.own


def covered(driver: FakeDriver, tensor) -> bool:
    """Whether every byte of a tensor's storage is registered."""
    at = tensor.untyped_storage().data_ptr()
    end = at + tensor.untyped_storage().nbytes()
    for low, size in sorted(driver.ranges.items()):
        if low <= at < low + size:
            at = low + size
    return at >= end


@contextmanager
def in_cudas_stead(monkeypatch) -> Iterator[FakeDriver]:
    """A fake driver for a test; in the end nothing may be registered."""
    gc.collect()
    fake = FakeDriver()
    monkeypatch.setattr(page_lock, "_driver", fake)
    monkeypatch.setattr(page_lock, "_registry", page_lock._Registry())
    yield fake
    gc.collect()
    page_lock._settle()
    assert not fake.ranges, "left registered"
    assert not page_lock._registry.segments
    assert not page_lock._registry.files
