"""A new result takes the place of an older one: at no moment is there none of the two."""

import os
import shutil
import signal

import numpy as np
import pytest

from hopline.pipes.datasets import OnDiskDataset, location, preprocess_ondisk_dataset
from hopline.pipes.datasets import exchange as module
from hopline.pipes.datasets.exchange import exchange
from hopline.pipes.datasets.processed import Processed, load_processed
from tests.pipes.datasets.dataset_files import tiny, write
from tests.pipes.datasets.test_dataset_publish import check, drive, identity, leftovers, posix


def can_exchange(folder):
    """Whether system and file system can, found out without the function that is tested."""
    for name in "ab":
        (folder / f"can-{name}").mkdir()
    return exchange(folder / "can-a", folder / "can-b")


def changed(folder):
    """A data set that is prepared, and whose weights have changed since."""
    document, arrays = tiny()
    write(folder, document, arrays)
    OnDiskDataset(folder)
    np.save(folder / "weight.npy", arrays["weight.npy"] + 100)
    return folder


def test_two_folders_change_names(tmp_path):
    if not can_exchange(tmp_path):
        pytest.skip("the system or the file system cannot exchange folders")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "name").write_text(name)
    assert exchange(tmp_path / "one", tmp_path / "two")
    assert [(tmp_path / name / "name").read_text() for name in ("one", "two")] == ["two", "one"]


def test_what_cannot_be_exchanged_stays(tmp_path, monkeypatch):
    (tmp_path / "one").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "one")
    assert not exchange(tmp_path / "one", tmp_path / "none")
    assert not exchange(tmp_path / "one", tmp_path / "link")
    assert (tmp_path / "link").is_symlink()

    def absent(*arguments, **keywords):
        raise OSError("no such library")

    monkeypatch.setattr(module.ctypes, "CDLL", absent)
    (tmp_path / "two").mkdir()
    assert not exchange(tmp_path / "one", tmp_path / "two")


@pytest.mark.parametrize("at_once", [True, False])
def test_the_folder_is_there_at_every_change_of_names(tmp_path, monkeypatch, at_once):
    """Whoever looks, or dies, between two steps finds a result; by renames alone there is a gap."""
    if at_once and not can_exchange(tmp_path):
        pytest.skip("the system or the file system cannot exchange folders")
    if not at_once:
        monkeypatch.setattr(location, "exchange", lambda one, two: False)
    folder = changed(tmp_path / "d")
    seen = []

    def looking(plain):
        def step(*arguments):
            done = plain(*arguments)
            seen.append((folder / "preprocessed" / "metadata.yaml").exists())
            return done

        return step

    monkeypatch.setattr(location, "exchange", looking(location.exchange))
    monkeypatch.setattr(location.Path, "rename", looking(location.Path.rename))
    check(folder, 100.0)
    assert len(seen) == (1 if at_once else 3)
    assert all(seen) == at_once
    assert leftovers(folder) == []


KILLED = """
from hopline.pipes.datasets import location
location.exchange = lambda one, two: False
def work():
    def hook(event, arguments):
        if event == "os.rename" and str(arguments[1]).endswith("preprocessed"):
            os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)
    OnDiskDataset(sys.argv[2])
print(ended(child(work)), flush=True)
"""


@posix
@pytest.mark.parametrize("force", [False, None])
def test_killed_in_the_gap_of_two_renames(tmp_path, force):
    """The older result is put back, also by a run that takes what is there, without its inputs."""
    folder = changed(tmp_path / "d")
    before = identity(folder)
    warm = write(tmp_path / "warm", *tiny())
    assert drive(KILLED, warm, folder).stdout.split() == [str(-signal.SIGKILL)]
    assert not (folder / "preprocessed").exists()
    assert len(leftovers(folder)) == 2
    if force is None:
        check(folder, 100.0)
        assert leftovers(folder) == []
        return
    for raw in folder.glob("*.npy"):
        raw.rename(raw.with_suffix(".away"))
    preprocess_ondisk_dataset(folder, force_preprocess=False)
    assert identity(folder) == before
    for raw in folder.glob("*.away"):
        raw.rename(raw.with_suffix(".npy"))
    check(folder, 100.0)
    assert leftovers(folder) == []


def test_only_a_result_is_put_back(tmp_path):
    folder = tmp_path / "preprocessed"
    location.put_back(tmp_path / "none" / "preprocessed")
    assert not (tmp_path / "none").exists()
    broken = tmp_path / ".preprocessed.old-1"
    broken.mkdir()
    location.put_back(folder)
    assert not folder.exists()
    document, arrays = tiny()
    write(tmp_path / "d", document, arrays)
    preprocess_ondisk_dataset(tmp_path / "d")
    shutil.copytree(tmp_path / "d" / "preprocessed", tmp_path / ".preprocessed.old-2")
    location.put_back(folder)
    assert isinstance(load_processed(folder), Processed)
    assert sorted(os.listdir(tmp_path / "d" / "preprocessed")) == sorted(os.listdir(folder))
