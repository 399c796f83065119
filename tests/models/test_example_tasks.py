"""The examples of link prediction, time, types and large features, run as a user runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

import hopline.pipes as hp
from hopline.partition import partition_graph
from tests.pipes.datasets.dataset_files import npy, write

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = ("--fanout", "5,5", "--hidden", "16", "--batch-size", "64", "--dropout", "0")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
RELATIONS = ["likes", "meets", "reverse likes", "reverse meets"]


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """A planted data set whose edges have a relation each."""
    folder = tmp_path_factory.mktemp("data") / "planted"
    hp.planted_partition(300, 3, 8, 16, seed=1, path=folder)
    document = yaml.safe_load((folder / "metadata.yaml").read_text())
    (edges,) = document["graph"]["edges"]
    count = np.load(folder / edges["path"]).shape[1]
    np.save(folder / "relation.npy", (np.arange(count) % 4).astype(np.int8))
    document["graph"]["feature_data"] = [npy("relation.npy", domain="edge", name="relation")]
    document["tasks"][0]["relation_names"] = RELATIONS
    (folder / "metadata.yaml").write_text(yaml.safe_dump(document))
    return folder


@pytest.fixture(scope="module")
def timed(tmp_path_factory):
    """People who rate members of their own group, again and again."""
    rng = np.random.default_rng(1)
    count, nodes = 900, 60
    src = rng.integers(0, nodes, count)
    dst = rng.integers(0, nodes // 3, count) * 3 + src % 3
    pairs, time = np.stack([src, dst], 1), np.arange(count) * 10
    parts = {"train_set": slice(0, 700), "validation_set": slice(700, 800),
             "test_set": slice(800, 900)}  # fmt: skip
    group = np.eye(3, dtype=np.float32)[np.arange(nodes) % 3]
    feat = group + rng.normal(0, 0.3, group.shape).astype(np.float32)
    task = {"name": "links"}
    arrays = {"edges.npy": pairs.T.copy(), "time.npy": time, "feat.npy": feat}
    for name, part in parts.items():
        arrays[f"{name}.npy"], arrays[f"{name}_time.npy"] = pairs[part], time[part]
        columns = [npy(f"{name}.npy", name="seeds"), npy(f"{name}_time.npy", name="timestamp")]
        task[name] = [{"data": columns}]
    document = {
        "dataset_name": "timed",
        "graph": {
            "nodes": [{"num": nodes}],
            "edges": [npy("edges.npy")],
            "feature_data": [npy("time.npy", domain="edge", name="timestamp")],
        },
        "feature_data": [npy("feat.npy", domain="node", name="feat")],
        "tasks": [task],
    }
    return write(tmp_path_factory.mktemp("data") / "timed", document, arrays)


def call(script, folder, *options):
    command = [sys.executable, str(EXAMPLES / script), "--dataset", str(folder), *SMALL, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, env=ENVIRONMENT)


def run(script, folder, *options):
    """What it prints, without the times."""
    result = call(script, folder, *options)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    said = re.sub(r"\| [0-9.]+ s$", "", result.stdout, flags=re.MULTILINE).splitlines()
    # torch 2.9 prints who is connected, from all ranks at once.
    return [line for line in said if "[Gloo]" not in line and "peer ranks" not in line]


def figures(lines):
    return {k: float(v) for k, v in (line.rsplit(": ", 1) for line in lines if ": " in line)}


def test_link_prediction(timed, tmp_path):
    options = (
        "--epochs",
        "8",
        "--lr",
        "0.02",
        "--eval-negatives",
        "5",
        "--checkpoint",
        str(tmp_path / "c"),
    )
    lines = run("link_prediction.py", timed, *options)
    assert figures(lines)["test auc"] > 0.8
    assert set(figures(lines)) == {
        f"test {n}" for n in ("mrr", "hits@1", "hits@3", "hits@10", "auc")
    }
    # A finished run says the same again; threads change nothing.
    again = run("link_prediction.py", timed, *options, "--resume", "--num-workers", "2")
    assert again == ["resumed epoch 8 after 0 mini-batches", *lines[8:]]


@pytest.mark.parametrize("mode", ["temporal_sample_neighbor", "temporal_sample_layer_neighbor"])
def test_temporal_link_prediction(timed, mode):
    options = ("--epochs", "6", "--lr", "0.02", "--eval-negatives", "2", "--window", "4000")
    lines = run("temporal_link_prediction.py", timed, "--sample-mode", mode, *options)
    assert len(lines) == 6 + 5
    assert figures(lines)["test auc"] > 0.55


def test_typed_node_classification(planted):
    lines = run("hetero_node_classification.py", planted, "--epochs", "12", "--lr", "0.02")
    assert figures(lines)["test accuracy"] > 0.5
    bases = run("hetero_node_classification.py", planted, "--epochs", "1", "--num-bases", "0")
    assert len(bases) == 2


def test_link_prediction_over_parts_takes_the_task_of_edges(planted, tmp_path):
    document = yaml.safe_load((planted / "metadata.yaml").read_text())
    arrays = {"edges.npy": np.load(planted / document["graph"]["edges"][0]["path"]),
              "feat.npy": np.load(planted / document["feature_data"][0]["path"])}  # fmt: skip
    arrays["pairs.npy"], arrays["nodes.npy"] = arrays["edges.npy"].T[:200].copy(), np.arange(40)
    sets = ("train_set", "validation_set", "test_set")
    tasks = [
        {"name": name, **{which: [{"data": [npy(file, name="seeds")]}] for which in sets}}
        for name, file in (("nodes", "nodes.npy"), ("links", "pairs.npy"))
    ]
    document |= {
        "graph": {"nodes": document["graph"]["nodes"], "edges": [npy("edges.npy")]},
        "feature_data": [npy("feat.npy", domain="node", name="feat")],
    }
    script = str(EXAMPLES / "distributed" / "link_prediction.py")
    options = ("--num-ranks", "2", "--epochs", "1", *SMALL)
    said = []
    for name, chosen in (("both", tasks), ("one", tasks[:1])):
        folder = write(tmp_path / name, document | {"tasks": chosen}, arrays)
        partition_graph(hp.OnDiskDataset(folder).load(), name, 2, tmp_path / f"{name}-parts")
        command = [sys.executable, script, str(tmp_path / f"{name}-parts"), *options]
        said.append(subprocess.run(
            command, capture_output=True, text=True, timeout=200, env=ENVIRONMENT, check=False
        ))  # fmt: skip
    assert said[0].returncode == 0, said[0].stderr
    assert "test AUC: " in said[0].stdout
    assert said[1].returncode == 2
    assert said[1].stderr == (
        f"error: {tmp_path / 'one-parts'} has no task whose three sets have edges of one type as "
        "seeds, of ['nodes']; make one by --prepare NAME\n"
    )


@pytest.mark.parametrize("policy", ["sieve", "static"])
def test_large_features(planted, policy):
    options = ("--epochs", "6", "--lr", "0.02", "--cache-size", "3000")
    lines = run("large_features.py", planted, *options, "--cache-policy", policy)
    assert figures(lines)["test accuracy"] > 0.6
    assert 0 < figures(lines)["miss rate"] < 1
    # The cache changes how fast rows come, and nothing else.
    assert run("large_features.py", planted, *options, "--cache-size", "0")[:-1] == lines[:-1]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("temporal_link_prediction.py", "no edge attribute 'timestamp'"),
        ("hetero_node_classification.py", "--fanout: 'x' is not"),
        ("large_features.py", "--fanout: 'x' is not"),
        ("link_prediction.py", "--fanout: 'x' is not"),
    ],
)
def test_wrong_options_end_in_one_line(planted, script, words):
    result = call(script, planted, *(("--fanout", "x") if "fanout" in words else ()))
    assert result.returncode == 2
    assert result.stderr.startswith("error: ")
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
