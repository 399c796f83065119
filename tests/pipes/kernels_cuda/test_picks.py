"""Uniform neighbour sampling: the GPU's kernels give what the CPU's give, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hopline.pipes.kernels import cpu, typed
from hopline.pipes.random import fold
from tests import strategies

pytest.importorskip("triton", reason="GPU kernels are interpreted by Triton, which is missing")

from hopline.pipes.kernels.cuda import launching, picks, segments

FANOUTS = [0, -1, 1, 2, 63, 64, 65, 200]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def there(array) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(DEVICE)


def key_bits(keys) -> torch.Tensor:
    return there(np.array(keys, np.uint64).view(np.int64))


class Graph:
    """CSC arrays with ascending edge types in each column."""

    def __init__(self, degrees, num_types=1, dtype=np.int32, num_nodes=None, seed=0):
        random = np.random.default_rng(seed)
        self.num_nodes = len(degrees) if num_nodes is None else num_nodes
        padded = np.zeros(self.num_nodes, np.int64)
        padded[: len(degrees)] = degrees
        self.indptr = np.concatenate([[0], np.cumsum(padded)]).astype(np.int64)
        size = int(self.indptr[-1])
        self.indices = random.integers(0, max(1, self.num_nodes), size).astype(dtype)
        kinds = random.integers(0, num_types, size)
        column = np.repeat(np.arange(self.num_nodes), padded)
        self.types = kinds[np.lexsort((kinds, column))].astype(np.uint8)


def on_cpu(graph, columns, ids, keys, fanouts, replace, ordered):
    """(begin, degree, picked, positions, neighbors, kinds) by the CPU's kernels."""
    fanouts = np.array(fanouts, np.int64)
    segments = len(columns) * len(fanouts)
    begin, degree = np.empty(segments, np.int64), np.empty(segments, np.int64)
    picked = np.empty(segments + 1, np.int64)
    total = cpu.count_picks(
        graph.indptr, graph.types, columns, fanouts, replace, len(graph.indices), begin, degree,
        picked,
    )  # fmt: skip
    assert total >= 0
    positions = np.empty(total, np.int64)
    neighbors, kinds = np.empty(total, graph.indices.dtype), np.empty(total, graph.types.dtype)
    cpu.pick_neighbors(
        graph.indices, graph.types, ids, np.array(keys, np.uint64), fanouts, replace, ordered,
        begin, degree, picked, positions, neighbors, kinds,
    )  # fmt: skip
    return begin, degree, picked, positions, neighbors, kinds


def on_gpu(graph, columns, ids, keys, fanouts, replace, ordered, extra=5, **options):
    """The same by the GPU's, and what they found to be bad."""
    indptr, indices, types = there(graph.indptr), there(graph.indices), there(graph.types)
    limits = there(np.array(fanouts, np.int64))
    begin, degree, picked, bad = segments.count_picks(
        indptr, types, there(columns), limits, replace, len(indices)
    )
    total = int(picked[-1])
    found = picks.pick_neighbors(
        indices, types, there(ids), key_bits(keys), limits, max(0, *fanouts, 0), replace, ordered,
        begin, degree, picked, total + extra, graph.num_nodes, True, **options,
    )  # fmt: skip
    assert found.positions.shape == found.neighbors.shape == found.kinds.shape == (total + extra,)
    assert found.neighbors.dtype == indices.dtype
    assert found.kinds.dtype == types.dtype
    arrays = begin, degree, picked, *(a[:total] for a in found[:3])
    return [a.cpu().numpy() for a in arrays], int(bad), int(found.bad)


def check(graph, columns, fanouts, replace=False, ordered=False, ids=None, seed=3, **options):
    columns = np.asarray(columns, graph.indices.dtype)
    ids = columns if ids is None else np.asarray(ids, graph.indices.dtype)
    keys = [fold(seed, t) for t in range(len(fanouts))]
    expected = on_cpu(graph, columns, ids, keys, fanouts, replace, ordered)
    got, bad_column, bad_pick = on_gpu(
        graph, columns, ids, keys, fanouts, replace, ordered, **options
    )
    assert bad_column == bad_pick == launching.NOTHING
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    return got


@st.composite
def cases(draw):
    """A multigraph, columns that may repeat, and fanouts."""
    num_types = draw(st.integers(1, 4))
    if draw(st.booleans()):
        twin = draw(strategies.homogeneous(max_nodes=7, max_edges=40))
        built = strategies.build(twin)
        degrees = np.diff(built.csc_indptr.numpy())
    else:
        degrees = draw(st.lists(st.sampled_from([0, 1, 2, 3, 62, 63, 64, 65, 66, 130, 201]),
                                max_size=5))  # fmt: skip
    graph = Graph(
        degrees,
        num_types,
        draw(st.sampled_from([np.int32, np.int64])),
        seed=draw(st.integers(0, 9)),
    )
    node = st.integers(0, graph.num_nodes - 1)
    columns = draw(st.lists(node, max_size=8)) if graph.num_nodes else []
    fanouts = draw(st.lists(st.sampled_from(FANOUTS), min_size=num_types, max_size=num_types))
    if draw(st.booleans()):
        fanouts = [draw(st.sampled_from([2, 5, 65])) for _ in fanouts]
    return graph, columns, fanouts


