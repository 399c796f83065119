"""Feature caches by themselves: queries, sizes, sharing, hot sets; and all that is refused."""

from __future__ import annotations

import pickle
import threading

import numpy as np
import pytest
import torch

import hopline.pipes as hp
from tests.cache_simulators import SIMULATORS
from tests.pipes.features.test_cached import PLACES, Counted, cached, ints, make_cache
from tests.stage_checks import assert_same

# ---------------------------------------------------------------------------------------------
# The cache by itself


@pytest.mark.parametrize("place", PLACES)
def test_query_and_replace_by_hand(place):
    cache = make_cache(place, (3, 2), torch.int64, "lru")
    values, index, keys, offsets = cache.query(ints(4, 9, 4), offset=100)
    assert values.shape == (3, 2)
    assert (index.tolist(), keys.tolist()) == ([0, 1, 2], [4, 9, 4])
    cache.replace(keys, torch.stack([keys, keys]).t(), offsets, offset=100)
    values, index, keys, _ = cache.query(ints(9, 5, 4), offset=100)
    assert (index.tolist(), keys.tolist()) == ([1], [5])
    assert values[[0, 2]].tolist() == [[9, 9], [4, 4]]
    assert cache.query(ints(9))[1].tolist() == [0]  # another feature's 9
    assert cache.miss_rate == pytest.approx(4 / 7)  # the second 4 found a place


@pytest.mark.parametrize("policy", SIMULATORS)
@pytest.mark.parametrize("place", PLACES)
def test_replace_lets_keys_in_and_the_last_row_counts(place, policy):
    cache = make_cache(place, (2, 1), torch.float32, policy)
    cache.replace(ints(7, 7), torch.tensor([[1.0], [2.0]]))
    assert cache.query(ints(7))[0].tolist() == [[2.0]]
    cache.replace(ints(7), torch.tensor([[3.0]]))
    values, index, _, _ = cache.query(ints(7))
    assert (values.tolist(), index.tolist()) == ([[3.0]], [])
    cache.replace(torch.arange(20), torch.arange(20.0).unsqueeze(1))
    assert cache.query_and_replace(ints(19), lambda keys: None).tolist() == [[19.0]]


def test_replace_after_an_update_stores_nothing():
    cache = hp.CPUFeatureCache((3, 1), torch.float32)
    _, _, keys, offsets = cache.query(ints(1, 2))
    cache.forget(ints(2))
    cache.replace(keys, torch.zeros(2, 1), offsets)
    assert cache.query(ints(1, 2))[2].tolist() == [2]


@pytest.mark.parametrize("place", PLACES)
def test_statistics_and_sizes(place):
    cache = make_cache(place, (5, 3), torch.float16)
    assert (cache.miss_rate, cache.capacity, cache.policy) == (0.0, 5, "sieve")
    assert (cache.row_bytes, cache.cache_size_in_bytes) == (6, 30)
    feature = cached(place, hp.TorchBasedFeature(torch.zeros(9, 3), {"a": 1}), 30)
    assert (feature.miss_rate, feature.cache.capacity) == (0.0, 3)  # rounded up to whole rows
    assert feature.cache_size_in_bytes == 36
    assert feature.metadata() == {"a": 1}
    assert cached(place, hp.TorchBasedFeature(torch.zeros(9, 3)), 10**9).cache.capacity == 9
    for words in ("CachedFeature(TorchBased", "FeatureCache(3 rows of (3,), torch.float32, sieve)"):
        assert words in repr(feature)


def test_bytes_to_number_of_items():
    row = torch.zeros(1, 25)
    assert [hp.bytes_to_number_of_items(n, row) for n in (0, 1, 100, 101)] == [0, 1, 1, 2]
    assert hp.bytes_to_number_of_items(100, torch.zeros(1, 0)) == 0
    with pytest.raises(ValueError, match="is -1; expected 0 or more"):
        hp.bytes_to_number_of_items(-1, row)
    with pytest.raises(TypeError, match=r"is 1.5; expected an int"):
        hp.bytes_to_number_of_items(1.5, row)


