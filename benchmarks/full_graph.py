"""Whole-graph training: time of an epoch by ranks and ways, its exchange, bytes and memory.

    HOPLINE_TEST_DATA=/data python benchmarks/full_graph.py

A GCN of two layers (64 values between them) on debian, tolokers (where HOPLINE_TEST_DATA names its
folder) and a graph of 1 M nodes and 10 M edges in planted groups, METIS parts. Beside it, one
process with the same model on torch.sparse. An epoch is forward, backward and a step. All ranks
are on this machine and share its cores. Of rank 0: the part of an epoch in which it waits for
other ranks. Of all ranks together: bytes sent an epoch. Of the largest rank: memory of its own, at
the peak, beyond what it has after imports.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F

import hopline.pipes as hp
from hopline.models import DistGCN, HaloPlan, global_mean, halo_exchange, launch, sum_gradients
from hopline.partition import DistDataset, partition_graph

HIDDEN = 64
WAYS: dict[str, dict[str, Any]] = {
    "halo": {},
    "broadcast": {"mode": "broadcast"},
    "columns": {"mode": "columns"},
    "halo, bfloat16": {"wire_dtype": torch.bfloat16},
    "halo, int8": {"wire_dtype": torch.int8},
    "stale": {"stale": True},
    "boundary rate 0.1": {"boundary_rate": 0.1},
}


def planted(nodes: int, edges: int, group: int = 2000) -> Any:
    """A graph of which 8 in 10 edges stay inside groups, with 100 features and 16 classes."""
    rng = np.random.default_rng(0)
    names = rng.permutation(nodes)
    source = rng.integers(0, nodes, edges)
    near = np.minimum(source // group * group + rng.integers(0, group, edges), nodes - 1)
    column = np.where(rng.random(edges) < 0.8, near, rng.integers(0, nodes, edges))
    graph = hp.from_coo(
        torch.from_numpy(names[source]), torch.from_numpy(names[column]), num_nodes=nodes
    )
    data = type("Data", (), {})()
    rows = torch.randn(nodes, 100, generator=torch.Generator().manual_seed(0))
    data.graph = graph
    data.feature = hp.BasicFeatureStore({("node", None, "feat"): hp.TorchBasedFeature(rows)})
    seeds = torch.arange(0, nodes, 10)
    items = hp.ItemSet((seeds, seeds % 16), names=("seeds", "labels"))
    task = type("Task", (), {"metadata": {"num_classes": 16}, "train_set": items,
                             "validation_set": None, "test_set": None})  # fmt: skip
    data.tasks = [task]
    return data


def load(name: str, folder: Path) -> Any:
    if name == "planted":
        return planted(1_000_000, 10_000_000)
    if name == "debian":
        return hp.BuiltinDataset("debian").load()
    if not (folder / name).exists():  # opening it writes beside it
        shutil.copytree(Path(os.environ["HOPLINE_TEST_DATA"]) / name, folder / name)
    return hp.OnDiskDataset(str(folder / name)).load()


class Waited:
    """Seconds in which other ranks were waited for."""

    def __init__(self) -> None:
        self.seconds = 0.0
        halo_exchange.Message.wait = self._timed(halo_exchange.Message.wait)  # type: ignore
        for name in ("all_gather", "all_reduce", "all_to_all_single"):
            setattr(dist, name, self._timed(getattr(dist, name)))

    def _timed(self, call: Any) -> Any:
        def timed(*args: Any, **options: Any) -> Any:
            start = time.perf_counter()
            found = call(*args, **options)
            self.seconds += time.perf_counter() - start
            return found

        return timed


class Peak(threading.Thread):
    """The most memory of its own that this process has, beyond what it has now."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.first, self.most, self._end = own_memory(), 0, threading.Event()

    def run(self) -> None:
        """Looks every few milliseconds."""
        while not self._end.wait(0.005):
            self.most = max(self.most, own_memory())

    def stop(self) -> float:
        """Megabytes."""
        self._end.set()
        self.join()
        return (self.most - self.first) / 1e6


def own_memory() -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise KeyError("RssAnon")


