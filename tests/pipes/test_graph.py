"""FusedCSCSamplingGraph: checks on the way in, sizes, attributes, copies, threads."""

from __future__ import annotations

import pickle
import threading

import numpy as np
import pytest
import torch

import hopline.pipes as hp
from tests.strategies import tensor

INDPTR, INDICES = tensor([0, 0, 1, 3]), tensor([0, 0, 1])


def sample(graph, seeds, fanouts, index=0):
    minibatch = hp.MiniBatch(seeds=seeds, key=(0, 0, index))
    return hp.NeighborSampler([], graph, fanouts)(minibatch)


def typed(**changes) -> dict:
    """Arguments of a graph a0 -x-> b0, a0 -x-> b1, b0 -y-> b1, with changes."""
    return {
        "csc_indptr": tensor([0, 0, 1, 3]),
        "indices": tensor([0, 0, 1]),
        "node_type_offset": tensor([0, 1, 3]),
        "type_per_edge": tensor([0, 0, 1]),
        "node_type_to_id": {"a": 0, "b": 1},
        "edge_type_to_id": {"a:x:b": 0, "b:y:b": 1},
        **changes,
    }


def test_sizes():
    graph = hp.fused_csc_sampling_graph(INDPTR, INDICES)
    assert (graph.num_nodes, graph.num_edges) == (3, 3)
    assert (graph.total_num_nodes, graph.total_num_edges) == (3, 3)
    assert not graph.is_heterogeneous
    graph = hp.fused_csc_sampling_graph(**typed())
    assert graph.num_nodes == {"a": 1, "b": 2}
    assert graph.num_edges == {"a:x:b": 2, "b:y:b": 1}
    assert (graph.total_num_nodes, graph.total_num_edges) == (3, 3)
    assert graph.is_heterogeneous
    for text in ("num_nodes=3", "num_edges=3", "'a', 'b'"):
        assert text in repr(graph)


def test_types_need_not_be_in_the_order_of_their_ids():
    graph = hp.fused_csc_sampling_graph(
        **typed(node_type_to_id={"b": 1, "a": 0}, edge_type_to_id={"b:y:b": 1, "a:x:b": 0})
    )
    assert graph.num_nodes == {"a": 1, "b": 2}
    minibatch = sample(graph, {"b": tensor([1])}, [-1])
    assert list(minibatch.blocks[0]) == ["a:x:b", "b:y:b"]
    assert {k: v.tolist() for k, v in minibatch.input_nodes.items()} == {"a": [0], "b": [1, 0]}


@pytest.mark.parametrize(
    "dtype",
    [torch.int64, torch.int32, torch.int16, torch.uint8, torch.uint16, torch.uint32, torch.uint64],
)
def test_integers_of_any_type_become_int64_and_int32(dtype):
    arrays = {
        name: value.to(dtype) if isinstance(value, torch.Tensor) else value
        for name, value in typed().items()
    }
    graph = hp.fused_csc_sampling_graph(**arrays)
    assert (graph.csc_indptr.dtype, graph.indices.dtype) == (torch.int64, torch.int32)
    assert graph.node_type_offset.dtype == torch.int64
    assert graph.type_per_edge.tolist() == [0, 0, 1]
    assert graph.num_edges == {"a:x:b": 2, "b:y:b": 1}
    for fanouts in ([2], [[1, 1]]):
        blocks = sample(graph, {"b": tensor([1])}, fanouts).blocks[0]
        assert [block.num_edges() for block in blocks.values()] == [1, 1]


