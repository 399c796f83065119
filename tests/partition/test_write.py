import math
import os
import shutil
import subprocess
import sys
import textwrap
import warnings

import filelock
import numpy as np
import pytest
import torch

import hopline.pipes as hp
from hopline.partition import (
    PartitionError,
    load_part,
    load_partition,
    load_tasks,
    partition_graph,
    verify_partition,
    write,
)  # fmt: skip
from hopline.partition.manifest import PartManifest
from tests.partition.graphs import NODES, heterogeneous, homogeneous

MAKERS = {"homogeneous": homogeneous, "heterogeneous": heterogeneous}


def cut(dataset, folder, parts, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # small parts cannot always be balanced
        return partition_graph(dataset, "g", parts, folder, **options)


def kinds(mapping):
    return mapping.items() if isinstance(mapping, dict) else [("", mapping)]


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("method", ["metis", "ldg", "random"])
@pytest.mark.parametrize("parts", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("hops", [1, 2])
def test_parts_hold_the_data_set(tmp_path, name, method, parts, hops):
    """Read back by hand, without the code that verifies."""
    dataset = MAKERS[name]()
    graph = dataset.graph
    nodes, edges = cut(
        dataset, tmp_path / "out", parts, num_hops=hops, part_method=method, return_mapping=True
    )
    nodes, edges = dict(kinds(nodes)), dict(kinds(edges))
    offsets = [0] if graph.node_type_offset is None else graph.node_type_offset.tolist()
    new_nodes = {
        kind: {int(old): new for new, old in enumerate(ids)} for kind, ids in nodes.items()
    }
    seen_edges = {kind: [] for kind in edges}
    for number in range(parts):
        part = load_part(tmp_path / "out", number)
        before, new = [], []
        for kind, low in zip(nodes, offsets, strict=False):
            rows = part.original_nodes[kind].tolist()
            before += [low + old for old in rows]
            new += [(kind, new_nodes[kind][old]) for old in rows]
            mine = part.book.node_range(number, kind)
            assert [new_nodes[kind][old] for old in rows[: len(mine)]] == list(mine)
        indptr, indices = part.graph.csc_indptr.tolist(), part.graph.indices.tolist()
        types = part.graph.type_per_edge
        ids = part.graph.edge_attributes["_ORIGINAL_EDGE_ID"].tolist()
        whole = graph.edge_attributes["_ORIGINAL_EDGE_ID"].tolist()
        edge_types = list(edges)
        depth = {
            row: 0 for row, (kind, i) in enumerate(new) if i in part.book.node_range(number, kind)
        }
        for _hop in range(hops):
            for row in list(depth):
                for source in indices[indptr[row] : indptr[row + 1]]:
                    depth.setdefault(source, depth[row] + 1)
        assert len(depth) == len(before)
        for row, old in enumerate(before):
            low, high = graph.csc_indptr[old : old + 2].tolist()
            mine = slice(indptr[row], indptr[row + 1])
            if depth[row] == hops:
                assert indptr[row] == indptr[row + 1]
                continue
            assert [before[i] for i in indices[mine]] == graph.indices[low:high].tolist()
            assert torch.equal(
                part.graph.edge_attributes["weight"][mine],
                graph.edge_attributes["weight"][low:high],
            )
            for at, position in zip(range(mine.start, mine.stop), range(low, high), strict=True):
                kind = edge_types[0 if types is None else int(types[at])]
                assert types is None or types[at] == graph.type_per_edge[position]
                assert edges[kind][ids[at]] == whole[position]
                if depth[row] == 0:
                    seen_edges[kind].append(ids[at])
        assert torch.equal(
            part.graph.node_attributes["time"],
            graph.node_attributes["time"][torch.tensor(before, dtype=torch.int64)],
        )
        for (domain, kind, feature), rows in part.features.items():
            owned = (
                part.original_nodes[kind or ""][: part.num_own[kind or ""]]
                if domain == "node"
                else part.original_edges[kind or ""]
            )
            assert torch.equal(rows, dataset.feature[domain, kind, feature].read(owned))
    for kind, ids in seen_edges.items():
        assert sorted(ids) == list(range(len(edges[kind])))
    verify_partition(tmp_path / "out", dataset)


@pytest.mark.parametrize("name", MAKERS)
def test_items_keep_their_order(tmp_path, name):
    dataset = MAKERS[name]()
    nodes, _ = cut(dataset, tmp_path / "out", 3, return_mapping=True)
    nodes = dict(kinds(nodes))
    tasks = load_tasks(tmp_path / "out", load_partition(tmp_path / "out"))
    for task, expected in zip(tasks, dataset.tasks, strict=True):
        assert task.metadata == expected.metadata
        for split in ("train_set", "validation_set", "test_set"):
            mine, theirs = getattr(task, split), getattr(expected, split)
            assert (mine is None) == (theirs is None)
            if theirs is None:
                continue
            assert mine.names == theirs.names
            for kind, items in getattr(theirs, "itemsets", {"": theirs}).items():
                got = getattr(mine, "itemsets", {"": mine})[kind][:]
                got, want = (x if isinstance(x, tuple) else (x,) for x in (got, items[:]))
                seeds = want[0]
                ends = [kind] if seeds.dim() == 1 else [kind.split(":")[0], kind.split(":")[-1]]
                back = [
                    nodes[end][column.long()]
                    for end, column in zip(ends, got[0].reshape(len(seeds), -1).T, strict=True)
                ]
                assert torch.equal(torch.stack(back, 1).reshape(seeds.shape), seeds.long())
                assert got[0].dtype == seeds.dtype
                for a, b in zip(got[1:], want[1:], strict=True):
                    assert torch.equal(a, b)


def test_empty_parts_and_graphs(tmp_path):
    given = torch.tensor([0, 0, 5, 5, 0])
    graph = hp.from_coo(torch.tensor([0, 2, 4]), torch.tensor([1, 2, 0]), num_nodes=5)
    nodes, _ = cut(graph, tmp_path / "a", 7, part_method=given, return_mapping=True)
    assert nodes.tolist() == [0, 1, 4, 2, 3]
    assert load_part(tmp_path / "a", 3).graph.total_num_nodes == 0
    verify_partition(tmp_path / "a", graph)
    for nodes in (0, 3):
        none = torch.empty(0, dtype=torch.int64)
        graph = hp.from_coo(none, none, num_nodes=nodes)
        cut(graph, tmp_path / f"b{nodes}", 2)
        verify_partition(tmp_path / f"b{nodes}", graph)
        owned = [load_part(tmp_path / f"b{nodes}", part).num_own[""] for part in (0, 1)]
        assert sorted(owned) == [nodes // 2, nodes - nodes // 2]


def test_same_seed_same_parts(tmp_path):
    dataset = homogeneous()
    for method in ("metis", "ldg", "random"):
        first, _ = cut(dataset, tmp_path / f"{method}1", 4, part_method=method, return_mapping=True)
        second, _ = cut(
            dataset, tmp_path / f"{method}2", 4, part_method=method, return_mapping=True
        )
        assert torch.equal(first, second)
    other, _ = cut(
        dataset, tmp_path / "other", 4, part_method="random", seed=1, return_mapping=True
    )
    assert not torch.equal(first, other)


def test_what_is_there_stays(tmp_path):
    graph = homogeneous().graph
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years")
    with pytest.raises(FileExistsError, match="is no partition"):
        cut(graph, tmp_path / "mine", 2, overwrite=True)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years"
    cut(graph, tmp_path / "out", 2)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        cut(graph, tmp_path / "out", 3)
    assert load_partition(tmp_path / "out").num_parts == 2
    cut(graph, tmp_path / "out", 3, overwrite=True)
    assert load_partition(tmp_path / "out").num_parts == 3
    assert sorted(p.name for p in tmp_path.iterdir() if not p.name.endswith(".lock")) == [
        "mine",
        "out",
    ]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"dataset": [1]}, TypeError, "FusedCSCSamplingGraph"),
        ({"graph_name": 3}, TypeError, "graph_name is 3"),
        ({"num_parts": 0}, ValueError, "num_parts is 0"),
        ({"num_parts": 2.0}, TypeError, "num_parts is 2.0"),
        ({"num_hops": 0}, ValueError, "num_hops is 0; expected 1"),
        ({"part_method": "meits"}, ValueError, "'meits'; expected one of"),
        ({"part_method": torch.zeros(3, dtype=torch.int64)}, ValueError, "3 entries"),
        ({"part_method": torch.full((120,), 9)}, IndexError, r"id 9 .*outside \[0, 2\)"),
        ({"part_method": torch.zeros(120)}, TypeError, "integers"),
        ({"balance_ntypes": torch.arange(120)}, ValueError, "120 groups"),
        ({"balance_ntypes": torch.zeros(7, dtype=torch.int64)}, ValueError, "shape"),
        ({"balance_ntypes": {"user": torch.zeros(3)}}, TypeError, "no types"),
        ({"objective": "cuts"}, ValueError, "'cuts'; expected 'cut' or 'vol'"),
        ({"objective": "vol", "part_method": "ldg"}, ValueError, "with method 'ldg'; only 'metis'"),
        ({"eps": -0.1}, ValueError, "eps is -0.1"),
        ({"eps": float("nan")}, ValueError, "eps is nan"),
        ({"seed": 1 << 31}, ValueError, "seed is"),
        ({"max_memory": 1000}, MemoryError, "above the 1 kB of max_memory; method='kaminpar'"),
        ({"num_trainers_per_machine": 0}, ValueError, "num_trainers_per_machine is 0"),
    ],
)  # fmt: skip
def test_wrong_arguments_leave_nothing(tmp_path, change, error, message):
    arguments = {
        "dataset": homogeneous(), "graph_name": "g", "num_parts": 2, "out_path": tmp_path / "out",
        **change,
    }  # fmt: skip
    with pytest.raises(error, match=message):
        partition_graph(**arguments)
    assert not (tmp_path / "out").exists()


