"""Seed edges taken out of the hops: what goes, what stays, and that nothing leaks."""

from __future__ import annotations

import pytest
import torch

import hopline.pipes as hp
from tests.pipes.test_edges import edges_of
from tests.stage_checks import assert_same, check_resume
from tests.strategies import tensor

INT32 = torch.int32


def pairs_of(subgraph) -> set[tuple]:
    """(edge type, source, destination) of every edge of a hop."""
    return {
        (etype, s, d)
        for etype, columns in edges_of(subgraph).items()
        for column in columns
        for s, d, _ in column
    }


def listed(seeds) -> set[tuple]:
    parts = seeds if isinstance(seeds, dict) else {"node:edge:node": seeds}
    return {(etype, *pair) for etype, pairs in parts.items() for pair in pairs.tolist()}


def flipped(seeds, mapping=None) -> set[tuple]:
    mapping = mapping or {"node:edge:node": "node:edge:node"}
    return {(mapping[e], d, s) for e, s, d in listed(seeds) if e in mapping}


def full_hop() -> hp.SampledSubgraph:
    """All 16 edges among nodes 0..3, self-loops included."""
    csc = hp.CSCFormatBase(torch.arange(0, 17, 4), torch.arange(4, dtype=INT32).repeat(4))
    return hp.SampledSubgraph(csc, torch.arange(4), torch.arange(4), torch.arange(16))


ALL = pairs_of(full_hop())


def after(seeds, labels=None, indexes=None, **kwargs) -> set[tuple]:
    """Edges that are left in two full hops."""
    minibatch = hp.MiniBatch(
        seeds=tensor(seeds), labels=labels, indexes=indexes,
        sampled_subgraphs=[full_hop(), full_hop()],
    )  # fmt: skip
    assert hp.exclude_seed_edges(minibatch, **kwargs) is minibatch
    first, second = (pairs_of(subgraph) for subgraph in minibatch.sampled_subgraphs)
    assert first == second
    return first


def edges(*pairs) -> set[tuple]:
    return {("node:edge:node", *pair) for pair in pairs}


# -------------------------------------------------------------------------------------------------
# What goes and what stays


def test_seed_edges_go_from_every_hop():
    assert after([[0, 1], [2, 3]]) == ALL - edges((0, 1), (2, 3))
    assert after([[0, 1]], include_reverse_edges=True) == ALL - edges((0, 1), (1, 0))


def test_negatives_stay_unless_asked():
    seeds = [[0, 1], [2, 3], [0, 2], [2, 0]]
    labels, indexes = torch.tensor([1.0, 1, 0, 0]), tensor([0, 1, 0, 1])
    assert after(seeds, labels, indexes) == ALL - edges((0, 1), (2, 3))
    every = edges((0, 1), (2, 3), (0, 2), (2, 0))
    assert after(seeds, labels, indexes, exclude_negatives=True) == ALL - every
    assert after(seeds, labels[:, None], indexes) == ALL - edges((0, 1), (2, 3))


def test_without_indexes_labels_are_classes_of_edges():
    seeds = [[0, 1], [2, 3]]
    every = ALL - edges((0, 1), (2, 3))
    assert after(seeds, tensor([0, 1])) == every
    assert after(seeds, None, tensor([0, 1])) == every


def test_b63_self_loops_go_like_other_seeds_or_are_kept():
    assert after([[1, 1], [0, 1]]) == ALL - edges((1, 1), (0, 1))
    assert after([[1, 1], [0, 1]], keep_self_loops=True) == ALL - edges((0, 1))
    assert after([[1, 1]], include_reverse_edges=True, keep_self_loops=True) == ALL


USERS, ITEMS = torch.arange(3), torch.arange(3)
LIKES, LIKED, BUYS = "user:likes:item", "item:liked_by:user", "user:buys:item"


def typed_minibatch(seeds, **kwargs) -> hp.MiniBatch:
    """All edges between 3 users and 3 items in three types, and among users."""
    csc = hp.CSCFormatBase(torch.arange(0, 10, 3), torch.arange(3, dtype=INT32).repeat(3))
    etypes = (LIKES, LIKED, BUYS, "user:knows:user")
    nodes = {"user": USERS, "item": ITEMS}
    subgraph = hp.SampledSubgraph(
        dict.fromkeys(etypes, csc), nodes, nodes, dict.fromkeys(etypes, torch.arange(9))
    )
    return hp.MiniBatch(seeds=seeds, sampled_subgraphs=[subgraph], **kwargs)


def typed_loss(seeds, columns=None, **kwargs) -> set[tuple]:
    """Edges that go."""
    minibatch = typed_minibatch(seeds, **(columns or {}))
    before = pairs_of(minibatch.sampled_subgraphs[0])
    assert len(before) == 36
    return before - pairs_of(hp.exclude_seed_edges(minibatch, **kwargs).sampled_subgraphs[0])


