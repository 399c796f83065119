"""MiniBatch: columns, attributes, moving, and a repr that changes nothing."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

import hopline.pipes as hp
from tests.number_chains import numbers, ring, whole_chain
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
    "name", ["to", "blocks", "key", "extra", "num_layers", "node_ids", "from_columns", "__init__"]
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


def test_repr_is_short_and_changes_nothing():
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
