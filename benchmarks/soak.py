"""Does memory grow? Loader threads, streams and caches, for as many mini-batches as you like.

    python benchmarks/soak.py --batches 10000
    python benchmarks/soak.py --batches 10000 --interpret

A tiny graph is read by turns through every combination of worker threads and caches (none, in host
memory, on a GPU), an epoch each; then loaders are made and dropped in mid-epoch. Memory is printed
on the way. The exit code is 1 if it grows by more than --bound over the second half of either.

With a GPU, mini-batches are copied there on the workers' streams. With --interpret, and without a
GPU, its kernels run on the CPU, by Triton's interpreter.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

import hopline.pipes as hp

NODES, COLUMNS, BATCH_SIZE, FANOUT = 240, 64, 16, [3, 2]
CACHE_BYTES = NODES * COLUMNS * 4 // 4  # a quarter of the rows


def resident() -> int:
    """Bytes of this process in memory."""
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def on_gpus() -> int:
    """Bytes that tensors have on GPUs."""
    if not torch.cuda.is_available():
        return 0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return sum(torch.cuda.memory_allocated(i) for i in range(torch.cuda.device_count()))


class Meter:
    """Prints memory every so often, and knows by how much it has grown of late.

    Args:
        what: what is counted.
        every: counts between two looks.
    """

    def __init__(self, what: str, every: int) -> None:
        self.what = what
        self.every = every
        self.samples: list[tuple[int, int, int]] = []  # count, bytes on the host, on GPUs

    def look(self, count: int) -> None:
        """Measures now, if it has not just done so."""
        if self.samples and self.samples[-1][0] == count:
            return
        self.samples.append((count, resident(), on_gpus()))
        count, host, device = self.samples[-1]
        gpus = f", {device / 2**20:.1f} MB on GPUs" if torch.cuda.is_available() else ""
        print(f"{count} {self.what}: {host / 2**20:.1f} MB{gpus}", flush=True)

    def count(self, number: int) -> None:
        """Measures if it is time."""
        if number % self.every == 0:
            self.look(number)

    def growth(self) -> tuple[int, int]:
        """Bytes more at the end than in the middle, on the host and on GPUs."""
        last = self.samples[-1]
        middle = next(s for s in self.samples if 2 * s[0] >= last[0])
        return last[1] - middle[1], last[2] - middle[2]


def stores(interpret: bool) -> dict[str, hp.BasicFeatureStore]:
    """The same rows behind each cache that there is here."""
    rows = torch.randn(NODES, COLUMNS, generator=torch.Generator().manual_seed(2))
    features: dict[str, Any] = {
        "no cache": hp.TorchBasedFeature(rows),
        "CPU cache": hp.cpu_cached_feature(hp.TorchBasedFeature(rows), CACHE_BYTES),
    }
    if interpret or torch.cuda.is_available():
        device = "cuda" if torch.cuda.is_available() else "cpu"
        features["GPU cache"] = hp.gpu_cached_feature(
            hp.TorchBasedFeature(rows), CACHE_BYTES, device=device
        )
    return {
        name: hp.BasicFeatureStore({("node", None, "feat"): feature})
        for name, feature in features.items()
    }


def make_loaders(workers: list[int], interpret: bool) -> list[hp.DataLoader]:
    """A loader for each combination."""
    ends = torch.randint(0, NODES, (2, 8 * NODES), generator=torch.Generator().manual_seed(1))
    graph = hp.from_coo(ends[0], ends[1], NODES)
    sampler = hp.ItemSampler(hp.ItemSet(NODES, "seeds"), BATCH_SIZE, shuffle=True, seed=0)
    loaders = []
    for store, number in itertools.product(stores(interpret).values(), workers):
        chain = sampler.sample_neighbor(graph, FANOUT).fetch_feature(store, ["feat"])
        if torch.cuda.is_available():
            chain = chain.copy_to("cuda")
        loaders.append(hp.DataLoader(chain, num_workers=number))
    return loaders


def endless(loaders: list[hp.DataLoader]) -> Iterator[hp.MiniBatch]:
    """An epoch of each loader, by turns."""
    for loader in itertools.cycle(loaders):
        yield from loader


def soak(options: argparse.Namespace) -> list[Meter]:
    """Reads the mini-batches, then makes and drops the loaders."""
    loaders = make_loaders(options.workers, options.interpret)
    kept = []
    meters = [Meter("mini-batches", options.every)]
    for number, minibatch in zip(range(1, options.batches + 1), endless(loaders), strict=False):
        minibatch.node_features["feat"].sum()
        if options.leak:
            kept.append(b"x" * (options.leak << 10))
        meters[0].count(number)
    meters[0].look(options.batches)
    for loader in loaders:
        loader.close()
    if options.loaders:
        meters.append(Meter("loaders", max(1, options.loaders // 10)))
        for number in range(1, options.loaders + 1):
            chain = loaders[number % len(loaders)].chain
            next(iter(hp.DataLoader(chain, num_workers=max(options.workers))))
            meters[1].count(number)
        meters[1].look(options.loaders)
    return meters


def device(interpret: bool) -> AbstractContextManager[None]:
    """Where GPU kernels run."""
    if not interpret or torch.cuda.is_available():
        return nullcontext()
    from hopline.pipes.kernels.dispatch import interpreted_device

    return interpreted_device()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=10_000)
    parser.add_argument("--loaders", type=int, default=1000, help="made and dropped")
    parser.add_argument("--every", type=int, default=500, help="mini-batches between two lines")
    parser.add_argument(
        "--workers", type=lambda text: [int(part) for part in text.split(",")], default=[0, 1, 3]
    )
    parser.add_argument("--bound", type=float, default=16, help="megabytes of growth to accept")
    parser.add_argument("--interpret", action="store_true", help="run kernels for GPUs on the CPU")
    parser.add_argument(
        "--leak", type=int, default=0, metavar="KB", help="keep so much of every mini-batch"
    )
    options = parser.parse_args()
    if not Path("/proc/self/statm").exists():
        print("error: the process's size is read from /proc, which is not here", file=sys.stderr)
        sys.exit(2)
    if options.interpret:
        # Triton looks at it when a kernel is defined, at the first use of one.
        os.environ["TRITON_INTERPRET"] = "1"
    with device(options.interpret):
        meters = soak(options)
    grown = False
    for meter in meters:
        for where, growth in zip(("in host memory", "on GPUs"), meter.growth(), strict=True):
            if growth > options.bound * 2**20:
                grown = True
                print(
                    f"error: {growth / 2**20:.1f} MB more {where} over the second half of the "
                    f"{meter.what}; the bound is {options.bound:g} MB",
                    file=sys.stderr,
                )
    if grown:
        sys.exit(1)
    print(f"memory is flat, within {options.bound:g} MB")


if __name__ == "__main__":
    main()
