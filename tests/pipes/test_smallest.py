"""The fast kernel of the smallest scores: it gives the picks of the plain one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import hopline.pipes as hp
from hopline.pipes.kernels import draws, ranks, smallest
from tests import twins_scored

NONE = np.empty(0, np.int64)
NO_RANKS = np.empty(0, np.int32)
LAYERS = {
    "weights only": np.empty(0, np.uint64),
    "one key": np.array([11, 12, 13, 0], np.uint64),
    "two keys": np.array([11, 12, 13, 1 << 62], np.uint64),
}
DEGREES = [1, 9, 10, 11, 31, 32, 33, 63, 64, 65, 255, 256, 257, 1023, 1024, 1025, 20_000]


def both(
    degrees: list[int],
    weights: np.ndarray[Any, Any],
    layer: np.ndarray[Any, Any],
    fanouts: list[int],
    indices: np.ndarray[Any, Any] | None = None,
) -> list[list[int]]:
    """What the plain kernel and the fast one give: [number, segments, positions, neighbors]."""
    degree = np.array(degrees, np.int64)
    ends = np.cumsum(degree)
    if indices is None:
        indices = np.random.default_rng(0).permutation(int(ends[-1])).astype(np.int32)
    ranks = np.zeros(len(indices), np.int32)
    for begin, end in zip(ends - degree, ends, strict=True):
        before: dict[int, int] = {}
        for e in range(begin, end):
            ranks[e] = before.get(int(indices[e]), 0)
            before[int(indices[e])] = ranks[e] + 1
    repeats = np.flatnonzero(ranks) if len(layer) else NONE
    step = smallest.NEAR
    near = np.searchsorted(repeats, np.arange(0, len(indices) + step + 1, step))
    limits = np.resize(np.array(fanouts, np.int64), len(degree))
    room = np.append(0, np.cumsum(np.where(limits < 0, degree, np.minimum(degree, limits))))
    columns = len(degree) // len(fanouts)
    shared = (indices, np.arange(7, 7 + columns), np.arange(5, 5 + len(fanouts), dtype=np.uint64),
              np.array(fanouts, np.int64))  # fmt: skip
    results = []
    for fast in (False, True):
        out = (np.zeros(len(room), np.int64), np.zeros(room[-1] + 1, np.int64),
               np.zeros(room[-1], indices.dtype))  # fmt: skip
        if fast:
            total = smallest.pick_smallest(
                *shared, ends - degree, degree, room, weights, layer, indices, near, repeats,
                ranks[repeats], *out,
            )  # fmt: skip
        else:
            total = draws.pick_scored(
                *shared, False, ends - degree, degree, room, weights, layer, indices, NONE, NONE,
                NONE, NONE, True, *out,
            )  # fmt: skip
        found = max(total, 0)
        results.append([total, *out[0].tolist(), *out[1][:found], *out[2][:found]])
        if total < 0:
            results[-1] = [total]
    return results


def spread(kind: str, n: int) -> np.ndarray[Any, Any]:
    """Weights of n edges."""
    rng = np.random.default_rng(n)
    if kind == "none":
        return np.empty(0, np.float32)
    if kind == "float32":
        return rng.random(n).astype(np.float32)
    if kind == "integers":
        return rng.integers(0, 4, n)
    if kind == "equal":
        return np.full(n, 0.25)
    if kind == "many zeros":
        return rng.random(n) * (rng.random(n) < 0.02)
    weights = np.full(n, 1e-300)
    if kind == "one heavy":
        weights[n // 2] = 1e300
    else:
        assert kind == "heavy tail"
        weights = np.exp(np.clip(50 * rng.standard_normal(n), -600, 600))
    return weights


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize(
    "kind", ["none", "float32", "integers", "equal", "many zeros", "one heavy", "heavy tail"]
)
@pytest.mark.parametrize("fanout", [1, 10, 70, 300])
def test_picks_are_those_of_the_plain_kernel(layer, kind, fanout):
    if layer == "weights only" and kind == "none":
        kind = "equal"
    degrees = [*DEGREES, *(d + 1 for d in DEGREES[:-1]), 0, fanout - 1, fanout, fanout + 1]
    plain, fast = both(degrees, spread(kind, sum(degrees)), LAYERS[layer], [fanout])
    assert plain[0] > 0
    assert fast == plain


@pytest.mark.parametrize("layer", LAYERS)
def test_types_with_fanouts_of_their_own(layer):
    degrees = [5, 40, 700, 0, 3, 50, 400, 1200, 9, 8, 64, 33]
    plain, fast = both(degrees, spread("float32", sum(degrees)), LAYERS[layer], [3, -1, 10, 0])
    assert fast == plain


@pytest.mark.parametrize("kind", ["none", "float32", "equal"])
@pytest.mark.parametrize("sources", [1, 3, 40, 900])
def test_parallel_edges(sources, kind):
    degrees = DEGREES[:-1]
    indices = np.random.default_rng(sources).integers(0, sources, sum(degrees)).astype(np.int64)
    for layer in ("one key", "two keys"):
        plain, fast = both(degrees, spread(kind, len(indices)), LAYERS[layer], [10], indices)
        assert fast == plain


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf, 1e-301, 1e301])
def test_the_first_bad_weight_is_the_same(bad):
    weights = spread("float32", 5000).astype(np.float64)
    weights[[2, 3600, 3100, 4000]] = bad
    for fanout in (0, 3, 10_000):
        plain, fast = both([10, 2, 2988, 2000], weights, LAYERS["weights only"], [fanout])
        assert fast == plain
        assert plain == ([0] * 6 if fanout == 0 else [-3])
    # The edges of a segment behind are read, and not looked at.
    plain, fast = both([2], weights[:2], LAYERS["weights only"], [1])
    assert fast == plain
    plain, fast = both([40, 40], np.append(np.ones(79), bad), LAYERS["weights only"], [0, 10])
    assert fast == plain == [-80]


def test_of_equal_scores_the_first_are_taken():
    for count in (5, 64, 200):
        scores, best = np.full(256, np.inf), np.full(256, -1, np.int64)
        scores[:count] = 2.0
        scores[3] = 1.0
        smaller = np.empty(smallest.FEW, np.int64)
        smallest._best_of_many(scores, count, 4, best)
        assert best[:4].tolist() == [0, 1, 2, 3]
        if count <= smallest.FEW:
            assert smallest._best_of_few(scores, count, 4, smaller, best) > 4


def sweep(weights: np.ndarray[Any, Any], guess: float) -> int:
    """What a sweep finds of 10 edges below a guess."""
    n, room = len(weights), 2048
    floats = [np.ones(room) for _ in range(3)]
    return int(smallest._sweep(
        np.arange(n), weights, 0, n, 10, guess, np.uint64(5), np.empty(0, np.uint64), NONE,
        NO_RANKS, 0, np.zeros(smallest.BLOCK, np.uint64), floats[0], np.zeros(room, np.int64),
        np.zeros(room, np.uint64), floats[1], floats[2], np.zeros(smallest.FEW, np.int64),
        np.zeros(room, np.int64),
    ))  # fmt: skip


def test_a_guess_that_is_too_low_is_noticed():
    weights = np.ones(1000)
    guess = smallest._guess(True, 10, 1000, 1000.0, 1000.0)
    assert 0.015 < guess < 0.025
    assert sweep(weights, guess) == 10
    assert sweep(weights, guess / 10) == -1
    assert sweep(weights, np.inf) == 10
    # Half of the weight on few edges: the guess is tried, and is too low.
    weights = np.ones(1000)
    weights[:30] = 200.0
    total, squares = weights.sum(), (weights**2).sum()
    missed = smallest._guess(True, 10, 1000, total, squares)
    assert missed < np.inf
    assert sweep(weights, missed / 20) == -1
    # One edge has all the weight: nothing can be guessed.
    assert smallest._guess(True, 10, 1000, 1e300, np.inf) == np.inf


@pytest.mark.parametrize("kind", ["one heavy", "heavy tail", "many zeros", "equal"])
def test_the_twin_agrees_on_a_hub(kind):
    weights = spread(kind, 3000)
    graph = hp.from_coo(
        torch.arange(1, 3001), torch.zeros(3000, dtype=torch.int64), 3001,
        edge_attributes={"w": torch.from_numpy(weights)},
    )  # fmt: skip
    stage = hp.NeighborSampler([], graph, [12], prob_name="w")
    minibatch = stage(hp.MiniBatch(seeds=torch.tensor([0]), key=(1, 2, 3)))
    stream = twins_scored.fold(1, twins_scored.SAMPLE, 2, 3, 0, 0, 0)
    segment = [(place, w, 0) for place, w in enumerate(weights.tolist()) if w > 0]
    rule = twins_scored.Rule([[12]], weights={})
    expected = twins_scored.pick_looking(rule, 12, stream, segment)
    assert minibatch.input_nodes[1:].tolist() == [place + 1 for place in expected]


def test_repeats_are_those_of_all_ranks(monkeypatch):
    rng = np.random.default_rng(3)
    degree = rng.integers(0, 40, 50)
    indptr = torch.from_numpy(np.append(0, np.cumsum(degree)))
    indices = torch.from_numpy(rng.integers(0, 12, int(degree.sum())).astype(np.int32))
    types = torch.from_numpy(
        np.concatenate([np.sort(rng.integers(0, 3, n)) for n in degree]).astype(np.uint8)
    )
    for kinds in (None, types):
        wanted = ranks.rank_parallel_edges(indptr, indices, kinds).numpy()
        for chunk in (1, 7, 1 << 22):  # edges in a step; a column may have more
            monkeypatch.setattr(ranks, "CHUNK", chunk)
            positions, before = ranks.repeated_edges(indptr, indices, kinds)
            assert positions.tolist() == np.flatnonzero(wanted).tolist()
            assert before.tolist() == wanted[wanted > 0].tolist()


def labor_picks(graph: hp.FusedCSCSamplingGraph) -> list[int]:
    """Edges that the first mini-batch draws of node 0."""
    chain = hp.ItemSampler(hp.ItemSet(1, names="seeds"), 1, seed=1).sample_layer_neighbor(
        graph, [6]
    )
    source, stages = chain.parts()
    return stages[0](source.batch(0, 0)).sampled_subgraphs[0].original_edge_ids.tolist()


def pairs() -> hp.FusedCSCSamplingGraph:
    """Node 0 has 40 in-edges, two from each of 20 nodes."""
    indptr = torch.tensor([0, 40] + [40] * 40)
    return hp.fused_csc_sampling_graph(indptr, torch.arange(40, dtype=torch.int32) // 2)


def test_labor_sees_that_a_graph_was_changed():
    """Edges that become parallel in place get words of their own."""
    graph = pairs()
    graph.indices[:] = torch.arange(40, dtype=torch.int32)
    graph.indices[:5] = 7
    before = labor_picks(graph)
    graph.indices[:] = torch.arange(40, dtype=torch.int32) // 2
    assert labor_picks(graph) == labor_picks(pairs()) != before


def test_huge_graphs_are_drawn_from_as_they_are(monkeypatch):
    graph = pairs()
    picked = labor_picks(graph)
    monkeypatch.setattr(type(graph), "is_huge", lambda self: True)
    monkeypatch.setattr(type(graph.parallel_edges), "repeats", None)  # not asked for
    assert labor_picks(graph) == picked
