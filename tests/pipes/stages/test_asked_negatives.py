"""Negatives drawn by questions whether edges exist are those drawn by a look at the graph."""

import numpy as np
import pytest
import torch

import hopline.pipes as hp
from hopline.pipes.kernels import edges as kernels
from hopline.pipes.stages import asked_negatives
from hopline.pipes.stages.asked_negatives import draw_by_asking


class Elsewhere:
    """What a sampler may ask of a graph whose arrays it cannot see."""

    def __init__(self, graph):
        self._graph = graph
        self.asked = []

    def has_edges(self, sources, columns, edge_type):
        self.asked.append(len(sources))
        return self._graph.has_edges(sources, columns, edge_type)


def drawn(graph, key, ratio, counts, order, sources, first, edge_type):
    """(destinations, -1 or the first pair without one), by a look at the graph."""
    out = np.empty(len(counts) * ratio, np.int64)
    kinds = np.empty(0, np.uint8) if graph.type_per_edge is None else graph.type_per_edge.numpy()
    status = kernels.draw_destinations(
        np.uint64(key), ratio, counts, order, True, sources, first,
        graph.csc_indptr.numpy(), graph.indices.numpy(), kinds, edge_type, out,
    )  # fmt: skip
    return out, status


@pytest.mark.parametrize("most", [1 << 20, 7])  # pairs in a question
@pytest.mark.parametrize("free", [0, 1, 2, 40, 400])
@pytest.mark.parametrize("by_order", [False, True])
def test_a_source_with_edges_to_nearly_all(monkeypatch, free, by_order, most):
    """Few draws find what is free, so most negatives come from the candidates in turn."""
    monkeypatch.setattr(asked_negatives, "MOST_PAIRS", most)
    nodes = 400
    rng = np.random.default_rng(free)
    ends = torch.from_numpy(rng.permutation(nodes)[free:])
    graph = hp.from_coo(torch.full_like(ends, 7), ends, num_nodes=nodes)
    counts = np.array([nodes, nodes, 300, 3, 1], np.int64)
    sources = np.array([7, 8, 7, 8, 8], np.int64)
    order = rng.permutation(nodes) if by_order else np.empty(0, np.int64)
    for key in range(20):
        arguments = (key, 3, counts, order, sources, 0, 0)
        expected, status = drawn(graph, *arguments)
        out, failed = draw_by_asking(Elsewhere(graph), *arguments)
        assert failed == status
        if status < 0:
            assert np.array_equal(out, expected)


def test_of_one_edge_type_of_several():
    rng = np.random.default_rng(0)
    edges = {
        name: tuple(torch.from_numpy(rng.integers(0, 12, 60)) for _ in range(2))
        for name in ("a:x:a", "a:y:b", "b:z:b")
    }
    graph = hp.from_coo(edges, num_nodes={"a": 12, "b": 12})
    for number, name in enumerate(graph.edge_type_to_id):
        first = 0 if name.endswith("a") else 12
        sources = edges[name][0].numpy() + (12 if name.startswith("b") else 0)
        arguments = (5, 4, np.full(60, 12, np.int64), np.empty(0, np.int64), sources, first, number)
        expected, status = drawn(graph, *arguments)
        out, failed = draw_by_asking(Elsewhere(graph), *arguments)
        assert failed == status == -1
        assert np.array_equal(out, expected)


def test_most_are_asked_for_once():
    graph = hp.from_coo(torch.arange(1000), torch.arange(1000) // 2, num_nodes=1000)
    elsewhere = Elsewhere(graph)
    counts, sources = np.full(1000, 1000, np.int64), np.arange(1000)
    draw_by_asking(elsewhere, 1, 2, counts, np.empty(0, np.int64), sources, 0, 0)
    assert elsewhere.asked[0] == 2000
    assert sum(elsewhere.asked[1:]) < 100


def test_whether_edges_exist():
    graph = hp.from_coo(
        {"a:x:b": (torch.tensor([0, 0, 2]), torch.tensor([1, 1, 0])),
         "b:y:b": (torch.tensor([1]), torch.tensor([1]))},
        num_nodes={"a": 3, "b": 2},
    )  # fmt: skip
    sources, columns = np.array([0, 0, 2, 4, 2]), np.array([4, 3, 3, 4, 4])
    assert graph.has_edges(sources, columns, 0).tolist() == [True, False, True, False, False]
    assert graph.has_edges(sources, columns, 1).tolist() == [False, False, False, True, False]
    assert graph.has_edges(sources[:0], columns[:0], 1).tolist() == []
    graph.csc_indptr[4] = 99
    with pytest.raises(ValueError, match="csc_indptr is damaged at node 4"):
        graph.has_edges(sources, columns, 0)