def test_a_seed_that_is_no_node_is_named(tmp_path):
    dataset = homogeneous()
    dataset.tasks[0].train_set = hp.ItemSet(torch.tensor([3, 120]), names="seeds")
    with pytest.raises(IndexError, match=r"train_set: column 'seeds'.*id 120 .*\[0, 120\)"):
        cut(dataset, tmp_path / "out", 2, max_memory=1)  # told before anything else is done
    assert not (tmp_path / "out").exists()
    assert not [p for p in tmp_path.iterdir() if ".tmp-" in p.name]


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_metis_balances_what_it_is_asked_to(tmp_path, parts):
    """A ring of groups: METIS alone puts most of the marked nodes into one part."""
    nodes = 400
    mask = torch.zeros(nodes, dtype=torch.bool)
    mask[:150] = True
    graph = hp.from_coo(torch.arange(nodes), (torch.arange(nodes) + 1) % nodes, num_nodes=nodes)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        partition_graph(
            graph, "ring", parts, tmp_path / "out", balance_ntypes=mask, balance_edges=True, eps=0.2
        )
    counts = np.zeros(parts, int)
    for number in range(parts):
        part = load_part(tmp_path / "out", number)
        counts[number] = int(mask[part.original_nodes[""][: part.num_own[""]]].sum())
        assert part.num_own[""] <= 1.2 * nodes / parts
        assert len(part.original_edges[""]) <= 1.2 * nodes / parts
    assert counts.max() <= np.ceil(1.2 * 150 / parts)
    assert counts.sum() == 150


