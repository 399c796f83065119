"""The descriptions of a partitioned data set: partition.yaml, and part.yaml in each part.

OUT/partition.yaml            book, quality, tasks, and a digest of each file outside the parts
OUT/tasks/...                 item sets, in the order of the data set, by new ids
OUT/new_ids/TYPE.npy          int32 or int64, the new id of each node, by the id before
OUT/part-0/part.yaml          features, and a digest of each file of the part
OUT/part-0/graph/...          own nodes, their in-edges, the halo; a folder as of `graph.save`
OUT/part-0/nodes/TYPE.npy     int64, ids before of the rows: own nodes, then the halo
OUT/part-0/halo/TYPE.npy      int64, new ids of the halo
OUT/part-0/halo_hops/TYPE.npy uint8, hops from the own nodes to each halo node
OUT/part-0/edges/TYPE.npy     int64, ids before of the own edges, by new ids
OUT/part-0/features/...       rows of the own nodes and edges

A machine needs partition.yaml, tasks, new_ids and its own parts.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any, Literal, Self
from urllib.parse import quote

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from hopline.partition.book import PartitionBook
from hopline.partition.quality import PartitionQuality
from hopline.pipes.plain_yaml import parse_plain_yaml, read_yaml_bytes, show

__all__ = ["FORMAT_VERSION", "MARK", "PARTITION_FILE", "PART_FILE", "Digest", "PartManifest",
           "PartitionError", "PartitionManifest", "check_plain", "digest_of",
           "digests_below", "last_line", "part_folder", "type_file"]  # fmt: skip

FORMAT_VERSION = 1
PARTITION_FILE = "partition.yaml"
PART_FILE = "part.yaml"
PIECE = 1 << 20
MARK = b"# CRC-32 of the lines above: "
LONGEST = 100  # characters of a type in a file's name
RESERVED = {"all", "con", "prn", "aux", "nul"} | {
    f"{d}{i}" for d in ("com", "lpt") for i in range(10)
}


class PartitionError(ValueError):
    """A partitioned data set, or a part of it, that cannot be used; names the file and why."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Digest(_Model):
    """Size and CRC-32 of a file."""

    size: int
    crc32: int


class StoredColumn(_Model):
    """A column of an item set; `dtype` is torch's name."""

    file: str
    dtype: str
    shape: list[int]


class StoredItems(_Model):
    """The items of one type, "" where there are no types."""

    type: str
    columns: list[StoredColumn]


class StoredTask(_Model):
    """A task; `names` are those of the columns, of each set that has any."""

    metadata: dict[Any, Any]
    sets: dict[Literal["train_set", "validation_set", "test_set"], list[StoredItems]]
    names: dict[str, list[str] | None]


class StoredFeature(_Model):
    """The rows of one feature that a part owns."""

    domain: Literal["node", "edge"]
    type: str
    name: str
    file: str
    dtype: str
    shape: list[int]
    metadata: dict[Any, Any]


def last_line(content: bytes) -> bytes:
    """What a description ends with: the CRC-32 of the lines above."""
    return MARK + f"{zlib.crc32(content):08x}\n".encode()