def test_b101_a_type_without_an_entry_has_no_reverse():
    seeds = {LIKES: tensor([[0, 1]]), BUYS: tensor([[0, 2]]), "user:knows:user": tensor([[0, 2]])}
    assert typed_loss(seeds) == listed(seeds)
    got = typed_loss(seeds, include_reverse_edges=True, reverse_etypes_mapping={LIKES: LIKED})
    assert got == listed(seeds) | {(LIKED, 1, 0)}
    assert typed_loss(seeds, reverse_etypes_mapping={LIKES: LIKED}) == listed(seeds)
    # The mapping may name types that the mini-batch lacks.
    one = {BUYS: seeds[BUYS]}
    got = typed_loss(one, include_reverse_edges=True, reverse_etypes_mapping={LIKES: LIKED})
    assert got == listed(one)


@pytest.mark.parametrize(
    ("seeds", "mapping", "words"),
    [
        (LIKES, {LIKES: LIKED, "user:liks:item": LIKED}, "has 'user:liks:item', which is no type"),
        (LIKES, {LIKED: LIKES}, "which reverse_etypes_mapping has as a reverse only"),
        ("user:liks:item", {LIKES: LIKED}, "seeds are of type 'user:liks:item', but the sampled"),
        ("user:liks:item", None, "seeds are of type 'user:liks:item', but the sampled"),
    ],
)
def test_names_by_which_edges_would_leak_are_refused(seeds, mapping, words):
    with pytest.raises(ValueError, match=words):
        typed_loss(
            {seeds: tensor([[0, 1]])}, include_reverse_edges=mapping is not None,
            reverse_etypes_mapping=mapping,
        )  # fmt: skip


def test_positives_by_type():
    seeds = {LIKES: tensor([[0, 1], [0, 2]]), BUYS: tensor([[1, 1], [2, 2]])}
    columns = {
        "labels": {LIKES: torch.tensor([1.0, 0.0]), BUYS: torch.tensor([0.0, 1.0])},
        "indexes": {LIKES: tensor([0, 0]), BUYS: tensor([0, 0])},
    }
    assert typed_loss(seeds, columns) == {(LIKES, 0, 1), (BUYS, 2, 2)}
    assert typed_loss(seeds, columns, exclude_negatives=True) == listed(seeds)
    got = typed_loss(
        seeds, columns, include_reverse_edges=True, reverse_etypes_mapping={LIKES: LIKED}
    )
    assert got == {(LIKES, 0, 1), (BUYS, 2, 2), (LIKED, 1, 0)}


def test_d3_types_absent_from_the_mini_batch():
    assert typed_loss({}) == set()
    assert typed_loss({LIKES: tensor([]).reshape(0, 2)}) == set()
    # A relation that is predicted, and not in the graph, whose reverse is.
    seeds = {"user:new:item": tensor([[0, 1]])}
    mapping = {"user:new:item": LIKED}
    got = typed_loss(seeds, include_reverse_edges=True, reverse_etypes_mapping=mapping)
    assert got == {(LIKED, 1, 0)}


def test_self_loops_between_types_are_none():
    seeds = {LIKES: tensor([[1, 1]]), "user:knows:user": tensor([[1, 1]])}
    assert typed_loss(seeds, keep_self_loops=True) == {(LIKES, 1, 1)}


# -------------------------------------------------------------------------------------------------
# Nothing leaks


def planted(count=40):
    """A ring of pairs that every hop finds: seeds (2i, 2i + 1), edges both ways, and some more."""
    even = torch.arange(0, count, 2)
    seeds = torch.stack((even, even + 1), dim=1)
    more = torch.stack((torch.arange(count), (torch.arange(count) + 3) % count), dim=1)
    pairs = torch.cat((seeds, seeds.flip(1), more, seeds))  # seeds are parallel edges
    graph = hp.from_coo(pairs[:, 0], pairs[:, 1], count, include_original_edge_id=True)
    return graph, seeds


@pytest.mark.parametrize("reverse", [False, True])
def test_seed_edges_leak_without_exclusion_and_never_with_it(reverse):
    """The whole chain: items, negatives, hops, exclusion, for all mini-batches of two epochs."""
    graph, seeds = planted()
    source = hp.ItemSampler(hp.ItemSet(seeds, "seeds"), 4, shuffle=True, seed=3)
    chain = source.sample_uniform_negative(graph, 2).sample_neighbor(graph, [-1, -1])
    leaks = 0
    for excluded in (False, True):
        checked = chain.exclude_seed_edges(include_reverse_edges=reverse) if excluded else chain
        for _ in range(2):
            for minibatch in checked:
                positive = minibatch.seeds[minibatch.labels > 0]
                assert len(minibatch.seeds) == 3 * len(positive)
                forbidden = listed(positive) | (flipped(positive) if reverse else set())
                for subgraph in minibatch.sampled_subgraphs:
                    found = pairs_of(subgraph) & forbidden
                    assert not (excluded and found)
                    leaks += len(found)
                    if not excluded:
                        # The innermost hop takes all in-edges of both ends.
                        assert found == forbidden
                if excluded and not reverse:
                    assert flipped(positive) <= pairs_of(minibatch.sampled_subgraphs[-1])
    assert leaks > 0


