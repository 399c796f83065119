"""DataLoader: order, back-pressure, epochs, state and close, whatever the number of workers."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
import torch
import torchdata.nodes as tn

import hopline.pipes as hp
from tests.number_chains import Call, Log, minibatch, numbers, seeds, whole_chain
from tests.stage_checks import assert_same

WORKERS = [0, 1, 2, 8]
PATIENCE = 10.0  # seconds


def wait_for(condition) -> bool:
    """Whether a condition comes true in time."""
    limit = time.monotonic() + PATIENCE
    while not condition() and time.monotonic() < limit:
        time.sleep(0.002)
    return condition()


def loader_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("hopline-loader")]


# ---------------------------------------------------------------------------------------------
# Order and content


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("shuffle", [True, False])
def test_the_same_batches_in_order_for_any_number_of_workers(workers, shuffle):
    """With mini-batch 0 ten times slower than the others."""

    def slow(minibatch):
        time.sleep(0.03 if minibatch.key[2] == 0 else 0.003)

    expected = [list(chain) for chain in [whole_chain(count=40, shuffle=shuffle)] * 2]
    chain = whole_chain(count=40, shuffle=shuffle).pipe(Call, slow)
    with hp.DataLoader(chain, num_workers=workers) as loader:
        for rows in expected:
            assert_same(list(loader), rows)


def test_unshuffled_batches_come_in_the_order_of_the_items():
    with hp.DataLoader(numbers(10_000, 1024, shuffle=False), num_workers=4) as loader:
        assert [int(m.seeds[0]) for m in loader] == list(range(0, 10_000, 1024))


@pytest.mark.parametrize("workers", [1, 3])
def test_so_many_workers_run_at_once(workers):
    """None could go on if any were missing."""
    barrier = threading.Barrier(workers)
    names = Log()

    def meet(minibatch):
        names(minibatch)
        barrier.wait(PATIENCE)

    with hp.DataLoader(numbers(6 * workers, 1).pipe(Call, meet), num_workers=workers) as loader:
        assert len(list(loader)) == 6 * workers
    assert len(names.threads) == workers


def test_without_workers_all_is_done_by_the_caller():
    log = Log()
    list(hp.DataLoader(numbers().pipe(Call, log)))
    assert log.threads == {threading.current_thread().name}


@pytest.mark.parametrize(
    ("workers", "factor", "limit"),
    [(1, 1, 1), (1, 2, 2), (1, 3, 2), (2, 1, 2), (2, 2, 3), (3, 1, 3), (8, 2, 15)],
)
def test_so_many_are_in_the_making_and_no_more(workers, factor, limit):
    """With the one in the reader's hands, workers * factor; or as many beside it."""
    log = Log()
    chain = numbers(60, 1).pipe(Call, log)
    with hp.DataLoader(chain, num_workers=workers, prefetch_factor=factor) as loader:
        for delivered, _ in enumerate(loader, 1):
            # Those that were delivered, and those in the making when the last one was asked for.
            started = min(delivered - 1 + limit, 60)
            assert wait_for(lambda started=started: len(log.keys) == started)
            if delivered in (1, 20):
                time.sleep(0.02)
                assert len(log.keys) == started


def test_a_walked_source_is_read_ahead_as_far_and_by_the_caller():
    log = Log()

    def read():
        for number in range(30):
            made = minibatch(number)
            made.key = (0, 0, number)
            log(made)
            yield made

    with hp.DataLoader(read(), num_workers=2, prefetch_factor=3) as loader:
        for delivered, _ in enumerate(loader, 1):
            assert len(log.keys) == min(delivered - 1 + 5, 30)
    assert log.threads == {threading.current_thread().name}


# ---------------------------------------------------------------------------------------------
# Length and epochs


