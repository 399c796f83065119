"""BuiltinDataset: where the shipped file is expanded to, how, and what comes out of it."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import hopline.pipes as hp
from hopline.pipes.datasets import build_debian, builtin
from hopline.pipes.datasets.debian import read_archive, text_lines
from tests.pipes.datasets.test_build_debian import INDEX

SHIPPED = builtin._SOURCES["debian"].file


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("datasets")


@pytest.fixture(scope="module")
def debian(root):
    return hp.BuiltinDataset("debian", root).load()


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Puts a file of three packages in the place of the shipped one; returns the file."""
    file = tmp_path / "shipped" / "debian.npz"
    file.parent.mkdir()
    build_debian.write_archive(file, build_debian.build_arrays(INDEX, feature_dim=8, min_sources=1))
    source = builtin._SOURCES["debian"]
    monkeypatch.setitem(builtin._SOURCES, "debian", builtin._Source(file, source.expand, 1))
    return file


def folders(root: Path) -> list[str]:
    """What lies in the root, lock files left aside."""
    return sorted(path.name for path in root.iterdir() if path.suffix != ".lock")


# ------------------------------------------------------------------------ the shipped file


def test_shipped_file_is_small_and_holds_numbers_alone():
    assert SHIPPED.stat().st_size < 4e6
    arrays = read_archive(SHIPPED)  # without pickle
    assert all(array.dtype.kind in "iuf" for array in arrays.values())
    assert b"@" not in arrays["names"].tobytes()  # package names; no addresses


def test_debian_has_graph_feature_and_task(debian):
    arrays = read_archive(SHIPPED)
    n = len(arrays["labels"])
    assert debian.dataset_name == "debian"
    assert debian.graph.num_nodes == n > 50_000
    assert debian.graph.num_edges == 2 * len(arrays["edge_targets"])
    assert len(debian.all_nodes_set) == n
    feature = debian.feature["node", None, "feat"]
    assert feature.count() == n
    assert feature.size() == (256,)
    rows = feature.read(torch.arange(1000))
    assert rows.dtype == torch.float32
    lengths = torch.linalg.vector_norm(rows[:, :-2], dim=1)
    assert bool(((lengths - 1).abs() < 1e-5).logical_or(lengths == 0).all())
    (task,) = debian.tasks
    assert task.metadata["name"] == "node_classification"
    assert task.metadata["num_classes"] == len(task.metadata["class_names"]) > 50
    assert len(debian.node_names) == n


def test_debian_sets_split_the_nodes_60_20_20(debian):
    (task,) = debian.tasks
    n = debian.graph.num_nodes
    sets = (task.train_set, task.validation_set, task.test_set)
    seeds = [items[:][0] for items in sets]
    assert torch.equal(torch.cat(seeds).sort().values, torch.arange(n, dtype=seeds[0].dtype))
    for part, share in zip(seeds, (0.6, 0.2, 0.2), strict=True):
        assert abs(len(part) / n - share) < 0.02
    for items in sets:
        assert items.names == ("seeds", "labels")
        labels = items[:][1]
        assert labels.dtype == torch.int64
        assert 0 <= int(labels.min()) <= int(labels.max()) < task.metadata["num_classes"]


