"""Every wrong description or file gives one error that names the YAML file, the key, the value."""

import io
import os
import pickle

import numpy as np
import pytest
import torch

from hopline.partition import partition_graph
from hopline.pipes.datasets import MetadataError, OnDiskDataset, preprocess_ondisk_dataset
from hopline.pipes.datasets.yaml_file import read_yaml
from tests.pipes.datasets.dataset_files import DELETE, npy, set_key, tiny, typed, write

G, N, E = "graph", "nodes", "edges"
TRAIN = ["tasks", 0, "train_set", 0]


def fails(folder, key, *texts):
    """Loads; the error must name file, key and texts, and leave nothing behind."""
    with pytest.raises(MetadataError) as caught:
        OnDiskDataset(folder)
    message = str(caught.value)
    file = folder / "metadata.yaml"
    assert message.startswith(f"{file}: {key}: " if key else f"{file}: "), message
    for text in texts:
        assert text in message, message
    assert not (folder / "preprocessed").exists()
    assert not list(folder.glob(".preprocessed.tmp-*"))


def spec(path):
    """The key as messages write it."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


SCHEMA = [
    # path to change, value, key in the message (None: that path), texts in the message
    (["graph"], DELETE, None, "missing"),
    (["graph"], 3, None, "3"),
    (["graph"], None, None, "None"),
    (["grahp"], {}, None, "unknown key", "'graph'"),
    (["graph_topology"], {}, None, "unknown key", "DGL"),
    (["include_original_edge_id"], True, None, "unknown key", "OnDiskDataset"),
    (["dataset_name"], 5, None, "5"),
    ([G, N], [], None, "[]"),
    ([G, N], DELETE, None, "missing"),
    ([G, E], [], None, "[]"),
    ([G, N, 0, "num"], DELETE, None, "missing"),
    ([G, N, 0, "num"], -1, None, "-1"),
    ([G, N, 0, "num"], 3.0, None, "3.0"),
    ([G, N, 0, "num"], float("inf"), None, "inf"),
    ([G, N, 0, "num"], float("nan"), None, "nan"),
    ([G, N, 0, "num"], True, None, "True"),
    ([G, N, 0, "num"], "3", None, "'3'"),
    ([G, N, 0, "num"], 2**70, None, str(2**70)),
    ([G, N, 0, "size"], 3, None, "unknown key"),
    ([G, N, 0, 7], 3, "graph.nodes[0].7", "unknown key"),
    ([G, N, 0, "type"], "", None, "''"),
    ([G, N, 1], {"num": 2}, None, "second entry"),
    ([G, E, 1], npy("edges.npy"), None, "second entry"),
    ([G, N, 0, "type"], "user", "graph.edges[0].type", "missing"),
    ([G, E, 0, "format"], "arrow", None, "'arrow'", "numpy"),
    ([G, E, 0, "format"], DELETE, None, "missing"),
    ([G, E, 0, "path"], DELETE, None, "missing"),
    ([G, E, 0, "path"], "", None, "''"),
    ([G, E, 0, "path"], 4, None, "4"),
    ([G, E, 0, "path"], "edgse.npy", None, "'edgse.npy'", "does not exist"),
    ([G, E, 0, "path"], ".", None, "is a folder"),
    ([G, E, 0, "path"], "a\0b", None, "does not exist"),
    ([G, E, 0, "path"], "../edges.npy", None, "'../edges.npy'", "leads out"),
    ([G, E, 0, "path"], "sub/../../edges.npy", None, "leads out"),
    ([G, E, 0, "pathh"], "x", None, "unknown key", "did you mean 'path'"),
    ([G, E, 0, "key"], "x", None, "npz"),
    ([G, E, 0, "format"], "npz", "graph.edges[0].key", "npz"),
    ([G, "feature_data", 0, "domain"], "vertex", None, "'vertex'"),
    ([G, "feature_data", 0, "domain"], "graph", None, "graph"),
    ([G, "feature_data", 0, "unit"], "kg", None, "unknown key"),
    ([G, "feature_data", 0, "name"], "_ORIGINAL_EDGE_ID", None, "_ORIGINAL_EDGE_ID"),
    ([G, "feature_data", 0, "name"], "n" * 300, None, "too long"),
    ([G, "feature_data", 0, "type"], "user", None, "'user'"),
    ([G, "feature_data", 1], npy("weight.npy", domain="edge", name="weight"), None, "twice"),
    (["feature_data", 0, "domain"], "nodes", None, "'nodes'"),
    (["feature_data", 0, "name"], None, None, "None"),
    (["feature_data", 0, "in_memory"], "yes", None, "'yes'"),
    (["feature_data", 0, "format"], "csv", None, "'csv'"),
    (["feature_data", 0, "type"], "user", None, "'user'"),
    (["feature_data", 0, "dtype"], "float64", None, "'float64'"),
    (["feature_data", 0, "dtype"], "bfloat16", None, "float32"),
    (["feature_data", 2], npy("x.npy", domain="node", name="x"), None, "twice"),
    (["feature_data"], {}, None, "{}"),
    (["tasks"], "classify", None, "'classify'"),
    (["tasks", 0, "train_set"], 1, None, "1"),
    (["tasks", 0, "name"], 5, None, "5"),
    (["tasks", 1], {"name": "classify"}, "tasks[1].name", "'classify'"),
    ([*TRAIN, "type"], "user", None, "'user'"),
    ([*TRAIN, "data"], [], None, "[]"),
    ([*TRAIN, "size"], 2, None, "unknown key"),
    ([*TRAIN, "data", 0, "shuffle"], True, None, "unknown key"),
    ([*TRAIN, "data", 1, "name"], "seeds", None, "twice"),
    ([*TRAIN, "data", 1, "name"], None, None, "None"),
    (["tasks", 0, "train_set", 1], {"data": [npy("seeds.npy", name="seeds"),
      npy("labels.npy", name="labels")]}, "tasks[0].train_set[1].type", "twice"),
]  # fmt: skip


@pytest.mark.parametrize("case", SCHEMA, ids=lambda case: f"{spec(case[0])}={case[1]!r:.20}")
def test_schema(tmp_path, case):
    path, value, key, *texts = case
    document, arrays = tiny()
    folder = write(tmp_path / "d", set_key(document, path, value), arrays)
    fails(folder, key if key is not None else spec(path), *texts)


SET = [{"data": [npy("seeds.npy", name="seeds"), npy("labels.npy", name="labels")]}]
ALMOST = [  # keys that would be metadata, were they not almost known ones
    (["feature_data", 0, "in_memmory"], False, "did you mean 'in_memory'? (metadata needs"),
    (["feature_data", 0, "in-memory"], False, "did you mean 'in_memory'?"),
    (["feature_data", 0, "In Memory"], False, "did you mean 'in_memory'?"),
    (["feature_data", 0, "pth"], "y.npy", "did you mean 'path'?"),
    (["feature_data", 0, "data_type"], "bfloat16", None),
    (["feature_data", 0, "dtyp"], "bfloat16", "did you mean 'dtype'?"),
    (["tasks", 0, "trainset"], [], "did you mean 'train_set'?"),
    (["tasks", 0, "test-set"], [], "did you mean 'test_set'?"),
    (["tasks", 0, "valid_set"], SET, "value is a set of items; expected one of ['test_set', "
     "'train_set', 'validation_set']; did you mean 'validation_set'?"),
    (["tasks", 0, "val_set"], SET, "did you mean 'validation_set'?"),
    (["tasks", 0, "dev"], SET, "its value is a set of items; expected one of ['test_set'"),
    (["tasks", 0, "train_size"], 60, None),
    (["tasks", 0, "split"], {"data": [1]}, None),
]  # fmt: skip


@pytest.mark.parametrize("case", ALMOST, ids=lambda case: spec(case[0]))
def test_metadata_that_is_almost_a_known_key(tmp_path, case):
    path, value, text = case
    document, arrays = tiny()
    folder = write(tmp_path / "d", set_key(document, path, value), arrays)
    if text is not None:
        fails(folder, spec(path), "unknown key; ", text)
        return
    dataset = OnDiskDataset(folder).load()
    held = dataset.tasks[0].metadata | dataset.feature.metadata("node", None, "x")
    assert held[path[-1]] == value


TYPED = [
    ([G, N, 1, "type"], None, None, "missing"),
    ([G, N, 1, "type"], "user", None, "'user'", "twice"),
    ([G, N, 1, "type"], "a:b", None, "'a:b'"),
    ([G, E, 1, "type"], "user:likes:item", None, "'user:likes:item'", "twice"),
    ([G, E, 1, "type"], "user:item", None, "'user:item'"),
    ([G, E, 1, "type"], "user::item", None, "'user::item'"),
    ([G, E, 1, "type"], "user:likes:shop", None, "'shop'", "'item'"),
    ([G, "feature_data", 0], npy("user_t.npy", domain="node", type="user", name="other"),
     "graph.feature_data[0].type", "'item'"),
    (["feature_data", 0, "type"], "shop", None, "'shop'"),
    (["feature_data", 0, "type"], None, None, "None"),
    ([*TRAIN, "type"], None, None, "None"),
    ([*TRAIN, "type"], "user:likes:shop", None, "'user:likes:shop'"),
    ([*TRAIN, "type"], "item", "tasks[0].train_set[0].data", "2 node(s)", "'item'"),
    ([*TRAIN, "data", 1, "name"], "y", "tasks[0].train_set[1].data", "'y'"),
]  # fmt: skip


@pytest.mark.parametrize("case", TYPED, ids=lambda case: f"{spec(case[0])}={case[1]!r:.20}")
def test_schema_with_types(tmp_path, case):
    path, value, key, *texts = case
    document, arrays = typed()
    folder = write(tmp_path / "d", set_key(document, path, value), arrays)
    fails(folder, key if key is not None else spec(path), *texts)


EDGES, SEEDS, LABELS = "graph.edges[0].path", "tasks[0].train_set[0].data[0].path", (
    "tasks[0].train_set[0].data[1].path"
)  # fmt: skip
ARRAYS = [
    ("edges.npy", np.zeros((4, 2), int), EDGES, "(4, 2)", "transpose"),
    ("edges.npy", np.zeros(4, int), EDGES, "(4,)"),
    ("edges.npy", np.zeros((2, 4)), EDGES, "float64"),
    ("edges.npy", np.zeros((2, 4), bool), EDGES, "bool"),
    ("edges.npy", np.array([[0, 1, 2, 3], [0, 0, 0, 0]]), EDGES, "source 3", "position 3"),
    ("edges.npy", np.array([[0, 1, 2, 2], [0, 9, 0, 0]]), EDGES, "destination 9", "position 1"),
    ("edges.npy", np.array([[0, -1, 2, 2], [0, 0, 0, 0]]), EDGES, "source -1"),
    ("edges.npy", np.array([[1, 2, 3, 1], [3, 1, 2, 2]]), EDGES, "source 3", "subtract 1"),
    ("edges.npy", np.array([[2**63 + 5] * 4, [0] * 4], np.uint64), EDGES, str(2**63 + 5)),
    ("edges.npy", np.array([["a"] * 4] * 2), EDGES, "<U1"),
    ("edges.npy", np.zeros((2, 4), "M8[s]"), EDGES, "datetime64"),
    ("edges.npy", np.array(3), EDGES, "()"),
    ("weight.npy", np.zeros(3), "graph.feature_data[0].path", "3 rows", "expected 4"),
    ("weight.npy", np.zeros(4, np.longdouble), "graph.feature_data[0].path", "float128"),
    ("weight.npy", np.full(4, 2**63, np.uint64), "graph.feature_data[0].path", str(2**63)),
    ("x.npy", np.zeros((4, 2)), "feature_data[0].path", "4 rows", "expected 3"),
    ("x.npy", np.zeros(3, [("a", int)]), "feature_data[0].path", "'a'"),
    ("e.npy", np.zeros((3, 1)), "feature_data[1].path", "3 rows", "expected 4"),
    ("seeds.npy", np.array([0, 3]), SEEDS, "seed 3", "position 1", "[0, 3)"),
    ("seeds.npy", np.array([0, -3]), SEEDS, "seed -3"),
    ("seeds.npy", np.array([[0, 1], [2, 3]]), SEEDS, "seed 3"),
    ("seeds.npy", np.array([0.0, 1.0]), SEEDS, "float64"),
    ("seeds.npy", np.array([0.0, np.nan]), SEEDS, "float64"),
    ("seeds.npy", np.array([True, False]), SEEDS, "bool", "np.flatnonzero(mask)"),
    ("seeds.npy", np.zeros((2, 1), int), SEEDS, "(2, 1)"),
    ("seeds.npy", np.zeros((2, 2, 2), int), SEEDS, "(2, 2, 2)"),
    ("labels.npy", np.zeros(3, int), LABELS, "3 rows", "expected 2"),
    ("labels.npy", np.array([0, 2]), LABELS, "2", "num_classes"),
    ("labels.npy", np.array([0, np.nan]), LABELS, "nan", "row 1"),
    ("labels.npy", np.array([2**64 - 1, 0], np.uint64), LABELS, str(2**64 - 1)),
]  # fmt: skip


@pytest.mark.parametrize("case", ARRAYS, ids=lambda c: f"{c[0]}-{c[1].dtype}-{c[1].shape}-{c[3]}")
@pytest.mark.skipif(np.longdouble(0).itemsize != 16, reason="names the platform's long double")
def test_arrays(tmp_path, case):
    name, array, key, *texts = case
    document, arrays = tiny()
    fails(write(tmp_path / "d", document, {**arrays, name: array}), key, *texts)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_timestamps_must_be_numbers(tmp_path, value):
    document, arrays = tiny()
    column = npy("t.npy", name="timestamp")
    document["tasks"][0]["train_set"][0]["data"].append(column)
    folder = write(tmp_path / "d", document, {**arrays, "t.npy": np.array([1.0, value])})
    if np.isnan(value):
        fails(folder, "tasks[0].train_set[0].data[2].path", "timestamp is nan in row 1")
    else:  # "never" is a time
        assert OnDiskDataset(folder).load().tasks[0].train_set[1][2] == np.inf
    document["graph"]["feature_data"][0]["name"] = "timestamp"
    bad = np.array([1.0, 2.0, np.nan, 3.0])
    folder = write(tmp_path / "e", document, {**arrays, "weight.npy": bad, "t.npy": np.zeros(2)})
    fails(folder, "graph.feature_data[0].path", "timestamp is nan in row 2")


def test_ids_that_run_on_across_types(tmp_path):
    document, arrays = typed()
    arrays["likes.npy"] = np.array([[6, 3, 4, 3], [2, 0, 2, 1]])
    folder = write(tmp_path / "d", document, arrays)
    # Users come after the 3 items in the fused numbering: 3..6.
    fails(folder, EDGES, "source 6", "node type 'user'", "subtract 3")


def test_ids_run_from_1_where_no_end_of_any_edge_is_0(tmp_path):
    document, arrays = tiny()
    arrays["edges.npy"] = np.array([[0, 1, 2, 1], [1, 2, 3, 1]])
    fails(write(tmp_path / "d", document, arrays), EDGES, "destination 3", "or the number of nodes")
    document, arrays = typed()
    arrays["likes.npy"] = np.array([[4, 1, 2, 3], [1, 2, 3, 1]])  # follows.npy has user 0
    fails(write(tmp_path / "e", document, arrays), EDGES, "source 4", "or the number of nodes")
    arrays["follows.npy"] = np.array([[1, 2, 3], [4, 1, 2]])
    folder = write(tmp_path / "f", document, arrays)
    fails(folder, "graph.edges[1].path", "destination 4", "run from 1", "subtract 1")
    document, arrays = tiny()
    arrays["seeds.npy"] = np.array([[1, 0], [3, 1]])
    fails(write(tmp_path / "g", document, arrays), SEEDS, "seed 3", "or the number of nodes")


def test_ids_are_checked_per_type(tmp_path):
    document, arrays = typed()
    arrays["likes.npy"] = np.array([[3, 0, 1, 0], [3, 0, 2, 1]])  # there are 4 users, but 3 items
    fails(write(tmp_path / "d", document, arrays), EDGES, "destination 3", "node type 'item'")
    document, arrays = typed()
    arrays["pairs.npy"] = np.array([[2, 3], [0, 0]])
    folder = write(tmp_path / "e", document, arrays)
    fails(folder, SEEDS, "seed 3", "node type 'item'")


def test_attributes_of_different_types_must_agree(tmp_path):
    document, arrays = typed()
    arrays["follows_w.npy"] = np.zeros((3, 2))
    folder = write(tmp_path / "d", document, arrays)
    fails(folder, "graph.feature_data[0].path", "float64", "(2,)")


@pytest.mark.parametrize("keep", [8, 100, 128, 150])
def test_truncated_npy(tmp_path, keep):
    folder = write(tmp_path / "d", *tiny())
    content = (folder / "edges.npy").read_bytes()
    (folder / "edges.npy").write_bytes(content[:keep])
    fails(folder, EDGES, "edges.npy", "cut short")


def header(shape, dtype="<i8"):
    buffer = io.BytesIO()
    value = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, value)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not an array",
        b"\x93NUMPY\x09\x09" + bytes(100),
        header((2, 10**18)),
        header((-2, -4)) + bytes(64),
        header((2**62, 2**62)),
        header((2, 4)).replace(b"'shape'", b"'shade'"),
        header((2, 4)).replace(b"(2, 4)", b"(2, 4,"),
        header((2, 4), "|O") + pickle.dumps([1]),
    ],
)
def test_damaged_npy(tmp_path, content):
    folder = write(tmp_path / "d", *tiny())
    (folder / "edges.npy").write_bytes(content)
    fails(folder, EDGES, "edges.npy", "numpy.save")


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("exploded",)


def test_pickles_are_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    document, arrays = tiny()
    folder = write(tmp_path / "npy", document, arrays)
    np.save(folder / "x.npy", np.array([Bomb(), Bomb(), Bomb()], object), allow_pickle=True)
    fails(folder, "feature_data[0].path", "x.npy")

    torchy = set_key(document, ["feature_data", 0, "format"], "torch")
    for name, content in (("zip", Bomb()), ("old", Bomb())):
        folder = write(tmp_path / name, torchy, arrays)
        torch.save(content, folder / "x.npy", _use_new_zipfile_serialization=name == "zip")
        fails(folder, "feature_data[0].path", "without running code")
    folder = write(tmp_path / "raw", torchy, arrays)
    (folder / "x.npy").write_bytes(pickle.dumps(Bomb()))
    fails(folder, "feature_data[0].path", "without running code")

    zipped = set_key(document, ["feature_data", 0, "format"], "npz")
    zipped = set_key(zipped, ["feature_data", 0, "key"], "x")
    folder = write(tmp_path / "npz", zipped, arrays)
    with (folder / "x.npy").open("wb") as file:
        np.savez(file, x=np.array([Bomb()] * 3, object))
    fails(folder, "feature_data[0].path", ".npz")

    (folder / "metadata.yaml").write_text("graph: !!python/object/apply:os.mkdir [exploded]")
    fails(folder, "", "not valid YAML")
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize(
    ("save", "text"),
    [
        (lambda path: torch.save({"x": torch.ones(3, 2)}, path), "dict"),
        (lambda path: torch.save(torch.ones(3, 2).to_sparse(), path), "sparse"),
        (lambda path: torch.save(torch.ones(3, 2).to(torch.float8_e5m2), path), "float8_e5m2"),
        (lambda path: torch.save(torch.tensor(3.0), path), "shape ()"),
        (lambda path: path.write_bytes(b""), "torch.save"),
        (lambda path: path.write_bytes(b"PK\x03\x04" + bytes(90)), "torch.save"),
    ],
)
def test_wrong_tensor_files(tmp_path, save, text):
    document, arrays = tiny()
    document["feature_data"][0] |= {"format": "torch", "path": "x.pt"}
    folder = write(tmp_path / "d", document, arrays)
    save(folder / "x.pt")
    fails(folder, "feature_data[0].path", text)


def test_truncated_tensor_file(tmp_path):
    document, arrays = tiny()
    document["feature_data"][0] |= {"format": "torch", "path": "x.pt"}
    folder = write(tmp_path / "d", document, arrays)
    torch.save(torch.ones(3, 2000), folder / "x.pt")
    content = (folder / "x.pt").read_bytes()
    (folder / "x.pt").write_bytes(content[: len(content) // 2])
    fails(folder, "feature_data[0].path", "x.pt")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "None"),
        ("- 1\n- 2\n", "[1, 2]"),
        ("graph: {nodes: [", "not valid YAML"),
        ("dataset_name: a\ndataset_name: b\n", "'dataset_name' is given twice"),
        ("graph:\n  nodes: [{num: 3, num: 4}]\n", "'num' is given twice"),
        ("graph: !!python/name:os.system ''\n", "python/name"),
        ("graph: !!python/object/new:os.system ['true']\n", "python/object"),
        ("a: &a [*a]\n", "contains itself"),
        ("a: 2020-13-45\n", "not valid YAML"),
        ("a: !!bool maybe\n", "not valid YAML"),
        ("? [1]\n: 2\n", "not valid YAML"),
        ("a: " + "[" * 5000, "not valid YAML"),
        ("a: " + "9" * 5000, "not valid YAML"),
        ("a: \x00", "not valid YAML"),
        (
            "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n"
            + "".join(
                f"a{i}: &a{i} [{', '.join(['*a' + str(i - 1)] * 10)}]\n" for i in range(1, 9)
            ),
            "without aliases",
        ),
    ],
)
def test_wrong_yaml(tmp_path, text, part):
    folder = tmp_path / "d"
    folder.mkdir()
    (folder / "metadata.yaml").write_text(text)
    fails(folder, "", part)


def test_merge_keys_are_plain_yaml(tmp_path):
    (tmp_path / "m.yaml").write_text("a: &a {x: 1}\nb: {<<: *a, y: 2}\nc: {<<: *a, x: 3}\n")
    assert read_yaml(tmp_path / "m.yaml")["c"] == {"x": 3}


def test_a_huge_hexadecimal_number_is_shown_somehow(tmp_path):
    document, arrays = tiny()
    folder = write(tmp_path / "d", document, arrays)
    text = (folder / "metadata.yaml").read_text().replace("num: 3", "num: 0x" + "f" * 5000)
    (folder / "metadata.yaml").write_text(text)
    fails(folder, "graph.nodes[0].num", "got")


def test_no_folder_no_description(tmp_path):
    with pytest.raises(NotADirectoryError, match="nowhere"):
        OnDiskDataset(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="file"):
        OnDiskDataset(tmp_path / "file")
    with pytest.raises(MetadataError, match=r"metadata\.yaml: cannot be read"):
        OnDiskDataset(tmp_path)


def test_folders_of_another_kind_are_told(tmp_path):
    folder = write(tmp_path / "d", *tiny())
    data = OnDiskDataset(folder).load()
    words = r"d/preprocessed is the preprocessed copy of a data set; .* the one above: .*/d$"
    with pytest.raises(MetadataError, match=words):
        OnDiskDataset(folder / "preprocessed")
    OnDiskDataset(folder, processed_path=tmp_path / "apart")
    with pytest.raises(MetadataError, match=r"apart is the preprocessed .* whose metadata.yaml it"):
        OnDiskDataset(tmp_path / "apart")
    partition_graph(data, "tiny", 2, tmp_path / "parts")
    words = "parts is a partition: open it with hopline.partition.DistDataset, or .*`hopline insp"
    with pytest.raises(MetadataError, match=words):
        OnDiskDataset(tmp_path / "parts")
    with pytest.raises(MetadataError, match=r"part-0 is one part of a partition: open the folder"):
        OnDiskDataset(tmp_path / "parts" / "part-0")


def test_edge_features_need_edge_ids(tmp_path):
    document, arrays = tiny()
    folder = write(tmp_path / "d", document, arrays)
    with pytest.raises(MetadataError, match=r"feature_data\[1\]: .*'e'.*include_original_edge_id"):
        OnDiskDataset(folder, include_original_edge_id=False)
    assert "_ORIGINAL_EDGE_ID" in OnDiskDataset(folder).load().graph.edge_attributes
    del document["feature_data"][1]
    folder = write(tmp_path / "e", document, arrays)
    assert "_ORIGINAL_EDGE_ID" not in OnDiskDataset(folder).load().graph.edge_attributes
    again = OnDiskDataset(folder, include_original_edge_id=True).load()
    assert "_ORIGINAL_EDGE_ID" in again.graph.edge_attributes


def test_bfloat16_bits_are_no_ids(tmp_path):
    document, arrays = tiny()
    document["graph"]["edges"][0] |= {"format": "torch", "path": "edges.pt"}
    folder = write(tmp_path / "d", document, arrays)
    torch.save(torch.zeros(2, 4, dtype=torch.bfloat16), folder / "edges.pt")
    fails(folder, EDGES, "expected integers")
    document, arrays = tiny()
    document["tasks"][0]["train_set"][0]["data"][0] |= {"format": "torch", "path": "seeds.pt"}
    folder = write(tmp_path / "e", document, arrays)
    torch.save(torch.zeros(2, dtype=torch.bfloat16), folder / "seeds.pt")
    fails(folder, SEEDS, "bfloat16")


def test_too_little_memory_is_refused(tmp_path):
    folder = write(tmp_path / "d", *tiny())
    with pytest.raises(ValueError, match="1000"):
        preprocess_ondisk_dataset(folder, max_memory=1000)


def test_an_unreadable_file(tmp_path, monkeypatch):
    folder = write(tmp_path / "d", *tiny())
    real = type(folder).open

    def refuse(self, *args, **keys):
        if self.name == "edges.npy":
            raise PermissionError(13, "Permission denied", str(self))
        return real(self, *args, **keys)

    monkeypatch.setattr(type(folder), "open", refuse)
    fails(folder, EDGES, "Permission denied")