@pytest.mark.parametrize("workers", [0, 2])
def test_the_length_is_the_number_of_batches(workers):
    """And every item comes exactly once, but for what drop_last drops."""
    for count in range(12):
        for batch_size in (1, 2, 3, 7):
            for drop_last in (False, True):
                chain = numbers(count, batch_size, drop_last=drop_last)
                with hp.DataLoader(chain, num_workers=workers) as loader:
                    rows = seeds(loader)
                assert len(loader) == len(rows)
                items = sorted(x for row in rows for x in row)
                kept = count // batch_size * batch_size if drop_last else count
                assert len(items) == len(set(items)) == kept
                if kept == count:
                    assert items == list(range(count))


def test_drop_last_drops_other_items_in_each_epoch():
    loader = hp.DataLoader(numbers(9, 2, drop_last=True))
    met = {x for _ in range(50) for row in seeds(loader) for x in row}
    assert met == set(range(9))


@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_advance_to_the_end_after_a_break_and_after_an_error(workers):
    def fail(minibatch):
        if minibatch.key[1:] == (2, 2):
            raise ValueError("wrong")

    loader = hp.DataLoader(numbers().pipe(Call, fail), num_workers=workers)
    assert loader.epoch == 0
    met = [[m.key[1:] for m in loader]]
    assert loader.epoch == 1
    for m in loader:
        met.append([m.key[1:]])
        assert loader.epoch == 1
        break
    with pytest.raises(ValueError, match="wrong"):
        list(loader)
    met.append([m.key[1:] for m in loader])
    assert loader.epoch == 4
    assert met == [[(0, i) for i in range(4)], [(1, 0)], [(3, i) for i in range(4)]]
    orders = [seeds(hp.DataLoader(numbers())) for _ in range(2)]
    assert orders[0] == orders[1]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterator_that_ended_stays_ended(workers):
    loop = iter(hp.DataLoader(numbers(), num_workers=workers))
    assert len(list(loop)) == 4
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(loop)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_reads_one_epoch_at_a_time(workers):
    loader = hp.DataLoader(numbers(), num_workers=workers)
    first = iter(loader)
    next(first)
    second = iter(loader)
    assert next(second).key == (5, 1, 0)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="a loader reads one epoch at a time"):
            next(first)
    assert next(second).key == (5, 1, 1)
    assert loader.state_dict()["batch"] == 2
    loader.close()
    with pytest.raises(RuntimeError, match=r"close\(\) or load_state_dict\(\) was called"):
        next(second)


@pytest.mark.parametrize("workers", [0, 2])
def test_one_chain_two_loaders(workers):
    chain = whole_chain()
    one, two = (hp.DataLoader(chain, num_workers=workers) for _ in range(2))
    list(one)
    for epoch in (1, 0):
        rows = list(one if epoch else two)
        assert {m.key[1] for m in rows} == {epoch}
    for a, b in zip(one, two, strict=True):
        assert (a.key[1], b.key[1]) == (2, 1)


# ---------------------------------------------------------------------------------------------
# Where it stands


@pytest.mark.parametrize("workers", [0, 2])
def test_the_state_is_the_next_batch_to_be_delivered(workers):
    loader = hp.DataLoader(numbers(), num_workers=workers)

    def place():
        state = loader.state_dict()
        return state["epoch"], state["batch"]

    assert place() == (0, 0)
    for epoch in range(2):
        loop = iter(loader)
        assert place() == (epoch, 0)
        for batch in range(4):
            next(loop)
            assert place() == (epoch, batch + 1)
        assert next(loop, None) is None
        assert place() == (epoch + 1, 0)
    next(iter(loader))
    assert place() == (2, 1)
    loader.close()
    assert place() == (2, 1)  # where to go on, until another loop begins


