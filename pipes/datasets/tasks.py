"""Item sets of tasks: checked, normalised, and written as .npy files."""

from __future__ import annotations

from typing import Any

import numpy as np

from hopline.pipes.datasets.arrays import RawArray, row_chunks
from hopline.pipes.datasets.edge_source import check_range
from hopline.pipes.datasets.location import slug
from hopline.pipes.datasets.metadata import OnDiskTaskData, OnDiskTVTSet
from hopline.pipes.datasets.processed import StoredArray, StoredColumn, StoredSet, StoredTask
from hopline.pipes.datasets.workplace import Sizes, Workplace, attribute_dtype
from hopline.pipes.datasets.yaml_file import Place, show

__all__ = ["SPLITS", "store_task"]

SPLITS = ("train_set", "validation_set", "test_set")


def store_task(work: Workplace, number: int, task: OnDiskTaskData, place: Place) -> StoredTask:
    """Checks and writes the three sets of a task.

    Raises:
        MetadataError: a set has a wrong type, a column a wrong shape, dtype, length or id.
    """
    stored: dict[str, list[StoredSet]] = {}
    for split in SPLITS:
        entries: list[OnDiskTVTSet] = getattr(task, split)
        at = place.at(split)
        _check_sets(work.sizes, entries, at)
        stored[split] = [
            StoredSet(
                type=entry.type,
                columns=_store_columns(
                    work, f"tasks/{number}-{split}/{i}", entry, task.extra_fields, at.at(i)
                ),
            )
            for i, entry in enumerate(entries)
        ]
    return StoredTask(metadata=task.extra_fields, **stored)


def _check_sets(sizes: Sizes, entries: list[OnDiskTVTSet], place: Place) -> None:
    seen: set[str | None] = set()
    for i, entry in enumerate(entries):
        at = place.at(i)
        if (entry.type is None) == sizes.typed:
            raise at.at("type").error(
                f"got {entry.type!r}; expected "
                + ("a node or edge type, since the graph has types" if sizes.typed
                   else "none, since the graph has no types: remove it")
            )  # fmt: skip
        if entry.type in seen:
            raise at.at("type").error(f"{entry.type!r} is given twice; give each type one entry")
        seen.add(entry.type)
        names = [column.name for column in entry.data]
        for k, name in enumerate(names):
            if (name is None) != (names[0] is None):
                raise (
                    at.at("data")
                    .at(k)
                    .at("name")
                    .error(f"got {name!r}; expected a name for each column, or for none")
                )
            if name is not None and name in names[:k]:
                raise at.at("data").at(k).at("name").error(f"{name!r} is given twice; rename one")
        expected = [column.name for column in entries[0].data]
        if names != expected:
            raise at.at("data").error(
                f"has the columns {names}; expected {expected}, as for the first type"
            )


def _store_columns(
    work: Workplace, path: str, entry: OnDiskTVTSet, metadata: dict[str, Any], place: Place
) -> list[StoredColumn]:
    out: list[StoredColumn] = []
    length: int | None = None
    for k, column in enumerate(entry.data):
        at = place.at("data").at(k)
        raw = work.open(column, at)
        length = len(raw.array) if length is None else length
        if len(raw.array) != length:
            raise at.at("path").error(
                f"{column.path} has {len(raw.array)} rows; expected {length}, as in the columns "
                "before"
            )
        dtype = raw.array.dtype.newbyteorder("=")
        if column.name == "seeds":
            _check_seeds(work, entry.type, raw, at)
            dtype = work.seed_dtype
        elif dtype.kind in "iu" and raw.dtype != "bfloat16":
            dtype = _integer_dtype(raw, at)
        _check_meaning(work, column.name, raw, metadata, at)
        file = f"{path}-{k}-{slug(column.name or 'items')}.npy"
        work.write(file, dtype, raw.array.shape, [raw.array])
        stored = StoredArray(root="preprocessed", path=file, shape=raw.array.shape,
                             dtype=raw.dtype if raw.dtype == "bfloat16" else dtype.name,
                             in_memory=column.in_memory)  # fmt: skip
        out.append(StoredColumn(name=column.name, array=stored))
    return out


