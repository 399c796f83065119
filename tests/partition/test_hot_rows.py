"""Rows of several features in one question, and copies of the rows that are read most."""

import numpy as np
import pytest
import torch

import hopline.pipes as hp
from hopline.models import launch
from hopline.partition import DistDataset, DistFeature
from hopline.partition.hot_rows import HotRows, hottest_that_fit
from hopline.partition.questions import Question
from tests.partition.graphs import heterogeneous, homogeneous
from tests.partition.ranks_in_process import open_on_ranks
from tests.partition.test_dist_graph import cut

FEAT = ("node", None, "id")
HALF = ("node", None, "half")
EDGE = ("edge", None, "id")


def questions(graph, kind=Question.READ):
    return [ranks for asked, ranks in graph.exchange.asked if asked == graph.kind(kind)]


def everything(store):
    return {tuple(key): store[key].read() for key in store.keys()}  # noqa: SIM118


def same(found, expected):
    assert found.keys() == expected.keys()
    for key, rows in found.items():
        assert rows.dtype == expected[key].dtype
        assert torch.equal(rows, expected[key]), key


def chain(graph, nodes, fanouts=(4, 4), batch_size=16):
    items = nodes if isinstance(nodes, hp.HeteroItemSet) else hp.ItemSet(nodes, names="seeds")
    sampler = hp.ItemSampler(items, batch_size, shuffle=True, seed=3)
    return sampler.sample_neighbor(graph, list(fanouts))


def test_a_mini_batch_asks_each_owner_once(tmp_path):
    cut(homogeneous(), tmp_path / "p", 3)
    ((graph, store), _, _) = open_on_ranks(tmp_path / "p", 3)
    expected = everything(store)
    made = chain(graph, 120).fetch_feature(store, ["id", "half"], ["id"])
    plain = hp.BasicFeatureStore({key: store[key] for key in expected})
    one_by_one = chain(graph, 120).fetch_feature(plain, ["id", "half"], ["id"])
    for together, apart in zip(made, one_by_one, strict=True):
        same(together.node_features, apart.node_features)
        for hop, rows in zip(together.sampled_subgraphs, together.edge_features, strict=True):
            assert torch.equal(rows["id"], expected[EDGE][hop.original_edge_ids])
        assert torch.equal(together.node_features["half"], expected[HALF][together.input_nodes])
    graph.exchange.asked.clear()
    batches = len(list(made))
    assert len(questions(graph)) == batches
    graph.exchange.asked.clear()
    assert len(list(one_by_one)) == batches
    assert len(questions(graph)) == 4 * batches  # two of nodes, and one a hop


def test_a_feature_that_was_replaced_is_read_from_what_took_its_place(tmp_path):
    cut(homogeneous(), tmp_path / "p", 2)
    ((_, store), _) = open_on_ranks(tmp_path / "p", 2)
    ids = torch.tensor([119, 0, 0, 60])
    other = hp.TorchBasedFeature(torch.arange(120.0)[:, None])
    before = store[HALF].read(ids)
    store[FEAT] = other
    rows = store.read_many([(FEAT, ids), (HALF, ids), (FEAT, ids[:2])])
    assert torch.equal(rows[0], ids.float()[:, None])
    assert torch.equal(rows[1], before)
    assert torch.equal(rows[2], ids[:2].float()[:, None])
    with pytest.raises(TypeError, match=r"TorchBasedFeature; expected one of the parts"):
        store.cache_hot_rows(chain(store._graph, 120), 100, keys=[FEAT])


@pytest.mark.parametrize("name", ["homogeneous", "heterogeneous"])
@pytest.mark.parametrize(("ranks", "parts"), [(2, 2), (3, 3), (2, 4), (4, 2), (1, 3)])
def test_hot_rows_are_read_here_and_are_the_same(tmp_path, name, ranks, parts):
    dataset = {"homogeneous": homogeneous, "heterogeneous": heterogeneous}[name]()
    cut(dataset, tmp_path / "p", parts, part_method="random")
    opened = open_on_ranks(tmp_path / "p", ranks)
    for graph, store in opened:
        expected = everything(store)
        nodes = graph.num_nodes
        if isinstance(nodes, dict):
            nodes = hp.HeteroItemSet({k: hp.ItemSet(n, names="seeds") for k, n in nodes.items()})
        kept = store.cache_hot_rows(chain(graph, nodes), 1 << 20)
        assert (kept > 20) == (ranks > 1)
        same(everything(store), expected)
        for key, rows in expected.items():
            ids = torch.randint(0, max(1, len(rows)), (50,))[: 50 * len(rows)]
            assert torch.equal(store[key].read(ids), rows[ids])
        # Everything that was met is here: mini-batches ask nobody for rows.
        graph.exchange.asked.clear()
        keys = {}
        for domain, kind, feature in expected:
            if domain == "node":
                keys.setdefault(kind, []).append(feature)
        for _ in chain(graph, nodes).fetch_feature(store, keys.get(None, keys)):
            pass
        assert all(asked <= {graph.exchange.rank} for asked in questions(graph))