def test_wrap_with_cached_feature():
    slow = {k: hp.TorchBasedFeature(torch.full((n, 2), n)) for k, n in (("a", 3), ("b", 4))}
    made = hp.wrap_with_cached_feature(hp.CPUCachedFeature, slow, 80, "lru", 2, pin_memory=False)
    assert list(made) == ["a", "b"]
    assert (made["a"].offset, made["b"].offset) == (0, 3)
    assert made["a"].cache is made["b"].cache
    assert (made["a"].cache.policy, made["a"].cache.capacity) == ("lru", 5)
    alone = hp.wrap_with_cached_feature(hp.GPUCachedFeature, slow["a"], 80, device="cpu")
    assert type(alone) is hp.GPUCachedFeature
    assert alone.read(ints(0)).device.type == "cpu"


def test_features_travel_with_an_empty_cache_which_they_still_share():
    slow = {key: hp.TorchBasedFeature(torch.eye(4)) for key in "ab"}
    features = hp.cpu_cached_feature(slow, 3 * 16, "clock")
    features["a"].read(torch.arange(4))
    there = pickle.loads(pickle.dumps(features))  # noqa: S301, our own
    assert there["a"].cache is there["b"].cache
    assert (there["a"].cache.policy, there["a"].miss_rate) == ("clock", 0.0)
    assert_same(there["b"].read(ints(3, 1)), torch.eye(4)[[3, 1]])
    cache = hp.GPUFeatureCache((3, 4), torch.int8, "static", device="cpu", hot_keys=ints(1, 2))
    again = pickle.loads(pickle.dumps(cache))  # noqa: S301
    assert again._index.resident().tolist() == [1, 2]


# ---------------------------------------------------------------------------------------------
# Static


@pytest.mark.parametrize("place", PLACES)
def test_static_holds_its_hot_ids_and_nothing_else(place):
    slow = Counted(torch.arange(20).reshape(10, 2))
    feature = cached(place, slow, 3 * 16, "static", ints(8, 2, 5, 1))
    for _ in range(3):
        assert feature.read(ints(8, 1, 2, 0)).tolist() == [[16, 17], [2, 3], [4, 5], [0, 1]]
    assert slow.asked == [[8, 1, 2, 0], [1, 0], [1, 0]]


def test_static_of_several_features_takes_the_hottest_of_each_first():
    slow = {key: hp.TorchBasedFeature(torch.zeros(10, 1)) for key in "abc"}
    hot = {"c": ints(5, 6, 7), "a": ints(1, 2, 3)}
    features = hp.cpu_cached_feature(slow, 5 * 4, "static", hot_ids=hot)
    assert features["a"].cache._index.resident().tolist() == [1, 2, 3, 25, 26]


@pytest.mark.parametrize(
    ("several", "hot", "error", "words"),
    [
        (False, {"a": ints(1)}, TypeError, "expected a tensor for one feature"),
        (True, ints(1), TypeError, "{key: tensor} for several"),
        (True, {"x": ints(1)}, ValueError, r"hot_ids has \['x'\]; the features are \['a', 'b'\]"),
        (True, {"b": ints(4)}, IndexError, r"hot_ids\['b'\]: id 4 .* outside \[0, 4\)"),
        (False, [1], TypeError, "expected a torch.Tensor of integers"),
        (False, None, ValueError, "hot ids are not given"),
    ],
)
def test_hot_ids_that_do_not_fit(several, hot, error, words):
    slow = {key: hp.TorchBasedFeature(torch.zeros(4, 1)) for key in "ab"}
    with pytest.raises(error, match=words):
        hp.cpu_cached_feature(slow if several else slow["a"], 8, "static", hot_ids=hot)


