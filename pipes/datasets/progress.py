"""Progress: what a run has done, how fast, and how long the rest will take."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from tqdm import tqdm

__all__ = ["Advance", "Progress"]

Advance = Callable[[int], object]  # called with what has been done since the last call


class Progress:
    """One bar for each phase, on standard error.

    Args:
        shown: show it; None shows it on a terminal, for phases that take more than a moment.
    """

    def __init__(self, shown: bool | None = False) -> None:
        self.shown = shown

    @contextlib.contextmanager
    def phase(self, name: str, total: int, unit: str = "edge", done: int = 0) -> Iterator[Advance]:
        """A phase.

        Args:
            name: what is done.
            total: how much of it there is.
            unit: of that.
            done: what a former run has done; it is left out of the rate.
        """
        with tqdm(
            total=total, initial=done, desc=name, unit=unit, unit_scale=True,
            delay=0.0 if self.shown else 2.0,
            disable=None if self.shown is None else not self.shown,
        ) as bar:  # fmt: skip
            yield bar.update

    def note(self, message: str) -> None:
        """A line, where bars are shown on request."""
        if self.shown:
            print(f"hopline: {message}", file=sys.stderr, flush=True)
