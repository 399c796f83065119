"""What a data set's files say, read independently of the package, and whether batches agree."""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow.parquet as parquet
import torch
import yaml

SPLITS = ("train_set", "validation_set", "test_set")


class WrongBatchError(Exception):
    """A mini-batch that is not what the files say."""


@dataclass(frozen=True)
class Edge:
    """One edge: its ends, numbered within their types, its number, and its attributes."""

    src: int
    dst: int
    number: int
    weight: float | None = None
    time: int | None = None


@dataclass
class Truth:
    """A data set in plain values."""

    nodes: dict[str | None, int] = field(default_factory=dict)
    edges: dict[str | None, list[Edge]] = field(default_factory=dict)
    node_times: dict[str | None, Any] = field(default_factory=dict)
    features: dict[tuple[str, str | None, str], Any] = field(default_factory=dict)
    tasks: list[dict[str, dict[str | None, list[Any]]]] = field(default_factory=list)
    numbered: bool = True  # whether edges have the numbers of the input

    def of_column(self, kind: str | None) -> dict[int, list[Edge]]:
        columns = defaultdict(list)
        for edge in self.edges[kind]:
            columns[edge.dst].append(edge)
        return columns


def ends(kind: str | None) -> tuple[str | None, str | None]:
    if kind is None:
        return None, None
    source, _, destination = kind.split(":")
    return source, destination


# ---------------------------------------------------------------------------------------------
# Reading


def _rows(entry: dict[str, Any], folder: Path) -> Any:
    path = folder / entry["path"]
    match entry["format"]:
        case "numpy":
            array = np.load(path, allow_pickle=False)
        case "npz":
            with np.load(path, allow_pickle=False) as file:
                array = file[entry["key"]]
        case "torch":
            tensor = torch.load(path, weights_only=True)
            if tensor.dtype == torch.bfloat16:
                return tensor.float().numpy()
            array = tensor.numpy()
        case _:
            table = parquet.ParquetFile(path).read()  # which takes names given twice
            columns = [np.asarray(column.to_pylist()) for column in table.columns]
            array = columns[0] if len(columns) == 1 else np.stack(columns, axis=1)
    if entry.get("dtype") == "bfloat16":
        return torch.from_numpy(array.astype(array.dtype.str.replace("u", "i"))).view(
            torch.bfloat16
        ).float().numpy()  # fmt: skip
    return array


def _pairs(entry: dict[str, Any], folder: Path) -> list[tuple[int, int]]:
    path = folder / entry["path"]
    if entry["format"] == "csv":
        with path.open(encoding="utf-8-sig", newline="") as file:
            return [(int(row[0]), int(row[1])) for row in csv.reader(file) if "".join(row).strip()]
    if entry["format"] == "parquet":
        table = parquet.ParquetFile(path).read()  # which takes names given twice
        names = ["src", "dst"] if {"src", "dst"} <= set(table.column_names) else table.column_names
        return list(zip(*(table[name].to_pylist() for name in names), strict=True))
    return [(int(s), int(d)) for s, d in zip(*_rows(entry, folder), strict=True)]


def from_inputs(folder: Path, numbered: bool) -> Truth:
    """What the inputs say."""
    document = yaml.safe_load((folder / "metadata.yaml").read_bytes())
    graph = document["graph"]
    truth = Truth({n.get("type"): n["num"] for n in graph["nodes"]}, numbered=numbered)
    attributes = {
        (entry["domain"], entry.get("type"), entry["name"]): _rows(entry, folder)
        for entry in graph.get("feature_data") or []
    }
    for entry in graph["edges"]:
        kind = entry.get("type")
        weights = _one_a_row(attributes.get(("edge", kind, "weight")))
        times = _one_a_row(attributes.get(("edge", kind, "timestamp")))
        truth.edges[kind] = _edges(_pairs(entry, folder), weights, times)
    truth.node_times = {
        kind: value
        for (domain, kind, name), value in attributes.items()
        if (domain, name) == ("node", "timestamp")
    }
    for entry in document.get("feature_data") or []:
        rows = _rows(entry, folder)
        rows = rows if rows.ndim > 1 else rows[:, None]
        truth.features[str(entry["domain"]), entry.get("type"), entry["name"]] = rows
    for task in document.get("tasks") or []:
        truth.tasks.append(
            {
                split: {
                    part.get("type"): [_rows(entry, folder) for entry in part["data"]]
                    for part in task.get(split) or []
                }
                for split in SPLITS
            }
        )
    return truth


