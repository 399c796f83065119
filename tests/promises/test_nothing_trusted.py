"""Promise 4: data never runs code. The sources are searched for what would let it."""

from __future__ import annotations

import ast
import copy
import json
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torchdata.nodes as tn

import hopline.models
import hopline.partition
import hopline.pipes as hp
from tests.number_chains import minibatch, numbers, ring, whole_chain

PACKAGES = [Path(p.__path__[0]) for p in (hp, hopline.partition, hopline.models)]

PICKLERS = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}
UNSAFE_YAML = {"load_all", "full_load", "full_load_all", "unsafe_load", "unsafe_load_all"}
# Draws of torch that take generator=...; nn.init and dropout, in models/, are training's own.
DRAWS = {
    "bernoulli",
    "multinomial",
    "normal",
    "poisson",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "randperm",
}
GENERATORS = {"default_rng", "Generator", "PCG64", "Philox", "SeedSequence"}


def names_of(tree: ast.Module) -> dict[str, str]:
    """What each imported name stands for: {"np": "numpy", "load": "torch.load"}."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for a in node.names:
                names[a.asname or a.name.split(".")[0]] = (
                    a.name if a.asname else a.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module:
            for a in node.names:
                names[a.asname or a.name] = f"{node.module}.{a.name}"
    return names


def dotted(node: ast.expr, names: dict[str, str]) -> str:
    """Full name of what is called: "torch.load"; an unknown object's method is ".method"."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        known = names.get(node.id)
        parts.append(known if known else node.id if not parts else "")
    else:
        parts.append("")
    return ".".join(reversed(parts))


def is_constant(call: ast.Call, name: str, value: object) -> bool:
    given = [k.value for k in call.keywords if k.arg == name]
    return len(given) == 1 and isinstance(given[0], ast.Constant) and given[0].value is value


def faults_of_call(call: ast.Call, name: str) -> Iterator[str]:
    first, _, last = name.rpartition(".")
    if name == "torch.load" and not is_constant(call, "weights_only", True):
        yield "torch.load without weights_only=True"
    reads = name in ("numpy.load", "numpy.lib.format.read_array")
    if reads and not is_constant(call, "allow_pickle", False):
        yield f"{name} without allow_pickle=False"
    if name == "yaml.load":
        loaders = [k.value for k in call.keywords if k.arg == "Loader"] + call.args[1:2]
        if not loaders or "Safe" not in ast.unparse(loaders[0]):
            yield "yaml.load without a safe loader"
    if first == "yaml" and last in UNSAFE_YAML:
        yield f"{name}"
    if name in ("eval", "exec", "compile", "__import__", "os.system", "os.popen"):
        yield f"{name}(...)"
    if any(k.arg == "shell" and not is_constant(call, "shell", False) for k in call.keywords):
        yield f"{name} through a shell"
    if last.endswith(("_object", "_object_list")) and first.startswith(
        ("torch.distributed", "dist")
    ):
        yield f"{name}, which unpickles what another rank sent"


def faults_of_draw(call: ast.Call, name: str) -> Iterator[str]:
    first, _, last = name.rpartition(".")
    generator = any(k.arg == "generator" for k in call.keywords)
    if first == "torch" and last in DRAWS and not generator:
        yield f"{name} from torch's global generator"
    if name in ("torch.manual_seed", "torch.seed", "torch.set_rng_state", "torch.random.seed"):
        yield f"{name} changes torch's global generator"
    if first == "numpy.random" and last not in GENERATORS:
        yield f"{name} from numpy's global generator"
    if first == "random" and last not in ("Random", "SystemRandom"):
        yield f"{name} from Python's global generator"


def faults(text: str, draws: bool = True) -> list[str]:
    """What a source file does that no file of the packages may do."""
    tree = ast.parse(text)
    names = names_of(tree)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [a.name for a in node.names]
            if isinstance(node, ast.ImportFrom):
                modules = [node.module or "", *modules]
            found += [f"imports {m}" for m in modules if m.split(".")[0] in PICKLERS]
        elif isinstance(node, ast.Call):
            name = dotted(node.func, names)
            found += faults_of_call(node, name)
            if draws:
                found += faults_of_draw(node, name)
    return found


