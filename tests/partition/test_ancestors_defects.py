"""What was wrong in distributed samplers before this one: one small test for each defect.

B1 to B12 are those of PyG's `torch_geometric.distributed` 2.8; D4, D5 and D7 are of DGL 2.4, whose
other ones are of its own files and arguments. Mini-batches of all kinds are compared with those of
the whole graph in `test_equality`; these tests say what is right by themselves.
"""

import itertools
import random
import warnings

import numpy as np
import pytest
import torch

import hopline.pipes as hp
from hopline.models import launch
from hopline.partition import (
    DistDataset,
    DistFeatureStore,
    DistGraph,
    RankError,
    load_part,
    load_tasks,
    node_split,
)
from hopline.partition.part_sampler import PartSampler
from hopline.partition.questions import Question
from tests.partition.equality import CHAINS, chain_of, cut, known
from tests.partition.equality_data import around, spread
from tests.partition.graphs import EDGES, NODES
from tests.partition.ranks_in_process import open_on_ranks


def every_edge(dataset, folder, parts, ranks, **options):
    """One mini-batch of all nodes with all in-edges and features, and the ids before."""
    nodes, edges = cut(dataset, folder, parts, **options)
    graph, store = open_on_ranks(folder, ranks)[-1]
    count = graph.num_nodes
    if isinstance(count, int):
        items, keys = hp.ItemSet(count, names="seeds"), (["id"], ["id"])
    else:
        items = hp.HeteroItemSet({k: hp.ItemSet(n, names="seeds") for k, n in count.items()})
        keys = ({kind: ["id"] for kind in NODES}, {kind: ["id"] for kind in EDGES})
    chain = hp.ItemSampler(items, 10**6).sample_neighbor(graph, [-1]).fetch_feature(store, *keys)
    (minibatch,) = chain
    return minibatch, nodes, edges


def test_b1_every_sampler_is_made_without_a_warning(tmp_path):
    for data in ("homogeneous", "heterogeneous"):
        cut(known(data), tmp_path / data, 2)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ((graph, store),) = open_on_ranks(tmp_path / data, 1)
            tasks = load_tasks(tmp_path / data, graph.manifest)
            for name in CHAINS:
                assert next(iter(chain_of(name, tasks, graph, store, 8))).input_nodes is not None


def test_b2_parts_with_edge_features_are_opened(tmp_path):
    cut(known("heterogeneous"), tmp_path / "p", 3)
    for number in range(3):
        features = load_part(tmp_path / "p", number).features
        assert {kind for domain, kind, _ in features if domain == "edge"} == set(EDGES)


@pytest.mark.parametrize("ranks", [1, 2])
def test_b3_all_edges_have_their_ids_and_features(tmp_path, ranks):
    dataset = known("homogeneous")
    minibatch, nodes, edges = every_edge(dataset, tmp_path / "p", 2, ranks)
    (hop,) = minibatch.sampled_subgraphs
    ids = edges[""][hop.original_edge_ids]
    assert sorted(ids.tolist()) == list(range(700))
    assert torch.equal(minibatch.edge_features[0]["id"][:, 0], 100 + ids)
    # The ends of the edge of each id, as the data set has them.
    graph = dataset.graph
    degrees = graph.csc_indptr.diff()
    before = graph.edge_attributes["_ORIGINAL_EDGE_ID"].argsort()
    csc = hop.sampled_csc
    targets = torch.arange(120).repeat_interleave(csc.indptr.diff())
    sources = nodes[""][hop.original_row_node_ids.long()][csc.indices.long()]
    assert torch.equal(sources, graph.indices.long()[before][ids])
    expected = torch.arange(120).repeat_interleave(degrees)[before][ids]
    assert torch.equal(nodes[""][hop.original_column_node_ids.long()][targets], expected)


@pytest.mark.parametrize("ranks", [1, 3])
def test_b4_rows_of_every_node_and_edge_type_are_right(tmp_path, ranks):
    minibatch, nodes, edges = every_edge(known("heterogeneous"), tmp_path / "p", 3, ranks)
    for kind, count in NODES.items():
        ids = minibatch.input_nodes[kind]
        assert sorted(nodes[kind][ids.long()].tolist()) == list(range(count))
        assert torch.equal(minibatch.node_features[kind, "id"][:, 0], nodes[kind][ids.long()])
    (hop,) = minibatch.sampled_subgraphs
    for kind, count in EDGES.items():
        ids = edges[kind][hop.original_edge_ids[kind]]
        assert sorted(ids.tolist()) == list(range(count))
        if count:
            assert torch.equal(minibatch.edge_features[0][kind, "id"][:, 0], 100 + ids)


