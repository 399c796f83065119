"""Parts of DistDGL. The formats were compared with files of dgl 2.1.0 by hand."""

import contextlib
import json
import pickle

import numpy as np
import pytest
import torch

from hopline.partition import (
    PartitionError,
    distdgl,
    load_distdgl,
    load_part,
    load_partition,
    partition_graph,
    verify_partition,
)  # fmt: skip
from hopline.partition.cli import main
from tests.partition.distdgl_writer import COO, CSC, CSR, tensor_file, write_parts

TYPED = {"item": 30, "nobody": 0, "user": 40}
EDGES = {"user:buys:item": 90, "user:follows:user": 120, "user:never:nobody": 0}


def cut_typed(folder, num_parts=3, formats=COO, seed=0):
    rng = np.random.default_rng(seed)
    edges = {
        kind: tuple(rng.integers(0, max(1, TYPED[end]), n) for end in kind.split(":")[::2])
        for kind, n in EDGES.items()
    }
    parts = {kind: rng.integers(0, num_parts, n) for kind, n in TYPED.items()}
    parts["item"][parts["item"] == 1] = 0  # a part without items
    bits = torch.arange(40).bfloat16().view(torch.int16).numpy()
    ndata = {"user": {"id": np.arange(40), "half": ("bfloat16", bits)},
             "item": {"x/y": np.arange(60, dtype=np.float32).reshape(30, 2)}}  # fmt: skip
    edata = {"user:buys:item": {"id": np.arange(90)}}
    return edges, *write_parts(folder, TYPED, edges, parts, num_parts, ndata, edata, formats)


def cut_plain(folder, num_parts=2):
    rng = np.random.default_rng(1)
    edges = {"_N:_E:_N": tuple(rng.integers(0, 25, 100) for _ in range(2))}
    parts = {"_N": rng.integers(0, num_parts, 25)}
    ndata = {"_N": {"label": np.arange(25), "train_mask": (np.arange(25) % 2).astype(np.uint8)}}
    mapping = write_parts(folder, {"_N": 25}, edges, parts, num_parts, ndata, {})
    return edges, *mapping


def check(dataset, edges, nodes, edge_ids):
    """Every edge of the graph, by the ids before the cut, is the one of that number."""
    graph = dataset.graph
    columns = torch.repeat_interleave(
        torch.arange(graph.total_num_nodes), graph.csc_indptr.diff()
    ).numpy()
    numbers = graph.edge_attributes["_ORIGINAL_EDGE_ID"].numpy()
    kinds = graph.edge_type_to_id or {"_N:_E:_N": 0}
    offsets = [0] if graph.node_type_offset is None else graph.node_type_offset.tolist()
    firsts = {kind: offsets[i] for kind, i in (graph.node_type_to_id or {"_N": 0}).items()}
    types = np.zeros(len(numbers)) if graph.type_per_edge is None else graph.type_per_edge.numpy()
    for kind, (source, column) in edges.items():
        mine = types == kinds[kind]
        before = edge_ids[kind][numbers[mine]]
        assert np.array_equal(np.sort(before), np.arange(len(source)))
        for ends, kept, of in ((graph.indices.numpy(), source, 0), (columns, column, 2)):
            end = kind.split(":")[of]
            assert np.array_equal(nodes[end][ends[mine] - firsts[end]], kept[before])


@pytest.mark.parametrize("formats", [COO, CSC, CSR, COO | CSC | CSR])
def test_a_typed_graph_comes_back_with_its_parts(tmp_path, monkeypatch, formats):
    monkeypatch.setattr(pickle, "loads", None)
    monkeypatch.setattr(pickle, "load", None)
    edges, nodes, edge_ids = cut_typed(tmp_path / "old", formats=formats)
    dataset = load_distdgl(tmp_path / "old" / "g.json")
    check(dataset, edges, nodes, edge_ids)
    read = dataset.feature.read
    assert torch.equal(read("node", "user", "id"), torch.from_numpy(nodes["user"]))
    assert torch.equal(read("node", "user", "half"), torch.from_numpy(nodes["user"]).bfloat16())
    some = torch.tensor([29, 3, 3])
    expected = torch.from_numpy(nodes["item"])[some].float() * 2
    assert torch.equal(read("node", "item", "x/y", some)[:, 0], expected)
    assert torch.equal(
        read("edge", "user:buys:item", "id"), torch.from_numpy(edge_ids["user:buys:item"])
    )
    with pytest.raises(IndexError):
        read("node", "user", "id", torch.tensor([40]))
    with pytest.raises(TypeError, match="for reading"):
        dataset.feature["node", "user", "id"].update(torch.zeros(40))
    # The parts that partition_graph makes of it are the same, by the same ids.
    partition_graph(dataset, "g", 3, tmp_path / "new", part_method=dataset.parts)
    verify_partition(tmp_path / "new", dataset)
    description = json.loads((tmp_path / "old" / "g.json").read_text())
    for number in range(3):
        part = load_part(tmp_path / "new", number)
        for kind in TYPED:
            low, high = description["node_map"][kind][number]
            own = part.original_nodes[kind][: part.num_own[kind]]
            assert part.num_own[kind] == high - low
            assert own.tolist() == list(part.book.node_range(number, kind))


