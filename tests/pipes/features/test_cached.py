"""Cached features: whatever the cache does, rows are those of the feature behind it."""

from __future__ import annotations

import threading
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hopline.pipes as hp
from hopline.pipes.features import feature_cache
from tests.cache_simulators import SIMULATORS
from tests.pipes.features.test_tensor import DTYPES, SHAPES, rows
from tests.stage_checks import assert_same, check_resume

POLICIES = [*SIMULATORS, "static"]
PLACES = ["cpu", "gpu"]  # the cache for GPUs, its rows on the CPU


class Counted(hp.TorchBasedFeature):
    """Notes which rows it is asked for."""

    def __init__(self, tensor):
        super().__init__(tensor)
        self.asked: list[list[int]] = []

    def read(self, ids=None):
        if ids is not None and len(ids):  # a read of no rows asks for dtype and shape
            self.asked.append(ids.tolist())
        return super().read(ids)


def make_cache(place, shape, dtype, policy=None, hot_keys=None):
    if place == "gpu":
        return hp.GPUFeatureCache(shape, dtype, policy, device="cpu", hot_keys=hot_keys)
    return hp.CPUFeatureCache(shape, dtype, policy, hot_keys=hot_keys)


def cached(place, features, size, policy=None, hot_ids=None):
    if place == "gpu":
        return hp.gpu_cached_feature(features, size, policy, device="cpu", hot_ids=hot_ids)
    return hp.cpu_cached_feature(features, size, policy, hot_ids=hot_ids)


def ints(*values, dtype=torch.int64):
    return torch.tensor(values, dtype=dtype)


# ---------------------------------------------------------------------------------------------
# Rows


@pytest.mark.parametrize("ids_dtype", [torch.int32, torch.int64, torch.uint8])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("place", PLACES)
def test_b33_rows_come_back_bit_by_bit(place, dtype, shape, ids_dtype):
    tensor = rows(10, shape, dtype)
    row = tensor[0].nbytes
    feature = cached(place, hp.TorchBasedFeature(tensor), 5 * row)
    assert (feature.size(), feature.count()) == (torch.Size(shape), 10)
    misses, hits, mixed = [9, 0, 3], [3, 9, 0], [0, 5, 3, 5, 1, 0]
    for ids in (misses, hits, mixed, [], [4, 4, 4, 4], [4, 4], list(range(10)), mixed):
        got = feature.read(torch.tensor(ids, dtype=ids_dtype))
        assert_same(got, tensor[torch.tensor(ids, dtype=torch.int64)])
    assert_same(feature.read(), tensor)


def test_b33_big_integers_are_kept():
    tensor = torch.tensor([[2**53 + 1], [2**24 + 1], [-(2**62) - 3]])
    feature = hp.cpu_cached_feature(hp.TorchBasedFeature(tensor), 16)
    for _ in range(3):
        assert feature.read(ints(2, 0, 1)).tolist() == tensor[[2, 0, 1]].tolist()


@pytest.mark.parametrize("capacity", [0, 1, 3, 100])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("place", PLACES)
def test_more_rows_than_the_cache_holds(place, policy, capacity):
    tensor = torch.arange(150.0).reshape(50, 3)
    hot = torch.arange(20) if policy == "static" else None
    cache = make_cache(place, (capacity, 3), torch.float32, policy, hot)
    kind = hp.GPUCachedFeature if place == "gpu" else hp.CPUCachedFeature
    feature = kind(hp.TorchBasedFeature(tensor), cache)
    generator = torch.Generator().manual_seed(1)
    for _ in range(20):
        ids = torch.randint(0, 50, (60,), generator=generator)
        assert_same(feature.read(ids), tensor[ids])
    assert_same(feature.read(torch.arange(50)), tensor)
    if capacity == 0:
        assert feature.miss_rate == 1.0


@pytest.mark.parametrize("place", PLACES)
def test_what_is_here_is_not_read_again(place):
    slow = Counted(torch.arange(20).reshape(10, 2))
    feature = cached(place, slow, 4 * 16, "lru")
    feature.read(ints(5, 3, 5))
    feature.read(ints(3, 5, 7, 3))
    feature.read(ints(7, 5))
    assert slow.asked == [[5, 3], [7]]
    assert feature.miss_rate == pytest.approx(3 / 9)


@pytest.mark.parametrize("place", PLACES)
def test_changes_of_read_rows_stay_with_the_reader(place):
    tensor = torch.arange(12.0).reshape(4, 3)
    feature = cached(place, hp.TorchBasedFeature(tensor), 1000)
    for ids in (ints(2, 0), ints(2, 0), ints(2, 1), ints(0, 1, 2, 3)):
        feature.read(ids).fill_(-1)
    assert_same(feature.read(torch.arange(4)), torch.arange(12.0).reshape(4, 3))


