"""ItemSampler, DistributedItemSampler, calculate_range: who reads which item, when."""

from __future__ import annotations

import itertools
import json
import math
import pickle
import subprocess
import sys
from collections import Counter
from datetime import timedelta

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from hopline.pipes import (
    DistributedItemSampler,
    HeteroItemSet,
    ItemSampler,
    ItemSet,
    MiniBatch,
    calculate_range,
    minibatcher_default,
)
from hopline.pipes.kernels import cpu
from tests import twins
from tests.chi_square import assert_uniform


def batches(sampler, epoch=0):
    """Seeds of each mini-batch of an epoch."""
    return [sampler.batch(epoch, i).seeds.tolist() for i in range(len(sampler))]


def items(sampler, epoch=0):
    return list(itertools.chain.from_iterable(batches(sampler, epoch)))


def rank_of(rank, num_ranks, n, batch_size, **kwargs):
    kwargs = {"seed": 5, **kwargs}
    return DistributedItemSampler(
        ItemSet(n, names="seeds"), batch_size, num_replicas=num_ranks, rank=rank, **kwargs
    )


# -------------------------------------------------------------------------------------------------
# calculate_range

# (total, ranks, workers, batch size), (drop_last, drop_uneven_inputs) of which the row holds, and
# (start, assigned, output) by rank and worker.
RANGES = [
    ((15, 4, 1, 2), [(0, 0), (0, 1)], [[(0, 4, 4)], [(4, 4, 4)], [(8, 4, 4)], [(12, 3, 3)]]),
    ((15, 4, 1, 2), [(1, 0)], [[(0, 4, 4)], [(4, 4, 4)], [(8, 4, 4)], [(12, 3, 2)]]),
    ((15, 4, 1, 2), [(1, 1)], [[(0, 4, 2)], [(4, 4, 2)], [(8, 4, 2)], [(12, 3, 2)]]),
    ((30, 4, 0, 4), [(0, 0), (0, 1)], [[(0, 8, 8)], [(8, 8, 8)], [(16, 8, 8)], [(24, 6, 6)]]),
    ((30, 4, 0, 4), [(1, 0)], [[(0, 8, 8)], [(8, 8, 8)], [(16, 8, 8)], [(24, 6, 4)]]),
    ((30, 4, 0, 4), [(1, 1)], [[(0, 8, 4)], [(8, 8, 4)], [(16, 8, 4)], [(24, 6, 4)]]),
    (
        (53, 4, 2, 4),
        [(0, 0)],
        [
            [(0, 8, 8), (8, 8, 8)],
            [(16, 8, 8), (24, 5, 5)],
            [(29, 8, 8), (37, 4, 4)],
            [(41, 8, 8), (49, 4, 4)],
        ],
    ),
    (
        (53, 4, 2, 4),
        [(1, 0)],
        [
            [(0, 8, 8), (8, 8, 8)],
            [(16, 9, 8), (25, 4, 4)],
            [(29, 8, 8), (37, 4, 4)],
            [(41, 8, 8), (49, 4, 4)],
        ],
    ),
    (
        (53, 4, 2, 4),
        [(0, 1), (1, 1)],
        [
            [(0, 10, 8), (10, 6, 4)],
            [(16, 9, 8), (25, 4, 4)],
            [(29, 8, 8), (37, 4, 4)],
            [(41, 8, 8), (49, 4, 4)],
        ],
    ),
    (
        (63, 4, 2, 4),
        [(1, 0)],
        [
            [(0, 8, 8), (8, 8, 8)],
            [(16, 8, 8), (24, 8, 8)],
            [(32, 8, 8), (40, 8, 8)],
            [(48, 10, 8), (58, 5, 4)],
        ],
    ),
    (
        (63, 4, 2, 4),
        [(1, 1)],
        [
            [(0, 10, 8), (10, 6, 4)],
            [(16, 10, 8), (26, 6, 4)],
            [(32, 10, 8), (42, 6, 4)],
            [(48, 10, 8), (58, 5, 4)],
        ],
    ),
    (
        (65, 4, 2, 4),
        [(0, 0)],
        [
            [(0, 9, 9), (9, 8, 8)],
            [(17, 8, 8), (25, 8, 8)],
            [(33, 8, 8), (41, 8, 8)],
            [(49, 8, 8), (57, 8, 8)],
        ],
    ),
    (
        (65, 4, 2, 4),
        [(1, 1)],
        [
            [(0, 9, 8), (9, 8, 8)],
            [(17, 8, 8), (25, 8, 8)],
            [(33, 8, 8), (41, 8, 8)],
            [(49, 8, 8), (57, 8, 8)],
        ],
    ),
    # An empty last rank empties all.
    ((3, 4, 1, 4), [(0, 1)], [[(0, 3, 0)], [(3, 0, 0)], [(3, 0, 0)], [(3, 0, 0)]]),
]


