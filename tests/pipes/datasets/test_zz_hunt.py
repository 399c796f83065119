"""Any change of a good description, or of a file, gives a data set or a MetadataError."""

import copy
import shutil

import numpy as np
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hopline.pipes.datasets import MetadataError, OnDiskDataset
from tests.pipes.datasets.dataset_files import tiny, typed, write

KEYS = ["type", "num", "path", "format", "name", "domain", "key", "dtype", "in_memory", "nodes",
        "edges", "data", "tasks", "graph", "feature_data", "train_set", "extra", ""]  # fmt: skip
PATHS = ["edges.npy", "x.npy", "seeds.npy", "labels.npy", "likes.npy", "pairs.npy", "metadata.yaml",
         "nothing.npy", "..", "", "/dev", "a" * 300]  # fmt: skip
TYPES = ["user", "item", "user:likes:item", "user:follows:user", "a:b:c", ":", "::"]
WORDS = ["numpy", "csv", "torch", "parquet", "npz", "node", "edge", "graph", "bfloat16", "seeds",
         "labels", "indexes", "timestamp", "weight", "_ORIGINAL_EDGE_ID"]  # fmt: skip
DTYPES = ["b1", "i1", "u1", "i2", ">u2", "u4", "i8", "u8", "f2", ">f4", "f8", "c8", "g", "U2",
          "M8[s]", "V3"]  # fmt: skip

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 8),
    st.integers(2**41, 2**200),
    st.floats(),
    st.sampled_from(KEYS + PATHS + TYPES + WORDS),
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=5),
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(KEYS) | st.integers(0, 3), inner, max_size=3)
    ),
    max_leaves=6,
)


def steps(node):
    """Every container of a document."""
    yield node
    for child in node.values() if isinstance(node, dict) else node:
        if isinstance(child, dict | list):
            yield from steps(child)


@st.composite
def mutated(draw):
    document, arrays = draw(st.sampled_from([tiny, typed]))()
    for _ in range(draw(st.integers(1, 4))):
        places = list(steps(document))
        node = draw(st.sampled_from(places))
        kind = draw(st.sampled_from(["replace", "delete", "add", "copy", "same"]))
        if isinstance(node, dict) and node:
            key = draw(st.sampled_from(sorted(node, key=str)))
            if kind == "delete":
                del node[key]
            elif kind == "add":
                node[draw(st.sampled_from(KEYS))] = draw(values)
            elif kind == "copy":
                node[key] = copy.deepcopy(draw(st.sampled_from(places)))
            elif kind == "same":
                node[key] = draw(scalars)
            else:
                node[key] = draw(values)
        elif isinstance(node, list):
            at = draw(st.integers(0, len(node)))
            if kind == "delete" and node:
                del node[at - 1]
            else:
                node.insert(at, copy.deepcopy(draw(values | st.sampled_from(places))))
    return document, arrays


def opens_or_refuses(folder):
    """Whether the data set loads; anything else than MetadataError fails the test."""
    try:
        dataset = OnDiskDataset(folder).load()
        for task in dataset.tasks:
            for items in (task.train_set, task.validation_set, task.test_set):
                if items is not None and len(items):
                    _ = items[0]
        for key in dataset.feature.keys():  # noqa: SIM118
            dataset.feature[key].read()
        _ = dataset.all_nodes_set, dataset.yaml_data, repr(dataset)
    except MetadataError as error:
        refused = str(error)
    else:
        return True
    assert refused.startswith(str(folder / "metadata.yaml"))
    assert not (folder / "preprocessed").exists()
    return False


@settings(max_examples=4000)
@given(mutated())
def test_descriptions(tmp_path_factory, example):
    document, arrays = example
    folder = tmp_path_factory.mktemp("fuzz") / "d"
    opens_or_refuses(write(folder, document, arrays))
    shutil.rmtree(folder)


@settings(max_examples=4000)
@given(st.data())
def test_bytes_of_the_description(tmp_path_factory, data):
    folder = write(
        tmp_path_factory.mktemp("fuzz") / "d", *data.draw(st.sampled_from([tiny, typed]))()
    )
    content = bytearray((folder / "metadata.yaml").read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    (folder / "metadata.yaml").write_bytes(content)
    opens_or_refuses(folder)
    shutil.rmtree(folder)


@settings(max_examples=4000)
@given(st.data())
def test_bytes_of_an_array(tmp_path_factory, data):
    document, arrays = tiny()
    folder = write(tmp_path_factory.mktemp("fuzz") / "d", document, arrays)
    path = folder / data.draw(st.sampled_from(sorted(arrays)))
    content = bytearray(path.read_bytes())
    kind = data.draw(st.sampled_from(["header", "anywhere", "cut"]))
    if kind == "cut":
        content = content[: data.draw(st.integers(0, len(content)))]
    else:
        for _ in range(data.draw(st.integers(1, 4))):
            at = data.draw(st.integers(0, 127 if kind == "header" else len(content) - 1))
            content[at] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    opens_or_refuses(folder)
    shutil.rmtree(folder)


@settings(max_examples=4000)
@given(st.data())
def test_any_array(tmp_path_factory, data):
    document, arrays = tiny()
    name = data.draw(st.sampled_from(sorted(arrays)))
    shape = tuple(data.draw(st.lists(st.integers(0, 4), max_size=3)))
    dtype = data.draw(st.sampled_from(DTYPES))
    arrays[name] = np.zeros(shape, dtype)
    folder = write(tmp_path_factory.mktemp("fuzz") / "d", document, arrays)
    opens_or_refuses(folder)
    shutil.rmtree(folder)


def test_the_unchanged_examples_load(tmp_path):
    assert opens_or_refuses(write(tmp_path / "a", *tiny()))
    assert opens_or_refuses(write(tmp_path / "b", *typed()))
    assert yaml.safe_load((tmp_path / "a" / "metadata.yaml").read_text())["dataset_name"] == "tiny"
