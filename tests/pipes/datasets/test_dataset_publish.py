"""Whole or not at all: killed runs, full disks, several processes, inputs that change."""

import errno
import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from hopline.pipes.datasets import (
    OnDiskDataset,
    location,
    preprocess,
    preprocess_ondisk_dataset,
)
from hopline.pipes.datasets.exchange import exchange
from hopline.pipes.datasets.npy_writer import NpyWriter
from hopline.pipes.datasets.processed import Processed, load_processed
from tests.pipes.datasets.dataset_files import tiny, write
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
