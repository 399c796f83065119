"""InSubgraphSampler: every in-edge of the seeds."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hopline.pipes as hp
from tests import twins_scored
from tests.number_chains import numbers, ring
from tests.stage_checks import check_resume
from tests.strategies import (
    build,
    compacted,
    ends_of,
    heterogeneous,
    homogeneous,
    is_homogeneous,
    link_tensors,
    links_of,
    sampled,
    seed_tensors,
    seeds_of,
    tensor,
)
from tests.twins import EDGE

graphs = st.one_of(homogeneous(), heterogeneous())


def sample(graph, seeds) -> hp.MiniBatch:
    return hp.InSubgraphSampler([], graph)(hp.MiniBatch(seeds=seeds, key=(1, 2, 3)))


@given(graphs, st.data())
def test_equals_the_twin(graph, data):
    seeds = data.draw(seeds_of(graph))
    keep = data.draw(st.booleans())
    built = build(graph, data.draw(st.booleans()), include_original_edge_id=keep)
    expected, _ = twins_scored.sample(
        graph, seeds, twins_scored.Rule([[-1]]), (0, 0, 0), original_ids=keep
    )
    assert sampled(sample(built, seed_tensors(graph, seeds)), graph) == expected


@given(graphs, st.data())
def test_equals_the_twin_for_links(graph, data):
    links = data.draw(links_of(graph))
    minibatch = sample(build(graph), link_tensors(graph, links))
    expected, places = twins_scored.sample(
        graph, ends_of(links), twins_scored.Rule([[-1]]), (0, 0, 0), links=True, original_ids=False
    )
    assert sampled(minibatch, graph) == expected
    if links:
        found = minibatch.compacted_seeds
        found = {EDGE: found} if is_homogeneous(graph) else found
        assert {kind: rows.tolist() for kind, rows in found.items()} == compacted(links, places)


@given(graphs, st.data())
def test_columns_are_those_of_the_adjacency_matrix(graph, data):
    """Counted from the edges themselves: each in-edge of a seed once for each time it is a seed."""
    seeds = data.draw(seeds_of(graph))
    minibatch = sample(build(graph, include_original_edge_id=True), seed_tensors(graph, seeds))
    blocks = minibatch.blocks[0] if not is_homogeneous(graph) else {EDGE: minibatch.blocks[0]}
    for etype, pairs in graph.edges.items():
        wanted = [i for kind, i in seeds if kind == etype.split(":")[2]]
        expected = [[e for e, (_, d) in enumerate(pairs) if d == i] for i in wanted]
        ids = blocks[etype].original_edge_ids.split(blocks[etype].in_degrees().tolist())
        assert [part.tolist() for part in ids[: len(expected)]] == expected


def test_b05_b35_seeds_come_first_with_their_repeats():
    graph = hp.from_coo(tensor([1, 2, 3]), tensor([0, 0, 2]), 4)
    minibatch = sample(graph, tensor([2, 0, 0]))
    assert minibatch.input_nodes.tolist() == [2, 0, 0, 3, 1]
    assert minibatch.blocks[0].indptr.tolist() == [0, 1, 3, 5]
    assert minibatch.blocks[0].indices.tolist() == [3, 4, 0, 4, 0]
    assert len(minibatch.sampled_subgraphs) == 1


def test_b11_isolated_seeds_and_a_graph_without_edges():
    empty = tensor([])
    for graph in (hp.from_coo(tensor([0]), tensor([1]), 5), hp.from_coo(empty, empty, 5)):
        for seeds in ([3, 4], []):
            minibatch = sample(graph, tensor(seeds))
            assert minibatch.blocks[0].indptr.tolist() == [0] * (len(seeds) + 1)
            assert minibatch.input_nodes.tolist() == seeds
            assert minibatch.input_nodes.dtype == torch.int32


@pytest.mark.parametrize(
    ("seeds", "error", "message"),
    [
        (tensor([0, 50]), IndexError, r"id 50 at position 1.*\[0, 50\)"),
        (tensor([-1]), IndexError, "id -1"),
        (tensor([2**40]), IndexError, str(2**40)),
        (tensor([[3, 50]]), IndexError, "id 50"),
        (tensor([1.0], torch.float32), TypeError, "float32"),
        (None, ValueError, "no seeds"),
    ],
)
def test_d22_ids_are_checked(seeds, error, message):
    with pytest.raises(error, match=message):
        sample(ring(), seeds)


def test_d22_typed_ids_are_checked():
    graph = hp.from_coo({"a:x:b": (tensor([0]), tensor([1]))}, num_nodes={"a": 1, "b": 2})
    with pytest.raises(IndexError, match=r"type 'a': id 1 .*\[0, 1\)"):
        sample(graph, {"a": tensor([1])})  # a node of the fused space, but not of its type
    with pytest.raises(ValueError, match="'c'"):
        sample(graph, {"c": tensor([0])})


def test_wrong_graph():
    with pytest.raises(TypeError, match="graph is a Tensor; expected a FusedCSCSamplingGraph"):
        hp.InSubgraphSampler([], tensor([0]))


def test_in_subgraph_resumes():
    check_resume(lambda: numbers().sample_in_subgraph(ring()))
