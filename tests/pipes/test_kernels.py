"""CPU kernels that the tests of their users do not take to the edge."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hopline.pipes.features.rows import gather
from hopline.pipes.kernels import cpu, typed
from tests import twins

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint64"]


# -------------------------------------------------------------------------------------------------
# Rows


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex64],
)
@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (0,), (300,)])
def test_gather_copies_rows_bit_by_bit(dtype, shape):
    def bits(tensor):
        return tensor.contiguous().flatten().view(torch.uint8).tolist() if tensor.numel() else []

    size = int(np.prod(shape)) * torch.empty(0, dtype=dtype).element_size()
    rows = [[(37 * i + 11 * k) % (2 if dtype == torch.bool else 251) for k in range(size)]
            for i in range(9)]  # fmt: skip
    source = torch.tensor(rows, dtype=torch.uint8).flatten().view(dtype).reshape(9, *shape)
    for ids in ([], [8], [0, 3, 3, 8, 1] * 5):
        for index in (np.array(ids, np.int64), np.array(ids, np.int32)):
            got = gather(source, index)
            assert got.shape == (len(ids), *shape)
            assert got.dtype == dtype
            assert bits(got) == [byte for row in twins.gather(rows, ids) for byte in row]
    assert bits(source) == [byte for row in rows for byte in row]


# -------------------------------------------------------------------------------------------------
# Checks


@pytest.mark.parametrize("dtype", INTEGERS)
def test_first_out_of_range(dtype):
    info = np.iinfo(dtype)
    values = np.array([0, 1, 2, 3, info.max, info.min, 2], dtype)
    for low, high in ((0, 3), (0, 100), (1, 5), (0, 2**40), (0, 0), (3, 4)):
        expected = [i for i, v in enumerate(values.tolist()) if not low <= v < high]
        got = cpu.first_out_of_range(values, low, high)
        assert got == (expected[0] if expected else -1)
        assert cpu.first_out_of_range(values[:0], low, high) == -1


@given(st.lists(st.integers(-1, 6), min_size=1, max_size=8), st.integers(0, 6))
def test_first_bad_column(indptr, num_edges):
    bad = [v for v, (a, b) in enumerate(itertools.pairwise(indptr)) if not 0 <= a <= b <= num_edges]
    got = cpu.first_bad_column(np.array(indptr, np.int64), num_edges)
    assert got == (bad[0] if bad else -1)


# -------------------------------------------------------------------------------------------------
# COO to CSC in ranges of columns


@given(st.integers(1, 9), st.data())
def test_columns_may_be_placed_range_by_range(num_nodes, data):
    node = st.integers(0, num_nodes - 1)
    edges = data.draw(st.lists(st.tuples(node, node), max_size=40))
    src, dst = (np.array(x, np.int64) for x in (zip(*edges, strict=True) if edges else ([], [])))
    counts = np.zeros(num_nodes + 1, np.int64)
    half = len(edges) // 2
    cpu.count_destinations(dst[:half], 1, counts)
    cpu.count_destinations(dst[half:].astype(np.int32), 1, counts)
    indptr, indices, order = twins.coo_to_csc(src.tolist(), dst.tolist(), num_nodes)
    assert np.cumsum(counts).tolist() == indptr
    cursor = np.cumsum(counts)[:-1]
    cuts = sorted({0, num_nodes, *data.draw(st.lists(node, max_size=3))})
    for low, high in itertools.pairwise(cuts):
        start, stop = indptr[low], indptr[high]
        part, permutation = np.full(stop - start, -1, np.int32), np.full(stop - start, -1)
        for first in (0, half):
            piece = slice(first, half if first == 0 else None)
            cpu.place_edges(
                src[piece] - 3, dst[piece] + 2, 3, -2, 100 + first, low, high, start, cursor,
                part, permutation,
            )  # fmt: skip
        if half == 0:  # both pieces were the whole input
            return
        assert part.tolist() == indices[start:stop]
        assert permutation.tolist() == [100 + e for e in order[start:stop]]
    assert cursor.tolist() == indptr[1:]


def test_permutation_is_optional():
    indices, cursor = np.empty(2, np.int64), np.zeros(1, np.int64)
    cpu.place_edges(
        np.array([5, 6]), np.array([0, 0]), 0, 0, 0, 0, 1, 0, cursor, indices, np.empty(0, np.int64)
    )
    assert indices.tolist() == [5, 6]


# -------------------------------------------------------------------------------------------------
# Damaged arrays


@pytest.mark.parametrize(
    ("indptr", "column"),
    [([0, 5, 2, 6], 1), ([0, 2, 9, 6], 1), ([0, -1, 2, 6], 0), ([0, 2**62, 2, 6], 0)],
)
@pytest.mark.parametrize("types", [1, 2])
def test_count_picks_names_the_column_with_bad_pointers(indptr, column, types):
    columns = np.array([2, 2, column], np.int64) if column < 1 else np.array([0, 0, column])
    n = len(columns) * types
    total = cpu.count_picks(
        np.array(indptr, np.int64), np.zeros(6, np.uint8), columns, np.full(types, 4), False, 6,
        np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n + 1, np.int64),
    )  # fmt: skip
    bad = [i for i, c in enumerate(columns) if not 0 <= indptr[c] <= indptr[c + 1] <= 6]
    assert total == -1 - bad[0]


@pytest.mark.parametrize(
    ("types", "bad"), [([0, 1, 1, 0], -1), ([1, 0, 0, 0], 1), ([0, 2, 0, 0], 1), ([0, 1, -1, 0], 2)]
)
def test_typed_counts_refuse_unknown_and_unordered_types(types, bad):
    # Two columns, with edges 0..2 and 3.
    out = np.empty(5, np.int64)
    got = typed.accumulate_typed_counts(np.array(types, np.int8), np.array([0, 3, 4]), 2, out)
    assert got == bad
    if bad < 0:
        assert out.tolist() == [0, 1, 3, 4, 4]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=5), st.data())
def test_typed_ranks(sizes, data):
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    total = int(offsets[-1])
    nodes = data.draw(st.lists(st.integers(0, total - 1), max_size=12)) if total else []
    kinds, ranks = np.full(len(nodes), -1, np.int32), np.full(len(nodes), -1, np.int32)
    typed.typed_ranks(np.array(nodes, np.int64), offsets, kinds, ranks)
    owner = [t for t, size in enumerate(sizes) for _ in range(size)]
    assert kinds.tolist() == [owner[v] for v in nodes]
    assert ranks.tolist() == [
        [owner[v] for v in nodes[:i]].count(owner[node]) for i, node in enumerate(nodes)
    ]


# -------------------------------------------------------------------------------------------------
# Copies


def test_copies_of_a_helper_are_equal():
    """Numba's cache sees edits of a kernel's own file only, so each file has its helpers itself."""
    copies: dict[str, dict[str, str]] = {}
    for path in sorted(Path(cpu.__file__).parent.glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("_"):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                text = "\n".join(map(ast.unparse, body))
                copies.setdefault(node.name, {})[path.name] = text
    repeated = {name: files for name, files in copies.items() if len(files) > 1}
    assert {"_fold", "_mix64", "_below", "_prefetch"} <= set(repeated)
    for name, files in repeated.items():
        assert len(set(files.values())) == 1, f"{name} differs between {list(files)}"
