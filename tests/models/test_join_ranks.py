"""join_ranks: ranks that torchrun has started, on one machine and as on two."""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hopline.models import join_ranks, launch
from tests.models import ranks

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
import torch.distributed as dist
from hopline.models import join_ranks
from tests.models import ranks

def fail_on_one(rank, world_size, device, folder):
    if rank == 1:
        raise KeyError("no such thing")

if __name__ == "__main__":
    if sys.argv[2] == "fail":
        join_ranks(fail_on_one, sys.argv[1])
    else:
        join_ranks(ranks.tell, sys.argv[1], sys.argv[2], timeout=40)
        assert not dist.is_initialized()
"""
PLACE = {
    "RANK": "5",
    "WORLD_SIZE": "6",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "1",
}


def torchrun(tmp_path, *options, value="here"):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    command = [sys.executable, "-m", "torch.distributed.run", *options, str(script)]
    # Both "machines" are this one, whose name need not be known.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1",
                   "GLOO_SOCKET_IFNAME": "lo"}  # fmt: skip
    return subprocess.Popen(
        [*command, str(tmp_path), value], env=environment, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def end(*processes):
    """Waits for all; gives what the last one said."""
    try:
        for process in processes:
            _, said = process.communicate(timeout=120)
    finally:
        for process in processes:
            process.kill()
    return said


def told(tmp_path):
    return [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]


def want(rank):
    return {
        "rank": rank,
        "world_size": 2,
        "backend": "gloo",
        "threads": 1,
        "arguments": [rank, 2, "cpu", "here"],
    }


def test_one_machine(tmp_path):
    process = torchrun(tmp_path, "--standalone", "--nproc-per-node", "2")
    said = end(process)
    assert process.returncode == 0, said
    assert told(tmp_path) == [want(0), want(1)]


def test_two_machines(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ("--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "127.0.0.1",
               "--master-port", str(port), "--node-rank")  # fmt: skip
    processes = [torchrun(tmp_path, *options, number) for number in "01"]
    said = end(*processes)
    assert [process.returncode for process in processes] == [0, 0], said
    assert told(tmp_path) == [want(0), want(1)]


def test_torchrun_shows_what_a_rank_raised(tmp_path):
    process = torchrun(tmp_path, "--standalone", "--nproc-per-node", "2", value="fail")
    said = end(process)
    assert process.returncode == 1
    assert "KeyError: 'no such thing'" in said


@pytest.fixture
def calls(monkeypatch):
    """A machine with two GPUs, where nothing is really joined; what was called."""
    made = []
    module = importlib.import_module("hopline.models.join_ranks")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda gpu: made.append(("gpu", gpu)))
    monkeypatch.setattr(module, "share_cores", lambda count: made.append(("cores", count)))
    monkeypatch.setattr(module, "stay_on_this_machine", lambda: made.append("stay"))
    monkeypatch.setattr(module.dist, "destroy_process_group", lambda: made.append("end"))

    def init(backend, **settings):
        made.append((backend, settings["init_method"], settings["rank"], settings["world_size"]))

    monkeypatch.setattr(module.dist, "init_process_group", init)
    for name, value in PLACE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return made


def test_the_gpu_is_that_of_the_local_rank(calls):
    join_ranks(lambda *given: calls.append(given), "x", gpus=range(2))
    assert calls == [
        ("cores", 2),
        ("gpu", 1),
        ("cpu:gloo,cuda:nccl", "env://", 5, 6),
        (5, 6, torch.device("cuda", 1), "x"),
        "end",
    ]
    calls.clear()
    join_ranks(lambda *given: calls.append(given), gpus=[1, 0], backend="nccl")
    assert calls[1:4] == [("gpu", 0), ("nccl", "env://", 5, 6), (5, 6, torch.device("cuda", 0))]


def test_ranks_of_one_machine_need_no_network(calls, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    join_ranks(lambda *given: calls.append(given))
    assert calls == [("cores", 2), "stay", ("gloo", "env://", 1, 2),
                     (1, 2, torch.device("cpu")), "end"]  # fmt: skip


@pytest.mark.parametrize(("restarts", "shared"), [("0", "True"), ("1", "False"), ("1", "True")])
def test_ranks_that_do_not_meet_after_a_restart(calls, monkeypatch, restarts, shared):
    """What torchrun's default keeps from the attempt before is the reason only where it is kept."""

    def refuse(*_, **__):
        raise RuntimeError("Gloo connectFullMesh failed with ... Connection refused\nmore")

    module = importlib.import_module("hopline.models.join_ranks")
    monkeypatch.setattr(module.dist, "init_process_group", refuse)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restarts)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", shared)
    with pytest.raises(RuntimeError, match=r"Gloo connectFullMesh failed .* refused") as caught:
        join_ranks(print)
    told = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in str(caught.value)
    assert told == ((restarts, shared) == ("1", "True"))


def test_a_failure_leaves_the_group(calls):
    """Else this rank would wait for the others to end it with them."""

    def fail(*_):
        raise KeyError

    with pytest.raises(KeyError):
        join_ranks(fail)
    assert calls[-1] != "end"


@pytest.mark.parametrize("run", [join_ranks, lambda fn, gpus: launch(ranks.tell, 2, gpus=gpus)])
def test_gpus_are_those_that_are_visible(calls, monkeypatch, run):
    with pytest.raises(ValueError, match="no GPU 2; torch finds 2 here, and counts them from 0"):
        run(print, gpus=[0, 2])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    with pytest.raises(ValueError, match="no GPU 4; torch finds 2 in CUDA_VISIBLE_DEVICES=4,5"):
        run(print, gpus=[4, 5])
    with pytest.raises(ValueError, match="expected 2 different ids"):
        run(print, gpus=[0])


@pytest.mark.parametrize(
    ("name", "value", "kind", "words"),
    [
        ("RANK", None, RuntimeError, "lacks RANK, which torchrun sets; start the script with"),
        ("LOCAL_RANK", None, RuntimeError, r"lacks LOCAL_RANK.*or use launch"),
        ("MASTER_PORT", None, RuntimeError, "lacks MASTER_PORT"),
        ("RANK", "6", ValueError, "RANK=6, WORLD_SIZE=6"),
        ("LOCAL_RANK", "2", ValueError, "expected ranks below their numbers"),
        ("LOCAL_WORLD_SIZE", "7", ValueError, "no more ranks on a machine than in all"),
        ("RANK", "one", ValueError, "RANK=one.*expected numbers"),
    ],
)
def test_an_environment_that_does_not_fit(calls, monkeypatch, name, value, kind, words):
    if value is None:
        monkeypatch.delenv(name)
    else:
        monkeypatch.setenv(name, value)
    with pytest.raises(kind, match=words):
        join_ranks(print)
    assert calls == []
