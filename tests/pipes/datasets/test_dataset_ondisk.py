"""OnDiskDataset: what load() gives, when it reads, how it travels."""

import pickle
import sys
import tracemalloc

import numpy as np
import pytest
import torch

from hopline.pipes.datasets import MetadataError, OnDiskDataset, OnDiskTask
from hopline.pipes.features import DiskBasedFeature, TorchBasedFeature
from hopline.pipes.items import HeteroItemSet, ItemSet
from hopline.pipes.npy import read_npy
from tests.pipes.datasets.dataset_files import npy, tiny, typed, write


def copied(thing):
    """What another process gets."""
    return pickle.loads(pickle.dumps(thing))  # noqa: S301


@pytest.fixture
def typed_folder(tmp_path):
    return write(tmp_path / "d", *typed())


def test_homogeneous(tmp_path):
    dataset = OnDiskDataset(write(tmp_path / "d", *tiny())).load()
    assert dataset.dataset_name == "tiny"
    assert dataset.graph.num_nodes == 3
    assert dataset.graph.num_edges == 4
    assert dataset.graph.node_type_offset is None
    task = dataset.tasks[0]
    assert task.metadata == {"name": "classify", "num_classes": 2}
    assert isinstance(task.train_set, ItemSet)
    assert task.train_set.names == ("seeds", "labels")
    assert task.train_set[0] == (0, 1)
    assert task.validation_set is None
    assert task.test_set is None
    nodes = dataset.all_nodes_set
    assert nodes.names == ("seeds",)
    assert nodes[:].tolist() == [0, 1, 2]
    assert nodes[:].dtype == dataset.graph.indices.dtype == torch.int32


def test_heterogeneous(typed_folder):
    dataset = OnDiskDataset(typed_folder).load()
    train = dataset.tasks[0].train_set
    assert isinstance(train, HeteroItemSet)
    assert train.names == ("seeds", "labels")
    assert {key: len(value) for key, value in train.itemsets.items()} == {
        "user:likes:item": 2,
        "user:follows:user": 1,
    }
    pairs, labels = train.itemsets["user:likes:item"][:]
    assert pairs.tolist() == [[3, 2], [0, 0]]  # local to their types
    assert pairs.dtype == torch.int32
    assert labels.tolist() == [1.0, 0.0]
    assert dataset.tasks[1].train_set.itemsets["item"][:][0].tolist() == [2, 1]
    assert {key: len(value) for key, value in dataset.all_nodes_set.itemsets.items()} == {
        "item": 3,
        "user": 4,
    }
    # One name, several types and domains: each is a feature of its own.
    assert dataset.feature.read("node", "user", "x").eq(1).all()
    assert dataset.feature.read("node", "item", "x").eq(2).all()
    likes = dataset.feature.read("edge", "user:likes:item", "x")
    assert likes.flatten().tolist() == [0.5, 1.5, 2.5, 3.5]
    assert dataset.feature.metadata("node", "item", "x") == {"source": "made up"}
    assert dataset.feature.metadata("node", "user", "x") == {}


def test_a_relation_to_be_predicted_need_not_be_in_the_graph(tmp_path):
    document, arrays = typed()
    document["tasks"][0]["train_set"][0]["type"] = "user:buys:item"
    dataset = OnDiskDataset(write(tmp_path / "d", document, arrays)).load()
    assert "user:buys:item" in dataset.tasks[0].train_set.itemsets


def test_columns_without_names(tmp_path):
    document, arrays = tiny()
    for column in document["tasks"][0]["train_set"][0]["data"]:
        del column["name"]
    train = OnDiskDataset(write(tmp_path / "d", document, arrays)).load().tasks[0].train_set
    assert train.names is None
    assert train[1] == (2, 0)


@pytest.mark.parametrize("name", ["tasks", "graph", "feature", "dataset_name", "all_nodes_set"])
def test_before_load(tmp_path, name):
    dataset = OnDiskDataset(write(tmp_path / "d", *tiny()))
    with pytest.raises(RuntimeError, match=r"load\(\)"):
        getattr(dataset, name)
    assert dataset.yaml_data["dataset_name"] == "tiny"
    assert dataset.load() is dataset
    getattr(dataset, name)


def test_load_twice_by_a_relative_path(tmp_path, monkeypatch):
    write(tmp_path / "d", *tiny())
    monkeypatch.chdir(tmp_path)
    dataset = OnDiskDataset("d")
    first = dataset.load().feature.read("node", None, "x")
    monkeypatch.chdir("/")
    assert torch.equal(dataset.load().feature.read("node", None, "x"), first)
    assert len(dataset.tasks) == 1
    assert dataset.yaml_data == OnDiskDataset(tmp_path / "d").yaml_data


