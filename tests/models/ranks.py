"""What the tests run on ranks. Functions at the top level of a module, so that ranks find them."""

from __future__ import annotations

import atexit
import functools
import json
import math
import os
import signal
import sys
import threading
import time
import weakref
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import hopline.pipes as hp
from hopline.models import (
    SAGE,
    TrainingRun,
    evaluate,
    forward_features,
    gather_rows,
    keyed_rng,
    launch,
    train_epoch,
    weighted_reduce,
)

NUM_CLASSES = 4


# -------------------------------------------------------------------------------------------------
# Ways to end


def write_pid(folder, rank, pid=None):
    (Path(folder) / f"{rank}.pid").write_text(str(pid or os.getpid()))


def end_by(rank, world_size, device, folder, how):
    """Rank 1 ends after the third of six collectives; the others go on."""
    write_pid(folder, rank)
    for i in range(6):
        dist.all_reduce(torch.ones(1))
        if rank == 1 and i == 2:
            end(how)


def end(how):
    if how == "raise":
        raise KeyError("no such thing")
    if how == "exit 3":
        sys.exit(3)
    if how == "exit 0":
        sys.exit(0)
    if how == "_exit 0":
        os._exit(0)
    if how == "exit words":
        sys.exit(["told", "why"])
    if how == "exit 256":
        sys.exit(256)
    if how == "raise badly":
        sys.stdout.close()
        import resource  # not on every system

        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # as if the disk were full
        raise BadTextError
    number = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "abort": signal.SIGABRT}[how]
    os.kill(os.getpid(), number)


class BadTextError(Exception):
    """Cannot be shown."""

    def __str__(self):
        raise KeyError("text")


def end_alone(rank, world_size, device, folder, how):
    """Leaves what exit functions are to remove, and ends."""
    path = Path(folder) / "left"
    path.touch()
    atexit.register(path.unlink)
    end(how)


def raise_long_text(rank, world_size, device):
    raise ValueError("\0" * 1_000_000 + "the end")


def fork_and_be_killed(rank, world_size, device, folder):
    """Is killed while a child that it has forked lives on."""
    child = os.fork()
    if not child:
        time.sleep(600)  # it keeps open whatever this process has open
        os._exit(0)
    write_pid(folder, "child", child)
    os.kill(os.getpid(), signal.SIGKILL)


def wait_forever(rank, world_size, device, folder):
    """Rank 0 waits in a collective, deep in native code, rank 1 in Python."""
    write_pid(folder, rank)
    if rank == 0:
        dist.all_reduce(torch.ones(1))
    time.sleep(600)


def leave_one_at_work(rank, world_size, device, folder):
    write_pid(folder, rank)
    if rank == 1:
        os._exit(0)
    time.sleep(3600)


def launch_waiting_ranks(folder):
    launch(wait_forever, 2, folder, timeout=600)


def tell(rank, world_size, device, folder, value):
    told = {
        "rank": dist.get_rank(),
        "world_size": dist.get_world_size(),
        "backend": dist.get_backend(),
        "threads": torch.get_num_threads(),
        "arguments": [rank, world_size, str(device), value],
    }
    (Path(folder) / f"{rank}.json").write_text(json.dumps(told))
    write_pid(folder, rank)


# -------------------------------------------------------------------------------------------------
# Figures over ranks


def same(got, want):
    torch.testing.assert_close(
        got, torch.as_tensor(want, dtype=torch.float64), rtol=1e-15, atol=0, equal_nan=True
    )


def reduce_figures(rank, world_size, device):
    """On the first 2, 3, ... ranks, and on all of them as the default group."""
    for count in range(2, world_size):
        group = dist.new_group(list(range(count)))
        if rank < count:
            reduce_in_group(rank, count, group)
    reduce_in_group(rank, world_size, None)


