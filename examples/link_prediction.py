"""Trains GraphSAGE to predict edges: which package is related to which?

python examples/link_prediction.py
python examples/link_prediction.py --shuffle-features   # a control: features of other nodes
python examples/link_prediction.py --dataset FOLDER --fanout 15,10 --negative-ratio 4
"""

from __future__ import annotations

import time

import torch
import torch.nn.functional as F
from options import (
    amp_dtype,
    begin,
    check,
    check_graph,
    graph_cache,
    load_dataset,
    maybe_compile,
    number,
    parser,
    place,
    print_epoch,
    samples_on_gpu,
    settings,
)

import hopline.pipes as hp
from hopline.models import (
    SAGE,
    DotPredictor,
    LinkMetrics,
    LinkPredictor,
    TrainingRun,
    evaluate_links,
    forward_links,
    train_epoch,
)


def split_edges(graph, seed):
    """Pairs of nodes for training (90 %), validation and test; each pair in one direction.

    Pairs of validation and test are in no graph that messages pass along.
    """
    src, dst = graph.indices.long(), hp.expand_indptr(graph.csc_indptr, torch.int64)
    pairs = torch.unique(torch.stack([torch.minimum(src, dst), torch.maximum(src, dst)], 1), dim=0)
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(seed))
    # A predicted edge has no preferred direction: so has a negative.
    flip = torch.rand(len(pairs), generator=torch.Generator().manual_seed(seed)) < 0.5
    pairs = torch.where(flip.unsqueeze(1), pairs.flip(1), pairs)
    held_out = len(pairs) // 20
    return (
        pairs[order[2 * held_out :]],
        pairs[order[:held_out]],
        pairs[order[held_out : 2 * held_out]],
    )


def create_dataloader(args, graph, everything, features, pairs, device, train):
    items = hp.ItemSet(pairs, names="seeds")
    datapipe = hp.ItemSampler(items, args.batch_size, shuffle=train, seed=args.seed)
    if samples_on_gpu(args):
        datapipe = datapipe.copy_to(device)
    datapipe = datapipe.sample_uniform_negative(
        everything, args.negative_ratio if train else args.eval_negatives, exclude_true_edges=True
    )
    datapipe = datapipe.sample_neighbor(graph, args.fanout, **graph_cache(args))
    if train:
        datapipe = datapipe.exclude_seed_edges(include_reverse_edges=True)
    datapipe = datapipe.fetch_feature(features, node_feature_keys=["feat"])
    datapipe = datapipe.copy_to(device)
    return hp.DataLoader(datapipe, num_workers=args.num_workers)


def main():
    p = parser(__doc__.splitlines()[0], classes=False)
    p.set_defaults(fanout="10,10", batch_size=2048, epochs=3, lr=0.003, hidden=128, dropout=0.2)
    p.add_argument("--negative-ratio", type=number(int, 1), default=1, help="in training")
    p.add_argument("--eval-negatives", type=number(int, 1), default=20, help="for each edge")
    p.add_argument("--shuffle-features", action="store_true", help="a control: a model that has "
                   "no use for features does as well")  # fmt: skip
    args = p.parse_args()
    check(args)
    torch.manual_seed(args.seed)  # for the initial weights
    device = torch.device("cpu" if args.mode == "cpu-cpu" else "cuda:0")

    dataset = load_dataset(args.dataset)
    check_graph(args.dataset, dataset)
    everything, feature = dataset.graph, dataset.feature["node", None, "feat"]
    rows = feature.read().float()
    if args.shuffle_features:
        rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(args.seed))]
    features = hp.BasicFeatureStore({("node", None, "feat"): hp.TorchBasedFeature(rows)})

    train, valid, test = split_edges(everything, args.seed)
    graph = hp.from_coo(*hp.add_reverse_edges(train).unbind(1), everything.total_num_nodes)
    graph, features = place(args, graph, features, device)
    everything, _ = place(args, everything, hp.BasicFeatureStore({}), device)
    train_loader, valid_loader, test_loader = (
        create_dataloader(args, graph, everything, features, pairs, device, i == 0)
        for i, pairs in enumerate((train, valid, test))
    )

    encoder = SAGE(rows.shape[1], args.hidden, args.hidden, len(args.fanout), args.dropout)
    model = LinkPredictor(encoder, DotPredictor()).to(device)
    maybe_compile(args, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, weight_decay=args.weight_decay)
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
            F.binary_cross_entropy_with_logits,
            forward=forward_links,
            total=run.total,
            after_batch=run.after_batch,
            amp_dtype=amp_dtype(args),
        )
        values = evaluate_links(model, valid_loader, LinkMetrics(), amp_dtype=amp_dtype(args))
        value = values["auc"]
        print_epoch(run.epoch, loss, "auc", value, time.perf_counter() - start)
        run.end_epoch(value)

    run.load_best()
    values = evaluate_links(model, test_loader, LinkMetrics(), amp_dtype=amp_dtype(args))
    for name, value in values.items():
        print(f"test {name}: {value:.4f}")


if __name__ == "__main__":
    main()
