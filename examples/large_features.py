"""Trains GraphSAGE with features on disk, and a cache of the rows in use in memory.

python examples/large_features.py
python examples/large_features.py --cache-size 16000000 --cache-policy s3-fifo
python examples/large_features.py --cache-policy static     # rows chosen by a look ahead

A data set with `in_memory: false` for its feature is read where it is. The features of others, as
of "debian", are first written to a file.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from options import (
    amp_dtype,
    begin,
    check,
    check_graph,
    load_dataset,
    make_metric,
    maybe_compile,
    node_task,
    number,
    parser,
    place,
    print_epoch,
    probabilities,
    samples_on_gpu,
    settings,
)

import hopline.pipes as hp
from hopline.models import SAGE, TrainingRun, evaluate, train_epoch

POLICIES = ("sieve", "s3-fifo", "lru", "clock", "static")


def on_disk(feature, folder):
    """The feature, read from disk."""
    if isinstance(feature, hp.DiskBasedFeature):
        return feature
    path = Path(folder) / "feat.npy"
    np.save(path, feature.read().numpy())
    return hp.DiskBasedFeature(path)


def cached(args, feature, chain):
    """The feature behind a cache of so many bytes."""
    if args.cache_policy != "static":
        return hp.cpu_cached_feature(feature, args.cache_size, args.cache_policy)
    rows = hp.bytes_to_number_of_items(args.cache_size, feature.read(torch.tensor([0])))
    hot = hp.hot_set_by_presampling(chain.copy_to("cpu"), min(rows, feature.count()), batches=20)
    return hp.cpu_cached_feature(feature, args.cache_size, "static", hot_ids=hot)


def main():
    p = parser(__doc__.splitlines()[0])
    p.add_argument("--cache-size", type=number(int, 0), default=8 << 20, help="bytes of rows")
    p.add_argument("--cache-policy", choices=POLICIES, default="sieve")
    args = p.parse_args()
    check(args)
    torch.manual_seed(args.seed)  # for the initial weights
    device = torch.device("cpu" if args.mode == "cpu-cpu" else "cuda:0")

    dataset = load_dataset(args.dataset)
    check_graph(args.dataset, dataset)
    graph, _ = place(args, dataset.graph, hp.BasicFeatureStore({}), device)
    task = node_task(args.dataset, dataset)

    def sampled(itemset, shuffle):
        chain = hp.ItemSampler(itemset, args.batch_size, shuffle=shuffle, seed=args.seed)
        if samples_on_gpu(args):
            chain = chain.copy_to(device)
        # Sources that keep their random number over several mini-batches are found in the cache.
        return chain.sample_layer_neighbor(graph, args.fanout, batch_dependency=64)

    with tempfile.TemporaryDirectory() as folder:
        disk = on_disk(dataset.feature["node", None, "feat"], folder)
        feature = cached(args, disk, sampled(task.train_set, True))
        on_gpu = feature
        if args.gpu_cache_size:  # before the cache in memory, which is before the disk
            on_gpu = hp.gpu_cached_feature(feature, args.gpu_cache_size, device=device)
        features = hp.BasicFeatureStore({("node", None, "feat"): on_gpu})
        train_loader, valid_loader, test_loader = (
            hp.DataLoader(
                sampled(itemset, itemset is task.train_set)
                .fetch_feature(features, node_feature_keys=["feat"])
                .copy_to(device),
                num_workers=args.num_workers,
            )
            for itemset in (task.train_set, task.validation_set, task.test_set)
        )
        train(args, disk.size()[0], task, train_loader, valid_loader, test_loader, device)
    print(f"miss rate: {feature.miss_rate:.4f}")


def train(args, in_size, task, train_loader, valid_loader, test_loader, device):
    num_classes = task.metadata["num_classes"]
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
