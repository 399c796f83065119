"""What runs beside what: a trace of sampling, fetching, copying and training, and their overlap.

    python benchmarks/timeline.py --out trace.json
    python benchmarks/timeline.py --mode pinned-cuda --out trace.json

Open the trace in chrome://tracing or https://ui.perfetto.dev. The shares are computed from it: of
the time in which some thread (on a GPU: some stream) was sampling, fetching or copying, the part in
which a training step ran. Without workers it is 0; the rest is what training waits for.

Modes are those of the examples: where graph and features are, and where to train.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, record_function

import hopline.pipes as hp
from hopline.models.sage import SAGE

sys.path.insert(0, str(Path(__file__).parent))
from graphs import power_law_graph

MODES = ("cpu-cpu", "cpu-cuda", "pinned-cuda", "cuda-cuda")
STAGES = ("sampling", "fetching", "copying")
TRAINING = "training"
CLASSES = 47
# Categories of ranges in a trace: times of the host, and of the work that it queued meanwhile.
HOST, DEVICE = "user_annotation", "gpu_user_annotation"

Span = tuple[float, float]


def marked(kind: type[hp.Stage], label: str) -> type[hp.Stage]:
    """The stage, with a range of that name around its work."""

    class Marked(kind):  # type: ignore[misc, valid-type]
        def __call__(self, minibatch: hp.MiniBatch) -> hp.MiniBatch:
            with record_function(label):
                result: hp.MiniBatch = super().__call__(minibatch)
            return result

    return Marked


def make_chain(options: argparse.Namespace, device: torch.device) -> hp.Stage:
    """Sample, fetch and copy, in the order that the mode calls for."""
    graph: Any = power_law_graph(options.nodes, options.edges)
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(graph.total_num_nodes, options.columns, generator=generator)
    store: Any = hp.BasicFeatureStore({("node", None, "feat"): hp.TorchBasedFeature(rows)})
    if options.mode == "pinned-cuda":
        graph, store = graph.pin_memory_(), store.pin_memory_()
    elif options.mode == "cuda-cuda":
        graph, store = graph.to(device), store.to(device)
    items = torch.randint(0, graph.total_num_nodes, (options.nodes,), generator=generator)
    labels = torch.randint(0, CLASSES, (options.nodes,), generator=generator)
    items = hp.ItemSet((items, labels), names=("seeds", "labels"))
    chain: Any = hp.ItemSampler(items, options.batch_size, shuffle=True, seed=1)
    copy = marked(hp.CopyTo, "copying")
    if options.mode in ("pinned-cuda", "cuda-cuda"):
        chain = chain.pipe(copy, device)
    chain = chain.pipe(marked(hp.NeighborSampler, "sampling"), graph, options.fanout)
    chain = chain.pipe(marked(hp.FeatureFetcher, "fetching"), store, ["feat"])
    result: hp.Stage = chain.pipe(copy, device)
    return result


def record(options: argparse.Namespace, device: torch.device) -> None:
    """Trains, and writes the trace of the steps after the first few."""
    torch.manual_seed(0)
    model = SAGE(options.columns, options.hidden, CLASSES, num_layers=len(options.fanout))
    model = model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step(minibatch: hp.MiniBatch) -> None:
        with record_function(TRAINING):
            scores = model(minibatch.blocks, minibatch.node_features["feat"])
            loss = torch.nn.functional.cross_entropy(scores, minibatch.labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    chain = make_chain(options, device)
    for minibatch in islice(chain, 2):  # compiles
        step(minibatch)
    # Ranges of loader threads as well, which the profiler leaves out by default.
    everyone = _ExperimentalConfig(profile_all_threads=True)
    with hp.DataLoader(chain, num_workers=options.workers) as loader:
        reader = iter(loader)
        with profile(activities=activities, experimental_config=everyone) as profiler:
            for minibatch in islice(reader, options.batches):
                step(minibatch)
            if device.type == "cuda":
                torch.cuda.synchronize()
    profiler.export_chrome_trace(str(options.out))


# -------------------------------------------------------------------------------------------------
# Reading the trace


def spans(events: Iterable[dict[str, Any]], label: str, category: str) -> list[Span]:
    """(start, end) in microseconds of the ranges of a name, joined where they overlap."""
    found = sorted(
        (float(e["ts"]), float(e["ts"]) + float(e["dur"]))
        for e in events
        if e.get("ph") == "X" and e.get("name") == label and e.get("cat") == category
    )
    joined: list[Span] = []
    for start, end in found:
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def length(some: Iterable[Span]) -> float:
    """Microseconds in all."""
    return sum(end - start for start, end in some)


def common(some: list[Span], others: list[Span]) -> float:
    """Microseconds that are in both."""
    total, i, j = 0.0, 0, 0
    while i < len(some) and j < len(others):
        total += max(0.0, min(some[i][1], others[j][1]) - max(some[i][0], others[j][0]))
        if some[i][1] < others[j][1]:
            i += 1
        else:
            j += 1
    return total


def overlaps(events: list[dict[str, Any]]) -> dict[str, tuple[float, float]]:
    """For each stage, on the host and on the GPU: milliseconds, and the share beside training.

    Training runs where it was queued to: on the GPU, if the trace knows of one.
    """
    training = spans(events, TRAINING, DEVICE) or spans(events, TRAINING, HOST)
    result = {}
    for where, category in (("", HOST), (" on the GPU", DEVICE)):
        for label in STAGES:
            busy = spans(events, label, category)
            if busy:
                share = common(busy, training) / max(length(busy), 1e-9)
                result[label + where] = (length(busy) / 1e3, share)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mode", choices=MODES, default="cpu-cpu")
    parser.add_argument("--out", type=Path, default=Path("trace.json"), help="the trace")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--nodes", type=int, default=200_000)
    parser.add_argument("--edges", type=int, default=4_000_000)
    parser.add_argument("--columns", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument(
        "--fanout", type=lambda text: [int(part) for part in text.split(",")], default=[10, 10, 10]
    )
    options = parser.parse_args()
    if options.mode != "cpu-cpu" and not torch.cuda.is_available():
        print(
            f"error: --mode {options.mode} needs a GPU, and torch finds none here; use "
            "--mode cpu-cpu",
            file=sys.stderr,
        )
        sys.exit(2)
    device = torch.device("cpu" if options.mode == "cpu-cpu" else "cuda")
    record(options, device)
    events = json.loads(options.out.read_text())["traceEvents"]
    for where, category in (("", HOST), (" on the GPU", DEVICE)):
        if busy := spans(events, TRAINING, category):
            print(f"{TRAINING}{where}: {length(busy) / 1e3:.1f} ms")
    for name, (milliseconds, share) in overlaps(events).items():
        print(f"{name}: {milliseconds:.1f} ms, {share:.0%} beside training")
    print(f"trace: {options.out}")


if __name__ == "__main__":
    main()
