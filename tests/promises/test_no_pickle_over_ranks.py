"""Promise 4, over ranks: a whole training on parts of a graph in which unpickling is an error."""

import io
import pickle
import sys
import warnings
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import hopline.pipes as hp
from hopline.models import SAGE, gather_rows, launch, train_epoch
from hopline.partition import DistFeatureStore, DistGraph, load_tasks, partition_graph
from tests.partition.graphs import homogeneous

# Numba keeps the kernels that it compiles in its own cache, which is code.
CODE = ("numba.",)


class UnpickledError(BaseException):
    """No exception that library code would catch and go on from."""


def refuse(*args, **options):
    raise UnpickledError("something is unpickled")


def refused(original):
    def call(*args, **options):
        caller = sys._getframe(1).f_globals.get("__name__", "")
        return original(*args, **options) if caller.startswith(CODE) else refuse()

    return call


class Refused(pickle.Unpickler):
    load = refuse


def forbid_pickle(patch):
    for name in ("load", "loads"):
        patch.setattr(pickle, name, refused(getattr(pickle, name)))
        patch.setattr(pickle, f"_{name}", refuse)
    for name in ("Unpickler", "_Unpickler"):
        patch.setattr(pickle, name, Refused)
    patch.setattr(ForkingPickler, "loads", staticmethod(refuse))
    patch.setattr(torch, "load", refuse)
    # Bound when torch was imported.
    patch.setattr(dist.distributed_c10d, "_unpickler", Refused)


def train(rank, world_size, device, folder):
    with pytest.MonkeyPatch.context() as patch:
        forbid_pickle(patch)
        the_trap_works(world_size)
        with DistGraph(folder, timeout=60) as graph:
            store = DistFeatureStore(graph)
            update_and_read(rank, graph, store)
            losses = [run_epochs(rank, world_size, graph, store, workers) for workers in (0, 1, 4)]
        assert losses[0] == losses[1] == losses[2]
        assert losses[0][1] < losses[0][0]


def the_trap_works(world_size):
    data = pickle.dumps([1])
    for attempt in (pickle.loads, ForkingPickler.loads):
        with pytest.raises(UnpickledError):
            attempt(data)
    with pytest.raises(UnpickledError):
        pickle.Unpickler(io.BytesIO(data)).load()  # noqa: S301
    with pytest.raises(UnpickledError):
        torch.load(io.BytesIO(data))
    with pytest.raises(UnpickledError):
        dist.all_gather_object([None] * world_size, data)


def update_and_read(rank, graph, store):
    feature = store["node", None, "id"]
    ids = torch.arange(rank, feature.count(), 2)
    feature.update(ids[:, None] / feature.count(), ids)
    dist.barrier()
    assert torch.equal(
        feature.read(), torch.arange(feature.count())[:, None] / torch.tensor(feature.count())
    )
    dist.barrier()


def run_epochs(rank, world_size, graph, store, workers):
    """The mean loss of three epochs, the same on all ranks."""
    torch.manual_seed(0)
    model = DistributedDataParallel(SAGE(1, 16, 7, num_layers=2, dropout=0.0))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    items = load_tasks(graph.path, graph.manifest)[0].train_set
    chain = hp.DistributedItemSampler(
        items, 7, shuffle=True, seed=1, num_replicas=world_size, rank=rank
    )
    chain = chain.sample_neighbor(graph, [3, 3]).fetch_feature(store, ["id"], ["id"])
    losses = []
    with hp.DataLoader(chain, num_workers=workers) as loader:
        for _ in range(3):
            losses.append(train_epoch(model, loader, optimizer, forward=forward))
    rows = gather_rows(torch.tensor(losses, dtype=torch.float64))
    assert all(torch.equal(row, rows[0]) for row in rows)
    return [losses[0], losses[-1]]


def forward(model, minibatch):
    return model(minibatch.blocks, minibatch.node_features["id"])


def test_a_whole_training_unpickles_nothing(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # small parts cannot always be balanced
        partition_graph(homogeneous(), "g", 2, tmp_path / "parts")
    launch(train, 2, tmp_path / "parts", timeout=60)