def test_exclusion_takes_nothing_else():
    """Edge by edge: what the chain gives without exclusion, less the seeds, in the same order."""
    graph, seeds = planted()
    source = hp.ItemSampler(hp.ItemSet(seeds, "seeds"), 5, shuffle=True, seed=3)
    chain = source.sample_uniform_negative(graph, 1).sample_neighbor(graph, [2, 3])
    for plain, clean in zip(chain, chain.exclude_seed_edges(), strict=True):
        forbidden = {pair[1:] for pair in listed(plain.seeds[plain.labels > 0])}
        for before, now in zip(plain.sampled_subgraphs, clean.sampled_subgraphs, strict=True):
            expected = [
                [edge for edge in column if edge[:2] not in forbidden]
                for column in edges_of(before)["node:edge:node"]
            ]
            assert edges_of(now)["node:edge:node"] == expected
        clean.sampled_subgraphs = plain.sampled_subgraphs
        assert_same(clean, plain)


def test_temporal_mini_batches():
    """Every end of a seed is a row of its own: the seed edge goes from each of them."""
    graph, seeds = planted()
    graph.add_edge_attribute("time", torch.zeros(graph.total_num_edges, dtype=torch.int64))
    items = hp.ItemSet((seeds.repeat(2, 1), torch.arange(1, 41)), ("seeds", "timestamp"))
    chain = (
        hp.ItemSampler(items, 40)
        .sample_uniform_negative(graph, 1)
        .temporal_sample_neighbor(graph, [-1, -1], edge_timestamp_attr_name="time")
    )
    forbidden = listed(seeds)
    (plain,), (clean,) = list(chain), list(chain.exclude_seed_edges())
    for before, now in zip(plain.sampled_subgraphs, clean.sampled_subgraphs, strict=True):
        assert forbidden <= pairs_of(before)
        assert pairs_of(now) == pairs_of(before) - forbidden
    assert len(plain.timestamp) == 80


def test_a_typed_chain():
    buys = torch.stack((torch.arange(30), torch.arange(30) % 4), dim=1)
    graph = hp.from_coo(
        {
            "user:buys:item": (buys[:, 0], buys[:, 1]),
            "item:bought_by:user": (buys[:, 1], buys[:, 0]),
            "user:knows:user": (buys[:, 0], (buys[:, 0] + 1) % 30),
        },
        num_nodes={"user": 30, "item": 4},
    )
    knows = torch.stack((torch.arange(30), (torch.arange(30) + 1) % 30), dim=1)
    items = hp.HeteroItemSet(
        {
            "user:buys:item": hp.ItemSet(buys[:9], "seeds"),
            "user:knows:user": hp.ItemSet(knows[:9], "seeds"),
        }
    )
    mapping = {"user:buys:item": "item:bought_by:user"}
    source = hp.ItemSampler(items, 4, shuffle=True, seed=1)
    chain = source.sample_uniform_negative(graph, 2).sample_neighbor(graph, [-1, -1])
    leaks = 0
    for plain, clean in zip(chain, chain.exclude_seed_edges(True, mapping), strict=True):
        positive = {e: pairs[plain.labels[e] > 0] for e, pairs in plain.seeds.items()}
        forbidden = listed(positive) | flipped(positive, mapping)
        for before, now in zip(plain.sampled_subgraphs, clean.sampled_subgraphs, strict=True):
            leaks += len(pairs_of(before) & forbidden)
            assert pairs_of(now) == pairs_of(before) - forbidden
    assert leaks > 0


# -------------------------------------------------------------------------------------------------
# Wrong input


def test_what_is_missing_is_told():
    seeds = tensor([[0, 1]])
    with pytest.raises(ValueError, match="no sampled hops"):
        hp.exclude_seed_edges(hp.MiniBatch(seeds=seeds))
    with pytest.raises(ValueError, match="has no seeds"):
        hp.exclude_seed_edges(hp.MiniBatch(sampled_subgraphs=[full_hop()]))
    with pytest.raises(ValueError, match="put fetch_feature after exclude_seed_edges"):
        hp.exclude_seed_edges(
            hp.MiniBatch(seeds=seeds, sampled_subgraphs=[full_hop()], edge_features=[{}])
        )
    with pytest.raises(ValueError, match="pass reverse_etypes_mapping="):
        hp.exclude_seed_edges(typed_minibatch({LIKES: seeds}), include_reverse_edges=True)
    with pytest.raises(TypeError, match="is for edges by type"):
        hp.exclude_seed_edges(
            hp.MiniBatch(seeds=seeds, sampled_subgraphs=[full_hop()]), True, {LIKES: LIKED}
        )


