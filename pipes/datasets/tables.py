"""Tables as arrays: CSV and parquet files, converted once to files that can be mapped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from hopline.pipes.datasets.ahead import ahead
from hopline.pipes.datasets.npy_writer import Array
from hopline.pipes.datasets.scratch import Scratch
from hopline.pipes.datasets.yaml_file import Place, show
from hopline.pipes.kernels import sorting

__all__ = ["csv_edges", "parquet_array", "parquet_edges"]

CSV_BLOCK = 1 << 20  # bytes parsed at a time
CSV_LINE = 1 << 16  # bytes that a line may have
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
PARQUET_ROWS = 1 << 19  # rows converted at a time
WIDTHS = {"INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}  # bytes a value


class _TooWide(Exception):
    """An id does not fit in int32."""


class _Parsed(NamedTuple):
    """A block of lines: node ids [n, 2], number of lines, bytes."""

    pairs: Array
    lines: int
    size: int


def csv_edges(path: Path, place: Place, scratch: Scratch) -> Array:
    """Lines `source,destination`, without header.

    Args:
        path: the file.
        place: its entry, for errors.
        scratch: for the converted copy.

    Returns:
        int32[num_edges, 2]; int64 where an id is too big.

    Raises:
        MetadataError: a line is anything else; gives its number.
        OSError: the disk has no room for the copy.
    """
    block = max(16, min(CSV_BLOCK, scratch.max_memory // 32))  # its ids take four times as much

    def convert(out: BinaryIO, dtype: np.dtype[Any]) -> tuple[np.dtype[Any], tuple[int, ...]]:
        rows = 0
        size = path.stat().st_size
        with (
            scratch.progress.phase(f"reading {path.name}", size, "B") as advance,
            closing(ahead(_parsed(path, place, block, dtype))) as blocks,
        ):
            for parsed in blocks:
                out.write(parsed.pairs.reshape(-1).view(np.uint8).data)
                rows += len(parsed.pairs)
                advance(parsed.size)
        return dtype, (rows, 2)

    return scratch.converted(path, "edges", lambda out: _narrow(convert, out), _csv_bytes(path))


def _narrow(convert: Any, out: BinaryIO) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Converts to int32; anew to int64 if an id does not fit."""
    try:
        result: tuple[np.dtype[Any], tuple[int, ...]] = convert(out, np.dtype(np.int32))
    except _TooWide:
        out.seek(0)
        out.truncate()
        result = convert(out, np.dtype(np.int64))
    return result


def _csv_bytes(path: Path) -> int:
    """Size of the copy, by the length of the first lines."""
    with path.open("rb") as file:
        start = file.read(CSV_LINE)
    lines = start.count(b"\n") + start.count(b"\r") + 1
    return path.stat().st_size * 8 * lines // max(1, len(start))


