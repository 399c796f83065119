"""What ranks do to an exchange that all of them outlive; each function runs on every rank."""

import functools
import os
import signal
import threading
import time

import numpy as np
import pytest
import torch
import torch.distributed as dist

import hopline.partition.exchange as module
from hopline.models import gather_rows
from hopline.partition import DistFeatureStore, DistGraph, Exchange, RankError, dist_graph
from hopline.partition.links import Links
from hopline.partition.roll_call import RollCall

TIMES, FAILS, EXITS, WRONG, LATE, NEVER = range(6)
SHORT = 1.0  # seconds to wait for a rank that does not come


def times(rank, message):
    return [message[0] * 10, np.array([rank])]


def fail(rank, message):
    raise LookupError(f"no row {message[0][0]} for rank {rank} \u2713")


def leave(rank, message):
    raise SystemExit(3)


def wrong(rank, message):
    return [None, [np.array([object()])], None, [np.array([3], ">i4")], [7]][int(message[0][0])]


def make(timeout=600.0):
    exchange = Exchange(timeout)
    for kind, answerer in enumerate((times, fail, leave, wrong)):
        exchange.answer(kind, answerer)
    return exchange


def ask_all(exchange, size=3):
    ranks = range(exchange.world_size)
    value = np.arange(size, dtype=np.int64).reshape(-1, 1) + exchange.rank
    got = exchange.ask(TIMES, {r: [value + r] for r in ranks})
    for r in ranks:
        assert np.array_equal(got[r][0], (value + r) * 10)
        assert got[r][0].shape == (size, 1)
        assert got[r][1].tolist() == [exchange.rank]


def raised_by(call, *args):
    """The errors of threads that all call the same."""
    errors = []

    def run():
        try:
            while True:
                call(*args)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def no_threads():
    return [t.name for t in threading.enumerate() if t.name.startswith("hopline")] == []


# -------------------------------------------------------------------------------------------------
# Nobody dies


def healthy(rank, world_size, device):
    with make() as exchange, make() as second:
        unusual_answers(exchange, (rank + 1) % world_size)
        hostile_bytes(exchange, rank, world_size)
        unknown_kinds(exchange, rank, world_size)
        many_threads(exchange, second)
        after_fork(exchange)
        with pytest.raises(ValueError, match=f"no rank {world_size}"):
            exchange.ask(TIMES, {world_size: []})
        with pytest.raises(TypeError, match="a message has a object"):
            exchange.ask(TIMES, {(rank + 1) % world_size: [np.array([None])]})
        ask_all(exchange)
    for _ in range(2):
        exchange.close()
    exchange.leave()
    with pytest.raises(RuntimeError, match="the exchange is closed"):
        ask_all(exchange)
    uneven(rank, world_size)
    for _ in range(5):  # nobody sees another one's end as an accident
        make().close()
    assert no_threads()


def unusual_answers(exchange, other):
    question = [np.array([4])]
    with pytest.raises(
        RankError, match=rf"rank {other} could not answer .*no row 4 .*\u2713"
    ) as it:
        exchange.ask(FAILS, {other: question})
    assert it.value.ranks == (other,)
    with pytest.raises(RankError, match=f"rank {other} .*SystemExit"):
        exchange.ask(EXITS, {other: question})
    for number in range(5):
        with pytest.raises(RankError, match=f"rank {other} could not answer .*TypeError"):
            exchange.ask(WRONG, {other: [np.array([number])]})
    with pytest.raises(LookupError, match="no row 4"):
        exchange.ask(FAILS, {exchange.rank: question, other: question})
    ask_all(exchange)


