"""Sampling and fetching over parts: time, bytes between ranks, and what they must be at least.

    python benchmarks/distributed.py

A graph with planted groups, cut by each method, on ranks of this machine that talk over loopback.
Each rank reads mini-batches of its share, first over the whole graph, then over its part, with
features of 100 float32. Shares are those of an epoch's global order, in which a rank's seeds are of
all parts, and those of `node_split`, which are of its own. The least bytes are ids out, and picks,
edge ids and rows back, of what a rank has not itself. With hot rows, those of other ranks that are
read most, by pre-sampling, are kept.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
import warnings
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import hopline.pipes as hp
from hopline.models import launch
from hopline.partition import DistDataset, node_split, partition_graph

EDGE_ID_BYTES = 8


def planted(nodes: int, edges: int, group: int, inside: float) -> hp.FusedCSCSamplingGraph:
    """A graph in which a share of the edges stays inside groups; ids are shuffled."""
    rng = np.random.default_rng(0)
    names = rng.permutation(nodes)
    source = rng.integers(0, nodes, edges)
    near = source // group * group + rng.integers(0, group, edges)
    column = np.where(rng.random(edges) < inside, np.minimum(near, nodes - 1),
                      rng.integers(0, nodes, edges))  # fmt: skip
    return hp.from_coo(
        torch.from_numpy(names[source]), torch.from_numpy(names[column]), num_nodes=nodes
    )


def store_of(nodes: int) -> hp.BasicFeatureStore:
    rows = torch.randn(nodes, 100, generator=torch.Generator().manual_seed(0))
    return hp.BasicFeatureStore({("node", None, "feat"): hp.TorchBasedFeature(rows)})


def sampled(options: Any, graph: Any, rank: int, ranks: int, local: bool) -> hp.Stage:
    """A rank's mini-batches: of the epoch's global order, or of its own part's nodes."""
    if local:
        mask = torch.ones(options.nodes, dtype=torch.bool)
        seeds = node_split(mask, graph, batch_size=options.batch_size)
        sampler = hp.ItemSampler(
            hp.ItemSet(seeds, names="seeds"), options.batch_size, shuffle=True, seed=1 + rank
        )
    else:
        sampler = hp.DistributedItemSampler(
            hp.ItemSet(options.nodes, names="seeds"), options.batch_size, shuffle=True, seed=1,
            num_replicas=ranks, rank=rank,
        )  # fmt: skip
    return sampler.sample_neighbor(graph, options.fanout)


def milliseconds(made: hp.Stage, options: Any) -> float:
    """Of a mini-batch, as a reader of the loader sees it; ranks begin together."""
    with hp.DataLoader(made, num_workers=options.workers) as loader:
        reader = iter(loader)
        for _ in islice(reader, 5):
            pass
        dist.barrier()
        start = time.perf_counter()
        for _ in islice(reader, options.batches):
            pass
        return (time.perf_counter() - start) / options.batches * 1e3


def least_bytes(minibatch: hp.MiniBatch, graph: Any) -> tuple[int, int, int]:
    """(least bytes, nodes of other parts, all nodes) of a mini-batch."""
    width = graph.id_dtype.itemsize
    owned = [graph.book.node_range(part) for part in graph.parts]

    def away(ids: torch.Tensor) -> torch.Tensor:
        here = torch.zeros(len(ids), dtype=torch.bool)
        for own in owned:
            here |= (ids >= own.start) & (ids < own.stop)
        return ~here

    total = 0
    for hop in minibatch.sampled_subgraphs:
        remote = away(hop.original_column_node_ids)
        picks = int(torch.diff(hop.sampled_csc.indptr)[remote].sum())
        total += int(remote.sum()) * width + picks * (width + EDGE_ID_BYTES)
    remote_nodes = int(away(minibatch.input_nodes).sum())
    return total + remote_nodes * (width + 400), remote_nodes, len(minibatch.input_nodes)


def run_rank(rank: int, ranks: int, device: Any, options: Any, folder: str, found: str) -> None:
    torch.set_num_threads(1)
    graph = hp.FusedCSCSamplingGraph.load(Path(folder).parent / "graph")
    whole = sampled(options, graph, rank, ranks, False)
    whole = whole.fetch_feature(store_of(options.nodes), ["feat"])
    figures: dict[str, float] = {"whole graph, ms": milliseconds(whole, options)}
    for local, order in ((False, "global order"), (True, "node_split")):
        with DistDataset(folder) as dataset:
            samples = sampled(options, dataset.graph, rank, ranks, local)
            made = samples.fetch_feature(dataset.feature, ["feat"])
            figures[f"{order}, ms"] = milliseconds(made, options)
            figures |= traffic(made, dataset, options, ranks, order)
            hot = dataset.feature.cache_hot_rows(samples, options.cache_bytes)
            figures[f"{order}, hot rows"] = hot
            figures[f"{order}, hot rows, ms"] = milliseconds(made, options)
            with_hot = traffic(made, dataset, options, ranks, order)
            sent = f"{order}, MB sent a mini-batch"
            figures[f"{order}, hot rows, MB sent a mini-batch"] = with_hot[sent]
    if rank == 0:
        Path(found).write_text("\n".join(f"{name}\t{value}" for name, value in figures.items()))


def traffic(
    made: hp.Stage, dataset: DistDataset, options: Any, ranks: int, order: str
) -> dict[str, float]:
    """Bytes of a mini-batch, on all ranks together."""
    before = dataset.graph.exchange.bytes_sent
    counts = np.array([least_bytes(m, dataset.graph) for m in islice(made, options.batches)])
    dist.barrier()
    sent = torch.tensor([dataset.graph.exchange.bytes_sent - before], dtype=torch.float64)
    totals = torch.from_numpy(counts.sum(axis=0)).double()
    dist.all_reduce(sent)
    dist.all_reduce(totals)
    return {
        f"{order}, MB sent a mini-batch": sent.item() / ranks / options.batches / 1e6,
        f"{order}, sent over least": sent.item() / max(1.0, totals[0].item()),
        f"{order}, remote input nodes, %": 100 * totals[1].item() / totals[2].item(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=400_000)
    parser.add_argument("--edges", type=int, default=8_000_000)
    parser.add_argument("--group", type=int, default=2000, help="nodes of a planted group")
    parser.add_argument("--inside", type=float, default=0.8, help="share of edges inside groups")
    parser.add_argument("--ranks", type=lambda s: [int(n) for n in s.split(",")], default=[2, 4])
    parser.add_argument("--methods", default="metis,ldg,random")
    parser.add_argument("--fanout", type=lambda s: [int(n) for n in s.split(",")], default=[10, 10])
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--cache-bytes", type=int, default=16 << 20)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="hopline-distributed-"))
    try:
        graph = planted(options.nodes, options.edges, options.group, options.inside)
        graph.save(folder / "graph")
        data = type("Data", (), {})()
        data.graph, data.feature, data.tasks = graph, store_of(options.nodes), []
        print(f"{graph}, batch {options.batch_size}, fanout {options.fanout}")
        for ranks in options.ranks:
            for method in options.methods.split(","):
                parts = folder / f"{method}-{ranks}"
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    partition_graph(data, "planted", ranks, parts, part_method=method)
                found = folder / "found"
                launch(run_rank, ranks, options, str(parts), str(found), timeout=300)
                print(f"{ranks} ranks, {method}")
                for line in found.read_text().splitlines():
                    name, value = line.split("\t")
                    print(f"    {name:44}{float(value):10.2f}", flush=True)
                shutil.rmtree(parts)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
