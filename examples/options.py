"""Options that the examples share, with errors of one line; placement, metrics, resuming."""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import NoReturn

import torch
from torch import nn
from torchmetrics import Metric
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC

import hopline.pipes as hp
from hopline.models import TrainingRun, forward_features

MODES = ("cpu-cpu", "cpu-cuda", "pinned-cuda", "cuda-cuda")
# A resumed run may differ in these from the one that it goes on with.
FREE = {
    "mode",
    "gpu",
    "gpu_cache_size",
    "num_gpu_cached_edges",
    "gpu_cache_threshold",
    "compile",
    "num_ranks",
    "epochs",
    "num_workers",
    "checkpoint",
    "checkpoint_every",
    "resume",
}


def fail(message: object) -> NoReturn:
    print(f"error: {' '.join(str(message).split())}", file=sys.stderr)
    sys.exit(2)


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """Says what is wrong with the options."""
        fail(f"{message} (see --help)")


def number(kind: type, low: float, high: float = math.inf):
    """A type for argparse: a finite int or float in [low, high]."""

    def parse(text: str):
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not math.isfinite(value) or not low <= value <= high:
            upper = "" if high == math.inf else f" and at most {high}"
            name = "an integer" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"{text!r} is not {name} of at least {low}{upper}")
        return value

    return parse


def fanouts(text: str) -> list[int]:
    """A type for argparse: "15,10,5", outermost hop first; -1 takes all neighbours."""
    return [number(int, -1)(part) for part in text.split(",")]


def gpu_ids(text: str) -> list[int]:
    """A type for argparse: "0,1", each id once."""
    ids = [number(int, 0)(part) for part in text.split(",")]
    if len(set(ids)) < len(ids):
        raise argparse.ArgumentTypeError(f"{text!r} names a GPU twice")
    return ids


def parser(description: str, *, classes: bool = True) -> Parser:
    """The options that all examples have; with `classes`, those of node classification too."""
    p = Parser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument("--dataset", default="debian", help="built-in data set, or a folder")
    p.add_argument("--mode", choices=MODES, help="where graph and features are, and where to "
                   "train; by default pinned-cuda with a GPU and cpu-cpu without")  # fmt: skip
    p.add_argument("--gpu-cache-size", type=number(int, 0), default=0, metavar="BYTES",
                   help="of rows kept on the GPU, where features are elsewhere")  # fmt: skip
    p.add_argument("--num-gpu-cached-edges", type=number(int, 0), default=0, metavar="N",
                   help="edges kept on the GPU in the mode pinned-cuda")  # fmt: skip
    p.add_argument("--gpu-cache-threshold", type=number(int, 1), default=1, metavar="K",
                   help="keep a node's edges once it was asked for so often")  # fmt: skip
    p.add_argument("--amp", choices=("none", "bf16"), default="none", help="mixed precision")
    p.add_argument("--compile", action="store_true", help="the model, by torch.compile")
    p.add_argument("--fanout", type=fanouts, default="10,10,10", help="one a layer")
    p.add_argument("--batch-size", type=number(int, 1), default=1024, help="of each rank")
    p.add_argument("--epochs", type=number(int, 0), default=15)
    p.add_argument("--lr", type=number(float, 0), default=0.01)
    p.add_argument("--weight-decay", type=number(float, 0), default=0.0)
    p.add_argument("--hidden", type=number(int, 1), default=256)
    p.add_argument("--dropout", type=number(float, 0, 1), default=0.5)
    if classes:
        p.add_argument("--normalize-features", action="store_true",
                       help="divide each row by its sum")  # fmt: skip
        p.add_argument("--metric", choices=("accuracy", "auroc"), default="accuracy")
    p.add_argument("--num-workers", type=number(int, 0), default=0, help="threads that sample")
    p.add_argument("--seed", type=number(int, 0, 2**63 - 1), default=0)
    p.add_argument("--checkpoint", metavar="DIR", help="save a checkpoint there, every epoch")
    p.add_argument("--checkpoint-every", type=number(int, 0), default=0, metavar="N",
                   help="save also after every N mini-batches")  # fmt: skip
    p.add_argument("--resume", action="store_true", help="go on from the checkpoint, if there is "
                   "one")  # fmt: skip
    return p


