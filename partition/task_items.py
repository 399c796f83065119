"""Item sets of a partitioned data set: in the order of the data set, by new ids."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hopline.partition.manifest import StoredColumn, StoredItems, StoredTask, check_plain, type_file
from hopline.partition.relabel import NewIds
from hopline.pipes.checks import check_ids
from hopline.pipes.datasets.npy_writer import NpyWriter
from hopline.pipes.etypes import CANONICAL_ETYPE_DELIMITER, seed_type_str_to_ntypes
from hopline.pipes.graph import FusedCSCSamplingGraph
from hopline.pipes.items import HeteroItemSet, ItemSet
from hopline.pipes.npy import RAW_BITS, read_npy

__all__ = [
    "SPLITS",
    "check_tasks",
    "ends_of_column",
    "load_items",
    "new_seeds",
    "store_tasks",
    "torch_rows",
]

SPLITS = ("train_set", "validation_set", "test_set")
CHUNK = 1 << 18  # items at a time

Array = np.ndarray[Any, Any]
Items = ItemSet | HeteroItemSet

SEEDS = ("seeds", "seed_nodes", "node_pairs")  # the latter two as GraphBolt once called them
NEGATIVES = {"negative_srcs": 0, "negative_dsts": -1}  # which end of an edge they replace


def ends_of_column(
    names: tuple[str, ...] | None, position: int, kind: str, column: torch.Tensor
) -> list[str] | None:
    """Node type of each entry of a row; None for a column that holds no node ids.

    Args:
        names: of all columns; without names the first column are seeds.
        position: which column.
        kind: "" in a homogeneous graph; else the node type, the edge type, or the types of the
            ends of the seeds.
        column: its values.

    Raises:
        ValueError: the type does not fit the shape.
    """
    name = names[position] if names else ("seeds" if position == 0 else "")
    width = column.shape[1] if column.dim() == 2 else 1
    if name in NEGATIVES:
        return [kind.split(CANONICAL_ETYPE_DELIMITER)[NEGATIVES[name]]] * width
    if name not in SEEDS:
        return None
    if kind == "" or column.dim() == 1:
        return [kind] * width
    return seed_type_str_to_ntypes(kind, width)


def new_seeds(ids: NewIds, seeds: torch.Tensor, kinds: list[str], what: str) -> torch.Tensor:
    """Seeds, or other nodes, by new ids.

    Args:
        ids: the new ids.
        seeds: integer[n] nodes, or integer[n, k] edges and hyperlinks; by ids within types.
        kinds: node type of each entry of a row.
        what: what they are, for messages.

    Returns:
        Of the same shape; of the same dtype if all ids of these types fit, else of int64.

    Raises:
        TypeError, ValueError, IndexError: as `check_tasks`.
    """
    firsts = dict(zip(ids.node_types, ids.offsets.tolist(), strict=False))
    counts = dict(zip(ids.node_types, np.diff(ids.offsets).tolist(), strict=True))
    out = []
    for end, kind in zip(_ends(seeds, kinds, counts, what), kinds, strict=True):
        out.append(torch.from_numpy(ids.new[end + firsts[kind]] - firsts[kind]))
    new = out[0] if seeds.dim() == 1 else torch.stack(out, 1)
    most = max(counts[kind] for kind in kinds) - 1
    return new.to(seeds.dtype) if most <= torch.iinfo(seeds.dtype).max else new


def _ends(seeds: torch.Tensor, kinds: list[str], counts: dict[str, int], what: str) -> list[Array]:
    """int64[n] for each entry of a row: nodes of the types, which have so many."""
    if seeds.dim() not in (1, 2) or 0 in seeds.shape[1:]:
        raise ValueError(
            f"{what} has shape {tuple(seeds.shape)}; expected nodes [n] or edges [n, 2]"
        )
    columns = [seeds] if seeds.dim() == 1 else list(seeds.unbind(1))
    for kind in kinds:
        if kind not in counts:
            raise ValueError(
                f"{what} is of node type {kind!r}; the graph has {[t or None for t in counts]}"
            )
    return [
        check_ids(column, counts[kind], what, torch.int64).numpy()
        for column, kind in zip(columns, kinds, strict=True)
    ]


def check_tasks(dataset: Any, graph: FusedCSCSamplingGraph) -> None:
    """Refuses tasks that cannot be stored, before anything is assigned or written.

    Args:
        dataset: the data set.
        graph: its graph.

    Raises:
        TypeError: a column is no tensor, seeds are no integers, or metadata holds something else
            than plain values.
        ValueError: a set is of a type that the graph has not, or seeds of a wrong shape.
        IndexError: a seed is no node.
    """
    numbers = graph.num_nodes
    counts = numbers if isinstance(numbers, dict) else {"": numbers}
    for number, task in enumerate(dataset.tasks):
        check_plain(task.metadata, f"task {number}: metadata")
        for split in SPLITS:
            items: Items | None = getattr(task, split)
            sets = items.itemsets if isinstance(items, HeteroItemSet) else {"": items}
            for kind, part in sets.items():
                if part is None:
                    continue
                for _, column, ends, what in _blocks(part, kind, split):
                    torch_rows(column[:0])
                    if ends is not None:
                        _ends(column, ends, counts, what)


def _blocks(
    items: ItemSet, kind: str, split: str
) -> Iterator[tuple[int, torch.Tensor, list[str] | None, str]]:
    """(number of the column, rows of it, types of its ends, name for messages), some at a time."""
    names = items.names
    for low in range(0, max(1, len(items)), CHUNK):
        block = items[low : low + CHUNK]
        for k, column in enumerate(block if isinstance(block, tuple) else (block,)):
            what = f"column {names[k]!r}" if names else f"column {k} (there are no names)"
            what = f"{split}: {what}"
            if not isinstance(column, torch.Tensor):
                raise TypeError(
                    f"{what} is a {type(column).__name__}; expected tensors, which .npy files hold"
                )
            yield k, column, ends_of_column(names, k, kind, column), what


def store_tasks(dataset: Any, ids: NewIds, folder: Path) -> list[StoredTask]:
    """Writes the item sets of all tasks of a data set, below `tasks/`.

    Raises:
        TypeError: a column is no tensor.
        IndexError: a seed is no node.
    """
    stored = []
    for number, task in enumerate(dataset.tasks):
        sets: dict[Any, list[StoredItems]] = {}
        names: dict[str, list[str] | None] = {}
        for split in SPLITS:
            items: Items | None = getattr(task, split)
            if items is None:
                continue
            place = f"tasks/{number}-{split}"
            names[split] = None if items.names is None else list(items.names)
            parts = items.itemsets if isinstance(items, HeteroItemSet) else {"": items}
            sets[split] = [
                StoredItems(
                    type=kind, columns=_store(part, kind, ids, folder, f"{place}-{i}", split)
                )
                for i, (kind, part) in enumerate(parts.items())
            ]
        stored.append(StoredTask(metadata=dict(task.metadata), sets=sets, names=names))
    return stored


def _store(
    items: ItemSet, kind: str, ids: NewIds, folder: Path, place: str, split: str
) -> list[StoredColumn]:
    writers: list[NpyWriter] = []
    stored: list[StoredColumn] = []
    with contextlib.ExitStack() as stack:
        for k, column, ends, what in _blocks(items, kind, split):
            if ends is not None:
                column = new_seeds(ids, column, ends, what)
            rows, dtype = torch_rows(column)
            if k == len(writers):
                shape = (len(items), *rows.shape[1:])
                file = type_file("tasks", f"{place.removeprefix('tasks/')}-{k}")
                writers.append(stack.enter_context(NpyWriter(folder / file, rows.dtype, shape)))
                stored.append(StoredColumn(file=file, dtype=dtype, shape=list(shape)))
            writers[k].append(rows)
    return stored


def torch_rows(tensor: torch.Tensor) -> tuple[Array, str]:
    """(the rows as .npy files hold them, name of their dtype)."""
    name = str(tensor.dtype).removeprefix("torch.")
    tensor = tensor.detach().cpu().contiguous()
    try:
        return (tensor.view(torch.int16) if name in RAW_BITS else tensor).numpy(), name
    except TypeError as error:
        raise TypeError(f"got values of {tensor.dtype}, which .npy files do not hold") from error


def load_items(folder: Path, stored: list[StoredItems], names: list[str] | None) -> Items | None:
    """Maps the items of one set; None if there are none."""
    sets = {}
    for part in stored:
        columns = tuple(
            read_npy(folder / c.file, dtype="bfloat16" if c.dtype == "bfloat16" else None)
            for c in part.columns
        )
        sets[part.type] = ItemSet(columns, names=None if names is None else tuple(names))
    if not sets:
        return None
    return sets[""] if set(sets) == {""} else HeteroItemSet(sets)
