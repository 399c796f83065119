"""Caches whose index is on the GPU: what they hold, way by way, count and give, as simulated."""

from __future__ import annotations

import pickle
import threading

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hopline.pipes as hp
from hopline.pipes.features.cached import merge_hot_ids
from hopline.pipes.features.device_index import SetLRUIndex, StaticIndex
from hopline.pipes.kernels.cuda import launching
from tests.cache_simulators import SIMULATORS, SetLRU, StaticRows
from tests.pipes.features import test_cached as shared
from tests.pipes.features.test_cached import Counted, ints
from tests.pipes.features.test_tensor import rows
from tests.stage_checks import assert_same

COUNT = 400


def names(count=COUNT, width=3):
    """Row i says i."""
    return torch.arange(count).unsqueeze(1).expand(-1, width).to(torch.int32).contiguous()


def trace(kind, calls, length, seed=0):
    """Calls of ids, some of which repeat within one."""
    rng = np.random.default_rng(seed)
    if kind == "zipf":
        return [rng.zipf(1.3, length) % COUNT for _ in range(calls)]
    return [rng.integers(0, COUNT, rng.integers(0, length + 1)) for _ in range(calls)]


def check_reads(feature, model, calls, gpu, forget_every=3):
    """Every call reads what the model says, gives the right rows, and leaves the same ways."""
    slow, tensor = feature.fallback_feature, names()
    index = feature.cache._index
    for number, ids in enumerate(calls):
        slow.asked.clear()
        got = feature.read(torch.as_tensor(ids, device=gpu))
        assert got.device == gpu
        assert_same(got.cpu(), tensor[torch.as_tensor(ids)])
        missing = model.request((np.asarray(ids) + feature.offset).tolist())
        assert [[key - feature.offset for key in missing]] == (slow.asked or [[]])
        if number % forget_every == forget_every - 1:
            gone = np.asarray(ids)[::2]
            feature.update(tensor[torch.as_tensor(gone)], torch.as_tensor(gone))
            model.forget((gone + feature.offset).tolist())
        assert index.resident().tolist() == model.resident()
        assert (index.requests, index.misses) == (model.requests, model.misses)


@pytest.mark.parametrize("kind", ["random", "zipf"])
@pytest.mark.parametrize("capacity", [0, 1, 7, 32, 33, 100])
def test_contents_and_counts_are_those_of_the_simulation(gpu, capacity, kind):
    cache = hp.GPUFeatureCache((capacity, 3), torch.int32, device=gpu)
    assert isinstance(cache._index, SetLRUIndex)
    assert (cache.policy, cache.capacity) == ("set-lru", capacity)
    feature = hp.GPUCachedFeature(Counted(names()), cache, 1 << 40)
    check_reads(feature, SetLRU(capacity), trace(kind, 4, 60, capacity), gpu)
    if kind == "zipf" and capacity > 1:
        assert 0 < feature.miss_rate < 1


@pytest.mark.parametrize("capacity", [0, 5, 90])
def test_a_hot_set_is_that_of_the_simulation(gpu, capacity):
    hot = np.random.default_rng(1).zipf(1.3, 60) % COUNT
    cache = hp.GPUFeatureCache(
        (capacity, 3), torch.int32, "static", device=gpu, hot_keys=torch.as_tensor(hot)
    )
    assert isinstance(cache._index, StaticIndex)
    feature = hp.GPUCachedFeature(Counted(names()), cache)
    check_reads(feature, StaticRows(capacity, hot.tolist()), trace("zipf", 4, 60), gpu)


@pytest.mark.parametrize("policy", ["set-lru", "static"])
def test_several_programs_do_what_one_does(gpu, policy, monkeypatch):
    monkeypatch.setattr(launching, "INTERPRETED_TILE", 16)
    hot = torch.arange(30) if policy == "static" else None
    cache = hp.GPUFeatureCache((70, 3), torch.int32, policy, device=gpu, hot_keys=hot)
    model = SetLRU(70) if hot is None else StaticRows(70, range(30))
    check_reads(hp.GPUCachedFeature(Counted(names()), cache), model, trace("zipf", 3, 50), gpu)