@pytest.mark.parametrize(
    ("sizes", "flags", "expected"),
    [(sizes, flags, expected) for sizes, many, expected in RANGES for flags in many],
)
def test_range_table(sizes, flags, expected):
    total, ranks, workers, batch_size = sizes
    got = [
        [
            calculate_range(
                True,
                total,
                ranks,
                rank,
                workers,
                worker,
                batch_size,
                bool(flags[0]),
                bool(flags[1]),
            )
            for worker in range(max(workers, 1))
        ]
        for rank in range(ranks)
    ]
    assert got == expected


@pytest.mark.parametrize("worker", range(4))
def test_range_of_one_process(worker):
    assert calculate_range(False, 10, 1, 0, 4, worker, 4, True, False) == (0, 10, 8)
    assert calculate_range(False, 10, 1, 0, 4, worker, 4, False, False) == (0, 10, 10)


@given(
    st.integers(0, 200),
    st.integers(1, 6),
    st.integers(0, 4),
    st.integers(1, 9),
    st.booleans(),
    st.booleans(),
)
def test_ranges_cover_all_items_without_overlap(total, ranks, workers, batch_size, last, uneven):
    at = 0
    counts = []
    for rank in range(ranks):
        delivered = 0
        for worker in range(max(workers, 1)):
            start, assigned, output = calculate_range(
                True, total, ranks, rank, workers, worker, batch_size, last, uneven
            )
            assert start == at
            assert 0 <= output <= assigned
            at += assigned
            delivered += output
            if last:
                assert output % batch_size == 0
        counts.append(math.ceil(delivered / batch_size))
    assert at == total
    if uneven:
        assert len(set(counts)) == 1
    else:
        assert max(counts) - min(counts) <= 1


