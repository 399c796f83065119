"""Promise 5, in the loader: no hang, no thread left, no abort. This module tries to break it."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
import traceback
import weakref
from pathlib import Path

import pytest
import torch
import torchdata.nodes as tn

import hopline.pipes as hp
from tests.number_chains import Call, minibatch, numbers, whole_chain

ROOT = Path(__file__).parent.parent.parent
PATIENCE = 10.0  # seconds
WORKERS = [0, 1, 3]


class TwoArgumentsError(Exception):
    """An exception that cannot be made anew from its message."""

    def __init__(self, code, reason):
        super().__init__(f"{code}: {reason}")
        self.code = code


def two_arguments() -> TwoArgumentsError:
    return TwoArgumentsError(7, "wrong")


ERRORS = [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit, MemoryError, two_arguments]


def loader_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("hopline-loader")]


def no_thread_is_left() -> bool:
    limit = time.monotonic() + PATIENCE
    while loader_threads() and time.monotonic() < limit:
        time.sleep(0.002)
    return not loader_threads()


# ---------------------------------------------------------------------------------------------
# Errors come at their mini-batch, as they are


def failing_stage(error, at):
    def fail(minibatch):
        if minibatch.key[1:] == (0, at):
            raise error

    return numbers(30).pipe(Call, fail).copy_to("cpu")


def failing_minibatcher(error, at):
    def fail(batch, names):
        if 3 * at in batch[0].tolist():
            raise error
        return hp.minibatcher_default(batch, names)

    return numbers(30, shuffle=False, minibatcher=fail)


class FailingIterable:
    def __init__(self, error, at):
        self.error, self.at, self.epoch = error, at, -1

    def __iter__(self):
        self.epoch += 1
        self.next = 0
        return self

    def __next__(self):
        if self.next == 10:
            raise StopIteration
        if (self.epoch, self.next) == (0, self.at):
            raise self.error
        self.next += 1
        return minibatch(self.next - 1)


def failing_source(error, at):
    return hp.IterableSource(FailingIterable(error, at)).transform()


def failing_node(error, at):
    def fail(number):
        if number == at:
            raise error
        return minibatch(number)

    return hp.IterableSource(tn.Mapper(tn.IterableWrapper(range(10)), fail)).transform()


PLACES = [failing_stage, failing_minibatcher, failing_source, failing_node]


def read(loop) -> tuple[list[hp.MiniBatch], BaseException | None]:
    """What a loop gives, and the error that it ends with.

    Not by pytest.raises: SystemExit and KeyboardInterrupt are to be caught like any other.
    """
    met = []
    try:
        for m in loop:
            met.append(m)
    except BaseException as error:
        return met, error
    return met, None


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("make_error", ERRORS, ids=lambda e: e.__name__)
@pytest.mark.parametrize("place", PLACES, ids=lambda p: p.__name__)
@pytest.mark.parametrize("at", [0, 4])
def test_an_error_comes_at_its_batch_as_the_same_object(place, make_error, workers, at):
    error = make_error() if make_error is two_arguments else make_error("wrong")
    walked = place in (failing_source, failing_node)
    loader = hp.DataLoader(place(error, at), num_workers=workers)
    met, caught = read(loader)
    assert caught is error
    where = traceback.extract_tb(error.__traceback__)[-1]
    assert where.name in ("fail", "__next__")
    assert where.line in ("raise error", "raise self.error")
    if walked and workers and make_error is KeyboardInterrupt:
        # Not told from Ctrl-C: at once, ahead of what was read before.
        at = len(met)
    assert [m.key[2] for m in met] == list(range(at))
    if not walked:
        assert f"(seed, epoch, index) = (5, 0, {at})" in error.__notes__[0]
    state = loader.state_dict()
    assert (state["epoch"], state["batch"]) == (0, at)
    assert no_thread_is_left()
    # The loader goes on with the next epoch.
    if place in (failing_stage, failing_source):
        assert [m.key[1:] for m in loader] == [(1, index) for index in range(10)]


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("place", [failing_stage, failing_minibatcher], ids=lambda p: p.__name__)
def test_stop_iteration_does_not_end_the_epoch_unseen(place, workers):
    loader = hp.DataLoader(place(StopIteration("wrong"), 4), num_workers=workers)
    met, caught = read(loader)
    assert re.search(r"raised StopIteration .* \(5, 0, 4\)", str(caught))
    assert type(caught) is RuntimeError
    assert type(caught.__cause__) is StopIteration
    assert [m.key[2] for m in met] == [0, 1, 2, 3]
    assert loader.state_dict()["batch"] == 4


@pytest.mark.parametrize("error", [ValueError("a"), GeneratorExit("b"), StopIteration("c")])
def test_the_same_without_a_loader(error):
    met, caught = read(failing_stage(error, 4))
    assert error in (caught, caught.__cause__)
    assert len(met) == 4


@pytest.mark.parametrize("workers", WORKERS)
def test_the_first_of_several_errors_comes_first(workers):
    def fail(minibatch):
        if minibatch.key[2] == 1:
            time.sleep(0.05)
        if minibatch.key[2] > 0:
            raise ValueError(f"at {minibatch.key[2]}")

    loader = hp.DataLoader(numbers(30).pipe(Call, fail), num_workers=workers)
    with pytest.raises(ValueError, match="at 1"):
        list(loader)
    assert no_thread_is_left()


def test_an_error_keeps_nothing_alive():
    """Neither the loop nor its mini-batches hang on the error that the caller has dealt with."""
    gc.collect()
    gc.disable()
    try:
        loader = hp.DataLoader(failing_stage(ValueError("wrong"), 4), num_workers=2)
        loop = iter(loader)
        alive = weakref.ref(loop)
        with pytest.raises(ValueError, match="wrong"):
            list(loop)
        del loop
        # The error itself is held by the stage that raises it; its traceback goes.
        loader.chain.parts()[1][0].function.__closure__[1].cell_contents.__traceback__ = None
        assert alive() is None
    finally:
        gc.enable()


# ---------------------------------------------------------------------------------------------
# Threads end by themselves, without the collector of reference cycles


def leave_early(loader):
    for _ in loader:
        break


def hold_and_drop(loader):
    loop = iter(loader)
    next(loop)
    del loop


def never_advance(loader):
    iter(loader)


def read_nothing(loader):
    pass


def read_all(loader):
    list(loader)


def start_twice(loader):
    first = iter(loader)
    next(first)
    second = iter(loader)
    next(second)


def fail(loader):
    def train():
        for _ in loader:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train()


WAYS = [leave_early, hold_and_drop, never_advance, read_nothing, read_all, start_twice, fail]


@pytest.mark.parametrize("way", WAYS, ids=lambda w: w.__name__)
def test_threads_end_when_a_loop_is_left(way):
    gc.collect()
    gc.disable()
    try:
        loader = hp.DataLoader(whole_chain(count=60), num_workers=3)
        way(loader)
        assert no_thread_is_left()
        way(loader)
        alive = weakref.ref(loader)
        del loader
        assert alive() is None, "the loader is in a reference cycle"
        assert no_thread_is_left()
    finally:
        gc.enable()


@pytest.mark.parametrize("make", [list, lambda rows: tn.IterableWrapper(rows)])
def test_threads_end_when_a_loop_over_a_walked_source_is_left(make):
    gc.collect()
    gc.disable()
    try:
        loader = hp.DataLoader(make([minibatch(n) for n in range(30)]), num_workers=3)
        leave_early(loader)
        assert no_thread_is_left()
        alive = weakref.ref(loader)
        del loader
        assert alive() is None, "the loader is in a reference cycle"
    finally:
        gc.enable()


def test_a_loop_outlives_its_loader():
    loop = iter(hp.DataLoader(numbers(30), num_workers=2))
    assert len(list(loop)) == 10
    assert no_thread_is_left()


def test_close_again_and_again():
    loader = hp.DataLoader(numbers(30), num_workers=2)
    loader.close()
    next(iter(loader))
    loader.close()
    loader.close()
    assert not loader_threads()
    with loader:
        pass
    list(loader)
    loader.close()
    assert not loader_threads()


# ---------------------------------------------------------------------------------------------
# Memory stays flat


def resident() -> int:
    """Bytes of this process in memory."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


