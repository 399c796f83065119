"""Streams of loader threads: what is handed over is whole, and memory is not used again too early.

Without a GPU, `tests.fake_cuda` stands for two of them.
"""

from __future__ import annotations

import gc
import threading
import time

import pytest
import torch

import hopline.pipes as hp
from hopline.pipes import streams
from hopline.pipes.move import move
from hopline.pipes.streams import SMALLEST_STAGED, HandedOver, cuda_tensors, upload
from tests import fake_cuda
from tests.fake_cuda import FakeStream, OnGPU
from tests.number_chains import Call, numbers, ring, ring_features, whole_chain
from tests.stage_checks import assert_same

WORKERS = [0, 1, 3]
GPU = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a GPU: real streams and real memory"
)
PATIENCE = 10.0  # seconds


@pytest.fixture
def machine(monkeypatch):
    made = fake_cuda.install(monkeypatch)
    yield made
    gc.collect()


def use(value) -> list[torch.Tensor]:
    """Reads every tensor by an operation on the current stream."""
    found = streams._tensors(value, set())
    return [t + t for t in found if t.is_cuda and t.dtype != torch.bool]


class Plus(hp.Stage):
    """Adds one to every feature, where the features are."""

    def __call__(self, minibatch):
        assert isinstance(minibatch.node_features["feat"], OnGPU)
        minibatch.node_features["feat"] = minibatch.node_features["feat"] + 1
        return minibatch


def on_gpu(count: int = 30, **options) -> hp.Stage:
    return whole_chain(count, **options).copy_to("cuda").pipe(Plus)


# ---------------------------------------------------------------------------------------------
# What is read is whole


@pytest.mark.parametrize("workers", WORKERS)
def test_what_is_read_has_been_written_and_is_not_overwritten(machine, workers):
    plain = [list(chain) for chain in [whole_chain(30)] * 2]
    with hp.DataLoader(on_gpu(), num_workers=workers) as loader:
        for rows in plain:
            for minibatch, row in zip(loader, rows, strict=True):
                assert len(use(minibatch)) > 10
                minibatch.node_features["feat"] = minibatch.node_features["feat"] + -1
                assert_same(minibatch.to("cpu"), row)
    del minibatch
    gc.collect()
    assert machine.errors == []
    assert bool(machine.calls("set_stream")) == bool(workers)


def test_the_reader_may_work_on_a_stream_of_its_own(machine):
    with hp.DataLoader(on_gpu(), num_workers=2) as loader:
        loop = iter(loader)
        for number in range(len(loader)):
            if number % 2:
                machine.set_stream(FakeStream(0))
            use(next(loop))
    gc.collect()
    assert machine.errors == []


def test_the_fake_notices_when_the_reader_does_not_wait(machine, monkeypatch):
    monkeypatch.setattr(FakeStream, "wait_event", lambda self, event: None)
    with hp.DataLoader(on_gpu(), num_workers=2) as loader:
        use(next(iter(loader)))
    assert any("may not have written yet" in error for error in machine.errors)


def test_the_fake_notices_when_memory_is_not_kept(machine, monkeypatch):
    monkeypatch.setattr(machine, "record_stream", lambda tensor, stream: None)
    with hp.DataLoader(on_gpu(), num_workers=2) as loader:
        use(next(iter(loader)))
    gc.collect()
    assert any("freed while" in error for error in machine.errors)


@pytest.mark.parametrize("workers", [1, 3])
def test_every_tensor_is_kept_once(machine, workers):
    def add(minibatch):
        seeds = minibatch.seeds
        minibatch.more = [{"a": (seeds + 1,)}, seeds, Holder(seeds), seeds.view(-1, 1)]

    chain = on_gpu().pipe(Call, add)
    with hp.DataLoader(chain, num_workers=workers) as loader:
        for minibatch in loader:
            places = [t.untyped_storage()._cdata for t in cuda_tensors(minibatch)]
            assert len(places) == len(set(places)) > 10
            assert minibatch.more[0]["a"][0].untyped_storage()._cdata in places
            assert minibatch.more[2].inside["new"].untyped_storage()._cdata in places
            assert machine.calls("record_stream")[-len(places) :] == places


