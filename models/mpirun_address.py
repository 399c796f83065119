"""mpirun_address: where ranks of several machines that mpirun has started find each other.

Rank 0 listens at MASTER_ADDR and MASTER_PORT. The others take their seats there, each once: where
one has a seat already, it is the meeting before, which rank 0 has not left yet. Rank 0 leaves last,
since its end takes the store away.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from hopline.models.rank_environment import RankPlace

__all__ = ["meet_at_address", "not_met"]

DEFAULT_PORT = "29500"  # torchrun's
PAUSE = 0.05  # seconds until the next attempt


@contextmanager
def meet_at_address(place: RankPlace, timeout: float) -> Iterator[Any]:
    """Meets the other ranks, and gives the store of their process group.

    Args:
        place: of this rank.
        timeout: seconds to wait for the others: until they come, and at the end until they leave.

    Raises:
        RuntimeError: the ranks do not meet in time, or MASTER_ADDR is missing.
        ValueError: MASTER_PORT is no port.
    """
    host, port = _address(place)
    deadline = time.monotonic() + timeout
    # With the job's name, for jobs that are given the same address by mistake.
    name = f"hopline/{os.environ.get('PMIX_NAMESPACE', '')}/seat"
    seats = [f"{name}-{rank}" for rank in range(place.world_size)]
    while True:
        problem: Exception | None = None
        try:
            store = _open(host, port, place.rank == 0, deadline)
            if store.add(seats[place.rank], 1) == 1:
                break
            del store
        except RuntimeError as error:
            problem = error
        if place.rank == 0 or time.monotonic() >= deadline:
            text = str(problem or "the meeting there is another one")
            raise RuntimeError(
                f"the ranks did not meet at {host}, port {port} ({text.splitlines()[0][:300]}); "
                "rank 0 listens there: check that it runs on that machine, and that the port is "
                "free (another one: mpirun -x MASTER_PORT=...)"
            ) from problem
        time.sleep(PAUSE)
    try:
        store.wait(seats, _left(deadline))
    except RuntimeError as error:
        raise not_met(_absent(store, seats), timeout) from error
    store.set_timeout(timedelta(seconds=timeout))
    yield store
    with suppress(RuntimeError):  # some stay longer, or rank 0 has not waited for this one
        if place.rank != 0:
            store.set(f"{seats[place.rank]}-left", "")
        elif place.world_size > 1:
            store.wait([f"{seat}-left" for seat in seats[1:]])


def not_met(absent: list[int], timeout: float) -> RuntimeError:
    """The error of ranks that have waited for others."""
    names = ", ".join(f"rank {rank}" for rank in absent[:10]) + ", ..." * (len(absent) > 10)
    return RuntimeError(
        f"the ranks did not meet: {names} did not come within {timeout:g} s; have every rank "
        "that mpirun starts call join_ranks, as often as the others"
    )


def _address(place: RankPlace) -> tuple[str, int]:
    host, text = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT", DEFAULT_PORT)
    if not host:
        raise RuntimeError(
            "the environment lacks MASTER_ADDR, the address of rank 0's machine, where ranks of "
            "several machines meet; pass it on by mpirun -x MASTER_ADDR=HOST"
            if place.local_size < place.world_size
            else "there is no folder where ranks of one machine can meet: PMIX_SERVER_TMPDIR and "
            "PMIX_NAMESPACE, which mpirun sets, name none of this user alone; let them meet at an "
            "address, by mpirun -x MASTER_ADDR=127.0.0.1"
        )
    if not (text.isascii() and text.isdecimal() and 0 < int(text) < 1 << 16):
        raise ValueError(f"the environment has MASTER_PORT={text}; expected a port, 1 to 65535")
    return host, int(text)


def _open(host: str, port: int, listens: bool, deadline: float) -> Any:
    left = _left(deadline)
    return dist.TCPStore(  # type: ignore[attr-defined]
        host, port, is_master=listens, timeout=left, wait_for_workers=False
    )


def _left(deadline: float) -> timedelta:
    return timedelta(seconds=max(0.1, deadline - time.monotonic()))


def _absent(store: Any, seats: list[str]) -> list[int]:
    try:
        return [rank for rank, seat in enumerate(seats) if not store.check([seat])] or [0]
    except RuntimeError:  # rank 0 keeps the store
        return [0]
