"""Whole or not at all: killed runs, full disks, several processes, changed inputs, places."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import yaml

from hopline.pipes.datasets import (
    OnDiskDataset,
    fingerprint,
    location,
    preprocess,
    preprocess_ondisk_dataset,
)
from hopline.pipes.datasets.builtin import builtin_root
from hopline.pipes.datasets.exchange import exchange
from hopline.pipes.datasets.npy_writer import NpyWriter
from hopline.pipes.datasets.processed import Processed, load_processed
from tests.pipes.datasets.dataset_files import TINY_EDGES, npy, tiny, typed, write
from tests.pipes.datasets.test_dataset_csc import weights_of

posix = pytest.mark.skipif(os.name != "posix", reason="needs fork, SIGKILL or pwd")

DRIVER = """
import os, signal, sys, time
from pathlib import Path
from hopline.pipes.datasets import OnDiskDataset, preprocess
OnDiskDataset(sys.argv[1], force_preprocess=True)  # loads kernels, so that all children are alike

def child(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as error:
            print(type(error).__name__, error, file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return pid

def ended(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


def drive(script, *arguments):
    """Runs a script that forks; one import for many processes."""
    done = subprocess.run(
        [sys.executable, "-c", DRIVER + textwrap.dedent(script), *map(str, arguments)],
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


def check(folder, extra=0.0):
    dataset = OnDiskDataset(folder).load()
    wanted = {(0, 2): 10, (1, 0): 11, (2, 1): 12, (0, 1): 13}
    assert weights_of(dataset.graph, range(3)) == {k: v + extra for k, v in wanted.items()}
    assert dataset.feature.read("edge", None, "e").flatten().tolist() == [10, 11, 12, 13]
    assert dataset.tasks[0].train_set[:][0].tolist() == [0, 2]
    return dataset


def leftovers(folder):
    return [path.name for path in folder.iterdir() if ".tmp-" in path.name or ".old-" in path.name]


def identity(folder):
    return (folder / "preprocessed" / "metadata.yaml").stat().st_ino


# Every file operation is an audit event; the process dies before the n-th one.
KILL = """
def dies(folder, n):
    def work():
        seen = 0
        def hook(event, arguments):
            nonlocal seen
            if event.startswith(("open", "os.", "shutil.", "mmap.")):
                seen += 1
                if seen == n:
                    os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(hook)
        OnDiskDataset(folder)
        sys.stdout.write(f"{seen}\\n")
        sys.stdout.flush()
    return work

for argument in sys.argv[2:]:
    folder, n = argument.rsplit("=", 1)
    print(n, ended(child(dies(folder, int(n)))), flush=True)
"""


@posix
@pytest.mark.parametrize("older", [False, True], ids=["first run", "over an older result"])
def test_killed_at_any_step(tmp_path, older):
    document, arrays = tiny()

    def prepare(name):
        folder = write(tmp_path / name, document, arrays)
        if older:
            OnDiskDataset(folder)
            np.save(folder / "weight.npy", arrays["weight.npy"] + 100)
        return folder

    warm = write(tmp_path / "warm", *tiny())
    steps = int(drive(KILL, warm, f"{prepare('count')}=0").stdout.split()[0])
    assert steps > 50
    rng = np.random.default_rng()
    some = rng.choice(np.arange(2, steps - 35), 10, replace=False)
    points = sorted({*some.tolist(), *range(steps - 35, steps + 1)})  # the last ones swap folders
    folders = {n: prepare(f"d{n}") for n in points}
    lines = drive(KILL, warm, *(f"{folders[n]}={n}" for n in points)).stdout.splitlines()
    assert lines == [f"{n} {-signal.SIGKILL}" for n in points]
    states = set()
    for n, folder in folders.items():
        found = load_processed(folder / "preprocessed")
        if isinstance(found, Processed):
            assert found.missing_file(folder / "preprocessed") is None, n
            weights = np.load(folder / "preprocessed/graph/edge_attributes/weight.npy")
            states.add("new" if weights.max() == 13 + 100 * older else "old")
        else:
            assert not (folder / "preprocessed").exists(), n
            states.add("none")
        check(folder, 100.0 * older)
        assert leftovers(folder) == [], n
    if not older:
        assert states == {"none", "new"}
    else:  # where names cannot be exchanged, the older result is away for a moment, and comes back
        exchanged = exchange(tmp_path / "warm", tmp_path / "count")
        assert states == ({"new", "old"} if exchanged else {"none", "new", "old"})


@posix
def test_killed_in_the_middle_of_a_file(tmp_path):
    folder = write(tmp_path / "d", *tiny())
    script = """
    from hopline.pipes.datasets.npy_writer import NpyWriter
    def work():
        append = NpyWriter.append
        def half(self, rows):
            if self.path.name == sys.argv[3]:
                append(self, rows[: len(rows) // 2])
                self._file.flush()
                os.kill(os.getpid(), signal.SIGKILL)
            append(self, rows)
        NpyWriter.append = half
        OnDiskDataset(sys.argv[2])
    print(ended(child(work)))
    """
    warm = write(tmp_path / "warm", *tiny())
    for name in ("indices.npy", "weight.npy"):
        assert drive(script, warm, folder, name).stdout.split() == [str(-signal.SIGKILL)]
        assert not (folder / "preprocessed").exists()
        assert len(leftovers(folder)) == 1
    check(folder)
    assert leftovers(folder) == []


SLOW = """
def slow(log, seconds):
    build = preprocess._build
    def wrapped(*arguments):
        with open(log, "a") as file:
            file.write(f"{os.getpid()}\\n")
        time.sleep(seconds)
        return build(*arguments)
    preprocess._build = wrapped
"""


@posix
def test_one_of_several_processes_does_the_work(tmp_path):
    folder = write(tmp_path / "d", *tiny())
    script = (
        SLOW
        + """
folder, log = sys.argv[2:]
slow(log, 2.0)
pids = [child(lambda: OnDiskDataset(folder).load()) for _ in range(3)]
print([ended(pid) for pid in pids])
"""
    )
    done = drive(script, write(tmp_path / "warm", *tiny()), folder, tmp_path / "log")
    assert done.stdout.strip().endswith("[0, 0, 0]")
    workers = (tmp_path / "log").read_text().split()
    assert len(workers) == 1
    waiting = [line for line in done.stderr.splitlines() if "waiting for process" in line]
    assert len(waiting) == 2
    assert all(f"-{workers[0]} (host-pid)" in line and str(folder) in line for line in waiting)
    check(folder)
    assert leftovers(folder) == []


@posix
def test_a_waiting_process_takes_over_from_a_killed_one(tmp_path):
    folder = write(tmp_path / "d", *tiny())
    script = (
        SLOW
        + """
folder, log = sys.argv[2:]
slow(log, 3.0)
first = child(lambda: OnDiskDataset(folder))
while not os.path.exists(log):
    time.sleep(0.01)
second = child(lambda: OnDiskDataset(folder).load())
time.sleep(0.5)
os.kill(first, signal.SIGKILL)
print(ended(first), ended(second))
"""
    )
    done = drive(script, write(tmp_path / "warm", *tiny()), folder, tmp_path / "log")
    assert done.stdout.split() == [str(-signal.SIGKILL), "0"]
    assert len((tmp_path / "log").read_text().split()) == 2
    assert leftovers(folder) == []
    check(folder)


def test_waiting_has_an_end(tmp_path):
    folder = write(tmp_path / "d", *tiny())
    result = folder / "preprocessed"
    late = pytest.raises(TimeoutError, match=rf"-{os.getpid()} \(host-pid\).*wait_timeout")
    with location.locked(result, 5.0), location.working_folder(result), late:
        preprocess_ondisk_dataset(folder, wait_timeout=0.2)
    check(folder)


@pytest.mark.parametrize("step", range(1, 12))
def test_full_disk(tmp_path, monkeypatch, step):
    folder = write(tmp_path / "d", *tiny())
    check(folder)
    before = identity(folder)
    np.save(folder / "weight.npy", tiny()[1]["weight.npy"] + 1)
    calls = 0
    append = NpyWriter.append

    def full(self, rows):
        nonlocal calls
        calls += 1
        if calls == step:
            raise OSError(errno.ENOSPC, "No space left on device", str(self.path))
        append(self, rows)

    with monkeypatch.context() as patch:
        patch.setattr(NpyWriter, "append", full)
        if step <= 7:
            with pytest.raises(OSError, match="No space left"):
                OnDiskDataset(folder)
            assert identity(folder) == before
            assert leftovers(folder) == []
        else:  # as many pieces are written
            OnDiskDataset(folder)
            assert calls < step
    check(folder, 1.0)


def test_ctrl_c_leaves_the_old_state(tmp_path, monkeypatch):
    folder = write(tmp_path / "d", *tiny())

    def interrupted(self, rows):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(NpyWriter, "append", interrupted)
        with pytest.raises(KeyboardInterrupt):
            OnDiskDataset(folder)
    assert not (folder / "preprocessed").exists()
    assert leftovers(folder) == []
    check(folder)


def test_metadata_that_changes_once_it_is_read(tmp_path, monkeypatch, capsys):
    document, arrays = tiny()
    folder = write(tmp_path / "d", document, arrays)
    resolve = preprocess.resolve_inputs

    def meddle(*arguments):
        document["tasks"][0]["num_classes"] = 5
        write(folder, document, {})
        return resolve(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(preprocess, "resolve_inputs", meddle)
        preprocess_ondisk_dataset(folder)
    assert load_processed(folder / "preprocessed").tasks[0].metadata["num_classes"] == 2
    dataset = rebuilt(capsys, folder, "metadata.yaml has changed")
    assert dataset.tasks[0].metadata["num_classes"] == 5


def test_an_input_that_changes_meanwhile(tmp_path, monkeypatch):
    folder = write(tmp_path / "d", *tiny())
    append = NpyWriter.append

    def meddle(self, rows):
        if self.path.name == "indices.npy":
            os.utime(folder / "edges.npy", (1, 1))
        append(self, rows)

    with monkeypatch.context() as patch:
        patch.setattr(NpyWriter, "append", meddle)
        with pytest.raises(RuntimeError, match=r"edges\.npy was changed while"):
            OnDiskDataset(folder)
    assert not (folder / "preprocessed").exists()


# -------------------------------------------------------------------------------------------------
# When to work anew


def test_nothing_changed(tmp_path, capsys, monkeypatch):
    folder = write(tmp_path / "d", *tiny())
    check(folder)
    before = identity(folder)
    assert capsys.readouterr() == ("", "")
    check(folder)
    monkeypatch.chdir(tmp_path)
    check("d")
    monkeypatch.chdir(folder)
    check(".")
    moved = tmp_path / "elsewhere" / "e"
    moved.parent.mkdir()
    monkeypatch.chdir(tmp_path)
    folder.rename(moved)
    check(moved)
    assert identity(moved) == before
    copied = tmp_path / "copy"
    shutil.copytree(moved, copied)
    os.utime(copied / "edges.npy", (1, 1))
    before = identity(copied)
    check(copied)
    assert identity(copied) == before
    assert capsys.readouterr() == ("", "")


def rebuilt(capsys, folder, reason, **keys):
    """Opens it twice: anew for that reason, then no more."""
    before = identity(folder)
    dataset = OnDiskDataset(folder, **keys).load()
    assert identity(folder) != before
    output = capsys.readouterr()
    assert output.out == ""
    assert f"preprocessing {folder} again, since {reason}" in output.err
    before = identity(folder)
    OnDiskDataset(folder, **keys)
    assert identity(folder) == before
    return dataset


def test_changed_inputs(tmp_path, capsys):
    document, arrays = tiny()
    folder = write(tmp_path / "d", document, arrays)
    check(folder)
    edges = TINY_EDGES.copy()
    edges[0, 3] = 2  # 0->1 becomes 2->1: same size
    np.save(folder / "edges.npy", edges)
    graph = rebuilt(capsys, folder, "edges.npy has changed").graph
    assert weights_of(graph, range(3))[2, 1] == 13  # the later of two edges 2->1
    np.save(folder / "x.npy", arrays["x.npy"] + 1)  # used where it is, but shapes are recorded
    assert rebuilt(capsys, folder, "x.npy has changed").feature.read("node", None, "x")[0, 0] == 1
    document["tasks"][0]["num_classes"] = 5
    write(folder, document, {})
    dataset = rebuilt(capsys, folder, "metadata.yaml has changed")
    assert dataset.tasks[0].metadata["num_classes"] == 5
    document["feature_data"].append(npy("y.npy", domain="node", name="y"))
    write(folder, document, {"y.npy": np.ones((3, 1))})
    assert ("node", None, "y") in rebuilt(capsys, folder, "y.npy is new").feature
    del document["feature_data"][-1]
    write(folder, document, {})
    assert ("node", None, "y") not in rebuilt(capsys, folder, "metadata.yaml").feature


def test_changed_options(tmp_path, capsys):
    document, arrays = tiny()
    del document["feature_data"][1]
    folder = write(tmp_path / "d", document, arrays)
    graph = OnDiskDataset(folder).load().graph
    assert set(graph.edge_attributes) == {"weight"}
    graph = rebuilt(
        capsys, folder, "include_original_edge_id was False", include_original_edge_id=True
    ).graph
    assert set(graph.edge_attributes) == {"weight", "_ORIGINAL_EDGE_ID"}
    before = identity(folder)
    OnDiskDataset(folder)  # no wish: what is there serves
    assert identity(folder) == before
    rebuilt(capsys, folder, "include_original_edge_id was True", include_original_edge_id=False)
    rebuilt(capsys, folder, "auto_cast_to_optimal_dtype was", auto_cast_to_optimal_dtype=False)


def test_another_format_and_damage(tmp_path, capsys):
    folder = write(tmp_path / "d", *tiny())
    check(folder)
    mark = folder / "preprocessed" / "metadata.yaml"
    text = mark.read_text()
    mark.write_text(text.replace("format_version: 1", "format_version: 0"))
    rebuilt(capsys, folder, "the preprocessed copy has format version 0, and this is 1")
    mark.write_text(text[: len(text) // 2])
    rebuilt(capsys, folder, "the preprocessed copy is damaged")
    (folder / "preprocessed/graph/indices.npy").unlink()
    rebuilt(capsys, folder, "its file graph/indices.npy is gone")
    file = folder / "preprocessed/graph/csc_indptr.npy"
    file.write_bytes(file.read_bytes()[:-8])
    rebuilt(capsys, folder, "its file graph/csc_indptr.npy is gone or incomplete")
    check(folder)


def test_forced_and_forbidden(tmp_path, capsys):
    document, arrays = tiny()
    folder = write(tmp_path / "d", document, arrays)
    check(folder)
    before = identity(folder)
    OnDiskDataset(folder, force_preprocess=True)
    assert identity(folder) != before
    assert "force_preprocess" in capsys.readouterr().err
    before = identity(folder)
    np.save(folder / "weight.npy", arrays["weight.npy"] + 1)
    dataset = OnDiskDataset(folder, force_preprocess=False).load()
    assert identity(folder) == before
    assert dataset.graph.edge_attributes["weight"].max() == 13
    np.save(folder / "x.npy", np.zeros((7, 2), np.float32))  # a raw file that is used in place
    with pytest.raises(ValueError, match=r"x\.npy has float32\[7, 2\].*force_preprocess"):
        OnDiskDataset(folder, force_preprocess=False).load()
    other = write(tmp_path / "e", document, arrays)
    OnDiskDataset(other, force_preprocess=False)  # there is nothing yet
    check(other)


# -------------------------------------------------------------------------------------------------
# Where


def test_only_arrays_and_yaml(tmp_path):
    folder = write(tmp_path / "d", *typed())
    OnDiskDataset(folder)
    files = [path for path in (folder / "preprocessed").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".npy", ".yaml"}
    for path in files:
        if path.suffix == ".npy":
            np.load(path, allow_pickle=False)
        else:
            yaml.safe_load(path.read_text())
    # Features that can be mapped as they are stay where they are.
    assert not [path for path in files if "_x" in path.name]


def test_argument_and_environment(tmp_path, monkeypatch):
    folder = write(tmp_path / "d", *tiny())
    given = tmp_path / "out" / "deep"
    result = preprocess_ondisk_dataset(folder, processed_path=given)
    assert result == given / "metadata.yaml"
    dataset = OnDiskDataset(folder, processed_path=given).load()
    assert dataset.processed_path == given
    monkeypatch.setenv("HOPLINE_PROCESSED_PATH", str(tmp_path / "root"))
    assert OnDiskDataset(folder, processed_path=given).processed_path == given
    place = check(folder).processed_path
    assert place.parent == tmp_path / "root"
    assert place.name.startswith("tiny-")
    other = write(tmp_path / "e", *tiny())  # the same name, another folder
    assert check(other).processed_path != place
    monkeypatch.chdir(folder)
    assert check(".").processed_path == place
    assert not (folder / "preprocessed").exists()


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    folder = write(tmp_path / "d", *tiny())
    monkeypatch.setattr(location, "is_writable", lambda path: False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before = sorted(folder.iterdir())
    place = check(folder).processed_path
    assert place.is_relative_to(tmp_path / "cache" / "hopline")
    assert sorted(folder.iterdir()) == before
    number = (place / "metadata.yaml").stat().st_ino
    check(folder)
    assert OnDiskDataset(folder, force_preprocess=False).processed_path == place
    assert (place / "metadata.yaml").stat().st_ino == number
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert check(folder).processed_path.is_relative_to(tmp_path / "home" / ".cache" / "hopline")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # invalid, says the specification
    assert check(folder).processed_path.is_relative_to(tmp_path / "home" / ".cache" / "hopline")


@posix
def test_a_user_without_a_home(tmp_path, monkeypatch):
    """As in containers that run under a number that no user has."""
    import pwd

    folder = write(tmp_path / "d", *tiny())
    for name in ("HOME", "USERPROFILE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def nobody(number):
        raise KeyError(number)

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert check(folder).processed_path == folder / "preprocessed"
    assert OnDiskDataset(folder, force_preprocess=False).processed_path == folder / "preprocessed"
    other = write(tmp_path / "e", *tiny())
    monkeypatch.setattr(location, "is_writable", lambda path: False)
    with pytest.raises(PermissionError, match=r"e cannot be written to.* give a processed_path"):
        OnDiskDataset(other)
    monkeypatch.delenv("HOPLINE_DATASETS", raising=False)
    with pytest.raises(FileNotFoundError, match=r"no home folder .* give root, or set HOPLINE_DA"):
        builtin_root()


def test_a_good_copy_in_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    folder = write(tmp_path / "d", *tiny())
    check(folder)
    (folder / ".preprocessed.lock").unlink()
    monkeypatch.setattr(location, "is_writable", lambda path: False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert check(folder).processed_path == folder / "preprocessed"
    assert not (folder / ".preprocessed.lock").exists()
    np.save(folder / "weight.npy", tiny()[1]["weight.npy"] + 5)  # by its owner, who forgot the rest
    assert check(folder, 5.0).processed_path.is_relative_to(tmp_path / "cache")


def test_a_folder_marked_read_only_is_left_alone_also_by_root(tmp_path):
    folder = tmp_path / "marked"
    folder.mkdir()
    folder.chmod(0o555)
    try:
        assert not location.is_writable(folder)
        assert list(folder.iterdir()) == []
    finally:
        folder.chmod(0o755)
    assert location.is_writable(folder)


def test_is_writable_tries(tmp_path):
    assert location.is_writable(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert not location.is_writable(tmp_path / "nowhere")
    assert not location.is_writable("/proc")


def test_what_others_wrote_is_left_alone(tmp_path):
    folder = write(tmp_path / "d", *tiny())
    theirs = folder / "preprocessed"
    theirs.mkdir()
    (theirs / "metadata.yaml").write_text("graph_topology: {path: graph.pt}\n")
    (theirs / "graph.pt").write_bytes(b"data")
    dataset = check(folder)
    assert dataset.processed_path == folder / "preprocessed-hopline"
    assert sorted(path.name for path in theirs.iterdir()) == ["graph.pt", "metadata.yaml"]
    with pytest.raises(FileExistsError, match="something else"):
        OnDiskDataset(folder, processed_path=theirs)
    with pytest.raises(FileExistsError, match="something else"):
        OnDiskDataset(folder, processed_path=folder, force_preprocess=True)
    assert (theirs / "graph.pt").exists()
    check(folder)


def test_a_link_to_another_disk(tmp_path):
    folder = write(tmp_path / "d", *tiny())
    (tmp_path / "big disk").mkdir()
    (folder / "preprocessed").symlink_to(tmp_path / "big disk")
    check(folder)
    assert (folder / "preprocessed").is_symlink()
    assert (tmp_path / "big disk" / "metadata.yaml").exists()


def test_odd_names(tmp_path):
    document, arrays = typed()
    text = yaml.safe_dump(document).replace("user", "../ü/x\\t")
    document = yaml.safe_load(text.replace("name: x", "name: ../../etc/x"))
    document["dataset_name"] = "../../outside"
    for entry in document["graph"]["feature_data"]:
        entry["path"] = entry["path"].replace("../ü/x\\t", "user")
    for entry in document["feature_data"]:
        entry["path"] = entry["path"].replace("../ü/x\\t", "user")
        entry["name"] = "../../etc/x"
    document["graph"]["feature_data"][0]["name"] = document["graph"]["feature_data"][1]["name"] = (
        "../w"
    )
    folder = write(tmp_path / "a" / "d", document, arrays)
    dataset = OnDiskDataset(folder).load()
    assert dataset.graph.edge_attributes["../w"].shape == (7,)
    assert dataset.graph.num_nodes == {"../ü/x\\t": 4, "item": 3}
    assert dataset.feature.read("node", "item", "../../etc/x").eq(2).all()
    outside = [
        path for path in tmp_path.rglob("*") if not path.is_relative_to(tmp_path / "a" / "d")
    ]
    assert outside == [tmp_path / "a"]


def test_fingerprints(tmp_path, monkeypatch):
    path = tmp_path / "f"
    path.write_bytes(bytes(1000))
    small = fingerprint.fingerprint(path)
    os.utime(path, ns=(5, 5))
    assert fingerprint.fingerprint(path) == small  # content alone
    path.write_bytes(bytes(999) + b"x")
    assert fingerprint.fingerprint(path) != small
    monkeypatch.setattr(fingerprint, "WHOLE", 100)
    monkeypatch.setattr(fingerprint, "BLOCK", 4)
    large = fingerprint.fingerprint(path)
    os.utime(path, ns=(6, 6))
    changed = fingerprint.fingerprint(path)
    assert changed != large
    assert changed["sampled_blake2b"] == large["sampled_blake2b"]
    path.write_bytes(bytes(1000))
    os.utime(path, ns=(6, 6))  # the last block is a sample
    assert fingerprint.fingerprint(path) != changed
