"""DiskBasedFeature: .npy files, good and bad; what is read never changes the file."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

import hopline.pipes as hp
from tests.pipes.features.test_tensor import DTYPES, SHAPES, rows
from tests.stage_checks import assert_same


def save(path, array):
    np.save(path, array, allow_pickle=False)
    return path


@pytest.mark.parametrize("ids_dtype", [torch.int32, torch.int64, torch.uint8])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != torch.bfloat16])
def test_rows_come_back_bit_by_bit(tmp_path, dtype, shape, ids_dtype):
    tensor = rows(10, shape, dtype)
    feature = hp.DiskBasedFeature(save(tmp_path / "x.npy", tensor.numpy()))
    for ids in ([9, 0, 3], [4, 4, 4, 4], []):
        ids = torch.tensor(ids, dtype=ids_dtype)
        assert_same(feature.read(ids), tensor[ids.long()])
    assert_same(feature.read(), tensor)
    assert (feature.count(), feature.size()) == (10, torch.Size(shape))


@pytest.mark.parametrize("bits", [np.int16, np.uint16])
def test_bfloat16_is_stored_as_raw_bits(tmp_path, bits):
    tensor = rows(10, (3,), torch.bfloat16)
    path = save(tmp_path / "x.npy", tensor.view(torch.int16).numpy().view(bits))
    feature = hp.DiskBasedFeature(path, {"dtype": "bfloat16", "more": 1})
    ids = torch.tensor([3, 3, 9])
    assert_same(feature.read(ids), tensor[ids])
    assert feature.metadata() == {"dtype": "bfloat16", "more": 1}
    assert_same(feature.read_into_memory().read(ids), tensor[ids])


def test_bfloat16_needs_16_bits(tmp_path):
    path = save(tmp_path / "x.npy", np.zeros((3, 2), np.float32))
    with pytest.raises(ValueError, match=r"x\.npy: holds float32; bfloat16 is stored as int16"):
        hp.DiskBasedFeature(path, {"dtype": "bfloat16"})


def test_ids_out_of_range(tmp_path):
    feature = hp.DiskBasedFeature(save(tmp_path / "x.npy", np.zeros((10, 2), np.float32)))
    for bad in (10, -1, 2**40):
        with pytest.raises(IndexError, match=rf"id {bad} at position 1 is outside \[0, 10\)"):
            feature.read(torch.tensor([0, bad]))


def test_no_rows(tmp_path):
    feature = hp.DiskBasedFeature(save(tmp_path / "x.npy", np.zeros((0, 3), np.float16)))
    assert (feature.count(), feature.size()) == (0, torch.Size([3]))
    assert feature.read(torch.empty(0, dtype=torch.int32)).shape == (0, 3)
    with pytest.raises(IndexError, match=r"id 0 .* outside \[0, 0\)"):
        feature.read(torch.tensor([0]))


def test_changes_in_place_reach_neither_the_file_nor_the_feature(tmp_path):
    array = np.arange(3000, dtype=np.float32).reshape(1000, 3)
    path = save(tmp_path / "x.npy", array)
    before = path.read_bytes()
    feature = hp.DiskBasedFeature(path)
    ids = torch.arange(1000)
    for got in (feature.read(ids), feature.read(), feature.read_into_memory().read()):
        got.fill_(-1)
        got.numpy()[0] = 7
    memory = feature.read_into_memory()
    memory.update(torch.zeros(1, 3), torch.tensor([5]))
    assert memory.read(torch.tensor([5])).sum() == 0
    assert torch.equal(feature.read(ids), torch.from_numpy(array))
    assert path.read_bytes() == before


def test_update_is_refused(tmp_path):
    feature = hp.DiskBasedFeature(save(tmp_path / "x.npy", np.ones((4, 2), np.float32)))
    with pytest.raises(TypeError, match=r"x\.npy is read-only here; use .*read_into_memory"):
        feature.update(torch.zeros(4, 2))


def cut(path, array):
    save(path, array)
    path.write_bytes(path.read_bytes()[:-5])


def objects(path, array):
    np.save(path, np.array([[{}, print]], dtype=object), allow_pickle=True)


BAD = {
    "big-endian": (lambda path, a: save(path, a.astype(">f4")), "big-endian and cannot be mapped"),
    "fortran": (lambda path, a: save(path, np.asfortranarray(a)), "Fortran order and cannot be"),
    "objects": (objects, "Python objects"),
    "cut": (cut, r"cut short: shape \(40, 3\) of float32 needs 480 bytes, the file has"),
    "text": (lambda path, a: path.write_text("1,2\n3,4\n"), "not a .npy array"),
    "empty": (lambda path, a: path.write_bytes(b""), "not a .npy array"),
    "strings": (lambda path, a: save(path, np.array([["a"]])), "holds dtype <U1"),
    "records": (lambda path, a: save(path, np.zeros((2, 2), "f4,i4")), "expected numbers"),
    "one dimension": (lambda path, a: save(path, a[:, 0]), r"shape \(40,\); expected two dim"),
}


@pytest.mark.parametrize("name", BAD)
def test_files_that_cannot_be_used(tmp_path, name):
    write, words = BAD[name]
    path = tmp_path / "x.npy"
    write(path, np.ones((40, 3), np.float32))
    with pytest.raises(ValueError, match=words) as caught:
        hp.DiskBasedFeature(path)
    assert str(path) in str(caught.value)


def test_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.npy: no such file"):
        hp.DiskBasedFeature(tmp_path / "nowhere.npy")


def test_a_pickle_is_not_opened(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (tmp_path / "touched").touch, ()

    path = tmp_path / "x.npy"
    with path.open("wb") as file:
        pickle.dump(Bomb(), file)
    with pytest.raises(ValueError, match=r"not a \.npy array"):
        hp.DiskBasedFeature(path)
    np.save(path, np.array([[Bomb()]], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="Python objects"):
        hp.DiskBasedFeature(path)
    assert not (tmp_path / "touched").exists()


def test_a_feature_travels_as_its_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save("x.npy", np.arange(200_000, dtype=np.float32).reshape(-1, 2))
    pickled = pickle.dumps(hp.DiskBasedFeature("x.npy", {"a": 1}, direct=False, num_threads=3))
    assert len(pickled) < 1000
    monkeypatch.chdir("/")
    there = pickle.loads(pickled)  # noqa: S301, our own
    assert there.read(torch.tensor([7])).tolist() == [[14.0, 15.0]]
    assert there.metadata() == {"a": 1}
    assert (there.direct, there.num_threads) == (False, 3)
    assert "x.npy" in repr(there)


def test_to_a_device_reads_it_into_memory(tmp_path):
    feature = hp.DiskBasedFeature(save(tmp_path / "x.npy", np.ones((4, 2), np.float32)), {"a": 1})
    assert feature.to("cpu") is feature
    there = feature.to("meta")
    assert type(there) is hp.TorchBasedFeature
    assert there.read(torch.tensor([0])).device.type == "meta"
    assert there.metadata() == {"a": 1}
    assert not feature.is_pinned()
    with pytest.raises(TypeError, match="not in memory"):
        feature.pin_memory_()