# ---------------------------------------------------------------------------------------------
# What is refused


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("place", PLACES)
def test_ids_out_of_range_and_of_wrong_kind(place, dtype):
    feature = cached(place, hp.TorchBasedFeature(torch.zeros(10, 2)), 1000)
    for bad in (10, -1):
        words = rf"feature ids: id {bad} at position 1 is outside \[0, 10\)"
        with pytest.raises(IndexError, match=words):
            feature.read(ints(0, bad, dtype=dtype))
        with pytest.raises(IndexError, match=words):
            feature.update(torch.ones(2, 2), ints(0, bad, dtype=dtype))
    for bad, error in ((torch.zeros(2), TypeError), ([1], TypeError), (ints([1]), ValueError)):
        with pytest.raises(error, match="feature ids: got"):
            feature.read(bad)
    assert feature.read(torch.arange(10)).sum() == 0


def test_rows_of_another_kind_at_odd_places_in_memory():
    """int8 rows that begin at any byte share a cache of float64."""

    class Sliced(hp.TorchBasedFeature):
        def read(self, ids=None):
            rows = super().read(ids)
            memory = torch.empty(rows.numel() + 3, dtype=rows.dtype)
            memory[3:] = rows.flatten()
            return memory[3:].view(rows.shape)

    slow = {
        "a": hp.TorchBasedFeature(torch.arange(5.0, dtype=torch.float64).unsqueeze(1)),
        "b": Sliced(torch.arange(40, dtype=torch.int8).reshape(5, 8)),
    }
    for place in PLACES:
        features = cached(place, slow, 1000)
        for ids in (ints(1, 4), ints(4, 0, 1), ints()):
            for key, feature in features.items():
                assert_same(feature.read(ids.long()), slow[key].read(ids.long()).clone())


def test_updates_that_do_not_fit():
    feature = hp.cpu_cached_feature(hp.TorchBasedFeature(torch.zeros(4, 2)), 1000)
    with pytest.raises(ValueError, match="value has 5 rows; the feature has 4"):
        feature.update(torch.zeros(5, 2))
    with pytest.raises(ValueError, match="rows of shape"):
        feature.update(torch.zeros(1, 3), ints(1))
    with pytest.raises(ValueError, match="got 1 ids for 2 rows"):
        feature.update(torch.zeros(2, 2), ints(1))
    with pytest.raises(TypeError, match=r"expected a torch\.Tensor"):
        feature.update([1.0])


@pytest.mark.parametrize(
    ("features", "size", "error", "words"),
    [
        (torch.zeros(4, 2), 8, TypeError, "fallback_features is a Tensor; expected a Feature"),
        ({}, 8, ValueError, "fallback_features is empty"),
        ({"a": 3}, 8, TypeError, r"fallback_features\['a'\] is a int; expected a Feature"),
        (hp.TorchBasedFeature(torch.eye(2)), -1, ValueError, "is -1; expected 0 or more"),
        (hp.TorchBasedFeature(torch.eye(2)), 1.5, TypeError, "is 1.5; expected an int"),
    ],
)
def test_what_cannot_be_cached(features, size, error, words):
    for place in PLACES:
        with pytest.raises(error, match=words):
            cached(place, features, size)


def test_rows_of_unlike_size_share_no_cache():
    slow = {"a": hp.TorchBasedFeature(torch.eye(3)), "b": hp.TorchBasedFeature(torch.eye(4))}
    with pytest.raises(ValueError, match=r"'b' has 16 bytes a row .*'a' has 12"):
        hp.cpu_cached_feature(slow, 100)
    cache = hp.CPUFeatureCache((3, 5), torch.float32)
    with pytest.raises(ValueError, match="rows of 12 bytes; the cache has rows of 20"):
        hp.CPUCachedFeature(slow["a"], cache)


