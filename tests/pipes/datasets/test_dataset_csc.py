"""Edges to columns: the order, the attributes that go along, the bound on memory."""

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hopline.pipes.datasets import OnDiskDataset, bucket_sort
from hopline.pipes.datasets.csc import EdgeList, write_csc
from hopline.pipes.datasets.journal import Journal
from hopline.pipes.datasets.progress import Progress
from hopline.pipes.datasets.yaml_file import MetadataError, Place
from hopline.pipes.hop import HopRule
from tests.pipes.datasets.dataset_files import npy, tiny, typed, write


def numpy_csc(edges, num_nodes):
    """The definition: edges sorted by destination, then type, then input order.

    `edges`: per type (src, dst), fused ids. Returns indptr, indices, types, numbers in the type.
    """
    src = np.concatenate([pair[0] for pair in edges])
    dst = np.concatenate([pair[1] for pair in edges])
    types = np.repeat(np.arange(len(edges)), [len(pair[0]) for pair in edges])
    numbers = np.concatenate([np.arange(len(pair[0])) for pair in edges])
    order = np.lexsort((numbers, types, dst))
    indptr = np.searchsorted(dst[order], np.arange(num_nodes + 1))
    return indptr, src[order], types[order], numbers[order]


@st.composite
def graphs(draw):
    """Node counts, and per edge type (source type, destination type, src, dst), local ids."""
    counts = draw(st.lists(st.integers(0, 6), min_size=1, max_size=3))
    kinds = draw(
        st.lists(st.tuples(*[st.integers(0, len(counts) - 1)] * 2), min_size=1, max_size=3)
    )
    edges = []
    for s, d in kinds:
        size = draw(st.integers(0, 30)) if counts[s] and counts[d] else 0
        ids = [
            draw(st.lists(st.integers(0, max(0, counts[t] - 1)), min_size=size, max_size=size))
            for t in (s, d)
        ]
        edges.append((s, d, np.array(ids[0], np.int64), np.array(ids[1], np.int64)))
    return counts, edges


@given(graphs(), st.sampled_from([1 << 8, 1 << 10, 1 << 12, 1 << 20]))
def test_against_numpy(tmp_path_factory, graph, max_memory):
    counts, kinds = graph
    folder = tmp_path_factory.mktemp("csc")
    offsets = np.concatenate([[0], np.cumsum(counts)])
    first = np.concatenate([[0], np.cumsum([len(k[2]) for k in kinds])])
    lists = [
        EdgeList(Place(folder, "e"), src, dst, "s", "d", int(offsets[s]), int(offsets[d]),
                 counts[s], counts[d], int(first[i]))
        for i, (s, d, src, dst) in enumerate(kinds)
    ]  # fmt: skip
    values = [np.arange(len(k[2])) * 10.0 + i for i, k in enumerate(kinds)]
    num_nodes = int(offsets[-1])
    scratch = folder / "scratch"
    scratch.mkdir()
    write_csc(
        folder,
        lists,
        num_nodes,
        index_dtype=np.dtype(np.int32),
        type_dtype=np.dtype(np.uint8),
        edge_ids=(folder / "ids.npy", np.dtype(np.int32)),
        attributes={folder / "value.npy": (np.dtype(np.float64), values)},
        max_memory=max_memory,
        scratch=scratch,
        journal=Journal(folder, {}),
        progress=Progress(),
    )
    fused = [(src + offsets[s], dst + offsets[d]) for s, d, src, dst in kinds]
    indptr, indices, types, numbers = numpy_csc(fused, num_nodes)
    read = {path.stem: np.load(path) for path in folder.glob("*.npy")}
    np.testing.assert_array_equal(read["csc_indptr"], indptr)
    np.testing.assert_array_equal(read["indices"], indices)
    np.testing.assert_array_equal(read["type_per_edge"], types)
    np.testing.assert_array_equal(read["ids"], numbers)
    np.testing.assert_array_equal(read["value"], numbers * 10.0 + types)
    assert {name: array.dtype for name, array in read.items()} == {
        "csc_indptr": np.int64, "indices": np.int32, "type_per_edge": np.uint8, "ids": np.int32,
        "value": np.float64,
    }  # fmt: skip


def big_graph(num_nodes, num_edges):
    rng = np.random.default_rng(5)
    edges = rng.integers(0, num_nodes, (2, num_edges))
    hub = rng.random(num_edges) < 0.5  # half of all edges end at one node, above any share
    edges[1][hub] = num_nodes // 2
    return edges


