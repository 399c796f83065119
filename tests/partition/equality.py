"""Mini-batches over parts against those of the whole graph: chains and the comparison."""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

import hopline.pipes as hp
from hopline.partition import load_tasks, partition_graph
from tests.partition.equality_data import DATA, ITEMS, ODD

REVERSE = {"user:buys:item": "item:bought by:user", "user:follows:user": "user:follows:user"}
NO_EDGES: list[dict[Any, Any]] = []


def cut(dataset, folder, parts, **options):
    """Cuts; returns the ids before, `{type: ids by new id}` of nodes and of edges."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # small parts cannot always be balanced
        maps = partition_graph(dataset, "g", parts, folder, return_mapping=True, **options)
    return tuple(typed(ids) for ids in maps)


def typed(value):
    return value if isinstance(value, dict) else {"": value}


# -------------------------------------------------------------------------------------------------
# Chains


@dataclass(frozen=True)
class Chain:
    """How mini-batches are made of items, which are among ITEMS."""

    items: str
    make: Callable[[Any, Any, list[Any]], Any]


def excluded(chain, graph):
    options = {"reverse_etypes_mapping": REVERSE} if graph.edge_type_to_id else {}
    return chain.exclude_seed_edges(include_reverse_edges=True, **options)


def by_edge_type(graph):
    """Another fanout for each type; 0 and all are among them."""
    return [3] if graph.num_edge_types == 1 else [(2, 0, -1, 1, 3, 2)[: graph.num_edge_types]] * 2


CHAINS = {
    "uniform": Chain("nodes", lambda c, g, f: c.sample_neighbor(g, f)),
    "replace": Chain("nodes", lambda c, g, f: c.sample_neighbor(g, f, replace=True)),
    "by type": Chain("nodes", lambda c, g, f: c.sample_neighbor(g, by_edge_type(g))),
    "all": Chain("nodes", lambda c, g, f: c.sample_neighbor(g, [-1, -1])),
    "in-edges": Chain("nodes", lambda c, g, f: c.sample_in_subgraph(g)),
    "repeated": Chain("nodes", lambda c, g, f: c.sample_neighbor(g, f, deduplicate=False)),
    "weighted": Chain("nodes", lambda c, g, f: c.sample_neighbor(g, f, prob_name="weight")),
    "weighted replace": Chain(
        "nodes", lambda c, g, f: c.sample_neighbor(g, f, replace=True, prob_name="weight")
    ),
    "labor": Chain("nodes", lambda c, g, f: c.sample_layer_neighbor(g, f)),
    "labor weighted": Chain(
        "nodes",
        lambda c, g, f: c.sample_layer_neighbor(
            g, f, prob_name="weight", layer_dependency=True, batch_dependency=3
        ),
    ),
    "temporal": Chain(
        "nodes", lambda c, g, f: c.temporal_sample_neighbor(g, f, node_timestamp_attr_name="time")
    ),
    "temporal window": Chain(
        "nodes",
        lambda c, g, f: c.temporal_sample_neighbor(
            g, f, replace=True, edge_timestamp_attr_name="time", pre_time_window=40
        ),
    ),
    "temporal labor": Chain(
        "nodes",
        lambda c, g, f: c.temporal_sample_layer_neighbor(
            g, f, node_timestamp_attr_name="time", edge_timestamp_attr_name="time"
        ),
    ),
    "links": Chain("links", lambda c, g, f: c.sample_neighbor(g, f).exclude_seed_edges()),
    "hyperlinks": Chain("hyperlinks", lambda c, g, f: c.sample_neighbor(g, f)),
    "negatives": Chain(
        "links", lambda c, g, f: excluded(c.sample_uniform_negative(g, 2).sample_neighbor(g, f), g)
    ),
    "negatives that are no edges": Chain(
        "links",
        lambda c, g, f: excluded(
            c.sample_uniform_negative(g, 2, exclude_true_edges=True).sample_neighbor(g, [-1, -1]), g
        ),
    ),
    "negatives in time": Chain(
        "links",
        lambda c, g, f: c.sample_uniform_negative(
            g, 3, exclude_true_edges=True, node_timestamp_attr_name="time"
        ).temporal_sample_neighbor(g, f, node_timestamp_attr_name="time"),
    ),
}


def chain_of(name, tasks, graph, store, batch_size, ranks=None):
    """A chain down to the features of nodes and edges."""
    chain = CHAINS[name]
    items = tasks[ITEMS.index(chain.items)].train_set
    if ranks is None:
        source = hp.ItemSampler(items, batch_size, shuffle=True, seed=3)
    else:
        source = hp.DistributedItemSampler(
            items, batch_size, shuffle=True, seed=3, rank=ranks[0], num_replicas=ranks[1]
        )
    each = graph.num_edge_types
    made = chain.make(source, graph, [[3] * each if each > 1 else 5, 4])
    if graph.edge_type_to_id is None:
        keys = store.keys()
        names = [name for domain, _, name in keys if domain == "node"]
        return made.fetch_feature(store, names, ["id"])
    node_keys = {kind: ["id"] for kind in graph.node_type_to_id}
    return made.fetch_feature(store, node_keys, {kind: ["id"] for kind in graph.edge_type_to_id})


def made(chain: Iterable[Any], most: int | None = None) -> tuple[list[Any], type | None]:
    """The mini-batches, or the first of them, and the kind of error that ended them."""
    found = []
    try:
        for minibatch in itertools.islice(chain, most):
            found.append(minibatch)
    except ValueError as error:
        return found, type(error)
    return found, None


@functools.cache
def known(data):
    return DATA[data]() if data in DATA else ODD[data].make()


@functools.cache
def expected(data, name, batch_size, ranks=None):
    """What the whole graph gives."""
    dataset = known(data)
    options = (dataset.tasks, dataset.graph, dataset.feature, batch_size, ranks)
    return made(chain_of(name, *options))


# -------------------------------------------------------------------------------------------------
# Comparison


def check_chain(data, name, graph, store, maps, batch_size, ranks=None, most=None):
    """Compares the mini-batches of a chain, or the first; returns how many there were."""
    tasks = load_tasks(graph.path, graph.manifest)
    whole, error = expected(data, name, batch_size, ranks)
    found, found_error = made(chain_of(name, tasks, graph, store, batch_size, ranks), most)
    if most is None or len(whole) < most:
        assert found_error is error
    for a, b in zip(whole[:most], found, strict=True):
        check_same(a, b, *maps)
    return len(found)


def ends_of(kind, seeds):
    """Node type of each column of seeds."""
    if seeds.dim() == 1 or not kind:
        return [kind] * (1 if seeds.dim() == 1 else seeds.shape[1])
    kinds = kind.split(":")
    return kinds if seeds.shape[1] == 3 else [kinds[0], kinds[2]]


def check_same(single, parted, nodes, edges):
    """A mini-batch of the whole graph and one of parts; maps are ids before, by new ids."""
    assert single.key == parted.key
    for kind, seeds in typed(single.seeds).items():
        mine = typed(parted.seeds)[kind]
        assert mine.dtype == seeds.dtype
        back = [
            nodes[end][column.long()]
            for end, column in zip(ends_of(kind, seeds), mine.reshape(len(mine), -1).T, strict=True)
        ]
        assert torch.equal(torch.stack(back, 1).reshape(seeds.shape), seeds.long())
    assert typed(single.input_nodes).keys() == typed(parted.input_nodes).keys()
    for kind, ids in typed(single.input_nodes).items():
        mine = typed(parted.input_nodes)[kind]
        assert mine.dtype == ids.dtype
        assert torch.equal(nodes[kind][mine.long()], ids.long())
    for name in ("labels", "timestamp", "indexes", "compacted_seeds"):
        check_equal(getattr(single, name), getattr(parted, name))
    assert single.extra.keys() == parted.extra.keys()
    for a, b in zip(single.sampled_subgraphs, parted.sampled_subgraphs, strict=True):
        check_hop(a, b, nodes, edges)
    check_equal(single.node_features, parted.node_features)
    for a, b in zip(
        single.edge_features or NO_EDGES, parted.edge_features or NO_EDGES, strict=True
    ):
        check_equal(a, b)
    check_names(parted, nodes, edges)


def check_equal(a, b):
    """Two tensors, dicts of them, or None."""
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key, value in a.items():
            check_equal(value, b[key])
    elif a is not None:
        assert a.dtype == b.dtype
        assert torch.equal(a, b)


def check_hop(a, b, nodes, edges):
    assert typed(a.sampled_csc).keys() == typed(b.sampled_csc).keys()
    for kind, csc in typed(a.sampled_csc).items():
        other = typed(b.sampled_csc)[kind]
        check_equal(csc.indptr, other.indptr)
        check_equal(csc.indices, other.indices)
        ids = typed(b.original_edge_ids)[kind]
        assert torch.equal(edges[kind][ids], typed(a.original_edge_ids)[kind].long())
    for side in ("original_row_node_ids", "original_column_node_ids"):
        assert typed(getattr(a, side)).keys() == typed(getattr(b, side)).keys()
        for kind, ids in typed(getattr(a, side)).items():
            assert torch.equal(nodes[kind][typed(getattr(b, side))[kind].long()], ids.long())


def check_names(parted, nodes, edges):
    """Features name what they belong to, whatever the whole graph says."""
    for kind, ids in typed(parted.input_nodes).items():
        rows = parted.node_features.get((kind, "id") if kind else "id")
        if rows is not None:
            assert torch.equal(rows[:, 0].long(), nodes[kind][ids.long()])
    for hop, rows_of in zip(
        parted.sampled_subgraphs, parted.edge_features or NO_EDGES, strict=True
    ):
        for kind, ids in typed(hop.original_edge_ids).items():
            rows = rows_of.get((kind, "id") if kind else "id")
            assert (rows is None) <= (len(ids) == 0)
            if rows is not None:
                assert torch.equal(rows[:, 0], 100 + edges[kind][ids])
