"""Data sets that are cut for comparisons with the whole graph, and odd ways to cut them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

import hopline.pipes as hp
from tests.partition.graphs import heterogeneous, homogeneous

ITEMS = ("nodes", "links", "hyperlinks")


def with_items(dataset, *items):
    """The data set with three tasks, in the order of ITEMS; each with labels and times."""
    dataset.tasks = [
        SimpleNamespace(metadata={}, train_set=found, validation_set=None, test_set=None)
        for found in items
    ]
    return dataset


def columns(seeds):
    """Labels from 0 to 6; times from 5 on, so that some nodes exist and others do not."""
    return hp.ItemSet(
        (seeds, torch.arange(len(seeds)) % 7, torch.arange(len(seeds)) * 3 + 5),
        names=("seeds", "labels", "timestamp"),
    )


def untyped_data():
    dataset = homogeneous()
    seeds, pairs = dataset.tasks[0].train_set[:][0], dataset.tasks[1].train_set[:][0]
    triples = torch.arange(90).view(30, 3).int()
    return with_items(dataset, columns(seeds), columns(pairs[:80]), columns(triples))


def typed_data():
    dataset = heterogeneous()
    pairs = dataset.tasks[0].validation_set.itemsets["user:buys:item"][:]
    users = torch.randperm(90, generator=torch.Generator().manual_seed(0))
    graph = dataset.graph
    follows = graph.type_per_edge == graph.edge_type_to_id["user:follows:user"]
    ends = graph.indices, torch.arange(136).repeat_interleave(graph.csc_indptr.diff())
    first = graph.node_type_offset[graph.node_type_to_id["user"]]
    links = {
        "user:buys:item": columns(pairs[:50]),
        "user:follows:user": columns(torch.stack([e[follows] - first for e in ends], 1)[::15]),
    }
    nodes = {
        "tag": columns(torch.arange(6)),
        "user": columns(users[:40]),
        "item": columns(torch.arange(0, 40, 2)),
    }
    triples = torch.arange(24).view(8, 3) % 6
    hyperlinks = {kind: columns(triples) for kind in ("tag:user:item", "user:user:user")}
    return with_items(dataset, *map(hp.HeteroItemSet, (nodes, links, hyperlinks)))


def around(source, target, nodes):
    """A small graph whose features name what they belong to; all nodes and edges are items."""
    source, target = (torch.tensor(list(end), dtype=torch.int64) for end in (source, target))
    edges = len(source)
    graph = hp.from_coo(
        source, target, num_nodes=nodes,
        node_attributes={"time": torch.arange(nodes)},
        edge_attributes={"weight": torch.arange(edges) + 0.5, "time": torch.arange(edges)},
        include_original_edge_id=True,
    )  # fmt: skip
    features = {
        ("node", None, "id"): hp.TorchBasedFeature(torch.arange(nodes)[:, None]),
        ("edge", None, "id"): hp.TorchBasedFeature(torch.arange(edges)[:, None] + 100),
    }
    pairs = torch.stack((source, target), 1) if edges else torch.tensor([[0, 0], [0, nodes - 1]])
    dataset = SimpleNamespace(graph=graph, feature=hp.BasicFeatureStore(features))
    triples = torch.arange(3)[None] % nodes
    return with_items(dataset, *map(columns, (torch.arange(nodes), pairs, triples)))


DATA: dict[str, Callable[[], Any]] = {"homogeneous": untyped_data, "heterogeneous": typed_data}


def spread(nodes, parts):
    """Parts in turn, of those that are given."""
    return torch.tensor(parts).repeat(nodes)[:nodes]


def typed_parts(user, item, tag):
    return {
        "user": spread(90, user), "item": spread(40, item), "tag": spread(6, tag),
        "nobody": torch.empty(0, dtype=torch.int64),
    }  # fmt: skip


@dataclass(frozen=True)
class OddCase:
    """A data set and the part of each node."""

    make: Callable[[], Any]
    given: Any
    num_parts: int


NONE: list[int] = []
LOOPS = list(range(6))
ODD = {
    "a part without nodes": OddCase(untyped_data, spread(120, [0, 2, 3]), 4),
    "all in the last part": OddCase(untyped_data, spread(120, [2]), 3),
    "parts without edges": OddCase(untyped_data, (torch.arange(120) >= 100).long(), 2),
    "a part without a type": OddCase(typed_data, typed_parts([0, 1, 2], [1, 2], [2]), 3),
    "a part for each type": OddCase(typed_data, typed_parts([2], [0], [1]), 3),
    "a type alone and a part without nodes": OddCase(typed_data, typed_parts([3, 0], [3], [1]), 4),
    "a path": OddCase(lambda: around(range(9), range(1, 10), 10), torch.arange(10) // 5, 2),
    "a path, in turns": OddCase(lambda: around(range(9), range(1, 10), 10), spread(10, [1, 0]), 2),
    "out of one node": OddCase(
        lambda: around([3] * 7, [0, 1, 2, 4, 5, 6, 0], 9), spread(9, [0, 1, 2]), 3
    ),
    "into one node": OddCase(
        lambda: around([0, 1, 2, 4, 5, 6, 0], [3] * 7, 9), spread(9, [0, 1, 2]), 3
    ),
    "loops and nodes alone": OddCase(lambda: around(LOOPS, LOOPS, 9), spread(9, [2, 0, 1]), 3),
    "one pair many times": OddCase(lambda: around([0, 1] * 20, [1, 2] * 20, 4), torch.arange(4), 4),
    "no edges": OddCase(lambda: around(NONE, NONE, 5), spread(5, [1, 2]), 3),
    "one node": OddCase(lambda: around([0, 0], [0, 0], 1), spread(1, [1]), 2),
    "an edge to all but two": OddCase(
        lambda: around([0] * 198, range(2, 200), 200), spread(200, [0, 1]), 2
    ),
    "an edge to all": OddCase(lambda: around([0] * 4, range(4), 4), spread(4, [0, 1]), 2),
}