@pytest.mark.parametrize("place", PLACES)
def test_slow_rows_that_are_no_plain_memory(place):
    class Strided(hp.TorchBasedFeature):
        def read(self, ids=None):
            return super().read(ids).t().contiguous().t()

    tensor = torch.arange(40.0).reshape(10, 4)
    feature = cached(place, Strided(tensor), 100)
    for _ in range(2):
        assert torch.equal(feature.read(ints(3, 7, 9)), tensor[[3, 7, 9]])


@pytest.mark.parametrize("place", PLACES)
def test_a_cache_over_a_cache_over_a_file(place, tmp_path):
    array = np.arange(300, dtype=np.float32).reshape(100, 3)
    np.save(tmp_path / "x.npy", array)
    inner = hp.cpu_cached_feature(hp.DiskBasedFeature(tmp_path / "x.npy"), 40 * 12)
    feature = cached(place, inner, 10 * 12)
    rng = np.random.default_rng(2)
    for _ in range(10):
        ids = rng.integers(0, 100, 25)
        assert torch.equal(feature.read(torch.from_numpy(ids)), torch.from_numpy(array[ids]))
    with pytest.raises(TypeError, match="read-only"):
        feature.update(torch.zeros(1, 3), ints(1))


# ---------------------------------------------------------------------------------------------
# Several features, updates


@given(st.data())
def test_reads_and_updates_in_any_order(data):
    """Three features of unlike dtypes share a cache; each always equals its tensor."""
    place, policy = data.draw(st.sampled_from(PLACES)), data.draw(st.sampled_from(POLICIES))
    tensors = {
        "a": torch.arange(16, dtype=torch.int32).reshape(8, 2),
        "b": torch.arange(5.0, dtype=torch.float64).reshape(5, 1),
        "c": torch.arange(52, dtype=torch.float16).reshape(13, 2, 2)[:, :, :],
    }
    slow = {key: hp.TorchBasedFeature(tensor.clone()) for key, tensor in tensors.items()}
    hot = {"c": ints(4, 1, 0), "a": ints(7, 7)} if policy == "static" else None
    features = cached(place, slow, 8 * data.draw(st.integers(0, 12)), policy, hot)
    for step in range(data.draw(st.integers(1, 12))):
        key = data.draw(st.sampled_from(sorted(tensors)))
        tensor, feature = tensors[key], features[key]
        some = st.lists(st.integers(0, len(tensor) - 1), max_size=12)
        kind = data.draw(st.sampled_from(["read", "read", "read", "update", "all"]))
        if kind == "read":
            ids = torch.tensor(data.draw(some), dtype=torch.int64)
            assert_same(feature.read(ids), tensor[ids])
        elif kind == "update":
            ids = torch.tensor(sorted(set(data.draw(some))), dtype=torch.int64)
            value = torch.full((len(ids), *tensor.shape[1:]), 100 + step, dtype=tensor.dtype)
            tensor[ids] = value
            feature.update(value, ids)
        else:
            tensor += 1
            feature.update(tensor)
    for key, tensor in tensors.items():
        assert_same(features[key].read(torch.arange(len(tensor))), tensor)
        assert_same(features[key].read(), tensor)


@pytest.mark.parametrize("place", PLACES)
def test_d19_partial_update_of_a_shared_cache(place):
    """Row 1 of the second feature is not row 1 of the first."""
    slow = {key: Counted(torch.full((4, 1), value)) for key, value in (("a", 10), ("b", 20))}
    features = cached(place, slow, 1000)
    for feature in features.values():
        feature.read(torch.arange(4))
    features["b"].update(torch.tensor([[21]]), ints(1))
    assert features["a"].read(torch.arange(4)).flatten().tolist() == [10, 10, 10, 10]
    assert features["b"].read(torch.arange(4)).flatten().tolist() == [20, 21, 20, 20]
    assert slow["a"].asked == [[0, 1, 2, 3]]
    assert slow["b"].asked == [[0, 1, 2, 3], [1]]


