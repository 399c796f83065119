"""Trains a GCN on a whole graph, without sampling, each rank with its part of it.

python examples/full_graph/gcn.py --num-ranks 2                      # the packages of Debian
python examples/full_graph/gcn.py --num-ranks 2 --dataset DIR        # a data set on disk
python examples/full_graph/gcn.py --num-ranks 2 --tensor-parallel    # columns instead of parts

The graph is cut once, into a folder beside the others (--parts says where). On several machines cut
it by `hopline partition`, copy the folder, and start the script by torchrun or `hopline launch`:

torchrun --nnodes 2 --node-rank 0 --nproc-per-node 1 --master-addr HOST --master-port 29500 \
    examples/full_graph/gcn.py --parts parts

Or by OpenMPI's mpirun, without MPI itself; on several machines with -x MASTER_ADDR=HOST:

mpirun -np 2 --bind-to none python examples/full_graph/gcn.py --parts parts
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F

import hopline.pipes as hp
from hopline.models import (
    GCN,
    DistGCN,
    HaloPlan,
    TensorParallelGCN,
    checkpoint_path,
    global_mean,
    join_ranks,
    launch,
    load_checkpoint,
    ranks_are_started,
    save_checkpoint,
    sum_gradients,
    weighted_reduce,
)
from hopline.partition import DistDataset, partition_graph


def load(args):
    if args.dataset in (None, "debian"):
        return hp.BuiltinDataset("debian").load()
    return hp.OnDiskDataset(args.dataset).load()


def normalised(rows, args):
    rows = rows.float()
    return rows / rows.sum(1, keepdim=True).clamp(min=1e-12) if args.normalize_features else rows


class Parts:
    """Each rank with the rows, seeds and labels of its own nodes."""

    def __init__(self, dataset, args):
        self.plan = HaloPlan(dataset.graph)
        task = dataset.tasks[0]
        in_size = dataset.feature.size("node", None, "feat")[0]
        own = torch.arange(self.plan.own.start, self.plan.own.stop)
        self.x = normalised(dataset.feature.read("node", None, "feat", own), args)
        self.sets = {}
        for name in ("train", "validation", "test"):
            seeds, labels = getattr(task, f"{name}_set")[:]
            mine = (seeds >= self.plan.own.start) & (seeds < self.plan.own.stop)
            self.sets[name] = (seeds[mine] - self.plan.own.start).long(), labels[mine].long()
        sizes = in_size, args.hidden, task.metadata["num_classes"]
        self.model = DistGCN(
            self.plan, *sizes, num_layers=args.layers, dropout=args.dropout, mode=args.mode,
            wire_dtype=args.wire_dtype and getattr(torch, args.wire_dtype), stale=args.stale,
            boundary_rate=args.boundary_rate,
        )  # fmt: skip

    def mean(self, values):
        """The share of the mean over all ranks' training nodes."""
        return global_mean(values, self.plan)

    def end_backward(self):
        """Adds up gradients."""
        sum_gradients(self.model.parameters(), self.plan)

    def weights(self):
        """Those of a GCN, which all ranks have."""
        return {name: value.clone() for name, value in self.model.state_dict().items()}

    def take_weights(self, weights):
        """Takes what `weights` gave."""
        self.model.load_state_dict(weights)

    def save(self, folder, optimizer, run):
        """By one rank: all have the same."""
        if self.plan.rank == 0:
            save_checkpoint(folder, self.model, optimizer, extra=run)

    def load(self, folder, optimizer):
        """What was saved with it."""
        return load_checkpoint(folder, self.model, optimizer)


