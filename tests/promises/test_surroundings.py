"""Promise 1, whatever torch and numpy are set to: a mini-batch depends on no setting of theirs."""

import contextlib
import warnings

import numpy as np
import pytest
import torch

import hopline.pipes as hp
from tests.promises.test_same_batch import SAMPLERS, TWINS, sampler_chain, trace
from tests.twins import NODE


@contextlib.contextmanager
def restored(change, before, value):
    """A setting of the whole process, for the length of a block."""
    change(value)
    try:
        yield
    finally:
        change(before)


@contextlib.contextmanager
def warnings_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


SETTINGS = {
    "default dtype float64": lambda: restored(
        torch.set_default_dtype, torch.get_default_dtype(), torch.float64
    ),
    "default dtype bfloat16": lambda: restored(
        torch.set_default_dtype, torch.get_default_dtype(), torch.bfloat16
    ),
    # Of this thread alone, as `torch.set_default_device("cuda")` is: loader threads know nothing
    # of it. Whatever lands on this device by mistake cannot be read.
    "default device": lambda: torch.device("meta"),
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "deterministic algorithms": lambda: restored(
        torch.use_deterministic_algorithms, torch.are_deterministic_algorithms_enabled(), True
    ),
    "threads": lambda: restored(torch.set_num_threads, torch.get_num_threads(), 3),
    "errors of numpy": lambda: np.errstate(all="raise"),
    "warnings": warnings_are_errors,
}


@pytest.mark.parametrize("make", TWINS.values(), ids=TWINS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_settings_of_torch_and_numpy_change_no_mini_batch(make, setting):
    for name in SAMPLERS:
        pipe = sampler_chain(make(), name, linked=True)
        before = trace(hp.DataLoader(pipe))
        for num_workers in (0, 2):
            loader = hp.DataLoader(pipe, num_workers=num_workers)
            with SETTINGS[setting](), contextlib.closing(loader):
                made = list(loader)
            assert trace(made) == before != []


@pytest.mark.parametrize("kind", ["tensor", "disk", "sieve", "lru", "static"])
def test_features_are_read_as_well(kind, tmp_path):
    rows, ids = torch.arange(600.0).view(100, 6), torch.tensor([5, 99, 5, 0])
    np.save(tmp_path / "x.npy", rows.numpy())
    with torch.device("meta"):
        feature = hp.TorchBasedFeature(rows)
        if kind == "disk":
            feature = hp.DiskBasedFeature(tmp_path / "x.npy")
        elif kind != "tensor":
            hot = {"hot_ids": ids} if kind == "static" else {}
            feature = hp.cpu_cached_feature(feature, 24 * 20, kind, **hot)
        read = [feature.read(ids) for _ in range(2)]
        everything = feature.read()
    assert all(torch.equal(found, rows[ids]) for found in read)
    assert torch.equal(everything, rows)


@pytest.mark.parametrize("make", TWINS.values(), ids=TWINS)
def test_graphs_and_items_are_made_as_well(make, tmp_path):
    twin = make()
    ends = {kind: tuple(torch.tensor(pairs).T.contiguous()) for kind, pairs in twin.edges.items()}
    with torch.device("meta"):
        if NODE in twin.num_nodes:
            graph = hp.from_coo(*next(iter(ends.values())), twin.num_nodes[NODE])
            items = hp.ItemSet(60, "seeds")
        else:
            graph = hp.from_coo(ends, num_nodes=twin.num_nodes)
            items = hp.HeteroItemSet({"user": hp.ItemSet(30, "seeds")})
        graph.save(tmp_path / "graph")
        again = hp.FusedCSCSamplingGraph.load(tmp_path / "graph")
        assert items[3]
        assert items[-1]
        found = [
            trace(hp.ItemSampler(items, 9, shuffle=True, seed=1).sample_neighbor(g, [2, 2]))
            for g in (graph, again)
        ]
    assert found[0] == found[1]
    assert len(found[0]) > 1
