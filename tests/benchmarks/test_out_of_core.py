"""The benchmark of graphs and features larger than memory: the whole of it, at a small size."""

from __future__ import annotations

import os
import re

import pytest

from tests.benchmarks.commands import run


@pytest.mark.skipif(os.geteuid() != 0, reason="making a control group takes root's rights")
def test_in_a_control_group(tmp_path):
    done = run(
        "out_of_core.py", "--nodes", 2000, "--edges", 20000, "--memory", 1.5, "--features", 0.02,
        "--batches", 3, "--batch-size", 64, "--path", tmp_path,
    )  # fmt: skip
    if "cannot make a control group" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    edges = set(re.findall(r"sampling .*, ([\d,]+) edges each", done.stdout))
    assert len(edges) == 1  # the same mini-batches with and without a limit
    rates = re.findall(r"cache (\S+) +([\d,]+) rows/s", done.stdout)
    assert [name for name, _ in rates] == ["none", "sieve", "s3-fifo", "lru", "clock"]
    assert all(int(rate.replace(",", "")) > 0 for _, rate in rates)
    assert list(tmp_path.iterdir()) == []


def test_too_little_memory_is_said(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("making a control group takes root's rights")
    done = run(
        "out_of_core.py", "--nodes", 2000, "--edges", 20000, "--memory", 0.02, "--path", tmp_path
    )
    if "cannot make a control group" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode != 0
    assert "sampling in the memory given" in done.stderr
    assert list(tmp_path.iterdir()) == []
