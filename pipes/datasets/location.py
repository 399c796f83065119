"""Where a preprocessed data set lies, and how it gets there: one at a time, whole or not at all.

A run works in a folder beside the target, `.NAME.tmp-HOST-PID-X`, and renames it at the end; it
changes names with an older result in one step. Where the system has no such step, the older one is
first renamed to `.NAME.old-X`, and put back if the run dies before the second rename. A lock
on `.NAME.lock` keeps other processes waiting; the system drops it when its holder dies, so that
such a folder belongs to a dead run once the lock is ours: it is taken over if it is of use, else
removed.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import re
import secrets
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import filelock

from hopline.pipes.datasets.exchange import exchange
from hopline.pipes.datasets.npy_writer import sync_folder

__all__ = [
    "cache_folder",
    "default_folder",
    "is_free",
    "is_writable",
    "locked",
    "publish",
    "put_back",
    "report",
    "slug",
    "sweep",
    "user_cache",
    "working_folder",
]

MARK = "metadata.yaml"
MARK_OF_PARTS = "partition.yaml"  # of a folder that `hopline.partition` wrote
MARK_LINE = b"format: hopline-dataset\n"
ENVIRONMENT = "HOPLINE_PROCESSED_PATH"
PATIENCE = 30.0  # seconds between two lines about waiting


def report(message: str) -> None:
    """A line for the person who waits."""
    print(f"hopline: {message}", file=sys.stderr, flush=True)


def slug(text: str, limit: int = 40) -> str:
    """A name that every file system takes."""
    return re.sub(r"[^A-Za-z0-9_-]+", "_", text)[:limit] or "_"


def _own_name(dataset_dir: Path, name: str | None) -> str:
    path = hashlib.blake2b(os.fsencode(dataset_dir), digest_size=6).hexdigest()
    return f"{slug(name or dataset_dir.name)}-{path}"


def default_folder(
    dataset_dir: Path, name: str | None, processed_path: str | os.PathLike[str] | None
) -> Path:
    """Where the result belongs: the argument, below the environment variable, beside the data.

    Args:
        dataset_dir: the data set's folder, absolute.
        name: the data set's name.
        processed_path: the folder itself, or None.
    """
    if processed_path is not None:
        return Path(processed_path).expanduser().resolve()
    if root := os.environ.get(ENVIRONMENT):
        return Path(root).expanduser().resolve() / _own_name(dataset_dir, name)
    folder = (dataset_dir / "preprocessed").resolve()
    # DGL writes there too; its result is left alone.
    return folder if is_free(folder) else dataset_dir / "preprocessed-hopline"


def user_cache() -> Path | None:
    """The user's cache folder; None for a user without a home, as some containers have."""
    root = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not root.is_absolute():  # which the XDG specification says to ignore
        try:
            root = Path.home() / ".cache"
        except RuntimeError:
            return None
    return root


def cache_folder(dataset_dir: Path, name: str | None) -> Path | None:
    """Where the result goes when the data's folder cannot be written; None for nowhere."""
    root = user_cache()
    if root is None:
        return None
    return root.resolve() / "hopline" / "preprocessed" / _own_name(dataset_dir, name)


def is_free(folder: Path) -> bool:
    """Whether the folder is absent, empty, or a result of ours, so that it may be replaced."""
    try:
        if (folder / MARK).exists() and not (folder / MARK).is_file():
            return False  # opening a pipe would wait for somebody to write to it
        with (folder / MARK).open("rb") as file:
            return file.read(len(MARK_LINE)) == MARK_LINE
    except FileNotFoundError:
        return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    except OSError:
        return False


def is_writable(folder: Path) -> bool:
    """Whether a file can be made there, and its owner has not ruled that out.

    It is tried, since permission bits tell too little. Root may write anywhere: a folder without
    any write bit is marked read-only all the same, and is left as it is.
    """
    try:
        if not Path(folder).stat().st_mode & 0o222:
            return False
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _lock_file(folder: Path) -> Path:
    return folder.parent / f".{folder.name}.lock"


def _workers(folder: Path) -> list[Path]:
    prefixes = (f".{folder.name}.tmp-", f".{folder.name}.old-")
    return [path for path in folder.parent.iterdir() if path.name.startswith(prefixes)]


