"""launch: what ranks get, who is named when one fails, and that no process is left."""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import hopline.partition
from hopline.models import RankError, launch
from tests.models import ranks

ROOT = Path(__file__).parents[2]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie is gone but for its parent's asking.
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def pids(folder: Path) -> list[int]:
    return [int(path.read_text() or 0) for path in folder.glob("*.pid")]


def assert_gone(folder: Path, count: int, patience: float = 0.0) -> None:
    found = pids(folder)
    assert len(found) == count
    limit = time.monotonic() + patience
    while (left := [pid for pid in found if is_alive(pid)]) and time.monotonic() < limit:
        time.sleep(0.05)
    assert left == []


def test_ranks_get_their_place_and_leave_nothing_behind(tmp_path):
    threads = torch.get_num_threads()
    launch(ranks.tell, 2, tmp_path, {"a": [1]})
    assert_gone(tmp_path, 2)
    share = min(threads, max(1, len(os.sched_getaffinity(0)) // 2))
    for rank in range(2):
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == {
            "rank": rank,
            "world_size": 2,
            "backend": "gloo",
            "threads": share,
            "arguments": [rank, 2, "cpu", {"a": [1]}],
        }
    assert torch.get_num_threads() == threads
    assert not torch.distributed.is_initialized()


def test_a_rank_ends_its_threads_and_exit_functions_first(tmp_path):
    launch(ranks.leave_traces, 2, str(tmp_path))
    kinds = ("atexit", "finalize", "thread")
    expected = [f"{kind}-{rank}" for kind in kinds for rank in range(2)]
    assert sorted(path.name for path in tmp_path.iterdir()) == expected


@pytest.mark.parametrize(
    ("how", "words", "exit_code"),
    [
        ("raise", "rank 1 of 2 raised KeyError: 'no such thing'", 1),
        ("exit 3", "rank 1 of 2 ended with exit code 3", 3),
        ("exit 0", "rank 1 of 2 left before its function returned", 0),
        ("_exit 0", "rank 1 of 2 left before its function returned, with exit code 0", 0),
    ],
)
def test_the_rank_that_failed_is_named(tmp_path, how, words, exit_code):
    with pytest.raises(hopline.partition.RankError) as caught:  # which is the base of both
        launch(ranks.end_by, 2, tmp_path, how)
    error = caught.value
    assert type(error) is RankError
    assert error.ranks == (1,)
    assert str(error).startswith(words)
    assert "rank 0 raised RuntimeError" in str(error)  # and the other one is accounted for
    assert "60 s" in str(error)
    assert (error.rank, error.exit_code, error.signal) == (1, exit_code, None)
    assert ("in end\n" in (error.traceback or "")) == (how == "raise")
    assert_gone(tmp_path, 2)


def test_a_rank_that_leaves_with_code_0_ends_others_that_do_not_wait_for_it(tmp_path):
    """Rank 0 works alone and would go on for hours."""
    with pytest.raises(RankError, match="rank 1 of 2 left before its function returned") as caught:
        launch(ranks.leave_one_at_work, 2, tmp_path)
    assert caught.value.exit_code == 0
    assert_gone(tmp_path, 2)


@pytest.mark.skipif(os.name != "posix", reason="sets a limit of the process")
@pytest.mark.parametrize(
    ("how", "words", "exit_code"),
    [
        ("raise badly", "raised BadTextError: (its text is not known: str() of it raised", 1),
        ("exit words", "ended with exit code 1: ['told', 'why']", 1),
        ("exit 256", "ended with exit code 1", 1),
    ],
)
def test_a_rank_is_named_however_it_ends_and_its_exit_functions_run(
    tmp_path, how, words, exit_code
):
    """Where no file can be written, where there is no output, where an exception has no text."""
    with pytest.raises(RankError) as caught:
        launch(ranks.end_alone, 1, tmp_path, how)
    assert str(caught.value).startswith(f"rank 0 of 1 {words}")
    assert (caught.value.exit_code, caught.value.signal) == (exit_code, None)
    assert ("in end\n" in (caught.value.traceback or "")) == (how == "raise badly")
    assert list(tmp_path.iterdir()) == []


def test_a_text_longer_than_a_pipe_holds_is_told():
    with pytest.raises(RankError, match="characters left out") as caught:
        launch(ranks.raise_long_text, 1)
    assert str(caught.value).rstrip().endswith("the end")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_the_end_of_a_rank_is_seen_beside_a_child_of_it(tmp_path):
    """A child that was forked keeps open what tells of its parent's end."""
    try:
        with pytest.raises(RankError, match="rank 0 of 1 was killed by SIGKILL"):
            launch(ranks.fork_and_be_killed, 1, tmp_path)
        assert [is_alive(pid) for pid in pids(tmp_path)] == [True], "it waited for the child"
    finally:
        for pid in pids(tmp_path):
            os.kill(pid, signal.SIGKILL)


def test_exceptions_in_a_circle_are_looked_through_once():
    one, two = ValueError("one"), RuntimeError("two")
    one.__cause__, two.__cause__ = two, one
    is_transport_error = importlib.import_module("hopline.models.launch")._is_transport_error
    assert not is_transport_error(one)
    two.args = ("gloo: connection closed",)
    assert is_transport_error(one)
    two.args = ("Application timeout caused pair closure",)  # gloo's, where a link was cut
    assert is_transport_error(one)


def test_a_rank_that_hangs_is_named_after_the_timeout(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.import_module("hopline.models.launch"), "GRACE", 1.0)
    with pytest.raises(RankError) as caught:
        launch(ranks.end_by, 2, tmp_path, "stop", timeout=3)
    assert str(caught.value).startswith("rank 1 of 2 did not answer and was stopped")
    assert "3 s" in str(caught.value)
    assert (caught.value.rank, caught.value.exit_code) == (1, None)
    assert_gone(tmp_path, 2)


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="needs SIGSTOP")
def test_a_stopped_rank_is_ended_without_a_second_wait():
    process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,))
    process.start()
    os.kill(process.pid, signal.SIGSTOP)
    assert importlib.import_module("hopline.models.launch")._stop([process]) == [0]
    assert process.exitcode == -signal.SIGTERM  # not SIGKILL, which comes after the wait


