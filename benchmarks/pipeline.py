"""Sample, fetch and train: time a mini-batch, split by stage, and peak memory.

    python benchmarks/pipeline.py

Features are 100 float32 a node. Each repetition measures in turn: the stages one by one on the
calling thread, the gather beside a plain copy of as many bytes, the loader with 0, 1 and 2 worker
threads, and a slice of a training epoch (3-layer GraphSAGE, hidden 256, no dropout; fanouts 15,
10, 5 from the seeds outwards). Figures are medians over the repetitions.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import time
from collections import defaultdict
from itertools import islice
from pathlib import Path

import numpy as np
import torch

import hopline.pipes as hp
from hopline.models.sage import SAGE

sys.path.insert(0, str(Path(__file__).parent))
from graphs import add_graph_options, products_graph

CLASSES = 47


def peak_megabytes() -> float:
    """The process's largest resident size so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def chains(
    options: argparse.Namespace, graph: hp.FusedCSCSamplingGraph, store: hp.BasicFeatureStore
) -> tuple[hp.Stage, hp.Stage]:
    """Sample + fetch with [10, 10, 10]; the training chain with [15, 10, 5] from the seeds on."""
    generator = torch.Generator().manual_seed(1)
    train = torch.randperm(graph.total_num_nodes, generator=generator)[:196_615]
    labels = torch.randint(0, CLASSES, (len(train),), generator=generator)
    items = hp.ItemSet((train, labels), names=("seeds", "labels"))
    sampler = hp.ItemSampler(items, options.batch_size, shuffle=True, seed=1)
    fetch = sampler.sample_neighbor(graph, [10, 10, 10]).fetch_feature(store, ["feat"])
    training = sampler.sample_neighbor(graph, [5, 10, 15]).fetch_feature(store, ["feat"])
    return fetch, training


def by_stage(chain: hp.Stage, epoch: int, batches: int) -> dict[str, float]:
    """Milliseconds a mini-batch of each stage, one after another on this thread."""
    source, stages = chain.parts()
    spent: dict[str, float] = defaultdict(float)
    for i in range(batches):
        start = time.perf_counter()
        minibatch = source.batch(epoch, i)
        spent["items"] += time.perf_counter() - start
        for stage in stages:
            start = time.perf_counter()
            minibatch = stage(minibatch)
            spent[type(stage).__name__] += time.perf_counter() - start
    return {name: seconds / batches * 1e3 for name, seconds in spent.items()}


def copy_milliseconds(shape: tuple[int, int]) -> float:
    """A plain copy of as many bytes as the gather moves, both sides warm."""
    source, target = torch.ones(shape), torch.ones(shape)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    start = time.perf_counter()
    target.copy_(source)
    seconds = time.perf_counter() - start
    torch.set_num_threads(threads)
    return seconds * 1e3


def loader_milliseconds(chain: hp.Stage, workers: int, batches: int) -> float:
    """Milliseconds a mini-batch as a reader of the loader sees them."""
    with hp.DataLoader(chain, num_workers=workers) as loader:
        reader = iter(loader)
        # As many as are in flight: from then on buffers are used again.
        for _ in islice(reader, 2 * workers + 3):
            pass
        start = time.perf_counter()
        for _ in islice(reader, batches):
            pass
        return (time.perf_counter() - start) / batches * 1e3


def training_milliseconds(chain: hp.Stage, workers: int, batches: int) -> tuple[float, float]:
    """Milliseconds a step in all, and of waiting for the mini-batch."""
    torch.manual_seed(0)
    model = SAGE(100, 256, CLASSES, num_layers=3, dropout=0.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    waited = 0.0
    with hp.DataLoader(chain, num_workers=workers) as loader:
        reader = iter(loader)
        for number in range(batches + 2):
            if number == 2:
                start, waited = time.perf_counter(), 0.0
            before = time.perf_counter()
            minibatch = next(reader)
            waited += time.perf_counter() - before
            scores = model(minibatch.blocks, minibatch.node_features["feat"])
            loss = torch.nn.functional.cross_entropy(scores, minibatch.labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return (time.perf_counter() - start) / batches * 1e3, waited / batches * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_graph_options(parser)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--train-batches", type=int, default=10)
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()
    graph = products_graph(options)
    # In NumPy's memory, where data sets with in_memory: true have them.
    features = torch.from_numpy(np.empty((graph.total_num_nodes, 100), np.float32))
    features.normal_(generator=torch.Generator().manual_seed(2))
    store = hp.BasicFeatureStore({("node", None, "feat"): hp.TorchBasedFeature(features)})
    fetch, training = chains(options, graph, store)
    print(f"{graph}, batch {options.batch_size}; peak after loading {peak_megabytes():,.0f} MB")
    by_stage(fetch, 0, 2)  # compiles
    figures: dict[str, list[float]] = defaultdict(list)
    for repetition in range(1, options.repetitions + 1):
        for name, value in by_stage(fetch, repetition, options.batches).items():
            figures[f"[10,10,10] {name}"].append(value)
        minibatch = next(iter(fetch))
        shape = tuple(minibatch.node_features["feat"].shape)
        figures["[10,10,10] plain copy of as many bytes"].append(copy_milliseconds(shape))
        del minibatch
        for workers in (0, 1, 2):
            name = f"[10,10,10] sample + fetch, loader with {workers} workers"
            figures[name].append(loader_milliseconds(fetch, workers, options.batches))
    for name in figures:
        print(f"{name}: {statistics.median(figures[name]):.1f} ms a mini-batch")
    gather, copy = (
        figures["[10,10,10] FeatureFetcher"],
        figures["[10,10,10] plain copy of as many bytes"],
    )
    ratios = [a / b for a, b in zip(gather, copy, strict=True)]
    print(f"gather over plain copy: {statistics.median(ratios):.2f}")
    print(f"peak memory, sample + fetch: {peak_megabytes():,.0f} MB")
    for workers in (0, 1):
        steps = [
            training_milliseconds(training, workers, options.train_batches)
            for _ in range(options.repetitions)
        ]
        total, waited = (statistics.median(column) for column in zip(*steps, strict=True))
        print(
            f"[15,10,5] training step, loader with {workers} workers: {total:.0f} ms, of which "
            f"{waited:.0f} ms wait for the mini-batch"
        )
    for name, value in by_stage(training, 1, options.batches).items():
        print(f"[15,10,5] {name}: {value:.1f} ms a mini-batch")
    print(f"peak memory, training: {peak_megabytes():,.0f} MB")


if __name__ == "__main__":
    main()
