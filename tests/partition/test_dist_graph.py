"""DistGraph and features, asked and written by hand; mini-batches are in test_equality."""

import threading
import warnings

import numpy as np
import pytest
import torch

import hopline.pipes as hp
from hopline.models import launch
from hopline.partition import DistFeatureStore, DistGraph, part_sampler, partition_graph
from hopline.partition.questions import EdgeQuestion, Question
from hopline.pipes.hop import HopRule
from tests.partition.graphs import heterogeneous, homogeneous
from tests.partition.ranks_in_process import open_on_ranks

MAKERS = {"homogeneous": homogeneous, "heterogeneous": heterogeneous}


def cut(dataset, folder, parts, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # small parts cannot always be balanced
        return partition_graph(dataset, "g", parts, folder, return_mapping=True, **options)


def ids_before(maps):
    """int64[nodes], fused ids before, by new fused id."""
    maps = maps if isinstance(maps, dict) else {"": maps}
    firsts = np.cumsum([0, *(len(ids) for ids in maps.values())])
    pieces = [ids.numpy() + low for ids, low in zip(maps.values(), firsts, strict=False)]
    return np.concatenate(pieces)


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize(("ranks", "parts", "hops"), [(1, 3, 1), (3, 3, 2), (2, 4, 1), (4, 2, 2)])
def test_owners_know_edges_and_times(tmp_path, monkeypatch, name, ranks, parts, hops):
    """Every pair of nodes, of every edge type; times in several pieces."""
    monkeypatch.setattr("hopline.partition.lookups.ROWS", 7)
    whole = MAKERS[name]().graph
    nodes, _ = cut(whole, tmp_path / "p", parts, num_hops=hops, part_method="random")
    before = ids_before(nodes)
    pairs = np.indices((len(before), len(before))).reshape(2, -1)
    for graph, _store in open_on_ranks(tmp_path / "p", ranks):
        assert np.array_equal(graph.node_times("time"), whole.node_times("time")[before])
        assert graph.node_times("time") is graph.node_times("time")
        for kind in range(whole.num_edge_types):
            expected = whole.has_edges(*before[pairs], kind)
            assert np.array_equal(graph.has_edges(*pairs, kind), expected)
        nobody = np.empty(0, np.int64)
        assert graph.has_edges(nobody, nobody).shape == (0,)
        with pytest.raises(KeyError, match="no node attribute 'tim'"):
            graph.node_times("tim")


def test_a_question_that_does_not_fit_is_refused(tmp_path):
    cut(homogeneous(), tmp_path / "p", 2)
    ((graph, _), (other, _)) = open_on_ranks(tmp_path / "p", 2)
    there = other.book.node_range(1).start
    one, pair = np.array([1]), np.array([there])
    with pytest.raises(IndexError, match=r"edge type 1 is outside \[0, 1\)"):
        graph.has_edges(pair, pair, 1)
    answers = other.exchange.answerers
    edges, times = (answers[other.kind(kind)] for kind in (Question.EDGES, Question.NODE_TIMES))
    good = EdgeQuestion(0, one, one, pair, pair).to_message()
    assert edges(0, good)[0].shape == (1,)
    for at, wrong in ((0, pair[:0]), (1, pair[:0]), (2, -one), (3, pair[:0]), (4, pair + 0.5)):
        with pytest.raises(ValueError, match="a question for edges"):
            edges(0, [*good[:at], wrong, *good[at + 1 :]])
    with pytest.raises(ValueError, match="a question for edges is not five"):
        edges(0, good[:4])
    with pytest.raises(ValueError, match="part 0 is not here"):
        edges(0, [good[0], one * 0, *good[2:]])
    with pytest.raises(IndexError, match="has no node 9999"):
        edges(0, [*good[:4], pair * 0 + 9999])
    name = np.frombuffer(b"time", np.uint8)
    assert len(times(0, [np.array([0, 0, 5]), one, name])[0]) == 5
    for words in ([0, 0], [1, 0, 5], [-1, 0, 5], [0, -2, 5], [0, 5, 2]):
        with pytest.raises(ValueError, match="a question for times"):
            times(0, [np.array(words), one, name])
    with pytest.raises(ValueError, match="a question for times"):
        times(0, [np.array([0, 0, 5]), one])
    with pytest.raises(ValueError, match="part 0 is not here"):
        times(0, [np.array([0, 0, 5]), one * 0, name])


def test_threads_that_draw_by_labor_at_once(tmp_path, monkeypatch):
    """The sources' names are made at the first draw; no other thread may see half of them."""
    cut(homogeneous(), tmp_path / "p", 2)
    ((graph, _),) = open_on_ranks(tmp_path / "p", 1)
    columns = np.arange(50)
    rule = HopRule(np.array([3]), False, np.array([5], np.uint64), layer=np.arange(4).astype("u8"))
    expected = graph.sample_one_hop(columns, columns, rule)
    ((graph, _),) = open_on_ranks(tmp_path / "p", 1)
    take, found = part_sampler.take, []

    def draw():
        found.append(graph.sample_one_hop(columns, columns, rule))

    def take_late(source, places, out):
        """Another thread draws while names are being made."""
        if not found and len(places) in (p.graph.total_num_edges for p in graph.parts.values()):
            out[:] = 0
            found.append(None)
            thread = threading.Thread(target=draw)
            thread.start()
            thread.join()
        take(source, places, out)

    monkeypatch.setattr(part_sampler, "take", take_late)
    draw()
    assert len(found) == 3
    for hop in found[1:]:
        assert np.array_equal(hop.positions, expected.positions)


def test_times_that_are_not_integers_are_refused(tmp_path):
    graph = hp.from_coo(
        torch.arange(9), torch.arange(9), num_nodes=9,
        node_attributes={"x": torch.rand(9), "two": torch.zeros(9, 2, dtype=torch.int64)},
    )  # fmt: skip
    cut(graph, tmp_path / "p", 2)
    ((parted, _),) = open_on_ranks(tmp_path / "p", 1)
    items = hp.ItemSampler(hp.ItemSet(torch.zeros(4, 2).long(), names="seeds"), 4)
    for name, error in (("x", TypeError), ("two", ValueError), ("none", KeyError)):
        with pytest.raises(error, match=name) as told:
            items.sample_uniform_negative(parted, 1, node_timestamp_attr_name=name)
        with pytest.raises(error) as expected:
            items.sample_uniform_negative(graph, 1, node_timestamp_attr_name=name)
        if error is not ValueError:  # which tells the number of rows
            assert str(told.value) == str(expected.value)


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


@pytest.mark.parametrize("exchange", [5, "gloo", False])
def test_what_is_no_exchange_is_refused(tmp_path, exchange):
    cut(homogeneous(), tmp_path / "p", 1)
    with pytest.raises(TypeError, match=f"exchange is {exchange!r}; expected an Exchange, or None"):
        DistGraph(tmp_path / "p", exchange=exchange)
