"""Seeds that are edges [B, 2] or hyperlinks [B, k]: node lists, compacted seeds, wrong input."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hopline.pipes as hp
from hopline.pipes import relabel
from tests import twins_scored
from tests.stage_checks import check_resume
from tests.strategies import (
    build,
    compacted,
    ends_of,
    fanout_lists,
    heterogeneous,
    homogeneous,
    is_homogeneous,
    link_tensors,
    links_of,
    sampled,
    tensor,
)
from tests.twins import EDGE

graphs = st.one_of(homogeneous(), heterogeneous())


def sample(graph, seeds, fanouts, key=(1, 2, 3), sampler=hp.NeighborSampler, **kwargs):
    """One mini-batch, by the chain's stage."""
    return sampler([], graph, fanouts, **kwargs)(hp.MiniBatch(seeds=seeds, key=key))


def path(length: int) -> hp.FusedCSCSamplingGraph:
    """0 -> 1 -> 2 -> ..."""
    return hp.from_coo(torch.arange(length - 1), torch.arange(1, length), length)


# -------------------------------------------------------------------------------------------------
# The twin


@given(graphs, st.data())
@settings(max_examples=80)
@pytest.mark.parametrize("once", [True, False])
@pytest.mark.parametrize("layered", [False, True])
def test_equals_the_twin(layered, once, graph, data):
    links = data.draw(links_of(graph))
    replace, wide, keep = (data.draw(st.booleans()) for _ in range(3))
    fanouts = data.draw(fanout_lists(graph, replace, max_hops=2))
    dtype = data.draw(st.sampled_from([torch.int32, torch.int64, torch.uint8]))
    built = build(graph, wide, include_original_edge_id=keep)
    minibatch = sample(
        built, link_tensors(graph, links, dtype), [*map(tensor, fanouts)],
        sampler=hp.LayerNeighborSampler if layered else hp.NeighborSampler, replace=replace,
        deduplicate=once,
    )  # fmt: skip
    rule = twins_scored.Rule(fanouts, replace, None, (False, 1) if layered else None)
    rule.deduplicate = once
    expected, places = twins_scored.sample(
        graph, ends_of(links), rule, (1, 2, 3), links=True, original_ids=keep
    )
    assert sampled(minibatch, graph) == expected
    found = minibatch.compacted_seeds
    if not links:  # no types at all: they could as well be nodes
        assert found is None
        return
    found = {EDGE: found} if is_homogeneous(graph) else found
    assert {kind: rows.tolist() for kind, rows in found.items()} == compacted(links, places)
    assert list(found) == list(links)
    for kind, (ends, rows) in links.items():
        assert found[kind].shape == (len(rows), len(ends))
        assert found[kind].dtype == torch.int64