def _one_a_row(values: Any) -> Any:
    """The values if they can be weights or times, of which chains take one a row."""
    fits = values is not None and values.size == len(values) and values.dtype.kind in "biuf"
    return values.reshape(-1) if fits else None


def _edges(pairs: list[tuple[int, int]], weights: Any, times: Any) -> list[Edge]:
    return [
        Edge(
            src,
            dst,
            number,
            None if weights is None else float(weights[number].item()),
            None if times is None else int(times[number].item()),
        )
        for number, (src, dst) in enumerate(pairs)
    ]


def from_processed(folder: Path, root: Path) -> Truth:
    """What the preprocessed files say; edges whose ends are not of their type's nodes are left out.

    Args:
        folder: of the preprocessed copy.
        root: of the inputs.
    """
    document = yaml.safe_load((folder / "metadata.yaml").read_bytes())
    place = folder / document["graph"]
    graph = yaml.safe_load((place / "graph.yaml").read_bytes())
    indptr, indices = np.load(place / "csc_indptr.npy"), np.load(place / "indices.npy")
    named = {
        (domain, name): np.load(place / f"{domain}_attributes" / f"{quote(name, safe='')}.npy")
        for domain in ("node", "edge")
        for name in graph.get(f"{domain}_attributes", {})
    }
    truth = Truth(numbered=("edge", "_ORIGINAL_EDGE_ID") in named)
    count = len(indptr) - 1
    first: dict[str | None, int] = {None: 0}
    types, kinds = None, {0: None}
    if "node_type_to_id" in graph:
        offsets = graph["node_type_offset"]
        first = {name: offsets[i] for name, i in graph["node_type_to_id"].items()}
        truth.nodes = {
            name: offsets[i + 1] - offsets[i] for name, i in graph["node_type_to_id"].items()
        }
        types = np.load(place / "type_per_edge.npy")
        kinds = {i: name for name, i in graph["edge_type_to_id"].items()}
    else:
        truth.nodes = {None: count}
    numbers = named.get(("edge", "_ORIGINAL_EDGE_ID"), np.arange(len(indices)))
    if numbers.shape != indices.shape or numbers.dtype.kind not in "iu":
        numbers = np.full(len(indices), -1)  # which no batch has
    weights = _one_a_row(named.get(("edge", "weight")))
    times = _one_a_row(named.get(("edge", "timestamp")))
    truth.edges = {kind: [] for kind in kinds.values()}
    for column in range(count):
        low, high = int(indptr[column]), int(indptr[column + 1])
        if not 0 <= low <= high <= len(indices):
            continue
        for e in range(low, high):
            kind = kinds.get(0 if types is None else int(types[e]), "no such type")
            if kind not in truth.edges:
                continue
            source, destination = ends(kind)
            src, dst = int(indices[e]) - first[source], column - first[destination]
            if 0 <= src < truth.nodes[source] and 0 <= dst < truth.nodes[destination]:
                weight = None if weights is None else float(weights[e].item())
                time = None if times is None else int(times[e].item())
                truth.edges[kind].append(Edge(src, dst, int(numbers[e]), weight, time))
    node_times = named.get(("node", "timestamp"))
    if node_times is not None:
        truth.node_times = {
            kind: node_times[first[kind] : first[kind] + number]
            for kind, number in truth.nodes.items()
        }

    def stored(array: dict[str, Any]) -> Any:
        at = root if array["root"] == "dataset" else folder
        try:
            rows = np.load(at / array["path"])
        except Exception:  # item sets are read when they are asked for, and refused then
            return None
        if array["dtype"] == "bfloat16":
            return torch.from_numpy(rows.view(np.int16)).view(torch.bfloat16).float().numpy()
        return rows

    for feature in document["feature_data"]:
        key = feature["domain"], feature["type"], feature["name"]
        truth.features[key] = stored(feature["array"])
    for task in document["tasks"]:
        truth.tasks.append(
            {
                split: {
                    part["type"]: [stored(column["array"]) for column in part["columns"]]
                    for part in task[split]
                }
                for split in SPLITS
            }
        )
    return truth


# ---------------------------------------------------------------------------------------------
# Comparing


def require(condition: bool, message: str) -> None:
    if not condition:
        raise WrongBatchError(message)


def by_type(value: Any) -> dict[str | None, Any]:
    return value if isinstance(value, dict) else {None: value}


def equal(a: torch.Tensor, b: Any) -> bool:
    """Equal values, NaN being equal to NaN."""
    got = a.float().numpy() if a.dtype == torch.bfloat16 else a.numpy()
    return got.shape == b.shape and bool(np.all((got == b) | ((got != got) & (b != b))))


