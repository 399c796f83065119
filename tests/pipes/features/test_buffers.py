"""BufferPool: a buffer comes back when the last tensor on it dies, and not before."""

from __future__ import annotations

import gc
import linecache
import sys
import threading

import numpy as np
import pytest
import torch

import hopline.pipes as hp
from hopline.pipes.features import buffers
from hopline.pipes.features.buffers import (
    SLACK,
    SMALLEST_POOLED,
    WINDOW,
    BufferPool,
    empty,
    empty_array,
    page_locked_outputs,
    settle,
)
from tests.number_chains import numbers

BIG = (600, 1000)  # of int32: 2.4 MB


@pytest.fixture(autouse=True)
def no_collector():
    """Buffers come back by themselves, not by the collector of cycles."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_a_buffer_returns_when_the_last_tensor_dies():
    pool = BufferPool()
    tensor = pool.empty(BIG, torch.int32)
    place = tensor.data_ptr()
    assert (tensor.shape, tensor.dtype) == (torch.Size(BIG), torch.int32)
    view, array = tensor[3:5, 7:], tensor.numpy()
    del tensor
    assert pool.idle_bytes == 0
    del view
    assert pool.idle_bytes == 0
    del array
    assert pool.idle_bytes >= 4 * BIG[0] * BIG[1]
    assert pool.empty(BIG, torch.int32).data_ptr() == place


def test_living_tensors_never_share_memory():
    pool = BufferPool()
    kept = []
    for number in range(40):
        kept.append(pool.empty(BIG, torch.int32).fill_(number))
        if number % 3 == 0:
            del kept[number % len(kept)]
    values = [int(tensor[0, 0]) for tensor in kept]
    assert len(set(values)) == len(values)
    for tensor, value in zip(kept, values, strict=True):
        assert torch.equal(tensor, torch.full(BIG, value, dtype=torch.int32))


def test_small_tensors_come_from_the_allocator():
    pool = BufferPool()
    del_me = pool.empty((SMALLEST_POOLED - 1,), torch.uint8)
    del del_me
    assert pool.idle_bytes == 0
    assert pool.empty((0, 5), torch.float32).shape == (0, 5)


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.float64, torch.complex64])
def test_any_dtype_on_a_used_buffer(dtype):
    pool = BufferPool()
    pool.empty((1 << 22,), torch.uint8).fill_(255)
    tensor = pool.empty((1000, 523), dtype)
    assert tensor.dtype == dtype
    tensor.zero_()
    assert not tensor.any()


def test_a_buffer_far_too_large_is_left_for_others():
    pool = BufferPool()
    pool.empty((64 << 20,), torch.uint8)
    idle = pool.idle_bytes
    tensor = pool.empty((SMALLEST_POOLED,), torch.uint8)
    assert pool.idle_bytes == idle
    del tensor
    assert pool.idle_bytes <= idle + 2 * SMALLEST_POOLED


def test_idle_memory_is_bounded_and_the_longest_idle_goes_first():
    pool = BufferPool(max_idle_bytes=8 * 4 * BIG[0] * BIG[1])
    kept = [pool.empty(BIG, torch.int32) for _ in range(20)]
    places = [tensor.data_ptr() for tensor in kept]
    while kept:
        del kept[0]
    assert 6 * 4 * BIG[0] * BIG[1] < pool.idle_bytes <= pool.max_idle_bytes
    again = [pool.empty(BIG, torch.int32).data_ptr() for _ in range(1)]
    assert again[0] == places[-1]
    pool.clear()
    assert pool.idle_bytes == 0


def test_lent_and_idle_are_no_more_than_was_lent_at_once_of_late():
    pool = BufferPool()
    kept = [pool.empty((4 << 20,), torch.uint8) for _ in range(3)]
    del kept
    assert pool.idle_bytes == 12 << 20
    # Another size: the idle ones make room for it before it is allocated.
    other = pool.empty((7 << 20,), torch.uint8)
    assert pool.idle_bytes == 4 << 20
    del other
    assert pool.idle_bytes <= (12 << 20) * (SLACK + 1) // SLACK
    # One at a time from now on: after a while one is all that is kept.
    for _ in range(2 * WINDOW):
        pool.empty((4 << 20,), torch.uint8)
    assert pool.idle_bytes == 4 << 20


def test_a_buffer_somewhat_too_large_is_used():
    pool = BufferPool()
    place = pool.empty((5 << 20,), torch.uint8).data_ptr()
    fitting = pool.empty((4 << 20,), torch.uint8)
    assert fitting.data_ptr() == place
    assert fitting.nbytes == 4 << 20
    del fitting
    assert pool.idle_bytes == 5 << 20
    smaller = pool.empty((2 << 20,), torch.uint8)
    assert smaller.nbytes == 2 << 20
    assert pool.idle_bytes == 0  # both would be more than was ever lent


def test_memory_that_cannot_be_had_is_not_counted(monkeypatch):
    pool = BufferPool()
    del_me = pool.empty((4 << 20,), torch.uint8)

    def refuse(*arguments):
        raise MemoryError("none left")

    with monkeypatch.context() as patch:
        patch.setattr(np, "empty", refuse)
        with pytest.raises(MemoryError, match="none left"):
            pool.empty((64 << 20,), torch.uint8)
    assert pool._lent_bytes == 4 << 20
    del del_me
    assert (pool.idle_bytes, pool._lent_bytes) == (4 << 20, 0)


def test_sizes_alike_share_buffers_and_waste_little():
    pool = BufferPool()
    place = pool.empty((1_000_000,), torch.uint8).data_ptr()
    assert pool.empty((990_000,), torch.uint8).data_ptr() == place
    for size in range(SMALLEST_POOLED, 8 * SMALLEST_POOLED, 4099):
        pool.clear()
        tensor = pool.empty((size,), torch.uint8)
        del tensor
        assert size <= pool.idle_bytes <= size * 9 / 8 + 1


def test_views_of_an_array_keep_its_buffer():
    array = empty_array(1 << 20, np.int64)
    array[:] = 7
    tail = array[5:].view(np.int32)[3:]
    tensor = torch.from_numpy(array[-10:])
    del array
    for _ in range(3):
        empty_array(1 << 20, np.int64)[:] = -1
    assert (tail[1::2] == 7).all()
    assert (tensor == 7).all()


def test_many_threads():
    pool = BufferPool(max_idle_bytes=1 << 23)
    wrong = []

    def work(number):
        kept = []
        for turn in range(30):
            value = 1000 * number + turn
            kept.append((pool.empty((300, 1000 + number), torch.int32).fill_(value), value))
            if len(kept) > 3:
                tensor, value = kept.pop(turn % 3)
                if not bool((tensor == value).all()):
                    wrong.append(value)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert pool.idle_bytes > 0


@pytest.mark.parametrize("workers", [0, 3])
def test_minibatches_that_are_kept_never_change(workers):
    """While the pool goes on, under threads, for two epochs."""
    nodes = torch.arange(4000, dtype=torch.float32).unsqueeze(1).expand(-1, 800)
    store = hp.BasicFeatureStore({("node", None, "feat"): hp.TorchBasedFeature(nodes)})
    chain = numbers(4000, 400).fetch_feature(store, ["feat"])  # 1.28 MB a mini-batch
    kept = []
    with hp.DataLoader(chain, num_workers=workers) as loader:
        for _ in range(2):
            for number, minibatch in enumerate(loader):
                if number % 3 == 0:
                    kept.append((minibatch.seeds, minibatch.node_features["feat"]))
                else:
                    minibatch.node_features["feat"].fill_(-1)
    assert len(kept) == 8
    for ids, rows in kept:
        assert torch.equal(rows, ids.float().unsqueeze(1).expand(-1, 800))
    assert torch.equal(store.read("node", None, "feat"), nodes)


def test_page_locked_outputs_of_this_thread(monkeypatch):
    """Big tensors come from torch's allocator of page-locked memory; arrays never do."""
    make, pinned = torch.empty, []

    def fake(*arguments, pin_memory=False, **settings):
        pinned.append(pin_memory)
        return make(*arguments, **settings)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "empty", fake)
    seen = {}

    def allocate(name):
        pinned.clear()
        assert empty(BIG, torch.int32).shape == torch.Size(BIG)
        empty((3,), torch.int8)
        empty_array(600_000, np.int32)
        seen[name] = any(pinned), pinned.count(True)

    with page_locked_outputs():
        allocate("inside")
        with page_locked_outputs():
            allocate("twice")
        allocate("inside again")
        thread = threading.Thread(target=allocate, args=("another thread",))
        thread.start()
        thread.join()
    allocate("outside")
    yes, no = (True, 1), (False, 0)
    assert seen == {
        "inside": yes, "twice": yes, "inside again": yes, "another thread": no, "outside": no
    }  # fmt: skip


