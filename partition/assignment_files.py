"""read_assignment: each node's part, from the files that other partitioners write."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hopline.partition.assign import MOST_PARTS
from hopline.partition.relabel import node_types_of
from hopline.pipes.checks import check_ids
from hopline.pipes.graph import FusedCSCSamplingGraph
from hopline.pipes.npy import read_npy

__all__ = ["read_assignment"]

Array = np.ndarray[Any, Any]

BLOCK = 1 << 20  # bytes read at a time
LONGEST = 20  # bytes of a line
SUFFIXES = (".txt", ".npy")
NO_TYPE = "_N"  # DGL's name for the type of a graph without


def read_assignment(
    path: str | os.PathLike[str], graph: FusedCSCSamplingGraph
) -> torch.Tensor | dict[str, torch.Tensor]:
    r"""Reads each node's part, as `partition_graph(part_method=...)` takes it.

    Args:
        path: a folder with a file for each node type, `<node type>.txt` or `<node type>.npy`, as
            DGL's `random_partition.py` and `parmetis_postprocess.py` write them (`_N.txt` for a
            graph without types); or the file, for a graph with one node type. A .txt file has a
            part a line, in the order of the nodes; a .npy file integer[num_nodes].
        graph: whose nodes they are.

    Returns:
        int32[num_nodes]; `{node type: int32[n]}` for a graph with types.

    Raises:
        FileNotFoundError: there is no such file.
        TypeError: graph is no FusedCSCSamplingGraph.
        ValueError: a file has other lines than numbers of parts, or not one for each node; names
            the file, and the line.

    >>> from hopline.pipes import from_coo
    >>> graph = from_coo(torch.tensor([0, 1]), torch.tensor([1, 2]), num_nodes=3)
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "parts.txt").write_text("0\n1\n1\n")
    ...     read_assignment(Path(folder, "parts.txt"), graph).tolist()
    [0, 1, 1]
    """
    path = Path(path)
    if not isinstance(graph, FusedCSCSamplingGraph):
        raise TypeError(f"graph is a {type(graph).__name__}; expected a FusedCSCSamplingGraph")
    kinds = node_types_of(graph)
    counts = graph.num_nodes if isinstance(graph.num_nodes, dict) else {"": graph.num_nodes}
    if path.is_dir():
        files = {kind: _file_of(path, kind or NO_TYPE) for kind in kinds}
    elif len(kinds) == 1:
        files = {kinds[0]: path}
    else:
        raise ValueError(f"{path}: is no folder; expected one with a file for each of {kinds}")
    parts = {kind: _read(file, counts[kind]) for kind, file in files.items()}
    return parts if graph.node_type_to_id is not None else parts[""]


def _file_of(folder: Path, kind: str) -> Path:
    found = [folder / f"{kind}{suffix}" for suffix in SUFFIXES]
    if found[0].parent != folder:
        raise ValueError(
            f"node type {kind!r} is no file's name; pass part_method={{node type: parts}} instead"
        )
    there = [file for file in found if file.exists()]
    if len(there) != 1:
        what = "both" if there else "neither"
        raise (ValueError if there else FileNotFoundError)(
            f"{folder}: has {what} of {found[0].name} and {found[1].name}; expected one of them, "
            f"with the part of each node of type {kind!r}"
        )
    return there[0]


def _read(path: Path, count: int) -> torch.Tensor:
    if not path.is_file():  # reading a pipe may never end
        raise FileNotFoundError(f"{path}: no such file; expected a part for each of {count} nodes")
    if path.suffix == ".npy":
        values = read_npy(path)
        try:
            parts = check_ids(values, MOST_PARTS, "values", torch.int32)
        except (TypeError, IndexError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from error
    else:
        parts = torch.from_numpy(_read_text(path, count))
    if len(parts) != count:
        raise ValueError(
            f"{path}: has {len(parts)} parts; expected one for each of {count} nodes: is it of "
            "another graph?"
        )
    return parts


def _read_text(path: Path, count: int) -> Array:
    """int32[n] numbers of parts, one a line, of as many lines as there are, or a few more."""
    parts = np.empty(count, np.int32)
    done, rest, last = 0, b"", False
    with path.open("rb") as file:
        while not last:
            piece = file.read(BLOCK)
            last = not piece
            lines = (rest + piece).split(b"\n")
            rest = lines.pop()
            if last and rest.strip(b"\r"):
                lines.append(rest)
            elif len(rest) > LONGEST:
                lines.append(rest)  # for the message
                rest = b""  # a number with spaces behind it: what follows is refused
            numbers = _numbers(path, lines, done)
            if done + len(numbers) > count:
                raise ValueError(
                    f"{path}: has more than {count} lines; expected one for each node: is it of "
                    "another graph?"
                )
            parts[done : done + len(numbers)] = numbers
            done += len(numbers)
    return parts[:done]


def _numbers(path: Path, lines: list[bytes], before: int) -> Array:
    if not lines:
        return np.empty(0, np.int64)
    lines = [line.strip(b" \t\r") for line in lines]
    bad = next((i for i, x in enumerate(lines) if not x.isdigit() or len(x) > LONGEST - 2), None)
    numbers = np.empty(0, np.int64)
    if bad is None:
        numbers = np.array(lines).astype(np.int64)
        bad = int(np.argmax(numbers)) if numbers.max() >= MOST_PARTS else None
    if bad is not None:
        raise ValueError(
            f"{path}: line {before + bad + 1} is {lines[bad][:40]!r}; expected a part's number, 0 "
            f"to {MOST_PARTS - 1}"
        )
    return numbers