needs_proc = pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="reads the process's size from /proc"
)


@needs_proc
def test_memory_is_flat_over_loaders():
    chain = whole_chain(count=60)

    def make_and_drop(count):
        for _ in range(count):
            next(iter(hp.DataLoader(chain, num_workers=2)))
        assert no_thread_is_left()

    make_and_drop(50)
    gc.collect()
    before = resident()
    make_and_drop(500)
    gc.collect()
    assert resident() - before < 24 << 20  # 500 loaders of 50 kB would be seen


@needs_proc
def test_memory_is_flat_over_batches():
    nodes = torch.zeros(2000, 600)
    store = hp.BasicFeatureStore({("node", None, "feat"): hp.TorchBasedFeature(nodes)})
    chain = numbers(2000, 500).fetch_feature(store, ["feat"])  # 1.2 MB a mini-batch
    with hp.DataLoader(chain, num_workers=2) as loader:
        for _ in range(10):
            read_all(loader)
        before = resident()
        for _ in range(75):
            read_all(loader)
        assert resident() - before < 32 << 20  # a tenth of what passed through


# ---------------------------------------------------------------------------------------------
# Ctrl-C, and the interpreter's exit in mid-epoch


PRELUDE = """
import os, signal, sys, threading, time
import torch
import hopline.pipes as hp
from tests.number_chains import Call, numbers, whole_chain
from tests.promises.test_no_hang import work

signal.signal(signal.SIGINT, signal.default_int_handler)  # also when started in the background
"""


def work(minibatch):
    """What a worker may be in the middle of: torch's own threads, kernels, no GIL."""
    matrix = torch.full((200, 200), float(minibatch.key[2]))
    for _ in range(3):
        matrix = torch.sort(matrix @ matrix / 1e3, dim=1).values
    minibatch.score = matrix.sum()


