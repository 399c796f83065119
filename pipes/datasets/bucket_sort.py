"""Sorting edges by destination within a bound on memory: in one piece, or by way of buckets.

What fits in memory is placed by a counting sort. What does not is first distributed over buckets,
which are ranges of destinations, in files: each edge is read once and written once, in the order
in which they come, to places known beforehand. A bucket that still does not fit is distributed
again. Both steps keep the order of edges of equal destination. What fits but is much larger than
the caches goes by way of buckets too, in memory: that costs less than places all over it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import cache, partial
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np

from hopline.pipes.datasets.ahead import ahead
from hopline.pipes.datasets.checksum import add_segments, sum_of_file
from hopline.pipes.datasets.edge_source import Chunk, Column, EdgeSource, StoredEdges
from hopline.pipes.datasets.npy_writer import Array
from hopline.pipes.datasets.progress import Advance
from hopline.pipes.kernels import sorting

__all__ = ["Buckets", "Cells", "Limits", "Piece", "Sorter"]

MAX_CHUNK = 1 << 21  # edges
MAX_CELLS = 1 << 16  # their counters stay in a core's cache
MAX_BUCKET = 1 << 23  # edges; the places of a bucket's columns stay near the caches
LARGE = 1 << 25  # edges; so many are sorted by way of buckets in memory
MAX_LEAF = (1 << 31) - 1  # edges; places are int32
MAX_BUCKETS = 1 << 9
PREFIX = "buckets-"  # of the names of files
SEGMENT = 1 << 10  # edges of a chunk that go to one bucket, at least: one write


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is in memory at a time.

    Attributes:
        chunk: edges read at a time.
        cells: ranges of destinations counted at a time.
        leaf_edges: edges sorted in memory.
        leaf_nodes: destinations of edges sorted in memory.
        stored_edges: edges whose buckets may lie in memory.
        fan: buckets at a time.
    """

    chunk: int
    cells: int
    leaf_edges: int
    leaf_nodes: int
    stored_edges: int
    fan: int

    @staticmethod
    def of(max_memory: int, columns: list[Column], id_bytes: int) -> Limits:
        """Shares of the bound: a quarter for chunks, half for a leaf's edges, the rest for nodes.

        Where buckets lie in memory they take a quarter, and a leaf has half of its share.

        Args:
            max_memory: bytes for working arrays.
            columns: what is kept of each edge.
            id_bytes: bytes of a fused id.
        """
        widest = max(column.row_bytes for column in columns)
        row = id_bytes + sum(column.row_bytes for column in columns)
        # Two chunks are alive, in the order of buckets; and one's ids, places and one column.
        chunk = max_memory // 4 // max(48, 2 * row + id_bytes + 4 + widest)
        # A leaf's places; the column being placed, and the one before, which is being written.
        leaf = max_memory // 2 // (4 + 2 * widest)
        chunk = max(1, min(MAX_CHUNK, chunk))
        return Limits(
            chunk=chunk,
            cells=max(2, min(MAX_CELLS, max_memory // 256)),
            leaf_edges=max(1, min(MAX_LEAF, leaf)),
            leaf_nodes=max(1, max_memory // 256),
            stored_edges=max_memory // 4 // row,
            fan=max(2, min(MAX_BUCKETS, chunk // SEGMENT)),
        )

    def fits(self, edges: int, nodes: int) -> bool:
        """Whether so much is sorted in memory."""
        return edges <= self.leaf_edges and nodes <= self.leaf_nodes

    def most(self, edges: int, nodes: int) -> tuple[int, int]:
        """Edges and destinations of a bucket of several cells, at most.

        Args:
            edges: in all buckets.
            nodes: in all buckets.
        """
        half = max(2, self.fan // 2)  # a bucket is smaller than the whole in any case
        return (
            max(min(MAX_BUCKET, self.leaf_edges), -(-edges // half)),
            max(self.leaf_nodes, -(-nodes // half)),
        )

    def splits(self, edges: int, nodes: int) -> bool:
        """Whether a bucket with so much is distributed again."""
        return edges > 0 and nodes > 1 and not self.fits(edges, nodes)

    @cache  # noqa: B019  (of a few numbers, in a preparation)
    def stored_again(self, edges: int, nodes: int) -> int:
        """Edges in files at a time while a bucket is sorted, at most: one level below another.

        Args:
            edges: of the bucket.
            nodes: destinations of the bucket.
        """
        if not self.splits(edges, nodes):
            return 0
        # A bucket of the next level is one cell, which may have all edges; or several.
        cell = 1 << _shift(nodes, self.cells)
        some, wide = self.most(edges, nodes)
        below = max(self.stored_again(edges, cell), self.stored_again(min(edges, some), wide))
        return edges + below


@dataclass(frozen=True, slots=True)
class Cells:
    """Numbers of edges in equal ranges of destinations.

    Attributes:
        low: first destination.
        high: end.
        shift: a cell is 2**shift destinations.
        counts: int64[cells].
    """

    low: int
    high: int
    shift: int
    counts: Array

    @staticmethod
    def empty(low: int, high: int, most: int) -> Cells:
        """Cells without edges, `most` at most."""
        shift = _shift(high - low, most)
        number = ((high - low - 1) >> shift) + 1 if high > low else 0
        return Cells(low, high, shift, np.zeros(number, np.int64))

    def add(self, ids: Array) -> None:
        """Counts some edges' destinations.

        Raises:
            RuntimeError: one is out of range, though all were checked.
        """
        _check_unchanged(sorting.count_cells(ids, self.low, self.shift, self.counts))


@dataclass(frozen=True, slots=True)
class Buckets:
    """Ranges of destinations that are stored one behind the other.

    Attributes:
        cells: what they are made of.
        of_cell: int32[cells], the bucket of each cell.
        bounds: int64[buckets + 1], first destination of each; then the end.
        places: int64[buckets + 1], place of each one's first edge; then the end.
    """

    cells: Cells
    of_cell: Array
    bounds: Array
    places: Array

    @staticmethod
    def of(cells: Cells, limits: Limits) -> Buckets:
        """Consecutive cells while they fit in memory; more where there would be too many buckets.

        A cell that does not fit is a bucket of its own.
        """
        sums = np.concatenate([[0], np.cumsum(cells.counts)])
        edges, nodes = limits.most(int(sums[-1]), cells.high - cells.low)
        firsts = [0]
        while firsts[-1] < len(cells.counts):
            first = firsts[-1]
            fits = int(np.searchsorted(sums, sums[first] + edges, side="right")) - 1
            firsts.append(min(max(first + 1, min(fits, first + (nodes >> cells.shift))),
                              len(cells.counts)))  # fmt: skip
        starts = np.array(firsts, np.int64)
        bounds = np.minimum(cells.low + (starts << cells.shift), cells.high)
        of_cell = np.repeat(np.arange(len(starts) - 1, dtype=np.int32), np.diff(starts))
        return Buckets(cells, of_cell, bounds, sums[starts])

    def __len__(self) -> int:
        return len(self.bounds) - 1


@dataclass(frozen=True, slots=True)
class Piece:
    """The next rows of a file of the result.

    Attributes:
        column: which column; -1 for numbers of edges that end at or before each next destination,
            counted from the last such piece.
        rows: of that file.
    """

    column: int
    rows: Array


class Sorter:
    """Sorts edges by destination, stably.

    Args:
        columns: what is kept of each edge.
        id_dtype: of fused ids.
        limits: how much is in memory at a time.
        scratch: folder for buckets.
    """

    def __init__(
        self, columns: list[Column], id_dtype: np.dtype[Any], limits: Limits, scratch: Path
    ) -> None:
        self.columns = columns
        self.limits = limits
        self._id_dtype = id_dtype
        self._scratch = scratch
        self._memory: list[Array] | None = None  # buckets of level 0, where they fit
        self.sums = [0] * (1 + len(columns))  # of the files of level 0, see `checksum`

    def keep_in_memory(self, edges: int) -> None:
        """Has the buckets of level 0 in memory.

        Args:
            edges: number of edges.
        """
        rows = [self._id_dtype.itemsize, *(column.row_bytes for column in self.columns)]
        self._memory = [np.empty(edges * row, np.uint8) for row in rows]
        self.limits = replace(self.limits, leaf_edges=max(1, self.limits.leaf_edges // 2))

    def files(self, level: int) -> list[Path]:
        """Where buckets are stored: destinations, then each column."""
        names = ["destinations", *(str(i) for i in range(len(self.columns)))]
        return [self._scratch / f"{PREFIX}{level}-{name}" for name in names]

    def holds(self, buckets: Buckets, filled: Array) -> bool:
        """Whether the files of level 0 hold so many edges of each bucket, and `sums` fit them."""
        starts = buckets.places[:-1][filled > 0].tolist()
        ends = (buckets.places[:-1] + filled)[filled > 0].tolist()
        kinds = [(self._id_dtype, ()), *((c.work_dtype, c.row) for c in self.columns)]
        return all(
            sum_of_file(path, dtype, row, zip(starts, ends, strict=True)) == total
            for path, (dtype, row), total in zip(self.files(0), kinds, self.sums, strict=True)
        )

    def stored(self, buckets: Buckets, index: int, level: int) -> StoredEdges:
        """The edges of a bucket."""
        start, stop = int(buckets.places[index]), int(buckets.places[index + 1])
        held = self._memory if self._memory is not None and level == 0 else self.files(level)
        return StoredEdges(held, self.columns, self._id_dtype, start, stop)

    def distribute(
        self,
        source: EdgeSource,
        buckets: Buckets,
        level: int,
        *,
        filled: Array | None = None,
        advance: Advance = lambda edges: None,
        checkpoint: Callable[[int, Array], object] = lambda done, filled: None,
    ) -> None:
        """Stores edges in their buckets.

        Args:
            source: the edges.
            buckets: of these edges.
            level: of the files.
            filled: int64[buckets], edges of each bucket that are stored already, by a run that was
                stopped; None if none are.
            advance: called with each chunk's number of edges.
            checkpoint: called after each chunk with the number of edges stored, in all and in each
                bucket.
        """
        filled = np.zeros(len(buckets), np.int64) if filled is None else filled.copy()
        skip = done = int(filled.sum())
        chunks = (c for c in self._after(source, skip))
        with ExitStack() as stack:
            noted = self._memory is None and level == 0  # what is noted is summed up
            files: Sequence[FileIO | Array]
            if self._memory is not None and level == 0:
                files = self._memory
            else:
                mode = "r+b" if skip else "wb"
                files = [stack.enter_context(FileIO(path, mode)) for path in self.files(level)]
            made = (self._by_bucket(source, chunk, buckets) for chunk in chunks)
            pieces = stack.enter_context(
                closing(ahead(made) if source.count > self.limits.chunk else made)
            )
            for counts, columns in pieces:
                ends = np.cumsum(counts)
                for i, (file, rows) in enumerate(zip(files, columns, strict=True)):
                    if noted:
                        places = buckets.places[:-1] + filled
                        self.sums[i] = add_segments(self.sums[i], rows, counts, places)
                    row_bytes = rows.itemsize * int(np.prod(rows.shape[1:]))
                    if row_bytes:
                        data = rows.reshape(-1).view(np.uint8).data
                        for b in np.flatnonzero(counts):
                            place = int(buckets.places[b] + filled[b])
                            segment = slice(int(ends[b] - counts[b]) * row_bytes,
                                            int(ends[b]) * row_bytes)  # fmt: skip
                            _write(file, place * row_bytes, data[segment])
                filled += counts
                done += int(ends[-1])
                advance(int(ends[-1]))
                del columns, rows
                checkpoint(done, filled)

    def _after(self, source: EdgeSource, skip: int) -> Iterator[Chunk]:
        for chunk in source.chunks(self.limits.chunk):
            if skip >= len(chunk):  # chunks are stored whole
                skip -= len(chunk)
            else:
                yield chunk

    def _by_bucket(
        self, source: EdgeSource, chunk: Chunk, buckets: Buckets
    ) -> tuple[Array, list[Array]]:
        """A chunk's number of edges in each bucket; destinations and columns in that order."""
        ids = source.destinations(chunk)
        cells = buckets.cells
        counts = np.zeros(len(buckets), np.int64)
        _check_unchanged(
            sorting.count_buckets(ids, cells.low, cells.shift, buckets.of_cell, counts)
        )
        places = np.empty(len(ids), np.int32)
        cursor = np.cumsum(counts) - counts
        sorting.place_by_bucket(ids, cells.low, cells.shift, buckets.of_cell, cursor, places)
        out = [_scattered(ids, places)]
        for i in range(len(self.columns)):
            out.append(_scattered(source.values(chunk, i), places))
        return counts, out

    def sort(self, source: EdgeSource, low: int, high: int, level: int) -> Iterator[Piece]:
        """Edges with destinations in [low, high), in order.

        Args:
            source: the edges.
            low: first destination.
            high: end.
            level: number of times that the edges have been distributed.

        Yields:
            The pieces of the result's files. Those of a column come in order, and all columns have
            as many rows once the last one's piece has come.
        """
        if source.count == 0:
            for start in range(low, high, self.limits.leaf_nodes):
                yield Piece(-1, np.zeros(min(high - start, self.limits.leaf_nodes), np.int64))
        elif self.limits.fits(source.count, high - low):
            cells = Cells.empty(low, high, high - low)
            for chunk in source.chunks(self.limits.chunk):
                cells.add(source.destinations(chunk))
            yield from self.place(source, cells)
        elif high - low == 1:
            yield Piece(-1, np.array([source.count], np.int64))
            for chunk in source.chunks(self.limits.chunk):
                for i in range(len(self.columns)):
                    yield Piece(i, source.values(chunk, i))
        else:
            cells = Cells.empty(low, high, self.limits.cells)
            for chunk in source.chunks(self.limits.chunk):
                cells.add(source.destinations(chunk))
            buckets = Buckets.of(cells, self.limits)
            self.distribute(source, buckets, level)
            for i in range(len(buckets)):
                bounds = int(buckets.bounds[i]), int(buckets.bounds[i + 1])
                yield from self.sort(self.stored(buckets, i, level), *bounds, level + 1)
            for path in self.files(level):
                path.unlink()

    def place(
        self, source: EdgeSource, cells: Cells, *, read_ahead: bool = False
    ) -> Iterator[Piece]:
        """Sorts in memory.

        Args:
            source: the edges.
            cells: their numbers at each destination; used up.
            read_ahead: read each chunk while the one before is placed.
        """
        chunks = list(source.chunks(self.limits.chunk))

        def read(values: Callable[[Chunk], Array]) -> closing[Generator[Array, None, None]]:
            pieces = (values(chunk) for chunk in chunks)
            return closing(ahead(pieces) if read_ahead and len(chunks) > 1 else pieces)

        ends = np.cumsum(cells.counts)
        cursor = np.subtract(ends, cells.counts, out=cells.counts)
        yield Piece(-1, ends)
        del ends
        places = np.empty(source.count, np.int32)
        done = 0
        with read(source.destinations) as pieces:
            for ids in pieces:
                part = places[done : done + len(ids)]
                _check_unchanged(sorting.place_by_node(ids, cells.low, cursor, source.count, part))
                done += len(ids)
        for i, column in enumerate(self.columns):
            out = np.empty((source.count, *column.row), column.work_dtype)
            done = 0
            with read(partial(source.values, column=i)) as pieces:
                for rows in pieces:
                    _scatter(rows, places[done : done + len(rows)], out)
                    done += len(rows)
            yield Piece(i, out)
            del out


def _shift(nodes: int, most: int) -> int:
    """Such that cells of 2**shift destinations are `most` at most."""
    shift = 0
    while nodes > 0 and ((nodes - 1) >> shift) >= most:
        shift += 1
    return shift


def _check_unchanged(bad: int) -> None:
    if bad >= 0:
        raise RuntimeError("the edges were changed while they were read; preprocess again")


def _write(file: FileIO | Array, offset: int, data: memoryview) -> None:
    if isinstance(file, np.ndarray):
        file[offset : offset + len(data)] = data
        return
    file.seek(offset)
    while len(data):
        data = data[file.write(data) :]


def _scattered(values: Array, places: Array) -> Array:
    out = np.empty_like(values)
    _scatter(values, places, out)
    return out


def _scatter(values: Array, places: Array, out: Array) -> None:
    """out[places] = values, by their bits."""
    row_bytes = values.itemsize * int(np.prod(values.shape[1:]))
    if values.size == 0:
        return
    if row_bytes in (1, 2, 4, 8):
        word = np.dtype(f"u{row_bytes}")
        sorting.scatter(values.reshape(-1).view(word), places, out.reshape(-1).view(word))
    else:
        sorting.scatter_rows(
            values.reshape(-1).view(np.uint8).reshape(len(values), row_bytes),
            places,
            out.reshape(-1).view(np.uint8).reshape(len(out), row_bytes),
        )
