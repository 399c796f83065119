"""partition_graph: cuts a graph, with all that belongs to it, into parts on disk."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hopline.partition.assign import Parts, assign_nodes
from hopline.partition.manifest import (
    FORMAT_VERSION,
    PART_FILE,
    PARTITION_FILE,
    PartitionManifest,
    PartManifest,
    digests_below,
    part_folder,
    type_file,
)  # fmt: skip
from hopline.partition.part_features import check_features, write_features
from hopline.partition.part_graph import PartGraph, cut_part, edge_ids_by_position
from hopline.partition.part_memory import check_part_memory, mapping_memory, part_memory
from hopline.partition.relabel import NewIds
from hopline.partition.task_items import check_tasks, store_tasks
from hopline.pipes.checks import check_count
from hopline.pipes.datasets import location
from hopline.pipes.datasets.npy_writer import NpyWriter
from hopline.pipes.graph import FusedCSCSamplingGraph
from hopline.pipes.usable_memory import usable_memory

__all__ = ["partition_graph"]

MOST_HOPS = 100
ROWS = 1 << 20  # of an array, written at a time
WAIT = 600.0  # seconds for another process that writes to the same folder

Array = np.ndarray[Any, Any]


def partition_graph(
    dataset: Any,
    graph_name: str,
    num_parts: int,
    out_path: str | os.PathLike[str],
    num_hops: int = 1,
    part_method: str | Parts = "metis",
    balance_ntypes: Parts | None = None,
    balance_edges: bool = False,
    return_mapping: bool = False,
    num_trainers_per_machine: int = 1,
    *,
    objective: str = "cut",
    recursive: bool = False,
    eps: float = 0.1,
    seed: int = 0,
    max_memory: int | None = None,
    overwrite: bool = False,
) -> Any:
    """Cuts a data set or a graph into parts, and writes them.

    A part holds the in-edges of its own nodes, the halo, the features of its own nodes and edges,
    and the ids before. New ids make parts ranges. Parts are written one at a time, beside the
    target, which is renamed at the end: a run that is killed leaves no half of it.

    Args:
        dataset: a loaded data set, with graph, features and tasks; or a FusedCSCSamplingGraph.
        graph_name: kept in the description.
        num_parts: number of parts.
        out_path: the new folder.
        num_hops: hops of halo: halo nodes less than so many hops away have their in-edges too.
        part_method: "metis", "kaminpar", "ldg", "random", or each node's part; see `assign_nodes`.
        balance_ntypes: see `assign_nodes`.
        balance_edges: see `assign_nodes`.
        return_mapping: return the ids before.
        num_trainers_per_machine: ranks that will share a part; kept in the description.
        objective: see `assign_nodes`.
        recursive: see `assign_nodes`.
        eps: see `assign_nodes`.
        seed: see `assign_nodes`.
        max_memory: bytes that may be used beside the graph and its features, for the assignment and
            then for a part at a time; None asks the system.
        overwrite: replace an earlier partition in the folder.

    Returns:
        None; with return_mapping (original node ids, original edge ids): int64 by new id, or
        `{type: int64}` for a heterogeneous graph.

    Raises:
        TypeError, ValueError, IndexError: an argument is of wrong kind or value, or a seed of the
            data set is no node.
        FileExistsError: there is something in the folder.
        MemoryError: the method, or writing a part, would take more than max_memory.
        RuntimeError: as `assign_nodes`.
        OSError: a file cannot be written.
    """
    graph = getattr(dataset, "graph", dataset)
    if not isinstance(graph, FusedCSCSamplingGraph):
        raise TypeError(
            f"dataset is a {type(dataset).__name__}; expected a loaded data set or a "
            "FusedCSCSamplingGraph"
        )
    if not isinstance(graph_name, str) or not graph_name:
        raise TypeError(f"graph_name is {graph_name!r}; expected a string")
    num_hops = check_count(num_hops, "num_hops")
    if not 1 <= num_hops <= MOST_HOPS:
        raise ValueError(f"num_hops is {num_hops}; expected 1 to {MOST_HOPS}")
    num_trainers_per_machine = check_count(num_trainers_per_machine, "num_trainers_per_machine", 1)
    num_parts, seed = check_count(num_parts, "num_parts", 1), check_count(seed, "seed")
    if dataset is not graph:
        check_features(dataset, graph)
        check_tasks(dataset, graph)
    folder = Path(out_path).expanduser().resolve()
    _check_target(folder, overwrite)
    assignment = assign_nodes(
        graph, num_parts, part_method, balance_ntypes=balance_ntypes, balance_edges=balance_edges,
        eps=eps, recursive=recursive, objective=objective, seed=seed, max_memory=max_memory,
    )  # fmt: skip
    ids = NewIds(graph, assignment.parts.numpy(), num_parts)
    room = usable_memory() if max_memory is None else max_memory
    if return_mapping:
        room -= mapping_memory(graph)
    _check_largest(graph, ids, room)
    with location.locked(folder, WAIT, "partitioning"), location.working_folder(folder) as work:
        _check_target(folder, overwrite)
        identity = secrets.token_hex(16)
        edge_ids: Array | None = None
        if num_hops > 1:
            scratch = work / "edge_ids.tmp"
            shape = (graph.total_num_edges,)
            edge_ids = np.empty(0, np.int64)
            if shape[0]:  # no file of no bytes can be mapped
                edge_ids = np.memmap(scratch, np.int64, "w+", shape=shape)
            edge_ids_by_position(graph, ids, edge_ids)
        originals = []
        for part in range(num_parts):
            cut = cut_part(graph, ids, part, num_hops, edge_ids, room)
            _write_part(dataset, ids, part, cut, work / part_folder(part), identity)
            if return_mapping:
                originals.append(cut.edges)
            del cut  # before the next is made
        if edge_ids is not None:
            del edge_ids
            (work / "edge_ids.tmp").unlink(missing_ok=True)
        tasks = [] if dataset is graph else store_tasks(dataset, ids, work)
        _write_new_ids(ids, work)
        PartitionManifest(
            format_version=FORMAT_VERSION,
            partition_id=identity,
            files={
                f"{shared}/{name}": digest
                for shared in ("tasks", "new_ids")
                for name, digest in digests_below(work / shared).items()
            },
            graph_name=graph_name,
            num_parts=num_parts,
            num_hops=num_hops,
            num_trainers_per_machine=num_trainers_per_machine,
            method=assignment.method,
            seed=seed,
            eps=float(eps),
            node_type_to_id=_plain(graph.node_type_to_id),
            edge_type_to_id=_plain(graph.edge_type_to_id),
            node_ranges=ids.node_ranges,
            edge_ranges=ids.edge_ranges,
            quality=assignment.quality.to_dict(),
            tasks=tasks,
        ).save(work / PARTITION_FILE)
        location.publish(work, folder)
    return _mapping(ids, originals) if return_mapping else None


def _check_largest(graph: FusedCSCSamplingGraph, ids: NewIds, room: int) -> None:
    """Refuses parts that are too large before any is written; without the edges of the halo."""
    edges = sum(np.diff(ids.edge_ranges[kind]) for kind in ids.edge_types)
    if len(ids.edge_types):
        part = int(np.argmax(edges))
        most = int(np.max(edges))
        check_part_memory(f"part {part}", most, part_memory(graph, 0, most, most), room)


def _plain(ids: Mapping[str, int] | None) -> dict[str, int] | None:
    return None if ids is None else {str(name): int(i) for name, i in ids.items()}


def _check_target(folder: Path, overwrite: bool) -> None:
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not (folder / PARTITION_FILE).is_file():
        raise FileExistsError(
            f"{folder} exists and is no partition; give a new folder, or an empty one"
        )
    if not overwrite:
        raise FileExistsError(
            f"{folder} holds a partition; give a new folder, or overwrite=True (--force)"
        )


def _write_new_ids(ids: NewIds, work: Path) -> None:
    """Writes the new id of each node by the id before, as small as they fit."""
    for kind, low, high in zip(
        ids.node_types, ids.offsets[:-1].tolist(), ids.offsets[1:].tolist(), strict=True
    ):
        dtype = np.int32 if high - low < 2**31 else np.int64
        _write(work / type_file("new_ids", kind), (ids.new[low:high] - low).astype(dtype))


def _write_part(
    dataset: Any, ids: NewIds, part: int, cut: PartGraph, folder: Path, identity: str
) -> None:
    folder.mkdir(parents=True)
    cut.graph.save(folder / "graph")
    for kind, low, rows, own, levels in zip(
        ids.node_types, ids.offsets.tolist(), cut.rows, cut.num_own, cut.levels, strict=False
    ):
        _write(folder / type_file("nodes", kind), rows - low)
        _write(folder / type_file("halo", kind), ids.new[rows[own:]] - low)
        _write(folder / type_file("halo_hops", kind), levels)
    for kind, edges in zip(ids.edge_types, cut.edges, strict=True):
        _write(folder / type_file("edges", kind), edges)
    features = write_features(dataset, ids, cut, folder)
    PartManifest(
        format_version=FORMAT_VERSION,
        partition_id=identity,
        files=digests_below(folder),
        part=part,
        num_own=dict(zip(ids.node_types, cut.num_own, strict=True)),
        features=features,
    ).save(folder / PART_FILE)


def _write(path: Path, array: Array) -> None:
    with NpyWriter(path, array.dtype, array.shape) as writer:
        for low in range(0, len(array), ROWS):  # checksums take memory for what they are given
            writer.append(array[low : low + ROWS])


def _mapping(ids: NewIds, originals: list[list[Array]]) -> tuple[Any, Any]:
    """(original node ids, original edge ids), by new id."""
    nodes = {
        kind: torch.from_numpy(ids.original[low:high] - low)
        for kind, low, high in zip(
            ids.node_types, ids.offsets[:-1].tolist(), ids.offsets[1:].tolist(), strict=True
        )
    }
    edges = {
        kind: torch.from_numpy(np.concatenate([part[t] for part in originals]))
        for t, kind in enumerate(ids.edge_types)
    }
    if ids.node_types == [""]:
        return nodes[""], edges[""]
    return nodes, edges
