"""Temporal sampling: nothing to see, and wrong times, windows and attributes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import hopline.pipes as hp
from tests.pipes.test_temporal import EDGES, NODES, SAMPLERS, edges_of, sample, star
from tests.strategies import tensor
from tests.twins import NODE

# -------------------------------------------------------------------------------------------------
# Emptiness


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("names", [EDGES, NODES, {**EDGES, **NODES}])
@pytest.mark.parametrize("replace", [False, True])
def test_b11_b21_nothing_to_see(sampler, names, replace):
    empty = tensor([])
    graph = hp.from_coo(
        empty, empty, 5, node_attributes={"t": torch.zeros(5, dtype=torch.int64)},
        edge_attributes={"t": empty},
    )  # fmt: skip
    for seeds in ([3, 4], []):
        times = tensor([2] * len(seeds))
        minibatch = sample(graph, tensor(seeds), times, [2, -1], sampler, replace=replace, **names)
        for block in minibatch.blocks:
            assert block.indptr.tolist() == [0] * (len(seeds) + 1)
        assert minibatch.input_nodes.tolist() == seeds
    late = star([5, 6])
    late.add_node_attribute("t", tensor([5, 5, 6]))
    minibatch = sample(late, tensor([0]), tensor([5]), [2], sampler, replace=replace, **names)
    assert minibatch.blocks[0].indptr.tolist() == [0, 0]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_b11_a_graph_without_edge_types(sampler):
    graph = hp.from_coo({}, num_nodes={"user": 2, "item": 0})
    graph.add_node_attribute("t", tensor([0, 0]))
    minibatch = sample(
        graph, {"user": tensor([1])}, {"user": tensor([1])}, [3, 3], sampler, **NODES
    )
    assert minibatch.blocks == [{}, {}]
    assert {k: v.tolist() for k, v in minibatch.input_nodes.items()} == {"user": [1], "item": []}


# -------------------------------------------------------------------------------------------------
# Wrong input


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize(
    ("times", "error", "message"),
    [
        (None, ValueError, "no timestamp; name a column of the item set 'timestamp'"),
        (tensor([1.0, 2], torch.float32), TypeError, "timestamp is torch.float32.*expected"),
        (tensor([1, 2], torch.complex64), TypeError, "timestamp is torch.complex64.*expected"),
        (tensor([1, 0], torch.bool), TypeError, "timestamp is torch.bool.*expected"),
        ([1, 2], TypeError, "timestamp is list"),
        (tensor([[1], [2]]), TypeError, "timestamp"),
        (tensor(1), TypeError, "timestamp"),
        (tensor([1, 2, 3]), ValueError, "timestamp has 3 values for 2 seeds"),
        (tensor([]), ValueError, "timestamp has 0 values for 2 seeds"),
        ({NODE: tensor([1, 2])}, TypeError, "timestamp and seeds must both come by type"),
    ],
)
def test_wrong_times(sampler, times, error, message):
    with pytest.raises(error, match=message):
        sample(star([1, 2]), tensor([0, 1]), times, [1], sampler, **EDGES)


@pytest.mark.parametrize("seeds", [tensor([]), torch.empty((0, 2), dtype=torch.int64)])
def test_times_without_seeds(seeds):
    with pytest.raises(ValueError, match="timestamp has 3 values for 0 seeds"):
        sample(star([1, 2]), seeds, tensor([1, 2, 3]), [1], **EDGES)


def test_times_of_some_node_seeds_are_not_those_of_positives():
    """Node seeds have no negatives: half as many times as seeds is a mistake."""
    with pytest.raises(ValueError, match="timestamp has 2 values for 4 seeds"):
        sample(star([1, 2]), tensor([0, 1, 0, 1]), tensor([1, 2]), [1], **EDGES)


@pytest.mark.parametrize(
    ("window", "error", "message"),
    [
        (torch.tensor([1.5, 2]), TypeError, "pre_time_window is torch.float32"),
        (tensor([1, 2, 3]), ValueError, "pre_time_window has 3 values for 2 seeds"),
        ([1, 2], TypeError, "pre_time_window is list"),
        (tensor([3, -1]), ValueError, "pre_time_window.* -1"),
    ],
)
def test_wrong_columns_of_windows(window, error, message):
    with pytest.raises(error, match=message):
        sample(star([1, 2]), tensor([0, 1]), tensor([1, 2]), [1], window=window, **EDGES)


def test_wrong_typed_times():
    graph = hp.from_coo(
        {"a:x:b": (tensor([0]), tensor([1]))}, num_nodes={"a": 1, "b": 2},
        edge_attributes={"t": {"a:x:b": tensor([1])}},
    )  # fmt: skip
    seeds = {"b": tensor([1, 0]), "a": tensor([0])}
    for times, error, message in (
        (tensor([1, 2, 3]), TypeError, "both come by type"),
        ({"b": tensor([1, 2])}, TypeError, "timestamp of type 'a' is NoneType"),
        ({"b": tensor([1, 2, 3]), "a": tensor([1])}, ValueError, "of type 'b' has 3 values for 2"),
        ({"b": tensor([1, 2]), "a": tensor([1.0], torch.float64)}, TypeError, "'a' is torch.fl"),
    ):
        with pytest.raises(error, match=message):
            sample(graph, seeds, times, [1], **EDGES)
    minibatch = sample(graph, seeds, {"b": tensor([2, 0]), "a": tensor([0])}, [1], **EDGES)
    assert minibatch.blocks[0]["a:x:b"].indptr.tolist() == [0, 1, 1]


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"node_timestamp_attr_name": "t"}, KeyError, "no node attribute 't'"),
        ({"edge_timestamp_attr_name": "u"}, KeyError, r"no edge attribute 'u'; the graph has"),
        ({"edge_timestamp_attr_name": "f"}, TypeError, "'f' has dtype torch.float32.*integers"),
        ({"edge_timestamp_attr_name": "b"}, TypeError, "'b' has dtype torch.bool.*integers"),
        ({"edge_timestamp_attr_name": "two"}, ValueError, r"'two' has shape \(2, 2\)"),
        ({}, ValueError, "edges later than their seeds would be drawn; name an attribute"),
        ({"pre_time_window": 1.0}, TypeError, r"pre_time_window is 1\.0"),
        ({"pre_time_window": True}, TypeError, "pre_time_window is True"),
        ({"pre_time_window": -1}, ValueError, "pre_time_window is -1; expected 0 or more"),
    ],
)
def test_wrong_settings(sampler, kwargs, error, message):
    graph = star(
        [1, 2], f=torch.ones(2), b=torch.ones(2, dtype=torch.bool),
        two=torch.ones((2, 2), dtype=torch.int64),
    )  # fmt: skip
    with pytest.raises(error, match=message):
        sampler([], graph, [1], **kwargs)


def test_damaged_indices_are_not_followed():
    graph = star([1, 2])
    graph.add_node_attribute("t", tensor([0, 0, 0]))
    graph.indices = tensor([1, 2**30], torch.int32)
    with pytest.raises(ValueError, match=r"indices\[1\] is 1073741824.*damaged"):
        sample(graph, tensor([0]), tensor([5]), [1], **NODES)


def test_settings_name_what_decides():
    stage = hp.TemporalLayerNeighborSampler([], star([1]), [3], **EDGES, pre_time_window=7)
    assert stage.settings() == {
        "fanouts": [3], "replace": False, "nodes": 2, "edges": 1, "pre_time_window": 7,
        "node_timestamp_attr_name": None, "edge_timestamp_attr_name": "t",
        "layer_dependency": False, "batch_dependency": 1,
    }  # fmt: skip


@pytest.mark.parametrize("what", ["edges", "nodes", "seeds"])
def test_unsigned_times_beyond_int64_do_not_come_before_all_others(what):
    """2**63 + 5 is refused, or late; never -2**63 + 5."""
    late = torch.from_numpy(np.array([2**63 + 5, 2**63 + 5], np.uint64))
    early = tensor([1, 1])
    graph = star(late if what == "edges" else early)
    graph.add_node_attribute(
        "t", torch.cat((late, late))[:3] if what == "nodes" else tensor([1] * 3)
    )
    names = NODES if what == "nodes" else EDGES
    try:
        times = late[:1] if what == "seeds" else tensor([5])
        found = edges_of(sample(graph, tensor([0]), times, [-1], **names))
    except (TypeError, ValueError, OverflowError):
        return
    assert found == ([0, 1] if what == "seeds" else [])


def test_a_window_longer_than_all_integers_is_refused_at_once_or_has_no_bound():
    graph = star([1, 2])
    try:
        stage = hp.TemporalNeighborSampler([], graph, [-1], **EDGES, pre_time_window=2**64)
    except ValueError:
        return
    minibatch = hp.MiniBatch(seeds=tensor([0]), timestamp=tensor([5]), key=(0, 0, 0))
    assert edges_of(stage(minibatch)) == [0, 1]
