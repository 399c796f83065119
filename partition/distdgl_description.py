"""The description of a graph that DistDGL has cut: the JSON file beside its parts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from hopline.partition.assign import MOST_PARTS
from hopline.partition.manifest import PartitionError
from hopline.pipes.plain_yaml import read_yaml_bytes, show

__all__ = ["Description", "Ranges", "read_description"]

Array = np.ndarray[Any, Any]

MOST_IDS = 1 << 62
FILES = ("part_graph", "node_feats", "edge_feats")


@dataclass(frozen=True)
class Ranges:
    """Which ids of nodes, or of edges, are of which type and part.

    DGL numbers the nodes of all types together: those of part 0 by type, then those of part 1.
    Within a type they are numbered in the same order; these are the ids that users see.

    Attributes:
        types: names, by their numbers.
        bounds: int64[parts, types, 2], first id and the one behind the last.
    """

    types: list[str]
    bounds: Array

    @property
    def counts(self) -> Array:
        """int64[parts, types]: how many each part has of each type."""
        found: Array = self.bounds[:, :, 1] - self.bounds[:, :, 0]
        return found

    @property
    def total(self) -> int:
        """How many there are."""
        return int(self.counts.sum())

    def firsts(self) -> Array:
        """int64[parts + 1, types]: id within its type of each part's first, and how many."""
        return np.concatenate([np.zeros((1, len(self.types)), np.int64), self.counts.cumsum(0)])

    def typed(self, ids: Array) -> tuple[Array, Array]:
        """(int64[n] number of the type of each id, int64[n] id within the type)."""
        flat, firsts = self.bounds.reshape(-1, 2), self.firsts()[:-1].reshape(-1)
        used = np.flatnonzero(flat[:, 1] > flat[:, 0])  # the begins of which ascend
        found = used[np.searchsorted(flat[used, 0], ids, side="right") - 1]
        return found % len(self.types), ids - flat[found, 0] + firsts[found]


@dataclass(frozen=True)
class Description:
    """What the JSON file says.

    Attributes:
        graph_name: as the user called it.
        num_parts: number of parts.
        nodes: ranges of nodes.
        edges: ranges of edges; their types are "source:relation:destination".
        files: of each part, `{"part_graph": path, ...}`.
    """

    graph_name: str
    num_parts: int
    nodes: Ranges
    edges: Ranges
    files: list[dict[str, Path]]

    @property
    def is_typed(self) -> bool:
        """Whether nodes and edges have types; without, DGL calls the nodes' "_N"."""
        return self.nodes.types != ["_N"] or len(self.edges.types) != 1


def read_description(path: Path) -> Description:
    """Reads the JSON file of `dgl.distributed.partition_graph`.

    Raises:
        PartitionError: it is missing, is none, or does not fit together; says where.
    """
    try:
        document = json.loads(read_yaml_bytes(path))
    except FileNotFoundError:
        raise PartitionError(
            f"{path}: no such file; expected the JSON file that DistDGL wrote beside its parts"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise PartitionError(f"{path}: cannot be read as JSON ({error})") from error
    try:
        return _checked(path, document)
    except ValueError as error:
        raise PartitionError(f"{path}: {error}") from error


def _checked(path: Path, document: Any) -> Description:
    if not isinstance(document, dict):
        raise ValueError(f"holds {show(document)}; expected DistDGL's names and values")
    if "num_nodes_per_chunk" in document or "num_nodes_per_type" in document:
        raise ValueError(
            "describes a chunked graph; expected the JSON file that DGL's dispatch_data.py writes "
            "beside the parts it makes of one"
        )
    name = document.get("graph_name")
    if not isinstance(name, str) or not name:
        raise ValueError(f"graph_name is {show(name)}; expected a string")
    parts = _count(document, "num_parts", MOST_PARTS)
    if parts == 0:
        raise ValueError("num_parts is 0; expected 1 or more")
    nodes = _ranges(document, "node", parts)
    edges = _ranges(document, "edge", parts)
    for kind in edges.types:
        ends = kind.split(":")
        if len(ends) != 3 or ends[0] not in nodes.types or ends[2] not in nodes.types:
            raise ValueError(
                f"etypes has {show(kind)}; expected 'source:relation:destination' with node types "
                f"of {show(nodes.types)}: DGL's tools/change_etype_to_canonical_etype.py brings "
                "older files into this form"
            )
    files = [_files(path.parent, document.get(f"part-{part}"), part) for part in range(parts)]
    return Description(name, parts, nodes, edges, files)


def _count(document: dict[str, Any], name: str, most: int) -> int:
    value = document.get(name)
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{name} is {show(value)}; expected an int of 0 to {most}")
    return value


def _ranges(document: dict[str, Any], domain: str, parts: int) -> Ranges:
    names, table = document.get(f"{domain[0]}types"), document.get(f"{domain}_map")
    total = _count(document, f"num_{domain}s", MOST_IDS)
    if not isinstance(names, dict) or sorted(map(repr, names.values())) != sorted(
        map(repr, range(len(names)))
    ):
        raise ValueError(f"{domain[0]}types is {show(names)}; expected {{name: 0, 1, ...}}")
    if not isinstance(table, dict) or set(table) != set(names):
        what = "a file for each node or edge" if isinstance(table, str) else show(table)
        raise ValueError(
            f"{domain}_map is {what}; expected ranges for {show(sorted(names))}: cut the graph "
            "with a release of DGL whose parts are ranges"
        )
    types = sorted(names, key=names.__getitem__)
    bounds = np.zeros((parts, len(types), 2), np.int64)
    for number, kind in enumerate(types):
        rows = table[kind]
        if not isinstance(rows, list) or len(rows) != parts:
            raise ValueError(f"{domain}_map has {show(rows)} for {kind!r}; expected {parts} ranges")
        for part, row in enumerate(rows):
            if not (
                isinstance(row, list)
                and len(row) == 2
                and all(type(bound) is int for bound in row)
                and 0 <= row[0] <= row[1] <= total
            ):
                raise ValueError(
                    f"{domain}_map has {show(row)} for {kind!r} in part {part}; expected "
                    f"[first, last + 1] within 0 to {total}"
                )
            bounds[part, number] = row
    used = bounds.reshape(-1, 2)
    used = used[used[:, 1] > used[:, 0]]
    begins, ends = np.append(used[:, 0], total), np.append(0, used[:, 1])
    if not np.array_equal(begins, ends):
        at = int(np.argmax(begins != ends))
        raise ValueError(
            f"{domain}_map goes on at {begins[at]} after {ends[at]}; expected ranges that follow "
            f"one another, part by part and type by type, and end at num_{domain}s, {total}"
        )
    return Ranges(types, bounds)


def _files(folder: Path, found: Any, part: int) -> dict[str, Path]:
    if not isinstance(found, dict):
        raise ValueError(f"part-{part} is {show(found)}; expected the names of its files")
    files = {}
    for name in FILES:
        value = found.get(name)
        if value is None and name == "part_graph" and "part_graph_graphbolt" in found:
            raise ValueError(
                f"part-{part} has its graph for GraphBolt only, which is a pickle; expected "
                "part_graph: cut the graph with use_graphbolt=False"
            )
        if not isinstance(value, str) or not value:
            raise ValueError(f"part-{part} has {show(value)} for {name}; expected a file")
        inner = PurePosixPath(value)
        if inner.is_absolute() or ".." in inner.parts or "\\" in value or ":" in value:
            raise ValueError(
                f"part-{part} has {show(value)} for {name}, which is outside the folder; expected "
                "a file below it"
            )
        files[name] = folder / value
    return files
