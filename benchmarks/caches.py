"""Feature caches: hit rates of every policy, and what a look-up costs.

    python benchmarks/caches.py

Prints, for two traces and several sizes of the cache, as shares of all rows, the share of requested
rows that were in the cache (hit rate) for each policy. The traces are:

- Zipf(1.0): the key of rank r is asked for in proportion to 1 / r.
- Epoch: `input_nodes` of the mini-batches of one epoch of neighbour sampling, on a graph whose
  degrees follow a power law. Here also a static cache, of the sources of most edges, and of the
  nodes that other mini-batches ask for most.

Then, on the epoch and with a cache for a tenth of the rows, the time of the policy's look-up a key,
and rows/s read through a `CPUCachedFeature`, beside plain reads of the same rows from memory.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

import hopline.pipes as hp
from hopline.pipes.features.policies import CacheIndex

sys.path.insert(0, str(Path(__file__).parent))
from graphs import power_law_graph

EVICTING = ("sieve", "s3-fifo", "lru", "clock")


def zipf_trace(keys: int, requests: int, batch: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    weights = 1 / np.arange(1, keys + 1)
    ranks = rng.choice(keys, requests, p=weights / weights.sum())
    return np.array_split(rng.permutation(keys)[ranks], requests // batch)


def epoch_chain(
    options: argparse.Namespace, graph: hp.FusedCSCSamplingGraph, seed: int
) -> hp.Stage:
    train = torch.randperm(options.nodes, generator=torch.Generator().manual_seed(1))
    items = hp.ItemSet(train[: options.nodes // 10], names="seeds")
    sampler = hp.ItemSampler(items, options.batch_size, shuffle=True, seed=seed)
    return sampler.sample_neighbor(graph, options.fanout)


def run(
    trace: Sequence[np.ndarray], capacity: int, policy: str, hot: np.ndarray | None = None
) -> tuple[float, float]:
    """Hit rate, and seconds a key."""
    index = CacheIndex(capacity, policy, hot)
    seconds = 0.0
    for ids in trace:
        start = time.perf_counter()
        request = index.request(ids, 0)
        seconds += time.perf_counter() - start
        index.settle(ids, request.missing, 0, request.call)
    return 1 - index.miss_rate, seconds / index.requests


def print_rates(
    title: str, trace: Sequence[np.ndarray], keys: int, hot: dict[str, np.ndarray]
) -> None:
    print(f"\n{title}: {sum(map(len, trace)):,} requests of {keys:,} rows; hit rates in %")
    print(f"{'cache':>8}" + "".join(f"{name:>16}" for name in (*EVICTING, *hot)))
    for share in (0.01, 0.02, 0.05, 0.1, 0.2):
        capacity = int(keys * share)
        rates = [run(trace, capacity, policy)[0] for policy in EVICTING]
        rates += [run(trace, capacity, "static", ids[:capacity])[0] for ids in hot.values()]
        print(f"{share:>8.0%}" + "".join(f"{100 * rate:>16.2f}" for rate in rates))


def print_times(options: argparse.Namespace, trace: Sequence[np.ndarray]) -> None:
    print("\na tenth of the rows in the cache")
    slow = hp.TorchBasedFeature(torch.zeros(options.nodes, options.columns))
    row_bytes = 4 * options.columns
    ids = [torch.from_numpy(keys) for keys in trace]
    rows = sum(map(len, ids))

    def rate(feature: hp.Feature) -> float:
        times = []
        for _ in range(3):
            start = time.perf_counter()
            for part in ids:
                feature.read(part)
            times.append(time.perf_counter() - start)
        return rows / statistics.median(times)

    print(f"plain reads from memory: {rate(slow) / 1e6:.2f} M rows/s of {row_bytes} bytes")
    for policy in EVICTING:
        nanoseconds = 1e9 * run(trace, options.nodes // 10, policy)[1]
        feature = hp.cpu_cached_feature(slow, options.nodes // 10 * row_bytes, policy)
        print(
            f"{policy:>8}: look-up {nanoseconds:.0f} ns a key; "
            f"{rate(feature) / 1e6:.2f} M rows/s, hit rate {1 - feature.miss_rate:.1%}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=500_000)
    parser.add_argument("--edges", type=int, default=10_000_000)
    parser.add_argument("--columns", type=int, default=100, help="float32 columns of the feature")
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--fanout", type=lambda s: [int(x) for x in s.split(",")], default=[10, 10])
    options = parser.parse_args()
    trace = zipf_trace(options.nodes, 4 * options.nodes, 4096)
    run(trace[:2], 100, "s3-fifo")  # compiles
    print_rates("Zipf(1.0)", trace, options.nodes, {})
    graph = power_law_graph(options.nodes, options.edges)
    chain = epoch_chain(options, graph, seed=1)
    trace = [minibatch.input_nodes.numpy().astype(np.int64) for minibatch in chain]
    other = epoch_chain(options, graph, seed=2)
    hot = {
        "by degree": hp.hot_set_by_degree(graph, options.nodes // 5).numpy(),
        "by presampling": hp.hot_set_by_presampling(other, options.nodes // 5, len(chain)).numpy(),
    }
    print_rates(f"Epoch, fanout {options.fanout}", trace, options.nodes, hot)
    print_times(options, trace)


if __name__ == "__main__":
    main()
