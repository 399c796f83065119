"""DistFeature: rows that lie with their owners, read and written like rows that are here."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from hopline.partition.dist_graph import DistGraph
from hopline.partition.questions import Question
from hopline.pipes.checks import check_id_tensor
from hopline.pipes.features.buffers import empty
from hopline.pipes.features.feature import Feature
from hopline.pipes.features.rows import gather
from hopline.pipes.features.store import BasicFeatureStore

__all__ = ["DistFeature", "DistFeatureStore"]

Array = np.ndarray[Any, Any]
Key = tuple[str, str | None, str]

# What messages hold as the raw bits of an integer type.
RAW_BITS = {torch.bfloat16: torch.int16}


class DistFeature(Feature):
    """One feature of a partitioned data set; ids are new ids within the type.

    Args:
        graph: the parts.
        key: (domain, type, name); domain is "node" or "edge".

    Raises:
        KeyError: the parts have no such feature.
    """

    def __init__(self, graph: DistGraph, key: Key) -> None:
        self._graph, self._key = graph, key
        self._rows = {number: part.features[key] for number, part in graph.parts.items()}
        self._number = sorted(next(iter(graph.parts.values())).features, key=repr).index(key)

    @property
    def dtype(self) -> torch.dtype:
        """Of the rows."""
        return next(iter(self._rows.values())).dtype

    def size(self) -> torch.Size:
        """Shape of one row."""
        return next(iter(self._rows.values())).shape[1:]

    def count(self) -> int:
        """Number of rows, of all parts."""
        book, (domain, kind, _) = self._graph.book, self._key
        return book.num_nodes(kind) if domain == "node" else book.num_edges(kind)

    def read(self, ids: torch.Tensor | None = None) -> torch.Tensor:
        """Rows in the order of ids, which may repeat; all rows for None.

        Raises:
            IndexError: an id is out of range.
            RankError: a rank failed, has gone, or does not answer in time.
        """
        if ids is None:
            ids = torch.arange(self.count())
        owners, local = self._place(ids)
        ranks = self._graph.placing.ranks[owners]
        order = np.lexsort((owners, ranks))
        messages: dict[int, list[Array]] = {}
        for rank in np.unique(ranks).tolist():
            mine = order[np.searchsorted(ranks[order], rank) :][: int((ranks == rank).sum())]
            messages[rank] = [np.array([self._number]), owners[mine], local[mine]]
        answers = self._graph.exchange.ask(self._graph.kind(Question.READ), messages)
        out = empty((len(owners), *self.size()), self.dtype)
        if len(owners) and out.numel():
            rows = [torch.from_numpy(answers[rank][0]).view(self.dtype) for rank in sorted(answers)]
            inverse = np.empty_like(order)
            inverse[order] = np.arange(len(order))
            joined = rows[0] if len(rows) == 1 else torch.cat(rows)
            out = gather(joined.reshape(len(order), *self.size()), inverse)
        return out

    def update(self, value: torch.Tensor, ids: torch.Tensor | None = None) -> None:
        """Replaces rows where they lie, in the memory of every rank that has the part.

        It returns when all of them have the new rows; the files stay as they are. Where two ranks
        write one row at the same time, either may win.

        Raises:
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
        owners, local = self._place(ids)
        value = value.detach().cpu().to(self.dtype).contiguous()
        bits = value.view(RAW_BITS.get(self.dtype, self.dtype)).numpy()
        messages = {}
        for rank in range(self._graph.exchange.world_size):
            mine = np.flatnonzero(np.isin(owners, self._graph.placing.parts_of(rank)))
            if len(mine):
                messages[rank] = [np.array([self._number]), owners[mine], local[mine], bits[mine]]
        self._graph.exchange.ask(self._graph.kind(Question.UPDATE), messages)

    def metadata(self) -> dict[str, Any]:
        """What else is known of the feature."""
        return {}

    def _place(self, ids: torch.Tensor) -> tuple[Array, Array]:
        """(part of each id, position among the part's rows)."""
        check_id_tensor(ids, "ids", torch.int64)
        book, (domain, kind, _) = self._graph.book, self._key
        if domain == "node":
            return book.node_owner(ids, kind).numpy(), book.local_node_ids(ids, kind).numpy()
        return book.edge_owner(ids, kind).numpy(), book.local_edge_ids(ids, kind).numpy()

    def __repr__(self) -> str:
        return f"DistFeature({self._key}, {self.count()} rows of {list(self.size())})"


class DistFeatureStore(BasicFeatureStore):
    """All features of a partitioned data set.

    Args:
        graph: the parts.
    """

    def __init__(self, graph: DistGraph) -> None:
        keys = sorted(next(iter(graph.parts.values())).features, key=repr)
        super().__init__({key: DistFeature(graph, key) for key in keys})
        self._graph, self._keys_in_order = graph, keys
        graph.exchange.answer(graph.kind(Question.READ), self._answer_read)
        graph.exchange.answer(graph.kind(Question.UPDATE), self._answer_update)

    def _asked(self, message: list[Array]) -> list[tuple[torch.Tensor, Array, Array]]:
        """(rows of a part, places in the question, rows that are asked for), part by part."""
        number, owners, local = message[:3]
        key = self._keys_in_order[int(number[0])]
        asked = []
        for part in np.unique(owners).tolist():
            if part not in self._graph.parts:
                raise ValueError(f"part {part} is not here; here are {list(self._graph.parts)}")
            rows = self._graph.parts[part].features[key]
            places = np.flatnonzero(owners == part)
            ids = local[places]
            if not (ids.min() >= 0 and ids.max() < len(rows)):
                raise IndexError(f"rows {ids.min()} to {ids.max()} of {len(rows)} in part {part}")
            asked.append((rows, places, ids))
        return asked

    def _answer_read(self, rank: int, message: list[Array]) -> list[Array]:
        # A question comes part by part, so the answers of the parts are in its order.
        found = [gather(rows, ids) for rows, _, ids in self._asked(message)]
        joined = found[0] if len(found) == 1 else torch.cat(found)
        return [joined.view(RAW_BITS.get(joined.dtype, joined.dtype)).numpy()]

    def _answer_update(self, rank: int, message: list[Array]) -> list[Array]:
        for rows, places, ids in self._asked(message):
            rows[torch.from_numpy(ids)] = torch.from_numpy(message[3][places]).view(rows.dtype)
        return []
