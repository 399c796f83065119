"""Hopline beside dgl.graphbolt 2.1 and PyG 2.8: one graph, one machine, in turn.

    python benchmarks/compare.py --graphbolt ENV/bin/python --pyg ENV/bin/python

The two peers want other releases of torch, so each system runs in an environment of its own
(`docs/comparison.md` says how to make them); a peer without one is left out. Each repetition runs
every setting of every system once, one after another; a repetition during which other processes
took a share of the machine is done again, three times at most, and marked if that did not help.
What counts is each system's best setting, by the median of the repetitions, and the ratio to it,
repetition by repetition.

Equal work: seeds, fanouts, batch size and model are the same. GraphBolt and Hopline draw anew in
each layer for every node found so far, PyG expands a node once and so draws fewer edges: the table
gives edges and nodes a mini-batch.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib.format import open_memmap

sys.path.insert(0, str(Path(__file__).parent))
from graphs import EDGES, NODES, power_law_graph

PEERS = Path(__file__).parent / "peers"
FEATURES = 100
CLASSES = 47
RETRIES = 3
PATIENCE = 30.0  # seconds for a process to end that has nothing left to do
HETERO_NODES = {"user": 200_000, "item": 100_000, "tag": 10_000}
HETERO_EDGES = {
    ("user", "buys", "item"): 2_000_000,
    ("item", "boughtby", "user"): 2_000_000,
    ("item", "has", "tag"): 400_000,
    ("tag", "of", "item"): 400_000,
    ("user", "follows", "user"): 1_000_000,
}


@dataclass(frozen=True)
class Task:
    """What is measured; the goals are ratios of the peer's time to Hopline's."""

    title: str
    fanouts: list[int]  # from the seeds outwards
    batches: dict[str, int]
    goals: dict[str, float]
    warm: int = 6
    settings: dict[str, list[dict[str, int]]] = field(default_factory=dict)


def _settings(*triples: tuple[int, int, int]) -> list[dict[str, int]]:
    names = ("index", "threads", "workers")
    return [dict(zip(names, triple, strict=True)) for triple in triples]


HOPLINE = _settings((32, 2, 0), (32, 2, 1), (32, 2, 2))
BOLT = _settings((32, 2, 0), (64, 2, 0))
PYG = _settings((64, 2, 0), (64, 2, 2))
DEFAULT = {"hopline": HOPLINE, "graphbolt": BOLT, "pyg": PYG}

TASKS = {
    "sample": Task(
        "sample [10,10,10]", [10, 10, 10], {"hopline": 60, "graphbolt": 20, "pyg": 12},
        {"graphbolt": 5, "pyg": 10},
        settings={
            **DEFAULT, "graphbolt": _settings((32, 1, 0), (32, 2, 0), (64, 2, 0), (32, 2, 2)),
        },
    ),
    "fetch": Task(
        "sample + fetch 100 float32", [10, 10, 10], {"hopline": 40, "graphbolt": 12, "pyg": 12},
        {"graphbolt": 5, "pyg": 5},
        settings={**DEFAULT, "graphbolt": _settings((32, 2, 0), (64, 2, 0), (64, 2, 2))},
    ),
    "weighted": Task(
        "sample by weight [10,10,10]", [10, 10, 10], {"hopline": 16, "graphbolt": 5, "pyg": 5},
        {"graphbolt": 10, "pyg": 10},
    ),
    "labor": Task(
        "LABOR [10,10,10]", [10, 10, 10], {"hopline": 16, "graphbolt": 12, "pyg": 1},
        {"graphbolt": 4},
    ),
    "link": Task(
        "link [10,10], 1 negative", [10, 10], {"hopline": 60, "graphbolt": 30, "pyg": 20},
        {"graphbolt": 4, "pyg": 4},
    ),
    "hetero": Task(
        "hetero [10,10]", [10, 10], {"hopline": 120, "graphbolt": 60, "pyg": 40},
        {"graphbolt": 4, "pyg": 4},
    ),
    "train": Task(
        "training step [15,10,5]", [15, 10, 5], {"hopline": 30, "graphbolt": 15, "pyg": 5},
        {"graphbolt": 2, "pyg": 8}, warm=3,
        settings={
            "hopline": _settings((32, 2, 0), (32, 2, 1)), "graphbolt": BOLT,
            "pyg": _settings((64, 2, 0)),
        },
    ),
}  # fmt: skip
EQUAL_STEPS = 60  # after which accuracies are compared
MEMORY_GOAL = 2.0


def make_data(folder: Path, nodes: int, edges: int) -> None:
    """Writes the arrays that all systems read, unless they are there."""
    if (folder / "done").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    print(f"making the data in {folder}", flush=True)
    graph = power_law_graph(nodes, edges)
    np.save(folder / "indptr.npy", graph.csc_indptr.numpy())
    np.save(folder / "indices.npy", graph.indices.numpy())
    rng = np.random.default_rng(1)
    np.save(folder / "weight.npy", 1 - rng.random(graph.num_edges, np.float32))
    label = rng.integers(0, CLASSES, nodes)
    centres = rng.standard_normal((CLASSES, FEATURES), np.float32)
    feat = open_memmap(folder / "feat.npy", "w+", np.float32, (nodes, FEATURES))
    for low in range(0, nodes, 1 << 17):
        part = feat[low : low + (1 << 17)]
        part[:] = rng.standard_normal(part.shape, np.float32)
        part += 0.3 * centres[label[low : low + (1 << 17)]]
    feat.flush()
    np.save(folder / "label.npy", label)
    order = rng.permutation(nodes)
    np.save(folder / "train.npy", order[: nodes // 12])
    np.save(folder / "validation.npy", order[nodes // 12 :][: 8 * 1024])
    drawn = rng.integers(0, graph.num_edges, 1024 * 400)
    column = np.searchsorted(graph.csc_indptr.numpy(), drawn, side="right") - 1
    np.save(folder / "pairs.npy", np.stack([graph.indices.numpy()[drawn], column], 1))
    _make_hetero(folder, rng)
    (folder / "done").touch()


def _make_hetero(folder: Path, rng: np.random.Generator) -> None:
    for (source, relation, target), number in HETERO_EDGES.items():
        ends = []
        for kind in (source, target):
            count = HETERO_NODES[kind]
            drawn = (count * rng.random(number) ** 2).astype(np.int64)  # a heavy head
            ends.append(rng.permutation(count)[drawn])
        order = np.argsort(ends[1], kind="stable")
        counts = np.bincount(ends[1], minlength=HETERO_NODES[target])
        name = f"hetero-{source}-{relation}-{target}"
        np.save(folder / f"{name}-indptr.npy", np.concatenate([[0], np.cumsum(counts)]))
        np.save(folder / f"{name}-indices.npy", ends[0][order])
    np.save(folder / "users.npy", rng.permutation(HETERO_NODES["user"]))
    (folder / "hetero.json").write_text(json.dumps(HETERO_NODES))


class Peer:
    """A system in a process of its own."""

    def __init__(self, name: str, python: str, options: argparse.Namespace) -> None:
        self.name = name
        self.others = options.others
        self.limit = options.limit
        self.command = [python, str(PEERS / f"run_{name}.py"), str(options.arrays)]
        self.start()

    def start(self) -> None:
        """Starts the process; a thread reads what it answers, so that waiting can end."""
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (lives as long as the process)
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
            text=True, env=dict(os.environ, OMP_NUM_THREADS=str(os.cpu_count())),
        )  # fmt: skip
        self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(
            target=_read_lines, args=(self.process.stdout, self.lines), daemon=True
        ).start()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carries out a request; again if other processes took a share of the machine."""
        for _ in range(RETRIES):
            assert self.process.stdin is not None
            start, busy, own = time.perf_counter(), machine_seconds(), self.seconds()
            with suppress(BrokenPipeError):
                self.process.stdin.write(json.dumps(request) + "\n")
                self.process.stdin.flush()
            try:
                line = self.lines.get(timeout=self.limit)
            except queue.Empty:
                error = (
                    f"{self.name} gave no answer within {self.limit:g} s (--limit) and was ended; "
                    f"it was at: {json.dumps(request)}"
                )
                self.close()
                self.start()  # for its other settings
                return {"error": error}
            if not line:
                status = self.end()
                self.lines.put("")  # nor will it answer another request
                self.errors.seek(0)
                last = (self.errors.read().splitlines() or [""])[-1]
                return {"error": f"the process ended with status {status}: {last}"}
            answer: dict[str, Any] = json.loads(line)
            others = machine_seconds() - busy - (self.seconds() - own)
            answer["others"] = max(0.0, others / (time.perf_counter() - start))
            if answer["others"] <= self.others or "error" in answer:
                break
        return answer

    def seconds(self) -> float:
        """CPU seconds of the process and of those that descend from it."""
        children: dict[int, list[int]] = {}
        spent: dict[int, float] = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            pid = int(path.parent.name)
            children.setdefault(int(fields[1]), []).append(pid)
            # Its own, and those of its children that have ended.
            spent[pid] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
        total, todo = 0.0, [self.process.pid]
        while todo:
            pid = todo.pop()
            total += spent.get(pid, 0.0)
            todo += children.get(pid, [])
        return total

    def close(self) -> None:
        """Has the process end; ends it if it does not."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self.end(min(self.limit, PATIENCE))
        self.errors.close()

    def end(self, patience: float = 1.0) -> int:
        """Ends the process, unless it ends by itself in so many seconds; its status."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(patience)
        self.process.kill()
        return self.process.wait()


