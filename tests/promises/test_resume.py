"""Promise 2: stop anywhere, go on exactly. This module tries to break it."""

from __future__ import annotations

import copy
import enum
import io
import itertools
import json
import math

import numpy as np
import pytest
import torch
import torchdata.nodes as tn

import hopline.pipes as hp
from tests.number_chains import Call, Log, minibatch, numbers, ring, ring_features, whole_chain
from tests.pipes.test_subgraph_sampler import Composed
from tests.stage_checks import assert_same, check_resume

WORKERS = (0, 1, 2, 8)


class Order:
    def __init__(self):
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter([(number * (self.epoch + 2) + self.epoch) % 5 for number in range(5)])


class Position:
    """An iterable that keeps its place, and gives it away as the object that goes on changing."""

    def __init__(self):
        self.place = {"epoch": 0, "index": 0}

    def __iter__(self):
        while self.place["index"] < 5:
            self.place["index"] += 1
            yield minibatch(10 * self.place["epoch"] + self.place["index"])
        self.place["epoch"] += 1
        self.place["index"] = 0

    def state_dict(self):
        return self.place

    def load_state_dict(self, state):
        self.place = state


def sampled(source):
    return (
        hp.IterableSource(source, seed=4)
        .sample_neighbor(ring(), [2, 3])
        .fetch_feature(ring_features(), ["feat"], ["weight"])
    )


def timed_ring():
    graph = ring()
    graph.add_edge_attribute("t", torch.arange(200) % 13)
    graph.add_edge_attribute("w", torch.arange(200) % 4)
    graph.add_node_attribute("t", torch.arange(graph.total_num_nodes) % 13)
    return graph


def pairs():
    """Links with times, and one negative each."""
    ends, times = torch.arange(22).reshape(11, 2), torch.arange(11) + 3
    items = hp.ItemSet((ends, times), ("seeds", "timestamp"))
    sampler = hp.ItemSampler(items, 3, shuffle=True, seed=5)
    return sampler.sample_uniform_negative(timed_ring(), 1)