def _integer_dtype(raw: RawArray, place: Place) -> np.dtype[Any]:
    """Narrow and unsigned integers become int64: as an index, uint8 would be taken for a mask."""
    attribute_dtype(raw, place)
    dtype = raw.array.dtype.newbyteorder("=")
    return dtype if dtype == np.int32 else np.dtype(np.int64)


def _ends(sizes: Sizes, kind: str | None, columns: int, place: Place) -> list[str | None]:
    """The node type of each column of seeds."""
    if kind is None:
        return [None] * columns
    if kind in sizes.nodes:
        parts: list[str] = [kind]
    else:
        parts = kind.split(":")
        if len(parts) == 3 and columns == 2:
            parts = [parts[0], parts[2]]
    known = [name for name in (*sizes.nodes, *sizes.edges) if name is not None]
    if any(part not in sizes.nodes for part in parts):
        raise place.at("type").error(
            f"got {kind!r}; expected a node type, or an edge type between node types, of "
            f"{show(known, 200)}"
        )
    if len(parts) != columns:
        raise place.at("data").error(
            f"seeds of type {kind!r} have {columns} node(s) a row; expected {len(parts)}: shape "
            "(N,) for a node type, (N, 2) for an edge type"
        )
    return list(parts)


def _check_seeds(work: Workplace, kind: str | None, raw: RawArray, place: Place) -> None:
    seeds = raw.array
    if seeds.dtype.kind not in "iu" or raw.dtype == "bfloat16":
        hint = "; np.flatnonzero(mask) gives those of a mask" if seeds.dtype.kind == "b" else ""
        raise place.at("path").error(
            f"seeds have dtype {raw.dtype}; expected integers: node ids{hint}"
        )
    if seeds.ndim > 2 or (seeds.ndim == 2 and seeds.shape[1] < 2):
        raise place.at("path").error(
            f"seeds have shape {seeds.shape}; expected (N,) for nodes, (N, 2) for edges"
        )
    set_place = Place(place.file, place.key.rsplit(".data[", 1)[0])
    ends = _ends(work.sizes, kind, 1 if seeds.ndim == 1 else seeds.shape[1], set_place)
    columns = [seeds] if seeds.ndim == 1 else list(seeds.T)
    for ids, end in zip(columns, ends, strict=True):
        same = [other for other, kind in zip(columns, ends, strict=True) if kind == end]
        name = work.sizes.describe("node", end)
        count, offset = work.sizes.nodes[end], work.sizes.offsets[end]
        for rows in row_chunks(len(ids), 8, work.max_memory // 8):
            check_range(ids[rows], rows.start, ids, count, "seed", name, offset, place, same)


def _check_meaning(
    work: Workplace, name: str | None, raw: RawArray, metadata: dict[str, Any], place: Place
) -> None:
    """What the name of a column promises."""
    array = raw.array
    if raw.dtype == "bfloat16":
        return
    classes = metadata.get("num_classes")
    is_class = isinstance(classes, int) and classes > 1 and array.ndim == 1
    if name == "timestamp" or (name == "labels" and is_class):
        work.check_finite(array, name, place)
    if name == "timestamp" and array.dtype.kind not in "iuf":
        raise place.at("path").error(f"timestamp has dtype {array.dtype}; expected numbers")
    if name == "indexes" and array.dtype.kind not in "iu":
        raise place.at("path").error(f"indexes have dtype {array.dtype}; expected integers")
    if name == "labels" and is_class and array.dtype.kind in "iu":
        for rows in row_chunks(len(array), array.dtype.itemsize, work.max_memory // 8):
            high = int(array[rows].max())
            if high >= int(str(classes)):
                raise place.at("path").error(
                    f"labels reach {high}; expected less than num_classes, which is {classes}: "
                    "classes are numbered from 0"
                )
