"""IterableSource: lists, generators, torchdata nodes and objects with a state as a chain's head."""

from __future__ import annotations

import gc

import pytest
import torch
import torch.utils.data
import torchdata.nodes as tn

import hopline.pipes as hp
from hopline.pipes.iterable_source import IterableSource
from tests.number_chains import Call, Log, minibatch, numbers, seeds
from tests.stage_checks import assert_same, check_resume

ROWS = [[number] * 3 for number in range(5)]


def minibatches() -> list[hp.MiniBatch]:
    return [minibatch(number) for number in range(5)]


class Order:
    """A sampler for torchdata: another order in each epoch."""

    def __init__(self):
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter([(number * (self.epoch + 1) + self.epoch) % 5 for number in range(5)])

    def __len__(self):
        return 5


class Position:
    """An iterable that keeps its place, and goes on there when iterated."""

    def __init__(self):
        self.place = {"epoch": 0, "index": 0}

    def __iter__(self):
        while self.place["index"] < 5:
            self.place["index"] += 1
            yield minibatch(10 * self.place["epoch"] + self.place["index"])
        self.place["epoch"] += 1
        self.place["index"] = 0

    def state_dict(self):
        return self.place  # the living object, which goes on changing

    def load_state_dict(self, state):
        self.place = state


class Restarting:
    """An iterable that goes on with the next epoch when put behind its last item."""

    def __init__(self):
        self.epoch, self.index, self.loaded = 0, 0, False

    def __len__(self):
        return 5

    def __iter__(self):
        if not self.loaded:
            self.index = 0
        self.loaded = False
        if self.index == 5:
            self.epoch, self.index = self.epoch + 1, 0
        for index in range(self.index + 1, 6):
            self.index = index
            yield minibatch(10 * self.epoch + self.index)
        self.epoch, self.index = self.epoch + 1, 0

    def state_dict(self):
        return {"epoch": self.epoch, "index": self.index}

    def load_state_dict(self, state):
        self.epoch, self.index, self.loaded = state["epoch"], state["index"], True


def walk_order():
    return tn.Mapper(tn.SamplerWrapper(Order()), minibatch)


SOURCES = {
    "list": minibatches,
    "tuple": lambda: tuple(minibatches()),
    "IterableWrapper": lambda: tn.IterableWrapper(minibatches()),
    "Mapper over SamplerWrapper": walk_order,
    "IterableWrapper of an object with a state": lambda: tn.IterableWrapper(Position()),
    "Prefetcher": lambda: tn.Prefetcher(walk_order(), 2),
    "ParallelMapper": lambda: tn.ParallelMapper(
        tn.SamplerWrapper(Order()), minibatch, 2, method="thread"
    ),
    "Unbatcher over Batcher": lambda: tn.Unbatcher(tn.Batcher(walk_order(), 2, drop_last=False)),
    "Loader": lambda: tn.Loader(walk_order()),
    "object with a state": Position,
    "object that starts again": Restarting,
    "loader": lambda: hp.DataLoader(numbers(), num_workers=2),
    "torch DataLoader": lambda: torch.utils.data.DataLoader(minibatches(), batch_size=None),
}


@pytest.mark.parametrize("name", SOURCES)
def test_resume(name):
    make = SOURCES[name]
    threads = name in ("Prefetcher", "ParallelMapper")  # a tenth of a second for each reset
    check_resume(lambda: IterableSource(make()).transform(), workers=[1] if threads else [0, 1, 3])
    gc.collect()  # torchdata's threads end with their nodes, which refer to each other


def test_the_check_sees_an_iterable_that_forgets():
    class Forgets(Position):
        def load_state_dict(self, state):
            pass

    with pytest.raises(AssertionError, match="restored at mini-batch 1 of epoch 0: rest"):
        check_resume(Forgets)


