"""Feature stores: features by domain, type and name; from a data set's list of files."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import hopline.pipes as hp
from hopline.pipes.features.feature import FeatureKey


def constant(value: float, count: int = 3) -> hp.TorchBasedFeature:
    return hp.TorchBasedFeature(torch.full((count, 2), value))


def test_the_same_name_on_every_type_and_domain():
    keys = [
        ("node", "user", "feat"),
        ("node", "item", "feat"),
        ("edge", "user:buys:item", "feat"),
        ("edge", "user:likes:item", "feat"),
        ("graph", None, "feat"),
        ("node", "user", "other"),
    ]
    store = hp.BasicFeatureStore({key: constant(n, n + 1) for n, key in enumerate(keys)})
    assert store.keys() == keys
    assert len(store) == len(keys)
    for number, key in enumerate(keys):
        assert key in store
        assert FeatureKey(*key) in store
        assert store.read(*key, torch.tensor([number])).tolist() == [[number, number]]
        assert store.count(*key) == number + 1
        assert store.size(*key) == torch.Size([2])
        assert store[key].read().shape == (number + 1, 2)
    assert ("node", None, "feat") not in store


def test_update_and_metadata_go_to_the_feature():
    store = hp.BasicFeatureStore({})
    store["node", None, "feat"] = hp.TorchBasedFeature(torch.zeros(2, 1), {"a": 1})
    store.update("node", None, "feat", torch.tensor([[5.0]]), torch.tensor([1]))
    assert store.read("node", None, "feat").tolist() == [[0.0], [5.0]]
    assert store.metadata("node", None, "feat") == {"a": 1}
    store["node", None, "feat"] = constant(1)
    assert store.count("node", None, "feat") == 3


def test_a_missing_feature_is_told_with_what_there_is():
    store = hp.BasicFeatureStore({("node", "user", "feat"): constant(1)})
    with pytest.raises(KeyError, match=r"no feature \('node', None, 'feat'\).*'user'"):
        store.read("node", None, "feat", torch.tensor([0]))


@pytest.mark.parametrize("key", ["feat", ("node", "feat"), ["node", None, "feat"], None])
def test_keys_of_wrong_kind(key):
    store = hp.BasicFeatureStore({})
    with pytest.raises(TypeError, match=r"expected \(domain, type or None, name\)"):
        store[key]
    with pytest.raises(TypeError, match=r"expected \(domain, type or None, name\)"):
        store[key] = constant(1)


def test_values_of_wrong_kind():
    with pytest.raises(TypeError, match="is a Tensor; expected a Feature"):
        hp.BasicFeatureStore({("node", None, "feat"): torch.zeros(2, 2)})


def test_to_a_device():
    store = hp.BasicFeatureStore({("node", None, "feat"): constant(1)})
    there = store.to("meta")
    assert there.read("node", None, "feat", torch.tensor([0])).device.type == "meta"
    assert store.read("node", None, "feat", torch.tensor([0])).device.type == "cpu"


def test_a_feature_of_the_users_that_cannot_move():
    class Still(hp.Feature):
        def read(self, ids=None):
            return torch.zeros(1, 1)

        def size(self):
            return torch.Size([1])

        def count(self):
            return 1

        def update(self, value, ids=None):
            raise NotImplementedError

    store = hp.BasicFeatureStore({("node", None, "feat"): Still()})
    assert store.read("node", None, "feat").shape == (1, 1)
    assert store.metadata("node", None, "feat") == {}
    with pytest.raises(TypeError, match="a Still, cannot be moved"):
        store.to("meta")


def listed(path, name="feat", **kwargs) -> SimpleNamespace:
    """An entry as a data set's metadata gives it."""
    entry = {
        "domain": "node",
        "type": None,
        "name": name,
        "path": path,
        "format": "numpy",
        "in_memory": True,
        "extra_fields": {},
    }
    return SimpleNamespace(**{**entry, **kwargs})


