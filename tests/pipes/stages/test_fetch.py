"""FeatureFetcher: rows follow nodes and edges, by original ids, whatever their types."""

from __future__ import annotations

import pytest
import torch

import hopline.pipes as hp
from tests.number_chains import numbers, ring, ring_features
from tests.stage_checks import check_resume

SIZES = {"user": 12, "item": 7, "shop": 3}
ETYPES = ("user:buys:item", "item:in:shop", "user:likes:item", "shop:owns:user")


def typed_graph() -> hp.FusedCSCSamplingGraph:
    edges = {}
    for number, etype in enumerate(ETYPES):
        source, _, destination = etype.split(":")
        # As shuffled as one likes: edges are given in no order of their destinations.
        count = torch.arange(30 + number)
        edges[etype] = ((count * 5 + 1) % SIZES[source], (count * 11 + 3) % SIZES[destination])
    return hp.from_coo(edges, num_nodes=SIZES, include_original_edge_id=True), edges


def typed_features(edges) -> hp.BasicFeatureStore:
    """The same name on every type; values tell the type and the id."""
    store = hp.BasicFeatureStore({})
    for number, (kind, count) in enumerate(SIZES.items()):
        rows = 1000 * number + torch.arange(count).unsqueeze(1)
        store["node", kind, "feat"] = hp.TorchBasedFeature(rows)
    for number, (etype, (source, destination)) in enumerate(edges.items()):
        ends = torch.stack([source, destination, torch.full_like(source, number)], 1)
        store["edge", etype, "ends"] = hp.TorchBasedFeature(ends)
    return store


def typed_items() -> hp.HeteroItemSet:
    return hp.HeteroItemSet(
        {"item": hp.ItemSet(torch.arange(7), "seeds"), "user": hp.ItemSet(torch.arange(5), "seeds")}
    )


def test_sets_of_names_are_read_in_one_order_in_all_processes():
    # A set's own order changes with PYTHONHASHSEED: states would be refused after a restart.
    names = [f"feat{i}" for i in range(20)]
    store = hp.BasicFeatureStore(
        {("node", None, name): hp.TorchBasedFeature(torch.zeros(40, 1)) for name in names}
    )
    for keys in (set(names), frozenset(names)):
        chain = numbers(40, 8).fetch_feature(store, keys)
        assert list(next(iter(chain)).node_features) == sorted(names)
        assert chain.settings()["node_feature_keys"] == [[None, name] for name in sorted(names)]
    given = numbers(40, 8).fetch_feature(store, names[::-1])
    assert list(next(iter(given)).node_features) == names[::-1]


