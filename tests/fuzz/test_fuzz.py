"""Damaged data sets, opened and used: no crash, no hang, no wrong batch, no empty error.

HOPLINE_FUZZ_ROUNDS makes more of them, HOPLINE_FUZZ_FIRST others.
"""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hopline.pipes as hp
from tests.fuzz import examples, oracle, runner

ROUNDS = int(os.environ.get("HOPLINE_FUZZ_ROUNDS", "25"))
FIRST = int(os.environ.get("HOPLINE_FUZZ_FIRST", "0"))


@pytest.mark.skipif(sys.platform != "linux", reason="children get their limits from Linux")
@pytest.mark.timeout(300 + 5 * ROUNDS)
def test_damaged_data_sets_give_right_batches_or_errors_that_say_where():
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.runner", f"--rounds={ROUNDS}", f"--first={FIRST}"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["findings"] == [], json.dumps(result["findings"], indent=1)
    assert result["rounds"] == ROUNDS
    assert result["ended"]["ok"] > 0
    assert result["ended"]["refused"] > 0


# ---------------------------------------------------------------------------------------------
# The checks find what is wrong


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("fuzz")
    for name in examples.EXAMPLES:
        examples.write(place / name, name)
    return place


def outcomes(folder, change=lambda truth: None):
    """How each step ends when a truth is changed in secret."""
    dataset = hp.OnDiskDataset(folder).load()
    kept = oracle.from_processed(dataset.processed_path, folder)
    truth = oracle.from_inputs(folder, numbered=kept.numbered)
    change(truth)
    ended = {}
    for name, work in runner.epochs(dataset, [truth]):
        try:
            work()
        except oracle.WrongBatchError:
            ended[name] = "wrong"
        else:
            ended[name] = "ok"
    return ended


@pytest.mark.parametrize("name", list(examples.EXAMPLES))
def test_examples_are_what_their_files_say(folder, name):
    assert set(outcomes(folder / name).values()) == {"ok"}


def first_edge(**changes):
    def change(truth):
        kind = next(iter(truth.edges))
        truth.edges[kind][0] = dataclasses.replace(truth.edges[kind][0], **changes)

    return change


def without_an_edge(truth):
    truth.edges[next(iter(truth.edges))].pop()


def all_weights_zero(truth):
    for kind, edges in truth.edges.items():
        truth.edges[kind] = [dataclasses.replace(edge, weight=0.0) for edge in edges]


def everything_later(truth):
    for kind, times in truth.node_times.items():
        truth.node_times[kind] = times + 1000


def another_feature(domain):
    def change(truth):
        key = next(key for key in truth.features if key[0] == domain)
        truth.features[key] = np.roll(truth.features[key], 1, axis=0)

    return change


def other_labels(truth):
    columns = next(iter(truth.tasks[0]["train_set"].values()))
    columns[1] = np.roll(columns[1], 1)


@pytest.mark.parametrize(
    ("change", "step"),
    [
        (first_edge(src=7), "all"),
        (first_edge(number=1000), "all"),
        (without_an_edge, "all"),
        (all_weights_zero, "weighted"),
        (everything_later, "temporal"),
        (another_feature("node"), "all"),
        (another_feature("edge"), "all"),
        (other_labels, "train_set"),
    ],
)
@pytest.mark.parametrize("name", ["plain", "typed"])
def test_checks_find_what_is_not_so(folder, name, change, step):
    ended = outcomes(folder / name, change)
    assert any(end == "wrong" for key, end in ended.items() if step in key), ended


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (AttributeError("metadata.yaml"), "not documented"),
        (MemoryError("metadata.yaml"), "not documented"),
        (ValueError("metadata.yaml"), "comes from"),
        (OSError(5, "no name"), "comes from"),
        (OSError(5, "with a name", "x.npy"), None),
    ],
)
def test_errors_that_tell_nothing_are_found(error, fault):
    try:
        raise error
    except Exception as raised:
        found = runner.refusal(raised)
    assert found is None if fault is None else fault in found
