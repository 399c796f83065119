"""move: whatever a mini-batch may carry."""

from __future__ import annotations

import collections
import dataclasses

import pytest
import torch

import hopline.pipes as hp
from hopline.pipes.move import move

Pair = collections.namedtuple("Pair", ["left", "right"])


@dataclasses.dataclass(frozen=True)
class Frozen:
    tensor: torch.Tensor
    name: str = dataclasses.field(default="x", init=False)


@dataclasses.dataclass
class Own:
    tensor: torch.Tensor
    moved: str = ""

    def to(self, device):
        return Own(self.tensor.to(device), "by itself")


class Plain:
    def to(self, device, non_blocking=False):
        self.device, self.non_blocking = device, non_blocking
        return self


def test_containers_keep_their_kind():
    value = {
        "list": [torch.ones(1), "a"],
        "tuple": (torch.ones(1), 2),
        "named": Pair(torch.ones(1), None),
        "size": torch.Size([2, 3]),
        3: {"deep": [{"deeper": torch.ones(2, 2)}]},
        "none": None,
        "type": Frozen,
    }
    moved = move(value, "meta")
    assert moved["list"][0].device.type == "meta"
    assert moved["list"][1] == "a"
    assert type(moved["tuple"]) is tuple
    assert type(moved["named"]) is Pair
    assert moved["named"].left.device.type == "meta"
    assert moved["size"] == torch.Size([2, 3])
    assert moved[3]["deep"][0]["deeper"].shape == (2, 2)
    assert moved[3]["deep"][0]["deeper"].device.type == "meta"
    assert moved["none"] is None
    assert moved["type"] is Frozen
    # The given value stays as it was.
    assert value["list"][0].device.type == "cpu"
    assert value[3]["deep"][0]["deeper"].device.type == "cpu"


def test_objects():
    moved = move(Frozen(torch.ones(1)), "meta")
    assert (moved.tensor.device.type, moved.name) == ("meta", "x")
    assert move(Own(torch.ones(1)), "meta").moved == "by itself"
    # Its `to` knows no non_blocking.
    assert move(Own(torch.ones(1)), "meta", non_blocking=True).moved == "by itself"
    plain = move(Plain(), "meta", non_blocking=True)
    assert (plain.device, plain.non_blocking) == ("meta", True)
    thing = object()
    assert move(thing, "meta") is thing


def test_packed_sequences_of_torch():
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)])
    assert move(packed, "meta").data.device.type == "meta"


def test_what_is_there_already_is_kept():
    tensor = torch.ones(2)
    assert move([tensor], "cpu")[0] is tensor
    assert move({"a": tensor}, torch.device("cpu"), True)["a"] is tensor


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
@pytest.mark.parametrize("make", [lambda: torch.ones(1), lambda: hp.MiniBatch(seeds=torch.ones(1))])
def test_pinning_without_a_gpu_is_told(make):
    with pytest.raises(RuntimeError, match="pinning memory needs a GPU"):
        move(make(), "pinned")
