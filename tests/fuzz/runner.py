"""Opens damaged data sets, each in a forked child with limits; `python -m tests.fuzz.runner`.

A round damages an example and runs epochs over it. It must end in time, within memory, and either
in batches that are what the files say, or in an exception of a documented kind that says where.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import hopline.pipes as hp
from tests.fuzz import examples, oracle
from tests.fuzz.mutations import mutate

DOCUMENTED = (ValueError, TypeError, OSError, IndexError, KeyError, OverflowError)
NEVER = (UnicodeError, ZeroDivisionError, RecursionError)
PACKAGE = str(Path(hp.__file__).parent)
NAMED = re.compile(
    r"metadata\.yaml|graph\.yaml|\.npy|\.npz|\.csv|\.pt\b|\.parquet|preprocessed|csc_indptr|indices|"
    r"type_per_edge|node_type|edge_type|attribute '|feature|seeds|labels|timestamp|column|item set"
)
MEMORY = 768 << 20  # bytes of address space on top of what the parent has
FILE = 64 << 20  # bytes of a file that a child may write


def refusal(error: Exception) -> str | None:
    """What is wrong with an exception as an answer to bad input; None if nothing is."""
    frames = traceback.extract_tb(error.__traceback__)
    where = frames[-1].filename
    name = type(error).__name__
    if not isinstance(error, DOCUMENTED) or isinstance(error, NEVER):
        return f"{name} is not documented"
    if isinstance(error, OSError) and error.filename is not None:
        return None
    if not where.startswith(PACKAGE):
        return f"{name} comes from {where}:{frames[-1].lineno}"
    if not NAMED.search(str(error)):
        return f"{name} names neither file nor key"
    return None


def run(folder: Path) -> dict[str, Any]:
    """Opens a data set and runs epochs over it; how each step ended."""
    warnings.simplefilter("error")
    steps: dict[str, str] = {}

    def step(name: str, work: Callable[[], Any]) -> Any:
        try:
            result = work()
        except oracle.WrongBatchError as error:
            steps[name] = f"FINDING wrong batch: {error}"
        except Exception as error:
            fault = refusal(error)
            text = f"{type(error).__name__}: {str(error)[:300]}"
            if fault is None:
                steps[name] = f"refused: {text}"
            else:
                tail = "".join(traceback.format_tb(error.__traceback__)[-3:])
                steps[name] = f"FINDING {fault}: {text}\n{tail}"
        else:
            steps[name] = "ok"
            return result
        return None

    before = {path: path.stat().st_ino for path in folder.glob("preprocessed*/metadata.yaml")}
    dataset = step("open", lambda: hp.OnDiskDataset(folder).load())
    if dataset is None:
        return steps
    truths = [oracle.from_processed(dataset.processed_path, folder)]
    made = dataset.processed_path / "metadata.yaml"
    if made.stat().st_ino != before.get(made):  # made from what the inputs say now
        truths.append(oracle.from_inputs(folder, truths[0].numbered))
    for name, work in epochs(dataset, truths):
        step(name, work)
    return steps


def epochs(dataset: Any, truths: list[oracle.Truth]) -> list[tuple[str, Callable[[], Any]]]:
    """The steps: every kind of chain that the data set has the columns for."""
    graph, store = dataset.graph, dataset.feature
    node_keys: Any = {} if graph.is_heterogeneous else []
    edge_keys: Any = {} if graph.is_heterogeneous else []
    for domain, kind, name in store.keys():  # noqa: SIM118
        keys = {"node": node_keys, "edge": edge_keys}.get(domain)
        if isinstance(keys, dict):
            keys.setdefault(kind, []).append(name)
        elif keys is not None:
            keys.append(name)

    def checked(make: Callable[[], Any], check: Callable[[oracle.Truth, Any], None]) -> Any:
        def work() -> list[Any]:
            batches = list(hp.DataLoader(make()))
            for truth in truths:
                for minibatch in batches:
                    oracle.check_features(truth, minibatch)
                    check(truth, minibatch)
            return batches

        return work

    def over(items: Any, **sampling: Any) -> Any:
        chain = hp.ItemSampler(items, 5, shuffle=True, seed=3)
        return chain.sample_neighbor(graph, **sampling)

    def everything() -> Any:
        chain = over(dataset.all_nodes_set, fanouts=[-1])
        return chain.fetch_feature(store, node_keys, edge_keys)

    steps: list[tuple[str, Callable[[], Any]]] = []
    steps.append(("all", checked(everything, lambda t, m: oracle.check_hops(t, m, [-1]))))
    nodes = dataset.all_nodes_set
    if "weight" in (graph.edge_attributes or {}):
        steps.append((
            "weighted",
            checked(lambda: over(nodes, fanouts=[2], prob_name="weight"),
                    lambda t, m: oracle.check_hops(t, m, [2], weighted=True)),
        ))  # fmt: skip
    steps.append((
        "layer",
        checked(lambda: hp.ItemSampler(nodes, 5).sample_layer_neighbor(graph, [2]),
                lambda t, m: oracle.check_hops(t, m, [2], exact=False)),
    ))  # fmt: skip
    for i, task in enumerate(dataset.tasks):
        for split in oracle.SPLITS:
            steps.append((f"task {i} {split}", _of_task(task, i, split, truths, over, checked)))
    times = {
        "node_timestamp_attr_name": "timestamp"
        if "timestamp" in (graph.node_attributes or {}) else None,
        "edge_timestamp_attr_name": "timestamp"
        if "timestamp" in (graph.edge_attributes or {}) else None,
    }  # fmt: skip
    for i, task in enumerate(dataset.tasks):
        if any(times.values()):
            steps.append((f"task {i} temporal", _temporal(task, graph, times, checked)))
    return steps


def _of_task(
    task: Any, i: int, split: str, truths: list[oracle.Truth], over: Any, checked: Any
) -> Callable[[], Any]:
    def work() -> None:
        items = getattr(task, split)
        if items is None or not items.names or "seeds" not in items.names:
            return
        make = lambda: over(items, fanouts=[2, -1])  # noqa: E731
        batches = checked(make, lambda t, m: oracle.check_hops(t, m, [2, -1]))()
        for truth in truths:
            oracle.check_items(truth.tasks[i][split], batches, items.names)

    return work


def _temporal(task: Any, graph: Any, times: Any, checked: Any) -> Callable[[], Any]:
    def work() -> None:
        items = task.train_set
        if items is None or not {"seeds", "timestamp"} <= set(items.names or ()):
            return
        chain = hp.ItemSampler(items, 5).temporal_sample_neighbor(graph, [2], **times)
        checked(lambda: chain, lambda t, m: oracle.check_hops(t, m, [2], time_of_seeds=True))()

    return work


# ---------------------------------------------------------------------------------------------
# Children


def in_child(folder: Path, seconds: float) -> tuple[dict[str, str], float]:
    """Runs one data set in a child with limits on time, memory and files."""
    read, write = os.pipe()
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + MEMORY
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            resource.setrlimit(resource.RLIMIT_FSIZE, (FILE, FILE))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, 0)
            os.dup2(null, 2)
            try:
                steps = run(folder)
            except BaseException:
                steps = {"?": "FINDING escaped: " + traceback.format_exc()[-1500:]}
            os.write(write, json.dumps(steps).encode()[:60000])
        finally:
            os._exit(0)
    os.close(write)
    answer = b""
    while True:
        left = started + seconds - time.monotonic()
        ready, _, _ = select.select([read], [], [], max(0.0, left))
        if not ready:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(read)
            return {"?": f"FINDING hang: not done after {seconds} s"}, seconds
        piece = os.read(read, 1 << 16)
        if not piece:
            break
        answer += piece
    os.close(read)
    _, status = os.waitpid(child, 0)
    took = time.monotonic() - started
    if os.WIFSIGNALED(status):
        return {"?": f"FINDING crash: {signal.Signals(os.WTERMSIG(status)).name}"}, took
    try:
        return json.loads(answer), took
    except ValueError:
        return {"?": f"FINDING no answer, exit status {status}"}, took


def prepare(folder: Path) -> dict[tuple[str, bool], Path]:
    """Writes the examples, raw and preprocessed, and compiles all kernels by running them."""
    torch.set_num_threads(1)  # no threads before the forks
    made = {}
    for name in examples.EXAMPLES:
        for processed in (False, True):
            path = made[name, processed] = folder / f"{name}-{processed}"
            examples.write(path, name, processed=processed)
    return made


def main() -> None:
    """Prints one JSON object: the rounds, how their steps ended, the findings."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    findings: list[dict[str, Any]] = []
    ended: Counter[str] = Counter()
    slowest = 0.0
    with tempfile.TemporaryDirectory() as place:
        made = prepare(Path(place))
        for (name, _), source in made.items():
            target = Path(place) / "warm"
            shutil.copytree(source, target)
            with warnings.catch_warnings():
                steps = run(target)
            if set(steps.values()) != {"ok"}:
                findings.append({"round": None, "example": name, "steps": steps})
            shutil.rmtree(target)
        for number in range(options.first, options.first + options.rounds):
            r = random.Random(number)
            name, processed = r.choice(list(made))
            target = Path(place) / "damaged"
            shutil.copytree(made[name, processed], target)
            done = [mutate(target, r)]
            if r.random() < 0.2:
                # What has been damaged once may be beyond the means of the second.
                with contextlib.suppress(Exception):
                    done.append(mutate(target, r))
            steps, took = in_child(target, options.seconds)
            slowest = max(slowest, took)
            ended.update(value.split(":")[0].split(" ")[0] for value in steps.values())
            bad = {key: value for key, value in steps.items() if value.startswith("FINDING")}
            if bad:
                findings.append({"round": number, "example": f"{name}-{processed}", "done": done,
                                 "steps": bad})  # fmt: skip
            if options.verbose:
                print(
                    number,
                    round(took, 2),
                    f"{name}-{processed}",
                    done,
                    steps,
                    file=sys.stderr,
                    flush=True,
                )
            shutil.rmtree(target)
    print(json.dumps({"rounds": options.rounds, "ended": ended, "slowest": slowest,
                      "findings": findings}, indent=1))  # fmt: skip


if __name__ == "__main__":
    main()
