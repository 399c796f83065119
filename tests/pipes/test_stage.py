"""Stage: chaining, registered stages, torchdata's protocol, pickling; which stages are checked."""

from __future__ import annotations

import ast
import copy
import functools
import gc
import importlib
import inspect
import multiprocessing
import pickle
import pkgutil
import sys
from pathlib import Path

import pytest
import torch
import torchdata.nodes as tn

import hopline.pipes as hp
from hopline.pipes import stage as stage_module
from hopline.pipes.stage import Chain
from tests.number_chains import Call, Log, numbers, ring, ring_features, seeds, whole_chain
from tests.stage_checks import assert_same, check_resume

TESTS = Path(__file__).parent.parent


# ---------------------------------------------------------------------------------------------
# Chaining


def test_chaining_leaves_the_original_untouched():
    sampler = numbers(shuffle=False)
    before = seeds(sampler)
    doubled = sampler.transform(double)
    assert doubled is not sampler
    assert doubled.source is sampler
    copied = doubled.copy_to("cpu")
    assert copied.parts() == (sampler, (doubled, copied))
    assert doubled.parts() == (sampler, (doubled,))
    assert seeds(sampler) == before
    assert seeds(doubled) == [[2 * x for x in row] for row in before]


def double(minibatch):
    minibatch.seeds = minibatch.seeds * 2
    return minibatch


def test_two_branches_of_one_chain():
    sampler = numbers()
    once, twice = sampler.transform(double), sampler.transform(double).transform(double)
    assert [[2 * x for x in row] for row in seeds(once)] == seeds(twice)


def test_pipe_appends_a_stage_of_the_users():
    log = Log()
    chain = numbers().pipe(Call, function=log).pipe(Call, log)
    list(chain)
    assert len(log.keys) == 2 * len(chain)


@pytest.mark.parametrize("made", [lambda source: 7, lambda source: source])
def test_pipe_refuses_what_is_no_stage(made):
    with pytest.raises(TypeError, match="expected a hopline Stage"):
        numbers().pipe(made)


@pytest.mark.parametrize("chain", [numbers(), numbers().copy_to("cpu")])
def test_pipe_tells_where_a_function_of_mini_batches_goes(chain):
    with pytest.raises(TypeError, match=r"gave the chain back; .* goes into \.transform\(fn\)"):
        chain.pipe(lambda minibatch: minibatch)
    with pytest.raises(AttributeError, match=r"no attribute 'seeds'; .* into \.transform\(fn\)"):
        chain.pipe(double)


class Bare(hp.Stage):
    def __init__(self, source, by):
        self.by = by

    def __call__(self, minibatch):
        return minibatch


@pytest.mark.parametrize("use", [lambda c: next(iter(c)), repr, len,
                                 lambda c: next(iter(hp.DataLoader(c)))])  # fmt: skip
def test_a_stage_without_the_init_of_stage_is_told(use):
    with pytest.raises(
        AttributeError, match=r"^Bare has .* call(ed)? super\(\).__init__\(source\)"
    ):
        use(numbers().pipe(Bare, 1))


def test_a_stage_without_a_call_is_named():
    class Idle(hp.Stage):
        pass

    with pytest.raises(NotImplementedError, match="Idle has no __call__"):
        list(Idle(numbers()))


def test_a_stage_that_gives_no_minibatch_is_named():
    with pytest.raises(TypeError, match=r"MiniBatchTransformer gave a NoneType for .* \(5, 0, 0\)"):
        list(numbers().transform(lambda minibatch: None))


def test_repr_is_the_chain():
    text = repr(numbers().transform(double).copy_to("cpu"))
    assert text.startswith("ItemSampler(items=11, batch_size=3")
    assert text.endswith(".MiniBatchTransformer(transformer=double).CopyTo()")


# ---------------------------------------------------------------------------------------------
# Stages that users register


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr(stage_module, "_registry", {})


class Keep(hp.Stage):
    def __call__(self, minibatch):
        return minibatch


