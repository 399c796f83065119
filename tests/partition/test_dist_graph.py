"""Mini-batches from parts, mapped to the ids before, are those of the whole graph."""

import warnings

import pytest
import torch

import hopline.pipes as hp
from hopline.models import launch
from hopline.partition import DistFeatureStore, DistGraph, load_tasks, partition_graph
from tests.partition.graphs import NODES, heterogeneous, homogeneous

MAKERS = {"homogeneous": homogeneous, "heterogeneous": heterogeneous}
MODES = ["uniform", "replace", "weighted", "labor", "labor weighted", "temporal", "all"]


def cut(dataset, folder, parts, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # small parts cannot always be balanced
        return partition_graph(dataset, "g", parts, folder, return_mapping=True, **options)


def sampled(chain, graph, mode, etypes):
    each = etypes > 1 and mode not in ("all",)
    fanouts = [[3] * etypes if each else 5, 4]
    match mode:
        case "uniform":
            return chain.sample_neighbor(graph, fanouts)
        case "all":
            return chain.sample_neighbor(graph, [-1, -1])
        case "replace":
            return chain.sample_neighbor(graph, fanouts, replace=True)
        case "weighted":
            return chain.sample_neighbor(graph, fanouts, prob_name="weight")
        case "labor":
            return chain.sample_layer_neighbor(graph, fanouts)
        case "labor weighted":
            return chain.sample_layer_neighbor(graph, fanouts, prob_name="weight")
        case "temporal":
            return chain.temporal_sample_neighbor(graph, fanouts, node_timestamp_attr_name="time")
    raise AssertionError(mode)


def linked(items, graph, store, ranks):
    """Link prediction: negatives, hops without the seed edges."""
    if ranks is None:
        chain = hp.ItemSampler(items, 16, shuffle=True, seed=4)
    else:
        chain = hp.DistributedItemSampler(
            items, 16, shuffle=True, seed=4, rank=ranks[0], num_replicas=ranks[1]
        )
    fanouts = [[3] * graph.num_edge_types, 4]
    chain = chain.sample_uniform_negative(graph, 2).sample_neighbor(graph, fanouts)
    if graph.num_edge_types == 1:
        return chain.exclude_seed_edges().fetch_feature(store, ["id"], ["id"])
    edge_keys = {name: ["id"] for name in graph.edge_type_to_id}
    chain = chain.exclude_seed_edges()
    return chain.fetch_feature(store, {name: ["id"] for name in NODES}, edge_keys)


def link_items(tasks):
    """The pairs of a data set's tasks: those of the homogeneous one, or of the other."""
    return tasks[1].train_set if len(tasks) > 1 else tasks[0].validation_set


def chain_of(task, graph, store, mode, *, batch_size, rank=None, ranks=1, times=False):
    items = task.train_set
    if times and not isinstance(items, hp.HeteroItemSet):
        columns = items[:]
        items = hp.ItemSet(
            (columns[0], torch.arange(len(items)) * 3 + 5), names=("seeds", "timestamp")
        )
    elif times:
        items = hp.HeteroItemSet(
            {
                kind: hp.ItemSet(
                    (part[:][0], torch.arange(len(part)) * 3 + 5), names=("seeds", "timestamp")
                )
                for kind, part in items.itemsets.items()
            }
        )
    if rank is None:
        chain = hp.ItemSampler(items, batch_size, shuffle=True, seed=3)
    else:
        chain = hp.DistributedItemSampler(
            items, batch_size, shuffle=True, seed=3, num_replicas=ranks, rank=rank
        )
    etypes = graph.num_edge_types
    chain = sampled(chain, graph, mode, etypes)
    if etypes == 1:
        return chain.fetch_feature(store, ["id", "half"], ["id"])
    edge_keys = {name: ["id"] for name in graph.edge_type_to_id}
    return chain.fetch_feature(store, {name: ["id"] for name in NODES}, edge_keys)


def typed(value):
    return value if isinstance(value, dict) else {"": value}


def check_same(single, parted, nodes, edges):
    """A mini-batch of the whole graph and one of parts; maps are ids before, by new ids."""
    assert single.key == parted.key
    for kind, ids in typed(single.input_nodes).items():
        assert torch.equal(nodes[kind][typed(parted.input_nodes)[kind].long()], ids.long())
        assert typed(parted.input_nodes)[kind].dtype == ids.dtype
    for name in ("labels", "timestamp", "compacted_seeds"):
        a, b = getattr(single, name), getattr(parted, name)
        assert (a is None) == (b is None)
        for kind, value in typed(a).items() if a is not None else ():
            assert torch.equal(value, typed(b)[kind])
    assert len(single.sampled_subgraphs) == len(parted.sampled_subgraphs)
    for a, b in zip(single.sampled_subgraphs, parted.sampled_subgraphs, strict=True):
        assert typed(a.sampled_csc).keys() == typed(b.sampled_csc).keys()
        for kind, csc in typed(a.sampled_csc).items():
            other = typed(b.sampled_csc)[kind]
            assert torch.equal(csc.indptr, other.indptr)
            assert torch.equal(csc.indices, other.indices)
            ids = typed(b.original_edge_ids)[kind]
            assert torch.equal(edges[kind][ids], typed(a.original_edge_ids)[kind])
        for side in ("original_row_node_ids", "original_column_node_ids"):
            for kind, ids in typed(getattr(a, side)).items():
                mine = typed(getattr(b, side))[kind]
                assert torch.equal(nodes[kind][mine.long()], ids.long())
    for a, b in zip(
        [single.node_features, *single.edge_features],
        [parted.node_features, *parted.edge_features],
        strict=True,
    ):
        assert a.keys() == b.keys()
        for key, rows in a.items():
            assert rows.dtype == b[key].dtype
            assert torch.equal(rows, b[key])


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("parts", "method", "hops"),
    [(1, "metis", 1), (3, "ldg", 1), (4, "random", 2), (7, "metis", 1)],
)
def test_one_process_over_all_parts(tmp_path, name, mode, parts, method, hops):
    dataset = MAKERS[name]()
    nodes, edges = (
        typed(m) for m in cut(dataset, tmp_path / "p", parts, part_method=method, num_hops=hops)
    )
    graph = DistGraph(tmp_path / "p")
    store = DistFeatureStore(graph)
    tasks = load_tasks(tmp_path / "p", graph.manifest)
    for batch_size in (1, 7, 1000):
        options = {"batch_size": batch_size, "times": mode == "temporal"}
        expected = list(chain_of(dataset.tasks[0], dataset.graph, dataset.feature, mode, **options))
        got = list(chain_of(tasks[0], graph, store, mode, **options))
        assert len(got) == len(expected) > 0
        for a, b in zip(expected, got, strict=True):
            check_same(a, b, nodes, edges)
    graph.close()


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("parts", [1, 4])
def test_link_prediction_over_parts(tmp_path, name, parts):
    dataset = MAKERS[name]()
    nodes, edges = (typed(m) for m in cut(dataset, tmp_path / "p", parts))
    graph = DistGraph(tmp_path / "p")
    store = DistFeatureStore(graph)
    tasks = load_tasks(tmp_path / "p", graph.manifest)
    expected = linked(link_items(dataset.tasks), dataset.graph, dataset.feature, None)
    got = list(linked(link_items(tasks), graph, store, None))
    for a, b in zip(expected, got, strict=True):
        check_same(a, b, nodes, edges)
        for kind, seeds in typed(a.seeds).items():
            mine = typed(b.seeds)[kind]
            ends = [kind.split(":")[0], kind.split(":")[-1]]
            assert mine.dtype == seeds.dtype
            back = [nodes[end][mine[:, i].long()] for i, end in enumerate(ends)]
            assert torch.equal(torch.stack(back, 1), seeds.long())
    with pytest.raises(ValueError, match="look at the whole graph, of which a DistGraph has parts"):
        hp.ItemSampler(link_items(tasks), 4).sample_uniform_negative(
            graph, 1, exclude_true_edges=True
        )


