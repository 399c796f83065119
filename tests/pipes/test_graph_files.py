"""Graphs on disk: whole round trips, mapped graphs, and files that are damaged."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import hopline.pipes as hp
from hopline.pipes import graph_files
from tests.strategies import tensor

Graph = hp.FusedCSCSamplingGraph


def typed() -> Graph:
    return hp.from_coo(
        {
            "user:buys:item": (tensor([0, 1, 1, 2]), tensor([0, 0, 2, 1])),
            "user:sees:item": (tensor([0, 0]), tensor([0, 1])),
            "item:in:shop": (tensor([]), tensor([])),
        },
        num_nodes={"user": 3, "item": 3, "shop": 0},
        edge_attributes={
            "w/é ..": {
                "user:buys:item": torch.arange(4).to(torch.bfloat16),
                "user:sees:item": torch.arange(2).to(torch.bfloat16),
                "item:in:shop": torch.empty(0, dtype=torch.bfloat16),
            }
        },
        node_attributes={
            name: {"user": torch.rand(3, 2), "item": torch.rand(3, 2), "shop": torch.rand(0, 2)}
            for name in ("true", "../x")
        },
        include_original_edge_id=True,
    )


def plain() -> Graph:
    return hp.from_coo(
        tensor([0, 1, 2, 0]), tensor([2, 0, 1, 1]), 3, include_original_edge_id=False
    )


def arrays(graph) -> dict[str, torch.Tensor]:
    named = {
        name: getattr(graph, name)
        for name in ("csc_indptr", "indices", "node_type_offset", "type_per_edge")
    }
    for attributes in (graph.node_attributes, graph.edge_attributes):
        named.update({f"attribute {name}": t for name, t in (attributes or {}).items()})
    return {name: t for name, t in named.items() if t is not None}


def assert_same(one, two):
    assert one.node_type_to_id == two.node_type_to_id
    assert one.edge_type_to_id == two.edge_type_to_id
    first, second = arrays(one), arrays(two)
    assert first.keys() == second.keys()
    for name in first:
        assert first[name].dtype == second[name].dtype
        assert torch.equal(first[name], second[name]), name


def everything(graph):
    """Samples all nodes in both ways."""
    seeds = torch.arange(graph.total_num_nodes)
    if graph.node_type_to_id is not None:
        seeds = {name: torch.arange(n) for name, n in graph.num_nodes.items()}
    for fanouts in ([2, -1], [[1] * graph.num_edge_types, -1]):
        stage = hp.NeighborSampler([], graph, fanouts)
        minibatch = stage(hp.MiniBatch(seeds=seeds, key=(0, 0, 0)))
    return minibatch


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# -------------------------------------------------------------------------------------------------
# Whole graphs


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        typed,
        plain,
        lambda: hp.from_coo(tensor([]), tensor([]), 0),
        lambda: hp.from_coo(tensor([]), tensor([]), 4),
        lambda: hp.from_coo({}, num_nodes={"a": 0, "b": 2}),
    ],
)
def test_what_is_saved_is_loaded(tmp_path, make, in_memory):
    graph = make()
    graph.save(tmp_path / "deep" / "graph")
    loaded = Graph.load(tmp_path / "deep" / "graph", in_memory=in_memory)
    assert_same(graph, loaded)
    assert repr(everything(graph)) == repr(everything(loaded))
    assert (loaded.path is None) == in_memory
    loaded.save(tmp_path / "again")
    assert contents(tmp_path / "again") == contents(tmp_path / "deep" / "graph")


def test_files_hold_no_pickles(tmp_path):
    typed().save(tmp_path / "g")
    names = contents(tmp_path / "g")
    assert {Path(name).suffix for name in names} == {".npy", ".yaml"}
    assert {Path(name).parts[0] for name in names} == {
        "graph.yaml", "csc_indptr.npy", "indices.npy", "type_per_edge.npy", "node_attributes",
        "edge_attributes",
    }  # fmt: skip
    for name in names:
        if name.endswith(".npy"):
            np.load(tmp_path / "g" / name, allow_pickle=False)


def test_a_folder_is_never_overwritten(tmp_path):
    plain().save(tmp_path / "g")
    before = contents(tmp_path)
    with pytest.raises(FileExistsError, match="g is not empty"):
        typed().save(tmp_path / "g")
    assert contents(tmp_path) == before
    (tmp_path / "empty").mkdir()
    plain().save(tmp_path / "empty")
    assert contents(tmp_path / "empty") == contents(tmp_path / "g")


def test_of_two_that_save_at_once_one_is_refused(tmp_path, monkeypatch):
    plain_write, refused = graph_files.write_npy, []

    def another_saves(path, value):
        monkeypatch.setattr(graph_files, "write_npy", plain_write)
        with pytest.raises(FileExistsError, match="g is not empty") as error:
            typed().save(tmp_path / "g")
        refused.append(error)
        return plain_write(path, value)

    monkeypatch.setattr(graph_files, "write_npy", another_saves)
    plain().save(tmp_path / "g")
    assert refused
    plain().save(tmp_path / "same")
    assert contents(tmp_path / "g") == contents(tmp_path / "same")


def test_wide_indices(tmp_path):
    graph = plain()
    graph.indices = graph.indices.to(torch.int64)
    graph.save(tmp_path / "g")
    loaded = Graph.load(tmp_path / "g")
    assert loaded.indices.dtype == torch.int64
    assert everything(loaded).input_nodes.dtype == torch.int64


# -------------------------------------------------------------------------------------------------
# Mapped graphs


def test_writing_to_a_mapped_graph_leaves_the_files(tmp_path):
    typed().save(tmp_path / "g")
    before = contents(tmp_path)
    loaded = Graph.load(tmp_path / "g")
    for value in arrays(loaded).values():
        value.zero_()
    assert (loaded.indices == 0).all()
    assert contents(tmp_path) == before
    assert_same(Graph.load(tmp_path / "g"), Graph.load(tmp_path / "g", in_memory=True))
    assert (Graph.load(tmp_path / "g").indices != 0).any()


def test_mapped_graphs_travel_as_their_path(tmp_path, monkeypatch):
    n = 100_000
    hp.from_coo(torch.arange(n), torch.arange(n), n).save(tmp_path / "g")
    monkeypatch.chdir(tmp_path)
    loaded = Graph.load("g")
    everything(loaded)  # its tables stay behind
    data = pickle.dumps(loaded)
    assert len(data) < 1000
    monkeypatch.chdir("/")
    again = pickle.loads(data)  # noqa: S301
    assert again.path == tmp_path / "g"
    assert_same(again, loaded)
    assert str(tmp_path / "g") in repr(again)
    assert len(pickle.dumps(Graph.load(tmp_path / "g", in_memory=True))) > 8 * n


@pytest.mark.parametrize(
    "change",
    [
        lambda g: g.add_edge_attribute("new", torch.arange(4)),
        lambda g: g.add_node_attribute("new", torch.arange(3)),
        lambda g: setattr(g, "edge_attributes", {"new": torch.arange(4)}),
        lambda g: g.node_attributes.update(x=torch.arange(3)),
        lambda g: g.node_attributes.pop("x"),
        lambda g: setattr(g, "indices", g.indices.clone()),
    ],
)
def test_a_mapped_graph_that_has_changed_travels_whole(tmp_path, change):
    graph = plain()
    graph.add_node_attribute("x", torch.zeros(3))
    graph.save(tmp_path / "g")
    loaded = Graph.load(tmp_path / "g")
    change(loaded)
    assert loaded.path is None
    again = pickle.loads(pickle.dumps(loaded))  # noqa: S301
    assert_same(again, loaded)


def test_loading_reads_no_array(tmp_path):
    # A graph whose arrays have holes: 80 GB, more than most machines have memory.
    folder = tmp_path / "g"
    plain().save(folder)
    num_edges = 10_000_000_000
    with (folder / "indices.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": "<i8", "fortran_order": False, "shape": (num_edges,)}
        )
        file.truncate(file.tell() + 8 * num_edges)
    np.save(folder / "csc_indptr.npy", np.array([0, 1, 2, num_edges]))
    loaded = Graph.load(folder)
    assert loaded.num_edges == num_edges
    minibatch = hp.NeighborSampler([], loaded, [3, 5])(
        hp.MiniBatch(seeds=tensor([2, 1]), key=(0, 0, 0))
    )
    assert minibatch.input_nodes.tolist() == [2, 1, 0]


# -------------------------------------------------------------------------------------------------
# Damaged folders


def test_no_graph(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere.graph\.yaml"):
        Graph.load(tmp_path / "nowhere")
    for name in ("csc_indptr.npy", "indices.npy", "type_per_edge.npy"):
        folder = tmp_path / name
        typed().save(folder)
        (folder / name).unlink()
        with pytest.raises(FileNotFoundError, match=name):
            Graph.load(folder)


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize("name", ["csc_indptr", "indices", "type_per_edge"])
def test_truncated_arrays(tmp_path, name, in_memory):
    typed().save(tmp_path / "g")
    path = tmp_path / "g" / f"{name}.npy"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=rf"{name}\.npy: cut short"):
        Graph.load(tmp_path / "g", in_memory=in_memory)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("csc_indptr", np.array([0, 1, 2, 6], np.int32), "int32 of shape"),
        ("csc_indptr", np.array([[0, 6]]), r"shape \(1, 2\)"),
        ("csc_indptr", np.empty(0, np.int64), r"shape \(0,\)"),
        ("csc_indptr", np.array([0, 0, 0, 0, 1, 1, 5]), "from 0 to 5; expected 0 to 6"),
        ("csc_indptr", np.array([1, 0, 0, 0, 1, 1, 6]), "from 1 to 6"),
        ("csc_indptr", np.array([0, 6]), "node_type_offset is"),
        ("indices", np.zeros(6, np.float32), "float32 of shape"),
        ("indices", np.zeros(6, np.int16), "int16 of shape"),
        ("indices", np.zeros((6, 1), np.int32), r"shape \(6, 1\)"),
        ("indices", np.zeros(5, np.int32), "the length of indices"),
        ("type_per_edge", np.zeros(6, np.float64), "float64 of shape"),
        ("type_per_edge", np.zeros(6, bool), "bool of shape"),
        ("type_per_edge", np.zeros((6, 2), np.int8), r"shape \(6, 2\)"),
        ("type_per_edge", np.zeros(5, np.int8), r"shape \(5,\)"),
        ("edge_attributes/_ORIGINAL_EDGE_ID", np.zeros(5, np.int64), "6 rows"),
        ("edge_attributes/_ORIGINAL_EDGE_ID", np.zeros(6, np.int32), "expected int64"),
        ("node_attributes/true", np.zeros((7, 2), np.float32), "6 rows"),
    ],
)
def test_arrays_that_do_not_fit(tmp_path, name, array, message):
    typed().save(tmp_path / "g")
    path = tmp_path / "g" / f"{name}.npy"
    assert path.is_file()
    np.save(path, array)
    with pytest.raises(ValueError, match=message) as caught:
        Graph.load(tmp_path / "g")
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "place", "value", "message"),
    [
        ("csc_indptr", 4, 7, "csc_indptr is damaged at node 3"),
        ("csc_indptr", 4, -1, "csc_indptr is damaged at node 3"),
        ("csc_indptr", 4, 2**62, "csc_indptr is damaged at node 3"),
        ("indices", 0, 6, r"indices\[0\] is 6; expected a node in \[0, 6\)"),
        ("indices", 5, -1, r"indices\[5\] is -1"),
        ("indices", 5, 2**31 - 1, rf"indices\[5\] is {2**31 - 1}"),
        ("indices", 1, 4, "edge 1 is of type 'user:buys:item'"),
        ("type_per_edge", 2, 200, r"type_per_edge\[2\] is 200"),
        ("type_per_edge", 0, 1, r"type_per_edge\[1\] is 0"),
        ("type_per_edge", 2, 2, "edge 2 is of type 'item:in:shop'|1 edges have a type"),
    ],
)
def test_entries_that_are_wrong_are_found_when_they_are_read(tmp_path, name, place, value, message):
    typed().save(tmp_path / "g")
    path = tmp_path / "g" / f"{name}.npy"
    array = np.load(path)
    array[place] = value
    np.save(path, array)
    loaded = Graph.load(tmp_path / "g")
    with pytest.raises(ValueError, match=message) as caught:
        everything(loaded)
    assert str(tmp_path / "g") in str(caught.value)


def edit(**changes):
    def change(document):
        for key, value in changes.items():
            if value is None:
                del document[key]
            else:
                document[key] = value
        return document

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (edit(format_version=2), "format_version is 2; this version reads 1"),
        (edit(format_version=None), "format_version is None"),
        (edit(format_version="1"), "format_version is '1'"),
        (lambda document: [1, 2], "format_version is"),
        (lambda document: None, "format_version is None"),
        (edit(colour="red"), "unknown keys.*colour"),
        (edit(node_type_to_id=None), "all or none"),
        (edit(edge_type_to_id=None), "all or none"),
        (edit(node_type_offset=None), "all or none"),
        (edit(node_type_offset="0"), "node_type_offset is '0'; expected a list"),
        (edit(node_type_offset=[0, 3.5, 6, 6]), "3.5"),
        (edit(node_type_offset=[0, 3, 6, 2**70]), str(2**70)),
        (edit(node_type_offset=[0, 3, 6]), "4 entries"),
        (edit(node_type_offset=[0, 3, 6, 7]), r"\[0, 3, 6, 7\]"),
        (edit(node_type_to_id=["user"]), "node_type_to_id is"),
        (edit(node_type_to_id={"user": 0, "item": 1, "shop": 3}), "'shop': 3"),
        (edit(node_type_to_id={"user": 0, "item": 1, "shop": "2"}), "'shop': '2'"),
        (edit(edge_type_to_id={"user:buys:item": 0, "user:x:car": 1}), "'car'"),
        (edit(edge_type_to_id={"user:buys": 0}), "'user:buys'"),
        (edit(node_attributes=["x"]), "node_attributes is"),
        (edit(node_attributes={"x": 5}), "'x': 5"),
        (edit(edge_attributes={7: "int64"}), "7: 'int64'"),
    ],
)
def test_a_damaged_graph_yaml(tmp_path, change, message):
    typed().save(tmp_path / "g")
    path = tmp_path / "g" / "graph.yaml"
    path.write_text(yaml.safe_dump(change(yaml.safe_load(path.read_text()))))
    with pytest.raises(ValueError, match=message) as caught:
        Graph.load(tmp_path / "g")
    assert str(path) in str(caught.value)


def test_graph_yaml_runs_no_code(tmp_path):
    plain().save(tmp_path / "g")
    path = tmp_path / "g" / "graph.yaml"
    for text in ("!!python/object/apply:os.abort []", "a: [", "\tb", "\x00"):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"graph\.yaml: not YAML"):
            Graph.load(tmp_path / "g")
    path.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ValueError, match=r"graph\.yaml: not YAML"):
        Graph.load(tmp_path / "g")


FUZZ = """
import collections, random, shutil, sys
from pathlib import Path
from tests.pipes.test_graph_files import Graph, everything, typed