def test_a_graph_without_types_and_the_command(tmp_path, capsys):
    edges, nodes, edge_ids = cut_plain(tmp_path / "old")
    dataset = load_distdgl(tmp_path / "old" / "g.json")
    assert dataset.graph.node_type_to_id is None
    check(dataset, edges, nodes, edge_ids)
    assert torch.equal(dataset.feature.read("node", None, "label"), torch.from_numpy(nodes["_N"]))
    path = str(tmp_path / "old" / "g.json")
    assert main(["partition", path, "--out", str(tmp_path / "new"), "--verify"]) == 0
    assert "g: 2 parts by given" in capsys.readouterr().out
    assert (
        load_partition(tmp_path / "new").quality["nodes"] == torch.bincount(dataset.parts).tolist()
    )
    for options in (["--parts", "3"], ["--method", "ldg"], ["--balance-edges"]):
        assert main(["partition", path, "--out", str(tmp_path / "other"), *options]) == 1
        assert "leave out" in capsys.readouterr().err


def test_one_part(tmp_path):
    edges, nodes, edge_ids = cut_typed(tmp_path / "old", num_parts=1)
    dataset = load_distdgl(tmp_path / "old" / "g.json")
    check(dataset, edges, nodes, edge_ids)
    assert dataset.num_parts == 1


@pytest.fixture(scope="module")
def parted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("distdgl") / "old"
    cut_typed(folder)
    return folder


HUGE = 1 << 50


def without(document, *path):
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]


def put(value, *path):
    def change(document):
        inner = document
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value

    return change


def announce_more(document):
    document["num_edges"] += HUGE
    document["edge_map"]["user:follows:user"][2][1] += HUGE
    for bound in (0, 1):
        document["edge_map"]["user:never:nobody"][2][bound] += HUGE


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put(3, "graph_name"), "graph_name is 3; expected a string"),
        (put([[30]], "num_nodes_per_chunk"), "describes a chunked graph; expected the JSON"),
        (put(0, "num_parts"), "num_parts is 0; expected 1"),
        (put(1 << 40, "num_parts"), "num_parts is .* expected an int of 0 to 32768"),
        (put(True, "num_parts"), "num_parts is True"),
        (put(4, "num_parts"), "expected 4 ranges"),
        (put(70.0, "num_nodes"), "num_nodes is 70.0"),
        (put(71, "num_nodes"), "node_map goes on at 71 after 70; expected ranges that follow"),
        (put("node_map.npy", "node_map"), "a file for each node.*whose parts are ranges"),
        (put([[0, 9]], "node_map", "item"), r"node_map has \[\[0, 9\]\] for 'item'"),
        (put([3, 2], "node_map", "item", 0), r"\[3, 2\] for 'item' in part 0; expected \[first"),
        (put([0, 900], "node_map", "item", 0), "within 0 to 70"),
        (put([0, 5], "node_map", "item", 0), r"node_map goes on at \d+ after 5; expected ranges"),
        (put([-1, 5], "node_map", "item", 0), "in part 0; expected"),
        (put([0, 1.5], "edge_map", "user:buys:item", 0), "in part 0; expected"),
        (put({"a": 0, "b": 2}, "ntypes"), "ntypes is .* expected"),
        (put({"buys": 0}, "etypes"), "edge_map is .* expected ranges for"),
        (lambda d: without(d, "part-1"), "part-1 is None; expected the names of its files"),
        (lambda d: without(d, "part-1", "node_feats"), "part-1 has None for node_feats"),
        (put("../g/part0/graph.dgl", "part-0", "part_graph"), "outside the folder"),
        (put("/etc/hostname", "part-0", "part_graph"), "outside the folder"),
        (put("part9/graph.dgl", "part-0", "part_graph"), "part9/graph.dgl: no such file"),
        (put("part1/graph.dgl", "part-0", "part_graph"), "of different graphs"),
        (put("part1/node_feat.dgl", "part-0", "node_feats"), "part1/node_feat.dgl: has .* rows"),
        (put("part0/node_feat.dgl", "part-0", "part_graph"), "has .* bytes; expected|has dd5a9f"),
        (put("part0", "part-0", "part_graph"), "part0: no such file"),
        (announce_more, r"part2/graph\.dgl: has \d+ bytes; expected \d{15,} or more"),
    ],
)  # fmt: skip
def test_descriptions_that_do_not_fit_are_refused(parted, change, message):
    document = json.loads((parted / "g.json").read_text())
    change(document)
    path = parted / "changed.json"
    path.write_text(json.dumps(document))
    with pytest.raises(PartitionError, match=message):
        load_distdgl(path)


