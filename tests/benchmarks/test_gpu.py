"""The GPU benchmark: the whole of it, small, with interpreted kernels; its graph; its refusal."""

from __future__ import annotations

import re

import pytest
import torch

from tests.benchmarks.commands import load, run

PLACEMENTS = [
    "cpu-cuda",
    "cpu-cuda, rows cached",
    "pinned-cuda",
    "pinned-cuda, rows cached",
    "pinned-cuda, rows and edges cached",
    "cuda-cuda",
    "cuda-cuda, rows cached",
    "the model alone",
]


def test_every_placement_with_interpreted_kernels():
    pytest.importorskip("triton", reason="kernels of GPUs need Triton")
    done = run("gpu.py", "--interpret", "--nodes", 200, "--edges", 1500)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^a mini-batch, in all placements: \d+ edges, \d+ nodes$", done.stdout, re.M)
    table = [line.split("|") for line in done.stdout.splitlines() if " | " in line]
    assert [cell.strip() for cell in table[0]][1:] == [
        "sample", "sample + fetch", "train", "train, 1 workers"
    ]  # fmt: skip
    assert [row[0].strip() for row in table[1:]] == PLACEMENTS
    for row in table[1:-1]:
        cells = [re.match(r"\s*([0-9.]+) \(([0-9.]+)-([0-9.]+)\)", cell) for cell in row[1:5]]
        assert all(0 < float(cell[2]) <= float(cell[1]) <= float(cell[3]) for cell in cells)
        assert ("miss rate" in row[-1]) == ("cached" in row[0])
    shares = re.findall(
        r"^(\S+-cuda): (sampling|gathering) .*GB/s, \d+% of a copy", done.stdout, re.M
    )
    assert shares == [(mode, what) for mode in ("pinned-cuda", "cuda-cuda")
                      for what in ("sampling", "gathering")]  # fmt: skip


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu():
    done = run("gpu.py")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("error: this needs a GPU, and torch finds none here")


def test_the_graph():
    graphs = load("graphs")
    indptr, indices = graphs.power_law_on(torch.device("cpu"), 2000, 40_000)
    degree = torch.diff(indptr)
    assert (indptr[0], indptr[-1], len(degree)) == (0, len(indices), 2000)
    assert 36_000 < len(indices) < 42_000
    assert degree.min() >= 1
    assert degree.max() > 10 * degree.median()
    # Who has many in-edges is a source of many edges.
    out = torch.bincount(indices, minlength=2000)
    assert len(out) == 2000
    assert torch.corrcoef(torch.stack([degree, out]).double())[0, 1] > 0.9
    again = graphs.power_law_on(torch.device("cpu"), 2000, 40_000)
    assert torch.equal(again[1], indices)
