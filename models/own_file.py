"""own_file: a file of one writer, which takes the place of its target when it is whole."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["own_file"]


@contextlib.contextmanager
def own_file(path: Path) -> Iterator[BinaryIO]:
    """A new file that takes the place of `path` at the end; with an error it is removed.

    Its name is its own, `.NAME.tmp-X`, so that writers of the same target do not meet. It is locked
    while it is written: files without a lock are of dead writers, and are removed; but for systems
    without such locks, Windows, where they stay.

    Args:
        path: the target, in a folder that is there.

    Raises:
        OSError: it cannot be made, written or renamed.
    """
    _remove_left(path)
    temporary, file = _made(path)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    _sync_folder(path.parent)


def _made(path: Path) -> tuple[Path, BinaryIO]:
    while True:
        temporary = path.with_name(f"{_prefix(path)}{secrets.token_hex(4)}")
        file = temporary.open("xb")
        if _locked(file):
            with contextlib.suppress(OSError):
                if os.path.samestat(temporary.stat(), os.fstat(file.fileno())):
                    return temporary, file
        file.close()  # another writer took it for a dead one's before it was locked


def _locked(file: BinaryIO) -> bool:
    """Whether this process has the file to itself; also where a file system knows no locks."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _remove_left(path: Path) -> None:
    """Removes what dead writers have left."""
    for left in path.parent.iterdir() if fcntl is not None else ():
        if left.name.startswith(_prefix(path)):
            with contextlib.suppress(OSError), left.open("r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                left.unlink()


def _prefix(path: Path) -> str:
    return f".{path.name}.tmp-"


def _sync_folder(folder: Path) -> None:
    """Makes a rename last through a power cut, where folders can be synced."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
