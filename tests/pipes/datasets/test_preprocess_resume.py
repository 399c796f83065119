"""A run that is killed is continued: the same bytes, and no finished work done again."""

import errno
import os
import shutil
import signal

import numpy as np
import pytest

from hopline.pipes.datasets import (
    bucket_sort,
    disk_space,
    location,
    preprocess_ondisk_dataset,
)
from hopline.pipes.datasets.journal import Journal
from hopline.pipes.datasets.processed import load_processed
from tests.pipes.datasets.dataset_files import npy, write
from tests.pipes.datasets.test_dataset_publish import drive, leftovers, posix

MEMORY = 1 << 20

# Small buckets, and an entry in the journal for everything that can be noted. Work is counted.
SETUP = """
from hopline.pipes.datasets import bucket_sort, edge_source, journal, npy_writer, tables
journal.INTERVAL, journal.LARGE = 0.0, 1
bucket_sort.SEGMENT, bucket_sort.MAX_BUCKET = 64, 4000
work = {"parsed": 0, "checked": 0, "distributed": 0, "sorted": 0}

def counting(owner, name, key, hook=None):
    plain = getattr(owner, name)
    def counted(*arguments, **keys):
        work[key] += 1
        if hook:
            hook()
        return plain(*arguments, **keys)
    setattr(owner, name, counted)

def run(folder):
    preprocess.preprocess_ondisk_dataset(folder, max_memory=1 << 20)
    print(*work.values(), flush=True)
"""

KILL_AT = """
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
        run(folder)
        print(seen, flush=True)
    return work

warm, *arguments = sys.argv[1:]
for argument in arguments:
    folder, n = argument.rsplit("=", 1)
    print(n, ended(child(dies(folder, int(n)))), flush=True)
"""


def big(folder, extra=0.0):
    """Two edge types, one of them in a CSV file, with weights and edge ids."""
    rng = np.random.default_rng(3)
    follows = rng.integers(0, 2000, (2, 20_000))
    follows[1, :9000] = 7  # more than a bucket holds
    likes = np.stack([rng.integers(0, 2000, 20_000), rng.integers(0, 900, 20_000)])
    document = {
        "graph": {
            "nodes": [{"type": "user", "num": 2000}, {"type": "item", "num": 900}],
            "edges": [
                npy("follows.npy", type="user:follows:user"),
                {"type": "user:likes:item", "format": "csv", "path": "likes.csv"},
            ],
            "feature_data": [
                npy("f.npy", domain="edge", type="user:follows:user", name="w"),
                npy("l.npy", domain="edge", type="user:likes:item", name="w"),
            ],
        },
        "feature_data": [npy("x.npy", domain="node", type="user", name="x"),
                         npy("e.npy", domain="edge", type="user:likes:item", name="e")],
    }  # fmt: skip
    arrays = {
        "follows.npy": follows,
        "f.npy": rng.random((20_000, 3)) + extra,
        "l.npy": rng.random((20_000, 3)) + extra,
        "x.npy": rng.random(2000),
        "e.npy": rng.random(20_000),
    }
    write(folder, document, arrays)
    np.savetxt(folder / "likes.csv", likes.T, "%d", ",")
    return folder


def contents(folder):
    files = sorted((folder / "preprocessed").rglob("*"))
    return {str(f.relative_to(folder)): f.read_bytes() for f in files if f.is_file()}


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """A data set, and its result by a run that nobody stopped and that had memory enough."""
    folder = big(tmp_path_factory.mktemp("reference") / "d")
    preprocess_ondisk_dataset(folder, max_memory=1 << 28)
    return folder, contents(folder)


# A run that dies in the last phase, some way into it.
STOPPED = """
warm, folder, *more = sys.argv[1:]
before = globals().get("before", lambda: None)
def first():
    before()
    counting(bucket_sort.Sorter, "stored", "sorted",
             lambda: work["sorted"] > 5 and os.kill(os.getpid(), signal.SIGKILL))
    run(folder)
print(ended(child(first)), flush=True)
"""


def copy_of(folder, target):
    shutil.copytree(folder, target, ignore=shutil.ignore_patterns("preprocessed", ".*"))
    return target


@posix
def test_killed_anywhere_and_continued(tmp_path, reference):
    source, wanted = reference
    script = SETUP + KILL_AT
    warm = big(tmp_path / "warm")
    counted = drive(script, warm, f"{copy_of(source, tmp_path / 'count')}=0").stdout.split()
    steps = int(counted[4])
    assert contents(tmp_path / "count") == wanted
    points = sorted({*np.linspace(2, steps - 12, 12).astype(int).tolist(),
                     *range(steps - 11, steps - 2, 2)})  # fmt: skip
    folders = {n: copy_of(source, tmp_path / f"d{n}") for n in points}
    drive(script, warm, *(f"{folders[n]}={n}" for n in points))
    for n, folder in folders.items():
        assert not (folder / "preprocessed").exists() or contents(folder) == wanted, n
    drive(script, warm, *(f"{folder}=0" for folder in folders.values()))
    for n, folder in folders.items():
        assert contents(folder) == wanted, n
        assert leftovers(folder) == [], n


