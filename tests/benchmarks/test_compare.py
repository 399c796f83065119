"""The comparison with peers: Hopline's part of it, small, and what a missing peer gives."""

from __future__ import annotations

import re
import sys

from tests.benchmarks.commands import run


def test_hopline_alone(tmp_path):
    done = run(
        "compare.py", "--nodes", 3000, "--edges", 60000, "--repetitions", 1, "--data", tmp_path,
        "--others", 99,
        "--tasks", "sample,hetero,train,memory",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^(\w.*?)  +hopline +([\d.]+) ms .*? ([\d,]+) edges", done.stdout, re.M)
    assert [title for title, _, _ in rows] == [
        "sample [10,10,10]", "hetero [10,10]", "training step [15,10,5]",
    ]  # fmt: skip
    assert all(float(ms) > 0 and int(edges.replace(",", "")) > 1000 for _, ms, edges in rows)
    assert re.search(r"\d+ of \d+ GFLOP/s", done.stdout)
    assert re.search(r"memory, sample \+ fetch +hopline +own [\d,]+ MB", done.stdout)


def test_a_peer_that_cannot(tmp_path):
    # This interpreter has no dgl: its rows say so, and Hopline's are there all the same.
    done = run(
        "compare.py", "--nodes", 2000, "--edges", 20000, "--repetitions", 1, "--data", tmp_path,
        "--others", 99,
        "--tasks", "link", "--graphbolt", sys.executable,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.search(r"link .* hopline +[\d.]+ ms", done.stdout)
    assert "graphbolt  cannot: the process ended with status 1: ModuleNotFoundError" in done.stdout
