"""kernel: how every CPU kernel is compiled, and how its machine code is cached."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit
from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile

__all__ = ["kernel"]


INSTRUCTIONS = Path(__file__).with_name("instructions.py")  # which kernels of other files use


def _stamp_of(path: Path) -> tuple[float, int] | None:
    """What changes as a file does; None for one that lies in no folder."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime, found.st_size


class _File(IndexDataCacheFile):
    """Numba's cache of one kernel, but each signature has a file named by what it is made of.

    Numba numbers the files and keeps an index: of two processes that compile two signatures at
    once, both take the same number, and one finds the other's machine code under it. Here no two
    share a file, and a file says what it holds, so that nothing can be taken for something else.
    """

    def save(self, key: Any, data: Any) -> None:
        folder, name = Path(self._cache_path), self._name(key)
        self._save_data(name, (self._made_of(key), data))
        base, source = self._base, name.rpartition("-")[0]
        for path in folder.iterdir():  # of an older source
            if path.name.startswith(f"{base}.") and not path.name.startswith(f"{source}-"):
                path.unlink(missing_ok=True)

    def load(self, key: Any) -> Any:
        try:
            made_of, data = self._load_data(self._name(key))
        except OSError:  # there is none
            return None
        return data if made_of == self._made_of(key) else None

    def _made_of(self, key: Any) -> tuple[Any, ...]:
        return self._version, self._source_stamp, _stamp_of(INSTRUCTIONS), key

    @property
    def _base(self) -> str:
        return str(self._index_name).removesuffix(".nbi")

    def _name(self, key: Any) -> str:
        source = _digest((self._version, self._source_stamp, _stamp_of(INSTRUCTIONS)))
        return f"{self._base}.{source}-{_digest(key)}.nbc"


class _Place(CompileResultCacheImpl):
    """Where Numba's cache of one kernel lies, but not in a folder named "~" in the current one.

    Numba takes the name for the home folder of a user that has none, as in some containers.
    """

    @property
    def _locator_classes(self) -> list[Any]:
        known = super()._locator_classes
        if os.path.isabs(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")):
            return list(known)
        return [kind for kind in known if not kind.__name__.endswith("UserWideCacheLocator")]


class _Cache(FunctionCache):
    """Numba's cache of one kernel, but what cannot be read or written is compiled anew."""

    _impl_class = _Place

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._cache_file.__class__ = _File

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # damaged: what a pickle raises then may be anything
            return None  # and is written over

    def save_overload(self, sig: Any, data: Any) -> None:
        with contextlib.suppress(OSError):  # e.g. the disk is full
            super().save_overload(sig, data)


def _digest(value: Any) -> str:
    return hashlib.blake2b(repr(value).encode(), digest_size=8).hexdigest()


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
    compiled = njit(nogil=True, inline=inline)(function)
    if hasattr(compiled, "_cache"):  # not where Numba is switched off
        with contextlib.suppress(RuntimeError, OSError):  # Numba finds no folder for its cache
            compiled._cache = _Cache(function)
    return compiled