def test_register_stage(registry):
    assert hp.register_stage("call_it")(Call) is Call
    log = Log()
    chain = numbers().call_it(log).copy_to("cpu").call_it(function=log)
    assert [type(stage).__name__ for stage in chain.parts()[1]] == ["Call", "CopyTo", "Call"]
    list(chain)
    assert len(log.keys) == 2 * len(chain)
    hp.register_stage("call_it")(Call)  # a module that is loaded again


@pytest.mark.parametrize("name", ["", "2fast", "two words", "_hidden", "class", "a.b"])
def test_register_stage_refuses_what_is_no_name(registry, name):
    with pytest.raises(ValueError, match="not a public Python identifier"):
        hp.register_stage(name)


def test_register_stage_without_a_name_is_told(registry):
    with pytest.raises(TypeError, match=r"use @register_stage\('name'\)"):
        hp.register_stage(Keep)


@pytest.mark.parametrize(
    "name", ["copy_to", "sample_neighbor", "pipe", "next", "reset", "settings"]
)
def test_register_stage_refuses_the_names_of_methods(registry, name):
    with pytest.raises(ValueError, match=f"{name!r} is taken"):
        hp.register_stage(name)(Keep)


def test_register_stage_refuses_a_second_stage_of_a_name(registry):
    hp.register_stage("mine")(Keep)
    with pytest.raises(ValueError, match=r"'mine' is taken by .*Keep"):
        hp.register_stage("mine")(Call)


@pytest.mark.parametrize("thing", [len, 7, dict, hp.DataLoader])
def test_register_stage_refuses_what_is_no_stage(registry, thing):
    with pytest.raises(TypeError, match="not a subclass of Stage"):
        hp.register_stage("mine")(thing)


def test_an_unknown_stage_is_an_attribute_error_that_lists_the_registered(registry):
    hp.register_stage("mine")(Keep)
    with pytest.raises(AttributeError, match=r"no attribute 'main'.*\['mine'\]"):
        numbers().main()
    assert not hasattr(numbers(), "main")


@pytest.mark.parametrize(
    ("name", "meant"),
    [("sample_neighbors", "sample_neighbor"), ("fetch_features", "fetch_feature"),
     ("copyto", "copy_to"), ("mines", "mine")],
)  # fmt: skip
def test_the_stage_that_was_meant_is_named(registry, name, meant):
    hp.register_stage("mine")(Keep)
    with pytest.raises(AttributeError, match=rf"attribute '{name}'; .*; did you mean '{meant}'\?$"):
        getattr(numbers().copy_to("cpu"), name)


# ---------------------------------------------------------------------------------------------
# Iteration


def test_each_loop_reads_the_next_epoch_whatever_was_read_of_the_last():
    chain = numbers()
    for epoch in range(4):
        for minibatch in chain:
            assert minibatch.key[1] == epoch
            if epoch % 2:
                break
    assert next(iter(chain)).key == (5, 4, 0)


def test_one_chain_serves_two_loaders_a_loop_and_a_torchdata_loader_at_once():
    chain = whole_chain()
    expected = list(whole_chain())
    rows = [[], [], [], []]
    with hp.DataLoader(chain, num_workers=2) as one, hp.DataLoader(chain) as other:
        for row in zip(one, other, chain, tn.Loader(chain), strict=True):
            for number, minibatch in enumerate(row):
                rows[number].append(minibatch)
    for row in rows:
        assert_same(row, expected)


def test_length():
    assert len(numbers(11, 3)) == len(numbers(11, 3).transform(double).copy_to("cpu")) == 4
    assert len(numbers(0)) == 0
    assert len(hp.IterableSource([hp.MiniBatch()] * 3).transform()) == 3
    with pytest.raises(TypeError, match="generator, has no length"):
        len(hp.IterableSource(x for x in ()).transform())


# ---------------------------------------------------------------------------------------------
# torchdata: a chain as a node


