"""MiniBatch: columns, attributes, moving, and a repr that changes nothing."""

from __future__ import annotations

import copy
import pickle
import sys
import types

import pytest
import torch

import hopline.pipes as hp
from hopline.pipes import page_lock
from tests.fake_driver import FakeDriver
from tests.number_chains import numbers, ring, ring_features, whole_chain
from tests.stage_checks import assert_same, bits


def test_columns_become_fields_and_extra_columns_attributes():
    columns = {"seeds": torch.arange(3), "labels": torch.ones(3), "weight": torch.zeros(3)}
    minibatch = hp.MiniBatch.from_columns(columns)
    assert minibatch.seeds is columns["seeds"]
    assert minibatch.labels is columns["labels"]
    assert minibatch.weight is columns["weight"]
    assert minibatch.extra == {"weight": columns["weight"]}
    assert minibatch.indexes is None


@pytest.mark.parametrize(
    "name",
    [
        "to",
        "blocks",
        "key",
        "extra",
        "node_features",
        "sampled_subgraphs",
        "num_layers",
        "node_ids",
        "from_columns",
        "__init__",
    ],
)
def test_names_that_are_taken(name):
    items = hp.ItemSet(torch.arange(3), names=name)
    with pytest.raises(ValueError, match=f"may not name a column \\['{name}'\\]"):
        next(iter(hp.ItemSampler(items, 2)))


@pytest.mark.parametrize("name", ["seeds", "labels", "indexes", "timestamp", "compacted_seeds"])
def test_names_of_fields(name):
    minibatch = next(iter(hp.ItemSampler(hp.ItemSet(torch.arange(3), names=name), 2)))
    assert getattr(minibatch, name).tolist() == [0, 1]
    assert minibatch.extra == {}


def test_an_attribute_that_a_stage_sets_moves_along():
    minibatch = hp.MiniBatch.from_columns({"seeds": torch.arange(2), "weight": torch.ones(2)})
    minibatch.weight = minibatch.weight * 3  # a column of the item set
    minibatch.score = torch.ones(1)  # a new one
    assert set(minibatch.extra) == {"weight", "score"}
    minibatch.to("meta")
    assert minibatch.weight.device.type == minibatch.score.device.type == "meta"
    assert "score" in repr(minibatch)


def test_an_unknown_attribute_is_told_with_what_there_is():
    minibatch = hp.MiniBatch.from_columns({"weight": torch.ones(2)})
    with pytest.raises(AttributeError, match=r"no attribute 'wait'; .*\['weight'\]"):
        minibatch.wait  # noqa: B018


def test_blocks_cannot_be_assigned():
    with pytest.raises(AttributeError):
        hp.MiniBatch().blocks = []


def test_a_minibatch_before_sampling():
    minibatch = hp.MiniBatch(seeds=torch.arange(2))
    assert minibatch.blocks is None
    assert minibatch.num_layers() == 0
    assert minibatch.node_ids() is None
    with pytest.raises(IndexError, match="layer 0 of a mini-batch with 0 hops"):
        minibatch.edge_ids(0)


def test_a_sampled_minibatch():
    minibatch = next(iter(numbers().sample_neighbor(ring(), [2, 3])))
    assert minibatch.num_layers() == len(minibatch.blocks) == 2
    assert minibatch.node_ids() is minibatch.input_nodes
    for layer, block in enumerate(minibatch.blocks):
        assert minibatch.edge_ids(layer) is block.original_edge_ids
    for layer in (2, -1):
        with pytest.raises(IndexError, match=f"layer {layer} of a mini-batch with 2 hops"):
            minibatch.edge_ids(layer)


def test_d18_repr_is_short_and_changes_nothing():
    minibatch = next(iter(whole_chain()))
    before = {name: id(value) for name, value in vars(minibatch).items()}
    tensors = [
        t
        for subgraph in minibatch.sampled_subgraphs
        for t in (subgraph.sampled_csc.indptr, subgraph.sampled_csc.indices)
    ]
    seen = [(t.dtype, t.data_ptr(), bits(t)) for t in tensors]
    text = repr(minibatch)
    assert text.startswith("MiniBatch(key=(5, 0, 0), seeds=int64[3], labels=int64[3]")
    assert "node_features={'feat': float32[" in text
    assert "blocks" not in text
    assert len(text) < 800
    assert {name: id(value) for name, value in vars(minibatch).items()} == before
    assert [(t.dtype, t.data_ptr(), bits(t)) for t in tensors] == seen


