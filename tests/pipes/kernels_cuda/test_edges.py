"""GPU kernels over pairs: negatives and exclusion equal the CPU kernels, errors included."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hopline.pipes.edges import unlisted_edges
from hopline.pipes.kernels import edges as cpu
from tests.stage_checks import assert_same

pytest.importorskip("triton", reason="kernels of GPUs need Triton")
from hopline.pipes.kernels.cuda import edges, launching, negatives

few = settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
NOTHING = launching.NOTHING


def csc(columns, dtype=torch.int64):
    """Compressed columns from a list of sources a column."""
    counts = [len(c) for c in columns]
    indptr = torch.tensor([0, *itertools.accumulate(counts)], dtype=torch.int64)
    indices = torch.tensor(list(itertools.chain(*columns)), dtype=dtype)
    return indptr, indices


# ---------------------------------------------------------------------------------------------
# Negative destinations


def draw_both(device, key, ratio, counts, order, avoid, sources, first, indptr, indices, types, e):
    """Draws on both; compares what the CPU kernel has drawn, and its status; returns the two."""
    total = len(counts) * ratio
    expected = np.full(total, -9, np.int64)
    status = cpu.draw_destinations(
        np.uint64(key), ratio, np.array(counts, np.int64),
        np.empty(0, np.int64) if order is None else order.numpy(), avoid,
        np.array(sources, np.int64), first, indptr.numpy(), indices.numpy(),
        np.empty(0, np.uint8) if types is None else types.numpy(), e, expected,
    )  # fmt: skip
    there = [
        None if t is None else t.to(device)
        for t in (torch.tensor(counts, dtype=torch.int64), order,
                  torch.tensor(sources, dtype=torch.int64), indptr, indices, types)
    ]  # fmt: skip
    out, full, damaged = negatives.draw_destinations(
        key, ratio, there[0], there[1], avoid, there[2], first, there[3], there[4], there[5], e
    )
    assert out.dtype == full.dtype == damaged.dtype == torch.int64
    assert out.shape == (total,)
    assert full.shape == damaged.shape == (1,)
    assert int(full) == (status if status >= 0 else NOTHING)
    assert int(damaged) == (-2 - status if status < -1 else NOTHING)
    if status == -1:
        assert out.tolist() == expected.tolist()
    return out, status


@few
@given(data=st.data())
def test_draws_equal_the_cpu(gpu, data):
    nodes = data.draw(st.integers(1, 12))
    first = data.draw(st.integers(0, 3))
    dtype = data.draw(st.sampled_from([torch.int32, torch.int64]))
    columns = data.draw(
        st.lists(
            st.lists(st.integers(0, 5), max_size=8), min_size=first + nodes, max_size=first + nodes
        )
    )
    indptr, indices = csc(columns, dtype)
    types = None
    if data.draw(st.booleans()):
        kinds = [sorted(data.draw(st.lists(st.integers(0, 3), min_size=len(c), max_size=len(c))))
                 for c in columns]  # fmt: skip
        types = torch.tensor(list(itertools.chain(*kinds)), dtype=torch.uint8)
        if len(types) == 0:
            types = None
    order = torch.tensor(data.draw(st.permutations(range(nodes))), dtype=dtype)
    pairs = data.draw(st.integers(0, 5))
    counts = data.draw(st.lists(st.integers(1, nodes), min_size=pairs, max_size=pairs))
    sources = data.draw(st.lists(st.integers(0, 5), min_size=pairs, max_size=pairs))
    draw_both(
        gpu, data.draw(st.integers(0, 2**64 - 1)), data.draw(st.integers(1, 3)), counts,
        order if data.draw(st.booleans()) else None, data.draw(st.booleans()), sources, first,
        indptr, indices, types, data.draw(st.integers(0, 3)),
    )  # fmt: skip


@pytest.mark.parametrize("key", [0, 1, 2**31, 2**63 - 1, 2**63, 2**64 - 1])
def test_keys_of_any_size_and_several_programs(gpu, key, monkeypatch):
    monkeypatch.setattr(launching, "INTERPRETED_TILE", 16)
    indptr, indices = csc([[7], [0, 1], [], [2] * 40, [1]])
    for avoid in (True, False):
        out, status = draw_both(
            gpu, key, 7, [5, 4, 5], None, avoid, [0, 1, 2], 0, indptr, indices, None, 0
        )
        assert status == -1
        assert set(out.tolist()) <= set(range(5))


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 150])
@pytest.mark.parametrize("ordered", [True, False])
def test_one_free_destination_is_found_by_the_walk(gpu, nodes, ordered):
    """64 draws rarely meet the one that is free; the strided walk always does."""
    order = torch.arange(nodes).flip(0).contiguous() if ordered else None
    for free in {0, nodes // 2, nodes - 1}:
        indptr, indices = csc([[3] if v != free else [4] for v in range(nodes)])
        out, status = draw_both(
            gpu, 5, 2, [nodes, nodes], order, True, [3, 3], 0, indptr, indices, None, 0
        )
        assert status == -1
        assert out.tolist() == [free] * 4


def test_the_stride_of_the_walk_decides(gpu):
    """Several destinations are free, and few enough for the draws to miss them."""
    free = {10, 77, 120}
    indptr, indices = csc([[] if v in free else [3] for v in range(150)])
    out, status = draw_both(gpu, 11, 16, [150], None, True, [3], 0, indptr, indices, None, 0)
    assert status == -1
    assert set(out.tolist()) <= free


def test_an_edge_behind_many_others_is_seen(gpu):
    """Columns that take several steps to look at, and an edge at each end."""
    columns = [[9] * 300, [0] + [9] * 299, [9] * 299 + [0], []]
    indptr, indices = csc(columns, torch.int32)
    out, status = draw_both(gpu, 2, 40, [4], None, True, [0], 0, indptr, indices, None, 0)
    assert status == -1
    assert set(out.tolist()) == {0, 3}


def test_edges_of_other_types_do_not_count(gpu):
    indptr, indices = csc([[0] * 200 + [1] * 50 + [0], [0], [1]])
    types = torch.tensor([0] * 100 + [1] * 50 + [2] * 101 + [1, 0], dtype=torch.uint8)
    # Of source 0: column 0 has edges of types 0, 1 and 2; column 1 of type 1; column 2 none.
    for etype, allowed in ((0, {1, 2}), (1, {2}), (2, {1, 2}), (3, {0, 1, 2})):
        out, _ = draw_both(gpu, 3, 30, [3], None, True, [0], 0, indptr, indices, types, etype)
        assert set(out.tolist()) == allowed


def test_a_pair_without_a_destination(gpu):
    indptr, indices = csc([[0, 1], [0, 1], [0]])
    for sources, first_full in (([2, 0, 1, 0], 1), ([1, 2, 0], 2)):
        _, status = draw_both(
            gpu, 1, 3, [3] * len(sources), None, True, sources, 0, indptr, indices, None, 0
        )
        assert status == first_full


@pytest.mark.parametrize(
    "indptr", [[0, 2, 1, 3], [-1, 1, 2, 3], [0, 1, 2, 9], [0, 5, 5, 5], [2**62, 2, 3, 3]]
)
def test_damaged_pointers_are_named_and_not_followed(gpu, indptr):
    for key in range(4):
        _, status = draw_both(
            gpu, key, 4, [3, 3], None, True, [0, 9], 0, torch.tensor(indptr),
            torch.tensor([9, 9, 9], dtype=torch.int32), None, 0,
        )  # fmt: skip
        assert status < -1


def test_nothing_to_draw(gpu):
    indptr, indices = csc([[], []])
    out, status = draw_both(gpu, 1, 3, [], None, True, [], 0, indptr, indices, None, 0)
    assert status == -1
    assert len(out) == 0
    # A graph without edges; candidates behind the first node.
    draw_both(gpu, 1, 3, [1], None, True, [0], 1, indptr, indices, None, 0)


# ---------------------------------------------------------------------------------------------
# Edges to be left out


def keep_both(device, indptr, indices, rows, columns, sources, destinations):
    """Runs both; compares all that counts; returns what stays, or the damaged column."""
    kept_indptr = np.empty(len(indptr), np.int64)
    kept = np.empty(len(indices), np.int64)
    count = cpu.keep_edges(
        indptr.numpy(), indices.numpy(), (columns[:0] if rows is None else rows).numpy(),
        rows is not None, columns.numpy(), sources.numpy(), destinations.numpy(), kept_indptr, kept,
    )  # fmt: skip
    got_indptr, got_kept, got_count, bad = edges.keep_edges(
        *(None if t is None else t.to(device)
          for t in (indptr, indices, rows, columns, sources, destinations))
    )  # fmt: skip
    assert got_count.shape == bad.shape == (1,)
    assert got_indptr.dtype == got_kept.dtype == got_count.dtype == bad.dtype == torch.int64
    assert (got_indptr.shape, got_kept.shape) == (indptr.shape, indices.shape)
    if count < 0:
        assert int(bad) == -1 - count
        return int(bad)
    assert int(bad) == NOTHING
    assert int(got_count) == count
    assert_same(got_indptr.cpu(), torch.from_numpy(kept_indptr))
    assert_same(got_kept[:count].cpu(), torch.from_numpy(kept[:count]))
    return got_kept[:count].tolist()


ids = st.one_of(st.integers(0, 4), st.sampled_from([2**31, 2**62, 2**63 - 1]))


@few
@given(data=st.data())
def test_what_stays_equals_the_cpu(gpu, data):
    dtype = data.draw(st.sampled_from([torch.int32, torch.int64]))
    number = st.integers(0, 4) if dtype == torch.int32 else ids
    relabelled = data.draw(st.booleans())
    rows = data.draw(st.lists(number, min_size=1, max_size=6))
    source = st.integers(0, len(rows) - 1) if relabelled else number
    lists = data.draw(st.lists(st.lists(source, max_size=6), max_size=8))
    indptr, indices = csc(lists, torch.int32 if relabelled else dtype)
    columns = data.draw(st.lists(number, min_size=len(lists), max_size=len(lists)))
    pairs = data.draw(st.lists(st.tuples(ids, st.one_of(ids, st.just(-3))), max_size=12))
    keep_both(
        gpu, indptr, indices, torch.tensor(rows, dtype=dtype) if relabelled else None,
        torch.tensor(columns, dtype=dtype), torch.tensor([p[0] for p in pairs], dtype=torch.int64),
        torch.tensor([p[1] for p in pairs], dtype=torch.int64),
    )  # fmt: skip


def test_columns_whose_arrays_have_strides(gpu):
    """A kernel takes an array to be contiguous."""
    indptr = torch.tensor([[0, 9], [2, 9], [3, 9]], device=gpu)[:, 0]
    indices = torch.tensor([[4, 9], [5, 9], [4, 9]], device=gpu)[:, 0]
    columns = torch.tensor([[7, 9], [8, 9]], device=gpu)[:, 0]
    listed = torch.tensor([[4, 7], [5, 8]], device=gpu)
    kept_indptr, kept = unlisted_edges(indptr, indices, None, columns, listed)
    assert (kept_indptr.tolist(), kept.tolist()) == ([0, 1, 2], [1, 2])


def test_many_pairs_over_several_programs(gpu, monkeypatch):
    monkeypatch.setattr(launching, "INTERPRETED_TILE", 64)
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(0, 9, (70,), generator=generator)
    indptr = torch.cat((torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)))
    total = int(indptr[-1])
    rows = torch.randperm(1000, generator=generator)[:90]
    indices = torch.randint(0, 90, (total,), generator=generator, dtype=torch.int32)
    columns = rows[:70]
    owner = torch.repeat_interleave(torch.arange(70), lengths)
    listed = torch.randperm(total, generator=generator)[: total // 2]
    sources = torch.cat((rows[indices[listed].long()], rows))
    destinations = torch.cat((columns[owner[listed]], rows.flip(0)))
    kept = keep_both(gpu, indptr, indices, rows, columns, sources, destinations)
    pairs = set(zip(sources.tolist(), destinations.tolist(), strict=True))
    ends = zip(rows[indices.long()].tolist(), columns[owner].tolist(), strict=True)
    assert kept == [e for e, pair in enumerate(ends) if pair not in pairs]
    assert 0 < len(kept) < total


def test_empty_columns_and_edges_outside_of_all(gpu):
    ones = torch.ones(1, dtype=torch.int64)
    # Pointers that begin late and end early: edges 0 and 4 are of no column.
    indptr, columns = torch.tensor([1, 1, 3, 3, 4, 4]), torch.tensor([5, 1, 7, 1, 1])
    indices = torch.tensor([1, 1, 2, 1, 2])
    assert keep_both(gpu, indptr, indices, None, columns, ones, ones) == [2]
    for few_ in (torch.tensor([0]), torch.tensor([0, 0, 0])):
        none = torch.empty(0, dtype=torch.int64)
        assert keep_both(gpu, few_, none, None, columns[: len(few_) - 1], ones, ones) == []
    assert keep_both(gpu, indptr, indices, None, columns, ones[:0], ones[:0]) == [1, 2, 3]


@pytest.mark.parametrize(
    ("indptr", "indices", "bad"),
    [
        ([0, 4, 3], [0, 0, 0], 0),
        ([3, 2, 3], [0, 0, 0], 0),
        ([-1, 2, 3], [0, 0, 0], 0),
        ([0, 2, 1], [0, 0, 0], 1),
        ([0, 2, 9], [0, 0, 0], 1),
        ([0, 2, 3], [0, 7, 0], 0),
        ([0, 2, 3], [0, -1, 0], 0),
        ([0, 3, 3], [0, 0, 2], 0),
        ([0, 2, 3], [0, 0, 2], 1),
        ([0, 2, 1], [0, 7, 7], 0),
        ([0, 1, 0], [0, 7, 7], 1),
        ([0, 2**62, 3], [0, 0, 0], 0),
    ],
)
def test_damage_is_named_and_not_followed(gpu, indptr, indices, bad):
    pair = torch.tensor([5, 5]), torch.tensor([5, 9])
    got = keep_both(
        gpu, torch.tensor(indptr), torch.tensor(indices, dtype=torch.int32), torch.tensor([5, 9]),
        torch.tensor([5, 9]), *pair,
    )  # fmt: skip
    assert got == bad


def test_indices_of_columns_that_are_not_listed_are_not_looked_at(gpu):
    """Nor by the CPU, but where the mark of another destination is in their place."""
    found = set()
    for column in range(100):
        got = keep_both(
            gpu, torch.tensor([0, 1, 3]), torch.tensor([0, 9, 0], dtype=torch.int32),
            torch.tensor([5]), torch.tensor([5, column]), torch.tensor([5]), torch.tensor([5]),
        )  # fmt: skip
        found.add(1 if got == 1 else tuple(got))
    assert found == {1, (1, 2)}
