"""Sampling and relabelling, on one thread and on two, beside the bare memory traffic it needs.

    python benchmarks/sampling.py

Prints, for each number of threads, sampled and relabelled edges a second (median of repetitions,
taken in turn), and the ratio of one mini-batch's time to that of its bare memory traffic: reading
as many random positions of `indices` and of the node table, and writing the outputs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from pathlib import Path

import numpy as np
import torch
from numba import njit

import hopline.pipes as hp

sys.path.insert(0, str(Path(__file__).parent))
from graphs import add_graph_options, products_graph


@njit(nogil=True)
def bare_traffic(indices, table, positions, neighbors, local):  # type: ignore[no-untyped-def]
    """Random reads of two arrays, all addresses known beforehand, and the outputs' writes."""
    for e in range(len(positions)):
        neighbors[e] = indices[positions[e]]
    for e in range(len(positions)):
        local[e] = table[neighbors[e]]


class Samples:
    """One epoch's mini-batches, made by any number of threads."""

    def __init__(self, options: argparse.Namespace, graph: hp.FusedCSCSamplingGraph) -> None:
        train = torch.randperm(
            graph.total_num_nodes, generator=torch.Generator().manual_seed(1), dtype=torch.int64
        )[:196_615]
        self.chain = hp.ItemSampler(
            hp.ItemSet(train, names="seeds"), options.batch_size, shuffle=True, seed=1
        ).sample_neighbor(graph, options.fanout)

    def run(self, threads: int, batches: int, epoch: int) -> tuple[float, int, int]:
        """Seconds, edges and nodes for so many mini-batches a thread."""
        source, stages = self.chain.parts()
        edges, nodes = [0] * threads, [0] * threads
        barrier = threading.Barrier(threads + 1)

        def work(thread: int) -> None:
            barrier.wait()
            for i in range(batches):
                minibatch = source.batch(epoch, thread * batches + i)
                for stage in stages:
                    minibatch = stage(minibatch)
                edges[thread] += sum(len(s.original_edge_ids) for s in minibatch.sampled_subgraphs)
                nodes[thread] += len(minibatch.input_nodes)
            barrier.wait()

        workers = [threading.Thread(target=work, args=(t,)) for t in range(threads)]
        for worker in workers:
            worker.start()
        barrier.wait()
        start = time.perf_counter()
        barrier.wait()
        seconds = time.perf_counter() - start
        for worker in workers:
            worker.join()
        return seconds, sum(edges), sum(nodes)


def bare(graph: hp.FusedCSCSamplingGraph, chain: hp.Stage, epoch: int, batches: int) -> float:
    """Seconds of the bare memory traffic of one mini-batch, the mean of several."""
    source, stages = chain.parts()
    indices = graph.indices.numpy()
    table = np.zeros(graph.total_num_nodes, np.int32)
    total = 0.0
    for i in range(batches):
        minibatch = stages[0](source.batch(epoch, i))
        for subgraph in minibatch.sampled_subgraphs:
            positions = subgraph.original_edge_ids.numpy()
            neighbors = np.empty(len(positions), indices.dtype)
            local = np.empty(len(positions), np.int32)
            start = time.perf_counter()
            bare_traffic(indices, table, positions, neighbors, local)
            total += time.perf_counter() - start
    return total / batches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_graph_options(parser)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument(
        "--fanout", type=lambda s: [int(x) for x in s.split(",")], default=[10, 10, 10]
    )
    parser.add_argument(
        "--batches", type=int, default=20, help="mini-batches a repetition and thread"
    )
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args()
    graph = products_graph(options)
    print(f"{graph}, batch {options.batch_size}, fanout {options.fanout}")
    samples = Samples(options, graph)
    samples.run(2, 2, 0)  # compiles, and makes both threads' tables
    bare(graph, samples.chain, 0, 1)
    one, two, limit, size = [], [], [], []
    for repetition in range(1, options.repetitions + 1):
        seconds, edges, nodes = samples.run(1, options.batches, repetition)
        one.append(edges / seconds)
        size.append((edges / options.batches, nodes / options.batches, seconds / options.batches))
        limit.append(bare(graph, samples.chain, repetition, 3))
        seconds, edges, _ = samples.run(2, options.batches, repetition)
        two.append(edges / seconds)
    edges, nodes, seconds = (statistics.median(column) for column in zip(*size, strict=True))
    print(f"a mini-batch: {edges:,.0f} edges, {nodes:,.0f} nodes")
    for name, rates in (("one thread", one), ("two threads", two)):
        print(
            f"{name}: {statistics.median(rates) / 1e6:.1f} M edges/s "
            f"(lowest {min(rates) / 1e6:.1f}, highest {max(rates) / 1e6:.1f})"
        )
    ratios = [b / a for a, b in zip(one, two, strict=True)]
    print(f"two threads over one: {statistics.median(ratios):.2f}")
    bare_seconds = statistics.median(limit)
    print(
        f"one thread: {seconds * 1e3:.1f} ms a mini-batch; its bare memory traffic "
        f"{bare_seconds * 1e3:.1f} ms; ratio {seconds / bare_seconds:.2f}"
    )


if __name__ == "__main__":
    main()
