"""A checkpoint is taken whole or not at all, and a full disk is said to be one."""

from __future__ import annotations

import copy
import errno
import math

import pytest
import torch

import hopline.pipes as hp
from hopline.models import (
    TrainingRun,
    load_checkpoint,
    save_checkpoint,
    train_epoch,
)
from hopline.models import checkpoint as module
from tests.models import ranks
from tests.models.test_checkpoint import start


def parts(items=150, seed=0):
    """Model, optimiser and loader, which have made a step."""
    model, optimizer = ranks.make_model()
    loader = ranks.make_loader(items)
    torch.manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    return model, optimizer, loader


def snapshot(model, optimizer, loader):
    return copy.deepcopy((model.state_dict(), optimizer.state_dict(), loader.state_dict()))


def same(one, two):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, two)
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[k], two[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(same, one, two))
    return one == two


def wider(model):
    """The model with another last parameter, so that those before it fit."""
    name, last = list(model.named_parameters())[-1]
    owner = model.get_submodule(name.rpartition(".")[0])
    wide = torch.nn.Parameter(torch.ones(last.shape[0] + 1, *last.shape[1:]))
    setattr(owner, name.rpartition(".")[2], wide)


def other_model(model, optimizer, loader, run):
    wider(model)


def other_optimizer(model, optimizer, loader, run):
    run.optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def more_groups(model, optimizer, loader, run):
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))]})


def other_settings(model, optimizer, loader, run):
    run.settings = {"lr": 0.2}


OTHERS = {
    "model": (other_model, "belongs to another run: .*size mismatch"),
    "optimizer": (other_optimizer, "belongs to another run: the optimizer was Adam and is SGD"),
    "groups": (more_groups, "belongs to another run"),
    "settings": (other_settings, "lr is 0.1 in the checkpoint and 0.2 here"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_refused_changes_nothing(tmp_path, name):
    model, optimizer, loader = parts(seed=1)
    next(iter(loader))
    run = TrainingRun(model, optimizer, loader, directory=tmp_path, every=1, settings={"lr": 0.1})
    run.after_batch()

    model, optimizer, loader = parts(seed=2)
    run = TrainingRun(model, optimizer, loader, directory=tmp_path, settings={"lr": 0.1})
    change, words = OTHERS[name]
    change(model, optimizer, loader, run)
    before = snapshot(model, run.optimizer, loader)
    with pytest.raises(ValueError, match=rf"(?s)checkpoint.pt: {words}"):
        run.resume()
    assert same(snapshot(model, run.optimizer, loader), before)
    assert (run.epoch, run.best_epoch) == (0, -1)


DAMAGED = [
    (name, value) for name in ("model", "optimizer", "loader", "extra") for value in (None, 3)
]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(("name", "value"), [*DAMAGED, ("loader", {}), ("optimizer", {})])
def test_a_damaged_part_is_one_error_on_every_rank(tmp_path, monkeypatch, rank, name, value):
    monkeypatch.setattr(module, "rank_of", lambda: rank)
    model, optimizer, loader = parts()
    path = save_checkpoint(tmp_path, model, optimizer, loader)
    torch.save({**torch.load(path, weights_only=True), name: value}, path)
    before = snapshot(model, optimizer, loader)
    with pytest.raises(ValueError, match=r"checkpoint.pt: "):
        load_checkpoint(tmp_path, model, optimizer, loader)
    assert same(snapshot(model, optimizer, loader), before)


@pytest.mark.parametrize("value", [True, 1.0, "1", None])
def test_a_version_is_an_int(tmp_path, value):
    path = save_checkpoint(tmp_path, *parts())
    torch.save({**torch.load(path, weights_only=True), "version": value}, path)
    with pytest.raises(ValueError, match=r"version .*; this release reads 1"):
        load_checkpoint(tmp_path, *parts())


def test_what_save_checkpoint_wrote_is_no_run(tmp_path):
    save_checkpoint(tmp_path, *parts())
    with pytest.raises(ValueError, match=r"checkpoint.pt: not saved by a TrainingRun"):
        start(tmp_path).resume()


@pytest.mark.parametrize("value", [math.nan, torch.arange(3), (1, "a"), [math.inf]], ids=repr)
def test_settings_that_are_not_equal_to_themselves(tmp_path, value):
    start(tmp_path, value=value).end_epoch(1.0)
    assert start(tmp_path, value=copy.deepcopy(value)).resume()
    with pytest.raises(ValueError, match=r"value is .* in the checkpoint and 7 here"):
        start(tmp_path, value=7).resume()


class Full:
    """A disk with room for some bytes."""

    def __init__(self, file, room):
        self.file = file
        self.room = room

    def write(self, data):
        if self.room < len(data):
            raise OSError(errno.ENOSPC, "No space left on device")
        self.room -= len(data)
        return self.file.write(data)

    def __getattr__(self, name):
        return getattr(self.file, name)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_full_disk_is_named_and_the_old_checkpoint_stays(tmp_path, monkeypatch, share):
    path = save_checkpoint(tmp_path, *parts(seed=1), {"number": 1})
    before = path.read_bytes()
    plain, room = module._Writer, int(share * len(before))
    monkeypatch.setattr(module, "_Writer", lambda file: plain(Full(file, room)))
    with pytest.raises(OSError, match="No space left on device") as caught:
        save_checkpoint(tmp_path, *parts(seed=2), {"number": 2})
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(path))
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_an_epoch_that_was_ended_early_is_not_taken_up_again(tmp_path):
    """A loop of one's own that breaks: its next epoch is a new one, also after a kill."""

    def epoch(run, last):
        seen = []
        for minibatch in run.loader:
            seen.append(minibatch.key)
            run.after_batch()
            if len(seen) == last:
                break
        run.end_epoch(0.5)
        return seen

    whole = start(tmp_path / "whole")
    wanted = [epoch(whole, 2) for _ in range(3)]
    killed = start(tmp_path / "killed")
    got = [epoch(killed, 2)]
    again = start(tmp_path / "killed")
    assert again.resume()
    assert again.epoch == 1
    got += [epoch(again, 2) for _ in range(2)]
    assert got == wanted


def test_a_run_keeps_its_own_count_of_epochs(tmp_path):
    """Its loader may have been taken elsewhere in between, e.g. by an evaluation of it."""
    run = start(tmp_path)
    for epoch in range(3):
        assert run.epoch == epoch
        train_epoch(run.model, run.loader, run.optimizer, total=run.total)
        run.loader.load_state_dict({**run.loader.state_dict(), "epoch": 1, "batch": 0})
        run.end_epoch(0.5)
    again = start(tmp_path)
    assert again.resume()
    assert (again.epoch, again.loader.epoch) == (3, 1)


def test_a_checkpoint_of_other_ranks_is_refused_on_every_rank(tmp_path, monkeypatch):
    """Not on rank 0 alone, for which the others would wait."""

    def loader(rank, of):
        items = hp.ItemSet(40, names="seeds")
        return hp.DataLoader(
            hp.DistributedItemSampler(items, 4, seed=1, num_replicas=of, rank=rank)
        )

    model, optimizer, _ = parts()
    save_checkpoint(tmp_path, model, optimizer, loader(0, 3))
    for rank in range(2):
        monkeypatch.setattr(module, "rank_of", lambda rank=rank: rank)
        with pytest.raises(ValueError, match="num_replicas: 3 in the state, 2 here"):
            load_checkpoint(tmp_path, model, optimizer, loader(rank, 2))
    monkeypatch.setattr(module, "rank_of", lambda: 2)
    load_checkpoint(tmp_path, model, optimizer, loader(2, 3))
