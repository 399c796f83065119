"""The timeline: its arithmetic on a trace made by hand, and the command."""

from __future__ import annotations

import json
import re

import pytest
import torch

from tests.benchmarks.commands import load, run

SMALL = ("--nodes", 2000, "--edges", 20_000, "--columns", 16, "--batch-size", 128,
         "--hidden", 16, "--fanout", "5,5", "--batches", 6)  # fmt: skip


@pytest.fixture(scope="module")
def timeline():
    return load("timeline")


def event(name, start, end, category="user_annotation", thread=1):
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": end - start,
            "tid": thread}  # fmt: skip


def test_shares(timeline):
    events = [
        event("training", 1000, 2000),
        event("training", 3000, 4000),
        # Two threads at once count once: 500 to 2500, of which 1000 in training.
        event("sampling", 500, 1500, thread=2),
        event("sampling", 1200, 2500, thread=3),
        event("fetching", 2000, 3000, thread=2),
        event("copying", 3100, 3200, thread=2),
        event("copying", 3900, 4000, thread=2),
        event("copying", 9000, 9200, thread=2),
        event("aten::add", 0, 9000, "cpu_op"),
        {"ph": "M", "name": "sampling"},
    ]
    assert timeline.overlaps(events) == {
        "sampling": (2.0, 0.5),
        "fetching": (1.0, 0.0),
        "copying": (0.4, 0.5),
    }


def test_training_is_where_it_runs(timeline):
    """On a GPU the host has queued a step long before it runs."""
    events = [
        event("training", 0, 10),
        event("training", 1000, 2000, "gpu_user_annotation"),
        event("sampling", 0, 1000),
        event("sampling", 1500, 1700, "gpu_user_annotation"),
    ]
    assert timeline.overlaps(events) == {"sampling": (1.0, 0.0), "sampling on the GPU": (0.2, 1.0)}


@pytest.mark.parametrize("workers", [0, 2])
def test_the_command(workers, tmp_path):
    trace = tmp_path / "trace.json"
    done = run("timeline.py", "--out", trace, "--workers", workers, *SMALL)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert re.fullmatch(r"training: \d+\.\d ms", lines[0])
    shares = {}
    for line in lines[1:4]:
        name, share = re.fullmatch(r"(\w+): \d+\.\d ms, (\d+)% beside training", line).groups()
        shares[name] = int(share)
    assert list(shares) == ["sampling", "fetching", "copying"]
    assert all(0 <= share <= 100 for share in shares.values())
    if workers == 0:
        assert set(shares.values()) == {0}
    assert lines[4:] == [f"trace: {trace}"]
    events = json.loads(trace.read_text())["traceEvents"]
    steps = [e for e in events if e.get("name") == "training"]
    assert len(steps) == 6
    threads = {e["tid"] for e in events if e.get("name") == "sampling"}
    if workers == 0:
        assert threads == {steps[0]["tid"]}
    else:
        assert threads
        assert steps[0]["tid"] not in threads


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_a_mode_that_needs_a_gpu():
    done = run("timeline.py", "--mode", "pinned-cuda")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: --mode pinned-cuda needs a GPU, and torch finds none here; use --mode cpu-cpu\n"
    )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: its ranges in the trace")
@pytest.mark.parametrize("mode", ["cpu-cuda", "pinned-cuda", "cuda-cuda"])
def test_the_command_on_a_gpu(mode, tmp_path):
    done = run("timeline.py", "--mode", mode, "--out", tmp_path / "trace.json", *SMALL)
    assert done.returncode == 0, done.stderr
    assert "training on the GPU: " in done.stdout
    assert "copying on the GPU: " in done.stdout
