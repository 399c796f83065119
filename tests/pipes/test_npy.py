"""read_npy and write_npy: what maps, what is read, what is refused."""

from __future__ import annotations

import io
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hopline.pipes.npy import read_npy, write_npy

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int16,
    torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool,
    torch.complex64,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (4,), (0,), (2, 3), (0, 3), (3, 0), (2, 2, 2)])
@pytest.mark.parametrize("in_memory", [False, True])
def test_what_is_written_is_read(tmp_path, dtype, shape, in_memory):
    tensor = (torch.arange(int(np.prod(shape))) % 3).reshape(shape).to(dtype)
    name = write_npy(tmp_path / "a.npy", tensor)
    assert name == str(dtype).removeprefix("torch.")
    again = read_npy(tmp_path / "a.npy", in_memory=in_memory, dtype=name)
    assert again.dtype == dtype
    assert again.shape == shape
    assert torch.equal(again, tensor)


def test_bfloat16_bits_may_be_unsigned(tmp_path):
    tensor = torch.tensor([1.5, -2.0, float("inf")], dtype=torch.bfloat16)
    np.save(tmp_path / "a.npy", tensor.view(torch.uint16).numpy())
    assert torch.equal(read_npy(tmp_path / "a.npy", dtype="bfloat16"), tensor)
    np.save(tmp_path / "b.npy", np.zeros(3, np.float32))
    with pytest.raises(ValueError, match=r"b\.npy: holds float32; bfloat16 is stored as int16"):
        read_npy(tmp_path / "b.npy", dtype="bfloat16")


def test_written_tensors_may_be_views(tmp_path):
    tensor = torch.arange(12).reshape(3, 4).T[1:]
    write_npy(tmp_path / "a.npy", tensor)
    assert torch.equal(read_npy(tmp_path / "a.npy"), tensor)


def test_writing_to_a_mapped_tensor_leaves_the_file(tmp_path):
    path = tmp_path / "a.npy"
    write_npy(path, torch.arange(10_000))
    before = path.read_bytes()
    mapped, other = read_npy(path), read_npy(path)
    mapped.fill_(-1)
    mapped[5:9] += 3
    assert mapped[0] == -1
    assert other.tolist() == list(range(10_000))
    assert path.read_bytes() == before
    assert read_npy(path)[7] == 7


def test_order_of_elements_and_bytes(tmp_path):
    array = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    for name, foreign, found in (
        ("fortran", np.asfortranarray(array), "Fortran order"),
        ("big", array.astype(">f4"), "big-endian"),
        ("both", np.asfortranarray(array.astype(">f4")), "big-endian"),
    ):
        path = tmp_path / f"{name}.npy"
        np.save(path, foreign)
        with pytest.raises(ValueError, match=rf"{name}\.npy: is {found}.*in_memory: true"):
            read_npy(path)
        read = read_npy(path, in_memory=True)
        assert torch.equal(read, torch.from_numpy(array))
        assert read.is_contiguous()
    np.save(tmp_path / "bytes.npy", array.astype(">u1"))  # one byte has no order
    assert read_npy(tmp_path / "bytes.npy").dtype == torch.uint8


class Trap:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return pytest.fail, ("a file was unpickled",)


@pytest.mark.parametrize("in_memory", [False, True])
def test_objects_are_refused_and_never_unpickled(tmp_path, in_memory):
    for name, array in (
        ("objects", np.array([Trap(), None], object)),
        ("nothing", np.empty(0, object)),
        ("fields", np.zeros(2, [("a", "i4"), ("b", object)])),
        ("struct", np.zeros(2, [("a", "i4"), ("b", "f4")])),
        ("text", np.array(["a", "b"])),
        ("time", np.array(["2020-01-01"], "M8[D]")),
    ):
        np.save(tmp_path / f"{name}.npy", array, allow_pickle=True)
        with pytest.raises(ValueError, match=rf"{name}\.npy: holds "):
            read_npy(tmp_path / f"{name}.npy", in_memory=in_memory)
    (tmp_path / "pickle.npy").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(ValueError, match=r"pickle\.npy: not a \.npy array"):
        read_npy(tmp_path / "pickle.npy", in_memory=in_memory)


@pytest.mark.parametrize("in_memory", [False, True])
def test_no_array_at_all(tmp_path, in_memory):
    archive = io.BytesIO()
    np.savez(archive, a=np.arange(3))
    contents = {
        "empty": b"", "word": b"hello", "npz": archive.getvalue(), "magic": b"\x93NUMPY",
        "version": b"\x93NUMPY\x09\x00", "zip": b"PK\x03\x04 cut short",
        "header": b"\x93NUMPY\x01\x00\x10\x00{'descr': 'x'   }",
    }  # fmt: skip
    for name, content in contents.items():
        path = tmp_path / f"{name}.npy"
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"{name}\.npy: not a \.npy array"):
            read_npy(path, in_memory=in_memory)
    with pytest.raises(FileNotFoundError, match=r"gone\.npy"):
        read_npy(tmp_path / "gone.npy", in_memory=in_memory)
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileNotFoundError, match="folder"):
        read_npy(tmp_path / "folder", in_memory=in_memory)


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize("keep", [1, 6, 9, 60, 127, 128, 129, 527])
def test_truncated(tmp_path, in_memory, keep):
    path = tmp_path / "a.npy"
    write_npy(path, torch.arange(50))
    assert path.stat().st_size == 528
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"a\.npy: (not a \.npy array|cut short)"):
        read_npy(path, in_memory=in_memory)


def test_another_type_than_the_one_that_is_expected(tmp_path):
    write_npy(tmp_path / "a.npy", torch.arange(3))
    with pytest.raises(ValueError, match=r"a\.npy: holds dtype int64; expected float32"):
        read_npy(tmp_path / "a.npy", dtype="float32")
    np.save(tmp_path / "b.npy", np.zeros(2, np.longdouble))
    with pytest.raises(ValueError, match=r"b\.npy: torch has no type"):
        read_npy(tmp_path / "b.npy")


@given(
    st.integers(0, 200), st.binary(min_size=1, max_size=6), st.booleans(), st.sampled_from([0, 5])
)
def test_a_damaged_file_is_read_or_refused(tmp_path_factory, place, damage, in_memory, rows):
    path = tmp_path_factory.mktemp("npy") / "a.npy"
    write_npy(path, torch.arange(4 * rows).reshape(rows, 4))
    content = bytearray(path.read_bytes())
    content[place : place + len(damage)] = damage
    path.write_bytes(content)
    try:
        tensor = read_npy(path, in_memory=in_memory)
    except ValueError as error:
        refusal = str(error)
    else:
        tensor.clone()  # every element is there
        refusal = str(path)
    assert str(path) in refusal
