"""Sets of edges: exclusion from a hop against a plain search, reverses, and wrong input."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hopline.pipes as hp
from tests.stage_checks import assert_same
from tests.strategies import (
    build,
    heterogeneous,
    homogeneous,
    is_homogeneous,
    seed_tensors,
    seeds_of,
    tensor,
)
from tests.twins import EDGE, NODE

INT32 = torch.int32


def by_type(value, name) -> dict:
    return value if isinstance(value, dict) else {name: value}


def edges_of(subgraph) -> dict[str, list[list[tuple[int, int, int]]]]:
    """{edge type: for each destination, [(source id, destination id, edge id), ...]}."""
    rows = by_type(subgraph.original_row_node_ids, NODE)
    columns = by_type(subgraph.original_column_node_ids, NODE)
    edge_ids = by_type(subgraph.original_edge_ids, EDGE)
    found = {}
    for etype, csc in by_type(subgraph.sampled_csc, EDGE).items():
        source, _, destination = etype.split(":")
        indptr = csc.indptr.tolist()
        assert csc.indptr.dtype == torch.int64
        assert len(indptr) == len(columns[destination]) + 1
        assert indptr[0] == 0
        assert indptr[-1] == len(csc.indices) == len(edge_ids[etype])
        sources = rows[source][csc.indices.long()].tolist()
        ids = edge_ids[etype].tolist()
        found[etype] = [
            [(sources[e], int(v), ids[e]) for e in range(a, b)]
            for v, (a, b) in zip(columns[destination], itertools.pairwise(indptr), strict=True)
        ]
    return found


def without(edges, excluded):
    """The twin: looks for every edge in the list."""
    return {
        etype: [[e for e in column if e[:2] not in excluded.get(etype, [])] for column in columns]
        for etype, columns in edges.items()
    }


@given(st.one_of(homogeneous(), heterogeneous()), st.data())
@settings(max_examples=80)
def test_exclusion_equals_the_twin(graph, data):
    seeds = data.draw(seeds_of(graph))
    built = build(
        graph, data.draw(st.booleans()), include_original_edge_id=data.draw(st.booleans())
    )
    minibatch = hp.MiniBatch(seeds=seed_tensors(graph, seeds), key=(1, 2, 3))
    hp.NeighborSampler([minibatch], built, [-1, 3])(minibatch)
    excluded = {}
    for etype, pairs in graph.edges.items():
        if data.draw(st.booleans()):
            others = st.tuples(st.integers(-3, 9), st.integers(-3, 9))
            choice = st.one_of(st.sampled_from(pairs), others) if pairs else others
            excluded[etype] = data.draw(st.lists(choice, max_size=12))
    dtype = data.draw(st.sampled_from([torch.int8, INT32, torch.int64]))
    given_edges = {e: tensor(pairs, dtype).reshape(-1, 2) for e, pairs in excluded.items()}
    if is_homogeneous(graph):
        given_edges = given_edges.get(EDGE, tensor([]).reshape(0, 2))
    for subgraph in minibatch.sampled_subgraphs:
        before = edges_of(subgraph)
        got = subgraph.exclude_edges(given_edges)
        assert edges_of(got) == without(before, excluded)
        assert edges_of(subgraph) == before  # is left as it was
        assert_same(got.original_row_node_ids, subgraph.original_row_node_ids)
        assert_same(got.original_column_node_ids, subgraph.original_column_node_ids)
        for new, old in zip(
            by_type(got.sampled_csc, EDGE).values(),
            by_type(subgraph.sampled_csc, EDGE).values(),
            strict=True,
        ):
            assert new.indices.dtype == old.indices.dtype


# Destinations 5, 9, 5; sources 5, 9, 5, 2, 7; edges 2->5, 2->5, 9->5, 7->9, 9->9 and again 2->5.
CSC = hp.CSCFormatBase(torch.tensor([0, 3, 5, 6]), tensor([3, 3, 1, 4, 1, 3], INT32))
SUBGRAPH = hp.SampledSubgraph(
    CSC, tensor([5, 9, 5]), tensor([5, 9, 5, 2, 7]), tensor([40, 41, 42, 43, 44, 45])
)


def typed() -> hp.SampledSubgraph:
    follows = hp.CSCFormatBase(torch.tensor([0, 2]), tensor([0, 0], INT32))
    return hp.SampledSubgraph(
        {"user:buys:item": CSC, "item:like:item": CSC, "user:follows:user": follows},
        {"user": tensor([2]), "item": tensor([5, 9, 5])},
        {"user": tensor([2, 9, 5, 7, 5]), "item": tensor([5, 9, 5, 2, 7])},
        {
            "user:buys:item": torch.arange(6),
            "item:like:item": torch.arange(6),
            "user:follows:user": torch.arange(2),
        },
    )


def test_parallel_edges_all_go_from_every_row_of_a_destination():
    """A temporal hop has the same node at several rows: edges are compared by original ids."""
    got = SUBGRAPH.exclude_edges(tensor([[2, 5], [5, 2], [2, 5]]))
    assert got.original_edge_ids.tolist() == [42, 43, 44]
    assert got.sampled_csc.indptr.tolist() == [0, 1, 3, 3]
    assert got.sampled_csc.indices.tolist() == [1, 4, 1]
    assert got.block().in_degrees().tolist() == [1, 2, 0]


def test_b63_a_destination_may_be_left_without_edges():
    only_loop = hp.SampledSubgraph(
        hp.CSCFormatBase(tensor([0, 1]), tensor([0], INT32)), tensor([4]), tensor([4]), tensor([0])
    )
    block = only_loop.exclude_edges(tensor([[4, 4]])).block()
    assert (block.num_src, block.num_dst, block.num_edges()) == (1, 1, 0)
    assert block.indptr.tolist() == [0, 0]


def test_d3_types_without_an_entry_keep_their_edges():
    before = typed()
    got = before.exclude_edges({"item:like:item": tensor([[9, 9]])})
    assert list(got.sampled_csc) == list(before.sampled_csc)
    for etype in ("user:buys:item", "user:follows:user"):
        assert_same(got.sampled_csc[etype], before.sampled_csc[etype])
        assert_same(got.original_edge_ids[etype], before.original_edge_ids[etype])
    assert got.original_edge_ids["item:like:item"].tolist() == [0, 1, 2, 3, 5]
    assert_same(before.exclude_edges({}), before)
    assert_same(before.exclude_edges({"user:absent:item": tensor([[2, 5]])}), before)


def test_ends_are_compared_within_their_own_types():
    # Row 3 of the users is 7, of the items 2; row 1 is 9 in both.
    got = typed().exclude_edges({e: tensor([[7, 5]]) for e in ("user:buys:item", "item:like:item")})
    assert got.original_edge_ids["user:buys:item"].tolist() == [2, 3, 4]
    assert got.original_edge_ids["item:like:item"].tolist() == list(range(6))


@pytest.mark.parametrize("big", [2**31 - 1, 2**31, 2**40, 2**63 - 1])
def test_ids_of_any_size(big):
    for wide in (True, False):  # what GraphBolt's scripts may pass
        subgraph = hp.SampledSubgraph(
            hp.CSCFormatBase(tensor([0, 2]), tensor([0, 1], INT32)),
            tensor([big]), tensor([big, big - 1]), tensor([7, 8]),
        )  # fmt: skip
        got = subgraph.exclude_edges(tensor([[big, big]]), wide)
        assert got.original_edge_ids.tolist() == [8]
        assert subgraph.exclude_edges(
            tensor([[big, big - 1]]), wide
        ).original_edge_ids.tolist() == [7, 8]


def test_indices_that_are_ids_themselves():
    raw = hp.SampledSubgraph(
        hp.CSCFormatBase(tensor([0, 2, 3]), tensor([70, 80, 70])), tensor([5, 9]), None, None
    )
    got = raw.exclude_edges(tensor([[70, 5], [80, 9]]))
    assert got.sampled_csc.indices.tolist() == [80, 70]
    assert got.sampled_csc.indptr.tolist() == [0, 1, 2]
    assert got.original_edge_ids is None
    by_types = hp.SampledSubgraph({"a:x:a": raw.sampled_csc}, {"a": tensor([5, 9])}, None, None)
    got = by_types.exclude_edges({"a:x:a": tensor([[70, 5]])})
    assert got.sampled_csc["a:x:a"].indices.tolist() == [80, 70]


def test_what_loses_nothing_is_not_copied():
    got = SUBGRAPH.exclude_edges(tensor([[5, 5], [2, 7]]))
    assert got is not SUBGRAPH
    assert got.sampled_csc.indices is SUBGRAPH.sampled_csc.indices
    assert got.original_edge_ids is SUBGRAPH.original_edge_ids


def test_many_pairs_and_many_edges():
    """Every edge of a long hop is listed among many others, but for every third."""
    count = 20_000
    subgraph = hp.SampledSubgraph(
        hp.CSCFormatBase(torch.arange(count + 1), torch.arange(count, dtype=INT32)),
        torch.arange(count), torch.arange(count) * 7, torch.arange(count),
    )  # fmt: skip
    ids = torch.arange(count)
    pairs = torch.stack((ids * 7, ids), dim=1)
    listed = torch.cat((pairs[ids % 3 > 0], pairs[1:].flip(1), pairs + 1))
    assert torch.equal(subgraph.exclude_edges(listed).original_edge_ids, ids[ids % 3 == 0])


EDGES = {
    "no tensor": ([[1, 2]], TypeError, "edges to exclude are a list"),
    "two tensors": ((tensor([1]), tensor([2])), TypeError, "edges to exclude are a tuple"),
    "floats": (torch.zeros(1, 2), TypeError, "dtype torch.float32; expected integers"),
    "bools": (torch.zeros(1, 2, dtype=torch.bool), TypeError, "dtype torch.bool"),
    "one dimension": (tensor([1, 2]), ValueError, r"shape \(2,\); expected \[N, 2\]"),
    "two rows": (tensor([[1, 2, 3], [4, 5, 6]]), ValueError, r"shape \(2, 3\)"),
    "by type": ({"a:x:a": tensor([[1, 2]])}, TypeError, "come by type, but the subgraph has no"),
}


@pytest.mark.parametrize("name", EDGES)
def test_wrong_edges_are_refused(name):
    edges, error, words = EDGES[name]
    with pytest.raises(error, match=words):
        SUBGRAPH.exclude_edges(edges)
    if not isinstance(edges, dict):
        with pytest.raises(TypeError, match="the edges to exclude are not by type"):
            typed().exclude_edges(edges)
        for etype in ("item:like:item", "user:absent:item"):
            with pytest.raises(error, match=f"edges of type '{etype}' to exclude"):
                typed().exclude_edges({etype: edges})


@pytest.mark.parametrize(
    ("indptr", "indices"),
    [
        ([0, 4, 3], [0, 0, 0]),
        ([3, 2, 3], [0, 0, 0]),
        ([-1, 2, 3], [0, 0, 0]),
        ([0, 2, 3], [0, 7, 0]),
        ([0, 2, 3], [0, -1, 0]),
        ([0, 3, 3], [0, 0, 2]),
        ([0, 3], [0, 0, 0]),
    ],
)
def test_a_damaged_subgraph_is_refused(indptr, indices):
    csc = hp.CSCFormatBase(tensor(indptr), tensor(indices, INT32))
    subgraph = hp.SampledSubgraph(csc, tensor([5, 9]), tensor([5, 9]), tensor([0, 1, 2]))
    with pytest.raises(ValueError, match=r"is damaged|indptr has 2 entries for 2 destinations"):
        subgraph.exclude_edges(tensor([[1, 5], [1, 9]]))


# -------------------------------------------------------------------------------------------------
# Reverse edges


def test_reverse_edges():
    edges = tensor([[0, 1], [1, 0], [4, 4], [0, 1]], INT32)
    got = hp.add_reverse_edges(edges)
    assert got.dtype == INT32
    assert got.tolist() == edges.tolist() + edges.flip(1).tolist()
    assert hp.add_reverse_edges(edges[:0]).shape == (0, 2)


def test_reverse_edges_by_type():
    """A type without a reverse has none; reverse edges join those of their type that are there."""
    edges = {"a:x:b": tensor([[0, 5]]), "b:y:a": tensor([[7, 1]]), "a:z:c": tensor([[0, 3]])}
    mapping = {"a:x:b": "b:y:a", "c:w:a": "a:z:c"}
    got = hp.add_reverse_edges(edges, mapping)
    assert {etype: pairs.tolist() for etype, pairs in got.items()} == {
        "a:x:b": [[0, 5]], "b:y:a": [[7, 1], [5, 0]], "a:z:c": [[0, 3]],
    }  # fmt: skip
    assert list(got) == list(edges)
    assert edges["b:y:a"].tolist() == [[7, 1]]
    both = hp.add_reverse_edges(edges, {"a:x:b": "b:y:a", "b:y:a": "a:x:b"})
    assert both["a:x:b"].tolist() == [[0, 5], [1, 7]]
    assert both["b:y:a"].tolist() == [[7, 1], [5, 0]]
    itself = hp.add_reverse_edges({"a:x:a": tensor([[0, 5]])}, {"a:x:a": "a:x:a"})
    assert itself["a:x:a"].tolist() == [[0, 5], [5, 0]]
    assert list(hp.add_reverse_edges({"a:x:b": tensor([[0, 5]])}, mapping)) == ["a:x:b", "b:y:a"]
    assert hp.add_reverse_edges({}, mapping) == {}


MAPPINGS = {
    "an array": (tensor([1, 0]), TypeError, "reverse_etypes_mapping is a Tensor; expected"),
    "a list of pairs": ([("a:x:b", "b:y:a")], TypeError, "is a list"),
    "arrays": ({"a:x:b": tensor([1, 0])}, TypeError, "a Tensor; expected names of edge types"),
    "no names": ({0: 1}, TypeError, "has 0, a int"),
    "names of relations": ({"x": "y"}, ValueError, "expected three names"),
    "the same way": ({"a:x:b": "a:y:b"}, ValueError, "'b' to 'a'"),
    "elsewhere": ({"a:x:b": "c:y:a"}, ValueError, "'a:x:b': 'c:y:a'; the reverse"),
}


@pytest.mark.parametrize("name", MAPPINGS)
def test_b101_mappings_of_a_wrong_shape_are_refused(name):
    mapping, error, words = MAPPINGS[name]
    edges = {"a:x:b": tensor([[0, 5]])}
    with pytest.raises(error, match=words):
        hp.add_reverse_edges(edges, mapping)
    for include in (True, False):
        with pytest.raises(error, match=words):
            hp.SeedEdgesExcluder([], include, mapping)
    with pytest.raises(error, match=words):
        hp.exclude_seed_edges(hp.MiniBatch(seeds=edges, sampled_subgraphs=[typed()]), True, mapping)


def test_wrong_edges_to_reverse_are_refused():
    mapping = {"a:x:b": "b:y:a"}
    with pytest.raises(TypeError, match="is for edges by type"):
        hp.add_reverse_edges(tensor([[0, 1]]), mapping)
    with pytest.raises(ValueError, match="pass reverse_etypes_mapping="):
        hp.add_reverse_edges({"a:x:b": tensor([[0, 1]])})
    with pytest.raises(ValueError, match=r"edges of type 'a:x:b' have shape \(2,\)"):
        hp.add_reverse_edges({"a:x:b": tensor([0, 1])}, mapping)
    with pytest.raises(TypeError, match="edges are a list"):
        hp.add_reverse_edges([[0, 1]])