def test_choice_of_tasks(typed_folder):
    dataset = OnDiskDataset(typed_folder)
    assert [t.metadata["name"] for t in dataset.load().tasks] == ["link", "node"]
    assert [t.metadata["name"] for t in dataset.load("node").tasks] == ["node"]
    assert [t.metadata["name"] for t in dataset.load(["node", "link"]).tasks] == ["node", "link"]
    assert dataset.load([]).tasks == []
    with pytest.raises(ValueError, match=r"'nodes'.*\['link', 'node'\]"):
        dataset.load("nodes")
    for wrong in (3, ("link",), [1], {"link"}):
        with pytest.raises(TypeError, match="tasks is"):
            dataset.load(wrong)


def test_sets_are_read_when_asked_for(typed_folder, monkeypatch):
    read = []
    real = sys.modules["hopline.pipes.datasets.ondisk"].read_npy

    def spy(path, **keys):
        read.append(path.name)
        return real(path, **keys)

    monkeypatch.setattr("hopline.pipes.datasets.ondisk.read_npy", spy)
    dataset = OnDiskDataset(typed_folder).load()
    read.clear()  # raw features are looked at, to see that they are still the same
    tasks = dataset.tasks
    assert read == []
    first = tasks[1].train_set
    assert read == ["0-0-seeds.npy"]
    assert tasks[1].train_set is first
    assert read == ["0-0-seeds.npy"]


def test_a_task_that_is_not_used_costs_no_memory(tmp_path):
    document, arrays = tiny()
    big = {"name": "big", "train_set": [{"data": [npy("big.npy", name="seeds")]}]}
    document["tasks"].append(big)
    folder = write(tmp_path / "d", document, {**arrays, "big.npy": np.zeros(8_000_000, np.int64)})
    OnDiskDataset(folder)  # preprocesses
    tracemalloc.start()
    try:
        dataset = OnDiskDataset(folder).load()
        assert len(dataset.tasks[0].train_set) == 2
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
        assert len(dataset.tasks[1].train_set) == 8_000_000
        assert tracemalloc.get_traced_memory()[1] > 32_000_000
    finally:
        tracemalloc.stop()


def test_mapped_or_read(tmp_path):
    document, arrays = tiny()
    document["feature_data"][0]["in_memory"] = False
    document["tasks"][0]["train_set"][0]["data"][1]["in_memory"] = False
    folder = write(tmp_path / "d", document, arrays)
    before = {path: path.read_bytes() for path in folder.rglob("*.npy")}
    dataset = OnDiskDataset(folder).load()
    assert isinstance(dataset.feature["node", None, "x"], DiskBasedFeature)
    assert not isinstance(dataset.feature["edge", None, "e"], DiskBasedFeature)
    assert isinstance(dataset.feature["edge", None, "e"], TorchBasedFeature)
    # Writing to what was loaded changes this process's copy, and no file.
    dataset.tasks[0].train_set[:][1].fill_(7)
    dataset.tasks[0].train_set[:][0].fill_(7)
    dataset.feature.read("node", None, "x").fill_(7)
    dataset.feature["edge", None, "e"].update(torch.full((4, 1), 7.0))
    dataset.graph.edge_attributes["weight"].fill_(7)
    dataset.graph.indices.fill_(0)
    for path, content in before.items():
        assert path.read_bytes() == content
    again = OnDiskDataset(folder).load()
    assert again.tasks[0].train_set[:][1].tolist() == [1, 0]
    assert again.graph.edge_attributes["weight"].max() == 13


def test_travels_as_paths(tmp_path, monkeypatch):
    document, arrays = tiny()
    arrays["x.npy"] = np.arange(3 * 50_000, dtype=np.float32).reshape(3, 50_000)
    folder = write(tmp_path / "d", document, arrays)
    dataset = OnDiskDataset(folder)
    with pytest.raises(RuntimeError, match="load"):
        _ = copied(dataset).graph
    dataset.load("classify")
    assert dataset.tasks[0].train_set is not None
    assert len(pickle.dumps(dataset)) < 2_000

    def refuse(*args, **keys):
        raise AssertionError("the other side need not compare the inputs again")

    monkeypatch.setattr("hopline.pipes.datasets.ondisk.preprocess_ondisk_dataset", refuse)
    copy = copied(dataset)
    assert torch.equal(copy.graph.indices, dataset.graph.indices)
    assert copy.tasks[0].train_set[0] == (0, 1)
    assert torch.equal(copy.feature.read("node", None, "x"), torch.from_numpy(arrays["x.npy"]))
    assert copy.tasks[0].metadata == dataset.tasks[0].metadata
    assert len(pickle.dumps(dataset.tasks[0])) < 2_000
    assert copied(dataset.tasks[0]).train_set[1] == (2, 0)


