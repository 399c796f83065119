"""page_lock: no page is registered twice, or given back while somebody needs it."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

import hopline.pipes as hp
from hopline.pipes import host_pages
from hopline.pipes import page_lock as module
from hopline.pipes.page_lock import PAGE, page_lock, page_locked_copy
from hopline.pipes.pinning import is_pinned
from tests.fake_driver import covered, in_cudas_stead, on_own_pages

BIG = 300_001  # of float32: no multiple of a page


@pytest.fixture
def driver(monkeypatch):
    """A fake in CUDA's stead; in the end nothing may be registered."""
    with in_cudas_stead(monkeypatch) as fake:
        yield fake


def zeros():
    """float32[BIG], on pages of its own."""
    return torch.frombuffer(mmap.mmap(-1, 4 * BIG), dtype=torch.float32)


def run(script, *arguments, **settings):
    """Runs a script in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", script, *arguments], cwd=Path(__file__).parents[2],
        capture_output=True, text=True, timeout=120, **settings,
    )  # fmt: skip


def test_locked_while_the_lock_lives(driver):
    tensor = zeros()
    assert not is_pinned(tensor)
    lock = page_lock(tensor)
    assert lock.tensor is tensor
    assert is_pinned(tensor)
    assert is_pinned([tensor[5:], {"x": tensor.view(1, -1)}])
    assert covered(driver, tensor)
    lock.wait()
    del lock
    assert driver.calls == ["register", "synchronize", "synchronize", "unregister"]
    assert not is_pinned(tensor)


def test_memory_outlives_its_registration(driver):
    lock = page_lock(zeros())
    address, size = next(iter(driver.ranges.items()))
    assert size >= 4 * BIG
    del lock  # with the last tensor on it; the driver looks whether the memory is there
    assert address not in driver.ranges


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (4, 2, 0, 1, 3)])
def test_b71_views_slices_and_the_same_twice(driver, order):
    tensor = on_own_pages(torch.zeros(1000, 300))
    views = [tensor, tensor, tensor[100:200], tensor.t(), tensor.view(-1)[7:]]
    locks = {number: page_lock(views[number]) for number in range(5)}
    assert len(driver.ranges) == 1
    assert all(lock.tensor is views[number] for number, lock in locks.items())
    for number in order:
        assert is_pinned(tensor)
        assert covered(driver, tensor)
        locks.pop(number).release()
    assert not driver.ranges


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2)])
def test_b71_storages_that_overlap(driver, order):
    """Tensors of parts of one array are storages of their own, as far as torch knows."""
    array = on_own_pages(torch.arange(400_000)).numpy()
    parts = [(1000, 90_000), (200_000, 399_999), (0, 400_000), (80_000, 210_000)]
    tensors = [torch.from_numpy(array[low:high]) for low, high in parts]
    locks = []
    for number in order:
        locks.append(page_lock(tensors[number]))
        assert torch.equal(locks[-1].tensor, tensors[number])
        assert all(covered(driver, lock.tensor) for lock in locks)
    assert is_pinned(tensors), "with the whole array its parts are locked"
    while locks:
        assert all(is_pinned(lock.tensor) for lock in locks)
        locks.pop(0)
        assert all(covered(driver, lock.tensor) for lock in locks)


def test_small_tensors_are_copied(driver):
    """Their pages are others' too, whose copies to a GPU would begin on them and run beyond."""
    array = np.arange(PAGE, dtype=np.uint8)
    first, second = torch.from_numpy(array[:50]), torch.from_numpy(array[60:99])
    locks = [page_lock(first), page_lock(second)]
    for lock, tensor in zip(locks, (first, second), strict=True):
        assert lock.writable
        assert torch.equal(lock.tensor, tensor)
        assert covered(driver, lock.tensor)
        assert not is_pinned(tensor)
        assert is_pinned(lock.tensor)
    assert len(driver.ranges) == 2
    start, end = array.ctypes.data, array.ctypes.data + PAGE
    assert all(not low < end or not start < low + size for low, size in driver.ranges.items())
    again = page_lock(locks[0].tensor)
    assert again.tensor is locks[0].tensor
    assert len(driver.ranges) == 2


def test_a_copy_is_locked_as_long_as_there_is_a_tensor_on_it(driver):
    lock = page_lock(torch.arange(10))
    view = lock.tensor[5:]
    lock.release()
    del lock
    assert covered(driver, view)
    assert is_pinned(view)
    assert view.tolist() == [5, 6, 7, 8, 9]
    del view
    assert not driver.ranges
    assert driver.calls[-2:] == ["synchronize", "unregister"]


