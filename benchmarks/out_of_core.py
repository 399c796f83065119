"""Sampling from a graph, and reading features, that are larger than the memory given.

    python benchmarks/out_of_core.py

Runs in a control group (cgroup, version 1 or 2; making one takes root's rights) whose memory,
page cache included, is a quarter of the graph's files, and again without a limit. Before each run
the files are dropped from the page cache. For the mini-batches of the first part of an epoch it
prints the median and the slowest; then what each cache policy gives before features that are
four times the memory given (the cache a quarter of it), beside the rate of the disk itself: as many
single reads of the same rows past the page cache, by as many threads.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib.format import open_memmap

import hopline.pipes as hp

sys.path.insert(0, str(Path(__file__).parent))
from disk import drop

CHUNK = 1 << 24
BLOCK = 4096  # bytes that a read past the page cache is a multiple of
POLICIES = ("sieve", "s3-fifo", "lru", "clock")


def write_graph(folder: Path, nodes: int, edges: int) -> None:
    """A graph with skewed degrees, written in parts."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    weight = rng.pareto(1.8, nodes) + 0.3
    degree = np.minimum(np.maximum(1, weight / weight.sum() * edges), 20_000).astype(np.int64)
    indptr = torch.from_numpy(np.concatenate([[0], np.cumsum(degree)]))
    empty = hp.fused_csc_sampling_graph(torch.tensor([0, 0]), torch.empty(0, dtype=torch.int32))
    empty.save(folder)  # graph.yaml; its arrays are replaced
    np.save(folder / "csc_indptr.npy", indptr.numpy())
    indices = open_memmap(folder / "indices.npy", "w+", np.int32, (int(indptr[-1]),))
    for low in range(0, len(indices), CHUNK):
        part = indices[low : low + CHUNK]
        part[:] = nodes * rng.random(len(part)) ** 2
    indices.flush()