def test_a_subclass_travels_whole(tmp_path):
    dataset = Named(write(tmp_path / "d", *tiny())).load()
    dataset.colour = "blue"
    assert copied(dataset).colour == "blue"


class Named(OnDiskDataset):
    pass


def test_task_from_item_sets():
    train = ItemSet(3, names="seeds")
    task = OnDiskTask({"name": "t"}, train, None, lambda: ItemSet(2, names="seeds"))
    assert task.train_set is train
    assert task.validation_set is None
    assert len(task.test_set) == 2
    assert "train_set" in repr(task)
    assert "validation_set" not in repr(task)


def test_a_result_that_is_gone(tmp_path):
    dataset = OnDiskDataset(write(tmp_path / "d", *tiny())).load()
    (tmp_path / "d" / "preprocessed" / "metadata.yaml").unlink()
    with pytest.raises(RuntimeError, match=r"preprocess .* again"):
        copied(dataset)


def test_a_result_that_is_made_of_other_inputs_later(tmp_path):
    """What is read late would be the new one, and the graph the old one."""
    document, arrays = tiny()
    document["tasks"][0]["test_set"] = document["tasks"][0]["train_set"]
    folder = write(tmp_path / "d", document, arrays)
    opened, loaded = OnDiskDataset(folder), OnDiskDataset(folder).load()
    task = loaded.tasks[0]
    assert task.train_set[0] == (0, 1)
    OnDiskDataset(folder, force_preprocess=True)  # the same again
    assert task.test_set[0] == (0, 1)
    fresh = copied(loaded)
    assert fresh.tasks[0].test_set[0] == (0, 1)
    np.save(folder / "seeds.npy", np.array([1, 1]))
    OnDiskDataset(folder)
    assert task.train_set[0] == (0, 1)
    words = r"preprocessed has changed since the data set was loaded.*; load it anew: OnDiskD"
    for late in (
        lambda: fresh.tasks[0].train_set,
        lambda: copied(task).train_set,
        lambda: copied(loaded),
        loaded.load,
        opened.load,
    ):
        with pytest.raises(RuntimeError, match=words):
            late()
    assert OnDiskDataset(folder).load().tasks[0].train_set[0] == (1, 1)
    (folder / "preprocessed" / "metadata.yaml").unlink()
    with pytest.raises(RuntimeError, match="preprocessed is gone since the data set was loaded"):
        _ = fresh.tasks[0].train_set


def test_a_result_that_changes_while_it_is_read(tmp_path, monkeypatch):
    folder = write(tmp_path / "d", *tiny())
    dataset = OnDiskDataset(folder).load()

    def read(*args, **keys):
        np.save(folder / "seeds.npy", np.array([1, 1]))
        OnDiskDataset(folder)
        return read_npy(*args, **keys)

    monkeypatch.setattr("hopline.pipes.datasets.ondisk.read_npy", read)
    with pytest.raises(RuntimeError, match="has changed since"):
        _ = dataset.tasks[0].train_set


def test_metadata_is_the_users_own(typed_folder):
    dataset = OnDiskDataset(typed_folder).load()
    dataset.tasks[0].metadata["name"] = "changed"
    assert dataset.load("link").tasks[0].metadata["name"] == "link"


def test_extra_keys_keep_their_kind(tmp_path):
    document, arrays = tiny()
    extra = {"a b": [1, 2.5, None, {"x": True}], "names": ["ü", "b"], "when": "2020-01-01"}
    document["tasks"][0] |= extra
    document["feature_data"][0] |= extra
    dataset = OnDiskDataset(write(tmp_path / "d", document, arrays)).load()
    assert dataset.feature.metadata("node", None, "x") == extra
    assert dataset.tasks[0].metadata == {"name": "classify", "num_classes": 2, **extra}


def test_graph_features(tmp_path):
    document, arrays = tiny()
    document["feature_data"].append(npy("g.npy", domain="graph", name="g"))
    arrays["g.npy"] = np.arange(5.0)
    dataset = OnDiskDataset(write(tmp_path / "d", document, arrays)).load()
    assert dataset.feature.read("graph", None, "g").flatten().tolist() == [0, 1, 2, 3, 4]


def test_errors_are_value_errors():
    assert issubclass(MetadataError, ValueError)
