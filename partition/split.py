"""node_split, edge_split: which nodes or edges each rank trains on, mostly those of its own parts.

Every rank computes its share from the book and the full list; ranks tell each other nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from hopline.partition.book import PartitionBook
from hopline.partition.dist_graph import DistGraph
from hopline.partition.placing import Placing
from hopline.pipes.checks import check_count, check_flag, check_id_tensor

__all__ = ["check_graph", "edge_split", "node_split", "share_of_rank"]

Array = np.ndarray[Any, Any]


def node_split(
    nodes: torch.Tensor,
    graph: DistGraph,
    node_type: str | None = None,
    batch_size: int = 1,
    drop_last: bool = False,
) -> torch.Tensor:
    """This rank's share of some nodes; the shares of all ranks hold each of them once.

    Shares differ by one node at most, so that all ranks have as many batches, or where no split
    can do that, some have one more. With `drop_last` shares are made of whole batches instead, of
    which some ranks have one more, and one rank has what is left: so fewer than batch_size nodes
    are dropped, not that many a rank. As many nodes as that allows stay with a rank that has their
    part; the surplus of a part goes, in the order given, to the first ranks that have too few.

    Read the share with an `ItemSampler` of its own seed on each rank, such as `seed + rank`: with
    the same seed, two ranks make the same draws for a node that is in batch i of both.

    Args:
        nodes: by new ids: bool[num_nodes of the type], or integer[n].
        graph: the parts, and the ranks that have them.
        node_type: of the nodes; None in a homogeneous graph.
        batch_size: nodes a batch; read where `drop_last` is set.
        drop_last: the loader leaves out a last batch that is not full.

    Returns:
        integer[share] of the dtype of nodes, int64 for a mask; in the order of nodes.

    Raises:
        TypeError: nodes are no tensor of bool or integers, or graph is no DistGraph.
        ValueError: they are not of one dimension, or a mask is of other length.
        IndexError: an id is outside the graph.
        KeyError: there is no such type.
    """
    check_graph(graph)
    ids = _ids(nodes, graph.book.num_nodes(node_type), "nodes")
    owners = graph.book.node_owner(ids, node_type).numpy()
    return _share(ids, owners, graph, batch_size, drop_last)


def edge_split(
    edges: torch.Tensor,
    graph: DistGraph,
    edge_type: str | None = None,
    batch_size: int = 1,
    drop_last: bool = False,
) -> torch.Tensor:
    """This rank's share of some edges; an edge belongs to the part of its destination.

    Args:
        edges: by new ids: bool[num_edges of the type], or integer[n].
        graph: the parts, and the ranks that have them.
        edge_type: of the edges; None in a homogeneous graph.
        batch_size: edges a batch; read where `drop_last` is set.
        drop_last: the loader leaves out a last batch that is not full.

    Returns:
        As `node_split`.

    Raises:
        TypeError, ValueError, IndexError, KeyError: as `node_split`.
    """
    check_graph(graph)
    ids = _ids(edges, graph.book.num_edges(edge_type), "edges")
    owners = graph.book.edge_owner(ids, edge_type).numpy()
    return _share(ids, owners, graph, batch_size, drop_last)


def check_graph(graph: object) -> None:
    """Refuses what has no book.

    Raises:
        TypeError: graph is no DistGraph.
    """
    if not isinstance(getattr(graph, "book", None), PartitionBook):
        raise TypeError(
            f"graph is a {type(graph).__name__}; expected a DistGraph, such as dataset.graph"
        )


def share_of_rank(
    owners: Array,
    book: PartitionBook,
    rank: int,
    world_size: int,
    batch_size: int = 1,
    drop_last: bool = False,
) -> Array:
    """Which of some ids one rank gets.

    Args:
        owners: int64[n], the part of each id.
        book: of the parts.
        rank: this rank.
        world_size: number of ranks.
        batch_size: as in `node_split`.
        drop_last: as in `node_split`.

    Returns:
        int64[share], positions of the rank's ids, ascending.

    Raises:
        ValueError: ranks and parts are no multiples; batch_size is below 1.

    >>> book = PartitionBook(2, {"": [0, 5, 7]}, {"": [0, 0, 0]})
    >>> owners = np.array([0, 1, 0, 0, 0, 0, 1])
    >>> [share_of_rank(owners, book, rank, 2).tolist() for rank in range(2)]
    [[0, 2, 3, 4], [1, 5, 6]]
    """
    check_count(batch_size, "batch_size", 1)
    check_flag(drop_last, "drop_last")
    placing = Placing(book, rank, world_size)
    share = max(1, world_size // book.num_parts)  # ranks that have the same parts: a site
    num_sites = world_size // share
    sites = (placing.ranks // share)[owners]
    supply = np.bincount(sites, minlength=num_sites)
    sizes = _sizes(supply, share, batch_size if drop_last else 1)
    wanted = sizes.reshape(num_sites, share).sum(1)
    # Of each site the first ids stay. The rest, site by site, fills up those with too few.
    order = np.argsort(sites, kind="stable")
    bounds = np.concatenate([[0], np.cumsum(supply)])
    kept = np.minimum(supply, wanted)
    moving = np.concatenate([order[bounds[i] + kept[i] : bounds[i + 1]] for i in range(num_sites)])
    fills = np.concatenate([[0], np.cumsum(wanted - kept)])
    site, place = divmod(rank, share)
    # Ranks of one site share what stayed as they share all, so that no rank gets all the strangers.
    ends = np.concatenate([[0], np.cumsum(sizes[site * share : (site + 1) * share])])
    cuts = np.array([end * int(kept[site]) // max(1, int(ends[-1])) for end in ends.tolist()])
    stayed = order[bounds[site] + cuts[place] : bounds[site] + cuts[place + 1]]
    strangers = fills[site] + ends - cuts
    mine = np.concatenate([stayed, moving[strangers[place] : strangers[place + 1]]])
    return np.sort(mine)


def _sizes(supply: Array, share: int, unit: int) -> Array:
    """int64[ranks]: how many ids each rank gets; all but one a multiple of the unit.

    Ranks have the same number of units up to one. Who has one more, and the one that has what
    makes no unit, are those whose own parts have the most to put in.

    Args:
        supply: int64[sites], ids of each site's own parts.
        share: ranks a site.
        unit: ids that go to one rank together.
    """
    ranks = len(supply) * share
    units, rest = divmod(int(supply.sum()), unit)
    each, more = divmod(units, ranks)
    sizes = np.full(ranks, each * unit, np.int64)
    surplus = supply - each * unit * share
    # What the i-th further unit of a site would find there.
    found = np.clip(surplus[:, None] - unit * np.arange(share), 0, unit).reshape(-1)
    sizes[np.argsort(-found, kind="stable")[:more]] += unit
    if rest:
        left = supply - sizes.reshape(-1, share).sum(1)
        sizes[int(np.argmax(left)) * share + share - 1] += rest
    return sizes


def _ids(given: torch.Tensor, total: int, what: str) -> torch.Tensor:
    """Ids of a mask, or the ids themselves."""
    if isinstance(given, torch.Tensor) and given.dtype == torch.bool:
        if tuple(given.shape) != (total,):
            raise ValueError(
                f"{what} are a mask of shape {tuple(given.shape)}; expected ({total},), one value "
                f"for each, or ids"
            )
        return given.nonzero().view(-1)
    check_id_tensor(given, what, torch.int64)
    return given


def _share(
    ids: torch.Tensor, owners: Array, graph: DistGraph, batch_size: int, drop_last: bool
) -> torch.Tensor:
    ranks = graph.exchange
    mine = share_of_rank(owners, graph.book, ranks.rank, ranks.world_size, batch_size, drop_last)
    return ids[torch.from_numpy(mine).to(ids.device)]
