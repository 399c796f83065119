"""weighted_reduce and gather_rows, without a process group and on 2 to 4 ranks."""

from __future__ import annotations

import math

import pytest
import torch

from hopline.models import gather_rows, launch, weighted_reduce
from tests.models import ranks


def test_on_2_to_4_ranks():
    launch(ranks.reduce_figures, 4)


@pytest.mark.parametrize("dst", [0, None])
def test_without_a_process_group(dst):
    got = weighted_reduce(torch.tensor([1, 2]), 3, dst)
    assert got.dtype == torch.float64
    assert got.tolist() == [1.0, 2.0]
    assert weighted_reduce(0.1, 7, dst).item() == 0.1
    assert math.isnan(weighted_reduce(5.0, 0, dst))
    assert torch.isnan(weighted_reduce(torch.tensor([1, 2]), 0, dst)).all()
    assert weighted_reduce(torch.empty(0, 2), 1, dst).shape == (0, 2)


@pytest.mark.parametrize("weight", [-1, math.nan, math.inf])
def test_unfit_weights(weight):
    with pytest.raises(ValueError, match="rank 0 gave a weight"):
        weighted_reduce(1.0, weight)


def test_a_rank_that_is_not_there():
    with pytest.raises(IndexError, match="dst is 1; there is 1 rank"):
        weighted_reduce(1.0, 1, dst=1)


def test_the_input_is_left_alone():
    value = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
    got = weighted_reduce(value, 2)
    assert not got.requires_grad
    got += 1
    assert value.tolist() == [1.0, 2.0]


def test_rows_of_one_rank():
    (rows,) = gather_rows(torch.tensor([[1, 2]]))
    assert rows.tolist() == [[1, 2]]
