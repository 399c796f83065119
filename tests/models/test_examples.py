"""The node classification examples, run as a user runs them, on a small planted data set."""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import hopline.pipes as hp
from hopline.models import checkpoint_path
from tests.pipes.datasets.dataset_files import npy, write

EXAMPLES = Path(__file__).parents[2] / "examples"
ONE, MANY = "node_classification.py", "multi_gpu_node_classification.py"
LINKS, TYPES = "link_prediction.py", "hetero_node_classification.py"
TIMES, LARGE = "temporal_link_prediction.py", "large_features.py"
ALL = (ONE, MANY, LINKS, TYPES, TIMES, LARGE)
SMALL = ("--fanout", "5,5", "--hidden", "32", "--batch-size", "16", "--dropout", "0.2")
# Threads of OpenMP that wait for a core spin, which takes long beside other tests.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "planted"
    hp.planted_partition(400, 4, 8, 16, seed=1, path=folder)
    return folder


def command(script, planted, *options):
    return [sys.executable, str(EXAMPLES / script), "--dataset", str(planted), *SMALL, *options]


def run(script, planted, *options):
    """What it prints, without the times."""
    result = subprocess.run(
        command(script, planted, *options),
        capture_output=True,
        text=True,
        timeout=200,
        env=ENVIRONMENT,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    said = re.sub(r"\| [0-9.]+ s$", "", result.stdout, flags=re.MULTILINE).splitlines()
    # torch 2.9 prints who is connected, from all ranks at once.
    return [line for line in said if "[Gloo]" not in line and "peer ranks" not in line]


def figure(lines, name="accuracy"):
    match = re.fullmatch(rf"test {name}: ([01]\.\d{{4}})", lines[-1])
    assert match, lines[-1]
    return float(match[1])


def test_one_process(planted):
    lines = run(ONE, planted, "--epochs", "8")
    assert len(lines) == 9
    for epoch, line in enumerate(lines[:-1]):
        assert re.fullmatch(
            rf"epoch {epoch:03d} \| loss \d+\.\d{{4}} \| validation accuracy [01]\.\d{{4}} ", line
        )
    assert figure(lines) > 0.7
    # The same with threads.
    assert run(ONE, planted, "--epochs", "8", "--num-workers", "2") == lines


def test_auroc_and_normalised_rows(planted):
    lines = run(ONE, planted, "--epochs", "2", "--metric", "auroc", "--normalize-features")
    assert 0 <= figure(lines, "auroc") <= 1


def test_two_ranks(planted, tmp_path):
    options = ("--num-ranks", "2", "--epochs", "8", "--lr", "0.02", "--checkpoint", str(tmp_path))
    lines = run(MANY, planted, *options)
    assert len(lines) == 9
    assert figure(lines) > 0.7
    # A finished run says the same again.
    again = run(MANY, planted, *options, "--resume")
    assert again == ["resumed epoch 8 after 0 mini-batches", lines[-1]]


def test_mixed_precision(planted):
    lines = run(ONE, planted, "--epochs", "8", "--amp", "bf16")
    assert figure(lines) > 0.7
    assert lines != run(ONE, planted, "--epochs", "8")


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs g++ on the CPU")
def test_compiled_and_resumed_without(planted, tmp_path):
    options = ("--epochs", "2", "--fanout", "3,3", "--checkpoint", str(tmp_path))
    lines = run(ONE, planted, *options, "--compile")
    assert len(lines) == 3
    again = run(ONE, planted, *options, "--resume")
    assert again == ["resumed epoch 2 after 0 mini-batches", lines[-1]]


def test_ranks_of_torchrun(planted):
    """The same ranks, started by torchrun."""
    options = ("--epochs", "3", "--lr", "0.02")
    arguments = command(MANY, planted, *options)[1:]
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = subprocess.run([sys.executable, *torchrun, *arguments], capture_output=True, text=True,
                          timeout=200, env=ENVIRONMENT)  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = re.sub(r"\| [0-9.]+ s$", "", done.stdout, flags=re.MULTILINE).splitlines()
    said = [line for line in said if "[Gloo]" not in line and "peer ranks" not in line]
    assert said == run(MANY, planted, "--num-ranks", "2", *options)


def test_a_killed_run_goes_on_exactly(planted, tmp_path, call):
    options = ("--epochs", "12", "--checkpoint-every", "4", "--checkpoint")
    want = run(ONE, planted, *options, str(tmp_path / "whole"))

    arguments = command(ONE, planted, *options, str(tmp_path / "killed"))
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, env=ENVIRONMENT)
    limit = time.monotonic() + 100
    while not (place := saved_place(tmp_path / "killed")) or place["epoch"] < 2:
        assert process.poll() is None
        assert time.monotonic() < limit
    process.send_signal(signal.SIGKILL)
    process.wait()
    place = saved_place(tmp_path / "killed")
    assert place["epoch"] < 12

    got = run(ONE, planted, *options, str(tmp_path / "killed"), "--resume")
    assert got[0] == f"resumed epoch {place['epoch']} after {place['batch']} mini-batches"
    assert got[1:] == want[place["epoch"] :]
    assert [path.name for path in (tmp_path / "killed").iterdir()] == ["checkpoint.pt"]

    options = (*options, str(tmp_path / "killed"), "--resume", "--lr", "0.5")
    code, said = call(ONE, *command(ONE, planted, *options)[2:])
    assert (code, said.count("\n")) == (2, 1)
    assert "lr is 0.01 in the checkpoint and 0.5 here" in said


