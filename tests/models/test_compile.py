"""torch.compile: one graph for all mini-batches, the same losses, the plain model's names."""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch._dynamo
from torch._dynamo.testing import CompileCounterWithBackend

import hopline.pipes as hp
from hopline.models import (
    GAT,
    GCN,
    RGCN,
    SAGE,
    DotPredictor,
    LinkPredictor,
    TrainingRun,
    evaluate,
    forward_links,
    keyed_rng,
    train_epoch,
)
from hopline.models.training import unwrap
from tests.models import ranks

ROOT = Path(__file__).parents[2]


@pytest.fixture
def counter():
    """Compiles everything to one graph, forward and backward, run as it is; counts graphs."""
    torch._dynamo.reset()
    yield CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()


def loader(sizes=(32, [5, 5])):
    dataset = ranks.planted()
    items = hp.ItemSet((torch.arange(200), dataset.labels[:200]), ("seeds", "labels"))
    chain = hp.ItemSampler(items, sizes[0], shuffle=True, seed=1)
    chain = chain.sample_neighbor(dataset.graph, sizes[1])
    return hp.DataLoader(chain.fetch_feature(dataset.feature, node_feature_keys=["feat"]))


def width():
    return ranks.planted().feature.size("node", None, "feat")[0]


MODELS = {
    "SAGE": lambda: SAGE(width(), 16, 4, 2),
    "GCN": lambda: GCN(width(), 16, 4, 2),
    "GAT": lambda: GAT(width(), 8, 4, 2, attn_drop=0.1),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_one_graph_and_the_same_losses(make, counter):
    torch.manual_seed(0)
    plain = make()
    compiled = copy.deepcopy(plain)
    compiled.compile(dynamic=True, fullgraph=True, backend=counter)
    losses = []
    for model in (plain, compiled):
        optimizer, batches = torch.optim.Adam(model.parameters(), 0.01), loader()
        losses.append([train_epoch(model, batches, optimizer) for _ in range(2)])
    # Dropout as well: it is drawn by the same operator.
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    # 14 mini-batches of as many sizes. The few times that a comparison of sizes comes out another
    # way, there is another graph.
    assert counter.frame_count <= 4
    assert list(compiled.state_dict()) == list(plain.state_dict())


def typed_batches(count):
    """Blocks of two layers and input rows, of another size each time."""
    generator = torch.Generator().manual_seed(0)

    def block(num_src, num_dst, edges):
        columns = torch.randint(0, num_dst, (edges,), generator=generator)
        degrees = torch.bincount(columns, minlength=num_dst)
        indptr = torch.cat([torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)])
        indices = torch.randint(0, num_src, (edges,), generator=generator, dtype=torch.int32)
        return hp.Block(indptr, indices, num_src, num_dst)

    for k in range(count):
        outer = {
            "a:x:a": block(20 + k, 10 + k, 40 + k),
            "a:y:b": block(20 + k, 8 + k, 30 + k),
            "b:z:a": block(15 + k, 10 + k, 20 + k),
        }
        inner = {"a:x:a": block(10 + k, 5, 12 + k), "b:z:a": block(8 + k, 5, 9 + k)}
        x = {
            "a": torch.randn(20 + k, 6, generator=generator),
            "b": torch.randn(15 + k, 4, generator=generator),
        }
        yield [outer, inner], x


# torch itself makes such an object where it traces a function with a gradient of its own.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_types(counter):
    model = RGCN({"a": 6, "b": 4}, 8, 3, ["a:x:a", "a:y:b", "b:z:a"], 2, 0.3, num_bases=2)
    compiled = copy.deepcopy(model)
    compiled.compile(dynamic=True, fullgraph=True, backend=counter)
    for k, (blocks, x) in enumerate(typed_batches(6)):
        outputs = []
        for each in (model, compiled):
            with keyed_rng((1, 0, k), "cpu"):
                outputs.append(each(blocks, x)["a"])
            outputs[-1].square().sum().backward()
        torch.testing.assert_close(*outputs)
        for mine, theirs in zip(model.parameters(), compiled.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad)
    assert counter.frame_count <= 2