def test_features_of_edges_and_nodes_are_both_found(machine):
    chain = numbers().sample_neighbor(ring(), [2, 2])
    chain = chain.fetch_feature(ring_features(), ["feat"], ["weight"]).copy_to("cuda")
    minibatch = next(iter(chain))
    found = {t.untyped_storage()._cdata for t in cuda_tensors(minibatch)}
    for tensor in (
        minibatch.node_features["feat"],
        minibatch.edge_features[1]["weight"],
        minibatch.sampled_subgraphs[0].sampled_csc.indptr,
        minibatch.sampled_subgraphs[1].original_edge_ids,
        minibatch.input_nodes,
        minibatch.labels,
    ):
        assert tensor.untyped_storage()._cdata in found


class Holder:
    """Something of the user's that can move."""

    def __init__(self, tensor):
        self.inside = {"same": tensor, "new": tensor * 2, "me": self}

    def to(self, device):
        return self


def test_minibatches_that_nobody_reads_are_safe(machine):
    loader = hp.DataLoader(on_gpu(60), num_workers=3)
    for _ in range(5):
        use(next(iter(loader)))
    loader.close()
    del loader
    gc.collect()
    assert machine.errors == []


# ---------------------------------------------------------------------------------------------
# What was there before


@pytest.mark.parametrize("workers", WORKERS)
def test_threads_wait_for_what_the_reader_has_queued_before_the_epoch(machine, workers):
    table = {"x": move(torch.arange(30), "cuda", True)}

    def read(minibatch):
        minibatch.read = minibatch.seeds + table["x"].sum()

    loader = hp.DataLoader(numbers(30).copy_to("cuda").pipe(Call, read), num_workers=workers)
    for total in (435, 465):
        for minibatch in loader:
            assert (minibatch.read + -minibatch.seeds).cpu().unique().tolist() == [total]
        table["x"] = table["x"] + 1  # on the reader's stream, between epochs
    loader.close()
    # Old tables were read by threads that the reader's stream has waited for.
    gc.collect()
    assert machine.errors == []


@pytest.mark.parametrize("workers", WORKERS)
def test_a_walked_source_may_give_tensors_of_the_readers_stream(machine, workers):
    def read():
        for number in range(12):
            yield hp.MiniBatch(seeds=move(torch.full((3,), number), "cuda", True) + 1)

    def work(minibatch):
        minibatch.twice = minibatch.seeds * 2

    chain = hp.IterableSource(read()).pipe(Call, work).copy_to("cuda")
    with hp.DataLoader(chain, num_workers=workers) as loader:
        for number, minibatch in enumerate(loader):
            assert minibatch.twice.cpu().tolist() == [2 * (number + 1)] * 3
    del minibatch
    gc.collect()
    assert machine.errors == []


# ---------------------------------------------------------------------------------------------
# Threads, devices, streams


def meeting(workers: int, log: list, machine):
    """A stage that all threads must be in at once, and that notes where they work."""
    barrier = threading.Barrier(workers)

    def meet(minibatch):
        barrier.wait(PATIENCE)
        device = machine.current_device()
        name = threading.current_thread().name
        log.append((name, device, machine.current_stream(device).name))

    return meet


def test_every_thread_has_a_stream_of_its_own_all_epoch(machine):
    log: list = []
    chain = numbers(60, 1).copy_to("cuda").pipe(Call, meeting(3, log, machine))
    default = machine.current_stream(0).name
    with hp.DataLoader(chain, num_workers=3) as loader:
        list(loader)
    assert len(log) == 60
    places = set(log)
    assert len(places) == 3  # one place a thread
    assert len({stream for _, _, stream in places} - {default}) == 3
    assert machine.current_stream(0).name == default
    assert machine.calls("set_device") == [0, 0, 0]


