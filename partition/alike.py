"""check_alike: refuses, on every rank, what is not the same on all.

Without it a rank reads the bits of another one's rows as of its own dtype, or changes the rows that
it has by another rule.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hopline.partition.answers import RankError

__all__ = ["as_message", "check_alike"]

Array = np.ndarray[Any, Any]


def as_message(values: Mapping[str, Any]) -> Array:
    """uint8[n]: values by name, each as its `repr`, as other ranks are told them."""
    text = json.dumps({name: repr(value) for name, value in values.items()})
    return np.frombuffer(bytearray(text.encode()), np.uint8)


def check_alike(what: str, told: Sequence[Array]) -> None:
    """Compares what ranks have told; all of them raise the same.

    Args:
        what: the things that are to be alike, for the message, e.g. "tables".
        told: of each rank, in their order, what `as_message` returned there.

    Raises:
        ValueError: a rank differs; names the first that is unlike rank 0, and both values.
        RankError: a rank has told something else, being at another step.

    >>> one, other = as_message({"a": 2}), as_message({"a": 3})
    >>> check_alike("sizes", [one, one, other])
    Traceback (most recent call last):
    ...
    ValueError: sizes of ranks differ: rank 0 has a 2, rank 2 has 3; expected the same on all ranks
    """
    first = told[0].tobytes()
    for rank, words in enumerate(told):
        if words.tobytes() == first:
            continue
        mine, theirs = _read(0, first), _read(rank, words.tobytes())
        for name in mine | theirs:
            one, other = mine.get(name, "none"), theirs.get(name, "none")
            if one != other:
                raise ValueError(
                    f"{what} of ranks differ: rank 0 has {name} {one}, rank {rank} has {other}; "
                    "expected the same on all ranks"
                )


def _read(rank: int, words: bytes) -> dict[str, str]:
    try:
        values = json.loads(words)
    except ValueError:
        values = None
    if not isinstance(values, dict):
        raise RankError(
            f"rank {rank} is at another step of all ranks; all must make, save, load and step alike"
        )
    return values
