"""NeighborSampler: against the twin, a dense oracle, statistics and traps."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hopline.pipes as hp
from hopline.pipes.hop import HopRule
from tests import twins
from tests.chi_square import assert_equal_inclusion, assert_uniform
from tests.strategies import (
    build,
    ends,
    fanout_lists,
    heterogeneous,
    homogeneous,
    sampled,
    seed_tensors,
    seeds_of,
    tensor,
)
from tests.twins import EDGE, NODE

graphs = st.one_of(homogeneous(), heterogeneous())


def sample(graph, seeds, fanouts, key=(1, 2, 3), **kwargs) -> hp.MiniBatch:
    """One mini-batch, by the chain's stage."""
    minibatch = hp.MiniBatch(seeds=seeds, key=key)
    stage = hp.NeighborSampler([minibatch], graph, fanouts, **kwargs)
    return stage(minibatch)


def star(degree) -> hp.FusedCSCSamplingGraph:
    """Node 0 with so many in-edges, from nodes 1, 2, ..."""
    return hp.from_coo(
        torch.arange(1, degree + 1), torch.zeros(degree, dtype=torch.int64), degree + 1
    )


# -------------------------------------------------------------------------------------------------
# The twin


@given(graphs, st.data())
@settings(max_examples=60)
@pytest.mark.parametrize("replace", [False, True])
def test_equals_the_twin(replace, graph, data):
    seeds = data.draw(seeds_of(graph))
    fanouts = data.draw(fanout_lists(graph, replace))
    key = tuple(data.draw(st.integers(0, 2**63 - 1)) for _ in range(3))
    keep, wide = data.draw(st.booleans()), data.draw(st.booleans())
    built = build(graph, wide, include_original_edge_id=keep)
    dtype = data.draw(st.sampled_from([torch.int32, torch.int64]))
    minibatch = sample(
        built, seed_tensors(graph, seeds, dtype), [*map(tensor, fanouts)], key, replace=replace
    )
    assert sampled(minibatch, graph) == twins.sample(graph, seeds, fanouts, replace, key, keep)
    nodes = minibatch.input_nodes
    for value in nodes.values() if isinstance(nodes, dict) else [nodes]:
        assert value.dtype == built.indices.dtype


@pytest.mark.parametrize("degree", [63, 64, 65, 66, 130])
@pytest.mark.parametrize("fanout", [1, 63, 64, 65, 66, 129])
@pytest.mark.parametrize("replace", [False, True])
def test_equals_the_twin_where_the_algorithm_changes(degree, fanout, replace):
    pairs = [(s % 40, s % 2) for s in range(2 * degree)]  # parallel edges too
    graph = twins.Graph({NODE: 40}, {EDGE: pairs})
    seeds = [(NODE, 1), (NODE, 0), (NODE, 1)]
    minibatch = sample(build(graph), tensor([1, 0, 1]), [fanout], replace=replace)
    expected = twins.sample(graph, seeds, [[fanout]], replace, (1, 2, 3), False)
    assert sampled(minibatch, graph) == expected


def test_equals_the_twin_over_many_columns():
    # More columns than a chunk of the kernel, degrees from 0 to far above the fanout.
    generator = np.random.default_rng(0)
    pairs = [(int(s), int(300 * d**3)) for s, d in zip(
        generator.integers(0, 300, 3000), generator.random(3000), strict=True)]  # fmt: skip
    graph = twins.Graph({NODE: 300}, {EDGE: pairs})
    seeds = list(range(299, -1, -1))
    for fanouts, replace in (([5], False), ([-1], False), ([7], True)):
        minibatch = sample(build(graph), tensor(seeds), fanouts, replace=replace)
        expected = twins.sample(
            graph, [(NODE, i) for i in seeds], [fanouts], replace, (1, 2, 3), False
        )
        assert sampled(minibatch, graph) == expected


def test_a_known_sample():
    # Pins the stream of random numbers: the same on every machine and in every release.
    graph = star(10)
    minibatch = sample(graph, tensor([0, 3, 0]), [3, 4], key=(7, 0, 0))
    assert minibatch.input_nodes.tolist() == [0, 3, 0, 6, 1, 4, 5, 9, 10]
    assert minibatch.blocks[1].indices.tolist() == [3, 4, 5, 6, 3, 4, 5, 6]
    assert minibatch.blocks[0].original_edge_ids.tolist() == [4, 8, 9, 4, 8, 9]


