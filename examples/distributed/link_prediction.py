"""Predicts edges over the parts of a graph: GraphSAGE, dot product, negatives drawn evenly.

python examples/distributed/link_prediction.py parts --prepare debian --num-ranks 2
python examples/distributed/link_prediction.py parts --num-ranks 2      # once it is prepared

Under torchrun, mpirun or hopline launch as node_classification.py in this folder.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import hopline.pipes as hp
from hopline.models import (
    SAGE,
    DotPredictor,
    LinkMetrics,
    LinkPredictor,
    TrainingRun,
    evaluate_links,
    forward_links,
    join_ranks,
    launch,
    ranks_are_started,
    train_epoch,
)
from hopline.partition import (
    DistDataset,
    PartitionError,
    load_partition,
    load_tasks,
    partition_graph,
)


def prepare(args):
    """Holds out pairs of nodes for validation and test, and cuts the graph of the others."""
    dataset = hp.BuiltinDataset(args.prepare).load()
    graph = dataset.graph
    src, dst = graph.indices.long(), hp.expand_indptr(graph.csc_indptr, torch.int64)
    pairs = torch.unique(torch.stack([torch.minimum(src, dst), torch.maximum(src, dst)], 1), dim=0)
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    pairs = pairs[torch.randperm(len(pairs), generator=torch.Generator().manual_seed(args.seed))]
    test, valid, train = pairs.tensor_split([len(pairs) // 20, len(pairs) // 10])
    task = SimpleNamespace(
        metadata={"name": "link prediction"},
        train_set=hp.ItemSet(train, names="seeds"),
        validation_set=hp.ItemSet(valid, names="seeds"),
        test_set=hp.ItemSet(test, names="seeds"),
    )
    known = hp.from_coo(*hp.add_reverse_edges(train).unbind(1), graph.total_num_nodes)
    data = SimpleNamespace(graph=known, feature=dataset.feature, tasks=[task])
    partition_graph(data, args.prepare, args.num_ranks, args.parts, overwrite=True)


def make_loader(args, dataset, items, train):
    chain = hp.DistributedItemSampler(items, args.batch_size, shuffle=train, seed=args.seed)
    ratio = 1 if train else args.eval_negatives
    chain = chain.sample_uniform_negative(dataset.graph, ratio)
    chain = chain.sample_neighbor(dataset.graph, args.fanout)
    if train:
        chain = chain.exclude_seed_edges(include_reverse_edges=True)
    chain = chain.fetch_feature(dataset.feature, node_feature_keys=["feat"])
    return hp.DataLoader(chain, num_workers=args.num_workers)


def of_edges(items):
    """Whether an item set has edges of a graph of one type as seeds."""
    if not isinstance(items, hp.ItemSet) or "seeds" not in (items.names or ()):
        return False
    columns = items[:0]
    seeds = columns[items.names.index("seeds")] if isinstance(columns, tuple) else columns
    return seeds.dim() == 2


def find_task(parts):
    """Number of the first task with edges as seeds, in all its sets."""
    tasks = load_tasks(parts, load_partition(parts), check="size")
    sets = ("train_set", "validation_set", "test_set")
    for number, task in enumerate(tasks):
        if all(of_edges(getattr(task, which)) for which in sets):
            return number
    names = [task.metadata.get("name") for task in tasks]
    raise ValueError(f"{parts} has no task whose three sets have edges of one type as seeds, of "
                     f"{names}; make one by --prepare NAME")  # fmt: skip


def run_rank(rank, world_size, device, args):
    torch.manual_seed(args.seed)  # for the initial weights
    with DistDataset(args.parts, timeout=args.timeout) as dataset:
        task = dataset.tasks[args.task]
        sets = (task.train_set, task.validation_set, task.test_set)
        train, valid, test = (
            make_loader(args, dataset, items, i == 0) for i, items in enumerate(sets)
        )
        in_size = dataset.feature.size("node", None, "feat")[0]
        encoder = SAGE(in_size, args.hidden, args.hidden, len(args.fanout), args.dropout)
        model = DistributedDataParallel(LinkPredictor(encoder, DotPredictor()))
        optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
        run = TrainingRun(model, optimizer, train)
        while run.epoch < args.epochs:
            start = time.perf_counter()
            loss = train_epoch(
                model,
                train,
                optimizer,
                F.binary_cross_entropy_with_logits,
                forward=forward_links,
                total=run.total,
                after_batch=run.after_batch,
            )
            value = evaluate_links(model, valid, LinkMetrics())["auc"]
            if rank == 0:
                print(
                    f"epoch {run.epoch:03d} | loss {loss:.4f} | validation AUC {value:.4f} "
                    f"| {time.perf_counter() - start:.1f} s",
                    flush=True,
                )
            run.end_epoch(value)
        run.load_best()
        values = evaluate_links(model, test, LinkMetrics())
        if rank == 0:
            print(f"test AUC: {values['auc']:.4f}, MRR: {values['mrr']:.4f}", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("parts", nargs="?", default=os.environ.get("HOPLINE_PARTS"),
                   help="folder of the parts, with a task that has edges as seeds "
                   "(default: HOPLINE_PARTS)")  # fmt: skip
    p.add_argument("--prepare", metavar="NAME", help="make the parts of a built-in data set first")
    p.add_argument("--num-ranks", type=int, default=2, help="ranks that this script starts")
    p.add_argument("--fanout", type=lambda s: [int(n) for n in s.split(",")], default=[10, 10])
    p.add_argument("--batch-size", type=int, default=1024, help="edges a rank and mini-batch")
    p.add_argument("--eval-negatives", type=int, default=20, help="for each edge, in evaluation")
    p.add_argument("--hidden", type=int, default=128)
    p.add_argument("--dropout", type=float, default=0.2)
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--num-workers", type=int, default=2, help="threads that make mini-batches")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--timeout", type=float, default=60.0, help="seconds to wait for another rank")
    args = p.parse_args()
    if args.parts is None:
        p.error("name the folder of the parts, or set HOPLINE_PARTS")
    try:
        if ranks_are_started():  # by torchrun or mpirun, which says how many there are
            args.task = find_task(args.parts)
            join_ranks(run_rank, args, timeout=args.timeout)
        else:
            if args.prepare:
                prepare(args)
            args.task = find_task(args.parts)
            launch(run_rank, args.num_ranks, args, timeout=args.timeout)
    except (PartitionError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