def check(args: argparse.Namespace) -> None:
    """Refuses options that do not go together, and a GPU mode without a GPU."""
    has_gpu = torch.cuda.is_available()
    args.mode = args.mode or ("pinned-cuda" if has_gpu else "cpu-cpu")
    if args.mode != "cpu-cpu" and not has_gpu:
        instead = "--num-ranks" if "num_ranks" in args else "--mode cpu-cpu"
        fail(f"--mode {args.mode} needs a GPU, and torch finds none here; use {instead}")
    if args.mode == "cpu-cpu" and (args.gpu_cache_size or args.num_gpu_cached_edges):
        fail("--gpu-cache-size and --num-gpu-cached-edges need a mode that ends in -cuda")
    if samples_on_gpu(args) and importlib.util.find_spec("triton") is None:
        fail(f"--mode {args.mode} needs Triton, which torch's builds for GPUs bring; use cpu-cuda")
    if args.compile:
        check_compiler(args.mode)
    if args.checkpoint is None and (args.resume or args.checkpoint_every):
        fail("--resume and --checkpoint-every need --checkpoint DIR")
    if args.checkpoint and not args.resume and any(Path(args.checkpoint).glob("checkpoint.pt")):
        fail(f"{args.checkpoint} holds a checkpoint; go on with --resume, or give another folder")


def check_compiler(mode: str) -> None:
    """Refuses --compile where what it writes cannot be compiled: C++ for the CPU, C for a GPU."""
    language, variable, names = "C", "CC", ["gcc", "clang"]
    if mode == "cpu-cpu":
        language, variable, names = "C++", "CXX", ["g++", "clang++"]
    if own := shlex.split(os.environ.get(variable, "")):
        names = own[:1]
    if not any(shutil.which(name) for name in names):
        fail(f"--compile needs a {language} compiler, and there is no {' nor '.join(names)} here; "
             "install one, or leave it out")  # fmt: skip


def samples_on_gpu(args: argparse.Namespace) -> bool:
    """Whether ids go to the GPU first, and all else is done there."""
    return args.mode in ("pinned-cuda", "cuda-cuda")