@pytest.mark.parametrize("most", [16, launching.INTERPRETED_TILE])
@settings(max_examples=15)
@given(cases(), st.booleans(), st.booleans(), st.integers(0, 2**64 - 1))
def test_picks_equal_those_of_the_cpu(most, case, replace, ordered, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launching, "INTERPRETED_TILE", most)
        check(*case, replace, ordered, seed=seed)


def test_picks_of_types_in_disorder_equal_those_of_the_cpu():
    """Types of a damaged graph: the searches of both must take the same turns."""
    graph = Graph([0, 1, 5, 30, 64, 65, 66, 200], 3)
    for seed in range(5):
        np.random.default_rng(seed).shuffle(graph.types)
        for fanouts in ([-1, -1, -1], [2, -1, 5], [65, 0, 3]):
            check(graph, range(8), fanouts)


@pytest.mark.parametrize("fanout", [1, 2, 3, 10, 64, 65, 100])
def test_picks_where_the_degree_is_about_the_fanout(fanout):
    graph = Graph([fanout - 1, fanout, fanout + 1, 0, 2 * fanout, fanout + 2] * 5)
    got = check(graph, range(30), [fanout])
    check(graph, range(30), [fanout], ordered=True)
    picked, positions = got[2], got[3]
    for s in range(30):
        mine = positions[picked[s] : picked[s + 1]]
        assert len(set(mine)) == len(mine) == min(fanout, graph.indptr[s + 1] - graph.indptr[s])


@pytest.mark.parametrize("fanout", [40, 64, 70, 300])
@pytest.mark.parametrize("ordered", [False, True])
def test_draws_that_collide_over_and_over(fanout, ordered):
    """Nearly all edges of a column: chains of draws that give way to one another."""
    graph = Graph([fanout + 1, fanout + 2, fanout + 5] * 3)
    check(graph, range(9), [fanout], ordered=ordered)


@pytest.mark.parametrize("fanouts", [[-1], [5], [100], [-1, 7, 0], [90, -1, 3]])
def test_hubs(fanouts):
    graph = Graph([5000, 0, 1, 4001, 7], len(fanouts))
    for ordered in (False, True):
        check(graph, [0, 1, 2, 3, 4, 0], fanouts, ordered=ordered)


@pytest.mark.parametrize("fanouts", [[200], [7], [-1, 66], [64, 2, 0, -1]])
def test_replacement(fanouts):
    graph = Graph([1, 0, 3, 900], len(fanouts))
    for ordered in (False, True):
        check(graph, [3, 1, 0, 2], fanouts, replace=True, ordered=ordered)


def test_huge_fanouts_take_all():
    graph = Graph([5, 0, 90])
    got = check(graph, [2, 0, 1], [2**31 - 1])
    assert got[3].tolist() == [*range(5, 95), *range(5)]
    check(Graph([5, 0, 90], 2), [2, 0, 1], [2**31 - 1, 3])


def test_draws_are_keyed_by_original_ids():
    graph = Graph([30] * 6)
    one = check(graph, range(6), [4], ids=[9, 9, 2**31 - 1, 0, 5, 6])
    assert (one[3][:4] + 30 == one[3][4:8]).all()
    other = check(graph, range(6), [4])
    assert (one[3] != other[3]).any()


@pytest.mark.parametrize("fanouts", [[3], [-1], [70], [2, -1]])
def test_nothing_to_pick(fanouts):
    check(Graph([], len(fanouts)), [], fanouts)
    check(Graph([0, 0], len(fanouts)), [1, 0], fanouts)
    check(Graph([4, 3], len(fanouts)), [], fanouts)
    check(Graph([4, 3], len(fanouts)), [0], [0] * len(fanouts))
    check(Graph([0, 0], len(fanouts)), [1, 0], fanouts, extra=0, replace=True)


@pytest.mark.parametrize(("fanouts", "some"), [([3, 2], False), ([-1], True), ([4], False)])
def test_what_the_host_knows_saves_a_kernel(monkeypatch, fanouts, some):
    started = []
    launch = picks.launch

    def record(kernel, *args, **options):
        started.append(kernel)
        launch(kernel, *args, **options)

    monkeypatch.setattr(picks, "launch", record)
    check(Graph([6, 2], len(fanouts)), [0, 1], fanouts, some_whole=some)
    assert (picks._pick_whole in started) == some
    assert (picks._pick_few in started) == (max(fanouts) > 0)


def test_columns_of_a_type_without_edges():
    """Edge types that no edge has, before, between and behind those that edges have."""
    graph = Graph([6, 6, 6], 1)
    graph.types[:] = [1] * 6 + [1, 1, 1, 3, 3, 3] + [0, 0, 2, 2, 3, 3]
    check(graph, [0, 1, 2, 1], [2, 2, -1, 1, 5])