class _Document(_Model):
    """What both descriptions share: reading and writing. The last line is a CRC-32 of the rest."""

    format_version: int = FORMAT_VERSION
    partition_id: str
    files: dict[str, Digest]

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        """No name may lead out of the folder, and none is read without a digest."""
        for name in self.files:
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name:
                raise ValueError(f"file {name!r} is outside the folder")
        for name in self._named():
            if name not in self.files:
                raise ValueError(f"file {name!r} has no digest")
        return self

    def _named(self) -> list[str]:
        """Files that the description names besides."""
        return []

    def save(self, path: Path) -> None:
        """Writes the description; it comes last, and marks the folder as whole."""
        new = path.with_name(path.name + ".new")
        text = yaml.safe_dump(self.model_dump(), sort_keys=False, allow_unicode=True)
        content = text.encode()
        with new.open("wb") as file:
            file.write(content + last_line(content))
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads a description.

        Raises:
            PartitionError: it is missing, damaged, or of another version.
        """
        try:
            content = read_yaml_bytes(path)
            document = parse_plain_yaml(content)
        except FileNotFoundError:
            raise PartitionError(
                f"{path}: no such file; expected the result of partition_graph, or of "
                "`hopline partition`"
            ) from None
        except NotADirectoryError:
            raise PartitionError(
                f"{path.parent} is no folder; expected the one that partition_graph, or "
                "`hopline partition`, has written"
            ) from None
        except (OSError, ValueError) as error:
            raise PartitionError(f"{path}: cannot be read ({error})") from error
        found = document.get("format_version") if isinstance(document, dict) else None
        if found != FORMAT_VERSION:
            raise PartitionError(
                f"{path}: has format version {show(found)}; this release reads {FORMAT_VERSION}: "
                "partition the graph again"
            )
        try:
            loaded = cls.model_validate(document)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise PartitionError(f"{path}: is damaged at {where}: {first['msg']}") from error
        body, mark, _ = content.rpartition(MARK)
        if not mark or content != body + last_line(body):
            raise PartitionError(
                f"{path}: has another CRC-32 than its last line says: it was changed after it was "
                "written, copy it again"
            )
        return loaded

    def check_files(
        self, folder: Path, *, content: bool, names: Iterable[str] | None = None
    ) -> None:
        """Compares the files with their digests.

        Args:
            folder: what their names are relative to.
            content: read them all; else only their sizes are looked at.
            names: of the files; None for all.

        Raises:
            PartitionError: a file is missing, cut short or changed; names it.
        """
        for name in self.files if names is None else names:
            path, expected = folder / name, self.files[name]
            try:
                size = path.stat().st_size
                found = digest_of(path) if content and size == expected.size else None
            except FileNotFoundError:
                raise PartitionError(f"{path}: no such file; copy the part again") from None
            except OSError as error:
                raise PartitionError(f"{path}: cannot be read ({error})") from error
            if size != expected.size:
                raise PartitionError(
                    f"{path}: has {size} bytes; expected {expected.size}, as when it was written: "
                    "copy the part again"
                )
            if found is not None and found != expected:
                raise PartitionError(
                    f"{path}: has the CRC-32 {found.crc32:08x}; expected {expected.crc32:08x}, as "
                    "when it was written: the file is damaged, copy the part again"
                )


class PartitionManifest(_Document):
    """partition.yaml.

    Attributes:
        partition_id: of this partition; its parts have the same.
        files: digests of the files outside the parts.
        graph_name: as the user called it.
        num_parts: number of parts.
        num_hops: hops of halo.
        num_trainers_per_machine: ranks that share a part, as planned when it was cut.
        method: how nodes were assigned.
        seed: of the assignment.
        eps: balance that was asked for.
        node_type_to_id: `{type: id}`, None for a homogeneous graph.
        edge_type_to_id: likewise.
        node_ranges: as of `PartitionBook`.
        edge_ranges: likewise.
        quality: as of `PartitionQuality.to_dict`.
        tasks: the data set's.
    """

    graph_name: str
    num_parts: int
    num_hops: int
    num_trainers_per_machine: int
    method: str
    seed: int
    eps: float
    node_type_to_id: dict[str, int] | None
    edge_type_to_id: dict[str, int] | None
    node_ranges: dict[str, list[int]]
    edge_ranges: dict[str, list[int]]
    quality: dict[str, Any]
    tasks: list[StoredTask]

    def task_files(self) -> list[str]:
        """Names of the files of the item sets."""
        return self._named()

    def _named(self) -> list[str]:
        sets = [items for task in self.tasks for each in task.sets.values() for items in each]
        return [column.file for items in sets for column in items.columns]

    def measured(self) -> PartitionQuality:
        """What the cut costs, with a table as its text.

        Raises:
            PartitionError: the description holds something else.
        """
        try:
            return PartitionQuality(**self.quality)
        except TypeError as error:
            raise PartitionError(f"{PARTITION_FILE}: is damaged at quality: {error}") from error

    def book(self) -> PartitionBook:
        """Owners and ranges.

        Raises:
            PartitionError: the ranges fit no graph.
        """
        try:
            return PartitionBook(self.num_parts, self.node_ranges, self.edge_ranges)
        except (TypeError, ValueError) as error:
            raise PartitionError(f"{PARTITION_FILE}: {error}") from error


class PartManifest(_Document):
    """part.yaml.

    Attributes:
        partition_id: of the partition that it is a part of.
        files: digests of the part's files.
        part: its number.
        num_own: own nodes of each type.
        features: rows that it owns.
    """

    part: int
    num_own: dict[str, int]
    features: list[StoredFeature]

    def _named(self) -> list[str]:
        return [feature.file for feature in self.features]


def check_plain(value: Any, what: str) -> None:
    """Refuses what YAML cannot tell.

    Raises:
        TypeError: it holds something else than plain values; names what.
    """
    try:
        yaml.safe_dump(value)
    except yaml.YAMLError as error:
        found = error.args[-1] if error.args else error
        raise TypeError(
            f"{what} holds {found!r:.100}; expected plain values: numbers, strings, lists, dicts"
        ) from error


def part_folder(part: int) -> str:
    """Name of a part's folder."""
    return f"part-{part}"


def type_file(folder: str, kind: str) -> str:
    """A file for each type, whose name any file system takes, and tells from those of others.

    >>> type_file("nodes", ""), type_file("nodes", "a/b"), type_file("nodes", "User")
    ('nodes/all.npy', 'nodes/a%2Fb.npy', 'nodes/User-2da17977.npy')
    """
    name = quote(kind, safe="")
    # Some file systems hold upper and lower case for the same, or have devices of short names.
    if len(name) > LONGEST or kind != kind.lower() or name in RESERVED or name.startswith("."):
        name = f"{name[:LONGEST]}-{zlib.crc32(kind.encode()):08x}"
    return f"{folder}/{name or 'all'}.npy"


def digest_of(path: Path) -> Digest:
    """Reads a file for its digest."""
    crc = size = 0
    with path.open("rb", buffering=0) as file:
        while piece := file.read(PIECE):
            crc = zlib.crc32(piece, crc)
            size += len(piece)
    return Digest(size=size, crc32=crc)


def digests_below(folder: Path) -> dict[str, Digest]:
    """Digests of all files below a folder, by relative name."""
    return {
        path.relative_to(folder).as_posix(): digest_of(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