@pytest.mark.parametrize(
    ("copies", "readers", "expected"),
    [
        (["cuda"], 1, 1),
        (["cuda:1"], 0, 1),
        (["cuda:1"], 1, 1),
        (["cuda:0", "cuda:1"], 1, 1),
        (["cuda:1", "cuda:0"], 1, 1),
        (["cuda:1", "cuda"], 0, 0),
        (["cuda", "cpu"], 1, 1),
    ],
)
def test_threads_work_on_the_gpu_of_who_reads(machine, copies, readers, expected):
    log: list = []
    machine.set_device(readers)
    chain = numbers(12).pipe(Call, meeting(2, log, machine))
    for device in copies:
        chain = chain.copy_to(device).transform(lambda m: m)
    with hp.DataLoader(chain, num_workers=2) as loader:
        for minibatch in loader:
            use(minibatch)
            assert minibatch.labels.device.type == ("cpu" if copies[-1] == "cpu" else "cuda")
            if copies == ["cuda"]:
                assert minibatch.labels.device.index == readers
    assert {device for _, device, _ in log} == {expected}
    assert machine.current_device() == readers
    assert machine.errors == []


def test_a_gpu_that_no_copy_names_is_handed_over_too(machine):
    """As with a cache on the GPU, which gives its rows there."""

    def fetch(minibatch):
        minibatch.rows = upload(minibatch.seeds, "cuda:1") + 1

    with hp.DataLoader(numbers().pipe(Call, fetch), num_workers=2) as loader:
        loop = iter(loader)
        for _ in range(len(loader)):
            machine.set_stream(FakeStream(1))
            use(next(loop))
    gc.collect()
    assert machine.errors == []
    assert machine.calls("record_stream")


@pytest.mark.parametrize("left", [False, True])
def test_a_thousand_loaders_share_a_few_streams(machine, left):
    chain = numbers(4, 2).copy_to("cuda").copy_to("cuda:1")
    for _ in range(1000 if left else 100):
        loader = hp.DataLoader(chain, num_workers=2)
        if left:
            iter(loader)  # nothing is read
        else:
            next(iter(loader))
        loader.close()
        del loader
    assert sorted(machine.calls("new_stream")) == [0, 0, 1, 1]
    assert {device: len(idle) for device, idle in streams._idle.items()} == {0: 2, 1: 2}


def test_loaders_at_once_have_streams_apart(machine):
    chain = numbers(30, 1).copy_to("cuda")
    one, two = hp.DataLoader(chain, num_workers=2), hp.DataLoader(chain, num_workers=1)
    for _ in zip(one, two, strict=True):
        pass
    one.close()
    two.close()
    assert machine.calls("new_stream") == [0, 0, 0]
    assert len(set(machine.calls("set_stream"))) == 3


def test_without_workers_all_is_on_the_readers_stream(machine):
    locked = []
    chain = on_gpu().pipe(Call, lambda minibatch: locked.append(machine.locks_outputs))
    list(hp.DataLoader(chain))
    assert {name for name, _, _ in machine.log} == {"upload"}
    assert locked == [True] * 10
    assert not machine.locks_outputs


def test_what_is_read_for_a_gpu_is_page_locked_at_once(machine):
    locked = []
    before = numbers().pipe(Call, lambda minibatch: locked.append(machine.locks_outputs))
    for chain, expected in ((before.copy_to("cuda"), True), (before, False)):
        locked.clear()
        with hp.DataLoader(chain, num_workers=2) as loader:
            list(loader)
        assert locked == [expected] * 4


class Untouchable(streams.Cuda):
    """CUDA that must not be asked for anything."""

    def __getattribute__(self, name):
        if name in ("initialized", "__class__"):
            return lambda: False
        raise AssertionError(f"asked for {name}")


