"""Kernels on ranges of rows: all rows once, the same bits on any number of threads."""

from __future__ import annotations

import threading
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hopline.models import SAGEConv, edge_softmax, mean_aggregate, sum_aggregate
from hopline.models import ranges as ranges_module
from hopline.models.activation import relu_dropout
from hopline.models.dropout import Dropout
from hopline.models.edge_values import edge_scores
from hopline.models.ranges import bounds_by_edges, even_bounds, in_ranges, rows_like
from hopline.models.rng import keyed_rng
from hopline.models.scaled_sum import scaled_rows
from tests.models.test_aggregate import make_block, normal, random_block, seeded


@pytest.fixture
def threads(monkeypatch):
    """Sets torch's threads, and has the smallest work split among them."""
    monkeypatch.setattr(ranges_module, "SMALLEST_PART", 1)
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@given(
    count=st.integers(0, 50), values=st.integers(0, 1 << 22), step=st.integers(1, 9), data=st.data()
)
def test_even_bounds_cover_all_once(count, values, step, data):
    bounds = even_bounds(count, values, step)
    assert (bounds[0], bounds[-1]) == (0, count)
    assert bounds == sorted(bounds)
    assert all(bound % step == 0 for bound in bounds[:-1])
    assert len(bounds) - 1 <= torch.get_num_threads()


# Also what is no indptr at all: ranges must cover the columns all the same.
@given(indptr=st.lists(st.integers(-5, 40), min_size=1, max_size=20), width=st.integers(0, 3))
def test_bounds_by_edges_cover_all_once(indptr, width):
    bounds = bounds_by_edges(torch.tensor(indptr), width)
    assert (bounds[0], bounds[-1]) == (0, len(indptr) - 1)
    assert bounds == sorted(bounds)


def test_bounds_by_edges_share_the_edges(threads):
    threads(4)
    # One column has half of the edges, so it is a range, or ends one.
    indptr = torch.tensor([0, *range(50, 54), 60, 70, 80, 100])
    bounds = bounds_by_edges(indptr, 8)
    assert len(bounds) == 5
    assert max(int(indptr[b] - indptr[a]) for a, b in pairwise(bounds)) <= 53


def test_every_range_runs_and_empty_ones_do_not():
    seen = []
    assert in_ranges([0, 0, 3, 3, 7, 7], lambda low, high: seen.append((low, high))) == -1
    assert sorted(seen) == [(0, 3), (3, 7)]
    assert in_ranges([0, 0], lambda low, high: 1 / 0) == -1


def test_the_first_bad_row_of_all_ranges():
    bad = {0: -1, 2: 3, 4: 4}
    assert in_ranges([0, 2, 4, 6], lambda low, high: bad[low]) == 3


def test_an_error_in_a_thread_is_raised_here_and_no_thread_stays():
    def fail(low, high):
        if low:
            raise KeyError(low)

    with pytest.raises(KeyError, match="5"):
        in_ranges([0, 5, 9], fail)
    assert not [each for each in threading.enumerate() if each.name == "hopline-range"]


def test_all_ranges_run_where_no_more_threads_can_be_started(monkeypatch):
    start, seen = threading.Thread.start, []

    def second_start_fails(thread):
        if thread.name == "hopline-range" and len(started) == 1:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    started = []
    monkeypatch.setattr(threading.Thread, "start", second_start_fails)
    assert in_ranges([0, 2, 4, 6, 8], lambda low, high: seen.append((low, high))) == -1
    assert sorted(seen) == [(0, 2), (2, 4), (4, 6), (6, 8)]
    assert len(started) == 1


def test_rows_begin_at_a_cache_line():
    for shape in ((0, 3), (1,), (7, 5), (300, 257)):
        for dtype in (torch.float32, torch.float64):
            rows = rows_like(torch.empty(0, dtype=dtype), *shape)
            assert rows.shape == shape
            assert (rows.dtype, rows.data_ptr() % 64) == (dtype, 0)
            assert rows.is_contiguous()


def results_of_threads(threads, call):
    results = []
    for count in (1, 2, 5):
        threads(count)
        results.append(call())
    return results


def normalised(block, x):
    return scaled_rows(block, x, torch.rand(len(x), generator=seeded()), None, len(x) > 0)


@pytest.mark.parametrize("aggregate", [sum_aggregate, mean_aggregate, normalised])
@pytest.mark.parametrize("num_dst", [0, 1, 3, 80])
def test_aggregation_has_the_same_bits(aggregate, num_dst, threads):
    block = random_block(num_dst=num_dst) if num_dst else make_block([], 300, 0)
    x = torch.randn(300, 33, generator=seeded(), requires_grad=True)

    def call():
        out = aggregate(block, x)
        return out, *torch.autograd.grad(out.square().sum(), x)

    first, *others = results_of_threads(threads, call)
    assert all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize(("heads", "shared"), [(1, False), (4, False), (4, True)])
@pytest.mark.parametrize("num_dst", [0, 1, 3, 80])
def test_attention_has_the_same_bits(num_dst, heads, shared, threads):
    block = random_block(num_dst=num_dst) if num_dst else make_block([], 300, 0)
    x = torch.randn(300, 1 if shared else heads, 17, generator=seeded(), requires_grad=True)
    ends = [
        torch.randn(count, heads, generator=seeded(), requires_grad=True)
        for count in (300, num_dst)
    ]

    def call():
        scores = edge_scores(block, *ends)
        attention = edge_softmax(block, scores)
        out = sum_aggregate(block, x, attention)
        values = scores, attention, out
        return *values, *torch.autograd.grad(out.square().sum(), (*values[:2], x, *ends))

    first, *others = results_of_threads(threads, call)
    assert all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("training", [True, False])
def test_relu_and_dropout_have_the_same_bits(training, threads):
    x, dropout = normal(1001, requires_grad=True), Dropout(0.4).train(training)

    def call():
        with keyed_rng((1, 2, 3), "cpu"):
            out = relu_dropout(x, dropout)
        return out, *torch.autograd.grad(out.square().sum(), x)

    first, *others = results_of_threads(threads, call)
    assert all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))


def test_a_layer_on_several_threads(threads):
    conv, block = SAGEConv(6, 5).double(), random_block()
    x = normal(300, 6, requires_grad=True)
    conv._sum_first = lambda block: True
    inputs = (x, *conv.parameters())

    def call():
        out = conv(block, x)
        return out, *torch.autograd.grad(out.square().sum(), inputs)

    first, *others = results_of_threads(threads, call)
    for other in others:
        torch.testing.assert_close(first, other)


AGGREGATES = {
    "mean": lambda block: mean_aggregate(block, torch.ones(10, 4)),
    "scaled": lambda block: scaled_rows(block, torch.ones(10, 4), None, None, False),
    "weighted": lambda block: sum_aggregate(block, torch.ones(10, 4), torch.ones(10)),
    "scores": lambda block: edge_scores(block, torch.ones(10, 2), torch.ones(10, 2)),
}


@pytest.mark.parametrize("aggregate", AGGREGATES.values(), ids=AGGREGATES)
def test_a_broken_column_is_found_in_every_range(aggregate, threads):
    threads(5)
    for bad in range(10):
        block = make_block([(d, d) for d in range(10)], 10, 10)
        block.indices[bad] = 10
        block.indices[9] = -1
        with pytest.raises(IndexError, match=f"destination {bad} of the block"):
            aggregate(block)
