"""verify_partition: compares the parts on disk with the data set that they were cut from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hopline.partition.manifest import (
    PARTITION_FILE,
    PartitionError,
    PartitionManifest,
    part_folder,
    type_file,
)
from hopline.partition.part import Part, load_part, load_partition
from hopline.partition.relabel import edge_types_of, node_types_of
from hopline.partition.verify_tasks import check_tasks, same
from hopline.pipes.graph import ORIGINAL_EDGE_ID, FusedCSCSamplingGraph
from hopline.pipes.npy import read_npy

__all__ = ["verify_partition"]

CHUNK = 1 << 16  # rows of features, and items, compared at a time

Array = np.ndarray[Any, Any]


def verify_partition(path: str | os.PathLike[str], dataset: Any) -> None:
    """Checks that the parts hold the data set: every node and edge once, with all it has.

    It takes 16 bytes an edge and 8 a node, beside the graph and one part's pages.

    Args:
        path: the folder that `partition_graph` wrote, with all parts.
        dataset: the loaded data set, or graph, that was partitioned.

    Raises:
        PartitionError: something differs; names the file or part, and the first difference.
        TypeError: dataset is neither.
    """
    graph: FusedCSCSamplingGraph = getattr(dataset, "graph", dataset)
    if not isinstance(graph, FusedCSCSamplingGraph):
        raise TypeError(
            f"dataset is a {type(dataset).__name__}; expected a loaded data set, or its graph"
        )
    manifest = load_partition(path)
    manifest.check_files(Path(path), content=True)
    _check_types(manifest, graph)
    offsets = _offsets(graph)
    original = np.full(graph.total_num_nodes, -1, np.int64)  # by new fused id
    parts = []
    for number in range(manifest.num_parts):
        part = load_part(path, number)
        _check_nodes(part, offsets, original)
        parts.append(part)
    _check_new_ids(Path(path), manifest, offsets, original)
    _Whole(graph, offsets, original).check(parts, manifest.num_hops, path)
    for part in parts:
        _check_features(part, dataset, path)
    if dataset is not graph:
        check_tasks(path, manifest, dataset, offsets, original)


def _offsets(graph: FusedCSCSamplingGraph) -> Array:
    if graph.node_type_offset is None:
        return np.array([0, graph.total_num_nodes])
    return graph.node_type_offset.numpy().astype(np.int64)


def _check_types(manifest: PartitionManifest, graph: FusedCSCSamplingGraph) -> None:
    book = manifest.book()
    counts = {kind: book.num_nodes(kind) for kind in book.node_types}
    expected = dict(zip(node_types_of(graph), np.diff(_offsets(graph)).tolist(), strict=True))
    if counts != expected or book.edge_types != edge_types_of(graph):
        raise PartitionError(
            f"{PARTITION_FILE}: describes nodes {counts} and edge types {book.edge_types}; "
            f"expected {expected} and {edge_types_of(graph)}: it is of another graph"
        )


def _check_nodes(part: Part, offsets: Array, original: Array) -> None:
    """Notes the ids before of the own nodes; each node may come once."""
    where = part_folder(part.number)
    for kind, low, high in zip(
        part.book.node_types, offsets[:-1].tolist(), offsets[1:].tolist(), strict=True
    ):
        mine = part.book.node_range(part.number, kind)
        rows = part.original_nodes[kind].numpy()
        if part.num_own.get(kind) != len(mine) or len(rows) != len(mine) + len(part.halo[kind]):
            raise PartitionError(
                f"{where}: has {part.num_own.get(kind)} own nodes of type {kind!r}, and "
                f"{len(rows)} rows with {len(part.halo[kind])} of the halo; expected "
                f"{len(mine)} own"
            )
        own = rows[: len(mine)]
        if len(own) and not (own.min() >= 0 and own.max() < high - low):
            raise PartitionError(f"{where}: nodes/{kind or 'all'}.npy names a node out of range")
        original[low + mine.start : low + mine.stop] = own + low


def _check_new_ids(
    path: Path, manifest: PartitionManifest, offsets: Array, original: Array
) -> None:
    """The table of new ids by ids before."""
    kinds = manifest.book().node_types
    for kind, low, high in zip(kinds, offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        file = path / type_file("new_ids", kind)
        new = read_npy(file).numpy()
        whole = new.shape == (high - low,) and not (
            len(new) and (new.min() < 0 or new.max() >= high - low)
        )
        if not whole or not np.array_equal(original[low + new], np.arange(low, high)):
            raise PartitionError(f"{file}: is not the table of the parts' new ids")


class _Whole:
    """The graph that was cut, and the ids before by new fused ids."""

    def __init__(self, graph: FusedCSCSamplingGraph, offsets: Array, original: Array) -> None:
        self.graph, self.offsets, self.original = graph, offsets, original
        seen = np.bincount(original[original >= 0], minlength=len(original))
        bad = np.flatnonzero(seen != 1)
        if len(bad):
            raise PartitionError(
                f"node {bad[0]} (fused id before) is owned by {seen[bad[0]]} parts; expected one"
            )

    def check(self, parts: list[Part], num_hops: int, path: Any) -> None:
        indptr = self.graph.csc_indptr.numpy()
        # Positions in the whole graph of the own edges, by new ids; so that halo edges are found.
        positions: dict[str, list[Array]] = {kind: [] for kind in edge_types_of(self.graph)}
        for part in parts:
            where = f"{part_folder(part.number)}"
            rows = self._rows(part, where)
            degrees = np.diff(part.graph.csc_indptr.numpy())
            complete = self._complete(part, num_hops)
            expected = np.where(complete, indptr[rows + 1] - indptr[rows], 0)
            bad = np.flatnonzero(degrees != expected)
            if len(bad):
                raise PartitionError(
                    f"{where}: node {rows[bad[0]]} (fused id before) has {degrees[bad[0]]} "
                    f"in-edges; expected {expected[bad[0]]}"
                )
            starts = np.concatenate([[0], np.cumsum(degrees)])
            shift = np.where(complete, indptr[rows], 0) - starts[:-1]
            at = np.arange(starts[-1]) + np.repeat(shift, degrees)
            self._check_edges(part, rows, degrees, at, complete, where)
            self._check_attributes(part, rows, at, where)
            self._note_own(part, at, degrees, positions, where)
        self._check_edge_ids(parts, positions)

    def _rows(self, part: Part, where: str) -> Array:
        """Fused ids before of the rows, the halo's by way of its new ids."""
        rows = []
        for kind, low in zip(part.book.node_types, self.offsets.tolist(), strict=False):
            stored = part.original_nodes[kind].numpy() + low
            halo = part.halo[kind].numpy()
            new = halo + low
            mine = part.book.node_range(part.number, kind)
            if len(halo) and (
                halo.min() < 0
                or halo.max() >= part.book.num_nodes(kind)
                or (np.diff(halo) <= 0).any()
                or ((halo >= mine.start) & (halo < mine.stop)).any()
            ):
                raise PartitionError(
                    f"{where}: halo/{kind or 'all'}.npy is not an ascending list of other parts' "
                    "nodes"
                )
            bad = np.flatnonzero(stored[len(mine) :] != self.original[new])
            if len(bad):
                raise PartitionError(
                    f"{where}: halo node {halo[bad[0]]} of type {kind!r} is said to have been "
                    f"{stored[len(mine) + bad[0]] - low}; expected "
                    f"{self.original[new[bad[0]]] - low}"
                )
            rows.append(stored)
        return np.concatenate(rows)

    @staticmethod
    def _complete(part: Part, num_hops: int) -> Array:
        """Whether each row has its in-edges."""
        return np.concatenate(
            [
                np.concatenate(
                    [np.ones(part.num_own[kind], bool), part.halo_hops[kind].numpy() < num_hops]
                )
                for kind in part.book.node_types
            ]
        )

    def _check_edges(
        self, part: Part, rows: Array, degrees: Array, at: Array, complete: Array, where: str
    ) -> None:
        sources = rows[part.graph.indices.numpy()]
        bad = np.flatnonzero(sources != self.graph.indices.numpy()[at])
        if len(bad):
            raise PartitionError(
                f"{where}: edge {bad[0]} comes from {sources[bad[0]]} (fused id before); expected "
                f"{self.graph.indices.numpy()[at[bad[0]]]}"
            )
        if self.graph.type_per_edge is not None:
            assert part.graph.type_per_edge is not None
            kinds, wanted = part.graph.type_per_edge.numpy(), self.graph.type_per_edge.numpy()[at]
            bad = np.flatnonzero(kinds != wanted)
            if len(bad):
                raise PartitionError(
                    f"{where}: edge {bad[0]} is of type {kinds[bad[0]]}; expected {wanted[bad[0]]}"
                )
        used = complete.copy()
        used[part.graph.indices.numpy()] = True
        if not used.all():
            raise PartitionError(
                f"{where}: row {np.flatnonzero(~used)[0]} of the halo is the source of no edge"
            )

    def _check_attributes(self, part: Part, rows: Array, at: Array, where: str) -> None:
        for domain, mine, whole, order in (
            ("node", part.graph.node_attributes, self.graph.node_attributes, rows),
            ("edge", part.graph.edge_attributes, self.graph.edge_attributes, at),
        ):
            for name, value in (whole or {}).items():
                if name == ORIGINAL_EDGE_ID:
                    continue
                found = (mine or {}).get(name)
                if found is None or not same(found, value[torch.from_numpy(order)]):
                    raise PartitionError(f"{where}: {domain} attribute {name!r} differs")

    def _note_own(
        self, part: Part, at: Array, degrees: Array, positions: dict[str, list[Array]], where: str
    ) -> None:
        own = np.repeat(
            np.concatenate(
                [
                    np.arange(len(part.original_nodes[kind])) < part.num_own[kind]
                    for kind in part.book.node_types
                ]
            ),
            degrees,
        )
        before = (self.graph.edge_attributes or {}).get(ORIGINAL_EDGE_ID)
        kinds = None if part.graph.type_per_edge is None else part.graph.type_per_edge.numpy()
        for t, kind in enumerate(part.book.edge_types):
            mine = at[own if kinds is None else own & (kinds == t)]
            positions[kind].append(mine)
            ids = mine if before is None else before.numpy()[mine]
            stored = part.original_edges[kind].numpy()
            if len(stored) != part.book.num_edges(kind, part.number) or not np.array_equal(
                stored, ids
            ):
                raise PartitionError(f"{where}: edges/{kind or 'all'}.npy differs")

    def _check_edge_ids(self, parts: list[Part], positions: dict[str, list[Array]]) -> None:
        """New ids in the parts' graphs, those of halo edges too."""
        indptr = self.graph.csc_indptr.numpy()
        number = np.full(self.graph.total_num_edges, -1, np.int64)
        for mine in positions.values():
            by_id = np.concatenate(mine) if mine else np.empty(0, np.int64)
            number[by_id] = np.arange(len(by_id))
        for part in parts:
            rows = np.concatenate(
                [
                    part.original_nodes[kind].numpy() + low
                    for kind, low in zip(part.book.node_types, self.offsets, strict=False)
                ]
            )
            starts = part.graph.csc_indptr.numpy()
            degrees = np.diff(starts)
            at = np.arange(starts[-1]) + np.repeat(indptr[rows] - starts[:-1], degrees)
            assert part.graph.edge_attributes is not None
            stored = part.graph.edge_attributes[ORIGINAL_EDGE_ID].numpy()
            bad = np.flatnonzero(stored != number[at])
            if len(bad):
                raise PartitionError(
                    f"{part_folder(part.number)}: edge {bad[0]} has the id {stored[bad[0]]}; "
                    f"expected {number[at[bad[0]]]}"
                )


def _check_features(part: Part, dataset: Any, path: Any) -> None:
    store = getattr(dataset, "feature", None)
    keys = [] if store is None else list(store.keys())
    where = part_folder(part.number)
    if set(keys) != set(part.features):
        raise PartitionError(f"{where}: has features {list(part.features)}; expected {keys}")
    for domain, kind, name in keys:
        assert store is not None
        found = part.features[domain, kind, name]
        if domain == "node":
            ids = part.original_nodes[kind or ""][: part.num_own[kind or ""]]
        else:
            ids = part.original_edges[kind or ""]
        for low in range(0, max(len(ids), 1), CHUNK):
            expected = store[domain, kind, name].read(ids[low : low + CHUNK])
            if len(found) != len(ids) or not same(found[low : low + CHUNK], expected):
                raise PartitionError(
                    f"{where}: {domain} feature {name!r} of type {kind!r} differs in rows {low} to "
                    f"{min(low + CHUNK, len(ids))}"
                )
