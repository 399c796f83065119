"""Promise 1: a mini-batch is a pure function of (seed, epoch, batch index)."""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import subprocess
import sys
import threading
from multiprocessing import resource_sharer
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import numpy as np
import pytest
import torch

import hopline.pipes as hp
from tests import twins
from tests.pipes.test_subgraph_sampler import Composed
from tests.strategies import build, sampled
from tests.twins import EDGE, NODE

WORKERS = [0, 1, 2, 8]
KINDS = "shop", "item", "user"  # of items, in another order than the graph's


def homogeneous() -> twins.Graph:
    generator = np.random.default_rng(3)
    src, dst = generator.integers(0, 60, (2, 400)).tolist()
    return twins.Graph({NODE: 60}, {EDGE: list(zip(src, dst, strict=True))})


def heterogeneous() -> twins.Graph:
    generator = np.random.default_rng(4)
    num_nodes = {"user": 30, "item": 20, "shop": 5}
    edges = {}
    for etype in ("user:buys:item", "user:sees:item", "item:in:shop", "item:by:user"):
        source, _, destination = etype.split(":")
        src = generator.integers(0, num_nodes[source], 90).tolist()
        dst = generator.integers(0, num_nodes[destination], 90).tolist()
        edges[etype] = list(zip(src, dst, strict=True))
    return twins.Graph(num_nodes, edges)


def items(twin: twins.Graph) -> hp.ItemSet | hp.HeteroItemSet:
    if NODE in twin.num_nodes:
        columns = torch.arange(50), torch.arange(50) % 7
        return hp.ItemSet(columns, ("seeds", "labels"))
    return hp.HeteroItemSet(
        {kind: hp.ItemSet((torch.arange(twin.num_nodes[kind]),), ("seeds",)) for kind in KINDS}
    )


def features(twin: twins.Graph) -> hp.BasicFeatureStore:
    homogeneous = NODE in twin.num_nodes
    store = {
        ("node", None if homogeneous else kind, "x"): hp.TorchBasedFeature(
            torch.arange(2 * count).reshape(count, 2).to(torch.float16)
        )
        for kind, count in twin.num_nodes.items()
    }
    return hp.BasicFeatureStore(store)


def attributes(twin: twins.Graph) -> dict:
    """Weights `w`, some of them 0, and times `t` of edges and nodes."""
    homogeneous = NODE in twin.num_nodes

    def of(sizes, rule):
        values = {kind: rule(torch.arange(size)) for kind, size in sizes.items()}
        return next(iter(values.values())) if homogeneous else values

    edges = {etype: len(pairs) for etype, pairs in twin.edges.items()}
    return {
        "edge_attributes": {"w": of(edges, lambda e: e % 4), "t": of(edges, lambda e: e * 7 % 50)},
        "node_attributes": {"t": of(twin.num_nodes, lambda i: i * 5 % 40)},
    }


NAMES = ("seeds", "timestamp")
TIMED = {"edge_timestamp_attr_name": "t", "node_timestamp_attr_name": "t"}
SAMPLERS = {
    "weighted": lambda s, g, f: s.sample_neighbor(g, f, prob_name="w"),
    "weighted, again": lambda s, g, f: s.sample_neighbor(g, f, True, "w", False),
    "layer": lambda s, g, f: s.sample_layer_neighbor(g, f),
    "layer, weighted": lambda s, g, f: s.sample_layer_neighbor(
        g, f, True, "w", layer_dependency=True, batch_dependency=3
    ),
    "temporal": lambda s, g, f: s.temporal_sample_neighbor(g, f, **TIMED),
    "temporal, weighted": lambda s, g, f: s.temporal_sample_neighbor(
        g, f, True, "w", pre_time_window=30, **TIMED
    ),
    "temporal layer": lambda s, g, f: s.temporal_sample_layer_neighbor(
        g, f, batch_dependency=2, **TIMED
    ),
    "in subgraph": lambda s, g, f: s.sample_in_subgraph(g),
    "a user's own": lambda s, g, f: s.pipe(Composed, g),
}


def links(twin: twins.Graph) -> hp.ItemSet | hp.HeteroItemSet:
    """The first 30 edges of each type, with times."""
    found = {
        etype: hp.ItemSet((torch.tensor(pairs[:30]), torch.arange(30) + 15), NAMES)
        for etype, pairs in twin.edges.items()
    }
    return next(iter(found.values())) if NODE in twin.num_nodes else hp.HeteroItemSet(found)