BIG = torch.from_numpy(np.array([0, 2**64 - 1, 0], np.uint64))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((tensor([]), INDICES), ValueError, "empty"),
        ((tensor([0, 0, 2, 1, 3]), INDICES), ValueError, "csc_indptr is 1 at 3"),
        ((tensor([1, 1, 3]), INDICES), ValueError, "csc_indptr is 1 at 0"),
        ((tensor([0, 1, 2]), INDICES), ValueError, "csc_indptr is 2 at 2.* 3"),
        ((tensor([0, 9, 3]), INDICES), ValueError, r"csc_indptr is 9 at 1.*descend"),
        ((tensor([0, -1, 3]), INDICES), ValueError, "csc_indptr"),
        ((INDPTR, tensor([0, 3, 1])), ValueError, r"indices\[1\] is 3.*\[0, 3\)"),
        ((INDPTR, tensor([0, 0, -1])), ValueError, r"indices\[2\] is -1"),
        ((INDPTR, BIG), ValueError, str(2**64 - 1)),
        ((INDPTR.float(), INDICES), TypeError, "csc_indptr has dtype torch.float32"),
        ((INDPTR, INDICES.bool()), TypeError, "indices has dtype torch.bool"),
        ((INDPTR.tolist(), INDICES), TypeError, "list"),
        ((INDPTR, INDICES.numpy()), TypeError, "ndarray"),
        ((INDPTR[None], INDICES), ValueError, r"\(1, 4\)"),
    ],
)
def test_wrong_arrays(arguments, error, message):
    with pytest.raises(error, match=message):
        hp.fused_csc_sampling_graph(*arguments)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"type_per_edge": None}, ValueError, "together"),
        ({"node_type_offset": None}, ValueError, "together"),
        ({"edge_type_to_id": None}, ValueError, "together"),
        ({"type_per_edge": tensor([0, 0])}, ValueError, "2 entries for 3 edges"),
        ({"type_per_edge": tensor([0, 0, 2])}, ValueError, r"edge 2 \(1 -> 2\) has type 2"),
        ({"type_per_edge": tensor([0, 0, -1])}, ValueError, "type -1"),
        ({"type_per_edge": tensor([0, 1, 0])}, ValueError, "edge 1"),  # b:y:b from an a
        ({"type_per_edge": BIG}, ValueError, str(2**64 - 1)),
        ({"type_per_edge": tensor([0, 0, 1], torch.float32)}, TypeError, "type_per_edge.*float"),
        ({"indices": tensor([0, 1, 0]), "type_per_edge": tensor([0, 1, 0])}, ValueError, "edge 2"),
        ({"indices": tensor([2, 0, 1])}, ValueError, r"edge 0 \(2 -> 1\)"),
        ({"csc_indptr": tensor([0, 1, 2, 3])}, ValueError, r"edge 0 \(0 -> 0\)"),
        ({"node_type_offset": tensor([0, 1])}, ValueError, "3 entries"),
        ({"node_type_offset": tensor([0, 1, 4])}, ValueError, r"\[0, 1, 4\]"),
        ({"node_type_offset": tensor([0, 5, 3])}, ValueError, r"\[0, 5, 3\]"),
        ({"node_type_offset": tensor([1, 1, 3])}, ValueError, r"\[1, 1, 3\]"),
        ({"node_type_to_id": {"a": 0, "b": 2}}, ValueError, "'b': 2"),
        ({"node_type_to_id": {"a": 0, "b": 0}}, ValueError, "'b': 0"),
        ({"node_type_to_id": {"a": 0, 5: 1}}, TypeError, "5: 1"),
        ({"node_type_to_id": {"a": 0, "b": "1"}}, TypeError, "'b': '1'"),
        ({"node_type_to_id": ["a", "b"]}, TypeError, "list"),
        ({"edge_type_to_id": {"a:x:b": 0, "b:y:c": 1}}, ValueError, "'c'"),
        ({"edge_type_to_id": {"a:x:b": 0, "b-y-b": 1}}, ValueError, "'b-y-b'"),
        ({"edge_type_to_id": {"a:x:b": 0, ("b", "y", "b"): 1}}, TypeError, "'y'"),
        ({"node_attributes": {"n": tensor([1, 2])}}, ValueError, "'n'.*3 rows"),
        ({"edge_attributes": {"e": tensor(1)}}, ValueError, r"'e' has shape \(\)"),
        ({"edge_attributes": {"e": [1, 2, 3]}}, TypeError, "'e' is a list"),
    ],
)
def test_wrong_types(changes, error, message):
    with pytest.raises(error, match=message):
        hp.fused_csc_sampling_graph(**typed(**changes))


def test_attributes():
    graph = hp.fused_csc_sampling_graph(INDPTR, INDICES, edge_attributes={"w": tensor([1, 2, 3])})
    assert graph.edge_attribute("w").tolist() == [1, 2, 3]
    assert graph.edge_attribute(None) is None
    assert graph.node_attributes is None
    graph.add_node_attribute("x", torch.ones(3, 2))
    graph.add_edge_attribute("w", tensor([4, 5, 6]))
    assert graph.node_attribute("x").shape == (3, 2)
    assert graph.edge_attributes["w"].tolist() == [4, 5, 6]
    with pytest.raises(KeyError, match=r"'y'.*'x'"):
        graph.node_attribute("y")
    with pytest.raises(KeyError, match=r"'x'.*'w'"):
        graph.edge_attribute("x")
    with pytest.raises(ValueError, match=r"'z'.*3 rows"):
        graph.add_edge_attribute("z", tensor([1]))
    with pytest.raises(TypeError, match="'z' is a list"):
        graph.add_node_attribute("z", [1, 2, 3])


