"""When a data set is preprocessed anew: inputs, options, formats and damage."""

import os
import shutil

import numpy as np
import pytest

from hopline.pipes.datasets import OnDiskDataset
from tests.pipes.datasets.dataset_files import TINY_EDGES, npy, tiny, write
from tests.pipes.datasets.test_dataset_csc import weights_of
from tests.pipes.datasets.test_dataset_publish import check, identity, rebuilt


def test_nothing_changed(tmp_path, capsys, monkeypatch):
    folder = write(tmp_path / "d", *tiny())
    check(folder)
    before = identity(folder)
    assert capsys.readouterr() == ("", "")
    check(folder)
    monkeypatch.chdir(tmp_path)
    check("d")
    monkeypatch.chdir(folder)
    check(".")
    moved = tmp_path / "elsewhere" / "e"
    moved.parent.mkdir()
    monkeypatch.chdir(tmp_path)
    folder.rename(moved)
    check(moved)
    assert identity(moved) == before
    copied = tmp_path / "copy"
    shutil.copytree(moved, copied)
    os.utime(copied / "edges.npy", (1, 1))
    before = identity(copied)
    check(copied)
    assert identity(copied) == before
    assert capsys.readouterr() == ("", "")


def test_changed_inputs(tmp_path, capsys):
    document, arrays = tiny()
    folder = write(tmp_path / "d", document, arrays)
    check(folder)
    edges = TINY_EDGES.copy()
    edges[0, 3] = 2  # 0->1 becomes 2->1: same size
    np.save(folder / "edges.npy", edges)
    graph = rebuilt(capsys, folder, "edges.npy has changed").graph
    assert weights_of(graph, range(3))[2, 1] == 13  # the later of two edges 2->1
    np.save(folder / "x.npy", arrays["x.npy"] + 1)  # used where it is, but shapes are recorded
    assert rebuilt(capsys, folder, "x.npy has changed").feature.read("node", None, "x")[0, 0] == 1
    document["tasks"][0]["num_classes"] = 5
    write(folder, document, {})
    dataset = rebuilt(capsys, folder, "metadata.yaml has changed")
    assert dataset.tasks[0].metadata["num_classes"] == 5
    document["feature_data"].append(npy("y.npy", domain="node", name="y"))
    write(folder, document, {"y.npy": np.ones((3, 1))})
    assert ("node", None, "y") in rebuilt(capsys, folder, "y.npy is new").feature
    del document["feature_data"][-1]
    write(folder, document, {})
    assert ("node", None, "y") not in rebuilt(capsys, folder, "metadata.yaml").feature


def test_changed_options(tmp_path, capsys):
    document, arrays = tiny()
    del document["feature_data"][1]
    folder = write(tmp_path / "d", document, arrays)
    graph = OnDiskDataset(folder).load().graph
    assert set(graph.edge_attributes) == {"weight"}
    graph = rebuilt(
        capsys, folder, "include_original_edge_id was False", include_original_edge_id=True
    ).graph
    assert set(graph.edge_attributes) == {"weight", "_ORIGINAL_EDGE_ID"}
    before = identity(folder)
    OnDiskDataset(folder)  # no wish: what is there serves
    assert identity(folder) == before
    rebuilt(capsys, folder, "include_original_edge_id was True", include_original_edge_id=False)
    rebuilt(capsys, folder, "auto_cast_to_optimal_dtype was", auto_cast_to_optimal_dtype=False)


def test_another_format_and_damage(tmp_path, capsys):
    folder = write(tmp_path / "d", *tiny())
    check(folder)
    mark = folder / "preprocessed" / "metadata.yaml"
    text = mark.read_text()
    mark.write_text(text.replace("format_version: 1", "format_version: 0"))
    rebuilt(capsys, folder, "the preprocessed copy has format version 0, and this is 1")
    mark.write_text(text[: len(text) // 2])
    rebuilt(capsys, folder, "the preprocessed copy is damaged")
    (folder / "preprocessed/graph/indices.npy").unlink()
    rebuilt(capsys, folder, "its file graph/indices.npy is gone")
    file = folder / "preprocessed/graph/csc_indptr.npy"
    file.write_bytes(file.read_bytes()[:-8])
    rebuilt(capsys, folder, "its file graph/csc_indptr.npy is gone or incomplete")
    check(folder)


def test_forced_and_forbidden(tmp_path, capsys):
    document, arrays = tiny()
    folder = write(tmp_path / "d", document, arrays)
    check(folder)
    before = identity(folder)
    OnDiskDataset(folder, force_preprocess=True)
    assert identity(folder) != before
    assert "force_preprocess" in capsys.readouterr().err
    before = identity(folder)
    np.save(folder / "weight.npy", arrays["weight.npy"] + 1)
    dataset = OnDiskDataset(folder, force_preprocess=False).load()
    assert identity(folder) == before
    assert dataset.graph.edge_attributes["weight"].max() == 13
    np.save(folder / "x.npy", np.zeros((7, 2), np.float32))  # a raw file that is used in place
    with pytest.raises(ValueError, match=r"x\.npy has float32\[7, 2\].*force_preprocess"):
        OnDiskDataset(folder, force_preprocess=False).load()
    other = write(tmp_path / "e", document, arrays)
    OnDiskDataset(other, force_preprocess=False)  # there is nothing yet
    check(other)