def _parsed(path: Path, place: Place, block: int, dtype: np.dtype[Any]) -> Iterator[_Parsed]:
    before = 0  # lines
    for text in _blocks(path, place, block):
        pairs = np.empty((len(text) // 4 + 2, 2), np.int64)
        rows, lines, bad = sorting.parse_pairs(np.frombuffer(text, np.uint8), len(text), pairs)
        if bad >= 0:
            line = text[bad : bad + CSV_LINE].splitlines()[0].decode(errors="replace")
            raise place.at("path").error(
                f"line {before + lines + 1} of {path} is {show(line.rstrip())}; expected "
                "source,destination: two integers below 2**63, no header, no index column"
            )
        before += lines
        yield _Parsed(_cast(pairs[:rows], dtype), lines, len(text))


def _cast(pairs: Array, dtype: np.dtype[Any]) -> Array:
    if dtype == np.int32 and pairs.size:
        limits = np.iinfo(np.int32)
        if int(pairs.min()) < limits.min or int(pairs.max()) > limits.max:
            raise _TooWide
    return pairs.astype(dtype)


def _blocks(path: Path, place: Place, size: int) -> Iterator[bytes]:
    """Whole lines; the last one may lack its end."""
    with path.open("rb") as file:
        if file.read(len(BYTE_ORDER_MARK)) != BYTE_ORDER_MARK:
            file.seek(0)
        rest = b""
        while more := file.read(size):
            text = rest + more
            end = text.rfind(b"\n") + 1 or text.rfind(b"\r", 0, len(text) - 1) + 1
            if end == 0 and len(text) > CSV_LINE + size:
                raise place.at("path").error(
                    f"{path} has a line of more than {CSV_LINE} bytes: {show(text[:40])}; expected "
                    "lines source,destination: two integers"
                )
            if end:
                yield text[:end]
            rest = text[end:]
        if rest:
            yield rest


def parquet_array(path: Path, place: Place, scratch: Scratch) -> Array:
    """One column of numbers or of lists of one length; or several, side by side.

    Args:
        path: the file.
        place: its entry, for errors.
        scratch: for the converted copy.

    Returns:
        Numbers of shape [rows] or [rows, columns].

    Raises:
        MetadataError: the file is damaged, has missing values, other types, lists of several
            lengths, or rows too large for max_memory.
        OSError: the disk has no room for the copy.
    """
    file = _parquet_file(path, place)
    rows = int(file.metadata.num_rows)

    def convert(out: BinaryIO) -> tuple[np.dtype[Any], tuple[int, ...]]:
        first: Array | None = None
        with scratch.progress.phase(f"reading {path.name}", rows, "row") as advance:
            for batch in _batches(file, path, place, scratch.max_memory):
                columns = [
                    _column(batch.column(i), name, path, place)
                    for i, name in enumerate(batch.schema.names)
                ]
                block = columns[0] if len(columns) == 1 else _stack(columns, path, place)
                if block.dtype.kind not in "biuf":
                    raise place.at("path").error(f"{path} holds {block.dtype}; expected numbers")
                first = block[:1].copy() if first is None else first
                if block.shape[1:] != first.shape[1:] or block.dtype != first.dtype:
                    raise place.at("path").error(
                        f"{path} changes from rows of {first.dtype}{first.shape[1:]} to "
                        f"{block.dtype}{block.shape[1:]}; expected lists that do not differ in "
                        "length"
                    )
                if block.size:
                    out.write(np.ascontiguousarray(block).reshape(-1).view(np.uint8).data)
                advance(len(block))
        if first is None:
            raise place.at("path").error(f"{path} has no rows, so its type is unknown; use .npy")
        return first.dtype, (rows, *first.shape[1:])

    return scratch.converted(path, "array", convert, _decoded(file))


def parquet_edges(path: Path, place: Place, scratch: Scratch) -> Array:
    """The columns src and dst; or the two columns that there are, in their order.

    Args:
        path: the file.
        place: its entry, for errors.
        scratch: for the converted copy.

    Returns:
        int32[num_edges, 2]; int64 where an id is too big.

    Raises:
        MetadataError: the file is damaged or has other columns.
        OSError: the disk has no room for the copy.
    """
    file = _parquet_file(path, place)
    names = list(file.schema_arrow.names)
    chosen = ["src", "dst"] if {"src", "dst"} <= set(names) else names
    if len(chosen) != 2:
        raise place.at("path").error(
            f"{path} has the columns {show(names)}; expected columns src and dst, or just two"
        )
    rows = int(file.metadata.num_rows)

    def pairs(dtype: np.dtype[Any]) -> Iterator[Array]:
        for batch in _batches(file, path, place, scratch.max_memory, chosen):
            columns = [_column(batch.column(name), name, path, place) for name in chosen]
            for name, column in zip(chosen, columns, strict=True):
                if column.dtype.kind not in "iu" or column.ndim != 1:
                    raise place.at("path").error(
                        f"column {name!r} of {path} holds {column.dtype}; expected integers: node "
                        "ids"
                    )
                if column.dtype == np.uint64 and (column >> np.uint64(63)).any():
                    raise place.at("path").error(
                        f"column {name!r} of {path} holds {column.max()}; expected node ids, below "
                        "2**63"
                    )
            block = np.empty((len(batch), 2), dtype)
            for i, column in enumerate(columns):
                block[:, i] = _cast(column, dtype)
            yield block

    def convert(out: BinaryIO, dtype: np.dtype[Any]) -> tuple[np.dtype[Any], tuple[int, ...]]:
        with (
            scratch.progress.phase(f"reading {path.name}", rows) as advance,
            closing(ahead(pairs(dtype))) as blocks,
        ):
            for block in blocks:
                out.write(block.reshape(-1).view(np.uint8).data)
                advance(len(block))
        return dtype, (rows, 2)

    return scratch.converted(path, "edges", lambda out: _narrow(convert, out), 8 * rows)


def _decoded(file: Any) -> int:
    """Bytes of a parquet file's values in memory; runs of equal ones take next to none in it."""
    groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
    columns = [group.column(i) for group in groups for i in range(group.num_columns)]
    return sum(
        max(c.total_uncompressed_size, c.num_values * WIDTHS.get(c.physical_type, 1))
        for c in columns
    )


def _parquet_file(path: Path, place: Place) -> Any:
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise place.at("format").error(
            "is parquet, but pyarrow is not installed; install hopline with the extra 'parquet', "
            "or convert the file to .npy"
        ) from error
    try:
        file = parquet.ParquetFile(path, memory_map=True, pre_buffer=False)
    except Exception as error:  # Arrow has errors of its own beside OSError and ValueError
        raise place.at("path").error(
            f"{path} cannot be read as a parquet file ({str(error).splitlines()[0]})"
        ) from error
    names = list(file.schema_arrow.names)
    if len(set(names)) < len(names):
        raise place.at("path").error(
            f"{path} has the columns {show(names)}; expected each name once"
        )
    return file


def _batches(
    file: Any, path: Path, place: Place, max_memory: int, columns: list[str] | None = None
) -> Iterator[Any]:
    row_bytes = max(16, -(-_decoded(file) // max(1, file.metadata.num_rows)))
    if row_bytes > max_memory // 8:
        raise place.at("path").error(
            f"a row of {path} takes {row_bytes} bytes, of which several are held at once, for "
            f"max_memory, {max_memory}; give more, or save the array as a .npy file"
        )
    rows = max(1, min(PARQUET_ROWS, max_memory // 8 // row_bytes))
    batches = file.iter_batches(batch_size=rows, columns=columns)
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
