"""The examples over parts, run as a user runs them; also under torchrun, with a rank that dies."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hopline.pipes as hp
from hopline.partition.cli import main

FOLDER = Path(__file__).parents[2] / "examples" / "distributed"
SMALL = ("--fanout", "5,5", "--hidden", "16", "--batch-size", "16", "--epochs", "3",
         "--dropout", "0.2", "--lr", "0.01")  # fmt: skip
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}

# The example, of which rank 1 kills itself in the second epoch of the first attempt.
DYING = """
import os, runpy, signal, sys
import hopline.models as models
train_epoch = models.train_epoch
epochs = []
def dying(*arguments, after_batch, **options):
    epochs.append(0)
    steps = []
    def after():
        after_batch()
        steps.append(0)
        first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1"
        if first and len(epochs) == 2 and len(steps) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
    return train_epoch(*arguments, after_batch=after, **options)
models.train_epoch = dying
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    hp.planted_partition(400, 4, 8, 16, seed=1, path=folder / "planted")
    assert main(["partition", str(folder / "planted"), "--parts", "2", "--eps", "0.3"]) == 0
    return folder / "planted" / "partition-2"


def said(*command, cwd=None):
    """What it prints, without times and what torch says."""
    result = subprocess.run(
        [sys.executable, *map(str, command)], capture_output=True, text=True, timeout=240,
        env=ENVIRONMENT, cwd=cwd, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    lines = re.sub(r"\| [0-9.]+ s$", "", result.stdout, flags=re.MULTILINE).splitlines()
    return [line for line in lines if line.startswith(("epoch", "test", "resumed"))]


def test_node_classification(parts):
    lines = said(FOLDER / "node_classification.py", parts, "--num-ranks", "2", *SMALL)
    assert [line[:9] for line in lines[:3]] == ["epoch 000", "epoch 001", "epoch 002"]
    assert float(lines[-1].removeprefix("test accuracy: ")) > 0.35  # of four classes


def test_link_prediction(tmp_path):
    lines = said(
        FOLDER / "link_prediction.py", "parts", "--prepare", "debian", "--epochs", "1",
        "--hidden", "8", "--fanout", "2,2", "--batch-size", "16384", "--eval-negatives", "2",
        cwd=tmp_path,
    )  # fmt: skip
    assert float(re.search(r"test AUC: ([0-9.]+)", lines[-1])[1]) > 0.6


def test_wrong_parts_are_one_line(parts, tmp_path):
    result = subprocess.run(
        [sys.executable, str(FOLDER / "node_classification.py"), "--num-ranks", "1"],
        capture_output=True, text=True, timeout=120, check=False,
        env={**ENVIRONMENT, "HOPLINE_PARTS": str(tmp_path)},
    )  # fmt: skip
    assert result.returncode != 0
    assert "partition.yaml: no such file" in result.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_torchrun_goes_on_from_the_checkpoint(parts, tmp_path):
    (tmp_path / "dying.py").write_text(DYING)
    run = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    example = (FOLDER / "node_classification.py", parts, *SMALL, "--timeout", "30")
    undisturbed = said(*run, *example, "--checkpoint", tmp_path / "a", "--resume")
    disturbed = said(
        *run, "--max-restarts", "2", tmp_path / "dying.py", *example,
        "--checkpoint", tmp_path / "b", "--resume",
    )  # fmt: skip
    assert undisturbed[-1].startswith("test accuracy")
    assert disturbed[-1] == undisturbed[-1]
    assert disturbed[-3:] == undisturbed[-3:]
    assert "resumed at epoch 1" in disturbed
