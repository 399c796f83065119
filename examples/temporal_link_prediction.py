"""Trains GraphSAGE to predict who rates whom next, from what was known before.

python examples/temporal_link_prediction.py --dataset FOLDER

The data set has edges with an attribute `timestamp`, and a link prediction task whose item sets
hold `seeds` [n, 2] and `timestamp` [n]. Nodes need no features: each has a row that is learned.
"""

from __future__ import annotations

import time

import torch
import torch.nn.functional as F
from options import (
    amp_dtype,
    begin,
    check,
    fail,
    load_dataset,
    maybe_compile,
    number,
    parser,
    place,
    print_epoch,
    samples_on_gpu,
    settings,
)
from torch import nn

import hopline.pipes as hp
from hopline.models import (
    SAGE,
    LinkMetrics,
    LinkPredictor,
    MLPPredictor,
    TrainingRun,
    evaluate_links,
    train_epoch,
)


class NodeRows(nn.Module):
    """GraphSAGE over learned rows."""

    def __init__(self, num_nodes, size, num_layers, dropout):
        super().__init__()
        self.rows = nn.Embedding(num_nodes, size)
        self.sage = SAGE(size, size, size, num_layers, dropout)

    def forward(self, blocks, nodes):
        """Rows of the last block's destinations."""
        return self.sage(blocks, self.rows(nodes))


def scores(model, minibatch):
    return model(minibatch.blocks, minibatch.input_nodes, minibatch.compacted_seeds)


def both_directions(graph):
    """The same edges with their reverses; an edge and its reverse have one time."""
    dst = hp.expand_indptr(graph.csc_indptr, torch.int64)
    edges = hp.add_reverse_edges(torch.stack([graph.indices.long(), dst], 1))
    times = graph.edge_attributes["timestamp"].reshape(-1).repeat(2)
    return hp.from_coo(
        *edges.unbind(1), graph.total_num_nodes, edge_attributes={"timestamp": times}
    )


def create_dataloader(args, graph, itemset, device, train):
    datapipe = hp.ItemSampler(itemset, args.batch_size, shuffle=train, seed=args.seed)
    if samples_on_gpu(args):
        datapipe = datapipe.copy_to(device)
    datapipe = datapipe.sample_uniform_negative(graph, 1 if train else args.eval_negatives)
    # No edge as late as its seed is sampled: the seeds themselves need not be excluded.
    datapipe = getattr(datapipe, args.sample_mode)(
        graph, args.fanout, edge_timestamp_attr_name="timestamp", pre_time_window=args.window
    )
    return hp.DataLoader(datapipe.copy_to(device), num_workers=args.num_workers)


def figures(args, model, loader):
    return evaluate_links(model, loader, LinkMetrics(), forward=scores, amp_dtype=amp_dtype(args))


def main():
    p = parser(__doc__.splitlines()[0], classes=False)
    p.set_defaults(fanout="10,10", epochs=10, batch_size=512, lr=0.003, hidden=64, dropout=0.2)
    modes = ("temporal_sample_neighbor", "temporal_sample_layer_neighbor")
    p.add_argument("--sample-mode", choices=modes, default=modes[0])
    p.add_argument("--window", type=number(int, 1), help="sample only edges that are newer than "
                   "the seed's time minus this")  # fmt: skip
    p.add_argument("--eval-negatives", type=number(int, 1), default=20, help="for each edge")
    args = p.parse_args()
    check(args)
    torch.manual_seed(args.seed)  # for the initial weights
    device = torch.device("cpu" if args.mode == "cpu-cpu" else "cuda:0")

    dataset = load_dataset(args.dataset)
    task = dataset.tasks[0]
    if "timestamp" not in (dataset.graph.edge_attributes or {}) or task.train_set.num_items < 2:
        fail(f"--dataset {args.dataset} has no edge attribute 'timestamp' or no times of its seeds")
    no_features = hp.BasicFeatureStore({})
    graph, _ = place(args, both_directions(dataset.graph), no_features, device)
    train_loader, valid_loader, test_loader = (
        create_dataloader(args, graph, itemset, device, itemset is task.train_set)
        for itemset in (task.train_set, task.validation_set, task.test_set)
    )

    encoder = NodeRows(graph.total_num_nodes, args.hidden, len(args.fanout), args.dropout)
    model = LinkPredictor(encoder, MLPPredictor(args.hidden, args.hidden)).to(device)
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
            forward=scores,
            total=run.total,
            after_batch=run.after_batch,
            amp_dtype=amp_dtype(args),
        )
        value = figures(args, model, valid_loader)["auc"]
        print_epoch(run.epoch, loss, "auc", value, time.perf_counter() - start)
        run.end_epoch(value)

    run.load_best()
    for name, value in figures(args, model, test_loader).items():
        print(f"test {name}: {value:.4f}")


if __name__ == "__main__":
    main()