# -------------------------------------------------------------------------------------------------
# Exactly once


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
def test_every_item_exactly_once(shuffle, drop_last):
    for n, batch_size in itertools.product(range(41), range(1, 8)):
        sampler = ItemSampler(ItemSet(n, "seeds"), batch_size, drop_last=drop_last, shuffle=shuffle,
                              seed=3)  # fmt: skip
        got = batches(sampler, epoch=1)
        read = list(itertools.chain.from_iterable(got))
        assert [m.seeds.tolist() for m in sampler] != [] or not got
        sizes = [batch_size] * (n // batch_size)
        if n % batch_size and not drop_last:
            sizes.append(n % batch_size)
        assert [len(batch) for batch in got] == sizes
        assert len(sampler) == len(sizes)
        if drop_last:
            assert len(set(read)) == len(read) == sum(sizes)
        else:
            assert Counter(read) == Counter(range(n))
        if not shuffle:
            assert read == list(range(sum(sizes)))


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("drop_uneven", [False, True])
def test_every_item_exactly_once_over_ranks(shuffle, drop_last, drop_uneven):
    for n, ranks, batch_size in itertools.product(range(41), range(1, 6), range(1, 8)):
        samplers = [
            rank_of(r, ranks, n, batch_size, shuffle=shuffle, drop_last=drop_last,
                    drop_uneven_inputs=drop_uneven)
            for r in range(ranks)
        ]  # fmt: skip
        epochs = [[s.batch(2, i) for i in range(len(s))] for s in samplers]
        read = [m.seeds.tolist() for batches in epochs for m in batches]
        flat = list(itertools.chain.from_iterable(read))
        case = (n, ranks, batch_size)
        assert all(read), case  # no mini-batch is empty
        assert len(set(flat)) == len(flat), case  # no item twice
        keys = [m.key for batches in epochs for m in batches]
        assert len(set(keys)) == len(keys), case
        assert {key[:2] for key in keys} <= {(5, 2)}
        lengths = [len(s) for s in samplers]
        sizes = Counter(map(len, read))
        if not drop_last and not drop_uneven:
            assert sorted(flat) == list(range(n)), case
            assert max(lengths) - min(lengths) <= 1
            assert sum(count for size, count in sizes.items() if size < batch_size) <= 1
        if drop_last:
            assert set(sizes) <= {batch_size}, case
        if drop_uneven:
            assert len(set(lengths)) == 1, case
        if drop_last and drop_uneven:
            assert len(flat) == n // (batch_size * ranks) * batch_size * ranks, case
        if drop_last and not drop_uneven:
            assert len(flat) == n // batch_size * batch_size, case


def test_an_even_number_of_items_with_an_uneven_number_of_batches():
    # 4097 items on 4 ranks: shares of 1025, 1025, 1025 and 1022 would make 2, 2, 2 and 1 batches.
    def lengths(**kwargs):
        return [len(rank_of(r, 4, 4097, 1024, **kwargs)) for r in range(4)]

    assert lengths() == [2, 1, 1, 1]
    assert lengths(drop_uneven_inputs=True) == [1, 1, 1, 1]
    assert lengths(drop_uneven_inputs=True, drop_last=True) == [1, 1, 1, 1]
    assert [len(rank_of(r, 4, 5, 1)) for r in range(4)] == [2, 1, 1, 1]
    assert [len(rank_of(r, 8, 3, 1)) for r in range(8)] == [1, 1, 1, 0, 0, 0, 0, 0]


def test_evaluation_repeats_no_item():
    # 10 items on 4 ranks: padding would make 12 of them.
    read = [i for r in range(4) for i in items(rank_of(r, 4, 10, 1))]
    assert sorted(read) == list(range(10))


# -------------------------------------------------------------------------------------------------
# Order


def test_without_shuffle_items_come_in_order():
    sampler = ItemSampler(ItemSet(10_000, "seeds"), 1024)
    assert items(sampler) == list(range(10_000))
    assert [b[0] for b in batches(sampler)] == list(range(0, 10_000, 1024))


@pytest.mark.parametrize("n", [1, 2, 3, 7, 64, 100])
def test_order_equals_the_twin(n):
    sampler = ItemSampler(ItemSet(n, "seeds"), 3, shuffle=True, seed=2**63 - 1)
    for epoch in (0, 1, 10**6):
        assert items(sampler, epoch) == twins.epoch_order(2**63 - 1, epoch, n)


def test_huge_sets_cost_no_memory():
    n = 2**40
    sampler = ItemSampler(ItemSet(n, "seeds"), 4, shuffle=True, seed=1)
    assert len(sampler) == 2**38
    last = sampler.batch(0, 2**38 - 1).seeds
    assert ((last >= 0) & (last < n)).all()
    assert len(set(last.tolist())) == 4


def test_each_loop_reads_a_new_permutation_also_after_a_break():
    sampler = ItemSampler(ItemSet(50, "seeds"), 10, shuffle=True, seed=1)
    orders = []
    for loop in range(6):
        seeds = []
        for minibatch in sampler:
            seeds.append(tuple(minibatch.seeds.tolist()))
            if loop % 2:
                break
        orders.append(seeds)
    assert [len(order) for order in orders] == [5, 1, 5, 1, 5, 1]
    assert len({order[0] for order in orders}) == 6
    assert [order[0] for order in orders] == [tuple(batches(sampler, e)[0]) for e in range(6)]


def test_seeds_and_epochs_give_different_orders():
    orders = {
        tuple(items(ItemSampler(ItemSet(30, "seeds"), 7, shuffle=True, seed=seed), epoch))
        for seed in range(20)
        for epoch in range(20)
    }
    assert len(orders) == 400


def test_all_orders_of_four_items_are_equally_likely():
    counts = Counter(
        tuple(items(ItemSampler(ItemSet(4, "seeds"), 4, shuffle=True, seed=seed), epoch))
        for seed in range(400)
        for epoch in range(12)
    )
    assert len(counts) == 24
    assert_uniform(list(counts.values()))


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_number_of_rounds_makes_all_orders_equally_likely(n):
    """The distance from uniform, by the transition matrix of a round over all n! orders."""
    orders = list(itertools.permutations(range(n)))
    number = {order: i for i, order in enumerate(orders)}
    step = np.zeros((len(orders), len(orders)))
    for k in range(n):
        pairs = {tuple(sorted((x, (k - x) % n))) for x in range(n) if x != (k - x) % n}
        for swaps in itertools.product((False, True), repeat=len(pairs)):
            image = list(range(n))
            for (a, b), swap in zip(sorted(pairs), swaps, strict=True):
                if swap:
                    image[a], image[b] = b, a
            for order in orders:
                target = number[tuple(image[x] for x in order)]
                step[number[order], target] += 1 / n / 2 ** len(pairs)
    rounds = len(ItemSampler.__init__.__globals__["_round_keys"](0, 0, n))
    after = np.linalg.matrix_power(step, rounds)[0]
    assert np.abs(after - 1 / len(orders)).sum() / 2 < 1e-5


@pytest.mark.parametrize(("n", "seeds", "bins"), [(5, 2000, 5), (1000, 60, 25)])
def test_positions_of_items_are_uniform(n, seeds, bins):
    places = np.zeros((bins, bins), np.int64)
    follows = np.zeros(bins, np.int64)  # how far the next item is from an item
    for seed in range(seeds):
        order = np.array(items(ItemSampler(ItemSet(n, "seeds"), n, shuffle=True, seed=seed)))
        np.add.at(places, (np.arange(n) * bins // n, order * bins // n), 1)
        gaps = (np.diff(order) % n - 1) * bins // (n - 1)
        follows += np.bincount(gaps, minlength=bins)
    if bins == n:
        for row in (*places, *places.T):
            assert_uniform(row)
        follows = follows[: n - 1]
    else:
        # Each row and column is fixed: sampling without replacement makes it slightly too even.
        assert_uniform(places)
    assert_uniform(follows)


def test_shuffled_range_is_the_same_in_any_pieces():
    keys = np.arange(40, dtype=np.uint64) * 7919
    whole = np.empty(101, np.int64)
    cpu.shuffled_range(keys, 101, 0, whole)
    assert sorted(whole) == list(range(101))
    for start, stop in ((0, 1), (17, 60), (100, 101), (50, 50)):
        piece = np.empty(stop - start, np.int64)
        cpu.shuffled_range(keys, 101, start, piece)
        assert (piece == whole[start:stop]).all()


def test_every_rank_meets_every_item():
    for n, ranks, batch_size in ((100, 4, 4), (41, 3, 7), (7, 4, 1)):
        for rank in range(ranks):
            sampler = rank_of(rank, ranks, n, batch_size, shuffle=True)
            met = Counter(i for epoch in range(120) for i in items(sampler, epoch))
            assert set(met) == set(range(n))


def test_ranks_mix_what_lies_together():
    # Labels in blocks of 25: a rank that always read one slice would see one label.
    for rank in range(4):
        for epoch in range(5):
            labels = Counter(i // 25 for i in items(rank_of(rank, 4, 100, 5, shuffle=True), epoch))
            assert len(labels) == 4


def test_drop_last_leaves_out_other_items_each_epoch():
    sampler = ItemSampler(ItemSet(900, "seeds"), 200, drop_last=True, shuffle=True, seed=0)
    left = [set(range(900)) - set(items(sampler, epoch)) for epoch in range(50)]
    assert all(len(x) == 100 for x in left)
    assert set.intersection(*left) == set()
    assert len({frozenset(x) for x in left}) == 50


# -------------------------------------------------------------------------------------------------
# Mini-batches


def test_columns_go_to_the_fields_of_their_name():
    columns = (torch.arange(5), torch.arange(5) % 2, torch.arange(5) * 10.0, list("abcde"))
    items = ItemSet(columns, ("seeds", "labels", "timestamp", "tag"))
    minibatch = ItemSampler(items, 2, seed=8).batch(3, 1)
    assert minibatch.seeds.tolist() == [2, 3]
    assert minibatch.labels.tolist() == [0, 1]
    assert minibatch.timestamp.tolist() == [20.0, 30.0]
    assert minibatch.tag == ["c", "d"]
    assert minibatch.key == (8, 3, 1)


def test_hetero_items_are_shuffled_together():
    sets = HeteroItemSet(
        {
            kind: ItemSet((torch.arange(n), torch.arange(n) + first), ("seeds", "labels"))
            for kind, n, first in (("user", 12, 0), ("item", 5, 12))
        }
    )
    for shuffle in (False, True):
        sampler = ItemSampler(sets, 4, shuffle=shuffle, seed=1)
        labels = []
        for minibatch in sampler:
            assert minibatch.seeds.keys() == minibatch.labels.keys() <= {"user", "item"}
            for kind, first in (("user", 0), ("item", 12)):
                if kind in minibatch.seeds:
                    assert (minibatch.seeds[kind] + first == minibatch.labels[kind]).all()
            labels += [x for part in minibatch.labels.values() for x in part.tolist()]
        assert sorted(labels) == list(range(17))
        if not shuffle:
            assert labels == list(range(17))


def test_own_minibatcher():
    def pairs(batch, names):
        assert names is None
        return MiniBatch(seeds=batch[0] * 2)

    sampler = ItemSampler(ItemSet((torch.arange(4),)), 3, minibatcher=pairs, seed=0)
    assert [m.seeds.tolist() for m in sampler] == [[0, 2, 4], [6]]
    with pytest.raises(ValueError, match="no names"):
        minibatcher_default(torch.arange(3), None)
    bad = ItemSampler(ItemSet(3), 2, minibatcher=lambda batch, names: batch)
    with pytest.raises(TypeError, match="Tensor"):
        next(iter(bad))


def test_batch_out_of_range():
    sampler = ItemSampler(ItemSet(5, "seeds"), 2)
    for index in (3, -1):
        with pytest.raises(IndexError, match=f"{index} of 3"):
            sampler.batch(0, index)


def test_sampler_travels_by_pickle():
    sampler = ItemSampler(ItemSet(20, "seeds"), 3, shuffle=True, seed=4)
    next(iter(sampler))
    again = pickle.loads(pickle.dumps(sampler))  # noqa: S301
    assert batches(again, 1) == batches(sampler, 1)


def test_a_seed_is_drawn_and_told():
    first, second = (ItemSampler(ItemSet(40, "seeds"), 40, shuffle=True) for _ in range(2))
    assert first.seed != second.seed
    assert 0 <= first.seed < 2**63
    again = ItemSampler(ItemSet(40, "seeds"), 40, shuffle=True, seed=first.seed)
    assert items(again) == items(first)
    assert items(first) != items(second)


# -------------------------------------------------------------------------------------------------
# Wrong arguments

SET = ItemSet(3, "seeds")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ItemSampler([1, 2], 2), TypeError, "list"),
        (lambda: ItemSampler(SET, 0), ValueError, "batch_size is 0"),
        (lambda: ItemSampler(SET, -3), ValueError, "-3"),
        (lambda: ItemSampler(SET, 2.0), TypeError, "2.0"),
        (lambda: ItemSampler(SET, True), TypeError, "True"),
        (lambda: ItemSampler(SET, 2, minibatcher="x"), TypeError, "str"),
        (lambda: ItemSampler(SET, 2, drop_last=1), TypeError, "drop_last is 1"),
        (lambda: ItemSampler(SET, 2, shuffle="yes"), TypeError, "shuffle is 'yes'"),
        (lambda: ItemSampler(SET, 2, seed=-1), ValueError, "-1"),
        (lambda: ItemSampler(SET, 2, seed=2**63), ValueError, str(2**63)),
        (lambda: ItemSampler(SET, 2, seed=1.5), TypeError, "1.5"),
        (lambda: ItemSampler(ItemSet(3), 2), ValueError, "no names"),
        (lambda: ItemSampler(ItemSet(3, "key"), 2).batch(0, 0), ValueError, "'key'"),
        (lambda: DistributedItemSampler(SET, 2), RuntimeError, "no process group"),
        (lambda: DistributedItemSampler(SET, 2, num_replicas=2), ValueError, "num_replicas is 2"),
        (lambda: DistributedItemSampler(SET, 2, rank=0), ValueError, "rank 0"),
        (lambda: rank_of(2, 2, 3, 1), ValueError, "rank is 2"),
        (lambda: rank_of(-1, 2, 3, 1), ValueError, "rank is -1"),
        (lambda: rank_of(0, 2, 3, 1, seed=None), ValueError, "seed"),
        (lambda: rank_of(0, 2, 3, 1, drop_uneven_inputs=None), TypeError, "drop_uneven_inputs"),
    ],
)
def test_wrong_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()


# -------------------------------------------------------------------------------------------------
# A process group


FIRST_RANK = """
import sys
from datetime import timedelta
import torch.distributed as dist
from hopline.pipes import DistributedItemSampler, ItemSet

dist.init_process_group("gloo", init_method=sys.argv[1], rank=0, world_size=2,
                        timeout=timedelta(seconds=100))
sampler = DistributedItemSampler(ItemSet(20, "seeds"), 4, shuffle=True)
print([sampler.rank, sampler.num_replicas, sampler.seed])
print([i for minibatch in sampler for i in minibatch.seeds.tolist()])
dist.destroy_process_group()
"""


def test_ranks_agree_on_a_seed(tmp_path):
    method = f"file://{tmp_path / 'store'}"
    child = subprocess.Popen(
        [sys.executable, "-c", FIRST_RANK, method], stdout=subprocess.PIPE, text=True
    )
    try:
        dist.init_process_group(
            "gloo", init_method=method, rank=1, world_size=2, timeout=timedelta(seconds=100)
        )
        sampler = DistributedItemSampler(ItemSet(20, "seeds"), 4, shuffle=True)
        mine = items(sampler)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        output, _ = child.communicate(timeout=100)
    assert child.returncode == 0
    # Before them, torch 2.9 prints who is connected.
    facts, theirs = map(json.loads, output.splitlines()[-2:])
    assert facts == [0, 2, sampler.seed]
    assert (sampler.rank, sampler.num_replicas) == (1, 2)
    assert (len(theirs), len(mine)) == (12, 8)
    assert sorted(theirs + mine) == list(range(20))