folder = Path(sys.argv[1])
typed().save(folder)
files = [p for p in sorted(folder.rglob("*")) if p.is_file()]
whole = {p: p.read_bytes() for p in files}
generator = random.Random(0)
seen = collections.Counter()
for _ in range(int(sys.argv[2])):
    path = generator.choice(files)
    content = bytearray(whole[path])
    # Mostly the entries, that follow a header of 128 bytes.
    first = 128 if path.suffix == ".npy" and generator.random() < 0.8 else 0
    for _ in range(generator.randint(1, 4)):
        content[generator.randrange(first, len(content))] = generator.randrange(256)
    if generator.random() < 0.1:
        del content[generator.randrange(len(content)):]
    path.unlink()  # a new file: other mappings keep the old one
    path.write_bytes(content)
    for in_memory in (False, True):
        try:
            everything(Graph.load(folder, in_memory=in_memory))
            seen["read"] += 1
        except (ValueError, FileNotFoundError):
            seen["refused"] += 1
    path.write_bytes(whole[path])
print(dict(seen))
"""


def test_no_damage_crashes_the_process(tmp_path):
    """In a process of its own, that ends by itself whatever bytes the files hold."""
    done = subprocess.run(
        [sys.executable, "-c", FUZZ, str(tmp_path / "g"), "300"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    assert "read" in done.stdout
    assert "refused" in done.stdout


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64, torch.int8])
def test_edge_types_of_every_integer_type(tmp_path, dtype):
    graph = typed()
    graph.type_per_edge = graph.type_per_edge.to(dtype)
    graph.save(tmp_path / "g")
    for in_memory in (False, True):
        loaded = Graph.load(tmp_path / "g", in_memory=in_memory).type_per_edge
        assert loaded.tolist() == graph.type_per_edge.tolist()


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("type_per_edge", torch.zeros(6), TypeError, "type_per_edge has dtype torch.float32"),
        (
            "type_per_edge",
            torch.zeros(5, dtype=torch.int8),
            ValueError,
            r"type_per_edge has shape \(5,\)",
        ),
        ("indices", torch.zeros(6, dtype=torch.int16), TypeError, "indices has dtype torch.int16"),
        (
            "edge_attributes",
            {"x": torch.zeros(5)},
            ValueError,
            r"edge attribute 'x' has shape \(5,\)",
        ),
    ],
)
def test_what_cannot_be_loaded_is_not_saved(tmp_path, name, value, error, message):
    graph = typed()
    setattr(graph, name, value)
    with pytest.raises(error, match=message):
        graph.save(tmp_path / "g")
    assert not (tmp_path / "g").exists()
