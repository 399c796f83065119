"""Input formats, memory orders and number types all lead to the same data set."""

import contextlib
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from hopline.pipes.datasets import MetadataError, OnDiskDataset, preprocess_ondisk_dataset
from hopline.pipes.datasets.npy_writer import NpyWriter
from tests.pipes.datasets.dataset_files import npy, set_key, tiny, write


def load(folder, **keys):
    return OnDiskDataset(folder, **keys).load()


def edges_of(graph):
    """{(source, destination): position}, of a graph without parallel edges."""
    dst = torch.repeat_interleave(torch.arange(graph.total_num_nodes), graph.csc_indptr.diff())
    pairs = zip(graph.indices.tolist(), dst.tolist(), strict=True)
    return {pair: i for i, pair in enumerate(pairs)}


def check(dataset):
    """The tiny data set, whatever it was read from."""
    graph = dataset.graph
    at = edges_of(graph)
    assert set(at) == {(0, 2), (1, 0), (2, 1), (0, 1)}
    weight = graph.edge_attributes["weight"].double().flatten()
    ids = graph.edge_attributes["_ORIGINAL_EDGE_ID"]
    for number, (pair, value) in enumerate(
        {(0, 2): 10, (1, 0): 11, (2, 1): 12, (0, 1): 13}.items()
    ):
        assert weight[at[pair]] == value
        assert ids[at[pair]] == number
    assert graph.indices.dtype == torch.int32
    assert graph.csc_indptr.dtype == torch.int64
    assert dataset.feature.read("node", None, "x").tolist() == [[0, 1], [2, 3], [4, 5]]
    assert dataset.feature.read("edge", None, "e").flatten().tolist() == [10, 11, 12, 13]
    train = dataset.tasks[0].train_set
    assert train[:][0].tolist() == [0, 2]
    assert train[:][0].dtype == torch.int32
    assert train[:][1].tolist() == [1, 0]
    assert train.names == ("seeds", "labels")


def test_numpy(tmp_path):
    check(load(write(tmp_path / "d", *tiny())))


def test_type_null_is_no_type(tmp_path):
    document, arrays = tiny()
    for path in (["graph", "nodes", 0], ["graph", "edges", 0], ["graph", "feature_data", 0],
                 ["feature_data", 0], ["tasks", 0, "train_set", 0]):  # fmt: skip
        document = set_key(document, [*path, "type"], None)
    check(load(write(tmp_path / "d", document, arrays)))


def test_null_lists_are_empty(tmp_path):
    document, arrays = tiny()
    document["graph"]["feature_data"] = None
    document["feature_data"] = None
    document["tasks"][0]["train_set"] = None
    dataset = load(write(tmp_path / "d", document, arrays))
    assert dataset.tasks[0].train_set is None
    assert dataset.feature.keys() == []
    document["tasks"] = None
    assert load(write(tmp_path / "d", document, arrays)).tasks == []


ORDERS = {
    "big-endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "fortran": np.asfortranarray,
    "both": lambda a: np.asfortranarray(a.astype(a.dtype.newbyteorder(">"))),
}


@pytest.mark.parametrize("order", ORDERS)
def test_orders_of_bytes_and_elements(tmp_path, order):
    document, arrays = tiny()
    arrays = {name: ORDERS[order](array) for name, array in arrays.items()}
    if order != "fortran":
        assert arrays["x.npy"].dtype.byteorder == ">"
    check(load(write(tmp_path / "d", document, arrays)))


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "u8", "i1", "i2", "i4", ">u2", ">i8"])
def test_integer_types(tmp_path, dtype):
    document, arrays = tiny()
    for name in ("edges.npy", "seeds.npy", "labels.npy", "weight.npy"):
        arrays[name] = arrays[name].astype(dtype)
    dataset = load(write(tmp_path / "d", document, arrays))
    check(dataset)
    labels = dataset.tasks[0].train_set[:][1]
    assert labels.dtype == (torch.int32 if dtype == "i4" else torch.int64)
    stored = dataset.graph.edge_attributes["weight"].dtype
    assert stored in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def test_without_auto_cast_all_ids_are_int64(tmp_path):
    folder = write(tmp_path / "d", *tiny())
    dataset = load(folder, auto_cast_to_optimal_dtype=False)
    assert dataset.graph.indices.dtype == torch.int64
    assert dataset.graph.edge_attributes["_ORIGINAL_EDGE_ID"].dtype == torch.int64
    assert dataset.tasks[0].train_set[:][0].dtype == torch.int64
    assert dataset.all_nodes_set[0].dtype == torch.int64