def saved_place(folder):
    path = checkpoint_path(folder)
    return torch.load(path, weights_only=True)["loader"] if path.exists() else None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("mode", ["cpu-cuda", "pinned-cuda", "cuda-cuda"])
@pytest.mark.parametrize("script", [ONE, MANY])
@pytest.mark.parametrize("caches", [False, True])
def test_on_a_gpu(planted, script, mode, caches):
    options = ("--gpu-cache-size", "4000", "--num-gpu-cached-edges", "500") if caches else ()
    lines = run(script, planted, "--epochs", "8", "--mode", mode, "--num-workers", "2", *options)
    assert figure(lines) > 0.7


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_mixed_precision_and_compiled_on_a_gpu(planted):
    options = ("--epochs", "8", "--mode", "cuda-cuda", "--amp", "bf16", "--compile")
    assert figure(run(ONE, planted, *options)) > 0.7


@pytest.fixture
def call(monkeypatch, capsys):
    """Runs a script in this process, on a machine without GPU; gives exit code and stderr."""
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    def call(script, *options):
        monkeypatch.setattr(sys, "argv", [script, *options])
        spec = importlib.util.spec_from_file_location(script[:-3], EXAMPLES / script)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        with pytest.raises(SystemExit) as caught:
            module.main()
        return caught.value.code, capsys.readouterr().err

    return call


BAD = [
    ("--fanout 10,x", "--fanout: 'x' is not an integer of at least -1"),
    ("--fanout 10,,5", "--fanout: '' is not"),
    ("--fanout -2", "--fanout: '-2' is not"),
    ("--batch-size 0", "--batch-size: '0' is not an integer of at least 1"),
    ("--epochs 1.5", "--epochs: '1.5' is not an integer"),
    ("--lr nan", "--lr: 'nan' is not a number"),
    ("--lr -1", "--lr: '-1' is not a number of at least 0"),
    ("--weight-decay inf", "--weight-decay: 'inf' is not"),
    ("--hidden 0", "--hidden: '0' is not"),
    ("--dropout 1.5", "--dropout: '1.5' is not a number of at least 0 and at most 1"),
    ("--metric f1", "invalid choice: 'f1'"),
    ("--mode gpu", "invalid choice: 'gpu'"),
    ("--num-workers -1", "--num-workers: '-1' is not"),
    ("--seed x", "--seed: 'x' is not"),
    ("--dataset no-such", "no-such"),
    ("--resume", "need --checkpoint DIR"),
    ("--checkpoint-every 5", "need --checkpoint DIR"),
    ("--gpu-cache-size -1", "--gpu-cache-size: '-1' is not"),
    ("--gpu-cache-size 5", "need a mode that ends in -cuda"),
    ("--num-gpu-cached-edges 5", "need a mode that ends in -cuda"),
    ("--gpu-cache-threshold 0", "--gpu-cache-threshold: '0' is not an integer of at least 1"),
    ("--amp fp16", "invalid choice: 'fp16'"),
    ("--no-such-option", "unrecognized arguments"),
]
BAD_ONE = [
    ("--mode cpu-cuda", "--mode cpu-cuda needs a GPU"),
    ("--mode pinned-cuda", "--mode pinned-cuda needs a GPU"),
    ("--mode cuda-cuda", "use --mode cpu-cpu"),
]
BAD_MANY = [
    ("--gpu 0,1", "--mode pinned-cuda needs a GPU, and torch finds none here; use --num-ranks"),
    ("--gpu 0 --mode cuda-cuda", "--mode cuda-cuda needs a GPU"),
    ("--gpu 0,0", "--gpu: '0,0' names a GPU twice"),
    ("--gpu a", "--gpu: 'a' is not"),
    ("--gpu 0 --mode cpu-cpu", "give --num-ranks instead of --gpu"),
    ("--gpu 0 --num-ranks 2", "--num-ranks is for ranks on the CPU"),
    ("--num-ranks 2 --mode cpu-cuda", "--num-ranks is for ranks on the CPU"),
    ("--num-ranks 0", "--num-ranks: '0' is not"),
]