# -------------------------------------------------------------------------------------------------
# Dense oracle


def dense(graph: twins.Graph, etype: str) -> np.ndarray:
    source, _, destination = etype.split(":")
    matrix = np.zeros((graph.num_nodes[destination], graph.num_nodes[source]), np.int64)
    for s, d in graph.edges[etype]:
        matrix[d, s] += 1
    return matrix


@given(graphs, st.integers(1, 3), st.data())
def test_all_neighbours_give_powers_of_the_adjacency_matrix(graph, hops, data):
    """L hops of sums from identity features are the rows of A^L that belong to the seeds."""
    seeds = data.draw(seeds_of(graph, max_size=4))
    minibatch = sample(build(graph), seed_tensors(graph, seeds), [-1] * hops)
    flat = NODE in graph.num_nodes
    total = sum(graph.num_nodes.values())
    first = {kind: graph.fused((kind, 0)) for kind in graph.num_nodes}
    adjacency = np.zeros((total, total), np.int64)
    for etype in graph.edges:
        source, _, destination = etype.split(":")
        rows = slice(first[destination], first[destination] + graph.num_nodes[destination])
        columns = slice(first[source], first[source] + graph.num_nodes[source])
        adjacency[rows, columns] += dense(graph, etype)
    identity = np.eye(total, dtype=np.int64)
    nodes = {NODE: minibatch.input_nodes} if flat else minibatch.input_nodes
    h = {kind: identity[ids.numpy() + first[kind]] for kind, ids in nodes.items()}
    for subgraph, blocks in zip(minibatch.sampled_subgraphs, minibatch.blocks, strict=True):
        columns = subgraph.original_column_node_ids
        columns = {NODE: columns} if flat else columns
        out = {kind: np.zeros((len(ids), total), np.int64) for kind, ids in columns.items()}
        for etype, block in ({EDGE: blocks} if flat else blocks).items():
            source, _, destination = etype.split(":")
            assert block.num_src_nodes() == len(h[source])
            assert block.num_dst_nodes() == len(out[destination])
            column = np.repeat(np.arange(block.num_dst_nodes()), block.in_degrees().numpy())
            np.add.at(out[destination], column, h[source][block.indices.numpy()])
        h = out
    power = np.linalg.matrix_power(adjacency, hops)
    for kind in graph.num_nodes:
        wanted = [first[kind] + i for k, i in seeds if k == kind]
        assert (h[kind] == power[wanted]).all()


# -------------------------------------------------------------------------------------------------
# Statistics


def draws(degree, fanout, count, replace=False):
    """Positions that `count` independent keys pick among the edges of one node: [count, picks]."""
    graph = star(degree)
    rule = HopRule(np.array([fanout]), replace, np.array([99], np.uint64))
    hop = graph.sample_one_hop(np.zeros(count, np.int32), np.arange(count), rule)
    assert (hop.neighbors == hop.positions + 1).all()
    return hop.positions.reshape(count, -1)


EDGES_OF_ALGORITHMS = [1, 2, 4, 5, 6, 31, 32, 33, 64, 65, 66, 999, 1000, 1001]


