"""Approximate whole-graph training: what each way saves, how far its gradients are off, accuracy.

    HOPLINE_TEST_DATA=/data python benchmarks/approximations.py

A GCN of two layers on cora (16 values between them, 200 epochs, seeds 0 to 4) and debian (64, 100
epochs, seed 0), METIS parts on 2 and 4 ranks of this machine. Of all ranks together: bytes sent
forward and backward, as a part of the exact way's. Every tenth epoch the gradient of all weights is
compared with the exact one of the same weights and the same dropout: the norm of the difference
over the norm of the exact one, on average. Accuracy is the test accuracy of the epoch of the best
validation accuracy, a mean over seeds, with the least and the greatest.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F

import hopline.pipes as hp
from hopline.models import DistGCN, HaloPlan, global_mean, launch, sum_gradients, weighted_reduce
from hopline.partition import DistDataset, partition_graph

WAYS: dict[str, dict[str, Any]] = {
    "exact": {},
    "bfloat16": {"wire_dtype": torch.bfloat16},
    "int8": {"wire_dtype": torch.int8},
    "stale": {"stale": True},
    "stale, int8": {"stale": True, "wire_dtype": torch.int8},
    "boundary rate 0.5": {"boundary_rate": 0.5},
    "boundary rate 0.1": {"boundary_rate": 0.1},
    "boundary rate 0.01": {"boundary_rate": 0.01},
}
DATASETS = {"cora": (16, 200, 5), "debian": (64, 100, 1)}  # hidden size, epochs, seeds


class Share:
    """A rank's rows, seeds and labels."""

    def __init__(self, dataset: Any, normalize: bool) -> None:
        self.plan = HaloPlan(dataset.graph)
        own = torch.arange(self.plan.own.start, self.plan.own.stop)
        self.x = dataset.feature.read("node", None, "feat", own).float()
        if normalize:
            self.x = self.x / self.x.sum(1, keepdim=True).clamp(min=1e-12)
        task = dataset.tasks[0]
        self.classes = task.metadata["num_classes"]
        self.sets = {}
        for name in ("train", "validation", "test"):
            seeds, labels = getattr(task, f"{name}_set")[:]
            mine = (seeds >= self.plan.own.start) & (seeds < self.plan.own.stop)
            self.sets[name] = (seeds[mine] - self.plan.own.start).long(), labels[mine].long()

    def backward(self, model: DistGCN, key: tuple[int, int, int]) -> list[torch.Tensor]:
        """Gradients over all ranks."""
        nodes, labels = self.sets["train"]
        losses = F.cross_entropy(model(self.x, key)[nodes], labels, reduction="none")
        model.zero_grad()
        global_mean(losses, self.plan).backward()
        sum_gradients(model.parameters(), self.plan)
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    @torch.no_grad()
    def accuracy(self, model: DistGCN, name: str) -> float:
        """Over all ranks."""
        nodes, labels = self.sets[name]
        right = model.eval()(self.x)[nodes].argmax(1) == labels
        model.train()
        mean = right.float().mean() if len(right) else 0.0
        return float(weighted_reduce(mean, len(right), dst=None))


def train(share: Share, options: dict[str, Any], hidden: int, epochs: int, seed: int) -> Any:
    """(accuracy, error of gradients, bytes an epoch) of a run."""
    torch.manual_seed(seed)
    sizes = share.x.shape[1], hidden, share.classes
    model = DistGCN(share.plan, *sizes, **options)
    exact = DistGCN(share.plan, *sizes)
    exact.layers = model.layers  # the same weights
    optimizer = torch.optim.Adam(model.parameters(), 0.01, weight_decay=5e-4)
    best, test, sent, errors = -1.0, 0.0, 0, []
    for epoch in range(epochs):
        key = seed, epoch, 0
        expected = share.backward(exact, key) if epoch % 10 == 5 else None
        before = model.spmm.bytes_sent
        got = share.backward(model, key)
        sent += model.spmm.bytes_sent - before
        if expected is not None:
            far, norm = (torch.cat([g.flatten() for g in each]).norm()
                         for each in ([a - b for a, b in zip(got, expected, strict=True)],
                                      expected))  # fmt: skip
            errors.append(float(far / norm))
        optimizer.step()
        value = share.accuracy(model, "validation")
        if value > best:
            best, test = value, share.accuracy(model, "test")
    total = torch.tensor([sent / epochs], dtype=torch.float64)
    dist.all_reduce(total)
    return test, float(np.mean(errors)), total.item()


def run_rank(rank: int, ranks: int, device: Any, folder: str, name: str, out: str) -> None:
    torch.set_num_threads(max(1, 2 // ranks))
    hidden, epochs, seeds = DATASETS[name]
    with DistDataset(folder, timeout=300) as dataset:
        share = Share(dataset, normalize=name == "cora")
        found = {
            way: [train(share, options, hidden, epochs, seed) for seed in range(seeds)]
            for way, options in WAYS.items()
        }
    if rank == 0:
        Path(out).write_text(json.dumps(found))


def load(name: str, folder: Path) -> Any:
    if name == "debian":
        return hp.BuiltinDataset("debian").load()
    if not (folder / name).exists():
        shutil.copytree(Path(os.environ["HOPLINE_TEST_DATA"]) / name, folder / name)
    return hp.OnDiskDataset(str(folder / name)).load()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = [name for name in DATASETS if name == "debian" or "HOPLINE_TEST_DATA" in os.environ]
    parser.add_argument("--datasets", nargs="+", default=names)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="hopline-approximations-"))
    try:
        for name in options.datasets:
            for ranks in options.ranks:
                parts, out = folder / f"{name}-{ranks}", folder / "out"
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    partition_graph(load(name, folder), name, ranks, parts)
                launch(run_rank, ranks, str(parts), name, str(out), timeout=600)
                found = json.loads(out.read_text())
                print(f"{name}, {ranks} ranks")
                print(f"    {'':20}{'bytes':>8}{'gradient off':>14}{'accuracy':>10}{'from to':>15}")
                for way, runs in found.items():
                    tests, errors, sent = (np.array(each) for each in zip(*runs, strict=True))
                    part = sent.mean() / max(1, np.mean([run[2] for run in found["exact"]]))
                    print(
                        f"    {way:20}{part:>8.2f}{100 * errors.mean():>12.2f} %"
                        f"{tests.mean():>10.4f}{tests.min():>9.3f}{tests.max():>6.3f}",
                        flush=True,
                    )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
