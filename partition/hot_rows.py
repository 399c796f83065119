"""HotRows: copies of the rows of other ranks that mini-batches read most."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from hopline.partition.batch_kernels import find_hot, hot_places, mark_hot

__all__ = ["HotRows", "hottest_that_fit"]

Array = np.ndarray[Any, Any]


class HotRows:
    """Rows of some nodes, of several features; nodes are found by one bit each.

    Args:
        ids: int64[k], new ids within the type, ascending, each once.
        count: nodes of the type.
        rows: by number of the feature, k rows each, in the order of ids.

    Attributes:
        rows: as given.
    """

    def __init__(self, ids: Array, count: int, rows: Mapping[int, torch.Tensor]) -> None:
        words = (count + 63) // 64
        self.rows = rows
        self._ids = ids
        self._bits, self._before = np.zeros(words, np.uint64), np.empty(words, np.int64)
        mark_hot(ids, self._bits, self._before)

    def find(self, ids: Array, part: int, here: Array, parts: Array) -> None:
        """Gives kept nodes of other ranks to a part of their own.

        Args:
            ids: integer[n], new ids within the type, all in range.
            part: number of that part.
            here: bool[num_parts], whether a part's rows are here anyway.
            parts: integer[n], in and out.
        """
        find_hot(ids, self._bits, part, here, parts)

    def place(self, ids: Array, order: Array, low: int, local: Array) -> None:
        """Where the rows of kept nodes lie.

        Args:
            ids: integer[n], new ids within the type.
            order: int64[n], their order, kept ones last.
            low: from which place in the order on they are kept.
            local: integer[n], out, from low on.
        """
        hot_places(ids, order, low, self._bits, self._before, local)

    def renew(self, number: int, ids: Array, rows: torch.Tensor) -> None:
        """Writes rows over those that are kept of the same nodes; of equal ids, the last.

        Args:
            number: of the feature.
            ids: int64[n], new ids within the type.
            rows: n rows, or their bits.
        """
        if number not in self.rows or not len(self._ids):
            return
        at = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
        known = np.flatnonzero(self._ids[at] == ids)
        kept = self.rows[number]
        kept[torch.from_numpy(at[known])] = rows[torch.from_numpy(known)].view(kept.dtype)


def hottest_that_fit(
    met: Mapping[str | None, Array], row_bytes: Mapping[str | None, int], max_bytes: int
) -> dict[str | None, Array]:
    """The nodes that are read most and whose rows there is room for.

    Args:
        met: by type, int64[n] ids, the most read first.
        row_bytes: by type, of all rows of a node.
        max_bytes: for all rows of all types; the first of each type comes first, then the second.

    Returns:
        By type, int64[k] ids, ascending.
    """
    lengths = [len(ids) for ids in met.values()]
    types = np.repeat(np.arange(len(lengths)), lengths)
    ids = np.concatenate([np.empty(0, np.int64), *met.values()])
    places = np.concatenate([np.empty(0, np.int64), *(np.arange(n) for n in lengths)])
    sizes = np.array([row_bytes[kind] for kind in met], np.int64)[types]
    order = np.argsort(places, kind="stable")
    fits = order[np.cumsum(sizes[order]) <= max_bytes]
    return {kind: np.sort(ids[fits[types[fits] == number]]) for number, kind in enumerate(met)}
