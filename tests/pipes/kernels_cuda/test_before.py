"""Even draws among what a column may see: the GPU's kernels pick what the CPU's pick."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="GPU kernels are interpreted by Triton, which is missing")

from hopline.pipes.kernels.cuda import launching, segment_picks
from tests.pipes.kernels_cuda import hops
from tests.pipes.kernels_cuda.hops import check, check_both, make, on_gpu, with_times

FEW = [0, 1, 2, 3, 5, 17, 64]
interpreted = settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def hops_in_time(draw, fanouts):
    hop = make(
        draw(st.integers(0, 2**32)),
        num_nodes=draw(st.integers(1, 8)),
        num_edges=draw(st.integers(0, 90)),
        num_columns=draw(st.integers(0, 6)),
        fanouts=draw(st.lists(st.sampled_from(fanouts), min_size=1, max_size=3)),
        dtype=draw(st.sampled_from([np.int32, np.int64])),
        replace=draw(st.booleans()),
        spare=draw(st.sampled_from([0, 3])),
    )
    return with_times(
        hop,
        draw(st.integers(0, 2**32)),
        nodes=draw(st.booleans()),
        edges=draw(st.booleans()),
        window=draw(st.sampled_from([None, 0, 3])),
    )


@interpreted
@given(hop=hops_in_time(FEW))
def test_small_fanouts(gpu, hop):
    check_both(hop, gpu)


@interpreted
@given(hop=hops_in_time([*FEW, -1, 65, 200]))
def test_any_fanouts(gpu, hop):
    check(hop, gpu)


@pytest.mark.parametrize("nodes", [False, True])
@pytest.mark.parametrize("edges", [False, True])
@pytest.mark.parametrize("replace", [False, True])
def test_times_of_nodes_and_edges(gpu, nodes, edges, replace):
    hop = make(1, 30, 600, 20, [6], replace=replace)
    found = {
        window: check_both(with_times(hop, 2, nodes, edges, window), gpu) for window in (None, 5)
    }
    assert found[None] >= found[5] > 0


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("fanout", [1, 64, 65, 200, 1700, -1])
def test_hub(gpu, fanout, replace):
    """Many steps in one segment; many draws that meet earlier ones."""
    hop = make(3, 40, 100, 4, [fanout], hub=1500, replace=replace)
    assert check(with_times(hop, 4, window=8), gpu) >= min(abs(fanout), 200)


@pytest.mark.parametrize("count", [100, 101, 103, 130])
def test_draw_of_nearly_all(gpu, count):
    """Most draws meet an earlier one, in long chains."""
    for fanout in (97, 99, 100):
        hop = make(5, 60, 0, 60, [fanout], hub=count)
        assert check(with_times(hop, 6, nodes=False, edges=False), gpu) >= fanout


def test_several_programs(gpu, monkeypatch):
    monkeypatch.setattr(launching, "INTERPRETED_TILE", 16)
    for replace in (False, True):
        hop = with_times(make(7, 25, 250, 40, [4], replace=replace), 8)
        assert check_both(hop, gpu) > 50


def test_extreme_times(gpu):
    low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    hop = make(9, 10, 80, 10, [3])
    random = np.random.default_rng(10)
    hop = hop.but(
        times=random.choice([low, -1, 0, high], 10),
        earliest=random.choice([low, -1], 10),
        node_times=random.choice([low, -5, 0, high], 10),
        edge_times=random.choice([low, -5, 0, high], 80),
    )
    assert check_both(hop, gpu) > 0


@pytest.mark.parametrize("fanouts", [[3], [0, 0], [-1], [100]])
def test_nothing_to_draw(gpu, fanouts):
    for nodes, edges, columns in ((5, 0, 4), (5, 20, 0), (0, 0, 0)):
        check(with_times(make(11, nodes, edges, columns, fanouts, spare=2), 12), gpu)


@pytest.mark.parametrize("fanout", [2, -1])
def test_index_out_of_range_is_not_followed_and_is_found(gpu, fanout):
    hop = with_times(make(13, 6, 12, 6, [fanout]), 14, edges=False)
    for bad in (-1, 6, 2**31 - 1):
        indices = np.full_like(hop.indices, bad)
        _, _, neighbors = on_gpu(hop.but(indices=indices), gpu)
        assert len(neighbors)
        assert set(neighbors.tolist()) == {bad}


def test_needs_expansion():
    for fanouts in ([], [0], [64, 3], [1, 64, 0]):
        assert not segment_picks.needs_expansion(fanouts)
    for fanouts in ([-1], [65], [3, -1], [0, 2**31 - 1]):
        assert segment_picks.needs_expansion(fanouts)


def test_a_difference_is_seen(gpu, monkeypatch):
    """The comparison of these tests can fail."""
    hop = with_times(make(15, 20, 300, 20, [4]), 16)
    want = hops.on_cpu(hop)
    monkeypatch.setattr(hops, "on_cpu", lambda _: hops.on_gpu(hop.but(times=hop.times + 1), gpu))
    with pytest.raises(AssertionError):
        check(hop, gpu)
    monkeypatch.setattr(hops, "on_cpu", lambda _: want)
    check(hop, gpu)
