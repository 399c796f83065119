"""CacheIndex: the policies, key by key, beside simulators written from the papers' rules."""

from __future__ import annotations

import functools
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hopline.pipes as hp
from hopline.pipes.features.policies import POLICIES, CacheIndex
from tests.cache_simulators import SIMULATORS, Static

EVICTING = list(SIMULATORS)


def simulator(policy, capacity, hot=()):
    return Static(capacity, hot) if policy == "static" else SIMULATORS[policy](capacity)


def index(policy, capacity, hot=()):
    return CacheIndex(capacity, policy, np.array(hot, np.int64) if policy == "static" else None)


def check(policy, capacity, batches, offset=0, hot=()):
    """Every request is a hit or a miss as in the simulator, and the same keys stay."""
    real, model = index(policy, capacity, hot), simulator(policy, capacity, hot)
    hits = 0
    for ids in batches:
        ids = np.asarray(ids, np.int64)
        request = real.request(ids, offset)
        missed = np.zeros(len(ids), bool)
        missed[request.missing] = True
        expected = [model.access(key + offset) for key in ids.tolist()]
        hits += sum(expected)
        if policy != "static":  # there the first look-up of a key that is held reads its row
            assert (~missed).tolist() == expected
        assert real.resident().tolist() == sorted(model.resident())
        slots, rows = real.settle(ids, request.missing, offset, request.call)
        assert len(set(slots.tolist())) == len(slots) == len(set(rows.tolist()))
    assert real.requests == sum(map(len, batches))
    return hits, real


@functools.cache
def zipf_trace():
    """40,000 requests; the key of rank r is asked for in proportion to 1 / r; 100 at a time."""
    rng = np.random.default_rng(5)
    weights = 1 / np.arange(1, 5001)
    keys = rng.permutation(5000)[rng.choice(5000, 40_000, p=weights / weights.sum())]
    return np.array_split(keys.astype(np.int64), 400)


@functools.cache
def epoch_trace():
    """The input nodes of every mini-batch of an epoch, on a graph whose degrees are a power law."""
    dataset = hp.planted_partition(4000, degree_exponent=2.2, seed=3)
    sampler = hp.ItemSampler(dataset.tasks[0].train_set, 64, shuffle=True, seed=1)
    chain = sampler.sample_neighbor(dataset.graph, [5, 5])
    return [minibatch.input_nodes.numpy().astype(np.int64) for minibatch in chain]


TRACES = {"zipf": (zipf_trace, 50), "zipf, large": (zipf_trace, 500), "epoch": (epoch_trace, 400)}


@pytest.mark.parametrize("policy", EVICTING)
@pytest.mark.parametrize("name", TRACES)
def test_hits_on_traces_are_those_of_the_simulator(name, policy):
    trace, capacity = TRACES[name]
    hits, real = check(policy, capacity, trace())
    assert real.requests - real.misses == hits
    assert 0 < real.miss_rate < 1


@pytest.mark.parametrize("name", TRACES)
def test_sieve_and_s3_fifo_beat_lru(name):
    trace, capacity = TRACES[name]
    misses = {}
    for policy in EVICTING:
        real = index(policy, capacity)
        for ids in trace():
            request = real.request(ids, 0)
            real.settle(ids, request.missing, 0, request.call)
        misses[policy] = real.miss_rate
    assert misses["sieve"] < misses["lru"] - 0.04
    assert misses["s3-fifo"] < misses["lru"] - 0.04


def test_a_hot_set_by_degree_beats_lru_on_an_epoch():
    dataset = hp.planted_partition(4000, degree_exponent=2.2, seed=3)
    hot = hp.hot_set_by_degree(dataset.graph, 400).tolist()
    static, _ = check("static", 400, epoch_trace(), hot=hot)
    lru, _ = check("lru", 400, epoch_trace())
    assert static > lru + 1000


@given(st.data())
def test_any_requests(data):
    policy = data.draw(st.sampled_from(sorted(POLICIES)))
    capacity = data.draw(st.integers(0, 25))
    key = st.integers(0, data.draw(st.sampled_from([3, 10, 40])))
    batches = data.draw(st.lists(st.lists(key, max_size=40), max_size=12))
    offset = data.draw(st.sampled_from([0, 7, 2**40]))
    hot = [offset + k for k in data.draw(st.lists(key, max_size=30))]
    check(policy, capacity, batches, offset, hot)


@pytest.mark.parametrize("policy", EVICTING)
@pytest.mark.parametrize("capacity", [1, 2, 3, 10, 19, 20])
def test_small_caches_on_a_long_trace(policy, capacity):
    rng = np.random.default_rng(capacity)
    check(policy, capacity, np.array_split(rng.zipf(1.3, 3000) % 60, 37))


