from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import hopline.pipes as hp
from hopline.partition import load_part, load_partition, load_tasks, verify_partition
from tests.partition.graphs import heterogeneous, homogeneous
from tests.partition.test_write import cut


def around(graph, features=None, columns=None, names=None, metadata=None):
    """A data set of a graph, features, and one task's training set."""
    items = None if columns is None else hp.ItemSet(columns, names=names)
    task = SimpleNamespace(
        metadata=metadata or {}, train_set=items, validation_set=None, test_set=None
    )
    return SimpleNamespace(
        graph=graph, feature=hp.BasicFeatureStore(features or {}), tasks=[task]
    )  # fmt: skip


def test_seeds_of_a_dtype_too_small_for_new_ids_get_a_larger_one(tmp_path):
    seeds = torch.arange(200).to(torch.uint8)
    dataset = around(homogeneous(nodes=400).graph, columns=(seeds,), names=("seeds",))
    nodes, _ = cut(dataset, tmp_path / "out", 3, part_method="random", return_mapping=True)
    (task,) = load_tasks(tmp_path / "out", load_partition(tmp_path / "out"))
    (found,) = task.train_set[:]
    assert found.dtype == torch.int64
    assert torch.equal(nodes[found], seeds.long())
    verify_partition(tmp_path / "out", dataset)


def test_negatives_of_an_item_set_get_new_ids_too(tmp_path):
    """Of each its end's type; other columns of integers are left alone."""
    dataset = heterogeneous()
    pairs = torch.stack((torch.arange(30), torch.arange(30)), 1)
    sources, targets = torch.arange(60, 90), torch.arange(120).view(30, 4) % 40
    names = ("seeds", "negative_srcs", "negative_dsts", "timestamp")
    items = hp.ItemSet((pairs, sources, targets, torch.arange(30)), names=names)
    dataset.tasks[0].validation_set = hp.HeteroItemSet({"user:buys:item": items})
    nodes, _ = cut(dataset, tmp_path / "out", 3, part_method="random", return_mapping=True)
    (task,) = load_tasks(tmp_path / "out", load_partition(tmp_path / "out"))
    found = task.validation_set.itemsets["user:buys:item"][:]
    assert torch.equal(nodes["user"][found[1]], sources)
    assert torch.equal(nodes["item"][found[2]], targets)
    assert torch.equal(found[3], torch.arange(30))
    verify_partition(tmp_path / "out", dataset)
    targets[7, 2] = 40
    with pytest.raises(IndexError, match=r"column 'negative_dsts'.*id 40 .*\[0, 40\)"):
        cut(dataset, tmp_path / "other", 3)


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.float16, torch.bfloat16, torch.uint16, torch.complex64]
)
def test_values_of_any_dtype(tmp_path, dtype):
    graph = hp.from_coo(
        torch.arange(40), (torch.arange(40) + 1) % 40, num_nodes=40,
        node_attributes={"a": (torch.arange(80).view(40, 2) % 2).to(dtype)},
        edge_attributes={"b": (torch.arange(40) % 2).to(dtype)},
    )  # fmt: skip
    values = (torch.arange(240).view(40, 2, 3) % 2).to(dtype)
    features = {("node", None, "x"): hp.TorchBasedFeature(values)}
    dataset = around(graph, features, (torch.arange(40), values[:, 0]), ("seeds", "labels"))
    cut(dataset, tmp_path / "out", 3)
    verify_partition(tmp_path / "out", dataset)
    part = load_part(tmp_path / "out", 1)
    own = part.original_nodes[""][: part.num_own[""]]
    assert torch.equal(part.features["node", None, "x"], values[own])
    assert part.graph.node_attributes["a"].dtype == part.graph.edge_attributes["b"].dtype == dtype


def test_any_type_name_makes_a_file_name(tmp_path):
    """Long names, names of folders and devices, and names that differ in case only."""
    names = ["a/b", ".", "..", "A/B", "con", "all", "s p a c e", "Ünï", "x" * 300, "\u8282" * 80]
    edges = {f"{a}:{b}:{b}": (torch.arange(9), torch.arange(9)) for a, b in pairwise(names)}
    graph = hp.from_coo(edges, num_nodes=dict.fromkeys(names, 9))
    features = {
        ("node", name, "../x"): hp.TorchBasedFeature(torch.full((9, 1), i))
        for i, name in enumerate(names)
    }
    dataset = around(graph, features)
    cut(dataset, tmp_path / "out", 2)
    verify_partition(tmp_path / "out", dataset)
    files = [p.name for p in (tmp_path / "out" / "part-0" / "nodes").iterdir()]
    assert len({name.lower() for name in files}) == len(names)
    assert max(map(len, files)) < 128
    assert [p.name for p in tmp_path.iterdir() if not p.name.startswith(".")] == ["out"]


