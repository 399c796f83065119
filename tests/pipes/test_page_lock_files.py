"""page_lock of mapped files: one copy for all processes; and of the arrays of graphs."""

from __future__ import annotations

import os
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode

import hopline.pipes as hp
from hopline.pipes.npy import read_npy
from hopline.pipes.page_lock import page_lock
from hopline.pipes.residence import Residence
from tests.fake_driver import covered, in_cudas_stead


@pytest.fixture
def driver(monkeypatch):
    """A fake in CUDA's stead; in the end nothing may be registered."""
    with in_cudas_stead(monkeypatch) as fake:
        yield fake


def read_only(array):
    """A tensor of memory that must not be written to."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch tells so, once
        return torch.from_numpy(array)


@pytest.fixture
def file(tmp_path):
    """A file of int64[20_000, 3]."""
    np.save(tmp_path / "x.npy", np.arange(60_000).reshape(20_000, 3))
    return tmp_path / "x.npy"


def mappings_of(path):
    """How often a file is mapped, shared or privately."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    found = [line.split()[1][3] for line in lines if line.endswith(str(path))]
    return found.count("s"), found.count("p")


def test_a_mapped_file_is_locked_in_one_copy_for_all(driver, file):
    tensor = read_npy(file)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # e.g. of memory that is not to be written to
        lock = page_lock(tensor[7:])
    assert not lock.writable
    assert torch.equal(lock.tensor, tensor[7:])
    assert (lock.tensor.stride(), lock.tensor.storage_offset()) == ((3, 1), 21)
    assert covered(driver, lock.tensor)
    assert list(driver.read_only) == list(driver.ranges)
    assert mappings_of(file) == (1, 1)
    # What others write to the file is seen: the pages are the file's.
    with file.open("r+b") as opened:
        opened.seek(-8, os.SEEK_END)
        opened.write(np.int64(-5).tobytes())
    assert lock.tensor[-1, -1] == -5
    del lock
    assert not driver.ranges
    assert mappings_of(file) == (0, 1)


def test_the_same_file_is_registered_once(driver, file):
    first, second = read_npy(file), read_npy(file)
    opened = len(os.listdir("/proc/self/fd"))
    locks = [page_lock(first), page_lock(second), page_lock(first.view(-1)[5:]), page_lock(first)]
    assert len(driver.ranges) == 1
    assert len({lock.tensor.untyped_storage().data_ptr() for lock in locks}) == 1
    assert mappings_of(file) == (1, 2)
    while locks:
        locks.pop(0).release()
        assert len(driver.ranges) == bool(locks)
    assert mappings_of(file) == (0, 2)
    assert len(os.listdir("/proc/self/fd")) == opened


def test_what_is_not_in_the_file_is_copied(driver, file):
    """Written to, replaced, cut short, or gone."""
    tensor = read_npy(file)
    tensor[19_000, 1] = -1  # in this process alone
    lock = page_lock(tensor)
    assert lock.writable
    assert torch.equal(lock.tensor, tensor)
    assert covered(driver, lock.tensor)
    assert not driver.read_only & set(driver.ranges)
    assert mappings_of(file) == (0, 1)
    tensor = read_npy(file)
    expected = tensor.clone()
    for replace in (
        lambda new: np.save(new, np.zeros((20_000, 3), np.int64)),
        lambda new: new.write_bytes(b"short"),
        lambda new: os.mkfifo(new),
        lambda new: new.mkdir(),
    ):
        new = file.with_suffix(".new.npy")
        replace(new)
        file.unlink() if not file.is_dir() else file.rmdir()
        lock = page_lock(tensor)  # the file is gone
        assert lock.writable
        new.rename(file)
        lock = page_lock(tensor)
        assert lock.writable
        assert torch.equal(lock.tensor, expected)
        assert len(driver.ranges) == 1


def test_a_changed_tensor_of_a_file_is_noticed(driver, file):
    tensor = read_npy(file)
    lock = page_lock(tensor)
    tensor[5, 0] = 99
    assert not lock.is_current(tensor)
    assert lock.tensor[5, 0] == 15
    assert page_lock(tensor).tensor[5, 0] == 99