def test_repr_of_odd_things():
    minibatch = hp.MiniBatch(seeds={"a:b:c": torch.ones(2, 2)}, labels=torch.tensor(1))
    minibatch.words = ["x"] * 20
    minibatch.pair = ["y", torch.ones(1)]
    text = repr(minibatch)
    assert "{'a:b:c': float32[2, 2]}" in text
    assert "list[20]" in text
    assert "['y', float32[1]]" in text
    assert repr(hp.MiniBatch()) == "MiniBatch(key=None)"


def test_to_is_in_place_and_keeps_the_key():
    minibatch = next(iter(whole_chain()))
    assert minibatch.to("meta") is minibatch
    assert minibatch.key == (5, 0, 0)
    assert minibatch.seeds.device.type == "meta"


def test_copies_and_pickles_are_whole():
    minibatch = next(iter(whole_chain()))
    minibatch.weight = torch.ones(2)
    assert_same(copy.copy(minibatch), minibatch)
    assert_same(copy.deepcopy(minibatch), minibatch)
    assert_same(pickle.loads(pickle.dumps(minibatch)), minibatch)  # noqa: S301, our own


def test_features_are_set():
    minibatch = hp.MiniBatch()
    nodes, edges = {"feat": torch.ones(2, 1)}, [{"weight": torch.ones(3, 1)}]
    minibatch.set_node_features(nodes)
    minibatch.set_edge_features(edges)
    assert minibatch.node_features is nodes
    assert minibatch.edge_features is edges


def test_compute_blocks():
    minibatch = next(iter(whole_chain()))
    assert_same(minibatch.compute_blocks(), minibatch.blocks)
    assert hp.MiniBatch().compute_blocks() is None


# -------------------------------------------------------------------------------------------------
# Pinned memory


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU to pin for")
def test_pinning_without_a_gpu_is_a_clear_error():
    minibatch = next(iter(whole_chain()))
    assert not minibatch.is_pinned()
    for pin in (minibatch.pin_memory, lambda: minibatch.to("pinned")):
        with pytest.raises(RuntimeError, match="pinning memory needs a GPU"):
            pin()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU to pin for")
def test_pinning():
    minibatch = next(iter(whole_chain()))
    expected = copy.deepcopy(minibatch)
    assert not minibatch.is_pinned()
    assert minibatch.pin_memory() is minibatch
    assert minibatch.is_pinned()
    assert minibatch.seeds.is_pinned()
    assert_same(minibatch, expected)


def test_a_minibatch_is_pinned_when_all_of_it_is(monkeypatch):
    pinned: set[int] = set()
    driver = FakeDriver()
    monkeypatch.setattr(driver, "is_pinned", lambda tensor: id(tensor) in pinned)
    monkeypatch.setattr(page_lock, "_driver", driver)
    minibatch = hp.MiniBatch(seeds=torch.arange(2), node_features={"feat": torch.ones(2, 1)})
    minibatch.words = ["not a tensor", 3]
    pinned.add(id(minibatch.seeds))
    assert not minibatch.is_pinned()
    pinned.add(id(minibatch.node_features["feat"]))
    assert minibatch.is_pinned()
    minibatch.score = (torch.ones(1),)
    assert not minibatch.is_pinned()
    csc = hp.CSCFormatBase(torch.tensor([0, 1]), torch.tensor([0]))
    pinned |= {id(minibatch.score[0]), id(csc.indptr)}
    ids = minibatch.seeds
    minibatch.sampled_subgraphs = [hp.SampledSubgraph(csc, ids, ids, ids)]
    assert not minibatch.is_pinned()
    pinned.add(id(csc.indices))
    assert minibatch.is_pinned()
    assert hp.MiniBatch().is_pinned()  # nothing in it is elsewhere


# -------------------------------------------------------------------------------------------------
# PyG


