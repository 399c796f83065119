"""The state of a loader that another thread asks for while the loader is being read.

Python may change threads between any two instructions. Here the other thread's call is made at each
instruction of the loader's own code in turn, so that nothing depends on luck.
"""

from __future__ import annotations

import sys

import pytest

import hopline.pipes as hp
from hopline.pipes import cursor, loader
from tests.number_chains import minibatch, numbers

FILES = (loader.__file__, cursor.__file__)


class Counted:
    """An iterable of five mini-batches that keeps its place."""

    def __init__(self):
        self.index = 0

    def __iter__(self):
        while self.index < 5:
            self.index += 1
            yield minibatch(self.index)
        self.index = 0

    def state_dict(self):
        return {"index": self.index}

    def load_state_dict(self, state):
        self.index = state["index"]


CHAINS = {"computed": numbers, "walked": lambda: hp.IterableSource(Counted())}


def at_each_instruction(work, other):
    """Does `work`, and calls `other` before each instruction of the loader's code."""

    def trace(frame, event, argument):
        if frame.f_code.co_filename not in FILES:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            other()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return work()
    finally:
        sys.settrace(before)


def places(make, workers):
    """The places of two epochs, of a loader that nobody disturbs."""
    plain = hp.DataLoader(make(), num_workers=workers)
    states = [plain.state_dict()]
    for _ in range(2):
        loop = iter(plain)
        states.append(plain.state_dict())
        while next(loop, None) is not None:
            states.append(plain.state_dict())
        states.append(plain.state_dict())
    return states


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("chain", CHAINS)
def test_whenever_it_is_asked_for_a_state_is_one_of_the_places(chain, workers):
    wanted = places(CHAINS[chain], workers)
    asked = hp.DataLoader(CHAINS[chain](), num_workers=workers)
    seen = []

    def ask():
        state = asked.state_dict()
        if not seen or seen[-1] != state:
            seen.append(state)

    def read():
        for _ in range(2):
            for _ in asked:
                pass

    at_each_instruction(read, ask)
    assert all(state in wanted for state in seen), [s for s in seen if s not in wanted]
    numbers_seen = [(state["epoch"], state["batch"]) for state in seen]
    assert numbers_seen == sorted(numbers_seen)  # a place never goes back


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("chain", CHAINS)
def test_a_state_is_whole_when_the_loader_is_read_while_it_is_made(chain, workers):
    wanted = places(CHAINS[chain], workers)
    for start in range(0, 90, 3):
        asked = hp.DataLoader(CHAINS[chain](), num_workers=workers)
        loops, calls = [iter(asked)], [0]
        next(loops[0])

        def read(start=start, asked=asked, loops=loops, calls=calls):
            calls[0] += 1
            if calls[0] >= start and next(loops[-1], None) is None and len(loops) < 2:
                loops.append(iter(asked))

        state = at_each_instruction(asked.state_dict, read)
        asked.close()
        assert state in wanted, (start, state)