def test_every_node_type_has_its_share(tmp_path):
    dataset = heterogeneous()
    cut(dataset, tmp_path / "out", 3, eps=0.3)
    book = load_partition(tmp_path / "out").book()
    for kind, count in NODES.items():
        for part in range(3):
            assert book.num_nodes(kind, part) <= max(np.ceil(count / 3), 1.3 * count / 3)


def test_a_limit_that_cannot_be_kept_is_told(tmp_path):
    star = hp.from_coo(torch.arange(1, 50), torch.zeros(49, dtype=torch.int64), num_nodes=50)
    with pytest.warns(UserWarning, match=r"of 49 edges, above the limit .* give a larger eps"):
        partition_graph(star, "star", 2, tmp_path / "out", balance_edges=True)


# -------------------------------------------------------------------------------------------------
# Damage


def change_byte(path, at=-1):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@pytest.fixture(scope="module")
def parted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parted")
    cut(homogeneous(), folder / "out", 2)
    cut(homogeneous(), folder / "again", 2)
    return folder


def files_of(folder):
    return sorted(p.relative_to(folder) for p in folder.rglob("*") if p.is_file())


def test_any_flipped_byte_of_a_part_is_named(parted, tmp_path):
    names = [name for name in files_of(parted / "out") if name.parts[0] == "part-1"]
    assert len(names) > 12
    for number, name in enumerate(names):
        copy = tmp_path / str(number)
        shutil.copytree(parted / "out", copy)
        change_byte(copy / name, at=len((copy / name).read_bytes()) // 2)
        if name.name == "part.yaml":
            with pytest.raises(PartitionError, match=r"part\.yaml"):
                load_part(copy, 1)
            continue
        with pytest.raises(PartitionError, match=f"{name.name}: has the CRC-32"):
            load_part(copy, 1)
        load_part(copy, 0)  # the other part is whole


def test_cut_short_missing_and_foreign_parts_are_named(parted, tmp_path):
    shutil.copytree(parted / "out", tmp_path / "out")
    name = tmp_path / "out" / "part-0" / "graph" / "indices.npy"
    content = name.read_bytes()
    name.write_bytes(content[:-8])
    with pytest.raises(PartitionError, match=r"indices\.npy: has \d+ bytes; expected"):
        load_part(tmp_path / "out", 0, check="size")
    name.unlink()
    with pytest.raises(PartitionError, match=r"indices\.npy: no such file; copy the part again"):
        load_part(tmp_path / "out", 0, check="size")
    shutil.rmtree(tmp_path / "out" / "part-0")
    with pytest.raises(PartitionError, match=r"part-0/part\.yaml: no such file"):
        load_part(tmp_path / "out", 0)
    shutil.copytree(parted / "again" / "part-0", tmp_path / "out" / "part-0")
    with pytest.raises(PartitionError, match="copy the parts of one partition"):
        load_part(tmp_path / "out", 0)
    shutil.rmtree(tmp_path / "out" / "part-0")
    shutil.copytree(parted / "out" / "part-1", tmp_path / "out" / "part-0")
    with pytest.raises(PartitionError, match=r"is part 1 of partition .* expected part 0"):
        load_part(tmp_path / "out", 0)


def test_damaged_item_sets_are_named(parted, tmp_path):
    manifest = load_partition(parted / "out")
    names = [name for name in files_of(parted / "out") if name.parts[0] == "tasks"]
    assert len(names) == 5
    for number, name in enumerate(names):
        copy = tmp_path / str(number)
        shutil.copytree(parted / "out", copy)
        change_byte(copy / name)
        with pytest.raises(PartitionError, match=f"{name.name}: has the CRC-32"):
            load_tasks(copy, manifest)
        load_tasks(copy, manifest, check="size")
        (copy / name).unlink()
        with pytest.raises(PartitionError, match=f"{name.name}: no such file; copy"):
            load_tasks(copy, manifest, check="size")
    change_byte(parted / "again" / "new_ids" / "all.npy")  # which no task needs
    load_tasks(parted / "again", load_partition(parted / "again"))
    change_byte(parted / "again" / "new_ids" / "all.npy")
    with pytest.raises(ValueError, match="expected 'content' or 'size'"):
        load_tasks(parted / "out", manifest, check="all")


def test_a_folder_that_another_process_writes_to_is_waited_for(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(write, "WAIT", 1.2)
    (tmp_path / ".out.tmp-here-7-x").mkdir()
    with (
        filelock.FileLock(tmp_path / ".out.lock"),
        pytest.raises(TimeoutError, match=r"here-7 \(host-pid\) has been partitioning") as error,
    ):
        cut(homogeneous().graph, tmp_path / "out", 2)
    assert "preprocess" not in capfd.readouterr().err + str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("format_version: 1", "format_version: 2", "has format version 2; this release reads 1"),
        ("num_parts: 2", "num_parts: two", "is damaged at num_parts"),
        ("num_parts: 2", "num_parts: 3", "has another CRC-32 than its last line"),
        ("method:", "methods:", "is damaged at method"),
        ("graph_name: g", "graph_name: !!python/object/apply:os.system [true]", "cannot be read"),
        ("graph_name: g", "graph_name: [", "cannot be read"),
    ],
)
def test_another_description_is_refused(parted, tmp_path, old, new, message):
    shutil.copytree(parted / "out", tmp_path / "out")
    path = tmp_path / "out" / "partition.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(PartitionError, match=message):
        load_part(tmp_path / "out", 0)


