"""ahead: the next piece is made while this one is used."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

__all__ = ["ahead"]

T = TypeVar("T")


def ahead(pieces: Iterable[T]) -> Generator[T, None, None]:
    """The pieces in order, each made on a thread of its own while the one before is used.

    Two pieces are alive at a time. An error comes where its piece would have come. The thread ends
    with the iterator. Whoever may stop early, by an error too, closes it (contextlib.closing): the
    error's traceback keeps it alive, and its thread would go on while files are cleared away.

    Args:
        pieces: makes a piece when asked for the next.
    """
    source = iter(pieces)

    def following() -> list[T]:
        return list(islice(source, 1))

    with ThreadPoolExecutor(1, thread_name_prefix="hopline-ahead") as thread:
        pending = thread.submit(following)
        while piece := pending.result():
            pending = thread.submit(following)
            yield piece.pop()