def read_node(node):
    """Two epochs by torchdata's loader, and a state of every place with what follows it."""
    loader = tn.Loader(node)
    rows, states = [[], []], []
    for epoch in range(2):
        minibatches = iter(loader)
        while True:
            states.append((copy.deepcopy(loader.state_dict()), epoch, len(rows[epoch])))
            try:
                rows[epoch].append(next(minibatches))
            except StopIteration:
                break
    return rows, states


def identity(minibatch):
    return minibatch


NODES = {
    "chain": lambda chain: chain,
    "Prefetcher": lambda chain: tn.Prefetcher(chain, 2),
    "Mapper": lambda chain: tn.Mapper(chain, identity),
    "ParallelMapper": lambda chain: tn.ParallelMapper(chain, identity, 2, method="thread"),
    "Prefetcher over ParallelMapper": lambda chain: tn.Prefetcher(
        tn.ParallelMapper(chain, identity, 2, method="thread"), 2
    ),
}


@pytest.mark.parametrize("name", NODES)
def test_torchdata_nodes_read_a_chain_and_their_state_goes_on_exactly(name):
    chains = {"computed": whole_chain, "walked": lambda: hp.IterableSource(list(numbers()))}
    for kind, make_chain in chains.items():
        chain = make_chain()
        expected = [list(chain), list(chain)]
        rows, states = read_node(NODES[name](make_chain()))
        assert_same(rows, expected, kind)
        # torchdata's loader goes on with the next epoch when nothing is left of this one.
        for state, epoch, batch in states if "Parallel" not in name else states[::3]:
            fresh = tn.Loader(NODES[name](make_chain()))
            fresh.load_state_dict(state)
            rest = expected[epoch][batch:]
            if not rest and epoch == 1:
                continue
            assert_same(list(fresh), rest or expected[1], f"{kind} {epoch} {batch}")
            del fresh
        gc.collect()  # torchdata's threads end with their nodes, which refer to each other


def test_a_node_that_is_reset_before_it_is_read_stays_in_its_epoch():
    chain = numbers()
    chain.reset()
    chain.reset()
    assert next(chain).key == (5, 0, 0)
    chain.reset()
    assert next(chain).key == (5, 1, 0)


def test_a_node_keeps_the_seed_of_its_state():
    loader = tn.Loader(numbers(seed=None))
    first = iter(loader)
    keys = [next(first).key]
    state = loader.state_dict()
    fresh = tn.Loader(numbers(seed=None))
    fresh.load_state_dict(state)
    for _ in range(2):
        keys += [minibatch.key for minibatch in fresh]
    assert {seed for seed, _, _ in keys} == {keys[0][0]}
    assert [key[1:] for key in keys] == [(e, i) for e in (0, 1) for i in range(4)]


def test_a_node_refuses_the_state_of_another_chain():
    state = tn.Loader(numbers(batch_size=4)).state_dict()
    fresh = tn.Loader(numbers(batch_size=3))
    fresh.load_state_dict(state)
    with pytest.raises(ValueError, match="batch_size: 4 in the state, 3 here"):
        iter(fresh)


# ---------------------------------------------------------------------------------------------
# Pickling


def test_a_pickled_chain_gives_the_same():
    chain = whole_chain().transform(double)
    expected = list(chain)
    next(iter(chain))
    next(chain)  # in the middle of an epoch: the place stays here
    there = pickle.loads(pickle.dumps(chain))  # noqa: S301, our own
    assert_same(list(hp.DataLoader(there, num_workers=2)), expected)
    assert next(there).key == (5, 0, 0)


def seeds_of_pickle(pickled):
    return seeds(pickle.loads(pickled))  # noqa: S301, our own