@pytest.mark.parametrize(
    ("script", "options", "words"),
    [(ONE, *case) for case in BAD + BAD_ONE] + [(MANY, *case) for case in BAD + BAD_MANY],
)
def test_bad_options_end_in_one_line(call, script, options, words):
    code, said = call(script, *options.split())
    assert code == 2
    assert said.startswith("error: ")
    assert words in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("script", ALL)
@pytest.mark.parametrize("mode", ["cpu-cuda", "pinned-cuda", "cuda-cuda"])
def test_every_example_says_that_there_is_no_gpu(call, script, mode):
    options = ("--gpu", "0") if script == MANY else ()
    code, said = call(script, "--mode", mode, *options)
    assert (code, said.count("\n")) == (2, 1)
    assert said.startswith(f"error: --mode {mode} needs a GPU, and torch finds none here; use --")


@pytest.mark.parametrize("script", ALL)
def test_every_example_says_that_there_is_no_compiler(call, monkeypatch, script):
    monkeypatch.setenv("CXX", "/no/such/compiler -O2")
    options = ("--num-ranks", "1") if script == MANY else ("--mode", "cpu-cpu")
    code, said = call(script, "--compile", *options)
    assert (code, said.count("\n")) == (2, 1)
    assert "--compile needs a C++ compiler, and there is no /no/such/compiler here" in said


STAGES = {
    "cpu-cpu": ["NeighborSampler", "FeatureFetcher", "CopyTo"],
    "cpu-cuda": ["NeighborSampler", "FeatureFetcher", "CopyTo"],
    "pinned-cuda": ["CopyTo", "NeighborSampler", "FeatureFetcher", "CopyTo"],
    "cuda-cuda": ["CopyTo", "NeighborSampler", "FeatureFetcher", "CopyTo"],
}


@pytest.mark.parametrize("mode", STAGES)
@pytest.mark.parametrize("script", [ONE, MANY])
def test_ids_go_to_the_gpu_first_where_graph_or_features_are_read_by_it(monkeypatch, script, mode):
    monkeypatch.syspath_prepend(EXAMPLES)
    module = importlib.import_module(script[:-3])
    dataset = hp.planted_partition(50, 2, 4, 8, seed=1)
    args = argparse.Namespace(
        mode=mode, batch_size=8, seed=0, fanout=[2, 2], normalize_features=False, num_workers=0,
        num_gpu_cached_edges=100, gpu_cache_threshold=2,
    )  # fmt: skip
    itemset = dataset.tasks[0].train_set
    alone = functools.partial(hp.DistributedItemSampler, num_replicas=2, rank=1)
    monkeypatch.setattr(hp, "DistributedItemSampler", alone)
    given = (args, dataset.graph, dataset.feature, itemset, torch.device("cpu"), True)
    loader = module.create_dataloader(*given)
    assert [type(stage).__name__ for stage in loader.chain.parts()[1]] == STAGES[mode]


@pytest.mark.parametrize("mode", STAGES)
@pytest.mark.parametrize("size", [0, 4000])
def test_where_graph_and_features_go(monkeypatch, mode, size):
    monkeypatch.syspath_prepend(EXAMPLES)
    options = importlib.import_module("options")
    cpu = torch.device("cpu")

    class Thing(dict):
        def __init__(self, kind):
            super().__init__({hp.FeatureKey("node", None, "feat"): hp.TorchBasedFeature(ROWS)})
            self.said = [kind]

        def pin_memory_(self):
            self.said.append("pinned")
            return self

        def to(self, device):
            self.said.append(str(device))
            return self

    args = argparse.Namespace(mode=mode, gpu_cache_size=size)
    graph, store = options.place(args, Thing("graph"), Thing("store"), cpu)
    moved = {"pinned-cuda": ["pinned"], "cuda-cuda": ["cpu"]}.get(mode, [])
    assert [graph.said, store.said] == [["graph", *moved], ["store", *moved]]
    feature = store["node", None, "feat"]
    cached = size > 0 and mode != "cuda-cuda"
    assert isinstance(feature, hp.GPUCachedFeature) == cached
    assert torch.equal(feature.read(torch.tensor([3, 1])), ROWS[[3, 1]])