def _read_lines(stream: IO[str], lines: queue.SimpleQueue[str]) -> None:
    """Every line, then an empty one."""
    with stream:
        for line in stream:
            lines.put(line)
    lines.put("")


def machine_seconds() -> float:
    """CPU seconds that the whole machine has been busy."""
    fields = [int(x) for x in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def measure(
    name: str, task: Task, pythons: dict[str, str], options: argparse.Namespace
) -> dict[str, list[dict[str, Any]]]:
    """For each system, the answers of its best setting, one a repetition."""
    peers = {system: Peer(system, python, options) for system, python in pythons.items()}
    settings = {system: (task.settings or DEFAULT)[system] for system in peers}
    found: dict[str, list[list[dict[str, Any]]]] = {s: [[] for _ in settings[s]] for s in peers}
    for repetition in range(options.repetitions + 1):  # the first one compiles and loads
        for system, peer in peers.items():
            for i, setting in enumerate(settings[system]):
                if found[system][i] and "error" in found[system][i][-1]:
                    continue
                request = {
                    "task": name, "fanouts": task.fanouts, "warm": task.warm,
                    "batches": task.batches[system] if repetition else 1, **setting,
                }  # fmt: skip
                answer = peer.ask(request)
                if repetition or "error" in answer:
                    found[system][i].append({**answer, "setting": setting})
    for peer in peers.values():
        peer.close()

    def middle(answers: list[dict[str, Any]]) -> float:
        return statistics.median(a.get("ms", float("inf")) for a in answers)

    return {system: min(runs, key=middle) for system, runs in found.items()}


def _complain(answer: dict[str, Any]) -> None:
    if "error" in answer:
        print(answer["error"], file=sys.stderr, flush=True)


def accuracies(pythons: dict[str, str], options: argparse.Namespace) -> dict[str, float]:
    """Validation accuracy of each system after equally many steps."""
    found = {}
    for system, python in pythons.items():
        peer = Peer(system, python, options)
        setting = (TASKS["train"].settings or DEFAULT)[system][0]
        request = {"task": "train", "fanouts": TASKS["train"].fanouts, "accuracy": True}
        answer = peer.ask({**request, "warm": 0, "batches": EQUAL_STEPS, **setting})
        _complain(answer)
        found[system] = answer.get("accuracy", float("nan"))
        peer.close()
    return found


def memories(
    pythons: dict[str, str], options: argparse.Namespace
) -> dict[str, tuple[float, float]]:
    """MB of each system for sample + fetch in a fresh process: its own (anonymous), and the peak.

    The peers run without workers, which are processes and would count in addition.
    """
    found = {}
    for system, python in pythons.items():
        peer = Peer(system, python, options)
        setting = {"index": 64, "threads": 2, "workers": 2 if system == "hopline" else 0}
        request = {"task": "fetch", "fanouts": [10, 10, 10], "memory": True, "warm": 4}
        answer = peer.ask({**request, "batches": 30, **setting})
        _complain(answer)
        found[system] = (answer.get("own_mb", float("nan")), answer.get("peak_mb", float("nan")))
        peer.close()
    return found


def show(task: Task, best: dict[str, list[dict[str, Any]]], options: argparse.Namespace) -> None:
    """Prints a task's rows."""
    title = task.title
    ours = [answer.get("ms", float("nan")) for answer in best["hopline"]]
    for system, answers in best.items():
        first = answers[0]
        if "error" in first:
            print(f"{title:28} {system:10} cannot: {first['error']}")
            continue
        times = [answer["ms"] for answer in answers]
        how = " ".join(f"{name} {value}" for name, value in first["setting"].items())
        line = (
            f"{title:28} {system:10} {statistics.median(times):8.1f} ms "
            f"({min(times):.1f} to {max(times):.1f})  {first['edges']:11,.0f} edges "
            f"{first['nodes']:9,.0f} nodes  {how}"
        )
        if system != "hopline":
            ratio = statistics.median(t / o for t, o in zip(times, ours, strict=False))
            goal = task.goals.get(system)
            verdict = (
                "" if goal is None else f" (goal {goal:g}: {'met' if ratio >= goal else 'SHORT'})"
            )
            line += f"  {ratio:.1f} times{verdict}"
        if max(answer["others"] for answer in answers) > options.others:
            line += f"  disturbed: others took {max(a['others'] for a in answers):.2f} cores"
        if "compute_ms" in first:
            parts = " / ".join(
                f"{statistics.median(a[part + '_ms'] for a in answers):.0f}"
                for part in ("sample", "fetch", "compute")
            )
            line += f"  [sample / fetch / compute {parts}]"
        if "matrix_gflops" in first:
            line += f"  {first['gflops']:.0f} of {first['matrix_gflops']:.0f} GFLOP/s"
        print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graphbolt", metavar="PYTHON", help="interpreter with dgl 2.1")
    parser.add_argument("--pyg", metavar="PYTHON", help="interpreter with torch_geometric")
    parser.add_argument("--tasks", default=",".join([*TASKS, "accuracy", "memory"]))
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument(
        "--others", type=float, default=0.15,
        help="cores that other processes may take before a measurement is done again",
    )  # fmt: skip
    parser.add_argument(
        "--limit", type=float, default=1800.0,
        help="seconds to wait for a system's answer to one request; then it is ended",
    )  # fmt: skip
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--edges", type=int, default=EDGES)
    parser.add_argument(
        "--data", type=Path, default=Path(tempfile.gettempdir()) / "hopline-benchmarks"
    )
    options = parser.parse_args()
    options.arrays = options.data / f"compare-{options.nodes}-{options.edges}"
    make_data(options.arrays, options.nodes, options.edges)
    pythons = {"hopline": sys.executable, "graphbolt": options.graphbolt, "pyg": options.pyg}
    pythons = {system: python for system, python in pythons.items() if python}
    wanted = options.tasks.split(",")
    for name, task in TASKS.items():
        if name in wanted:
            show(task, measure(name, task, pythons, options), options)
    if "accuracy" in wanted:
        for system, value in accuracies(pythons, options).items():
            print(f"accuracy after {EQUAL_STEPS} equal steps  {system:10} {value:.3f}", flush=True)
    if "memory" in wanted:
        found = memories(pythons, options)
        for system, (own, peak) in found.items():
            ratio = own / found["hopline"][0]
            goal = "" if system == "hopline" else f"  {ratio:.1f} times (goal {MEMORY_GOAL:g})"
            print(
                f"memory, sample + fetch  {system:10} own {own:,.0f} MB, peak {peak:,.0f} MB{goal}"
            )


if __name__ == "__main__":
    main()
