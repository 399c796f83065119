"""item_split: a rank's share of an item set, near its own part."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from hopline.partition.dist_graph import DistGraph
from hopline.partition.split import share_of_rank
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
        TypeError: it is no item set.
        ValueError: nothing in it is called "seeds".
        IndexError: a seed is outside the graph.
        KeyError: there is no such type.
    """
    if not isinstance(items, ItemSet | HeteroItemSet):
        raise TypeError(
            f"items is a {type(items).__name__}; expected an ItemSet or a HeteroItemSet: for ids "
            "alone use node_split or edge_split"
        )
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
    columns = items[:]
    seeds = columns[names.index("seeds")] if isinstance(columns, tuple) else columns
    if seeds.dim() > 1:
        seeds = seeds[:, -1]
    # The last node of an edge is of its type's last.
    if kind is not None and kind not in graph.book.node_types:
        kind = kind.split(":")[-1]
    owners: Array = graph.book.node_owner(seeds, kind).numpy()
    return owners


def _at(items: ItemSet, places: Array) -> ItemSet:
    """The items at some places."""
    rows = items[torch.from_numpy(places)]
    return ItemSet(rows, names=items.names)