def test_b5_a_rank_without_a_seed_of_a_hop_is_no_gap_in_the_answers(tmp_path):
    """Node i has an edge from i + 1, which is of the next part; the last part has no node."""
    ring = torch.arange(40)
    dataset = around((ring + 1) % 40, ring, 40)
    nodes, _ = cut(dataset, tmp_path / "p", 5, part_method=spread(40, [0, 1, 2, 3]))
    asks_some = 0
    for graph, _store in open_on_ranks(tmp_path / "p", 5):
        for seeds in itertools.combinations(range(4), 2):
            new = [int((nodes[""] == node).nonzero()) for node in seeds]
            items = hp.ItemSet(torch.tensor(new), names="seeds")
            graph.exchange.asked.clear()
            (minibatch,) = hp.ItemSampler(items, 9).sample_neighbor(graph, [-1, -1])
            asked = [ranks for kind, ranks in graph.exchange.asked]
            asks_some += sum(1 < len(ranks) < 5 for ranks in asked)
            assert all(4 not in ranks or graph.exchange.rank == 4 for ranks in asked)
            found = nodes[""][minibatch.input_nodes.long()].tolist()
            assert set(found) == {s + step for s in seeds for step in range(3)}
            for hop in minibatch.sampled_subgraphs:
                sources, targets = (
                    nodes[""][ids.long()]
                    for ids in (hop.original_row_node_ids, hop.original_column_node_ids)
                )
                assert hop.sampled_csc.indptr.diff().tolist() == [1] * len(targets)
                assert torch.equal(sources[hop.sampled_csc.indices.long()], targets + 1)
    assert asks_some > 20


@pytest.mark.parametrize("parts", [3, 7, 64])
def test_b6_fewer_seeds_than_parts(tmp_path, parts):
    ring = torch.arange(128)
    dataset = around(ring, (ring + 1) % 128, 128)
    nodes, _ = cut(dataset, tmp_path / "p", parts, part_method="random")
    graph, _store = open_on_ranks(tmp_path / "p", parts)[0]
    for size in (1, 2):
        items = hp.ItemSet(torch.arange(size), names="seeds")
        (minibatch,) = hp.ItemSampler(items, 2).sample_neighbor(graph, [5, 5, 5])
        found = set(nodes[""][minibatch.input_nodes.long()].tolist())
        seeds = nodes[""][:size].tolist()
        assert found == {(seed - step) % 128 for seed in seeds for step in range(4)}


def test_b7_all_neighbours_where_a_part_has_none_to_reply_with(tmp_path):
    """Parts 1 and 2 have nodes, none of them with an in-edge."""
    given = torch.tensor([0, 0, 1, 1, 2, 2])
    dataset = around([2, 4, 0], [0, 1, 1], 6)
    cut(dataset, tmp_path / "p", 3, part_method=given)
    for graph, _store in open_on_ranks(tmp_path / "p", 3):
        items = hp.ItemSet(torch.arange(6), names="seeds")
        (minibatch,) = hp.ItemSampler(items, 6).sample_neighbor(graph, [-1, -1])
        for hop in minibatch.sampled_subgraphs:
            assert int(hop.sampled_csc.indptr[-1]) == 3
        (minibatch,) = hp.ItemSampler(
            hp.ItemSet(torch.arange(2, 6), names="seeds"), 6
        ).sample_neighbor(graph, [-1, -1])
        assert all(len(hop.sampled_csc.indices) == 0 for hop in minibatch.sampled_subgraphs)


@pytest.mark.parametrize("data", ["homogeneous", "heterogeneous"])
def test_b8_negatives_are_drawn_and_are_no_edges(tmp_path, data):
    dataset = known(data)
    nodes, _ = cut(dataset, tmp_path / "p", 4)
    for graph, store in open_on_ranks(tmp_path / "p", 4):
        tasks = load_tasks(tmp_path / "p", graph.manifest)
        for minibatch in chain_of("negatives that are no edges", tasks, graph, store, 16):
            seeds, labels = minibatch.seeds, minibatch.labels
            if data == "homogeneous":
                seeds, labels = {"": seeds}, {"": labels}
            for kind, pairs in seeds.items():
                assert len(pairs) == 3 * int(labels[kind].sum())
                ends = (kind.split(":")[0], kind.split(":")[-1])
                firsts = dataset.graph.node_type_offset
                number = (dataset.graph.edge_type_to_id or {"": 0})[kind]
                fused = [
                    nodes[end][pairs[:, i].long()].numpy()
                    + (0 if firsts is None else int(firsts[dataset.graph.node_type_to_id[end]]))
                    for i, end in enumerate(ends)
                ]
                there = dataset.graph.has_edges(*fused, number)
                assert np.array_equal(there, labels[kind].numpy() == 1)


