"""Partitioning: time and memory by number of edges; cut, halo and balance of each method.

    python benchmarks/partitioning.py --edges 1e6 1e7
    python benchmarks/partitioning.py --edges 1e8 --methods metis kaminpar --folder /data
    HOPLINE_TEST_DATA=/data python benchmarks/partitioning.py --datasets

A generated graph has 25 edges a node, in-degrees by a power law, and planted groups of 1000 nodes:
of the sources of an edge, 8 in 10 are of its destination's group. It lies in a folder and is
mapped; its nodes have 100 features of float32. Each method runs in a process of its own, where
everything is compiled already: it assigns the nodes, then writes the parts. Anonymous memory of the
process is sampled every 10 ms from /proc, by another process; "MB" is its peak in each of the two
steps beyond what it was before, so without the mapped graph. "estimate" is `estimate_memory`.

--datasets partitions cora and tolokers, if HOPLINE_TEST_DATA names the folder that holds them, and
debian into 2, 4 and 8 parts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

import hopline.pipes as hp
from hopline.partition import assign_nodes, estimate_memory, partition_graph
from hopline.partition.assign import METHODS

DEGREE = 25
GROUP = 1000  # nodes of a planted group
INSIDE = 0.8  # sources of the same group
COLUMNS = 100
STEP = 1 << 22  # edges, and values, drawn at a time
INTERVAL = 0.01  # seconds between two looks at the memory
HEAD = (
    f"{'method':<9} {'assign s':>8} {'CPU s':>7} {'MB':>7} {'bytes/edge':>10} {'estimate':>8} "
    f"{'write s':>8} {'MB':>7} {'cut':>6} {'halo':>5} {'nodes':>6} {'edges':>6}"
)


def planted_graph(edges: int, seed: int = 0) -> hp.FusedCSCSamplingGraph:
    """In-degrees follow a power law; a source is drawn in proportion to its in-degree."""
    rng = np.random.default_rng(seed)
    nodes = max(2, edges // DEGREE)
    weight = rng.pareto(1.8, nodes) + 0.3
    degree = np.minimum(np.maximum(1, weight / weight.sum() * edges), 20_000).astype(np.int64)
    indptr = np.concatenate([[0], np.cumsum(degree)])
    owner = np.repeat(np.arange(nodes, dtype=np.int32), degree)
    firsts = np.minimum(np.arange(0, nodes + GROUP, GROUP), nodes)
    bounds = indptr[firsts]  # edges of each group
    sources = np.empty_like(owner)
    for low in range(0, len(owner), STEP):
        mine = owner[low : low + STEP]
        group = mine // GROUP
        inside = rng.random(len(mine)) < INSIDE
        first = np.where(inside, bounds[group], 0)
        last = np.where(inside, bounds[group + 1], len(owner))
        sources[low : low + STEP] = owner[
            first + (rng.random(len(mine)) * (last - first)).astype(int)
        ]
    # Names are dealt out anew, so that ids tell nothing of the groups.
    name = rng.permutation(nodes).astype(np.int32)
    old = np.empty_like(name)
    old[name] = np.arange(nodes, dtype=np.int32)
    renamed = np.concatenate([[0], np.cumsum(degree[old])])
    positions = np.arange(len(owner)) + np.repeat(indptr[old] - renamed[:-1], degree[old])
    return hp.fused_csc_sampling_graph(
        torch.from_numpy(renamed), torch.from_numpy(name[sources[positions]])
    )


def make(folder: Path, edges: int) -> None:
    """Writes the graph and the features, once."""
    if (folder / "features.npy").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    graph = planted_graph(edges)
    graph.save(folder / "graph")
    shape = (graph.total_num_nodes, COLUMNS)
    rows = np.lib.format.open_memmap(folder / "features.tmp", "w+", np.float32, shape)
    for low in range(0, len(rows), STEP // COLUMNS):
        rows[low : low + STEP // COLUMNS] = low
    rows.flush()
    (folder / "features.tmp").rename(folder / "features.npy")


def warm_up(method: str) -> None:
    """Compiles everything, and imports what the method needs."""
    small = planted_graph(5000)
    store = hp.BasicFeatureStore(
        {("node", None, "x"): hp.TorchBasedFeature(torch.zeros(small.total_num_nodes, 2))}
    )
    with tempfile.TemporaryDirectory() as folder:
        dataset = SimpleNamespace(graph=small, feature=store, tasks=[])
        partition_graph(dataset, "small", 2, Path(folder) / "parts", part_method=method)


def child(folder: Path, method: str, parts: int, max_memory: int | None) -> None:
    """One method on one graph; tells what it does in lines that the parent reads."""
    warnings.simplefilter("ignore")
    warm_up(method)
    graph = hp.FusedCSCSamplingGraph.load(folder / "graph")
    store = hp.BasicFeatureStore(
        {("node", None, "x"): hp.DiskBasedFeature(str(folder / "features.npy"))}
    )
    dataset = SimpleNamespace(graph=graph, feature=store, tasks=[])
    print("assign", flush=True)
    started, cpu = time.perf_counter(), time.process_time()
    found = assign_nodes(graph, parts, method, max_memory=max_memory)
    answer: dict[str, Any] = {
        "edges": graph.total_num_edges, "nodes": graph.total_num_nodes,
        "assign_s": time.perf_counter() - started, "assign_cpu": time.process_time() - cpu,
        "estimate": estimate_memory(graph, method), "cut": found.quality.cut_fraction,
        "halo": found.quality.halo_fraction, "balance_nodes": found.quality.imbalance()["nodes"],
        "balance_edges": found.quality.imbalance()["edges"],
    }  # fmt: skip
    with tempfile.TemporaryDirectory(dir=folder) as out:
        print("write", flush=True)
        started = time.perf_counter()
        partition_graph(dataset, "g", parts, Path(out) / "parts", part_method=found.parts)
        answer["write_s"] = time.perf_counter() - started
        print("end", flush=True)
    print(json.dumps(answer), flush=True)


def anonymous(pid: int) -> int:
    """Bytes of memory that a process holds itself, without mapped files."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def measure(folder: Path, method: str, parts: int, max_memory: int) -> dict[str, Any]:
    """Runs a method in a process; its answer, with the peak of each step in bytes."""
    command = [
        sys.executable, __file__, "--child", str(folder), method, str(parts), str(max_memory)
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    step, before, text = "", 0, ""
    peaks: dict[str, int] = {}
    while process.poll() is None:
        lines = process.stdout.readlines()
        text += "".join(lines)
        try:
            now = anonymous(process.pid)
        except OSError:
            break
        if lines:
            step, before = lines[-1].strip(), now
        peaks[step] = max(peaks.get(step, 0), now - before)
        time.sleep(INTERVAL)
    os.set_blocking(process.stdout.fileno(), True)
    text += process.stdout.read()
    if process.wait():
        raise SystemExit(f"{method} on {folder} ended with {process.returncode}")
    answer: dict[str, Any] = json.loads(text.splitlines()[-1])
    return {**answer, "assign_peak": peaks.get("assign", 0), "write_peak": peaks.get("write", 0)}


def sizes(options: argparse.Namespace) -> None:
    for edges in options.edges:
        folder = options.folder / f"planted-{edges}"
        made = "import sys; from pathlib import Path; from partitioning import make; "
        subprocess.run(
            [sys.executable, "-c", made + "make(Path(sys.argv[1]), int(sys.argv[2]))", folder,
             str(edges)],
            check=True, cwd=Path(__file__).parent,
        )  # fmt: skip
        for i, method in enumerate(options.methods):
            got = measure(folder, method, options.parts, options.max_memory)
            if i == 0:
                print(f"\n{got['edges']:,} edges, {got['nodes']:,} nodes, {options.parts} parts")
                print(HEAD)
            print(
                f"{method:<9} {got['assign_s']:>8.2f} {got['assign_cpu']:>7.2f} "
                f"{got['assign_peak'] / 1e6:>7.0f} {got['assign_peak'] / got['edges']:>10.1f} "
                f"{got['estimate'] / 1e6:>8.0f} {got['write_s']:>8.2f} "
                f"{got['write_peak'] / 1e6:>7.0f} {got['cut']:>6.1%} {got['halo']:>5.2f} "
                f"{got['balance_nodes']:>6.3f} {got['balance_edges']:>6.3f}",
                flush=True,
            )


def datasets(options: argparse.Namespace) -> None:
    """Cut, halo and balance of each method, as a table in Markdown."""
    found = {}
    root = os.environ.get("HOPLINE_TEST_DATA")
    for name in ("cora", "tolokers") if root else ():
        found[name] = hp.OnDiskDataset(Path(str(root)) / name, processed_path=options.folder / name)
    found["debian"] = hp.BuiltinDataset("debian")
    print("| data set | parts | method | edges cut | halo rows / nodes | nodes | edges |")
    print("|---|---|---|---|---|---|---|")
    for name, dataset in found.items():
        graph = dataset.load().graph
        for parts in (2, 4, 8):
            for method in options.methods:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    quality = assign_nodes(graph, parts, method).quality
                balance = quality.imbalance()
                print(
                    f"| {name} | {parts} | {method} | {quality.cut_fraction:.1%} | "
                    f"{quality.halo_fraction:.2f} | {balance['nodes']:.3f} | "
                    f"{balance['edges']:.3f} |",
                    flush=True,
                )


def main() -> None:
    if len(sys.argv) == 6 and sys.argv[1] == "--child":
        most = int(sys.argv[5])
        child(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), most or None)
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--edges", type=lambda text: int(float(text)), nargs="+", default=[])
    parser.add_argument("--datasets", action="store_true")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument(
        "--max-memory",
        type=lambda text: int(float(text)),
        default=0,
        help="bytes that assigning may take by its estimate; 0: what is free",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(tempfile.gettempdir()) / "hopline-benchmarks",
        help="keeps the graphs for later runs; parts are removed",
    )
    options = parser.parse_args()
    if not options.edges and not options.datasets:
        parser.error("give --edges N ..., or --datasets")
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.edges:
        sizes(options)
    if options.datasets:
        datasets(options)


if __name__ == "__main__":
    main()