def test_links(counter):
    graph = ranks.planted().graph
    pairs = torch.stack([graph.indices.long(), hp.expand_indptr(graph.csc_indptr, torch.int64)], 1)
    chain = hp.ItemSampler(hp.ItemSet(pairs[:200], "seeds"), 20).sample_uniform_negative(graph, 1)
    chain = chain.sample_neighbor(graph, [5]).exclude_seed_edges()
    chain = chain.fetch_feature(ranks.planted().feature, ["feat"])
    torch.manual_seed(0)
    plain = LinkPredictor(SAGE(width(), 8, 8, 1), DotPredictor())
    compiled = copy.deepcopy(plain)
    compiled.compile(dynamic=True, fullgraph=True, backend=counter)
    losses = [
        train_epoch(model, hp.DataLoader(chain), torch.optim.Adam(model.parameters()),
                    torch.nn.functional.binary_cross_entropy_with_logits, forward=forward_links)
        for model in (plain, compiled)
    ]  # fmt: skip
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert counter.frame_count <= 3  # of 10 mini-batches


def test_with_mixed_precision(counter):
    torch.manual_seed(0)
    plain = MODELS["SAGE"]()
    compiled = copy.deepcopy(plain)
    compiled.compile(dynamic=True, fullgraph=True, backend=counter)
    losses = [
        train_epoch(m, loader(), torch.optim.Adam(m.parameters()), amp_dtype=torch.bfloat16)
        for m in (plain, compiled)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert counter.frame_count <= 2


def test_a_checkpoint_of_either_is_read_by_the_other(counter, tmp_path):
    """Also where the model was compiled as a whole, which wraps it."""
    torch.manual_seed(0)
    plain = MODELS["SAGE"]()
    wrapped = torch.compile(copy.deepcopy(plain), dynamic=True, backend=counter)
    assert unwrap(wrapped) is not wrapped
    batches = loader()
    optimizer = torch.optim.Adam(wrapped.parameters(), 0.01)
    run = TrainingRun(wrapped, optimizer, batches, directory=tmp_path)
    loss = train_epoch(wrapped, batches, optimizer, total=run.total)
    run.end_epoch(evaluate(wrapped, loader(), ranks.accuracy()))
    assert counter.frame_count >= 1
    batches = loader()
    optimizer = torch.optim.Adam(plain.parameters(), 0.01)
    again = TrainingRun(plain, optimizer, batches, directory=tmp_path)
    assert again.resume()
    assert again.epoch == 1
    for name, value in unwrap(wrapped).state_dict().items():
        assert torch.equal(plain.state_dict()[name], value)
    assert train_epoch(plain, batches, optimizer) < loss


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs g++ on the CPU")
def test_machine_code(tmp_path):
    """What torch generates calls the operators; in a process of its own, which has its threads."""
    program = """
import copy, torch
from hopline.models import RGCN
from tests.models.test_compile import typed_batches
model = RGCN({"a": 6, "b": 4}, 8, 3, ["a:x:a", "a:y:b", "b:z:a"], 2, 0.0)
compiled = copy.deepcopy(model)
compiled.compile(dynamic=True, fullgraph=True)
for blocks, x in typed_batches(2):
    outputs = [each(blocks, x)["a"] for each in (model, compiled)]
    torch.testing.assert_close(*outputs)
    for output in outputs:
        output.square().sum().backward()
    for mine, theirs in zip(model.parameters(), compiled.parameters()):
        torch.testing.assert_close(mine.grad, theirs.grad)
print("same")
"""
    script = tmp_path / "program.py"
    script.write_text(program)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT),
                   "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1",
                   "TORCHINDUCTOR_COMPILE_THREADS": "1", "HOME": str(tmp_path)}  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=environment, timeout=280
    )
    assert done.stdout == "same\n", done.stderr
