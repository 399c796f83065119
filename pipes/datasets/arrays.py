"""Raw arrays as NumPy sees them: each input format opened, mapped where the format allows it."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from hopline.pipes.datasets.metadata import OnDiskFile
from hopline.pipes.datasets.npy_writer import Array
from hopline.pipes.datasets.scratch import Scratch
from hopline.pipes.datasets.tables import csv_edges, parquet_array, parquet_edges
from hopline.pipes.datasets.yaml_file import Place

__all__ = ["RawArray", "open_array", "open_edges", "row_chunks"]


@dataclass(frozen=True, slots=True)
class RawArray:
    """An opened input.

    Attributes:
        array: its values; read-only when mapped, of any byte order and memory order.
        dtype: "bfloat16" when the array holds the bits of such values, else NumPy's name.
        in_place: a .npy file that can be mapped as it stands.
    """

    array: Array
    dtype: str
    in_place: bool = False


def row_chunks(rows: int, row_bytes: int, limit: int) -> Iterator[slice]:
    """Slices of consecutive rows of at most `limit` bytes, but of at least one row."""
    step = max(1, limit // max(1, row_bytes))
    return (slice(start, min(rows, start + step)) for start in range(0, rows, step))


def open_array(entry: OnDiskFile, path: Path, place: Place, scratch: Scratch) -> RawArray:
    """Opens the file of an entry.

    Args:
        entry: what the YAML file says about it.
        path: the file.
        place: the entry, for errors.
        scratch: for converted copies.

    Returns:
        The array, of numbers, with one dimension or more. `numpy` files are mapped, `torch` files
        where torch can, `parquet` files converted to a mapped file; `npz` arrays are read whole.

    Raises:
        MetadataError: the file is damaged or holds anything but numbers.
    """
    match str(entry.format):
        case "numpy":
            raw = _open_npy(path, place)
        case "npz":
            raw = _open_npz(path, str(entry.key), place, scratch.max_memory)
        case "torch":
            raw = _open_torch(path, place)
        case _:
            array = parquet_array(path, place, scratch)
            raw = RawArray(array, array.dtype.name)
    array = raw.array
    wide = array.dtype.kind == "f" and array.dtype.itemsize > 8
    if array.dtype.kind not in "biufc" or wide or array.dtype.itemsize > 16:
        raise place.at("path").error(
            f"{path} holds dtype {array.dtype}; expected numbers that torch has a type for: "
            "convert the array"
        )
    if array.ndim == 0:
        raise place.at("path").error(
            f"{path} holds a single value of shape (); expected an array of one dimension or more"
        )
    declared = getattr(entry, "dtype", None)
    if declared is None or raw.dtype == declared:
        return raw
    if array.dtype.kind not in "iu" or array.dtype.itemsize != 2:
        raise place.at("dtype").error(
            f"is {declared}, but {path} holds {array.dtype}; expected its raw bits as int16 or "
            "uint16"
        )
    bits = array.view(array.dtype.str.replace("u", "i"))
    return RawArray(bits, declared, raw.in_place)


def _open_npy(path: Path, place: Place) -> RawArray:
    with np.errstate(over="ignore"):  # a header of a huge shape, in a file that has no such bytes
        try:
            array = np.lib.format.open_memmap(path, mode="r")
        except Exception as error:  # damaged headers raise SyntaxError, TypeError and others
            raise place.at("path").error(
                f"{path} cannot be read as a .npy array of numbers ({error}); it is damaged, cut "
                "short or not written by numpy.save(path, array, allow_pickle=False)"
            ) from error
    in_place = array.dtype.isnative and bool(array.flags.c_contiguous)
    return RawArray(np.asarray(array), array.dtype.name, in_place)


def _open_npz(path: Path, key: str, place: Place, max_memory: int) -> RawArray:
    size = 0
    try:
        with np.load(path, allow_pickle=False) as file:
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise ValueError("a single array, not an archive of arrays")
            names = list(file.files)
            if key in names and file.zip is not None:
                members = {info.filename: info.file_size for info in file.zip.infolist()}
                size = members.get(f"{key}.npy", members.get(key, 0))
            array = file[key] if key in names and size <= max_memory else None
            if array is not None and not isinstance(array, np.ndarray):
                raise ValueError(f"{key!r} in it is no .npy array")
    except (ValueError, OSError, EOFError, KeyError, SyntaxError, TypeError, AttributeError,
            NotImplementedError, MemoryError, zipfile.BadZipFile, zlib.error) as error:  # fmt: skip
        raise place.at("path").error(
            f"{path} cannot be read as an .npz file of numbers ({error}); write it with "
            "numpy.savez(path, name=array)"
        ) from error
    if size > max_memory:
        raise place.at("path").error(
            f"array {key!r} of {path} takes {size} bytes, which are read whole, above max_memory, "
            f"{max_memory}; give more, or save the array as a .npy file, which is mapped"
        )
    if array is None:
        raise place.at("key").error(f"no array {key!r} in {path}; it has {names}")
    return RawArray(array, array.dtype.name)


def _open_torch(path: Path, place: Place) -> RawArray:
    try:
        try:
            tensor = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError:  # files of old versions of torch cannot be mapped
            tensor = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged or hostile file makes the reader raise anything
        raise place.at("path").error(
            f"{path} cannot be read as a tensor without running code from it "
            f"({str(error).splitlines()[0] if str(error) else type(error).__name__}); write it "
            "with torch.save(tensor, path)"
        ) from error
    if (what := _not_dense(tensor)) is not None:
        raise place.at("path").error(f"{path} holds {what}; expected one dense tensor")
    tensor = tensor.detach()
    if tensor.numel() * tensor.itemsize > tensor.untyped_storage().nbytes():
        raise place.at("path").error(
            f"{path} holds a tensor of shape {tuple(tensor.shape)} that repeats its memory "
            f"(strides {tensor.stride()}); expected values of its own: write tensor.contiguous()"
        )
    if tensor.dtype == torch.bfloat16:
        return RawArray(tensor.view(torch.int16).numpy(), "bfloat16")
    try:
        array = tensor.resolve_conj().resolve_neg().numpy()
    except (TypeError, RuntimeError) as error:
        raise place.at("path").error(
            f"{path} holds dtype {tensor.dtype}, which NumPy has no type for; expected a plain "
            "number type or bfloat16: convert the tensor"
        ) from error
    return RawArray(array, array.dtype.name)


def _not_dense(value: object) -> str | None:
    """What a value is that is no dense tensor of plain values; None if it is one."""
    if not isinstance(value, torch.Tensor):
        return f"a {type(value).__name__}"
    if value.is_nested:
        return "a nested tensor"
    if value.layout != torch.strided:
        return "a sparse tensor"
    return "a tensor on the device meta, without values" if value.is_meta else None


def open_edges(
    entry: OnDiskFile, path: Path, place: Place, scratch: Scratch
) -> tuple[Array, Array]:
    """Opens the edges of one type.

    Args:
        entry: what the YAML file says about them.
        path: the file.
        place: the entry, for errors.
        scratch: for converted copies.

    Returns:
        Sources and destinations: integer[num_edges] each, mapped where possible.

    Raises:
        MetadataError: the file is damaged, or not two equally long columns of integers.
    """
    match str(entry.format):
        case "csv":
            array = csv_edges(path, place, scratch)
            src, dst = array[:, 0], array[:, 1]
        case "parquet":
            array = parquet_edges(path, place, scratch)
            src, dst = array[:, 0], array[:, 1]
        case _:
            raw = open_array(entry, path, place, scratch)
            array = raw.array if raw.dtype != "bfloat16" else raw.array.astype(np.float16)
            if array.ndim != 2 or array.shape[0] != 2:
                hint = "; save its transpose" if array.ndim == 2 and array.shape[1] == 2 else ""
                raise place.at("path").error(
                    f"{path} has shape {array.shape}; expected (2, number of edges): sources, then "
                    f"destinations{hint}"
                )
            src, dst = array[0], array[1]
    if array.dtype.kind not in "iu":
        raise place.at("path").error(
            f"{path} holds {array.dtype}; expected integers, e.g. int64: node ids"
        )
    return src, dst
