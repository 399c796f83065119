"""The features of a part: rows of its own nodes and edges, as the data set has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from hopline.partition.manifest import StoredFeature, check_plain
from hopline.partition.part_graph import PartGraph
from hopline.partition.relabel import NewIds, edge_types_of, node_types_of
from hopline.partition.task_items import torch_rows
from hopline.pipes.datasets.npy_writer import NpyWriter
from hopline.pipes.graph import ORIGINAL_EDGE_ID, FusedCSCSamplingGraph

__all__ = ["check_features", "write_features"]

CHUNK_BYTES = 16 << 20  # of features in memory at a time


def check_features(dataset: Any, graph: FusedCSCSamplingGraph) -> None:
    """Refuses features that parts cannot hold, before anything is assigned or written.

    Args:
        dataset: a data set; what it has under `feature`, if anything, is looked at.
        graph: its graph.

    Raises:
        TypeError: values or metadata that no file of a part holds.
        ValueError: a feature is of an unknown domain or type, or has too few or too many rows.
    """
    counts = {"node": _counts(graph.num_nodes), "edge": _counts(graph.num_edges)}
    ids = (graph.edge_attributes or {}).get(ORIGINAL_EDGE_ID)
    store = getattr(dataset, "feature", None)
    for domain, kind, name in store.keys() if store is not None else []:
        assert store is not None
        what = f"feature {name!r} of domain {domain!r} and type {kind!r}"
        if domain not in counts:
            raise ValueError(
                f"{what}: expected the domain 'node' or 'edge', whose rows parts share"
            )
        types = node_types_of(graph) if domain == "node" else edge_types_of(graph)
        if (kind or "") not in types:
            raise ValueError(
                f"{what}: the graph has the {domain} types {[t or None for t in types]}"
            )
        feature = store[domain, kind, name]
        check_plain(feature.metadata(), f"{what}: metadata")
        try:
            torch_rows(feature.read(torch.empty(0, dtype=torch.int64)))
        except TypeError as error:
            raise TypeError(f"{what}: {error}") from error
        hint = ""
        needed = counts[domain][kind or ""]
        if domain == "edge" and ids is not None:
            continue  # rows by ids of any kind: reading refuses those that are not there
        if domain == "edge" and len(types) > 1:
            needed = graph.total_num_edges
            hint = (
                f"; the graph has no {ORIGINAL_EDGE_ID}, so rows are those of the edges' places "
                "among the edges of all types: make it with include_original_edge_id=True"
            )
        if feature.count() != needed:
            raise ValueError(f"{what}: has {feature.count()} rows; expected {needed}{hint}")


def _counts(numbers: int | dict[str, int]) -> dict[str, int]:
    return numbers if isinstance(numbers, dict) else {"": numbers}


def write_features(dataset: Any, ids: NewIds, cut: PartGraph, folder: Path) -> list[StoredFeature]:
    """Writes the rows of a part's own nodes and edges, below `features/`, some at a time.

    Args:
        dataset: the data set, checked; or a graph, without features.
        ids: the new ids.
        cut: the part.
        folder: the part's.

    Returns:
        What the description says of them.

    Raises:
        IndexError: a feature has no row for an edge; names it.
    """
    store = getattr(dataset, "feature", None)
    stored: list[StoredFeature] = []
    for number, (domain, kind, name) in enumerate(store.keys() if store is not None else []):
        assert store is not None
        feature = store[domain, kind, name]
        if domain == "node":
            t = ids.node_types.index(kind or "")
            wanted = cut.rows[t][: cut.num_own[t]] - ids.offsets[t]
        else:
            wanted = cut.edges[ids.edge_types.index(kind or "")]
        size = list(feature.size())
        empty, dtype = torch_rows(feature.read(torch.empty(0, dtype=torch.int64)))
        shape = (len(wanted), *size)
        file = f"features/{number}.npy"
        step = max(1, CHUNK_BYTES // max(1, empty.dtype.itemsize * int(np.prod(size))))
        with NpyWriter(folder / file, empty.dtype, shape) as writer:
            for low in range(0, len(wanted), step):
                try:
                    rows = feature.read(torch.from_numpy(wanted[low : low + step]))
                except IndexError as error:
                    raise IndexError(
                        f"{domain} feature {name!r} of type {kind!r}: {error}"
                    ) from error
                writer.append(torch_rows(rows)[0])
        stored.append(
            StoredFeature(
                domain=domain,
                type=kind or "",
                name=name,
                file=file,
                dtype=dtype,
                shape=list(shape),
                metadata=dict(feature.metadata() or {}),
            )
        )
    return stored
