"""SubgraphSampler, HopSampler: the bases of samplers, and what users build on them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hopline.pipes as hp
from hopline.pipes.stages.hops import HopSampler
from tests.number_chains import numbers, ring
from tests.stage_checks import assert_same, check_resume
from tests.strategies import (
    heterogeneous,
    homogeneous,
    is_homogeneous,
    link_tensors,
    links_of,
    tensor,
)
from tests.twins import EDGE, NODE


class Recorder(hp.SubgraphSampler):
    """Samples nothing, and hands on what it was asked for."""

    def sample_subgraphs(self, seeds, seeds_timestamp, seeds_pre_time_window=None):
        return {"seeds": seeds, "times": seeds_timestamp, "windows": seeds_pre_time_window}, []


class Composed(hp.SubgraphSampler):
    """A sampler of a user's own, made of two others: a few neighbours, then all of theirs."""

    def __init__(self, source, graph):
        super().__init__(source)
        self.few = hp.NeighborSampler([], graph, [2])
        self.all = hp.InSubgraphSampler([], graph)

    def sample_subgraphs(self, seeds, seeds_timestamp, seeds_pre_time_window=None, *, key):
        inner = self.few(hp.MiniBatch(seeds=seeds, key=key))
        outer = self.all(hp.MiniBatch(seeds=inner.input_nodes, key=key))
        return outer.input_nodes, outer.sampled_subgraphs + inner.sampled_subgraphs


def asked(seeds, timestamp=None, **extra):
    """(the mini-batch, what `sample_subgraphs` was given)."""
    minibatch = Recorder([])(hp.MiniBatch(seeds=seeds, timestamp=timestamp, extra=extra))
    assert minibatch.sampled_subgraphs == []
    return minibatch, minibatch.input_nodes


# -------------------------------------------------------------------------------------------------
# Seeds


def test_node_seeds_come_as_they_are():
    for seeds in (tensor([3, 3, 1]), tensor([]), {"a": tensor([2]), "b": tensor([])}):
        times = {k: v + 1 for k, v in seeds.items()} if isinstance(seeds, dict) else seeds + 1
        minibatch, given_ = asked(seeds, times, pre_time_window=times)
        assert given_["seeds"] is seeds
        assert given_["times"] is given_["windows"] is times
        assert minibatch.compacted_seeds is None


@given(st.one_of(homogeneous(), heterogeneous()), st.data())
def test_links_come_as_their_ends_each_once_with_their_places(graph, data):
    links = data.draw(links_of(graph))
    if not links:
        return
    dtype = data.draw(st.sampled_from([torch.int64, torch.int32, torch.uint8]))
    seeds = link_tensors(graph, links, dtype)
    flat = is_homogeneous(graph)
    counts = {kind: torch.arange(len(rows)) for kind, (_, rows) in links.items()}
    minibatch, given_ = asked(seeds, counts[EDGE] if flat else counts)
    nodes, times, places = given_["seeds"], given_["times"], minibatch.compacted_seeds
    if flat:
        nodes, times, places = {NODE: nodes}, {NODE: times}, {EDGE: places}
        assert nodes[NODE].tolist() == list(dict.fromkeys(seeds.flatten().tolist()))
    assert set(nodes) == {end for ends, _ in links.values() for end in ends}
    for ntype, ids in nodes.items():
        assert len(set(ids.tolist())) == len(ids) == len(times[ntype])
        for node, row in zip(ids.tolist(), times[ntype].tolist(), strict=True):
            assert any(  # the time is that of a seed which names the node
                rows[row][column] == node
                for ends, rows in links.values()
                if row < len(rows)
                for column in range(len(ends))
                if ends[column] == ntype
            )
    for kind, (ends, rows) in links.items():
        assert places[kind].shape == (len(rows), len(ends))
        for column, ntype in enumerate(ends):
            found = nodes[ntype][places[kind][:, column].long()].tolist()
            assert found == [row[column] for row in rows]


def test_ends_have_the_time_and_window_of_the_seed_that_names_them_first():
    _, given_ = asked(
        tensor([[5, 3], [3, 7], [5, 5]]), tensor([10, 20, 30]), pre_time_window=tensor([1, 2, 3])
    )
    assert given_["seeds"].tolist() == [5, 3, 7]
    assert given_["times"].tolist() == [10, 10, 20]
    assert given_["windows"].tolist() == [1, 1, 2]
    _, given_ = asked(
        {"a:x:b": tensor([[1, 1], [2, 1]]), "b:y:a": tensor([[0, 2], [1, 0]])},
        {"a:x:b": tensor([10, 20]), "b:y:a": tensor([30, 40])},
    )
    assert {k: v.tolist() for k, v in given_["seeds"].items()} == {"a": [1, 2, 0], "b": [1, 0]}
    assert {k: v.tolist() for k, v in given_["times"].items()} == {"a": [10, 20, 40], "b": [10, 30]}
    assert given_["windows"] is None