def test_a_store_of_listed_files(tmp_path):
    tensor = torch.arange(6.0).reshape(3, 2)
    np.save(tmp_path / "a.npy", tensor.numpy())
    torch.save(tensor + 10, tmp_path / "b.pt")
    store = hp.TorchBasedFeatureStore(
        [
            listed(tmp_path / "a.npy", "memory", extra_fields={"unit": "m"}),
            listed(tmp_path / "a.npy", "disk", in_memory=False),
            listed(tmp_path / "b.pt", "torch", format="torch"),
            listed(tmp_path / "a.npy", "disk", domain="edge", type="a:b:c", in_memory=False),
        ]
    )
    ids = torch.tensor([2, 0])
    assert type(store["node", None, "memory"]) is hp.TorchBasedFeature
    assert type(store["node", None, "disk"]) is hp.DiskBasedFeature
    assert torch.equal(store.read("node", None, "memory", ids), tensor[ids])
    assert torch.equal(store.read("node", None, "disk", ids), tensor[ids])
    assert torch.equal(store.read("edge", "a:b:c", "disk", ids), tensor[ids])
    assert torch.equal(store.read("node", None, "torch", ids), tensor[ids] + 10)
    assert store.metadata("node", None, "memory") == {"unit": "m"}


@pytest.mark.parametrize("in_memory", [True, False])
def test_bfloat16_files(tmp_path, in_memory):
    tensor = torch.arange(6.0).reshape(3, 2).bfloat16()
    np.save(tmp_path / "a.npy", tensor.view(torch.int16).numpy())
    entry = listed(tmp_path / "a.npy", in_memory=in_memory, extra_fields={"dtype": "bfloat16"})
    store = hp.TorchBasedFeatureStore([entry])
    assert torch.equal(store.read("node", None, "feat", torch.tensor([1])), tensor[1:2])


@pytest.mark.parametrize("order", ["F", ">"])
def test_orders_that_cannot_be_mapped_can_be_read(tmp_path, order):
    array = np.arange(6, dtype=np.float32).reshape(3, 2)
    np.save(tmp_path / "a.npy", np.asfortranarray(array) if order == "F" else array.astype(">f4"))
    store = hp.TorchBasedFeatureStore([listed(tmp_path / "a.npy")])
    assert torch.equal(store.read("node", None, "feat"), torch.from_numpy(array))
    with pytest.raises(ValueError, match="set in_memory: true"):
        hp.TorchBasedFeatureStore([listed(tmp_path / "a.npy", in_memory=False)])


def test_a_feature_listed_twice(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((1, 1)))
    with pytest.raises(ValueError, match="listed twice"):
        hp.TorchBasedFeatureStore([listed(tmp_path / "a.npy"), listed(tmp_path / "a.npy")])


class Bomb:
    def __reduce__(self):
        return print, ("ran",)


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (Bomb(), "no tensor that can be read safely"),
        ({"feat": torch.zeros(2, 2)}, "holds a dict; expected a torch.Tensor"),
        (torch.zeros(3), r"shape \(3,\); expected two dimensions"),
    ],
)
def test_tensor_files_are_read_without_running_them(tmp_path, capsys, thing, words):
    torch.save(thing, tmp_path / "b.pt")
    with pytest.raises(ValueError, match=words) as caught:
        hp.TorchBasedFeatureStore([listed(tmp_path / "b.pt", format="torch")])
    assert "b.pt" in str(caught.value)
    assert "ran" not in capsys.readouterr().out


def test_tensor_files_that_are_missing_damaged_or_to_be_mapped(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"b\.pt: no such file"):
        hp.TorchBasedFeatureStore([listed(tmp_path / "b.pt", format="torch")])
    (tmp_path / "b.pt").write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match=r"b\.pt: holds no tensor"):
        hp.TorchBasedFeatureStore([listed(tmp_path / "b.pt", format="torch")])
    with pytest.raises(ValueError, match=r"b\.pt: format torch is read into memory"):
        hp.TorchBasedFeatureStore([listed(tmp_path / "b.pt", format="torch", in_memory=False)])


@pytest.mark.parametrize("in_memory", [True, False])
def test_arrays_of_one_dimension(tmp_path, in_memory):
    np.save(tmp_path / "a.npy", np.zeros(3))
    with pytest.raises(ValueError, match=r"a\.npy: has shape \(3,\); expected two dimensions"):
        hp.TorchBasedFeatureStore([listed(tmp_path / "a.npy", in_memory=in_memory)])


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_pinning_without_a_gpu_is_told(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((3, 1)))
    disk = hp.BasicFeatureStore({("node", None, "a"): hp.DiskBasedFeature(tmp_path / "a.npy")})
    assert disk.pin_memory_() is disk  # those on disk stay there
    store = hp.BasicFeatureStore({("node", None, "feat"): constant(1)})
    assert not store.is_pinned()
    with pytest.raises(RuntimeError, match="pinning memory needs a GPU"):
        store.pin_memory_()
