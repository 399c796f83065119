"""gather: rows by ids, against indexing by torch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hopline.pipes.features import buffers
from hopline.pipes.features import rows as module
from hopline.pipes.features.rows import gather, gather_to, scatter
from hopline.pipes.kernels.rows import FARTHEST, LONGEST, gather_rows
from hopline.pipes.npy import read_npy
from tests.pipes.features.test_tensor import DTYPES, SHAPES, rows
from tests.stage_checks import assert_same


@given(
    count=st.integers(1, 30),
    shape=st.sampled_from([*SHAPES, (7,), (8, 2), (1, 1, 1)]),
    dtype=st.sampled_from(DTYPES),
    wide=st.booleans(),
    data=st.data(),
)
def test_against_indexing(count, shape, dtype, wide, data):
    source = rows(count, shape, dtype)
    picks = data.draw(st.lists(st.integers(0, count - 1), max_size=60))
    ids = np.array(picks, np.int64 if wide else np.int32)
    got = gather(source, ids)
    assert_same(got, source[torch.tensor(picks, dtype=torch.int64)])
    assert got.is_contiguous()


@pytest.mark.parametrize("row_bytes", [1, 3, 16, 63, 64, 65, 100, 400, LONGEST, LONGEST + 1, 5000])
@pytest.mark.parametrize("count", [0, 1, FARTHEST - 1, FARTHEST + 90])
def test_at_any_address(row_bytes, count):
    """Nothing is written beside the output, and nothing else is read."""
    rng = np.random.default_rng(row_bytes * 1000 + count)
    memory = rng.integers(0, 256, 40 * row_bytes + 200, np.uint8)
    for shift in (0, 1, 8, 63, 64, 128, 130):
        source = memory[shift : shift + 40 * row_bytes]
        for dtype in (np.int32, np.int64):
            ids = rng.integers(0, 40, count).astype(dtype)
            ids[-1:] = 39
            around = np.full(count * row_bytes + 200, 77, np.uint8)
            out = around[100 - shift // 2 :][: count * row_bytes]
            gather_rows(source, row_bytes, ids, out)
            assert np.array_equal(out.reshape(count, row_bytes), source.reshape(40, row_bytes)[ids])
            assert np.count_nonzero(around == 77) >= 200
            assert (around[: 100 - shift // 2] == 77).all()
            assert (around[100 - shift // 2 + len(out) :] == 77).all()


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.complex128])
def test_rows_of_a_mapped_file(tmp_path, dtype):
    array = np.arange(500 * 33).reshape(500, 33).astype(dtype)
    np.save(tmp_path / "x.npy", array)
    ids = np.arange(499, -1, -1)
    for start in (0, 1, 7):  # views begin anywhere in a page
        source = read_npy(tmp_path / "x.npy")[start:]
        got = gather(source, ids[start:])
        assert np.array_equal(got.numpy(), array[start:][ids[start:]])


def test_one_dimension():
    source = torch.tensor([5, 6, 7])
    assert gather(source, np.array([2, 0, 2])).tolist() == [7, 5, 7]


def test_one_element_of_any_stride():
    source = torch.tensor([9.0]).expand(1, 1)
    assert gather(source, np.array([0, 0])).tolist() == [[9.0], [9.0]]


def test_no_rows_and_no_ids():
    assert gather(torch.empty(0, 3), np.empty(0, np.int64)).shape == (0, 3)
    assert gather(torch.ones(4, 3), np.empty(0, np.int32)).shape == (0, 3)


def test_big_outputs_come_from_the_pool():
    source = torch.arange(3000.0).unsqueeze(1).expand(-1, 300).contiguous()
    ids = np.arange(3000)[::-1].copy()
    for _ in range(3):
        assert torch.equal(gather(source, ids), source.flip(0))


def test_a_source_that_cannot_be_written_to():
    array = np.arange(6.0).reshape(3, 2)
    source = torch.from_numpy(array)
    array.flags.writeable = False
    assert gather(source, np.array([1])).tolist() == [[2.0, 3.0]]


def test_rows_are_uploaded_to_a_gpu_and_kept_on_the_cpu(monkeypatch):
    sent_to = []
    monkeypatch.setattr(
        module, "upload", lambda rows, device: sent_to.append(device.type) or rows + 1
    )
    ones = torch.ones(2)
    assert module.sent(ones, torch.device("cpu")) is ones
    assert module.sent(ones, torch.device("cuda")).tolist() == [2, 2]
    assert sent_to == ["cuda"]


@pytest.mark.parametrize(("device", "locked"), [("cpu", False), ("cuda", True)])
def test_outputs_for_a_gpu_are_page_locked(device, locked):
    with module.outputs_for(torch.device(device)):
        assert getattr(buffers._thread, "page_locked", False) == locked
    assert not getattr(buffers._thread, "page_locked", False)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (7, 2), (1000,), (0,)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.int64])
def test_rows_to_places_of_their_own(shape, dtype):
    source = torch.arange(60 * math.prod(shape)).reshape(60, *shape).to(dtype)
    ids, places = np.random.default_rng(0).permutation(60)[:40], np.arange(0, 80, 2)
    out = torch.zeros((80, *shape), dtype=dtype)
    gather_to(source, ids, places, out)
    expected = torch.zeros_like(out)
    expected[torch.from_numpy(places)] = source[torch.from_numpy(ids)]
    assert torch.equal(out, expected)
    again = torch.zeros_like(out)
    scatter(source[torch.from_numpy(ids)], places, again)
    assert torch.equal(again, expected)
    gather_to(source, ids[:0], places[:0], out)
    scatter(source[:0], places[:0], out)
    assert torch.equal(out, expected)