@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize(
    "name", ["list", "Mapper over SamplerWrapper", "Prefetcher", "Unbatcher over Batcher", "Loader"]
)
def test_a_loop_that_is_left_does_not_shift_the_next_epoch(name, workers):
    """Whatever was read ahead."""
    with hp.DataLoader(SOURCES[name](), num_workers=workers) as left:
        for _ in range(2):
            next(iter(left))
        got = seeds(left)
    whole = hp.DataLoader(SOURCES[name]())
    list(whole), list(whole)
    assert got == seeds(whole)
    del left, whole
    gc.collect()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_after_a_loop_was_left(workers):
    """At the start of an epoch that follows a break: the node's epoch is in the state."""
    loader = hp.DataLoader(walk_order(), num_workers=workers)
    next(iter(loader))
    minibatches = iter(loader)
    state = loader.state_dict()
    assert (state["epoch"], state["batch"]) == (1, 0)
    expected = list(minibatches)
    fresh = hp.DataLoader(walk_order(), num_workers=workers)
    fresh.load_state_dict(state)
    assert_same(list(fresh), expected)
    second = Order()
    second.set_epoch(1)
    assert [row[0] for row in seeds(expected)] == list(second)


def test_keys():
    keys = [m.key for m in hp.DataLoader(IterableSource(minibatches(), seed=9))]
    assert keys == [(9, 0, index) for index in range(5)]
    source = IterableSource([hp.MiniBatch(key=(1, 2, 3)), hp.MiniBatch()])
    assert [m.key for m in source] == [(1, 2, 3), (0, 0, 1)]


def test_stages_do_not_change_the_callers_minibatches():
    def spoil(minibatch):
        minibatch.seeds = None
        minibatch.labels = torch.zeros(1)
        minibatch.node_features["feat"] = 7
        minibatch.node_features["new"] = 7
        minibatch.edge_features[0]["new"] = 7
        minibatch.edge_features.append(7)
        minibatch.score = 7
        return minibatch

    given = hp.MiniBatch(
        seeds=torch.arange(2), node_features={"feat": torch.ones(1)}, edge_features=[{}]
    )
    given.weight = [1, 2]
    chain = hp.IterableSource([given]).transform(spoil)
    for _ in range(2):
        list(chain)
    assert given.seeds.tolist() == [0, 1]
    assert given.labels is None
    assert list(given.node_features) == ["feat"]
    assert given.edge_features == [{}]
    assert given.extra == {"weight": [1, 2]}
    assert given.key is None


# ---------------------------------------------------------------------------------------------
# Iterators have one epoch


def generator():
    yield from minibatches()


ITERATORS = {
    "generator": generator,
    "map": lambda: map(minibatch, range(5)),
    "iter of a list": lambda: iter(minibatches()),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", ITERATORS)
def test_an_iterator_has_one_epoch(name, workers):
    loader = hp.DataLoader(ITERATORS[name](), num_workers=workers)
    assert seeds(loader) == ROWS
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"an iterator, and its only epoch .* pass a list"):
            list(loader)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch", range(6))
def test_an_iterator_resumes_in_its_epoch(workers, batch):
    loader = hp.DataLoader(generator(), num_workers=workers)
    minibatches = iter(loader)
    for _ in range(batch):
        next(minibatches)
    state = loader.state_dict()
    fresh = hp.DataLoader(generator(), num_workers=workers)
    fresh.load_state_dict(state)
    assert seeds(fresh) == ROWS[batch:]
    loader.close()
    if batch:
        # This one has been read from: it cannot be put back.
        loader.load_state_dict(state)
        with pytest.raises(RuntimeError, match="only epoch has been read from"):
            list(loader)


def test_an_iterator_serves_one_loop():
    chain = IterableSource(generator())
    next(iter(chain))
    with pytest.raises(RuntimeError, match="only epoch has been read from"):
        next(iter(hp.DataLoader(chain)))


def test_an_object_that_is_its_own_iterator_and_starts_again():
    class Again:
        def __iter__(self):
            self.rest = minibatches()
            return self

        def __next__(self):
            if not self.rest:
                raise StopIteration
            return self.rest.pop(0)

    loader = hp.DataLoader(Again())
    for _ in range(3):
        assert seeds(loader) == ROWS


def test_an_object_that_is_its_own_iterator_and_does_not_start_again():
    class Once:
        def __init__(self):
            self.rest = minibatches()

        def __iter__(self):
            return self

        def __next__(self):
            if not self.rest:
                raise StopIteration
            return self.rest.pop(0)

    loader = hp.DataLoader(Once())
    assert seeds(loader) == ROWS
    with pytest.raises(RuntimeError, match="a Once, gave nothing in a later epoch"):
        list(loader)


def test_an_empty_source_is_empty_in_every_epoch():
    for make in (list, lambda: tn.IterableWrapper([])):
        loader = hp.DataLoader(make(), num_workers=2)
        assert [list(loader) for _ in range(3)] == [[], [], []]
        assert loader.state_dict()["epoch"] == 3


