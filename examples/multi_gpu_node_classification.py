"""Trains GraphSAGE on sampled neighbourhoods, on several GPUs or CPU ranks.

python examples/multi_gpu_node_classification.py --gpu 0,1
python examples/multi_gpu_node_classification.py --num-ranks 2

On several machines, on each of them, with --node-rank 0, 1, ...:

torchrun --nnodes 2 --node-rank 0 --nproc-per-node 4 --master-addr HOST --master-port 29500 \
    examples/multi_gpu_node_classification.py
"""

from __future__ import annotations

import os
import sys
import time

import torch
from options import (
    amp_dtype,
    check,
    check_graph,
    fail,
    gpu_ids,
    graph_cache,
    load_dataset,
    make_metric,
    maybe_compile,
    node_task,
    normalize_rows,
    number,
    parser,
    place,
    probabilities,
    samples_on_gpu,
    settings,
)
from torch.nn.parallel import DistributedDataParallel

import hopline.pipes as hp
from hopline.models import (
    SAGE,
    RankError,
    TrainingRun,
    evaluate,
    join_ranks,
    launch,
    ranks_are_started,
    train_epoch,
)


def prepare(args):
    """Preprocesses the data set, so that the ranks find it, and refuses one that does not fit."""
    dataset = load_dataset(args.dataset)
    check_graph(args.dataset, dataset)
    node_task(args.dataset, dataset)


def create_dataloader(args, graph, features, itemset, device, shuffle):
    # Every rank reads its share of the items, each item once; some ranks may read a mini-batch more
    # than others.
    datapipe = hp.DistributedItemSampler(
        itemset,
        args.batch_size,
        drop_last=False,
        shuffle=shuffle,
        drop_uneven_inputs=False,
        seed=args.seed,
    )
    if samples_on_gpu(args):
        datapipe = datapipe.copy_to(device)
    datapipe = datapipe.sample_neighbor(graph, args.fanout, **graph_cache(args))
    datapipe = datapipe.fetch_feature(features, node_feature_keys=["feat"])
    if args.normalize_features:
        datapipe = datapipe.transform(normalize_rows)
    datapipe = datapipe.copy_to(device)
    return hp.DataLoader(datapipe, num_workers=args.num_workers)


def run_rank(rank, world_size, device, args):
    torch.manual_seed(args.seed)  # for the initial weights
    dataset = load_dataset(args.dataset)
    task = node_task(args.dataset, dataset)
    graph, features = place(args, dataset.graph, dataset.feature, device)
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
    maybe_compile(args, model)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, weight_decay=args.weight_decay)
    metric = make_metric(args.metric, num_classes)

    run = TrainingRun(
        model,
        optimizer,
        train_loader,
        directory=args.checkpoint,
        every=args.checkpoint_every,
        settings={**settings(args), "ranks": world_size},
    )
    if args.resume:
        try:
            resumed = run.resume()
        except ValueError as error:
            fail(error) if rank == 0 else sys.exit(2)
        if resumed and rank == 0:
            batch = train_loader.state_dict()["batch"]
            print(f"resumed epoch {run.epoch} after {batch} mini-batches")

    while run.epoch < args.epochs:
        start = time.perf_counter()
        # Under Join: a rank without mini-batches waits for the others.
        loss = train_epoch(
            model,
            train_loader,
            optimizer,
            total=run.total,
            after_batch=run.after_batch,
            amp_dtype=amp_dtype(args),
        )
        value = evaluate(
            model, valid_loader, metric, forward=probabilities, amp_dtype=amp_dtype(args)
        )
        seconds = time.perf_counter() - start
        if rank == 0:
            print(
                f"epoch {run.epoch:03d} | loss {loss:.4f} | validation {args.metric} {value:.4f} "
                f"| {seconds:.1f} s",
                flush=True,
            )
        run.end_epoch(value)

    run.load_best()
    value = evaluate(model, test_loader, metric, forward=probabilities, amp_dtype=amp_dtype(args))
    if rank == 0:
        print(f"test {args.metric}: {value:.4f}", flush=True)


def main():
    p = parser(__doc__.splitlines()[0])
    p.add_argument("--gpu", type=gpu_ids, help="ids, e.g. 0,1: one rank each; by default 0")
    p.add_argument("--num-ranks", type=number(int, 1), help="CPU ranks instead of GPUs")
    args = p.parse_args()
    started = ranks_are_started()  # by torchrun or mpirun, which says how many there are
    if started:
        if args.num_ranks is not None:
            fail("--num-ranks is for ranks that this script starts; they are started already")
        here = os.environ.get("LOCAL_WORLD_SIZE") or os.environ["OMPI_COMM_WORLD_LOCAL_SIZE"]
        args.num_ranks = ranks_here = int(here)
        on_gpus = torch.cuda.is_available() if args.mode is None else args.mode != "cpu-cpu"
        if args.gpu or on_gpus:
            args.gpu, args.num_ranks = args.gpu or list(range(ranks_here)), None
    elif args.num_ranks is None and args.gpu is None:
        if torch.cuda.is_available() or args.mode not in (None, "cpu-cpu"):
            args.gpu = [0]
        else:
            args.num_ranks = 2
    if args.num_ranks is not None:
        if args.gpu is not None or args.mode not in (None, "cpu-cpu"):
            fail("--num-ranks is for ranks on the CPU: it does not go with --gpu or a cuda mode")
        args.mode = "cpu-cpu"
    else:
        args.mode = args.mode or "pinned-cuda"
        if args.mode == "cpu-cpu":
            fail("--mode cpu-cpu trains on the CPU: give --num-ranks instead of --gpu")
    check(args)
    prepare(args)

    try:
        if started:
            join_ranks(run_rank, args, gpus=args.gpu)
        else:
            launch(run_rank, args.num_ranks or len(args.gpu), args, gpus=args.gpu)
    except ValueError as error:
        fail(error)
    except RankError as error:
        if error.exit_code == 2:
            sys.exit(2)  # the rank has said why
        print(f"error: {error}", file=sys.stderr)
        code = error.exit_code or 1
        sys.exit(code if code > 0 else 128 - code)


if __name__ == "__main__":
    main()
