"""Embeddings on ranks are torch's on one process: first rows, steps, saves, refusals."""

import re
import time

import numpy as np
import pytest
import torch

from hopline.models import launch
from hopline.partition import (
    DistEmbedding,
    DistGraph,
    RankError,
    SparseAdagrad,
    SparseAdam,
    node_split,
)
from hopline.partition.first_rows import draw
from hopline.pipes.random import Purpose, fold
from tests.partition.graphs import NODES, heterogeneous, homogeneous
from tests.partition.test_dist_graph import cut

DIM = 5
SHARDS = 4  # of each global batch, dealt to the ranks
STEPS, HALF = 8, 4
ALONE, NOBODY = 2, 5  # steps in which shard 0 alone, and nobody, has a batch
OPTIMIZERS = {
    "adam": (SparseAdam, torch.optim.SparseAdam, {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-6}),
    "adagrad": (SparseAdagrad, torch.optim.Adagrad, {"lr": 0.3, "eps": 1e-9}),
}


def first_rows():
    return torch.from_numpy(np.random.default_rng(1).normal(size=(NODES["user"], DIM))).float()


def initial(originals):
    return first_rows()[originals]


def batch(step, shard):
    """Original ids, some of them again and again; none for a shard that has no batch."""
    rng = np.random.default_rng((step, shard))
    count = 0 if step == NOBODY or (step == ALONE and shard) else 12
    return torch.from_numpy(rng.integers(0, 40 + 5 * step, count))


def loss_of(rows, originals):
    """Not linear in the rows, and for each shard another."""
    return (
        (rows - originals[:, None] / 50).pow(3) * torch.linspace(0.5, 1.5, len(rows))[:, None]
    ).sum()


def torch_rows(name):
    """The rows after each step, by one process and torch's own optimiser."""
    _, make, options = OPTIMIZERS[name]
    table = torch.nn.Embedding(NODES["user"], DIM, sparse=True)
    table.weight.data.copy_(first_rows())
    optimizer = make(table.parameters(), **options)
    found = []
    for step in range(STEPS):
        optimizer.zero_grad()
        batches = [ids for ids in (batch(step, shard) for shard in range(SHARDS)) if len(ids)]
        if batches:
            (sum(loss_of(table(ids), ids) for ids in batches) / SHARDS).backward()
            with torch.sparse.check_sparse_tensor_invariants():  # torch warns where nobody says
                optimizer.step()
        found.append(table.weight.detach().clone())
    return found


def make(graph, name):
    kind, _, options = OPTIMIZERS[name]
    emb = DistEmbedding(graph, "user", DIM, init=initial)
    other = DistEmbedding(graph, "nobody", 3)  # of no row, and never used
    return emb, kind([emb, other], **options)


def train(emb, optimizer, new_ids, rank, ranks, steps):
    """Steps of this rank; each shard is one call, so that a rank has several of a row."""
    for step in steps:
        mine = [batch(step, shard) for shard in range(rank, SHARDS, ranks)]
        losses = [loss_of(emb(new_ids[ids]), ids) for ids in mine if len(ids)]
        if losses:
            (sum(losses) * ranks / SHARDS).backward()
        optimizer.step()


def check(emb, originals, expected):
    got = emb.read(torch.arange(len(originals)))
    torch.testing.assert_close(got, expected[originals], rtol=0, atol=1e-6)


def inverse(originals):
    new_ids = torch.empty_like(originals)
    new_ids[originals] = torch.arange(len(originals))
    return new_ids