def reduce_in_group(rank, world_size, group):
    reduce = functools.partial(weighted_reduce, group=group)
    ranks = range(world_size)
    # Weights 0, 1, 2, ...: rank 0 has nothing to say, and says NaN.
    total = sum(ranks)
    value = torch.tensor([math.nan, math.inf]) if rank == 0 else torch.tensor([rank, 0.1])
    tenth = torch.tensor(0.1).item()  # float32's
    want = [sum(r * r for r in ranks) / total, tenth]
    same(reduce(value, rank, dst=None), want)
    same(reduce(value, rank), want if rank == 0 else [math.nan] * 2)
    last = world_size - 1
    same(reduce(value, rank, dst=last), want if rank == last else [math.nan] * 2)

    same(reduce(float(rank), 0, dst=None), math.nan)
    mean = reduce(torch.tensor([[3 + rank % 2]]), 1.0, dst=None)
    same(mean, [[3 + world_size // 2 / world_size]])
    assert mean.dtype == torch.float64
    # float32 would lose the ones.
    big = reduce(torch.tensor(2**30 + (rank == 0), dtype=torch.int64), 1, dst=None)
    same(big, 2**30 + 1 / world_size)
    same(reduce(torch.empty(0, 3), rank, dst=None), torch.empty(0, 3))
    same(reduce(torch.tensor(True), torch.tensor(rank), dst=None), 1)

    # What one rank does wrong is told on all, and the group can be used on.
    for wrong, words in (
        (lambda: reduce(torch.ones(2 + rank), 1), r"rank 1: dst 0, shape \[3\]"),
        (lambda: reduce(torch.ones(1 + rank % 2, 2 - rank % 2), 1), "differ in shape"),
        (lambda: reduce(1.0, -1 if rank == last else 1), f"rank {last} gave a weight"),
        (lambda: reduce(1.0, math.nan if rank == 1 else 1), "rank 1 gave a weight"),
        (lambda: reduce(torch.ones(1).cfloat() if rank == 1 else 1.0, 1), "rank 1 gave"),
        (lambda: reduce(torch.ones([1] * 9) if rank == 1 else 1.0, 1), "rank 1 gave"),
        (lambda: reduce(1.0, 1, dst=rank), "differ in shape or dst"),
    ):
        with pytest.raises(ValueError, match=words):
            wrong()
    with pytest.raises(IndexError, match=f"dst is {world_size}"):
        reduce(1.0, 1, dst=world_size)

    gather_of_any_kind(rank, world_size, group)


def gather_of_any_kind(rank, world_size, group):
    gather = functools.partial(gather_rows, group=group)
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8):
        rows = gather(torch.full((rank, 2), rank, dtype=dtype))
        assert [tuple(r.shape) for r in rows] == [(r, 2) for r in range(world_size)]
        for r, got in enumerate(rows):
            assert torch.equal(got, torch.full((r, 2), r, dtype=dtype))
    # A rank that saw nothing does not know dtype and shape.
    rows = gather(torch.tensor([]) if rank == 0 else torch.tensor([[rank, 7]]))
    assert [r.dtype for r in rows] == [torch.int64] * world_size
    assert rows[0].shape == (0, 2)
    assert rows[1].tolist() == [[1, 7]]
    assert all(len(r) == 0 for r in gather(torch.tensor([])))
    assert [int(r) for r in gather(torch.tensor(rank))] == list(range(world_size))
    with pytest.raises(ValueError, match="differ in dtype or row size"):
        gather(torch.ones(1, 1 + rank))
    with pytest.raises(ValueError, match="differ in dtype or row size"):
        gather(torch.ones(1, dtype=torch.float32 if rank else torch.float64))
    with pytest.raises(ValueError, match="rank 1 gave a tensor"):
        gather(torch.ones(1, dtype=torch.complex64 if rank == 1 else torch.float32))


# -------------------------------------------------------------------------------------------------
# Training


@functools.cache
def planted():
    return hp.planted_partition(300, NUM_CLASSES, 6, 12, seed=5)


def make_loader(items, rank=0, world_size=1, *, shuffle=True, fanouts=(4, 4), num_workers=0):
    """Loader of the first `items` nodes, each in one rank's share."""
    dataset = planted()
    seeds = torch.arange(items)
    item_set = hp.ItemSet((seeds, dataset.labels[:items]), ("seeds", "labels"))
    chain = hp.DistributedItemSampler(
        item_set, 32, shuffle=shuffle, seed=3, num_replicas=world_size, rank=rank
    )
    chain = chain.sample_neighbor(dataset.graph, list(fanouts))
    chain = chain.fetch_feature(dataset.feature, node_feature_keys=["feat"])
    return hp.DataLoader(chain, num_workers=num_workers)


def make_model(seed=0, ddp=False):
    torch.manual_seed(seed)
    model = SAGE(12, 16, NUM_CLASSES, num_layers=2, dropout=0.5)
    if ddp:
        model = DistributedDataParallel(model)
    return model, torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=1e-3)


# torchmetrics takes long to import, and most ranks do without.


def accuracy():
    from torchmetrics.classification import MulticlassAccuracy

    return MulticlassAccuracy(NUM_CLASSES, average="micro")


def auroc():
    from torchmetrics.classification import MulticlassAUROC

    return MulticlassAUROC(NUM_CLASSES)


def probabilities(model, minibatch):
    return forward_features(model, minibatch).softmax(dim=1)


def batch_sizes():
    """A metric with a list that does not say how to merge it: ranks would send it one by one."""
    from torchmetrics import Metric

    class BatchSizes(Metric):
        def __init__(self):
            super().__init__()
            self.add_state("sizes", default=[], dist_reduce_fx=None)

        def update(self, output, labels):
            self.sizes.append(torch.tensor(len(labels)))

        def compute(self):
            return torch.tensor(float(sum(self.sizes)))

    return BatchSizes()


def state_of(model, optimizer):
    """Every number that decides how training goes on."""
    values = {f"model.{k}": v for k, v in model.state_dict().items()}
    for number, entry in optimizer.state_dict()["state"].items():
        values.update({f"optimizer.{number}.{k}": v for k, v in entry.items()})
    return {k.replace("module.", ""): torch.as_tensor(v).clone() for k, v in values.items()}


def assert_same_state(one, other):
    assert one.keys() == other.keys()
    assert [k for k in one if not torch.equal(one[k], other[k])] == []


def assert_ranks_agree(model, optimizer):
    for name, value in sorted(state_of(model, optimizer).items()):
        rows = gather_rows(value)
        assert all(torch.equal(rows[0], row) for row in rows), name


TRACED = (
    "all_gather",
    "all_reduce",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "gather",
    "monitored_barrier",
    "reduce",
    "scatter",
)
OBJECTS = ("all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list")


class Trace:
    """Records every collective: its name, and shape and dtype of the tensors in it."""

    def __init__(self):
        self.calls = []
        self.originals = {name: getattr(dist, name) for name in (*TRACED, *OBJECTS)}

    def __enter__(self):
        for name, original in self.originals.items():
            setattr(dist, name, functools.partial(self.record, name, original))
        return self

    def __exit__(self, *_):
        for name, original in self.originals.items():
            setattr(dist, name, original)

    def record(self, name, original, *args, **kwargs):
        if name in OBJECTS:
            raise AssertionError(f"{name} unpickles what another rank sent")
        flat = [x for a in args for x in (a if isinstance(a, list) else [a])]
        tensors = [x for x in flat if isinstance(x, torch.Tensor)]
        self.calls.append([name, [[list(t.shape), str(t.dtype)] for t in tensors]])
        return original(*args, **kwargs)

    def check(self, at_least=1):
        """All ranks made the same collectives in the same order."""
        text = torch.tensor(list(json.dumps(self.calls).encode()), dtype=torch.uint8)
        rows = [json.loads(bytes(row.tolist())) for row in gather_rows(text)]
        assert len(rows[0]) >= at_least
        for row in rows[1:]:
            assert row == rows[0]


def train_on_uneven_shares(rank, world_size, device, folder):
    """Shares of mini-batches: 3 and 2, 1 and 0, 0 and 0; then 1 and 4, then 0 and 2."""
    for items in (150, 20, 0):
        loader = make_loader(items, rank, world_size)
        compare_epochs(rank, world_size, [loader] * 2, items)
    shares = [(20, 120), (0, 64)]
    loaders = [make_loader(share[rank]) for share in shares]
    compare_epochs(rank, world_size, loaders, None)
    empty_rank_equals_one_process(rank, world_size)
    refuse_lists_of_unequal_length(rank, world_size)
    resume_on_ranks(rank, world_size, Path(folder))


def compare_epochs(rank, world_size, loaders, items):
    model, optimizer = make_model(ddp=True)
    for loader in loaders:
        seen = []

        def loss_fn(output, labels, seen=seen):
            loss = torch.nn.functional.cross_entropy(output, labels)
            seen.append((loss.item(), len(labels)))
            return loss

        with Trace() as trace:
            loss = train_epoch(model, loader, optimizer, loss_fn)
        trace.check()
        assert_ranks_agree(model, optimizer)

        all_seen = torch.cat(gather_rows(torch.tensor(seen, dtype=torch.float64).reshape(-1, 2)))
        count = all_seen[:, 1].sum().item()
        if items is not None:
            assert count == items
        want = (all_seen[:, 0] * all_seen[:, 1]).sum().item() / count if count else math.nan
        assert loss == pytest.approx(want, rel=1e-12, nan_ok=True)

    if items is None:
        return
    for make_metric in (accuracy, auroc):
        share = make_loader(items, rank, world_size, shuffle=False, fanouts=(-1, -1))
        with Trace() as trace:
            got = evaluate(model, share, make_metric(), forward=probabilities)
        trace.check()
        same(torch.stack(gather_rows(torch.tensor(got).double())), [got] * world_size)
        if items == 0:
            assert math.isnan(got)
            continue
        # All neighbours, so that it does not matter how items are cut in mini-batches.
        metric = make_metric()
        with torch.no_grad():
            model.module.eval()
            for minibatch in make_loader(items, shuffle=False, fanouts=(-1, -1)):
                metric.update(probabilities(model.module, minibatch), minibatch.labels)
        metric.distributed_available_fn = lambda: False
        want = metric.compute().item()
        assert got == pytest.approx(want, rel=1e-6), (make_metric, items, got, want)


def empty_rank_equals_one_process(rank, world_size):
    """Gradients are the mean over the ranks with a mini-batch: one with none changes nothing."""
    model, optimizer = make_model(ddp=True)
    alone, alone_optimizer = make_model()
    for _ in range(3):
        loss = train_epoch(model, make_loader(32, rank, world_size), optimizer)
        alone_loss = train_on_one(alone, make_loader(32), alone_optimizer)
        assert loss == pytest.approx(alone_loss, rel=1e-6)
    assert_same_state(state_of(model, optimizer), state_of(alone, alone_optimizer))


def train_on_one(model, loader, optimizer):
    """What train_epoch does, written out."""
    model.train()
    total = items = 0
    for minibatch in loader:
        optimizer.zero_grad()
        with keyed_rng(minibatch.key, "cpu"):
            output = forward_features(model, minibatch)
            loss = torch.nn.functional.cross_entropy(output, minibatch.labels)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(minibatch.labels)
        items += len(minibatch.labels)
    return total / items


def refuse_lists_of_unequal_length(rank, world_size):
    model, _ = make_model()
    with pytest.raises(ValueError, match=r"lists of \[3, 2\] entries"):
        evaluate(model, make_loader(150, rank, world_size), batch_sizes())
    # As many on each: nothing to refuse.
    assert evaluate(model, make_loader(128, rank, world_size), batch_sizes()) == 128


def resume_on_ranks(rank, world_size, folder):
    """Checkpoints of every step of two uneven epochs; each goes on to the same weights."""
    epochs, items = 2, 150

    def start(directory, every):
        model, optimizer = make_model(ddp=True)
        loader = make_loader(items, rank, world_size)
        return TrainingRun(model, optimizer, loader, directory=directory, every=every)

    def go_on(run, after_batch):
        while run.epoch < epochs:
            train_epoch(
                run.model, run.loader, run.optimizer, total=run.total, after_batch=after_batch
            )
            run.end_epoch(float(run.epoch))
        return state_of(run.model, run.optimizer)

    copies = []

    def keep_copy():
        whole.after_batch()
        if rank == 0:
            copies.append(folder / f"copy-{len(copies)}")
            copies[-1].mkdir()
            os.link(folder / "checkpoint.pt", copies[-1] / "checkpoint.pt")

    whole = start(folder, 1)
    want = go_on(whole, keep_copy)
    dist.barrier()
    found = sorted(folder.glob("copy-*"))
    assert len(found) == 6  # 3 steps of rank 0, which has a mini-batch more, in 2 epochs
    for copy in found:
        run = start(copy, 0)
        assert run.resume()
        assert_same_state(go_on(run, None), want)
        dist.barrier()


def killed_in_mid_epoch(rank, world_size, device, folder):
    """Rank 1 is killed after its second mini-batch, inside Join."""
    write_pid(folder, rank)
    model, optimizer = make_model(ddp=True)
    steps = []

    def after_batch():
        steps.append(1)
        if rank == 1 and len(steps) == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    train_epoch(model, make_loader(300, rank, world_size), optimizer, after_batch=after_batch)
    raise AssertionError("rank 0 went on without rank 1")


def leave_traces(rank: int, world_size: int, device: torch.device, folder: str) -> None:
    """Exit functions, a finaliser and a thread that outlives the function, each with a file."""
    atexit.register((Path(folder) / f"atexit-{rank}").touch)
    owner = Owner()
    OWNERS.append(owner)
    weakref.finalize(owner, (Path(folder) / f"finalize-{rank}").touch)

    def late() -> None:
        time.sleep(0.5)
        (Path(folder) / f"thread-{rank}").touch()

    threading.Thread(target=late).start()


class Owner:
    """Something that lives until its process ends."""


OWNERS: list[Owner] = []
