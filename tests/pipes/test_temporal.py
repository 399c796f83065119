"""Temporal sampling: no look-ahead, on random graphs, on traps and on a real network."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hopline.pipes as hp
from hopline.pipes.hop import HopRule
from tests import twins, twins_scored
from tests.chi_square import assert_equal_inclusion, assert_follows, assert_uniform
from tests.number_chains import ring
from tests.stage_checks import check_resume
from tests.strategies import (
    TIMES,
    WEIGHTS,
    as_given,
    attribute,
    build,
    edge_values,
    edge_weights,
    ends_of,
    fanout_lists,
    heterogeneous,
    homogeneous,
    is_homogeneous,
    link_tensors,
    links_of,
    node_values,
    sampled,
    seed_tensors,
    seeds_of,
    tensor,
)
from tests.twins import EDGE, NODE

graphs = st.one_of(homogeneous(), heterogeneous())
SAMPLERS = [hp.TemporalNeighborSampler, hp.TemporalLayerNeighborSampler]
EDGES = {"edge_timestamp_attr_name": "t"}
NODES = {"node_timestamp_attr_name": "t"}


def sample(graph, seeds, times, fanouts, sampler=hp.TemporalNeighborSampler, key=(1, 2, 3),
           window=None, **kwargs) -> hp.MiniBatch:  # fmt: skip
    """One mini-batch, by a sampler that knows times."""
    extra = {} if window is None else {"pre_time_window": window}
    minibatch = hp.MiniBatch(seeds=seeds, timestamp=times, key=key, extra=extra)
    return sampler([], graph, fanouts, **kwargs)(minibatch)


def star(times, **attributes) -> hp.FusedCSCSamplingGraph:
    """Node 0 with an in-edge from each of the nodes 1, 2, ..., of these times."""
    n = len(times)
    return hp.from_coo(
        torch.arange(1, n + 1), torch.zeros(n, dtype=torch.int64), n + 1,
        edge_attributes={"t": torch.as_tensor(times), **attributes},
    )  # fmt: skip


def edges_of(minibatch, hop=-1) -> list[int]:
    return minibatch.blocks[hop].original_edge_ids.tolist()


# -------------------------------------------------------------------------------------------------
# The twin


@st.composite
def settings_of(draw, graph: twins.Graph, sampler):
    """Arguments of the sampler and of the graph, and the twin's rule."""
    replace = draw(st.booleans())
    rule = twins_scored.Rule(draw(fanout_lists(graph, replace, max_hops=2)), replace)
    edge_sizes = {etype: len(pairs) for etype, pairs in graph.edges.items()}
    edge, node, kwargs = {}, {}, {"replace": replace}
    timed = draw(st.sampled_from(["edges", "nodes", "both"]))
    if timed != "nodes":
        values = draw(attribute(edge_sizes, TIMES))
        edge["t"], rule.edge_times = as_given(graph, values), edge_values(graph, values)
        kwargs["edge_timestamp_attr_name"] = "t"
    if timed != "edges":
        values = draw(attribute(graph.num_nodes, TIMES))
        node["t"], rule.node_times = as_given(graph, values), node_values(values)
        kwargs["node_timestamp_attr_name"] = "t"
    if draw(st.booleans()):
        values = draw(attribute(edge_sizes, WEIGHTS))
        edge["w"], rule.weights = as_given(graph, values), edge_weights(graph, values)
        kwargs["prob_name"] = "w"
    if sampler is hp.TemporalLayerNeighborSampler:
        rule.layer = draw(st.booleans()), draw(st.sampled_from([1, 0, 3]))
        kwargs["layer_dependency"], kwargs["batch_dependency"] = rule.layer
    keep = draw(st.booleans())
    built = build(
        graph, draw(st.booleans()), include_original_edge_id=keep, node_attributes=node,
        edge_attributes=edge,
    )  # fmt: skip
    return built, rule, kwargs, keep


