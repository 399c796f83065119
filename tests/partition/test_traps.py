"""Traps of systems of this kind, over parts and ranks.

Of the eight kinds: names in the data, and inclusion of edges at any degree, are in `test_equality`
(mini-batches are those of the whole graph, whose samplers have these tests); the lock-step of ranks
is in `exchange_steps`; kill points are in `test_write`; shares that hold each item once are in
`test_split`. Here are the others.
"""

import numpy as np
import pytest
import torch

import hopline.pipes as hp
from hopline.models import gather_rows, launch
from hopline.partition import (
    DistDataset,
    DistEmbedding,
    edge_split,
    load_tasks,
    node_split,
)
from hopline.pipes.hop import HopRule
from tests.partition.equality import chain_of, check_same, cut, expected, known, typed
from tests.partition.ranks_in_process import open_on_ranks

# -------------------------------------------------------------------------------------------------
# The empty ladder: nothing, one, fewer than ranks; a type that a batch, a part, the graph has not


@pytest.mark.parametrize("data", ["homogeneous", "heterogeneous"])
@pytest.mark.parametrize(("ranks", "parts"), [(1, 1), (1, 7), (7, 7), (4, 2)])
def test_every_call_takes_nothing(tmp_path, data, ranks, parts):
    cut(known(data), tmp_path / "p", parts)
    none = torch.empty(0, dtype=torch.int64)
    for graph, store in open_on_ranks(tmp_path / "p", ranks):
        book = graph.book
        for kind in book.node_types:
            assert book.node_owner(none, kind).shape == (0,)
            assert book.local_node_ids(none, kind).shape == (0,)
            assert node_split(none, graph, kind or None).shape == (0,)
            for count in range(min(3, book.num_nodes(kind))):
                share = node_split(torch.arange(count), graph, kind or None)
                assert len(share) in (count // ranks, -(-count // ranks))
        for kind in book.edge_types:
            assert book.edge_owner(none, kind).shape == (0,)
            assert edge_split(none, graph, kind or None).shape == (0,)
        keys = store.keys()
        for key in keys:
            feature, whole = store[key], known(data).feature[key]
            assert feature.count() == whole.count()
            rows, expected_rows = feature.read(none), whole.read(none)
            assert rows.shape == expected_rows.shape
            assert rows.dtype == expected_rows.dtype
            feature.update(rows, none)
            assert feature.read().shape == whole.read().shape
        hop = graph.sample_one_hop(
            none.numpy(), none.numpy(), HopRule(np.array([3]), False, np.array([1], np.uint64))
        )
        assert len(hop.neighbors) == len(hop.positions) == 0
        assert hop.segments.tolist() == [0]


def test_a_type_that_few_parts_have(tmp_path):
    """Two nodes of a type and one edge of another in four parts; every part knows of all."""
    edges = {
        "user:at:shop": (torch.tensor([5]), torch.tensor([1])),
        "user:knows:user": (torch.arange(40), (torch.arange(40) + 1) % 40),
        "shop:near:shop": (torch.empty(0).long(), torch.empty(0).long()),
    }
    graph = hp.from_coo(edges, num_nodes={"user": 40, "shop": 2})
    sizes = {"user": 40, "shop": 2, **{kind: len(ends[0]) for kind, ends in edges.items()}}
    features = {
        ("edge" if ":" in kind else "node", kind, "x"): hp.TorchBasedFeature(
            torch.arange(size * 3).view(size, 3).half()
        )
        for kind, size in sizes.items()
    }
    dataset = type(known("homogeneous"))(
        graph=graph, feature=hp.BasicFeatureStore(features), tasks=[]
    )
    nodes, edge_ids = cut(dataset, tmp_path / "p", 4, part_method="random")
    for parted, store in open_on_ranks(tmp_path / "p", 4):
        for part in parted.parts.values():
            assert {key: rows.shape[1:] for key, rows in part.features.items()} == dict.fromkeys(
                features, (3,)
            )
            assert {rows.dtype for rows in part.features.values()} == {torch.float16}
        for (domain, kind, name), feature in features.items():
            before = (nodes if domain == "node" else edge_ids)[kind]
            assert torch.equal(store[domain, kind, name].read(), feature.read(before))
        for kinds in (["shop"], ["user"], ["shop", "user"]):
            items = {k: hp.ItemSet(torch.arange(2), names="seeds") for k in kinds}
            chain = hp.ItemSampler(hp.HeteroItemSet(items), 9).sample_neighbor(parted, [-1, -1])
            keys = {kind: ["x"] for kind in sizes}
            (minibatch,) = chain.fetch_feature(
                store, {k: keys[k] for k in nodes}, {k: keys[k] for k in edge_ids}
            )
            for hop in minibatch.sampled_subgraphs:
                assert hop.sampled_csc.keys() == edges.keys()


def test_a_graph_without_nodes(tmp_path):
    none = torch.empty(0, dtype=torch.int64)
    cut(hp.from_coo(none, none, num_nodes=0), tmp_path / "p", 3)
    for graph, store in open_on_ranks(tmp_path / "p", 3):
        assert graph.total_num_nodes == graph.total_num_edges == 0
        assert list(store.keys()) == []
        chain = hp.ItemSampler(hp.ItemSet(none, names="seeds"), 4).sample_neighbor(graph, [2])
        assert list(chain) == []


def _few_items(rank, world_size, device, folder):
    """Ranks without an item, without a mini-batch, with some: all of them end."""
    with DistDataset(folder, timeout=60) as dataset:
        for count in (0, 1, 3, 4, 9, 61):
            for workers in (0, 2):
                items = hp.ItemSet(torch.arange(count), names="seeds")
                chain = hp.DistributedItemSampler(
                    items, 2, shuffle=True, seed=1, rank=rank, num_replicas=world_size
                )
                chain = chain.sample_neighbor(dataset.graph, [3, 3])
                chain = chain.fetch_feature(dataset.feature, ["id"])
                with hp.DataLoader(chain, num_workers=workers) as loader:
                    seeds = [minibatch.seeds for minibatch in loader]
                    assert len(seeds) == len(loader)
                assert all(len(batch) for batch in seeds)
                mine = torch.cat([*seeds, torch.empty(0, dtype=torch.int64)])
                everybody = torch.cat(list(gather_rows(mine)))
                assert sorted(everybody.tolist()) == list(range(count))
        embedding = DistEmbedding(dataset.graph, None, 4)
        assert embedding(torch.empty(0, dtype=torch.int64)).shape == (0, 4)


def test_fewer_items_than_ranks(tmp_path):
    cut(known("homogeneous"), tmp_path / "p", 4)
    launch(_few_items, 4, tmp_path / "p", timeout=60)


# -------------------------------------------------------------------------------------------------
# Order: threads, and a run that goes on at any mini-batch


def loader_over(folder, data, name, workers, ranks=1):
    graph, store = open_on_ranks(folder, ranks)[0]
    tasks = load_tasks(folder, graph.manifest)
    return hp.DataLoader(chain_of(name, tasks, graph, store, 8), num_workers=workers)


@pytest.mark.parametrize("name", ["labor", "temporal", "negatives in time"])
@pytest.mark.parametrize("data", ["homogeneous", "heterogeneous"])
def test_a_run_goes_on_at_any_mini_batch(tmp_path, data, name):
    """Taken from any number of threads, to any other; and to parts of another number."""
    maps = {parts: cut(known(data), tmp_path / str(parts), parts) for parts in (2, 3)}
    whole, _ = expected(data, name, 8)
    for workers, others in ((0, 3), (3, 8), (8, 0)):
        for position in range(0, len(whole), 3):
            with loader_over(tmp_path / "2", data, name, workers) as loader:
                reader = iter(loader)
                for a in whole[:position]:
                    check_same(a, next(reader), *maps[2])
                state = loader.state_dict()
            with loader_over(tmp_path / "2", data, name, others) as loader:
                loader.load_state_dict(state)
                for a, b in zip(whole[position:], loader, strict=True):
                    check_same(a, b, *maps[2])
    with loader_over(tmp_path / "3", data, name, 2) as loader:
        loader.load_state_dict(state)
        for a, b in zip(whole[position:], loader, strict=True):
            check_same(a, b, *maps[3])


# -------------------------------------------------------------------------------------------------
# The dense oracle: all neighbours, sums of one-hot rows: powers of the adjacency matrix


def fused(kind, ids, firsts):
    return ids.long() + firsts[kind]


@pytest.mark.parametrize("data", ["homogeneous", "heterogeneous"])
@pytest.mark.parametrize(("ranks", "parts", "hops"), [(1, 4, 1), (3, 3, 2), (2, 4, 1)])
def test_sums_over_all_neighbours_are_powers_of_the_adjacency_matrix(
    tmp_path, data, ranks, parts, hops
):
    whole = known(data).graph
    maps, _ = cut(known(data), tmp_path / "p", parts, num_hops=hops, part_method="random")
    counts = {kind: len(ids) for kind, ids in maps.items()}
    firsts = dict(zip(counts, np.cumsum([0, *counts.values()]).tolist(), strict=False))
    nodes = whole.total_num_nodes
    dense = torch.zeros(nodes, nodes, dtype=torch.int64)
    columns = torch.arange(nodes).repeat_interleave(whole.csc_indptr.diff())
    dense.index_put_((columns, whole.indices.long()), torch.tensor(1), accumulate=True)
    items = {kind: hp.ItemSet(torch.arange(n), names="seeds") for kind, n in counts.items()}
    items = items[""] if data == "homogeneous" else hp.HeteroItemSet(items)
    for depth in (1, 3):
        power = torch.linalg.matrix_power(dense, depth)
        for graph, _store in open_on_ranks(tmp_path / "p", ranks):
            chain = hp.ItemSampler(items, 50, shuffle=True, seed=1)
            for minibatch in chain.sample_neighbor(graph, [-1] * depth):
                rows = {}
                for kind, ids in typed(minibatch.input_nodes).items():
                    before = fused(kind, maps[kind][ids.long()], firsts)
                    rows[kind] = torch.nn.functional.one_hot(before, nodes)
                for hop in minibatch.sampled_subgraphs:
                    rows = summed(hop, rows, nodes)
                for kind, seeds in typed(minibatch.seeds).items():
                    before = fused(kind, maps[kind][seeds.long()], firsts)
                    assert torch.equal(rows[kind][: len(seeds)], power[before])


def summed(hop, rows, width):
    """Rows of the hop's destinations: sums over the rows of its sources, of all edge types."""
    out = {
        kind: torch.zeros(len(ids), width, dtype=torch.int64)
        for kind, ids in typed(hop.original_column_node_ids).items()
    }
    for etype, csc in typed(hop.sampled_csc).items():
        source, target = etype.split(":")[0], etype.split(":")[-1]
        if len(csc.indices):
            to = torch.arange(len(csc.indptr) - 1).repeat_interleave(csc.indptr.diff())
            out[target].index_add_(0, to, rows[source][csc.indices.long()])
    return out


# -------------------------------------------------------------------------------------------------
# Both modes: what one has, the other has


def test_a_partitioned_graph_has_what_samplers_ask_of_a_graph(tmp_path):
    cut(known("homogeneous"), tmp_path / "p", 2)
    whole = known("homogeneous").graph
    ((graph, _store),) = open_on_ranks(tmp_path / "p", 1)
    for name in (
        "num_nodes", "num_edges", "total_num_nodes", "total_num_edges", "num_edge_types",
        "node_type_offset", "node_type_to_id", "edge_type_to_id", "id_dtype",
    ):  # fmt: skip
        assert getattr(graph, name) == getattr(whole, name)
    for name in (
        "sample_one_hop", "has_edges", "node_times", "draw_order", "attribute_array", "check",
        "sampling_device", "is_huge",
    ):  # fmt: skip
        assert callable(getattr(graph, name))
        assert callable(getattr(whole, name))