def hostile_bytes(exchange, rank, world_size):
    """Rank 0 sends what is no answer, then what is no question; only its own asker hears of it."""
    garbage = [
        np.zeros(0, np.uint8),
        np.full(7, 255, np.uint8),
        np.full(24, 255, np.uint8),
        np.array([0, -1, 8], np.int64).view(np.uint8),
        np.array([0, 1 << 40], np.int64).view(np.uint8),
        np.array([0, 1, 99, 0], np.int64).view(np.uint8),
        np.array([0, 1, 0, 1, -1], np.int64).view(np.uint8),
        np.array([0, 1, 0, 2, 1 << 40, 1 << 40], np.int64).view(np.uint8),
        np.array([0, 1, 6, 1, 1, 7], np.int64).view(np.uint8),
        np.array([77, 0], np.int64).view(np.uint8),
    ]
    original = module.answer
    for data in garbage:
        dist.barrier()
        if rank == 0:
            module.answer = lambda answerers, r, asked, data=data: [data]
        dist.barrier()
        if rank == 1:
            with pytest.raises(RankError, match="rank 0 ") as error:
                exchange.ask(TIMES, {0: [np.arange(3)], 2: [np.arange(3)]})
            assert error.value.ranks == (0,)
        dist.barrier()
        module.answer = original
    dist.barrier()
    ask_all(exchange)
    dist.barrier()
    if rank == 0:
        for data in garbage[:-1]:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(module, "encode", lambda kind, message, data=data: [data])
                with pytest.raises(RankError, match=r"rank 1 could not answer .*MessageError"):
                    exchange.ask(TIMES, {1: [np.arange(3)]})
    dist.barrier()
    ask_all(exchange)


def unknown_kinds(exchange, rank, world_size):
    """A rank that comes late with its answers is waited for; one that has none is named."""
    if rank == 1:
        time.sleep(0.3)
    exchange.answer(LATE, times)
    got = exchange.ask(LATE, {r: [np.array([r])] for r in range(world_size)})
    assert [int(got[r][0][0]) for r in range(world_size)] == [10 * r for r in range(world_size)]
    exchange.timeout = SHORT
    with pytest.raises(RankError, match="nobody for questions of kind 5; do all ranks make"):
        exchange.ask(NEVER, {(rank + 1) % world_size: []})
    exchange.timeout = 600.0
    with pytest.raises(RuntimeError, match="nobody answers questions of kind 5"):
        exchange.ask(NEVER, {rank: []})
    dist.barrier()


def many_threads(exchange, second):
    errors = []

    def work(number):
        try:
            for size in (0, 1, 1000 * number, 3):
                ask_all(exchange if number % 2 else second, size)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def after_fork(exchange):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            ask_all(exchange)
        except RuntimeError as error:
            code = 0 if "forked" in str(error) else 2
        exchange.leave()
        os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    ask_all(exchange)


def uneven(rank, world_size):
    """None, 20, 40 questions: all take part in as many beats, until the last has ended."""
    beats = []
    with pytest.MonkeyPatch.context() as patch:
        original = Links.gather

        def record(links, row):
            beats.append(row[0])
            return original(links, row)

        patch.setattr(Links, "gather", record)
        exchange = make()
        for _ in range(20 * rank):
            ask_all(exchange)
        exchange.close()
    assert beats[-1] == 1
    counts = [int(row[0]) for row in gather_rows(torch.tensor([len(beats)]))]
    assert counts == [len(beats)] * world_size


# -------------------------------------------------------------------------------------------------
# Something goes wrong, and all processes live on


def survived(rank, world_size, device, folder):
    bad = 1
    steps = (leave_by_with, leave_as_others_close, drop, interrupt, interrupt_close)
    steps += (interrupt_leave, stuck, own_work_too_long)
    steps += (functools.partial(no_part, folder=folder),)
    for step in (*steps, interrupt_making, never_made):  # the last: ranks differ in groups made
        dist.barrier()
        step(rank, bad)
        dist.barrier()
        deadline = time.monotonic() + 20
        while not no_threads() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert no_threads(), step


def check_told(exchange, bad, words):
    """All threads that ask, and close, name the bad rank."""
    errors = raised_by(ask_all, exchange)
    with pytest.raises(RankError) as closed:
        exchange.close()
    with pytest.raises(RankError) as later:
        ask_all(exchange)
    exchange.close()
    assert len(errors) == 4
    for error in (*errors, closed.value, later.value):
        assert isinstance(error, RankError)
        assert error.ranks == (bad,), error
        assert f"rank {bad} {words}" in str(error), error