def test_debian_edges_and_relations_are_those_of_the_file(debian):
    """A package that is known by name: its edges, typed, in both directions."""
    names = debian.node_names
    ids = {name: i for i, name in enumerate(names)}
    relation_names = debian.tasks[0].metadata["relation_names"]
    graph = debian.graph
    relation = graph.edge_attributes["relation"]

    def into(node: int) -> set[tuple[str, str]]:
        span = slice(int(graph.csc_indptr[node]), int(graph.csc_indptr[node + 1]))
        return {
            (names[source], relation_names[kind])
            for source, kind in zip(
                graph.indices[span].tolist(), relation[span].tolist(), strict=True
            )
        }

    assert ("0ad", "Depends") in into(ids["0ad-data"])
    assert ("0ad-data", "reverse Depends") in into(ids["0ad"])
    assert ("0ad", "Depends") in into(ids["libc6"])

    arrays = read_archive(SHIPPED)
    forward = text_lines(arrays["relation_names"])
    assert relation_names == forward + [f"reverse {name}" for name in forward]
    counts = torch.bincount(relation.to(torch.int64), minlength=2 * len(forward)).tolist()
    assert counts == arrays["edge_counts"].sum(axis=0).tolist() * 2
    # No self-loops; each edge has its reverse, of the same relation.
    n = graph.num_nodes
    dst = torch.repeat_interleave(torch.arange(n), graph.csc_indptr.diff())
    src = graph.indices.to(torch.int64)
    assert not bool((src == dst).any())
    back = relation.to(torch.int64) >= len(forward)
    kind = relation.to(torch.int64) % len(forward)
    there = ((src * n + dst) * len(forward) + kind)[~back].sort().values
    here = ((dst * n + src) * len(forward) + kind)[back].sort().values
    assert torch.equal(there, here)


def test_debian_can_be_sampled(debian):
    chain = (
        hp.ItemSampler(debian.tasks[0].train_set, batch_size=64, shuffle=True, seed=1)
        .sample_neighbor(debian.graph, fanouts=[3, 3])
        .fetch_feature(debian.feature, node_feature_keys=["feat"])
    )
    minibatch = next(iter(chain))
    assert len(minibatch.labels) == 64
    assert minibatch.node_features["feat"].shape == (len(minibatch.input_nodes), 256)


# ----------------------------------------------------------------------------------- names


def test_suffix_of_graphbolt_is_accepted(debian, root):
    again = hp.BuiltinDataset("debian-seeds", root)
    assert again.path == debian.path


@pytest.mark.parametrize("name", ["cora", "ogbn-products-seeds", "", "Debian", "debian/../x"])
def test_unknown_name_lists_what_there_is(tmp_path, name):
    with pytest.raises(ValueError, match=r"available: \['debian'\].*OnDiskDataset\(path\)") as info:
        hp.BuiltinDataset(name, tmp_path)
    assert repr(name) in str(info.value)
    assert not list(tmp_path.iterdir())


def test_name_of_another_kind_is_refused():
    with pytest.raises(TypeError, match=r"name is a Path|name is a PosixPath|name is a Windows"):
        hp.BuiltinDataset(Path("debian"))


# --------------------------------------------------------------------------------- folders


def test_root_comes_from_argument_then_environment_then_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HOPLINE_DATASETS", str(tmp_path / "named"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert builtin.builtin_root(tmp_path / "given") == tmp_path / "given"
    assert builtin.builtin_root() == tmp_path / "named"
    monkeypatch.delenv("HOPLINE_DATASETS")
    assert builtin.builtin_root() == tmp_path / "cache" / "hopline" / "datasets"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert builtin.builtin_root() == tmp_path / "home" / ".cache" / "hopline" / "datasets"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert builtin.builtin_root() == tmp_path / "home" / ".cache" / "hopline" / "datasets"


def test_second_use_expands_nothing(small, tmp_path, monkeypatch):
    first = hp.BuiltinDataset("debian", tmp_path / "root")

    def expand(archive, folder):
        raise AssertionError("expanded again")

    monkeypatch.setitem(builtin._SOURCES, "debian", builtin._Source(small, expand, 1))
    assert hp.BuiltinDataset("debian", tmp_path / "root").load().path == first.path


def test_another_version_of_the_file_goes_to_another_folder(small, tmp_path):
    root = tmp_path / "root"
    old = hp.BuiltinDataset("debian", root).load()
    more = INDEX.replace("Package: beta\n", "Package: betta\n")
    build_debian.write_archive(small, build_debian.build_arrays(more, feature_dim=8))
    new = hp.BuiltinDataset("debian", root).load()
    assert "betta" in new.node_names
    assert "betta" not in old.node_names  # still whole, for whoever uses it
    assert len(folders(root)) == 2