def test_b9_nodes_behind_the_last_destination_and_edge_types_without_edges(tmp_path):
    edges = {
        "a:x:b": (torch.tensor([0, 1]), torch.tensor([0, 1])),
        "b:y:b": (torch.empty(0).long(), torch.empty(0).long()),
        "b:z:a": (torch.tensor([4]), torch.tensor([0])),
    }
    graph = hp.from_coo(edges, num_nodes={"a": 9, "b": 9})
    given = {"a": torch.arange(9) // 5, "b": torch.arange(9) // 5}
    nodes, _ = cut(graph, tmp_path / "p", 2, part_method=given)
    for parted, _store in open_on_ranks(tmp_path / "p", 2):
        items = {kind: hp.ItemSet(torch.arange(9), names="seeds") for kind in "ab"}
        chain = hp.ItemSampler(hp.HeteroItemSet(items), 18).sample_neighbor(parted, [-1, [1, 1, 1]])
        (minibatch,) = chain
        for hop in minibatch.sampled_subgraphs:
            counts = {kind: csc.indptr.diff() for kind, csc in hop.sampled_csc.items()}
            assert {kind: int(n.sum()) for kind, n in counts.items()} == {
                "a:x:b": 2, "b:y:b": 0, "b:z:a": 1,
            }  # fmt: skip
            columns = nodes["b"][hop.original_column_node_ids["b"].long()]
            assert set(columns[counts["a:x:b"] > 0].tolist()) == {0, 1}


def _owner_that_fails(rank, world_size, device, folder):
    with DistDataset(folder, timeout=60) as dataset:
        items = hp.ItemSet(dataset.graph.total_num_nodes, names="seeds")
        chain = hp.ItemSampler(items, 40).sample_neighbor(dataset.graph, [4, 4])
        with pytest.MonkeyPatch.context() as patch:
            if rank == 1:
                patch.setattr(PartSampler, "sample", _fail)
            torch.distributed.barrier()
            if rank == 0:
                for workers in (0, 2):
                    with (
                        hp.DataLoader(chain, num_workers=workers) as loader,
                        pytest.raises(RankError, match=r"rank 1 .*no luck") as told,
                    ):
                        list(loader)
                    assert told.value.ranks == (1,)
            torch.distributed.barrier()
        torch.distributed.barrier()  # the patch is gone everywhere
        # An answer that failed is not the end of the exchange.
        assert len(list(chain)) == 3
        torch.distributed.barrier()


def _fail(*args):
    raise ZeroDivisionError("no luck")


def test_b10_an_error_where_edges_are_sampled_comes_to_whoever_asked(tmp_path):
    cut(known("homogeneous"), tmp_path / "p", 2)
    launch(_owner_that_fails, 2, tmp_path / "p", timeout=60)


def test_b11_values_of_one_name_are_kept_apart(tmp_path):
    """The attribute `time` of the graph, features of that name of nodes and of edges, by type."""
    dataset = known("heterogeneous")
    dataset = type(dataset)(graph=dataset.graph, tasks=dataset.tasks)
    dataset.feature = hp.BasicFeatureStore(
        {
            (domain, kind, name): hp.TorchBasedFeature(
                (torch.arange(count) * 1000 + 10 * place + len(name))[:, None]
            )
            for domain, counts in (("node", NODES), ("edge", EDGES))
            for place, (kind, count) in enumerate(counts.items())
            for name in ("x", "time")
        }
    )
    nodes, edges = cut(dataset, tmp_path / "p", 3)
    graph, store = open_on_ranks(tmp_path / "p", 3)[1]
    items = load_tasks(tmp_path / "p", graph.manifest)[0].train_set
    keys = [{kind: ["x", "time"] for kind in kinds} for kinds in (NODES, EDGES)]
    chain = hp.ItemSampler(items, 20).temporal_sample_neighbor(
        graph, [9], node_timestamp_attr_name="time"
    )
    for minibatch in chain.fetch_feature(store, *keys):
        ids = {kind: nodes[kind][i.long()] for kind, i in minibatch.input_nodes.items()}
        check_rows(minibatch.node_features, ids, NODES)
        (hop,) = minibatch.sampled_subgraphs
        ids = {kind: edges[kind][i] for kind, i in hop.original_edge_ids.items()}
        check_rows(minibatch.edge_features[0], ids, EDGES)


def check_rows(features, ids, kinds):
    for place, kind in enumerate(kinds):
        for name in ("x", "time"):
            if (kind, name) in features or len(ids.get(kind, ())):
                expected = ids[kind] * 1000 + 10 * place + len(name)
                assert torch.equal(features[kind, name][:, 0], expected)


def test_b12_weighted_and_induced_sampling_are_there(tmp_path):
    """Edges of weight 0 are never drawn, heavy ones always; then all in-edges."""
    source, target = torch.arange(60) % 20, torch.arange(60) % 12
    graph = hp.from_coo(
        source, target, num_nodes=20, include_original_edge_id=True,
        edge_attributes={"weight": torch.where(torch.arange(60) % 3 == 0, 0.0, 1.0)},
    )  # fmt: skip
    _, edges = cut(graph, tmp_path / "p", 3, part_method="random")
    for parted, _store in open_on_ranks(tmp_path / "p", 3):
        source = hp.ItemSampler(hp.ItemSet(20, names="seeds"), 6)
        drawn = set()
        for minibatch in source.sample_neighbor(parted, [2], prob_name="weight"):
            (hop,) = minibatch.sampled_subgraphs
            drawn |= set(edges[""][hop.original_edge_ids].tolist())
        assert drawn
        assert all(edge % 3 for edge in drawn)
        whole = [
            edges[""][m.sampled_subgraphs[0].original_edge_ids]
            for m in source.sample_in_subgraph(parted)
        ]
        assert sorted(torch.cat(whole).tolist()) == list(range(60))


def _threads_over_parts(rank, world_size, device, folder):
    with DistGraph(folder, timeout=60) as graph:
        store = DistFeatureStore(graph)
        items = hp.ItemSet(torch.arange(119, -1, -1), names="seeds")
        chain = hp.ItemSampler(items, 7).sample_neighbor(graph, [5, 5])
        chain = chain.fetch_feature(store, ["id"])
        with hp.DataLoader(chain, num_workers=4, prefetch_factor=3) as loader:
            seeds = [minibatch.seeds for minibatch in loader]
    assert torch.equal(torch.cat(seeds), torch.arange(119, -1, -1))


def test_d4_mini_batches_come_in_order_from_threads(tmp_path):
    """DistDGL gives them as they are completed. Nothing upstream ran 3 parts, or workers."""
    cut(known("homogeneous"), tmp_path / "p", 3)
    launch(_threads_over_parts, 3, tmp_path / "p", timeout=60)


def test_d5_no_global_generator_is_read_or_written(tmp_path):
    before = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    cut(known("homogeneous"), tmp_path / "p", 3, part_method="random")
    ((graph, store),) = open_on_ranks(tmp_path / "p", 1)
    tasks = load_tasks(tmp_path / "p", graph.manifest)
    for name in ("uniform", "labor", "negatives in time"):
        list(chain_of(name, tasks, graph, store, 16))
    node_split(torch.ones(120, dtype=torch.bool), graph)
    assert random.getstate() == before[0]
    assert np.array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), before[2])


