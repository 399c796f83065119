"""Sum, mean and maximum over in-neighbours against dense matrices, with their gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hopline.pipes as hp
from hopline.models import max_aggregate, mean_aggregate, sum_aggregate
from hopline.models.maxima import max_on_device
from hopline.models.sums import sum_on_device
from hopline.models.weighted_sums import weighted_sum_on_device


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


def edges_of(block):
    """(destination, source) of each edge, read from the definition."""
    return [
        (i, int(block.indices[e]))
        for i in range(block.num_dst)
        for e in range(int(block.indptr[i]), int(block.indptr[i + 1]))
    ]


def dense_matrix(block, weight=None, dtype=torch.float64):
    """[num_dst, num_src], sum of the weights of the edges between two rows; differentiable."""
    pairs = torch.tensor(edges_of(block), dtype=torch.int64).view(-1, 2)
    weight = torch.ones(len(pairs), dtype=dtype) if weight is None else weight
    zeros = torch.zeros(block.num_dst, block.num_src, dtype=weight.dtype)
    return zeros.index_put((pairs[:, 0], pairs[:, 1]), weight, accumulate=True)


def dense_mean(block, x):
    """Row-normalised adjacency matrix times x, differentiable."""
    matrix = dense_matrix(block, dtype=x.dtype)
    return matrix / matrix.sum(dim=1, keepdim=True).clamp(min=1) @ x


def dense_sum(block, x):
    return dense_matrix(block, dtype=x.dtype) @ x


def dense_max(block, x):
    rows = [x.new_zeros(0, x.shape[1])]
    for i in range(block.num_dst):
        sources = [j for d, j in edges_of(block) if d == i]
        rows.append(x[sources].amax(0, keepdim=True) if sources else x.new_zeros(1, x.shape[1]))
    return torch.cat(rows)


def dense_weighted(block, x, weight):
    """x: [num_src, heads or 1, width], weight: [num_edges, heads]."""
    heads = [
        dense_matrix(block, weight[:, h]) @ x[:, h if x.shape[1] > 1 else 0]
        for h in range(weight.shape[1])
    ]
    return torch.stack(heads, dim=1)


def assert_same_with_gradients(got, want, inputs):
    """Equal values, and equal gradients of a random sum of them."""
    torch.testing.assert_close(got, want)
    weight = torch.randn(want.shape, dtype=want.dtype, generator=seeded())
    if not want.requires_grad:  # the dense way meets no input where there is nothing to sum
        want = want + sum(0 * each.sum() for each in inputs)
    for a, b in zip(
        torch.autograd.grad((got * weight).sum(), inputs),
        torch.autograd.grad((want * weight).sum(), inputs, materialize_grads=True),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


def seeded():
    return torch.Generator().manual_seed(1)


def normal(*shape, **settings):
    return torch.randn(shape, dtype=torch.float64, generator=seeded(), **settings)


# What is called, and its dense twin: the public function, and what other devices use, on the CPU.
PLAIN = {
    "mean": (mean_aggregate, dense_mean),
    "sum": (sum_aggregate, dense_sum),
    "max": (max_aggregate, dense_max),
    "mean on device": (lambda b, x: sum_on_device(x, b.indptr, b.indices, True), dense_mean),
    "sum on device": (lambda b, x: sum_on_device(x, b.indptr, b.indices, False), dense_sum),
    "max on device": (lambda b, x: max_on_device(x, b.indptr, b.indices), dense_max),
}
PATHS = pytest.mark.parametrize(("aggregate", "dense"), PLAIN.values(), ids=PLAIN)
PUBLIC = pytest.mark.parametrize(("aggregate", "dense"), list(PLAIN.values())[:3])
WEIGHTED = pytest.mark.parametrize(
    "weighted",
    [sum_aggregate, lambda b, x, w: weighted_sum_on_device(x, w, b.indptr, b.indices)],
    ids=["cpu", "on device"],
)


@PATHS
@given(block=blocks(), width=st.integers(0, 5))
def test_equals_the_dense_computation(aggregate, dense, block, width):
    x = normal(block.num_src, width, requires_grad=True)
    assert aggregate(block, x).shape == (block.num_dst, width)
    assert_same_with_gradients(aggregate(block, x), dense(block, x), (x,))


@PATHS
@given(block=blocks())
def test_gradcheck(aggregate, dense, block):
    x = normal(block.num_src, 3, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: aggregate(block, x), (x,))


@WEIGHTED
@given(
    block=blocks(),
    heads=st.integers(1, 3),
    shared=st.booleans(),
    # Widths about 8, of which the kernel of products takes so many at once.
    width=st.sampled_from([0, 1, 3, 7, 8, 9, 17]),
)
def test_weighted_sum_by_heads(weighted, block, heads, shared, width):
    x = normal(block.num_src, 1 if shared else heads, width, requires_grad=True)
    weight = normal(block.num_edges(), heads, requires_grad=True)
    got = weighted(block, x, weight)
    assert got.shape == (block.num_dst, heads, width)
    assert_same_with_gradients(got, dense_weighted(block, x, weight), (x, weight))


@WEIGHTED
@given(block=blocks(max_edges=8), shared=st.booleans())
def test_gradcheck_of_the_weighted_sum(weighted, block, shared):
    x = normal(block.num_src, 1 if shared else 2, 3, requires_grad=True)
    weight = normal(block.num_edges(), 2, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, w: weighted(block, x, w), (x, weight))


@given(block=blocks(), width=st.integers(0, 5))
def test_weighted_sum_of_plain_rows(block, width):
    x = normal(block.num_src, width, requires_grad=True)
    weight = normal(block.num_edges(), requires_grad=True)
    want = dense_matrix(block, weight) @ x
    assert_same_with_gradients(sum_aggregate(block, x, weight), want, (x, weight))


def random_block(num_src=300, num_dst=80, num_edges=1500):
    destinations = torch.randint(num_dst, (num_edges,), generator=seeded()).sort().values
    sources = torch.randint(num_src, (num_edges,), generator=seeded())
    return make_block(
        list(zip(destinations.tolist(), sources.tolist(), strict=True)), num_src, num_dst
    )


@PUBLIC
@pytest.mark.parametrize("width", [1, 7, 64, 100])
def test_float32(aggregate, dense, width):
    block = random_block()
    x = torch.randn(300, width, generator=seeded())
    torch.testing.assert_close(aggregate(block, x), dense(block, x.double()).float())


@pytest.mark.parametrize("width", [1, 7, 64, 100])
def test_float32_weighted(width):
    block = random_block()
    x, weight = normal(300, 4, width, requires_grad=True), normal(1500, 4, requires_grad=True)
    want = dense_weighted(block, x, weight)
    x32, weight32 = (each.detach().float().requires_grad_() for each in (x, weight))
    got = sum_aggregate(block, x32, weight32)
    torch.testing.assert_close(got, want.float())
    for a, b in zip(
        torch.autograd.grad(got.square().sum(), (x32, weight32)),
        torch.autograd.grad(want.square().sum(), (x, weight)),
        strict=True,
    ):
        torch.testing.assert_close(a, b.float(), rtol=1e-4, atol=1e-3)


@PUBLIC
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_float32(aggregate, dense, dtype):
    block = random_block()
    x = torch.randn(300, 16, generator=seeded()).to(dtype).requires_grad_()
    got = aggregate(block, x)
    assert got.dtype == dtype
    torch.testing.assert_close(got, dense(block, x.double()).to(dtype))
    (grad,) = torch.autograd.grad(got.float().sum(), x)
    assert grad.dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_weighted(dtype):
    block = random_block()
    x, weight = normal(300, 2, 16).to(dtype), normal(1500, 2).to(dtype).requires_grad_()
    got = sum_aggregate(block, x, weight)
    assert got.dtype == dtype
    torch.testing.assert_close(got, dense_weighted(block, x.double(), weight.double()).to(dtype))
    (grad,) = torch.autograd.grad(got.float().sum(), weight)
    assert grad.dtype == dtype


@PUBLIC
def test_the_same_bits_for_any_number_of_threads(aggregate, dense):
    block, x = random_block(), torch.randn(300, 64, generator=seeded(), requires_grad=True)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            out = aggregate(block, x)
            (grad,) = torch.autograd.grad(out.square().sum(), x)
            results.append((out, grad))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@PUBLIC
def test_rows_that_are_not_contiguous(aggregate, dense):
    block = random_block()
    x = torch.randn(16, 300, generator=seeded()).T.requires_grad_()
    out = aggregate(block, x)
    torch.testing.assert_close(out, dense(block, x.double()).float())
    # A sum's gradient is one value expanded to all.
    (got,) = torch.autograd.grad(out.sum(), x)
    (want,) = torch.autograd.grad(dense(block, x.double()).sum(), x)
    torch.testing.assert_close(got, want)


def test_no_gradient_is_made_for_an_input_that_needs_none():
    block, x = random_block(), torch.randn(300, 4, generator=seeded())
    for aggregate in (mean_aggregate, sum_aggregate, max_aggregate):
        assert not aggregate(block, x).requires_grad
    weight = torch.ones(1500, requires_grad=True)
    out = sum_aggregate(block, x, weight)
    saved = [t for t in out.grad_fn.next_functions[0][0].saved_tensors if t is not None]
    assert [t.dtype for t in saved] == [torch.int64, torch.int32, torch.float32], "weight was kept"
    out.sum().backward()
    torch.testing.assert_close(weight.grad, x.sum(1)[block.indices.long()])


@pytest.mark.parametrize("maximum", [PLAIN["max"][0], PLAIN["max on device"][0]])
def test_of_equal_maxima_the_first_edge_gets_the_gradient(maximum):
    block = make_block([(0, 2), (0, 0), (0, 1), (1, 1), (1, 1)], 3, 2)
    x = torch.tensor([[5.0], [5.0], [1.0]], requires_grad=True)
    maximum(block, x).sum().backward()
    assert x.grad.tolist() == [[1.0], [1.0], [0.0]]


@pytest.mark.parametrize("maximum", [PLAIN["max"][0], PLAIN["max on device"][0]])
def test_maximum_of_infinities_and_nan(maximum):
    nan, inf = float("nan"), float("inf")
    block = make_block([(0, 0), (0, 1), (1, 0), (1, 2), (2, 2), (2, 3)], 4, 4)
    x = torch.tensor([[1.0], [nan], [-inf], [-inf]])
    got = maximum(block, x)
    torch.testing.assert_close(got, torch.tensor([[nan], [1.0], [-inf], [0.0]]), equal_nan=True)


@pytest.mark.parametrize(
    ("x", "error", "words"),
    [
        (torch.ones(4, 2), ValueError, r"\(4, 2\); expected \[3, width\]"),
        (torch.ones(3), ValueError, r"\(3,\); expected \[3, width\]"),
        (torch.ones(3, 2, dtype=torch.int64), TypeError, "int64"),
    ],
)
@PUBLIC
def test_unfit_rows(aggregate, dense, x, error, words):
    with pytest.raises(error, match=words):
        aggregate(make_block([(0, 1)], 3, 1), x)


@pytest.mark.parametrize(
    ("x", "weight", "error", "words"),
    [
        ((3, 2), torch.ones(2), ValueError, r"\(2,\); expected \[1\] or \[1, heads\]"),
        ((3, 2), torch.ones(1, 2), ValueError, r"expected \[3, heads, width\]"),
        ((3, 2, 2), torch.ones(1), ValueError, r"expected \[3, width\]"),
        ((3, 2, 2), torch.ones(1, 3), ValueError, "2 heads and edge_weight 3"),
        ((3, 2, 2), torch.ones(1, 2, 1), ValueError, r"\(1, 2, 1\)"),
        ((3, 2), torch.ones(1, dtype=torch.int32), TypeError, "edge_weight has dtype torch.int32"),
    ],
)
def test_unfit_weights(x, weight, error, words):
    with pytest.raises(error, match=words):
        sum_aggregate(make_block([(0, 1)], 3, 1), torch.ones(x), weight)


@pytest.mark.parametrize(
    ("indptr", "indices"),
    [([0, 1, 2], [0, 3]), ([0, 1, 2], [0, -1]), ([0, 1, 5], [0, 1]), ([0, 2, 1], [0, 1])],
)
def test_a_broken_block_is_refused_not_read(indptr, indices):
    block = hp.Block(torch.tensor(indptr), torch.tensor(indices, dtype=torch.int32), 3, 2)
    x = torch.ones(3, 2)
    for call in (
        lambda: mean_aggregate(block, x),
        lambda: sum_aggregate(block, x),
        lambda: sum_aggregate(block, x, torch.ones(2)),
        lambda: max_aggregate(block, x),
    ):
        with pytest.raises(IndexError, match="destination 1 of the block"):
            call()
