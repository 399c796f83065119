"""Kernels of preparation against their definitions."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopline.pipes.datasets import checksum
from hopline.pipes.datasets.ahead import ahead
from hopline.pipes.kernels import sorting

ids = st.lists(st.integers(5, 40), max_size=50).map(lambda x: np.array(x, np.int32))


@given(ids, st.integers(0, 3))
def test_cells(values, shift):
    counts = np.ones((35 >> shift) + 1, np.int64)
    assert sorting.count_cells(values, 5, shift, counts) == -1
    cells = (values - 5) >> shift
    assert counts.tolist() == [1 + int((cells == i).sum()) for i in range(len(counts))]


@given(ids, st.integers(0, 3), st.integers(1, 4))
def test_places_keep_the_order_within_a_bucket(values, shift, buckets):
    of_cell = (np.arange((35 >> shift) + 1) * buckets // ((35 >> shift) + 1)).astype(np.int32)
    bucket = of_cell[(values - 5) >> shift]
    counts = np.zeros(buckets, np.int64)
    assert sorting.count_buckets(values, 5, shift, of_cell, counts) == -1
    assert counts.tolist() == np.bincount(bucket, minlength=buckets).tolist()
    places = np.empty(len(values), np.int32)
    sorting.place_by_bucket(values, 5, shift, of_cell, np.cumsum(counts) - counts, places)
    order = np.argsort(bucket, kind="stable")
    assert places[order].tolist() == list(range(len(values)))
    by_node = np.bincount(values - 5, minlength=36)
    cursor = np.cumsum(by_node) - by_node
    assert sorting.place_by_node(values, 5, cursor, len(values), places) == -1
    order = np.argsort(values, kind="stable")
    assert places[order].tolist() == list(range(len(values)))
    out = np.empty(len(values), np.uint32)
    sorting.scatter(values.view(np.uint32), places, out)
    assert out.tolist() == sorted(values.tolist())
    rows = np.empty((len(values), 3), np.uint8)
    sorting.scatter_rows(np.repeat(values.astype(np.uint8)[:, None], 3, 1), places, rows)
    assert rows[:, 2].tolist() == sorted(values.tolist())


@pytest.mark.parametrize("bad", [4, 9, -(2**31), 2**31 - 1])
def test_ids_that_were_not_counted_stop_the_kernels(bad):
    """Nothing beside the arrays is written: they are parts of larger ones."""
    values = np.array([5, 8, bad, 6], np.int32)
    around = np.zeros(20, np.int64)
    counts = around[8:12]
    assert sorting.count_cells(values, 5, 0, counts) == 2
    assert around.tolist() == [0] * 8 + [1, 0, 0, 1] + [0] * 8
    of_cell = np.zeros(4, np.int32)
    assert sorting.count_buckets(values, 5, 0, of_cell, counts) == 2
    places = np.empty(4, np.int32)
    assert sorting.place_by_node(values, 5, np.arange(4), 4, places) == 2
    # More ids of one node than were counted.
    again = np.array([8, 8], np.int32)
    assert sorting.place_by_node(again, 5, np.arange(4), 4, places) == 1


LINE = re.compile(rb"[ \t\v\f]*([+-]?\d+)[ \t\v\f]*,[ \t\v\f]*([+-]?\d+)[ \t\v\f]*")


def parsed(text):
    """Pairs, lines and start of the first wrong line, by a regular expression."""
    pairs, lines, at = [], 0, 0
    for line in text.splitlines(keepends=True):
        body = line.rstrip(b"\r\n")
        if body.strip(b" \t\v\f"):
            found = LINE.fullmatch(body)
            numbers = [int(x) for x in found.groups()] if found else [2**63]
            if max(map(abs, numbers)) >= 2**63:
                return pairs, lines, at
            pairs.append(numbers)
        lines += 1
        at += len(line)
    return pairs, lines, -1


PARTS = [b"0", b"7", b"12", b",", b",", b"\n", b"\r\n", b"\r", b" ", b"\t", b"-", b"+", b"x", b".",
         b"9223372036854775807", b"9223372036854775808", b"\x80", b"3,4\n"]  # fmt: skip


@given(st.lists(st.sampled_from(PARTS), max_size=30).map(b"".join))
def test_lines_of_pairs(text):
    pairs = np.full((len(text) // 4 + 2, 2), 99, np.int64)
    rows, lines, bad = sorting.parse_pairs(np.frombuffer(text, np.uint8), len(text), pairs)
    assert (pairs[:rows].tolist(), lines, bad) == parsed(text)


def test_ahead():
    made = []

    def pieces():
        for i in range(5):
            made.append(i)
            yield i
        raise KeyError("end")

    got = []
    with pytest.raises(KeyError, match="end"):
        got.extend(ahead(pieces()))
    assert list(ahead(iter(()))) == []
    walk = ahead(pieces())
    assert next(walk) == 0
    walk.close()
    assert made in ([0, 1, 2, 3, 4, 0, 1], [0, 1, 2, 3, 4, 0])


@pytest.mark.parametrize(("dtype", "row"), [("u1", ()), ("<i2", (3,)), ("<f4", (2,)), ("<i8", ()),
                                            ("?", (5,)), ("<f8", (0,)), ("<f4", (3,))])  # fmt: skip
def test_sums_of_rows_in_any_order(tmp_path, dtype, row):
    rng = np.random.default_rng(4)
    rows = rng.integers(0, 2, (100_000, *row)).astype(dtype)
    total = checksum.add_rows(0, rows, 0)
    parts = checksum.add_rows(checksum.add_rows(0, rows[40:], 40), rows[:40], 0)
    counts, places = np.array([60, 0, 40]), np.array([40, 7, 0])
    shuffled = np.concatenate([rows[40:100], rows[:40]])
    segments = checksum.add_segments(0, shuffled, counts, places)
    assert parts == total
    assert checksum.add_rows(segments, rows[100:], 100) == total
    (tmp_path / "f").write_bytes(b"head" + rows.tobytes())

    def of_file(*ranges):
        return checksum.sum_of_file(tmp_path / "f", rows.dtype, row, ranges, 4)

    assert of_file((0, 100_000)) == total == of_file((99, 100_000), (0, 99))
    if rows.size:
        assert of_file((0, 100_001)) is None
        swapped = rows[rng.permutation(100_000)]
        assert checksum.add_rows(0, swapped, 0) != total
        changed = rows.copy()
        changed[77] = 1 - changed[77]
        assert checksum.add_rows(0, changed, 0) != total