class Columns:
    """Each rank with the whole structure, and some columns of the features."""

    def __init__(self, dataset, args):
        task = dataset.tasks[0]
        rows = normalised(dataset.feature.read("node", None, "feat"), args)
        self.sets = {}
        for name in ("train", "validation", "test"):
            seeds, labels = getattr(task, f"{name}_set")[:]
            self.sets[name] = seeds.long(), labels.long()
        sizes = rows.shape[1], args.hidden, task.metadata["num_classes"]
        self.model = TensorParallelGCN(
            dataset.graph, *sizes, num_layers=args.layers, dropout=args.dropout
        )
        self.x = rows[:, self.model.columns(0)].contiguous()
        self.whole = GCN(*sizes, num_layers=args.layers)  # as which checkpoints are written

    def mean(self, values):
        """The mean: each rank has all nodes."""
        return values.mean()

    def end_backward(self):
        """Nothing: gradients are whole."""

    def weights(self):
        """Those of a GCN, of which each rank has columns."""
        return self.model.whole_state_dict()

    def take_weights(self, weights):
        """Takes the rank's columns of what `weights` gave."""
        self.model.load_whole_state_dict(weights)

    def save(self, folder, optimizer, run):
        """By one rank, whole: files of several ranks could be of different epochs."""
        self.whole.load_state_dict(self.weights())
        whole_optimizer = torch.optim.Adam(self.whole.parameters())
        whole_optimizer.load_state_dict(self.model.whole_optimizer_state(optimizer))
        if self.model.rank == 0:
            save_checkpoint(folder, self.whole, whole_optimizer, extra=run)

    def load(self, folder, optimizer):
        """What was saved with it, by any number of ranks."""
        whole_optimizer = torch.optim.Adam(self.whole.parameters())
        run = load_checkpoint(folder, self.whole, whole_optimizer)
        self.take_weights(self.whole.state_dict())
        self.model.load_whole_optimizer_state(optimizer, whole_optimizer.state_dict())
        return run


def run_rank(rank, world_size, device, args):
    if args.tensor_parallel:
        opened = nullcontext(load(args))
    else:
        opened = DistDataset(args.parts, timeout=args.timeout)
    with opened as dataset:
        train(rank, dataset, args)


def train(rank, dataset, args):
    """The rank's share, whose model has the best weights, and the accuracy on the test set."""
    torch.manual_seed(args.seed)  # for the initial weights
    share = (Columns if args.tensor_parallel else Parts)(dataset, args)
    model, folder = share.model, args.checkpoint
    optimizer = torch.optim.Adam(model.parameters(), args.lr, weight_decay=args.weight_decay)
    run = {"epoch": 0, "best": -1.0, "best_epoch": 0, "weights": {}}
    if folder and args.resume:
        if checkpoint_path(folder).exists():
            run = checked(share.load(folder, optimizer), run, folder)
        check_epoch(run["epoch"], folder)
        if rank == 0 and run["epoch"]:
            print(f"resumed at epoch {run['epoch']}", flush=True)
    start, printed = time.perf_counter(), run["epoch"]
    while run["epoch"] < args.epochs and run["epoch"] - run["best_epoch"] < args.patience:
        model.train()
        nodes, labels = share.sets["train"]
        out = model(share.x, (args.seed, run["epoch"], 0))[nodes]
        loss = share.mean(F.cross_entropy(out, labels, reduction="none"))
        optimizer.zero_grad()
        loss.backward()
        share.end_backward()
        optimizer.step()
        value = accuracy(share, "validation")
        run["epoch"] += 1
        if value > run["best"]:
            run |= {"best": value, "best_epoch": run["epoch"]}
            run["weights"] = share.weights()
        if folder:
            share.save(folder, optimizer, run)
        if rank == 0 and args.print_every and run["epoch"] % args.print_every == 0:
            print(
                f"epoch {run['epoch']:03d} | validation accuracy {value:.4f} | "
                f"{(time.perf_counter() - start) / (run['epoch'] - printed):.3f} s an epoch",
                flush=True,
            )
            start, printed = time.perf_counter(), run["epoch"]
    if run["weights"]:
        share.take_weights(run["weights"])
    value = accuracy(share, "test")
    if rank == 0:
        print(f"test accuracy: {value:.4f} (epoch {run['best_epoch']})", flush=True)
    return share, value


def checked(run, expected, folder):
    """What was saved, where it is this example's."""
    if set(run) != set(expected):
        raise ValueError(
            f"{folder}: its checkpoint has {sorted(run)} besides the model; expected "
            f"{sorted(expected)}: it is of another program"
        )
    return run


