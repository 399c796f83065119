"""Whole-graph training: time of an epoch by ranks and ways, share of the exchange, bytes a layer.

    HOPLINE_TEST_DATA=/data python benchmarks/full_graph.py

A GCN of two layers (64 values between them) on debian, tolokers (where HOPLINE_TEST_DATA names its
folder) and a graph of 1 M nodes and 10 M edges in planted groups, METIS parts. Beside it, one
process with the same model on torch.sparse. An epoch is forward, backward and a step. All ranks
are on this machine. The exchange's share is the time in which a rank waits for rows or gradients.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import hopline.pipes as hp
from hopline.models import DistGCN, HaloPlan, global_mean, halo_exchange, launch, sum_gradients
from hopline.models.dist_modes import rows_sent
from hopline.partition import DistDataset, partition_graph

HIDDEN = 64


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


def load(name: str) -> Any:
    if name == "planted":
        return planted(1_000_000, 10_000_000)
    if name == "debian":
        return hp.BuiltinDataset("debian").load()
    folder = Path(tempfile.mkdtemp(prefix="hopline-full-graph-")) / name
    shutil.copytree(Path(os.environ["HOPLINE_TEST_DATA"]) / name, folder)
    return hp.OnDiskDataset(str(folder)).load()


class Waited:
    """Seconds in which exchanges were waited for."""

    def __init__(self) -> None:
        self.seconds = 0.0
        wait = halo_exchange.Halo.wait

        def timed(halo: Any, dtype: torch.dtype) -> torch.Tensor:
            start = time.perf_counter()
            rows = wait(halo, dtype)
            self.seconds += time.perf_counter() - start
            return rows

        halo_exchange.Halo.wait = timed  # type: ignore[method-assign]


def run_rank(
    rank: int, ranks: int, device: Any, folder: str, mode: str, epochs: int, out: str
) -> None:
    torch.set_num_threads(max(1, 2 // ranks))
    waited = Waited()
    with DistDataset(folder, timeout=300) as dataset:
        plan = HaloPlan(dataset.graph)
        own = torch.arange(plan.own.start, plan.own.stop)
        x = dataset.feature.read("node", None, "feat", own).float()
        task = dataset.tasks[0]
        seeds, labels = task.train_set[:]
        mine = (seeds >= plan.own.start) & (seeds < plan.own.stop)
        seeds, labels = (seeds[mine] - plan.own.start).long(), labels[mine].long()
        torch.manual_seed(0)
        model = DistGCN(plan, x.shape[1], HIDDEN, task.metadata["num_classes"], mode=mode)
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
        seconds = float(np.median(times[1:]))
        share = waited.seconds / sum(times[1:])
        sent = (model.spmm.bytes_sent - before) / epochs / 1e6
        halo = rows_sent(plan)["halo"]
        if rank == 0:
            Path(out).write_text(
                f"{seconds * 1e3:9.0f} ms an epoch, {100 * share:3.0f} % of it waiting, "
                f"{sent:8.2f} MB sent by rank 0, {halo / plan.num_nodes:.2f} halo rows a node"
            )


def with_torch_sparse(data: Any, epochs: int) -> float:
    """Milliseconds of an epoch in one process, by torch's sparse product."""
    torch.set_num_threads(2)
    graph, task = data.graph, data.tasks[0]
    nodes = graph.total_num_nodes
    columns = torch.repeat_interleave(torch.arange(nodes), graph.csc_indptr.diff())
    loops = torch.arange(nodes)
    rows, sources = torch.cat([columns, loops]), torch.cat([graph.indices.long(), loops])
    incoming, outgoing = (torch.bincount(each, minlength=nodes) for each in (rows, sources))
    value = (incoming[rows] * outgoing[sources]).float().pow(-0.5)
    matrix = torch.sparse_coo_tensor(torch.stack([rows, sources]), value, (nodes, nodes))
    matrix = matrix.coalesce().to_sparse_csr()
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
        out = matrix @ (h @ second.weight.T) + second.bias
        loss = F.cross_entropy(out[seeds], labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        times.append(time.perf_counter() - start)
    return float(np.median(times[1:])) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = ["debian", *(["tolokers"] if "HOPLINE_TEST_DATA" in os.environ else []), "planted"]
    parser.add_argument("--datasets", nargs="+", default=names)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--modes", nargs="+", default=["halo", "broadcast", "columns"])
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="hopline-full-graph-"))
    try:
        for name in options.datasets:
            data = load(name)
            print(name, data.graph, flush=True)
            sparse = with_torch_sparse(data, options.epochs)
            print(f"    {'torch.sparse, one process':28}{sparse:9.0f} ms an epoch", flush=True)
            for ranks in options.ranks:
                parts = folder / f"{name}-{ranks}"
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    partition_graph(data, name, ranks, parts)
                for mode in options.modes if ranks > 1 else ["halo"]:
                    out = folder / "out"
                    launch(run_rank, ranks, str(parts), mode, options.epochs, str(out), timeout=600)
                    print(f"    {f'{ranks} ranks, {mode}':28}{out.read_text()}", flush=True)
            del data
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