def test_a_copy_knows_of_changes_in_place(driver):
    tensor, alone = torch.arange(10), on_own_pages(torch.arange(PAGE))
    lock, other = page_lock(tensor), page_lock(alone)
    tensor[3] = alone[3] = 7
    assert (lock.is_current(tensor), other.is_current(alone)) == (False, True)
    assert page_lock(tensor).tensor[3] == other.tensor[3] == 7


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.complex64, torch.float64])
@pytest.mark.parametrize("shape", [(3, 2), (), (5, 0), (1, 7, 2)])
def test_page_locked_copies(driver, dtype, shape):
    tensor = torch.ones(shape).to(dtype)
    for given in (tensor, tensor.t() if len(shape) == 2 else tensor, tensor.expand(2, *shape)):
        lock = page_locked_copy(given)
        assert lock.tensor.dtype == dtype
        assert torch.equal(lock.tensor, given)
        assert lock.tensor.is_contiguous()
        assert lock.tensor.numel() == 0 or covered(driver, lock.tensor)
        assert lock.is_current(given)
    with pytest.raises(TypeError, match="got a list; expected a dense"):
        page_locked_copy([1.0])


def test_blocks_of_malloc_that_are_mappings_are_locked_where_they_are(driver):
    if not host_pages._blocks_tell():
        pytest.skip("this system's malloc does not tell which blocks it has mapped")
    for block in (torch.zeros(40 << 18), torch.from_numpy(np.zeros(40 << 20, np.uint8))):
        lock = page_lock(block)
        assert lock.tensor is block
        part = torch.from_numpy(block.numpy()[PAGE:])
        assert is_pinned(part)
        del lock
        lock = page_lock(part)
        assert lock.tensor.data_ptr() != part.data_ptr(), "its last page is the block's too"


