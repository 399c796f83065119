"""NeighborSampler: fanouts of every kind, wrong arguments and wrong seeds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given

import hopline.pipes as hp
from tests import twins
from tests.chi_square import assert_equal_inclusion
from tests.pipes.test_neighbor import sample, star
from tests.strategies import build, homogeneous, tensor
from tests.twins import EDGE, NODE

# -------------------------------------------------------------------------------------------------
# Fanouts


def test_fanouts_of_one_node():
    graph = star(3)
    for fanout, once, again in ((-1, 3, 3), (0, 0, 0), (2, 2, 2), (3, 3, 3), (5, 3, 5),
                                (2**31 - 1, 3, None)):  # fmt: skip
        assert sample(graph, tensor([0]), [fanout]).blocks[0].num_edges() == once
        if again is not None:
            minibatch = sample(graph, tensor([0]), [fanout], replace=True)
            assert minibatch.blocks[0].num_edges() == again


def test_fanouts_of_edge_types():
    many = tensor([0, 1, 2]), tensor([0, 0, 0])
    graph = hp.from_coo({f"n:{name}:n": many for name in "abc"}, num_nodes={"n": 3})
    for fanouts in ([[-1, 0, 2]], [tensor([-1, 0, 2])], [(np.int64(-1), 0, 2)]):
        block = sample(graph, {"n": tensor([0])}, fanouts).blocks[0]
        assert [b.num_edges() for b in block.values()] == [3, 0, 2]
    block = sample(graph, {"n": tensor([0])}, [[-1, 0, 5]], replace=True).blocks[0]
    assert [b.num_edges() for b in block.values()] == [3, 0, 5]
    block = sample(graph, {"n": tensor([0])}, [4]).blocks[0]
    assert sum(b.num_edges() for b in block.values()) == 4


def test_one_fanout_is_over_all_edge_types_together():
    graph = hp.from_coo(
        {"n:a:n": (torch.arange(1, 7), torch.zeros(6, dtype=torch.int64)),
         "n:b:n": (torch.arange(1, 3), torch.zeros(2, dtype=torch.int64))},
        num_nodes={"n": 7}, include_original_edge_id=False,
    )  # fmt: skip
    counts = np.zeros(8, np.int64)
    for index in range(1500):
        block = sample(graph, {"n": tensor([0])}, [2], key=(0, 0, index)).blocks[0]
        for first, b in zip((0, 6), block.values(), strict=True):
            for e in b.original_edge_ids.tolist():
                assert first <= e < first + 6
                counts[e] += 1
    assert_equal_inclusion(counts, 1500, 2)


def test_more_picks_than_positions_can_name():
    graph = star(3)
    with pytest.raises(OverflowError, match=str(2**31 - 1)):
        sample(graph, tensor([0]), [2**31 - 1], replace=True)


HETERO = hp.from_coo({"a:x:b": (tensor([0]), tensor([0])), "b:y:a": (tensor([1]), tensor([0]))},
                     num_nodes={"a": 1, "b": 2})  # fmt: skip


@pytest.mark.parametrize(
    ("graph", "fanouts", "error", "message"),
    [
        (star(2), [], ValueError, "empty"),
        (star(2), 5, TypeError, "5"),
        (star(2), "10", TypeError, "10"),
        (star(2), {"a": 1}, TypeError, "a"),
        (star(2), [1.5], TypeError, "1.5"),
        (star(2), [True], TypeError, "True"),
        (star(2), [None], TypeError, "None"),
        (star(2), ["5"], TypeError, "5"),
        (star(2), [3, -2], ValueError, r"fanouts\[1\] is -2"),
        (star(2), [2**31], ValueError, str(2**31)),
        (star(2), [[1, 2]], ValueError, "2 entries; the graph has 1"),
        (star(2), [[]], ValueError, "0 entries"),
        (star(2), torch.tensor([1.0]), TypeError, "1.0"),
        (HETERO, [[1, 2, 3]], ValueError, "3 entries; the graph has 2"),
        (HETERO, [torch.tensor([[1, 2]])], TypeError, r"\[1, 2\]"),
    ],
)
def test_wrong_fanouts(graph, fanouts, error, message):
    with pytest.raises(error, match=message):
        hp.NeighborSampler([], graph, fanouts)


def test_wrong_settings():
    with pytest.raises(TypeError, match="replace is 1"):
        hp.NeighborSampler([], star(2), [1], replace=1)
    with pytest.raises(TypeError, match="Tensor"):
        hp.NeighborSampler([], tensor([1]), [1])


def test_settings_name_what_decides():
    stage = hp.NeighborSampler([], HETERO, [[1, 2], 5, tensor(3)], replace=True)
    assert stage.settings() == {
        "fanouts": [[1, 2], 5, 3], "replace": True, "nodes": 3, "edges": 2,
    }  # fmt: skip


# -------------------------------------------------------------------------------------------------
# Wrong seeds


@pytest.mark.parametrize(
    ("seeds", "error", "message"),
    [
        (tensor([0, 3]), IndexError, r"id 3 at position 1.*\[0, 3\)"),
        (tensor([-1]), IndexError, "id -1"),
        (tensor([2**40]), IndexError, str(2**40)),
        (tensor([0.0], torch.float32), TypeError, "float32"),
        (tensor([True, False], torch.bool), TypeError, "bool"),
        (tensor([0], torch.complex64), TypeError, "complex64"),
        (torch.from_numpy(np.array([0, 2**64 - 1], np.uint64)), IndexError, str(2**64 - 1)),
        (tensor([3], torch.uint8), IndexError, "id 3"),
        (tensor([-7], torch.int8), IndexError, "id -7"),
        (tensor([[[0, 1]]]), ValueError, r"\(1, 1, 2\)"),
        (tensor(0), ValueError, r"\(\)"),
        ([0, 1], TypeError, "list"),
        ({NODE: tensor([0])}, TypeError, NODE),
        (None, ValueError, "no seeds"),
    ],
)
def test_wrong_seeds(seeds, error, message):
    with pytest.raises(error, match=message):
        sample(star(2), seeds, [1])


@pytest.mark.parametrize(
    ("seeds", "error", "message"),
    [
        (tensor([0]), TypeError, "node types"),
        ({"c": tensor([0])}, ValueError, "'c'"),
        ({"a": tensor([1])}, IndexError, r"type 'a': id 1 .*\[0, 1\)"),
        ({"b": tensor([0, -1])}, IndexError, "type 'b': id -1"),
        ({"a": tensor([0.5], torch.float64)}, TypeError, "type 'a'.*float64"),
        ({"a": [0]}, TypeError, "list"),
        ({"a": tensor([[0, 0]])}, ValueError, "'a' does not name the node types of 2 ends"),
    ],
)
def test_wrong_typed_seeds(seeds, error, message):
    with pytest.raises(error, match=message):
        sample(HETERO, seeds, [1])


@pytest.mark.parametrize(
    "dtype",
    [torch.uint8, torch.int8, torch.int16, torch.uint16, torch.uint32, torch.uint64, torch.int64],
)
def test_seeds_of_any_integer_type_are_ids(dtype):
    # A uint8 index is a mask to torch: it must never be used as one.
    minibatch = sample(star(2), tensor([0, 1, 1, 0]).to(dtype), [-1])
    assert minibatch.input_nodes.tolist() == [0, 1, 1, 0, 2]
    assert minibatch.input_nodes.dtype == torch.int32
    assert minibatch.seeds.dtype == dtype


def test_seeds_that_are_not_contiguous():
    minibatch = sample(star(4), torch.arange(5).expand(2, 5).T[:, 1][::2], [-1])
    assert minibatch.input_nodes.tolist() == [0, 2, 4, 1, 3]


def test_a_mini_batch_without_key():
    minibatch = hp.MiniBatch(seeds=tensor([0]))
    with pytest.raises(ValueError, match="no key"):
        hp.NeighborSampler([], star(2), [1])(minibatch)


def test_sampling_changes_no_input():
    graph = build(twins.Graph({NODE: 3}, {EDGE: [(0, 1), (2, 1), (1, 0)]}))
    before = [t.clone() for t in (graph.csc_indptr, graph.indices)]
    seeds = tensor([1, 0], torch.int32)
    minibatch = sample(graph, seeds, [2, 2])
    minibatch.input_nodes += 5
    for subgraph in minibatch.sampled_subgraphs:
        subgraph.sampled_csc.indices.fill_(-1)
        subgraph.original_edge_ids.fill_(-1)
    assert seeds.tolist() == [1, 0]
    assert torch.equal(graph.csc_indptr, before[0])
    assert torch.equal(graph.indices, before[1])
    assert sample(graph, seeds, [2, 2]).input_nodes.tolist() == [1, 0, 2]


@example(twins.Graph({NODE: 3}, {EDGE: [(0, 1)] * 70}))
@given(homogeneous())
def test_blocks_are_valid(graph):
    count = graph.num_nodes[NODE]
    minibatch = sample(build(graph), torch.arange(count), [3, 68])
    for block in minibatch.blocks:
        assert len(block.indptr) == block.num_dst_nodes() + 1
        assert (torch.diff(block.indptr) >= 0).all()
        assert block.num_edges() == block.indptr[-1]
        if block.num_edges():
            assert 0 <= block.indices.min() <= block.indices.max() < block.num_src_nodes()


def test_fanouts_of_a_graph_without_edge_types():
    graph = hp.from_coo({}, num_nodes={"user": 2})
    for fanouts in ([2, 2], [[], []]):
        stage = hp.NeighborSampler([], graph, fanouts)
        assert stage.settings()["fanouts"] == fanouts
        minibatch = stage(hp.MiniBatch(seeds={"user": tensor([1])}, key=(0, 0, 0)))
        assert minibatch.blocks == [{}, {}]


def test_graphbolts_further_arguments_are_accepted():
    chain = hp.ItemSampler(hp.ItemSet(3, "seeds"), 3, seed=0)
    accepted = {
        "overlap_fetch": True, "num_gpu_cached_edges": 10, "gpu_cache_threshold": 2,
        "cooperative": False, "asynchronous": True,
    }  # fmt: skip
    for method in ("sample_neighbor", "sample_layer_neighbor"):
        sampler = getattr(chain, method)
        one, two = next(iter(sampler(star(9), [2], **accepted))), next(iter(sampler(star(9), [2])))
        assert torch.equal(one.input_nodes, two.input_nodes)
        with pytest.raises(TypeError, match="other"):
            sampler(star(9), [2], other=True)


def test_random_seeds_of_numpy():
    """NumPy's integers are taken for what they are: their arithmetic would overflow."""
    graph = star(5)
    for value in (np.int64(1), np.int64(-1), np.uint64(2**64 - 1), np.int8(1)):
        seeds, pairs = torch.tensor([0]), torch.tensor([[1, 0]])
        one = graph.sample_neighbors(seeds, [2], random_seed=value)
        other = graph.sample_neighbors(seeds, [2], random_seed=int(value))
        assert torch.equal(one.sampled_csc.indices, other.sampled_csc.indices)
        negatives = graph.sample_negative_edges_uniform(None, pairs, 3, random_seed=value)
        same = graph.sample_negative_edges_uniform(None, pairs, 3, random_seed=int(value))
        assert torch.equal(negatives, same)