@pytest.mark.parametrize("policy", SIMULATORS)
@pytest.mark.parametrize("place", PLACES)
def test_d19_full_update_keeps_the_policy_and_the_other_features_rows(place, policy):
    slow = {key: Counted(torch.full((4, 1), value)) for key, value in (("a", 10), ("b", 20))}
    features = cached(place, slow, 1000, policy)
    for feature in features.values():
        feature.read(torch.arange(4))
    cache = features["a"].cache
    resident = cache._index.resident().tolist()
    features["a"].update(torch.full((4, 1), 11))
    assert features["a"].cache is features["b"].cache is cache
    assert (cache.policy, cache._index.resident().tolist()) == (policy, resident)
    assert features["a"].read(torch.arange(4)).flatten().tolist() == [11, 11, 11, 11]
    assert features["b"].read(torch.arange(4)).flatten().tolist() == [20, 20, 20, 20]
    assert (len(slow["a"].asked), len(slow["b"].asked)) == (2, 1)


@pytest.mark.parametrize("place", PLACES)
def test_an_update_that_fails_half_way_leaves_no_stale_row(place):
    class Failing(hp.TorchBasedFeature):
        def update(self, value, ids=None):
            super().update(value, ids)
            raise OSError("disk full")

    feature = cached(place, Failing(torch.zeros(4, 1)), 1000)
    feature.read(torch.arange(4))
    with pytest.raises(OSError, match="disk full"):
        feature.update(torch.ones(1, 1), ints(2))
    assert feature.read(torch.arange(4)).flatten().tolist() == [0, 0, 1, 0]
    with pytest.raises(OSError, match="disk full"):
        feature.update(torch.full((4, 1), 7.0))
    assert feature.read(torch.arange(4)).flatten().tolist() == [7, 7, 7, 7]


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("place", PLACES)
def test_an_update_while_rows_are_read_leaves_no_stale_row(place, whole):
    """The slow read has its rows already when the update comes, and is stored after it, or not."""
    begun, go_on = threading.Event(), threading.Event()

    class Slow(hp.TorchBasedFeature):
        def read(self, ids=None):
            got = super().read(ids)
            if ids is not None and len(ids) and not go_on.is_set():
                begun.set()
                assert go_on.wait(30)
            return got

    feature = cached(place, Slow(torch.zeros(4, 1)), 1000)
    thread = threading.Thread(target=feature.read, args=(torch.arange(4),))
    thread.start()
    assert begun.wait(30)
    if whole:
        feature.update(torch.ones(4, 1))
    else:
        feature.update(torch.ones(2, 1), ints(3, 1))
    go_on.set()
    thread.join()
    expected = [1, 1, 1, 1] if whole else [0, 1, 0, 1]
    assert feature.read(torch.arange(4)).flatten().tolist() == expected


def test_a_row_overwritten_while_it_is_copied_is_read_again(monkeypatch):
    """Between the look-up and the copy, another reader evicts every row and fills the slots."""
    tensor = torch.arange(40).reshape(20, 2)
    slow = Counted(tensor)
    feature = hp.cpu_cached_feature(slow, 4 * 16, "lru")
    feature.read(ints(0, 1, 2, 3))
    copy, other = feature_cache.cache_rows.copy_hits, [ints(10, 11, 12)]

    def late(*arguments):
        if other:
            feature.read(other.pop())
        copy(*arguments)

    monkeypatch.setattr(feature_cache.cache_rows, "copy_hits", late)
    ids = ints(3, 19, 0, 3, 2)
    assert_same(feature.read(ids), tensor[ids])
    assert not other
    assert len(slow.asked) > 2
    assert set(slow.asked[2]) - {19}, "nothing was overwritten: the test tests nothing"
    assert_same(feature.read(torch.arange(20)), tensor)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("place", PLACES)
def test_many_threads_read_one_small_cache(place, policy):
    tensor = torch.arange(300).unsqueeze(1).expand(-1, 50).to(torch.float32)
    hot = torch.arange(40) if policy == "static" else None
    feature = cached(place, hp.TorchBasedFeature(tensor), 40 * 200, policy, hot)
    wrong = []

    def read(seed):
        rng = np.random.default_rng(seed)
        for _ in range(60):
            ids = torch.from_numpy(rng.zipf(1.3, 100) % 300)
            got = feature.read(ids)
            if not torch.equal(got, tensor[ids]):
                wrong.append(seed)
            got.fill_(-1)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert feature.cache._index.requests == 6 * 60 * 100