def test_arguments_of_wrong_kind():
    slow, cache = hp.TorchBasedFeature(torch.eye(3)), hp.CPUFeatureCache((3, 3), torch.float32)
    with pytest.raises(TypeError, match="fallback_feature is a Tensor; expected a Feature"):
        hp.CPUCachedFeature(torch.eye(3), cache)
    with pytest.raises(TypeError, match="cache is a CPUFeatureCache; expected a GPUFeatureCache"):
        hp.GPUCachedFeature(slow, cache)
    with pytest.raises(TypeError, match=r"offset is 1.5; expected an int"):
        hp.CPUCachedFeature(slow, cache, 1.5)
    with pytest.raises(ValueError, match="offset is -1; expected 0 or more"):
        hp.CPUCachedFeature(slow, cache, -1)
    with pytest.raises(TypeError, match="expected CPUCachedFeature or GPUCachedFeature"):
        hp.wrap_with_cached_feature(hp.TorchBasedFeature, slow, 10)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((5, torch.int8), TypeError, "cache_shape is 5; expected"),
        (((5.0, 1), torch.int8), TypeError, "expected ints"),
        (((), torch.int8), ValueError, "expected .rows, "),
        (((-1, 2), torch.int8), ValueError, "expected .rows, "),
        (((1, 2), "int8"), TypeError, "dtype is 'int8'; expected a torch.dtype"),
        (((1, 2), torch.int8, "mru"), ValueError, "policy is 'mru'; expected one of"),
        (((1, 2), torch.int8, None, 0), ValueError, "num_parts is 0; expected 1 or more"),
        (((1, 2), torch.int8, None, "2"), TypeError, "num_parts is '2'; expected an int"),
    ],
)
def test_what_is_no_cache(arguments, error, words):
    with pytest.raises(error, match=words):
        hp.CPUFeatureCache(*arguments)


def test_what_readers_and_writers_give_is_checked():
    cache = hp.CPUFeatureCache((3, 2), torch.float32)
    for bad, words in (
        (torch.zeros(1, 2), r"was given torch.float32 of shape \(1, 2\); expected .*\(2, 2\)"),
        (torch.zeros(2, 2).int(), "was given torch.int32"),
    ):
        with pytest.raises(ValueError, match=words):
            cache.query_and_replace(ints(1, 2), lambda keys, bad=bad: bad)
    with pytest.raises(TypeError, match="was given a NoneType"):
        cache.query_and_replace(ints(1), lambda keys: None)
    with pytest.raises(ValueError, match=r"values are torch.float32 of shape \(1, 3\)"):
        cache.replace(ints(1), torch.zeros(1, 3))
    with pytest.raises(ValueError, match=r"offsets has shape \(2,\); expected 1"):
        cache.replace(ints(1), torch.zeros(1, 2), ints(1, 2))
    with pytest.raises(ValueError, match="low is -1; expected 0 or more"):
        cache.forget_range(-1, 4)
    with pytest.raises(TypeError, match="high is None; expected an int"):
        cache.forget_range(0, None)
    for call in (cache.query, cache.forget, lambda keys: cache.replace(keys, torch.zeros(1, 2))):
        with pytest.raises(IndexError, match="keys: id -3"):
            call(ints(-3))


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_without_a_gpu_it_is_told():
    slow = hp.TorchBasedFeature(torch.eye(3))
    with pytest.raises(RuntimeError, match="needs a GPU, and torch finds none here; use cpu_"):
        hp.gpu_cached_feature(slow, 12)
    with pytest.raises(RuntimeError, match="pinning memory needs a GPU"):
        hp.cpu_cached_feature(slow, 12, pin_memory=True)
    assert not hp.cpu_cached_feature(slow, 12).is_pinned()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("policy", [*SIMULATORS, "set-lru", "static"])
def test_on_a_gpu(policy):
    tensor = torch.arange(600.0).reshape(200, 3)
    inner = hp.cpu_cached_feature(hp.TorchBasedFeature(tensor), 100 * 12, pin_memory=True)
    assert inner.is_pinned()
    hot = torch.arange(60) if policy == "static" else None
    feature = hp.gpu_cached_feature(inner, 40 * 12, policy, hot_ids=hot)
    wrong = []

    def read(seed):
        rng = np.random.default_rng(seed)
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                ids = torch.from_numpy(rng.zipf(1.3, 60) % 200)
                got = feature.read(ids.cuda())
                if not got.is_cuda or not torch.equal(got.cpu(), tensor[ids]):
                    wrong.append(seed)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
