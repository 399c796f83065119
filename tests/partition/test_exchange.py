"""An exchange between ranks that ask too much, answer nonsense, leave, are stopped or killed."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from hopline.models import launch
from hopline.partition import Exchange, partition_graph
from tests.partition.exchange_steps import healthy, survived
from tests.partition.graphs import homogeneous

ROOT = Path(__file__).parents[2]


def test_one_process_is_the_only_rank(monkeypatch):
    with Exchange() as exchange:
        exchange.answer(0, lambda rank, message: [message[0] + rank])
        assert exchange.ask(0, {0: [7]}) == {0: [7]}
        with pytest.raises(ValueError, match="no rank 1"):
            exchange.ask(0, {1: []})
    with pytest.raises(ValueError, match="kind 0 are answered already"):
        exchange.answer(0, print)
    for timeout in (0, -1.0, True, "1", float("inf"), float("nan")):
        with pytest.raises(ValueError, match="timeout is"):
            Exchange(timeout)
    for name in ("OMPI_COMM_WORLD_SIZE", "WORLD_SIZE"):
        monkeypatch.setenv(name, "2")
        with pytest.raises(RuntimeError, match=f"^{name} is 2, but there is no process group"):
            Exchange()


def test_ranks_that_ask_and_answer_anything():
    launch(healthy, 3, timeout=60)


def test_ranks_that_leave_and_are_told(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # small parts cannot always be balanced
        partition_graph(homogeneous(), "g", 3, tmp_path / "parts")
    launch(survived, 3, tmp_path / "parts", timeout=60)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize(
    ("scenario", "ranks", "bad"),
    [
        ("killed beside a busy rank", 4, 1),
        ("stopped", 3, 1),
        ("stopped", 3, 0),
        ("raises", 2, 0),
        ("raises beside a busy rank", 3, 1),
        ("ends its process group", 3, 1),
        ("ends", 2, 1),
    ],
)
def test_a_rank_whose_process_ends(tmp_path, scenario, ranks, bad):
    env = os.environ | {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks),
        "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    command = [sys.executable, "-m", "tests.partition.exchange_ranks", scenario, str(bad)]
    processes = [
        subprocess.Popen(
            [*command, str(tmp_path)],
            env=env | {"RANK": str(rank)},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        if scenario == "stopped":
            deadline = time.monotonic() + 120
            while len(list(tmp_path.glob("*.ready"))) < ranks and time.monotonic() < deadline:
                time.sleep(0.05)
            os.kill(processes[bad].pid, signal.SIGSTOP)
        output = {r: p.communicate(timeout=120)[0] for r, p in enumerate(processes) if r != bad}
        if scenario == "stopped":
            assert processes[bad].poll() is None
            os.kill(processes[bad].pid, signal.SIGCONT)
        last_words = processes[bad].communicate(timeout=60)[0]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for rank, text in output.items():
        assert processes[rank].returncode == 0, text
        told = json.loads((tmp_path / f"{rank}.json").read_text())
        assert told["threads"] == []
        assert len(told["errors"]) == 5
        for error, named in told["errors"]:
            assert named == [bad], error
            assert f"rank {bad} " in error or f"rank {bad}'s" in error
    code = {"killed": -signal.SIGKILL, "raises": 1}.get(scenario.split()[0], 0)
    assert processes[bad].returncode == code, last_words
