"""Edges to sort, read in chunks: as the inputs hold them, or as a pass has stored them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from hopline.pipes.datasets.npy_writer import Array
from hopline.pipes.datasets.yaml_file import Place

__all__ = [
    "Chunk",
    "Column",
    "EdgeList",
    "EdgeSource",
    "RawEdges",
    "StoredEdges",
    "check_range",
]


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

    def check(self, start: int, stop: int, lists: Sequence[EdgeList] = ()) -> None:
        """Every id of some edges is one of its type.

        Args:
            start: the first of the edges.
            stop: the end.
            lists: the edges of all types, whose ids tell how a node type is numbered.

        Raises:
            MetadataError: an id is not; gives its position.
        """
        lists = lists or (self,)
        check_range(self.src[start:stop], start, self.src, self.num_src, "source", self.src_type,
                    self.src_offset, self.place, _ends(lists, self.src_type))  # fmt: skip
        check_range(self.dst[start:stop], start, self.dst, self.num_dst, "destination",
                    self.dst_type, self.dst_offset, self.place,
                    _ends(lists, self.dst_type))  # fmt: skip


def _ends(lists: Sequence[EdgeList], node_type: str) -> list[Array]:
    """All sources and destinations of a node type."""
    ends = [edges.src for edges in lists if edges.src_type == node_type]
    return ends + [edges.dst for edges in lists if edges.dst_type == node_type]


def check_range(
    chunk: Array,
    start: int,
    whole: Array,
    count: int,
    what: str,
    of: str,
    offset: int,
    place: Place,
    same: Sequence[Array] = (),
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
        same: arrays of ids of the same nodes, to recognise ids that run from 1.

    Raises:
        MetadataError: an id is out of range.
    """
    if chunk.size == 0 or (int(chunk.min()) >= 0 and int(chunk.max()) < count):
        return
    bad = int(np.flatnonzero((chunk < 0) | (chunk >= count))[0])
    low, high = int(whole.min()), int(whole.max())
    hint = "ids are numbered from 0 within their type: correct the file or the number of nodes"
    ends = [ids for ids in same if ids.size]
    first = min([low, *(int(ids.min()) for ids in ends)])
    last = max([high, *(int(ids.max()) for ids in ends)])
    if first == 1 and last == count:
        hint = "ids run from 1; they are numbered from 0 here: subtract 1"
    elif offset and low >= offset and high < offset + count:
        hint = f"ids run on across types; they are numbered from 0 within each: subtract {offset}"
    raise place.at("path").error(
        f"{what} {int(chunk.flat[bad])} at position {start + bad} is outside [0, {count}), the ids "
        f"of {of}; {hint}"
    )