@pytest.mark.parametrize("workers", WORKERS)
def test_a_chain_on_the_cpu_does_not_touch_cuda(monkeypatch, workers):
    def refuse(*args, **kwargs):
        raise AssertionError("CUDA is touched")

    monkeypatch.setattr(streams, "cuda", Untouchable())
    for name in ("_lazy_init", "current_device", "set_device", "current_stream", "Stream"):
        monkeypatch.setattr(torch.cuda, name, refuse)
    with hp.DataLoader(whole_chain(), num_workers=workers) as loader:
        assert_same(list(loader), list(whole_chain()))


# ---------------------------------------------------------------------------------------------
# Errors


def test_an_error_of_cuda_comes_with_the_stages_name(machine):
    def fail(minibatch):
        if minibatch.key[2] == 3:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    loader = hp.DataLoader(on_gpu().pipe(Call, fail), num_workers=2)
    loop = iter(loader)
    for _ in range(3):
        use(next(loop))
    with pytest.raises(RuntimeError, match="illegal memory access") as caught:
        next(loop)
    assert "in Call, for the mini-batch with (seed, epoch, index) = (5, 0, 3)" in str(
        caught.value.__notes__
    )
    assert sum(map(len, streams._idle.values())) == 2
    loader.close()


def test_a_thread_that_gets_no_stream_tells_so(machine, monkeypatch):
    def fail(device):
        raise RuntimeError(f"CUDA error: no device {device}")

    monkeypatch.setattr(machine, "set_device", fail)
    with hp.DataLoader(on_gpu(), num_workers=1) as loader:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="no device 0"):
                next(iter(loader))


# ---------------------------------------------------------------------------------------------
# Copies


def test_big_tensors_are_staged_and_small_ones_are_not(machine):
    small = torch.zeros(SMALLEST_STAGED, dtype=torch.uint8)
    big = torch.arange(SMALLEST_STAGED + 1, dtype=torch.float64)
    locked = machine.page_lock(big)
    for tensor, where in ((small, False), (big, True), (locked, True)):
        moved = move([tensor], torch.device("cuda"), non_blocking=True)[0]
        assert torch.equal(moved.cpu(), tensor)
        assert machine.calls("upload")[-1] == (tensor.nbytes, where)
    # Views keep their values and their shape.
    for view in (big.view(-1, 1).expand(-1, 3), big[1::2], big[:65536].view(256, 256).t()):
        moved = upload(view, "cuda")
        assert torch.equal(moved.cpu(), view)


def test_the_stage_stages_everything_without_a_word(machine):
    big = hp.BasicFeatureStore(
        {("node", None, "feat"): hp.TorchBasedFeature(torch.randn(50, 2000))}
    )
    chain = numbers(40, 20).sample_neighbor(ring(), [2]).fetch_feature(big, ["feat"])
    for moved, here in zip(chain.copy_to("cuda"), chain, strict=True):
        assert (here.node_features["feat"].nbytes, True) in machine.calls("upload")
        assert (here.seeds.nbytes, False) in machine.calls("upload")
        assert_same(moved.to("cpu"), here)
    assert machine.errors == []


def test_copies_from_a_gpu_are_over_when_the_stage_returns(monkeypatch):
    asked = []
    stage = numbers().copy_to("cpu", non_blocking=True)
    monkeypatch.setattr(hp.MiniBatch, "to", lambda self, device, **o: asked.append(o) or self)
    stage(hp.MiniBatch(seeds=torch.ones(1)))
    assert asked == [{"non_blocking": False}]


@pytest.mark.filterwarnings("ignore:Sparse", "ignore:The PyTorch API of nested")
def test_parts_of_tensors_that_are_not_dense():
    dense = torch.eye(3)
    for tensor, parts in (
        (dense.to_sparse(), 2),
        (dense.to_sparse_csr(), 3),
        (dense.to_sparse_csc(), 3),
        (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged), 2),
    ):
        assert len(list(streams._tensors({"x": [tensor]}, set()))) == parts


def test_nothing_on_a_gpu_is_handed_over_as_it_is():
    thing = hp.MiniBatch(seeds=torch.ones(1))
    assert HandedOver(thing).receive() is thing
    assert cuda_tensors(thing) == []


# ---------------------------------------------------------------------------------------------
# On a GPU


