"""rank_environment: which rank this process is, by what torchrun or mpirun has told it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

import torch.distributed as dist

__all__ = ["RankPlace", "check_is_no_rank", "rank_place", "ranks_are_started"]

# Rank, number of ranks, and both of this machine.
TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
MPIRUN = (
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
)


@dataclass(frozen=True)
class RankPlace:
    """A rank among all, and among those of its machine.

    Attributes:
        rank: its number.
        world_size: how many there are.
        local_rank: its number on this machine.
        local_size: how many are on this machine.
        launcher: what has started them.
    """

    rank: int
    world_size: int
    local_rank: int
    local_size: int
    launcher: Literal["torchrun", "mpirun"]


def ranks_are_started() -> bool:
    """Whether torchrun or OpenMPI's mpirun has started this process as one of its ranks.

    A script that can do both calls `join_ranks` then, and `launch` otherwise.

    Example::

        if ranks_are_started():
            join_ranks(train, args)
        else:
            launch(train, args.num_ranks, args)
    """
    return _launcher() is not None


def check_is_no_rank() -> None:
    """Raises `RuntimeError` in one of several ranks, each of which would start ranks of its own."""
    if not ranks_are_started():
        return
    place = rank_place()
    if place.world_size > 1:
        raise RuntimeError(
            f"{place.launcher} has started this process as rank {place.rank} of "
            f"{place.world_size}; call join_ranks(fn, ...) here, launch(fn, num_ranks, ...) is for "
            "a process that is no rank"
        )


def rank_place() -> RankPlace:
    """This process's place among the ranks that torchrun or mpirun has started.

    Raises:
        RuntimeError: neither has started this process, or some of their variables are missing.
        ValueError: the variables are no numbers, or do not fit each other.
    """
    launcher = _launcher() or "torchrun"
    names = MPIRUN if launcher == "mpirun" else TORCHRUN
    needed = names if launcher == "mpirun" else (*names, "MASTER_ADDR", "MASTER_PORT")
    if missing := [name for name in needed if name not in os.environ]:
        raise RuntimeError(
            f"the environment lacks {', '.join(missing)}, which {launcher} sets; start the script "
            "with torchrun or OpenMPI's mpirun, or use launch(fn, num_ranks)"
        )
    texts = [os.environ[name] for name in names]
    given = ", ".join(f"{name}={text}" for name, text in zip(names, texts, strict=True))
    try:
        rank, world_size, local_rank, local_size = (int(text) for text in texts)
    except ValueError as error:
        raise ValueError(f"the environment has {given}; expected numbers") from error
    fits = 0 <= local_rank < local_size <= world_size
    if not (fits and local_rank <= rank < world_size):
        raise ValueError(
            f"the environment has {given}; expected ranks below their numbers, and no more ranks "
            "on a machine than in all"
        )
    return RankPlace(rank, world_size, local_rank, local_size, launcher)


def _launcher() -> Literal["torchrun", "mpirun"] | None:
    """What has started this process; torchrun if both have, as the one within.

    Some of its four variables do not make it torchrun: other systems set RANK and WORLD_SIZE too,
    some of them to numbers of machines.
    """
    if dist.is_torchelastic_launched() or all(name in os.environ for name in TORCHRUN):
        return "torchrun"
    return "mpirun" if any(name in os.environ for name in MPIRUN) else None