def test_arguments_are_not_changed_by_the_graph():
    attributes = {"w": tensor([1, 2, 3])}
    tables = {"a": 0, "b": 1}
    graph = hp.fused_csc_sampling_graph(**typed(node_type_to_id=tables), edge_attributes=attributes)
    graph.add_edge_attribute("v", tensor([1, 2, 3]))
    graph.node_type_to_id["c"] = 2
    assert list(attributes) == ["w"]
    assert list(tables) == ["a", "b"]


def test_pickle():
    graph = hp.fused_csc_sampling_graph(**typed(), edge_attributes={"w": tensor([1, 2, 3])})
    sample(graph, {"b": tensor([1])}, [1])  # leaves a table in the pool: it does not travel
    again = pickle.loads(pickle.dumps(graph))  # noqa: S301
    assert again.num_edges == graph.num_edges
    assert again.edge_attributes["w"].tolist() == [1, 2, 3]
    for seeds in ({"b": tensor([1, 0])}, {}):
        assert repr(sample(again, seeds, [2, 2])) == repr(sample(graph, seeds, [2, 2]))


def test_another_number_of_nodes_brings_new_tables():
    graph = hp.fused_csc_sampling_graph(INDPTR, INDICES)
    sample(graph, tensor([0, 1, 2]), [-1])
    many = 100_000  # a table of the old size would be written to far outside
    graph.csc_indptr = torch.arange(many + 1)
    graph.indices = torch.arange(many, dtype=torch.int32).flip(0)
    assert graph.num_nodes == many
    minibatch = sample(graph, tensor([0, many - 1]), [-1])
    assert minibatch.input_nodes.tolist() == [0, many - 1]
    assert minibatch.blocks[0].indices.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"indices": [0, 0, 3]}, r"indices\[2\] is 3"),
        ({"indices": [0, 0, -2]}, r"indices\[2\] is -2"),
        ({"indices": [0, 1, 1]}, "edge 1 is of type 'a:x:b'"),
        ({"indices": [0, 0, 0]}, "edge 2 is of type 'b:y:b'"),
        ({"csc_indptr": [0, 0, 4, 3]}, "csc_indptr is damaged at node 2"),
        ({"csc_indptr": [0, 0, -1, 3]}, "csc_indptr is damaged at node 2"),
        ({"csc_indptr": [0, 0, 1, 2**40]}, "csc_indptr is damaged at node 2"),
        ({"type_per_edge": [0, 0, 7]}, r"type_per_edge\[2\] is 7"),
        ({"type_per_edge": [0, 1, 0]}, r"type_per_edge\[2\] is 0"),
        ({"type_per_edge": [0, 0, -9]}, r"type_per_edge\[2\] is -9"),
    ],
)
def test_damaged_arrays_are_found_when_they_are_read(change, message):
    """As from a file that was checked for its size alone."""
    arrays = typed()
    arrays["indices"] = arrays["indices"].to(torch.int32)
    for name, value in change.items():
        arrays[name] = torch.tensor(value, dtype=arrays[name].dtype)
    graph = hp.FusedCSCSamplingGraph(*arrays.values())
    with pytest.raises(ValueError, match=message):
        sample(graph, {"b": tensor([1])}, [-1])
    if "type_per_edge" not in change:
        with pytest.raises(ValueError, match=message):
            sample(graph, {"b": tensor([1])}, [[-1, -1]])


def test_an_edge_type_that_ends_in_another_node_type_is_found():
    # Column a0 has an edge of type a:x:b: nothing would ask for it.
    graph = hp.FusedCSCSamplingGraph(
        tensor([0, 1, 1, 1]), tensor([0], torch.int32), tensor([0, 1, 3]), tensor([0]),
        {"a": 0, "b": 1}, {"a:x:b": 0, "b:y:b": 1},
    )  # fmt: skip
    for fanouts in ([-1], [[-1, -1]]):
        with pytest.raises(ValueError, match="1 edges have a type"):
            sample(graph, {"a": tensor([0])}, fanouts)


@pytest.mark.parametrize("dense", [True, False])
def test_eight_threads_sample_as_one_does(dense, monkeypatch):
    if not dense:
        monkeypatch.setattr("hopline.pipes.relabel.DENSE_LIMIT", 10)
    generator = torch.Generator().manual_seed(0)
    src, dst = torch.randint(0, 500, (2, 6000), generator=generator)
    graph = hp.from_coo({"u:a:v": (src, dst), "v:b:u": (dst, src)}, num_nodes={"u": 500, "v": 500})
    stage = hp.NeighborSampler([], graph, [[3, -1], 5, [4, 4]])

    def run(index):
        seeds = {"u": torch.arange(index, 500, 50), "v": torch.arange(0, 500, 60 + index)}
        minibatch = stage(hp.MiniBatch(seeds=seeds, key=(3, 1, index)))
        return [
            *minibatch.input_nodes.values(),
            *(t for s in minibatch.sampled_subgraphs for t in s.original_edge_ids.values()),
            *(t for b in minibatch.blocks for e in b.values() for t in (e.indptr, e.indices)),
        ]

    alone = [run(i) for i in range(24)]
    found: list = [None] * (8 * len(alone))
    barrier = threading.Barrier(8)

    def work(thread):
        barrier.wait()
        for i in range(len(alone)):
            found[thread * len(alone) + i] = run((i + 3 * thread) % len(alone))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for place, tensors in enumerate(found):
        thread, i = divmod(place, len(alone))
        expected = alone[(i + 3 * thread) % len(alone)]
        assert all(map(torch.equal, tensors, expected))


