"""Trains GraphSAGE over the parts of a graph, each rank with its own.

hopline partition debian --parts 2 --out parts
python examples/distributed/node_classification.py parts --num-ranks 2

On several machines, each with partition.yaml, tasks, new_ids and its own parts, with --node-rank 0,
1, ...:

torchrun --nnodes 2 --node-rank 0 --nproc-per-node 1 --master-addr HOST --master-port 29500 \
    examples/distributed/node_classification.py parts

Or all at once, over ssh:

hopline launch --hosts hosts.txt --parts parts -- examples/distributed/node_classification.py

Or by OpenMPI's mpirun (docs/distributed.md):

mpirun -np 2 --bind-to none python examples/distributed/node_classification.py parts
"""

from __future__ import annotations

import argparse
import os
import sys
import time

import torch
from torch.nn.parallel import DistributedDataParallel
from torchmetrics.classification import MulticlassAccuracy

import hopline.pipes as hp
from hopline.models import (
    SAGE,
    TrainingRun,
    evaluate,
    join_ranks,
    launch,
    ranks_are_started,
    train_epoch,
)
from hopline.partition import DistDataset, PartitionError


def make_loader(args, dataset, items, shuffle):
    # The mini-batches are those of one machine: each rank has its share of every epoch.
    chain = hp.DistributedItemSampler(items, args.batch_size, shuffle=shuffle, seed=args.seed)
    chain = chain.sample_neighbor(dataset.graph, args.fanout)
    chain = chain.fetch_feature(dataset.feature, node_feature_keys=["feat"])
    return hp.DataLoader(chain, num_workers=args.num_workers)


def run_rank(rank, world_size, device, args):
    torch.manual_seed(args.seed)  # for the initial weights
    with DistDataset(args.parts, timeout=args.timeout) as dataset:
        task = dataset.tasks[0]
        train, valid, test = (
            make_loader(args, dataset, items, shuffle)
            for items, shuffle in (
                (task.train_set, True),
                (task.validation_set, False),
                (task.test_set, False),
            )
        )
        num_classes = task.metadata["num_classes"]
        in_size = dataset.feature.size("node", None, "feat")[0]
        model = DistributedDataParallel(
            SAGE(in_size, args.hidden, num_classes, len(args.fanout), args.dropout)
        )
        optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
        metric = MulticlassAccuracy(num_classes, average="micro")
        settings = {"parts": dataset.graph.manifest.partition_id, "ranks": world_size}
        run = TrainingRun(model, optimizer, train, directory=args.checkpoint, settings=settings)
        if args.resume and run.resume() and rank == 0:
            print(f"resumed at epoch {run.epoch}", flush=True)
        while run.epoch < args.epochs:
            start = time.perf_counter()
            # Under Join: a rank without mini-batches waits for the others.
            loss = train_epoch(
                model, train, optimizer, total=run.total, after_batch=run.after_batch
            )
            value = evaluate(model, valid, metric)
            if rank == 0:
                print(
                    f"epoch {run.epoch:03d} | loss {loss:.4f} | validation accuracy {value:.4f} "
                    f"| {time.perf_counter() - start:.1f} s",
                    flush=True,
                )
            run.end_epoch(value)
        run.load_best()
        value = evaluate(model, test, metric)
        if rank == 0:
            print(f"test accuracy: {value:.4f}", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("parts", nargs="?", default=os.environ.get("HOPLINE_PARTS"),
                   help="folder that `hopline partition` wrote "
                   "(default: HOPLINE_PARTS)")  # fmt: skip
    p.add_argument("--num-ranks", type=int, default=2, help="ranks that this script starts")
    p.add_argument("--fanout", type=lambda s: [int(n) for n in s.split(",")], default=[10, 10, 10])
    p.add_argument("--batch-size", type=int, default=512, help="seeds a rank and mini-batch")
    p.add_argument("--hidden", type=int, default=256)
    p.add_argument("--dropout", type=float, default=0.5)
    p.add_argument("--epochs", type=int, default=10)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--num-workers", type=int, default=2, help="threads that make mini-batches")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--timeout", type=float, default=60.0, help="seconds to wait for another rank")
    p.add_argument("--checkpoint", help="folder for the checkpoint, on a disk that all ranks see")
    p.add_argument("--resume", action="store_true", help="go on from the checkpoint, if any")
    args = p.parse_args()
    if args.parts is None:
        p.error("name the folder of the parts, or set HOPLINE_PARTS")
    try:
        if ranks_are_started():  # by torchrun or mpirun, which says how many there are
            join_ranks(run_rank, args, timeout=args.timeout)
        else:
            launch(run_rank, args.num_ranks, args, timeout=args.timeout)
    except (PartitionError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