# ---------------------------------------------------------------------------------------------
# One place, one loop; no work twice


@pytest.mark.parametrize("make", [walk_order, Position])
def test_a_source_with_a_place_serves_one_loop_at_a_time(make):
    chain = hp.IterableSource(make()).transform()
    first = iter(hp.DataLoader(chain))
    next(first)
    second = iter(hp.DataLoader(chain))
    next(second)
    with pytest.raises(RuntimeError, match="another loop has begun to read the source"):
        next(first)
    next(second)


def test_a_list_serves_many_loops_at_once():
    chain = hp.IterableSource(minibatches()).transform()
    loops = [iter(hp.DataLoader(chain, num_workers=n)) for n in (0, 1, 2)] + [iter(chain)]
    rows = [[m.seeds.tolist() for m in row] for row in zip(*loops, strict=True)]
    assert rows == [[row] * 4 for row in ROWS]


@pytest.mark.parametrize("workers", [0, 2])
def test_going_on_to_the_next_epoch_reads_nothing_again(workers):
    read = Log()

    class Watched:
        def __iter__(self):
            for made in minibatches():
                read(made)
                yield made

    with hp.DataLoader(tn.IterableWrapper(Watched()), num_workers=workers) as loader:
        for epoch in range(3):
            assert seeds(loader) == ROWS
            assert len(read.keys) == 5 * (epoch + 1)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_node_with_a_place_reads_nothing_again(workers):
    read = Log()

    def make():
        return tn.IterableWrapper(Watched())

    class Watched(Position):
        def __iter__(self):
            for made in super().__iter__():
                read(hp.MiniBatch(key=tuple(made.seeds.tolist())))
                yield made

    loader = hp.DataLoader(make(), num_workers=0)
    minibatches = iter(loader)
    for _ in range(3):
        next(minibatches)
    state = loader.state_dict()
    read.keys.clear()
    stage = Log()
    fresh = hp.DataLoader(IterableSource(make()).pipe(Call, stage), num_workers=workers)
    with pytest.raises(ValueError, match="Call"):
        hp.DataLoader(IterableSource(make()).pipe(Named)).load_state_dict(state)
    fresh.load_state_dict(state)
    assert seeds(fresh) == [[4] * 3, [5] * 3]
    assert [key[0] for key in read.keys] == [4, 5]
    assert sorted(key[2] for key in stage.keys) == [3, 4]


class Named(hp.Stage):
    def __call__(self, minibatch):
        return minibatch

    def settings(self):
        return {"Call": 1}


# ---------------------------------------------------------------------------------------------
# What is refused


@pytest.mark.parametrize("thing", [7, None, "text", b"bytes", {"a": 1}, hp.MiniBatch()])
def test_what_is_no_iterable_of_minibatches(thing):
    for make in (hp.IterableSource, hp.DataLoader, hp.CopyTo):
        with pytest.raises(
            TypeError, match=f"source is a {type(thing).__name__}; expected an iter"
        ):
            make(thing, "cpu") if make is hp.CopyTo else make(thing)


@pytest.mark.parametrize("wrap", [lambda chain: chain, tn.Loader])
def test_a_chain_is_a_source_already(wrap):
    with pytest.raises(TypeError, match="source is a chain already"):
        hp.IterableSource(wrap(numbers()))


@pytest.mark.parametrize(
    ("seed", "error"), [(-1, ValueError), (1.5, TypeError), (None, TypeError), (True, TypeError)]
)
def test_seeds(seed, error):
    with pytest.raises(error, match="seed is"):
        IterableSource([], seed)


@pytest.mark.parametrize("workers", [0, 2])
def test_items_that_are_no_minibatches(workers):
    loader = hp.DataLoader([minibatch(0), 7], num_workers=workers)
    loop = iter(loader)
    next(loop)
    with pytest.raises(TypeError, match=r"the source gave a int for .* = \(0, 0, 1\)"):
        next(loop)
    assert loader.state_dict()["batch"] == 1


def test_repr_and_settings():
    source = IterableSource(minibatches())
    assert (
        repr(source.transform())
        == "IterableSource(list).MiniBatchTransformer(transformer=NoneType)"
    )
    assert source.settings() == {"iterable": "list"}
