"""bound_cores: a rank's share of its machine's cores, where mpirun has bound ranks to some."""

from __future__ import annotations

import os
import platform
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from hopline.models.launch import share_cores
from hopline.models.rank_environment import RankPlace

__all__ = ["share_bound_cores"]


def share_bound_cores(store: Any, place: RankPlace) -> None:
    """Sets the number of torch's threads, by the cores that each rank of the machine may use.

    A core that several ranks may use counts for each by its part. Every rank calls it.

    Args:
        store: of the process group.
        place: of this rank.
    """
    if not hasattr(os, "sched_getaffinity"):
        share_cores(place.local_size)
        return
    own = os.sched_getaffinity(0)
    prefix = f"hopline-cores/{_machine()}"
    store.set(f"{prefix}/{place.local_rank}", ",".join(map(str, sorted(own))))
    users: Counter[int] = Counter()
    for rank in range(place.local_size):
        users.update(int(core) for core in store.get(f"{prefix}/{rank}").decode().split(","))
    share = sum(1 / users[core] for core in own)
    # No more than the rank would take by itself, e.g. because of OMP_NUM_THREADS.
    torch.set_num_threads(max(1, min(int(share + 1e-6), torch.get_num_threads())))


def _machine() -> str:
    """A name that no other machine of the job has."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return f"{platform.node()}/{boot}"