@given(graphs, st.data())
@settings(max_examples=100)
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("window", ["none", "of all", "of each"])
@pytest.mark.parametrize("linked", [False, True])
def test_equals_the_twin(linked, window, sampler, graph, data):
    built, rule, kwargs, keep = data.draw(settings_of(graph, sampler))
    flat = is_homogeneous(graph)
    if linked:
        links = data.draw(links_of(graph, max_size=3))
        seeds, given_seeds = ends_of(links), link_tensors(graph, links)
        sizes = {kind: (len(rows), len(ends)) for kind, (ends, rows) in links.items()}
    else:
        seeds = data.draw(seeds_of(graph, max_size=4))
        given_seeds = seed_tensors(graph, seeds)
        kinds = [kind for kind, _ in seeds]
        sizes = {NODE: (len(seeds), 1)} if flat else {k: (kinds.count(k), 1) for k in
                                                      graph.num_nodes if k in kinds}  # fmt: skip
    counts = {kind: rows for kind, (rows, _) in sizes.items()}

    def column(values):
        """As given, and one value for each of the ends."""
        drawn = data.draw(attribute(counts, values))
        flat_list = [
            v for kind, (_, ends) in sizes.items() for v in np.repeat(drawn[kind].tolist(), ends)
        ]
        return (next(iter(drawn.values())) if flat else drawn), [int(v) for v in flat_list]

    given_times, times = column(TIMES)
    given_window, earliest = None, None
    if window == "of all":
        kwargs["pre_time_window"] = data.draw(st.sampled_from([0, 1, 2, 4, 2**63 - 1]))
        earliest = [t - kwargs["pre_time_window"] for t in times]
    elif window == "of each":
        windows = {torch.int64: [0, 1, 2, 3, 5, 2**62]}
        given_window, lengths = column(windows)
        earliest = [t - w for t, w in zip(times, lengths, strict=True)]
    fanouts = [*map(tensor, rule.fanouts)]
    minibatch = sample(
        built, given_seeds, given_times, fanouts, sampler, window=given_window, **kwargs
    )
    expected, _ = twins_scored.sample(
        graph, seeds, rule, (1, 2, 3), times=times, earliest=earliest, links=linked,
        original_ids=keep,
    )  # fmt: skip
    assert sampled(minibatch, graph) == expected


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("fanouts", [[2, 2, 2], [-1, 3], [1, -1, 2]])
@pytest.mark.parametrize("case", range(3))
def test_equals_the_twin_over_hops_of_a_dense_graph(case, fanouts, sampler):
    """Where most nodes have edges both before and after the times of the seeds."""
    generator = np.random.default_rng(case)
    pairs = list(zip(*generator.integers(0, 12, (2, 90)).tolist(), strict=True))
    when = {EDGE: torch.from_numpy(generator.integers(0, 20, 90))}
    nodes = {NODE: torch.from_numpy(generator.integers(0, 8, 12))}
    weights = {EDGE: torch.from_numpy(generator.integers(0, 4, 90))}
    graph = twins.Graph({NODE: 12}, {EDGE: pairs})
    rule = twins_scored.Rule([[f] for f in fanouts], case == 2, None)
    kwargs = {**EDGES, "replace": rule.replace}
    rule.edge_times = edge_values(graph, when)
    if case:
        rule.node_times = node_values(nodes)
        rule.weights = edge_weights(graph, weights)
        kwargs |= {**NODES, "prob_name": "w"}
    if sampler is hp.TemporalLayerNeighborSampler:
        rule.layer = False, 1
    built = build(
        graph, edge_attributes={"t": when[EDGE], "w": weights[EDGE]},
        node_attributes={"t": nodes[NODE]},
    )  # fmt: skip
    seeds, times = generator.integers(0, 12, 6).tolist(), [20, 3, 10, 15, 6, 12]
    minibatch = sample(built, tensor(seeds), tensor(times), fanouts, sampler, **kwargs)
    expected, _ = twins_scored.sample(
        graph, [(NODE, i) for i in seeds], rule, (1, 2, 3), times=times, original_ids=False
    )
    assert sampled(minibatch, graph) == expected
    assert all(sum(map(len, hop[EDGE])) > 5 for hop in expected.hops)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("fanout", [1, 63, 64, 65, 130, 300])