def test_a_chain_goes_to_a_spawned_process():
    # As bytes: torch would start a thread of its own to share the tensors.
    pickled = pickle.dumps(numbers().transform(double))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        got = pool.apply(seeds_of_pickle, (pickled,))
        pool.close()
        pool.join()
    assert got == seeds(numbers().transform(double))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: numbers().transform(lambda m: m).copy_to("cpu"), "MiniBatchTransformer.*lambda"),
        (
            lambda: numbers().transform(functools.partial(lambda m: m)),
            "MiniBatchTransformer.*lambda",
        ),
        (lambda: numbers(minibatcher=lambda b, n: hp.MiniBatch()), "ItemSampler.*minibatcher"),
        (lambda: hp.IterableSource(m for m in ()).copy_to("cpu"), "IterableSource.*generator"),
    ],
)
def test_the_stage_that_cannot_be_pickled_is_named(make, words):
    with pytest.raises(TypeError, match=words):
        pickle.dumps(make())


# ---------------------------------------------------------------------------------------------
# Every stage goes on exactly, and every stage is checked


def test_every_stage_in_one_chain_resumes():
    check_resume(lambda: whole_chain().transform(double))


def test_every_stage_is_checked_for_resume():
    """Fails when a stage of the package has no test that calls `check_resume` with it."""
    checked = resume_tests()
    assert len(checked) > 3, "found no tests: the search is broken"
    missing = [
        stage.__name__
        for stage in stages_of_the_package()
        if not any(
            word in text for word in (stage.__name__, *methods_of(stage)) for text in checked
        )
    ]
    assert not missing, f"no test calls check_resume with {missing}: see tests/stage_checks.py"


def test_the_search_finds_the_stages():
    stages = {stage.__name__: methods_of(stage) for stage in stages_of_the_package()}
    assert stages["NeighborSampler"] == [".sample_neighbor("]
    assert {"CopyTo", "FeatureFetcher", "MiniBatchTransformer"} <= set(stages)


def stages_of_the_package() -> list[type]:
    for package in ("hopline.pipes", "hopline.partition", "hopline.models"):
        for info in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
            importlib.import_module(info.name)
    found, waiting = [], [hp.Stage]
    while waiting:
        for stage in waiting.pop().__subclasses__():
            waiting.append(stage)
            # A doctest's classes name the module that it stands in, which does not have them.
            module = sys.modules.get(stage.__module__)
            if stage.__module__.startswith("hopline.") and hasattr(module, stage.__name__):
                found.append(stage)
    return found


def methods_of(stage: type) -> list[str]:
    """The chaining methods that make the stage."""
    return [
        f".{name}("
        for name, method in vars(Chain).items()
        if inspect.isfunction(method) and f"return {stage.__name__}(" in inspect.getsource(method)
    ]


def resume_tests() -> list[str]:
    """Text of every test function that calls `check_resume`."""
    texts = []
    for path in TESTS.rglob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                calls = [n.func for n in ast.walk(node) if isinstance(n, ast.Call)]
                if any(isinstance(f, ast.Name) and f.id == "check_resume" for f in calls):
                    texts.append(ast.get_source_segment(text, node))
    return texts


def test_neighbor_sampler_resumes():
    check_resume(lambda: numbers().sample_neighbor(ring(), [2, 2], replace=True))
    check_resume(lambda: numbers(shuffle=False).sample_neighbor(ring(), [torch.tensor([3])]))


def test_the_check_sees_a_stage_that_remembers():
    """A stage with a state of its own: what it gives depends on what it gave before."""

    def chain():
        calls = []

        def count(minibatch):
            calls.append(minibatch)
            minibatch.labels = torch.tensor(len(calls))

        return numbers().pipe(Call, count)

    with pytest.raises(AssertionError, match="restored at mini-batch 1 of epoch 0: rest"):
        check_resume(chain)


def test_the_check_sees_a_loader_that_starts_anew(monkeypatch):
    monkeypatch.setattr(hp.DataLoader, "load_state_dict", lambda self, state: None)
    with pytest.raises(AssertionError, match="restored at mini-batch 1 of epoch 0"):
        check_resume(numbers)


def test_features_fetched_resume():
    check_resume(lambda: numbers().fetch_feature(ring_features(), ["feat"]))
