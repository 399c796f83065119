"""Tables as arrays: CSV and parquet files, converted once to files that can be mapped."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from hopline.pipes.datasets.npy_writer import Array, NpyWriter
from hopline.pipes.datasets.yaml_file import MetadataError, Place, show

__all__ = ["csv_edges", "parquet_array", "parquet_edges"]

CSV_LINES = 1 << 16  # lines parsed at a time
CSV_LINE = re.compile(r"\s*-?\d+\s*,\s*-?\d+\s*")
PARQUET_ROWS = 1 << 16


def _new_file(scratch: Path) -> Path:
    return scratch / f"{len(list(scratch.iterdir()))}.npy"


def csv_edges(path: Path, place: Place, scratch: Path) -> Array:
    """Lines `source,destination`, without header.

    Args:
        path: the file.
        place: its entry, for errors.
        scratch: existing folder for the converted copy.

    Returns:
        int64[num_edges, 2].

    Raises:
        MetadataError: a line is anything else; gives its number.
    """
    target = _new_file(scratch)
    rows = number = 0
    with path.open(encoding="utf-8-sig", errors="replace") as text, target.open("wb") as out:
        while lines := list(islice(text, CSV_LINES)):
            full = [line for line in lines if not line.isspace()]
            if full:
                try:
                    block = np.loadtxt(full, np.int64, delimiter=",", comments=None, ndmin=2)
                    if block.shape[1] != 2:
                        raise ValueError(f"{block.shape[1]} columns")
                except ValueError as error:
                    raise _csv_error(lines, number, path, place, error) from error
                out.write(np.ascontiguousarray(block).data)
                rows += len(block)
            number += len(lines)
    if rows == 0:
        return np.empty((0, 2), np.int64)
    return np.memmap(target, np.int64, mode="r", shape=(rows, 2))


def _csv_error(
    lines: list[str], first: int, path: Path, place: Place, error: ValueError
) -> MetadataError:
    for i, line in enumerate(lines):
        if not line.isspace() and not CSV_LINE.fullmatch(line.rstrip("\n")):
            return place.at("path").error(
                f"line {first + i + 1} of {path} is {show(line.rstrip())}; expected "
                "source,destination: two integers, no header, no index column"
            )
    return place.at("path").error(f"{path} near line {first + 1}: {error}; expected two integers")


def parquet_array(path: Path, place: Place, scratch: Path) -> Array:
    """One column of numbers or of lists of one length; or several, side by side.

    Args:
        path: the file.
        place: its entry, for errors.
        scratch: existing folder for the converted copy.

    Returns:
        Numbers of shape [rows] or [rows, columns].

    Raises:
        MetadataError: the file is damaged, has missing values, other types or lists of several
            lengths.
    """
    file = _parquet_file(path, place)
    rows = int(file.metadata.num_rows)
    target = _new_file(scratch)
    writer: NpyWriter | None = None
    with ExitStack() as stack:
        for batch in _batches(file, path, place):
            columns = [
                _column(batch.column(i), name, path, place)
                for i, name in enumerate(batch.schema.names)
            ]
            block = columns[0] if len(columns) == 1 else _stack(columns, path, place)
            if block.dtype.kind not in "biuf":
                raise place.at("path").error(f"{path} holds {block.dtype}; expected numbers")
            if writer is None:
                shape = (rows, *block.shape[1:])
                writer = stack.enter_context(NpyWriter(target, block.dtype, shape))
            if block.shape[1:] != writer.shape[1:] or block.dtype != writer.dtype:
                raise place.at("path").error(
                    f"{path} changes from rows of {writer.dtype}{writer.shape[1:]} to "
                    f"{block.dtype}{block.shape[1:]}; expected lists that do not differ in length"
                )
            writer.append(block)
    if writer is None:
        raise place.at("path").error(f"{path} has no rows, so its type is unknown; use .npy")
    return np.asarray(np.lib.format.open_memmap(target, mode="r"))


def parquet_edges(path: Path, place: Place, scratch: Path) -> Array:
    """The columns src and dst; or the two columns that there are, in their order.

    Args:
        path: the file.
        place: its entry, for errors.
        scratch: existing folder for the converted copy.

    Returns:
        int64[num_edges, 2].

    Raises:
        MetadataError: the file is damaged or has other columns.
    """
    file = _parquet_file(path, place)
    names = list(file.schema_arrow.names)
    chosen = ["src", "dst"] if {"src", "dst"} <= set(names) else names
    if len(chosen) != 2:
        raise place.at("path").error(
            f"{path} has the columns {show(names)}; expected columns src and dst, or just two"
        )
    target = _new_file(scratch)
    shape = (int(file.metadata.num_rows), 2)
    with NpyWriter(target, np.dtype(np.int64), shape) as writer:
        for batch in _batches(file, path, place, chosen):
            columns = [_column(batch.column(name), name, path, place) for name in chosen]
            for name, column in zip(chosen, columns, strict=True):
                if column.dtype.kind not in "iu" or column.ndim != 1:
                    raise place.at("path").error(
                        f"column {name!r} of {path} holds {column.dtype}; expected integers: node "
                        "ids"
                    )
            writer.append(np.stack(columns, axis=1).astype(np.int64))
    return np.asarray(np.lib.format.open_memmap(target, mode="r"))


def _parquet_file(path: Path, place: Place) -> Any:
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise place.at("format").error(
            "is parquet, but pyarrow is not installed; install hopline with the extra 'parquet', "
            "or convert the file to .npy"
        ) from error
    try:
        return parquet.ParquetFile(path)
    except Exception as error:  # Arrow has errors of its own beside OSError and ValueError
        raise place.at("path").error(
            f"{path} cannot be read as a parquet file ({str(error).splitlines()[0]})"
        ) from error


def _batches(
    file: Any, path: Path, place: Place, columns: list[str] | None = None
) -> Iterator[Any]:
    batches = file.iter_batches(batch_size=PARQUET_ROWS, columns=columns)
    while True:
        try:
            batch = next(batches, None)
        except Exception as error:
            raise place.at("path").error(f"{path} is damaged ({error})") from error
        if batch is None:
            return
        if len(batch):
            yield batch


def _column(values: Any, name: str, path: Path, place: Place) -> Array:
    """An Arrow column as an array: 1-D, or 2-D for lists of one length."""
    try:
        if values.null_count:
            raise ValueError("it has missing values")
        if hasattr(values, "flatten") and hasattr(values.type, "value_type"):
            flat = values.flatten()
            if flat.null_count or (len(values) and len(flat) % len(values)):
                raise ValueError("its lists differ in length or have missing values")
            lengths = values.value_lengths().to_numpy(zero_copy_only=False)
            if len(lengths) and lengths.min() != lengths.max():
                raise ValueError("its lists differ in length")
            width = int(lengths[0]) if len(lengths) else 0
            return np.asarray(flat.to_numpy(zero_copy_only=False)).reshape(len(values), width)
        return np.asarray(values.to_numpy(zero_copy_only=False))
    except Exception as error:
        raise place.at("path").error(
            f"column {name!r} of {path} cannot be read as numbers ({error})"
        ) from error


def _stack(columns: list[Array], path: Path, place: Place) -> Array:
    kinds = {column.dtype for column in columns}
    if len(kinds) > 1 or any(column.ndim != 1 for column in columns):
        raise place.at("path").error(
            f"the columns of {path} hold {sorted(map(str, kinds))}; expected one number type"
        )
    return np.stack(columns, axis=1) if columns else np.empty((0, 0))
