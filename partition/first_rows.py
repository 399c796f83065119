"""first_rows: what new rows begin with, the same for any number of parts and ranks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from hopline.pipes.random import fold_many

__all__ = ["Init", "check_init", "draw", "first_rows"]

Array = np.ndarray[Any, Any]
Init = str | Callable[[torch.Tensor], torch.Tensor]

INITS = ("normal", "uniform", "zeros")
BLOCK = 1 << 20  # values drawn at once


def check_init(init: Any) -> None:
    """Refuses what names no distribution and is no function.

    Raises:
        TypeError: neither a string nor a function.
        ValueError: a string of another kind.
    """
    if isinstance(init, str) and init not in INITS:
        raise ValueError(f"init is {init!r}; expected one of {INITS}, or a function")
    if not isinstance(init, str) and not callable(init):
        raise TypeError(f"init is a {type(init).__name__}; expected a string or a function")


def first_rows(
    originals: torch.Tensor,
    size: tuple[int, ...],
    init: Init,
    scale: float,
    key: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Rows of some nodes or edges.

    Args:
        originals: int64[n], their ids in the whole graph.
        size: shape of a row.
        init: see `DistTensor`.
        scale: see `DistTensor`.
        key: from which all draws follow.
        dtype: of the rows.

    Returns:
        [n, *size].

    Raises:
        ValueError: init is a function and returns another shape.
    """
    shape = (len(originals), *size)
    rows = torch.zeros(shape, dtype=dtype, device="cpu")
    if callable(init):
        given = init(originals)
        if not isinstance(given, torch.Tensor) or tuple(given.shape) != shape:
            got = tuple(given.shape) if isinstance(given, torch.Tensor) else type(given)
            raise ValueError(f"init returned {got}; expected a tensor of shape {shape}")
        rows.copy_(given.detach())
    elif init != "zeros":
        dim = math.prod(size)
        step = max(1, BLOCK // dim)
        for low in range(0, len(rows), step):
            ids = originals[low : low + step].numpy()
            values = draw(key, ids, dim, normal=init == "normal") * scale
            rows[low : low + step] = torch.from_numpy(values.reshape(-1, *size))
    return rows


def draw(key: int, ids: Array, dim: int, *, normal: bool) -> Array:
    """Values by (key, id, column).

    Args:
        key: 64-bit word.
        ids: int64[n].
        dim: values an id.
        normal: of mean 0 and deviation 1 (Box, Muller: "A note on the generation of random normal
            deviates", 1958); else uniform between -1 and 1.

    Returns:
        float64[n, dim].
    """
    keys = fold_many(np.array(key, np.uint64), ids)[:, None]
    first = _fraction(fold_many(keys, np.arange(dim)))
    if not normal:
        return 2 * first - 1
    second = _fraction(fold_many(keys, np.arange(dim, 2 * dim)))
    values: Array = np.sqrt(-2 * np.log(first)) * np.cos(2 * np.pi * second)
    return values


def _fraction(words: Array) -> Array:
    """float64 in (0, 1), of the upper 52 bits."""
    fraction: Array = ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return fraction
