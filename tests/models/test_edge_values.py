"""Scores, softmax and self edges of a block against plain loops."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hopline.pipes as hp
from hopline.models import add_self_edges, edge_scores, edge_softmax
from hopline.models.edge_values import _scores_on_device, _softmax_on_device
from tests.models.test_aggregate import (
    assert_same_with_gradients,
    blocks,
    edges_of,
    make_block,
    normal,
    random_block,
)

SOFTMAX = pytest.mark.parametrize(
    "softmax", [edge_softmax, lambda b, x: _softmax_on_device(x, b.indptr)], ids=["cpu", "device"]
)
SCORES = pytest.mark.parametrize(
    "scores",
    [edge_scores, lambda b, s, d: _scores_on_device(s, d, b.indptr, b.indices)],
    ids=["cpu", "device"],
)


def dense_softmax(block, logits):
    parts = torch.split(logits, torch.diff(block.indptr).tolist())
    return torch.cat([logits[:0], *(part.softmax(0) for part in parts)])


def dense_scores(block, source, destination):
    pairs = torch.tensor(edges_of(block), dtype=torch.int64).view(-1, 2)
    return source[pairs[:, 1]] + destination[pairs[:, 0]]


@SOFTMAX
@given(block=blocks(), heads=st.integers(0, 3))
def test_softmax(softmax, block, heads):
    logits = 5 * normal(block.num_edges(), heads, requires_grad=True)
    assert_same_with_gradients(softmax(block, logits), dense_softmax(block, logits), (logits,))


@SOFTMAX
@given(block=blocks(max_edges=8))
def test_gradcheck_of_softmax(softmax, block):
    logits = normal(block.num_edges(), 2, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: softmax(block, x), (logits,))


@SCORES
@given(block=blocks(), heads=st.integers(0, 3))
def test_scores(scores, block, heads):
    source = normal(block.num_src, heads, requires_grad=True)
    destination = normal(block.num_dst, heads, requires_grad=True)
    got = scores(block, source, destination)
    want = dense_scores(block, source, destination)
    assert_same_with_gradients(got, want, (source, destination))


@SCORES
def test_gradcheck_of_scores(scores):
    block = make_block([(0, 0), (0, 3), (0, 3), (2, 1)], 4, 3)
    ends = normal(4, 2, requires_grad=True), normal(3, 2, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s, d: scores(block, s, d), ends)


@SOFTMAX
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shift", [-1e30, 0.0, 1e4, 1e30])
def test_no_logit_is_too_large_or_too_small(softmax, dtype, shift):
    block = make_block([(0, 0), (0, 1), (1, 1)], 2, 2)
    logits = torch.tensor([[shift], [shift], [-shift]], dtype=dtype, requires_grad=True)
    weights = softmax(block, logits)
    assert weights.flatten().tolist() == [0.5, 0.5, 1.0]
    (grad,) = torch.autograd.grad(
        (weights * weights.new_tensor([[1.0], [3.0], [5.0]])).sum(), logits
    )
    assert grad.flatten().tolist() == [-0.5, 0.5, 0.0]


@SOFTMAX
def test_infinite_and_undefined_logits(softmax):
    inf, nan = float("inf"), float("nan")
    block = make_block([(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)], 3, 3)
    logits = torch.tensor([[-inf], [2.0], [-inf], [-inf], [nan], [1.0]], requires_grad=True)
    weights = softmax(block, logits)
    want = torch.tensor([[0.0], [1.0], [0.0], [0.0], [nan], [nan]])
    torch.testing.assert_close(weights, want, equal_nan=True)
    (grad,) = torch.autograd.grad(weights[:4].square().sum(), logits)
    assert grad[:4].tolist() == [[0.0]] * 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_lower_precision(dtype):
    block = random_block()
    logits = (4 * normal(1500, 3)).to(dtype).requires_grad_()
    got = edge_softmax(block, logits)
    assert got.dtype == dtype
    torch.testing.assert_close(got, dense_softmax(block, logits.double()).to(dtype))
    (grad,) = torch.autograd.grad(got.float().square().sum(), logits)
    assert grad.dtype == dtype
    source, destination = normal(300, 3).to(dtype), normal(80, 3).to(dtype)
    got = edge_scores(block, source, destination)
    assert got.dtype == dtype
    want = dense_scores(block, source.double(), destination.double())
    torch.testing.assert_close(got, want.to(dtype))


def test_softmax_of_one_logit_an_edge():
    block, logits = random_block(), normal(1500)
    torch.testing.assert_close(
        edge_softmax(block, logits), dense_softmax(block, logits[:, None])[:, 0]
    )


@given(block=blocks())
def test_self_edges(block):
    with_self = add_self_edges(block)
    own = [(i, i) for i in range(block.num_dst)]
    got = edges_of(with_self)
    assert sorted(got) == sorted(edges_of(block) + own)
    assert got == [
        edge
        for i in range(block.num_dst)
        for edge in [*(e for e in edges_of(block) if e[0] == i), own[i]]
    ]
    assert with_self.indices.dtype == block.indices.dtype
    assert (with_self.num_src, with_self.num_dst) == (block.num_src, block.num_dst)


def test_self_edges_of_another_type_are_refused():
    with pytest.raises(ValueError, match="fewer sources than destinations"):
        add_self_edges(make_block([(0, 1)], 2, 3))


BLOCK = make_block([(0, 1)], 3, 1)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: edge_softmax(BLOCK, torch.ones(2)), ValueError, r"\(2,\); expected \[1\]"),
        (lambda: edge_softmax(BLOCK, torch.ones(1, 1, 1)), ValueError, r"\(1, 1, 1\)"),
        (lambda: edge_softmax(BLOCK, torch.ones(1).int()), TypeError, "torch.int32"),
        (
            lambda: edge_scores(BLOCK, torch.ones(3, 1), torch.ones(3, 1)),
            ValueError,
            r"\[1, heads\]",
        ),
        (lambda: edge_scores(BLOCK, torch.ones(3), torch.ones(1)), ValueError, r"\[3, heads\]"),
        (lambda: edge_scores(BLOCK, torch.ones(3, 2), torch.ones(1, 1)), ValueError, "heads"),
        (
            lambda: edge_scores(BLOCK, torch.ones(3, 1), torch.ones(1, 1).double()),
            TypeError,
            "expected the same",
        ),
        (
            lambda: edge_scores(BLOCK, torch.ones(3, 1).int(), torch.ones(1, 1).int()),
            TypeError,
            "torch.int32",
        ),
    ],
)
def test_unfit_arguments(call, error, words):
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize(
    ("indptr", "indices"), [([0, 1, 2], [0, 3]), ([0, 1, 5], [0, 1]), ([0, 2, 1], [0, 1])]
)
def test_a_broken_block_is_refused_not_read(indptr, indices):
    block = hp.Block(torch.tensor(indptr), torch.tensor(indices, dtype=torch.int32), 3, 2)
    with pytest.raises(IndexError, match="destination 1 of the block"):
        edge_scores(block, torch.ones(3, 2), torch.ones(2, 2))
    if indices[1] < 3:  # sources do not matter to a softmax
        with pytest.raises(IndexError, match="destination 1 of the block"):
            edge_softmax(block, torch.ones(2, 2))
