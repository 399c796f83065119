"""Graphs in shared memory: the same bytes elsewhere, found by name, gone with their creator."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import uuid

import pytest
import torch
from hypothesis import given

import hopline.pipes as hp
from hopline.pipes import shared_memory
from tests import strategies
from tests.stage_checks import assert_same
from tests.strategies import build


@pytest.fixture
def name():
    return f"test {uuid.uuid4()}/x"  # odd characters included


def graph_with_attributes() -> hp.FusedCSCSamplingGraph:
    return hp.from_edge_list(
        [(0, 1), (2, 1), (1, 0)],
        node_attributes={"half": torch.arange(3).to(torch.bfloat16)},
        edge_attributes={"weight": torch.tensor([1.0, 2.0, 3.0])},
        include_original_edge_id=True,
    )


def run(script: str, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    head = "import os, sys, torch\nimport hopline.pipes as hp\nname = sys.argv[1]\n"
    return subprocess.run(
        [sys.executable, "-c", head + script, *arguments],
        check=check, timeout=120, capture_output=True, text=True,
    )  # fmt: skip


def left_overs(name: str) -> list[str]:
    folder = shared_memory._folder(name)
    return [path.name for path in folder.parent.iterdir() if path.name.startswith(folder.name)]


def test_the_same_bytes_at_another_place(name):
    graph = graph_with_attributes()
    shared = hp.copy_to_shared_memory(graph, name)
    attached = hp.load_from_shared_memory(name)
    for other in (shared, attached):
        assert_same(other._tensors(), graph._tensors())
        assert other.indices.data_ptr() != graph.indices.data_ptr()
    assert shared.indices.data_ptr() != attached.indices.data_ptr()
    minibatches = [
        next(iter(hp.ItemSampler(hp.ItemSet(3, "seeds"), 3, seed=1).sample_neighbor(g, [2, 2])))
        for g in (graph, attached)
    ]
    assert_same(*minibatches)


@given(strategies.heterogeneous())
def test_typed_graphs(twin):
    graph = build(twin)
    name = str(uuid.uuid4())
    shared = hp.copy_to_shared_memory(graph, name)
    attached = hp.load_from_shared_memory(name)
    assert_same(attached._tensors(), graph._tensors())
    assert attached.node_type_to_id == shared.node_type_to_id == graph.node_type_to_id
    assert attached.edge_type_to_id == graph.edge_type_to_id


def test_another_process_reads_it(name):
    shared = hp.copy_to_shared_memory(graph_with_attributes(), name)
    found = run("g = hp.load_from_shared_memory(name)\nprint(g.indices.tolist(), g.path)", name)
    assert found.stdout.split("] ")[0] == str(shared.indices.tolist())[:-1]
    # Reading it, and ending, removed nothing.
    assert hp.load_from_shared_memory(name).num_edges == 3


def test_gone_with_the_graph(name):
    shared = hp.copy_to_shared_memory(graph_with_attributes(), name)
    attached = hp.load_from_shared_memory(name)
    assert left_overs(name)
    del shared
    gc.collect()
    assert left_overs(name) == []
    with pytest.raises(FileNotFoundError, match="no graph named"):
        hp.load_from_shared_memory(name)
    assert attached.indices.tolist() == graph_with_attributes().indices.tolist()  # still mapped


def test_gone_with_the_process(name):
    script = """
graph = hp.copy_to_shared_memory(hp.from_edge_list([(0, 1)]), name)
print(os.path.isdir(graph.path))
"""
    assert run(script, name).stdout == "True\n"
    assert left_overs(name) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_removes_nothing(name):
    script = """
graph = hp.copy_to_shared_memory(hp.from_edge_list([(0, 1)]), name)
child = os.fork()
if child == 0:
    del graph
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(hp.load_from_shared_memory(name).num_edges)
"""
    assert run(script, name).stdout == "1\n"
    assert left_overs(name) == []


def test_a_name_that_is_taken(name):
    shared = hp.copy_to_shared_memory(graph_with_attributes(), name)
    with pytest.raises(FileExistsError, match="the process that made it is alive"):
        hp.copy_to_shared_memory(graph_with_attributes(), name)
    script = "hp.copy_to_shared_memory(hp.from_edge_list([(0, 1)]), name)"
    ran = run(script, name, check=False)
    assert "FileExistsError" in ran.stderr
    assert len(left_overs(name)) == 1
    assert hp.load_from_shared_memory(name).num_edges == shared.num_edges == 3


def test_what_a_killed_process_left_is_replaced(name):
    script = """
graph = hp.copy_to_shared_memory(hp.from_edge_list([(0, 1)]), name)
os.kill(os.getpid(), 9)
"""
    assert run(script, name, check=False).returncode == -9
    assert len(left_overs(name)) == 1
    shared = hp.copy_to_shared_memory(graph_with_attributes(), name)
    assert hp.load_from_shared_memory(name).num_edges == 3
    del shared
    gc.collect()
    assert left_overs(name) == []


def test_writes_stay_in_the_process(name):
    shared = hp.copy_to_shared_memory(graph_with_attributes(), name)
    shared.edge_attributes["weight"][0] = 99
    assert hp.load_from_shared_memory(name).edge_attributes["weight"].tolist() == [3.0, 1.0, 2.0]


def test_too_little_memory(name, monkeypatch):
    usage = type("Usage", (), {"free": 5})
    monkeypatch.setattr(shared_memory.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(OSError, match=r"the graph takes \d+ bytes, and .* has 5 free"):
        hp.copy_to_shared_memory(graph_with_attributes(), name)
    assert left_overs(name) == []


def test_a_copy_that_fails_leaves_nothing(name, monkeypatch):
    def fail(graph, path):
        (path / "half.npy").write_bytes(b"x")
        raise OSError("no space")

    monkeypatch.setattr(shared_memory, "save_graph", fail)
    with pytest.raises(OSError, match="no space"):
        hp.copy_to_shared_memory(graph_with_attributes(), name)
    assert left_overs(name) == []


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs users")
def test_a_folder_of_another_user(name, monkeypatch, tmp_path):
    monkeypatch.setattr(shared_memory, "MEMORY", tmp_path)
    folder = shared_memory._folder(name)
    folder.symlink_to(tmp_path)  # in a folder that all may write to, a name proves nothing
    with pytest.raises(PermissionError, match="is not this user's"):
        hp.load_from_shared_memory(name)


@pytest.mark.parametrize(
    ("name", "error"), [(3, TypeError), ("", ValueError), ("x" * 151, ValueError)]
)
def test_names_that_are_refused(name, error):
    with pytest.raises(error, match="shared_memory_name"):
        hp.copy_to_shared_memory(graph_with_attributes(), name)
    with pytest.raises(error, match="shared_memory_name"):
        hp.load_from_shared_memory(name)


def test_what_is_no_graph():
    with pytest.raises(TypeError, match="graph is a int"):
        hp.copy_to_shared_memory(3, "x")


def test_a_copy_that_cannot_be_loaded_leaves_nothing(name, monkeypatch):
    def fail(folder):
        raise OSError(f"{folder} cannot be mapped")

    monkeypatch.setattr(shared_memory, "load_graph", fail)
    with pytest.raises(OSError, match="cannot be mapped"):
        hp.copy_to_shared_memory(graph_with_attributes(), name)
    assert left_overs(name) == []
