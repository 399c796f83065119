"""Checkpoints: a run that is stopped anywhere goes on to the same weights, bit for bit."""

from __future__ import annotations

import fcntl
import math
import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from hopline.models import (
    TrainingRun,
    checkpoint_path,
    load_checkpoint,
    save_checkpoint,
    train_epoch,
)
from hopline.models import own_file as own_file_module
from tests.models import ranks

EPOCHS = 2
SPAWN = multiprocessing.get_context("spawn")


class Killed(BaseException):
    pass


def start(directory=None, every=1, **settings):
    model, optimizer = ranks.make_model()
    loader = ranks.make_loader(150)
    return TrainingRun(
        model, optimizer, loader, directory=directory, every=every, settings=settings
    )


def go_on(run, after_batch=None):
    """Losses by epoch, and the state at the end."""
    losses = {}
    while run.epoch < EPOCHS:
        losses[run.epoch] = train_epoch(
            run.model,
            run.loader,
            run.optimizer,
            total=run.total,
            after_batch=after_batch or run.after_batch,
        )
        run.end_epoch(1.0 if run.epoch == 0 else 0.5)
    return losses, ranks.state_of(run.model, run.optimizer)


@pytest.mark.parametrize("stop", range(1, 11))  # two epochs of five mini-batches
def test_a_run_stopped_after_any_batch_goes_on_exactly(tmp_path, stop):
    want = start()
    want_losses, want_state = go_on(want)

    killed, steps = start(tmp_path), []

    def after_batch():
        killed.after_batch()
        steps.append(1)
        if len(steps) == stop:
            raise Killed

    with pytest.raises(Killed):
        go_on(killed, after_batch)

    run = start(tmp_path)
    torch.manual_seed(1234)  # whatever the global generator holds
    assert run.resume()
    assert run.epoch == (stop - 1) // 5
    losses, state = go_on(run)
    ranks.assert_same_state(state, want_state)
    assert losses == {epoch: want_losses[epoch] for epoch in losses}
    assert (run.best_value, run.best_epoch) == (1.0, 0)
    run.load_best()
    want.load_best()
    assert_same_weights(run.model, want.model)
    assert not all(torch.equal(v, want_state[f"model.{k}"]) for k, v in weights(run.model))


def weights(model):
    return list(model.state_dict().items())


def assert_same_weights(model, other):
    for (name, one), (_, two) in zip(weights(model), weights(other), strict=True):
        assert torch.equal(one, two), name


def test_a_run_stopped_between_checkpoints_repeats_what_is_not_saved(tmp_path):
    _, want_state = go_on(start())
    killed, steps = start(tmp_path, every=3), []

    def after_batch():
        killed.after_batch()
        steps.append(1)
        if len(steps) == 10:
            raise Killed

    with pytest.raises(Killed):
        go_on(killed, after_batch)
    run = start(tmp_path)
    assert run.resume()
    assert run.loader.state_dict()["batch"] == 3
    ranks.assert_same_state(go_on(run)[1], want_state)


def test_a_finished_run_has_nothing_left_to_do(tmp_path):
    _, want_state = go_on(start(tmp_path, every=0))
    run = start(tmp_path)
    assert run.resume()
    assert run.epoch == EPOCHS
    losses, state = go_on(run)
    assert losses == {}
    ranks.assert_same_state(state, want_state)


def test_without_a_directory_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = start()
    go_on(run)
    assert not run.resume()
    assert list(tmp_path.iterdir()) == []


def test_the_best_epoch_is_kept():
    run = start()
    values = [math.nan, 0.2, 0.7, 0.7, math.nan, 0.1]
    seen = []
    for value in values:
        with torch.no_grad():
            run.model.layers[0].fc_self.weight += 1
        seen.append(run.model.layers[0].fc_self.weight.clone())
        run.end_epoch(value)
    assert (run.best_value, run.best_epoch) == (0.7, 2)
    run.load_best()
    assert torch.equal(run.model.layers[0].fc_self.weight, seen[2])