def test_page_locked_outputs_change_nothing_without_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with page_locked_outputs():
        assert not empty(BIG, torch.int32).is_pinned()


def calls_while(action) -> list[str]:
    """Names of the Python functions that begin while an action runs."""
    begun = []
    sys.setprofile(lambda frame, event, _: event == "call" and begun.append(frame.f_code.co_name))
    try:
        action()
    finally:
        sys.setprofile(None)
    return begun


def test_no_python_code_runs_when_a_tensor_dies():
    """Ctrl-C is raised where Python code runs, and lost in a callback."""
    pool = BufferPool()
    kept = [pool.empty(BIG, torch.int32), pool.empty(BIG, torch.int32).numpy()]
    assert calls_while(kept.clear) == []
    assert pool.idle_bytes >= 2 * 4 * BIG[0] * BIG[1]


def test_no_python_code_runs_when_a_loop_without_threads_dies():
    loops = [iter(hp.DataLoader(numbers(30))) for _ in range(3)]
    next(loops[0])
    assert list(loops[1])
    assert calls_while(loops.clear) == []


def test_a_pool_interrupted_anywhere_goes_on():
    """KeyboardInterrupt at each line in turn of the pool's code."""

    class Tracer:
        def __init__(self, at):
            self.left = at

        def __call__(self, frame, event, _):
            code = frame.f_code
            if code.co_filename != buffers.__file__:
                return None
            line = linecache.getline(code.co_filename, frame.f_lineno).strip()
            # Signals come behind calls and jumps: not between a lock's `__enter__` and its block,
            # nor between the block and `__exit__`.
            if event == "line" and not line.startswith(("with ", "try:", "return ")):
                self.left -= 1
                if self.left == 0:
                    raise KeyboardInterrupt
            return self

    def use(pool):
        kept = [pool.empty((size << 16,), torch.uint8) for size in (8, 9, 8, 3)]
        del kept[1:3]
        kept.append(pool.empty((8 << 16,), torch.uint8))
        kept.clear()
        pool.settle()
        pool.clear()

    interrupted = 0
    for at in range(1, 2000):
        pool = BufferPool(max_idle_bytes=20 << 16)
        use(pool)
        tracer = Tracer(at)
        sys.settrace(tracer)
        try:
            use(pool)
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            sys.settrace(None)
        use(pool)
        kept = [pool.empty((8 << 16,), torch.uint8).fill_(number) for number in range(3)]
        assert [int(tensor[-1]) for tensor in kept] == [0, 1, 2]
        del kept
        assert 0 < pool.idle_bytes <= pool.max_idle_bytes
        assert pool.idle_bytes == sum(buffer.nbytes for buffer in pool._idle.values())
        assert not pool._loans
        if tracer.left > 0:
            break
    assert interrupted > 50
    assert tracer.left > 0  # no line was left out


def test_what_comes_back_above_the_limit_is_freed_at_the_end_of_an_epoch(monkeypatch):
    pool = BufferPool(max_idle_bytes=2 << 20)
    monkeypatch.setattr("hopline.pipes.features.buffers._pool", pool)
    kept = [empty((1 << 20,), torch.uint8) for _ in range(5)]
    del kept
    assert len(pool._loans) == 5
    assert list(hp.DataLoader(numbers(30)))
    assert (len(pool._loans), pool._idle_bytes) == (0, 2 << 20)
    settle()
    assert pool.idle_bytes == 2 << 20