def test_what_is_no_description_is_refused(parted, tmp_path):
    for content in (b"", b"[", b"3", b"\xff", b"[" * 100_000, b"9" * 10_000):
        (tmp_path / "g.json").write_bytes(content)
        with pytest.raises(PartitionError, match=r"g\.json: "):
            load_distdgl(tmp_path / "g.json")
    with pytest.raises(PartitionError, match="no such file; expected the JSON file"):
        load_distdgl(tmp_path / "none.json")
    document = json.loads((parted / "g.json").read_text())
    del document["part-0"]["part_graph"]
    document["part-0"]["part_graph_graphbolt"] = "part0/fused_csc_sampling_graph.pt"
    (parted / "graphbolt.json").write_text(json.dumps(document))
    with pytest.raises(PartitionError, match="for GraphBolt only, which is a pickle"):
        load_distdgl(parted / "graphbolt.json")


@pytest.mark.parametrize("name", ["graph.dgl", "node_feat.dgl", "edge_feat.dgl"])
def test_damaged_files_are_named_wherever_they_are_cut_or_changed(tmp_path, name):
    cut_plain(tmp_path / "old")
    path = tmp_path / "old" / "part0" / name
    whole = path.read_bytes()
    last = len(whole) - (56 if name == "graph.dgl" else 0)  # types and indices are not read
    for size in range(0, last, 1 + last // 150):
        path.write_bytes(whole[:size])
        with pytest.raises(PartitionError, match=name):
            load_distdgl(tmp_path / "old" / "g.json")
    rng = np.random.default_rng(0)
    for place in rng.integers(0, last, 200).tolist():
        changed = bytearray(whole)
        changed[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
        # Values may be others, but no other exception may be raised.
        with contextlib.suppress(PartitionError):
            load_distdgl(tmp_path / "old" / "g.json")


def test_files_of_features_may_be_missing_from_all_parts(tmp_path):
    cut_plain(tmp_path / "old")
    (tmp_path / "old" / "part0" / "edge_feat.dgl").unlink()
    with pytest.raises(PartitionError, match=r"part0/edge_feat\.dgl: no such file"):
        load_distdgl(tmp_path / "old" / "g.json")
    (tmp_path / "old" / "part1" / "edge_feat.dgl").unlink()
    with pytest.warns(UserWarning, match="no part has its edge_feat.dgl; .* without edge data"):
        dataset = load_distdgl(tmp_path / "old" / "g.json")
    assert {key.domain for key in dataset.feature.keys()} == {"node"}  # noqa: SIM118


def test_more_edges_than_memory_has_room_for(tmp_path, monkeypatch):
    cut_plain(tmp_path / "old")
    monkeypatch.setattr(distdgl, "usable_memory", lambda: 5199)
    with pytest.raises(MemoryError, match="100 edges take up to"):
        load_distdgl(tmp_path / "old" / "g.json")


def test_features_that_differ_between_parts_are_refused(tmp_path):
    cut_plain(tmp_path / "old")
    path = tmp_path / "old" / "part1" / "node_feat.dgl"
    count = len(load_distdgl(tmp_path / "old" / "g.json").parts.nonzero())
    mask = np.zeros(count, np.uint8)
    for content, message in (
        ({"_N/train_mask": mask}, "has nothing for _N/label; expected rows of torch.int64"),
        ({"_N/train_mask": mask, "_N/label": np.zeros((count, 2), int)}, r"torch.int64 \(2,\)"),
        ({"_N/train_mask": mask, "_N/label": np.zeros(count + 1, int)}, f"expected {count} rows"),
        ({"_M/train_mask": mask}, "expected 'type/name' with a type of"),
    ):
        path.write_bytes(tensor_file(content))
        with pytest.raises(PartitionError, match=message):
            load_distdgl(tmp_path / "old" / "g.json")
