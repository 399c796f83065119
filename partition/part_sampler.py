"""PartSampler: samples a part for whoever asks, by the draws of the whole graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from hopline.partition.batch_kernels import own_rows, take
from hopline.partition.part import Part
from hopline.pipes.features.buffers import empty_array
from hopline.pipes.graph import ORIGINAL_EDGE_ID
from hopline.pipes.hop import Hop, HopRule, sample_hop

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
        self._fused = torch.cat(fused).to(id_dtype).numpy()
        self._original = torch.cat(original).numpy()
        assert part.graph.edge_attributes is not None
        self._edge_ids = part.graph.edge_attributes[ORIGINAL_EDGE_ID].numpy()
        self._names: Array | None = None  # made when LABOR first asks for them
        self._halo: tuple[Array, Array] | None = None  # made when edges are first asked for
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

    def near(self, columns: Array) -> Array | None:
        """bool[n]: halo nodes that have all their in-edges here too; None where the part has none.

        Args:
            columns: integer[n], new fused ids.
        """
        if not len(self._near):
            return None
        at = np.minimum(np.searchsorted(self._near, columns), len(self._near) - 1)
        found: Array = self._near[at] == columns
        return found

    def rows(self, columns: Array) -> Array:
        """int64[n]: the rows of columns that the part has.

        Raises:
            IndexError: it has not.
        """
        rows = np.empty(len(columns), np.int64)
        if own_rows(columns, self._offsets, self._first, self._own, self._row_starts, rows):
            others = np.flatnonzero(rows < 0)
            near = self.near(columns[others])
            if near is None or not near.all():
                bad = columns[others[0 if near is None else np.argmin(near)]]
                raise IndexError(
                    f"part {self.part.number} has no node {bad} (new fused id); do all ranks have "
                    "the same partition?"
                )
            rows[others] = self._near_rows[np.searchsorted(self._near, columns[others])]
        return rows

    def sample(
        self, columns: Array, rule: HopRule, times: Array | None, earliest: Array | None
    ) -> Hop:
        """Draws in-edges of columns: neighbours by new fused ids, positions by new edge ids.

        Raises:
            IndexError: a column is not here.
            KeyError, ValueError: as `sample_hop`.
        """
        rows = self.rows(columns)
        keys = _taken(self._original, rows)
        names = None if rule.layer is None else self._source_names()
        hop = sample_hop(self.part.graph, rows, keys, rule, times, earliest, names)
        return Hop(
            hop.segments,
            hop.num_types,
            _taken(self._fused, hop.neighbors),
            _taken(self._edge_ids, hop.positions),
        )

    def has_edges(self, sources: Array, columns: Array, edge_type: int) -> Array:
        """bool[n]: whether there is an edge of a type from each source to its column.

        Args:
            sources: integer[n], new fused ids of any nodes.
            columns: integer[n], new fused ids.
            edge_type: its number.

        Raises:
            IndexError: a column is not here, or there is no such type.
        """
        kinds = self.part.book.edge_types
        if not 0 <= edge_type < len(kinds):
            raise IndexError(f"edge type {edge_type} is outside [0, {len(kinds)}): {kinds}")
        return self.part.graph.has_edges(self._source_rows(sources), self.rows(columns), edge_type)

    def node_times(self, name: str, kind: int) -> Array:
        """int64[own nodes]: an attribute of integers of the own nodes of a type.

        Args:
            name: of the attribute.
            kind: number of the node type.

        Raises:
            KeyError, TypeError, ValueError: as `attribute_array`.
        """
        low = int(self._row_starts[kind])
        return self.part.graph.node_times(name)[low : low + int(self._own[kind])]

    def _source_rows(self, nodes: Array) -> Array:
        """int64[n]: rows of nodes, of own ones and halo; -1 for nodes that have none."""
        kinds = np.searchsorted(self._offsets, nodes, side="right") - 1
        # What is no node of the graph is in no halo either.
        kinds = np.clip(kinds, 0, len(self._first) - 1)
        local = nodes.astype(np.int64) - self._first[kinds]
        rows = local + self._row_starts[kinds]
        other = np.flatnonzero((local < 0) | (local >= self._own[kinds]))
        rows[other] = -1
        halo, places = self._halo_rows()
        if len(halo) and len(other):
            at = np.minimum(np.searchsorted(halo, nodes[other]), len(halo) - 1)
            known = halo[at] == nodes[other]
            rows[other[known]] = places[at[known]]
        found: Array = rows
        return found

    def _halo_rows(self) -> tuple[Array, Array]:
        """(new fused ids of the halo, ascending; the row of each)."""
        if self._halo is None:
            ids, rows = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
            for t, kind in enumerate(self.part.book.node_types):
                halo = self.part.halo[kind].numpy() + int(self._offsets[t])
                ids.append(halo)
                rows.append(int(self._row_starts[t] + self._own[t]) + np.arange(len(halo)))
            self._halo = np.concatenate(ids), np.concatenate(rows)
        return self._halo

    def _source_names(self) -> Array:
        """integer[num_edges]: fused ids in the whole graph of the edges' sources."""
        if self._names is None:
            names = np.empty(self.part.graph.total_num_edges, self._fused.dtype)
            take(self._original, self.part.graph.indices.numpy(), names)
            self._names = names  # whole: several threads answer at once
        return self._names


def _taken(source: Array, places: Array) -> Array:
    """Values at places, in memory of the pool."""
    out = empty_array(len(places), source.dtype)
    take(source, places, out)
    return out