def sampler_chain(twin: twins.Graph, name: str, linked: bool) -> hp.Stage:
    """Items or links with negatives, one sampler, and features."""
    source = hp.ItemSampler(links(twin) if linked else timed(twin), 16, shuffle=True, seed=9)
    graph = build(twin, include_original_edge_id=True, **attributes(twin))
    if linked:
        source = source.sample_uniform_negative(graph, 1)
    keys = ["x"] if NODE in twin.num_nodes else {kind: ["x"] for kind in twin.num_nodes}
    return SAMPLERS[name](source, graph, [3, 2]).fetch_feature(features(twin), keys)


def timed(twin: twins.Graph) -> hp.ItemSet | hp.HeteroItemSet:
    """Every node, with a time."""
    found = {
        kind: hp.ItemSet((torch.arange(count), torch.arange(count) % 30 + 15), NAMES)
        for kind, count in twin.num_nodes.items()
    }
    return found[NODE] if NODE in found else hp.HeteroItemSet({kind: found[kind] for kind in KINDS})


FANOUTS = {True: [[4], [-1], [3]], False: [[2, 1, -1, 3], [5], [1, 1, 1, 1]]}


def chain(twin: twins.Graph, *, replace=False, shuffle=True, source=None) -> hp.Stage:
    """Items, three hops of sampling and features, over the twin's graph."""
    homogeneous = NODE in twin.num_nodes
    source = source or hp.ItemSampler(items(twin), 8, shuffle=shuffle, seed=11)
    keys = ["x"] if homogeneous else {kind: ["x"] for kind in twin.num_nodes}
    fanouts = [torch.tensor(f) for f in FANOUTS[homogeneous]]
    graph = build(twin, include_original_edge_id=True)
    return source.sample_neighbor(graph, fanouts, replace).fetch_feature(features(twin), keys)


def flatten(value) -> list:
    """All that a mini-batch holds, bit by bit, in the order in which it is held."""
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), tuple(value.shape), value.contiguous().numpy().tobytes()]
    if isinstance(value, dict):
        return [x for key, v in value.items() for x in (key, *flatten(v))]
    if isinstance(value, list | tuple):
        return [x for v in value for x in flatten(v)]
    if isinstance(value, hp.SampledSubgraph | hp.CSCFormatBase):
        return [x for name in value.__slots__ for x in flatten(getattr(value, name))]
    return [value]


def trace(minibatches) -> list:
    return [flatten([vars(minibatch)]) for minibatch in minibatches]


TWINS = {"homogeneous": homogeneous, "heterogeneous": heterogeneous}


@pytest.mark.parametrize("make", TWINS.values(), ids=TWINS)
@pytest.mark.parametrize("replace", [False, True])
def test_any_number_of_workers(make, replace):
    twin = make()
    traces = []
    for num_workers in WORKERS:
        with hp.DataLoader(chain(twin, replace=replace), num_workers=num_workers) as loader:
            traces.append([trace(loader), trace(loader)])
    assert traces[0][0] != traces[0][1]  # the epochs differ
    assert len(traces[0][0]) == 7
    for other in traces[1:]:
        assert other == traces[0]


@pytest.mark.parametrize("make", TWINS.values(), ids=TWINS)
@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("linked", [False, True])
def test_any_number_of_workers_for_every_sampler(make, name, linked):
    twin = make()
    traces = []
    for num_workers in (0, 2, 8):
        with hp.DataLoader(sampler_chain(twin, name, linked), num_workers=num_workers) as loader:
            traces.append([trace(loader), trace(loader)])
    assert traces[0][0] != traces[0][1]
    assert len(traces[0][0]) > 1
    assert traces[1:] == traces[:1] * 2


@pytest.mark.parametrize("make", TWINS.values(), ids=TWINS)
@pytest.mark.parametrize("name", SAMPLERS)
def test_any_order_for_every_sampler(make, name):
    """Backwards, by chains that have drawn nothing before."""
    twin = make()
    expected = trace(sampler_chain(twin, name, True))
    for index in reversed(range(len(expected))):
        source, stages = sampler_chain(twin, name, True).parts()
        minibatch = source.batch(0, index)
        for stage in stages:
            minibatch = stage(minibatch)
        assert flatten([vars(minibatch)]) == expected[index]


@pytest.mark.parametrize("make", TWINS.values(), ids=TWINS)
def test_any_order_and_any_company(make):
    """Batches made by themselves, backwards, and while other threads make others."""
    pipe = chain(make())
    source, stages = pipe.parts()

    def one(index):
        minibatch = source.batch(0, index)
        for stage in stages:
            minibatch = stage(minibatch)
        return flatten([vars(minibatch)])

    expected = trace(pipe)
    assert [one(i) for i in reversed(range(len(pipe)))] == expected[::-1]
    found: dict[int, list] = {}
    threads = [
        threading.Thread(target=lambda t=t: found.update({t: one(t % len(pipe))}))
        for t in range(3 * len(pipe))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[t] for t in range(3 * len(pipe))] == expected * 3