@pytest.mark.parametrize("parts", [1, 3, 7])
def test_first_rows_are_those_of_the_nodes_whatever_the_parts(tmp_path, parts):
    nodes, _ = cut(heterogeneous(), tmp_path / "p", parts, part_method="random")
    graph = DistGraph(tmp_path / "p")
    numbers = {name: i for i, name in enumerate(graph.book.node_types)}
    for kind in ("user", "tag", "nobody"):
        key = fold(3, Purpose.EMBEDDING, numbers[kind])
        whole = torch.from_numpy(draw(key, np.arange(NODES[kind]), DIM, normal=True))
        emb = DistEmbedding(graph, kind, DIM, seed=3, scale=0.5)
        everyone = torch.arange(NODES[kind])
        assert torch.equal(emb.read(everyone), (whole * 0.5)[nodes[kind]].float())
        assert emb(everyone).shape == (NODES[kind], DIM)
    graph.close()


def test_draws_have_the_moments_they_name():
    normal = draw(7, np.arange(4000), 16, normal=True)
    assert abs(normal.mean()) < 0.02
    assert abs(normal.std() - 1) < 0.02
    assert 3.5 < np.abs(normal).max() < 7
    uniform = draw(7, np.arange(4000), 16, normal=False)
    assert abs(uniform.mean()) < 0.02
    assert abs(uniform.std() - 3**-0.5) < 0.01
    assert -1 < uniform.min() < -0.99
    assert 0.99 < uniform.max() < 1
    assert len(np.unique(uniform)) == uniform.size
    assert not np.isin(uniform, draw(8, np.arange(4000), 16, normal=False)).any()


def test_gradients_are_kept_once_and_only_where_wanted(tmp_path):
    nodes = cut(homogeneous(), tmp_path / "p", 3)[0]
    graph = DistGraph(tmp_path / "p")
    emb = DistEmbedding(graph, None, 2, init="uniform", scale=0.1, dtype=torch.float64)
    assert emb.num_rows == len(nodes)
    assert emb.read(torch.arange(5)).abs().max() <= 0.1
    ids = torch.tensor([7, 3, 7, 100], dtype=torch.int32)
    rows = emb(ids)
    assert torch.equal(rows.detach(), emb.read(ids))
    (rows * torch.tensor([1.0, 2, 4, 8])[:, None]).sum().backward(retain_graph=True)
    rows.sum().backward()
    emb(torch.tensor([3])).sum().backward()
    with torch.no_grad():
        assert not emb(ids).requires_grad
    emb(ids)  # never gone back through
    found, gradients = emb.take_gradients()
    assert found.tolist() == [3, 7, 100]
    assert gradients.tolist() == [[4.0, 4.0], [7.0, 7.0], [9.0, 9.0]]
    assert emb.take_gradients() is None
    before = emb.read(torch.arange(120))
    optimizer = SparseAdagrad([emb], lr=1.0, eps=0)
    emb(ids).sum().backward()
    optimizer.zero_grad()
    optimizer.step()
    assert torch.equal(emb.read(torch.arange(120)), before)
    assert optimizer.steps == [0]
    emb(ids).sum().backward()
    optimizer.step()
    changed = (emb.read(torch.arange(120)) != before).any(1).nonzero().view(-1)
    torch.set_default_device("meta")
    try:
        DistEmbedding(graph, None, 2)(ids).sum().backward()
        emb(ids).sum().backward()
        optimizer.step()
    finally:
        torch.set_default_device(None)
    assert changed.tolist() == [3, 7, 100]
    graph.close()