def test_a_mapped_data_set(tmp_path):
    dataset = homogeneous()
    dataset.graph.save(tmp_path / "graph")
    rows = np.random.default_rng(0).random((120, 5), np.float32)
    np.save(tmp_path / "rows.npy", rows)
    mapped = around(
        hp.FusedCSCSamplingGraph.load(tmp_path / "graph"),
        {("node", None, "x"): hp.DiskBasedFeature(tmp_path / "rows.npy")},
    )
    cut(mapped, tmp_path / "out", 3, num_hops=2)
    verify_partition(tmp_path / "out", mapped)
    part = load_part(tmp_path / "out", 2)
    own = part.original_nodes[""][: part.num_own[""]].numpy()
    assert np.array_equal(part.features["node", None, "x"].numpy(), rows[own])


def test_edge_ids_are_integers_without_edges(tmp_path):
    none = torch.empty(0, dtype=torch.int64)
    graph = hp.from_coo(none, none, num_nodes=3)
    cut(graph, tmp_path / "out", 2, num_hops=2)
    ids = load_part(tmp_path / "out", 0).graph.edge_attributes["_ORIGINAL_EDGE_ID"]
    assert ids.dtype == torch.int64


def test_edge_features_go_by_places_where_edges_have_no_ids(tmp_path):
    """As samplers read them; of several types such rows are rarely what is meant."""
    values = torch.arange(50)[:, None]
    edges = torch.arange(50) % 20, torch.arange(50) % 7
    graph = hp.from_coo(*edges, num_nodes=20, include_original_edge_id=False)
    dataset = around(graph, {("edge", None, "x"): hp.TorchBasedFeature(values)})
    _, before = cut(dataset, tmp_path / "out", 2, return_mapping=True)
    verify_partition(tmp_path / "out", dataset)
    found = [load_part(tmp_path / "out", p).features["edge", None, "x"] for p in (0, 1)]
    assert torch.equal(torch.cat(found), values[before])
    typed = dict.fromkeys(("a:r:a", "a:s:a"), edges)
    graph = hp.from_coo(typed, num_nodes={"a": 20}, include_original_edge_id=False)
    dataset = around(graph, {("edge", "a:s:a", "x"): hp.TorchBasedFeature(values)})
    with pytest.raises(ValueError, match=r"50 rows; expected 100; .*include_original_edge_id"):
        cut(dataset, tmp_path / "other", 2)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({("node", "user", "x"): torch.zeros(120, 1)}, ValueError, r"'user': the graph has .*None"),
        ({("node", None, "x"): torch.zeros(119, 1)}, ValueError, "has 119 rows; expected 120"),
        ({("node", None, "x"): torch.zeros(121, 1)}, ValueError, "has 121 rows; expected 120"),
        ({("graph", None, "x"): torch.zeros(1, 1)}, ValueError, "the domain 'node' or 'edge'"),
        ({("edge", None, "x"): torch.zeros(650, 1)}, IndexError, "edge feature 'x' .* outside"),
        ({("node", None, "x"): torch.zeros(120, 1).to(torch.float8_e4m3fn)}, TypeError,
         r"'x' .*float8_e4m3fn"),
    ],
)  # fmt: skip
def test_features_that_do_not_fit_are_named(tmp_path, change, error, message):
    features = {key: hp.TorchBasedFeature(rows) for key, rows in change.items()}
    with pytest.raises(error, match=message):
        cut(around(homogeneous().graph, features), tmp_path / "out", 2)
    assert not (tmp_path / "out").exists()


def test_metadata_that_no_file_holds_is_named(tmp_path):
    dataset = around(homogeneous().graph, metadata={"best": torch.tensor(3)})
    with pytest.raises(TypeError, match=r"task 0: metadata holds tensor\(3\); expected plain"):
        cut(dataset, tmp_path / "out", 2)


def test_numbers_of_numpy(tmp_path):
    cut(
        homogeneous().graph, tmp_path / "out", np.int64(2), num_hops=np.int32(2),
        seed=np.int64(3), eps=np.float32(0.5), num_trainers_per_machine=np.int64(2),
    )  # fmt: skip
    assert load_partition(tmp_path / "out").seed == 3