@pytest.mark.parametrize("place", PLACES)
def test_threads_that_read_and_one_that_updates(place):
    """Values only grow: a read that begins after an update shows it, or a later one."""
    feature = cached(place, hp.TorchBasedFeature(torch.zeros(40, 3)), 15 * 12)
    written = np.zeros(40)
    wrong, stop = [], threading.Event()

    def read(seed):
        rng = np.random.default_rng(seed)
        while not stop.is_set():
            ids = rng.integers(0, 40, 12)
            least = written[ids].copy()
            got = feature.read(torch.from_numpy(ids)).numpy()
            if (got < least[:, None]).any():
                wrong.append((ids, least, got))

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    rng = np.random.default_rng(9)
    for step in range(1, 300):
        ids = np.unique(rng.integers(0, 40, 6))
        if step % 50:
            feature.update(torch.full((len(ids), 3), float(step)), torch.from_numpy(ids))
            written[ids] = step
        else:
            feature.update(torch.full((40, 3), float(step)))
            written[:] = step
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
    expected = torch.from_numpy(written).float().unsqueeze(1).expand(-1, 3)
    assert torch.equal(feature.read(torch.arange(40)), expected)


@pytest.mark.parametrize("place", PLACES)
def test_an_error_of_the_slow_feature_is_told_and_leaves_nothing(place):
    class Broken(hp.TorchBasedFeature):
        broken = True

        def read(self, ids=None):
            if self.broken and ids is not None and len(ids):
                raise OSError("no medium")
            return super().read(ids)

    slow = Broken(torch.arange(8).reshape(4, 2))
    feature = cached(place, slow, 1000)
    for _ in range(2):
        with pytest.raises(OSError, match="no medium"):
            feature.read(ints(1, 3))
    slow.broken = False
    for _ in range(2):
        assert feature.read(ints(3, 1, 0)).tolist() == [[6, 7], [2, 3], [0, 1]]


@pytest.mark.parametrize("place", PLACES)
def test_a_writing_cut_off_leaves_no_row_that_was_not_written(place, monkeypatch):
    feature = cached(place, hp.TorchBasedFeature(torch.arange(8).reshape(4, 2)), 1000)
    write = type(feature.cache)._write

    def cut(self, *arguments):
        raise KeyboardInterrupt

    for ids, rest in ((ints(1, 3), []), (ints(3, 0), [3])):
        monkeypatch.setattr(type(feature.cache), "_write", cut)
        with pytest.raises(KeyboardInterrupt):
            feature.read(ids)
        monkeypatch.setattr(type(feature.cache), "_write", write)
        assert feature.read(ints(3, *rest)).tolist() == [[6, 7]] * (1 + len(rest))
    assert feature.read(torch.arange(4)).tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]


@pytest.mark.parametrize("place", PLACES)
def test_a_feature_that_changes_its_kind_is_told(place):
    slow = hp.TorchBasedFeature(torch.zeros(4, 2))
    feature = cached(place, slow, 1000)
    slow._tensor = torch.zeros(4, 2, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"gave torch.int32 .* for 1 ids; expected torch.float32"):
        feature.read(ints(1))


# ---------------------------------------------------------------------------------------------
# In a chain


def make_chain(place=None, policy=None):
    dataset = hp.planted_partition(300, feature_dim=4, degree_exponent=2.5, seed=2)
    slow = dataset.feature["node", None, "feat"]
    if place:
        hot = hp.hot_set_by_degree(dataset.graph, 40) if policy == "static" else None
        slow = cached(place, slow, 40 * 16, policy, hot)
    store = hp.BasicFeatureStore({("node", None, "feat"): slow})
    sampler = hp.ItemSampler(dataset.tasks[0].train_set, 60, shuffle=True, seed=1)
    return sampler.sample_neighbor(dataset.graph, [3, 3]).fetch_feature(store, ["feat"])


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("place", PLACES)
def test_a_loader_gives_what_it_gives_without_a_cache(place, policy):
    chain = make_chain(place, policy)
    feature = chain.feature_store["node", None, "feat"]
    with hp.DataLoader(make_chain()) as plain, hp.DataLoader(chain, num_workers=2) as loader:
        for _ in range(2):
            assert_same(list(loader), list(plain))
    assert 0 < feature.miss_rate < 1


def test_a_loader_over_a_cache_goes_on_exactly():
    check_resume(lambda: make_chain("cpu", "s3-fifo"))


def test_b73_reading_leaks_no_memory():
    tensor = torch.arange(4000.0).reshape(1000, 4)
    feature = hp.cpu_cached_feature(hp.TorchBasedFeature(tensor), 300 * 16)
    rng = np.random.default_rng(0)

    def read(times):
        for _ in range(times):
            feature.read(torch.from_numpy(rng.zipf(1.2, 64) % 1000))

    read(50)
    tracemalloc.start()
    try:
        read(200)
        before = tracemalloc.get_traced_memory()[0]
        read(2000)
        assert tracemalloc.get_traced_memory()[0] < before + 50_000
    finally:
        tracemalloc.stop()