def check_epoch(epoch, folder):
    """Ranks at different epochs would train on together, and nothing would tell."""
    ends = torch.tensor([epoch, -epoch])
    dist.all_reduce(ends, op=dist.ReduceOp.MAX)
    last, first = ends[0].item(), -ends[1].item()
    if first != last:
        raise ValueError(
            f"{folder}: this rank is at epoch {epoch}, others are at {first} to {last}; expected a "
            "folder on a disk that all ranks see"
        )


def share_of(right):
    """Of all ranks' nodes, by whole numbers: equal ones are equal however nodes are shared out."""
    found, count = weighted_reduce(torch.tensor([right.sum(), len(right)]), 1, dst=None).tolist()
    return found / count if count else float("nan")


@torch.no_grad()
def accuracy(share, name):
    share.model.eval()
    nodes, labels = share.sets[name]
    return share_of(share.model(share.x)[nodes].argmax(1) == labels)


def parser():
    """The options."""
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--dataset", help="debian (the default), or the folder of a data set")
    p.add_argument("--parts", help="folder that `hopline partition` wrote (default: HOPLINE_PARTS; "
                   "or the data set is cut)")  # fmt: skip
    p.add_argument("--num-ranks", type=int, default=2, help="ranks that this script starts")
    p.add_argument("--tensor-parallel", action="store_true", help="split columns, not nodes")
    p.add_argument("--mode", default="halo", choices=("halo", "broadcast", "columns", "auto"),
                   help="what parts send each other; auto: what is least")  # fmt: skip
    p.add_argument("--wire-dtype", choices=("bfloat16", "float16", "int8"),
                   help="approximate: in which rows are sent")  # fmt: skip
    p.add_argument("--stale", action="store_true", help="approximate: halo rows of the step before")
    p.add_argument("--boundary-rate", type=float, default=1.0,
                   help="approximate: part of the halo that a step uses")  # fmt: skip
    p.add_argument("--hidden", type=int, default=64)
    p.add_argument("--layers", type=int, default=2)
    p.add_argument("--dropout", type=float, default=0.5)
    p.add_argument("--epochs", type=int, default=200)
    p.add_argument("--patience", type=int, default=100, help="epochs without a better validation")
    p.add_argument("--lr", type=float, default=0.01)
    p.add_argument("--weight-decay", type=float, default=5e-4)
    p.add_argument("--normalize-features", action="store_true", help="rows of sum 1")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--print-every", type=int, default=20, help="epochs a line; 0 for none")
    p.add_argument("--timeout", type=float, default=60.0, help="seconds to wait for another rank")
    p.add_argument("--checkpoint", help="folder for the checkpoint, on a disk that all ranks see")
    p.add_argument("--resume", action="store_true", help="go on from the checkpoint, if any")
    return p


def check_parts(p, args, started):
    """Finds the parts' folder; refuses none where ranks are started, and a data set beside it."""
    given, args.parts = args.parts, args.parts or os.environ.get("HOPLINE_PARTS")
    if started and args.parts is None:
        p.error("name the folder of the parts by --parts, or set HOPLINE_PARTS")
    if args.parts is not None and args.dataset is not None:
        where = "--parts" if given else f"HOPLINE_PARTS={args.parts}"
        p.error(f"--dataset: not with {where}, whose parts have a data set; leave one of them out")


def main():
    p = parser()
    args = p.parse_args()
    started = ranks_are_started()  # by torchrun or mpirun, which says how many there are
    for_parts = ("parts", "mode", "wire_dtype", "stale", "boundary_rate")
    given = [name for name in for_parts if getattr(args, name) != p.get_default(name)]
    if args.tensor_parallel and given:
        names = ", ".join("--" + name.replace("_", "-") for name in given)
        p.error(f"{names}: for parts, not with --tensor-parallel")
    if not args.tensor_parallel:
        check_parts(p, args, started)
    with tempfile.TemporaryDirectory(prefix="hopline-parts-") as folder:
        try:
            if args.parts is None and not args.tensor_parallel:
                args.parts = str(Path(folder) / "parts")
                partition_graph(load(args), "graph", args.num_ranks, args.parts)
            if started:
                join_ranks(run_rank, args, timeout=args.timeout)
            else:
                launch(run_rank, args.num_ranks, args, timeout=args.timeout)
        except (ValueError, FileNotFoundError, NotADirectoryError) as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(2)


if __name__ == "__main__":
    main()