def test_big_mini_batches_share_no_memory_while_they_live():
    """Half of the mini-batches die at once and leave their arrays, of the pool, to others."""
    generator = torch.Generator().manual_seed(0)
    src, dst = torch.randint(0, 20_000, (2, 150_000), generator=generator)
    flat = hp.from_coo(src, dst, 20_000)
    typed = hp.from_coo({"n:a:n": (src, dst), "n:b:n": (dst, src)}, num_nodes={"n": 20_000})
    for graph, item_set in (
        (flat, hp.ItemSet(20_000, "seeds")),
        (typed, hp.HeteroItemSet({"n": hp.ItemSet(20_000, "seeds")})),
    ):
        pipe = hp.ItemSampler(item_set, 2_500, shuffle=True, seed=1).sample_neighbor(graph, [9, 4])
        found = []
        for num_workers in (0, 4):
            made, kept = [], {}
            with hp.DataLoader(pipe, num_workers=num_workers) as loader:
                for index, minibatch in enumerate(itertools.chain(loader, loader)):
                    made.append(hash(tuple(flatten([vars(minibatch)]))))
                    if index % 2:
                        kept[index] = minibatch
            assert len(made) == 16
            for index, minibatch in kept.items():
                assert hash(tuple(flatten([vars(minibatch)]))) == made[index]
            found.append(made)
        assert found[0] == found[1]


def test_two_loaders_on_one_chain():
    pipe = chain(homogeneous())
    alone = trace(hp.DataLoader(pipe))
    first, second = hp.DataLoader(pipe, num_workers=2), hp.DataLoader(pipe)
    pairs = list(zip(first, second, strict=True))
    assert trace(a for a, _ in pairs) == trace(b for _, b in pairs) == alone


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("move", ["send", "share"])
def test_moving_a_graphs_attributes_in_memory_changes_nothing(move, name):
    # Sending a tensor to a process moves it to shared memory, and frees the memory it was in.
    twin = homogeneous()
    graph = build(twin, **attributes(twin))
    pipe = SAMPLERS[name](hp.ItemSampler(timed(twin), 7, seed=1), graph, [3, 2])
    before = trace(hp.DataLoader(pipe))
    columns = [*(graph.edge_attributes or {}).values(), *(graph.node_attributes or {}).values()]
    if move == "send":
        ForkingPickler.dumps(pipe)
        resource_sharer.stop()  # its thread would wait for the process
    else:
        for column in columns:
            column.share_memory_()
    # What takes the memory that was let go of.
    others = [torch.full_like(column, 3) for column in columns for _ in range(20)]
    assert trace(hp.DataLoader(pipe)) == before
    assert len(others) == 20 * len(columns)


def clear(value) -> None:
    """Fills all tensors of a value with 0."""
    if isinstance(value, torch.Tensor):
        value.zero_()
    elif isinstance(value, dict):
        for item in value.values():
            clear(item)
    elif isinstance(value, list | tuple):
        for item in value:
            clear(item)
    elif hasattr(value, "__dict__"):
        clear(vars(value))


COLUMNS = {
    "nodes": lambda: (torch.arange(1, 41), torch.arange(1, 41)),
    "edges": lambda: (torch.arange(1, 81).view(40, 2) % 40, torch.arange(1, 41)),
    "list": lambda: (torch.arange(1, 41), [torch.tensor([i]) for i in range(1, 41)]),
}


@pytest.mark.parametrize("columns", COLUMNS.values(), ids=COLUMNS)
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("policy", [None, "sieve", "lru"])
def test_stages_that_write_in_place_change_no_other_mini_batch(columns, shuffle, policy):
    src, dst = torch.arange(200) * 7 % 41, torch.arange(200) * 3 % 41
    graph = hp.from_coo(src, dst, 41, edge_attributes={"weight": torch.arange(200) % 4})
    feature = hp.TorchBasedFeature(torch.arange(1.0, 83.0).view(41, 2))
    if policy is not None:
        feature = hp.cpu_cached_feature(feature, 8 * 60, policy)
    pipe = (
        hp.ItemSampler(hp.ItemSet(columns(), ("seeds", "labels")), 7, shuffle=shuffle, seed=2)
        .sample_neighbor(graph, [-1, 3], prob_name="weight")
        .fetch_feature(hp.BasicFeatureStore({("node", None, "x"): feature}), ["x"])
    )
    loader = hp.DataLoader(pipe)
    start = loader.state_dict()
    before = trace(loader)
    loader.load_state_dict(start)
    for minibatch in loader:
        clear(minibatch)
    loader.load_state_dict(start)
    assert trace(loader) == before


