"""usable_memory: how much memory this process may use, by the machine and by its control group."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["usable_memory"]

GROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def usable_memory() -> int:
    """Bytes of the machine's memory; or the bound of this process's control group, if lower.

    Bounds of version 1 and 2 of Linux's control groups are known, also those of the groups around.
    Where nothing is known, 2**63 - 1.
    """
    most = (1 << 63) - 1
    try:
        most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # no such figure on this system
        return most
    return min([most, *_bounds()])


def _bounds() -> list[int]:
    """Bounds of the groups that this process is in."""
    found: list[int] = []
    try:
        lines = os.fsdecode(MEMBERSHIP.read_bytes()).split("\n")  # names of any bytes
    except OSError:
        return found
    for line in filter(None, lines):
        _, controllers, group = line.split(":", 2)
        if not controllers:
            root, name = GROUPS, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = GROUPS / "memory", "memory.limit_in_bytes"
        else:
            continue
        place = root / group.lstrip("/")
        for folder in (place, *place.parents):
            with contextlib.suppress(OSError, ValueError):  # not here, or "max": no bound
                found.append(int((folder / name).read_bytes()))
            if folder == root:
                break
    return found