def test_verify_finds_parts_of_another_graph(parted):
    other = homogeneous(seed=1)
    with pytest.raises(PartitionError):
        verify_partition(parted / "out", other)
    with pytest.raises(TypeError, match="dataset is a str; expected a loaded data set"):
        verify_partition(parted / "out", "own")
    with pytest.raises(PartitionError, match="is of another graph"):
        verify_partition(parted / "out", homogeneous(nodes=121))
    shutil.copytree(parted / "out", parted / "table")
    change_byte(parted / "table" / "new_ids" / "all.npy", at=-3)
    with pytest.raises(PartitionError, match=r"new_ids/all\.npy: has the CRC-32"):
        verify_partition(parted / "table", homogeneous())
    changed = homogeneous()
    changed.feature["node", None, "id"].update(torch.full((1, 1), 9.0), torch.tensor([5]))
    with pytest.raises(PartitionError, match=r"node feature 'id' .* differs"):
        verify_partition(parted / "out", changed)
    changed = homogeneous()
    changed.graph.edge_attributes["weight"][7] += 1
    with pytest.raises(PartitionError, match="edge attribute 'weight' differs"):
        verify_partition(parted / "out", changed)
    changed = homogeneous()
    changed.tasks[0].train_set[:][1][3] += 1
    with pytest.raises(PartitionError, match="task 0: column 1 of train_set differs"):
        verify_partition(parted / "out", changed)