@pytest.mark.parametrize("make", TWINS.values(), ids=TWINS)
@pytest.mark.parametrize("replace", [False, True])
def test_the_twin(make, replace):
    """Every mini-batch of an epoch, from the order of the items to the last edge."""
    twin = make()
    pipe = chain(twin, replace=replace)
    homogeneous = NODE in twin.num_nodes
    every = [(NODE, i) for i in range(50)]
    if not homogeneous:
        every = [(kind, i) for kind in KINDS for i in range(twin.num_nodes[kind])]
    for epoch, loop in ((0, pipe), (1, pipe)):
        order = twins.epoch_order(11, epoch, len(every))
        for index, minibatch in enumerate(loop):
            seeds = [every[i] for i in order[8 * index : 8 * index + 8]]
            kinds = list(twin.num_nodes)
            seeds.sort(key=lambda seed: kinds.index(seed[0]))
            assert minibatch.key == (11, epoch, index)
            expected = twins.sample(twin, seeds, FANOUTS[homogeneous], replace, minibatch.key)
            assert sampled(minibatch, twin) == expected
            for kind, nodes in expected.nodes.items():
                rows = minibatch.node_features["x" if homogeneous else (kind, "x")]
                assert rows.tolist() == [[2 * i, 2 * i + 1] for i in nodes]


@pytest.mark.parametrize("make", TWINS.values(), ids=TWINS)
@pytest.mark.parametrize("shuffle", [False, True])
def test_ranks_make_the_batches_of_one_process(make, shuffle):
    """48 items, 3 ranks, batches of 4: the ranks cut the order where one process does."""
    twin = make()
    item_set = hp.ItemSet(48, "seeds")
    if NODE not in twin.num_nodes:
        item_set = hp.HeteroItemSet(
            {"item": hp.ItemSet(20, "seeds"), "user": hp.ItemSet(28, "seeds")}
        )

    def run(source):
        return trace(chain(twin, source=source))

    single = run(hp.ItemSampler(item_set, 4, shuffle=shuffle, seed=11))
    ranks = [
        run(
            hp.DistributedItemSampler(
                item_set, 4, shuffle=shuffle, seed=11, num_replicas=3, rank=rank
            )
        )
        for rank in range(3)
    ]
    assert ranks[0] + ranks[1] + ranks[2] == single
    assert len(single) == 12


def test_seed_epoch_and_index_matter():
    twin = homogeneous()
    graph = build(twin)
    stage = hp.NeighborSampler([], graph, [2, 2])
    found = set()
    for key in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (2**62, 0, 0)]:
        minibatch = stage(hp.MiniBatch(seeds=torch.arange(60), key=key))
        found.add(str(flatten(minibatch.sampled_subgraphs)))
    assert len(found) == 6


def test_no_global_generator_is_read_or_written():
    def states():
        return (
            random.getstate(),
            str(np.random.get_state()),  # noqa: NPY002
            torch.get_rng_state().tolist(),
        )

    def run():
        found = [trace(hp.DataLoader(chain(make()), num_workers=2)) for make in TWINS.values()]
        for make, name in itertools.product(TWINS.values(), SAMPLERS):
            found.append(trace(sampler_chain(make(), name, True)))
        return found

    expected = run()
    for seed in (1, 2):
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        torch.manual_seed(seed)
        before = states()
        assert run() == expected
        drawn = hp.ItemSampler(hp.ItemSet(5, "seeds"), 2, shuffle=True)
        list(drawn)
        assert states() == before


def digest() -> str:
    """Of two epochs of both chains, and of every sampler; run in other processes, too."""
    found = hashlib.sha256()
    for make in TWINS.values():
        with hp.DataLoader(chain(make()), num_workers=2) as loader:
            for _ in range(2):
                found.update(repr(trace(loader)).encode())
        for name in SAMPLERS:
            for linked in (False, True):
                found.update(repr(trace(sampler_chain(make(), name, linked))).encode())
    return found.hexdigest()


def test_another_process_with_another_hash_seed():
    code = "from tests.promises.test_same_batch import digest; print(digest())"
    other = "1" if os.environ.get("PYTHONHASHSEED") == "0" else "0"
    child = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONHASHSEED": other, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert child.returncode == 0, child.stderr
    assert child.stdout.strip() == digest()