@dataclass(frozen=True, slots=True)
class Column:
    """What the result keeps of each edge: its source, type, number or an attribute.

    Attributes:
        path: the file to write.
        dtype: of that file.
        work_dtype: of the values while they are sorted.
        row: shape of one edge's value.
        arrays: of an attribute, the rows of each edge type in input order; else empty.
        kind: which of them it is.
    """

    path: Path
    dtype: np.dtype[Any]
    work_dtype: np.dtype[Any]
    row: tuple[int, ...]
    kind: str
    arrays: tuple[Array, ...] = ()

    @property
    def row_bytes(self) -> int:
        """Bytes of one edge's value while it is sorted."""
        return self.work_dtype.itemsize * int(np.prod(self.row))


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive edges of one type.

    Attributes:
        kind: index of their type; 0 for stored edges.
        start: position of the first within its type.
        stop: end.
    """

    kind: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


class EdgeSource(Protocol):
    """Edges in an order of their own, which a sort keeps among equal destinations."""

    @property
    def count(self) -> int:
        """Number of edges."""

    def chunks(self, size: int) -> Iterator[Chunk]:
        """All edges, up to `size` at a time."""

    def destinations(self, chunk: Chunk) -> Array:
        """Fused destinations: id dtype[len(chunk)], new memory."""

    def values(self, chunk: Chunk, column: int) -> Array:
        """Values of a column: work_dtype[len(chunk), ...], C order."""


class RawEdges:
    """Edges as the inputs hold them: type after type.

    Args:
        lists: the edges of each type.
        columns: what is kept of each edge.
        id_dtype: of fused ids.
    """

    def __init__(
        self, lists: list[EdgeList], columns: list[Column], id_dtype: np.dtype[Any]
    ) -> None:
        self.lists = lists
        self._columns = columns
        self._id_dtype = id_dtype

    @property
    def count(self) -> int:
        """Number of edges of all types."""
        return sum(len(edges.src) for edges in self.lists)

    def chunks(self, size: int) -> Iterator[Chunk]:
        """Type after type."""
        for kind, edges in enumerate(self.lists):
            for start in range(0, len(edges.src), size):
                yield Chunk(kind, start, min(len(edges.src), start + size))

    def _fused(self, ids: Array, offset: int) -> Array:
        fused = np.array(ids, self._id_dtype, order="C")  # ids are in range, so nothing is lost
        if offset:
            fused += offset
        return fused

    def destinations(self, chunk: Chunk) -> Array:
        """See `EdgeSource`; the chunk's ids have been checked."""
        edges = self.lists[chunk.kind]
        return self._fused(edges.dst[chunk.start : chunk.stop], edges.dst_offset)

    def values(self, chunk: Chunk, column: int) -> Array:
        """See `EdgeSource`; the chunk's ids have been checked."""
        what = self._columns[column]
        match what.kind:
            case "source":
                edges = self.lists[chunk.kind]
                return self._fused(edges.src[chunk.start : chunk.stop], edges.src_offset)
            case "type":
                return np.full(len(chunk), chunk.kind, what.work_dtype)
            case "number":
                return np.arange(chunk.start, chunk.stop, dtype=what.work_dtype)
        rows = what.arrays[chunk.kind][chunk.start : chunk.stop]
        return np.ascontiguousarray(rows, dtype=what.work_dtype)


class StoredEdges:
    """Edges that a pass has stored: a range of places in one file (or array) a column.

    Args:
        files: of destinations, then of each column; or uint8 arrays that hold the same.
        columns: what is kept of each edge.
        id_dtype: of fused ids.
        start: first place.
        stop: end.
    """

    def __init__(
        self,
        files: list[Path] | list[Array],
        columns: list[Column],
        id_dtype: np.dtype[Any],
        start: int,
        stop: int,
    ) -> None:
        self._files = files
        self._columns = columns
        self._id_dtype = id_dtype
        self._start = start
        self._stop = stop

    @property
    def count(self) -> int:
        """Number of edges in the range."""
        return self._stop - self._start

    def chunks(self, size: int) -> Iterator[Chunk]:
        """From the first place to the last."""
        for start in range(self._start, self._stop, size):
            yield Chunk(0, start, min(self._stop, start + size))

    def _read(self, file: int, chunk: Chunk, dtype: np.dtype[Any], row: tuple[int, ...]) -> Array:
        out = np.empty((len(chunk), *row), dtype)
        row_bytes = dtype.itemsize * int(np.prod(row))
        held = self._files[file]
        if not out.size:
            return out
        data = out.reshape(-1).view(np.uint8)
        if isinstance(held, np.ndarray):
            data[:] = held[chunk.start * row_bytes : chunk.stop * row_bytes]
            return out
        with held.open("rb", buffering=0) as stream:
            stream.seek(chunk.start * row_bytes)
            left = data.data
            while len(left):
                got = stream.readinto(left)
                if not got:
                    raise OSError(f"{held} ends too early; preprocess again")
                left = left[got:]
        return out

    def destinations(self, chunk: Chunk) -> Array:
        """See `EdgeSource`."""
        return self._read(0, chunk, self._id_dtype, ())

    def values(self, chunk: Chunk, column: int) -> Array:
        """See `EdgeSource`."""
        what = self._columns[column]
        return self._read(1 + column, chunk, what.work_dtype, what.row)
