"""scaled_sum: against the dense product, with every factor and without."""

import itertools

import numpy as np
import pytest
import torch

import hopline.pipes as hp
from hopline.models.kept_block import KeptBlock
from hopline.models.kernels import sum_scaled_rows
from hopline.models.normalised_product import Factors, normalised_product, scaled
from hopline.models.scaled_sum import gathered, picks, scaled_rows, scaled_sum

SOURCES, ROWS, EDGES = 9, 6, 25


def block_of(sources=SOURCES, rows=ROWS, edges=EDGES, kind=torch.int32):
    """With parallel edges, and a row without edges."""
    draw = torch.Generator().manual_seed(0)
    ends = torch.randint(0, rows - 1, (edges,), generator=draw).sort().values
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), ends.bincount(minlength=rows).cumsum(0)])
    indices = torch.randint(0, sources, (edges,), generator=draw).to(kind)
    return hp.Block(indptr, indices, sources, rows)


def dense(block, dtype=torch.float64):
    matrix = torch.zeros(block.num_dst, block.num_src, dtype=dtype)
    ends = torch.arange(block.num_dst).repeat_interleave(block.in_degrees())
    ones = torch.ones(len(ends), dtype=dtype)
    return matrix.index_put((ends, block.indices.long()), ones, accumulate=True)


def draw(*shape, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)), dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [0, 1, 7, 200])
def test_scaled_sum(dtype, width):
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-4, torch.bfloat16: 0.5}[dtype]
    block = block_of()
    x = draw(2 * SOURCES, width, dtype=dtype)[::2]  # not contiguous
    source, target, out = draw(SOURCES, dtype=dtype), draw(ROWS, dtype=dtype), x[:ROWS] + 1
    for with_source, with_target, loop, add in itertools.product((False, True), repeat=4):
        expected = x.double() * (source.double()[:, None] if with_source else 1)
        expected = dense(block) @ expected + (expected[:ROWS] if loop else 0)
        expected = (expected + (out.double() if add else 0)) * (
            target.double()[:, None] if with_target else 1
        )
        got = scaled_sum(
            block,
            x,
            source if with_source else None,
            target if with_target else None,
            self_loop=loop,
            out=out.clone() if add else None,
        )
        assert got.dtype == dtype
        assert got.shape == (ROWS, width)
        assert torch.allclose(got.double(), expected, atol=tolerance, rtol=tolerance)


def test_kernel_does_as_its_plain_twin():
    block = block_of()
    x, source, target = draw(SOURCES, 3).numpy(), draw(SOURCES).numpy(), draw(ROWS).numpy()
    edges = block.indptr.numpy(), block.indices.numpy()
    nothing, found = np.empty(0), np.empty((ROWS, 3))
    assert sum_scaled_rows(*edges, x, source, target, True, False, 0, ROWS, found) == -1
    expected = np.empty((ROWS, 3))
    for i in range(ROWS):
        total = source[i] * x[i]
        for e in range(edges[0][i], edges[0][i + 1]):
            total = total + source[edges[1][e]] * x[edges[1][e]]
        expected[i] = total * target[i]
    assert np.allclose(found, expected, atol=1e-12)
    assert sum_scaled_rows(*edges, x, nothing, nothing, False, True, 2, 4, found) == -1
    for i in (2, 3):
        expected[i] += x[edges[1][edges[0][i] : edges[0][i + 1]]].sum(0)
    assert np.allclose(found, expected, atol=1e-12)
    bad = edges[1].copy()
    bad[-1] = SOURCES
    rest = x, nothing, nothing, False, False, 0, ROWS, found
    assert sum_scaled_rows(edges[0], bad, *rest) == ROWS - 2
    assert sum_scaled_rows(edges[0] + np.int64(EDGES), edges[1], *rest) == 0


def test_threads_change_nothing():
    block = block_of(5000, 4000, 60_000)
    x, source = draw(5000, 64, dtype=torch.float32), draw(5000, dtype=torch.float32)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(scaled_sum(block, x, source))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_picks():
    rows = torch.tensor([3, 0, 3, 8])
    picked, x, source = picks(rows, SOURCES), draw(SOURCES, 4), draw(SOURCES)
    assert torch.equal(gathered(picked, x), x[rows])
    assert torch.equal(gathered(picked, x, source), x[rows] * source[rows][:, None])
    half = x.bfloat16()
    assert torch.equal(gathered(picked, half), half[rows])
    back = scaled_sum(picked.transposed, draw(4, 2), out=torch.ones(SOURCES, 2).double())
    expected = torch.ones(SOURCES, 2).double().index_add(0, rows, draw(4, 2))
    assert torch.allclose(back, expected, atol=1e-12)


@pytest.mark.parametrize("self_loop", [False, True])
@pytest.mark.parametrize("with_factors", [False, True])
def test_gradients(self_loop, with_factors):
    block = block_of(ROWS, ROWS)
    factors = Factors(draw(ROWS), draw(ROWS)) if with_factors else Factors(None, None)
    kept, x = KeptBlock.of(block), draw(ROWS, 3).requires_grad_()

    def product(rows):
        return normalised_product(rows, kept, factors, self_loop)

    assert torch.autograd.gradcheck(product, (x,))
    plain = scaled(x, lambda rows: dense(block) @ rows, factors, self_loop)
    assert torch.allclose(product(x), plain, atol=1e-12)


@pytest.mark.parametrize("self_loop", [False, True])
@pytest.mark.parametrize("with_factors", [False, True])
def test_gradients_of_the_operator(self_loop, with_factors):
    """With more sources than destinations, of a block that is kept and of one that is not."""
    block, x = block_of(), draw(SOURCES, 3).requires_grad_()
    source, target = (draw(SOURCES), draw(ROWS)) if with_factors else (None, None)
    found = []
    for each in (block, KeptBlock.of(block)):
        out = scaled_rows(each, x, source, target, self_loop)
        found.append((out, *torch.autograd.grad(out.square().sum(), x)))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert torch.allclose(
        found[0][0], scaled_sum(block, x.detach(), source, target, self_loop=self_loop)
    )
    assert torch.autograd.gradcheck(
        lambda rows: scaled_rows(block, rows, source, target, self_loop), (x,)
    )


def test_rows_out_of_range_are_refused():
    block = hp.Block(torch.tensor([0, 1]), torch.tensor([4], dtype=torch.int32), 2, 1)
    with pytest.raises(IndexError):
        scaled_sum(block, torch.ones(2, 3))
