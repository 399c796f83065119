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
from hopline.pipes.random import fold
from tests import twins

NO_TYPES = np.empty(0, np.uint8)
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


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.data())
def test_nodes_by_type(sizes, data):
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    total = int(offsets[-1])
    nodes = data.draw(st.lists(st.integers(0, total - 1), max_size=12)) if total else []
    array = np.array(nodes, np.int32)
    middle = data.draw(st.integers(0, len(nodes)))
    bounds = np.array([middle, middle, len(nodes)])
    kinds, ranks = np.full(len(nodes), -1, np.int32), np.full(len(nodes), -1, np.int32)
    counts = np.full((3, len(sizes)), -1)
    typed.typed_ranks(array, offsets, bounds, kinds, ranks, counts)
    owner = [t for t, size in enumerate(sizes) for _ in range(size)]
    assert kinds.tolist() == [owner[v] for v in nodes]
    assert ranks.tolist() == [
        [owner[v] for v in nodes[:i]].count(owner[node]) for i, node in enumerate(nodes)
    ]
    types = range(len(sizes))
    assert counts.tolist() == [
        [[owner[v] for v in nodes[:bound]].count(t) for t in types] for bound in bounds
    ]
    out = np.full(len(nodes), -1, np.int32)
    typed.split_nodes(array, offsets, kinds, ranks, counts[-1], out)
    assert out.tolist() == [v - offsets[t] for t in types for v in nodes if owner[v] == t]


@given(st.data())
def test_split_hop(data):
    num_node_types, num_types = data.draw(st.integers(1, 3)), data.draw(st.integers(0, 4))
    kind = st.integers(0, num_node_types - 1)
    kinds = data.draw(st.lists(kind, min_size=1, max_size=10))
    ends = data.draw(st.lists(st.tuples(kind, kind), min_size=num_types, max_size=num_types))
    rows = len(kinds)
    ranks = [kinds[:i].count(t) for i, t in enumerate(kinds)]
    n = data.draw(st.integers(0, rows))
    # Edges of every type in every column: also where the type does not end there.
    counts = data.draw(st.lists(st.integers(0, 2), min_size=n * num_types, max_size=n * num_types))
    segments = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    picks = int(segments[-1])
    row = st.integers(0, rows - 1)
    local = data.draw(st.lists(row, min_size=picks, max_size=picks))
    expected = {}
    for t, (source, destination) in enumerate(ends):
        mine = [i for i in range(n) if kinds[i] == destination]
        spans = [range(*segments[i * num_types + t : i * num_types + t + 2]) for i in mine]
        edges = [e for span in spans for e in span]
        pointers = np.concatenate([[0], np.cumsum([len(span) for span in spans])])
        strays = [100 + e for e in edges if kinds[local[e]] != source]
        expected[t] = (
            pointers.astype(np.int64).tolist(), [ranks[local[e]] for e in edges],
            [100 + e for e in edges], strays[0] if strays else -1,
        )  # fmt: skip
    columns = np.array([kinds[:n].count(t) for t in range(num_node_types)])
    sources, destinations = (np.array([end[i] for end in ends], np.int64) for i in range(2))
    lengths = [len(pointers) for pointers, *_ in expected.values()]
    indptr, indices = np.full(sum(lengths), -1), np.full(picks, -1, np.int32)
    edge_ids, starts, wrong = (np.full(m, -9) for m in (picks, num_types + 1, num_types))
    # Types have 1,000 fused ids each, the last ones of them the list's.
    offsets = np.arange(num_node_types + 1) * 1000
    neighbors = np.array([1000 * kinds[row] + 999 - ranks[row] for row in local], np.int32)
    placed = typed.split_hop(
        segments, np.array(local, np.int32), neighbors, np.arange(100, 100 + picks), columns,
        sources, destinations, offsets, np.array(kinds, np.int32), np.array(ranks, np.int32),
        indptr, indices, edge_ids, starts, wrong,
    )  # fmt: skip
    assert placed == sum(len(found[1]) for found in expected.values())
    at = 0
    for t, found in expected.items():
        part = slice(starts[t], starts[t + 1])
        got = indptr[at : at + lengths[t]], indices[part], edge_ids[part], wrong[t]
        assert tuple(x.tolist() for x in got) == found
        at += lengths[t]


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("k", [1, 2, 7, 24, 25, 64, 65])
def test_picks_are_the_twins_whatever_stands_beside_them(replace, ordered, k):
    """Short and long segments, take-alls, and one of more than 2**32 edges, in several chunks."""
    rng = np.random.default_rng(k)
    degree = rng.integers(0, 3 * k + 2, 150)
    degree[[3, 70]] = k, k + 1
    many = np.array([(1 << 32) - 2, (1 << 32) - 1, 1 << 32, (1 << 33) + 5])
    for degrees in (degree, many):
        begin = np.arange(len(degrees)) * 1000
        picked = np.concatenate(
            [[0], np.cumsum(np.where(degrees > 0, k, 0) if replace else np.minimum(degrees, k))]
        )
        ids = rng.integers(0, 1 << 31, len(degrees)).astype(np.int32)
        key = fold(5, 1)
        positions = np.full(picked[-1], -1)
        # Every position reads the one entry there is.
        indices = np.lib.stride_tricks.as_strided(
            np.array([7], np.int32), (int((begin + degrees).max()) + 1,), (0,)
        )
        neighbors = np.zeros(len(positions), np.int32)
        cpu.pick_neighbors(
            indices, NO_TYPES, ids, np.array([key], np.uint64), np.array([k]), replace, ordered,
            begin, degrees, picked, positions, neighbors, NO_TYPES,
        )  # fmt: skip
        expected = []
        for first, d, node in zip(begin.tolist(), degrees.tolist(), ids.tolist(), strict=True):
            stream = fold(key, node)
            picks: list[int] = []
            if not replace and d <= k:
                picks = list(range(d))
            elif d > 0:
                for j in range(k):
                    last = d - 1 if replace else d - k + j
                    t = fold(stream, j) * (last + 1) >> 64
                    picks.append(last if t in picks and not replace else t)
            expected += [first + t for t in (sorted(picks) if ordered else picks)]
        assert positions.tolist() == expected
        assert (neighbors == 7).all()


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