def _ranks(rank, world_size, device, folder, name, modes, maps):
    nodes, edges = maps
    dataset = MAKERS[name]()
    graph = DistGraph(folder, timeout=60)
    assert set(graph.parts) == set(graph.placing.parts_of(rank))
    store = DistFeatureStore(graph)
    tasks = load_tasks(folder, graph.manifest)
    for mode in modes:
        for workers in (0, 2):
            options = {
                "batch_size": 7, "times": mode == "temporal", "rank": rank, "ranks": world_size,
            }  # fmt: skip
            expected = chain_of(dataset.tasks[0], dataset.graph, dataset.feature, mode, **options)
            with hp.DataLoader(
                chain_of(tasks[0], graph, store, mode, **options), num_workers=workers
            ) as loader:
                count = 0
                for a, b in zip(expected, loader, strict=True):
                    check_same(a, b, nodes, edges)
                    count += 1
                assert count == len(loader)
    graph.close()


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize(("ranks", "parts"), [(2, 2), (3, 3), (4, 2), (2, 4)])
def test_ranks_over_their_parts(tmp_path, name, ranks, parts):
    maps = [typed(m) for m in cut(MAKERS[name](), tmp_path / "p", parts)]
    launch(_ranks, ranks, tmp_path / "p", name, MODES, maps, timeout=120)


def _update(rank, world_size, device, folder):
    graph = DistGraph(folder, timeout=60)
    store = DistFeatureStore(graph)
    feature = store["node", None, "id"]
    mine = torch.arange(rank, feature.count(), world_size)
    feature.update(1000.0 + mine[:, None], mine)
    torch.distributed.barrier()
    expected = 1000.0 + torch.arange(feature.count())[:, None]
    assert torch.equal(feature.read(), expected)
    torch.distributed.barrier()
    half = store["node", None, "half"]
    if rank == 0:
        half.update(
            torch.full((1, 3), 0.5, dtype=torch.bfloat16), torch.tensor([feature.count() - 1])
        )
    torch.distributed.barrier()
    assert half.read(torch.tensor([feature.count() - 1])).tolist() == [[0.5] * 3]
    graph.close()


@pytest.mark.parametrize(("ranks", "parts"), [(2, 2), (4, 2), (2, 4)])
def test_updates_reach_every_rank(tmp_path, ranks, parts):
    cut(homogeneous(), tmp_path / "p", parts)
    launch(_update, ranks, tmp_path / "p", timeout=60)
