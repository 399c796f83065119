"""LABOR: against the twin, inclusion, fewer nodes, and what hops and mini-batches share."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hopline.pipes as hp
from hopline.pipes.kernels import draws
from hopline.pipes.stages.layer import SharedVariates, layer_words
from tests import twins, twins_scored
from tests.chi_square import assert_equal_inclusion, assert_follows, assert_uniform
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


def sample(graph, seeds, fanouts, key=(1, 2, 3), **kwargs) -> hp.MiniBatch:
    """One mini-batch, by the chain's stage."""
    stage = hp.LayerNeighborSampler([], graph, fanouts, **kwargs)
    return stage(hp.MiniBatch(seeds=seeds, key=key))


def star(degree, columns=1) -> hp.FusedCSCSamplingGraph:
    """Columns 0, 1, ..., each with in-edges from all of the so many nodes after them."""
    src = torch.arange(columns, columns + degree).repeat(columns)
    dst = torch.arange(columns).repeat_interleave(degree)
    return hp.from_coo(src, dst, columns + degree)


# -------------------------------------------------------------------------------------------------
# The twin


@given(graphs, st.data())
@settings(max_examples=80)
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_equals_the_twin(weighted, replace, graph, data):
    seeds = data.draw(seeds_of(graph))
    fanouts = data.draw(fanout_lists(graph, replace, max_hops=2))
    keep, wide, once, shared = (data.draw(st.booleans()) for _ in range(4))
    batches = data.draw(st.sampled_from([1, -3, 0, 2, 3, 5, 64, 2**40]))
    key = *(data.draw(st.integers(0, 2**63 - 1)) for _ in range(2)), data.draw(st.integers(0, 130))
    weights = None
    attributes = {}
    if weighted:
        sizes = {etype: len(pairs) for etype, pairs in graph.edges.items()}
        values = data.draw(attribute(sizes, WEIGHTS))
        weights = edge_weights(graph, values)
        attributes = {"edge_attributes": {"w": as_given(graph, values)}}
    minibatch = sample(
        build(graph, wide, include_original_edge_id=keep, **attributes),
        seed_tensors(graph, seeds), [*map(tensor, fanouts)], key, replace=replace,
        prob_name="w" if weighted else None, deduplicate=once, layer_dependency=shared,
        batch_dependency=batches,
    )  # fmt: skip
    rule = twins_scored.Rule(fanouts, replace, weights, (shared, batches), deduplicate=once)
    expected, _ = twins_scored.sample(graph, seeds, rule, key, original_ids=keep)
    assert sampled(minibatch, graph) == expected


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("fanout", [1, 7, 64, 65, 130])
def test_equals_the_twin_with_many_picks_and_columns(fanout, replace):
    generator = np.random.default_rng(fanout)
    pairs = [(int(s), int(80 * d**2)) for s, d in zip(
        generator.integers(0, 80, 1500), generator.random(1500), strict=True)]  # fmt: skip
    graph = twins.Graph({NODE: 80}, {EDGE: pairs})
    seeds = list(range(79, -1, -2))
    minibatch = sample(build(graph), tensor(seeds), [fanout], replace=replace)
    rule = twins_scored.Rule([[fanout]], replace, layer=(False, 1))
    expected, _ = twins_scored.sample(
        graph, [(NODE, i) for i in seeds], rule, (1, 2, 3), original_ids=False
    )
    assert sampled(minibatch, graph) == expected


def test_a_known_sample():
    # Pins the stream of random numbers: the same on every machine and in every release.
    minibatch = sample(star(10, 2), tensor([0, 1]), [3], key=(7, 0, 0))
    assert minibatch.input_nodes.tolist() == [0, 1, *KNOWN[1]]
    minibatch = sample(star(10, 2), tensor([0, 1]), [3], key=(7, 0, 1), batch_dependency=2)
    assert minibatch.input_nodes.tolist() == [0, 1, *KNOWN[2]]


KNOWN: dict[int, list[int]] = {1: [3, 5, 9], 2: [3, 5, 6]}


# -------------------------------------------------------------------------------------------------
# Inclusion


def drawn(graph, fanout, count, **kwargs) -> np.ndarray:
    """Sources of column 0 in `count` mini-batches: [count, picks]."""
    stage = hp.LayerNeighborSampler([], graph, [fanout], **kwargs)
    found = []
    for index in range(count):
        minibatch = stage(hp.MiniBatch(seeds=tensor([0]), key=(3, 0, index)))
        found.append(minibatch.input_nodes[minibatch.blocks[0].indices.long()].numpy())
    return np.stack(found)