@pytest.mark.parametrize("name", ["edges.npy", "metadata.yaml", "node_names.txt", "sizes.txt"])
@pytest.mark.parametrize("damage", ["removed", "cut short"])
def test_a_damaged_folder_is_made_again(small, tmp_path, name, damage):
    root = tmp_path / "root"
    folder = hp.BuiltinDataset("debian", root).path
    whole = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    if damage == "removed":
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(whole[name][:-5])
    dataset = hp.BuiltinDataset("debian", root).load()
    assert dataset.graph.num_nodes == 3
    for path, content in whole.items():
        assert (folder / path).read_bytes() == content
    assert folders(root) == [folder.name]


def test_a_failure_leaves_nothing_behind(small, tmp_path, monkeypatch):
    def expand(archive, folder):
        (folder / "edges.npy").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setitem(builtin._SOURCES, "debian", builtin._Source(small, expand, 1))
    with pytest.raises(OSError, match=r"No space left on device.*root=.*HOPLINE_DATASETS"):
        hp.BuiltinDataset("debian", tmp_path / "root")
    assert folders(tmp_path / "root") == []


def test_a_root_that_cannot_be_made_is_told(small, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match=r"cannot expand the data set 'debian' to .*root="):
        hp.BuiltinDataset("debian", tmp_path / "file" / "root")


KILLED = """
import os, signal, sys
from hopline.pipes.datasets import builtin
def expand(archive, folder):
    (folder / "edges.npy").write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
source = builtin._SOURCES["debian"]
builtin._SOURCES["debian"] = builtin._Source(type(source.file)(sys.argv[1]), expand, 1)
builtin.BuiltinDataset("debian", sys.argv[2])
"""


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL is there on POSIX systems alone")
def test_a_killed_run_leaves_no_trace_once_the_next_has_run(small, tmp_path):
    root = tmp_path / "root"
    command = [sys.executable, "-c", KILLED, str(small), str(root)]
    killed = subprocess.run(command, check=False, capture_output=True)
    assert killed.returncode < 0, killed.stderr.decode()
    assert len(folders(root)) == 1  # the half-written one, hidden
    dataset = hp.BuiltinDataset("debian", root).load()
    assert dataset.graph.num_nodes == 3
    assert folders(root) == [dataset.path.name]


TOGETHER = """
import sys
from hopline.pipes.datasets import builtin
source = builtin._SOURCES["debian"]
def expand(archive, folder):
    print("expanding", flush=True)
    source.expand(archive, folder)
file = type(source.file)(sys.argv[1])
builtin._SOURCES["debian"] = builtin._Source(file, expand, 1)
print("ready", flush=True)
sys.stdin.readline()
print(builtin.BuiltinDataset("debian", sys.argv[2]).load().graph.num_edges)
"""


def test_several_processes_at_once_expand_it_once(small, tmp_path):
    root = tmp_path / "root"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", TOGETHER, str(small), str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    try:
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        outputs = [process.communicate(timeout=120)[0].split("\n") for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert sum("expanding" in output for output in outputs) == 1
    assert all("12" in output for output in outputs)
    assert len(folders(root)) == 1


def test_a_pickle_is_small_and_opens_the_same_data(debian):
    data = pickle.dumps(debian)
    assert len(data) < 10_000
    again = pickle.loads(data)  # noqa: S301 - made here
    assert type(again) is hp.BuiltinDataset
    np.testing.assert_array_equal(again.graph.indices, debian.graph.indices)
    assert again.node_names[:2] == debian.node_names[:2]


def test_a_folder_that_has_the_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("shop", "s" * 300, "a\0b"):
        with pytest.raises(ValueError, match=r"no built-in data set .*, and no such folder; "):
            hp.BuiltinDataset(name)
    (tmp_path / "shop").mkdir()
    with pytest.raises(ValueError, match=r"there is a folder .* hp\.OnDiskDataset\('shop'\)"):
        hp.BuiltinDataset("shop")
