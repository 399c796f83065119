"""kernel: how every CPU kernel is compiled, and how its machine code is cached."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable
from typing import Any

from numba import njit
from numba.core.caching import FunctionCache, IndexDataCacheFile

__all__ = ["kernel"]


class _File(IndexDataCacheFile):
    """Numba's files of one kernel, but the index is written last.

    An index that names machine code before it is written would, after a kill or on a full disk,
    name what an older source has left under that name.
    """

    def save(self, key: Any, data: Any) -> None:
        overloads = self._load_index()
        name = overloads.get(key)
        if name is None:
            names = map(self._data_name, itertools.count(1))
            name = next(name for name in names if name not in overloads.values())
        self._save_data(name, data)
        self._save_index({**overloads, key: name})


class _Cache(FunctionCache):
    """Numba's cache of one kernel, but what cannot be read or written is compiled anew."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # damaged: what a pickle raises then may be anything
            with contextlib.suppress(OSError):
                os.unlink(self._cache_file._index_path)
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        with contextlib.suppress(OSError):  # e.g. the disk is full
            super().save_overload(sig, data)


def kernel(function: Callable[..., Any] | None = None, *, inline: str = "never") -> Any:
    """Decorator: compiles a function at its first call, to run without the GIL.

    The machine code is cached for later runs. Where no folder for it can be written to, each run
    compiles anew: the kernels work all the same. So they do on a full disk, and where the cache is
    damaged.

    Args:
        function: what Numba compiles.
        inline: "always" to copy the function into its callers.
    """
    if function is None:
        return lambda function: kernel(function, inline=inline)
    try:
        compiled = njit(nogil=True, cache=True, inline=inline)(function)
    except (RuntimeError, OSError):  # Numba finds no folder for its cache
        return njit(nogil=True, inline=inline)(function)
    cache: Any = getattr(compiled, "_cache", None)  # none where Numba is switched off
    if type(cache) is FunctionCache:
        cache.__class__ = _Cache
        cache._cache_file.__class__ = _File
    return compiled
