"""Edges in files to compressed sparse columns in files, within a bound on memory.

A counting sort over ranges of destinations: each pass over the edges places those of one range,
whose columns then go to disk, so that no array grows with the graph. Order: by destination, then
edge type, then input order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hopline.pipes.datasets.arrays import row_chunks
from hopline.pipes.datasets.npy_writer import Array, NpyWriter
from hopline.pipes.datasets.yaml_file import Place
from hopline.pipes.kernels import cpu

__all__ = ["EdgeList", "check_range", "write_csc"]

# Shares of the bound: a chunk of edges with its copies; a range's counters; a range's columns.
CHUNK_SHARE = 128  # bytes of the bound for each edge of a chunk: 16 of ids, the rest for copies
NODE_SHARE = 64  # ... for each node of a range
MAX_CHUNK = 1 << 22


@dataclass(frozen=True, slots=True)
class EdgeList:
    """The edges of one type.

    Attributes:
        place: their entry, for errors.
        src: integer[n], sources, local to their type.
        dst: integer[n], destinations, local to their type.
        src_type: for errors, e.g. "node type 'user'".
        dst_type: likewise.
        src_offset: fused id of the first node of the source type.
        dst_offset: likewise of the destination type.
        num_src: nodes of the source type.
        num_dst: nodes of the destination type.
        first: number of its first edge among the edges of all types.
    """

    place: Place
    src: Array
    dst: Array
    src_type: str
    dst_type: str
    src_offset: int
    dst_offset: int
    num_src: int
    num_dst: int
    first: int


def check_range(
    chunk: Array,
    start: int,
    whole: Array,
    count: int,
    what: str,
    of: str,
    offset: int,
    place: Place,
) -> None:
    """Every id in [0, count).

    Args:
        chunk: integer[n], the ids to check.
        start: position of the first of them.
        whole: integer[m], the array that chunk is part of.
        count: number of nodes.
        what: e.g. "source".
        of: e.g. "node type 'user'".
        offset: fused id of the first node, to recognise ids that run on across types.
        place: the entry, for errors.

    Raises:
        MetadataError: an id is out of range.
    """
    if chunk.size == 0 or (int(chunk.min()) >= 0 and int(chunk.max()) < count):
        return
    bad = int(np.flatnonzero((chunk < 0) | (chunk >= count))[0])
    low, high = int(whole.min()), int(whole.max())
    hint = "ids are numbered from 0 within their type: correct the file or the number of nodes"
    if low == 1 and high == count:
        hint = "ids run from 1; they are numbered from 0 here: subtract 1"
    elif offset and low >= offset and high < offset + count:
        hint = f"ids run on across types; they are numbered from 0 within each: subtract {offset}"
    raise place.at("path").error(
        f"{what} {int(chunk.flat[bad])} at position {start + bad} is outside [0, {count}), the ids "
        f"of {of}; {hint}"
    )


@dataclass(slots=True)
class _Part:
    """Consecutive places of the result: sources, and the edges' numbers in the input if kept."""

    indices: Array
    numbers: Array