def test_memory_stays_below_the_bound(tmp_path):
    num_nodes, num_edges, bound = 300_000, 1_000_000, 4 << 20
    edges = big_graph(num_nodes, num_edges)
    document = {
        "graph": {
            "nodes": [{"num": num_nodes}],
            "edges": [npy("edges.npy")],
            "feature_data": [npy("w.npy", domain="edge", name="w")],
        },
        "feature_data": [npy("x.npy", domain="node", name="x", in_memory=False)],
        "tasks": [{"train_set": [{"data": [npy("s.npy", name="seeds")]}]}],
    }
    arrays = {
        "edges.npy": edges,
        "w.npy": np.arange(num_edges, dtype=np.float64),
        "x.npy": np.asfortranarray(np.ones((num_nodes, 8), np.float32)),
        "s.npy": np.arange(num_nodes),
    }
    folder = write(tmp_path / "d", document, arrays)
    write_small(tmp_path / "warm")  # compiles, so that the compiler's own memory is out of the way
    tracemalloc.start()
    try:
        dataset = OnDiskDataset(folder, True, max_memory=bound)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # All edges as int64 take 16 MB, the sorted ones with their numbers 12 MB.
    assert peak < bound
    graph = dataset.load().graph
    indptr, indices, _, numbers = numpy_csc([edges], num_nodes)
    np.testing.assert_array_equal(graph.csc_indptr.numpy(), indptr)
    np.testing.assert_array_equal(graph.indices.numpy(), indices)
    np.testing.assert_array_equal(graph.edge_attributes["_ORIGINAL_EDGE_ID"].numpy(), numbers)
    np.testing.assert_array_equal(graph.edge_attributes["w"].numpy(), numbers.astype(float))
    assert dataset.feature.read("node", None, "x").eq(1).all()
    np.testing.assert_array_equal(dataset.tasks[0].train_set[:][0].numpy(), np.arange(num_nodes))


def write_small(folder):
    OnDiskDataset(write(folder, *tiny())).load()


def test_bad_ids_are_found_in_every_chunk(tmp_path):
    edges = big_graph(1000, 300_000)
    document = {"graph": {"nodes": [{"num": 1000}], "edges": [npy("edges.npy")]}}
    for row, column in ((0, 299_999), (1, 131_072), (1, 0)):
        wrong = edges.copy()
        wrong[row, column] = 1000
        folder = write(tmp_path / f"d{row}{column}", document, {"edges.npy": wrong})
        with pytest.raises(MetadataError, match=f"1000 at position {column} is outside"):
            OnDiskDataset(folder, max_memory=1 << 20)


def weights_of(graph, nodes):
    """{(source, destination): weight} of the in-edges of each node."""
    out = {}
    for v in nodes:
        for e in range(int(graph.csc_indptr[v]), int(graph.csc_indptr[v + 1])):
            out[int(graph.indices[e]), v] = float(graph.edge_attributes["weight"][e])
    return out


def test_weights_follow_their_edges(tmp_path):
    graph = OnDiskDataset(write(tmp_path / "d", *tiny())).load().graph
    assert weights_of(graph, range(3)) == {(0, 2): 10, (1, 0): 11, (2, 1): 12, (0, 1): 13}
    assert graph.edge_attributes["_ORIGINAL_EDGE_ID"].tolist() == [1, 2, 3, 0]
    assert graph.indices.tolist() == [1, 2, 0, 0]


def test_weights_follow_their_edges_of_two_types(tmp_path):
    dataset = OnDiskDataset(write(tmp_path / "d", *typed())).load()
    graph = dataset.graph
    # Types are numbered in the order of their names: items are 0..2, users 3..6.
    assert graph.node_type_to_id == {"item": 0, "user": 1}
    assert graph.edge_type_to_id == {"user:follows:user": 0, "user:likes:item": 1}
    assert graph.node_type_offset.tolist() == [0, 3, 7]
    assert graph.num_nodes == {"item": 3, "user": 4}
    assert graph.num_edges == {"user:follows:user": 3, "user:likes:item": 4}
    likes = {(3 + 3, 2): 0.5, (3 + 0, 0): 1.5, (3 + 1, 2): 2.5, (3 + 0, 1): 3.5}
    follows = {(3 + 1, 3): 10, (3, 3 + 1): 20, (3 + 3, 3): 30}
    assert weights_of(graph, range(7)) == {**likes, **follows}
    assert graph.type_per_edge.dtype == torch.uint8
    # Ids count within a type, and lead to the feature's rows in input order.
    ids = graph.edge_attributes["_ORIGINAL_EDGE_ID"]
    chosen = graph.type_per_edge == 1
    assert sorted(ids[chosen].tolist()) == [0, 1, 2, 3]
    assert sorted(ids[~chosen].tolist()) == [0, 1, 2]
    fetched = dataset.feature.read("edge", "user:likes:item", "x", ids[chosen].long())
    assert torch.equal(fetched[:, 0], graph.edge_attributes["weight"][chosen])
    assert graph.node_attributes["timestamp"].tolist() == [100, 101, 102, 0, 1, 2, 3]


