"""What ranks make together is the same on all, or refused on all."""

import numpy as np
import pytest
import torch

from hopline.models import launch
from hopline.partition import (
    DistEmbedding,
    DistGraph,
    DistTensor,
    RankError,
    SparseAdagrad,
    SparseAdam,
)
from hopline.partition.alike import as_message, check_alike
from tests.partition.graphs import heterogeneous
from tests.partition.test_write import cut


def test_the_first_rank_that_differs_is_named():
    one, other = as_message({"a": 1, "b": "x"}), as_message({"a": 1, "b": "y"})
    check_alike("things", [one, one.copy(), one])
    for told, rank, values in (
        ([one, one, other], 2, ("'x'", "'y'")),
        ([one, other, one], 1, ("'x'", "'y'")),
        ([other, one, one], 1, ("'y'", "'x'")),
    ):
        message = f"things of ranks differ: rank 0 has b {values[0]}, rank {rank} has {values[1]};"
        with pytest.raises(ValueError, match=message):
            check_alike("things", told)
    with pytest.raises(ValueError, match="rank 0 has b 'x', rank 1 has none"):
        check_alike("things", [one, as_message({"a": 1})])
    number = np.array([0], np.int64).view(np.uint8)
    with pytest.raises(RankError, match="rank 1 is at another step"):
        check_alike("things", [one, number])


TABLES = (
    (DistTensor, {"dtype": torch.int32}, "dtype 'float32', rank 1 has 'int32'"),
    (DistTensor, {"size": 2}, r"size \[\], rank 1 has \[2\]"),
    (DistTensor, {"type_name": "item"}, "type 'user', rank 1 has 'item'"),
    (DistTensor, {"domain": "edge", "type_name": "user:follows:user"}, "domain 'node', rank 1"),
    (DistTensor, {"init": torch.zeros_like}, "init 'zeros', rank 1 has 'a function'"),
    (DistTensor, {"init": "normal"}, "init 'zeros', rank 1 has 'normal'"),
    (DistEmbedding, {"dtype": torch.float64}, "dtype 'float32', rank 1 has 'float64'"),
    (DistEmbedding, {"dim": 3}, "dim 2, rank 1 has 3"),
    (DistEmbedding, {"node_type": "item"}, "node_type 'user', rank 1 has 'item'"),
    (DistEmbedding, {"seed": 1}, "seed 0, rank 1 has 1"),
    (DistEmbedding, {"scale": 0.5}, "scale 1.0, rank 1 has 0.5"),
)
ARGUMENTS = {
    DistTensor: {"type_name": "user"},
    DistEmbedding: {"node_type": "user", "dim": 2},
}
OPTIMIZERS = (
    (SparseAdagrad, {}, "class 'SparseAdam', rank 1 has 'SparseAdagrad'"),
    (SparseAdam, {"lr": 0.2}, "lr 0.1, rank 1 has 0.2"),
    (SparseAdam, {"eps": 0.5}, "eps 1e-08, rank 1 has 0.5"),
    (SparseAdam, {"betas": (0.5, 0.999)}, r"betas \(0.9, 0.999\), rank 1 has \(0.5, 0.999\)"),
    (SparseAdam, {"average": False}, "average True, rank 1 has False"),
)


def _differ_on_ranks(rank, world_size, device, folder, saved):
    with DistGraph(folder, timeout=60) as graph:
        for kind, other, message in TABLES:
            with pytest.raises(ValueError, match=f"tables of ranks differ: rank 0 has {message}"):
                kind(graph, **ARGUMENTS[kind] | (other if rank else {}))
        kind = (DistTensor, DistEmbedding)[rank]
        with pytest.raises(ValueError, match="class 'DistTensor', rank 1 has 'DistEmbedding'"):
            kind(graph, **ARGUMENTS[kind])
        # What nothing depends on may differ; and the ranks are still in step.
        table = DistTensor(graph, "user", seed=rank, scale=rank)
        assert not table.read().any()

        embs = [DistEmbedding(graph, "user", 2, seed=seed) for seed in range(2)]
        before = [emb.read() for emb in embs]
        ids = torch.arange(90)
        for kind, other, message in OPTIMIZERS:
            optimizer = kind(embs, **{"lr": 0.1} | other) if rank else SparseAdam(embs, lr=0.1)
            for emb in embs:
                emb(ids).sum().backward()
            for call, arguments in ((optimizer.step, ()), (optimizer.save, (saved,))):
                with pytest.raises(ValueError, match=f"optimizers of ranks differ: .* {message}"):
                    call(*arguments)
            assert optimizer.steps == [0, 0]
        optimizer = SparseAdam(embs[:: -1 if rank else 1], lr=0.1)
        with pytest.raises(ValueError, match=r"optimizers of ranks differ: rank 0 has tables \["):
            optimizer.step()
        for emb, rows in zip(embs, before, strict=True):
            assert torch.equal(emb.read(), rows)
        assert not saved.exists()
        # A schedule that one rank does not follow is noticed when it is.
        optimizer = SparseAdam(embs, lr=0.1)
        optimizer.step()
        optimizer.lr = 0.1 / (1 + rank)
        with pytest.raises(ValueError, match=r"rank 0 has lr 0\.1, rank 1 has 0\.05"):
            optimizer.step()
        optimizer.lr = 0.1 + rank * 1e-16  # as other processors round
        embs[0](ids).sum().backward()
        optimizer.step()
        assert optimizer.steps == [1, 0]


def test_ranks_that_differ_are_refused_on_all(tmp_path):
    cut(heterogeneous(), tmp_path / "p", 2)
    launch(_differ_on_ranks, 2, tmp_path / "p", tmp_path / "saved", timeout=60)
