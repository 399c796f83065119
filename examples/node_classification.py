"""Trains GraphSAGE on sampled neighbourhoods, in one process.

python examples/node_classification.py
python examples/node_classification.py --dataset FOLDER --fanout 15,10,5 --num-workers 2
python examples/node_classification.py --checkpoint runs/1 --resume
python examples/node_classification.py --mode pinned-cuda --gpu-cache-size 100000000 --amp bf16
"""

from __future__ import annotations

import time

import torch
from options import (
    amp_dtype,
    begin,
    check,
    check_graph,
    graph_cache,
    load_dataset,
    make_metric,
    maybe_compile,
    node_task,
    normalize_rows,
    parser,
    place,
    print_epoch,
    probabilities,
    samples_on_gpu,
    settings,
)

import hopline.pipes as hp
from hopline.models import SAGE, TrainingRun, evaluate, train_epoch


def create_dataloader(args, graph, features, itemset, device, shuffle):
    datapipe = hp.ItemSampler(itemset, args.batch_size, shuffle=shuffle, seed=args.seed)
    if samples_on_gpu(args):
        datapipe = datapipe.copy_to(device)
    datapipe = datapipe.sample_neighbor(graph, args.fanout, **graph_cache(args))
    datapipe = datapipe.fetch_feature(features, node_feature_keys=["feat"])
    if args.normalize_features:
        datapipe = datapipe.transform(normalize_rows)
    datapipe = datapipe.copy_to(device)
    return hp.DataLoader(datapipe, num_workers=args.num_workers)


def main():
    args = parser(__doc__.splitlines()[0]).parse_args()
    check(args)
    torch.manual_seed(args.seed)  # for the initial weights
    device = torch.device("cpu" if args.mode == "cpu-cpu" else "cuda:0")

    dataset = load_dataset(args.dataset)
    check_graph(args.dataset, dataset)
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
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, weight_decay=args.weight_decay)
    metric = make_metric(args.metric, num_classes)

    run = TrainingRun(
        model,
        optimizer,
        train_loader,
        directory=args.checkpoint,
        every=args.checkpoint_every,
        settings=settings(args),
    )
    begin(args, run, train_loader)
    while run.epoch < args.epochs:
        start = time.perf_counter()
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
        print_epoch(run.epoch, loss, args.metric, value, time.perf_counter() - start)
        run.end_epoch(value)

    run.load_best()
    value = evaluate(model, test_loader, metric, forward=probabilities, amp_dtype=amp_dtype(args))
    print(f"test {args.metric}: {value:.4f}")


if __name__ == "__main__":
    main()
