"""Layers alone: forward and backward over one graph, beside DGL's and PyG's on the CPU.

    python benchmarks/layers.py --dgl ENV/bin/python --pyg ENV/bin/python

Environments as `docs/comparison.md` makes them; a peer without one is left out. One graph whose
in-degrees follow a power law, 64 values a row in and out, on all cores; and Hopline on one thread
too. The systems take turns, and each figure is the median of all turns. Ratios are of a peer's time
to Hopline's.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

WIDTH, HEADS = 64, 4
LAYERS = ("sage", "gcn", "gcn, edge weights", "gat, 4 heads")


def hopline(indptr: Any, indices: Any, weight: Any) -> dict[str, Callable[..., Any]]:
    from hopline.models import GATConv, GCNConv, SAGEConv
    from hopline.pipes import Block

    nodes = len(indptr) - 1
    block = Block(indptr, indices, nodes, nodes)
    sage, gcn = SAGEConv(WIDTH, WIDTH), GCNConv(WIDTH, WIDTH)
    gat = GATConv(WIDTH, WIDTH // HEADS, HEADS)
    calls = (lambda x: sage(block, x), lambda x: gcn(block, x), lambda x: gcn(block, x, weight),
             lambda x: gat(block, x))  # fmt: skip
    return dict(zip(LAYERS, calls, strict=True))


def dgl(indptr: Any, indices: Any, weight: Any) -> dict[str, Callable[..., Any]]:
    import dgl
    from dgl.nn import GATConv, GraphConv, SAGEConv

    graph = dgl.graph(("csc", (indptr, indices.long(), torch.arange(len(indices)))))
    graph = graph.int()
    graph.create_formats_()
    sage = SAGEConv(WIDTH, WIDTH, "mean")
    gcn = GraphConv(WIDTH, WIDTH, allow_zero_in_degree=True)
    gat = GATConv(WIDTH, WIDTH // HEADS, HEADS, allow_zero_in_degree=True)
    calls = (lambda x: sage(graph, x), lambda x: gcn(graph, x),
             lambda x: gcn(graph, x, edge_weight=weight), lambda x: gat(graph, x))  # fmt: skip
    return dict(zip(LAYERS, calls, strict=True))


def pyg(indptr: Any, indices: Any, weight: Any) -> dict[str, Callable[..., Any]]:
    from torch_geometric.nn import GATConv, GCNConv, SAGEConv

    columns = torch.repeat_interleave(torch.arange(len(indptr) - 1), indptr.diff())
    edges = torch.stack([indices.long(), columns])
    sage, gcn = SAGEConv(WIDTH, WIDTH), GCNConv(WIDTH, WIDTH, cached=True, add_self_loops=False)
    weighted = GCNConv(WIDTH, WIDTH, cached=True, add_self_loops=False)
    gat = GATConv(WIDTH, WIDTH // HEADS, HEADS, add_self_loops=False)
    calls = (lambda x: sage(x, edges), lambda x: gcn(x, edges),
             lambda x: weighted(x, edges, weight), lambda x: gat(x, edges))  # fmt: skip
    return dict(zip(LAYERS, calls, strict=True))


def child(system: str, folder: Path, threads: int) -> None:
    """Measures one step of each layer for each line that it reads."""
    torch.set_num_threads(threads)
    arrays = [torch.from_numpy(np.load(folder / f"{name}.npy"))
              for name in ("indptr", "indices", "weight")]  # fmt: skip
    torch.manual_seed(0)
    layers = globals()[system](*arrays)
    x = torch.randn(len(arrays[0]) - 1, WIDTH, requires_grad=True)
    target = torch.randn(len(x), WIDTH)

    def step(layer: Callable[..., Any]) -> float:
        start = time.perf_counter()
        layer(x).flatten(1).backward(target)
        x.grad = None
        return 1000 * (time.perf_counter() - start)

    for layer in layers.values():  # compiles, and caches
        step(layer)
    print("ready", flush=True)
    for line in sys.stdin:
        name = line.strip()
        print(json.dumps(step(layers[name])), flush=True)


class Peer:
    """A system in a process of its own."""

    def __init__(self, name: str, python: str, folder: Path, threads: int) -> None:
        system = name.split()[0]
        command = [python, __file__, "--child", system, "--data", str(folder)]
        self.process = subprocess.Popen(
            [*command, "--threads", str(threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, env={**os.environ, "OMP_NUM_THREADS": str(threads), "DGLBACKEND": "pytorch"},
        )  # fmt: skip
        if self._line() != "ready":
            raise SystemExit(f"{name} did not start; its error is above")

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def step(self, layer: str) -> float:
        """Milliseconds of one step."""
        assert self.process.stdin is not None
        self.process.stdin.write(layer + "\n")
        self.process.stdin.flush()
        line = self._line()
        if not line:
            raise SystemExit("a peer has ended; its error is above")
        return float(json.loads(line))


def main() -> None:
    """Prints one line a layer."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--dgl", help="python of an environment with dgl")
    parser.add_argument("--pyg", help="python of an environment with torch_geometric")
    parser.add_argument("--nodes", type=int, default=200_000)
    parser.add_argument("--edges", type=int, default=4_000_000)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.data, options.threads)
        return

    sys.path.insert(0, str(Path(__file__).parent))
    from graphs import power_law_graph

    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        graph = power_law_graph(options.nodes, options.edges)
        weight = np.random.default_rng(1).random(graph.num_edges, np.float32)
        arrays = {"indptr": graph.csc_indptr, "indices": graph.indices, "weight": weight}
        for name, array in arrays.items():
            np.save(Path(folder) / f"{name}.npy", np.asarray(array))
        wanted = {"hopline": (sys.executable, cores), "hopline on 1 thread": (sys.executable, 1),
                  "dgl": (options.dgl, cores), "pyg": (options.pyg, cores)}  # fmt: skip
        peers = {name: Peer(name, python, Path(folder), threads)
                 for name, (python, threads) in wanted.items() if python}  # fmt: skip
        print(f"{graph.num_nodes:,} nodes, {graph.num_edges:,} edges, {WIDTH} values a row, "
              f"{cores} cores; ms forward and backward (times Hopline's)")  # fmt: skip
        for layer in LAYERS:
            times: dict[str, list[float]] = {name: [] for name in peers}
            for _ in range(options.repeats):
                for name, peer in peers.items():
                    times[name].append(peer.step(layer))
            ours = statistics.median(times["hopline"])
            shown = ", ".join(
                f"{name} {statistics.median(each):,.0f}"
                + f" ({statistics.median(each) / ours:.2f})" * (name != "hopline")
                for name, each in times.items()
            )
            print(f"{layer}: {shown}", flush=True)
        for peer in peers.values():
            peer.process.kill()
            peer.process.wait()


if __name__ == "__main__":
    main()