def place(args: argparse.Namespace, graph, features: hp.BasicFeatureStore, device: torch.device):
    """Graph and features where the mode says, the features named "feat" behind a cache if asked."""
    if args.mode == "pinned-cuda":
        graph, features = graph.pin_memory_(), features.pin_memory_()
    elif args.mode == "cuda-cuda":
        graph, features = graph.to(device), features.to(device)
    keys = [key for key in features.keys() if key.name == "feat"]  # noqa: SIM118, no mapping
    if args.gpu_cache_size and args.mode != "cuda-cuda":
        for key in keys:
            size = max(1, args.gpu_cache_size // len(keys))
            features[key] = hp.gpu_cached_feature(features[key], size, device=device)
    return graph, features


def graph_cache(args: argparse.Namespace) -> dict[str, int]:
    """Arguments of sample_neighbor."""
    if args.mode != "pinned-cuda":
        return {}
    return {
        "num_gpu_cached_edges": args.num_gpu_cached_edges,
        "gpu_cache_threshold": args.gpu_cache_threshold,
    }


def amp_dtype(args: argparse.Namespace) -> torch.dtype | None:
    """For train_epoch and evaluate."""
    return torch.bfloat16 if args.amp == "bf16" else None


def maybe_compile(args: argparse.Namespace, model: nn.Module) -> None:
    """Compiles the model where it is: names of parameters stay."""
    if args.compile:
        try:
            model.compile(dynamic=True)
        except RuntimeError as error:
            fail(f"--compile: {error}")


def settings(args: argparse.Namespace) -> dict[str, object]:
    """What a resumed run must share with the one that it goes on with."""
    return {name: value for name, value in vars(args).items() if name not in FREE}


def begin(args: argparse.Namespace, run: TrainingRun, loader: hp.DataLoader) -> None:
    """Goes on from the checkpoint, if the options ask for it and there is one."""
    if not args.resume:
        return
    try:
        resumed = run.resume()
    except ValueError as error:
        fail(error)
    if resumed:
        print(f"resumed epoch {run.epoch} after {loader.state_dict()['batch']} mini-batches")


def print_epoch(epoch: int, loss: float, name: str, value: float, seconds: float) -> None:
    print(
        f"epoch {epoch:03d} | loss {loss:.4f} | validation {name} {value:.4f} | {seconds:.1f} s",
        flush=True,
    )


def load_dataset(name: str):
    """A folder with metadata.yaml, or a data set that ships with the package."""
    try:
        if Path(name).is_dir():
            return hp.OnDiskDataset(name).load()
        return hp.BuiltinDataset(name).load()
    except (OSError, ValueError) as error:
        fail(f"--dataset {name}: {error}")


def of_nodes(itemset: object) -> bool:
    """Whether an item set has nodes as seeds, and not edges."""
    if isinstance(itemset, hp.HeteroItemSet):
        return all(of_nodes(part) for part in itemset.itemsets.values())
    if not isinstance(itemset, hp.ItemSet) or "seeds" not in (itemset.names or ()):
        return False
    columns = itemset[:0]
    seeds = columns[itemset.names.index("seeds")] if isinstance(columns, tuple) else columns
    return seeds.dim() == 1


def check_graph(name: str, dataset) -> None:
    """Refuses a data set with types, or without the feature that examples read."""
    if dataset.graph.is_heterogeneous:
        fail(f"--dataset {name} has node types; this example takes a graph of one type, and "
             "hetero_node_classification.py one with types")  # fmt: skip
    check_features(name, dataset.feature, [None])


def check_features(name: str, features, types: list[str | None]) -> None:
    """Refuses features without "feat" for every node type."""
    missing = [kind for kind in types if ("node", kind, "feat") not in features]
    if missing:
        of = "" if missing == [None] else f" of {missing}"
        fail(f"--dataset {name} has no node feature 'feat'{of}; its features are "
             f"{[tuple(key) for key in features.keys()]}")  # fmt: skip  # noqa: SIM118


def node_task(name: str, dataset):
    """The first task to classify nodes, with all that the examples need of it."""
    tasks = [task for task in dataset.tasks if of_nodes(task.train_set)]
    if not tasks:
        fail(f"--dataset {name} has no task with a train_set of nodes; its tasks are "
             f"{[task.metadata.get('name') for task in dataset.tasks]}")  # fmt: skip
    task = tasks[0]
    sets = ("train_set", "validation_set", "test_set")
    missing = [which for which in sets if getattr(task, which) is None]
    missing += [] if "num_classes" in task.metadata else ["num_classes"]
    if missing:
        fail(f"--dataset {name}: its task {task.metadata.get('name')!r} has no "
             f"{' and no '.join(missing)}; add it to metadata.yaml")  # fmt: skip
    return task


def normalize_rows(minibatch: hp.MiniBatch) -> hp.MiniBatch:
    """Divides each row of features by its sum; a row with sum 0 becomes 0."""
    x = minibatch.node_features["feat"].float()
    total = x.sum(dim=1, keepdim=True)
    minibatch.node_features["feat"] = torch.where(total == 0, 0.0, x / total)
    return minibatch


def make_metric(name: str, num_classes: int) -> Metric:
    if name == "auroc":
        return MulticlassAUROC(num_classes)
    return MulticlassAccuracy(num_classes, average="micro")


def probabilities(model: nn.Module, minibatch: hp.MiniBatch) -> torch.Tensor:
    """What the metric compares with the labels."""
    return forward_features(model, minibatch).softmax(dim=1)
