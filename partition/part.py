"""Part: what one part of a partitioned data set holds, mapped."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hopline.partition.book import PartitionBook
from hopline.partition.manifest import (
    PART_FILE,
    PARTITION_FILE,
    PartitionError,
    PartitionManifest,
    PartManifest,
    part_folder,
    type_file,
)  # fmt: skip
from hopline.partition.task_items import SPLITS, load_items
from hopline.pipes.checks import check_count
from hopline.pipes.datasets.ondisk import OnDiskTask
from hopline.pipes.graph import FusedCSCSamplingGraph
from hopline.pipes.npy import read_npy

__all__ = ["Part", "load_part", "load_part_manifest", "load_partition", "load_tasks"]


@dataclass(frozen=True)
class Part:
    """One part. Rows are numbered within it: of each type first the own nodes, then the halo.

    Attributes:
        number: which part.
        book: owners and ranges of all parts.
        graph: over the rows; see `PartGraph`.
        num_own: `{node type: own nodes}`, "" for the type of a homogeneous graph.
        original_nodes: `{node type: int64[rows]}`, ids in the whole graph, of own nodes and halo.
        halo: `{node type: int64[halo rows]}`, new ids, ascending.
        halo_hops: `{node type: uint8[halo rows]}`, hops from the own nodes.
        original_edges: `{edge type: int64[own edges]}`, ids in the whole graph.
        features: `{(domain, type or None, name): rows of the own nodes or edges}`.
    """

    number: int
    book: PartitionBook
    graph: FusedCSCSamplingGraph
    num_own: dict[str, int]
    original_nodes: dict[str, torch.Tensor]
    halo: dict[str, torch.Tensor]
    halo_hops: dict[str, torch.Tensor]
    original_edges: dict[str, torch.Tensor]
    features: dict[tuple[str, str | None, str], torch.Tensor]


def load_partition(path: str | os.PathLike[str]) -> PartitionManifest:
    """The description of a partitioned data set.

    Args:
        path: the folder that `partition_graph` wrote.

    Raises:
        PartitionError: it is missing, damaged, or of another version.
    """
    return PartitionManifest.load(Path(path) / PARTITION_FILE)


def load_part(path: str | os.PathLike[str], number: int, *, check: str = "content") -> Part:
    """Maps one part; other parts need not be there.

    Args:
        path: the folder that `partition_graph` wrote.
        number: which part.
        check: "content" reads all files once and compares them with what was written; "size" looks
            at their sizes only.

    Raises:
        PartitionError: a file is missing, damaged, or of another partition; names it.
        ValueError: check or number is out of range.
    """
    _check_choice(check)
    manifest = load_partition(path)
    if check_count(number, "number") >= manifest.num_parts:
        raise ValueError(
            f"number is {number}; the partition has parts 0 to {manifest.num_parts - 1}"
        )
    folder = Path(path) / part_folder(number)
    found = load_part_manifest(path, manifest, number)
    found.check_files(folder, content=check == "content")
    try:
        graph = FusedCSCSamplingGraph.load(folder / "graph")
        arrays = {
            name: {kind: read_npy(folder / type_file(name, kind)) for kind in kinds}
            for name, kinds in (
                ("nodes", manifest.node_ranges), ("halo", manifest.node_ranges),
                ("halo_hops", manifest.node_ranges), ("edges", manifest.edge_ranges),
            )
        }  # fmt: skip
        features: dict[tuple[str, str | None, str], torch.Tensor] = {
            (f.domain, f.type or None, f.name): read_npy(
                folder / f.file, dtype="bfloat16" if f.dtype == "bfloat16" else None
            )
            for f in found.features
        }
    except (OSError, ValueError) as error:
        raise PartitionError(f"{folder}: is damaged ({error}); copy the part again") from error
    return Part(
        number=number,
        book=manifest.book(),
        graph=graph,
        num_own=dict(found.num_own),
        original_nodes=arrays["nodes"],
        halo=arrays["halo"],
        halo_hops=arrays["halo_hops"],
        original_edges=arrays["edges"],
        features=features,
    )


def load_part_manifest(
    path: str | os.PathLike[str], manifest: PartitionManifest, number: int
) -> PartManifest:
    """The description of one part.

    Args:
        path: the folder that `partition_graph` wrote.
        manifest: what `load_partition` returns.
        number: which part.

    Raises:
        PartitionError: it is missing, damaged, or of another part or partition; names it.
    """
    file = Path(path) / part_folder(number) / PART_FILE
    found = PartManifest.load(file)
    if (found.partition_id, found.part) != (manifest.partition_id, number):
        raise PartitionError(
            f"{file}: is part {found.part} of partition {found.partition_id}; expected part "
            f"{number} of {manifest.partition_id}, as {Path(path) / PARTITION_FILE} says: copy the "
            "parts of one partition"
        )
    return found


def load_tasks(
    path: str | os.PathLike[str], manifest: PartitionManifest, *, check: str = "content"
) -> list[OnDiskTask]:
    """The tasks of a partitioned data set, by new ids; item sets are mapped when asked for.

    Args:
        path: the folder that `partition_graph` wrote.
        manifest: what `load_partition` returns.
        check: see `load_part`; of the files of the item sets.

    Raises:
        PartitionError: a file is missing, damaged, or of another partition; names it.
        ValueError: check is something else.
    """
    _check_choice(check)
    folder = Path(path)
    manifest.check_files(folder, content=check == "content", names=manifest.task_files())
    tasks = []
    for task in manifest.tasks:
        sources: list[Any] = [
            _source(folder, task.sets[split], task.names[split]) if split in task.sets else None
            for split in SPLITS
        ]
        tasks.append(OnDiskTask(dict(task.metadata), *sources))
    return tasks


def _check_choice(check: str) -> None:
    if check not in ("content", "size"):
        raise ValueError(f"check is {check!r}; expected 'content' or 'size'")


def _source(folder: Path, stored: Any, names: list[str] | None) -> Any:
    return lambda: load_items(folder, stored, names)