@posix
@pytest.mark.parametrize(
    ("owner", "name", "key", "at"),
    [
        ("edge_source.EdgeList", "check", "checked", 3),
        ("bucket_sort.Sorter", "_by_bucket", "distributed", 5),
        ("bucket_sort.Sorter", "sort", "sorted", 8),
    ],
)
def test_finished_work_is_not_done_again(tmp_path, reference, owner, name, key, at):
    source, wanted = reference
    count = """
counting(tables.sorting, "parse_pairs", "parsed")
counting(edge_source.EdgeList, "check", "checked")
counting(bucket_sort.Sorter, "_by_bucket", "distributed")
counting(bucket_sort.Sorter, "stored", "sorted")
"""
    script = SETUP + count + f"""
warm, whole, folder = sys.argv[1:]
print(ended(child(lambda: run(whole))), flush=True)
def stop():
    if work["{key}"] >= {at}:
        os.kill(os.getpid(), signal.SIGKILL)
def dies():
    counting({owner}, "{name}", "{key}", stop)
    run(folder)
print(ended(child(dies)), ended(child(lambda: run(folder))), flush=True)
"""  # fmt: skip
    whole, folder = copy_of(source, tmp_path / "w"), copy_of(source, tmp_path / "d")
    lines = drive(script, big(tmp_path / "warm"), whole, folder).stdout.splitlines()
    assert [lines[1], lines[3]] == ["0", f"{-signal.SIGKILL} 0"]
    keys = ["parsed", "checked", "distributed", "sorted"]
    full, rest = (dict(zip(keys, map(int, lines[i].split()), strict=True)) for i in (0, 2))
    assert contents(folder) == wanted == contents(whole)
    assert leftovers(folder) == []
    assert rest["parsed"] == 0 < full["parsed"]
    for each in keys[1 : keys.index(key)]:
        assert rest[each] == 0 < full[each]
    if key != "checked":  # one phase of its own
        assert 0 < rest[key] < full[key]


@posix
def test_work_made_of_other_inputs_is_thrown_away(tmp_path, reference):
    source, _ = reference
    folder = copy_of(source, tmp_path / "d")
    drive(SETUP + STOPPED, big(tmp_path / "warm"), folder)
    assert len(leftovers(folder)) == 1
    big(folder, extra=1.0)
    other = big(tmp_path / "other", extra=1.0)
    preprocess_ondisk_dataset(folder, max_memory=MEMORY)
    preprocess_ondisk_dataset(other, max_memory=1 << 28)
    assert leftovers(folder) == []
    ours, theirs = contents(folder), contents(other)
    assert ours.keys() == theirs.keys()
    assert all(ours[f] == theirs[f] for f in ours if f.endswith(".npy"))


@posix
@pytest.mark.parametrize("memory", [3 << 20, 1 << 28])
def test_a_run_with_other_options_in_between(tmp_path, reference, memory):
    """It writes over the files of the first, and notes nothing before it is killed."""
    source, wanted = reference
    script = SETUP + STOPPED + """
def second():
    journal.INTERVAL = 1e9
    def half(self, rows):
        plain(self, rows[: len(rows) // 2])
        if "indices" in self.path.name:
            self._file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
    plain, npy_writer.NpyWriter.append = npy_writer.NpyWriter.append, half
    preprocess.preprocess_ondisk_dataset(folder, max_memory=int(more[0]))
print(ended(child(second)), ended(child(lambda: run(folder))))
"""  # fmt: skip
    folder = copy_of(source, tmp_path / "d")
    lines = drive(script, big(tmp_path / "warm"), folder, memory).stdout.splitlines()
    assert [lines[0], lines[-1]] == [f"{-signal.SIGKILL}", f"{-signal.SIGKILL} 0"]
    assert contents(folder) == wanted


