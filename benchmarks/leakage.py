"""What it does to a link predictor when it sees the edges that it is trained to predict.

    python benchmarks/leakage.py

Trains the same model twice on one graph: with the seed edges left out of the sampled hops, and with
them in ("leakage"). Prints the AUC over training edges as each model saw them in training, and over
edges that no graph held. A model that sees its answers scores high in training and lower after.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F

import hopline.pipes as hp
from hopline.models import (
    SAGE,
    DotPredictor,
    LinkMetrics,
    LinkPredictor,
    evaluate_links,
    forward_links,
    train_epoch,
)


def communities(nodes: int, degree: int, groups: int, seed: int) -> torch.Tensor:
    """int64[n, 2] distinct pairs u < v, nine of ten within a group."""
    generator = torch.Generator().manual_seed(seed)
    edges = nodes * degree // 2
    src = torch.randint(0, nodes, (edges,), generator=generator)
    inside = (torch.randint(0, nodes // groups, (edges,), generator=generator) * groups
              + src % groups).clamp(max=nodes - 1)  # fmt: skip
    outside = torch.randint(0, nodes, (edges,), generator=generator)
    dst = torch.where(torch.rand(edges, generator=generator) < 0.9, inside, outside)
    pairs = torch.stack([torch.minimum(src, dst), torch.maximum(src, dst)], 1)
    return torch.unique(pairs[src != dst], dim=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--degree", type=int, default=8)
    parser.add_argument("--groups", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    generator = torch.Generator().manual_seed(args.seed)
    pairs = communities(args.nodes, args.degree, args.groups, args.seed)
    pairs = pairs[torch.randperm(len(pairs), generator=generator)]
    held_out, train = pairs[: len(pairs) // 10], pairs[len(pairs) // 10 :]
    graph = hp.from_coo(*hp.add_reverse_edges(train).unbind(1), args.nodes)
    whole = hp.from_coo(*hp.add_reverse_edges(pairs).unbind(1), args.nodes)
    rows = torch.randn(args.nodes, 32, generator=generator)
    store = hp.BasicFeatureStore({("node", None, "feat"): hp.TorchBasedFeature(rows)})

    def loader(seeds: torch.Tensor, exclude: bool, shuffle: bool = False) -> hp.DataLoader:
        items = hp.ItemSet(seeds, names="seeds")
        chain = hp.ItemSampler(items, 256, shuffle=shuffle, seed=args.seed)
        negatives = chain.sample_uniform_negative(whole, 1, exclude_true_edges=True)
        sampled = negatives.sample_neighbor(graph, [-1])
        if exclude:
            sampled = sampled.exclude_seed_edges(include_reverse_edges=True)
        return hp.DataLoader(sampled.fetch_feature(store, ["feat"]))

    for name, exclude in (("seed edges excluded", True), ("leakage", False)):
        torch.manual_seed(args.seed)
        model = LinkPredictor(SAGE(32, 64, 64, 1, 0.0), DotPredictor())
        optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
        training = loader(train, exclude, shuffle=True)
        for _ in range(args.epochs):
            train_epoch(
                model, training, optimizer, F.binary_cross_entropy_with_logits,
                forward=forward_links,
            )  # fmt: skip
        seen = evaluate_links(model, loader(train, exclude), LinkMetrics())["auc"]
        unseen = evaluate_links(model, loader(held_out, False), LinkMetrics())["auc"]
        print(f"{name:20} AUC in training {seen:.4f}, on held-out edges {unseen:.4f}")


if __name__ == "__main__":
    main()
