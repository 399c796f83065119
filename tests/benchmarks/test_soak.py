"""The soak: what it prints, and that it notices growth."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from tests.benchmarks.commands import load, run

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="reads the process's size from /proc"
)


def test_flat():
    options = ("--batches", 150, "--every", 50, "--loaders", 20, "--bound", 64)
    done = run("soak.py", *options)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    counts = [line.split(":")[0] for line in lines[:-1]]
    assert counts[:3] == ["50 mini-batches", "100 mini-batches", "150 mini-batches"]
    assert counts[-1] == "20 loaders"
    assert all(re.search(r": \d+\.\d MB", line) for line in lines[:-1])
    assert lines[-1] == "memory is flat, within 64 MB"


def test_growth_is_noticed():
    options = ("--batches", 120, "--every", 30, "--loaders", 0, "--bound", 20, "--leak", 1024)
    done = run("soak.py", *options)
    assert done.returncode == 1, done.stdout
    (line,) = done.stderr.splitlines()
    match = re.fullmatch(
        r"error: (\d+)\.\d MB more in host memory over the second half of the mini-batches; "
        "the bound is 20 MB",
        line,
    )
    assert 50 <= int(match[1]) <= 90


def test_growth_of_a_gpus_memory_counts_too():
    soak = load("soak")
    meter = soak.Meter("mini-batches", 10)
    meter.samples = [(10, 900, 1), (20, 100, 2), (30, 120, 3), (40, 130, 9)]
    assert meter.growth() == (30, 7)


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled where there is a GPU")
def test_interpreted_kernels():
    pytest.importorskip("triton", reason="GPU kernels are interpreted by Triton, which is missing")
    options = ("--batches", 16, "--every", 8, "--loaders", 2, "--workers", 2, "--bound", 64)
    done = run("soak.py", "--interpret", *options)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "memory is flat, within 64 MB"
