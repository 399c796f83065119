"""load_distdgl: a graph that DistDGL has cut, put together again, with the parts as they were."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hopline.partition.dgl_files import read_graph_file
from hopline.partition.dgl_reader import StoredArray
from hopline.partition.distdgl_description import Description, read_description
from hopline.partition.distdgl_features import part_features
from hopline.partition.manifest import PartitionError
from hopline.pipes.coo import from_coo
from hopline.pipes.features.store import BasicFeatureStore
from hopline.pipes.graph import FusedCSCSamplingGraph
from hopline.pipes.usable_memory import usable_memory

__all__ = ["DistDGLDataset", "load_distdgl"]

Array = np.ndarray[Any, Any]

IDS, INNER_EDGES = "_ID", "inner_edge"
EDGE_MEMORY = 52  # bytes an edge, measured with pages of the mapped files
NODE_BYTES, EDGE_BYTES = 9, 17  # what a part's file has for each, at least


@dataclass
class DistDGLDataset:
    """A data set out of DistDGL's parts, for `partition_graph(..., part_method=dataset.parts)`.

    Attributes:
        dataset_name: DistDGL's graph name.
        num_parts: number of parts.
        graph: whole; nodes and edges have the ids that they had in DistDGL, within their types.
        feature: all node and edge data, masks and labels too; read from DistDGL's files.
        parts: each node's part, int32[num_nodes], or `{node type: int32[n]}`.
        tasks: none, as DistDGL keeps none; what is put here is cut along.
    """

    dataset_name: str
    num_parts: int
    graph: FusedCSCSamplingGraph
    feature: BasicFeatureStore
    parts: torch.Tensor | dict[str, torch.Tensor]
    tasks: list[Any] = field(default_factory=list)


def load_distdgl(path: str | os.PathLike[str]) -> DistDGLDataset:
    """Reads the parts that `dgl.distributed.partition_graph`, or DGL's pipeline, has written.

    It needs no DGL, and unpickles nothing. The graph is put together in memory; features stay in
    the files, which are mapped. Ids are DistDGL's: of nodes within their type, which
    `partition_graph` keeps when it is given `parts`; of edges within theirs, which `load_part` has
    as `original_edges`.

    Args:
        path: the JSON file, whose parts are all below its folder.

    Raises:
        PartitionError: a file is missing, damaged, for GraphBolt only, or does not fit the others.
        MemoryError: the graph has more edges than memory has room for.

    Warns:
        UserWarning: no part has a file of node data, or of edge data.

    Example::

        dataset = load_distdgl("old/graph.json")
        partition_graph(dataset, dataset.dataset_name, dataset.num_parts, "parts",
                        part_method=dataset.parts)
    """
    described = read_description(Path(path))
    try:
        graph = _whole_graph(described)
        features = {}
        for domain, ranges in (("node", described.nodes), ("edge", described.edges)):
            features.update(part_features(described, domain, ranges))
    except PartitionError:
        raise
    except ValueError as error:
        raise PartitionError(str(error)) from error
    counts = described.nodes.counts
    numbers = torch.arange(described.num_parts, dtype=torch.int32)
    parts = {
        kind: numbers.repeat_interleave(torch.from_numpy(counts[:, t]))
        for t, kind in enumerate(described.nodes.types)
    }
    return DistDGLDataset(
        described.graph_name,
        described.num_parts,
        graph,
        BasicFeatureStore(features),
        parts if described.is_typed else parts[described.nodes.types[0]],
    )


def _whole_graph(described: Description) -> FusedCSCSamplingGraph:
    nodes, edges = described.nodes, described.edges
    for part, files in enumerate(described.files):  # before memory is taken for what is announced
        path = files["part_graph"]
        owned = [int(ranges.counts[part].sum()) for ranges in (nodes, edges)]
        least = NODE_BYTES * owned[0] + EDGE_BYTES * owned[1]
        size = path.stat().st_size if path.is_file() else None
        if size is None or size < least:
            found = "no such file" if size is None else f"has {size} bytes"
            raise PartitionError(
                f"{path}: {found}; expected {least} or more for {owned[0]} nodes and {owned[1]} "
                "edges: copy all parts below the JSON file's folder"
            )
    needed, bound = EDGE_MEMORY * edges.total, usable_memory()
    if needed > bound:
        raise MemoryError(
            f"{edges.total:,} edges take up to {needed / 1e9:,.1f} GB to put together; there are "
            f"{bound / 1e9:,.1f} GB: take a machine with more memory"
        )
    pairs = {
        kind: (torch.empty(count, dtype=torch.int64), torch.empty(count, dtype=torch.int64))
        for kind, count in zip(edges.types, edges.counts.sum(0).tolist(), strict=True)
    }
    firsts = edges.firsts()
    for part in range(described.num_parts):
        _add_edges(described, part, firsts[part], pairs)
    counts = nodes.counts.sum(0).tolist()
    if not described.is_typed:
        source, column = pairs[edges.types[0]]
        return from_coo(source, column, num_nodes=counts[0], include_original_edge_id=True)
    return from_coo(
        pairs,
        num_nodes=dict(zip(nodes.types, counts, strict=True)),
        include_original_edge_id=True,
    )


def _add_edges(
    described: Description,
    part: int,
    firsts: Array,
    pairs: dict[str, tuple[torch.Tensor, torch.Tensor]],
) -> None:
    """Puts the edges that a part owns where their ids within their types say."""
    path = described.files[part]["part_graph"]
    graph = read_graph_file(path)
    nodes, edges = described.nodes, described.edges
    node_ids = _ids(path, graph.node_data, nodes.total)
    mine = np.flatnonzero(_integers(path, graph.edge_data, INNER_EDGES))
    edge_ids = _ids(path, graph.edge_data, edges.total)[mine]
    sources, columns = node_ids[graph.sources[mine]], node_ids[graph.columns[mine]]
    if len(edge_ids) != edges.counts[part].sum():
        raise PartitionError(
            f"{path}: has {len(edge_ids)} inner edges; expected {edges.counts[part].sum()}, as "
            "edge_map says: the files are of different graphs"
        )
    for t, kind in enumerate(edges.types):
        low, high = edges.bounds[part, t].tolist()
        chosen = (edge_ids >= low) & (edge_ids < high)
        local = edge_ids[chosen] - low
        seen = np.zeros(high - low, bool)
        seen[local] = True
        if not seen.all():
            raise PartitionError(
                f"{path}: has no inner edge {low + int(np.argmin(seen))}; expected all of {low} to "
                f"{high - 1} of type {kind!r}: the files are of different graphs"
            )
        for ids, end, out in zip(
            (sources, columns), (kind.split(":")[0], kind.split(":")[2]), pairs[kind], strict=True
        ):
            types, typed = nodes.typed(ids[chosen])
            wrong = np.flatnonzero(types != nodes.types.index(end))
            if len(wrong):
                found = nodes.types[int(types[wrong[0]])]
                raise PartitionError(
                    f"{path}: has an edge of type {kind!r} that ends at a node of type {found!r}; "
                    f"expected {end!r}: the files are of different graphs"
                )
            out.numpy()[firsts[t] + local] = typed


def _integers(path: Path, data: dict[str, StoredArray], name: str) -> Array:
    found = data.get(name)
    if found is None or found.values.ndim != 1 or found.values.dtype.kind not in "iu":
        raise PartitionError(
            f"{path}: has {sorted(data)}; expected also {name!r}, an integer for each, as "
            "DistDGL's parts have: is it a part?"
        )
    return found.values


def _ids(path: Path, data: dict[str, StoredArray], total: int) -> Array:
    ids = _integers(path, data, IDS)
    if len(ids) and not (ids.min() >= 0 and ids.max() < total):
        raise PartitionError(
            f"{path}: has the ids {ids.min()} to {ids.max()}; expected 0 to {total - 1}, as the "
            "JSON file says: the files are of different graphs"
        )
    return ids
