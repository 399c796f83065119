"""Scratch: converted copies of inputs that cannot be mapped as they are."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from hopline.pipes.datasets.checksum import sum_of_file
from hopline.pipes.datasets.disk_space import check_space
from hopline.pipes.datasets.journal import Journal
from hopline.pipes.datasets.location import slug
from hopline.pipes.datasets.npy_writer import Array
from hopline.pipes.datasets.progress import Progress

__all__ = ["Scratch"]


class Scratch:
    """A folder for copies and for what is needed in between; its owner removes it.

    Args:
        folder: existing.
        journal: tells which copies a stopped run has finished, and is told.
        progress: is told.
        max_memory: bound on working arrays in bytes.
    """

    def __init__(self, folder: Path, journal: Journal, progress: Progress, max_memory: int) -> None:
        self.folder = folder
        self.progress = progress
        self.max_memory = max_memory
        self._journal = journal
        self._done: dict[str, tuple[str, list[int]]] = {}

    def converted(
        self,
        path: Path,
        use: str,
        convert: Callable[[BinaryIO], tuple[np.dtype[Any], tuple[int, ...]]],
        bytes_needed: int = 0,
    ) -> Array:
        """The copy of an input; made once, also when several entries use it.

        Args:
            path: the input.
            use: what for; each use has its copy.
            convert: writes the copy, and gives its dtype and shape.
            bytes_needed: size of the copy, roughly.

        Returns:
            The copy, mapped.

        Raises:
            OSError: the disk has no room; raised before the work.
        """
        own = hashlib.blake2b(os.fsencode(path) + use.encode(), digest_size=8).hexdigest()
        name = f"{slug(path.name)}-{own}.bin"
        entry = f"converted {name}"
        target = self.folder / name
        known = self._done.get(name)
        if known is None and (noted := self._journal.get(entry)) is not None:
            dtype, shape, total = np.dtype(noted[0]), tuple(noted[1]), noted[2]
            if _sum(target, dtype, shape) == total:
                known = (noted[0], noted[1])
        if known is None:
            check_space(self.folder, bytes_needed, f"a copy of {path.name}", self.progress)
            with target.open("wb") as file:
                dtype, shape = convert(file)
                file.flush()
                noted = (dtype.str, list(shape))
                self._journal.put_large(entry, lambda: (*noted, _sum(target, dtype, shape)), file)
            known = (dtype.str, list(shape))
        self._done[name] = (known[0], known[1])
        dtype, shape = np.dtype(known[0]), tuple(known[1])
        if not np.prod(shape):
            return np.empty(shape, dtype)
        return np.asarray(np.memmap(target, dtype, mode="r", shape=shape))


def _sum(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> int | None:
    return sum_of_file(path, dtype, shape[1:], [(0, shape[0])])