@pytest.mark.parametrize(("degree", "fanout"), [(5, 2), (6, 5), (33, 8), (64, 63), (1000, 100)])
def test_b67_every_neighbour_is_as_likely_and_the_number_exact(degree, fanout):
    sources = drawn(star(degree), fanout, 2000)
    assert sources.shape == (2000, fanout)
    assert (np.diff(sources) > 0).all()
    assert_equal_inclusion(np.bincount(sources.ravel() - 1, minlength=degree), 2000, fanout)


def test_with_replacement_draws_are_even_and_independent():
    sources = drawn(star(5), 4, 4000, replace=True) - 1
    assert sources.shape == (4000, 4)
    assert_uniform(np.bincount(sources.ravel(), minlength=5))
    # Two draws agree in one of five mini-batches.
    two = drawn(star(5), 2, 4000, replace=True)
    same = int((two[:, 0] == two[:, 1]).sum())
    assert_follows([same, 4000 - same], [0.2, 0.8])


@pytest.mark.parametrize("replace", [False, True])
def test_weights_decide_the_first_pick(replace):
    graph = star(4)
    graph.add_edge_attribute("w", tensor([1.0, 2, 0, 5], torch.float32))
    sources = drawn(graph, 1, 4000, replace=replace, prob_name="w") - 1
    counts = np.bincount(sources.ravel(), minlength=4)
    assert counts[2] == 0
    assert_follows(counts[[0, 1, 3]], [1 / 8, 2 / 8, 5 / 8])


def test_a_column_draws_alike_in_any_company():
    """One column's draw is a function of the mini-batch and of its sources."""
    graph = star(20, 6)
    together = sample(graph, torch.arange(6), [5]).blocks[0].indices.reshape(6, 5)
    assert (together == together[0]).all()
    nodes = sample(graph, torch.arange(6), [5]).input_nodes
    alone = sample(graph, tensor([4]), [5]).input_nodes
    assert nodes[6:].tolist() == alone[1:].tolist()


@pytest.mark.parametrize("replace", [False, True])
def test_far_fewer_distinct_nodes_than_neighbour_sampling(replace):
    generator = torch.Generator().manual_seed(0)
    src, dst = torch.randint(0, 2_000, (2, 200_000), generator=generator)
    graph = hp.from_coo(src, dst, 2_000)
    sampler = hp.ItemSampler(hp.ItemSet(2_000, "seeds"), 50, shuffle=True, seed=1)
    totals, edges = {}, {}
    for name in ("sample_neighbor", "sample_layer_neighbor"):
        loop = list(getattr(sampler, name)(graph, [10], replace))
        totals[name] = sum(len(m.input_nodes) for m in loop)
        edges[name] = sum(m.blocks[0].num_edges() for m in loop)
    assert edges["sample_neighbor"] == edges["sample_layer_neighbor"]
    # 500 draws of 2000 nodes against 50 columns that agree where they can.
    assert totals["sample_layer_neighbor"] < 0.85 * totals["sample_neighbor"]


# -------------------------------------------------------------------------------------------------
# What hops and mini-batches share


def smallest(degree, key, hop=0, **kwargs) -> set[int]:
    """The half of the sources that column 0 takes in a hop: those of the smallest variates."""
    fanouts = [0, 0, 0]
    fanouts[-1 - hop] = degree // 2  # the hops before it draw nothing, and leave column 0 alone
    minibatch = sample(star(degree), tensor([0]), fanouts, key, **kwargs)
    return set(minibatch.input_nodes.tolist()) - {0}


def agreement(one: set[int], two: set[int]) -> float:
    return len(one & two) / len(one)


def test_hops_share_their_variates_only_if_asked():
    for shared, low, high in ((False, 0.4, 0.6), (True, 1, 1)):
        halves = [smallest(4000, (1, 0, 0), hop, layer_dependency=shared) for hop in range(3)]
        assert low <= agreement(halves[0], halves[1]) <= high
        assert low <= agreement(halves[0], halves[2]) <= high
        assert low <= agreement(halves[1], halves[2]) <= high


