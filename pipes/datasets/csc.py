"""Edges in files to compressed sparse columns in files, within a bound on memory.

Order: by destination, then edge type, then input order. The first pass checks and counts; where
the edges do not fit in memory, the second distributes them over buckets; the last sorts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np

from hopline.pipes.datasets import bucket_sort
from hopline.pipes.datasets.ahead import ahead
from hopline.pipes.datasets.arrays import row_chunks
from hopline.pipes.datasets.bucket_sort import Buckets, Cells, Limits, Piece, Sorter
from hopline.pipes.datasets.disk_space import check_space
from hopline.pipes.datasets.edge_source import Chunk, Column, EdgeList, RawEdges
from hopline.pipes.datasets.journal import Journal
from hopline.pipes.datasets.npy_writer import Array, NpyWriter, holds_rows, sync_names
from hopline.pipes.datasets.progress import Progress

__all__ = ["EdgeList", "write_csc"]

INDPTR = "csc_indptr.npy"
ENTRY = "sort"  # in the journal
SMALL = 2 << 12  # bytes of a file beside its rows
LEVELS = 32  # of buckets that are distributed again, at most
JOURNAL = 1 << 17  # bytes


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
    scratch: Path,
    journal: Journal,
    progress: Progress,
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
        scratch: existing folder for buckets.
        journal: tells what a run that was stopped has finished, and is told.
        progress: is told.

    Raises:
        MetadataError: an edge names a node that does not exist.
        OSError: the disk has no room; raised before the work.
    """
    id_dtype = np.dtype(np.int32 if num_nodes < 2**31 else np.int64)
    columns = [Column(folder / "indices.npy", index_dtype, id_dtype, (), "source")]
    if type_dtype is not None:
        columns.append(
            Column(folder / "type_per_edge.npy", type_dtype, type_dtype, (), "type")
        )  # fmt: skip
    if edge_ids is not None:
        path, dtype = edge_ids
        columns.append(Column(path, dtype, dtype, (), "number"))
    for path, (dtype, arrays) in attributes.items():
        native = dtype.newbyteorder("=")
        columns.append(
            Column(path, native, native, arrays[0].shape[1:], "attribute", tuple(arrays))
        )
    limits = Limits.of(max_memory, columns, id_dtype.itemsize)
    sorter = Sorter(columns, id_dtype, limits, scratch)
    run = _Run(
        folder=folder,
        source=RawEdges(edges, columns, id_dtype),
        num_nodes=num_nodes,
        sorter=sorter,
        scratch=scratch,
        max_memory=max_memory,
        journal=journal,
        progress=progress,
    )
    run()


