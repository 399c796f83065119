"""Uniform negatives are uniform: within a mini-batch, over many, and beside true edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import hopline.pipes as hp
from hopline.pipes.kernels import edges as kernels
from tests.chi_square import assert_uniform
from tests.pipes.stages.test_negative import (
    graph_of,
    negatives,
    pair_tensor,
)
from tests.strategies import tensor
from tests.twins import fold


def test_destinations_are_uniform_within_a_mini_batch():
    got = negatives(graph_of([(0, 1)], 50), pair_tensor([(i, 0) for i in range(50)]), 200)
    drawn = got.seeds[50:]
    assert_uniform(np.bincount(drawn[:, 1], minlength=50))
    table = np.zeros((10, 10))
    np.add.at(table, (drawn[:, 0] // 5, drawn[:, 1] // 5), 1)
    assert_uniform(table)  # whatever the source
    successive = np.zeros((10, 10))
    np.add.at(successive, (drawn[:-1, 1] // 5, drawn[1:, 1] // 5), 1)
    assert_uniform(successive)


def test_destinations_are_uniform_over_mini_batches():
    graph = graph_of([(0, 1)], 20)
    counts = np.zeros(20)
    for index in range(2000):
        counts[int(negatives(graph, pair_tensor([(0, 1)]), 1, (5, 0, index)).seeds[1, 1])] += 1
    assert_uniform(counts)


@pytest.mark.parametrize("linked", [1, 10, 19])
def test_destinations_without_true_edges_are_uniform_among_the_rest(linked):
    pairs = [(0, d) for d in range(linked)]
    got = negatives(graph_of(pairs * 2, 20), pair_tensor(pairs[:1]), 4000, exclude_true_edges=True)
    counts = np.bincount(got.seeds[1:, 1], minlength=20)
    assert not counts[:linked].any()
    if linked < 19:
        assert_uniform(counts[linked:])


def test_what_is_almost_never_free_is_found():
    """64 draws miss 2 of 1000 nodes most of the time: they are then tried in turn."""
    pairs = [(0, d) for d in range(1000) if d not in (500, 501)]
    got = negatives(graph_of(pairs, 1000), pair_tensor([(0, 0)]), 2000, exclude_true_edges=True)
    counts = np.bincount(got.seeds[1:, 1], minlength=1000)
    assert counts.sum() == counts[[500, 501]].sum() == 2000
    assert_uniform(counts[[500, 501]])


def test_destinations_in_time_are_uniform_among_those_that_exist():
    graph = graph_of([(0, 1)], 40)
    graph.add_node_attribute("time", torch.arange(40).flip(0))
    got = negatives(
        graph, pair_tensor([(0, 1)]), 4000, timestamp=tensor([19]), node_timestamp_attr_name="time"
    )
    counts = np.bincount(got.seeds[1:, 1], minlength=40)
    assert not counts[:20].any()
    assert_uniform(counts[20:])


@pytest.mark.parametrize("change", ["in place", "replaced"])
@pytest.mark.parametrize("typed", [False, True])
def test_new_times_count_at_once(change, typed):
    times, etype = torch.arange(40), "n:to:n" if typed else None
    pairs = tensor([0]), tensor([1])
    if typed:
        graph = hp.from_coo({etype: pairs}, num_nodes={"m": 0, "n": 40})
    else:
        graph = hp.from_coo(*pairs, 40)
    graph.add_node_attribute("time", times)
    stage = hp.UniformNegativeSampler([], graph, 400, node_timestamp_attr_name="time")

    def drawn():
        seeds, timestamp = pair_tensor([(0, 1)]), tensor([9])
        if typed:
            seeds, timestamp = {etype: seeds}, {etype: timestamp}
        found = stage(hp.MiniBatch(seeds=seeds, timestamp=timestamp, key=(1, 0, 0))).seeds
        return set((found[etype] if typed else found)[1:, 1].tolist())

    assert drawn() == set(range(10))
    if change == "in place":
        times.copy_(torch.arange(40).flip(0))
    else:
        graph.add_node_attribute("time", torch.arange(40).flip(0))
    assert drawn() == set(range(30, 40))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 12, 97, 1000, 2**40])
def test_a_stride_visits_everything(count):
    for stream in range(50):
        step = kernels._stride(np.uint64(fold(stream, 1)), count)
        assert math.gcd(step, count) == 1
        assert 1 <= step < max(count, 2)
