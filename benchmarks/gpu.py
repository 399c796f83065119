"""Sampling, fetching and training with a GPU: every placement of graph and features, in one run.

    python benchmarks/gpu.py
    python benchmarks/gpu.py --interpret    # the same script, small, with interpreted kernels

Milliseconds a mini-batch, median and range over the repetitions, which measure all placements in
turn, on the same mini-batches. `sample` and `fetch` run on one thread and one stream; `train` is a
whole step: once like that, once with loader threads. What a stage moves is set against a plain copy
measured in the same run: on the device where data is there, from page-locked memory to the device
where it is not. Only bytes that must move are counted: 4 of a read of an index that costs 32.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch

import hopline.pipes as hp
from hopline.models.sage import SAGE

sys.path.insert(0, str(Path(__file__).parent))
from graphs import EDGES, NODES, power_law_on

CLASSES = 47
TRAIN_NODES = 196_615
# Where graph and features are; rows cached on the GPU; edges cached on the GPU.
PLACEMENTS = (
    ("cpu-cuda", False, False),
    ("cpu-cuda", True, False),
    ("pinned-cuda", False, False),
    ("pinned-cuda", True, False),
    ("pinned-cuda", True, True),
    ("cuda-cuda", False, False),
    ("cuda-cuda", True, False),
)
SMALL = {"nodes": 300, "edges": 3000, "columns": 8, "batch_size": 8, "fanout": [3, 2],
         "hidden": 8, "batches": 1, "repetitions": 1, "workers": 1,
         "copy_bytes": 1 << 16}  # fmt: skip


@dataclass
class Placement:
    """One way to set up the chain, and what was measured of it."""

    name: str
    mode: str
    sample: Any
    fetch: Any
    store: hp.BasicFeatureStore
    cache: Any = None
    times: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))


class Machine:
    """The device, its clock, and what it can copy."""

    def __init__(self, device: torch.device, copy_bytes: int) -> None:
        self.device = device
        self.copy_bytes = copy_bytes

    def synchronize(self) -> None:
        """Waits for what has been queued."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def milliseconds(self, work: Callable[[], None]) -> float:
        """From when the device is idle until all that `work` queues on this stream is done."""
        self.synchronize()
        if self.device.type != "cuda":
            begin = time.perf_counter()
            work()
            return (time.perf_counter() - begin) * 1e3
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        return start.elapsed_time(end)

    def copy_rates(self) -> tuple[float, float]:
        """Bytes a second: read and written by a copy on the device, and copied to it from the host.

        From page-locked memory, where there is a GPU.
        """
        source = torch.ones(self.copy_bytes, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        host = torch.ones(self.copy_bytes, dtype=torch.uint8, pin_memory=self.device.type == "cuda")
        rates = []
        for origin, moved in ((source, 2), (host, 1)):
            target.copy_(origin, non_blocking=True)
            spent = [
                self.milliseconds(lambda: target.copy_(origin, non_blocking=True))  # noqa: B023
                for _ in range(10)
            ]
            rates.append(moved * self.copy_bytes / statistics.median(spent) * 1e3)
        return rates[0], rates[1]


def placements(options: argparse.Namespace, machine: Machine) -> list[Placement]:
    """All of them, over one graph, one set of features and one order of items."""
    device = machine.device
    begin = time.perf_counter()
    indptr, indices = power_law_on(device, options.nodes, options.edges)
    generator = torch.Generator(device).manual_seed(1)
    rows = torch.randn(options.nodes, options.columns, generator=generator, device=device)
    train = torch.randperm(options.nodes, generator=generator, device=device)[:TRAIN_NODES].cpu()
    labels = train % CLASSES
    sampler = hp.ItemSampler(
        hp.ItemSet((train, labels), ("seeds", "labels")), options.batch_size, shuffle=True, seed=1
    )
    found = []
    graphs: dict[str, Any] = {}
    for mode, cached_rows, cached_edges in PLACEMENTS:
        where = device if mode == "cuda-cuda" else torch.device("cpu")
        if mode not in graphs:
            graph = hp.fused_csc_sampling_graph(indptr.cpu().clone(), indices.cpu().clone())
            feature: Any = hp.TorchBasedFeature(rows.to(where, copy=True))
            if mode == "pinned-cuda" and device.type == "cuda":
                graph, feature = graph.pin_memory_(), feature.pin_memory_()
            graphs[mode] = graph.to(where) if mode == "cuda-cuda" else graph, feature
        graph, feature = graphs[mode]
        cache = None
        if cached_rows:
            size = int(options.cached_share * options.nodes) * options.columns * 4
            feature = cache = hp.gpu_cached_feature(feature, size, device=device)
        store = hp.BasicFeatureStore({("node", None, "feat"): feature})
        edges = int(options.cached_share * len(indices)) if cached_edges else 0
        chain = sampler if mode == "cpu-cuda" else sampler.copy_to(device)
        sample = chain.sample_neighbor(graph, options.fanout, num_gpu_cached_edges=edges)
        fetch = sample.fetch_feature(store, ["feat"]).copy_to(device)
        name = mode + ", rows" * cached_rows + " and edges" * cached_edges + " cached" * cached_rows
        found.append(Placement(name, mode, sample, fetch, store, cache))
    machine.synchronize()
    print(
        f"{options.nodes:,} nodes, {len(indices):,} edges, {options.columns} columns: made in "
        f"{time.perf_counter() - begin:.1f} s",
        flush=True,
    )
    return found


def minibatches(chain: Any, epoch: int, count: int) -> Any:
    """Mini-batches 0 to count - 1 of an epoch, one after another on this thread and stream."""
    source, stages = chain.parts()
    for i in range(count):
        minibatch = source.batch(epoch, i % len(source))
        for stage in stages:
            minibatch = stage(minibatch)
        yield minibatch


def size_of(minibatch: hp.MiniBatch) -> tuple[int, int]:
    """Edges and input nodes."""
    hops: Any = minibatch.sampled_subgraphs
    return sum(len(hop.sampled_csc.indices) for hop in hops), len(minibatch.input_nodes)


def sampling_bytes(minibatch: hp.MiniBatch, index_bytes: int) -> tuple[int, int]:
    """What sampling must read of the graph, and what it must write."""
    read = written = 0
    hops: Any = minibatch.sampled_subgraphs
    for hop in hops:
        csc = hop.sampled_csc
        read += (len(csc.indptr) - 1) * 16 + len(csc.indices) * index_bytes
        parts = (csc.indptr, csc.indices, hop.original_row_node_ids, hop.original_edge_ids)
        written += sum(part.nbytes for part in parts)
    return read, written


class Trainer:
    """GraphSAGE, and a step of it."""

    def __init__(self, options: argparse.Namespace, device: torch.device) -> None:
        torch.manual_seed(0)
        sizes = options.columns, options.hidden, CLASSES
        self.model = SAGE(*sizes, num_layers=len(options.fanout)).to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)

    def step(self, minibatch: hp.MiniBatch) -> None:
        """Forward, backward, update."""
        scores = self.model(minibatch.blocks, minibatch.node_features["feat"])
        loss = torch.nn.functional.cross_entropy(scores, minibatch.labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def measure(
    options: argparse.Namespace, machine: Machine, place: Placement, trainer: Trainer, epoch: int
) -> tuple[int, int]:
    """One repetition of one placement; edges and nodes of its mini-batches."""
    count, sizes = options.batches, []

    def sample() -> None:
        sizes.extend(size_of(minibatch) for minibatch in minibatches(place.sample, epoch, count))

    def fetch() -> None:
        for _ in minibatches(place.fetch, epoch, count):
            pass

    def train() -> None:
        for minibatch in minibatches(place.fetch, epoch, count):
            trainer.step(minibatch)

    for name, work in (("sample", sample), ("sample + fetch", fetch), ("train", train)):
        place.times[name].append(machine.milliseconds(work) / count)
    with hp.DataLoader(place.fetch, num_workers=options.workers) as loader:
        reader = iter(loader)
        for minibatch in islice(reader, options.workers + 2):
            trainer.step(minibatch)

        def overlapped() -> None:
            for minibatch in islice(reader, count):
                trainer.step(minibatch)

        spent = machine.milliseconds(overlapped)
        place.times[f"train, {options.workers} workers"].append(spent / count)
    return sum(edges for edges, _ in sizes), sum(nodes for _, nodes in sizes)


def gather(machine: Machine, place: Placement, inputs: list[torch.Tensor]) -> float:
    """Milliseconds a read of features for the input nodes of a mini-batch."""

    def read() -> None:
        for ids in inputs:
            place.store.read("node", None, "feat", ids)

    read()
    return machine.milliseconds(read) / len(inputs)


def told(values: list[float]) -> str:
    return f"{statistics.median(values):8.2f} ({min(values):.2f}-{max(values):.2f})"


def report(
    options: argparse.Namespace,
    machine: Machine,
    places: list[Placement],
    trainer: Trainer,
    rates: list[tuple[float, float]],
) -> None:
    """The tables."""
    copy, bus = (statistics.median(column) for column in zip(*rates, strict=True))
    print(f"copy on the device {copy / 1e9:.1f} GB/s, host to device {bus / 1e9:.1f} GB/s")
    print("ms a mini-batch: " + " | ".join(["placement", *places[0].times]))
    for place in places:
        cells = [told(values) for values in place.times.values()]
        rate = "" if place.cache is None else f" | miss rate {place.cache.miss_rate:.3f}"
        print(f"{place.name:38} | " + " | ".join(cells) + rate)

    samples = list(minibatches(places[-1].fetch, 0, min(options.batches, 10)))
    held = samples[0]
    trainer.step(held)
    alone = [machine.milliseconds(lambda: trainer.step(held)) for _ in range(options.batches)]
    print(f"{'the model alone':38} | {told(alone)}")
    inputs = [minibatch.input_nodes for minibatch in samples]
    row = options.columns * 4
    fetched = sum(map(len, inputs)) / len(inputs) * row
    bytes_ = [sampling_bytes(minibatch, 4) for minibatch in samples]
    read, written = (sum(column) / len(samples) for column in zip(*bytes_, strict=True))
    for place in places:
        if place.cache is not None or place.mode == "cpu-cuda":
            continue
        on_device = place.mode == "cuda-cuda"
        what, rate = ("a copy on the device", copy) if on_device else ("a copy to the device", bus)
        sampled = (read + written if on_device else read) / statistics.median(place.times["sample"])
        spent = gather(machine, place, inputs)
        gathered = (2 if on_device else 1) * fetched / spent
        for name, moved in (("sampling", sampled), (f"gathering ({spent:.2f} ms)", gathered)):
            share = moved * 1e3 / rate
            print(f"{place.mode}: {name} {moved / 1e6:.1f} GB/s, {share:.0%} of {what}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in (("nodes", NODES), ("edges", EDGES), ("columns", 100), ("batch-size", 1024),
                        ("hidden", 256), ("batches", 20), ("repetitions", 5), ("workers", 4),
                        ("copy-bytes", 1 << 29)):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, help=f"by default {value}")
        parser.set_defaults(**{name.replace("-", "_"): None})
        SIZES[name.replace("-", "_")] = value
    parser.add_argument("--fanout", type=lambda text: [int(part) for part in text.split(",")])
    parser.add_argument("--cached-share", type=float, default=0.25, help="of rows and of edges")
    parser.add_argument("--minutes", type=float, default=7.0, help="begin no repetition after that")
    parser.add_argument("--interpret", action="store_true", help="on the CPU, by interpreted "
                        "kernels, at a small size")  # fmt: skip
    options = parser.parse_args()
    for name, value in (SMALL if options.interpret else SIZES).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


