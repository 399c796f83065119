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