ROWS = torch.arange(20.0).view(5, 4)


def test_rows_are_divided_by_their_sum(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    options = importlib.import_module("options")
    rows = torch.tensor([[1, 3], [0, 0], [2, 0]], dtype=torch.float16)
    minibatch = options.normalize_rows(hp.MiniBatch(node_features={"feat": rows}))
    assert minibatch.node_features["feat"].tolist() == [[0.25, 0.75], [0, 0], [1, 0]]
    assert rows.tolist() == [[1, 3], [0, 0], [2, 0]]


def test_an_earlier_checkpoint_is_not_overwritten(call, tmp_path):
    checkpoint_path(tmp_path).write_bytes(b"precious")
    code, said = call(ONE, "--checkpoint", str(tmp_path))
    assert (code, said.count("\n")) == (2, 1)
    assert "go on with --resume" in said
    assert checkpoint_path(tmp_path).read_bytes() == b"precious"


def test_a_damaged_data_set_is_one_line(call, tmp_path):
    (tmp_path / "metadata.yaml").write_text("dataset_name: [")
    code, said = call(ONE, "--dataset", str(tmp_path))
    assert (code, said.count("\n")) == (2, 1)
    assert os.fspath(tmp_path) in said


def own_data(folder, *, types=False, feat="feat", sets=("train", "validation", "test"), **task):
    """A ring of 12 nodes with the two tasks that are asked for: pairs, then nodes."""
    node = {"type": "user"} if types else {}
    edge = {"type": "user:knows:user"} if types else {}
    ids = np.arange(12)
    arrays = {"e.npy": np.stack([ids, (ids + 1) % 12]), "x.npy": np.eye(12, 4), "s.npy": ids,
              "y.npy": ids % 2, "p.npy": np.stack([ids, (ids + 1) % 12], 1)}  # fmt: skip
    nodes = [{**node, "data": [npy("s.npy", name="seeds"), npy("y.npy", name="labels")]}]
    pairs = [{**edge, "data": [npy("p.npy", name="seeds")]}]
    document = {
        "graph": {"nodes": [{**node, "num": 12}], "edges": [npy("e.npy", **edge)]},
        "feature_data": [npy("x.npy", domain="node", name=feat, **node)],
        "tasks": [
            {"name": "links", **{f"{which}_set": pairs for which in sets}},
            {"name": "nodes", **task, **{f"{which}_set": nodes for which in sets}},
        ],
    }
    return write(folder, document, arrays)


@pytest.mark.parametrize("script", [ONE, MANY, LARGE, TYPES, LINKS])
@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"types": True}, "has node types; this example takes a graph of one type"),
        ({"feat": "x"}, "has no node feature 'feat'"),
        ({"sets": ("train", "test")}, "its task 'nodes' has no validation_set; add it to"),
        ({"sets": ("test",)}, "has no task with a train_set of nodes; its tasks are ['links', 'no"),
        ({"num_classes": None}, "its task 'nodes' has no num_classes; add it to"),
    ],
)
def test_own_data_that_does_not_fit_ends_in_one_line(call, tmp_path, script, data, words):
    data = {"num_classes": 2, **data}
    if data["num_classes"] is None:
        del data["num_classes"]
    if script == LINKS and not {"types", "feat"} & set(data):
        pytest.skip("it makes its own sets of edges")
    if script == TYPES:
        data = {"types": True, **data}
        if data == {"types": True, "num_classes": 2}:
            data, words = {"num_classes": 2}, "has neither types nor an edge attribute 'relation'"
    folder = own_data(tmp_path / "own", **data)
    options = ("--num-ranks", "1") if script == MANY else ("--mode", "cpu-cpu")
    code, said = call(script, "--dataset", str(folder), *options)
    assert (code, said.count("\n")) == (2, 1), said
    assert said.startswith(f"error: --dataset {folder}")
    assert words in said


def test_the_task_of_nodes_is_taken(tmp_path):
    folder = own_data(tmp_path / "own", num_classes=2)
    assert len(run(ONE, folder, "--epochs", "1")) == 2