def test_one_dimensional_features_become_columns(tmp_path):
    document, arrays = tiny()
    arrays["x.npy"] = np.array([4.0, 5.0, 6.0])
    for in_memory in (True, False):
        document["feature_data"][0]["in_memory"] = in_memory
        dataset = load(write(tmp_path / f"d{in_memory}", document, arrays))
        assert dataset.feature.size("node", None, "x") == (1,)
        assert dataset.feature.read("node", None, "x").tolist() == [[4], [5], [6]]


def test_trailing_shape_and_empty_rows(tmp_path):
    document, arrays = tiny()
    arrays["x.npy"] = np.arange(18, dtype=np.int64).reshape(3, 2, 3) + 2**53
    arrays["e.npy"] = np.zeros((4, 0), np.float16)
    document["feature_data"][1]["in_memory"] = False
    dataset = load(write(tmp_path / "d", document, arrays))
    assert torch.equal(dataset.feature.read("node", None, "x"), torch.from_numpy(arrays["x.npy"]))
    assert dataset.feature.read("edge", None, "e").shape == (4, 0)


def csv_document():
    document, arrays = tiny()
    document["graph"]["edges"][0] = {"format": "csv", "path": "edges.csv"}
    return document, arrays


@pytest.mark.parametrize(
    "text", ["0,2\n1,0\n2,1\n0,1\n", "0,2\n\n1 , 0\r\n2,1\n0,1", "\ufeff0,2\n1,0\n2,1\n0,1"]
)
def test_csv_edges(tmp_path, text):
    folder = write(tmp_path / "d", *csv_document())
    (folder / "edges.csv").write_text(text, encoding="utf-8", newline="")
    check(load(folder))


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("src,dst\n0,2\n", "line 1 of"),
        ("0,2\n1,0\n2;1\n", "line 3 of"),
        ("0,2\n1,0,5\n", "'1,0,5'"),
        ("0\n1\n", "line 1"),
        ("0,2\n1.0,0\n", "'1.0,0'"),
        ("0,2\n1,\n", "'1,'"),
        ("0,2\n99999999999999999999,0\n", "99999999999999999999"),
        ("0,2\n# more\n", "'# more'"),
        ("0,2\n\x80\n", "line 2"),
        ("0,2\n5,0\n2,1\n0,1\n", "source 5"),
    ],
)
def test_wrong_csv(tmp_path, text, part):
    document, arrays = csv_document()
    folder = write(tmp_path / "d", document, arrays)
    (folder / "edges.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(MetadataError, match=r"graph\.edges\[0\]\.path: ") as caught:
        load(folder)
    assert part in str(caught.value)


def test_empty_csv_is_a_graph_without_edges(tmp_path):
    document, arrays = csv_document()
    del document["graph"]["feature_data"]
    del document["feature_data"][1]
    folder = write(tmp_path / "d", document, arrays)
    (folder / "edges.csv").write_text("\n")
    assert load(folder).graph.csc_indptr.tolist() == [0, 0, 0, 0]


def test_long_csv_counts_lines_over_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr("hopline.pipes.datasets.tables.CSV_BLOCK", 7)
    folder = write(tmp_path / "d", *csv_document())
    (folder / "edges.csv").write_text("0,2\n1,0\n2,1\n0,1\n")
    check(load(folder))
    (folder / "edges.csv").write_text("0,2\n1,0\n2,1\n0,x\n")
    with pytest.raises(MetadataError, match="line 4 of"):
        load(folder)


def entries_of(document):
    """Every entry that names a file."""
    graph, task = document["graph"], document["tasks"][0]
    return [
        graph["edges"][0],
        graph["feature_data"][0],
        *document["feature_data"],
        *task["train_set"][0]["data"],
    ]


def test_npz(tmp_path):
    document, arrays = tiny()
    for entry in entries_of(document):
        entry |= {"format": "npz", "key": entry["path"].removesuffix(".npy"), "path": "all.npz"}
    folder = write(tmp_path / "d", document, {})
    packed = {name.removesuffix(".npy"): array for name, array in arrays.items()}
    np.savez_compressed(folder / "all.npz", **packed)
    check(load(folder))
    document["feature_data"][0]["key"] = "y"
    folder = write(tmp_path / "e", document, {})
    np.savez(folder / "all.npz", **packed)
    with pytest.raises(MetadataError, match=r"feature_data\[0\]\.key: no array 'y'.*'edges'"):
        load(folder)


@pytest.mark.parametrize("new", [True, False])
@pytest.mark.parametrize("name", ["scripts/opt.pt", "tensor.npy"])
def test_torch(tmp_path, new, name):
    document, arrays = tiny()
    entries = entries_of(document)
    folder = write(tmp_path / "d", document, {})
    for i, entry in enumerate(entries):
        path = folder / f"{i}" / name
        path.parent.mkdir(parents=True)
        tensor = torch.from_numpy(arrays[entry["path"]])
        torch.save(tensor, path, _use_new_zipfile_serialization=new)
        entry |= {"format": "torch", "path": f"{i}/{name}"}
    check(load(write(folder, document, {})))


def test_bfloat16_comes_back_as_bfloat16(tmp_path):
    document, arrays = tiny()
    values = torch.tensor([[1.5, -2], [3e38, 0.001], [float("inf"), 7]], dtype=torch.bfloat16)
    document["feature_data"] = [
        {"domain": "node", "name": "memory", "format": "torch", "path": "b.pt"},
        {"domain": "node", "name": "disk", "format": "torch", "path": "b.pt", "in_memory": False},
        npy("bits.npy", domain="node", name="bits", dtype="bfloat16", origin="x"),
        npy("ubits.npy", domain="node", name="ubits", dtype="bfloat16"),
        npy("big.npy", domain="node", name="big", dtype="bfloat16"),
    ]
    document["graph"]["feature_data"] = [
        {"domain": "edge", "name": "w", "format": "torch", "path": "w.pt"}
    ]
    document["tasks"][0]["train_set"][0]["data"].append(
        {"name": "score", "format": "torch", "path": "s.pt"}
    )
    bits = values.view(torch.int16).numpy()
    arrays |= {"bits.npy": bits, "ubits.npy": bits.view(np.uint16), "big.npy": bits.astype(">i2")}
    folder = write(tmp_path / "d", document, arrays)
    torch.save(values, folder / "b.pt")
    torch.save(torch.tensor([10, 11, 12, 13], dtype=torch.bfloat16), folder / "w.pt")
    torch.save(torch.tensor([0.5, 0.25], dtype=torch.bfloat16), folder / "s.pt")
    dataset = load(folder, include_original_edge_id=True)
    for name in ("memory", "disk", "bits", "ubits", "big"):
        assert dataset.feature.read("node", None, name).dtype == torch.bfloat16
        assert torch.equal(dataset.feature.read("node", None, name), values)
    assert dataset.feature.metadata("node", None, "bits") == {"dtype": "bfloat16", "origin": "x"}
    graph = dataset.graph
    assert graph.edge_attributes["w"].dtype == torch.bfloat16
    ids = graph.edge_attributes["_ORIGINAL_EDGE_ID"]
    assert torch.equal(graph.edge_attributes["w"].double(), ids + 10.0)
    score = dataset.tasks[0].train_set[:][2]
    assert score.dtype == torch.bfloat16
    assert score.tolist() == [0.5, 0.25]


def test_parquet(tmp_path, monkeypatch):
    monkeypatch.setattr("hopline.pipes.datasets.tables.PARQUET_ROWS", 2)
    document, arrays = tiny()
    document["graph"]["edges"][0] = {"format": "parquet", "path": "edges.parquet"}
    for i, entry in enumerate(document["feature_data"]):
        entry |= {"format": "parquet", "path": f"f{i}.parquet"}
    seeds = document["tasks"][0]["train_set"][0]["data"][0]
    seeds |= {"format": "parquet", "path": "seeds.parquet"}
    folder = write(tmp_path / "d", document, arrays)
    src, dst = arrays["edges.npy"]
    table = pa.table({"note": ["a", "b", "c", "d"], "dst": dst, "src": src})
    pq.write_table(table, folder / "edges.parquet", row_group_size=3)
    rows = pa.array(arrays["x.npy"].tolist(), pa.list_(pa.float32()))
    pq.write_table(pa.table({"x": rows}), folder / "f0.parquet")
    pq.write_table(pa.table({"e": arrays["e.npy"].ravel()}), folder / "f1.parquet")
    pq.write_table(pa.table({"s": arrays["seeds.npy"]}), folder / "seeds.parquet")
    check(load(folder))
    fixed = pa.array(arrays["x.npy"].tolist(), pa.list_(pa.float32(), 2))
    for other in ({"x": fixed}, {"a": arrays["x.npy"][:, 0], "b": arrays["x.npy"][:, 1]}):
        pq.write_table(pa.table(other), folder / "f0.parquet")
        check(load(folder))


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ({"src": [0, 1], "to": [1, 2], "x": [1, 2]}, "'to'"),
        ({"src": [0.5, 1], "dst": [1, 2]}, "float64"),
        ({"src": [0, None], "dst": [1, 2]}, "missing"),
        ({"src": ["a", "b"], "dst": [1, 2]}, "'src'"),
        ({"src": [0, 7], "dst": [1, 2]}, "source 7"),
        (None, "cannot be read as a parquet file"),
    ],
)
def test_wrong_parquet_edges(tmp_path, table, text):
    document, arrays = tiny()
    document["graph"]["edges"][0] = {"format": "parquet", "path": "edges.parquet"}
    del document["graph"]["feature_data"], document["feature_data"][1]
    folder = write(tmp_path / "d", document, arrays)
    if table is None:
        (folder / "edges.parquet").write_bytes(b"PAR1 and nothing else PAR1")
    else:
        pq.write_table(pa.table(table), folder / "edges.parquet")
    with pytest.raises(MetadataError, match=r"graph\.edges\[0\]\.path: ") as caught:
        load(folder)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ({"x": [[1.0], [1.0, 2.0], [1.0]]}, "differ in length"),
        ({"x": [[1.0, 2.0, 3.0], [1.0], [1.0, 2.0]]}, "differ in length"),
        ({"x": [[1.0], None, [1.0]]}, "missing"),
        ({"x": [[1.0], [None], [1.0]]}, "missing"),
        ({"x": [1.0, 2.0, 3.0], "y": [1, 2, 3]}, "one number type"),
        ({"x": ["a", "b", "c"]}, "numbers"),
        ({"x": pa.array([], pa.float32())}, "no rows"),
        ({"x": [1.0, 2.0]}, "2 rows"),
    ],
)
def test_wrong_parquet_features(tmp_path, table, text):
    document, arrays = tiny()
    document["feature_data"][0] |= {"format": "parquet", "path": "x.parquet"}
    folder = write(tmp_path / "d", document, arrays)
    pq.write_table(pa.table(table), folder / "x.parquet")
    with pytest.raises(MetadataError, match=r"feature_data\[0\]\.path: ") as caught:
        load(folder)
    assert text in str(caught.value)


