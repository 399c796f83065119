"""What a preprocessing run works with, and the steps that all its arrays share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hopline.pipes.datasets.arrays import RawArray, open_array, row_chunks
from hopline.pipes.datasets.journal import Journal
from hopline.pipes.datasets.metadata import OnDiskFile
from hopline.pipes.datasets.npy_writer import Array, NpyWriter, holds_rows
from hopline.pipes.datasets.progress import Progress
from hopline.pipes.datasets.scratch import Scratch
from hopline.pipes.datasets.yaml_file import Place, show

__all__ = ["Sizes", "Workplace", "attribute_dtype", "check_unique"]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Numbers of nodes and edges of each type; the type of a homogeneous graph is None.

    Attributes:
        nodes: `{node type: number}`, in the order of type ids.
        edges: `{edge type: number}`, in the order of type ids.
        offsets: `{node type: fused id of its first node}`.
    """

    nodes: dict[str | None, int]
    edges: dict[str | None, int] = field(default_factory=dict)
    offsets: dict[str | None, int] = field(default_factory=dict)

    @property
    def typed(self) -> bool:
        """Whether nodes and edges have types."""
        return None not in self.nodes

    def of(self, domain: str) -> dict[str | None, int]:
        """Numbers of nodes or of edges."""
        return self.nodes if domain == "node" else self.edges

    def check_type(self, domain: str, name: str | None, place: Place) -> None:
        """Refuses a type that the graph does not have.

        Raises:
            MetadataError: names the types there are.
        """
        known = self.of(domain)
        if name in known:
            return
        wanted = f"one of {show(list(known), 200)}" if self.typed else "no type: there is one only"
        raise place.at("type").error(f"got {name!r}; expected {wanted}, as under graph.{domain}s")

    def describe(self, domain: str, name: str | None) -> str:
        """A type for messages."""
        return f"{domain} type {name!r}" if name is not None else f"the graph's {domain}s"


@dataclass(slots=True)
class Workplace:
    """What a run works with.

    Attributes:
        folder: the working folder, which becomes the result.
        scratch: for converted inputs; removed before the end.
        files: `{path as written: input file}`.
        sizes: numbers of nodes and edges.
        seed_dtype: of columns named seeds.
        max_memory: bound on working arrays in bytes.
        journal: tells what a run that was stopped has finished, and is told.
        progress: is told.
    """

    folder: Path
    scratch: Scratch
    files: dict[str, Path]
    sizes: Sizes
    seed_dtype: np.dtype[Any]
    max_memory: int
    journal: Journal
    progress: Progress

    def open(self, entry: OnDiskFile, place: Place) -> RawArray:
        """Opens the input of an entry."""
        return open_array(entry, self.files[entry.path], place, self.scratch)

    def write(
        self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...], arrays: Iterable[Array]
    ) -> None:
        """Writes arrays of any byte order and memory order one behind the other.

        A large file that a stopped run has finished is left as it is.

        Args:
            name: the file, relative to the working folder.
            dtype: of the file.
            shape: of the file; rows of the arrays are reshaped to its rows.
            arrays: what is written.
        """
        entry = f"written {name}"
        path = self.folder / name
        noted = self.journal.get(entry)
        if noted is not None and holds_rows(path, dtype, shape, shape[0], noted):
            return
        with NpyWriter(path, dtype, shape) as file:
            for array in arrays:
                _write_rows(file, array, self.max_memory // 8)
        with path.open("rb") as done:
            self.journal.put_large(entry, lambda: file.total, done)

    def check_finite(self, array: Array, what: str, place: Place) -> None:
        """Refuses NaN.

        Raises:
            MetadataError: names the first row that has one.
        """
        if array.dtype.kind != "f":
            return
        row_bytes = array.dtype.itemsize * int(np.prod(array.shape[1:]))
        for rows in row_chunks(len(array), row_bytes, self.max_memory // 8):
            missing = np.isnan(array[rows])
            if missing.any():
                bad = rows.start + int(np.argwhere(missing)[0][0])
                raise place.at("path").error(
                    f"{what} is nan in row {bad}; expected a number in each row: fill or drop "
                    "those rows"
                )


def _write_rows(file: NpyWriter, array: Array, limit: int) -> None:
    row_bytes = file.dtype.itemsize * int(np.prod(array.shape[1:]))
    for rows in row_chunks(len(array), row_bytes, limit):
        block = array[rows]
        file.append(block.reshape(len(block), *file.shape[1:]))


def attribute_dtype(raw: RawArray, place: Place) -> np.dtype[Any]:
    """The dtype to store: unsigned types wider than a byte, which torch hardly handles, go up.

    Raises:
        MetadataError: an unsigned 64-bit value is too big for int64.
    """
    dtype = raw.array.dtype.newbyteorder("=")
    if dtype.kind != "u" or dtype.itemsize == 1:
        return dtype
    if dtype.itemsize == 8 and raw.array.size and raw.array.max() > np.iinfo(np.int64).max:
        raise place.at("path").error(
            f"holds {int(raw.array.max())}, which int64 cannot hold; expected values up to 2**63-1"
        )
    return np.dtype(np.int32 if dtype.itemsize == 2 else np.int64)


def check_unique(entries: Iterable[tuple[Place, tuple[Any, ...]]]) -> None:
    """Refuses a key that is given twice.

    Raises:
        MetadataError: names the second place.
    """
    seen: set[tuple[Any, ...]] = set()
    for place, key in entries:
        if key in seen:
            name = key[0] if len(key) == 1 else key
            raise place.error(f"{name!r} is given twice; expected each once: remove or rename one")
        seen.add(key)
