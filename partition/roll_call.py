"""RollCall: which ranks do not answer, told by those that do, through the process group's store."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

__all__ = ["RollCall", "Verdict"]

GRACE = 3.0  # seconds for the others to notice as well
LOOK = 0.5  # seconds between looks whether another rank has called
STEP = 0.05  # seconds between looks once one has
LINGER = 2.0  # seconds that rank 0, whose end takes the store away, waits for the others to read
GONE = "has gone, is stopped or cannot be reached"
GONE_ALL = "have gone, are stopped or cannot be reached"
LATE = "lives, but does not answer in time"
LATE_ALL = "live, but do not answer in time"
LONGEST = 2000  # characters of a verdict


@dataclass(frozen=True)
class Verdict:
    """Which ranks have gone, and the same in words."""

    ranks: tuple[int, ...]
    text: str


class RollCall:
    """Watches one exchange's ranks: a thread that waits for a call, and answers it.

    A rank that has lost its connections calls, and each rank that lives says so, whatever else it
    does at the time. The first whose seconds are over gives the verdict, which all tell alike:
    ranks that said why they left, else those that are silent, else those that live but have not
    noticed, being stuck in their part of a round. A rank that notices late is not named.

    Only this thread uses the store: a call to a store whose machine is stopped does not return.

    Args:
        name: of the exchange, the same on all ranks.
        rank: this one.
        world_size: number of ranks.
        told: called with the verdict, on the thread, when another rank's call has ended in one.
    """

    def __init__(
        self, name: str, rank: int, world_size: int, told: Callable[[Verdict], None]
    ) -> None:
        self._name, self._rank, self._world_size = name, rank, world_size
        self._others = [other for other in range(world_size) if other != rank]
        self._told = told
        self._store: Any = None  # the thread's
        self._wake = threading.Event()
        self._missing: list[int] | None = None
        self._complete = threading.Event()
        self._noticed = False
        self._late: Sequence[int] = ()
        self._why: str | None = None
        self._verdict: Verdict | None = None
        self._settled = threading.Event()

    def start(self, timeout: float) -> Verdict | None:
        """Waits for all ranks to do this, and returns which have not in time."""
        self._thread = threading.Thread(
            target=self._run, args=(timeout,), name="hopline-roll-call", daemon=True
        )
        self._thread.start()
        self._complete.wait(timeout + GRACE)
        if self._missing is None:
            return self._verdict or self._without_store()
        if not self._missing:
            return None
        text = f"{_names(self._missing)} made no exchange (DistGraph) within {timeout:g} s"
        return Verdict(tuple(self._missing), f"{text}; all ranks make it, in the same order")

    def stop(self) -> None:
        """Ends the thread: there is nothing more to watch."""
        self._wake.set()
        self._thread.join(LINGER)

    def leave(self, why: str) -> None:
        """Tells the others that, and why, this rank goes; before it closes its connections."""
        self._why = why
        self._wake.set()
        self._settled.wait(LINGER)

    def verdict(self, late: Sequence[int] = ()) -> Verdict:
        """Calls, and returns the verdict after some seconds; the same on all ranks.

        Args:
            late: ranks that this one has waited for in vain.
        """
        self._late = late
        self._noticed = True
        self._wake.set()
        self._settled.wait(GRACE + LINGER + 1.0)
        return self._verdict or self._without_store()

    # ---------------------------------------------------------------------------------------------
    # On the thread

    def _run(self, timeout: float) -> None:
        try:
            # A connection of its own: another thread may be waiting on the common one.
            store = dist.distributed_c10d._get_default_store()
            self._store = store.clone() if hasattr(store, "clone") else store
            self._missing = self._gather(timeout)
            self._complete.set()
            if self._missing:
                return
            while not self._wake.wait(LOOK):
                if self._has("call"):
                    break
            if self._why is not None:
                self._set(f"left/{self._rank}", self._why)
            elif self._noticed or not self._wake.is_set():
                self._settle()
        except RuntimeError:  # DistStoreError and DistNetworkError are
            self._verdict = self._without_store()
        finally:
            self._complete.set()
            self._settled.set()
        if self._verdict is not None and not self._noticed:
            self._told(self._verdict)

    def _gather(self, timeout: float) -> list[int]:
        self._set(f"made/{self._rank}")
        deadline = time.monotonic() + timeout
        while True:
            missing = [other for other in self._others if not self._has(f"made/{other}")]
            if not missing or time.monotonic() >= deadline or self._wake.is_set():
                return missing
            time.sleep(STEP / 10)

    def _settle(self) -> None:
        for other in self._late:
            self._set(f"late/{other}")
        self._set("call")
        self._set(f"alive/{self._rank}")
        deadline: float | None = None
        while not self._has("verdict"):
            if self._why is not None:
                self._set(f"left/{self._rank}", self._why)
                return
            if self._noticed:
                if deadline is None:
                    deadline = time.monotonic() + GRACE
                    self._set(f"noticed/{self._rank}")
                found = self._look(time.monotonic() >= deadline)
                if found is not None:
                    ranks = ",".join(map(str, found.ranks))
                    self._store.compare_set(
                        f"{self._name}/verdict", "", f"{ranks};{found.text}"[:LONGEST]
                    )
                    break
            elif self._wake.is_set():
                return  # closed meanwhile
            time.sleep(STEP)
        ranks, _, text = self._get("verdict").partition(";")
        numbers = tuple(int(rank) for rank in ranks.split(",") if rank.isdecimal())
        self._verdict = Verdict(numbers, text)
        self._set(f"read/{self._rank}")
        if self._rank == 0:
            self._linger(numbers)

    def _look(self, last: bool) -> Verdict | None:
        """What is known, or None if it is worth waiting."""
        left = [other for other in self._others if self._has(f"left/{other}")]
        if left:
            told = [f"rank {rank} {self._get(f'left/{rank}')}" for rank in left]
            return Verdict(tuple(left), "; ".join(told))
        gone = [other for other in self._others if not self._has(f"noticed/{other}")]
        if gone and not last:
            return None
        silent = [other for other in gone if not self._has(f"alive/{other}")]
        if silent:
            return Verdict(
                tuple(silent), f"{_names(silent)} {GONE if len(silent) == 1 else GONE_ALL}"
            )
        if gone:
            return Verdict(tuple(gone), f"{_names(gone)} {LATE if len(gone) == 1 else LATE_ALL}")
        late = [rank for rank in range(self._world_size) if self._has(f"late/{rank}")]
        if late:
            return Verdict(tuple(late), f"{_names(late)} {LATE if len(late) == 1 else LATE_ALL}")
        return Verdict((), "ranks have lost their connections, though all of them live")

    def _linger(self, gone: tuple[int, ...]) -> None:
        deadline = time.monotonic() + LINGER
        while time.monotonic() < deadline:
            if all(
                other in gone or not self._has(f"alive/{other}") or self._has(f"read/{other}")
                for other in self._others
            ):
                return
            time.sleep(STEP)

    def _without_store(self) -> Verdict:
        if self._rank and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            text = f"rank 0's machine {GONE}, and the store that its torchrun keeps"
        elif self._rank:
            text = f"rank 0 {GONE}, and the store that it keeps"
        else:
            return Verdict((), "a rank has gone, and so has the store that would tell which")
        return Verdict((0,), text)

    def _has(self, key: str) -> bool:
        return bool(self._store.check([f"{self._name}/{key}"]))

    def _get(self, key: str) -> str:
        return str(self._store.get(f"{self._name}/{key}").decode(errors="replace"))[:LONGEST]

    def _set(self, key: str, value: str = "here") -> None:
        self._store.set(f"{self._name}/{key}", value)


def _names(ranks: list[int]) -> str:
    return ", ".join(f"rank {rank}" for rank in ranks)