def test_parquet_rows_that_decode_to_more_than_the_memory(tmp_path):
    """Runs of equal values: a kilobyte of file, 48 MB a row."""
    document, arrays = tiny()
    document["feature_data"][0] |= {"format": "parquet", "path": "x.parquet"}
    folder = write(tmp_path, document, arrays)
    width = 6_000_000
    lists = pa.ListArray.from_arrays(
        pa.array(np.arange(4, dtype=np.int32) * width), pa.array(np.zeros(3 * width, np.int64))
    )
    pq.write_table(pa.table({"x": lists}), folder / "x.parquet")
    assert (folder / "x.parquet").stat().st_size < 10_000
    with pytest.raises(MetadataError, match=r"a row of .*x\.parquet takes 48000000 bytes"):
        preprocess_ondisk_dataset(folder, max_memory=64 << 20)


def test_parquet_node_ids_that_no_int64_holds(tmp_path):
    document, arrays = tiny()
    document["graph"]["edges"][0] = {"format": "parquet", "path": "edges.parquet"}
    folder = write(tmp_path, document, arrays)
    src = np.array([2**64 - 1, 1, 2, 0], np.uint64)
    pq.write_table(pa.table({"src": src, "dst": [0, 1, 2, 0]}), folder / "edges.parquet")
    with pytest.raises(MetadataError, match=r"'src' of .* holds 18446744073709551615; expected"):
        OnDiskDataset(folder)


