"""The check that every stage's test calls, and what it compares with."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any

import torch

from hopline.pipes import DataLoader

EPOCHS = 2


def assert_same(got: Any, expected: Any, where: str = "") -> None:
    """Equal in everything: kind, order, dtype, shape, and every bit of every tensor."""
    assert type(got) is type(expected), f"{where}: {type(got)} for {type(expected)}"
    if isinstance(expected, torch.Tensor):
        assert got.dtype == expected.dtype, f"{where}: {got.dtype} for {expected.dtype}"
        assert got.shape == expected.shape, f"{where}: {got.shape} for {expected.shape}"
        assert bits(got) == bits(expected), f"{where}: {got} for {expected}"
    elif dataclasses.is_dataclass(expected):
        for f in dataclasses.fields(expected):
            assert_same(getattr(got, f.name), getattr(expected, f.name), f"{where}.{f.name}")
    elif isinstance(expected, dict):
        assert list(got) == list(expected), f"{where}: keys {list(got)} for {list(expected)}"
        for key, value in expected.items():
            assert_same(got[key], value, f"{where}[{key!r}]")
    elif isinstance(expected, list | tuple):
        assert len(got) == len(expected), f"{where}: {len(got)} entries for {len(expected)}"
        for number, value in enumerate(expected):
            assert_same(got[number], value, f"{where}[{number}]")
    else:
        assert got == expected, f"{where}: {got!r} for {expected!r}"


def bits(tensor: torch.Tensor) -> bytes:
    """The tensor's elements, bit by bit: NaN equals itself, and 0.0 is not -0.0."""
    flat = tensor.detach().cpu().flatten().clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8).numpy().tobytes()


def check_resume(make_chain: Callable[[], Any], workers: Sequence[int] = (0, 2)) -> None:
    """A state of any place, restored into a fresh loader, gives exactly the rest.

    A state is taken before every mini-batch of two epochs, at both ends and between them, goes
    through JSON, and is given to a fresh loader over a fresh chain. All that follows, to the end of
    a third epoch, must be the same, in order.

    Args:
        make_chain: makes the chain, the stage under test among its stages, anew at each call.
        workers: numbers of worker threads to restore to.
    """
    loader = DataLoader(make_chain())
    expected: list[list[Any]] = []
    places: list[tuple[str, int, int]] = []
    for epoch in range(EPOCHS):
        expected.append([])
        minibatches = iter(loader)
        while True:
            state = json.dumps(loader.state_dict())
            places.append((state, epoch, len(expected[epoch])))
            try:
                expected[epoch].append(next(minibatches))
            except StopIteration:
                break
        places.append((json.dumps(loader.state_dict()), epoch + 1, 0))
    expected.append(list(loader))
    assert all(len(rows) > 1 for rows in expected), "too few mini-batches to check anything"
    for number in workers:
        for state, epoch, batch in places:
            where = f"{number} workers, restored at mini-batch {batch} of epoch {epoch}: "
            with DataLoader(make_chain(), num_workers=number) as fresh:
                fresh.load_state_dict(json.loads(state))
                assert fresh.epoch == epoch, where
                assert json.loads(json.dumps(fresh.state_dict())) == json.loads(state), where
                assert_same(list(fresh), expected[epoch][batch:], where + "rest")
                for later in range(epoch + 1, len(expected)):
                    assert_same(list(fresh), expected[later], where + f"epoch {later}")
