"""PartSampler: samples a part for whoever asks, by the draws of the whole graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from hopline.partition.part import Part
from hopline.pipes.features.rows import gather
from hopline.pipes.graph import ORIGINAL_EDGE_ID
from hopline.pipes.hop import Hop, HopRule, sample_hop
from hopline.pipes.kernels import cpu

__all__ = ["PartSampler"]

Array = np.ndarray[Any, Any]


class PartSampler:
    """One part, asked by new fused ids.

    Args:
        part: the part.
        offsets: int64[num_node_types + 1], first new fused id of each type.
        id_dtype: of fused ids.
        num_hops: hops of halo that the part was cut with.
    """

    def __init__(self, part: Part, offsets: Array, id_dtype: torch.dtype, num_hops: int) -> None:
        self.part = part
        kinds = part.book.node_types
        # Rows begin, of each type, with the own nodes, then the halo.
        own = [part.num_own[kind] for kind in kinds]
        halo = [len(part.halo[kind]) for kind in kinds]
        self._row_starts = np.concatenate([[0], np.cumsum(np.add(own, halo))])[:-1]
        self._first = np.array(
            [low + part.book.node_range(part.number, kind).start
             for kind, low in zip(kinds, offsets.tolist(), strict=False)], np.int64
        )  # fmt: skip
        self._own = np.array(own, np.int64)
        self._offsets = offsets
        fused, original = [], []
        for t, kind in enumerate(kinds):
            first = int(self._first[t])
            fused += [torch.arange(first, first + own[t]), part.halo[kind] + int(offsets[t])]
            original.append(part.original_nodes[kind] + int(offsets[t]))
        # By row: new fused ids, and fused ids in the whole graph, which key the draws.
        self._fused = torch.cat(fused).to(id_dtype)
        self.original = torch.cat(original)
        self._names: Array | None = None  # made when LABOR first asks for them
        # Halo nodes that have their in-edges here too, by new fused ids, ascending.
        complete = [part.halo_hops[kind] < num_hops for kind in kinds]
        self._near = np.concatenate(
            [(part.halo[kind][near] + int(low)).numpy()
             for kind, near, low in zip(kinds, complete, offsets.tolist(), strict=False)]
        )  # fmt: skip
        self._near_rows = np.concatenate(
            [start + count + np.flatnonzero(near.numpy())
             for start, count, near in zip(self._row_starts, own, complete, strict=True)]
        ).astype(np.int64)  # fmt: skip

    def has(self, columns: Array) -> Array:
        """bool[n]: whether the part has all in-edges of each column, itself or in its halo.

        Args:
            columns: integer[n], new fused ids.
        """
        kinds = np.searchsorted(self._offsets, columns, side="right") - 1
        local = columns - self._first[kinds]
        mine = (local >= 0) & (local < self._own[kinds])
        if len(self._near):
            at = np.minimum(np.searchsorted(self._near, columns), len(self._near) - 1)
            mine |= self._near[at] == columns
        found: Array = mine
        return found

    def rows(self, columns: Array) -> Array:
        """int64[n]: the rows of columns that the part has.

        Raises:
            IndexError: it has not.
        """
        bad = int(cpu.first_out_of_range(columns, 0, int(self._offsets[-1])))
        if bad < 0:
            missing = np.flatnonzero(~self.has(columns))
            bad = int(missing[0]) if len(missing) else -1
        if bad >= 0:
            raise IndexError(
                f"part {self.part.number} has no node {columns[bad]} (new fused id); do all ranks "
                "have the same partition?"
            )
        kinds = np.searchsorted(self._offsets, columns, side="right") - 1
        local = columns.astype(np.int64) - self._first[kinds]
        rows = local + self._row_starts[kinds]
        other = np.flatnonzero((local < 0) | (local >= self._own[kinds]))
        if len(other):
            rows[other] = self._near_rows[np.searchsorted(self._near, columns[other])]
        found: Array = rows
        return found

    def sample(
        self, columns: Array, rule: HopRule, times: Array | None, earliest: Array | None
    ) -> Hop:
        """Draws in-edges of columns: neighbours by new fused ids, positions by new edge ids.

        Raises:
            IndexError: a column is not here.
            KeyError, ValueError: as `sample_hop`.
        """
        rows = self.rows(columns)
        keys = gather(self.original, rows).numpy()
        names = None if rule.layer is None else self._source_names()
        hop = sample_hop(self.part.graph, rows, keys, rule, times, earliest, names)
        assert self.part.graph.edge_attributes is not None
        ids = self.part.graph.edge_attributes[ORIGINAL_EDGE_ID]
        return Hop(
            hop.segments,
            hop.num_types,
            gather(self._fused, hop.neighbors).numpy(),
            gather(ids, hop.positions).numpy(),
        )

    def _source_names(self) -> Array:
        """integer[num_edges]: fused ids in the whole graph of the edges' sources."""
        if self._names is None:
            names = gather(self.original, self.part.graph.indices.numpy())
            self._names = names.to(self._fused.dtype).numpy()
        return self._names
