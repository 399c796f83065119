"""Where a preprocessed data set goes, and what others have there."""

import os

import numpy as np
import pytest
import yaml

from hopline.pipes.datasets import (
    OnDiskDataset,
    fingerprint,
    location,
    preprocess_ondisk_dataset,
)
from hopline.pipes.datasets.builtin import builtin_root
from tests.pipes.datasets.dataset_files import tiny, typed, write
from tests.pipes.datasets.test_dataset_publish import check, posix


def test_only_arrays_and_yaml(tmp_path):
    folder = write(tmp_path / "d", *typed())
    OnDiskDataset(folder)
    files = [path for path in (folder / "preprocessed").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".npy", ".yaml"}
    for path in files:
        if path.suffix == ".npy":
            np.load(path, allow_pickle=False)
        else:
            yaml.safe_load(path.read_text())
    # Features that can be mapped as they are stay where they are.
    assert not [path for path in files if "_x" in path.name]


def test_argument_and_environment(tmp_path, monkeypatch):
    folder = write(tmp_path / "d", *tiny())
    given = tmp_path / "out" / "deep"
    result = preprocess_ondisk_dataset(folder, processed_path=given)
    assert result == given / "metadata.yaml"
    dataset = OnDiskDataset(folder, processed_path=given).load()
    assert dataset.processed_path == given
    monkeypatch.setenv("HOPLINE_PROCESSED_PATH", str(tmp_path / "root"))
    assert OnDiskDataset(folder, processed_path=given).processed_path == given
    place = check(folder).processed_path
    assert place.parent == tmp_path / "root"
    assert place.name.startswith("tiny-")
    other = write(tmp_path / "e", *tiny())  # the same name, another folder
    assert check(other).processed_path != place
    monkeypatch.chdir(folder)
    assert check(".").processed_path == place
    assert not (folder / "preprocessed").exists()


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    folder = write(tmp_path / "d", *tiny())
    monkeypatch.setattr(location, "is_writable", lambda path: False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before = sorted(folder.iterdir())
    place = check(folder).processed_path
    assert place.is_relative_to(tmp_path / "cache" / "hopline")
    assert sorted(folder.iterdir()) == before
    number = (place / "metadata.yaml").stat().st_ino
    check(folder)
    assert OnDiskDataset(folder, force_preprocess=False).processed_path == place
    assert (place / "metadata.yaml").stat().st_ino == number
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert check(folder).processed_path.is_relative_to(tmp_path / "home" / ".cache" / "hopline")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # invalid, says the specification
    assert check(folder).processed_path.is_relative_to(tmp_path / "home" / ".cache" / "hopline")


@posix
def test_a_user_without_a_home(tmp_path, monkeypatch):
    """As in containers that run under a number that no user has."""
    import pwd

    folder = write(tmp_path / "d", *tiny())
    for name in ("HOME", "USERPROFILE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def nobody(number):
        raise KeyError(number)

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert check(folder).processed_path == folder / "preprocessed"
    assert OnDiskDataset(folder, force_preprocess=False).processed_path == folder / "preprocessed"
    other = write(tmp_path / "e", *tiny())
    monkeypatch.setattr(location, "is_writable", lambda path: False)
    with pytest.raises(PermissionError, match=r"e cannot be written to.* give a processed_path"):
        OnDiskDataset(other)
    monkeypatch.delenv("HOPLINE_DATASETS", raising=False)
    with pytest.raises(FileNotFoundError, match=r"no home folder .* give root, or set HOPLINE_DA"):
        builtin_root()


def test_a_good_copy_in_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    folder = write(tmp_path / "d", *tiny())
    check(folder)
    (folder / ".preprocessed.lock").unlink()
    monkeypatch.setattr(location, "is_writable", lambda path: False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert check(folder).processed_path == folder / "preprocessed"
    assert not (folder / ".preprocessed.lock").exists()
    np.save(folder / "weight.npy", tiny()[1]["weight.npy"] + 5)  # by its owner, who forgot the rest
    assert check(folder, 5.0).processed_path.is_relative_to(tmp_path / "cache")


def test_a_folder_marked_read_only_is_left_alone_also_by_root(tmp_path):
    folder = tmp_path / "marked"
    folder.mkdir()
    folder.chmod(0o555)
    try:
        assert not location.is_writable(folder)
        assert list(folder.iterdir()) == []
    finally:
        folder.chmod(0o755)
    assert location.is_writable(folder)


def test_is_writable_tries(tmp_path):
    assert location.is_writable(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert not location.is_writable(tmp_path / "nowhere")
    assert not location.is_writable("/proc")


def test_what_others_wrote_is_left_alone(tmp_path):
    folder = write(tmp_path / "d", *tiny())
    theirs = folder / "preprocessed"
    theirs.mkdir()
    (theirs / "metadata.yaml").write_text("graph_topology: {path: graph.pt}\n")
    (theirs / "graph.pt").write_bytes(b"data")
    dataset = check(folder)
    assert dataset.processed_path == folder / "preprocessed-hopline"
    assert sorted(path.name for path in theirs.iterdir()) == ["graph.pt", "metadata.yaml"]
    with pytest.raises(FileExistsError, match="something else"):
        OnDiskDataset(folder, processed_path=theirs)
    with pytest.raises(FileExistsError, match="something else"):
        OnDiskDataset(folder, processed_path=folder, force_preprocess=True)
    assert (theirs / "graph.pt").exists()
    check(folder)


def test_a_link_to_another_disk(tmp_path):
    folder = write(tmp_path / "d", *tiny())
    (tmp_path / "big disk").mkdir()
    (folder / "preprocessed").symlink_to(tmp_path / "big disk")
    check(folder)
    assert (folder / "preprocessed").is_symlink()
    assert (tmp_path / "big disk" / "metadata.yaml").exists()


def test_odd_names(tmp_path):
    document, arrays = typed()
    text = yaml.safe_dump(document).replace("user", "../ü/x\\t")
    document = yaml.safe_load(text.replace("name: x", "name: ../../etc/x"))
    document["dataset_name"] = "../../outside"
    for entry in document["graph"]["feature_data"]:
        entry["path"] = entry["path"].replace("../ü/x\\t", "user")
    for entry in document["feature_data"]:
        entry["path"] = entry["path"].replace("../ü/x\\t", "user")
        entry["name"] = "../../etc/x"
    document["graph"]["feature_data"][0]["name"] = document["graph"]["feature_data"][1]["name"] = (
        "../w"
    )
    folder = write(tmp_path / "a" / "d", document, arrays)
    dataset = OnDiskDataset(folder).load()
    assert dataset.graph.edge_attributes["../w"].shape == (7,)
    assert dataset.graph.num_nodes == {"../ü/x\\t": 4, "item": 3}
    assert dataset.feature.read("node", "item", "../../etc/x").eq(2).all()
    outside = [
        path for path in tmp_path.rglob("*") if not path.is_relative_to(tmp_path / "a" / "d")
    ]
    assert outside == [tmp_path / "a"]


def test_fingerprints(tmp_path, monkeypatch):
    path = tmp_path / "f"
    path.write_bytes(bytes(1000))
    small = fingerprint.fingerprint(path)
    os.utime(path, ns=(5, 5))
    assert fingerprint.fingerprint(path) == small  # content alone
    path.write_bytes(bytes(999) + b"x")
    assert fingerprint.fingerprint(path) != small
    monkeypatch.setattr(fingerprint, "WHOLE", 100)
    monkeypatch.setattr(fingerprint, "BLOCK", 4)
    large = fingerprint.fingerprint(path)
    os.utime(path, ns=(6, 6))
    changed = fingerprint.fingerprint(path)
    assert changed != large
    assert changed["sampled_blake2b"] == large["sampled_blake2b"]
    path.write_bytes(bytes(1000))
    os.utime(path, ns=(6, 6))  # the last block is a sample
    assert fingerprint.fingerprint(path) != changed
