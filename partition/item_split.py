"""item_split: a rank's share of an item set, near its own part."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from hopline.partition.dist_graph import DistGraph
from hopline.partition.split import check_graph, share_of_rank
from hopline.pipes.etypes import CANONICAL_ETYPE_DELIMITER, seed_type_str_to_ntypes
from hopline.pipes.items import HeteroItemSet, ItemSet

__all__ = ["item_split"]

Array = np.ndarray[Any, Any]


def item_split(
    items: ItemSet | HeteroItemSet, graph: DistGraph, batch_size: int = 1, drop_last: bool = False
) -> ItemSet | HeteroItemSet:
    """This rank's share of an item set; the shares of all ranks hold each item once.

    Shares are those of `node_split`: even, and of seeds near the rank's part as far as that allows.
    A node is with its owner, an edge, or several nodes in a row, with the owner of the last one.
    Labels and whatever else goes with a seed goes with it.

    Read the share with an `ItemSampler` of its own seed on each rank, such as `seed + rank`: with
    the same seed, two ranks make the same draws for a node that is in batch i of both.

    Args:
        items: with "seeds" by new ids, as `dataset.tasks` has them: integer[n] nodes or
            integer[n, k]; by node or edge type in a heterogeneous graph.
        graph: the parts, and the ranks that have them.
        batch_size: items a batch; read where `drop_last` is set.
        drop_last: the loader leaves out a last batch that is not full.

    Returns:
        Items of the same kind, in the same order.

    Raises:
        TypeError: it is no item set, seeds are no integers, or graph is no DistGraph.
        ValueError: nothing in it is called "seeds", or they are of another shape.
        IndexError: a seed is outside the graph.
        KeyError: there is no such type.
    """
    if not isinstance(items, ItemSet | HeteroItemSet):
        raise TypeError(
            f"items is a {type(items).__name__}; expected an ItemSet or a HeteroItemSet: for ids "
            "alone use node_split or edge_split"
        )
    check_graph(graph)
    by_type = [(None, items)] if isinstance(items, ItemSet) else list(items.itemsets.items())
    owners = [_owners(own, kind, graph) for kind, own in by_type]
    ranks = graph.exchange
    mine = share_of_rank(
        np.concatenate([np.empty(0, np.int64), *owners]),
        graph.book, ranks.rank, ranks.world_size, batch_size, drop_last,
    )  # fmt: skip
    bounds = np.cumsum([0, *map(len, owners)])
    shares = [
        _at(own, mine[(mine >= low) & (mine < high)] - low)
        for (_, own), low, high in zip(by_type, bounds[:-1], bounds[1:], strict=True)
    ]
    if isinstance(items, ItemSet):
        return shares[0]
    return HeteroItemSet(dict(zip(items.itemsets, shares, strict=True)))


def _owners(items: ItemSet, kind: str | None, graph: DistGraph) -> Array:
    """int64[n]: the part of each item."""
    names = items.names or ()
    if "seeds" not in names:
        raise ValueError(f"an item set has {list(names)}; expected one of them to be 'seeds'")
    found = items[:]
    seeds = found[names.index("seeds")] if isinstance(found, tuple) else found
    if not isinstance(seeds, torch.Tensor):
        raise TypeError(f"seeds are a {type(seeds).__name__}; expected a torch.Tensor of integers")
    if seeds.dim() not in (1, 2) or 0 in seeds.shape[1:]:
        raise ValueError(
            f"seeds have shape {tuple(seeds.shape)}; expected nodes [n] or edges [n, 2]"
        )
    columns = seeds.unbind(1) if seeds.dim() == 2 else [seeds]
    owners = np.empty(0, np.int64)
    for column, node_type in zip(columns, _ends(kind, seeds), strict=True):
        owners = graph.book.node_owner(column, node_type).numpy()
    return owners  # of the last


def _ends(kind: str | None, seeds: torch.Tensor) -> list[str | None]:
    """Node type of each entry of a row."""
    if kind is None:
        return [None] * (seeds.shape[1] if seeds.dim() > 1 else 1)
    if seeds.dim() > 1:
        return [*seed_type_str_to_ntypes(kind, seeds.shape[1])]
    return [kind.split(CANONICAL_ETYPE_DELIMITER)[-1]]  # of edges named by their last node


def _at(items: ItemSet, places: Array) -> ItemSet:
    """The items at some places."""
    rows = items[torch.from_numpy(places)]
    return ItemSet(rows, names=items.names)