def write_features(path: Path, rows: int, columns: int) -> None:
    """Random rows, written in parts."""
    rng = np.random.default_rng(1)
    array = open_memmap(path, "w+", np.float32, (rows, columns))
    step = max(1, CHUNK // columns)
    for low in range(0, rows, step):
        array[low : low + step] = rng.random((min(step, rows - low), columns), np.float32)
    array.flush()


@contextmanager
def memory_group(limit: int) -> Any:
    """A control group with a bound on memory; gives the file that takes the members' numbers."""
    root = Path("/sys/fs/cgroup")
    first = (root / "memory").exists()  # version 1
    group = (root / "memory" if first else root) / f"hopline-{os.getpid()}"
    try:
        group.mkdir()
        (group / ("memory.limit_in_bytes" if first else "memory.max")).write_text(str(limit))
    except OSError as error:
        raise SystemExit(f"cannot make a control group: {error}; run as root") from error
    try:
        yield group / "cgroup.procs"
    finally:
        for _ in range(50):  # until the kernel has let the last member go
            try:
                group.rmdir()
                break
            except OSError:
                time.sleep(0.1)


def child(what: str, options: dict[str, Any], members: Path | None) -> dict[str, Any]:
    """Carries out a part in a process of its own, in the group if there is one."""
    # The number is written before Python starts, so that all its memory counts.
    join = f"echo $$ > {members}; " if members else ""
    command = f'{join}exec "{sys.executable}" "{__file__}" --part {what}'
    done = subprocess.run(
        ["sh", "-c", command], input=json.dumps(options), capture_output=True, text=True
    )
    if done.returncode:
        last = (done.stderr.splitlines() or [""])[-1]
        return {"error": f"exit status {done.returncode}: {last}"}
    return json.loads(done.stdout)


def sampling(options: dict[str, Any]) -> dict[str, Any]:
    """Seconds of the mini-batches from a mapped graph."""
    graph = hp.FusedCSCSamplingGraph.load(options["graph"])
    items = hp.ItemSet(graph.total_num_nodes, names="seeds")
    chain = hp.ItemSampler(items, options["batch_size"], shuffle=True, seed=1)
    chain = chain.sample_neighbor(graph, options["fanout"])
    seconds, edges = [], 0
    tiny = hp.fused_csc_sampling_graph(torch.tensor([0, 1]), torch.tensor([0], dtype=torch.int32))
    next(
        iter(hp.ItemSampler(hp.ItemSet(1, names="seeds"), 1).sample_neighbor(tiny, [1]))
    )  # compiles
    with hp.DataLoader(chain, num_workers=options["workers"]) as loader:
        reader = iter(loader)
        for _ in range(options["batches"]):
            start = time.perf_counter()
            minibatch = next(reader)
            seconds.append(time.perf_counter() - start)
            edges += sum(len(s.sampled_csc.indices) for s in minibatch.sampled_subgraphs)
    return {"seconds": seconds, "edges": edges / len(seconds)}


def requests(options: dict[str, Any]) -> list[torch.Tensor]:
    """Ids that calls ask for: ranks by a power law, as nodes of a graph are asked for."""
    rng = np.random.default_rng(2)
    rows = options["rows"]
    ids = [rows * rng.random(options["asked"]) ** 4 for _ in range(options["calls"])]
    return [torch.from_numpy(part.astype(np.int64)).unique() for part in ids]


def caching(options: dict[str, Any]) -> dict[str, Any]:
    """Rows a second through each policy, and from the disk itself."""
    calls = requests(options)
    number = sum(map(len, calls))
    path = Path(options["features"])
    rates = {"the disk's own rate": number / disk_seconds(path, calls, options)}
    for policy in ("none", *POLICIES):
        drop(path)
        feature: hp.Feature = hp.DiskBasedFeature(path, direct=True)
        if policy != "none":
            feature = hp.cpu_cached_feature(feature, options["cache_bytes"], policy)
        feature.read(calls[0][:1])
        start = time.perf_counter()
        for ids in calls:
            feature.read(ids)
        name = policy
        rates[f"cache: {name}"] = number / (time.perf_counter() - start)
        if isinstance(feature, hp.CPUCachedFeature):
            rates[f"hits of {name}"] = 1 - feature.miss_rate
    return rates


def disk_seconds(path: Path, calls: list[torch.Tensor], options: dict[str, Any]) -> float:
    """Seconds to read the blocks of each row, one read a row, with 32 in flight."""
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    row_bytes = 4 * options["columns"]
    header = path.stat().st_size - options["rows"] * row_bytes

    def read(ids: np.ndarray) -> None:
        size = (row_bytes // BLOCK + 2) * BLOCK
        room = np.empty(size + BLOCK, np.uint8)
        first = -room.ctypes.data % BLOCK
        aligned = memoryview(room)[first : first + size]
        for i in ids.tolist():
            start = header + i * row_bytes
            low, high = start // BLOCK * BLOCK, -(-(start + row_bytes) // BLOCK) * BLOCK
            os.preadv(file, [aligned[: high - low]], low)

    with ThreadPoolExecutor(32) as pool:
        start = time.perf_counter()
        for ids in calls:
            list(pool.map(read, np.array_split(ids.numpy(), 32)))
        seconds = time.perf_counter() - start
    os.close(file)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=("sampling", "caching"), help=argparse.SUPPRESS)
    parser.add_argument("--nodes", type=int, default=20_000_000)
    parser.add_argument("--edges", type=int, default=1_000_000_000)
    parser.add_argument("--graph", type=Path, help="a graph's folder to read instead of a new one")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--fanout", type=lambda s: [int(x) for x in s.split(",")], default=[10, 10])
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--columns", type=int, default=128, help="float32 columns of the features")
    parser.add_argument(
        "--memory", type=float, help="GB of memory; default: a quarter of the graph"
    )
    parser.add_argument("--features", type=float, help="GB of the features; default: 4 times that")
    parser.add_argument("--path", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    if options.part:
        part = sampling if options.part == "sampling" else caching
        print(json.dumps(part(json.load(sys.stdin))))
        return
    with tempfile.TemporaryDirectory(prefix="hopline-out-of-core-", dir=options.path) as name:
        run(options, Path(name))


def run(options: argparse.Namespace, folder: Path) -> None:
    graph = options.graph
    if graph is None:
        graph = folder / "graph"
        write_graph(graph, options.nodes, options.edges)
    files = sorted(graph.glob("*.npy"))
    size = sum(path.stat().st_size for path in files)
    limit = int(options.memory * 1e9) if options.memory else size // 4
    print(f"graph: {size / 1e9:.2f} GB in files; memory given: {limit / 1e9:.2f} GB")
    settings = {
        "graph": str(graph), "batch_size": options.batch_size, "fanout": options.fanout,
        "batches": options.batches, "workers": options.workers,
    }  # fmt: skip
    for title, bounded in (("in the memory given", True), ("without a limit", False)):
        for path in files:
            drop(path)
        if bounded:
            with memory_group(limit) as members:
                answer = child("sampling", settings, members)
        else:
            answer = child("sampling", settings, None)
        report(title, answer)
    if options.graph is None:
        for path in files:
            path.unlink()
    feature_bytes = int(options.features * 1e9) if options.features else 4 * limit
    rows = feature_bytes // (4 * options.columns)
    features = folder / "features.npy"
    write_features(features, rows, options.columns)
    drop(features)
    asked = {
        "features": str(features), "rows": rows, "columns": options.columns, "calls": 40,
        "asked": min(20_000, rows // 2), "cache_bytes": min(limit, feature_bytes) // 4,
    }  # fmt: skip
    size, cached = features.stat().st_size / 1e9, asked["cache_bytes"] / 1e9
    print(f"features: {size:.2f} GB, cache {cached:.2f} GB")
    with memory_group(limit) as members:
        answer = child("caching", asked, members)
    if "error" in answer:
        raise SystemExit(answer["error"])
    own = answer.pop("the disk's own rate")
    print(f"the disk's own rate: {own:,.0f} rows/s")
    for policy in ("none", *POLICIES):
        rate = answer[f"cache: {policy}"]
        hits = answer.get(f"hits of {policy}")
        print(
            f"cache {policy:8} {rate:11,.0f} rows/s, {rate / own:.1f} times the disk's"
            + ("" if hits is None else f", hit rate {hits:.1%}")
        )


def report(title: str, answer: dict[str, Any]) -> None:
    if "error" in answer:
        raise SystemExit(f"sampling {title}: {answer['error']}")
    seconds = answer["seconds"]
    middle, rest = statistics.median(seconds), sum(seconds[len(seconds) // 2 :])
    print(
        f"sampling {title}: {middle * 1e3:.1f} ms a mini-batch in the middle, slowest "
        f"{max(seconds) * 1e3:.0f} ms, {len(seconds) / sum(seconds):.1f} mini-batches/s "
        f"({(len(seconds) - len(seconds) // 2) / rest:.1f} in the second half), "
        f"{answer['edges']:,.0f} edges each",
        flush=True,
    )


if __name__ == "__main__":
    main()