@pytest.mark.parametrize("workers", [0, 2])
def test_loading_a_state_ends_the_loop_under_way(workers):
    loader = hp.DataLoader(numbers(), num_workers=workers)
    loop = iter(loader)
    next(loop)
    state = loader.state_dict()
    next(loop)
    loader.load_state_dict(state)
    with pytest.raises(RuntimeError, match="this loop over the loader has ended"):
        next(loop)
    assert loader.state_dict() == state
    assert [m.key[1:] for m in loader] == [(0, 1), (0, 2), (0, 3)]
    assert loader.epoch == 1


def test_a_loop_that_was_left_no_longer_moves_the_loader():
    loader = hp.DataLoader(numbers(), num_workers=2)
    first = iter(loader)
    next(first)
    second = iter(loader)
    state = loader.state_dict()
    with pytest.raises(RuntimeError):
        next(first)
    assert loader.state_dict() == state
    next(second)


# ---------------------------------------------------------------------------------------------
# Threads end


@pytest.mark.parametrize("workers", [1, 3])
def test_close_waits_for_the_threads_also_of_a_loop_that_was_left(workers):
    started, go_on = threading.Event(), threading.Event()

    def block(minibatch):
        if minibatch.key[2] > 0:
            started.set()
            assert go_on.wait(PATIENCE)

    loader = hp.DataLoader(numbers(30, 1).pipe(Call, block), num_workers=workers)
    loop = iter(loader)
    next(loop)
    assert started.wait(PATIENCE)
    del loop  # as at a break: the iterator is gone, and a thread is in a task
    assert loader_threads()
    threading.Timer(0.05, go_on.set).start()
    loader.close()
    assert go_on.is_set()
    assert not loader_threads()
    loader.close()
    assert next(iter(loader)).key == (5, 1, 0)
    loader.close()


def test_waiting_tasks_are_dropped_by_close():
    log = Log()
    started, go_on = threading.Event(), threading.Event()

    def block(minibatch):
        log(minibatch)
        if minibatch.key[2] > 0:
            started.set()
            assert go_on.wait(PATIENCE)

    loader = hp.DataLoader(numbers(30, 1).pipe(Call, block), num_workers=1, prefetch_factor=9)
    loop = iter(loader)
    next(loop)
    assert started.wait(PATIENCE)
    threading.Timer(0.02, go_on.set).start()
    loader.close()
    assert [key[2] for key in log.keys] == [0, 1]


def test_a_loop_that_is_left_is_over_before_the_next_one_begins():
    """So that no more than the stated number is ever in the making."""
    running, most = Log(), []
    lock = threading.Lock()

    def work(minibatch):
        with lock:
            running.keys.append(minibatch.key)
            most.append(len(running.keys))
        time.sleep(0.01)
        with lock:
            running.keys.pop()

    loader = hp.DataLoader(numbers(30, 1).pipe(Call, work), num_workers=2)
    for _ in range(5):
        next(iter(loader))
    loader.close()
    assert max(most) == 2


def test_a_context_closes():
    with hp.DataLoader(numbers(30, 1), num_workers=2) as loader:
        loop = iter(loader)
        next(loop)
        assert len(loader_threads()) > 0
    assert not loader_threads()
    with pytest.raises(RuntimeError, match="this loop over the loader has ended"):
        next(loop)