@given(st.data())
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_calls(gpu, data):
    capacity = data.draw(st.integers(0, 40))
    ids = st.lists(st.integers(0, COUNT - 1) | st.integers(0, 5), max_size=50)
    calls = [np.array(call, np.int64) for call in data.draw(st.lists(ids, max_size=4))]
    cache = hp.GPUFeatureCache((capacity, 3), torch.int32, device=gpu)
    feature = hp.GPUCachedFeature(Counted(names()), cache)
    check_reads(feature, SetLRU(capacity), calls, gpu, data.draw(st.integers(1, 3)))


def test_more_new_keys_than_a_set_has_ways(gpu):
    """What a call touches stays, and the first of the new ones are kept."""
    feature = hp.gpu_cached_feature(Counted(names()), 4 * 12, device=gpu)
    feature.read(ints(1, 2, 3, 4))
    feature.read(ints(9, 3, 8, 7, 6))
    assert feature.cache._index.resident()[0, :4].tolist() == [9, 8, 3, 7]
    assert feature.read(ints(6)).tolist() == [[6] * 3]


@pytest.mark.parametrize("ids_dtype", [torch.int32, torch.int64, torch.uint8])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bool, torch.complex64, torch.int8])
@pytest.mark.parametrize("shape", [(3,), (0,), (257,)])
def test_rows_come_back_bit_by_bit(gpu, shape, dtype, ids_dtype):
    tensor = rows(10, shape, dtype)
    row = tensor[0].nbytes
    feature = hp.gpu_cached_feature(hp.TorchBasedFeature(tensor), 5 * row, device=gpu)
    for ids in ([9, 0, 3], [3, 9, 0], [0, 5, 3, 5, 1, 0], []):
        got = feature.read(torch.tensor(ids, dtype=ids_dtype, device=gpu))
        assert_same(got.cpu(), tensor[torch.tensor(ids, dtype=torch.int64)])
    assert_same(feature.read().cpu(), tensor)


@pytest.mark.parametrize("policy", [None, "static"])
def test_ids_out_of_range_change_nothing(gpu, policy):
    hot = ints(1, 3) if policy else None
    features = hp.gpu_cached_feature(
        {"a": hp.TorchBasedFeature(names(5)), "b": hp.TorchBasedFeature(names(7))}, 1000, policy,
        device=gpu, hot_ids={"b": hot} if policy else None,
    )  # fmt: skip
    for feature in features.values():
        feature.read(torch.arange(5, device=gpu))
    index = features["a"].cache._index
    before = index.resident().tolist(), index.requests, index.misses
    for bad, position in ((5, 2), (-1, 2), (-(2**62), 2)):
        with pytest.raises(
            IndexError, match=rf"feature ids: id {bad} at position {position} is outside \[0, 5\)"
        ):
            features["a"].read(torch.tensor([1, 0, bad], device=gpu))
    assert (index.resident().tolist(), index.requests, index.misses) == before
    with pytest.raises(TypeError, match="feature ids: got dtype"):
        features["a"].read(torch.ones(2, device=gpu))
    assert features["b"].read(ints(4, 1).to(gpu))[:, 0].tolist() == [4, 1]


# ---------------------------------------------------------------------------------------------
# As other caches do


class Brought(hp.GPUCachedFeature):
    """Rows for tests that compare with rows on the CPU."""

    def read(self, ids=None):
        return super().read(ids).cpu()


@pytest.fixture
def on_gpu(gpu, monkeypatch):
    """Has the tests of caches make them on the GPU."""

    def cached(place, features, size, policy=None, hot_ids=None):
        keys = merge_hot_ids(features, hot_ids)
        made = hp.wrap_with_cached_feature(
            Brought, features, size, policy=policy, device=gpu, hot_keys=keys
        )
        one = next(iter(made.values())) if isinstance(made, dict) else made
        assert isinstance(one.cache._index, SetLRUIndex)
        return made

    def make_cache(place, shape, dtype, policy=None, hot_keys=None):
        return hp.GPUFeatureCache(shape, dtype, policy, device=gpu, hot_keys=hot_keys)

    monkeypatch.setattr(shared, "cached", cached)
    monkeypatch.setattr(shared, "make_cache", make_cache)


