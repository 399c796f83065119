"""Every kernel that the chain starts compiles for a GPU, with the arguments that it gets there."""

from __future__ import annotations

import ast
import functools
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import hopline.pipes as hp
from hopline.pipes import device_table
from hopline.pipes.kernels.dispatch import interpreted_device
from tests.promises import test_same_batch as same
from tests.strategies import build

pytest.importorskip("triton", reason="GPU kernels are compiled by Triton, which is missing")
pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="where kernels run on a GPU, they are compiled anyway"
)

POINTERS = {
    torch.bool: "*i1",
    torch.uint8: "*u8",
    torch.int8: "*i8",
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.float64: "*fp64",
}
OPTIONS = {"num_warps", "num_stages", "enable_fp_fusion"}


def type_of(arg) -> str | None:
    if isinstance(arg, torch.Tensor):
        return POINTERS[arg.dtype]
    if arg is None:
        return None
    assert isinstance(arg, int)
    return "i32" if -(1 << 31) <= arg < 1 << 31 else "i64"


def signature(kernel, args, constants) -> str:
    """What Triton compiles for a call; an argument of 1 is a constant, unless it may not be."""
    module, name = kernel.fn.__module__, kernel.fn.__name__
    names = [key for key in inspect.signature(kernel.fn).parameters if key not in constants]
    given = dict(zip(names, args, strict=True))
    never = not_specialized(module)[name]
    ones = {
        k: 1 for k, arg in given.items() if isinstance(arg, int) and arg == 1 and k not in never
    }
    constants = {**constants, **ones}
    return json.dumps(
        {
            "module": module,
            "name": name,
            "types": [type_of(arg) for key, arg in given.items() if key not in ones],
            "constants": {k: v for k, v in constants.items() if k not in OPTIONS},
            "options": {k: v for k, v in constants.items() if k in OPTIONS},
        },
        sort_keys=True,
    )


@functools.cache
def not_specialized(module: str) -> dict[str, set[str]]:
    """By kernel, arguments that Triton is told to keep; interpreted kernels do not know them."""
    found = {}
    for node in ast.parse(Path(sys.modules[module].__file__).read_text()).body:
        if isinstance(node, ast.FunctionDef):
            calls = [each for each in node.decorator_list if isinstance(each, ast.Call)]
            words = [word for call in calls for word in call.keywords]
            kept = [ast.literal_eval(w.value) for w in words if w.arg == "do_not_specialize"]
            found[node.name] = {name for names in kept for name in names}
    return found


def chains():
    """Every sampler over graphs with and without types; features; both caches."""
    for twin in (same.homogeneous(), same.heterogeneous()):
        for replace in (False, True):
            yield same.chain(twin, replace=replace)
        for name in same.SAMPLERS:
            yield same.sampler_chain(twin, name, linked=True)
    twin = same.homogeneous()
    graph = build(twin, include_original_edge_id=True, **same.attributes(twin))
    links = hp.ItemSampler(same.links(twin), 16, seed=3)
    yield (
        links.sample_uniform_negative(graph, 1, exclude_true_edges=True)
        .sample_neighbor(graph, [100, 2], num_gpu_cached_edges=100)
        .exclude_seed_edges()
    )
    for policy in ({}, {"policy": "static", "hot_ids": torch.arange(9)}):
        slow = hp.TorchBasedFeature(torch.arange(120.0).view(60, 2))
        cached = hp.gpu_cached_feature(slow, 400, device="cpu", **policy)
        store = hp.BasicFeatureStore({("node", None, "x"): cached})
        yield links.sample_layer_neighbor(graph, [100], prob_name="w").fetch_feature(store, ["x"])
    yield from listing_chains(links, graph)
    twin = same.heterogeneous()
    graph = build(twin, **same.attributes(twin))
    yield hp.ItemSampler(same.links(twin), 16, seed=3).sample_uniform_negative(
        graph, 1, exclude_true_edges=True, node_timestamp_attr_name="t"
    )


def listing_chains(links, graph):
    """Samplers with a fanout for which all edges are listed."""
    for fanout, replace in ((100, False), (100, True), (-1, False)):
        yield links.sample_neighbor(graph, [fanout], replace, "w")
        yield links.sample_layer_neighbor(graph, [fanout], replace)
        yield links.temporal_sample_neighbor(graph, [fanout], replace, **same.TIMED)


def test_for_the_gpus_that_the_goals_are_for(tmp_path, monkeypatch):
    from hopline.pipes.kernels.cuda import launching

    seen = set()
    start = launching.launch

    def recorded(kernel, programs, on, *args, **constants):
        seen.add(signature(kernel, args, {**constants, "enable_fp_fusion": False}))
        start(kernel, programs, on, *args, **constants)

    monkeypatch.setattr(launching, "tiles_of_gpu", True)
    with interpreted_device():
        next(iter(next(iter(chains()))))  # imports the modules
        for name, module in list(sys.modules.items()):
            if name.startswith("hopline.pipes.kernels.cuda.") and hasattr(module, "launch"):
                monkeypatch.setattr(module, "launch", recorded)
        for chain in chains():
            next(iter(chain))
        monkeypatch.setattr(device_table, "DENSE_LIMIT", 0)
        next(iter(same.chain(same.homogeneous())))  # by a hash table
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("compile_kernels.py"))],
        input="\n".join(sorted(seen)),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)
    kernels = {json.loads(each)["name"] for each in seen}
    assert len(kernels) > 37, sorted(kernels)