def shorten(path):
    os.truncate(path, path.stat().st_size // 2)


def flip(part):
    """Changes one bit of a file, which keeps its size."""

    def damage(path):
        content = bytearray(path.read_bytes())
        content[int(part * (len(content) - 1))] ^= 4
        path.write_bytes(content)

    return damage


@posix
def test_a_damaged_file_of_a_stopped_run_is_not_trusted(tmp_path, reference, monkeypatch):
    source, wanted = reference
    folder = copy_of(source, tmp_path / "d")
    drive(SETUP + STOPPED, big(tmp_path / "warm"), folder)
    (left,) = (path for path in folder.iterdir() if ".tmp-" in path.name)
    saved = shutil.copytree(left, tmp_path / "saved")
    names = [path.relative_to(saved) for path in saved.rglob("*") if path.is_file()]
    assert len(names) == 15
    monkeypatch.setattr(bucket_sort, "SEGMENT", 64)
    monkeypatch.setattr(bucket_sort, "MAX_BUCKET", 4000)
    for name in names:
        for damage in (os.unlink, shorten, flip(0.1), flip(0.5), flip(1.0)):
            shutil.rmtree(left, ignore_errors=True)
            shutil.copytree(saved, left)
            damage(left / name)
            preprocess_ondisk_dataset(folder, max_memory=MEMORY)
            assert contents(folder) == wanted, name
            shutil.rmtree(folder / "preprocessed")


def test_a_damaged_number_in_the_journal(tmp_path):
    journal = Journal(tmp_path, {"a": 1})
    journal.put("filled", [12345, 1])
    text = (tmp_path / "journal.json").read_text()
    (tmp_path / "journal.json").write_text(text.replace("12345", "12355"))
    assert not Journal.continues(tmp_path, {"a": 1})


def test_an_input_that_changes_while_the_run_waits(tmp_path, reference, monkeypatch):
    folder = copy_of(reference[0], tmp_path / "d")
    locked = location.locked

    def changed(*arguments):
        np.save(folder / "f.npy", np.zeros((20_000, 3)))
        return locked(*arguments)

    monkeypatch.setattr(location, "locked", changed)
    with pytest.raises(RuntimeError, match=r"f\.npy was changed while it was read"):
        preprocess_ondisk_dataset(folder, max_memory=MEMORY)
    assert not (folder / "preprocessed").exists()


@posix
def test_an_input_that_changed_and_was_put_back(tmp_path, reference):
    source, wanted = reference
    change = """
def before():
    counting(edge_source.EdgeList, "check", "checked", change)
def change():
    if work["checked"] == 1:
        with open(folder + "/f.npy", "r+b") as file:
            file.seek(128)
            file.write(bytes(480_000))
"""
    folder = copy_of(source, tmp_path / "d")
    drive(SETUP + change + STOPPED, big(tmp_path / "warm"), folder)
    assert len(leftovers(folder)) == 1
    shutil.copy2(source / "f.npy", folder / "f.npy")
    preprocess_ondisk_dataset(folder, max_memory=MEMORY)
    assert contents(folder) == wanted


def test_no_room_on_the_disk(tmp_path, reference, monkeypatch):
    folder = copy_of(reference[0], tmp_path / "d")
    usage = shutil.disk_usage(folder)
    small = usage._replace(free=1_000_000)
    monkeypatch.setattr(disk_space.shutil, "disk_usage", lambda path: small)
    with pytest.raises(OSError, match=r"no room for 40,000 edges.* MB are needed, 1 MB are free"):
        preprocess_ondisk_dataset(folder, max_memory=MEMORY)
    assert not (folder / "preprocessed").exists()
    assert leftovers(folder) == []


def test_a_disk_that_fills_up_is_named(tmp_path, reference, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    folder = copy_of(reference[0], tmp_path / "d")
    monkeypatch.setattr(bucket_sort, "_write", full)
    with pytest.raises(OSError, match=r"No space left.*/d/\.preprocessed") as caught:
        preprocess_ondisk_dataset(folder, max_memory=MEMORY)
    assert caught.value.errno == errno.ENOSPC
    assert leftovers(folder) == []


def test_progress_on_request(tmp_path, reference, capsys):
    folder = copy_of(reference[0], tmp_path / "d")
    preprocess_ondisk_dataset(folder, max_memory=MEMORY)
    assert capsys.readouterr() == ("", "")
    preprocess_ondisk_dataset(
        folder, processed_path=tmp_path / "out", max_memory=MEMORY, progress=True
    )
    err = capsys.readouterr().err
    for text in ("reading likes.csv", "checking edges", "distributing edges", "sorting edges",
                 "40.0k/40.0k", "of disk needed"):  # fmt: skip
        assert text in err


def test_journal(tmp_path):
    journal = Journal(tmp_path, {"a": 1})
    assert not Journal.continues(tmp_path, {"a": 1})
    journal.put("x", [1, 2])
    assert Journal(tmp_path, {"a": 1}).get("x") == [1, 2]
    assert Journal(tmp_path, {"a": 1}).get("y") is None
    assert Journal(tmp_path, {"a": 2}).get("x") is None
    assert not Journal.continues(tmp_path, {"a": 2})
    (tmp_path / "journal.json").write_text('{"key": {"a": 1}, "entr')
    assert not Journal.continues(tmp_path, {"a": 1})
    journal.put("z", 3)
    assert Journal(tmp_path, {"a": 1}).get("x") == [1, 2]
    journal.close()
    assert os.listdir(tmp_path) == []


def test_the_result_has_no_traces_of_the_work(reference):
    folder, files = reference
    assert {name.rsplit(".", 1)[1] for name in files} == {"npy", "yaml"}
    assert set(load_processed(folder / "preprocessed").files) == {
        name.removeprefix("preprocessed/") for name in files if name.endswith(("npy", "graph.yaml"))
    }