def start(script: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(script)],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


CTRL_C = {
    "while it waits for a batch": """
        def slow(minibatch):
            if minibatch.key[2] > 1:
                os.write(1, b"ready\\n")  # in one piece: two threads are here
                time.sleep(0.5)

        for minibatch in hp.DataLoader(numbers(3000).pipe(Call, slow), num_workers=2):
            pass
        """,
    "while it trains": """
        loader = hp.DataLoader(whole_chain(count=30000).pipe(Call, work), num_workers=2)
        for number, minibatch in enumerate(loader):
            if number == 3:
                print("ready", flush=True)
            if number >= 3:
                time.sleep(0.5)
        """,
}


@pytest.mark.parametrize("when", CTRL_C)
def test_ctrl_c(when):
    process = start(CTRL_C[when])
    try:
        assert process.stdout.readline() == "ready\n", process.stderr.read()
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode in (-signal.SIGINT, 1, 130), stderr
    assert "KeyboardInterrupt" in stderr
    assert not re.search("terminate called|Fatal Python error|Aborted", stderr), stderr


INTERRUPTED_AGAIN_AND_AGAIN = """
    features = hp.TorchBasedFeature(torch.zeros(8000, 40))
    store = hp.BasicFeatureStore({("node", None, "feat"): features})
    loader = hp.DataLoader(numbers(8000, 500).fetch_feature(store, ["feat"]))  # 80 KB: pooled
    for minibatch in loader:  # kernels are compiled: Numba has such callbacks of its own
        del minibatch
    while True:
        try:
            os.write(1, b"reading\\n")  # the next one is sent from here on
            while True:
                for minibatch in loader:
                    del minibatch
        except KeyboardInterrupt:
            os.write(1, b"interrupted\\n")
    """


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT to one process")
def test_every_ctrl_c_reaches_a_script_that_reads_without_workers():
    """None is raised in a callback or a `__del__`, where Python drops it."""
    process = start(INTERRUPTED_AGAIN_AND_AGAIN)
    watchdog = threading.Timer(60, process.kill)
    watchdog.start()
    try:
        for number in range(150):
            assert process.stdout.readline() == "reading\n", process.stderr.read()
            time.sleep(0.002 + 0.0001 * (number % 30))
            process.send_signal(signal.SIGINT)
            said = process.stdout.readline()
            assert said == "interrupted\n", f"Ctrl-C number {number} was lost"
    finally:
        watchdog.cancel()
        process.kill()
        _, stderr = process.communicate()
    assert "ignored" not in stderr


LEFT_IN_MID_EPOCH = """
    loader = hp.DataLoader(whole_chain(count=3000).pipe(Call, work), num_workers=3)
    loop = iter(loader)
    for _ in range(3):
        next(loop)
    # The loop lives on, in this module, to the interpreter's end.
    """


@pytest.mark.parametrize("ending", ["", "sys.exit(0)"])
def test_the_interpreter_exits_in_mid_epoch(ending):
    process = start(LEFT_IN_MID_EPOCH + f"\n    {ending}\n")
    _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (0, "")


def test_an_unhandled_error_in_mid_epoch_ends_the_interpreter():
    process = start(LEFT_IN_MID_EPOCH + "\n    raise ValueError('mine')\n")
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert stderr.strip().endswith("ValueError: mine")


# Forks while it has one thread, so that each child is like an interpreter of its own that has
# imported everything, leaves an epoch in the middle, and goes through the interpreter's exit.
FIFTY_TIMES = """
    import gc, os
    torch.set_num_threads(1)
    for _ in hp.DataLoader(whole_chain(count=30).pipe(Call, work)):
        pass  # kernels are compiled, or loaded, before the forks
    assert len(os.listdir("/proc/self/task")) == 1, "forking would not be safe"
    gc.freeze()  # modules are not taken apart one by one, fifty times

    def child(number):
        global loader, loop
        torch.set_num_threads(2)
        source = whole_chain(count=3000).pipe(Call, work)
        loader = hp.DataLoader(source, num_workers=1 + number % 4)
        loop = iter(loader)
        for _ in range(number % 7):
            next(loop)
        if number % 3 == 0:
            del loader
        if number % 5 == 0:
            loader = loop = None

    statuses = []
    for group in range(10):
        children = []
        for number in range(5 * group, 5 * group + 5):
            pid = os.fork()
            if not pid:
                child(number)
                break
            children.append(pid)
        else:
            statuses += [os.waitpid(pid, 0)[1] for pid in children]
            continue
        break
    else:
        print([os.waitstatus_to_exitcode(status) for status in statuses])
    """


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads in /proc")
def test_the_interpreter_exits_in_mid_epoch_fifty_times():
    process = start(FIFTY_TIMES, OPENBLAS_NUM_THREADS="1")  # numpy's, started at its import
    stdout, stderr = process.communicate(timeout=240)
    assert stderr == ""
    assert stdout == f"{[0] * 50}\n"
