"""CopyTo: everything in a mini-batch moves, whatever it is; devices that are not there."""

from __future__ import annotations

import pytest
import torch

import hopline.pipes as hp
from tests.number_chains import numbers, ring, ring_features, whole_chain
from tests.stage_checks import assert_same, check_resume

NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")


def tensors_in(value) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [t for item in value for t in tensors_in(item)]
    fields = getattr(value, "__dataclass_fields__", {})
    return [t for name in fields for t in tensors_in(getattr(value, name))]


def test_everything_moves():
    # "meta" stands for a device that is never the CPU.
    chain = whole_chain().transform(add_columns).copy_to("meta")
    for moved, here in zip(chain, whole_chain().transform(add_columns), strict=True):
        there = tensors_in(moved)
        assert len(there) == len(tensors_in(here)) > 15
        assert {t.device.type for t in there} == {"meta"}
        assert {block.device.type for block in moved.blocks} == {"meta"}
        assert [t.shape for t in there] == [t.shape for t in tensors_in(here)]
        assert moved.key == here.key
        assert moved.extra["nested"][1]["name"] == "kept"


def add_columns(minibatch):
    minibatch.weights = torch.ones(2)
    minibatch.nested = [(torch.ones(1),), {"name": "kept", "deep": [torch.ones(3)]}]
    return minibatch


def test_copy_to_the_same_device_changes_nothing():
    def chain():
        return numbers().sample_neighbor(ring(), [2]).fetch_feature(ring_features(), ["feat"])

    assert_same(list(chain().copy_to("cpu")), list(chain()))
    assert_same(list(chain().copy_to(torch.device("cpu"), non_blocking=True)), list(chain()))


def test_resume():
    check_resume(lambda: numbers().copy_to("cpu"))


@NO_GPU
@pytest.mark.parametrize("device", ["cuda", "cuda:1", torch.device("cuda"), 0, "pinned"])
def test_a_missing_gpu_is_told_at_construction(device):
    with pytest.raises(ValueError, match=r"copy_to got '(cuda|pinned).* finds no GPU.*'cpu'"):
        numbers().copy_to(device)


@pytest.mark.parametrize("device", ["gpu", "cpu:x", None, 1.5, [0]])
def test_what_is_no_device_is_told_at_construction(device):
    with pytest.raises(ValueError, match="expected a torch device"):
        numbers().copy_to(device)


def test_a_gpu_too_many_is_told_at_construction(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert numbers().copy_to("cuda:1").device == torch.device("cuda:1")
    with pytest.raises(ValueError, match="'cuda:2', but torch finds 2 GPUs"):
        numbers().copy_to("cuda:2")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_minibatch_on_the_gpu_is_whole(workers):
    with hp.DataLoader(whole_chain().copy_to("cuda"), num_workers=workers) as loader:
        for moved, here in zip(loader, whole_chain(), strict=True):
            assert_same(moved.to("cpu"), here)
