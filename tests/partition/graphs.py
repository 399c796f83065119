"""Graphs whose every value names what it belongs to, and a plain twin of partitioning."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

import hopline.pipes as hp

NODES = {"item": 40, "nobody": 0, "tag": 6, "user": 90}
EDGES = {
    "item:bought by:user": 150,
    "item:in:item": 60,
    "tag:of:item": 50,
    "user:buys:item": 200,
    "user:follows:user": 300,
    "user:never:tag": 0,
}


def homogeneous(nodes: int = 120, edges: int = 700, seed: int = 0) -> Any:
    """A multigraph with self-loops, repeats and isolated nodes; a data set around it."""
    rng = np.random.default_rng(seed)
    source, column = (torch.from_numpy(rng.integers(0, nodes * 4 // 5, edges)) for _ in range(2))
    graph = hp.from_coo(
        source,
        column,
        num_nodes=nodes,
        node_attributes={"time": torch.arange(nodes)},
        edge_attributes={"weight": torch.arange(edges) + 0.5, "time": torch.arange(edges) % 90},
        include_original_edge_id=True,
    )
    features = {
        ("node", None, "id"): hp.TorchBasedFeature(torch.arange(nodes)[:, None].to(torch.float32)),
        ("node", None, "half"): hp.TorchBasedFeature(
            torch.arange(nodes * 3).view(-1, 3).bfloat16()
        ),
        ("edge", None, "id"): hp.TorchBasedFeature(torch.arange(edges)[:, None] + 100),
    }
    seeds = torch.from_numpy(rng.permutation(nodes)[: nodes // 2])
    pairs = torch.stack((source, column), 1)[: edges // 3]
    tasks = [
        SimpleNamespace(
            metadata={"name": "nodes", "num_classes": 7},
            train_set=hp.ItemSet((seeds, seeds % 7), names=("seeds", "labels")),
            validation_set=hp.ItemSet(torch.arange(nodes), names="seeds"),
            test_set=None,
        ),
        SimpleNamespace(
            metadata={"name": "links"},
            train_set=hp.ItemSet((pairs, torch.arange(len(pairs))), names=("seeds", "timestamp")),
            validation_set=None,
            test_set=None,
        ),
    ]
    return SimpleNamespace(graph=graph, feature=hp.BasicFeatureStore(features), tasks=tasks)


def heterogeneous(seed: int = 0) -> Any:
    """Types without nodes, without edges, joined to themselves; a data set around them."""
    rng = np.random.default_rng(seed)
    edges, weights = {}, []
    for name, count in EDGES.items():
        ends = name.split(":")[0], name.split(":")[2]
        edges[name] = tuple(torch.from_numpy(rng.integers(0, NODES[end], count)) for end in ends)
        weights.append(torch.arange(count) + 0.5)
    bought = [end[:150] for end in edges["user:buys:item"]]
    edges["item:bought by:user"] = bought[1], bought[0]
    graph = hp.from_coo(
        edges,
        num_nodes=NODES,
        node_attributes={"time": {name: torch.arange(count) for name, count in NODES.items()}},
        edge_attributes={
            "weight": dict(zip(edges, weights, strict=True)),
            "time": {name: torch.arange(count) % 90 for name, count in EDGES.items()},
        },
        include_original_edge_id=True,
    )
    features: dict[Any, Any] = {}
    for name, count in NODES.items():
        features["node", name, "id"] = hp.TorchBasedFeature(torch.arange(count)[:, None])
    for name, count in EDGES.items():
        features["edge", name, "id"] = hp.TorchBasedFeature(torch.arange(count)[:, None] + 100)
    users, items = (torch.from_numpy(rng.permutation(NODES[n])[:20]) for n in ("user", "item"))
    pairs = torch.stack(edges["user:buys:item"], 1)
    tasks = [
        SimpleNamespace(
            metadata={"name": "nodes"},
            train_set=hp.HeteroItemSet(
                {
                    "user": hp.ItemSet((users, users % 7), names=("seeds", "labels")),
                    "item": hp.ItemSet((items, items % 7), names=("seeds", "labels")),
                }
            ),
            validation_set=hp.HeteroItemSet({"user:buys:item": hp.ItemSet(pairs, names="seeds")}),
            test_set=None,
        )
    ]
    return SimpleNamespace(graph=graph, feature=hp.BasicFeatureStore(features), tasks=tasks)