def test_rows_follow_nodes_and_edges():
    chain = (
        numbers(40, 8)
        .sample_neighbor(ring(), [-1, 2])
        .fetch_feature(ring_features(), ["feat"], ["weight"])
    )
    for minibatch in chain:
        expected = minibatch.input_nodes.float().unsqueeze(1).expand(-1, 3)
        assert torch.equal(minibatch.node_features["feat"], expected)
        for hop, subgraph in enumerate(minibatch.sampled_subgraphs):
            weight = minibatch.edge_features[hop]["weight"]
            assert torch.equal(weight, 100 + subgraph.original_edge_ids.float().unsqueeze(1))
            # Edge e of the ring was given as (node + step of e // 50) -> node e % 50.
            edge = subgraph.original_edge_ids
            csc = subgraph.sampled_csc
            column = torch.repeat_interleave(torch.diff(csc.indptr))
            assert torch.equal(subgraph.original_column_node_ids[column].long(), edge % 50)
            step = torch.tensor([1, 2, 3, 7])[edge // 50]
            source = subgraph.original_row_node_ids[csc.indices].long()
            assert torch.equal(source, (edge % 50 + step) % 50)


def test_rows_follow_typed_nodes_and_edges():
    graph, edges = typed_graph()
    store = typed_features(edges)
    chain = (
        hp.ItemSampler(typed_items(), 4, shuffle=True, seed=3)
        .sample_neighbor(graph, [3, -1])
        .fetch_feature(
            store, {kind: ["feat"] for kind in SIZES}, {etype: ["ends"] for etype in ETYPES}
        )
    )
    met = 0
    for minibatch in chain:
        assert list(minibatch.node_features) == [(kind, "feat") for kind in SIZES]
        for number, kind in enumerate(SIZES):
            rows = minibatch.node_features[kind, "feat"]
            assert torch.equal(rows[:, 0], 1000 * number + minibatch.input_nodes[kind])
        for hop, subgraph in enumerate(minibatch.sampled_subgraphs):
            for number, etype in enumerate(ETYPES):
                source, _, destination = etype.split(":")
                csc = subgraph.sampled_csc[etype]
                ends = minibatch.edge_features[hop][etype, "ends"]
                column = torch.repeat_interleave(torch.diff(csc.indptr))
                assert ends.shape == (len(csc.indices), 3)
                got = subgraph.original_row_node_ids[source][csc.indices]
                assert torch.equal(ends[:, 0], got.long())
                got = subgraph.original_column_node_ids[destination][column]
                assert torch.equal(ends[:, 1], got.long())
                assert torch.equal(ends[:, 2], torch.full_like(ends[:, 2], number))
                met += len(ends)
    assert met > 100


def test_without_a_sampler_the_rows_of_the_seeds():
    for minibatch in numbers().fetch_feature(ring_features(), ["feat"]):
        assert torch.equal(minibatch.node_features["feat"][:, 0], minibatch.seeds.float())
        assert minibatch.edge_features is None


def test_a_type_absent_from_the_batch_has_no_rows():
    _, edges = typed_graph()
    chain = hp.ItemSampler(typed_items(), 7).fetch_feature(
        typed_features(edges), {kind: ["feat"] for kind in SIZES}
    )
    first, second = chain
    assert first.node_features["user", "feat"].shape == (0, 1)
    assert first.node_features["user", "feat"].dtype == torch.int64
    assert first.node_features["shop", "feat"].shape == (0, 1)
    assert first.node_features["item", "feat"][:, 0].tolist() == [1000 + i for i in range(7)]
    assert second.node_features["item", "feat"].shape == (0, 1)
    assert second.node_features["user", "feat"][:, 0].tolist() == [0, 1, 2, 3, 4]


def test_no_seeds_no_rows():
    chain = numbers(0).fetch_feature(ring_features(), ["feat"])
    assert list(chain) == []
    empty = hp.MiniBatch(seeds=torch.empty(0, dtype=torch.int64))
    chain = hp.IterableSource([empty]).sample_neighbor(ring(), [2])
    minibatch = next(iter(chain.fetch_feature(ring_features(), ["feat"], ["weight"])))
    assert minibatch.node_features["feat"].shape == (0, 3)
    assert minibatch.edge_features[0]["weight"].shape == (0, 1)


def test_no_keys_nothing_to_do():
    for minibatch in numbers().fetch_feature(ring_features()):
        assert minibatch.node_features is None
        assert minibatch.edge_features is None


def test_nothing_to_read_for():
    with pytest.raises(ValueError, match="neither input_nodes nor seeds"):
        list(hp.IterableSource([hp.MiniBatch()]).fetch_feature(ring_features(), ["feat"]))
    with pytest.raises(ValueError, match="put fetch_feature after a sampler"):
        list(numbers().fetch_feature(ring_features(), None, ["weight"]))


@pytest.mark.parametrize(
    ("node", "edge", "words"),
    [
        (["feet"], None, "no node feature 'feet' of type None"),
        ({"user": ["feat"]}, None, "no node feature 'feat' of type 'user'"),
        (["feat"], ["feat"], "no edge feature 'feat' of type None"),
    ],
)
def test_a_missing_feature_is_told_at_construction(node, edge, words):
    with pytest.raises(KeyError, match=words) as caught:
        numbers().fetch_feature(ring_features(), node, edge)
    assert "weight" in str(caught.value)  # what there is


@pytest.mark.parametrize("keys", ["feat", 7, [7], {"user": "feat"}, {"user": 7}, {"user": None}])
def test_keys_of_wrong_kind(keys):
    with pytest.raises(TypeError, match=r"node_feature_keys is .*expected a list of names"):
        numbers().fetch_feature(ring_features(), keys)
    with pytest.raises(TypeError, match="edge_feature_keys is"):
        numbers().fetch_feature(ring_features(), None, keys)


def test_a_store_of_wrong_kind():
    with pytest.raises(TypeError, match="feature_store is a dict"):
        numbers().fetch_feature({}, ["feat"])


def test_keys_must_fit_the_graph():
    _, edges = typed_graph()
    store = typed_features(edges)
    store["node", None, "feat"] = hp.TorchBasedFeature(torch.zeros(50, 1))
    with pytest.raises(ValueError, match=r"node ids are by type.*pass \{type: \[names\]\}"):
        list(hp.ItemSampler(typed_items(), 4).fetch_feature(store, ["feat"]))
    with pytest.raises(ValueError, match=r"node ids are of one type.*pass \[names\]"):
        list(numbers().fetch_feature(store, {"user": ["feat"]}))


def test_an_id_beyond_the_feature_is_told():
    chain = numbers(60, 60, shuffle=False).fetch_feature(ring_features(), ["feat"])
    words = r"feature \('node', None, 'feat'\): .*id 50 at position 50 is outside \[0, 50\)"
    with pytest.raises(IndexError, match=words):
        list(chain)


class Broken(hp.TorchBasedFeature):
    def read(self, ids=None):
        raise KeyError("row")


def test_a_feature_that_fails_is_named():
    store = hp.BasicFeatureStore({("node", None, "x"): Broken(torch.zeros(60, 1))})
    chain = numbers(60, 60, shuffle=False).fetch_feature(store, ["x"])
    with pytest.raises(KeyError) as caught:
        list(chain)
    assert caught.value.args == ("feature ('node', None, 'x'): row",)


def test_resume():
    graph, edges = typed_graph()
    store = typed_features(edges)
    check_resume(
        lambda: (
            hp.ItemSampler(typed_items(), 4, shuffle=True, seed=3)
            .sample_neighbor(graph, [2, 3])
            .fetch_feature(store, {"user": ["feat"], "item": ["feat"]}, {"item:in:shop": ["ends"]})
        )
    )