def test_a_file_mapped_read_only(driver, file):
    tensor = read_only(np.load(file, mmap_mode="r"))
    lock = page_lock(tensor)
    assert not lock.writable
    assert torch.equal(lock.tensor, tensor)
    assert set(driver.read_only) == set(driver.ranges)


def test_a_driver_that_does_not_lock_read_only_memory(driver, file):
    driver.refuses = lambda address, size, read_only: "not supported" if read_only else None
    tensor = read_npy(file)
    lock = page_lock(tensor)
    assert lock.writable
    assert torch.equal(lock.tensor, tensor)
    assert covered(driver, lock.tensor)
    assert mappings_of(file) == (0, 1)
    driver.refuses = lambda address, size, read_only: "not supported"
    with pytest.raises(RuntimeError, match="cannot page-lock 480000 bytes: not supported"):
        page_lock(tensor)


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no files in memory")
def test_files_in_memory_are_shared_by_any_driver(driver):
    driver.refuses = lambda address, size, read_only: "not supported" if read_only else None
    graph = hp.from_coo(torch.arange(9000) % 77, torch.arange(9000) % 99, 100)
    shared = hp.copy_to_shared_memory(graph, f"test-page-lock-{os.getpid()}")
    path = shared.path / "indices.npy"
    lock, other = page_lock(shared.indices), page_lock(read_npy(path))
    assert not lock.writable
    assert torch.equal(lock.tensor, graph.indices)
    assert lock.tensor.data_ptr() == other.tensor.data_ptr()
    assert mappings_of(path) == (1, 1)
    # Not so if they are another's: opened for reading alone, they are copied.
    del lock, other
    path.chmod(0o400)
    if os.geteuid() != 0:
        assert page_lock(shared.indices).writable
    assert mappings_of(path) == (0, 1)


def test_a_pinned_graph_in_files(driver, tmp_path, gpu):
    edges = torch.arange(9000)
    graph = hp.from_coo(edges % 77, edges % 99, 100, edge_attributes={"w": edges.float()})
    graph.save(tmp_path / "g")
    mapped = hp.FusedCSCSamplingGraph.load(tmp_path / "g").pin_memory_()
    assert len(driver.read_only) == len(driver.ranges) == 2
    array = mapped.residence.array
    there = array("indices", mapped.indices, gpu)
    assert torch.equal(there, graph.indices)
    assert there.data_ptr() != mapped.indices.data_ptr()
    assert array("indices", mapped.indices, gpu) is there
    del there
    mapped.indices[5] = 3  # in this process alone
    assert array("indices", mapped.indices, gpu)[5] == 3
    assert len(driver.read_only & set(driver.ranges)) == 1
    weights = mapped.residence.attribute(mapped, "edge", "w", None, gpu)
    assert torch.equal(weights, graph.edge_attributes["w"])
    assert covered(driver, weights)


def test_what_a_pinned_graph_has_on_the_gpu_is_read_there(driver, monkeypatch):
    graph = hp.from_coo(torch.arange(900) % 77, torch.arange(900) % 99, 100).pin_memory_()
    monkeypatch.setattr(Residence, "_in_use", lambda self, name, tensor: tensor)
    with FakeTensorMode():
        graph.edge_attributes = {"w": torch.ones(900, device="cuda:0")}
    weights = graph.edge_attributes["w"]
    registered = dict(driver.ranges)
    assert graph.residence.attribute(graph, "edge", "w", None, weights.device) is weights
    assert driver.ranges == registered


def test_threads_of_a_graph_share_a_lock(driver, gpu):
    graph = hp.from_coo(torch.arange(900) % 77, torch.arange(900) % 99, 100).pin_memory_()
    weights, found = torch.rand(900), []
    start = threading.Barrier(4)

    def ask():
        start.wait()
        found.append(graph.residence.array("w", weights, gpu))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(each is found[0] for each in found)
    assert covered(driver, found[0])