def test_other_settings_are_refused_with_both_values(tmp_path):
    go_on(start(tmp_path, lr=0.01, hidden=8))
    with pytest.raises(ValueError, match=r"lr is 0.01 in the checkpoint and 0.02 here"):
        start(tmp_path, lr=0.02, hidden=8).resume()
    with pytest.raises(ValueError, match=r"hidden is 8 in the checkpoint and None here"):
        start(tmp_path, lr=0.01).resume()


def test_another_pipeline_or_model_is_refused(tmp_path):
    run = start(tmp_path)
    go_on(run)
    model, optimizer = ranks.make_model()
    with pytest.raises(ValueError, match=r"checkpoint.pt: belongs to another run: .*150.*140"):
        load_checkpoint(tmp_path, model, optimizer, ranks.make_loader(140))
    with pytest.raises(ValueError, match=r"checkpoint.pt: belongs to another run"):
        load_checkpoint(tmp_path, torch.nn.Linear(1, 1), optimizer, ranks.make_loader(150))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not a checkpoint, or damaged"),
        (b"no such thing", "not a checkpoint, or damaged"),
        ({"model": {}}, "expected the keys"),
        ({"version": 99, "model": {}, "optimizer": {}, "loader": {}, "extra": {}}, "version 99"),
        ("whole", "damaged"),
    ],
)
def test_what_is_no_checkpoint_is_refused(tmp_path, content, words):
    path = checkpoint_path(tmp_path)
    run = start()
    if content == "whole":
        whole = save_checkpoint(tmp_path, run.model, run.optimizer, run.loader).read_bytes()
        content = whole[: len(whole) // 2]
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    with pytest.raises(ValueError, match=f"checkpoint.pt: .*{words}"):
        load_checkpoint(tmp_path, run.model, run.optimizer, run.loader)


class Attack:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return (os.mkdir, (str(self.folder),))


def test_a_checkpoint_cannot_run_code(tmp_path):
    run = start()
    torch.save({"model": Attack(tmp_path / "made")}, checkpoint_path(tmp_path))
    with pytest.raises(ValueError, match="not a checkpoint, or damaged"):
        load_checkpoint(tmp_path, run.model, run.optimizer, run.loader)
    assert not (tmp_path / "made").exists()


def test_no_checkpoint(tmp_path):
    run = start(tmp_path / "none")
    assert not run.resume()
    with pytest.raises(FileNotFoundError, match="there is no checkpoint"):
        load_checkpoint(tmp_path / "none", run.model, run.optimizer, run.loader)


def test_a_failed_write_leaves_the_old_checkpoint(tmp_path):
    run = start()
    save_checkpoint(tmp_path, run.model, run.optimizer, run.loader, {"number": 1})
    before = checkpoint_path(tmp_path).read_bytes()
    with pytest.raises(TypeError, match="is a function, which a checkpoint cannot give back"):
        save_checkpoint(tmp_path, run.model, run.optimizer, run.loader, {"number": lambda: 0})
    assert checkpoint_path(tmp_path).read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.pt"]


def save_often(folder, begin):
    """Saves again and again, weights of one number each."""
    model = torch.nn.Linear(300, 300)
    optimizer = torch.optim.SGD(model.parameters())
    begin.wait(120)
    for number in range(60):
        with torch.no_grad():
            for p in model.parameters():
                p.fill_(number)
        save_checkpoint(folder, model, optimizer)


def test_of_writers_at_once_each_checkpoint_is_whole(tmp_path):
    """A job that is started again while the old one still saves; all ranks instead of rank 0."""
    model = torch.nn.Linear(300, 300)
    optimizer = torch.optim.SGD(model.parameters())
    save_checkpoint(tmp_path, model, optimizer)
    begin = SPAWN.Barrier(2)
    writers = [SPAWN.Process(target=save_often, args=(tmp_path, begin)) for _ in range(2)]
    for writer in writers:
        writer.start()
    seen = set()
    while any(writer.is_alive() for writer in writers):
        load_checkpoint(tmp_path, model, optimizer)
        values = torch.cat([p.detach().flatten() for p in model.parameters()]).unique()
        seen.add(values[0].item() if len(values) == 1 else None)
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert len(seen) > 3, "too few saves were seen"
    assert len(seen & {None}) <= 1, "of the first, whose weights are random"
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.pt"]


def test_what_a_dead_writer_left_is_removed_and_a_living_one_s_stays(tmp_path):
    run = start()
    left, held = tmp_path / ".checkpoint.pt.tmp-dead", tmp_path / ".checkpoint.pt.tmp-held"
    left.write_bytes(b"half")
    with held.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        save_checkpoint(tmp_path, run.model, run.optimizer, run.loader)
        assert not left.exists()
        assert held.exists()
    save_checkpoint(tmp_path, run.model, run.optimizer, run.loader)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.pt"]


def test_a_file_that_is_taken_for_a_dead_writer_s_is_made_anew(tmp_path, monkeypatch):
    """Between its making and its lock."""
    plain, taken = own_file_module._locked, []

    def late(file):
        if not taken:
            taken.append(file.name)
            os.unlink(file.name)
        return plain(file)

    monkeypatch.setattr(own_file_module, "_locked", late)
    with own_file_module.own_file(tmp_path / "f") as file:
        file.write(b"whole")
    assert taken
    assert (tmp_path / "f").read_bytes() == b"whole"
    assert len(list(tmp_path.iterdir())) == 1


def test_extra_comes_back(tmp_path):
    run = start()
    extra = {"a": torch.arange(3), "b": [1, 2.5, None, "x"], "c": {"d": (True, math.inf)}}
    save_checkpoint(tmp_path, run.model, run.optimizer, run.loader, extra)
    got = load_checkpoint(tmp_path, run.model, run.optimizer, run.loader)
    assert torch.equal(got.pop("a"), extra.pop("a"))
    assert got == extra


def test_every_below_zero():
    with pytest.raises(ValueError, match="every is -1"):
        start(every=-1)


@pytest.mark.parametrize(
    "value", [np.float64(0.5), np.float32(0.5), np.int64(1), torch.tensor(0.5)], ids=repr
)
def test_numbers_of_numpy_do_not_spoil_a_checkpoint(tmp_path, value):
    run = start(tmp_path, rate=np.float64(0.1), sizes=[np.int64(2)])
    for group in run.optimizer.param_groups:
        group["lr"] = np.float64(0.25)
    for _ in run.loader:
        pass
    run.end_epoch(value)
    again = start(tmp_path, rate=0.1, sizes=[2])
    assert again.resume()
    assert again.epoch == 1
    assert again.best_value == run.best_value == value.item()
    assert again.optimizer.param_groups[0]["lr"] == 0.25


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({"path": Path("a")}, r"extra\['settings'\]\['path'\] is a .*Path"),
        ({"list": [1, np.ones(2)]}, r"extra\['settings'\]\['list'\]\[1\] is a ndarray"),
        ({"odd": {Killed: 1}}, r"extra\['settings'\]\['odd'\] is a type"),
    ],
    ids=["path", "array", "key"],
)
def test_what_could_not_be_read_again_is_refused_and_the_old_checkpoint_stays(
    tmp_path, settings, where
):
    run = start(tmp_path)
    run.after_batch()
    run.settings = settings
    before = checkpoint_path(tmp_path).read_bytes()
    with pytest.raises(TypeError, match=where):
        run.end_epoch(0.5)
    assert checkpoint_path(tmp_path).read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [checkpoint_path(tmp_path).name]


def test_without_a_loader(tmp_path):
    model, optimizer = ranks.make_model()
    optimizer.step()
    save_checkpoint(tmp_path / "plain", model, optimizer, extra={"epoch": 3})
    other, its_optimizer = ranks.make_model()
    with torch.no_grad():
        next(other.parameters()).zero_()
    assert load_checkpoint(tmp_path / "plain", other, its_optimizer) == {"epoch": 3}
    assert_same_weights(other, model)
    loader = ranks.make_loader(150)
    with pytest.raises(ValueError, match="saved without a loader, and got one"):
        load_checkpoint(tmp_path / "plain", other, its_optimizer, loader)
    save_checkpoint(tmp_path / "place", model, optimizer, loader)
    with pytest.raises(ValueError, match="saved with a loader's place, and there is none"):
        load_checkpoint(tmp_path / "place", other, its_optimizer)
