"""Wrong input of negative samplers is refused: settings, seeds, times and graphs."""

from __future__ import annotations

import pytest
import torch

import hopline.pipes as hp
from tests import twins
from tests.pipes.stages.test_negative import (
    graph_of,
    negatives,
    pair_tensor,
)
from tests.strategies import build, tensor


@pytest.mark.parametrize("ratio", [0, -1])
def test_a_ratio_below_one_is_refused(ratio):
    with pytest.raises(ValueError, match=f"negative_ratio is {ratio}; expected 1 or more"):
        hp.NegativeSampler([], ratio)


@pytest.mark.parametrize("ratio", [1.0, True, "2", None])
def test_a_ratio_of_another_kind_is_refused(ratio):
    with pytest.raises(TypeError, match="negative_ratio is"):
        hp.NegativeSampler([], ratio)


def test_wrong_settings_are_refused():
    graph = graph_of([(0, 1)], 2)
    with pytest.raises(TypeError, match="graph is a int; expected a FusedCSCSamplingGraph"):
        hp.UniformNegativeSampler([], 3, 2)
    with pytest.raises(TypeError, match="exclude_true_edges is 1"):
        hp.UniformNegativeSampler([], graph, 1, exclude_true_edges=1)
    with pytest.raises(KeyError, match="time"):
        hp.UniformNegativeSampler([], graph, 1, node_timestamp_attr_name="time")
    graph.add_node_attribute("time", torch.rand(2))
    with pytest.raises(TypeError, match="expected integers"):
        hp.UniformNegativeSampler([], graph, 1, node_timestamp_attr_name="time")


SEEDS = {
    "of one dimension": (tensor([0, 1]), ValueError, r"shape \(2,\); expected \[N, 2\]"),
    "hyperlinks": (tensor([[0, 1, 2]]), ValueError, r"shape \(1, 3\)"),
    "floats": (torch.zeros(2, 2), TypeError, "dtype torch.float32"),
    "lists": ([[0, 1]], TypeError, "are a list"),
    "a source too large": (tensor([[5, 1]]), IndexError, "sources of seeds: id 5 at position 0"),
    "negative": (tensor([[1, 1], [1, -1]]), IndexError, "destinations of seeds: id -1 at"),
    "none": (None, ValueError, "has no seeds"),
    "by type": ({"a:x:a": tensor([[0, 1]])}, TypeError, "the graph has no types"),
}


@pytest.mark.parametrize("name", SEEDS)
def test_wrong_seeds_are_refused(name):
    seeds, error, words = SEEDS[name]
    with pytest.raises(error, match=words):
        negatives(graph_of([(0, 1)], 5), seeds, 2)


def test_wrong_types_are_refused():
    graph = build(twins.Graph({"a": 3, "b": 4}, {"a:x:b": [(0, 0)]}))
    with pytest.raises(TypeError, match=r"seeds are one tensor, but the graph has node types"):
        negatives(graph, pair_tensor([(0, 1)]), 1)
    with pytest.raises(ValueError, match=r"'a:x:c' name node types \['c'\]"):
        negatives(graph, {"a:x:c": pair_tensor([(0, 1)])}, 1)
    # A relation to be predicted need not be in the graph, unless its edges are to be avoided.
    missing = {"b:new:a": pair_tensor([(0, 1)])}
    assert negatives(graph, missing, 50).seeds["b:new:a"][:, 1].max() == 2
    with pytest.raises(ValueError, match="knows no edges of type 'b:new:a'"):
        negatives(graph, missing, 1, exclude_true_edges=True)


def test_seeds_too_narrow_for_the_nodes_are_refused():
    with pytest.raises(ValueError, match=r"seeds of dtype torch\.int8 cannot hold"):
        negatives(graph_of([(0, 1)], 1000), pair_tensor([(0, 1)], torch.int8), 50)


def test_a_source_with_an_edge_to_everything_is_named():
    graph = graph_of([(1, d) for d in range(5)] + [(0, 2)], 5)
    with pytest.raises(ValueError, match=r"source 1 of seed 1 has an edge to every .*\(5 nodes\)"):
        negatives(graph, pair_tensor([(0, 2), (1, 2)]), 2, exclude_true_edges=True)


@pytest.mark.parametrize(
    ("timestamp", "error", "words"),
    [
        (None, ValueError, "the mini-batch has no timestamp"),
        (tensor([1, 2]), ValueError, r"timestamp has shape \(2,\) for 1 seeds"),
        (tensor([[1]]), ValueError, r"timestamp has shape \(1, 1\)"),
        (torch.ones(1), TypeError, "timestamp has dtype torch.float32"),
        ([1], TypeError, "timestamp is a list"),
        ({"a:x:a": tensor([1])}, TypeError, "seeds are a Tensor, but timestamp is a dict"),
    ],
)
def test_wrong_times_are_refused(timestamp, error, words):
    graph = graph_of([(0, 1)], 3)
    graph.add_node_attribute("time", tensor([0, 0, 0]))
    with pytest.raises(error, match=words):
        negatives(
            graph, pair_tensor([(0, 1)]), 1, timestamp=timestamp, node_timestamp_attr_name="time"
        )


def test_no_key_and_a_place_after_the_sampler_are_refused():
    graph = graph_of([(0, 1)], 3)
    with pytest.raises(ValueError, match="no key"):
        negatives(graph, pair_tensor([(0, 1)]), 1, key=None)
    minibatch = hp.MiniBatch(seeds=pair_tensor([(0, 1)]), key=(0, 0, 0), sampled_subgraphs=[])
    with pytest.raises(ValueError, match="before the neighbour sampler"):
        hp.UniformNegativeSampler([minibatch], graph, 1)(minibatch)


def test_a_damaged_graph_is_named():
    graph = graph_of([(0, 1), (0, 2)], 3)
    graph.csc_indptr[2] = 9
    with pytest.raises(ValueError, match=r"csc_indptr is damaged at node [12]"):
        negatives(graph, pair_tensor([(1, 1)]), 50, exclude_true_edges=True)