def test_equals_the_twin_where_the_algorithm_changes(fanout, replace):
    generator = np.random.default_rng(fanout)
    pairs = [(s % 40, s % 3) for s in range(600)]
    when = torch.from_numpy(generator.integers(0, 100, 600))
    graph = twins.Graph({NODE: 40}, {EDGE: pairs})
    built = build(graph, edge_attributes={"t": when})
    minibatch = sample(
        built, tensor([1, 0, 2, 1]), tensor([70, 101, 1, 99]), [fanout], replace=replace, **EDGES
    )
    rule = twins_scored.Rule([[fanout]], replace, edge_times=edge_values(graph, {EDGE: when}))
    expected, _ = twins_scored.sample(
        graph, [(NODE, i) for i in (1, 0, 2, 1)], rule, (1, 2, 3), times=[70, 101, 1, 99],
        original_ids=False,
    )  # fmt: skip
    assert sampled(minibatch, graph) == expected


# -------------------------------------------------------------------------------------------------
# Traps and defects


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("fanout", [-1, 5])
def test_b27_a_node_met_from_two_times_is_two_nodes(sampler, fanout):
    """Edges 5->1 t1, 6->5 t8, 5->2 t9; seeds (1, t5) and (2, t10): only the latter sees t8."""
    graph = hp.from_coo(
        tensor([5, 6, 5]), tensor([1, 5, 2]), 7, edge_attributes={"t": tensor([1, 8, 9])},
        include_original_edge_id=True,
    )  # fmt: skip
    minibatch = sample(graph, tensor([1, 2]), tensor([5, 10]), [fanout, fanout], sampler, **EDGES)
    assert minibatch.input_nodes.tolist()[:4] == [1, 2, 5, 5]
    assert edges_of(minibatch) == [0, 2]
    outer = minibatch.blocks[0]
    assert outer.num_dst_nodes() == 4
    # Column 2 is node 5 at limit 5, column 3 is node 5 at limit 10: edge 6->5 only there.
    assert torch.diff(outer.indptr).tolist() == [1, 1, 0, 1]
    assert edges_of(minibatch, 0) == [0, 2, 1]
    assert minibatch.input_nodes.tolist() == [1, 2, 5, 5, 5, 5, 6]
    assert minibatch.timestamp.tolist() == [5, 10]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_b05_one_seed_at_two_times(sampler):
    graph = star([1, 2, 3])
    minibatch = sample(graph, tensor([0, 0, 0]), tensor([2, 9, 2]), [-1], sampler, **EDGES)
    assert minibatch.blocks[0].indptr.tolist() == [0, 1, 4, 5]
    assert edges_of(minibatch) == [0, 0, 1, 2, 0]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_d2_each_end_of_a_link_has_the_time_of_its_row(sampler):
    """Seeds [[10, 20], [11, 21], [12, 22]] at 100, 200, 300, in a graph of one type."""
    ends = tensor([10, 20, 11, 21, 12, 22])
    # Of each end, one edge a little before each of the times.
    graph = hp.from_coo(
        torch.arange(18), ends.repeat_interleave(3), 30,
        edge_attributes={"t": tensor([99, 199, 299]).repeat(6)}, include_original_edge_id=True,
    )  # fmt: skip
    minibatch = sample(graph, ends.reshape(3, 2), tensor([100, 200, 300]), [-1], sampler, **EDGES)
    assert minibatch.compacted_seeds.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert minibatch.input_nodes[:6].tolist() == ends.tolist()
    assert torch.diff(minibatch.blocks[0].indptr).tolist() == [1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("ratio", [1, 3])
@pytest.mark.parametrize("repeated", [False, True])
def test_d2_negatives_have_the_time_of_their_positive(ratio, repeated):
    """Positives first, then the negatives of the first one, and so on."""
    rows = 2 * (1 + ratio)
    links = torch.arange(2 * rows).reshape(rows, 2)
    graph = hp.from_coo(
        torch.full((6 * rows,), 2 * rows), torch.arange(2 * rows).repeat(3), 2 * rows + 1,
        edge_attributes={"t": tensor([0, 10, 20]).repeat_interleave(2 * rows)},
    )  # fmt: skip
    times = [5, 15, *[5] * ratio, *[15] * ratio]
    minibatch = sample(graph, links, tensor(times if repeated else [5, 15]), [-1], **EDGES)
    found = torch.diff(minibatch.blocks[0].indptr).reshape(rows, 2).tolist()
    assert found == [[1, 1] if t == 5 else [2, 2] for t in times]


@pytest.mark.parametrize("typed", [False, True])
def test_d2_the_chain_with_negatives(typed):
    """What the negative sampler makes is what the temporal sampler takes."""
    generator = torch.Generator().manual_seed(0)
    src, dst, when = torch.randint(0, 40, (3, 600), generator=generator)
    items = hp.ItemSet((torch.stack((src, dst), 1), when), ("seeds", "timestamp"))
    if typed:
        graph = hp.from_coo(
            {"a:x:a": (src, dst)}, num_nodes={"a": 40}, edge_attributes={"t": {"a:x:a": when}},
            include_original_edge_id=True,
        )  # fmt: skip
        items = hp.HeteroItemSet({"a:x:a": items})
    else:
        graph = hp.from_coo(
            src, dst, 40, edge_attributes={"t": when}, include_original_edge_id=True
        )
    chain = hp.ItemSampler(items, 50, shuffle=True, seed=3).sample_uniform_negative(graph, 2)
    for minibatch in chain.temporal_sample_neighbor(graph, [3, 3], **EDGES):
        seeds, times = minibatch.seeds, minibatch.timestamp
        places, block = minibatch.compacted_seeds, minibatch.blocks[-1]
        nodes = minibatch.input_nodes
        if typed:
            seeds, times, places, block, nodes = (
                seeds["a:x:a"], times["a:x:a"], places["a:x:a"], block["a:x:a"], nodes["a"],
            )  # fmt: skip
        assert seeds.shape == (150, 2)
        assert torch.equal(times, torch.cat((times[:50], times[:50].repeat_interleave(2))))
        assert torch.equal(nodes[places].to(seeds.dtype), seeds)
        assert places.flatten().tolist() == list(range(300))
        latest = times.repeat_interleave(2).repeat_interleave(block.in_degrees())
        assert (when[block.original_edge_ids] < latest).all()


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("degree", [999, 1000, 1001, 1500])
def test_d16_all_edges_of_a_hub(sampler, degree):
    graph = star(torch.arange(degree).flip(0))
    seeds = tensor([0, 0]), tensor([700, 10**6])
    minibatch = sample(graph, *seeds, [-1], sampler, **EDGES)
    assert minibatch.blocks[0].indptr.tolist() == [0, 700, 700 + degree]
    assert edges_of(minibatch) == [*range(degree - 700, degree), *range(degree)]
    for replace in (False, True):
        minibatch = sample(graph, *seeds, [20], sampler, replace=replace, **EDGES)
        assert minibatch.blocks[0].indptr.tolist() == [0, 20, 40]
        early = edges_of(minibatch)[:20]
        assert min(early) >= degree - 700
        assert replace or len(set(early)) == 20


def test_d16_few_of_a_hub_are_early_enough():
    graph = star([5] * 3 + [50] * 1200)
    minibatch = sample(graph, tensor([0]), tensor([6]), [10], **EDGES)
    assert edges_of(minibatch) == [0, 1, 2]
    minibatch = sample(graph, tensor([0]), tensor([5]), [10], **EDGES)
    assert edges_of(minibatch) == []


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("names", [EDGES, NODES, {**EDGES, **NODES}])
@pytest.mark.parametrize("of_each", [False, True])
def test_d17_both_bounds_of_a_window_are_exclusive(sampler, names, of_each):
    graph = star([1, 2, 3, 4, 5, 6])
    graph.add_node_attribute("t", tensor([9, 1, 2, 3, 4, 5, 6]))
    for window, expected in ((0, []), (1, []), (2, [3]), (3, [2, 3]), (9, [0, 1, 2, 3])):
        column = tensor([window]) if of_each else None
        kwargs = names if of_each else {**names, "pre_time_window": window}
        minibatch = sample(graph, tensor([0]), tensor([5]), [-1], sampler, window=column, **kwargs)
        assert edges_of(minibatch) == expected
    assert edges_of(sample(graph, tensor([0]), tensor([5]), [-1], sampler, **names)) == [0, 1, 2, 3]


def test_a_column_of_windows_comes_before_the_samplers_own():
    graph = star([1, 2, 3, 4])
    kwargs = {**EDGES, "pre_time_window": 1}
    minibatch = sample(graph, tensor([0, 0]), tensor([5, 5]), [-1], window=tensor([3, 9]), **kwargs)
    assert edges_of(minibatch) == [2, 3, 0, 1, 2, 3]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_both_the_edge_and_its_source_must_be_old(sampler):
    graph = star([1, 9, 1, 9])
    graph.add_node_attribute("t", tensor([99, 1, 1, 9, 9]))
    seeds = tensor([0]), tensor([5])
    assert edges_of(sample(graph, *seeds, [-1], sampler, **EDGES)) == [0, 2]
    assert edges_of(sample(graph, *seeds, [-1], sampler, **NODES)) == [0, 1]
    assert edges_of(sample(graph, *seeds, [-1], sampler, **EDGES, **NODES)) == [0]


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("names", [EDGES, NODES])
def test_an_edge_from_before_all_times_is_seen_without_a_window(sampler, names):
    """The smallest integer, as data sets write for what has always been there."""
    first = -(2**63)
    graph = star([first, 1])
    graph.add_node_attribute("t", tensor([0, first, 1]))
    assert edges_of(sample(graph, tensor([0]), tensor([1]), [-1], sampler, **names)) == [0]


def test_windows_that_reach_below_all_integers_have_no_bound():
    graph = star([-(2**63) + 1, 0, 5])
    kwargs = {**EDGES, "pre_time_window": 2**63 - 1}
    minibatch = sample(graph, tensor([0]), tensor([-5]), [-1], **kwargs)
    assert edges_of(minibatch) == [0]


def test_negatives_have_the_window_of_their_positive():
    links = tensor([[0, 1], [0, 1], [0, 2], [0, 2], [0, 1], [0, 1]])  # ratio 2
    minibatch = sample(
        star([1, 2, 3, 4]), links, tensor([5, 5]), [-1], window=tensor([2, 9]), **EDGES
    )
    found = torch.diff(minibatch.blocks[0].indptr).reshape(6, 2)[:, 0].tolist()
    assert found == [1, 4, 1, 1, 4, 4]


def test_a_graph_from_a_file(tmp_path):
    """Attributes that are mapped, and cannot be written to."""
    graph = star([1, 2, 3, 4], w=torch.tensor([1.0, 0, 2, 2]))
    graph.add_node_attribute("t", tensor([0, 1, 2, 3, 4], torch.int32))
    graph.save(tmp_path / "graph")
    loaded = hp.FusedCSCSamplingGraph.load(tmp_path / "graph")
    for sampler in (*SAMPLERS,):
        for index in range(10):
            one, two = (
                sample(g, tensor([0]), tensor([4]), [1], sampler, (0, 0, index), prob_name="w",
                       **EDGES, **NODES)
                for g in (graph, loaded)
            )  # fmt: skip
            assert torch.equal(one.input_nodes, two.input_nodes)
            assert edges_of(two) in ([0], [2])


# -------------------------------------------------------------------------------------------------
# Distributions


def draws(sampler, fanout, count, **kwargs) -> np.ndarray:
    """Picks of a node that may see 8 edges of 20, in `count` mini-batches: [count, picks]."""
    when = np.where(np.arange(20) % 5 < 2, 1, 7)
    graph = star(when, w=torch.tensor([1.0, 3.0, 9.0, 9.0, 9.0]).repeat(4))
    found = []
    for i in range(count):
        seeds = tensor([0]), tensor([5])
        minibatch = sample(graph, *seeds, [fanout], sampler, (0, 0, i), **EDGES, **kwargs)
        found.append(edges_of(minibatch))
    picks = np.array(found)
    assert set(picks.ravel() % 5) <= {0, 1}
    return picks // 5 * 2 + picks % 5


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("fanout", [1, 3, 7])
def test_those_that_may_be_seen_are_as_likely(sampler, fanout):
    picks = draws(sampler, fanout, 2000)
    assert picks.shape == (2000, fanout)
    assert_equal_inclusion(np.bincount(picks.ravel(), minlength=8), 2000, fanout)
    assert_uniform(np.bincount(draws(sampler, 2, 2000, replace=True).ravel(), minlength=8))


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("replace", [False, True])
def test_weights_count_among_those_that_may_be_seen(sampler, replace):
    picks = draws(sampler, 1, 3000, prob_name="w", replace=replace)
    counts = np.bincount(picks.ravel(), minlength=8)
    assert_follows(counts, np.tile([1, 3], 4) / 16)


@pytest.mark.parametrize("fanout", [5, 63, 64, 65, 66, 99])
@pytest.mark.parametrize("layer", [None, np.array([7, 8, 9, 2**63], np.uint64)])
def test_b67_every_one_is_as_likely_where_the_algorithm_changes(fanout, layer):
    """Columns with edges from 100 sources of an age, and from others that are too late."""
    when = torch.cat((torch.full((50,), 1), torch.full((50,), 9), torch.full((50,), 1)))
    count = 1000
    src = torch.arange(150 * count) + count if layer is not None else torch.arange(150) + 1
    if layer is not None:  # every column has sources of its own
        dst, when = torch.arange(count).repeat_interleave(150), when.repeat(count)
        columns = np.arange(count, dtype=np.int32)
        graph = hp.from_coo(src, dst, 151 * count, edge_attributes={"t": when})
    else:  # every column is node 0, under another id
        columns = np.zeros(count, np.int32)
        graph = star(when)
    rule = HopRule(
        np.array([fanout]), False, np.array([99], np.uint64), layer=layer, edge_time_name="t"
    )
    hop = graph.sample_one_hop(columns, np.arange(count), rule, np.full(count, 5))
    picks = hop.positions.reshape(count, fanout) % 150
    assert not ((picks >= 50) & (picks < 100)).any()
    counts = np.bincount(np.where(picks < 50, picks, picks - 50).ravel(), minlength=100)
    assert_equal_inclusion(counts, count, fanout)


def test_draws_of_a_node_at_two_times_are_independent():
    graph = star([1] * 6)
    pairs = np.zeros(36, np.int64)
    for i in range(2000):
        minibatch = sample(graph, tensor([0, 0]), tensor([5, 6]), [1], key=(0, 0, i), **EDGES)
        one, two = edges_of(minibatch)
        pairs[6 * one + two] += 1
    assert_uniform(pairs)


# -------------------------------------------------------------------------------------------------
# No look-ahead, on a real network


def too_late(minibatch: hp.MiniBatch, when: torch.Tensor, times: torch.Tensor) -> int:
    """Sampled edges, of all hops, that are as late as the seed that they were sampled for.

    Rows are never merged: an edge's source row belongs to the seed of its destination row.
    """
    owner = torch.full((len(minibatch.input_nodes),), -1)
    owner[: len(times)] = torch.arange(len(times))
    late = 0
    for block in reversed(minibatch.blocks):
        column = torch.repeat_interleave(torch.arange(block.num_dst), block.in_degrees())
        rows = block.indices.long()
        assert (owner[rows] == -1).all()
        assert len(rows.unique()) == len(rows)
        owner[rows] = owner[column]
        assert (owner[: block.num_src] >= 0).all()
        late += int((when[block.original_edge_ids] >= times[owner[column]]).sum())
    return late


@pytest.mark.parametrize("method", ["temporal_sample_neighbor", "temporal_sample_layer_neighbor"])
def test_no_edge_of_bitcoinotc_is_as_late_as_its_seed(test_data, tmp_path, method):
    """All mini-batches of an epoch, negatives included; and the check can fail."""
    dataset = hp.OnDiskDataset(
        test_data / "bitcoinotc", True, processed_path=tmp_path / "out"
    ).load()
    when = torch.from_numpy(np.load(test_data / "bitcoinotc" / "edge_time.npy"))
    shuffled = when[torch.from_numpy(np.random.default_rng(0).permutation(len(when)))]
    graph = dataset.graph
    names = {"edge_timestamp_attr_name": "timestamp"}
    source = hp.ItemSampler(dataset.tasks[0].train_set, 1024, shuffle=True, seed=1)
    chain = getattr(source.sample_uniform_negative(graph, 1), method)(graph, [4, 4], **names)
    edges = late = wrong = broken = 0
    with hp.DataLoader(chain, num_workers=2) as loader:
        for minibatch in loader:
            times = minibatch.timestamp.repeat_interleave(2)
            assert torch.equal(
                minibatch.input_nodes[: len(times)].long(), minibatch.seeds.flatten()
            )
            edges += sum(block.num_edges() for block in minibatch.blocks)
            late += too_late(minibatch, when, times)
            wrong += too_late(minibatch, shuffled, times)
            broken += too_late(minibatch, when, times.flip(0))
    assert len(chain) == 25
    assert edges > 100_000
    assert late == 0
    assert wrong > edges / 10  # of other times
    assert broken > edges / 10  # of other seeds


def test_the_check_sees_a_sampler_that_looks_ahead(test_data, tmp_path):
    """Seeds that are told a later time, neighbours regardless of time, and bounds that include."""
    edges = np.load(test_data / "bitcoinotc" / "edges.npy")
    when = torch.from_numpy(np.load(test_data / "bitcoinotc" / "edge_time.npy"))
    graph = hp.from_coo(
        *map(torch.from_numpy, edges), 5881, edge_attributes={"t": when},
        include_original_edge_id=True,
    )  # fmt: skip
    items = hp.ItemSet((torch.from_numpy(edges.T.copy()), when), ("seeds", "timestamp"))
    source = hp.ItemSampler(items, 4096, shuffle=True, seed=1)

    def later(minibatch, seconds):
        minibatch.timestamp = minibatch.timestamp + seconds
        return minibatch

    def count(chain, seconds):
        minibatch = next(iter(chain))
        times = (minibatch.timestamp - seconds).repeat_interleave(2)
        return too_late(minibatch, when, times)

    day = 86_400
    for seconds, sees in ((0, False), (1, True), (day, True), (-day, False)):
        moved = source.transform(lambda m, s=seconds: later(m, s))
        assert (count(moved.temporal_sample_neighbor(graph, [-1], **EDGES), seconds) > 0) == sees
    assert count(source.sample_neighbor(graph, [5, 5], deduplicate=False), 0) > 1000


# -------------------------------------------------------------------------------------------------
# Resuming


def timed_ring() -> hp.FusedCSCSamplingGraph:
    graph = ring()
    graph.add_edge_attribute("t", torch.arange(200) % 11)
    return graph


def timed_items() -> hp.ItemSampler:
    items = hp.ItemSet((torch.arange(11), torch.arange(11) % 4 + 6), ("seeds", "timestamp"))
    return hp.ItemSampler(items, 3, shuffle=True, seed=5)


def test_temporal_sampling_resumes():
    check_resume(lambda: timed_items().temporal_sample_neighbor(timed_ring(), [2, 2], **EDGES))
    check_resume(
        lambda: timed_items().temporal_sample_layer_neighbor(
            timed_ring(), [2, 2], pre_time_window=5, batch_dependency=2, **EDGES
        )
    )
