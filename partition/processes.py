"""Processes of a rank's machine: all that one has started, stopped without leaving any."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable

__all__ = ["adopt_orphans", "descendants", "die_with_parent", "kill_descendants", "start"]

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # of prctl(2)
PAUSE = 0.02  # seconds between two looks
ROUNDS = 250


def _prctl() -> Callable[[int, int], object] | None:
    """Linux' prctl with two arguments, or None elsewhere."""
    if not sys.platform.startswith("linux"):
        return None
    call = ctypes.CDLL(None, use_errno=True).prctl
    return lambda option, value: call(option, value, 0, 0, 0)


def adopt_orphans() -> None:
    """Makes orphans among what this process starts its own children, where the system can do that.

    torchrun gives each rank a session of its own; when it is killed itself, they would be no one's.
    """
    prctl = _prctl()
    if prctl is not None:
        prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> Callable[[], None] | None:
    """What has a new process get SIGTERM when its parent is killed, for `Popen(preexec_fn=...)`."""
    prctl = _prctl()
    if prctl is None:
        return None

    def ask() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

    return ask


def start(command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Starts a process in a group of its own, with pipes for its output and no input."""
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,
        preexec_fn=die_with_parent(),
    )


def _parents() -> dict[int, int]:
    """`{process: its parent}` of all that live."""
    found = {}
    if os.path.isdir("/proc/self"):
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError, ValueError):
                    with open(f"/proc/{name}/stat", "rb") as file:
                        state, parent = file.read().rpartition(b")")[2].split()[:2]
                    if state != b"Z":
                        found[int(name)] = int(parent)
        return found
    said = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True, check=False
    )
    for line in said.stdout.splitlines():
        number, above, marks = line.split(None, 2)
        if not marks.startswith("Z"):
            found[int(number)] = int(above)
    return found


def descendants(pid: int) -> set[int]:
    """Living processes that a process has started, directly or not."""
    parents = _parents()
    known = {pid}
    while more := {child for child, parent in parents.items() if parent in known} - known:
        known |= more
    return known - {pid}


def kill_descendants(known: Iterable[int] = ()) -> list[int]:
    """Kills all that this process has started, and waits until they are gone.

    Call it when the direct children have been waited for: it reaps what it has adopted.

    Args:
        known: processes seen before, which may have lost their way to this one where orphans
            cannot be adopted.

    Returns:
        Those that are still there.
    """
    left = set(known)
    for _ in range(ROUNDS):
        left = (left & set(_parents())) | descendants(os.getpid())
        if not left:
            break
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(PAUSE)
    return sorted(left)
