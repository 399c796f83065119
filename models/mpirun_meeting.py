"""mpirun_meeting: where ranks that mpirun has started find each other.

On one machine in a folder, so that no port has to be free and none is opened to the network. It
lies in the one that mpirun makes for the job, for this user alone, and removes however the job
ends. Rank 0 makes a new folder for each meeting and holds a lock on it; the others take their
seats, each once. So ranks never meet those of another job, of an earlier one that had the same
number and was killed with its mpirun, or of a program that ran before in the same job.

On several machines at an address.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from hopline.models.mpirun_address import meet_at_address, not_met
from hopline.models.rank_environment import RankPlace

__all__ = ["mpirun_meeting"]

PAUSE = 0.02  # seconds between looks into the folder


@contextmanager
def mpirun_meeting(place: RankPlace, timeout: float) -> Iterator[Any]:
    """Meets the other ranks, and gives the store of their process group.

    Args:
        place: of this rank.
        timeout: seconds to wait for the others.

    Raises:
        RuntimeError: the ranks do not meet in time, or there is no place to meet.
        ValueError: MASTER_PORT is no port.
    """
    root = _folder() if place.local_size == place.world_size else None
    if root is None:
        with meet_at_address(place, timeout) as store:
            yield store
        return
    deadline = time.monotonic() + timeout
    if place.rank == 0:
        folder, lock = _open_meeting(root)
    else:
        folder, lock = _find_meeting(root, place.rank, deadline, timeout), None
    try:
        _wait_for_seats(folder, place.world_size, deadline, timeout)
        store = dist.FileStore(str(folder / "store"), place.world_size)  # type: ignore[attr-defined]
        store.set_timeout(timedelta(seconds=timeout))
        yield store
    finally:
        if lock is not None:
            os.close(lock)


def _folder() -> Path | None:
    """The folder for this job's meetings, which need not exist; None if there is no place for it.

    With a name of the job's own, since jobs of one `prte` have the same folder of mpirun's.
    """
    job, base = os.environ.get("PMIX_NAMESPACE"), os.environ.get("PMIX_SERVER_TMPDIR")
    if not job or not base or not _is_private(Path(base)):
        return None
    name = hashlib.sha256(job.encode(errors="surrogateescape")).hexdigest()[:16]
    return Path(base) / f"hopline-{name}"


def _is_private(folder: Path) -> bool:
    """Whether it is a folder of this user, in which nobody else can write."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    others = stat.S_IWGRP | stat.S_IWOTH
    return (
        stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & others
    )


def _open_meeting(root: Path) -> tuple[Path, int]:
    """Makes the folder of a meeting, and locks it, as rank 0."""
    import fcntl

    root.mkdir(mode=0o700, exist_ok=True)
    hidden = Path(tempfile.mkdtemp(prefix=".new-", dir=root))
    lock = os.open(hidden / "seat-0", os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    folder = root / f"meeting{hidden.name.removeprefix('.new')}"
    return hidden.rename(folder), lock


def _find_meeting(root: Path, rank: int, deadline: float, timeout: float) -> Path:
    """The folder of a meeting whose rank 0 lives, and at which this rank has not been yet."""
    while True:
        for folder in root.glob("meeting-*"):
            if _is_locked(folder / "seat-0"):
                with suppress(FileExistsError):
                    (folder / f"seat-{rank}").touch(mode=0o600, exist_ok=False)
                    return folder
        if time.monotonic() >= deadline:
            raise not_met([0], timeout)
        time.sleep(PAUSE)


def _is_locked(file: Path) -> bool:
    """Whether the process that has locked a file lives."""
    import fcntl

    number = os.open(file, os.O_RDONLY)
    try:
        fcntl.flock(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(number)
    return False


def _wait_for_seats(folder: Path, ranks: int, deadline: float, timeout: float) -> None:
    while missing := [rank for rank in range(ranks) if not (folder / f"seat-{rank}").exists()]:
        if time.monotonic() >= deadline:
            raise not_met(missing, timeout)
        time.sleep(PAUSE)