def check_features(truth: Truth, minibatch: Any) -> None:
    """Fetched rows are those of the nodes and edges in the batch."""
    nodes = by_type(minibatch.input_nodes)
    for key, rows in (minibatch.node_features or {}).items():
        kind, name = key if isinstance(key, tuple) else (None, key)
        ids = nodes.get(kind, torch.empty(0, dtype=torch.int64)).numpy()
        wanted = truth.features["node", kind, name][ids]
        require(equal(rows, wanted), f"node feature {key}: {rows} of nodes {ids}, not {wanted}")
    for hop, features in zip(
        minibatch.sampled_subgraphs or [], minibatch.edge_features or [], strict=False
    ):
        for key, rows in features.items():
            kind, name = key if isinstance(key, tuple) else (None, key)
            ids = by_type(hop.original_edge_ids)[kind].numpy()
            wanted = truth.features["edge", kind, name][ids]
            require(equal(rows, wanted), f"edge feature {key}: {rows} of edges {ids}, not {wanted}")


def check_hops(
    truth: Truth,
    minibatch: Any,
    fanouts: list[int],
    *,
    weighted: bool = False,
    exact: bool = True,
    time_of_seeds: bool = False,
) -> None:
    """Sampled edges are edges, each once, and as many as the fanout says.

    Args:
        truth: what the files say.
        minibatch: what was sampled.
        fanouts: outermost hop first.
        weighted: drawn by weight, so that edges of weight 0 are never drawn.
        exact: the number of a column's edges follows from the fanout.
        time_of_seeds: one hop was drawn from before the seeds' times.
    """
    for subgraph, fanout in zip(minibatch.sampled_subgraphs, fanouts, strict=True):
        rows, columns = (
            by_type(subgraph.original_row_node_ids),
            by_type(subgraph.original_column_node_ids),
        )
        drawn: Counter[tuple[str | None, int]] = Counter()
        room: Counter[tuple[str | None, int]] = Counter()
        for kind, csc in by_type(subgraph.sampled_csc).items():
            source, destination = ends(kind)
            numbers = by_type(subgraph.original_edge_ids)[kind].tolist()
            known = truth.of_column(kind)
            cuts, local = csc.indptr.tolist(), csc.indices.tolist()
            require(len(numbers) == len(local), f"{len(numbers)} ids for {len(local)} edges")
            dsts = columns.get(destination, torch.empty(0)).tolist()
            for i, dst in enumerate(dsts):
                limit = None
                if time_of_seeds:
                    limit = int(by_type(minibatch.timestamp)[destination][i])
                allowed = [e for e in known.get(dst, []) if _may(truth, e, source, weighted, limit)]
                got = [
                    (int(rows[source][local[j]]), numbers[j]) for j in range(cuts[i], cuts[i + 1])
                ]
                there = Counter((e.src, e.number if truth.numbered else -1) for e in allowed)
                mine = Counter((s, n if truth.numbered else -1) for s, n in got)
                require(
                    mine <= there, f"{kind}, node {dst}: drew {dict(mine)} out of {dict(there)}"
                )
                drawn[destination, i] += len(got)
                room[destination, i] += len(allowed)
        for place, number in room.items():
            wanted = number if fanout < 0 else min(fanout, number)
            fits = drawn[place] == wanted if exact else drawn[place] <= number
            require(fits, f"column {place}: {drawn[place]} edges, not {wanted} of {number}")


def _may(truth: Truth, edge: Edge, source: str | None, weighted: bool, limit: int | None) -> bool:
    if weighted and edge.weight == 0:
        return False
    if limit is None:
        return True
    if edge.time is not None and edge.time >= limit:
        return False
    times = truth.node_times.get(source)
    return times is None or int(times[edge.src].item()) < limit


def check_items(columns: dict[str | None, list[Any]], batches: list[Any], names: Any) -> None:
    """An epoch has every item once, each with its own values."""
    wanted: Counter[Any] = Counter()
    for kind, arrays in columns.items():
        require(all(array is not None for array in arrays), f"{kind}: cannot be read")
        for row in zip(*arrays, strict=True):
            wanted[kind, *(_plain(value) for value in row)] += 1
    got: Counter[Any] = Counter()
    for minibatch in batches:
        values = [by_type(getattr(minibatch, name)) for name in names]
        for kind in values[0]:
            for row in zip(*(value[kind] for value in values), strict=True):
                got[kind, *(_plain(value) for value in row)] += 1
    require(got == wanted, f"items {got - wanted} in place of {wanted - got}")


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16:
        value = value.float()
    return tuple("nan" if v != v else v for v in np.asarray(value).reshape(-1).tolist())
