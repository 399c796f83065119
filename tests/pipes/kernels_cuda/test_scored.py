"""Draws by weight, and LABOR: the GPU's kernels pick what the CPU's pick."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="GPU kernels are interpreted by Triton, which is missing")

from hopline.pipes.kernels.cuda import launching
from tests.pipes.kernels_cuda.hops import (
    LAYER,
    MIXED_LAYER,
    check,
    check_both,
    make,
    on_cpu,
    on_gpu,
    weights_of,
    with_times,
)
from tests.strategies import WEIGHTS

FEW = [0, 1, 2, 3, 5, 17, 64]
# Half floats come as float32.
NUMBERS = {d: v for d, v in WEIGHTS.items() if d not in (torch.float16, torch.bfloat16)}
interpreted = settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])


def numpy_dtype(dtype: torch.dtype) -> np.dtype:
    return torch.empty(0, dtype=dtype).numpy().dtype


@st.composite
def scored_hops(draw, fanouts):
    rule = draw(st.sampled_from(["weights", "layer", "both"]))
    hop = make(
        draw(st.integers(0, 2**32)),
        num_nodes=draw(st.integers(1, 8)),
        num_edges=draw(st.integers(0, 70)),
        num_columns=draw(st.integers(0, 5)),
        fanouts=draw(st.lists(st.sampled_from(fanouts), min_size=1, max_size=3)),
        dtype=draw(st.sampled_from([np.int32, np.int64])),
        replace=draw(st.booleans()),
        spare=draw(st.sampled_from([0, 3])),
        parallel=draw(st.booleans()),
        layer=None if rule == "weights" else draw(st.sampled_from([LAYER, MIXED_LAYER])),
    )
    if rule != "layer":
        dtype = draw(st.sampled_from(list(NUMBERS)))
        values = NUMBERS[dtype][: draw(st.sampled_from([1, None, None, None]))]
        seed = draw(st.integers(0, 2**32))
        weights = weights_of(seed, len(hop.indices), values, numpy_dtype(dtype))
        hop = hop.but(weights=weights)
    if draw(st.booleans()):
        hop = with_times(
            hop,
            draw(st.integers(0, 2**32)),
            nodes=draw(st.booleans()),
            edges=draw(st.booleans()),
            window=draw(st.sampled_from([None, 3])),
        )
    return hop


@interpreted
@given(hop=scored_hops(FEW))
def test_small_fanouts(gpu, hop):
    check_both(hop, gpu)


@interpreted
@given(hop=scored_hops([*FEW, -1, 65]))
def test_any_fanouts(gpu, hop):
    check(hop, gpu)


@pytest.mark.parametrize("dtype", list(NUMBERS), ids=str)
@pytest.mark.parametrize("replace", [False, True])
def test_weights_of_each_dtype(gpu, dtype, replace):
    hop = make(1, 12, 150, 12, [4], replace=replace)
    hop = hop.but(weights=weights_of(2, 150, NUMBERS[dtype], numpy_dtype(dtype)))
    assert check_both(hop, gpu) > 20
    if not replace:
        assert check_both(hop.but(layer=MIXED_LAYER), gpu) > 20


@pytest.mark.parametrize("layer", [None, MIXED_LAYER], ids=["weighted", "labor"])
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("fanouts", [[3], [-1], [70], [2, -1, 0]], ids=str)
def test_no_edge_has_a_weight(gpu, layer, replace, fanouts):
    hop = make(3, 6, 40, 6, fanouts, replace=replace, layer=layer)
    assert check(hop.but(weights=np.zeros(40)), gpu) == 0
    assert check(hop.but(weights=-np.zeros(40, np.float32)), gpu) == 0


@pytest.mark.parametrize("fanout", [1, 30, 65, 200, -1])
def test_hub(gpu, fanout):
    """Many steps in one segment."""
    hop = make(5, 300, 200, 2, [fanout], hub=1100)
    values = weights_of(6, 1300, [0.0, 1e-300, 1e300, 0.25, 1.0], np.float64)
    few = min(abs(fanout), 200)
    assert check(hop.but(weights=values), gpu) >= few
    assert check(hop.but(layer=LAYER), gpu) >= few
    assert check(with_times(hop.but(layer=LAYER, weights=values), 7), gpu) >= min(few, 100)


@pytest.mark.parametrize("fanout", [2, 20, 66, -1])
def test_hub_with_replacement(gpu, fanout):
    hop = make(8, 50, 60, 2, [fanout], hub=140, replace=True)
    values = weights_of(9, 200, [0.0, 1e-3, 0.1, 1.0, 7.5], np.float32)
    assert check(hop.but(weights=values), gpu) >= abs(fanout)
    assert check(hop.but(layer=MIXED_LAYER, weights=values), gpu) >= abs(fanout)


def test_draws_of_one_edge(gpu):
    """All draws with replacement, and all arrivals, are of the only edge that has a weight."""
    weights = np.zeros(30)
    weights[17] = 1e-300
    hop = make(10, 1, 30, 1, [9], replace=True, weights=weights)
    assert check_both(hop, gpu) == check_both(hop.but(layer=LAYER), gpu) == 9
    assert set(on_gpu(hop, gpu)[1].tolist()) == {17}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("replace", [False, True])
def test_equal_scores(gpu, weighted, replace):
    """Parallel edges that are not told apart have one score: the first ones are taken.

    A column has about six sources with five edges each, so that the last picks are some of them.
    """
    hop = make(11, 6, 180, 6, [7], layer=LAYER, parallel=False, replace=replace)
    if weighted:
        hop = hop.but(weights=np.full(180, 0.3))
    assert check(hop, gpu, listed=False) == 42
    if not replace:
        assert check(hop, gpu, listed=True) == 42
    different = hop.but(parallel=True)
    assert check(different, gpu) == 42
    assert on_gpu(different, gpu)[1].tolist() != on_cpu(hop)[1].tolist()


@pytest.mark.parametrize("layer", [None, LAYER], ids=["weighted", "labor"])
def test_several_edge_types(gpu, layer):
    """Parallel edges are counted in each type by itself, or in the whole column."""
    for fanouts, types in (([3, 1, 40], 3), ([6], 3), ([3, -1], 2), ([66, 1], 2)):
        hop = make(12, 5, 150, 8, fanouts, types, layer=layer)
        hop = hop.but(weights=weights_of(13, 150, [0, 1, 3], np.int64))
        assert check(hop, gpu) > 30
        if layer is not None:
            assert check(hop.but(weights=None), gpu) > 30


def test_several_programs(gpu, monkeypatch):
    monkeypatch.setattr(launching, "INTERPRETED_TILE", 16)
    hop = make(14, 20, 80, 20, [2])
    weights = weights_of(15, 80, [0, 1.0, 2.5], np.float32)
    assert check_both(with_times(hop.but(weights=weights), 16), gpu) > 10
    assert check_both(hop.but(weights=weights, replace=True), gpu) > 20
    assert check_both(hop.but(layer=LAYER, weights=weights), gpu) > 20
    assert check(hop.but(layer=LAYER, replace=True), gpu) > 20


@pytest.mark.parametrize("fanouts", [[3], [0, 0], [-1], [100]], ids=str)
def test_nothing_to_draw(gpu, fanouts):
    for nodes, edges, columns in ((5, 0, 4), (5, 20, 0), (0, 0, 0)):
        for replace in (False, True):
            hop = make(17, nodes, edges, columns, fanouts, spare=2, replace=replace)
            check(hop.but(weights=np.ones(edges)), gpu)
            check(hop.but(layer=LAYER), gpu)


# -------------------------------------------------------------------------------------------------
# Bad weights

BAD = [np.nan, -1.0, np.inf, -np.inf, 1e-301, 1e301, -1e-320]


@pytest.mark.parametrize("bad", BAD, ids=str)
@pytest.mark.parametrize("layer", [None, LAYER], ids=["weighted", "labor"])
def test_bad_weight(gpu, bad, layer):
    weights = np.ones(40)
    weights[23] = bad
    hop = make(18, 4, 40, 4, [3], layer=layer)
    hop = hop.but(columns=np.arange(4, dtype=np.int32), weights=weights)
    assert on_cpu(hop) == 23
    assert check_both(hop, gpu) == -1
    assert check(hop.but(replace=True), gpu) == -1
    assert check(hop.but(fanouts=[-1]), gpu) == -1


@pytest.mark.parametrize("edge", [0, 39])
def test_bad_weight_at_an_end(gpu, edge):
    weights = np.ones(40)
    weights[edge] = np.nan
    hop = make(18, 1, 40, 1, [3], weights=weights)
    for replace in (False, True):
        assert check_both(hop.but(replace=replace), gpu) == -1


def test_the_first_bad_weight_in_order_of_columns_is_told(gpu):
    """Not the first by position; not those of columns that nothing is drawn for."""
    hop = make(19, 10, 200, 10, [2, 0])
    hop = hop.but(columns=np.array([7, 7, 2, 5, 0], np.int32))
    weights = np.ones(200)
    for column in (0, 2, 5):
        first, last = hop.indptr[column], hop.indptr[column + 1]
        weights[first:last][hop.edge_types[first:last] == 0] = np.nan
    weights[hop.edge_types == 1] = -1
    hop = hop.but(weights=weights)
    want = hop.indptr[2]
    assert on_cpu(hop) == want
    assert check_both(hop, gpu) == -1
    assert check(hop.but(fanouts=[-1, 0]), gpu) == -1
    assert on_gpu(hop.but(fanouts=[-1, 0]), gpu) == want
    # All the good ones are drawn from as if there were no others.
    assert check_both(hop.but(columns=hop.columns[:2]), gpu) == 4


def test_bad_weights_of_what_no_one_sees_are_told_too(gpu):
    hop = make(20, 5, 40, 5, [2])
    weights = np.ones(40)
    weights[11] = np.inf
    hop = with_times(hop.but(columns=np.arange(5, dtype=np.int32), weights=weights), 21)
    hop = hop.but(edge_times=np.full(40, 100))
    assert on_cpu(hop) == 11
    assert check_both(hop, gpu) == -1


# -------------------------------------------------------------------------------------------------
# Limits


def test_too_many_arrivals_are_refused(gpu):
    hop = make(22, 3, 9, 1, [(1 << 14) + 1], replace=True, layer=LAYER)
    with pytest.raises(ValueError, match=r"fanout 16385 .* at most 16384"):
        on_gpu(hop, gpu)
    assert check(hop.but(fanouts=[1 << 14], replace=False), gpu) > 0


def test_index_out_of_range_is_not_followed_and_is_found(gpu):
    hop = with_times(make(23, 6, 12, 6, [2], layer=LAYER, parallel=False), 24, edges=False)
    for fanouts in ([2], [-1]):
        indices = np.full_like(hop.indices, 2**31 - 1)
        _, _, neighbors = on_gpu(hop.but(indices=indices, fanouts=fanouts), gpu)
        assert len(neighbors)
        assert set(neighbors.tolist()) == {2**31 - 1}
