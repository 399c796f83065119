"""What a graph costs as it grows: memory, disk, preparation time, mini-batches a second.

    python benchmarks/scale.py
    python benchmarks/scale.py --edges 1e6 1e7 1e8 1e9 --max-memory 8GB --folder /data

For each size, an edge list (50 edges a node, heavy-tailed; see `preparation.py`) is prepared by
`hopline preprocess`, and read by a process of its own, which maps the result and samples
mini-batches of 1,024 seeds by two worker threads. Memory is what the processes hold themselves
(anonymous); pages of mapped files come on top where there is room, and go when there is none.
Files are removed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

import numpy as np
from peers.protocol import memory as process_memory
from preparation import prepare, write_edges

import hopline.pipes as hp

BATCH_SIZE = 1024
WARM = 20


def sample(folder: Path, fanout: list[int], batches: int) -> dict[str, float]:
    """Mini-batches a second, their edges, and MB of the process's own memory."""
    graph = hp.OnDiskDataset(folder).load().graph
    items = hp.ItemSet(graph.total_num_nodes, names="seeds")
    sampler = hp.ItemSampler(items, BATCH_SIZE, shuffle=True, seed=1)
    chain = sampler.sample_neighbor(graph, fanout)
    edges = own = 0.0
    with hp.DataLoader(chain, num_workers=2) as loader:
        # Small graphs have few mini-batches an epoch.
        reader = (minibatch for _ in iter(int, 1) for minibatch in loader)
        for _ in islice(reader, WARM):
            own = max(own, process_memory("RssAnon"))
        start = time.perf_counter()
        for minibatch in islice(reader, batches):
            edges += sum(len(s.sampled_csc.indices) for s in minibatch.sampled_subgraphs)
            own = max(own, process_memory("RssAnon"))
        seconds = time.perf_counter() - start
    return {"rate": batches / seconds, "edges": edges / batches, "own": own}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--edges", type=float, nargs="+", default=[1e6, 1e7, 1e8])
    parser.add_argument("--fanout", type=lambda s: [int(x) for x in s.split(",")], default=[10, 10])
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--max-memory", default="4GiB", help="as of `hopline preprocess`")
    parser.add_argument("--folder", help="where files are made (default: the temporary folder)")
    parser.add_argument("--sample", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.sample:
        print(json.dumps(sample(options.sample, options.fanout, options.batches)))
        return
    root = Path(tempfile.mkdtemp(prefix="scale-", dir=options.folder))
    print(
        f"{'edges':>14} {'nodes':>12} {'input MB':>9} {'result MB':>10} {'prepared s':>10} "
        f"{'own MB':>7} {'batches/s':>10} {'edges each':>11} {'own MB':>7}"
    )
    rows = []
    try:
        for edges in map(int, options.edges):
            rows.append((edges, one_size(root, edges, options)))
    finally:
        shutil.rmtree(root, ignore_errors=True)
    if len(rows) > 1:
        slope, start = np.polyfit(*np.array(rows).T, 1)
        print(f"prepared in {start:.1f} s + {slope * 1e9:.0f} s for each billion edges")


def one_size(root: Path, edges: int, options: argparse.Namespace) -> float:
    """Measures one size, prints its row, and gives the seconds of preparation."""
    folder = root / str(edges)
    folder.mkdir()
    nodes = max(1, edges // 50)
    size = write_edges(folder, edges, nodes, "npy").stat().st_size / 1e6
    seconds, peak = prepare(folder, options.max_memory)
    result = sum(p.stat().st_size for p in (folder / "preprocessed").rglob("*.npy")) / 1e6
    command = [sys.executable, __file__, "--sample", str(folder), "--batches", str(options.batches)]
    command += ["--fanout", ",".join(map(str, options.fanout))]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    print(
        f"{edges:>14,} {nodes:>12,} {size:>9,.0f} {result:>10,.0f} {seconds:>10.1f} "
        f"{peak['RssAnon'] / 1e6:>7,.0f} {found['rate']:>10,.0f} {found['edges']:>11,.0f} "
        f"{found['own']:>7,.0f}",
        flush=True,
    )
    shutil.rmtree(folder)
    return seconds


if __name__ == "__main__":
    main()
