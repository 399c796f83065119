"""from_coo: edges sorted by destination, with all that belongs to them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hopline.pipes as hp
from hopline.pipes.coo import smallest_type_dtype
from tests import twins
from tests.strategies import build, ends, heterogeneous, homogeneous, tensor
from tests.twins import EDGE, NODE

ID = hp.ORIGINAL_EDGE_ID


@given(homogeneous(), st.sampled_from([torch.int64, torch.int32, torch.uint8, torch.int16]))
def test_equals_the_twin(graph, dtype):
    src, dst = (x.to(dtype) for x in ends(graph.edges[EDGE]))
    count = graph.num_nodes[NODE]
    weight = torch.arange(len(src), dtype=torch.float32) * 0.5
    made = hp.from_coo(
        src, dst, count, edge_attributes={"w": weight}, include_original_edge_id=True
    )
    indptr, indices, order = twins.coo_to_csc(src.tolist(), dst.tolist(), count)
    assert made.csc_indptr.tolist() == indptr
    assert made.indices.tolist() == indices
    assert made.edge_attributes[ID].tolist() == order
    assert made.edge_attributes["w"].tolist() == [0.5 * e for e in order]
    assert (made.csc_indptr.dtype, made.indices.dtype) == (torch.int64, torch.int32)
    assert (made.num_nodes, made.num_edges) == (count, len(src))


@given(heterogeneous())
def test_typed_edges_equal_the_twin(graph):
    names = {e: 100 * t + torch.arange(len(p)) for t, (e, p) in enumerate(graph.edges.items())}
    marks = {kind: torch.arange(n) - 7 for kind, n in graph.num_nodes.items()}
    made = build(
        graph,
        edge_attributes={"name": names},
        node_attributes={"mark": marks},
        include_original_edge_id=True,
    )
    etypes = list(graph.edges)
    wanted = [
        (t, e, graph.fused((etypes[t].split(":")[0], s)))
        for kind, count in graph.num_nodes.items()
        for i in range(count)
        for t, s, e in graph.in_edges((kind, i))
    ]
    assert made.type_per_edge.tolist() == [t for t, _, _ in wanted]
    assert made.edge_attributes[ID].tolist() == [e for _, e, _ in wanted]
    assert made.indices.tolist() == [source for _, _, source in wanted]
    assert made.edge_attributes["name"].tolist() == [100 * t + e for t, e, _ in wanted]
    assert made.node_attributes["mark"].tolist() == [
        i - 7 for n in graph.num_nodes.values() for i in range(n)
    ]
    assert made.node_type_to_id == {kind: i for i, kind in enumerate(graph.num_nodes)}
    assert made.edge_type_to_id == {etype: i for i, etype in enumerate(etypes)}
    assert made.num_nodes == graph.num_nodes
    assert made.num_edges == {etype: len(pairs) for etype, pairs in graph.edges.items()}
    # What it makes passes the checks of graphs that come from elsewhere.
    hp.fused_csc_sampling_graph(
        made.csc_indptr, made.indices, made.node_type_offset, made.type_per_edge,
        made.node_type_to_id, made.edge_type_to_id, made.node_attributes, made.edge_attributes,
    )  # fmt: skip


def test_attributes_follow_their_edges():
    # Edges 0->2, 1->0, 2->1, 0->1: any that keep the order of the input sit on wrong edges.
    src, dst, weight = tensor([0, 1, 2, 0]), tensor([2, 0, 1, 1]), tensor([10, 11, 12, 13])
    wanted = {(0, 2): 10, (1, 0): 11, (2, 1): 12, (0, 1): 13}
    vector = torch.stack([weight, -weight], dim=1).to(torch.bfloat16)
    made = hp.from_coo(src, dst, 3, edge_attributes={"w": weight, "v": vector})
    column = torch.repeat_interleave(torch.arange(3), torch.diff(made.csc_indptr)).tolist()
    pairs = list(zip(made.indices.tolist(), column, strict=True))
    values = made.edge_attributes
    assert dict(zip(pairs, values["w"].tolist(), strict=True)) == wanted
    assert values["v"].tolist() == [[w, -w] for w in values["w"].tolist()]
    assert values["v"].dtype == torch.bfloat16
    assert weight.tolist() == [10, 11, 12, 13]


def test_attributes_of_types_keep_apart():
    edges = {"n:a:n": (tensor([0, 1]), tensor([1, 0])), "n:b:n": (tensor([1, 0]), tensor([1, 1]))}
    made = hp.from_coo(
        edges,
        num_nodes={"n": 2},
        edge_attributes={"w": {"n:b:n": tensor([30, 40]), "n:a:n": tensor([10, 20])}},
        include_original_edge_id=True,
    )
    assert made.indices.tolist() == [1, 0, 1, 0]
    assert made.edge_attributes["w"].tolist() == [20, 10, 30, 40]
    assert made.edge_attributes[ID].tolist() == [1, 0, 0, 1]  # each in its type, not in all


def test_smallest_type_dtype():
    sizes = [(0, 8), (1, 8), (256, 8), (257, 16), (2**15, 16), (2**15 + 1, 32), (2**31 + 1, 64)]
    for count, bits in sizes:
        dtype = smallest_type_dtype(count)
        assert torch.iinfo(dtype).bits == bits
        assert torch.iinfo(dtype).max >= count - 1


@pytest.mark.parametrize("number", [255, 256, 257])
def test_many_edge_types(number):
    one = tensor([0]), tensor([0])
    made = hp.from_coo({f"n:r{i}:n": one for i in range(number)}, num_nodes={"n": 1})
    assert made.type_per_edge.tolist() == list(range(number))
    assert set(made.num_edges.values()) == {1}
    assert (
        hp.NeighborSampler([], made, [-1])(hp.MiniBatch(seeds={"n": tensor([0])}, key=(0, 0, 0)))
        .blocks[0][f"n:r{number - 1}:n"]
        .num_edges()
        == 1
    )


A = tensor([0])
PAIR = {"a:x:b": (A, A)}


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: hp.from_coo(tensor([0, 3]), tensor([0, 1]), 3), IndexError, r"sources: id 3 .*1"),
        (lambda: hp.from_coo(A, tensor([-2]), 3), IndexError, "destinations: id -2"),
        (lambda: hp.from_coo(A, A, 0), IndexError, r"id 0 .*\[0, 0\)"),
        (lambda: hp.from_coo(A, tensor([0, 1]), 3), ValueError, "1 sources and 2 destinations"),
        (lambda: hp.from_coo(A.float(), A, 3), TypeError, "float32"),
        (lambda: hp.from_coo(A.bool(), A, 3), TypeError, "bool"),
        (lambda: hp.from_coo([0], A, 3), TypeError, "list"),
        (lambda: hp.from_coo(A, np.array([0]), 3), TypeError, "ndarray"),
        (lambda: hp.from_coo(tensor([[0]]), A, 3), ValueError, r"\(1, 1\)"),
        (lambda: hp.from_coo(A, A, -1), ValueError, "-1"),
        (lambda: hp.from_coo(A, A, 2.0), TypeError, "2.0"),
        (lambda: hp.from_coo(A, A, True), TypeError, "True"),
        (lambda: hp.from_coo(A, A), TypeError, "None"),
        (lambda: hp.from_coo(A, None, 3), TypeError, "NoneType"),
        (
            lambda: hp.from_coo(A, A, 3, edge_attributes={"w": tensor([1, 2])}),
            ValueError,
            "'w'.*1 ",
        ),
        (lambda: hp.from_coo(A, A, 3, edge_attributes={"w": [1]}), TypeError, "'w'.*list"),
        (lambda: hp.from_coo(A, A, 3, node_attributes={"w": A}), ValueError, "'w'.*3 rows"),
        (lambda: hp.from_coo(PAIR, A, {"a": 1, "b": 1}), TypeError, "num_nodes={type: n}"),
        (lambda: hp.from_coo(PAIR, num_nodes=3), TypeError, "num_nodes={type: n}"),
        (lambda: hp.from_coo(PAIR, num_nodes={"a": 1}), ValueError, "'b'"),
        (lambda: hp.from_coo(PAIR, num_nodes={"a": 1, "b": 0}), IndexError, "'a:x:b': id 0"),
        (lambda: hp.from_coo(PAIR, num_nodes={"a": -1, "b": 1}), ValueError, "'a'.* -1"),
        (lambda: hp.from_coo(PAIR, num_nodes={"a": 1, "b": 2.5}), TypeError, "'b': 2.5"),
        (lambda: hp.from_coo(PAIR, num_nodes={"a": 1, "b": 1, 3: 1}), TypeError, "3: 1"),
        (lambda: hp.from_coo({"a:b": (A, A)}, num_nodes={"a": 1}), ValueError, "'a:b'"),
        (lambda: hp.from_coo({("a", "x", "b"): (A, A)}, num_nodes={"a": 1}), TypeError, "'x'"),
        (lambda: hp.from_coo({"a:x:a": A}, num_nodes={"a": 1}), ValueError, "'a:x:a'"),
        (lambda: hp.from_coo({"a:x:a": (A, A, A)}, num_nodes={"a": 1}), ValueError, "'a:x:a'"),
        (lambda: hp.from_coo({"a:x:a": 5}, num_nodes={"a": 1}), ValueError, "'a:x:a'"),
        (
            lambda: hp.from_coo(PAIR, num_nodes={"a": 1, "b": 1}, edge_attributes={"w": A}),
            ValueError,
            "'w'.*a:x:b",
        ),
        (
            lambda: hp.from_coo(PAIR, num_nodes={"a": 1, "b": 1}, node_attributes={"w": {"a": A}}),
            ValueError,
            "'w'.*'b'",
        ),
        (
            lambda: hp.from_coo(
                PAIR, num_nodes={"a": 1, "b": 1}, node_attributes={"w": {"a": A, "b": tensor([])}}
            ),
            ValueError,
            "'w' for 'b'",
        ),
    ],
)
def test_wrong_input(call, error, message):
    with pytest.raises(error, match=message):
        call()
