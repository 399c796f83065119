"""GPU kernels for rows: gather, scatter and the check of ids, against the CPU's and indexing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hopline.pipes.features.rows import gather
from hopline.pipes.kernels import cpu
from tests.pipes.features.test_tensor import DTYPES, rows
from tests.stage_checks import assert_same

pytest.importorskip("triton", reason="kernels of GPUs need Triton")
from hopline.pipes.kernels.cuda import launching
from hopline.pipes.kernels.cuda.rows import (
    first_out_of_range,
    gather_rows,
    scatter_rows,
)

few = settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
ALL = [*DTYPES, torch.complex128]
SHAPES = [(), (1,), (3,), (2, 3), (0,), (257,)]


def numbered(count, width):
    """Rows that name themselves: row i holds i."""
    return torch.arange(count).unsqueeze(1).expand(count, width).contiguous()


@pytest.mark.parametrize("dtype", ALL)
def test_every_dtype_and_shape(gpu, dtype):
    for shape in SHAPES:
        source = rows(11, shape, dtype)
        for ids in ([10, 0, 3, 3], [], list(range(11))):
            for kind in (torch.int32, torch.int64):
                numbers = torch.tensor(ids, dtype=kind)
                got = gather_rows(source.to(gpu), numbers.to(gpu))
                assert got.device.type == gpu.type
                assert got.is_contiguous()
                assert_same(got.cpu(), gather(source, numbers.numpy()))


@pytest.mark.parametrize("size", range(1, 41))
def test_row_sizes_in_bytes(gpu, size):
    source = rows(7, (size,), torch.uint8)
    ids = torch.tensor([6, 1, 1, 0])
    assert_same(gather_rows(source.to(gpu), ids.to(gpu)).cpu(), source[ids])


@pytest.mark.parametrize("offset", [1, 2, 3, 4, 6, 8, 12])
@pytest.mark.parametrize("size", [8, 12, 16, 80])
def test_memory_that_is_not_aligned(gpu, offset, size):
    """By a storage offset, and by a storage that itself begins anywhere."""
    whole = torch.arange(offset + 9 * size + 8, dtype=torch.int64).to(torch.uint8).to(gpu)
    view = whole[offset : offset + 9 * size].view(9, size)
    ids = torch.tensor([8, 0, 4], device=gpu)
    assert_same(gather_rows(view, ids), view[ids])
    # Nothing around the target changes.
    target = whole.clone()
    inside = target[offset : offset + 9 * size].view(9, size)
    scatter_rows(inside, ids, view[:3].clone())
    expected = whole.clone()
    expected[offset : offset + 9 * size].view(9, size)[ids] = view[:3]
    assert_same(target, expected)
    if gpu.type == "cpu":
        buffer = np.arange(offset + 9 * size, dtype=np.int64).astype(np.uint8)
        there = torch.from_numpy(buffer[offset:].view(np.int32)).view(9, size // 4)
        assert_same(gather_rows(there, ids), there[ids])


@few
@given(data=st.data())
def test_rows_that_name_themselves(gpu, data):
    count, width = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 20))
    picks = data.draw(st.lists(st.integers(0, count - 1), max_size=60))
    ids = torch.tensor(picks, dtype=data.draw(st.sampled_from([torch.int32, torch.int64])))
    got = gather_rows(numbered(count, width).to(gpu), ids.to(gpu))
    assert got.tolist() == [[i] * width for i in picks]


def test_several_programs_along_and_across(gpu, monkeypatch):
    monkeypatch.setattr(launching, "INTERPRETED_TILE", 16)
    for width in (1, 15, 16, 17, 50):
        source = rows(5, (width,), torch.int64)
        ids = torch.tensor([4, 0, 1] * 7)
        assert_same(gather_rows(source.to(gpu), ids.to(gpu)).cpu(), source[ids])
        target = torch.zeros_like(source).to(gpu)
        scatter_rows(target, torch.tensor([3, -1, 0], device=gpu), source[:3].to(gpu))
        expected = torch.zeros_like(source)
        expected[3], expected[0] = source[0], source[2]
        assert_same(target.cpu(), expected)


def test_one_element_of_any_stride(gpu):
    source = torch.tensor([9.0], device=gpu).expand(1, 1)
    assert gather_rows(source, torch.tensor([0, 0], device=gpu)).tolist() == [[9.0], [9.0]]


def test_no_rows_and_no_ids(gpu):
    none = torch.empty(0, dtype=torch.int64, device=gpu)
    assert gather_rows(torch.empty(0, 3, device=gpu), none).shape == (0, 3)
    assert gather_rows(torch.ones(4, 3, device=gpu), none.int()).shape == (0, 3)
    assert gather_rows(torch.ones(4, 0, 2, device=gpu), none.new_zeros(5)).shape == (5, 0, 2)
    target = torch.ones(2, 3, device=gpu)
    scatter_rows(target, none, torch.empty(0, 3, device=gpu))
    assert target.tolist() == [[1.0] * 3] * 2
    scatter_rows(torch.empty(2, 0, device=gpu), none.new_zeros(1), torch.empty(1, 0, device=gpu))


def test_a_source_that_requires_gradients(gpu):
    source = torch.arange(6.0, device=gpu).view(3, 2).requires_grad_()
    got = gather_rows(source, torch.tensor([2], device=gpu))
    assert got.tolist() == [[4.0, 5.0]]
    assert not got.requires_grad


def test_page_locked_rows(gpu):
    if gpu.type != "cuda":
        source = rows(9, (100,), torch.float32)  # the interpreter reads any memory
    else:
        source = rows(9, (100,), torch.float32).pin_memory()
    ids = torch.tensor([8, 2, 2, 5])
    got = gather_rows(source, ids.to(gpu))
    assert got.device.type == gpu.type
    assert_same(got.cpu(), source[ids])


@few
@given(data=st.data())
def test_scatter_leaves_out_negative_slots(gpu, data):
    count, width = data.draw(st.integers(1, 30)), data.draw(st.sampled_from([1, 3, 8, 100]))
    dtype = data.draw(st.sampled_from(ALL))
    slots = data.draw(st.permutations(range(count)))[: data.draw(st.integers(0, count))]
    slots = [s if data.draw(st.booleans()) else -1 - s for s in slots]
    new = rows(max(len(slots), 1), (width,), dtype)[: len(slots)]
    target, numbers = rows(count, (width,), dtype), torch.tensor(slots, dtype=torch.int64)
    there = target.to(gpu)
    if there is target:
        there = target.clone()
    kind = data.draw(st.sampled_from([torch.int32, torch.int64]))
    scatter_rows(there, numbers.to(gpu, kind), new.to(gpu))
    for slot, row in zip(slots, new, strict=True):
        if slot >= 0:
            target[slot] = row
    assert_same(there.cpu(), target)


# ---------------------------------------------------------------------------------------------


@few
@given(data=st.data())
def test_first_out_of_range_equals_the_cpu(gpu, data):
    dtype = data.draw(st.sampled_from([torch.int8, torch.int16, torch.int32, torch.int64]))
    ids = torch.tensor(data.draw(st.lists(st.integers(-4, 9), max_size=50)), dtype=dtype)
    low = data.draw(st.integers(-5, 3))
    high = data.draw(st.integers(low, 10))
    expected = cpu.first_out_of_range(ids.numpy(), low, high)
    got = first_out_of_range(ids.to(gpu), low, high)
    assert got.dtype == torch.int64
    assert got.tolist() == [launching.NOTHING if expected < 0 else expected]


def test_first_out_of_range_of_extreme_ids(gpu, monkeypatch):
    monkeypatch.setattr(launching, "INTERPRETED_TILE", 16)

    def first(ids, dtype, low, high):
        return int(first_out_of_range(torch.tensor(ids, dtype=dtype, device=gpu), low, high))

    assert first([0] * 100 + [7] + [0] * 100 + [7], torch.int64, 0, 7) == 100
    assert first([0, 2**63 - 1], torch.int64, 0, 2**63 - 1) == 1
    assert first([2**63 - 2, -(2**63)], torch.int64, 0, 2**63 - 1) == 1
    assert first([255, 3], torch.uint8, 0, 256) == launching.NOTHING
    assert first([3, 255], torch.uint8, 0, 255) == 1
    assert first([2**16 - 1, 2**15], torch.uint16, 0, 2**15 + 1) == 0
    assert first([2**31, 2**32 - 1], torch.uint32, 0, 2**32 - 1) == 1
    assert first([5, 2**64 - 3], torch.uint64, -10, 10) == 1
    assert first([], torch.int64, 0, 0) == launching.NOTHING
    assert first([0], torch.int64, 0, 0) == 0