def test_what_is_kept_of_attributes_follows_the_graph():
    """Another number of nodes, changed times, changed indices: looked at again."""
    graph = hp.from_coo(torch.tensor([1, 2]), torch.tensor([0, 0]), 3)
    graph.add_node_attribute("t", torch.tensor([1, 2, 3], dtype=torch.int32))
    assert graph.attribute_array("node", "t", np.int64).tolist() == [1, 2, 3]
    graph.node_attributes["t"][0] = 7
    assert graph.attribute_array("node", "t", np.int64).tolist() == [7, 2, 3]
    graph.csc_indptr = torch.tensor([0, 2, 2, 2, 2])
    with pytest.raises(ValueError, match="expected 4 rows"):
        graph.attribute_array("node", "t", np.int64)
    graph.check_indices()
    graph.indices[0] = 9
    with pytest.raises(ValueError, match=r"indices\[0\] is 9"):
        graph.check_indices()


def test_edge_numbers_that_do_not_fit_are_refused():
    graph = hp.from_coo(torch.tensor([1, 2, 0]), torch.tensor([0, 0, 1]), 3)
    for value, error in ((torch.arange(2), ValueError), (torch.rand(3), TypeError)):
        graph.edge_attributes = {hp.ORIGINAL_EDGE_ID: value}
        with pytest.raises(error, match="_ORIGINAL_EDGE_ID"):
            graph.in_subgraph(torch.tensor([0]))


def test_a_graph_stays_where_it_is():
    graph = hp.from_coo(torch.tensor([1]), torch.tensor([0]), 2)
    assert graph.to("cpu") is graph
    assert not graph.is_pinned()
    with pytest.raises(ValueError, match="device is 'cuda:99', but torch finds"):
        graph.to("cuda:99")
    with pytest.raises(
        ValueError, match=r"graph\.to\('meta'\): graphs are sampled on the CPU and on"
    ):
        graph.to("meta")


@pytest.mark.skipif(torch.cuda.is_available(), reason="what is said where there is no GPU")
def test_without_a_gpu_there_is_nothing_to_pin_for():
    graph = hp.from_coo(torch.tensor([1]), torch.tensor([0]), 2)
    for call in (lambda: graph.to("pinned"), graph.pin_memory_):
        with pytest.raises(RuntimeError, match="needs a GPU, and torch finds none here"):
            call()
    assert not graph.is_pinned()


def test_parallel_edges_are_found():
    src, dst = torch.tensor([1, 2, 1]), torch.tensor([0, 0, 2])
    graph = hp.from_coo(src, dst, 3)
    assert not graph.has_parallel_edges()
    graph.indices[1] = graph.indices[0]
    assert graph.has_parallel_edges()
    graph.csc_indptr[1] = 1  # the second edge into node 0 is one into node 1 now
    assert not graph.has_parallel_edges()
    graph.csc_indptr[1] = 10**9
    with pytest.raises(ValueError, match="csc_indptr is damaged at node 0"):
        graph.has_parallel_edges()


def test_a_graph_made_in_inference_mode_is_sampled_from_as_any_other():
    def made():
        graph = hp.from_coo(tensor([0, 0, 1, 2, 2]), tensor([1, 1, 1, 0, 0]), 3)
        graph.add_edge_attribute("weight", torch.arange(1.0, 6))
        return graph

    with torch.inference_mode():
        unversioned = made()
    items = hp.ItemSampler(hp.ItemSet(3, names="seeds"), 3, seed=1)
    for weight in (None, "weight"):
        for sampler in ("sample_neighbor", "sample_layer_neighbor"):
            got, wanted = (
                next(iter(getattr(items, sampler)(graph, [1], prob_name=weight)))
                for graph in (unversioned, made())
            )
            for one, other in zip(got.sampled_subgraphs, wanted.sampled_subgraphs, strict=True):
                assert torch.equal(one.original_edge_ids, other.original_edge_ids)