def test_a_rank_that_is_killed_in_mid_epoch_is_named(tmp_path):
    with pytest.raises(RankError) as caught:
        launch(ranks.killed_in_mid_epoch, 2, tmp_path)
    assert str(caught.value).startswith("rank 1 of 2 was killed by SIGKILL")
    assert "went on without" not in str(caught.value)
    error = caught.value
    assert (error.rank, error.exit_code, error.signal) == (1, -9, "SIGKILL")
    assert_gone(tmp_path, 2)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_ranks_end_with_the_caller(tmp_path, number):
    program = (
        "import signal, sys; from tests.models.ranks import launch_waiting_ranks\n"
        # Also when the tests were started in the background, where Ctrl-C is ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "if __name__ == '__main__': launch_waiting_ranks(sys.argv[1])\n"
    )
    script = tmp_path / "waiting.py"
    script.write_text(program)
    folders = tmp_path / "tmp"
    folders.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folders)}
    caller = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)], env=environment, stderr=subprocess.PIPE
    )
    with caller:
        limit = time.monotonic() + 60
        while 0 in pids(tmp_path) or len(pids(tmp_path)) < 2:
            assert caller.poll() is None, caller.stderr.read()
            assert time.monotonic() < limit
            time.sleep(0.05)
        time.sleep(0.5)  # rank 0 is in the collective by then
        caller.send_signal(number)
        _, said = caller.communicate(timeout=30)
    assert caller.returncode == -number
    if number == signal.SIGINT:
        assert b"KeyboardInterrupt" in said
    assert_gone(tmp_path, 2, patience=10)
    assert list(folders.glob("hopline-*")) == []


@pytest.mark.parametrize(
    ("arguments", "keywords", "words"),
    [
        ((0,), {}, "num_ranks is 0"),
        ((True,), {}, "num_ranks is True"),
        ((2,), {"timeout": 0}, "timeout is 0"),
        ((2,), {"timeout": float("inf")}, "timeout is inf"),
        ((2,), {"gpus": [0]}, "expected 2 different ids"),
        ((2,), {"gpus": [0, 0]}, "expected 2 different ids"),
        ((1,), {"gpus": [99]}, "there is no GPU 99"),
    ],
)
def test_unfit_arguments_start_no_process(arguments, keywords, words):
    with pytest.raises(ValueError, match=words):
        launch(ranks.tell, *arguments, **keywords)


def test_a_function_that_cannot_be_found_is_refused_at_once():
    with pytest.raises(Exception, match=r"lambda|pickle"):
        launch(lambda *_: None, 2)


def test_a_rank_of_torchrun_starts_no_ranks_of_its_own(monkeypatch):
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "1")
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "2")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    message = r"torchrun has started this process as rank 1 of 2; call join_ranks\(fn"
    with pytest.raises(RuntimeError, match=message):
        launch(print, 2)