# -------------------------------------------------------------------------------------------------
# Damaged arrays


@pytest.mark.parametrize(
    ("indptr", "columns", "bad"),
    [
        ([0, 5, 2, 6], [0, 0, 1], 2),
        ([0, 2, 9, 6], [2, 1, 0, 1], 0),
        ([0, -1, 2, 6], [2, 0, 1], 1),
        ([0, 2**62, 2, 6], [0, 2], 0),
        ([-(2**62), 2, 2, 6], [1, 2, 0], 2),
        ([0, 2, 4, 6], [1, 3, 2], 1),
        ([0, 2, 4, 6], [1, 2, -1, 3], 2),
    ],
)
@pytest.mark.parametrize("types", [1, 2])
def test_bad_columns_are_named_and_not_followed(indptr, columns, bad, types):
    begin, degree, picked, found = segments.count_picks(
        there(np.array(indptr, np.int64)), there(np.zeros(6, np.uint8)),
        there(np.array(columns, np.int64)), there(np.full(types, -1)), False, 6,
    )  # fmt: skip
    assert found.tolist() == [bad]
    assert degree.view(-1, types)[bad].tolist() == [0] * types
    assert (begin >= 0).all()
    assert (degree >= 0).all()
    assert (begin + degree <= 6).all()
    assert picked.tolist() == [0, *np.cumsum(degree.cpu().numpy())]


@pytest.mark.parametrize("kinds", [[1, 0, 1, 0, 1, 0], [200, 3, 0, 2, 1, 0]])
def test_edge_types_in_disorder_lead_nowhere(kinds):
    begin, degree, _, _ = segments.count_picks(
        there(np.array([0, 6])), there(np.array(kinds, np.uint8)), there(np.array([0])),
        there(np.full(3, -1)), False, 6,
    )  # fmt: skip
    assert (begin >= 0).all()
    assert (degree >= 0).all()
    assert (begin + degree <= 6).all()


@pytest.mark.parametrize("fanout", [-1, 5, 70])
@pytest.mark.parametrize("value", [-1, 3, 2**31 - 1])
def test_the_first_pick_that_is_no_node_is_named(fanout, value):
    graph = Graph([8, 80, 3])
    graph.indices[[85, 89, 90]] = value
    keys = [fold(1, 1)]
    columns = np.array([0, 1, 2, 2])
    expected = on_cpu(graph, columns, columns, keys, [fanout], False, False)
    got, bad_column, bad_pick = on_gpu(graph, columns, columns, keys, [fanout], False, False)
    assert bad_column == launching.NOTHING
    assert bad_pick == cpu.first_out_of_range(expected[4], 0, 3) >= 0
    np.testing.assert_array_equal(got[4], expected[4])


# -------------------------------------------------------------------------------------------------
# Edge types after the draw


def typed_counts(kinds, picked, num_types, extra=3):
    """(CPU's counts and bad pick, the GPU's)."""
    out = np.empty((len(picked) - 1) * num_types + 1, np.int64)
    bad = int(typed.accumulate_typed_counts(kinds, picked, num_types, out))
    padded = np.concatenate([kinds, np.full(extra, 99, kinds.dtype)])
    got, got_bad = segments.accumulate_typed_counts(there(padded), there(picked), num_types)
    return out.tolist(), launching.NOTHING if bad < 0 else bad, got.tolist(), int(got_bad)


@pytest.mark.parametrize("most", [16, launching.INTERPRETED_TILE])
@settings(max_examples=15)
@given(
    st.lists(st.lists(st.integers(0, 3), max_size=9), max_size=9),
    st.integers(1, 4),
    st.booleans(),
    st.sampled_from([np.uint8, np.int8, np.int64]),
)
@example([[0]], 1, True, np.uint8)
@example([], 2, True, np.uint8)
def test_typed_counts_equal_those_of_the_cpu(most, rows, num_types, ascend, dtype):
    rows = [sorted(row) if ascend else row for row in rows]
    kinds = np.array([t for row in rows for t in row], dtype)
    picked = np.cumsum([0, *map(len, rows)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launching, "INTERPRETED_TILE", most)
        counts, bad, got, got_bad = typed_counts(kinds, picked, num_types)
    assert bad == got_bad
    if bad == launching.NOTHING:
        assert got == counts
    else:
        assert got == sorted(got)  # whoever reads it before the error stays inside
        assert got[-1] <= picked[-1]


@pytest.mark.parametrize(
    ("kinds", "bad"),
    [([0, 1, 1, 0], None), ([1, 0, 0, 0], 1), ([0, 2, 0, 0], 1), ([0, 1, -1, 0], 2)],
)
def test_typed_counts_name_unknown_and_unordered_types(kinds, bad):
    expected = launching.NOTHING if bad is None else bad
    found = typed_counts(np.array(kinds, np.int8), np.array([0, 3, 4]), 2)
    assert found[1] == found[3] == expected