def test_npz_members_that_are_no_arrays(tmp_path):
    document, arrays = tiny()
    document["feature_data"][0] |= {"format": "npz", "path": "x.npz", "key": "k"}
    folder = write(tmp_path, document, arrays)
    with zipfile.ZipFile(folder / "x.npz", "w") as archive:
        archive.writestr("k", b"no array")
    with pytest.raises(MetadataError, match=r"x\.npz cannot be read .*'k' in it is no \.npy"):
        OnDiskDataset(folder)


def test_torch_files_of_tensors_without_values(tmp_path):
    document, arrays = tiny()
    document["feature_data"][0] |= {"format": "torch", "path": "x.pt"}
    folder = write(tmp_path, document, arrays)
    torch.save(torch.ones(3, 2, device="meta"), folder / "x.pt")
    with pytest.raises(MetadataError, match=r"x\.pt holds a tensor on the device meta"):
        OnDiskDataset(folder)


def test_parquet_without_pyarrow(tmp_path, monkeypatch):
    document, arrays = tiny()
    document["graph"]["edges"][0] |= {"format": "parquet"}
    folder = write(tmp_path / "d", document, arrays)
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(MetadataError, match=r"graph\.edges\[0\]\.format: .*pyarrow.*install"):
        load(folder)


def test_absolute_paths_may_lead_elsewhere(tmp_path):
    document, arrays = tiny()
    np.save(tmp_path / "far.npy", arrays.pop("x.npy"))
    document["feature_data"][0]["path"] = str(tmp_path / "far.npy")
    check(load(write(tmp_path / "d", document, arrays)))