def test_verify_compares_metadata_as_yaml_tells_them(tmp_path):
    dataset = homogeneous()
    known = {"num_classes": 7, "sizes": (1, 2), "rate": math.nan, 3: None, "text": "x" * 200}
    dataset.tasks[0].metadata = known
    cut(dataset, tmp_path / "out", 2)
    verify_partition(tmp_path / "out", dataset)
    dataset.tasks[0].metadata = {name: known[name] for name in reversed(known)}
    verify_partition(tmp_path / "out", dataset)
    for other, message in (
        (known | {"num_classes": 99}, "'num_classes' is 7; expected 99"),
        (known | {"sizes": [1, 3]}, r"'sizes' is \[1, 2\]; expected \[1, 3\]"),
        (known | {"text": "x" * 199 + "y"}, "'text' is 'xxx"),
        (known | {"new": None}, "'new' is missing; expected None"),
        ({}, "'num_classes' is 7; expected missing"),
        (
            {name: value for name, value in known.items() if name != 3},
            "3 is None; expected missing",
        ),
    ):
        dataset.tasks[0].metadata = other
        with pytest.raises(PartitionError, match=f"task 0: metadata differs: {message}"):
            verify_partition(tmp_path / "out", dataset)


# -------------------------------------------------------------------------------------------------
# Kill points