@pytest.mark.parametrize("workers", [0, 2])
def test_threads_that_read_one_loop_share_its_mini_batches(workers):
    for _ in range(20):
        loader = hp.DataLoader(numbers(60, 7), num_workers=workers)
        loop, got, errors = iter(loader), [], []

        def read(loop=loop, got=got, errors=errors):
            try:
                got.extend(minibatch.key[2] for minibatch in loop)
            except BaseException as error:
                errors.append(error)

        readers = [threading.Thread(target=read) for _ in range(4)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(PATIENCE)
        assert errors == []
        assert sorted(got) == list(range(9))
        state = loader.state_dict()
        assert (state["epoch"], state["batch"]) == (1, 0)
        assert [minibatch.key[2] for minibatch in loader] == list(range(9))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_child_reads_on_where_another_thread_had_its_turn_at_the_fork():
    reading, go_on = threading.Event(), threading.Event()

    def block(minibatch):
        if os.getpid() == parent and minibatch.key[2] == 1:
            reading.set()
            assert go_on.wait(PATIENCE)

    parent, loader = os.getpid(), hp.DataLoader(numbers(30, 7).pipe(Call, block))
    loop = iter(loader)
    next(loop)
    reader = threading.Thread(target=next, args=(loop,))
    reader.start()
    assert reading.wait(PATIENCE)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            next(loop)
            code = 0
        finally:
            os._exit(code)
    ended = []

    def has_ended():
        if not ended and (end := os.waitpid(child, os.WNOHANG))[0]:
            ended.append(end)
        return bool(ended)

    hangs = not wait_for(has_ended)
    go_on.set()
    reader.join()
    if hangs:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert not hangs
    assert os.waitstatus_to_exitcode(ended[0][1]) == 0


def test_closing_from_another_thread_ends_the_wait():
    started, go_on = threading.Event(), threading.Event()

    def block(minibatch):
        started.set()
        assert go_on.wait(PATIENCE)

    loader = hp.DataLoader(numbers(30, 1).pipe(Call, block), num_workers=1, prefetch_factor=4)
    loop = iter(loader)

    def close():
        assert started.wait(PATIENCE)
        threading.Timer(0.05, go_on.set).start()
        loader.close()

    closer = threading.Thread(target=close)
    closer.start()
    next(loop)  # the one that a thread was in when it was closed
    closer.join()
    with pytest.raises(RuntimeError, match="this loop over the loader has ended"):
        next(loop)


# ---------------------------------------------------------------------------------------------
# What is refused


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"num_workers": -1}, ValueError, "num_workers is -1; expected 0 or more"),
        ({"num_workers": 1.0}, TypeError, "num_workers is 1.0; expected an int"),
        ({"num_workers": True}, TypeError, "num_workers is True"),
        ({"num_workers": None}, TypeError, "num_workers is None"),
        ({"prefetch_factor": 0}, ValueError, "prefetch_factor is 0; expected 1 or more"),
        ({"prefetch_factor": "2"}, TypeError, "prefetch_factor is '2'"),
    ],
)
def test_arguments(arguments, error, words):
    with pytest.raises(error, match=words):
        hp.DataLoader(numbers(), **arguments)


def test_the_arguments_of_graphbolts_scripts():
    loader = hp.DataLoader(numbers(), 2, True, 10240)
    assert loader.num_workers == 2
    assert seeds(loader) == seeds(numbers())


def test_any_iterable_of_minibatches_can_be_read():
    rows = [minibatch(number) for number in range(3)]
    for source in (rows, tn.IterableWrapper(rows), hp.IterableSource(rows)):
        assert seeds(hp.DataLoader(source, num_workers=2)) == seeds(rows)


def test_length_of_what_has_none():
    with pytest.raises(TypeError, match="has no length"):
        len(hp.DataLoader(m for m in ()))


def test_repr():
    loader = hp.DataLoader(numbers(), num_workers=2)
    assert repr(loader) == f"DataLoader({loader.chain!r}, num_workers=2)"


def test_a_source_of_the_users():
    """Computed: a length, a seed, and any mini-batch by its number."""

    class Squares(hp.Source):
        seed = 3

        def __len__(self):
            return 4

        def batch(self, epoch, index, seed=None):
            return hp.MiniBatch(seeds=torch.tensor([index**2 + epoch]))

    loader = hp.DataLoader(Squares().transform(), num_workers=2)
    rows = list(loader)
    assert seeds(rows) == [[0], [1], [4], [9]]
    assert [m.key for m in rows] == [(3, 0, index) for index in range(4)]
    state = loader.state_dict()
    fresh = hp.DataLoader(Squares().transform())
    fresh.load_state_dict(state)
    assert seeds(fresh) == [[1], [2], [5], [10]]
