"""What the systems that `compare.py` runs side by side have in common.

Each system is a process of its own, in its own environment. It reads one request a line from
standard input and answers with one line of JSON; what libraries print goes to standard error.
Only the standard library and numpy are used here, since the systems want different releases of all
else.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

BATCH_SIZE = 1024
HIDDEN_SIZE = 256
NUM_CLASSES = 47
LEARNING_RATE = 1e-3
VALIDATION_BATCHES = 8


class Data:
    """The arrays in a folder, as `compare.py` writes them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __getitem__(self, name: str) -> np.ndarray:
        return np.load(self.folder / f"{name}.npy")

    def hetero(self) -> tuple[dict[str, int], dict[tuple[str, str, str], tuple[Any, Any]]]:
        """Nodes of each type, and for each edge type (indptr, indices) by destination."""
        nodes = json.loads((self.folder / "hetero.json").read_text())
        edges = {}
        for path in sorted(self.folder.glob("hetero-*-indptr.npy")):
            name = path.name.removeprefix("hetero-").removesuffix("-indptr.npy")
            source, relation, destination = name.split("-")
            indices = np.load(self.folder / f"hetero-{name}-indices.npy")
            edges[source, relation, destination] = (np.load(path), indices)
        return nodes, edges


def hop_sizes(
    sources: np.ndarray, targets: np.ndarray, seeds: int, hops: int
) -> tuple[list[int], list[int]]:
    """What each hop gave, of a sampler that numbers nodes as it finds them, and says no more.

    It expands a node once, in the hop after the one that finds it; so a hop's edges are those whose
    targets the hop before has found.

    Args:
        sources: int64[edges], numbers of nodes, hop after hop.
        targets: int64[edges], ascending.
        seeds: which have the numbers from 0 on.
        hops: how many there were.

    Returns:
        Numbers of seeds and of nodes that each hop has found first; numbers of each hop's edges.
    """
    nodes, edges = [seeds], []
    found, start = seeds, 0
    for _ in range(hops):
        stop = int(np.searchsorted(targets, found))
        before = found
        if stop > start:
            found = max(found, int(sources[start:stop].max()) + 1)
        nodes.append(found - before)
        edges.append(stop - start)
        start = stop
    return nodes, edges


def memory(field: str) -> float:
    """Megabytes of this process now, by a field of /proc/self/status such as RssAnon."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise KeyError(field)


def endless(loader: Iterable[Any]) -> Iterator[Any]:
    """Epoch after epoch, so that workers never run out of work."""
    while True:
        yield from loader


def timed(
    batches: Iterable[Any], request: dict[str, Any], count: Callable[[Any], tuple[int, int]]
) -> dict[str, Any]:
    """Milliseconds a mini-batch, with its edges and nodes, after some that are not timed.

    Args:
        batches: the mini-batches of an epoch.
        request: `warm` and `batches` say how many to read.
        count: edges and input nodes of a mini-batch.
    """
    reader = endless(batches)
    own = 0.0
    for _ in range(request["warm"]):
        count(next(reader))
    edges = nodes = 0
    start = time.perf_counter()
    for _ in range(request["batches"]):
        e, n = count(next(reader))
        edges += e
        nodes += n
        if request.get("memory"):
            own = max(own, memory("RssAnon"))
    seconds = time.perf_counter() - start
    number = request["batches"]
    answer = {"ms": seconds / number * 1e3, "edges": edges / number, "nodes": nodes / number}
    if request.get("memory"):
        answer |= {"own_mb": own, "peak_mb": memory("VmHWM")}
    return answer


def trained(
    step: Callable[[], dict[str, float]], request: dict[str, Any], accuracy: Callable[[], float]
) -> dict[str, Any]:
    """Milliseconds a training step and of its parts, and the accuracy afterwards.

    Args:
        step: makes one training step; gives its edges, nodes, loss, and the seconds of its parts.
        request: `warm` and `batches` say how many steps to make.
        accuracy: of the model, on validation nodes.
    """
    for _ in range(request["warm"]):
        step()
    total: dict[str, float] = {}
    start = time.perf_counter()
    for _ in range(request["batches"]):
        for name, value in step().items():
            total[name] = total.get(name, 0.0) + value
    seconds = time.perf_counter() - start
    number = request["batches"]
    mean = {name: value / number for name, value in total.items()}
    parts = {
        name.removesuffix("_seconds") + "_ms": value * 1e3
        for name, value in mean.items()
        if name.endswith("_seconds")
    }
    rest = {name: value for name, value in mean.items() if not name.endswith("_seconds")}
    answer = {"ms": seconds / number * 1e3, **parts, **rest}
    answer["accuracy"] = accuracy() if request.get("accuracy") else None
    return answer


def serve(tasks: Callable[[Data], dict[str, Callable[[dict[str, Any]], dict[str, Any]]]]) -> None:
    """Answers requests until standard input ends.

    Args:
        tasks: makes, for a folder's arrays, the functions that carry out a task.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    table = tasks(Data(Path(sys.argv[1])))
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = table[request["task"]](request)
        except Exception as error:  # what a system cannot do is a result, too
            answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        answers.write(json.dumps(answer) + "\n")