def test_an_update_reaches_the_copies(tmp_path):
    cut(homogeneous(), tmp_path / "p", 3, part_method="random")
    opened = open_on_ranks(tmp_path / "p", 3)
    for graph, store in opened[:2]:
        assert store.cache_hot_rows(chain(graph, 120), 1 << 20) > 20
    expected = opened[0][1][HALF].read()
    ids = torch.tensor([119, 0, 7, 60])
    expected[ids] = torch.full((4, 3), -2.0).bfloat16()
    opened[2][1][HALF].update(torch.full((4, 3), -2.0), ids)
    for _, store in opened:
        assert torch.equal(store[HALF].read(), expected)
    opened[0][1][HALF].update(expected + 1)
    for _, store in opened:
        assert torch.equal(store[HALF].read(), expected + 1)
    # Who keeps no copies is sent no rows but its own.
    graph, store = opened[0]
    graph.exchange.asked.clear()
    away = graph.book.node_range(1).start
    store[FEAT].update(torch.zeros(1, 1), torch.tensor([away]))
    assert questions(graph, Question.UPDATE) == [{0, 1, 2}, {0, 1}]


def test_how_much_is_kept(tmp_path):
    cut(homogeneous(), tmp_path / "p", 2)
    ((graph, store), _) = open_on_ranks(tmp_path / "p", 2)
    sampler = chain(graph, 120)
    for room, rows in ((0, 0), (9, 0), (10, 1), (59, 5)):  # 4 bytes and 6
        assert store.cache_hot_rows(sampler, room) == rows
        assert torch.equal(store[FEAT].read(), store[FEAT].read(torch.arange(120)))
    assert store.cache_hot_rows(sampler, 59, keys=[FEAT]) == 14
    reads = store._reads
    assert reads.keeps(FEAT)
    assert not reads.keeps(HALF)
    with pytest.raises(KeyError, match="no feature"):
        store.cache_hot_rows(sampler, 59, keys=[("node", None, "nix")])
    for wrong in (-1, 1.5, True, None):
        with pytest.raises((ValueError, TypeError), match="max_bytes"):
            store.cache_hot_rows(sampler, wrong)
    with pytest.raises(TypeError, match="a chain that samples"):
        store.cache_hot_rows(graph, 10)


def test_the_hottest_come_first():
    met = {"a": np.array([5, 3, 9]), "b": np.array([8, 1])}
    fit = hottest_that_fit(met, {"a": 10, "b": 1}, 22)
    assert {kind: ids.tolist() for kind, ids in fit.items()} == {"a": [3, 5], "b": [1, 8]}
    fit = hottest_that_fit(met, {"a": 10, "b": 1}, 11)
    assert {kind: ids.tolist() for kind, ids in fit.items()} == {"a": [5], "b": [8]}
    assert hottest_that_fit({}, {}, 5) == {}


def test_copies_are_found_by_their_bits():
    rng = np.random.default_rng(0)
    for count in (1, 63, 64, 65, 1000):
        for share in (0.0, 0.1, 1.0):
            ids = np.flatnonzero(rng.random(count) < share)
            if not len(ids):
                continue
            hot = HotRows(ids, count, {})
            here = np.array([True, False])
            asked = rng.integers(0, count, 300)
            parts = rng.integers(0, 2, 300)
            found = parts.copy()
            hot.find(asked, 2, here, found)
            assert np.array_equal(found, np.where(np.isin(asked, ids) & (parts == 1), 2, parts))
            order = np.argsort(found, kind="stable")
            low = int((found < 2).sum())
            local = np.full(300, -1)
            hot.place(asked, order, low, local)
            assert np.array_equal(ids[local[low:]], asked[order[low:]])
            assert (local[:low] == -1).all()


def on_ranks(rank, world_size, device, folder):
    with DistDataset(folder, timeout=60) as dataset:
        store = dataset.feature
        expected = everything(store)
        sampler = chain(dataset.graph, dataset.graph.num_nodes)

        def sent():
            made = chain(dataset.graph, dataset.graph.num_nodes)
            made = made.fetch_feature(store, ["id", "half"], ["id"])
            torch.distributed.barrier()
            before = dataset.graph.exchange.bytes_sent
            rows = [(m.input_nodes, m.node_features, m.edge_features) for m in made]
            torch.distributed.barrier()
            for nodes, features, _ in rows:
                assert torch.equal(features["half"], expected[HALF][nodes])
            return rows, dataset.graph.exchange.bytes_sent - before

        rows, all_bytes = sent()
        assert store.cache_hot_rows(sampler, 1 << 20) > 20
        again, fewer = sent()
        assert fewer < all_bytes
        for (nodes, features, edges), (nodes2, features2, edges2) in zip(rows, again, strict=True):
            assert torch.equal(nodes, nodes2)
            same(features, features2)
            for hop, hop2 in zip(edges, edges2, strict=True):
                same(hop, hop2)
        assert isinstance(store[FEAT], DistFeature)
        torch.distributed.barrier()
        if rank == 1:
            store[FEAT].update(torch.full((3, 1), 7.0), torch.tensor([0, 60, 119]))
        torch.distributed.barrier()
        assert store[FEAT].read(torch.tensor([119, 0, 60])).flatten().tolist() == [7.0] * 3


def test_ranks_keep_hot_rows(tmp_path):
    cut(homogeneous(), tmp_path / "p", 2, part_method="random")
    launch(on_ranks, 2, tmp_path / "p", timeout=60)