def test_a_window_for_each_positive_is_that_of_its_negatives():
    """The negative sampler repeats the times, and leaves further columns alone."""
    items = hp.ItemSet(
        (tensor([[0, 1], [0, 2]]), tensor([10, 20]), tensor([3, 4])),
        ("seeds", "timestamp", "pre_time_window"),
    )
    chain = hp.ItemSampler(items, 2).sample_uniform_negative(ring(), 3)
    (minibatch,) = Recorder(chain)
    found = minibatch.input_nodes
    assert len(found["times"]) == len(found["windows"]) == len(found["seeds"]) > 3
    assert [{10: 3, 20: 4}[t] for t in found["times"].tolist()] == found["windows"].tolist()


def test_seeds_of_the_mini_batch_stay():
    seeds = tensor([[5, 3], [3, 7]])
    minibatch, _ = asked(seeds)
    assert minibatch.seeds is seeds
    assert seeds.tolist() == [[5, 3], [3, 7]]
    assert minibatch.compacted_seeds.tolist() == [[0, 1], [1, 2]]


# -------------------------------------------------------------------------------------------------
# Samplers of users' own


def test_the_key_comes_to_those_who_ask():
    class Keyed(hp.SubgraphSampler):
        def sample_subgraphs(self, seeds, seeds_timestamp, seeds_pre_time_window=None, key=None):
            return key, []

    assert [m.input_nodes for m in Keyed(numbers(6))] == [(5, 0, 0), (5, 0, 1)]


def test_a_sampler_made_of_others():
    """The inner hop of the chain's sampler, and all in-edges around it."""
    graph = ring()
    for own, plain in zip(
        Composed(numbers(), graph), numbers().sample_neighbor(graph, [-1, 2]), strict=True
    ):
        assert torch.equal(own.input_nodes, plain.input_nodes)
        assert_same(own.sampled_subgraphs, plain.sampled_subgraphs)
        assert len(own.blocks) == 2
    pairs = hp.ItemSampler(hp.ItemSet(tensor([[1, 2], [2, 9], [4, 1]]), "seeds"), 2)
    for own, plain in zip(
        Composed(pairs, graph), pairs.sample_neighbor(graph, [-1, 2]), strict=True
    ):
        assert torch.equal(own.input_nodes, plain.input_nodes)
        assert own.compacted_seeds.tolist() == plain.compacted_seeds.tolist()
        assert_same(own.sampled_subgraphs, plain.sampled_subgraphs)


def test_a_rule_of_a_users_own():
    """HopSampler with keys that do not know the epoch: every epoch draws alike."""

    class Frozen(HopSampler):
        def rule(self, key, hop, fanouts):
            return super().rule((key[0], 0, key[2]), hop, fanouts)

    chain = Frozen(numbers(shuffle=False), ring(), [2, 2])
    loader = hp.DataLoader(chain)
    one, two = ([m.input_nodes.tolist() for m in loader] for _ in range(2))
    assert one == two
    loader = hp.DataLoader(numbers(shuffle=False).sample_neighbor(ring(), [2, 2]))
    assert one == [m.input_nodes.tolist() for m in loader]
    assert one != [m.input_nodes.tolist() for m in loader]


# -------------------------------------------------------------------------------------------------
# Wrong input


@pytest.mark.parametrize(
    ("seeds", "error", "message"),
    [
        (None, ValueError, "no seeds; name a column of the item set 'seeds'"),
        (tensor(3), ValueError, r"shapes \[\(\)\]"),
        (tensor([[[1, 2]]]), ValueError, r"shapes \[\(1, 1, 2\)\]"),
        ({"a": tensor([1]), "a:x:b": tensor([[1, 2]])}, ValueError, r"shapes \[\(1,\), \(1, 2\)\]"),
        ({"a": tensor([[1, 2]])}, ValueError, "'a' does not name the node types of 2 ends"),
        ([1, 2], TypeError, "list"),
    ],
)
def test_wrong_seeds(seeds, error, message):
    with pytest.raises(error, match=message):
        asked(seeds)


def test_a_sampler_without_its_method():
    class Nothing(hp.SubgraphSampler):
        pass

    with pytest.raises(NotImplementedError, match="Nothing has no sample_subgraphs"):
        Nothing([])(hp.MiniBatch(seeds=tensor([1])))


def test_subgraph_sampler_of_a_users_own_resumes():
    assert issubclass(Composed, hp.SubgraphSampler)
    check_resume(lambda: numbers().pipe(Composed, ring()))


def test_hop_sampler_resumes():
    check_resume(lambda: HopSampler(numbers(), ring(), [2, 2]))


def test_a_sampler_that_goes_hop_by_hop_takes_no_sample_subgraphs():
    with pytest.raises(TypeError, match="derive it from SubgraphSampler"):

        class Mine(hp.NeighborSampler):
            def sample_subgraphs(self, seeds, seeds_timestamp, seeds_pre_time_window=None):
                return seeds, []
