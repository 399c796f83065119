"""Sampling in proportion to weights: against the twin, exact probabilities, and wrong input."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hopline.pipes as hp
from hopline.pipes.hop import HopRule
from hopline.pipes.kernels import draws
from tests import twins, twins_scored
from tests.chi_square import assert_follows, assert_uniform
from tests.number_chains import numbers, ring
from tests.stage_checks import check_resume
from tests.strategies import (
    WEIGHTS,
    as_given,
    attribute,
    build,
    edge_weights,
    fanout_lists,
    heterogeneous,
    homogeneous,
    sampled,
    seed_tensors,
    seeds_of,
    tensor,
)
from tests.twins import EDGE, NODE

graphs = st.one_of(homogeneous(), heterogeneous())
SAMPLERS = [
    hp.NeighborSampler,
    hp.LayerNeighborSampler,
    hp.TemporalNeighborSampler,
    hp.TemporalLayerNeighborSampler,
]


def sample(graph, seeds, fanouts, key=(1, 2, 3), stage=hp.NeighborSampler, **kwargs):
    """One mini-batch, by a sampler that takes weights."""
    minibatch = hp.MiniBatch(seeds=seeds, key=key)
    return stage([], graph, fanouts, prob_name="w", **kwargs)(minibatch)


def star(weights: torch.Tensor) -> hp.FusedCSCSamplingGraph:
    """Node 0 with an in-edge from each of the nodes 1, 2, ..., of these weights."""
    n = len(weights)
    return hp.from_coo(
        torch.arange(1, n + 1), torch.zeros(n, dtype=torch.int64), n + 1,
        edge_attributes={"w": weights},
    )  # fmt: skip


# -------------------------------------------------------------------------------------------------
# The twin


@given(graphs, st.data())
@settings(max_examples=80)
@pytest.mark.parametrize("replace", [False, True])
def test_equals_the_twin(replace, graph, data):
    seeds = data.draw(seeds_of(graph))
    fanouts = data.draw(fanout_lists(graph, replace, max_hops=2))
    sizes = {etype: len(pairs) for etype, pairs in graph.edges.items()}
    weights = data.draw(attribute(sizes, WEIGHTS))
    keep, wide, once = (data.draw(st.booleans()) for _ in range(3))
    key = tuple(data.draw(st.integers(0, 2**63 - 1)) for _ in range(3))
    built = build(
        graph, wide, include_original_edge_id=keep, edge_attributes={"w": as_given(graph, weights)}
    )
    minibatch = sample(
        built, seed_tensors(graph, seeds), [*map(tensor, fanouts)], key, replace=replace,
        deduplicate=once,
    )  # fmt: skip
    rule = twins_scored.Rule(fanouts, replace, edge_weights(graph, weights), deduplicate=once)
    expected, _ = twins_scored.sample(graph, seeds, rule, key, original_ids=keep)
    assert sampled(minibatch, graph) == expected


@given(graphs, st.data())
@pytest.mark.parametrize("replace", [False, True])
def test_without_weights_the_twins_agree(replace, graph, data):
    """The twin of this module is that of plain sampling where there is nothing to look at."""
    seeds = data.draw(seeds_of(graph))
    fanouts = data.draw(fanout_lists(graph, replace))
    one, _ = twins_scored.sample(graph, seeds, twins_scored.Rule(fanouts, replace), (4, 5, 6))
    assert one == twins.sample(graph, seeds, fanouts, replace, (4, 5, 6))


@given(graphs, st.data())
@pytest.mark.parametrize("replace", [False, True])
def test_every_edge_with_a_source_of_its_own(replace, graph, data):
    """`deduplicate=False`, without weights."""
    seeds = data.draw(seeds_of(graph, max_size=3))
    fanouts = data.draw(fanout_lists(graph, replace, max_hops=2))
    stage = hp.NeighborSampler([], build(graph), [*map(tensor, fanouts)], replace, None, False)
    minibatch = stage(hp.MiniBatch(seeds=seed_tensors(graph, seeds), key=(4, 5, 6)))
    rule = twins_scored.Rule(fanouts, replace, deduplicate=False)
    expected, _ = twins_scored.sample(graph, seeds, rule, (4, 5, 6), original_ids=False)
    assert sampled(minibatch, graph) == expected
    rows = sum(expected.rows[0].values()) - len(seeds)
    edges = sum(len(column) for hop in expected.hops for e in hop.values() for column in e)
    assert rows == edges


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("fanout", [1, 2, 63, 64, 65, 66, 129, 200])
def test_equals_the_twin_with_many_picks(fanout, replace):
    generator = np.random.default_rng(fanout)
    pairs = [(s % 40, s % 3) for s in range(390)]
    weights = torch.from_numpy(generator.exponential(size=390) * (generator.random(390) < 0.9))
    graph = twins.Graph({NODE: 40}, {EDGE: pairs})
    minibatch = sample(
        build(graph, edge_attributes={"w": weights}), tensor([1, 0, 2]), [fanout], replace=replace
    )
    rule = twins_scored.Rule([[fanout]], replace, edge_weights(graph, {EDGE: weights}))
    seeds = [(NODE, i) for i in (1, 0, 2)]
    expected, _ = twins_scored.sample(graph, seeds, rule, (1, 2, 3), original_ids=False)
    assert sampled(minibatch, graph) == expected


@pytest.mark.parametrize("replace", [False, True])
def test_equals_the_twin_over_many_columns(replace):
    # Degrees from 0 to far above the fanout, more columns than are asked for ahead.
    generator = np.random.default_rng(1)
    pairs = [(int(s), int(200 * d**3)) for s, d in zip(
        generator.integers(0, 200, 2000), generator.random(2000), strict=True)]  # fmt: skip
    weights = torch.from_numpy(generator.random(2000).astype(np.float32))
    graph = twins.Graph({NODE: 200}, {EDGE: pairs})
    built = build(graph, edge_attributes={"w": weights})
    seeds = list(range(199, -1, -1))
    minibatch = sample(built, tensor(seeds), [6], replace=replace)
    rule = twins_scored.Rule([[6]], replace, edge_weights(graph, {EDGE: weights}))
    expected, _ = twins_scored.sample(
        graph, [(NODE, i) for i in seeds], rule, (1, 2, 3), original_ids=False
    )
    assert sampled(minibatch, graph) == expected


@given(st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([0, 1 << 12, 2**63, 2**64 - 1])))
@settings(max_examples=300)
def test_scores_are_the_logarithm_and_bit_for_bit_the_twins(word):
    """Picks alone show the order of scores, and hide their last bits."""
    u = twins_scored.unit(word)
    assert 0 < u < 1
    assert draws._unit(np.uint64(word)) == u
    assert draws._exponential(u) == twins_scored.exponential(u)
    assert twins_scored.exponential(u) == pytest.approx(-np.log(u), rel=1e-14)


def test_a_known_sample():
    # Pins the stream of random numbers: the same on every machine and in every release.
    graph = star(torch.tensor([0.5, 2, 0, 1, 8, 1, 0.25, 3]))
    minibatch = sample(graph, tensor([0]), [3], key=(7, 0, 0))
    assert minibatch.input_nodes.tolist() == KNOWN[False]
    minibatch = sample(graph, tensor([0]), [6], key=(7, 0, 0), replace=True)
    assert minibatch.input_nodes[minibatch.blocks[0].indices.long()].tolist() == KNOWN[True]


KNOWN = {False: [0, 5, 7, 8], True: [1, 5, 5, 5, 5, 8]}


# -------------------------------------------------------------------------------------------------
# Probabilities


def picks_of(weights, fanout, count, *, replace=False) -> np.ndarray:
    """Positions that `count` independent keys pick among the edges of one node: [count, picks]."""
    graph = star(torch.tensor(weights, dtype=torch.float64))
    rule = HopRule(np.array([fanout]), replace, np.array([99], np.uint64), prob_name="w")
    hop = graph.sample_one_hop(np.zeros(count, np.int32), np.arange(count), rule)
    assert (hop.neighbors == hop.positions + 1).all()
    return hop.positions.reshape(count, -1)


def successive(weights, fanout) -> dict[tuple[int, ...], float]:
    """Probability of each set that successive draws without replacement give."""
    found: Counter[tuple[int, ...]] = Counter()
    for order in itertools.permutations(range(len(weights)), fanout):
        chance, left = 1.0, sum(weights)
        for i in order:
            chance *= weights[i] / left
            left -= weights[i]
        found[tuple(sorted(order))] += chance
    return found


@pytest.mark.parametrize(
    ("weights", "fanout"),
    [
        ([1, 2, 3], 1),
        ([1, 2, 3, 4, 10], 1),
        ([1, 2, 3, 4], 2),
        ([1, 1, 1, 1, 5], 3),
        ([5, 0.5, 1, 2, 0.25], 4),
        ([1e-300, 2e-300, 3e-300], 2),
        ([1e299, 2e299, 3e299], 2),
        ([1, 1, 1, 1, 1, 1], 2),
    ],
)
def test_sets_follow_successive_draws(weights, fanout):
    """Without replacement: exactly as if drawn one after another from those left."""
    positions = picks_of(weights, fanout, 20_000)
    assert (np.diff(positions) > 0).all()
    counts = Counter(map(tuple, positions.tolist()))
    chances = successive(weights, fanout)
    assert set(counts) <= set(chances)
    assert_follows([counts[s] for s in chances], list(chances.values()))
    included = np.bincount(positions.ravel(), minlength=len(weights))
    for i, count in enumerate(included):
        chance = sum(p for s, p in chances.items() if i in s)
        assert_follows([count, 20_000 - count], [chance, 1 - chance])


@pytest.mark.parametrize(
    "weights", [[1, 2, 3], [1, 0, 4, 0, 10], [1e-300, 3e-300], [1e299, 2e299, 1e299], [7]]
)
def test_with_replacement_draws_are_multinomial(weights):
    positions = picks_of(weights, 5, 6_000, replace=True)
    assert positions.shape == (6_000, 5)
    alive = [i for i, w in enumerate(weights) if w]
    counts = np.bincount(positions.ravel(), minlength=len(weights))
    assert counts.sum() == counts[alive].sum() == 30_000
    if len(alive) > 1:
        chances = np.array([weights[i] / sum(weights) for i in alive])
        assert_follows(counts[alive], chances)
        # Draws of a node are independent: so are the sets that two of them give.
        two = picks_of(weights, 2, 20_000, replace=True)
        pairs = Counter(map(tuple, two.tolist()))
        both = {
            (a, b): chances[i] * chances[j] * (1 if a == b else 2)
            for i, a in enumerate(alive)
            for j, b in enumerate(alive)
            if a <= b
        }
        assert_follows([pairs[s] for s in both], list(both.values()))


@pytest.mark.parametrize("replace", [False, True])
def test_hubs_follow_their_weights(replace):
    """Degree 3000: weights of 1, 2 and 5, one draw in many nodes."""
    weights = np.tile([1.0, 2.0, 5.0], 1000)
    positions = picks_of(weights, 1, 30_000, replace=replace)
    counts = np.bincount(positions.ravel() % 3, minlength=3)
    assert_follows(counts, np.array([1, 2, 5]) / 8)
    assert_follows(np.bincount(positions.ravel() // 300, minlength=10), np.full(10, 0.1))


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("sampler", [hp.NeighborSampler, hp.LayerNeighborSampler])
def test_weights_near_the_range_of_floats_are_refused(sampler, replace):
    """Where a sum or a quotient of them would not be a number."""
    for weight in (5e-324, 1e-310, 1.7e308, torch.inf, torch.nan, -1.0):
        graph = star(torch.tensor([1.0, weight, 1.0], dtype=torch.float64))
        with pytest.raises(ValueError, match=r"at edge 1 .*expected 0, or a weight from 1e-300"):
            sample(graph, tensor([0]), [1], (0, 0, 0), sampler, replace=replace)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("sampler", [hp.NeighborSampler, hp.LayerNeighborSampler])
@pytest.mark.parametrize("weight", [1e-300, 1e-20, 1e20, 1e300])
def test_weights_are_relative_whatever_their_size(sampler, replace, weight):
    """Also where a sum or a quotient of weights would leave the range of floats."""
    graph = star(torch.full((3,), weight, dtype=torch.float64))
    stage = sampler([], graph, [1], replace, "w")
    counts = np.zeros(3, np.int64)
    for index in range(900):
        minibatch = stage(hp.MiniBatch(seeds=tensor([0]), key=(0, 0, index)))
        counts[minibatch.blocks[0].original_edge_ids] += 1
    assert_uniform(counts)


@pytest.mark.parametrize("sampler", [hp.NeighborSampler, hp.LayerNeighborSampler])
@pytest.mark.parametrize("dtype", WEIGHTS)
@pytest.mark.parametrize("replace", [False, True])
def test_weight_0_is_never_drawn(sampler, dtype, replace):
    weights = torch.tensor([0, 1, 0, 0, 1, 0]).to(dtype)
    graph = star(weights)
    for fanout in (1, 2, 5, -1):
        for index in range(50):
            minibatch = sample(
                graph, tensor([0]), [fanout], (0, 0, index), sampler, replace=replace
            )
            ids = minibatch.blocks[0].original_edge_ids.tolist()
            assert set(ids) <= {1, 4}
            if replace and fanout > 0:
                assert len(ids) == fanout
            else:
                assert len(ids) == (1 if fanout == 1 else 2)


# -------------------------------------------------------------------------------------------------
# Traps


@pytest.mark.parametrize("sampler", [hp.NeighborSampler, hp.LayerNeighborSampler])
@pytest.mark.parametrize("fanout", [-1, 0, 2, 2**31 - 1])
def test_b37_fanouts_of_a_node_with_a_neighbour_of_weight_0(sampler, fanout):
    """-1: those of a weight above 0, each once, whether with replacement or without."""
    graph = star(torch.tensor([1.0, 0.0, 2.0]))
    for replace in (False, True):
        if replace and fanout > 2:
            continue  # that many draws, as it says
        minibatch = sample(graph, tensor([0]), [fanout], stage=sampler, replace=replace)
        ids = minibatch.blocks[0].original_edge_ids.tolist()
        if fanout == 0:
            assert ids == []
        elif replace and fanout == 2:
            assert len(ids) == 2
        else:
            assert ids == [0, 2]


@pytest.mark.parametrize("sampler", [hp.NeighborSampler, hp.LayerNeighborSampler])
@pytest.mark.parametrize("replace", [False, True])
def test_b21_nothing_to_draw_gives_no_edges(sampler, replace):
    """Nodes without edges, and nodes whose weights are all 0."""
    empty = tensor([])
    isolated = hp.from_coo(empty, empty, 5, edge_attributes={"w": empty})
    masked = hp.from_coo(
        tensor([0, 3, 4]), tensor([1, 2, 2]), 5, edge_attributes={"w": torch.zeros(3)}
    )
    for graph in (isolated, masked):
        for fanout in (2, -1):
            minibatch = sample(
                graph, tensor([1, 2]), [fanout, fanout], stage=sampler, replace=replace
            )
            for block in minibatch.blocks:
                assert block.indptr.tolist() == [0, 0, 0]
            assert minibatch.input_nodes.tolist() == [1, 2]


@pytest.mark.parametrize("deduplicate", [False, True])
def test_b05_repeated_seeds_keep_their_rows(deduplicate):
    graph = hp.from_coo(tensor([1, 2]), tensor([0, 0]), 3, edge_attributes={"w": torch.ones(2)})
    minibatch = sample(graph, tensor([0, 0, 2]), [-1], deduplicate=deduplicate)
    block = minibatch.blocks[0]
    assert block.num_dst_nodes() == 3
    assert block.indptr.tolist() == [0, 2, 4, 4]
    nodes = [0, 0, 2, 1] if deduplicate else [0, 0, 2, 1, 2, 1, 2]
    assert minibatch.input_nodes.tolist() == nodes
    assert block.indices.tolist() == ([3, 2, 3, 2] if deduplicate else [3, 4, 5, 6])


# -------------------------------------------------------------------------------------------------
# Wrong input


@pytest.mark.parametrize("sampler", [hp.NeighborSampler, hp.LayerNeighborSampler])
@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf"), -float("inf"), -5e-324])
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("fanout", [-1, 1, 5])
def test_the_edge_with_a_bad_weight_is_named(sampler, bad, replace, fanout):
    graph = star(torch.tensor([1.0, 0.0, bad, 3.0], dtype=torch.float64))
    with pytest.raises(
        ValueError, match=r"'w' is .* at edge 2 \(CSC order\).*expected 0, or a weight"
    ):
        sample(graph, tensor([1, 0]), [fanout], stage=sampler, replace=replace)


def test_weights_of_edges_that_nobody_looks_at_do_not_matter():
    graph = star(torch.tensor([float("nan")]))
    assert sample(graph, tensor([1]), [2]).input_nodes.tolist() == [1]
    assert sample(graph, tensor([0]), [0]).input_nodes.tolist() == [0]


@pytest.mark.parametrize(
    ("weights", "error", "message"),
    [
        (None, KeyError, "no edge attribute 'w'; the graph has"),
        (torch.ones(3, 2), ValueError, r"'w' has shape \(3, 2\); expected one number a row"),
        (torch.ones(3, dtype=torch.complex64), TypeError, "'w' has dtype torch.complex64"),
    ],
)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_wrong_attributes_are_refused_at_once(sampler, weights, error, message):
    attributes = {} if weights is None else {"w": weights}
    graph = hp.from_coo(tensor([0, 1, 2]), tensor([0, 0, 0]), 3, edge_attributes=attributes)
    with pytest.raises(error, match=message):
        sampler([], graph, [1], prob_name="w")


def test_an_attribute_of_another_length_is_refused():
    graph = star(torch.ones(3))
    graph.edge_attributes["w"] = torch.ones(4)
    with pytest.raises(ValueError, match=r"'w' has shape \(4,\); expected 3 rows"):
        hp.NeighborSampler([], graph, [1], prob_name="w")


def test_weights_of_one_column_are_weights():
    flat, column = star(torch.tensor([1.0, 5, 2])), star(torch.tensor([[1.0], [5], [2]]))
    for index in range(20):
        key = (0, 0, index)
        one, two = sample(flat, tensor([0]), [1], key), sample(column, tensor([0]), [1], key)
        assert torch.equal(one.input_nodes, two.input_nodes)


def test_new_weights_count_at_once():
    graph = star(torch.tensor([0.0, 1.0]))
    stage = hp.NeighborSampler([], graph, [1], prob_name="w")

    def drawn():
        return stage(hp.MiniBatch(seeds=tensor([0]), key=(0, 0, 0))).input_nodes.tolist()

    assert drawn() == [0, 2]
    graph.add_edge_attribute("w", torch.tensor([1.0, 0.0], dtype=torch.float16))
    assert drawn() == [0, 1]


def test_settings_name_what_decides():
    graph = star(torch.ones(2))
    settings = hp.NeighborSampler([], graph, [3], prob_name="w", deduplicate=False).settings()
    assert settings == {
        "fanouts": [3], "replace": False, "nodes": 3, "edges": 2, "prob_name": "w",
        "deduplicate": False,
    }  # fmt: skip
    with pytest.raises(TypeError, match="deduplicate is 1"):
        hp.NeighborSampler([], graph, [3], deduplicate=1)
    with pytest.raises(ValueError, match="cooperative"):
        hp.NeighborSampler([], graph, [3], cooperative=True)


def weighted_ring() -> hp.FusedCSCSamplingGraph:
    graph = ring()
    graph.add_edge_attribute("w", torch.arange(200) % 5)
    return graph


def test_weighted_sampling_resumes():
    check_resume(lambda: numbers().sample_neighbor(weighted_ring(), [2, 2], prob_name="w"))
    check_resume(
        lambda: numbers().sample_neighbor(
            weighted_ring(), [2, 2], replace=True, prob_name="w", deduplicate=False
        )
    )