@given(graphs, st.data())
def test_equals_the_twin_with_hash_tables(graph, data):
    """As for graphs of so many nodes that a table has no slot for each."""
    links = data.draw(links_of(graph))
    fanouts = data.draw(fanout_lists(graph, False, max_hops=2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(relabel, "DENSE_LIMIT", -1)
        minibatch = sample(build(graph), link_tensors(graph, links), [*map(tensor, fanouts)])
    expected, _ = twins_scored.sample(
        graph, ends_of(links), twins_scored.Rule(fanouts), (1, 2, 3), links=True,
        original_ids=False,
    )  # fmt: skip
    assert sampled(minibatch, graph) == expected


@given(graphs, st.data())
def test_compacted_seeds_name_the_ends_in_what_the_last_layer_computes(graph, data):
    links = data.draw(links_of(graph))
    minibatch = sample(build(graph), link_tensors(graph, links), [2, 2])
    last = minibatch.sampled_subgraphs[-1].original_column_node_ids
    flat = is_homogeneous(graph)
    places = {EDGE: minibatch.compacted_seeds} if flat else minibatch.compacted_seeds or {}
    for kind, (ends, rows) in links.items():
        for column, ntype in enumerate(ends):
            nodes = last if flat else last[ntype]
            assert nodes[places[kind][:, column]].tolist() == [row[column] for row in rows]
    for nodes in [last] if flat else last.values():
        assert len(nodes.unique()) == len(nodes)


# -------------------------------------------------------------------------------------------------
# Known answers


def test_each_end_is_one_node_in_order_of_first_occurrence():
    minibatch = sample(path(10), tensor([[7, 2], [2, 7], [5, 5], [2, 9]]), [1])
    assert minibatch.compacted_seeds.tolist() == [[0, 1], [1, 0], [2, 2], [1, 3]]
    assert minibatch.input_nodes.tolist() == [7, 2, 5, 9, 6, 1, 4, 8]
    assert minibatch.blocks[0].num_dst_nodes() == 4
    assert minibatch.seeds.tolist() == [[7, 2], [2, 7], [5, 5], [2, 9]]


def test_an_end_that_is_the_neighbour_of_another():
    minibatch = sample(path(10), tensor([[3, 4], [5, 3]]), [1, 1])
    assert minibatch.compacted_seeds.tolist() == [[0, 1], [2, 0]]
    assert minibatch.input_nodes.tolist() == [3, 4, 5, 2, 1]
    assert minibatch.blocks[1].indices.tolist() == [3, 0, 1]


def test_without_merging_every_end_is_a_row():
    minibatch = sample(path(10), tensor([[7, 2], [2, 7]]), [1], deduplicate=False)
    assert minibatch.compacted_seeds.tolist() == [[0, 1], [2, 3]]
    assert minibatch.input_nodes.tolist() == [7, 2, 2, 7, 6, 1, 1, 6]


def test_hyperlinks():
    minibatch = sample(path(10), tensor([[1, 2, 3], [3, 3, 9]]), [-1])
    assert minibatch.compacted_seeds.tolist() == [[0, 1, 2], [2, 2, 3]]
    assert minibatch.input_nodes.tolist() == [1, 2, 3, 9, 0, 8]
    graph = hp.from_coo({"a:x:b": (tensor([0]), tensor([1]))}, num_nodes={"a": 3, "b": 2, "c": 1})
    minibatch = sample(graph, {"a:b:c:a": tensor([[2, 1, 0, 2], [1, 1, 0, 2]])}, [-1])
    assert minibatch.compacted_seeds["a:b:c:a"].tolist() == [[0, 0, 0, 0], [1, 0, 0, 0]]
    assert {k: v.tolist() for k, v in minibatch.input_nodes.items()} == {
        "a": [2, 1, 0], "b": [1], "c": [0],
    }  # fmt: skip


def shop(buys: int = 400) -> hp.FusedCSCSamplingGraph:
    """1000 users and 10 items; edges both ways."""
    generator = torch.Generator().manual_seed(0)
    users = torch.randint(0, 1000, (buys,), generator=generator)
    items = torch.randint(0, 10, (buys,), generator=generator)
    return hp.from_coo(
        {
            "user:buys:item": (users, items),
            "user:likes:item": (users.flip(0), items),
            "item:of:user": (items, users),
        },
        num_nodes={"user": 1000, "item": 10},
    )


@pytest.mark.parametrize("negatives", [False, True])
@pytest.mark.parametrize("sampler", ["sample_neighbor", "sample_layer_neighbor"])
def test_b19_types_of_very_different_size(sampler, negatives):
    """Ids are those of each column's own type; one edge type has no seed in the mini-batch."""
    graph = shop()
    pairs = tensor([[999, 9], [0, 0], [10, 9], [9, 0], [998, 3], [500, 1]])
    items = hp.HeteroItemSet({
        "user:likes:item": hp.ItemSet((pairs, torch.arange(6)), ("seeds", "labels")),
        "user:buys:item": hp.ItemSet((pairs[:3].clone(), torch.arange(3)), ("seeds", "labels")),
    })  # fmt: skip
    chain = hp.ItemSampler(items, 3)
    if negatives:
        chain = chain.sample_uniform_negative(graph, 2)
    seen = set()
    for minibatch in getattr(chain, sampler)(graph, [2, 2]):
        seen.add(tuple(minibatch.seeds))
        assert set(minibatch.compacted_seeds) == set(minibatch.seeds) == set(minibatch.labels)
        rows = minibatch.sampled_subgraphs[-1].original_column_node_ids
        for etype, seeds in minibatch.seeds.items():
            places = minibatch.compacted_seeds[etype]
            assert len(seeds) == len(minibatch.labels[etype]) == (9 if negatives else 3)
            assert torch.equal(rows["user"][places[:, 0]].long(), seeds[:, 0])
            assert torch.equal(rows["item"][places[:, 1]].long(), seeds[:, 1])
        for block in minibatch.blocks[-1].values():
            assert block.num_edges() == block.indptr[-1]
    assert seen == {("user:likes:item",), ("user:buys:item",)}


@pytest.mark.parametrize("sampler", [hp.NeighborSampler, hp.LayerNeighborSampler])
def test_b11_no_links_and_links_of_isolated_nodes(sampler):
    empty = tensor([])
    graph = hp.from_coo(empty, empty, 4)
    minibatch = sample(graph, torch.empty((0, 2), dtype=torch.int64), [2, 2], sampler=sampler)
    assert minibatch.compacted_seeds.shape == (0, 2)
    assert minibatch.input_nodes.tolist() == []
    assert minibatch.input_nodes.dtype == torch.int32
    assert minibatch.blocks[0].indptr.tolist() == [0]
    minibatch = sample(graph, tensor([[3, 1]]), [2, 2], sampler=sampler)
    assert minibatch.blocks[0].indptr.tolist() == [0, 0, 0]
    assert minibatch.input_nodes.tolist() == [3, 1]
    typed = hp.from_coo({"a:x:b": (empty, empty)}, num_nodes={"a": 2, "b": 2})
    seeds = {"a:x:b": torch.empty((0, 2), dtype=torch.int64)}
    minibatch = sample(typed, seeds, [2, 2], sampler=sampler)
    assert minibatch.compacted_seeds["a:x:b"].shape == (0, 2)
    assert {k: v.tolist() for k, v in minibatch.input_nodes.items()} == {"a": [], "b": []}


@pytest.mark.parametrize("sampler", [hp.NeighborSampler, hp.LayerNeighborSampler])
def test_b35_ends_are_the_first_rows_of_every_hop(sampler):
    graph = shop()
    seeds = {"user:buys:item": tensor([[5, 3], [999, 0], [5, 9]])}
    for subgraph in sample(graph, seeds, [2, 2, 2], sampler=sampler).sampled_subgraphs:
        rows = subgraph.original_row_node_ids
        assert rows["user"][:2].tolist() == [5, 999]
        assert rows["item"][:3].tolist() == [3, 0, 9]


@pytest.mark.parametrize("sampler", [hp.NeighborSampler, hp.LayerNeighborSampler])
def test_b63_self_loops_are_seeds_and_edges_like_others(sampler):
    """Node 1 has an edge from itself alone: it is sampled, and taken out only by the excluder."""
    graph = hp.from_coo(tensor([0, 1, 2, 0]), tensor([0, 1, 2, 2]), 3)
    minibatch = sample(graph, tensor([[1, 1], [2, 2]]), [-1], sampler=sampler)
    assert minibatch.compacted_seeds.tolist() == [[0, 0], [1, 1]]
    block = minibatch.blocks[0]
    assert block.indptr.tolist() == [0, 1, 3]
    assert sorted(block.indices[1:].tolist()) == [1, 2]
    assert block.indices[0] == 0


def test_d23_the_order_of_types_is_that_of_the_graph():
    graph = shop()
    empty = torch.empty((0, 2), dtype=torch.int64)
    for order in (("user:likes:item", "item:of:user", "user:buys:item"),
                  ("item:of:user", "user:buys:item", "user:likes:item")):  # fmt: skip
        minibatch = sample(graph, dict.fromkeys(order, empty), [1])
        assert list(minibatch.compacted_seeds) == list(graph.edge_type_to_id)
        assert list(minibatch.input_nodes) == ["user", "item"]
        assert list(minibatch.blocks[0]) == list(graph.edge_type_to_id)


def digest() -> str:
    """Everything of a typed mini-batch, in the order in which it is held."""
    names = [f"t{i}" for i in range(8)]
    edges = {f"{a}:{i}:{b}": (tensor([0, 1, 2]), tensor([2, 1, 0]))
             for i, a in enumerate(names[:6]) for b in names[:3]}  # fmt: skip
    graph = hp.from_coo(edges, num_nodes=dict.fromkeys(names, 3))
    found = []
    for seeds in (
        {"t1:t5": tensor([[1, 2]]), "t0:0:t1": tensor([[0, 1]]), "t7:t7": tensor([[0, 0]])},
        {"t3": tensor([1]), "t7": tensor([0]), "t2": tensor([2, 2])},
    ):
        for sampler in (hp.NeighborSampler, hp.LayerNeighborSampler):
            minibatch = sample(graph, seeds, [2, 2], sampler=sampler)
            for subgraph in minibatch.sampled_subgraphs:
                for field in (subgraph.original_row_node_ids, subgraph.original_edge_ids):
                    found.append(repr({k: v.tolist() for k, v in field.items()}))
                assert list(subgraph.original_row_node_ids) == names  # never a source, or not
            found.append(repr({k: v.tolist() for k, v in minibatch.input_nodes.items()}))
            found.append(repr(minibatch.compacted_seeds))
    return "\n".join(found)


def test_d23_the_same_whatever_the_hash_seed():
    code = "from tests.pipes.test_link_seeds import digest; print(digest())"
    for seed in ("1", "2"):
        child = subprocess.run(
            [sys.executable, "-c", code],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert child.returncode == 0, child.stderr
        assert child.stdout.strip() == digest()


# -------------------------------------------------------------------------------------------------
# Wrong input

TYPED = hp.from_coo(
    {"a:x:b": (tensor([0]), tensor([0])), "b:y:a": (tensor([1]), tensor([0]))},
    num_nodes={"a": 1, "b": 2},
)


@pytest.mark.parametrize(
    ("seeds", "error", "message"),
    [
        (tensor([[0, 1], [2, 3]]), IndexError, r"id 3 .*\[0, 3\)"),
        (tensor([[0, -1]]), IndexError, "id -1"),
        (tensor([[0.0, 1.0]], torch.float32), TypeError, "float32"),
        (tensor([[True, False]], torch.bool), TypeError, "bool"),
        (tensor([[[0, 1]]]), ValueError, r"\(1, 1, 2\)"),
        ([[0, 1]], TypeError, "list"),
        ({EDGE: tensor([[0, 1]])}, TypeError, "the graph has no types; pass one tensor"),
    ],
)
@pytest.mark.parametrize("sampler", [hp.NeighborSampler, hp.LayerNeighborSampler])
def test_wrong_links(sampler, seeds, error, message):
    with pytest.raises(error, match=message):
        sample(path(3), seeds, [1], sampler=sampler)


@pytest.mark.parametrize(
    ("seeds", "error", "message"),
    [
        (tensor([[0, 0]]), TypeError, "node types"),
        ({"a:x:b": tensor([[0, 1], [1, 0]])}, IndexError, r"seeds\[:, 0\] of type 'a:x:b': id 1 "),
        (
            {"a:x:b": tensor([[0, 2]])},
            IndexError,
            r"seeds\[:, 1\] of type 'a:x:b': id 2 .*\[0, 2\)",
        ),
        ({"b:y:a": tensor([[-1, 0]])}, IndexError, r"seeds\[:, 0\] of type 'b:y:a': id -1"),
        ({"a:b:a": tensor([[0, 1, 5]])}, IndexError, r"seeds\[:, 2\] of type 'a:b:a': id 5"),
        ({"a:x:c": tensor([[0, 0]])}, ValueError, "'a:x:c' name node type 'c'"),
        ({"a:x:b": tensor([[0, 0, 0]])}, ValueError, "'a:x:b' name node type 'x'"),
        ({"a": tensor([[0, 0]])}, ValueError, "'a' does not name the node types of 2 ends"),
        ({"a:x:b:y": tensor([[0, 0, 0]])}, ValueError, "of 3 ends"),
        ({"a::b": tensor([[0, 0]])}, ValueError, "of 2 ends"),
        ({("a", "x", "b"): tensor([[0, 0]])}, TypeError, "expected a string"),
        ({"a:x:b": tensor([[0, 0]]), "a": tensor([0])}, ValueError, r"shapes \[\(1, 2\), \(1,\)\]"),
        ({"a:x:b": tensor([0, 0])}, ValueError, "'a:x:b'"),
        ({"a:x:b": tensor([[0.0, 0]], torch.float64)}, TypeError, "'a:x:b'.*float64"),
        ({"a:x:b": [[0, 0]]}, TypeError, "list"),
        ({"a:x:b": tensor([[[0]]])}, ValueError, r"\(1, 1, 1\)"),
    ],
)
@pytest.mark.parametrize("sampler", [hp.NeighborSampler, hp.LayerNeighborSampler])
def test_wrong_typed_links(sampler, seeds, error, message):
    with pytest.raises(error, match=message):
        sample(TYPED, seeds, [1], sampler=sampler)


def test_sampling_changes_no_seed():
    seeds = tensor([[1, 0], [2, 2]], torch.int32)
    minibatch = sample(path(3), seeds, [2], deduplicate=False)
    minibatch.input_nodes += 5
    minibatch.compacted_seeds += 5
    assert seeds.tolist() == [[1, 0], [2, 2]]


def test_links_that_are_not_contiguous():
    seeds = tensor([[1, 9, 2, 9], [0, 9, 1, 9]])[:, ::2]
    assert sample(path(3), seeds, [1]).compacted_seeds.tolist() == [[0, 1], [2, 0]]
    assert sample(path(3), seeds.T, [1]).compacted_seeds.tolist() == [[0, 1], [2, 0]]


def test_links_resume():
    graph = shop()
    pairs = torch.stack((torch.arange(11) * 90, torch.arange(11) % 10), 1)
    items = hp.HeteroItemSet({"user:buys:item": hp.ItemSet(pairs, "seeds"),
                              "user:likes:item": hp.ItemSet(pairs.flip(0), "seeds")})  # fmt: skip

    def source():
        return hp.ItemSampler(items, 5, shuffle=True, seed=2).sample_uniform_negative(graph, 1)

    check_resume(lambda: source().sample_neighbor(graph, [2, 2]))
    check_resume(lambda: source().sample_layer_neighbor(graph, [2, 2], deduplicate=False))