def test_d7_a_feature_may_have_any_name(tmp_path):
    dataset = around([0, 1, 2], [1, 2, 0], 3)
    names = ["a/b", "..", "node/_N/x", " ", "ü:ö"]
    dataset.feature = hp.BasicFeatureStore(
        {("node", None, name): hp.TorchBasedFeature(torch.arange(3)[:, None] + 10 * i)
         for i, name in enumerate(names)}
    )  # fmt: skip
    nodes, _ = cut(dataset, tmp_path / "p", 2)
    for graph, store in open_on_ranks(tmp_path / "p", 2):
        chain = hp.ItemSampler(hp.ItemSet(3, names="seeds"), 3).sample_neighbor(graph, [1])
        (minibatch,) = chain.fetch_feature(store, names)
        for i, name in enumerate(names):
            ids = nodes[""][minibatch.input_nodes.long()]
            assert torch.equal(minibatch.node_features[name][:, 0], ids + 10 * i)


def test_readers_of_parts_ask_for_hops_once(tmp_path):
    """PyG asks once for each edge type, one after the other; here it is one question a hop."""
    cut(known("heterogeneous"), tmp_path / "p", 3)
    graph, store = open_on_ranks(tmp_path / "p", 3)[0]
    tasks = load_tasks(tmp_path / "p", graph.manifest)
    batches = list(chain_of("uniform", tasks, graph, store, 1000))
    hops = [kind for kind, _ in graph.exchange.asked if kind == graph.kind(Question.HOP)]
    assert len(hops) == 2 * len(batches)
