"""kernel: how every CPU kernel is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit

__all__ = ["kernel"]


def kernel(function: Callable[..., Any] | None = None, *, inline: str = "never") -> Any:
    """Decorator: compiles a function at its first call, to run without the GIL.

    The machine code is cached for later runs. Where no folder for it can be written to, each run
    compiles anew: the kernels work all the same.

    Args:
        function: what Numba compiles.
        inline: "always" to copy the function into its callers.
    """
    if function is None:
        return lambda function: kernel(function, inline=inline)
    try:
        return njit(nogil=True, cache=True, inline=inline)(function)
    except RuntimeError:  # Numba finds no folder for its cache
        return njit(nogil=True, inline=inline)(function)