# A child is forked for each point, from a process in which all is imported and compiled. Points are
# before each sync, rename, removal and exchange of names, and before some opened files and folders.
KILLED = textwrap.dedent(
    """
    import os, shutil, signal, sys, warnings
    sys.path.insert(0, sys.argv[1])
    from pathlib import Path
    import torch
    from tests.partition.graphs import homogeneous
    from hopline.partition import load_partition, partition_graph, verify_partition
    from hopline.pipes.datasets import location
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)  # a forked process has none of the others
    root, exchanges, dataset = Path(sys.argv[2]), sys.argv[3] == "exchange", homogeneous()
    out, whole = root / "out", root.parent / "whole"

    def write(parts, overwrite=False):
        partition_graph(dataset, "g", parts, out, part_method="random", num_hops=2,
                        overwrite=overwrite)

    def is_point(event, arguments):
        if event == "open":
            mode = arguments[1]
            return isinstance(mode, str) and set(mode) & set("wa+") and "often"
        if event == "os.mkdir":
            return "often"
        return event in ("os.rename", "os.remove", "os.rmdir") and "all"

    def overwrite_until(last):
        counts = {"often": 0, "all": 0}
        def count(which):
            counts[which] += 1
            if counts["all"] + counts["often"] // 8 == last and (
                which == "all" or counts["often"] % 8 == 0
            ):
                os.kill(os.getpid(), signal.SIGKILL)
        def look(event, arguments):
            which = is_point(event, arguments)
            if which and str(root) in str(arguments[0]):
                count(which)
        def counted(function):
            def call(*arguments):
                count("all")
                return function(*arguments)
            return call
        os.fsync = counted(os.fsync)
        swap = location.exchange if exchanges else lambda one, two: False
        location.exchange = counted(swap)
        sys.addaudithook(look)
        write(3, overwrite=True)

    write(2)
    verify_partition(out, dataset)
    shutil.copytree(root, whole)
    last, seen, put_back = 0, [], 0
    while True:
        last += 1
        child = os.fork()
        if child == 0:
            overwrite_until(last)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        if not out.exists():  # between two renames: the next run puts it back
            put_back += 1
            try:
                write(3)
            except FileExistsError:
                pass
        parts = load_partition(out).num_parts
        seen.append(parts)
        verify_partition(out, dataset)
        if status == 0:
            break
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, status
        if parts != 2:  # what has been left behind stays for the next run
            shutil.rmtree(out)
            shutil.copytree(whole / "out", out)
    assert parts == 3
    left = [p.name for p in root.iterdir() if p.name != "out" and not p.name.endswith(".lock")]
    assert left == [], left
    print(last, seen.count(2), seen.count(3), put_back)
    """
)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.parametrize("step", ["exchange", "two renames"])
def test_a_killed_run_leaves_the_old_parts_or_the_new(tmp_path, request, step):
    (tmp_path / "here").mkdir()
    run = subprocess.run(
        [sys.executable, "-c", KILLED, str(request.config.rootpath), str(tmp_path / "here"), step],
        timeout=250, check=False, capture_output=True, text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    points, old, new, put_back = map(int, run.stdout.split())
    assert points > 100
    assert old > new > 1
    assert put_back == (step == "two renames")


def test_a_partition_that_was_put_aside_comes_back(tmp_path):
    """Where folders cannot be exchanged, a run may die between two renames."""
    graph = homogeneous().graph
    cut(graph, tmp_path / "out", 2)
    (tmp_path / "out").rename(tmp_path / ".out.old-0123")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        cut(graph, tmp_path / "out", 3)
    verify_partition(tmp_path / "out", graph)


@pytest.mark.parametrize("name", ["partition.yaml", "part-0/part.yaml"])
def test_a_changed_number_in_a_description_is_found(parted, tmp_path, name):
    """Every digit of it: most changes leave a description that can be read."""
    shutil.copytree(parted / "out", tmp_path / "out")
    path = tmp_path / "out" / name
    content = path.read_bytes()
    places = [i for i, byte in enumerate(content) if chr(byte).isdigit()]
    for place in places[:: len(places) // 40]:
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(PartitionError, match=f"{path.name}: "):
            load_part(tmp_path / "out", 0, check="size")
    path.write_bytes(content)
    load_part(tmp_path / "out", 0)


def test_no_description_leads_out_of_its_folder(parted, tmp_path):
    shutil.copytree(parted / "out", tmp_path / "out")
    found = PartManifest.load(tmp_path / "out" / "part-0" / "part.yaml")
    feature = found.features[0]
    for name in ("../part-1/features/0.npy", "/etc/hostname", "features/99.npy"):
        digests = found.files if "99" in name else {**found.files, name: found.files[feature.file]}
        hostile = found.model_copy(
            update={"features": [feature.model_copy(update={"file": name})], "files": digests}
        )
        hostile.save(tmp_path / "out" / "part-0" / "part.yaml")
        with pytest.raises(PartitionError, match=r"part\.yaml: .*(outside the folder|no digest)"):
            load_part(tmp_path / "out", 0)