class _Run:
    """The passes, and where they stand.

    The journal's entry holds the plan, which a run must share to go on; `counted`, the sum of the
    counts' file; `filled`, the edges stored in each bucket, and `stored`, the sums of their files;
    `bucket`, `nodes` and `edges`, how far the result is written, and `written`, the sums of that.
    """

    def __init__(
        self,
        *,
        folder: Path,
        source: RawEdges,
        num_nodes: int,
        sorter: Sorter,
        scratch: Path,
        max_memory: int,
        journal: Journal,
        progress: Progress,
    ) -> None:
        self.source = source
        self.num_nodes = num_nodes
        self.sorter = sorter
        self.limits = sorter.limits
        self.max_memory = max_memory
        self.journal = journal
        self.progress = progress
        self.indptr = folder / INDPTR
        self.counts = scratch / "counts.npy"
        self.root = folder.parent  # whose own names the journal brings to the disk
        # Sorted at once; or by way of buckets, in memory or in files.
        fits = self.limits.fits(source.count, num_nodes)
        large = bucket_sort.LARGE < source.count <= self.limits.stored_edges
        self.at_once = fits and not large
        self.on_disk = not fits and not large
        columns = sorter.columns
        # What one edge takes in buckets, and in the result.
        self.bucket_bytes = sum(c.row_bytes for c in columns) + columns[0].work_dtype.itemsize
        self.row_bytes = sum(c.dtype.itemsize * int(np.prod(c.row)) for c in columns)
        self.outputs = [self.indptr, *(column.path for column in columns)]
        self.kinds: list[tuple[np.dtype[Any], tuple[int, ...]]] = [
            (np.dtype(np.int64), (num_nodes + 1,)),
            *((column.dtype, (source.count, *column.row)) for column in columns),
        ]
        plan = {
            "max_memory": max_memory,
            "edges": source.count,
            "nodes": num_nodes,
            "chunk": self.limits.chunk,
            "bytes": [self.bucket_bytes, self.row_bytes],
        }
        most = num_nodes if self.at_once else self.limits.cells
        self.cells = Cells.empty(0, num_nodes, most)
        self.unsynced = False  # buckets hold what may not be on the disk yet
        found = journal.get(ENTRY)
        self.state: dict[str, Any] = {"plan": plan}
        if isinstance(found, dict) and found["plan"] == plan and self._is_there(found):
            self.state = dict(found)
        elif found is not None:  # before its files are written over
            journal.put(ENTRY, self.state)

    def __call__(self) -> None:
        self._check_space(0)
        self._count()
        if self.at_once:
            with self.progress.phase("sorting edges", self.source.count) as advance:
                pieces = self.sorter.place(self.source, self.cells, read_ahead=True)
                self._write(((piece, None) for piece in pieces), advance)
            return
        if not self.on_disk:
            self.sorter.keep_in_memory(self.source.count)
        buckets = Buckets.of(self.cells, self.sorter.limits)
        sizes, nodes = np.diff(buckets.places), np.diff(buckets.bounds)
        limits = self.sorter.limits
        large = [(e, n) for e, n in zip(sizes.tolist(), nodes.tolist(), strict=True)
                 if limits.splits(e, n)]  # fmt: skip
        most = [max(values) for values in zip(*large, strict=True)] if large else [0, 0]
        self._check_space(limits.stored_again(*most))
        self._distribute(buckets)
        with (
            self.progress.phase(
                "sorting edges", self.source.count, done=self.state.get("edges", 0)
            ) as advance,
            closing(ahead(self._sorted(buckets))) as in_order,
        ):
            self._write(in_order, advance)

    def _is_there(self, state: dict[str, Any]) -> bool:
        """Whether the files hold as much as has been noted."""
        rows = [state.get("nodes", 0), *[state.get("edges", 0)] * len(self.sorter.columns)]
        totals = state.get("written", [0] * len(rows))
        parts = zip(self.outputs, self.kinds, rows, totals, strict=True)
        return all(holds_rows(path, *kind, n, total) for path, kind, n, total in parts if n) and (
            "counted" not in state
            or holds_rows(
                self.counts, *self._counts_kind, self._counts_kind[1][0], state["counted"]
            )
        )

    @property
    def _counts_kind(self) -> tuple[np.dtype[Any], tuple[int, ...]]:
        return self.cells.counts.dtype, self.cells.counts.shape

    def _check_space(self, again: int) -> None:
        """`again`: places in the files of buckets that are distributed once more."""
        result = self.source.count * self.row_bytes + 8 * self.num_nodes + 8
        stored = (again + self.source.count * self.on_disk) * self.bucket_bytes
        # Headers, ends of last blocks, counts, the journal and its next version.
        files = len(self.sorter.files(0)) * (self.on_disk + LEVELS * (again > 0))
        small = SMALL * (len(self.outputs) + files) + self.cells.counts.nbytes + JOURNAL
        there = [*self.outputs, *self.counts.parent.glob(f"{bucket_sort.PREFIX}*")]
        what = f"{self.source.count:,} edges, sorted"
        what += ", and the buckets that they are sorted by" if stored else ""
        check_space(self.indptr.parent, result + stored + small, what, self.progress, there)

    def _note(self, **values: Any) -> None:
        """What is noted is on the disk first."""
        if "counted" not in self.state:
            with NpyWriter(self.counts, *self._counts_kind) as file:
                file.append(self.cells.counts)
            self.state["counted"] = file.total
        if self.unsynced:
            for path in self.sorter.files(0):
                _sync(path)
            self.unsynced = False
        sync_names(self.counts, self.root)
        self.state.update(values)
        self.journal.put(ENTRY, self.state)

    def _count(self) -> None:
        """Checks all ids, and counts; memory for each node only where everything fits."""
        if "counted" in self.state:
            self.cells.counts[:] = np.load(self.counts, allow_pickle=False)
            return

        def checked(chunk: Chunk) -> Array:
            lists = self.source.lists
            lists[chunk.kind].check(chunk.start, chunk.stop, lists)
            return self.source.destinations(chunk)

        made = (checked(chunk) for chunk in self.source.chunks(self.limits.chunk))
        many = self.source.count > self.limits.chunk
        with (
            self.progress.phase("checking edges", self.source.count) as advance,
            closing(ahead(made) if many else made) as pieces,
        ):
            for ids in pieces:
                self.cells.add(ids)
                advance(len(ids))
                del ids
        if self.journal.due():
            self._note()

    def _distribute(self, buckets: Buckets) -> None:
        nothing = np.zeros(len(buckets), np.int64)
        start = np.array(self.state.get("filled", nothing), np.int64)
        self.sorter.sums = list(self.state.get("stored", self.sorter.sums))
        if start.any() and not self.sorter.holds(buckets, start):
            start = nothing
            self.sorter.sums = [0] * len(self.sorter.sums)
            self.state = {key: self.state[key] for key in ("plan", "counted")}
            self._note()
        if int(start.sum()) == self.source.count:
            return

        def checkpoint(done: int, filled: Array) -> None:
            if not self.on_disk:  # a run that goes on fills them again
                return
            self.unsynced = True
            if self.journal.due():
                self._note(filled=filled.tolist(), stored=list(self.sorter.sums))
            elif done == self.source.count:  # noted with what is done next
                self.state.update(filled=filled.tolist(), stored=list(self.sorter.sums))

        with self.progress.phase(
            "distributing edges", self.source.count, done=int(start.sum())
        ) as advance:
            self.sorter.distribute(
                self.source, buckets, 0, filled=start, advance=advance, checkpoint=checkpoint
            )

    def _sorted(self, buckets: Buckets) -> Iterator[tuple[Piece, int | None]]:
        """The pieces of the result; behind those of a bucket, the number of buckets done."""
        for i in range(self.state.get("bucket", 0), len(buckets)):
            source = self.sorter.stored(buckets, i, 0)
            low, high = int(buckets.bounds[i]), int(buckets.bounds[i + 1])
            for piece in self.sorter.sort(source, low, high, 1):
                yield piece, None
            yield Piece(-1, np.empty(0, np.int64)), i + 1

    def _write(self, pieces: Iterator[tuple[Piece, int | None]], advance: Any) -> None:
        edges, nodes = self.state.get("edges", 0), self.state.get("nodes", 0)
        last = len(self.sorter.columns) - 1
        ends = edges  # edges up to the last destination whose end is written
        totals = self.state.get("written", [0] * len(self.outputs))
        with ExitStack() as stack:
            starts = [nodes, *[edges] * len(self.sorter.columns)]
            indptr, *files = (
                stack.enter_context(NpyWriter(path, *kind, row, total))
                for path, kind, row, total in zip(
                    self.outputs, self.kinds, starts, totals, strict=True
                )
            )
            if nodes == 0:
                indptr.append(np.zeros(1, np.int64))
            for piece, bucket in pieces:
                rows = piece.rows
                if piece.column < 0:
                    rows += ends
                    ends = int(rows[-1]) if len(rows) else ends
                    indptr.append(rows)
                else:
                    file = files[piece.column]
                    row_bytes = file.dtype.itemsize * int(np.prod(file.shape[1:]))
                    step = len(rows) * row_bytes
                    if file.dtype != rows.dtype:  # a copy is made
                        step = self.max_memory // 8
                    for part in row_chunks(len(rows), row_bytes, step):
                        file.append(rows[part])
                    if piece.column == last:
                        advance(len(rows))
                del piece, rows
                if bucket is not None and self.journal.due():
                    writers = (indptr, *files)
                    for writer in writers:
                        writer.sync()
                        sync_names(writer.path, self.root)
                    self._note(
                        bucket=bucket,
                        nodes=indptr.rows,
                        edges=files[0].rows,
                        written=[writer.total for writer in writers],
                    )


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
