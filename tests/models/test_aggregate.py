"""Mean over in-neighbours against a dense matrix, with its gradient."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hopline.pipes as hp
from hopline.models import mean_aggregate
from hopline.models.aggregate import _mean_on_device


@st.composite
def blocks(draw, max_nodes=6, max_edges=15):
    """Isolated nodes, parallel edges, self-loops; also no destination, or no edge at all."""
    num_dst = draw(st.integers(0, max_nodes))
    num_src = num_dst + draw(st.integers(0, max_nodes))
    edge = st.tuples(st.integers(0, max(num_dst - 1, 0)), st.integers(0, max(num_src - 1, 0)))
    edges = sorted(draw(st.lists(edge, max_size=max_edges))) if num_dst else []
    return make_block(edges, num_src, num_dst, draw(st.sampled_from([torch.int32, torch.int64])))


def make_block(edges, num_src, num_dst, dtype=torch.int32):
    """A block of (destination, source) pairs, sorted."""
    destinations = torch.tensor([d for d, _ in edges], dtype=torch.int64)
    degrees = torch.bincount(destinations, minlength=num_dst)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)])
    return hp.Block(indptr, torch.tensor([s for _, s in edges], dtype=dtype), num_src, num_dst)


def dense_mean(block, x):
    """Row-normalised adjacency matrix times x, differentiable."""
    matrix = torch.zeros(block.num_dst, block.num_src, dtype=x.dtype)
    for i in range(block.num_dst):
        for e in range(int(block.indptr[i]), int(block.indptr[i + 1])):
            matrix[i, int(block.indices[e])] += 1
    return matrix / matrix.sum(dim=1, keepdim=True).clamp(min=1) @ x


def on_device(block, x):
    """The operations that other devices use, run on the CPU."""
    return _mean_on_device(x, block.indptr, block.indices)


PATHS = pytest.mark.parametrize("mean", [mean_aggregate, on_device])


@PATHS
@given(block=blocks(), width=st.integers(0, 5))
def test_equals_the_dense_product(mean, block, width):
    x = torch.randn(block.num_src, width, dtype=torch.float64, generator=seeded())
    assert mean(block, x).shape == (block.num_dst, width)
    torch.testing.assert_close(mean(block, x), dense_mean(block, x))


@PATHS
@given(block=blocks())
def test_gradient(mean, block):
    x = torch.randn(block.num_src, 3, dtype=torch.float64, generator=seeded(), requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: mean(block, x), (x,))
    weight = torch.randn(block.num_dst, 3, dtype=torch.float64, generator=seeded())
    (got,) = torch.autograd.grad((mean(block, x) * weight).sum(), x)
    (want,) = torch.autograd.grad((dense_mean(block, x) * weight).sum(), x)
    torch.testing.assert_close(got, want)


def seeded():
    return torch.Generator().manual_seed(1)


def random_block(num_src=300, num_dst=80, num_edges=1500):
    destinations = torch.randint(num_dst, (num_edges,), generator=seeded()).sort().values
    sources = torch.randint(num_src, (num_edges,), generator=seeded())
    return make_block(
        list(zip(destinations.tolist(), sources.tolist(), strict=True)), num_src, num_dst
    )


@pytest.mark.parametrize("width", [1, 7, 64, 100])
def test_float32(width):
    block = random_block()
    x = torch.randn(300, width, generator=seeded())
    torch.testing.assert_close(mean_aggregate(block, x), dense_mean(block, x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_float32(dtype):
    block = random_block()
    x = torch.randn(300, 16, generator=seeded()).to(dtype)
    got = mean_aggregate(block, x)
    assert got.dtype == dtype
    torch.testing.assert_close(got, dense_mean(block, x.double()).to(dtype))


def test_the_same_bits_for_any_number_of_threads():
    block, x = random_block(), torch.randn(300, 64, generator=seeded(), requires_grad=True)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            out = mean_aggregate(block, x)
            (grad,) = torch.autograd.grad(out.square().sum(), x)
            results.append((out, grad))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_rows_that_are_not_contiguous():
    block = random_block()
    x = torch.randn(16, 300, generator=seeded()).T
    torch.testing.assert_close(mean_aggregate(block, x), dense_mean(block, x))


def test_no_gradient_is_made_for_an_input_that_needs_none():
    block, x = random_block(), torch.randn(300, 4, generator=seeded())
    assert not mean_aggregate(block, x).requires_grad


@pytest.mark.parametrize(
    ("x", "error", "words"),
    [
        (torch.ones(4, 2), ValueError, r"\(4, 2\); expected \[3, width\]"),
        (torch.ones(3), ValueError, r"\(3,\); expected \[3, width\]"),
        (torch.ones(3, 2, dtype=torch.int64), TypeError, "int64"),
    ],
)
def test_unfit_rows(x, error, words):
    with pytest.raises(error, match=words):
        mean_aggregate(make_block([(0, 1)], 3, 1), x)


@pytest.mark.parametrize(
    ("indptr", "indices"),
    [([0, 1, 2], [0, 3]), ([0, 1, 2], [0, -1]), ([0, 1, 5], [0, 1]), ([0, 2, 1], [0, 1])],
)
def test_a_broken_block_is_refused_not_read(indptr, indices):
    block = hp.Block(torch.tensor(indptr), torch.tensor(indices, dtype=torch.int32), 3, 2)
    with pytest.raises(IndexError, match="destination 1 of the block"):
        mean_aggregate(block, torch.ones(3, 2))