@pytest.mark.parametrize(
    "test",
    [
        shared.test_changes_of_read_rows_stay_with_the_reader,
        shared.test_slow_rows_that_are_no_plain_memory,
        shared.test_d19_partial_update_of_a_shared_cache,
        shared.test_an_update_that_fails_half_way_leaves_no_stale_row,
        shared.test_an_error_of_the_slow_feature_is_told_and_leaves_nothing,
        shared.test_a_feature_that_changes_its_kind_is_told,
    ],
)
def test_as_other_caches(on_gpu, test):
    test("gpu")


@pytest.mark.parametrize("whole", [False, True])
def test_an_update_while_rows_are_read_leaves_no_stale_row(on_gpu, whole):
    shared.test_an_update_while_rows_are_read_leaves_no_stale_row("gpu", whole)


def test_a_cache_over_a_cache_over_a_file(on_gpu, tmp_path):
    shared.test_a_cache_over_a_cache_over_a_file("gpu", tmp_path)


def test_a_cache_over_a_cache_on_the_gpu(gpu):
    inner = hp.gpu_cached_feature(Counted(names()), 50 * 12, device=gpu)
    feature = hp.gpu_cached_feature(inner, 9 * 12, device=gpu)
    for ids in trace("zipf", 4, 40):
        assert_same(feature.read(torch.as_tensor(ids, device=gpu)).cpu(), names()[ids])
    assert 0 < inner.miss_rate < 1