@pytest.mark.parametrize("k", [2, 4, 10])
def test_neighbouring_mini_batches_share_all_but_one_of_k_variates(k):
    """A source that keeps its variate stays in its half; one that changes stays half the time."""
    halves = [smallest(8000, (1, 0, i), batch_dependency=k) for i in range(2 * k + 2)]
    for one, two in itertools.pairwise(halves):
        assert agreement(one, two) == pytest.approx(1 - 1 / k / 2, abs=0.02)
    for i in (0, 1):  # from one period to the next but one, all have changed
        assert agreement(halves[i], halves[2 * k + i]) == pytest.approx(0.5, abs=0.03)
    # From the beginning of a period to the next, too.
    assert agreement(halves[0], halves[k]) == pytest.approx(0.5, abs=0.03)


def test_variates_change_with_every_mini_batch_by_default():
    halves = [smallest(4000, (1, 0, i)) for i in range(4)]
    for i in range(3):
        assert agreement(halves[i], halves[i + 1]) == pytest.approx(0.5, abs=0.04)
    assert smallest(4000, (1, 1, 0)) != halves[0]
    assert smallest(4000, (2, 0, 0)) != halves[0]


@pytest.mark.parametrize("k", [0, -1])
def test_variates_never_change(k):
    first = smallest(4000, (1, 0, 0), batch_dependency=k)
    assert first == smallest(4000, (1, 7, 12), batch_dependency=k)
    other = smallest(4000, (2, 0, 0), batch_dependency=k)
    assert agreement(first, other) == pytest.approx(0.5, abs=0.04)


@pytest.mark.parametrize("k", [1, 4, 0])
def test_sources_have_uniform_variates(k):
    """Kolmogorov and Smirnov, on the words of 20 000 sources; and they are the twin's."""
    layer = layer_words((5, 1, 10), 1, k)
    words = [int(draws._variate(layer, source)) for source in range(20_000)]
    assert words[:50] == [
        twins_scored.variate((5, 1, 10), 1, (False, k), source) for source in range(50)
    ]
    values = np.sort(np.array(words, np.float64)) / 2.0**64
    steps = np.arange(len(values) + 1) / len(values)
    distance = max((steps[1:] - values).max(), (values - steps[:-1]).max())
    assert 0.2 < distance * np.sqrt(len(values)) < 1.95  # outside of it, 1 in 1000


def test_inclusion_is_even_with_dependent_batches():
    """A mixture of old and new variates is as uniform as either."""
    counts = np.zeros(40, np.int64)
    for epoch in range(1500):
        stage = hp.LayerNeighborSampler([], star(40), [6], batch_dependency=4)
        minibatch = stage(hp.MiniBatch(seeds=tensor([0]), key=(1, epoch, 4 * epoch + epoch % 4)))
        counts[minibatch.input_nodes[1:].numpy() - 1] += 1
    assert_equal_inclusion(counts, 1500, 6)


# -------------------------------------------------------------------------------------------------
# Traps and wrong input


@pytest.mark.parametrize("fanout", [-1, 0, 2, 2**31 - 1])
def test_b37_fanouts_of_one_node(fanout):
    block = sample(star(3), tensor([0]), [fanout]).blocks[0]
    assert block.num_edges() == {-1: 3, 0: 0, 2: 2}.get(fanout, 3)
    if fanout < 100:
        block = sample(star(3), tensor([0]), [fanout], replace=True).blocks[0]
        assert block.num_edges() == {-1: 3, 0: 0, 2: 2}[fanout]


def test_b37_fanouts_of_edge_types():
    many = tensor([0, 1, 2]), tensor([0, 0, 0])
    graph = hp.from_coo({f"n:{name}:n": many for name in "abc"}, num_nodes={"n": 3})
    for replace, last in ((False, 3), (True, 5)):
        block = sample(graph, {"n": tensor([0])}, [[-1, 0, 5]], replace=replace).blocks[0]
        assert [b.num_edges() for b in block.values()] == [3, 0, last]