HEAP = """
import torch
from hopline.pipes import host_pages, page_lock as module
from tests.fake_driver import FakeDriver, covered

driver = module._driver = FakeDriver()
for size in ((40 << 18) + 7, (1 << 18) + 7):  # no whole pages
    tensor = torch.zeros(size)
    lock = module.page_lock(tensor)
    print(lock.tensor is tensor, covered(driver, lock.tensor))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="sets a variable of glibc")
def test_blocks_in_a_heap_are_copied_whatever_their_size():
    variables = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(1 << 30)}
    done = run(HEAP, env=variables)
    assert (done.returncode, done.stdout) == (0, "False True\n" * 2), done.stderr


def test_part_of_the_memory_is_not_enough(driver):
    array = on_own_pages(torch.zeros(100_000)).numpy()
    part, whole = torch.from_numpy(array[: 8 * PAGE]), torch.from_numpy(array)
    # By hand: of one mapping, page_lock would leave a part alone.
    assert driver.register(part.data_ptr(), part.nbytes, read_only=False) is None
    module._registry.segments.append(
        module._Segment(part.data_ptr(), part.data_ptr() + part.nbytes, 1, part)
    )
    assert driver.is_pinned(whole)  # its first byte is
    assert (is_pinned(part), is_pinned(whole)) == (True, False)
    lock = page_lock(whole)
    assert covered(driver, lock.tensor)
    assert lock.tensor.data_ptr() != whole.data_ptr()
    module._registry.segments.pop(0)
    driver.synchronize()
    driver.unregister(part.data_ptr())


def test_what_torch_has_pinned_is_left_alone(driver):
    tensor = zeros()
    driver.own.add(tensor.data_ptr())
    lock = page_lock(tensor[3:])
    assert is_pinned(tensor)
    assert not driver.ranges
    del lock
    assert driver.calls == ["synchronize"], "torch would lend it anew while a kernel reads it"


@pytest.mark.parametrize("tensor", [torch.empty(0), torch.empty(0, 5), torch.empty(3, 0).half()])
def test_no_bytes(driver, tensor):
    lock = page_lock(tensor)
    assert is_pinned(tensor)
    lock.wait()
    assert driver.calls == []


def test_threads(driver):
    tensors = [torch.zeros(100, 30), on_own_pages(torch.zeros(1000, 30)), zeros()[1:].view(-1, 3)]

    def work(seed):
        rng = np.random.default_rng(seed)
        held = []
        for _ in range(60):
            held.append(page_lock(tensors[rng.integers(3)][rng.integers(90) :]))
            if len(held) > 4:
                held.pop(rng.integers(5))
            assert all(covered(driver, lock.tensor) for lock in held)

    failed = []
    hook, threading.excepthook = threading.excepthook, failed.append
    try:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        threading.excepthook = hook
    assert not failed, failed


def test_the_collector_may_come_at_any_time(driver, monkeypatch):
    """A lock dies while this thread registers: it is given back afterwards, without a deadlock."""
    dying = [page_lock(zeros())]
    register = driver.register

    def late(*arguments, **settings):
        dying.clear()
        return register(*arguments, **settings)

    monkeypatch.setattr(driver, "register", late)
    lock = page_lock(zeros())
    assert len(driver.ranges) == 1
    assert covered(driver, lock.tensor)


def test_a_device_that_fails_is_told_and_asked_again(driver, monkeypatch):
    lock = page_lock(zeros())
    with monkeypatch.context() as patch:
        patch.setattr(driver, "synchronize", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            lock.release()
    assert len(driver.ranges) == 1
    page_lock(torch.zeros(1)).release()
    assert not driver.ranges


# ---------------------------------------------------------------------------------------------
# Refused


def test_b105_without_rights_it_is_told(driver):
    driver.refuses = lambda address, size, read_only: "out of memory (error 2)"
    tensor = zeros()
    with pytest.raises(RuntimeError) as caught:
        page_lock(tensor)
    words = str(caught.value)
    assert words.startswith(f"cannot page-lock {4 * BIG} bytes: out of memory (error 2). The limit")
    assert "ulimit -l" in words
    assert "mode cpu-cuda" in words
    assert not is_pinned(tensor)
    feature = hp.TorchBasedFeature(torch.zeros(300, 2))
    with pytest.raises(RuntimeError, match="cannot page-lock 2400 bytes"):
        feature.pin_memory_()
    assert not feature.is_pinned()
    assert feature.read(torch.tensor([1])).tolist() == [[0, 0]]


def test_a_shared_file_that_cuda_refuses_is_copied(driver, tmp_path):
    """Of a file that is mapped shared for writing, Linux does not let pages be kept for writing."""
    np.arange(5000).tofile(tmp_path / "x")
    tensor = torch.from_file(str(tmp_path / "x"), shared=True, size=5000, dtype=torch.int64)
    lock = page_lock(tensor)
    assert lock.tensor is tensor
    del lock
    start = tensor.data_ptr()
    driver.refuses = lambda address, size, read_only: "no" if address == start else None
    lock = page_lock(tensor)
    assert torch.equal(lock.tensor, tensor)
    assert lock.tensor.data_ptr() != start


def test_what_cannot_be_locked(driver):
    for thing, error, words in (
        ([1.0], TypeError, "got a list; expected a dense"),
        (torch.eye(2).to_sparse(), TypeError, "got a torch.sparse_coo; expected a dense"),
        (
            torch.empty(2, device="meta"),
            ValueError,
            "got a tensor on meta; expected one on the CPU",
        ),
    ):
        with pytest.raises(error, match=words):
            page_lock(thing)
    assert not is_pinned(torch.empty(2, device="meta"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_without_a_gpu_it_is_told():
    for tensor in (torch.zeros(3), torch.empty(0)):
        assert not is_pinned(tensor)
        with pytest.raises(RuntimeError, match="pinning memory needs a GPU, and torch finds none"):
            page_lock(tensor)


# ---------------------------------------------------------------------------------------------
# The driver


class Cudart:
    """Stands for CUDA's runtime; notes what it is asked for, and by which GPU."""

    def __init__(self, code=0):
        self.code, self.calls, self.device = code, [], 0
        self.cudaError = int
        self.cudaGetErrorString = "error {}".format

    def cudart(self):
        return self

    @contextmanager
    def on(self, device):
        before, self.device = self.device, device
        yield
        self.device = before

    def cudaHostRegister(self, *arguments):
        self.calls.append((self.device, *arguments))
        return self.code

    def cudaHostUnregister(self, address):
        self.calls.append((self.device, address))
        return self.code


