"""gather: rows by ids, against indexing by torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hopline.pipes.features import buffers
from hopline.pipes.features import rows as module
from hopline.pipes.features.rows import gather
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
