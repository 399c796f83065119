"""examples/full_graph/gcn.py: the same run on any number of ranks, by parts or columns, resumed."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import hopline.pipes as hp
from hopline.partition import partition_graph

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "full_graph" / "gcn.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small data set on disk, and its parts."""
    folder = tmp_path_factory.mktemp("full-graph")
    data = hp.planted_partition(600, 4, seed=3, path=folder / "planted")
    partition_graph(data, "planted", 3, folder / "parts")
    return folder


def run(folder, *options):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--hidden", "8", "--print-every", "1", *options],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [re.sub(r" \| [\d.]+ s an epoch", "", line) for line in done.stdout.splitlines()]


@pytest.mark.timeout(600)
def test_ranks_columns_and_a_resumed_run_print_the_same(folder):
    parts = ("--parts", str(folder / "parts"), "--epochs", "6")
    whole = run(folder, *parts, "--num-ranks", "1")
    assert re.fullmatch(r"test accuracy: 0\.\d{4} \(epoch \d+\)", whole[-1])
    assert run(folder, *parts, "--num-ranks", "3") == whole
    columns = run(
        folder, "--dataset", str(folder / "planted"), "--epochs", "6", "--tensor-parallel",
        "--print-every", "0",
    )  # fmt: skip
    assert len(columns) == 1
    assert abs(float(columns[-1].split()[2]) - float(whole[-1].split()[2])) < 0.02
    checkpoint = ("--checkpoint", str(folder / "run"), "--num-ranks", "3")
    first = run(folder, *parts[:2], "--epochs", "3", *checkpoint)
    second = run(folder, *parts, *checkpoint, "--resume")
    assert second[0] == "resumed at epoch 3"
    assert first[:-1] + second[1:] == whole


def test_training_stops_where_validation_gets_no_better(folder):
    lines = run(folder, "--parts", str(folder / "parts"), "--num-ranks", "1", "--patience", "2",
                "--epochs", "60", "--lr", "0.5")  # fmt: skip
    values = [float(line.split()[-1]) for line in lines[:-1]]
    best = max(range(len(values)), key=lambda epoch: values[epoch])
    assert len(values) == best + 3 < 60
    assert lines[-1].endswith(f"(epoch {best + 1})")


BOTH = [  # options of which one would have no effect
    ("--tensor-parallel --parts p", "--parts: for parts, not with --tensor-parallel"),
    ("--tensor-parallel --parts p --dataset d --stale",
     "--parts, --stale: for parts, not with --tensor-parallel"),
    ("--parts p --dataset d",
     "--dataset: not with --parts, whose parts have a data set; leave one of them out"),
    ("--parts p --dataset debian",
     "--dataset: not with --parts, whose parts have a data set; leave one of them out"),
]  # fmt: skip


def test_a_data_set_beside_the_parts_of_the_environment(folder, monkeypatch, capsys):
    script = runpy.run_path(str(SCRIPT))
    monkeypatch.setenv("HOPLINE_PARTS", str(folder / "parts"))
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--dataset", str(folder / "planted")])
    with pytest.raises(SystemExit):
        script["main"]()
    said = f"--dataset: not with HOPLINE_PARTS={folder / 'parts'}, whose parts"
    assert said in capsys.readouterr().err
    # `hopline launch` always sets it: columns have no use for it.
    columns = ("--tensor-parallel", "--epochs", "1", "--dataset", str(folder / "planted"))
    assert len(run(folder, *columns)) == 2


def test_what_is_refused(monkeypatch, capsys):
    script = runpy.run_path(str(SCRIPT))
    options = ["--tensor-parallel", "--stale", "--wire-dtype", "int8"]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *options])
    with pytest.raises(SystemExit):
        script["main"]()
    assert "--wire-dtype, --stale: for parts" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--dataset", "nosuch"])
    with pytest.raises(SystemExit):
        script["main"]()
    assert "nosuch is not a folder; expected the folder of a data set" in capsys.readouterr().err
    for options, named in BOTH:
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *options.split()])
        with pytest.raises(SystemExit):
            script["main"]()
        assert capsys.readouterr().err.splitlines()[-1].endswith(f"error: {named}")
    with pytest.raises(ValueError, match=r"run: its checkpoint has \['loss'\] besides the model"):
        script["checked"]({"loss": 1.0}, {"epoch": 0}, "run")
