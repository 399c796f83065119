"""The counter-based generator: against its twin, published values, and statistics."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hopline.pipes as hp
from hopline.pipes.kernels import cpu
from hopline.pipes.random import Purpose, batch_key, draw_seed, fold, mix64
from tests import twins
from tests.chi_square import assert_uniform

words = st.integers(0, 2**64 - 1)
GOLDEN = 0x9E3779B97F4A7C15


@given(words, st.lists(st.integers(-(2**70), 2**70), max_size=5))
def test_equals_the_twin(key, counters):
    assert mix64(key) == twins.mix64(key)
    assert fold(key, *counters) == twins.fold(key, *counters)


@given(words, st.integers(0, 2**63 - 1), st.integers(1, 2**62))
def test_kernel_equals_the_twin(key, counter, bound):
    assert int(cpu._fold(np.uint64(key), np.int64(counter))) == twins.fold(key, counter)
    assert int(cpu._below(np.uint64(key), np.int64(bound))) == twins.below(key, bound)


def test_is_splitmix64():
    # First outputs for the states 0 and 1234567, as other implementations of SplitMix64 give them.
    assert [fold(0, i) for i in range(3)] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]
    assert [fold(1234567, i) for i in range(3)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


def test_folds_one_counter_after_another():
    assert fold(7) == 7
    assert fold(7, 1, 2, 3) == fold(fold(fold(7, 1), 2), 3)
    assert fold(7, 1, 2) != fold(7, 2, 1)


def test_keys_of_all_batches_differ():
    keys = {
        batch_key(seed, purpose, epoch, index)
        for seed in (0, 1, 2**63 - 1)
        for purpose in Purpose
        for epoch in range(20)
        for index in range(200)
    }
    assert len(keys) == 3 * len(Purpose) * 20 * 200


def test_a_flipped_bit_changes_half_of_the_bits():
    flips = []
    for word in range(200):
        for bit in range(64):
            flips.append((mix64(word) ^ mix64(word ^ 1 << bit)).bit_count())
    assert abs(np.mean(flips) - 32) < 0.1
    assert min(flips) >= 10


@pytest.mark.parametrize("shift", [0, 30, 59])
@pytest.mark.parametrize(
    "counters", [lambda i: (i,), lambda i: (i, 0), lambda i: (0, i), lambda i: (i % 128, i // 128)]
)
def test_words_are_uniform(shift, counters):
    values = [fold(5, *counters(i)) >> shift & 31 for i in range(1 << 14)]
    assert_uniform(np.bincount(values, minlength=32))
    pairs = [32 * a + b for a, b in zip(values[::2], values[1::2], strict=True)]
    assert_uniform(np.bincount(pairs, minlength=1024))


def test_draw_seed_reads_no_global_generator():
    states = random.getstate(), torch.get_rng_state(), np.random.get_state()  # noqa: NPY002
    seeds = {draw_seed() for _ in range(100)}
    assert len(seeds) == 100
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert random.getstate() == states[0]
    assert torch.equal(torch.get_rng_state(), states[1])
    np.testing.assert_equal(np.random.get_state(), states[2])  # noqa: NPY002


# -------------------------------------------------------------------------------------------------
# seed


@pytest.fixture
def unseeded():
    yield
    hp.seed(None)


def new_seed() -> int:
    return hp.ItemSampler(hp.ItemSet(8, names="seeds"), 4, shuffle=True).seed


def test_seed_settles_the_seeds_of_later_samplers(unseeded):
    hp.seed(11)
    first = [new_seed() for _ in range(5)]
    assert len(set(first)) == 5
    assert all(0 <= value < 2**63 for value in first)
    hp.seed(11)
    again = [new_seed() for _ in range(2)]
    hp.ItemSampler(hp.ItemSet(8, names="seeds"), 4, seed=3)  # has one: takes none
    again += [new_seed() for _ in range(3)]
    assert again == first
    hp.seed(12)
    assert not {new_seed() for _ in range(5)} & set(first)
    assert first == [fold(11, 0, i) >> 1 for i in range(5)]  # for life: runs are repeated


def test_none_undoes_it(unseeded):
    hp.seed(11)
    first = new_seed()
    hp.seed(None)
    assert first not in {new_seed(), new_seed()}


def test_a_sampler_keeps_its_seed(unseeded):
    hp.seed(11)
    sampler = hp.ItemSampler(hp.ItemSet(8, names="seeds"), 4, shuffle=True)
    before = [sampler.batch(0, i).seeds.tolist() for i in range(2)]
    hp.seed(12)
    new_seed()
    assert [sampler.batch(0, i).seeds.tolist() for i in range(2)] == before


def test_threads_share_the_seeds_out(unseeded):
    hp.seed(11)
    alone = sorted(new_seed() for _ in range(400))
    hp.seed(11)
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda: found.extend([new_seed() for _ in range(100)]))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == alone


def test_seed_touches_no_other_generator(unseeded):
    states = random.getstate(), torch.get_rng_state(), np.random.get_state()  # noqa: NPY002
    hp.seed(11)
    new_seed()
    assert random.getstate() == states[0]
    assert torch.equal(torch.get_rng_state(), states[1])
    np.testing.assert_equal(np.random.get_state(), states[2])  # noqa: NPY002


@pytest.mark.parametrize(
    ("value", "error"), [(1.5, TypeError), ("1", TypeError), (True, TypeError), (-1, ValueError),
                         (2**63, ValueError)],
)  # fmt: skip
def test_seed_refuses(value, error):
    with pytest.raises(error, match="val is"):
        hp.seed(value)