def test_a_reverse_type_that_the_hops_lack_is_refused():
    """A misspelt name would leave the reverse edges in."""
    minibatch = typed_minibatch({LIKES: tensor([[0, 1]])})
    with pytest.raises(ValueError, match="gives 'item:likd_by:user' as the reverse of"):
        hp.exclude_seed_edges(minibatch, True, {LIKES: "item:likd_by:user"})


@pytest.mark.parametrize(
    ("seeds", "error", "words"),
    [
        (tensor([0, 1]), ValueError, r"seeds have shape \(2,\); expected \[N, 2\]"),
        (tensor([[0, 1, 2]]), ValueError, r"seeds have shape \(1, 3\)"),
        ([[0, 1]], TypeError, "seeds are a list"),
        ({"a:x:a": tensor([[0, 1]])}, TypeError, "come by type, but the subgraph has no types"),
        ({"a:x:a": tensor([0, 1])}, ValueError, "seeds of type 'a:x:a' have shape"),
    ],
)
def test_wrong_seeds_are_refused(seeds, error, words):
    with pytest.raises(error, match=words):
        hp.exclude_seed_edges(hp.MiniBatch(seeds=seeds, sampled_subgraphs=[full_hop()]))


def test_labels_that_do_not_fit_are_refused():
    columns = {"indexes": tensor([0]), "sampled_subgraphs": [full_hop()]}
    with pytest.raises(ValueError, match=r"labels have shape \(2,\) for 1 seeds"):
        hp.exclude_seed_edges(hp.MiniBatch(seeds=tensor([[0, 1]]), labels=torch.ones(2), **columns))
    with pytest.raises(TypeError, match="labels are a list"):
        hp.exclude_seed_edges(hp.MiniBatch(seeds=tensor([[0, 1]]), labels=[1], **columns))
    seeds = {LIKES: tensor([[0, 1]])}
    with pytest.raises(TypeError, match=r"seeds come by type .* but labels are a Tensor"):
        hp.exclude_seed_edges(typed_minibatch(seeds, labels=torch.ones(1), indexes=tensor([0])))


@pytest.mark.parametrize("flag", ["include_reverse_edges", "exclude_negatives", "keep_self_loops"])
def test_flags_must_be_bools(flag):
    with pytest.raises(TypeError, match=f"{flag} is 1; expected True or False"):
        hp.SeedEdgesExcluder([], **{flag: 1})


# -------------------------------------------------------------------------------------------------
# The stage


def test_settings_tell_what_goes():
    assert hp.SeedEdgesExcluder([], True, {LIKES: LIKED}).settings() == {
        "include_reverse_edges": True,
        "reverse_etypes_mapping": {LIKES: LIKED},
        "exclude_negatives": False,
        "keep_self_loops": False,
    }


def link_chain() -> hp.Stage:
    graph, seeds = planted()
    store = hp.BasicFeatureStore(
        {
            ("node", None, "x"): hp.TorchBasedFeature(torch.arange(40.0)[:, None]),
            ("edge", None, "w"): hp.TorchBasedFeature(torch.arange(100.0)[:, None]),
        }
    )
    return (
        hp.ItemSampler(hp.ItemSet(seeds, "seeds"), 6, shuffle=True, seed=3)
        .sample_uniform_negative(graph, 2, exclude_true_edges=True)
        .sample_neighbor(graph, [2, 3])
        .exclude_seed_edges(include_reverse_edges=True, asynchronous=True)
        .fetch_feature(store, ["x"], ["w"])
    )


def test_seed_edges_excluder_resumes():
    """SeedEdgesExcluder, in a whole chain."""
    check_resume(link_chain)


@pytest.mark.parametrize("workers", [1, 3])
def test_the_same_on_any_number_of_threads(workers):
    with hp.DataLoader(link_chain(), num_workers=workers) as loader:
        assert_same(list(loader), list(link_chain()))


def test_edge_features_follow_the_edges_that_stay():
    for minibatch in link_chain():
        for subgraph, features in zip(
            minibatch.sampled_subgraphs, minibatch.edge_features, strict=True
        ):
            assert torch.equal(features["w"][:, 0], subgraph.original_edge_ids.float())
        ends = minibatch.input_nodes[minibatch.compacted_seeds.long()]
        assert torch.equal(ends.long(), minibatch.seeds)