def leave_by_with(rank, bad):
    exchange = make()
    ask_all(exchange)
    dist.barrier()  # all have their answers
    if rank != bad:
        check_told(exchange, bad, "left the exchange without close()")
        return
    with pytest.raises(KeyError), exchange:
        raise KeyError
    exchange.close()
    with pytest.raises(RuntimeError, match="the exchange is closed"):
        ask_all(exchange)


def leave_as_others_close(rank, bad):
    """Who only waits for all to close, and asks nothing, is told as well."""
    exchange = make()
    ask_all(exchange)
    dist.barrier()
    if rank == bad:
        time.sleep(0.5)
        exchange.leave()
        return
    with pytest.raises(RankError, match=f"rank {bad} left the exchange") as error:
        exchange.close()
    assert error.value.ranks == (bad,)


def drop(rank, bad):
    exchange = make()
    ask_all(exchange)
    dist.barrier()
    if rank != bad:
        check_told(exchange, bad, "let go of its exchange")
    del exchange


def interrupt(rank, bad):
    """Ctrl-C while the main thread waits and the other one is in a collective."""
    exchange = make()
    if rank != bad:
        check_told(exchange, bad, "left the exchange")
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt), exchange:
        ask_for_ever(exchange)


def ask_for_ever(exchange):
    while True:
        ask_all(exchange)


def interrupt_close(rank, bad):
    exchange = make()
    if rank != bad:
        check_told(exchange, bad, "left the exchange")
        return
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        exchange.close()
    exchange.leave()


def interrupt_leave(rank, bad):
    """A second Ctrl-C, while the others are told of the first."""
    exchange = make()
    if rank != bad:
        check_told(exchange, bad, "left the exchange")
        return
    original = RollCall.leave

    def leave(roll_call, why):
        original(roll_call, why)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RollCall, "leave", leave)
        with pytest.raises(KeyboardInterrupt):
            exchange.leave()
    exchange.leave()


def interrupt_making(rank, bad):
    """Ctrl-C when all have begun to make an exchange; nothing of it stays."""
    if rank != bad:
        with pytest.raises(RankError, match=f"rank {bad} left the exchange") as error:
            Exchange(SHORT)
        assert error.value.ranks == (bad,)
        return

    def interrupted(*args):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "Links", interrupted)
        with pytest.raises(KeyboardInterrupt):
            Exchange(SHORT)


def stuck(rank, bad):
    """An answer that takes too long; the rank lives, and is told as well."""
    exchange = make(2.0)
    exchange.answer(LATE, lambda rank, message: time.sleep(8) or message)
    ask_all(exchange)
    dist.barrier()
    if rank == 0:
        with pytest.raises(RankError, match="rank 1 lives, but does not answer") as error:
            exchange.ask(LATE, {bad: []})
        assert error.value.ranks == (bad,)
    check_told(exchange, bad, "lives, but does not answer in time")


def own_work_too_long(rank, bad):
    """Whoever asks does not take an answer, being busy; the rank that answers names it."""
    exchange = make(2.0)
    exchange.answer(LATE, lambda rank, message: [np.zeros(100_000)])
    ask_all(exchange)
    dist.barrier()
    if rank == bad:
        with pytest.raises(RankError):
            exchange.ask(LATE, {0: []}, lambda: time.sleep(8))
    check_told(exchange, bad, "lives, but does not answer in time")


def no_part(rank, bad, folder):
    """A rank that cannot open its part says so, and the others do not wait for it."""
    if rank == bad:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dist_graph, "load_part", fail)
            with pytest.raises(TypeError):
                DistGraph(folder, timeout=600)
        return
    graph = DistGraph(folder, timeout=600)
    feature = DistFeatureStore(graph)["node", None, "id"]
    for error in raised_by(feature.read):
        assert isinstance(error, RankError), error
        assert error.ranks == (bad,)
    with pytest.raises(RankError, match="rank 1 left"), graph:
        pass


def never_made(rank, bad):
    if rank == bad:
        return
    with pytest.raises(RankError, match=f"rank {bad} made no exchange") as error:
        Exchange(SHORT)
    assert error.value.ranks == (bad,)
