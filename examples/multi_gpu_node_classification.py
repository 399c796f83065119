"""Trains GraphSAGE on several ranks: one a GPU, or gloo ranks on the CPU.

    python examples/multi_gpu_node_classification.py --gpu 0,1 --mode pinned-cuda
    python examples/multi_gpu_node_classification.py --num-ranks 2
"""

from __future__ import annotations

import time

import torch
from options import (
    check,
    fail,
    load_dataset,
    make_metric,
    normalize_rows,
    number,
    parser,
    probabilities,
    settings,
)
from torch.nn.parallel import DistributedDataParallel

import hopline.pipes as hp
from hopline.models import SAGE, RankError, TrainingRun, evaluate, launch, train_epoch


def create_dataloader(args, graph, features, itemset, device, shuffle):
    # Ranks may have a mini-batch more or fewer than others: training runs under Join.
    datapipe = hp.DistributedItemSampler(itemset, args.batch_size, shuffle=shuffle, seed=args.seed)
    datapipe = datapipe.sample_neighbor(graph, args.fanout)
    if args.mode == "cuda-cuda":
        # The features are on the GPU: the ids go there, and the rows stay there.
        datapipe = datapipe.copy_to(device)
    datapipe = datapipe.fetch_feature(features, node_feature_keys=["feat"])
    if args.normalize_features:
        datapipe = datapipe.transform(normalize_rows)
    datapipe = datapipe.copy_to(device)
    return hp.DataLoader(datapipe, num_workers=args.num_workers)


def run(rank, world_size, device, args):
    torch.manual_seed(args.seed)  # for the initial weights
    # Each rank maps the same files: the graph is in memory once.
    dataset = load_dataset(args.dataset)
    graph, features, task = dataset.graph, dataset.feature, dataset.tasks[0]
    if args.mode == "pinned-cuda":
        features = features.pin_memory_()
    elif args.mode == "cuda-cuda":
        features = features.to(device)
    train_loader, valid_loader, test_loader = (
        create_dataloader(args, graph, features, itemset, device, shuffle)
        for itemset, shuffle in (
            (task.train_set, True),
            (task.validation_set, False),
            (task.test_set, False),
        )
    )

    num_classes = task.metadata["num_classes"]
    in_size = features.size("node", None, "feat")[0]
    model = SAGE(in_size, args.hidden, num_classes, len(args.fanout), args.dropout).to(device)
    model = DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, weight_decay=args.weight_decay)
    metric = make_metric(args.metric, num_classes)

    training = TrainingRun(
        model,
        optimizer,
        train_loader,
        directory=args.checkpoint,
        every=args.checkpoint_every,
        settings={**settings(args), "world_size": world_size},
    )
    if args.resume and training.resume() and rank == 0:
        batch = train_loader.state_dict()["batch"]
        print(f"resumed at {batch} batches of epoch {training.epoch}", flush=True)

    while training.epoch < args.epochs:
        start = time.perf_counter()
        loss = train_epoch(
            model, train_loader, optimizer, total=training.total, after_batch=training.after_batch
        )
        value = evaluate(model, valid_loader, metric, forward=probabilities)
        seconds = time.perf_counter() - start
        if rank == 0:
            print(
                f"epoch {training.epoch:03d} | loss {loss:.4f} | "
                f"validation {args.metric} {value:.4f} | {seconds:.1f} s",
                flush=True,
            )
        training.end_epoch(value)

    training.load_best()
    value = evaluate(model, test_loader, metric, forward=probabilities)
    if rank == 0:
        print(f"test {args.metric}: {value:.4f}", flush=True)


def gpu_ids(text: str) -> list[int]:
    """A type for argparse: "0,1"."""
    return [number(int, 0)(part) for part in text.split(",")]


def main():
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--gpu", type=gpu_ids, help="ids of GPUs, one rank on each, e.g. 0,1")
    options.add_argument("--num-ranks", type=number(int, 1), help="ranks on the CPU")
    options.add_argument(
        "--timeout", type=number(float, 1), default=60.0, help="seconds that ranks wait for others"
    )
    args = options.parse_args()
    if args.gpu is not None and args.num_ranks is not None:
        fail("--gpu and --num-ranks exclude each other: ranks are on GPUs or on the CPU")
    if args.gpu is None:
        args.mode = args.mode or "cpu-cpu"
        if args.mode != "cpu-cpu":
            fail(f"--mode {args.mode} needs --gpu, e.g. --gpu 0,1")
    else:
        args.mode = args.mode or "pinned-cuda"
        if args.mode == "cpu-cpu":
            fail("--gpu needs one of the modes that end in -cuda")
    check(args)
    # Before the ranks start: a bad name is one line, and a first preparation is done once.
    load_dataset(args.dataset)
    num_ranks = len(args.gpu) if args.gpu is not None else args.num_ranks or 2
    try:
        launch(run, num_ranks, args, gpus=args.gpu, timeout=args.timeout)
    except ValueError as error:
        fail(error)
    except RankError as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