@contextlib.contextmanager
def locked(folder: Path, timeout: float, doing: str = "preprocessing") -> Iterator[None]:
    """Holds the folder's lock; then nobody else makes or replaces it.

    Args:
        folder: the result's folder; its parent is made if need be.
        timeout: seconds to wait for another process, on a clock of its own.
        doing: what is done with the folder, for messages: "preprocessing" or "partitioning".

    Raises:
        TimeoutError: another process held the lock all that time; names it.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(_lock_file(folder))
    started = time.monotonic()
    next_line = 1.0
    while True:
        waited = time.monotonic() - started
        try:
            lock.acquire(timeout=max(0.0, min(next_line, timeout) - waited))
            break
        except filelock.Timeout:
            waited = time.monotonic() - started
            names = [path.name for path in _workers(folder)]
            owners = [name.split(".tmp-")[1] for name in names if ".tmp-" in name]
            who = f"process {owners[0].rsplit('-', 1)[0]}" if owners else "another process"
            if waited >= timeout:
                longer = ", or give a longer wait_timeout" if doing == "preprocessing" else ""
                raise TimeoutError(
                    f"{folder}: {who} (host-pid) has been {doing} for more than {timeout:.0f} s; "
                    f"wait for it, end it{longer or ', or give another folder'}"
                ) from None
            report(f"waiting for {who} (host-pid), which is {doing} {folder}; {waited:.0f} s")
            next_line = waited + PATIENCE
        except NotImplementedError as error:
            what = "processed_path" if doing == "preprocessing" else "folder"
            raise OSError(
                f"{folder.parent} is on a file system without locks; give a {what} elsewhere"
            ) from error
    try:
        _put_back(folder)
        yield
    finally:
        lock.release()


def _put_back(folder: Path) -> None:
    """Puts back the older result that a run had put aside before it died; the lock is held."""
    if not folder.exists():
        for old in sorted(folder.parent.glob(f".{glob.escape(folder.name)}.old-*")):
            if (old / MARK).is_file() or (old / MARK_OF_PARTS).is_file():
                old.rename(folder)
                return


def put_back(folder: Path) -> None:
    """Puts back an older result, if a dead run had put it aside, and it can be."""
    with contextlib.suppress(OSError, NotImplementedError, filelock.Timeout):
        if not folder.exists() and _workers(folder):
            with filelock.FileLock(_lock_file(folder), timeout=0):
                _put_back(folder)


def sweep(folder: Path) -> None:
    """Removes what dead runs have left beside a result, if nobody is at work and it can be."""
    with contextlib.suppress(OSError, NotImplementedError, filelock.Timeout):
        if _workers(folder):
            with filelock.FileLock(_lock_file(folder), timeout=0):
                for path in _workers(folder):
                    shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def working_folder(
    folder: Path, continues: Callable[[Path], bool] = lambda path: False
) -> Iterator[Path]:
    """A folder beside `folder`, removed at the end; the lock is held.

    What a dead run has left is taken over if it is of use, else removed.

    Args:
        folder: the result's folder.
        continues: whether the work in a folder can be continued.
    """
    owner = f"{slug(socket.gethostname())}-{os.getpid()}-{secrets.token_hex(4)}"
    work = folder.parent / f".{folder.name}.tmp-{owner}"
    for path in sorted(_workers(folder)):
        if not work.exists() and ".tmp-" in path.name and continues(path):
            path.rename(work)
        else:
            shutil.rmtree(path, ignore_errors=True)
    work.mkdir(exist_ok=True)
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def publish(work: Path, folder: Path) -> None:
    """Puts a finished working folder in its place; the lock is held."""
    for path, _, _ in os.walk(work, topdown=False):
        sync_folder(Path(path))
    if folder.exists() and exchange(work, folder):
        sync_folder(folder.parent)
        shutil.rmtree(work, ignore_errors=True)  # the older result
        return
    old = folder.parent / f".{folder.name}.old-{secrets.token_hex(4)}"
    if folder.exists():
        folder.rename(old)
    try:
        work.rename(folder)
    except OSError:
        if old.exists():
            old.rename(folder)
        raise
    sync_folder(folder.parent)
    shutil.rmtree(old, ignore_errors=True)