SIZES: dict[str, Any] = {"fanout": [10, 10, 10]}


def main() -> None:
    begin = time.perf_counter()
    options = parse()
    if not options.interpret and not torch.cuda.is_available():
        print(
            "error: this needs a GPU, and torch finds none here; --interpret runs it on the CPU, "
            "at a small size",
            file=sys.stderr,
        )
        sys.exit(2)
    stand_in: Any = contextlib.nullcontext()
    if options.interpret:
        os.environ["TRITON_INTERPRET"] = "1"  # before the first import of Triton
        from hopline.pipes.kernels.dispatch import interpreted_device

        stand_in = interpreted_device()
    device = torch.device("cpu" if options.interpret else "cuda")
    with stand_in:
        run(options, Machine(device, options.copy_bytes), begin)


def run(options: argparse.Namespace, machine: Machine, begin: float) -> None:
    """Measures and prints."""
    device = machine.device
    named = torch.cuda.get_device_name() if device.type == "cuda" else "interpreted kernels"
    print(f"{named}, torch {torch.__version__}; batch {options.batch_size}, fanout "
          f"{options.fanout}, hidden {options.hidden}", flush=True)  # fmt: skip
    places, trainer = placements(options, machine), Trainer(options, device)
    for place in places:  # compiles, and fills caches
        for minibatch in minibatches(place.fetch, 0, 1 if options.interpret else 5):
            trainer.step(minibatch)
    print(f"warm after {time.perf_counter() - begin:.0f} s", flush=True)
    rates = []
    for repetition in range(1, options.repetitions + 1):
        if repetition > 1 and time.perf_counter() - begin > options.minutes * 60:
            print(f"{options.minutes:g} minutes are over: {repetition - 1} repetitions")
            break
        rates.append(machine.copy_rates())
        sizes = {p.name: measure(options, machine, p, trainer, repetition) for p in places}
        if len(set(sizes.values())) > 1:
            print(f"error: placements gave different mini-batches: {sizes}", file=sys.stderr)
            sys.exit(1)
        if repetition == 1:
            edges, nodes = (total / options.batches for total in sizes[places[0].name])
            print(f"a mini-batch, in all placements: {edges:,.0f} edges, {nodes:,.0f} nodes",
                  flush=True)  # fmt: skip
    report(options, machine, places, trainer, rates)


if __name__ == "__main__":
    main()