def test_wrong_input_is_refused(tmp_path):
    cut(homogeneous(), tmp_path / "p", 2)
    graph = DistGraph(tmp_path / "p")
    with pytest.raises(KeyError, match="no node type 'user'"):
        DistEmbedding(graph, "user", 2)
    with pytest.raises(ValueError, match="dim is 0"):
        DistEmbedding(graph, None, 0)
    with pytest.raises(ValueError, match="init is 'ones'"):
        DistEmbedding(graph, None, 2, init="ones")
    with pytest.raises(ValueError, match=r"init returned \(\d+,\); expected a tensor of shape"):
        DistEmbedding(graph, None, 2, init=lambda ids: ids.float())
    with pytest.raises(TypeError, match=r"torch.float16; expected torch.float32"):
        DistEmbedding(graph, None, 2, dtype=torch.float16)
    emb = DistEmbedding(graph, None, 2)
    with pytest.raises(IndexError, match="node id 120 at 1"):
        emb(torch.tensor([0, 120]))
    with pytest.raises(TypeError, match="expected integers"):
        emb(torch.tensor([0.5]))
    with pytest.raises(FileNotFoundError, match="is not there; expected a folder that save"):
        emb.load(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="twice"):
        SparseAdam([emb, emb])
    with pytest.raises(TypeError, match="embeddings is None; expected a list of DistEmbedding"):
        SparseAdam(None)
    with pytest.raises(TypeError, match="some DistEmbedding"):
        SparseAdam([torch.zeros(3)])
    with pytest.raises(TypeError, match=r"one DistEmbedding; expected a list of them: \[emb\]"):
        SparseAdam(emb)
    with pytest.raises(ValueError, match="lr is 0; expected above 0"):
        SparseAdagrad([emb], lr=0)
    with pytest.raises(ValueError, match="expected numbers below 1"):
        SparseAdam([emb], betas=(0.9, 1.0))
    graph.close()


def test_saves_of_something_else_are_refused_and_the_earlier_one_goes_last(tmp_path):
    cut(homogeneous(), tmp_path / "p", 2)
    cut(homogeneous(seed=1), tmp_path / "q", 2)
    graph, other = DistGraph(tmp_path / "p"), DistGraph(tmp_path / "q")
    emb = DistEmbedding(graph, None, 2)
    folder = tmp_path / "rows"
    with pytest.raises(FileNotFoundError):
        emb.load(folder)
    emb.save(folder)
    first = {path.name for path in folder.iterdir()}
    emb.save(folder)
    second = {path.name for path in folder.iterdir()}
    assert len(first) == len(second) == 3
    assert first & second == {"rows.yaml"}
    before = emb.read(torch.arange(120))
    with pytest.raises(ValueError, match="dim is 2; expected 3"):
        DistEmbedding(graph, None, 3).load(folder)
    with pytest.raises(ValueError, match="partition_id is"):
        DistEmbedding(other, None, 2).load(folder)
    (folder / "0").mkdir()
    (folder / "0" / "rows.yaml").write_bytes((folder / "rows.yaml").read_bytes())
    with pytest.raises(ValueError, match="optimizer is None; expected 'SparseAdam'"):
        SparseAdam([emb]).load(folder)
    # A full disk: what was saved before is still there, and nothing else.
    new = DistEmbedding(graph, None, 2, init="zeros")
    (folder / ".rows.yaml.0").mkdir()
    with pytest.raises(OSError, match=re.escape(".rows.yaml.0")):
        new.save(folder)
    new.load(folder)
    assert torch.equal(new.read(torch.arange(120)), before)
    for path in folder.glob("rows-1-*.npy"):
        path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(ValueError, match="cut short"):
        DistEmbedding(graph, None, 2).load(folder)
    graph.close()
    other.close()


