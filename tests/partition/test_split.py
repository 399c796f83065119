"""Shares of ranks: each id once, even, and at home as far as that allows."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hopline.partition import (
    PartitionBook,
    edge_split,
    item_split,
    load_partition,
    load_tasks,
    node_split,
)
from hopline.partition.split import share_of_rank
from hopline.pipes import HeteroItemSet, ItemSet
from tests.partition.graphs import homogeneous
from tests.partition.ranks_in_process import open_on_ranks
from tests.partition.test_dist_graph import MAKERS, cut

SIZES = range(1, 8)


def book_of(counts):
    bounds = [0, *itertools.accumulate(counts)]
    return PartitionBook(len(counts), {"": bounds}, {"": [0] * len(bounds)})


def fits(parts, ranks):
    return parts % ranks == 0 or ranks % parts == 0


def home_of(rank, parts, ranks):
    """The parts of a rank, said in another way than `Placing` does."""
    return {part for part in range(parts) if part * ranks // parts == rank} | {
        rank * parts // ranks
    }


def cases(parts, seed):
    """Owners of ids: none, fewer than ranks, all in one part, empty parts, uneven, given twice."""
    rng = np.random.default_rng(seed)
    yield np.empty(0, np.int64)
    yield rng.integers(0, parts, 3)
    yield np.full(50, parts - 1)
    yield np.repeat(np.arange(0, parts, 2), 9)
    yield np.sort(rng.integers(0, parts, 200))
    yield rng.choice(parts, 83, p=rng.dirichlet(np.full(parts, 0.4)))


def batches(count, batch_size, drop_last):
    return count // batch_size if drop_last else -(-count // batch_size)


def most_at_home(supply, share, sizes):
    """The most ids that stay at home, over all ways to give these sizes to ranks."""
    best = 0
    for order in set(itertools.permutations(sizes)):
        wanted = np.array(order).reshape(-1, share).sum(1)
        best = max(best, int(np.minimum(wanted, supply).sum()))
    return best


@pytest.mark.parametrize("ranks", SIZES)
@pytest.mark.parametrize("parts", SIZES)
def test_shares_are_whole_even_and_local(parts, ranks):
    book = book_of([1] * parts)
    if not fits(parts, ranks):
        with pytest.raises(ValueError, match="multiple of the other"):
            share_of_rank(np.zeros(3, np.int64), book, 0, ranks)
        return
    share = max(1, ranks // parts)
    for number, owners in enumerate(cases(parts, parts * 10 + ranks)):
        for batch_size, drop_last in ((1, False), (4, False), (1, True), (4, True), (300, True)):
            shares = [
                share_of_rank(owners, book, rank, ranks, batch_size, drop_last)
                for rank in range(ranks)
            ]
            for positions in shares:
                assert (np.diff(positions) > 0).all()
            assert np.array_equal(np.sort(np.concatenate(shares)), np.arange(len(owners)))
            counts = [len(positions) for positions in shares]
            steps = [batches(count, batch_size, drop_last) for count in counts]
            assert max(steps) - min(steps) <= 1
            if drop_last:
                assert sum(steps) == len(owners) // batch_size
            else:
                assert max(counts) - min(counts) <= 1
            at_home = [
                int(np.isin(owners[positions], list(home_of(rank, parts, ranks))).sum())
                for rank, positions in enumerate(shares)
            ]
            supply = np.zeros(ranks // share, np.int64)
            np.add.at(supply, owners * (ranks // share) // parts, 1)
            if ranks < 7 or number < 3:
                assert sum(at_home) == most_at_home(supply, share, counts)
            # Ranks of the same parts have as many strangers as each other, up to one a size.
            for site in range(ranks // share):
                mine = range(site * share, (site + 1) * share)
                strangers = [counts[rank] - at_home[rank] for rank in mine]
                assert max(strangers) - min(strangers) <= 1 + max(counts) - min(counts)


def test_a_surplus_goes_to_those_with_too_few_in_order():
    book = book_of([1] * 4)
    owners = np.array([0, 0, 0, 0, 0, 0, 0, 1, 1, 3])
    got = [share_of_rank(owners, book, rank, 4).tolist() for rank in range(4)]
    assert got == [[0, 1, 2], [3, 7, 8], [4, 5], [6, 9]]


def test_a_tail_is_where_it_need_not_move():
    book = book_of([1] * 2)
    owners = np.array([0] * 8 + [1] * 11)
    got = [len(share_of_rank(owners, book, rank, 2, 4, True)) for rank in range(2)]
    assert got == [8, 11]


def graph_of(book, rank, ranks):
    return SimpleNamespace(book=book, exchange=SimpleNamespace(rank=rank, world_size=ranks))


def test_masks_ids_and_types():
    book = PartitionBook(2, {"user": [0, 6, 10], "item": [0, 0, 3]}, {"user:buys:item": [0, 4, 5]})
    mask = torch.tensor([True, False] * 5)
    shares = [node_split(mask, graph_of(book, rank, 2), "user") for rank in range(2)]
    assert [s.tolist() for s in shares] == [[0, 2, 4], [6, 8]]
    assert shares[0].dtype == torch.int64
    ids = torch.tensor([9, 1, 3, 8, 7, 6], dtype=torch.int32)
    shares = [node_split(ids, graph_of(book, rank, 2), "user") for rank in range(2)]
    assert [s.tolist() for s in shares] == [[1, 3, 6], [9, 8, 7]]
    assert shares[0].dtype == torch.int32
    items = torch.arange(3)
    shares = [node_split(items, graph_of(book, rank, 2), "item") for rank in range(2)]
    assert [s.tolist() for s in shares] == [[2], [0, 1]]
    for edges in (torch.ones(5, dtype=torch.bool), torch.arange(5)):
        shares = [edge_split(edges, graph_of(book, rank, 2), "user:buys:item") for rank in (0, 1)]
        assert [s.tolist() for s in shares] == [[0, 1, 2], [3, 4]]


def test_wrong_input_is_refused():
    graph = graph_of(book_of([3, 2]), 0, 2)
    with pytest.raises(ValueError, match=r"mask of shape \(4,\); expected \(5,\)"):
        node_split(torch.ones(4, dtype=torch.bool), graph)
    with pytest.raises(TypeError, match="expected integers"):
        node_split(torch.ones(5), graph)
    with pytest.raises(TypeError, match="list"):
        node_split([0, 1], graph)
    for split in (node_split, edge_split):
        with pytest.raises(TypeError, match="graph is a PartitionBook; expected a DistGraph"):
            split(torch.tensor([0]), graph.book)
    with pytest.raises(IndexError, match="node id 5 at 1"):
        node_split(torch.tensor([0, 5]), graph)
    with pytest.raises(KeyError, match="no node type 'user'"):
        node_split(torch.tensor([0]), graph, "user")
    with pytest.raises(ValueError, match="batch_size is 0"):
        node_split(torch.tensor([0]), graph, batch_size=0)
    with pytest.raises(TypeError, match="drop_last"):
        node_split(torch.tensor([0]), graph, drop_last=1)


@pytest.mark.parametrize("name", ["homogeneous", "heterogeneous"])
@pytest.mark.parametrize(("ranks", "parts"), [(1, 3), (3, 3), (2, 4), (4, 2)])
def test_item_sets_are_shared_out_with_what_goes_with_seeds(tmp_path, name, ranks, parts):
    cut(MAKERS[name](), tmp_path / "p", parts)
    tasks = load_tasks(tmp_path / "p", load_partition(tmp_path / "p"))
    for given in (items for task in tasks for items in (task.train_set, task.validation_set)):
        if given is None:
            continue
        shares = [item_split(given, graph) for graph, _ in open_on_ranks(tmp_path / "p", ranks)]
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        whole = given.itemsets if isinstance(given, HeteroItemSet) else {None: given}
        for kind, own in whole.items():
            mine = [s.itemsets[kind] if isinstance(s, HeteroItemSet) else s for s in shares]
            assert all(share.names == own.names for share in mine)
            found = sorted(str(item) for share in mine for item in share)
            assert found == sorted(map(str, own))


def test_shares_of_item_sets_are_near_their_part(tmp_path):
    cut(homogeneous(), tmp_path / "p", 2)
    opened = open_on_ranks(tmp_path / "p", 2)
    nodes = ItemSet(torch.arange(120), names="seeds")
    pairs = torch.stack((torch.arange(119, -1, -1), torch.arange(120)), 1)
    links = ItemSet((pairs, torch.ones(120)), names=("seeds", "labels"))
    for rank, (graph, _) in enumerate(opened):
        for seeds in (item_split(nodes, graph)[:], item_split(links, graph)[:][0][:, 1]):
            assert (graph.book.node_owner(seeds) == rank).float().mean() > 0.9
    graph = opened[0][0]
    with pytest.raises(ValueError, match="expected one of them to be 'seeds'"):
        item_split(ItemSet(torch.arange(3), names="labels"), graph)
    with pytest.raises(TypeError, match="use node_split or edge_split"):
        item_split(torch.arange(3), graph)
    with pytest.raises(IndexError, match="node id 120"):
        item_split(ItemSet(torch.tensor([120]), names="seeds"), graph)


SHAPE = "expected nodes"
ODD_SEEDS = (
    (torch.tensor([[120, 1]]), IndexError, "node id 120 at 0"),
    (torch.tensor([[0, 1, 2], [3, -1, 4]]), IndexError, "node id -1 at 1"),
    (torch.empty(3, 0, dtype=torch.int64), ValueError, rf"seeds have shape \(3, 0\); {SHAPE}"),
    (torch.zeros(3, 2, 2, dtype=torch.int64), ValueError, rf"shape \(3, 2, 2\); {SHAPE}"),
    (torch.ones(3), TypeError, "expected integers"),
    ([1, 2], TypeError, "seeds are a list; expected a torch.Tensor of integers"),
)


@pytest.mark.parametrize(("seeds", "error", "message"), ODD_SEEDS)
def test_odd_seeds_are_refused(tmp_path, seeds, error, message):
    cut(homogeneous(), tmp_path / "p", 2)
    graph = open_on_ranks(tmp_path / "p", 1)[0][0]
    with pytest.raises(error, match=message):
        item_split(ItemSet(seeds, names="seeds"), graph)


def test_item_sets_are_split_by_parts_alone(tmp_path):
    data = homogeneous()
    with pytest.raises(TypeError, match="graph is a FusedCSCSamplingGraph; expected a DistGraph"):
        item_split(ItemSet(torch.arange(3), names="seeds"), data.graph)


def test_each_end_of_a_seed_is_of_its_type(tmp_path):
    cut(MAKERS["heterogeneous"](), tmp_path / "p", 2)
    graph = open_on_ranks(tmp_path / "p", 1)[0][0]
    users, items = graph.book.num_nodes("user"), graph.book.num_nodes("item")
    most = torch.tensor([[users - 1, items - 1]])

    def split(seeds, kind="user:buys:item"):
        return item_split(HeteroItemSet({kind: ItemSet(seeds, names="seeds")}), graph)

    assert torch.equal(split(most).itemsets["user:buys:item"][:], most)
    three = torch.tensor([[users - 1, items - 1, users - 1]])
    assert torch.equal(split(three, "user:item:user").itemsets["user:item:user"][:], three)
    for row in ([users, 0], [0, items]):
        with pytest.raises(IndexError, match=f"node id {max(row)} at 0"):
            split(torch.tensor([row]))
    with pytest.raises(KeyError, match="no node type 'nothing'"):
        split(most, "nothing:buys:item")