def wide_chain(nodes: int, count: int, batch: int = 64) -> hp.Stage:
    """Mini-batches whose feature of node i is i in each of 500 columns."""
    rows = torch.arange(nodes, dtype=torch.float32).unsqueeze(1).expand(-1, 500).contiguous()
    store = hp.BasicFeatureStore({("node", None, "feat"): hp.TorchBasedFeature(rows)})
    sampler = numbers(count * batch, batch).sample_neighbor(ring(nodes), [3, 2])
    return sampler.fetch_feature(store, ["feat"]).copy_to("cuda")


@GPU
@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("own_stream", [False, True])
def test_rows_are_whole_behind_a_busy_stream(workers, own_stream):
    """B31: a copy on a side stream is read before it is over."""
    count = 1000
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    busy = torch.randn(2048, 2048, device="cuda")
    stream = torch.cuda.Stream() if own_stream else torch.cuda.current_stream()
    stream.wait_stream(torch.cuda.current_stream())
    loader = hp.DataLoader(wide_chain(64_000, count), num_workers=workers)
    with loader, torch.cuda.stream(stream):
        for minibatch in loader:
            busy @ busy  # the stream is behind the host all the time
            rows = minibatch.node_features["feat"]
            ids = minibatch.input_nodes.to(rows.dtype).unsqueeze(1)
            wrong += (rows != ids).sum()
            del minibatch, rows, ids  # their memory is free while the stream is still behind
        assert int(wrong) == 0


@GPU
@pytest.mark.parametrize("workers", [0, 3])
def test_minibatches_equal_those_of_the_cpu(workers):
    with hp.DataLoader(whole_chain(60).copy_to("cuda"), num_workers=workers) as loader:
        for minibatch, here in zip(loader, whole_chain(60), strict=True):
            assert {t.device.type for t in cuda_tensors(minibatch)} == {"cuda"}
            assert_same(minibatch.to("cpu"), here)


@GPU
def test_memory_of_the_gpu_is_flat():
    loader = hp.DataLoader(wide_chain(3200, 50), num_workers=2)

    def read(times: int) -> tuple[int, int]:
        for _ in range(times):
            for minibatch in loader:
                minibatch.node_features["feat"].sum()
                del minibatch
            next(iter(hp.DataLoader(loader.chain, num_workers=2)))
        loader.close()
        gc.collect()
        torch.cuda.synchronize()
        time.sleep(0.1)  # threads of the loaders that were left
        torch.cuda.empty_cache()  # also looks which freed blocks streams are through with
        return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()

    allocated, reserved = read(3)
    after = read(30)
    assert after[0] <= allocated
    assert after[1] <= reserved + (32 << 20)


@GPU
def test_the_host_does_not_wait_for_a_copy():
    """The copy is queued behind a kernel that still runs, and the call is back before it."""
    busy = torch.randn(8192, 8192, device="cuda")
    rows = torch.ones(1 << 20)
    upload(rows, "cuda")  # page-locks once
    torch.cuda.synchronize()
    for _ in range(8):
        busy @ busy
    behind = torch.cuda.Event()
    moved = upload(rows, "cuda")
    behind.record()
    assert not behind.query()
    assert int(moved.sum()) == 1 << 20


@GPU
def test_upload_keeps_values_of_views():
    big = torch.arange(100_000, dtype=torch.float64)
    for view in (big, big.view(-1, 1).expand(-1, 3), big[1::2], big.view(100, 1000).t(), big[:0]):
        assert torch.equal(upload(view, "cuda").cpu(), view)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs: one a rank")
def test_threads_use_the_gpu_of_the_reader():
    with torch.cuda.device(1):
        devices = []
        chain = numbers(30).copy_to("cuda")
        chain = chain.pipe(Call, lambda minibatch: devices.append(torch.cuda.current_device()))
        with hp.DataLoader(chain, num_workers=2) as loader:
            for minibatch in loader:
                assert minibatch.seeds.device == torch.device("cuda:1")
        assert set(devices) == {1}