@pytest.mark.parametrize("replace", [False, True])
def test_b11_b21_isolated_seeds_and_a_graph_without_edges(replace):
    empty = tensor([])
    one = hp.from_coo(tensor([0]), tensor([1]), 5)
    for graph in (one, hp.from_coo(empty, empty, 5)):
        minibatch = sample(graph, tensor([3, 4]), [2, 2], replace=replace)
        for block in minibatch.blocks:
            assert block.indptr.tolist() == [0, 0, 0]
        assert minibatch.input_nodes.tolist() == [3, 4]
        assert minibatch.input_nodes.dtype == torch.int32
    typed = hp.from_coo({"a:x:b": (empty, empty)}, num_nodes={"a": 2, "b": 2})
    minibatch = sample(typed, {"b": tensor([1])}, [2, 2], replace=replace)
    assert {k: v.tolist() for k, v in minibatch.input_nodes.items()} == {"a": [], "b": [1]}


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"batch_dependency": 1.0}, TypeError, r"batch_dependency is 1\.0; expected an int"),
        ({"batch_dependency": True}, TypeError, "batch_dependency is True"),
        ({"batch_dependency": None}, TypeError, "batch_dependency is None"),
        ({"batch_dependency": "2"}, TypeError, "batch_dependency is '2'"),
        ({"layer_dependency": 1}, TypeError, "layer_dependency is 1; expected True or False"),
        ({"layer_dependency": None}, TypeError, "layer_dependency is None"),
        ({"replace": "yes"}, TypeError, "replace is 'yes'"),
        ({"prob_name": "w"}, KeyError, "no edge attribute 'w'"),
        ({"cooperative": True}, ValueError, "cooperative"),
    ],
)
def test_wrong_settings(kwargs, error, message):
    with pytest.raises(error, match=message):
        hp.LayerNeighborSampler([], star(2), [1], **kwargs)
    if "prob_name" not in kwargs and "replace" not in kwargs and "cooperative" not in kwargs:
        with pytest.raises(error, match=message):
            hp.TemporalLayerNeighborSampler([], star(2), [1], **kwargs)


def test_d15_making_and_using_a_sampler_leaves_the_global_generators_alone():
    def states():
        return (
            random.getstate(),
            str(np.random.get_state()),  # noqa: NPY002
            torch.get_rng_state().tolist(),
        )

    found = []
    for seed in (0, 1):
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        torch.manual_seed(seed)
        before = states()
        minibatch = sample(star(50), tensor([0]), [5], batch_dependency=3)
        assert states() == before
        found.append(minibatch.input_nodes.tolist())
    assert found[0] == found[1]


def test_settings_name_what_decides():
    stage = hp.LayerNeighborSampler([], star(2), [3], batch_dependency=5, layer_dependency=True)
    assert stage.settings() == {
        "fanouts": [3], "replace": False, "nodes": 3, "edges": 2, "layer_dependency": True,
        "batch_dependency": 5,
    }  # fmt: skip


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("timed", [False, True])
def test_every_one_of_parallel_edges_is_as_likely(replace, weighted, timed):
    """Ten edges from each of two sources: for one column the same as neighbour sampling."""
    src = torch.tensor([1] * 10 + [2] * 10)
    graph = hp.from_coo(
        src, torch.zeros(20, dtype=torch.int64), 3,
        edge_attributes={"w": torch.ones(20), "t": torch.zeros(20, dtype=torch.int64)},
    )  # fmt: skip
    kwargs = {"replace": replace, "prob_name": "w" if weighted else None}
    if timed:
        stage = hp.TemporalLayerNeighborSampler(
            [], graph, [4], edge_timestamp_attr_name="t", **kwargs
        )
    else:
        stage = hp.LayerNeighborSampler([], graph, [4], **kwargs)
    counts = np.zeros(20, np.int64)
    for index in range(1500):
        minibatch = stage(hp.MiniBatch(seeds=tensor([0]), timestamp=tensor([5]), key=(1, 0, index)))
        ids = minibatch.blocks[0].original_edge_ids.numpy()
        assert len(ids) == 4
        assert replace or len(set(ids)) == 4
        counts += np.bincount(ids, minlength=20)
    if replace:
        assert_uniform(counts)
    else:
        assert_equal_inclusion(counts, 1500, 4)


def test_columns_share_the_draws_of_parallel_edges():
    src = torch.tensor([3] * 4 + [4] * 4).repeat(2)
    graph = hp.from_coo(src, torch.arange(2).repeat_interleave(8), 5)
    for index in range(50):
        stage = hp.LayerNeighborSampler([], graph, [3])
        minibatch = stage(hp.MiniBatch(seeds=tensor([0, 1]), key=(1, 0, index)))
        ids = minibatch.blocks[0].original_edge_ids
        assert torch.equal(ids[:3], ids[3:] - 8)


def test_layer_sampling_resumes():
    assert issubclass(hp.LayerNeighborSampler, SharedVariates)
    check_resume(lambda: numbers().sample_layer_neighbor(ring(), [2, 2]))
    check_resume(
        lambda: numbers().sample_layer_neighbor(
            ring(), [2, 2], replace=True, layer_dependency=True, batch_dependency=3
        )
    )
