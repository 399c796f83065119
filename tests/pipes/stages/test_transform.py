"""MiniBatchTransformer: a function of the user's."""

from __future__ import annotations

import functools

import pytest
import torch

import hopline.pipes as hp
from tests.number_chains import numbers, seeds
from tests.stage_checks import check_resume


def shift(minibatch, by=1):
    minibatch.seeds = minibatch.seeds + by
    return minibatch


class Adder:
    def __call__(self, minibatch):
        return shift(minibatch)

    def method(self, minibatch):
        return shift(minibatch)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (shift, "shift"),
        (functools.partial(shift, by=1), "partial"),
        (Adder(), "Adder"),
        (Adder().method, "Adder.method"),
        (lambda minibatch: shift(minibatch), "<lambda>"),
    ],
)
def test_any_callable(function, name):
    chain = numbers().transform(function)
    assert seeds(chain) == [[x + 1 for x in row] for row in seeds(numbers())]
    assert chain.settings()["transformer"].endswith(name)


def test_none_changes_nothing():
    assert seeds(numbers().transform()) == seeds(numbers().transform(None)) == seeds(numbers())


@pytest.mark.parametrize("thing", [7, "shift", [shift]])
def test_what_cannot_be_called_is_refused(thing):
    with pytest.raises(TypeError, match="expected a function"):
        numbers().transform(thing)


@pytest.mark.parametrize("result", [None, 7, {"seeds": torch.ones(1)}])
def test_the_result_must_be_a_minibatch(result):
    loader = hp.DataLoader(numbers().transform(lambda m: result))
    with pytest.raises(TypeError, match=f"{type(result).__name__} for the mini-batch"):
        next(iter(loader))


def test_a_function_may_give_a_new_minibatch():
    chain = numbers().transform(lambda m: hp.MiniBatch(seeds=m.seeds)).transform(shift)
    assert seeds(chain) == [[x + 1 for x in row] for row in seeds(numbers())]


def test_resume():
    check_resume(lambda: numbers().transform(shift).transform(functools.partial(shift, by=3)))
