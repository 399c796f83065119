"""Negative samplers: against the twin, types, times, own classes and in a chain."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hopline.pipes as hp
from tests import twins
from tests.stage_checks import assert_same, check_resume
from tests.strategies import build, heterogeneous, homogeneous, is_homogeneous, tensor
from tests.twins import EDGE, below, fold

NEGATIVE = 3  # purpose of draws
ATTEMPTS = 64


def negatives(graph, pairs, ratio, key=(1, 2, 3), timestamp=None, labels=None, **kwargs):
    """One mini-batch, by the chain's stage."""
    minibatch = hp.MiniBatch(seeds=pairs, labels=labels, timestamp=timestamp, key=key)
    return hp.UniformNegativeSampler([minibatch], graph, ratio, **kwargs)(minibatch)


def graph_of(pairs, num_nodes) -> hp.FusedCSCSamplingGraph:
    return hp.from_coo(tensor([s for s, _ in pairs]), tensor([d for _, d in pairs]), num_nodes)


# -------------------------------------------------------------------------------------------------
# The twin


def draw(key, etype, pairs, ratio, candidates, true_edges):
    """Destinations of the negatives of one type; None where a source has none.

    Args:
        key: (seed, epoch, index).
        etype: name, or "" without types.
        pairs: the seeds.
        ratio: negatives a seed.
        candidates: the destinations of each seed, in the order in which they are counted.
        true_edges: pairs to avoid.
    """
    seed, epoch, index = key
    typed = fold(seed, NEGATIVE, epoch, index, *etype.encode())
    found = []
    for n in range(len(pairs) * ratio):
        source, nodes = pairs[n // ratio][0], candidates[n // ratio]
        stream, count = fold(typed, n), len(nodes)
        tries = [below(fold(stream, a), count) for a in range(ATTEMPTS)]
        at, step = below(fold(stream, ATTEMPTS), count), 1
        if count >= 3:
            step = 1 + below(fold(stream, ATTEMPTS + 1), count - 1)
            while math.gcd(step, count) > 1:
                step = step % (count - 1) + 1
        tries += [(at + step * k) % count for k in range(count)]
        free = [nodes[i] for i in tries if (source, nodes[i]) not in true_edges]
        if not free:
            return None
        found.append(free[0])
    return found


@st.composite
def typed_pairs(draw, graph):
    """{edge type: pairs of any nodes of its ends}, some types left out, some without pairs."""
    seeds = {}
    for etype in graph.edges:
        source, _, destination = etype.split(":")
        if graph.num_nodes[source] and graph.num_nodes[destination] and draw(st.booleans()):
            pair = st.tuples(
                st.integers(0, graph.num_nodes[source] - 1),
                st.integers(0, graph.num_nodes[destination] - 1),
            )
            seeds[etype] = draw(st.lists(pair, max_size=5))
    return seeds


def pair_tensor(pairs, dtype=torch.int64) -> torch.Tensor:
    return tensor(pairs, dtype).reshape(-1, 2)


@given(st.one_of(homogeneous(), heterogeneous()), st.data())
@settings(max_examples=100)
@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("avoid", [False, True])
def test_equals_the_twin(avoid, timed, graph, data):
    seeds = data.draw(typed_pairs(graph))
    flat = is_homogeneous(graph)
    if flat:
        seeds = {EDGE: seeds.get(EDGE, [])}
    ratio = data.draw(st.integers(1, 4))
    key = tuple(data.draw(st.integers(0, 2**63 - 1)) for _ in range(3))
    dtype = data.draw(st.sampled_from([torch.int8, torch.int32, torch.int64]))
    built = build(graph, wide=data.draw(st.booleans()))
    times = {
        kind: data.draw(st.lists(st.integers(-2, 2), min_size=n, max_size=n))
        for kind, n in graph.num_nodes.items()
    }
    kwargs, timestamps = {"exclude_true_edges": avoid}, None
    candidates = {}
    for etype, pairs in seeds.items():
        kind = etype.split(":")[2]
        candidates[etype] = [list(range(graph.num_nodes[kind]))] * len(pairs)
    if timed:
        built.add_node_attribute("time", tensor([t for ts in times.values() for t in ts]))
        kwargs["node_timestamp_attr_name"] = "time"
        timestamps = {}
        for etype, pairs in seeds.items():
            known = times[etype.split(":")[2]]
            by_time = sorted(range(len(known)), key=known.__getitem__)
            timestamps[etype] = [data.draw(st.integers(-2, 2)) for _ in pairs]
            candidates[etype] = [
                [i for i in by_time if known[i] <= time] for time in timestamps[etype]
            ]
    expected = {}
    for etype, pairs in seeds.items():
        true_edges = set(graph.edges[etype]) if avoid else set()
        empty = not all(candidates[etype])
        name = "" if flat else etype
        drawn = None if empty else draw(key, name, pairs, ratio, candidates[etype], true_edges)
        expected[etype] = drawn
    given_seeds = {etype: pair_tensor(pairs, dtype) for etype, pairs in seeds.items()}
    given_times = {etype: tensor(t) for etype, t in timestamps.items()} if timed else None
    if flat:
        given_seeds = given_seeds[EDGE]
        given_times = given_times[EDGE] if timed else None
    if None in expected.values():
        with pytest.raises(ValueError, match=r"has no negative|no node can be the destination"):
            negatives(built, given_seeds, ratio, key, given_times, **kwargs)
        return
    got = negatives(built, given_seeds, ratio, key, given_times, **kwargs)
    fields = [got.seeds, got.labels, got.indexes, got.timestamp]
    if flat:
        fields = [None if value is None else {EDGE: value} for value in fields]
    for etype, pairs in seeds.items():
        numbers = [i for i in range(len(pairs)) for _ in range(ratio)]
        rows = pairs + [
            (pairs[i][0], d) for i, d in zip(numbers, expected[etype], strict=True)
        ]  # fmt: skip
        order = [*range(len(pairs)), *numbers]
        assert_same(fields[0][etype], pair_tensor(rows, dtype))
        assert_same(fields[1][etype], tensor([1] * len(pairs) + [0] * len(numbers), torch.float32))
        assert_same(fields[2][etype], tensor(order))
        if timed:
            assert_same(fields[3][etype], tensor([timestamps[etype][i] for i in order]))
    if not timed:
        assert got.timestamp is None
    for value in fields[:3]:
        assert list(value) == list(seeds)


def test_a_known_draw():
    # Pins the stream of random numbers: the same on every machine and in every release.
    graph = graph_of([(0, 1)], 1000)
    got = negatives(graph, pair_tensor([(0, 1), (2, 3)]), 3, key=(7, 0, 0))
    expected = draw((7, 0, 0), "", [(0, 1), (2, 3)], 3, [range(1000)] * 2, set())
    assert got.seeds[2:, 1].tolist() == expected == KNOWN
    assert got.seeds[2:, 0].tolist() == [0, 0, 0, 2, 2, 2]


KNOWN = [894, 27, 813, 10, 272, 702]


def test_draws_differ_between_mini_batches_and_types():
    graph = build(twins.Graph({"a": 9, "b": 500}, {"a:x:b": [(0, 0)], "a:y:b": [(1, 1)]}))
    pairs = pair_tensor([(i, i) for i in range(9)])
    drawn = set()
    for key in ((1, 2, 3), (1, 2, 4), (1, 3, 3), (2, 2, 3)):
        got = negatives(graph, {"a:x:b": pairs, "a:y:b": pairs}, 2, key)
        drawn |= {tuple(value[9:, 1].tolist()) for value in got.seeds.values()}
    assert len(drawn) == 8


def test_draws_of_a_type_do_not_depend_on_the_others():
    pairs = pair_tensor([(0, 0), (3, 1)])
    one = build(twins.Graph({"a": 9, "b": 50}, {"a:x:b": [(0, 0)], "a:y:b": []}))
    other = build(twins.Graph({"b": 50, "c": 3, "a": 9}, {"a:y:b": [], "c:z:a": [], "a:x:b": []}))
    alone = negatives(one, {"a:x:b": pairs}, 2).seeds["a:x:b"]
    both = negatives(other, {"a:y:b": pairs, "a:x:b": pairs}, 2).seeds
    assert list(both) == ["a:y:b", "a:x:b"]
    assert_same(both["a:x:b"], alone)


def test_no_global_generator_is_read_or_written():
    graph = graph_of([(0, 1)], 100)
    pairs = pair_tensor([(0, 1)])
    states = torch.get_rng_state(), np.random.get_state(legacy=False), random.getstate()  # noqa: NPY002
    first = negatives(graph, pairs, 5)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert str(np.random.get_state(legacy=False)) == str(states[1])  # noqa: NPY002
    assert random.getstate() == states[2]
    torch.manual_seed(99)
    assert_same(negatives(graph, pairs, 5), first)


# -------------------------------------------------------------------------------------------------
# Types and times


def test_b19_types_of_very_different_sizes():
    """Destinations are of their own type's range; labels, indexes and times come by type."""
    graph = build(
        twins.Graph(
            {"user": 1000, "item": 10},
            {"user:buys:item": [(u, u % 10) for u in range(1000)], "item:by:user": [(3, 999)]},
        )
    )
    pairs = pair_tensor([(999, 9), (998, 8), (5, 0)])
    got = negatives(graph, {"user:buys:item": pairs}, 100, labels={"user:buys:item": tensor([7])})
    assert list(got.seeds) == list(got.labels) == list(got.indexes) == ["user:buys:item"]
    drawn = got.seeds["user:buys:item"][3:]
    assert set(drawn[:, 1].tolist()) == set(range(10))
    assert drawn[:, 0].unique().tolist() == [5, 998, 999]
    back = negatives(graph, {"item:by:user": pair_tensor([(3, 999)])}, 5000).seeds["item:by:user"]
    assert back[:, 1].max() > 900
    assert back[:, 1].max() < 1000


def test_typed_edges_of_the_type_alone_are_avoided():
    edges = {"a:x:b": [(0, 0), (0, 1), (0, 2)], "a:y:b": [(0, 3)], "b:z:b": [(0, 3)]}
    graph = build(twins.Graph({"a": 2, "b": 4}, edges))
    seeds = {"a:x:b": pair_tensor([(0, 0)]), "a:y:b": pair_tensor([(0, 3)])}
    got = negatives(graph, seeds, 200, exclude_true_edges=True).seeds
    assert set(got["a:x:b"][1:, 1].tolist()) == {3}
    assert set(got["a:y:b"][1:, 1].tolist()) == {0, 1, 2}


def test_b29_negatives_exist_and_carry_the_time_of_their_seed():
    """Node times 1, 2, 3, 9: nothing from after the seed's time, and times follow the pairs."""
    graph = graph_of([(0, 1)], 4)
    graph.add_node_attribute("time", tensor([1, 2, 3, 9], torch.int32))
    options = {"node_timestamp_attr_name": "time"}
    got = negatives(graph, pair_tensor([(0, 1)]), 300, timestamp=tensor([2]), **options)
    assert set(got.seeds[1:, 1].tolist()) == {0, 1}
    assert got.timestamp.tolist() == [2] * 301
    pairs, times = pair_tensor([(0, 1), (2, 0)]), tensor([2, 3])
    got = negatives(graph, pairs, 3, timestamp=times, **options)
    assert got.seeds[:, 0].tolist() == [0, 2, 0, 0, 0, 2, 2, 2]
    assert got.timestamp.tolist() == [2, 3, 2, 2, 2, 3, 3, 3]
    assert got.indexes.tolist() == [0, 1, 0, 0, 0, 1, 1, 1]
    with pytest.raises(ValueError, match="negative of seed 1: its time is 0, and the first exists"):
        negatives(graph, pairs, 3, timestamp=tensor([2, 0]), **options)


def test_times_beyond_what_floats_hold():
    graph = graph_of([(0, 1)], 3)
    graph.add_node_attribute("time", tensor([0, 2**60 + 1, 2**60 + 2]))
    got = negatives(
        graph, pair_tensor([(0, 1)]), 100, timestamp=tensor([2**60 + 1]),
        node_timestamp_attr_name="time",
    )  # fmt: skip
    assert set(got.seeds[1:, 1].tolist()) == {0, 1}


def test_times_and_true_edges_together():
    graph = graph_of([(0, 0), (0, 2)], 4)
    graph.add_node_attribute("time", tensor([1, 2, 3, 9]))
    options = {"node_timestamp_attr_name": "time", "exclude_true_edges": True}
    got = negatives(graph, pair_tensor([(0, 0)]), 50, timestamp=tensor([8]), **options)
    assert set(got.seeds[1:, 1].tolist()) == {1}
    with pytest.raises(ValueError, match=r"source 0 of seed 0 has an edge to every .* \(1 nodes\)"):
        negatives(graph, pair_tensor([(0, 0)]), 1, timestamp=tensor([1]), **options)


def test_nothing_to_draw_for():
    graph = build(twins.Graph({"a": 3, "b": 0}, {"a:x:a": [(0, 1)], "a:y:b": []}))
    empty = pair_tensor([])
    got = negatives(graph, {"a:y:b": empty, "a:x:a": empty}, 3, timestamp={})
    for value in (got.seeds, got.labels, got.indexes):
        assert list(value) == ["a:y:b", "a:x:a"]
        assert all(len(part) == 0 for part in value.values())
    assert got.seeds["a:y:b"].shape == (0, 2)
    assert got.timestamp == {}
    nothing = negatives(graph, {}, 3)
    assert nothing.seeds == nothing.labels == nothing.indexes == {}
    assert negatives(graph_of([(0, 1)], 2), empty, 2).seeds.shape == (0, 2)


def test_other_columns_stay():
    minibatch = hp.MiniBatch(seeds=pair_tensor([(0, 1)]), key=(0, 0, 0), extra={"weight": 3})
    got = hp.UniformNegativeSampler([minibatch], graph_of([(0, 1)], 9), 2)(minibatch)
    assert got.weight == 3
    assert got.timestamp is None


def test_negatives_have_the_further_columns_of_their_positives():
    extra = {
        "weight": torch.tensor([0.5, 2.0]),
        "feat": torch.tensor([[1, 2, 3], [4, 5, 6]]),
        "pre_time_window": torch.tensor([7, 8]),
        "of_all": torch.tensor([1, 2, 3]),
        "scalar": torch.tensor(4),
    }
    seeds = pair_tensor([(0, 1), (1, 2)])
    minibatch = hp.MiniBatch(seeds=seeds, key=(0, 0, 0), extra=dict(extra))
    got = hp.UniformNegativeSampler([minibatch], graph_of([(0, 1)], 9), 3)(minibatch)
    for name in ("weight", "feat", "pre_time_window"):
        # As GraphBolt's scripts find them: by the positive that each row belongs to.
        assert torch.equal(getattr(got, name), extra[name][got.indexes])
        assert torch.equal(getattr(got, name)[got.indexes], extra[name][got.indexes])
    assert got.of_all is extra["of_all"]
    assert got.scalar is extra["scalar"]


def test_columns_by_type_are_those_of_the_positives_of_the_type():
    graph = hp.from_coo(
        {e: (torch.tensor([0]), torch.tensor([1])) for e in ("a:x:a", "a:y:b")},
        num_nodes={"a": 5, "b": 6},
    )
    seeds = {"a:x:a": pair_tensor([(0, 1)]), "a:y:b": pair_tensor([(0, 1), (1, 2)])}
    weight = {"a:x:a": torch.tensor([1.0]), "a:y:b": torch.tensor([2.0, 3.0])}
    minibatch = hp.MiniBatch(seeds=seeds, key=(0, 0, 0), extra={"weight": weight})
    got = hp.UniformNegativeSampler([minibatch], graph, 2)(minibatch)
    assert got.weight["a:x:a"].tolist() == [1, 1, 1]
    assert got.weight["a:y:b"].tolist() == [2, 3, 2, 2, 3, 3]


def test_seeds_on_their_side_are_named():
    seeds = torch.arange(10).view(2, 5)
    minibatch = hp.MiniBatch(seeds=seeds, key=(0, 0, 0))
    with pytest.raises(ValueError, match=r"shape \(2, 5\).*transpose"):
        hp.UniformNegativeSampler([minibatch], graph_of([(0, 1)], 9), 3)(minibatch)


# -------------------------------------------------------------------------------------------------
# Own negatives


class Shifted(hp.NegativeSampler):
    """Destinations that follow from the key: no graph, no state."""

    def _sample_with_etype(self, etype, pairs, key, timestamp=None):
        shift = key % 97 + (0 if timestamp is None else timestamp[:, None])
        return pairs[:, 1:] + shift + torch.arange(self.negative_ratio)


def test_own_negatives():
    pairs = pair_tensor([(4, 10), (5, 20)])
    minibatch = hp.MiniBatch(seeds=pairs, key=(1, 2, 3), timestamp=tensor([0, 100]))
    got = Shifted([minibatch], 2)(minibatch)
    shift = fold(1, NEGATIVE, 2, 3) % 97
    expected = [10, 20, 10 + shift, 11 + shift, 120 + shift, 121 + shift]
    assert got.seeds[:, 1].tolist() == expected
    assert got.labels.tolist() == [1, 1, 0, 0, 0, 0]
    typed = hp.MiniBatch(seeds={"a:x:b": pairs}, key=(1, 2, 3))
    shift = fold(1, NEGATIVE, 2, 3, *b"a:x:b") % 97
    assert Shifted([typed], 1)(typed).seeds["a:x:b"][2:, 1].tolist() == [10 + shift, 20 + shift]


@pytest.mark.parametrize(
    ("result", "error", "words"),
    [
        ([1, 2], TypeError, "gave list; expected a torch.Tensor of integers"),
        (torch.zeros(4), TypeError, "gave torch.float32"),
        (tensor([1, 2, 3]), ValueError, r"gave shape \(3,\); expected \[4\] or \[2, 2\]"),
        (tensor([1, 2, 3, 200]), ValueError, "is 200, which seeds of dtype torch.int8 cannot hold"),
    ],
)
def test_own_negatives_that_do_not_fit(result, error, words):
    class Own(hp.NegativeSampler):
        def _sample_with_etype(self, etype, pairs, key, timestamp=None):
            return result

    minibatch = hp.MiniBatch(seeds=pair_tensor([(0, 1), (0, 2)], torch.int8), key=(0, 0, 0))
    with pytest.raises(error, match=words):
        Own([minibatch], 2)(minibatch)


def test_the_base_class_has_no_negatives_of_its_own():
    minibatch = hp.MiniBatch(seeds=pair_tensor([(0, 1)]), key=(0, 0, 0))
    with pytest.raises(NotImplementedError, match="_sample_with_etype"):
        hp.NegativeSampler([minibatch], 2)(minibatch)


# -------------------------------------------------------------------------------------------------
# In a chain


def chain(**kwargs) -> hp.Stage:
    generator = torch.Generator().manual_seed(3)
    src, dst = torch.randint(0, 60, (2, 200), generator=generator)
    graph = hp.from_coo(src, dst, 60)
    graph.add_node_attribute("time", torch.arange(60))
    columns = torch.stack((src, dst), dim=1)[:44], 10 + torch.arange(44)
    source = hp.ItemSampler(hp.ItemSet(columns, ("seeds", "timestamp")), 8, shuffle=True, seed=2)
    return source.sample_uniform_negative(graph, 3, **kwargs)


def test_settings_tell_what_is_drawn():
    given = {"exclude_true_edges": True, "node_timestamp_attr_name": "time"}
    assert chain(**given).settings() == {"negative_ratio": 3, **given, "nodes": 60, "edges": 200}


@pytest.mark.parametrize("workers", [1, 3])
def test_the_same_on_any_number_of_threads(workers):
    options = {"exclude_true_edges": True, "node_timestamp_attr_name": "time"}
    with hp.DataLoader(chain(**options), num_workers=workers) as loader:
        assert_same(list(loader), list(chain(**options)))


def test_uniform_negatives_resume():
    """UniformNegativeSampler, with each of its options."""
    check_resume(chain)
    check_resume(lambda: chain(exclude_true_edges=True, node_timestamp_attr_name="time"))


def test_own_negatives_resume():
    """NegativeSampler, by a subclass."""
    items = hp.ItemSet(pair_tensor([(i, i + 1) for i in range(11)]), "seeds")
    check_resume(lambda: hp.ItemSampler(items, 3, shuffle=True, seed=1).pipe(Shifted, 2))
