import sys

import pytest

from tests.benchmarks.commands import run


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")
def test_each_method_is_measured(tmp_path):
    options = ("--edges", "5e4", "--folder", tmp_path, "--methods", "ldg", "random")
    done = run("partitioning.py", *options)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [row[0] for row in rows if row and row[0] in ("ldg", "random")] == ["ldg", "random"]
    cuts = [float(row[8].rstrip("%")) for row in rows if row and row[0] in ("ldg", "random")]
    assert cuts[0] < cuts[1]
    assert [path.name for path in tmp_path.iterdir()] == ["planted-50000"]
