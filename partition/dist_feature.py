"""DistFeature: rows that lie with their owners, read and written like rows that are here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from hopline.partition.batch_kernels import find_parts
from hopline.partition.dist_graph import DistGraph
from hopline.partition.hot_rows import hottest_that_fit
from hopline.partition.questions import Question
from hopline.partition.row_reads import RAW_BITS, RowReads
from hopline.pipes.checks import check_count, check_id_tensor
from hopline.pipes.features.feature import Feature
from hopline.pipes.features.hot_set import hot_set_by_presampling
from hopline.pipes.features.store import BasicFeatureStore
from hopline.pipes.stage import Chain

__all__ = ["DistFeature", "DistFeatureStore"]

Array = np.ndarray[Any, Any]
Key = tuple[str, str | None, str]


class DistFeature(Feature):
    """One feature of a partitioned data set; ids are new ids within the type.

    Args:
        graph: the parts.
        key: (domain, type, name); domain is "node" or "edge".
        number: of the feature, the same on all ranks.
        reads: what reads rows.

    Raises:
        KeyError: the parts have no such feature.
    """

    def __init__(self, graph: DistGraph, key: Key, number: int, reads: RowReads) -> None:
        self._graph, self.key, self._number, self._reads = graph, key, number, reads
        self._rows = {number: part.features[key] for number, part in graph.parts.items()}

    @property
    def dtype(self) -> torch.dtype:
        """Of the rows."""
        return next(iter(self._rows.values())).dtype

    def size(self) -> torch.Size:
        """Shape of one row."""
        return next(iter(self._rows.values())).shape[1:]

    def count(self) -> int:
        """Number of rows, of all parts."""
        book, (domain, kind, _) = self._graph.book, self.key
        return book.num_nodes(kind) if domain == "node" else book.num_edges(kind)

    def read(self, ids: torch.Tensor | None = None) -> torch.Tensor:
        """Rows in the order of ids, which may repeat; all rows for None.

        Raises:
            IndexError: an id is out of range.
            RankError: a rank failed, has gone, or does not answer in time.
        """
        if ids is None:
            ids = torch.arange(self.count())
        return self._reads.read([(self.key, ids)])[0]

    def update(self, value: torch.Tensor, ids: torch.Tensor | None = None) -> None:
        """Replaces rows where they lie, in the memory of every rank that has the part.

        It returns when all of them have the new rows; the files stay as they are. Where two ranks
        write one row at the same time, either may win.

        Args:
            value: [n, *size], of a dtype that torch casts to the feature's.
            ids: integer[n] new ids within the type; None for all rows.

        Raises:
            TypeError: value is no tensor.
            ValueError: the shapes do not fit.
            IndexError: an id is out of range.
            RankError: a rank failed, has gone, or does not answer in time.
        """
        if ids is None:
            ids = torch.arange(self.count())
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"value is a {type(value).__name__}; expected a torch.Tensor")
        if tuple(value.shape) != (len(ids), *self.size()):
            raise ValueError(
                f"value has shape {tuple(value.shape)}; expected {(len(ids), *self.size())}"
            )
        check_id_tensor(ids, "ids", torch.int64)
        array = ids.detach().cpu().to(torch.int64).numpy()
        value = value.detach().cpu().to(self.dtype).contiguous()
        bits = value.view(RAW_BITS.get(self.dtype, self.dtype)).numpy()
        exchange, kind = self._graph.exchange, self._graph.kind(Question.UPDATE)
        number = np.array([self._number], np.int64)
        # Who has none of the parts may keep copies.
        keeping = exchange.ask(kind, {rank: [number] for rank in range(exchange.world_size)})
        owners = self._parts(array)
        messages = {}
        for rank, kept in keeping.items():
            mine = np.isin(owners, self._graph.placing.parts_of(rank)) | bool(kept[0][0])
            if mine.any():
                messages[rank] = [number, array[mine], bits[mine]]
        exchange.ask(kind, messages)

    def write_here(self, ids: Array, bits: Array) -> None:
        """Replaces those of some rows that are here, and copies of them.

        Args:
            ids: int64[n], new ids within the type.
            bits: n rows, or their bits as integers.

        Raises:
            IndexError: an id is out of range.
        """
        parts = self._parts(ids)
        starts = self._graph.book.starts(*self.key[:2])
        for part, rows in self._rows.items():
            mine = np.flatnonzero(parts == part)
            local = torch.from_numpy(ids[mine] - starts[part])
            rows[local] = torch.from_numpy(bits[mine]).view(rows.dtype)
        self._reads.renew(self.key, ids, torch.from_numpy(bits))

    def metadata(self) -> dict[str, Any]:
        """What else is known of the feature."""
        return {}

    def _parts(self, ids: Array) -> Array:
        """int64[n]: the part that has each row."""
        domain, kind, _ = self.key
        starts = self._graph.book.starts(domain, kind)
        parts = np.empty(len(ids), np.int64)
        bad = find_parts(ids, starts, self._graph.book.num_parts, parts)
        if bad >= 0:
            raise IndexError(f"{domain} id {ids[bad]} at {bad} is outside [0, {starts[-1]})")
        return parts

    def __repr__(self) -> str:
        return f"DistFeature({self.key}, {self.count()} rows of {list(self.size())})"


class DistFeatureStore(BasicFeatureStore):
    """All features of a partitioned data set.

    Args:
        graph: the parts.
    """

    def __init__(self, graph: DistGraph) -> None:
        keys = sorted(next(iter(graph.parts.values())).features, key=repr)
        self._graph, self._reads = graph, RowReads(graph, keys)
        self._own = [DistFeature(graph, key, n, self._reads) for n, key in enumerate(keys)]
        super().__init__({feature.key: feature for feature in self._own})
        graph.exchange.answer(graph.kind(Question.UPDATE), self._answer_update)

    def read_many(
        self, requests: Sequence[tuple[tuple[str, str | None, str], torch.Tensor]]
    ) -> list[torch.Tensor]:
        """Rows for each request; those of parts come with one question to each owner.

        Args:
            requests: (key, integer[n] new ids within its type).

        Raises:
            KeyError: there is no such feature.
            IndexError: an id is out of range.
            RankError: a rank failed, has gone, or does not answer in time.
        """
        # Another feature may have been put in the place of one, such as a cached one.
        plain = [getattr(self[key], "_reads", None) is self._reads for key, _ in requests]
        asked = [request for request, mine in zip(requests, plain, strict=True) if mine]
        rows = iter(self._reads.read(asked))
        return [
            next(rows) if mine else self[key].read(ids)
            for (key, ids), mine in zip(requests, plain, strict=True)
        ]

    def cache_hot_rows(
        self,
        chain: Chain,
        max_bytes: int,
        *,
        batches: int = 20,
        keys: Sequence[tuple[str, str | None, str]] | None = None,
    ) -> int:
        """Keeps copies of the rows of other ranks that mini-batches read most.

        Rows of nodes are read from them from now on, and `update` reaches them. No row is read
        otherwise than before: only the time that it takes changes. Not while another rank updates
        rows; a second call replaces the copies.

        Args:
            chain: samples; give the part before `fetch_feature`. Its first mini-batches are
                counted, see `hot_set_by_presampling`.
            max_bytes: of copies at most. With several node types, the most read of each come
                first, then the second of each.
            batches: how many mini-batches to count.
            keys: of the node features to copy; None for all.

        Returns:
            Nodes whose rows are kept.

        Raises:
            KeyError: there is no such feature.
            RankError: a rank failed, has gone, or does not answer in time.
            TypeError, ValueError: an argument of wrong kind or value.
        """
        max_bytes = check_count(max_bytes, "max_bytes")
        features = self._own if keys is None else [self._plain(key) for key in keys]
        by_type: dict[str | None, list[DistFeature]] = {}
        for feature in features:
            domain, kind, _ = feature.key
            if domain == "node":
                by_type.setdefault(kind, []).append(feature)
        met = hot_set_by_presampling(chain, self._graph.total_num_nodes, batches)
        away = {
            kind: self._away(kind, ids.numpy())
            for kind, ids in ({None: met} if isinstance(met, torch.Tensor) else met).items()
            if kind in by_type
        }
        row_bytes = {
            kind: sum(feature.size().numel() * feature.dtype.itemsize for feature in by_type[kind])
            for kind in away
        }
        hottest = hottest_that_fit(away, row_bytes, max_bytes)
        for kind, mine in by_type.items():
            ids = hottest.get(kind, np.empty(0, np.int64))
            self._reads.keep("node", kind, ids, [feature.key for feature in mine])
        return sum(len(ids) for ids in hottest.values())

    def _away(self, kind: str | None, ids: Array) -> Array:
        """Those of some nodes that other ranks have."""
        here = np.zeros(len(ids), bool)
        for part in self._graph.parts:
            own = self._graph.book.node_range(part, kind)
            here |= (ids >= own.start) & (ids < own.stop)
        return ids[~here]

    def _plain(self, key: tuple[str, str | None, str]) -> DistFeature:
        feature = self[key]
        if not isinstance(feature, DistFeature):
            raise TypeError(
                f"feature {tuple(key)} is a {type(feature).__name__}; expected one of the parts"
            )
        return feature

    def _answer_update(self, rank: int, message: list[Array]) -> list[Array]:
        feature = self._own[int(message[0][0])]
        if len(message) == 1:
            return [np.array([self._reads.keeps(feature.key)])]
        _, ids, bits = message
        feature.write_here(ids, bits)
        return []