@pytest.mark.parametrize("policy", EVICTING)
def test_a_bulk_request_is_its_keys_one_by_one(policy):
    keys = np.random.default_rng(1).integers(0, 90, 1000)
    one, bulk = index(policy, 30), index(policy, 30)
    missed = []
    for at, key in enumerate(keys.tolist()):
        if len(one.request(np.array([key]), 0).missing):
            missed.append(at)
            one.settle(np.array([key]), np.array([0]), 0, one._calls)
    assert bulk.request(keys, 0).missing.tolist() == missed
    assert one.resident().tolist() == bulk.resident().tolist()


def test_lru_keeps_what_was_used_last():
    real = index("lru", 2)
    for key in (1, 2, 1, 3):
        real.request(np.array([key]), 0)
    assert real.resident().tolist() == [1, 3]


def test_sieve_keeps_what_was_met_again_and_lets_the_new_go():
    real = index("sieve", 3)
    for key in (1, 2, 3, 1, 4, 5):  # 1 is visited: 2 goes, then the hand is at 3
        real.request(np.array([key]), 0)
    assert real.resident().tolist() == [1, 4, 5]


def test_s3_fifo_lets_one_hit_wonders_pass():
    real = index("s3-fifo", 10)
    for _ in range(3):
        real.request(np.arange(9), 0)  # 9 keys, met three times
    real.request(np.arange(100, 200), 0)  # a scan
    assert set(range(9)) <= set(real.resident().tolist())


def test_static_holds_the_first_that_fit_each_once():
    real = index("static", 3, [7, 7, 2, 9, 4])
    real.request(np.array([1, 4, 4, 5]), 0)
    assert real.resident().tolist() == [2, 7, 9]


@pytest.mark.parametrize("policy", EVICTING)
def test_whoever_asked_last_fills_the_slot(policy):
    real = index(policy, 4)
    ids, at = np.array([3]), np.array([0])
    first, second = real.request(ids, 0), real.request(ids, 0)
    assert first.missing.tolist() == second.missing.tolist() == [0]
    assert len(real.settle(ids, at, 0, first.call)[0]) == 0
    assert len(real.settle(ids, at, 0, second.call)[0]) == 1
    assert len(real.settle(ids, at, 0, second.call)[0]) == 0
    assert len(real.request(ids, 0).missing) == 0


@pytest.mark.parametrize("policy", EVICTING)
def test_a_row_forgotten_while_it_is_read_is_not_stored(policy):
    real = index(policy, 4)
    ids, at = np.array([3]), np.array([0])
    for forget in (lambda: real.forget(ids, 0), lambda: real.forget_range(0, 4)):
        request = real.request(ids, 0)
        forget()
        assert len(real.settle(ids, at, 0, request.call)[0]) == 0
        assert real.resident().tolist() == [3]
    request = real.request(ids, 0)
    real.forget_range(0, 3)
    real.forget_range(4, 9)
    real.forget(np.array([2, 4]), 0)
    assert len(real.settle(ids, at, 0, request.call)[0]) == 1


@pytest.mark.parametrize("policy", EVICTING)
def test_a_row_overwritten_since_the_request_is_found(policy):
    real = index(policy, 1)
    ids = np.array([3, 3])
    request = real.request(ids, 0)
    real.settle(ids, request.missing, 0, request.call)
    request = real.request(ids, 0)
    assert request.source.tolist() == [-1, -1]
    other = real.request(np.array([5]), 0)
    real.recheck(request)
    assert len(request.missing) == 0
    real.settle(other.ids, other.missing, 0, other.call)
    real.recheck(request)
    assert request.missing.tolist() == [0, 1]
    assert request.source.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((4, "fifo"), r"policy is 'fifo'; expected one of \['sieve', 's3-fifo'"),
        ((-1, "lru"), "the cache has -1 rows; expected 0 to"),
        ((2**31, "lru"), "expected 0 to"),
        ((4, "static"), "policy is 'static' and hot ids are not given"),
        ((4, "lru", np.array([1])), "policy is 'lru' and hot ids are given"),
    ],
)
def test_what_is_no_index(arguments, words):
    with pytest.raises(ValueError, match=words):
        CacheIndex(*arguments)


@pytest.mark.parametrize("policy", EVICTING)
def test_many_threads_under_a_lock(policy):
    """The index stays whole: as many keys as slots, and every one found."""
    real, lock = index(policy, 50), threading.Lock()

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(50):
            ids = rng.zipf(1.2, 80) % 300
            with lock:
                request = real.request(ids, 0)
            with lock:
                real.settle(ids, request.missing, 0, request.call)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    keys = real.resident()
    assert len(keys) == len(set(keys.tolist())) == 50
    before = real.misses
    real.request(keys, 0)
    assert real.resident().tolist() == keys.tolist()
    assert real.misses == before