def write(out: str, seconds: float, waited: float, sent: float, memory: float) -> None:
    """What rank 0 found, with the bytes of all ranks and the memory of the largest."""
    found = torch.tensor([sent, memory], dtype=torch.float64)
    dist.all_reduce(found[:1])
    dist.all_reduce(found[1:], op=dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        sent, memory = found.tolist()
        Path(out).write_text(f"{seconds * 1e3},{100 * waited},{sent / 1e6},{memory}")


def run_rank(
    rank: int, ranks: int, device: Any, folder: str, way: str, epochs: int, out: str
) -> None:
    peak, waited = Peak(), Waited()
    peak.start()
    with DistDataset(folder, timeout=300) as dataset:
        plan = HaloPlan(dataset.graph)
        own = torch.arange(plan.own.start, plan.own.stop)
        x = dataset.feature.read("node", None, "feat", own).float()
        task = dataset.tasks[0]
        seeds, labels = task.train_set[:]
        mine = (seeds >= plan.own.start) & (seeds < plan.own.stop)
        seeds, labels = (seeds[mine] - plan.own.start).long(), labels[mine].long()
        torch.manual_seed(0)
        model = DistGCN(plan, x.shape[1], HIDDEN, task.metadata["num_classes"], **WAYS[way])
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        times = []
        for epoch in range(epochs + 1):
            start = time.perf_counter()
            if epoch == 1:
                waited.seconds, before = 0.0, model.spmm.bytes_sent
            values = F.cross_entropy(model(x, (0, epoch, 0))[seeds], labels, reduction="none")
            loss = global_mean(values, plan)
            optimizer.zero_grad()
            loss.backward()
            sum_gradients(model.parameters(), plan)
            optimizer.step()
            times.append(time.perf_counter() - start)
        sent = (model.spmm.bytes_sent - before) / epochs
        share = waited.seconds / sum(times[1:])
        write(out, float(np.median(times[1:])), share, sent, peak.stop())


def with_torch_sparse(rank: int, ranks: int, device: Any, name: str, epochs: int, out: str) -> None:
    """One process, by torch's sparse product."""
    data = load(name, Path(out).parent)  # mapped files, or not counted, as ranks map theirs
    peak = Peak()
    peak.start()
    graph, task = data.graph, data.tasks[0]
    nodes = graph.total_num_nodes
    columns = torch.repeat_interleave(torch.arange(nodes), graph.csc_indptr.diff())
    loops = torch.arange(nodes)
    rows, sources = torch.cat([columns, loops]), torch.cat([graph.indices.long(), loops])
    incoming, outgoing = (torch.bincount(each, minlength=nodes) for each in (rows, sources))
    value = (incoming[rows] * outgoing[sources]).float().pow(-0.5)
    warnings.simplefilter("ignore")  # sparse CSR is in beta state
    matrix = torch.sparse_coo_tensor(torch.stack([rows, sources]), value, (nodes, nodes))
    matrix = matrix.coalesce().to_sparse_csr()
    del columns, rows, sources, value, loops
    x = data.feature.read("node", None, "feat").float()
    seeds, labels = task.train_set[:]
    seeds, labels = seeds.long(), labels.long()
    first = torch.nn.Linear(x.shape[1], HIDDEN)
    second = torch.nn.Linear(HIDDEN, task.metadata["num_classes"])
    optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=0.01)
    times = []
    for _ in range(epochs + 1):
        start = time.perf_counter()
        h = F.dropout(torch.relu(matrix @ (x @ first.weight.T) + first.bias), 0.5)
        out_rows = matrix @ (h @ second.weight.T) + second.bias
        loss = F.cross_entropy(out_rows[seeds], labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        times.append(time.perf_counter() - start)
    write(out, float(np.median(times[1:])), 0.0, 0.0, peak.stop())


def show(name: str, out: Path, reference: float) -> float:
    """Prints a line of the table; milliseconds of an epoch."""
    milliseconds, waiting, sent, memory = map(float, out.read_text().split(","))
    ratio = reference / milliseconds if reference else 1.0
    figures = f"{milliseconds:>9.0f}{ratio:>9.2f}{waiting:>9.0f}{sent:>10.2f}{memory:>10.0f}"
    print(f"    {name:28}{figures}", flush=True)
    return milliseconds


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = ["debian", *(["tolokers"] if "HOPLINE_TEST_DATA" in os.environ else []), "planted"]
    parser.add_argument("--datasets", nargs="+", default=names)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="hopline-full-graph-"))
    out = folder / "out"
    try:
        for name in options.datasets:
            data = load(name, folder)
            print(name, data.graph)
            print(f"    {'':28}{'ms':>9}{'times':>9}{'waits %':>9}{'MB sent':>10}{'MB own':>10}")
            launch(with_torch_sparse, 1, name, options.epochs, str(out), timeout=600)
            reference = show("torch.sparse, one process", out, 0.0)
            for ranks in options.ranks:
                parts = folder / f"{name}-{ranks}"
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    partition_graph(data, name, ranks, parts)
                for way in options.ways if ranks > 1 else ["halo"]:
                    launch(run_rank, ranks, str(parts), way, options.epochs, str(out), timeout=600)
                    show(f"{ranks} ranks, {way}" if ranks > 1 else "1 rank", out, reference)
            del data
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
