"""Hot sets: by out-degree, and by counting over some mini-batches."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hopline.pipes as hp
from hopline.pipes.features import hot_set
from tests import strategies
from tests.stage_checks import assert_same


def most(counts, count):
    """[(type, id)], most first, equal ones by order of types, then by id."""
    return sorted((key for key in counts if counts[key]), key=lambda k: (-counts[k], k))[:count]


@given(st.data())
def test_by_degree_of_any_graph(data):
    twin = data.draw(st.one_of(strategies.homogeneous(), strategies.heterogeneous()))
    graph = strategies.build(twin)
    count = data.draw(st.integers(0, 12))
    kinds = list(twin.num_nodes)
    degrees = Counter()
    for etype, pairs in twin.edges.items():
        source = etype.split(":")[0] if not strategies.is_homogeneous(twin) else kinds[0]
        degrees.update((kinds.index(source), s) for s, _ in pairs)
    wanted = most(degrees, count)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hot_set, "CHUNK", data.draw(st.sampled_from([1, 3, 1 << 24])))
        got = hp.hot_set_by_degree(graph, count)
    if strategies.is_homogeneous(twin):
        got = {kinds[0]: got}
    assert list(got) == kinds
    for number, kind in enumerate(kinds):
        assert got[kind].dtype == torch.int64
        assert got[kind].tolist() == [i for n, i in wanted if n == number]


def homogeneous_chain():
    dataset = hp.planted_partition(200, degree_exponent=2.5, seed=4)
    sampler = hp.ItemSampler(dataset.tasks[0].train_set, 50, shuffle=True, seed=1)
    return sampler.sample_neighbor(dataset.graph, [3, 3])


def hetero_chain():
    src = torch.arange(30)
    graph = hp.from_coo(
        {"user:buys:item": (src % 7, src % 5), "item:in:user": (src % 5, src % 7)},
        num_nodes={"user": 7, "item": 5},
    )
    items = hp.HeteroItemSet({"user": hp.ItemSet(7, "seeds"), "item": hp.ItemSet(5, "seeds")})
    return hp.ItemSampler(items, 4, shuffle=True, seed=3).sample_neighbor(graph, [2])


@pytest.mark.parametrize("make", [homogeneous_chain, hetero_chain])
@pytest.mark.parametrize(("count", "batches"), [(0, 1), (5, 2), (1000, 3), (20, 11)])
def test_by_presampling(make, count, batches):
    """Eleven mini-batches are more than an epoch has: the next one follows."""
    counts, kinds = Counter(), []
    chain = make()
    epochs = itertools.chain.from_iterable(iter(chain) for _ in range(9))
    for minibatch in itertools.islice(epochs, batches):
        nodes = minibatch.input_nodes
        nodes = nodes if isinstance(nodes, dict) else {None: nodes}
        kinds = list(nodes)
        for number, ids in enumerate(nodes.values()):
            counts.update((number, i) for i in ids.unique().tolist())
    wanted = most(counts, count)
    got = hp.hot_set_by_presampling(make(), count, batches)
    got = got if isinstance(got, dict) else {None: got}
    assert list(got) == kinds
    for number, kind in enumerate(kinds):
        assert got[kind].dtype == torch.int64
        assert got[kind].tolist() == [i for n, i in wanted if n == number]


def test_presampling_leaves_the_chain_as_it_is():
    chain = homogeneous_chain()
    hp.hot_set_by_presampling(chain, 10, 7)
    assert_same(list(chain), list(homogeneous_chain()))


def test_a_static_cache_of_what_was_presampled_beats_one_of_other_nodes():
    chain = homogeneous_chain()
    hot = hp.hot_set_by_presampling(chain, 40, 6)
    slow = hp.TorchBasedFeature(torch.arange(200.0).unsqueeze(1))
    cold = torch.tensor(sorted(set(range(200)) - set(hot.tolist()))[:40])
    rates = []
    for ids in (hot, cold):
        feature = hp.cpu_cached_feature(slow, 40 * 4, "static", hot_ids=ids)
        store = hp.BasicFeatureStore({("node", None, "x"): feature})
        for minibatch in homogeneous_chain().fetch_feature(store, ["x"]):
            assert torch.equal(minibatch.node_features["x"][:, 0], minibatch.input_nodes.float())
        rates.append(feature.miss_rate)
    assert rates[0] < rates[1] < 1


def test_no_mini_batches_give_no_ids():
    graph = hp.from_coo(torch.tensor([0]), torch.tensor([1]), 2)
    chain = hp.ItemSampler(hp.ItemSet(0, "seeds"), 2).sample_neighbor(graph, [1])
    assert hp.hot_set_by_presampling(chain, 5, 3).tolist() == []


def test_what_is_refused():
    graph = hp.from_coo(torch.tensor([0]), torch.tensor([1]), 2)
    plain = hp.ItemSampler(hp.ItemSet(4, "seeds"), 2)
    with pytest.raises(TypeError, match=r"count is 1.5; expected an int"):
        hp.hot_set_by_degree(graph, 1.5)
    with pytest.raises(ValueError, match="count is -1; expected 0 or more"):
        hp.hot_set_by_presampling(plain, -1, 1)
    with pytest.raises(ValueError, match="batches is 0; expected 1 or more"):
        hp.hot_set_by_presampling(plain, 1, 0)
    with pytest.raises(TypeError, match="graph is a ItemSampler; expected a FusedCSC"):
        hp.hot_set_by_degree(plain, 1)
    with pytest.raises(TypeError, match="chain is a FusedCSCSamplingGraph; expected a chain"):
        hp.hot_set_by_presampling(graph, 1, 1)
    with pytest.raises(ValueError, match="no input_nodes to count; give a chain with sample"):
        hp.hot_set_by_presampling(plain, 1, 1)


@pytest.mark.parametrize("bad", [-1, 3])
def test_a_damaged_graph_is_named(bad):
    graph = hp.from_coo(torch.tensor([0, 1, 2]), torch.tensor([1, 2, 0]), 3)
    graph.indices[1] = bad
    with pytest.raises(ValueError, match=rf"indices\[1\] is {bad}.*damaged"):
        hp.hot_set_by_degree(graph, 2)