CHAINS = {
    "shuffled": lambda: whole_chain(count=14),
    "not shuffled": lambda: whole_chain(count=14, shuffle=False),
    "drop last": lambda: whole_chain(count=14, drop_last=True),
    "one rank of three": lambda: hp.DistributedItemSampler(
        hp.ItemSet(torch.arange(40), "seeds"), 3, shuffle=True, seed=2, num_replicas=3, rank=1
    ).sample_neighbor(ring(), [2]),
    "typed items": lambda: hp.ItemSampler(
        hp.HeteroItemSet(
            {"a": hp.ItemSet(torch.arange(7), "seeds"), "b": hp.ItemSet(torch.arange(6), "seeds")}
        ),
        3,
        shuffle=True,
        seed=2,
    ),
    "weighted": lambda: numbers().sample_neighbor(timed_ring(), [2, 3], prob_name="w"),
    "layer": lambda: pairs().sample_layer_neighbor(timed_ring(), [2, 3], batch_dependency=3),
    "temporal": lambda: pairs().temporal_sample_neighbor(
        timed_ring(), [2, 3], edge_timestamp_attr_name="t"
    ),
    "temporal layer": lambda: pairs().temporal_sample_layer_neighbor(
        timed_ring(), [2, 3], prob_name="w", edge_timestamp_attr_name="t", batch_dependency=2
    ),
    "in subgraph": lambda: pairs().sample_in_subgraph(timed_ring()),
    "a user's own sampler": lambda: pairs().pipe(Composed, timed_ring()),
    "a list": lambda: sampled([minibatch(number) for number in range(5)]),
    "a node": lambda: sampled(tn.Mapper(tn.SamplerWrapper(Order()), minibatch)),
    "an object with a state": lambda: sampled(Position()),
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_state_before_every_batch_of_two_epochs(name):
    check_resume(CHAINS[name], workers=WORKERS)


@pytest.mark.parametrize("workers", WORKERS)
def test_states_taken_from_workers_are_those_taken_without(workers):
    """Whatever was read ahead, a state names the next mini-batch to be delivered."""
    for make_chain in CHAINS.values():
        loaders = [hp.DataLoader(make_chain()), hp.DataLoader(make_chain(), num_workers=workers)]
        for _ in range(2):
            loops = [iter(loader) for loader in loaders]
            for _ in itertools.count():
                assert loaders[0].state_dict() == loaders[1].state_dict()
                ended = [next(loop, None) is None for loop in loops]
                assert ended[0] == ended[1]
                if ended[0]:
                    break


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("batch", range(6))
def test_a_generator_goes_on_in_its_only_epoch(workers, batch):
    def chain():
        return sampled(minibatch(number) for number in range(5))

    expected = list(chain())
    loader = hp.DataLoader(chain(), num_workers=2)
    loop = iter(loader)
    for _ in range(batch):
        next(loop)
    state = json.loads(json.dumps(loader.state_dict()))
    loader.close()
    with hp.DataLoader(chain(), num_workers=workers) as fresh:
        fresh.load_state_dict(state)
        assert_same(list(fresh), expected[batch:])


@pytest.mark.parametrize("workers", WORKERS)
def test_stop_and_go_on_again_and_again(workers):
    """Each loader delivers two mini-batches and is thrown away."""
    expected = [list(rows) for rows in [hp.DataLoader(whole_chain(count=14))] * 3]
    got: list[list[hp.MiniBatch]] = [[], [], []]
    state = hp.DataLoader(whole_chain(count=14)).state_dict()
    while state["epoch"] < 3:
        with hp.DataLoader(whole_chain(count=14), num_workers=workers) as loader:
            loader.load_state_dict(state)
            got[loader.epoch].extend(itertools.islice(loader, 2))
            state = json.loads(json.dumps(loader.state_dict()))
    assert_same(got, expected)


# ---------------------------------------------------------------------------------------------
# Nothing is computed again


@pytest.mark.parametrize("workers", WORKERS)
def test_no_stage_works_for_a_batch_that_was_delivered(workers):
    log = Log()
    loader = hp.DataLoader(whole_chain(count=30))
    loop = iter(loader)
    for _ in range(6):
        next(loop)
    with hp.DataLoader(whole_chain(count=30).pipe(Call, log), num_workers=workers) as fresh:
        fresh.load_state_dict(loader.state_dict())
        rest = list(fresh)
    assert [m.key[2] for m in rest] == [6, 7, 8, 9]
    assert sorted(key[2] for key in log.keys) == [6, 7, 8, 9]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch", [1, 400_000])
def test_a_computed_source_goes_to_any_place_without_reading_what_is_before(workers, batch):
    """A million items, one a mini-batch: only those that follow are computed."""
    read = []

    def count(batch, names):
        read.append(batch)
        return hp.minibatcher_default(batch, names)

    chain = numbers(1_000_000, 1, minibatcher=count)
    with hp.DataLoader(chain, num_workers=workers, prefetch_factor=1) as loader:
        state = {**loader.state_dict(), "epoch": 7, "batch": batch}
        loader.load_state_dict(state)
        assert next(iter(loader)).key == (5, 7, batch)
    assert 1 <= len(read) <= 1 + workers


def test_a_list_is_read_past_but_not_worked_on():
    log = Log()
    rows = [minibatch(number) for number in range(6)]
    loader = hp.DataLoader(hp.IterableSource(rows).pipe(Call, log))
    loop = iter(loader)
    for _ in range(4):
        next(loop)
    log.keys.clear()
    fresh = hp.DataLoader(hp.IterableSource(rows).pipe(Call, log))
    fresh.load_state_dict(loader.state_dict())
    assert len(list(fresh)) == 2
    assert [key[2] for key in log.keys] == [4, 5]


# ---------------------------------------------------------------------------------------------
# Errors, seeds


@pytest.mark.parametrize("workers", WORKERS)
def test_after_an_error_the_state_names_the_batch_that_failed(workers):
    broken = [True]

    def fail(minibatch):
        if broken[0] and minibatch.key[1:] == (1, 2):
            raise ValueError("wrong")

    expected = [list(rows) for rows in [hp.DataLoader(whole_chain(count=14))] * 3]
    loader = hp.DataLoader(whole_chain(count=14).pipe(Call, fail), num_workers=workers)
    assert_same(list(loader), expected[0])
    got = []
    with pytest.raises(ValueError, match="wrong"):
        got.extend(loader)  # one by one, so that those before the error are here
    assert_same(got, expected[1][:2])
    state = loader.state_dict()
    assert (state["epoch"], state["batch"]) == (1, 2)
    broken[0] = False
    loader.load_state_dict(state)  # the same loader, once what was wrong is put right
    assert_same(list(loader), expected[1][2:])
    assert_same(list(loader), expected[2])
    loader.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_without_a_seed_takes_that_of_the_state(workers):
    """For good: to the end of the epoch, in later ones, and after a break."""

    def chain():
        return numbers(14, seed=None).sample_neighbor(ring(), [2])

    loader = hp.DataLoader(chain())
    seed = loader.state_dict()["seed"]
    rows = [list(loader) for _ in range(2)]
    loop = iter(hp.DataLoader(loader.chain))
    first = next(loop)
    fresh = hp.DataLoader(chain(), num_workers=workers)
    assert fresh.chain.parts()[0].seed != seed
    state = {**loader.state_dict(), "epoch": 0, "batch": 1}
    fresh.load_state_dict(state)
    got = list(fresh)
    assert_same([first, *got], rows[0])
    assert fresh.state_dict()["seed"] == seed
    assert next(iter(fresh)).key == (seed, 1, 0)
    assert fresh.state_dict()["seed"] == seed
    third = list(fresh)  # after a break
    assert {m.key[:2] for m in third} == {(seed, 2)}
    assert_same(third, list(loader))
    fresh.close()


# ---------------------------------------------------------------------------------------------
# What a state belongs to


def changed(**kwargs):
    return numbers(**{"count": 11, "batch_size": 3, "drop_last": False, **kwargs})


OTHERS = {
    "items": (lambda: changed(count=12), "ItemSampler.items: 11 in the state, 12 here"),
    "batch_size": (lambda: changed(batch_size=4), "ItemSampler.batch_size: 3 in the .* 4 here"),
    "shuffle": (lambda: changed(shuffle=False), "ItemSampler.shuffle: True in .* False here"),
    "drop_last": (lambda: changed(drop_last=True), "drop_last: False in the state, True here"),
    "seed": (lambda: changed(seed=6), "seed: 5 in the state, 6 here"),
    "another kind": (
        lambda: hp.DistributedItemSampler(
            hp.ItemSet(11, "seeds"), 3, shuffle=True, seed=5, num_replicas=1, rank=0
        ),
        "ItemSampler.items: 11 in the state, 'absent' here",
    ),
    "one more stage": (
        lambda: changed().sample_neighbor(ring(), [2]),
        r"1:NeighborSampler.fanouts: 'absent' in the state, \[2\] here",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_the_state_of_another_source_is_refused(name):
    state = hp.DataLoader(changed()).state_dict()
    make, words = OTHERS[name]
    refused(hp.DataLoader(make()), state, words)


STAGES = {
    "fanouts": (lambda c: c.sample_neighbor(ring(), [3]), r"fanouts: \[2\] in the state, \[3\]"),
    "replace": (lambda c: c.sample_neighbor(ring(), [2], True), "replace: False in .* True here"),
    "graph": (lambda c: c.sample_neighbor(ring(60), [2]), "nodes: 50 in the state, 60 here"),
    "weights": (
        lambda c: c.sample_neighbor(timed_ring(), [2], prob_name="w"),
        "NeighborSampler.prob_name: 'absent' in the state, 'w' here",
    ),
    "rows": (
        lambda c: c.sample_neighbor(ring(), [2], deduplicate=False),
        "NeighborSampler.deduplicate: 'absent' in the state, False here",
    ),
    "kind": (
        lambda c: c.sample_layer_neighbor(ring(), [2]),
        "LayerNeighborSampler.fanouts: 'absent' in the state",
    ),
}


@pytest.mark.parametrize("name", STAGES)
def test_the_state_of_another_sampler_is_refused(name):
    state = hp.DataLoader(changed().sample_neighbor(ring(), [2])).state_dict()
    make, words = STAGES[name]
    refused(hp.DataLoader(make(changed())), state, words)


def test_the_state_of_a_sampler_with_other_dependencies_or_times_is_refused():
    def layer(**kwargs):
        return hp.DataLoader(changed().sample_layer_neighbor(ring(), [2], **kwargs))

    state = layer().state_dict()
    refused(layer(batch_dependency=2), state, "batch_dependency: 1 in the state, 2 here")
    refused(layer(layer_dependency=True), state, "layer_dependency: False in the state, True here")

    def temporal(**kwargs):
        return hp.DataLoader(changed().temporal_sample_neighbor(timed_ring(), [2], **kwargs))

    state = temporal(edge_timestamp_attr_name="t").state_dict()
    other = temporal(node_timestamp_attr_name="t")
    refused(other, state, "edge_timestamp_attr_name: 't' in the state, None here")
    other = temporal(edge_timestamp_attr_name="t", pre_time_window=4)
    refused(other, state, "pre_time_window: None in the state, 4 here")


def test_the_states_of_other_stages_are_refused():
    fetched = changed().fetch_feature(ring_features(), ["feat"])
    refused(
        hp.DataLoader(changed().fetch_feature(ring_features())),
        hp.DataLoader(fetched).state_dict(),
        r"node_feature_keys: \[\[None, 'feat'\]\] in the state, \[\] here",
    )
    refused(
        hp.DataLoader(changed().transform(copy.copy)),
        hp.DataLoader(changed().transform(copy.deepcopy)).state_dict(),
        "transformer: 'deepcopy' in the state, 'copy' here",
    )


def test_the_states_of_other_ranks_are_refused():
    def rank(number, of=3, uneven=False):
        items = hp.ItemSet(11, "seeds")
        ranks = {"num_replicas": of, "rank": number, "drop_uneven_inputs": uneven}
        return hp.DataLoader(hp.DistributedItemSampler(items, 3, seed=5, **ranks))

    refused(rank(2), rank(1).state_dict(), "rank: 1 in the state, 2 here")
    refused(rank(1, of=2), rank(1).state_dict(), "num_replicas: 3 in the state, 2 here")
    refused(rank(1, uneven=True), rank(1).state_dict(), "drop_uneven_inputs: False in .* True")


def test_the_states_of_other_walked_sources_are_refused():
    state = hp.DataLoader([minibatch(0)]).state_dict()
    refused(hp.DataLoader((minibatch(0),)), state, "iterable: 'list' in the state, 'tuple' here")
    refused(hp.DataLoader(hp.IterableSource([minibatch(0)], seed=3)), state, "seed: 0 in .* 3 here")


@pytest.mark.parametrize("there", [True, False])
def test_a_state_goes_to_another_device(there):
    """Stages without settings may come and go, wherever they stand."""

    def chain(copies):
        sampler = numbers().copy_to("cpu") if copies else numbers()
        sampled = sampler.sample_neighbor(ring(), [2])
        return sampled.copy_to("cpu") if copies else sampled

    loader = hp.DataLoader(chain(there))
    expected = list(loader)[1:]
    fresh = hp.DataLoader(chain(not there))
    fresh.load_state_dict({**loader.state_dict(), "epoch": 0, "batch": 1})
    assert_same(list(fresh), expected)


def test_all_differences_are_told_at_once():
    state = hp.DataLoader(changed()).state_dict()
    words = "batch_size: 3 in the state, 4 here; .*drop_last: False.*; seed: 5 in the state, 6"
    refused(hp.DataLoader(changed(batch_size=4, drop_last=True, seed=6)), state, words)


def refused(loader, state, words):
    """Refused by the loader and by the chain as a node; the loader stays where it was."""
    before = loader.state_dict()
    for given in (state, json.loads(json.dumps(state))):
        with pytest.raises(ValueError, match=words):
            loader.load_state_dict(given)
        with pytest.raises(ValueError, match=words):
            loader.chain.reset(given)
    assert loader.state_dict() == before


DAMAGED = {
    "no dict": (lambda s: None, TypeError, "expected the dict that state_dict"),
    "a list": (lambda s: [1], TypeError, "expected the dict that state_dict"),
    "of something else": (lambda s: {"model": 1}, TypeError, "expected the dict that state_dict"),
    "another version": (lambda s: {**s, "version": 99}, ValueError, "version 99; .* reads 1"),
    "no epoch": (lambda s: without(s, "epoch"), ValueError, "damaged"),
    "no source": (lambda s: without(s, "source"), ValueError, "damaged"),
    "no settings": (lambda s: without(s, "settings"), ValueError, "damaged"),
    "a key too many": (lambda s: {**s, "more": 1}, ValueError, "damaged"),
    "empty settings": (lambda s: {**s, "settings": {}}, ValueError, "'absent' in the state"),
    "settings of no kind": (lambda s: {**s, "settings": 3}, ValueError, "settings are 3"),
    "negative batch": (lambda s: {**s, "batch": -1}, ValueError, "batch is -1"),
    "batch of no kind": (lambda s: {**s, "batch": "1"}, ValueError, "batch is '1'"),
    "batch too large": (lambda s: {**s, "batch": 5}, ValueError, "mini-batch 5 of 4: .* damaged"),
    "epoch of no kind": (lambda s: {**s, "epoch": 1.0}, ValueError, r"epoch is 1\.0"),
    "epoch is a bool": (lambda s: {**s, "epoch": True}, ValueError, "epoch is True"),
    "no seed": (lambda s: {**s, "seed": None}, ValueError, "seed is None"),
    "an epoch beyond 64 bits": (lambda s: {**s, "epoch": 1 << 64}, ValueError, r"below 2\*\*63"),
    "version is a bool": (lambda s: {**s, "version": True}, ValueError, "version True"),
    "a place of a source that keeps none": (
        lambda s: {**s, "source": {"a": 1}},
        ValueError,
        "None of",
    ),
    "settings with a number for a key": (
        lambda s: {**s, "settings": {**s["settings"], 1: 2}},
        ValueError,
        "strings for keys",
    ),
    "a tensor for a setting": (
        lambda s: {**s, "settings": {**s["settings"], "ItemSampler.items": torch.ones(2)}},
        ValueError,
        "items: tensor",
    ),
}


def without(state, key):
    return {k: v for k, v in state.items() if k != key}


@pytest.mark.parametrize("seed", [1 << 63, (1 << 64) + 5])
def test_a_seed_that_a_sampler_would_refuse_is_refused_in_a_state_too(seed):
    """A sampler that drew its seed takes that of the state; cut to 64 bits it is another one."""
    loader = hp.DataLoader(numbers(seed=None))
    with pytest.raises(ValueError, match=r"seed is \d+; expected an int below 2\*\*63"):
        loader.load_state_dict({**loader.state_dict(), "seed": seed})
    large = hp.DataLoader(hp.IterableSource([minibatch(0)], seed=seed))  # a key of the user's
    large.load_state_dict(large.state_dict())


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_states_are_refused(name):
    damage, error, words = DAMAGED[name]
    loader = hp.DataLoader(numbers())
    state = loader.state_dict()
    with pytest.raises(error, match=words):
        loader.load_state_dict(damage(state))
    assert loader.state_dict() == state
    assert len(list(loader)) == 4


def test_states_stay_as_they_were():
    """A state that was given out does not change, and a loader does not change with it."""
    loader = hp.DataLoader(sampled(Position()))
    loop = iter(loader)
    next(loop)
    state = loader.state_dict()
    kept = copy.deepcopy(state)
    next(loop)
    assert state == kept
    other = hp.DataLoader(sampled(Position()))
    other.load_state_dict(state)
    first = [m.seeds.tolist() for m in other]
    assert state == kept
    other.load_state_dict(state)
    assert [m.seeds.tolist() for m in other] == first


def test_settings_must_be_plain_values():
    class Odd(hp.Stage):
        def __call__(self, minibatch):
            return minibatch

        def settings(self):
            return {"weights": torch.ones(2)}

    with pytest.raises(TypeError, match=r"1:Odd\.settings\(\)\['weights'\] is tensor"):
        hp.DataLoader(Odd(numbers())).state_dict()


class Level(enum.IntEnum):
    HIGH = 3


class Colour(enum.StrEnum):
    RED = "red"


class Tuned(hp.Stage):
    """Passes mini-batches on, with any setting."""

    def __init__(self, source, value):
        super().__init__(source)
        self.value = value

    def __call__(self, minibatch):
        return minibatch

    def settings(self):
        return {"value": self.value}


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (np.float64(0.1), float),
        (np.float32(0.5), float),
        (np.int64(3), int),
        (np.bool_(True), bool),
        (np.str_("a"), str),
        (Level.HIGH, int),
        (Colour.RED, str),
        (math.nan, float),
        (math.inf, float),
    ],
    ids=repr,
)
@pytest.mark.parametrize("inside", [lambda value: value, lambda value: {"a": [value]}])
def test_a_state_is_plain_whatever_kinds_of_numbers_settings_have(value, kind, inside):
    loader = hp.DataLoader(Tuned(numbers(), inside(value)))
    state = loader.state_dict()
    found = state["settings"]["1:Tuned.value"]
    found = found["a"][0] if isinstance(found, dict) else found
    assert type(found) is kind
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loader.load_state_dict(torch.load(file, weights_only=True))
    loader.load_state_dict(json.loads(json.dumps(state)))
    with pytest.raises(ValueError, match=r"1:Tuned\.value"):
        hp.DataLoader(Tuned(numbers(), inside(-1.5))).load_state_dict(state)


def test_seeds_and_ranks_that_are_subclasses_of_int_give_plain_states():
    items = hp.ItemSet(9, names="seeds")
    sampler = hp.DistributedItemSampler(
        items, Level.HIGH, seed=Level.HIGH, num_replicas=np.int64(2), rank=np.int64(1)
    )
    for source in sampler, hp.IterableSource([], seed=Level.HIGH):
        state = hp.DataLoader(source).state_dict()
        assert {type(value) for value in (state["seed"], *state["settings"].values())} <= {
            int, bool, str,
        }  # fmt: skip


def test_tuples_in_settings_survive_json():
    class Pair(hp.Stage):
        def __call__(self, minibatch):
            return minibatch

        def settings(self):
            return {"pair": (1, ("a", None))}

    loader = hp.DataLoader(Pair(numbers()))
    loader.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    loader.load_state_dict(loader.state_dict())