def test_no_source_file_trusts_data_or_draws_from_a_global_generator():
    count, found = 0, []
    for package in PACKAGES:
        for path in package.rglob("*.py"):
            count += 1
            draws = package.name != "models"
            found += [f"{path}: {f}" for f in faults(path.read_text(encoding="utf-8"), draws)]
    assert count > 40, "found no sources: the search is broken"
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "import pickle as p",
        "from pickle import loads",
        "from six.moves import cPickle",
        "import torch\ntorch.load(path)",
        "import torch\ntorch.load(path, weights_only=False)",
        "import torch\ntorch.load(path, weights_only=flag)",
        "from torch import load as read\nread(path)",
        "import numpy as np\nnp.load(path)",
        "import numpy\nnumpy.load(path, allow_pickle=True)",
        "import yaml\nyaml.load(text)",
        "import yaml\nyaml.load(text, Loader=yaml.FullLoader)",
        "import yaml\nyaml.unsafe_load(text)",
        "eval(text)",
        "exec(text)",
        "import os\nos.system(text)",
        "import subprocess\nsubprocess.run(text, shell=True)",
        "import torch.distributed as dist\ndist.all_gather_object(out, thing)",
        "from torch import distributed\ndistributed.broadcast_object_list(things)",
        "import torch\ntorch.randperm(5)",
        "import torch\ntorch.manual_seed(5)",
        "import numpy as np\nnp.random.seed(5)",
        "import numpy as np\nnp.random.rand(5)",
        "import random\nrandom.random()",
        "from random import shuffle\nshuffle(things)",
    ],
)
def test_the_search_finds(line):
    assert faults(textwrap.dedent(line))


@pytest.mark.parametrize(
    "line",
    [
        "import torch\ntorch.load(path, weights_only=True)",
        "import numpy as np\nnp.load(path, mmap_mode='c', allow_pickle=False)",
        "import yaml\nyaml.safe_load(text)\nyaml.load(text, Loader=SafeLoaderOfOurs)",
        "model.eval()",
        "import re\nre.compile(text)",
        "import torch\ntorch.randperm(5, generator=g)",
        "import numpy as np\nnp.random.default_rng(5).random()",
        "from hopline.pipes.random import fold\nfold(1, 2)",
    ],
)
def test_the_search_passes_over(line):
    assert not faults(line)


# ---------------------------------------------------------------------------------------------
# States are plain values


def assert_plain(value, where=""):
    assert type(value) in (dict, list, str, int, float, bool, type(None)), f"{where}: {value!r}"
    if isinstance(value, dict):
        assert all(type(key) is str for key in value), where
        value = list(value.values())
    for item in value if isinstance(value, list) else []:
        assert_plain(item, f"{where}: {value!r}")


@pytest.mark.parametrize(
    "make",
    [
        lambda: whole_chain().transform(copy.copy),
        lambda: numbers().sample_neighbor(ring(), torch.tensor([2, 3]), True),
        lambda: hp.DistributedItemSampler(
            hp.ItemSet(9, "seeds"), 2, seed=1, num_replicas=2, rank=1
        ),
        lambda: [minibatch(number) for number in range(3)],
        lambda: tn.IterableWrapper([minibatch(number) for number in range(3)]),
    ],
)
def test_states_are_plain_values(make):
    loader = hp.DataLoader(make())
    states = [loader.state_dict()]
    for _ in range(2):
        states += [loader.state_dict() for _ in loader]
        states.append(loader.state_dict())
    for state in states:
        assert_plain(state)
        assert json.loads(json.dumps(state)) == state
        assert len(json.dumps(state)) < 1500


# ---------------------------------------------------------------------------------------------
# Files that try to run code


@pytest.mark.parametrize("name", ["graph.yaml", "metadata.yaml"])
def test_yaml_that_names_python_objects_runs_nothing(tmp_path, name):
    folder = tmp_path / "data"
    folder.mkdir()
    if name == "graph.yaml":
        folder.rmdir()
        ring().save(folder)
    bomb = f"dataset_name: !!python/object/apply:pathlib.Path.touch ['{tmp_path / 'touched'}']\n"
    (folder / name).write_text(bomb)

    def read():
        if name == "graph.yaml":
            hp.FusedCSCSamplingGraph.load(folder)
        else:
            hp.OnDiskDataset(folder).load()

    with pytest.raises(Exception, match=r"yaml") as caught:
        read()
    assert not isinstance(caught.value, AssertionError | AttributeError | NameError)
    assert not (tmp_path / "touched").exists()