@pytest.fixture
def pyg(monkeypatch):
    """`Data` that keeps what it is given: the library itself need not be there."""
    module = types.ModuleType("torch_geometric.data")
    module.Data = types.SimpleNamespace
    package = types.ModuleType("torch_geometric")
    package.data = module
    monkeypatch.setitem(sys.modules, "torch_geometric", package)
    monkeypatch.setitem(sys.modules, "torch_geometric.data", module)


@pytest.mark.parametrize("options", [{}, {"replace": True}, {"deduplicate": False}])
def test_pyg_data_has_every_sampled_edge_once_in_order(pyg, options):
    graph, features = ring(20), ring_features(20)
    ends = hp.to_edge_list(graph)
    chain = numbers(20, 6).sample_neighbor(graph, [3, 3], **options)
    for minibatch in chain.fetch_feature(features, ["feat"], ["weight"]):
        data = minibatch.to_pyg_data()
        assert data.batch_size == len(minibatch.seeds)
        assert torch.equal(data.n_id, minibatch.input_nodes)
        assert torch.equal(data.n_id[: data.batch_size].long(), minibatch.seeds)
        assert data.num_nodes == len(data.n_id)
        assert data.y is minibatch.labels
        assert torch.equal(data.x, minibatch.node_features["feat"])
        # The plain twin: hop after hop from the seeds, skipping what came before.
        expected = {}
        for subgraph in reversed(minibatch.sampled_subgraphs):
            csc, ids = subgraph.sampled_csc, subgraph.original_edge_ids.tolist()
            pointers = csc.indptr.tolist()
            for column in range(len(pointers) - 1):
                for e in range(pointers[column], pointers[column + 1]):
                    expected[int(csc.indices[e]), column, ids[e]] = None
        src, dst = data.edge_index
        assert list(zip(src.tolist(), dst.tolist(), data.e_id.tolist(), strict=True)) == [*expected]
        assert data.edge_index.dtype == torch.int64
        assert torch.equal(data.n_id[src].long(), ends[data.e_id, 0])
        assert torch.equal(data.n_id[dst].long(), ends[data.e_id, 1])
        assert torch.equal(data.edge_attr[:, 0], 100 + data.e_id.float())


def test_pyg_data_keeps_parallel_edges(pyg):
    graph = hp.from_edge_list([(1, 0), (1, 0)], include_original_edge_id=True)
    items = hp.ItemSet(torch.tensor([0, 1]), names="seeds")
    data = next(iter(hp.ItemSampler(items, 2).sample_neighbor(graph, [-1, -1]))).to_pyg_data()
    assert data.edge_index.tolist() == [[1, 1], [0, 0]]
    assert data.e_id.tolist() == [0, 1]
    assert data.x is None
    assert data.y is None
    assert not hasattr(data, "edge_attr")


def test_pyg_data_without_edges(pyg):
    graph = hp.from_edge_list([], 3)
    data = next(iter(numbers(3).sample_neighbor(graph, [2]))).to_pyg_data()
    assert data.edge_index.shape == (2, 0)
    assert data.num_nodes == 3


def test_pyg_data_refuses(pyg):
    sampled = next(iter(numbers().sample_neighbor(ring(), [2])))
    with pytest.raises(ValueError, match="nothing is sampled"):
        hp.MiniBatch(seeds=torch.arange(2)).to_pyg_data()
    two = {"a": torch.ones(1, 1), "b": torch.ones(1, 1)}
    sampled.node_features = two
    with pytest.raises(ValueError, match=r"node features are \['a', 'b'\]"):
        sampled.to_pyg_data()
    sampled.node_features = None
    sampled.edge_features = [two]
    with pytest.raises(ValueError, match=r"edge features of hop 0 are \['a', 'b'\]"):
        sampled.to_pyg_data()
    sampled.seeds = torch.ones(2, 2).long()
    with pytest.raises(ValueError, match=r"seeds have shape \(2, 2\); expected nodes"):
        sampled.to_pyg_data()
    sampled.seeds = {"user": torch.arange(2)}
    with pytest.raises(ValueError, match="the mini-batch has types"):
        sampled.to_pyg_data()