@pytest.mark.parametrize("names", [["a", "a"], ["src", "src", "dst"]])
def test_edge_columns_of_one_name_are_refused(tmp_path, names):
    document, arrays = tiny()
    document["graph"]["edges"][0] = {"format": "parquet", "path": "e.parquet"}
    folder = write(tmp_path / "d", document, arrays)
    table = pa.table([[0, 1, 2, 0]] * len(names), names=names)
    pq.write_table(table, folder / "e.parquet")
    with pytest.raises(MetadataError, match=r"edges\[0\]\.path: .*e\.parquet.*each name once"):
        OnDiskDataset(folder)


def test_a_tensor_that_repeats_its_memory_is_refused(tmp_path):
    """1 KB of file, however large it would be once written out."""
    document, arrays = tiny()
    document["feature_data"][0].update(format="torch", path="x.pt")
    folder = write(tmp_path / "d", document, arrays)
    torch.save(torch.zeros(1).expand(3, 1 << 30), folder / "x.pt")
    with pytest.raises(MetadataError, match=r"feature_data\[0\]\.path: .*x\.pt.*repeats"):
        OnDiskDataset(folder)


def test_an_npz_array_above_the_memory_bound_is_refused(tmp_path):
    """A small zip, 24 MB of zeros."""
    document, arrays = tiny()
    document["feature_data"][0].update(format="npz", path="x.npz", key="x")
    folder = write(tmp_path / "d", document, arrays)
    np.savez_compressed(folder / "x.npz", x=np.zeros((3, 1 << 20)))
    with pytest.raises(MetadataError, match=r"x\.npz.*max_memory"):
        preprocess_ondisk_dataset(folder, max_memory=1 << 20)


def test_a_full_disk_names_the_file(tmp_path):
    writer = NpyWriter(tmp_path / "full.npy", np.dtype(np.int64), (1 << 16,))
    writer._file.close()
    writer._file = open("/dev/full", "wb")  # noqa: SIM115
    with pytest.raises(OSError, match=r"No space left.*full\.npy"):
        writer.append(np.arange(1 << 16))
    with contextlib.suppress(OSError):
        writer._file.close()
