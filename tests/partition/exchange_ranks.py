"""A rank of an exchange, of which one is to fail: `python -m ... SCENARIO BAD_RANK FOLDER`.

Each rank that lives writes what it was told to FOLDER/RANK.json.
"""

import json
import os
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch.distributed as dist

from hopline.partition import Exchange, RankError

SHORT, LONG = 3.0, 600.0  # timeouts; nobody is to wait for the long one
BUSY = 7.0  # seconds of a long answer
TIMES, LONG_ANSWER = 0, 1


def answer(rank, message):
    return [message[0] * 10, np.array([rank])]


def answer_late(rank, message):
    time.sleep(BUSY)
    return message


def ask(exchange, others):
    got = exchange.ask(TIMES, {r: [np.array([exchange.rank, r])] for r in others})
    for other in others:
        assert got[other][0].tolist() == [exchange.rank * 10, other * 10]
        assert got[other][1].tolist() == [exchange.rank]


def ask_until_told(exchange, others, told):
    try:
        while True:
            ask(exchange, others)
    except RankError as error:
        told.append((str(error), error.ranks))


def survive(exchange, bad, folder):
    """Three threads ask, one of them not the bad rank, and two close."""
    told = []
    others = [r for r in range(exchange.world_size) if r != exchange.rank]
    spared = [r for r in others if r != bad] or others
    threads = [
        threading.Thread(target=ask_until_told, args=(exchange, asked, told))
        for asked in (others, others, spared)
    ]
    for thread in threads:
        thread.start()
    (folder / f"{exchange.rank}.ready").touch()
    for thread in threads:
        thread.join()
    for call in (exchange.close, lambda: ask(exchange, others)):
        try:
            call()
        except RankError as error:
            told.append((str(error), error.ranks))
    left = []
    for thread in threading.enumerate():
        if thread.name.startswith("hopline") and (bad or thread.name != "hopline-roll-call"):
            left.append(thread.name)  # a roll call hangs in the store where rank 0 is stopped
    (folder / f"{exchange.rank}.json").write_text(json.dumps({"errors": told, "threads": left}))


def main(scenario, bad, folder):
    bad, folder = int(bad), Path(folder)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    exchange = Exchange(SHORT if scenario == "stopped" else LONG)
    exchange.answer(TIMES, answer)
    exchange.answer(LONG_ANSWER, answer_late)
    rank, world_size = exchange.rank, exchange.world_size
    ask(exchange, [r for r in range(world_size) if r != rank])
    dist.barrier()
    if scenario.endswith("busy rank") and rank == (bad + 2) % world_size:
        threading.Thread(target=ask_busy, args=(exchange, bad)).start()
    if rank != bad or scenario == "stopped":
        survive(exchange, bad, folder)
        return
    time.sleep(1)
    if scenario.startswith("killed"):
        os.kill(os.getpid(), signal.SIGKILL)
    if scenario.startswith("raises"):
        raise ValueError("on purpose")
    if scenario == "ends its process group":
        dist.destroy_process_group()
        time.sleep(5)


def ask_busy(exchange, bad):
    """The bad rank ends in mid-answer, which others notice at once, but not one that is as busy."""
    try:
        exchange.ask(LONG_ANSWER, {bad: [], (bad + 1) % exchange.world_size: []})
    except RankError:
        return
    raise AssertionError("the long answer came")


if __name__ == "__main__":
    main(*sys.argv[1:])
