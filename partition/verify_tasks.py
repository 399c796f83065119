"""check_tasks: compares the item sets of a partition with those of the data set."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import yaml

from hopline.partition.manifest import PartitionError, PartitionManifest, check_plain
from hopline.partition.part import load_tasks
from hopline.partition.relabel import node_types_of
from hopline.partition.task_items import SPLITS, ends_of_column
from hopline.pipes.items import HeteroItemSet, ItemSet
from hopline.pipes.plain_yaml import show

__all__ = ["check_tasks", "same"]

CHUNK = 1 << 16  # items compared at a time

Array = np.ndarray[Any, Any]


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors hold the same bits, NaN included."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    a, b = a.contiguous().reshape(-1), b.contiguous().reshape(-1)
    return len(a) == 0 or bool(torch.equal(a.view(torch.uint8), b.view(torch.uint8)))


def check_tasks(
    path: Any, manifest: PartitionManifest, dataset: Any, offsets: Array, original: Array
) -> None:
    """Compares all tasks.

    Args:
        path: the partition's folder.
        manifest: its description.
        dataset: the data set that was partitioned.
        offsets: int64[num_node_types + 1], first fused id of each type.
        original: int64[num_nodes], fused ids before, by new fused ids.

    Raises:
        PartitionError: something differs; names the task, the set and the column, or the metadata.
        TypeError: the data set's metadata hold something else than plain values.
    """
    starts = dict(zip(node_types_of(dataset.graph), offsets.tolist(), strict=False))
    found = load_tasks(path, manifest, check="size")  # all files have been read
    if len(found) != len(dataset.tasks):
        raise PartitionError(f"there are {len(found)} tasks; expected {len(dataset.tasks)}")
    for number, (task, expected) in enumerate(zip(found, dataset.tasks, strict=True)):
        _check_metadata(task.metadata, expected.metadata, f"task {number}: metadata")
        for split in SPLITS:
            where = f"task {number}: {split}"
            mine, theirs = _by_type(getattr(task, split)), _by_type(getattr(expected, split))
            if list(mine) != list(theirs):
                raise PartitionError(f"{where} has types {list(mine)}; expected {list(theirs)}")
            for kind, items in theirs.items():
                _check_items(mine[kind], items, kind, starts, original, where)


def _check_metadata(mine: dict[Any, Any], theirs: dict[Any, Any], where: str) -> None:
    check_plain(dict(theirs), where)
    # As YAML tells them: a tuple is a list there.
    theirs = yaml.safe_load(yaml.safe_dump(dict(theirs)))
    for name in mine | theirs:
        a, b = ([each[name]] if name in each else [] for each in (mine, theirs))
        if a != b and repr(a) != repr(b):  # NaN is not equal to itself
            got, expected = (show(values[0]) if values else "missing" for values in (a, b))
            raise PartitionError(f"{where} differs: {show(name)} is {got}; expected {expected}")


def _by_type(items: ItemSet | HeteroItemSet | None) -> dict[str, ItemSet]:
    if items is None:
        return {}
    return items.itemsets if isinstance(items, HeteroItemSet) else {"": items}


def _check_items(
    mine: ItemSet, theirs: ItemSet, kind: str, starts: dict[str, int], original: Array, where: str
) -> None:
    for what in ("names", "num_items", "__len__"):
        a, b = getattr(mine, what), getattr(theirs, what)
        if what == "__len__":
            what, a, b = "length", a(), b()
        if a != b:
            raise PartitionError(f"{where} of type {kind!r} differs in {what}: {a}; expected {b}")
    for low in range(0, len(theirs), CHUNK):
        blocks = [
            block if isinstance(block, tuple) else (block,)
            for block in (mine[low : low + CHUNK], theirs[low : low + CHUNK])
        ]
        for k, (column, expected) in enumerate(zip(*blocks, strict=True)):
            kinds = ends_of_column(theirs.names, k, kind, expected)
            if kinds is not None and column.shape == expected.shape:
                column = _before(column, kinds, starts, original).to(expected.dtype)
            if not same(column, expected):
                raise PartitionError(f"{where.replace(': ', f': column {k} of ')} differs")


def _before(
    new: torch.Tensor, kinds: list[str], starts: dict[str, int], original: Array
) -> torch.Tensor:
    """int64 of the same shape: the ids before."""
    ends = new.to(torch.int64).reshape(len(new), -1).numpy()
    columns = [original[ends[:, i] + starts[k]] - starts[k] for i, k in enumerate(kinds)]
    return torch.from_numpy(np.stack(columns, 1)).reshape(new.shape)
