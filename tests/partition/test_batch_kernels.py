"""Kernels of mini-batches over parts, each beside a plain twin."""

import numpy as np
import pytest

from hopline.partition.batch_kernels import find_parts, localise, own_rows, sort_parts, take


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize(
    "starts", [[0, 5, 9], [0, 0, 4, 4, 4, 7, 7], [0, 3], [0, 0], [0, 2, 2, 5, 5, 5, 8, 9, 9]]
)
@pytest.mark.parametrize("num_parts", [1, 2])
def test_owners_in_order(dtype, starts, num_parts):
    starts = np.array(starts)
    rng = np.random.default_rng(len(starts))
    total = int(starts[-1])
    ids = rng.integers(0, max(1, total), 40 if total else 0).astype(dtype)
    parts = np.full(len(ids), -1, np.int32)
    assert find_parts(ids, starts, num_parts, parts) == -1
    for i, part in zip(ids, parts, strict=True):
        (runs,) = np.nonzero((starts[:-1] <= i) & (i < starts[1:]))
        assert part == runs[0] % num_parts
    order, bounds = np.empty(len(ids), np.int64), np.empty(num_parts + 1, np.int64)
    sort_parts(parts, order, bounds)
    assert np.array_equal(order, np.argsort(parts, kind="stable"))
    assert np.array_equal(np.diff(bounds), np.bincount(parts, minlength=num_parts))
    firsts = np.arange(num_parts + 1) * 2
    local = np.empty(len(ids), dtype)
    localise(ids, order, bounds, firsts, local)
    assert np.array_equal(local, ids[order] - firsts[parts[order]])
    for wrong in (-1, total, total + 7):
        bad = np.concatenate([ids[:3], np.array([wrong], dtype), ids[3:]])
        assert find_parts(bad, starts, num_parts, np.empty(len(bad), np.int64)) == min(3, len(ids))


def test_own_rows_and_others():
    offsets, first, own = np.array([0, 10, 10, 30]), np.array([2, 10, 15]), np.array([3, 0, 5])
    row_starts = np.array([0, 8, 8])
    columns = np.arange(-2, 33)
    rows = np.empty(len(columns), np.int64)
    others = own_rows(columns, offsets, first, own, row_starts, rows)
    expected = {2: 0, 3: 1, 4: 2} | {15 + i: 8 + i for i in range(5)}
    assert rows.tolist() == [expected.get(c, -1) for c in columns.tolist()]
    assert others == len(columns) - 8


def test_values_at_places():
    out = np.empty(4, np.int32)
    take(np.arange(10) * 3, np.array([9, 0, 0, 4], np.int32), out)
    assert out.tolist() == [27, 0, 0, 12]