@pytest.mark.parametrize("at", ["place", "_write_there"])
def test_a_writing_cut_off_leaves_no_row_that_was_not_written(gpu, at, monkeypatch):
    feature = hp.gpu_cached_feature(hp.TorchBasedFeature(names(8)), 1000, device=gpu)
    feature.read(ints(0, 1).to(gpu))
    of = type(feature.cache) if at == "_write_there" else type(feature.cache._index)
    real = getattr(of, at)

    def cut(self, *arguments):
        if at == "place":
            real(self, *arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(of, at, cut)
        with pytest.raises(KeyboardInterrupt):
            feature.read(ints(5, 1).to(gpu))
    assert feature.read(torch.arange(8, device=gpu))[:, 0].tolist() == list(range(8))


def test_threads_read_while_one_updates(gpu):
    """Values only grow: a read that begins after an update shows it, or a later one."""
    feature = hp.gpu_cached_feature(hp.TorchBasedFeature(torch.zeros(40, 3)), 15 * 12, device=gpu)
    written = np.zeros(40)
    wrong, stop = [], threading.Event()

    def read(seed):
        rng = np.random.default_rng(seed)
        while not stop.is_set():
            ids = rng.integers(0, 40, 12)
            least = written[ids].copy()
            got = feature.read(torch.as_tensor(ids, device=gpu)).cpu().numpy()
            if (got < least[:, None]).any():
                wrong.append((ids, least, got))

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    rng = np.random.default_rng(9)
    for step in range(1, 17):
        ids = np.unique(rng.integers(0, 40, 6)) if step % 8 else np.arange(40)
        value = torch.full((len(ids), 3), float(step))
        feature.update(value, torch.as_tensor(ids) if step % 8 else None)
        written[ids] = step
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
    expected = torch.from_numpy(written).float().unsqueeze(1).expand(-1, 3)
    assert torch.equal(feature.read(torch.arange(40, device=gpu)).cpu(), expected)


# ---------------------------------------------------------------------------------------------
# The cache by itself


@pytest.mark.parametrize("policy", [None, "static"])
def test_query_and_replace_by_hand(gpu, policy):
    hot = ints(104, 109) if policy else None
    cache = hp.GPUFeatureCache((3, 2), torch.int64, policy, device=gpu, hot_keys=hot)
    values, index, keys, offsets = cache.query(ints(4, 9, 4).to(gpu), offset=100)
    assert values.shape == (3, 2)
    assert (index.tolist(), keys.tolist()) == ([0, 1, 2], [4, 9, 4])
    cache.replace(keys, torch.stack([keys, keys]).t(), offsets, offset=100)
    values, index, keys, _ = cache.query(ints(9, 5, 4).to(gpu), offset=100)
    assert (index.tolist(), keys.tolist()) == ([1], [5])
    assert values[[0, 2]].tolist() == [[9, 9], [4, 4]]
    assert cache.query(ints(9).to(gpu))[1].tolist() == [0]  # another feature's 9
    assert cache.miss_rate == pytest.approx(4 / 7)  # 4 is to be read once


def test_replace_lets_keys_in_and_the_last_row_counts(gpu):
    cache = hp.GPUFeatureCache((2, 1), torch.float32, device=gpu)
    cache.replace(ints(7, 7), torch.tensor([[1.0], [2.0]]))
    assert cache.query(ints(7))[0].tolist() == [[2.0]]
    cache.replace(ints(7), torch.tensor([[3.0]]))
    values, index, _, _ = cache.query(ints(7))
    assert (values.tolist(), index.tolist()) == ([[3.0]], [])
    cache.replace(ints(7, 8, 9), torch.tensor([[4.0], [5.0], [6.0]]))
    assert cache.query(ints(7, 8))[1].tolist() == []


def test_replace_after_rows_were_dropped_stores_nothing(gpu):
    cache = hp.GPUFeatureCache((3, 1), torch.float32, device=gpu)
    _, _, keys, offsets = cache.query(ints(1, 2))
    cache.forget(ints(2))
    cache.replace(keys, torch.zeros(2, 1), offsets)
    assert cache.query(ints(1, 2))[2].tolist() == [1, 2]
    _, _, keys, offsets = cache.query(ints(1))
    cache.forget_range(10, 20)
    cache.replace(keys, torch.zeros(1, 1), offsets)
    _, _, keys, offsets = cache.query(ints(1))
    cache.replace(keys, torch.zeros(1, 1), offsets)
    assert cache.query(ints(1))[2].tolist() == []


def test_policies_and_where_they_run(gpu):
    for policy in SIMULATORS:
        cache = hp.GPUFeatureCache((3, 1), torch.int32, policy, device=gpu)
        assert cache.policy == policy
        assert not isinstance(cache._index, SetLRUIndex | StaticIndex)
        read = cache.query_and_replace(ints(1, 2, 1).to(gpu), lambda keys: names(9, 1)[keys.cpu()])
        assert read.flatten().tolist() == [1, 2, 1]
    for policy, hot, words in (
        ("fifo", None, r"'fifo'; expected one of \['set-lru', 'sieve'"),
        ("static", None, "'static' and hot ids are not given"),
        (None, ints(1), "'set-lru' and hot ids are given"),
    ):
        with pytest.raises(ValueError, match=words):
            hp.GPUFeatureCache((3, 1), torch.int32, policy, device=gpu, hot_keys=hot)
    with pytest.raises(TypeError, match="reader_fn is a int; expected a function"):
        hp.GPUFeatureCache((3, 1), torch.int32, device=gpu).query_and_replace(ints(1), 5)


def test_without_a_gpu_the_host_keeps_the_index():
    assert hp.GPUFeatureCache((3, 1), torch.int32, device="cpu").policy == "sieve"
    with pytest.raises(
        ValueError, match=r"'set-lru', which runs on a GPU, for a cache on cpu; exp"
    ):
        hp.GPUFeatureCache((3, 1), torch.int32, "set-lru", device="cpu")


def test_a_pickle_is_empty(gpu):
    feature = hp.gpu_cached_feature(hp.TorchBasedFeature(names()), 600, device=gpu)
    feature.read(torch.arange(20, device=gpu))
    there = pickle.loads(pickle.dumps(feature))  # noqa: S301, our own
    assert (there.cache.policy, there.cache.capacity, there.miss_rate) == ("set-lru", 50, 0.0)
    assert (there.cache._index.resident() < 0).all()
    assert there.read(ints(3).to(gpu)).tolist() == [[3, 3, 3]]


def test_the_host_reads_once_a_call(gpu, monkeypatch):
    """Once for the cache; what it reads from rows on the GPU checks its ids once more."""
    from hopline.pipes.host_reads import HostReads

    feature = hp.gpu_cached_feature(hp.TorchBasedFeature(names()).to(gpu), 600, device=gpu)
    fetch, reads = HostReads._fetch, []
    monkeypatch.setattr(
        HostReads, "_fetch", staticmethod(lambda values: reads.append(1) or fetch(values))
    )
    ids = torch.arange(9, device=gpu)
    feature.read(ids)
    assert len(reads) == 2
    feature.read(ids)
    assert len(reads) == 3