@pytest.mark.parametrize(("in_use", "by"), [([], 2), ([1], 1), ([1, 2], 2)])
def test_memory_is_registered_by_a_gpu_that_is_in_use(monkeypatch, in_use, by):
    """The current one of a thread may be another rank's; it would get a context on it."""
    real, cudart = module.CudaDriver(), Cudart()
    real._cuda = cudart
    monkeypatch.setattr(real, "_in_use", lambda: iter(in_use))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    monkeypatch.setattr(torch.cuda, "device", cudart.on)
    monkeypatch.setattr(torch, "ones", lambda *shape, device: None)
    assert real.register(PAGE, 2 * PAGE, read_only=False) is None
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert real.register(5 * PAGE, PAGE, read_only=True) is None
    assert real.unregister(PAGE) is None
    assert cudart.calls == [(by, PAGE, 2 * PAGE, 3), (by, 5 * PAGE, PAGE, 3 | 8), (by, PAGE)]
    cudart.code = 801
    assert real.register(PAGE, PAGE, read_only=True) == "error 801 (error 801)"


def test_asking_whether_memory_is_locked_takes_no_gpu_into_use(monkeypatch):
    real, tensor = module.CudaDriver(), torch.zeros(3)
    asked, in_use = [], []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: asked.append(tensor) or True)
    monkeypatch.setattr(real, "_in_use", lambda: iter(in_use))
    assert not real.is_pinned(tensor)
    assert asked == []
    in_use.append(1)
    assert real.is_pinned(tensor)
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    assert not real.available()
    assert not real.is_pinned(tensor), "CUDA cannot be asked in a fork"
    assert len(asked) == 1


# ---------------------------------------------------------------------------------------------
# Processes

SCRIPT = """
import os, sys
import torch
from hopline.pipes import page_lock as module
from tests.fake_driver import FakeDriver

driver = module._driver = FakeDriver()
unregister = driver.unregister
driver.unregister = lambda address: (print("unregister", flush=True), unregister(address))[1]
locks = [module.page_lock(torch.zeros(100_000)) for _ in range(2)]
cycle = [locks[0]]
cycle.append(cycle)
if sys.argv[1] == "fork":
    pid = os.fork()
    if pid == 0:
        locks.clear(); cycle.clear()
        assert not module._registry.segments
        print("child", flush=True)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert module._overlapping(*module.page_span(locks[1].tensor.data_ptr(), 4))
"""


@pytest.mark.parametrize(("how", "printed"), [("exit", ""), ("fork", "child\n")])
def test_nothing_is_given_back_by_a_child_or_at_the_end(how, printed):
    if how == "fork" and not hasattr(os, "fork"):
        pytest.skip("this system has no fork")
    done = run(SCRIPT, how)
    assert (done.returncode, done.stdout) == (0, printed), done.stderr


# ---------------------------------------------------------------------------------------------
# On a GPU


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu(tmp_path):
    tensor = on_own_pages(torch.arange(3 * BIG).view(BIG, 3))
    feature, view = hp.TorchBasedFeature(tensor), hp.TorchBasedFeature(tensor[1000:])
    for each in (feature, view, feature):
        assert each.pin_memory_().is_pinned()
    ids = torch.randint(0, BIG - 1000, (5000,), device="cuda")
    assert tensor.is_pinned()
    assert torch.equal(feature.read(ids).cpu(), tensor[ids.cpu()])
    del feature
    assert torch.equal(view.read(ids).cpu(), tensor[1000:][ids.cpu()])
    del view, each
    assert not tensor.is_pinned()
    np.save(tmp_path / "x.npy", tensor.numpy())
    array = np.load(tmp_path / "x.npy", mmap_mode="c")
    feature = hp.TorchBasedFeature(torch.from_numpy(array)).pin_memory_()
    assert torch.equal(feature.read(ids).cpu(), tensor[ids.cpu()])
    feature.update(torch.full((1, 3), -1), torch.tensor([7]))
    assert feature.read(torch.tensor([7, 8], device="cuda")).tolist() == [[-1] * 3, [24, 25, 26]]
    # A refusal leaves no error behind for the next kernel.
    assert torch.ones(3, device="cuda").sum().item() == 3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_what_lies_beside_pinned_arrays_can_be_copied_to_a_gpu():
    arrays = [torch.full((size,), size) for size in range(1, 20_000, 97)]
    locks = [page_lock(array) for array in arrays[::2]]
    for array in arrays:
        assert torch.equal(array.to("cuda").cpu(), array)
    for lock, array in zip(locks, arrays[::2], strict=True):
        assert torch.equal(lock.tensor.to("cuda").cpu(), array)