def _save_on_ranks(rank, world_size, device, folder, rows, originals):
    new_ids = inverse(originals)
    graph = DistGraph(folder, timeout=60)
    shares = node_split(torch.arange(len(originals)), graph, "user")
    assert abs(len(shares) - len(originals) / world_size) < 1
    for name in OPTIMIZERS:
        expected = torch_rows(name)
        emb, optimizer = make(graph, name)
        assert list(emb.rows) == [2 * rank, 2 * rank + 1]
        train(emb, optimizer, new_ids, rank, world_size, range(HALF))
        check(emb, originals, expected[HALF - 1])
        emb.save(rows / name)
        optimizer.save(rows / f"{name}-state")
        train(emb, optimizer, new_ids, rank, world_size, range(HALF, STEPS))
        check(emb, originals, expected[-1])
        assert optimizer.steps == [STEPS - 1, 0]
    # Sums instead of means, and a rank that fails in a step of all.
    before = emb.read(torch.arange(2))
    optimizer = SparseAdagrad([emb], lr=1.0, eps=1.0, average=False)
    change = optimizer._change
    optimizer._change = lambda *args: time.sleep(0.3) or change(*args)  # the owner, rank 0, is slow
    emb(torch.tensor([0, 1])).sum().backward()
    optimizer.step()
    torch.testing.assert_close(emb.read(torch.arange(2)), before - 2 / 3)
    before = emb.read(torch.arange(len(originals)))
    if rank == 1:
        path = next((rows / "adagrad").glob("rows-3-*.npy"))
        content = path.read_bytes()
        path.write_bytes(content[:-8])
    with pytest.raises(
        ValueError if rank else RankError, match="cut short" if rank else "rank 1 could not"
    ):
        emb.load(rows / "adagrad")
    assert torch.equal(emb.read(torch.arange(len(originals))), before)
    if rank == 1:
        path.write_bytes(content)
    emb.load(rows / "adagrad")
    check(emb, originals, torch_rows("adagrad")[HALF - 1])

    # Answers of others that are there before one's own are not forgotten.
    def answer(asking, message):
        time.sleep(0.3 if asking == rank else 0)
        return message

    kind = graph.exchange.claim(1)
    graph.exchange.answer(kind, answer)
    answers = graph.exchange.ask(kind, {r: [np.array([r])] for r in range(world_size)})
    assert {r: message[0].tolist() for r, message in answers.items()} == {0: [0], 1: [1]}
    graph.close()
    # A rank that does not come is named.
    graph = DistGraph(folder, timeout=2)
    emb, optimizer = make(graph, "adam")
    if rank == 0:
        with pytest.raises(RankError, match="rank 1 did not come to a step of all ranks"):
            optimizer.step()
    torch.distributed.barrier()
    graph.close()


def test_two_ranks_over_four_parts_train_as_torch_does(tmp_path):
    originals = cut(heterogeneous(), tmp_path / "p", 4)[0]["user"]
    launch(_save_on_ranks, 2, tmp_path / "p", tmp_path / "rows", originals, timeout=60)
    # One process goes on where the two ranks were.
    graph = DistGraph(tmp_path / "p")
    for name in OPTIMIZERS:
        emb, optimizer = make(graph, name)
        emb.load(tmp_path / "rows" / name)
        optimizer.load(tmp_path / "rows" / f"{name}-state")
        train(emb, optimizer, inverse(originals), 0, 1, range(HALF, STEPS))
        check(emb, originals, torch_rows(name)[-1])
    graph.close()


def _load_on_ranks(rank, world_size, device, folder, rows, originals):
    graph = DistGraph(folder, timeout=60)
    for name in OPTIMIZERS:
        emb, optimizer = make(graph, name)
        assert list(emb.rows) == ([] if rank % 2 else [rank // 2])
        emb.load(rows / name)
        optimizer.load(rows / f"{name}-state")
        train(emb, optimizer, inverse(originals), rank, world_size, range(HALF, STEPS))
        check(emb, originals, torch_rows(name)[-1])
    graph.close()


def test_four_ranks_over_two_parts_go_on_where_one_process_was(tmp_path):
    originals = cut(heterogeneous(), tmp_path / "p", 2)[0]["user"]
    graph = DistGraph(tmp_path / "p")
    for name in OPTIMIZERS:
        emb, optimizer = make(graph, name)
        train(emb, optimizer, inverse(originals), 0, 1, range(HALF))
        check(emb, originals, torch_rows(name)[HALF - 1])
        emb.save(tmp_path / "rows" / name)
        optimizer.save(tmp_path / "rows" / f"{name}-state")
    graph.close()
    launch(_load_on_ranks, 4, tmp_path / "p", tmp_path / "rows", originals, timeout=60)
