"""LargePages: what is moved, how much at a time, and what is left alone."""

from __future__ import annotations

import mmap
import os
import threading

import numpy as np
import pytest
import torch

import hopline.pipes as hp
from hopline.pipes import large_pages as module
from hopline.pipes.host_pages import is_own_memory, new_pages, tensor_like
from hopline.pipes.large_pages import FAILURES, SHARE, LargePages, large_page_bytes
from hopline.pipes.npy import read_npy

MIB = 1 << 20
PAGE = 2 * MIB
ALL = 1 << 40  # bytes read, enough to move anything

linux = pytest.mark.skipif(not os.path.exists("/proc/self/pagemap"), reason="needs Linux")


@pytest.fixture
def moved(monkeypatch):
    """Addresses that the kernel is asked to move; it says yes."""
    asked = []
    monkeypatch.setattr(module, "SMALLEST", 4 * MIB)
    monkeypatch.setattr(module, "large_page_bytes", lambda: PAGE)
    monkeypatch.setattr(
        module, "_madvise", lambda: lambda start, size, how: asked.append((start, size, how)) or 0
    )
    return asked


def filled(size=16 * MIB):
    return torch.from_numpy(np.ones(size, np.uint8))


@linux
def test_whole_pages_are_moved_in_their_order_an_eighth_of_what_was_read(moved):
    tensor = filled()
    pages = LargePages(tensor)
    pages.advance(SHARE * PAGE - SHARE)
    assert moved == []
    pages.advance(SHARE)
    pages.advance(2 * SHARE * PAGE)
    assert len(moved) == 3
    assert not pages.done
    pages.advance(ALL)
    assert pages.done
    first = -(-tensor.data_ptr() // PAGE) * PAGE
    count = (tensor.data_ptr() + tensor.nbytes - first) // PAGE
    assert count >= 7
    assert moved == [(first + k * PAGE, PAGE, module.COLLAPSE) for k in range(count)]
    pages.advance(ALL)
    assert len(moved) == count


def test_small_tensors_stay(moved):
    assert LargePages(filled(4 * MIB - 1)).done


@linux
def test_memory_that_others_have_stays(moved, tmp_path):
    np.save(tmp_path / "x.npy", np.ones(16 * MIB, np.uint8))
    shared = filled().share_memory_()
    anonymous = np.frombuffer(mmap.mmap(-1, 16 * MIB), np.uint8)  # shared with forks
    for tensor in (
        read_npy(tmp_path / "x.npy"),
        torch.from_numpy(np.load(tmp_path / "x.npy", mmap_mode="r+")),
        shared,
        torch.from_numpy(anonymous),
    ):
        assert not is_own_memory(tensor.data_ptr(), tensor.nbytes)
        assert LargePages(tensor).done
    assert is_own_memory(*(filled().data_ptr(), 1))


@linux
def test_memory_shared_with_a_fork_stays_until_that_has_ended(moved):
    tensor = filled()
    read_end, write_end = os.pipe()
    child = os.fork()
    if not child:
        os.close(write_end)
        os.read(read_end, 1)
        os._exit(0)
    try:
        pages = LargePages(tensor)
        pages.advance(ALL)
        assert pages.done
        assert moved == []
    finally:
        os.close(read_end)
        os.close(write_end)
        os.waitpid(child, 0)
    LargePages(tensor).advance(ALL)
    assert len(moved) >= 7


@linux
def test_untouched_memory_stays_untouched(moved):
    size = 16 * MIB
    tensor = tensor_like(torch.empty(0, dtype=torch.uint8).expand(0), new_pages(size))
    tensor = tensor.set_(tensor.untyped_storage(), 0, (size,))
    pages = LargePages(tensor)
    pages.advance(ALL)
    assert pages.done
    assert moved == []


@linux
def test_a_kernel_that_cannot_is_asked_a_few_times(monkeypatch, moved):
    monkeypatch.setattr(
        module, "_madvise", lambda: lambda start, size, how: moved.append(start) or -1
    )
    tensor = filled(64 * MIB)
    pages = LargePages(tensor)
    pages.advance(ALL)
    assert pages.done
    assert len(moved) == FAILURES


def test_without_a_page_map_nothing_is_moved(monkeypatch, moved):
    tensor = filled()
    pages = LargePages(tensor)
    monkeypatch.setattr("builtins.open", lambda *_, **__: (_ for _ in ()).throw(OSError("no")))
    pages.advance(ALL)
    monkeypatch.undo()
    assert pages.done
    assert moved == []


@pytest.mark.parametrize(
    ("enabled", "size", "expected"),
    [
        ("always [madvise] never", "2097152", PAGE),
        ("[always] madvise never", "2097152", PAGE),
        ("always madvise [never]", "2097152", 0),
        ("always [madvise] never", "536870912", 0),
        ("always [madvise] never", "what", 0),
        (None, None, 0),
    ],
)
def test_the_systems_settings(monkeypatch, tmp_path, enabled, size, expected):
    if enabled is not None:
        (tmp_path / "enabled").write_text(enabled)
        (tmp_path / "hpage_pmd_size").write_text(size)
    monkeypatch.setattr(module, "SETTINGS", tmp_path)
    monkeypatch.setattr(module.sys, "platform", "linux")
    large_page_bytes.cache_clear()
    assert large_page_bytes() == expected
    monkeypatch.setattr(module.sys, "platform", "darwin")
    large_page_bytes.cache_clear()
    assert large_page_bytes() == 0
    large_page_bytes.cache_clear()


def test_rows_stay_right_while_they_are_moved(monkeypatch):
    """By the kernel itself, under threads that read them."""
    monkeypatch.setattr(module, "SMALLEST", 4 * MIB)
    rows = torch.arange(60_000, dtype=torch.int32).unsqueeze(1).expand(-1, 100).clone()
    feature = hp.TorchBasedFeature(rows)
    wrong = []

    def read(seed):
        generator = torch.Generator().manual_seed(seed)
        for _ in range(60):
            ids = torch.randint(len(rows), (20_000,), generator=generator)
            got = feature.read(ids)
            if not torch.equal(got, ids.int().unsqueeze(1).expand(-1, 100)):
                wrong.append(seed)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert feature._large_pages.done
    assert torch.equal(rows[:, 7], torch.arange(60_000, dtype=torch.int32))


@linux
def test_a_feature_moves_the_tensor_it_has_now(moved):
    rows = torch.from_numpy(np.ones((16, MIB), np.uint8))
    feature = hp.TorchBasedFeature(rows)
    ids = torch.arange(16)
    feature.read(ids)
    assert len(moved) == 1
    assert feature.__getstate__()["_large_pages"] is None
    new = torch.from_numpy(np.full((16, MIB), 2, np.uint8))
    feature.update(new)
    moved.clear()
    assert torch.equal(feature.read(ids), new)
    start = feature._tensor.data_ptr()
    assert [start <= place < start + PAGE for place, _, _ in moved] == [True]
