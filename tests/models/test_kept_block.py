"""KeptBlock: turned edges, made once, with which results have the same bits."""

import copy
import itertools

import pytest
import torch

import hopline.pipes as hp
from hopline.models import GATConv, kept_block, sum_aggregate
from hopline.models.edge_values import edge_scores
from hopline.models.kept_block import KeptBlock, _turned_by_torch, transposed, turn, turned_of
from tests.models.test_scaled_sum import ROWS, SOURCES, block_of, dense, draw


@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
def test_transposed(kind):
    block = block_of(kind=kind)
    turned = transposed(block)
    assert (turned.num_src, turned.num_dst) == (ROWS, SOURCES)
    assert torch.equal(dense(turned), dense(block).T)
    for low, high in itertools.pairwise(turned.indptr.tolist()):
        assert turned.indices[low:high].tolist() == sorted(turned.indices[low:high].tolist())
    by_torch = _turned_by_torch(block)
    assert torch.equal(by_torch[0], turned.indptr)
    assert torch.equal(by_torch[1], turned.indices)
    empty = transposed(hp.Block(torch.zeros(1, dtype=torch.int64), block.indices[:0], 3, 0))
    assert empty.indptr.tolist() == [0, 0, 0, 0]


def test_turned_edges_name_the_block_s():
    block = block_of()
    starts, columns, edges = turn(block.indptr, block.indices, SOURCES)
    ends = torch.arange(ROWS).repeat_interleave(block.in_degrees())
    sources = torch.arange(SOURCES).repeat_interleave(starts.diff())
    assert sorted(edges.tolist()) == list(range(block.num_edges()))
    assert torch.equal(block.indices[edges.long()].long(), sources)
    assert torch.equal(ends[edges.long()], columns.long())
    assert len(turn(block.indptr, block.indices, SOURCES, named=False).edges) == 0


def steps(block, count=3):
    """Of weighted sums and scores: results and gradients."""
    x, weight = draw(SOURCES, 2, 3).requires_grad_(), draw(block.num_edges(), 2).requires_grad_()
    ends = draw(SOURCES, 2).requires_grad_(), draw(ROWS, 2).requires_grad_()
    for _ in range(count):
        out = sum_aggregate(block, x, weight), edge_scores(block, *ends)
        total = out[0].square().sum() + out[1].square().sum()
        found = *out, *torch.autograd.grad(total, (x, weight, *ends))
    return found


def test_results_have_the_same_bits_and_edges_are_turned_once(monkeypatch):
    turns, plain = [], kept_block.transpose_edges

    def counted(*arrays):
        turns.append(len(arrays[-1]))
        return plain(*arrays)

    monkeypatch.setattr(kept_block, "transpose_edges", counted)
    expected = steps(block_of())
    assert len(turns) == 3  # in each backward pass
    turns.clear()
    kept = KeptBlock.of(block_of())
    with torch.no_grad():
        sum_aggregate(kept, draw(SOURCES, 3), draw(kept.num_edges()))
    assert turns == []  # no backward pass, nothing made for it
    found = steps(kept)
    assert len(turns) == 1
    assert kept.transposed.indices is kept.turned.columns
    assert len(turns) == 1
    late = KeptBlock.of(block_of())
    assert late.transposed.indices is late.turned.columns  # the names came later
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_what_inference_made_serves_training():
    kept, x = KeptBlock.of(block_of()), draw(SOURCES, 3).requires_grad_()
    weight = draw(kept.num_edges())
    with torch.inference_mode():
        assert kept.turned.edges.is_inference() is kept.transposed.indices.is_inference() is False
    sum_aggregate(kept, x, weight).sum().backward()
    expected = dense(block_of()).T.new_zeros(SOURCES)
    expected.index_add_(0, block_of().indices.long(), weight)
    assert torch.allclose(x.grad[:, 0], expected)


def test_gradgrad_is_refused_and_gradcheck_holds():
    kept, weight = KeptBlock.of(block_of()), draw(block_of().num_edges(), 2).requires_grad_()
    x = draw(SOURCES, 2, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, w: sum_aggregate(kept, x, w), (x, weight))


def test_a_copy_is_itself_and_a_moved_one_a_plain_block():
    kept = KeptBlock.of(block_of())
    assert copy.deepcopy({"block": kept})["block"] is kept
    assert type(kept.to("cpu")) is hp.Block
    assert turned_of(block_of(), draw(2).requires_grad_()) == (None, None, None)


def test_attention_over_a_kept_block():
    conv, kept = GATConv(3, 2, 2, self_loop=False).double(), KeptBlock.of(block_of())
    x = draw(SOURCES, 3).requires_grad_()

    def gradients(block):
        return torch.autograd.grad(conv(block, x).square().sum(), (x, *conv.parameters()))

    for a, b in zip(gradients(kept), gradients(block_of()), strict=True):
        assert torch.equal(a, b)