def test_sampling_sees_the_right_weights(tmp_path):
    """Through the sampler: every in-edge of every node, and the weights at the sampled edges."""
    graph = OnDiskDataset(write(tmp_path / "d", *tiny())).load().graph
    rule = HopRule(np.array([-1]), False, np.zeros(1, np.uint64))
    hop = graph.sample_one_hop(np.arange(3), np.arange(3), rule)
    weights = graph.edge_attributes["weight"].numpy()[hop.positions]
    dst = np.repeat(np.arange(3), np.diff(hop.segments))
    found = dict(zip(zip(hop.neighbors.tolist(), dst.tolist(), strict=True), weights, strict=True))
    assert found == {(0, 2): 10, (1, 0): 11, (2, 1): 12, (0, 1): 13}


def test_no_edges_no_nodes(tmp_path):
    document = {
        "graph": {
            "nodes": [{"type": "a", "num": 0}, {"type": "b", "num": 2}],
            "edges": [npy("none.npy", type="a:to:b"), npy("none.npy", type="b:to:b")],
            "feature_data": [npy("w.npy", domain="edge", type=t, name="w") for t in
                             ("a:to:b", "b:to:b")],
        },
        "feature_data": [npy("x.npy", domain="node", type="a", name="x"),
                         npy("w.npy", domain="edge", type="a:to:b", name="x")],
        "tasks": [{"train_set": [{"type": "a", "data": [npy("s.npy", name="seeds")]}]}],
    }  # fmt: skip
    arrays = {
        "none.npy": np.zeros((2, 0), np.int32),
        "w.npy": np.zeros((0, 3), np.float16),
        "x.npy": np.zeros((0, 5), np.float32),
        "s.npy": np.zeros(0, np.int64),
    }
    dataset = OnDiskDataset(write(tmp_path / "d", document, arrays)).load()
    assert dataset.graph.csc_indptr.tolist() == [0, 0, 0]
    assert dataset.graph.num_edges == {"a:to:b": 0, "b:to:b": 0}
    assert dataset.graph.edge_attributes["w"].shape == (0, 3)
    assert dataset.graph.edge_attributes["w"].dtype == torch.float16
    assert dataset.feature.read("node", "a", "x").shape == (0, 5)
    assert dataset.feature.read("edge", "a:to:b", "x").shape == (0, 3)
    assert len(dataset.tasks[0].train_set) == 0
    assert len(dataset.all_nodes_set) == 2
    empty = {"graph": {"nodes": [{"num": 0}], "edges": [npy("none.npy")]}}
    graph = OnDiskDataset(write(tmp_path / "e", empty, arrays)).load().graph
    assert graph.csc_indptr.tolist() == [0]


def test_buckets_in_memory_give_the_same(tmp_path, monkeypatch):
    edges = big_graph(3000, 100_000)
    document = {
        "graph": {
            "nodes": [{"num": 3000}],
            "edges": [npy("edges.npy")],
            "feature_data": [npy("w.npy", domain="edge", name="w")],
        }
    }
    arrays = {"edges.npy": edges, "w.npy": np.arange(300_000.0).reshape(-1, 3)}
    monkeypatch.setattr(bucket_sort, "LARGE", 50_000)
    monkeypatch.setattr(bucket_sort, "MAX_BUCKET", 10_000)
    kept = []
    plain = bucket_sort.Sorter.keep_in_memory
    monkeypatch.setattr(
        bucket_sort.Sorter, "keep_in_memory", lambda *a: (kept.append(a), plain(*a))
    )
    folder = write(tmp_path / "d", document, arrays)
    graph = OnDiskDataset(folder, True, max_memory=64 << 20).load().graph
    assert len(kept) == 1
    indptr, indices, _, numbers = numpy_csc([edges], 3000)
    np.testing.assert_array_equal(graph.csc_indptr.numpy(), indptr)
    np.testing.assert_array_equal(graph.indices.numpy(), indices)
    np.testing.assert_array_equal(graph.edge_attributes["_ORIGINAL_EDGE_ID"].numpy(), numbers)
    np.testing.assert_array_equal(graph.edge_attributes["w"].numpy(), arrays["w.npy"][numbers])


@pytest.mark.parametrize("max_memory", [1 << 20, 64 << 20])
@pytest.mark.parametrize("bad", [-1, 3000, 2**31 - 1])
def test_ids_that_change_after_they_were_checked_are_no_harm(
    tmp_path, monkeypatch, bad, max_memory
):
    edges = big_graph(3000, 100_000)
    edges[1, 70_000] = bad
    document = {"graph": {"nodes": [{"num": 3000}], "edges": [npy("edges.npy")]}}
    folder = write(tmp_path / "d", document, {"edges.npy": edges})
    monkeypatch.setattr(EdgeList, "check", lambda *a: None)  # as if they had been in range then
    with pytest.raises(RuntimeError, match="changed while they were read"):
        OnDiskDataset(folder, max_memory=max_memory)
    assert not (folder / "preprocessed").exists()