def write_csc(
    folder: Path,
    edges: list[EdgeList],
    num_nodes: int,
    *,
    index_dtype: np.dtype[Any],
    type_dtype: np.dtype[Any] | None,
    edge_ids: tuple[Path, np.dtype[Any]] | None,
    attributes: dict[Path, tuple[np.dtype[Any], list[Array]]],
    max_memory: int,
    progress: Callable[[int], object] = lambda edges: None,
) -> None:
    """Checks the edges and writes csc_indptr.npy, indices.npy, and one file an edge column.

    Args:
        folder: existing folder for the graph's files.
        edges: the edges of each type, in the order of type ids.
        num_nodes: nodes of all types.
        index_dtype: of indices.npy.
        type_dtype: of type_per_edge.npy; None for a homogeneous graph.
        edge_ids: file and dtype of the edges' numbers in the input, by type; or None.
        attributes: for each file to write, its dtype, and the rows of each edge type in input
            order.
        max_memory: bytes that working arrays may take together; pages of mapped files, which the
            system drops when it needs them, do not count.
        progress: called with the number of edges done; every edge is done twice.

    Raises:
        MetadataError: an edge names a node that does not exist.
    """
    keep = type_dtype is not None or edge_ids is not None or bool(attributes)
    chunk = min(MAX_CHUNK, max(1, max_memory // CHUNK_SHARE))
    max_nodes = max(1, max_memory // NODE_SHARE)
    max_edges = max(1, max_memory // 4 // (index_dtype.itemsize + 8 * keep))
    num_edges = sum(len(e.src) for e in edges)
    _write_indptr(folder / "csc_indptr.npy", edges, num_nodes, max_nodes, chunk, progress)
    indptr = np.asarray(np.lib.format.open_memmap(folder / "csc_indptr.npy", mode="r"))
    with ExitStack() as stack:

        def writer(path: Path, dtype: np.dtype[Any], row: tuple[int, ...] = ()) -> NpyWriter:
            return stack.enter_context(NpyWriter(path, dtype, (num_edges, *row)))

        sources = writer(folder / "indices.npy", index_dtype)
        columns: list[tuple[NpyWriter, Callable[[Array, Array], Array]]] = []
        if type_dtype is not None:
            columns.append((writer(folder / "type_per_edge.npy", type_dtype), _types))
        if edge_ids is not None:
            columns.append((writer(*edge_ids), _Numbers(edges)))
        for path, (dtype, arrays) in attributes.items():
            columns.append((writer(path, dtype, arrays[0].shape[1:]), _Rows(edges, arrays)))
        starts = np.array([e.first for e in edges[1:]], np.int64)
        for low, high in _ranges(indptr, max_nodes, max_edges):
            for part in _sorted_parts(
                edges, indptr, low, high, chunk, max_edges, index_dtype, keep
            ):
                sources.append(part.indices)
                for file, values in columns:
                    row_bytes = file.dtype.itemsize * int(np.prod(file.shape[1:])) + 32
                    for rows in row_chunks(len(part.numbers), row_bytes, max_memory // 8):
                        numbers = part.numbers[rows]
                        kinds = np.searchsorted(starts, numbers, side="right")
                        file.append(values(numbers, kinds))
                progress(len(part.indices))


def _chunks(edges: EdgeList, size: int) -> Iterator[tuple[int, Array, Array]]:
    """Position of the first edge, sources and destinations as stored, of each chunk."""
    for start in range(0, len(edges.src), size):
        yield start, edges.src[start : start + size], edges.dst[start : start + size]


def _write_indptr(
    path: Path,
    edges: list[EdgeList],
    num_nodes: int,
    max_nodes: int,
    chunk: int,
    progress: Callable[[int], object],
) -> None:
    """Counts each column's edges, a range of nodes at a time; the first pass checks all ids."""
    total = 0
    with NpyWriter(path, np.dtype(np.int64), (num_nodes + 1,)) as file:
        file.append(np.zeros(1, np.int64))
        for low in range(0, max(1, num_nodes), max_nodes):
            high = min(num_nodes, low + max_nodes)
            counts = np.zeros(high - low, np.int64)
            for kind in edges:
                for start, src, dst in _chunks(kind, chunk):
                    if low == 0:
                        check_range(src, start, kind.src, kind.num_src, "source", kind.src_type,
                                    kind.src_offset, kind.place)  # fmt: skip
                        check_range(dst, start, kind.dst, kind.num_dst, "destination",
                                    kind.dst_type, kind.dst_offset, kind.place)  # fmt: skip
                        progress(len(src))
                    column = np.array(dst, np.int64)
                    column += kind.dst_offset - low
                    if high - low < num_nodes:
                        column = column[(column >= 0) & (column < high - low)]
                    cpu.count_destinations(column, 0, counts)
            np.cumsum(counts, out=counts)
            counts += total
            if len(counts):
                total = int(counts[-1])
            file.append(counts)


def _ranges(indptr: Array, max_nodes: int, max_edges: int) -> Iterator[tuple[int, int]]:
    """Ranges of columns that hold few enough edges; a single column may hold more."""
    num_nodes, low = len(indptr) - 1, 0
    while low < num_nodes:
        fits = int(np.searchsorted(indptr, indptr[low] + max_edges, side="right")) - 1
        high = min(max(fits, low + 1), low + max_nodes, num_nodes)
        if indptr[high] > indptr[low]:
            yield low, high
        low = high


def _sorted_parts(
    edges: list[EdgeList],
    indptr: Array,
    low: int,
    high: int,
    chunk: int,
    max_edges: int,
    index_dtype: np.dtype[Any],
    keep: bool,
) -> Iterator[_Part]:
    """The columns [low, high), in one part; a column that is too big, in the parts it comes in."""
    count = int(indptr[high] - indptr[low])
    whole = count <= max_edges
    if whole:
        indices = np.empty(count, index_dtype)
        numbers = np.empty(count if keep else 0, np.int64)
        cursor = indptr[low:high] - indptr[low]
    for kind in edges:
        if kind.dst_offset >= high or kind.dst_offset + kind.num_dst <= low:
            continue
        for start, src, dst in _chunks(kind, chunk):
            column = np.array(dst, np.int64)
            column += kind.dst_offset - low
            first = kind.first + start
            if whole:
                cpu.place_edges(
                    np.array(src, np.int64), column, kind.src_offset, 0, first, 0, high - low, 0,
                    cursor, indices, numbers,
                )  # fmt: skip
            else:
                picked = np.flatnonzero(column == 0)
                sources = np.array(src[picked], np.int64) + kind.src_offset
                yield _Part(sources.astype(index_dtype), picked + first if keep else picked[:0])
    if whole:
        yield _Part(indices, numbers)


def _types(numbers: Array, kinds: Array) -> Array:
    return kinds


class _Numbers:
    """An edge's number among those of its type."""

    def __init__(self, edges: list[EdgeList]) -> None:
        self._first = np.array([e.first for e in edges], np.int64)

    def __call__(self, numbers: Array, kinds: Array) -> Array:
        local: Array = numbers - self._first[kinds]
        return local


class _Rows:
    """An attribute's rows, which each type keeps in input order."""

    def __init__(self, edges: list[EdgeList], arrays: list[Array]) -> None:
        self._first = [e.first for e in edges]
        self._arrays = arrays

    def __call__(self, numbers: Array, kinds: Array) -> Array:
        if len(self._arrays) == 1:
            return self._arrays[0][numbers]
        first = self._arrays[0]
        out = np.empty((len(numbers), *first.shape[1:]), first.dtype.newbyteorder("="))
        for kind, array in enumerate(self._arrays):
            chosen = np.flatnonzero(kinds == kind)
            out[chosen] = array[numbers[chosen] - self._first[kind]]
        return out
