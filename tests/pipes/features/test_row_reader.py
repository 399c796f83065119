"""Reads from disk: rows as requests, threads, errors, and what the page cache is left with."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
import os
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hopline.pipes as hp
from hopline.pipes.features import row_reader
from hopline.pipes.features.row_reader import RowReader
from hopline.pipes.kernels import disk
from hopline.pipes.npy import read_npy
from tests.pipes.features.test_tensor import rows
from tests.stage_checks import assert_same

BLOCK = disk.BLOCK


@pytest.fixture(params=["through the page cache", "past the page cache"])
def direct(request, tmp_path):
    """Both ways to read, where the filesystem of temporary files has both."""
    past = request.param.startswith("past")
    if past:
        (tmp_path / "probe").write_bytes(bytes(BLOCK))
        descriptor, past_it = row_reader._open(tmp_path / "probe", direct=True)
        os.close(descriptor)
        if not past_it:
            pytest.skip(f"{tmp_path} is on a filesystem that cannot be read past the page cache")
    return past


def save(path, count=20_000, width=64):
    """Rows of `width` bytes, and the tensor."""
    tensor = rows(count, (width,), torch.uint8)
    np.save(path, tensor.numpy())
    return tensor


def many(count, number=5000, seed=0):
    return torch.randint(count, (number,), generator=torch.Generator().manual_seed(seed))


def apart(count=20_000, width=512):
    """Ids, in no order, of which each is a request of its own."""
    ids = torch.arange(0, count, -(-3 * BLOCK // width))
    return ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(1))]


@pytest.fixture
def eager(monkeypatch):
    """Threads are started even for few requests."""
    monkeypatch.setattr(row_reader, "LEAST", 1)
    monkeypatch.setattr(row_reader, "LEAST_AHEAD", 1)


def disk_threads():
    return [t for t in threading.enumerate() if t.name == "hopline-disk"]


# ---------------------------------------------------------------------------------------------
# Rows


@pytest.mark.parametrize("num_threads", [1, 2, 7])
@pytest.mark.parametrize("width", [1, 24, 700, BLOCK, 5000, 3 * row_reader.LIMIT + 5])
def test_rows_of_all_lengths(tmp_path, direct, eager, width, num_threads):
    count = max(20, 2_000_000 // width // 4)
    tensor = save(tmp_path / "x.npy", count, width)
    feature = hp.DiskBasedFeature(tmp_path / "x.npy", direct=direct, num_threads=num_threads)
    assert (feature.direct, feature.num_threads) == (direct, num_threads)
    for ids in (
        many(count, 300),
        torch.arange(count)[-500:].flip(0),
        torch.tensor([count - 1, 0, 0, count - 1, count - 1]),
        torch.tensor([count - 1], dtype=torch.int32),
    ):
        assert_same(feature.read(ids), tensor[ids.long()])
    assert_same(feature.read(), tensor)
    assert_same(feature.read_into_memory().read(), tensor)


def test_rows_are_read_in_pieces_when_all_are_wanted(tmp_path, direct, monkeypatch):
    monkeypatch.setattr("hopline.pipes.features.disk.PIECE", 300)
    tensor = save(tmp_path / "x.npy", 901, 40)
    assert_same(hp.DiskBasedFeature(tmp_path / "x.npy", direct=direct).read(), tensor)


@given(data=st.data())
def test_any_read_equals_the_mapped_one(tmp_path_factory, data):
    width, count = data.draw(st.integers(1, 3000)), data.draw(st.integers(1, 300))
    ids = data.draw(st.lists(st.integers(0, count - 1), max_size=300))
    limit = BLOCK * data.draw(st.integers(1, 4))
    path = tmp_path_factory.mktemp("rows") / "x.npy"
    save(path, count, width)
    feature = hp.DiskBasedFeature(path, num_threads=data.draw(st.integers(1, 4)))
    ids = torch.tensor(ids, dtype=data.draw(st.sampled_from([torch.int32, torch.int64])))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_reader, "LIMIT", limit)  # the longer rows go piece by piece
        patch.setattr(row_reader, "LEAST_AHEAD", 1)
        patch.setattr(row_reader, "SLICE", data.draw(st.integers(1, 5)))
        got = feature.read(ids)
    assert_same(got, read_npy(path)[ids.long()])


@given(
    ids=st.lists(st.integers(0, 40) | st.integers(0, 4000), min_size=1, max_size=80),
    width=st.integers(1, 400) | st.integers(1, 40_000),
    offset=st.sampled_from([0, 64, 128, 4096, 5000]),
    blocks=st.integers(1, 8),
)
def test_requests_are_of_neighbours_and_never_longer_than_the_limit(ids, width, offset, blocks):
    ids = np.sort(np.array(ids, np.int64))
    requests = np.empty(len(ids) + 1, np.int64)
    count = disk.plan_requests(ids, width, offset, blocks * BLOCK, requests)
    # In blocks: the first of each row, and the one after its last.
    first = (offset + ids * width) // BLOCK
    after = -(-(offset + (ids + 1) * width) // BLOCK)
    # The twin: a row joins the request before it if it may.
    expected, begin = [0], first[0]
    for i in range(1, len(ids)):
        joins = first[i] <= after[i - 1] and after[i] - begin <= blocks
        if ids[i] != ids[i - 1] and not joins:
            expected.append(i)
            begin = first[i]
    assert requests[: count + 1].tolist() == [*expected, len(ids)]


def count_reads(monkeypatch):
    """Bytes of each read from now on, which Python makes."""
    sizes, real = [], row_reader._read_at
    monkeypatch.setattr(disk, "HAS_PREAD", False)

    def counted(descriptor, buffer, offset):
        sizes.append((offset, len(buffer)))
        return real(descriptor, buffer, offset)

    monkeypatch.setattr(row_reader, "_read_at", counted)
    return sizes


def test_repeated_rows_and_rows_of_one_block_are_one_request(tmp_path, direct, monkeypatch):
    tensor = save(tmp_path / "x.npy", 10_000, 64)
    feature = hp.DiskBasedFeature(tmp_path / "x.npy", direct=direct)
    sizes = count_reads(monkeypatch)
    ids = torch.tensor([9000, 5, 5, 9000, 7, 6, 60, 5])
    assert_same(feature.read(ids), tensor[ids])
    assert len(sizes) == 2
    assert all(size <= 2 * BLOCK for _, size in sizes)
    sizes.clear()
    assert_same(feature.read(many(10_000, 50_000)), tensor[many(10_000, 50_000)])
    assert sum(size for _, size in sizes) <= 10_000 * 64 + BLOCK * (1 + len(sizes))
    tensor = save(tmp_path / "long.npy", 2, 2 * row_reader.LIMIT)
    feature = hp.DiskBasedFeature(tmp_path / "long.npy", direct=direct)
    sizes.clear()
    ids = torch.tensor([1, 1, 0, 1])
    assert_same(feature.read(ids), tensor[ids])
    assert len(sizes) == 2


@pytest.mark.parametrize("missing", [["preadv"], ["preadv", "pread"]])
def test_systems_without_the_fast_calls(tmp_path, monkeypatch, missing):
    tensor = save(tmp_path / "x.npy", 3000, 300)
    monkeypatch.setattr(disk, "HAS_PREAD", False)
    monkeypatch.setattr(disk, "HAS_ADVICE", False)
    for name in [*missing, "O_DIRECT", "posix_fadvise"]:
        monkeypatch.delattr(os, name)
    feature = hp.DiskBasedFeature(tmp_path / "x.npy")
    assert feature.num_threads == 32
    assert_same(feature.read(many(3000)), tensor[many(3000)])


def test_what_replaces_the_file_is_not_seen(tmp_path):
    tensor = save(tmp_path / "x.npy", 100)
    feature = hp.DiskBasedFeature(tmp_path / "x.npy")
    save(tmp_path / "y.npy", 50, 8)
    (tmp_path / "y.npy").replace(tmp_path / "x.npy")
    assert_same(feature.read(), tensor)
    assert hp.DiskBasedFeature(tmp_path / "x.npy").count() == 50


# ---------------------------------------------------------------------------------------------
# Settings


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_threads": 0}, "num_threads is 0; expected a positive int"),
        ({"num_threads": 2.0}, r"num_threads is 2\.0"),
        ({"direct": "yes"}, "direct is 'yes'; expected True, False or None"),
    ],
)
def test_bad_settings(tmp_path, settings, words):
    save(tmp_path / "x.npy", 3)
    with pytest.raises(ValueError, match=words):
        hp.DiskBasedFeature(tmp_path / "x.npy", **settings)


@pytest.mark.parametrize("refuses", ["to open", "to read"])
def test_filesystems_that_cannot_be_read_past_the_page_cache(tmp_path, monkeypatch, refuses):
    tensor = save(tmp_path / "x.npy", 3)
    if refuses == "to open":
        monkeypatch.delattr(os, "O_DIRECT", raising=False)
    else:
        monkeypatch.setattr(os, "O_DIRECT", os.O_WRONLY, raising=False)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match=r"cannot be read past the page cache here; .*x\.npy"):
        hp.DiskBasedFeature(tmp_path / "x.npy", direct=True)
    assert len(os.listdir("/proc/self/fd")) == before
    monkeypatch.setattr(row_reader, "usable_memory", lambda: 1)
    feature = hp.DiskBasedFeature(tmp_path / "x.npy")
    assert not feature.direct
    assert_same(feature.read(), tensor)


def test_left_to_itself_only_a_large_file_is_read_past_the_page_cache(
    tmp_path, direct, monkeypatch
):
    save(tmp_path / "x.npy", 1000)
    size = (tmp_path / "x.npy").stat().st_size
    monkeypatch.setattr(row_reader, "usable_memory", lambda: 2 * size - direct)
    feature = hp.DiskBasedFeature(tmp_path / "x.npy")
    assert (feature.direct, feature.num_threads) == (direct, 32 if direct else 4)


# ---------------------------------------------------------------------------------------------
# The page cache


def cached_pages(path):
    with path.open("rb") as file:
        pages = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    array = np.frombuffer(pages, np.uint8)
    state = np.zeros(-(-len(array) // mmap.PAGESIZE), np.uint8)
    address, length = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(len(array))
    assert ctypes.CDLL(None).mincore(address, length, ctypes.c_void_p(state.ctypes.data)) == 0
    return int((state & 1).sum())


@pytest.mark.parametrize(("native", "ahead"), [(True, row_reader.AHEAD), (True, 0), (False, 0)])
def test_the_page_cache_keeps_what_was_asked_for_at_most(
    tmp_path, direct, native, ahead, monkeypatch
):
    monkeypatch.setattr(disk, "HAS_PREAD", native)
    path = tmp_path / "x.npy"
    tensor = save(path, 100_000, 256)
    feature = hp.DiskBasedFeature(path, direct=direct)
    feature._reader._ahead = 0 if direct else ahead
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    if cached_pages(path):
        pytest.skip(f"{tmp_path} is in memory, so there is nothing to drop")
    # A read of the first page looks like the beginning of the whole file to read-ahead.
    ids = torch.cat([torch.tensor([0]), many(100_000, 100)])
    assert_same(feature.read(ids), tensor[ids])
    start = 128 + 256 * ids
    wanted = torch.cat([start, start + 255]).div(mmap.PAGESIZE, rounding_mode="floor").unique()
    assert cached_pages(path) <= (0 if direct else len(wanted))


# ---------------------------------------------------------------------------------------------
# Errors


@pytest.mark.parametrize("native", [True, False])
def test_a_file_that_is_cut_short_while_in_use(tmp_path, direct, native, monkeypatch):
    monkeypatch.setattr(disk, "HAS_PREAD", native)
    path = tmp_path / "x.npy"
    tensor = save(path, 20_000, 100)
    feature = hp.DiskBasedFeature(path, direct=direct)
    os.truncate(path, 128 + 15_000 * 100 + 99)
    words = r"ends before the end of row 15000; it was cut short while in use: '.*x\.npy'"
    for ids in ([3, 15_000], [15_000, 19_999, 2], list(range(14_000, 15_001))):
        with pytest.raises(OSError, match=words):
            feature.read(torch.tensor(ids))
    for read in (feature.read, feature.read_into_memory, lambda: feature.read(many(20_000))):
        with pytest.raises(OSError, match="cut short while in use"):
            read()
    ids = many(15_000)
    assert_same(feature.read(ids), tensor[ids])
    os.truncate(path, 0)
    with pytest.raises(OSError, match="before the end of row 7;"):
        feature.read(torch.tensor([8, 7]))


def test_a_long_row_that_is_cut_short(tmp_path, direct):
    path = tmp_path / "x.npy"
    width = 3 * row_reader.LIMIT
    save(path, 3, width)
    feature = hp.DiskBasedFeature(path, direct=direct)
    os.truncate(path, 128 + 2 * width - 1)
    with pytest.raises(OSError, match="before the end of row 1;"):
        feature.read(torch.tensor([1, 1, 0]))


def test_an_error_of_the_system_names_file_and_row(tmp_path):
    save(tmp_path / "x.npy", 20_000, 100)
    feature = hp.DiskBasedFeature(tmp_path / "x.npy", direct=False)
    os.dup2(os.open(tmp_path, os.O_RDONLY), feature._reader._descriptor)  # what refuses to be read
    for ids in (torch.tensor([7, 5]), torch.arange(5, 20_000, 100)):
        with pytest.raises(IsADirectoryError, match=r"reading row \d+: '.*x\.npy'") as caught:
            feature.read(ids)
        assert caught.value.filename == str(tmp_path / "x.npy")
    assert not disk_threads()
    assert len(feature._reader._slots) == feature.num_threads - 1


def test_a_request_that_was_interrupted_is_read_again(tmp_path, direct, monkeypatch):
    tensor = save(tmp_path / "x.npy")
    feature = hp.DiskBasedFeature(tmp_path / "x.npy", direct=direct)
    real, seen = RowReader._call, set()

    def interrupted(self, plan, low, high, end, scratch):
        if high - low > 3 and low not in seen:
            seen.add(low)
            failed = real(self, plan, low, low + 2, end, scratch)
            assert failed == -1
            return low + 2
        return real(self, plan, low, high, end, scratch)

    monkeypatch.setattr(RowReader, "_call", interrupted)
    assert_same(feature.read(many(20_000)), tensor[many(20_000)])
    assert seen


def test_errors_leave_no_cycle_of_references(tmp_path):
    save(tmp_path / "x.npy")
    feature = hp.DiskBasedFeature(tmp_path / "x.npy")
    os.truncate(tmp_path / "x.npy", 2000)
    gc.collect()
    gc.disable()
    try:
        before = len(os.listdir("/proc/self/fd"))
        with contextlib.suppress(OSError):
            feature.read()
        del feature
        assert len(os.listdir("/proc/self/fd")) == before - 1
    finally:
        gc.enable()


# ---------------------------------------------------------------------------------------------
# Threads


def test_the_kernels_hold_no_gil():
    for kernel in (disk.plan_requests, disk.read_requests):
        assert kernel.targetoptions["nogil"]


def test_all_threads_work_and_end_with_the_call(tmp_path, direct, eager, monkeypatch):
    tensor = save(tmp_path / "x.npy", 20_000, 512)
    feature = hp.DiskBasedFeature(tmp_path / "x.npy", direct=direct, num_threads=5)
    real, names = RowReader._part, []

    def watched(self, *part):
        names.append(threading.current_thread().name)
        real(self, *part)

    monkeypatch.setattr(RowReader, "_part", watched)
    assert_same(feature.read(apart()), tensor[apart()])
    assert names.count("hopline-disk") == 4
    assert not disk_threads()


def test_many_callers_share_the_threads(tmp_path, direct, eager, monkeypatch):
    tensor = save(tmp_path / "x.npy", 20_000, 512)
    feature = hp.DiskBasedFeature(tmp_path / "x.npy", direct=direct, num_threads=4)
    real, most, wrong = RowReader._part, [], []

    def watched(self, *part):
        most.append(len(disk_threads()))
        real(self, *part)

    def call(seed):
        for i in range(5):
            ids = (apart() + 10 * seed + i) % 20_000
            if not torch.equal(feature.read(ids), tensor[ids]):
                wrong.append(seed)

    monkeypatch.setattr(RowReader, "_part", watched)
    callers = [threading.Thread(target=call, args=(seed,)) for seed in range(6)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong
    # A thread that has given its slot back may be on its way out yet.
    assert 1 < max(most) <= 3 + len(callers)
    assert sorted(feature._reader._slots) == [0, 1, 2]


def test_a_system_without_another_thread(tmp_path, eager, monkeypatch):
    tensor = save(tmp_path / "x.npy")
    feature = hp.DiskBasedFeature(tmp_path / "x.npy", num_threads=8)
    real, started = threading.Thread.start, []

    def refuse(thread):
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert_same(feature.read(apart(width=64)), tensor[apart(width=64)])
    assert len(started) == 2
    assert len(feature._reader._slots) == 7


@pytest.mark.parametrize("where", ["MainThread", "hopline-disk"])
def test_ctrl_c_ends_all_threads(tmp_path, eager, monkeypatch, where):
    save(tmp_path / "x.npy", 20_000, 512)
    feature = hp.DiskBasedFeature(tmp_path / "x.npy", num_threads=4)
    real, calls = RowReader._call, []

    def call(self, *arguments):
        calls.append(arguments)
        if threading.current_thread().name == where and len(calls) > 4:
            raise KeyboardInterrupt
        time.sleep(0.001)
        return real(self, *arguments)

    monkeypatch.setattr(row_reader, "SLICE", 2)
    monkeypatch.setattr(RowReader, "_call", call)
    with pytest.raises(KeyboardInterrupt):
        feature.read(apart())
    assert not disk_threads()
    assert len(calls) < 100  # of more than 400
    assert len(feature._reader._slots) == 3
    monkeypatch.undo()
    assert len(feature.read(many(20_000))) == 5000


def test_ctrl_c_while_waiting_ends_all_threads(tmp_path, eager, monkeypatch):
    save(tmp_path / "x.npy", 20_000, 512)
    feature = hp.DiskBasedFeature(tmp_path / "x.npy", num_threads=2)
    join, call, joins, calls = threading.Thread.join, RowReader._call, [], []

    def interrupted(thread, timeout=None):
        joins.append(thread)
        if len(joins) == 1:
            raise KeyboardInterrupt
        join(thread, timeout)

    def slow(self, *arguments):
        if threading.current_thread().name == "hopline-disk":
            calls.append(arguments)
            time.sleep(0.01)
        return call(self, *arguments)

    monkeypatch.setattr(row_reader, "SLICE", 1)
    monkeypatch.setattr(RowReader, "_call", slow)
    monkeypatch.setattr(threading.Thread, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        feature.read(apart())
    assert not disk_threads()
    assert len(calls) < 400  # of more than 400
    assert len(feature._reader._slots) == 1


def test_d20_a_loader_reads_from_disk_with_any_number_of_workers_and_no_io_uring(tmp_path):
    save(tmp_path / "x.npy", 5000, 256)
    store = hp.BasicFeatureStore({("node", None, "x"): hp.DiskBasedFeature(tmp_path / "x.npy")})
    graph = hp.fused_csc_sampling_graph(
        torch.arange(0, 25_001, 5), many(5000, 25_000).to(torch.int32)
    )
    items = hp.ItemSampler(hp.ItemSet((torch.arange(5000),), names=("seeds",)), 500, seed=1)
    chain = items.sample_neighbor(graph, [3, 3]).fetch_feature(store, ["x"])
    expected = [minibatch.node_features["x"] for minibatch in hp.DataLoader(chain)]
    for workers in (2, 4):
        with hp.DataLoader(chain, num_workers=workers) as loader:
            for minibatch, wanted in zip(loader, expected, strict=True):
                assert_same(minibatch.node_features["x"], wanted)


def run(script, path):
    script = textwrap.dedent(script)
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_fork_reads_with_threads_of_its_own(tmp_path):
    save(tmp_path / "x.npy")
    run(
        """
        import os, sys, torch, hopline.pipes as hp
        torch.set_num_threads(1)
        feature = hp.DiskBasedFeature(sys.argv[1])
        ids = torch.arange(0, 20_000, 70)
        before = feature.read(ids)
        feature._reader._slots.clear()  # as if all threads were at work when it forks
        pid = os.fork()
        if not pid:
            same = torch.equal(feature.read(ids), before)
            os._exit(0 if same and len(feature._reader._slots) == 3 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert torch.equal(feature.read(ids), before)
        """,
        tmp_path / "x.npy",
    )


def test_the_interpreter_exits_while_rows_are_read(tmp_path):
    save(tmp_path / "x.npy", 50_000, 256)
    run(
        """
        import sys, torch, hopline.pipes as hp
        feature = hp.DiskBasedFeature(sys.argv[1])
        store = hp.BasicFeatureStore({("node", None, "x"): feature})
        graph = hp.fused_csc_sampling_graph(
            torch.arange(50_001), torch.arange(50_000, dtype=torch.int32).flip(0)
        )
        items = hp.ItemSampler(hp.ItemSet((torch.arange(50_000),), names=("seeds",)), 5000)
        chain = items.sample_neighbor(graph, [1]).fetch_feature(store, ["x"])
        loader = hp.DataLoader(chain, num_workers=3)
        loop = iter(loader)
        next(loop)
        """,
        tmp_path / "x.npy",
    )


# ---------------------------------------------------------------------------------------------
# Leaks


def test_a_dropped_feature_closes_its_file(tmp_path):
    save(tmp_path / "x.npy", 10)
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(1000):
        hp.DiskBasedFeature(tmp_path / "x.npy").read()
    assert len(os.listdir("/proc/self/fd")) == before


def test_ten_thousand_reads_leave_memory_as_it_was(tmp_path):
    save(tmp_path / "x.npy", 5000, 256)
    feature = hp.DiskBasedFeature(tmp_path / "x.npy", num_threads=2)
    resident = []
    for i in range(10_000):
        feature.read(many(5000, 400 if i % 100 == 0 else 20, i))
        if i in (2000, 9999):
            with open("/proc/self/statm") as file:
                resident.append(int(file.read().split()[1]) * mmap.PAGESIZE)
    assert resident[1] - resident[0] < 20e6
