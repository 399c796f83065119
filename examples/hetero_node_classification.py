"""Trains R-GCN on a graph with edge types.

python examples/hetero_node_classification.py
python examples/hetero_node_classification.py --num-bases 0 --fanout 10,10

"debian" comes as a graph of one type with an edge attribute `relation`; here each relation becomes
an edge type. A data set with types of its own is taken as it is (--dataset FOLDER).
"""

from __future__ import annotations

import time

import torch
from options import (
    amp_dtype,
    begin,
    check,
    check_features,
    fail,
    graph_cache,
    load_dataset,
    make_metric,
    maybe_compile,
    node_task,
    number,
    parser,
    place,
    print_epoch,
    samples_on_gpu,
    settings,
)

import hopline.pipes as hp
from hopline.models import RGCN, TrainingRun, evaluate, train_epoch


def typed_by_relation(dataset):
    """Graph, features and item sets of "debian", with an edge type for each relation."""
    graph, task = dataset.graph, dataset.tasks[0]
    src, dst = graph.indices.long(), hp.expand_indptr(graph.csc_indptr, torch.int64)
    relation = graph.edge_attributes["relation"].reshape(-1)
    edges = {
        f"package:{name}:package": (src[relation == i], dst[relation == i])
        for i, name in enumerate(task.metadata["relation_names"])
    }
    typed = hp.from_coo(edges, num_nodes={"package": graph.total_num_nodes})
    feature = dataset.feature["node", None, "feat"]
    features = hp.BasicFeatureStore({("node", "package", "feat"): feature})
    sets = (task.train_set, task.validation_set, task.test_set)
    return typed, features, [hp.HeteroItemSet({"package": itemset}) for itemset in sets]


def read_dataset(name):
    dataset = load_dataset(name)
    task = node_task(name, dataset)
    if dataset.graph.is_heterogeneous:
        sets = [task.train_set, task.validation_set, task.test_set]
        check_features(name, dataset.feature, list(dataset.graph.node_type_to_id))
        return dataset.graph, dataset.feature, sets, task.metadata["num_classes"]
    if "relation" not in (dataset.graph.edge_attributes or {}):
        fail(f"--dataset {name} has neither types nor an edge attribute 'relation'")
    if "relation_names" not in task.metadata:
        fail(f"--dataset {name}: its task has no relation_names, one for each value of 'relation'")
    check_features(name, dataset.feature, [None])
    return *typed_by_relation(dataset), task.metadata["num_classes"]


def create_dataloader(args, graph, features, itemset, keys, target, device, shuffle):
    def take_labels(minibatch):
        minibatch.labels = minibatch.labels[target]
        return minibatch

    datapipe = hp.ItemSampler(itemset, args.batch_size, shuffle=shuffle, seed=args.seed)
    if samples_on_gpu(args):
        datapipe = datapipe.copy_to(device)
    datapipe = datapipe.sample_neighbor(graph, args.fanout, **graph_cache(args))
    datapipe = datapipe.fetch_feature(features, node_feature_keys=keys)
    datapipe = datapipe.transform(take_labels).copy_to(device)
    return hp.DataLoader(datapipe, num_workers=args.num_workers)


def main():
    p = parser(__doc__.splitlines()[0])
    p.set_defaults(fanout="20,20")
    p.add_argument("--num-bases", type=number(int, 0), default=4, help="of the relations' weights; "
                   "0: each relation has weights of its own")  # fmt: skip
    args = p.parse_args()
    check(args)
    torch.manual_seed(args.seed)  # for the initial weights
    device = torch.device("cpu" if args.mode == "cpu-cpu" else "cuda:0")

    graph, features, sets, num_classes = read_dataset(args.dataset)
    target, *others = sets[0].itemsets
    if others:
        fail(f"--dataset {args.dataset} has labels of {[target, *others]}; expected one node type")
    graph, features = place(args, graph, features, device)
    keys = {ntype: ["feat"] for ntype in graph.node_type_to_id}
    train_loader, valid_loader, test_loader = (
        create_dataloader(args, graph, features, itemset, keys, target, device, i == 0)
        for i, itemset in enumerate(sets)
    )

    in_sizes = {ntype: features.size("node", ntype, "feat")[0] for ntype in keys}
    model = RGCN(in_sizes, args.hidden, num_classes, list(graph.edge_type_to_id),
                 len(args.fanout), args.dropout, num_bases=args.num_bases or None)  # fmt: skip
    model = model.to(device)
    maybe_compile(args, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, weight_decay=args.weight_decay)
    metric = make_metric(args.metric, num_classes)

    def logits(model, minibatch):
        x = {ntype: rows for (ntype, _), rows in minibatch.node_features.items()}
        return model(minibatch.blocks, x)[target]

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
            forward=logits,
            total=run.total,
            after_batch=run.after_batch,
            amp_dtype=amp_dtype(args),
        )
        value = evaluate(model, valid_loader, metric, forward=logits, amp_dtype=amp_dtype(args))
        print_epoch(run.epoch, loss, args.metric, value, time.perf_counter() - start)
        run.end_epoch(value)

    run.load_best()
    value = evaluate(model, test_loader, metric, forward=logits, amp_dtype=amp_dtype(args))
    print(f"test {args.metric}: {value:.4f}")


if __name__ == "__main__":
    main()
