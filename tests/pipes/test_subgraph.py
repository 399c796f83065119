"""SampledSubgraph and Block: one hop, and what a layer takes of it."""

from __future__ import annotations

import pickle

import pytest
import torch

import hopline.pipes as hp
from tests.number_chains import numbers, ring
from tests.stage_checks import assert_same

# Destinations 5, 9; sources 5, 9, 2, 7; edges 2->5, 9->5, 7->9.
CSC = hp.CSCFormatBase(torch.tensor([0, 2, 3]), torch.tensor([2, 1, 3], dtype=torch.int32))
SUBGRAPH = hp.SampledSubgraph(
    CSC, torch.tensor([5, 9]), torch.tensor([5, 9, 2, 7]), torch.tensor([40, 41, 42])
)
TYPED = hp.SampledSubgraph(
    {
        "user:buys:item": CSC,
        "item:in:shop": hp.CSCFormatBase(torch.tensor([0]), torch.empty(0, dtype=torch.int32)),
    },
    {"user": torch.empty(0), "item": torch.tensor([5, 9]), "shop": torch.empty(0)},
    {"user": torch.tensor([5, 9, 2, 7]), "item": torch.tensor([5, 9, 1]), "shop": torch.empty(0)},
    {"user:buys:item": torch.tensor([40, 41, 42]), "item:in:shop": torch.empty(0)},
)


def test_block():
    block = SUBGRAPH.block()
    assert (block.num_src_nodes(), block.num_dst_nodes(), block.num_edges()) == (4, 2, 3)
    assert block.in_degrees().tolist() == [2, 1]
    assert block.original_edge_ids.tolist() == [40, 41, 42]
    assert block.device == torch.device("cpu")
    assert repr(block) == "Block(src=4, dst=2, edges=3)"


def test_a_block_for_each_edge_type():
    blocks = TYPED.block()
    assert list(blocks) == ["user:buys:item", "item:in:shop"]
    buys, where = blocks.values()
    assert (buys.num_src_nodes(), buys.num_dst_nodes(), buys.num_edges()) == (4, 2, 3)
    assert (where.num_src_nodes(), where.num_dst_nodes(), where.num_edges()) == (3, 0, 0)
    assert where.in_degrees().shape == (0,)


def test_pointers_have_to_fit_the_indices():
    with pytest.raises(ValueError, match="last entry of indptr is 3, but there are 2 indices"):
        hp.CSCFormatBase(torch.tensor([0, 3]), torch.arange(2))
    with pytest.raises(ValueError, match="last entry of indptr is missing"):
        hp.CSCFormatBase(torch.arange(0), torch.arange(2))
    with pytest.raises(TypeError, match="indptr is a list, indices a Tensor"):
        hp.CSCFormatBase([0, 2], torch.arange(2))


def test_graphbolts_name():
    assert hp.SampledSubgraphImpl is hp.SampledSubgraph


@pytest.mark.parametrize("thing", [CSC, SUBGRAPH, TYPED, SUBGRAPH.block()])
def test_pinning(thing):
    assert not thing.is_pinned()
    if torch.cuda.is_available():
        assert thing.pin_memory().is_pinned()
        assert_same(thing.pin_memory(), thing)
        return
    for pin in (thing.pin_memory, lambda: thing.to("pinned")):
        with pytest.raises(RuntimeError, match="pinning memory needs a GPU"):
            pin()


# -------------------------------------------------------------------------------------------------
# PyG


def test_to_pyg():
    x = torch.arange(8.0).view(4, 2)
    layer = SUBGRAPH.to_pyg(x)
    assert isinstance(layer, hp.PyGLayerData)
    assert layer.x[0] is x
    assert torch.equal(layer.x[1], x[:2])
    assert layer.edge_index.tolist() == [[2, 1, 3], [0, 0, 1]]
    assert layer.edge_index.dtype == torch.int64
    assert layer.size == (4, 2)


def test_to_pyg_by_type():
    x = {"user": torch.ones(4, 1), "item": torch.ones(3, 1), "shop": torch.ones(0, 1)}
    (sources, destinations), edge_index, size = TYPED.to_pyg(x)
    assert sources is x
    assert {kind: len(rows) for kind, rows in destinations.items()} == {"item": 2, "shop": 0}
    assert {name: ends.tolist() for name, ends in edge_index.items()} == {
        "user:buys:item": [[2, 1, 3], [0, 0, 1]], "item:in:shop": [[], []],
    }  # fmt: skip
    assert size == {"user:buys:item": (4, 2), "item:in:shop": (3, 0)}


def test_to_pyg_is_what_a_layer_computes():
    # Sums over the edges, as a PyG layer does, against the block.
    minibatch = next(iter(numbers(30, 8).sample_neighbor(ring(), [3, 2])))
    for subgraph in minibatch.sampled_subgraphs:
        block = subgraph.block()
        x = torch.randn(block.num_src_nodes(), 2, dtype=torch.float64)
        _, (src, dst), (_, rows) = subgraph.to_pyg(x)
        got = torch.zeros(rows, 2, dtype=torch.float64).index_add_(0, dst, x[src])
        for v in range(block.num_dst_nodes()):
            sources = block.indices[block.indptr[v] : block.indptr[v + 1]].long()
            torch.testing.assert_close(got[v], x[sources].sum(0))


@pytest.mark.parametrize(
    ("subgraph", "x", "error", "message"),
    [
        (SUBGRAPH, {"user": torch.ones(4)}, TypeError, "both by type or neither"),
        (TYPED, torch.ones(4), TypeError, "both by type or neither"),
        (SUBGRAPH, torch.ones(3), ValueError, "x has 3 rows for 4 sources"),
        (SUBGRAPH, 3, ValueError, "x is a int"),
        (TYPED, {"user": torch.ones(4)}, ValueError, "x of type 'item' is a NoneType"),
    ],
)
def test_to_pyg_refuses(subgraph, x, error, message):
    with pytest.raises(error, match=message):
        subgraph.to_pyg(x)


@pytest.mark.parametrize("thing", [CSC, SUBGRAPH, TYPED, SUBGRAPH.block()])
def test_moving(thing):
    there = thing.to("meta")
    assert type(there) is type(thing)
    assert_same(thing.to("cpu"), thing)
    assert_same(pickle.loads(pickle.dumps(thing)), thing)  # noqa: S301, our own
    csc = getattr(there, "sampled_csc", there)
    for part in csc.values() if isinstance(csc, dict) else [csc]:
        assert part.indptr.device.type == part.indices.device.type == "meta"
    edges = getattr(there, "original_edge_ids", None)
    for ids in edges.values() if isinstance(edges, dict) else [edges] if edges is not None else []:
        assert ids.device.type == "meta"


def test_repr():
    assert repr(CSC) == "CSCFormatBase(columns=2, edges=3)"
    assert repr(SUBGRAPH) == "SampledSubgraph(CSCFormatBase(columns=2, edges=3))"
    assert "'item:in:shop': CSCFormatBase(columns=0, edges=0)" in repr(TYPED)


def test_destinations_are_a_prefix_of_sources_hop_after_hop():
    for minibatch in numbers(30, 8).sample_neighbor(ring(), [3, 2, 2]):
        columns = minibatch.seeds
        for subgraph in reversed(minibatch.sampled_subgraphs):
            assert torch.equal(subgraph.original_column_node_ids.long(), columns)
            rows = subgraph.original_row_node_ids.long()
            assert torch.equal(rows[: len(columns)], columns)
            columns = rows
        assert torch.equal(minibatch.input_nodes.long(), columns)