@pytest.mark.parametrize("degree", EDGES_OF_ALGORITHMS)
@pytest.mark.parametrize("fanout", [1, 5])
def test_every_neighbour_is_as_likely_with_few_picks(degree, fanout):
    count = max(2000, 40 * degree // fanout)
    positions = draws(degree, fanout, count)
    taken = min(degree, fanout)
    assert positions.shape == (count, taken)
    assert all(len(set(row)) == taken for row in positions[:200].tolist())
    assert_equal_inclusion(np.bincount(positions.ravel(), minlength=degree), count, taken)


@pytest.mark.parametrize("fanout", [31, 63, 64, 65, 66, 100])
@pytest.mark.parametrize("more", [0, 1, 2, 35, 935])
def test_every_neighbour_is_as_likely_with_many_picks(fanout, more):
    degree = fanout + more
    count = 2000 if more < 2 else 1000
    positions = draws(degree, fanout, count)
    assert positions.shape == (count, fanout)
    assert (np.diff(np.sort(positions)) > 0).all()
    assert_equal_inclusion(np.bincount(positions.ravel(), minlength=degree), count, fanout)


@pytest.mark.parametrize(("degree", "bins"), [(10, 10), (1000, 100), (40_000, 100)])
@pytest.mark.parametrize("fanout", [7, 80])
@pytest.mark.parametrize("replace", [False, True])
def test_hubs_are_sampled_evenly(degree, bins, fanout, replace):
    # Samplers with 16-bit arithmetic are biased above 32768.
    count = 300_000 // fanout
    positions = draws(degree, fanout, count, replace)
    binned = np.bincount(positions.ravel() * bins // degree, minlength=bins)
    if replace:
        assert_uniform(binned)
    else:
        assert_equal_inclusion(binned, count, min(fanout, degree), degree // bins)


@pytest.mark.parametrize("degree", EDGES_OF_ALGORITHMS)
def test_with_replacement_every_neighbour_is_as_likely(degree):
    count = max(1000, 10 * degree)
    positions = draws(degree, 6, count, replace=True)
    assert positions.shape == (count, 6)
    if degree > 1:
        assert_uniform(np.bincount(positions.ravel(), minlength=degree))
    if 1 < degree < 10:
        for a, b in ((0, 1), (0, 5), (4, 5)):  # draws of one node are independent
            pairs = positions[:, a] * degree + positions[:, b]
            assert_uniform(np.bincount(pairs, minlength=degree**2))


@pytest.mark.parametrize(("degree", "fanout"), [(5, 2), (6, 3), (7, 6), (4, 2)])
def test_every_set_of_neighbours_is_as_likely(degree, fanout):
    positions = draws(degree, fanout, 20_000)
    sets = Counter(map(tuple, np.sort(positions).tolist()))
    assert set(sets) == set(itertools.combinations(range(degree), fanout))
    assert_uniform(list(sets.values()))


@pytest.mark.parametrize(("degree", "fanout"), [(40, 2), (66, 64), (67, 65), (68, 66)])
def test_every_pair_is_left_out_or_taken_as_often(degree, fanout):
    count = 20_000
    mask = np.zeros((count, degree), bool)
    np.put_along_axis(mask, draws(degree, fanout, count), True, axis=1)
    if fanout > 2:
        mask = ~mask
    assert (mask.sum(axis=1) == 2).all()
    first, second = np.argmax(mask, axis=1), degree - 1 - np.argmax(mask[:, ::-1], axis=1)
    pairs = np.zeros((degree, degree), np.int64)
    np.add.at(pairs, (first, second), 1)
    assert_uniform(pairs[np.triu_indices(degree, 1)])


def test_draws_are_independent_of_each_other():
    """Picks of one neighbour of six, over hops, mini-batches, epochs, nodes, types and seeds."""
    pairs = [(s, d) for d in (0, 1) for s in range(2, 8)]
    graph = hp.from_coo(
        {"n:a:n": ends(pairs), "n:b:n": ends(pairs)}, num_nodes={"n": 8},
    )  # fmt: skip

    def picks(seed, epoch, index):
        minibatch = sample(graph, {"n": tensor([0, 1])}, [[1, 1], [1, 1]], key=(seed, epoch, index))
        found = []
        for block in minibatch.blocks:
            for etype in block.values():
                found += minibatch.input_nodes["n"][etype.indices[:2].long()].tolist()
        return np.array(found) - 2  # (outer hop, seeds' hop) x (type a, b) x (node 0, 1)

    rows = np.stack([picks(seed, epoch, index) for seed in (5, 6) for epoch in range(2)
                     for index in range(250)])  # fmt: skip
    assert_uniform(np.bincount(rows.ravel(), minlength=6))
    by_seed = rows.reshape(2, 2, 250, 8)
    both = [(rows[:, a], rows[:, b]) for a, b in itertools.combinations(range(8), 2)]
    both += [(by_seed[:, :, :-1], by_seed[:, :, 1:]), (by_seed[0], by_seed[1])]
    both += [(by_seed[:, 0], by_seed[:, 1])]
    for a, b in both:
        assert_uniform(np.bincount((6 * a + b).ravel(), minlength=36))


# -------------------------------------------------------------------------------------------------
# Edges keep what belongs to them


@pytest.mark.parametrize("fanout", [-1, 1, 2])
def test_attributes_follow_their_edges(fanout):
    src, dst = tensor([0, 1, 2, 0]), tensor([2, 0, 1, 1])
    weight = {(0, 2): 10, (1, 0): 11, (2, 1): 12, (0, 1): 13}
    graph = hp.from_coo(
        src, dst, 3, edge_attributes={"w": tensor([10, 11, 12, 13])}, include_original_edge_id=True
    )
    minibatch = sample(graph, tensor([2, 0, 1]), [fanout])
    block, nodes = minibatch.blocks[0], minibatch.input_nodes.tolist()
    column = np.repeat(np.arange(3), block.in_degrees().numpy())
    found = {}
    for d, s, e in zip(column, block.indices.tolist(), block.original_edge_ids.tolist(),
                       strict=True):  # fmt: skip
        assert (int(src[e]), int(dst[e])) == (nodes[s], nodes[d])
        found[nodes[s], nodes[d]] = 10 + e
    assert found.items() <= weight.items()
    assert len(found) == (4 if fanout != 1 else 3)
    positions = hp.from_coo(src, dst, 3, include_original_edge_id=False)
    plain = sample(positions, tensor([2, 0, 1]), [fanout])
    ids = graph.edge_attributes["_ORIGINAL_EDGE_ID"][plain.blocks[0].original_edge_ids]
    assert torch.equal(ids, block.original_edge_ids)
    assert torch.equal(
        graph.edge_attributes["w"][plain.blocks[0].original_edge_ids], 10 + block.original_edge_ids
    )


@given(graphs, st.data())
def test_edges_name_themselves(graph, data):
    """Edge e of a type carries 1000 * type + e, its source and its destination."""
    flat = NODE in graph.num_nodes
    names = {etype: 1000 * t + torch.arange(len(pairs)) for t, (etype, pairs) in
             enumerate(graph.edges.items())}  # fmt: skip
    attributes = {"name": names[EDGE] if flat else names}
    built = build(graph, edge_attributes=attributes)
    keeps = build(graph, include_original_edge_id=True)
    seeds = seed_tensors(graph, data.draw(seeds_of(graph)))
    fanouts = data.draw(fanout_lists(graph, False))
    fanouts = [*map(tensor, fanouts)]
    plain, original = sample(built, seeds, fanouts), sample(keeps, seeds, fanouts)
    nodes = {NODE: plain.input_nodes} if flat else plain.input_nodes
    for block, other in zip(plain.blocks, original.blocks, strict=True):
        for t, etype in enumerate(graph.edges):
            one = block if flat else block[etype]
            two = other if flat else other[etype]
            source, _, destination = etype.split(":")
            own = built.edge_attributes["name"][one.original_edge_ids]
            assert torch.equal(own, 1000 * t + two.original_edge_ids)
            column = torch.repeat_interleave(torch.arange(one.num_dst), one.in_degrees())
            pairs = list(zip(nodes[source][one.indices.long()].tolist(),
                             nodes[destination][column].tolist(), strict=True))  # fmt: skip
            assert pairs == [graph.edges[etype][e] for e in two.original_edge_ids.tolist()]


# -------------------------------------------------------------------------------------------------
# Seeds


def test_repeated_seeds_keep_their_rows():
    graph = hp.from_coo(tensor([1, 2]), tensor([0, 0]), 3)
    minibatch = sample(graph, tensor([0, 0, 2]), [-1])
    block = minibatch.blocks[0]
    assert block.num_dst_nodes() == 3
    assert minibatch.input_nodes.tolist() == [0, 0, 2, 1]
    assert block.indptr.tolist() == [0, 2, 4, 4]
    assert block.indices.tolist() == [3, 2, 3, 2]


def test_seeds_are_the_first_rows_in_their_order():
    ring = hp.from_coo(torch.arange(7), (torch.arange(7) + 1) % 7, 7)
    sampler = hp.ItemSampler(hp.ItemSet(tensor([3, 1, 5]), "seeds"), batch_size=2, seed=0)
    minibatch = next(iter(sampler.sample_neighbor(ring, [1, 1])))
    assert minibatch.seeds.tolist() == [3, 1]
    assert minibatch.input_nodes.tolist() == [3, 1, 2, 0, 6]
    assert [block.num_dst_nodes() for block in minibatch.blocks] == [4, 2]
    assert [block.num_src_nodes() for block in minibatch.blocks] == [5, 4]


def test_typed_seeds_are_the_first_rows_of_their_type_after_three_hops():
    graph = hp.from_coo(
        {
            "author:writes:paper": (tensor([0, 1, 2, 0]), tensor([0, 0, 1, 3])),
            "paper:by:author": (tensor([2, 3, 0]), tensor([0, 1, 2])),
        },
        num_nodes={"author": 3, "paper": 4},
    )
    for seeds in ([3, 0], [1, 1], [0, 1, 2, 3, 0]):
        minibatch = sample(graph, {"paper": tensor(seeds)}, [2, 2, 2])
        for subgraph in minibatch.sampled_subgraphs:
            assert subgraph.original_row_node_ids["paper"][: len(seeds)].tolist() == seeds
        assert minibatch.blocks[-1]["author:writes:paper"].num_dst_nodes() == len(seeds)


# -------------------------------------------------------------------------------------------------
# The empty ladder


def test_isolated_seeds():
    graph = hp.from_coo(tensor([0]), tensor([1]), 5)
    for replace in (False, True):
        minibatch = sample(graph, tensor([3, 4]), [2, 2], replace=replace)
        for block in minibatch.blocks:
            assert block.indptr.tolist() == [0, 0, 0]
            assert (len(block.indices), block.num_src, block.num_dst) == (0, 2, 2)
        assert minibatch.input_nodes.tolist() == [3, 4]
        assert minibatch.input_nodes.dtype == torch.int32


@pytest.mark.parametrize("num_nodes", [0, 1, 5])
@pytest.mark.parametrize("seeds", [[], [0], [0, 0]])
@pytest.mark.parametrize("fanout", [-1, 0, 3])
@pytest.mark.parametrize("replace", [False, True])
def test_graph_without_edges(num_nodes, seeds, fanout, replace):
    seeds = seeds[:num_nodes]
    empty = tensor([])
    minibatch = sample(
        hp.from_coo(empty, empty, num_nodes), tensor(seeds), [fanout] * 2, replace=replace
    )
    assert minibatch.input_nodes.tolist() == seeds
    assert minibatch.blocks[0].indptr.tolist() == [0] * (len(seeds) + 1)


def test_typed_graph_without_edges_or_nodes():
    graph = hp.from_coo({}, num_nodes={"user": 2, "item": 0})
    minibatch = sample(graph, {"user": tensor([1])}, [3])
    assert minibatch.blocks == [{}]
    assert {k: v.tolist() for k, v in minibatch.input_nodes.items()} == {"user": [1], "item": []}
    empty = tensor([]), tensor([])
    graph = hp.from_coo({"user:buys:item": empty}, num_nodes={"user": 0, "item": 0})
    minibatch = sample(graph, {}, [3, 3])
    assert minibatch.blocks[0]["user:buys:item"].indptr.tolist() == [0]
    assert minibatch.input_nodes["user"].dtype == torch.int32


def test_b01_edge_numbers_are_kept_when_the_order_changes():
    """So that edge features in the order of the input are read for their edges."""
    src, dst = tensor([0, 1, 2, 0]), tensor([2, 0, 1, 1])
    kept = hp.from_coo(src, dst, 3)
    assert kept.edge_attributes["_ORIGINAL_EDGE_ID"].tolist() == [1, 2, 3, 0]
    assert hp.from_coo(src, tensor([0, 0, 1, 2]), 3).edge_attributes is None
    typed = hp.from_coo({"a:x:b": (src, dst), "a:y:b": (src, dst)}, num_nodes={"a": 3, "b": 3})
    assert typed.edge_attributes["_ORIGINAL_EDGE_ID"].tolist() == [1, 1, 2, 3, 2, 3, 0, 0]


def test_types_that_the_batch_lacks():
    graph = hp.from_coo(
        {
            "user:buys:item": (tensor([0, 1]), tensor([0, 0])),
            "item:in:shop": (tensor([0, 1]), tensor([0, 0])),
            "user:none:shop": (tensor([]), tensor([])),
        },
        num_nodes={"user": 2, "item": 2, "shop": 1, "ghost": 0},
    )
    minibatch = sample(graph, {"shop": tensor([0]), "ghost": tensor([])}, [2])
    assert list(minibatch.input_nodes) == ["user", "item", "shop", "ghost"]
    assert [len(v) for v in minibatch.input_nodes.values()] == [0, 2, 1, 0]
    block = minibatch.blocks[0]
    assert [(b.num_src, b.num_dst, b.num_edges()) for b in block.values()] == [
        (0, 0, 0), (2, 1, 2), (0, 1, 0),
    ]  # fmt: skip
