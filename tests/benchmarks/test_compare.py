"""The comparison with peers: Hopline's part of it, small, and what a missing peer gives."""

from __future__ import annotations

import re
import sys
from types import SimpleNamespace

import numpy as np

from tests.benchmarks.commands import load, run


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


SLEEPER = """
import json, sys, time
for line in sys.stdin:
    if json.loads(line)["task"] == "forever":
        time.sleep(3600)
    print(json.dumps({"ms": 1.0}), flush=True)
time.sleep(3600)
"""


def test_a_peer_that_gives_no_answer_is_named_and_ended(tmp_path, monkeypatch):
    compare = load("compare")
    (tmp_path / "run_sleeper.py").write_text(SLEEPER)
    monkeypatch.setattr(compare, "PEERS", tmp_path)
    options = SimpleNamespace(others=99.0, limit=2.0, arrays=tmp_path)
    peer = compare.Peer("sleeper", sys.executable, options)
    first = peer.process
    error = peer.ask({"task": "forever", "threads": 2})["error"]
    assert error.startswith("sleeper gave no answer within 2 s")
    assert '{"task": "forever", "threads": 2}' in error
    assert first.poll() is not None
    peer.limit = 60.0
    assert peer.ask({"task": "quick"})["ms"] == 1.0, "another setting is measured all the same"
    peer.process.kill()
    for _ in range(2):
        assert "the process ended with status -9" in peer.ask({"task": "quick"})["error"]
    peer.close()
    peer = compare.Peer("sleeper", sys.executable, options)
    peer.limit = 0.5
    peer.close()
    assert peer.process.poll() is not None


def test_hop_sizes_of_a_sampler_that_does_not_tell():
    protocol = load("peers/protocol")
    rng = np.random.default_rng(2)
    for seeds, degree in [(1, 1), (4, 3), (30, 2), (3, 0)]:
        number = {int(node): i for i, node in enumerate(rng.permutation(60)[:seeds])}
        pairs, nodes, edges, begin = [], [seeds], [], 0
        for _ in range(3):
            names, had, before = list(number), len(pairs), len(number)
            for target in range(begin, before):
                some = rng.integers(0, 60, degree) if names[target] % 5 else []
                for node in some:
                    pairs.append((number.setdefault(int(node), len(number)), target))
            nodes.append(len(number) - before)
            edges.append(len(pairs) - had)
            begin = before
        sources, targets = np.array(pairs, np.int64).reshape(-1, 2).T
        assert protocol.hop_sizes(sources, targets, seeds, 3) == (nodes, edges)
