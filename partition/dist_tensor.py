"""DistTensor: a new row for each node or edge, at the parts' owners, for all ranks."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hopline.partition.dist_graph import DistGraph
from hopline.partition.first_rows import Init, check_init, first_rows
from hopline.partition.meeting import Meeting
from hopline.partition.row_files import RowsByPart, load_rows, save_rows
from hopline.pipes.checks import check_count, check_id_tensor
from hopline.pipes.features.feature import Feature
from hopline.pipes.random import Purpose, fold

__all__ = ["DistTensor"]

Array = np.ndarray[Any, Any]

READ, WRITE = 0, 1  # kinds of questions, from the first that is claimed
MOST_DIMENSIONS = 8
# What messages and files hold as the raw bits of an integer type.
RAW_BITS = {torch.bfloat16: torch.int16, torch.bool: torch.uint8}
DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool,
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
)  # fmt: skip


class DistTensor(Feature):
    """Rows for the nodes of a type, or the edges; any rank reads and writes them by new ids.

    Of the ranks that share a part the first has its rows; files have none but those of `save`. It
    is a feature: as `dataset.feature["node", "user", "hidden"] = DistTensor(...)` it is fetched
    with the others. Making one is collective, as `save` and `load` are: all ranks make the same, in
    the same order.

    At first a row depends on the seed and the id in the whole graph, not on the parts and ranks.

    Args:
        graph: the parts.
        type_name: a row for each of its nodes, or edges; None in a homogeneous graph.
        size: shape of a row; () for one value.
        dtype: float, integer or bool.
        domain: "node" or "edge".
        init: "zeros", "normal" (of deviation `scale`) or "uniform" (from -scale to scale), which
            need a float dtype, or a function that is given int64[n] ids in the whole graph and
            returns [n, *size].
        scale: see init.
        seed: of the first rows.

    Raises:
        KeyError: there is no such type.
        TypeError: an argument is of another kind.
        ValueError: size, domain or init is out of range, or its rows are of another shape; or ranks
            make different ones, which all of them raise.

    Example::

        hidden = DistTensor(graph, "user", 16)
        hidden[ids] = rows          # at their owners when this returns
        hidden[other_ids]           # on any rank
    """

    def __init__(
        self,
        graph: DistGraph,
        type_name: str | None,
        size: int | Sequence[int] = (),
        dtype: torch.dtype = torch.float32,
        *,
        domain: str = "node",
        init: Init = "zeros",
        scale: float = 1.0,
        seed: int = 0,
    ) -> None:
        if not isinstance(graph, DistGraph):
            raise TypeError(f"graph is {graph!r:.80}; expected a DistGraph, e.g. dataset.graph")
        if domain not in ("node", "edge"):
            raise ValueError(f"domain is {domain!r}; expected 'node' or 'edge'")
        if dtype not in DTYPES:
            raise TypeError(f"dtype is {dtype!r}; expected one of {DTYPES}")
        self._size = _checked_size(size)
        seed = check_count(seed, "seed")
        check_init(init)
        if init in ("normal", "uniform") and not dtype.is_floating_point:
            raise TypeError(f"init is {init!r}, of {dtype}; expected a float dtype, or 'zeros'")
        if isinstance(scale, bool) or not isinstance(scale, int | float):
            raise TypeError(f"scale is {scale!r}; expected a number")
        book = graph.book
        self.dtype = dtype
        self._graph, self._type, self._domain = graph, type_name, domain
        self._count = book.num_nodes(type_name) if domain == "node" else book.num_edges(type_name)
        parts = np.arange(book.num_parts)
        ranks = graph.exchange.world_size
        self._owners = parts * ranks // book.num_parts  # rank that has each part's rows
        kinds = [*book.node_types, *book.edge_types]
        number = 0
        if type_name is not None:
            number = kinds.index(type_name, 0 if domain == "node" else len(book.node_types))
        elif domain == "edge":
            number = len(book.node_types)
        self.meeting = Meeting(graph.exchange)
        self.meeting.agree("tables", self._depends_on(init, float(scale), seed))
        key = fold(seed, Purpose.EMBEDDING, number)
        self.rows: RowsByPart = {}
        for part in parts[self._owners == graph.exchange.rank].tolist():
            originals = self._originals(part).to(torch.int64)
            self.rows[part] = first_rows(originals, self._size, init, float(scale), key, dtype)
        self.number = graph.exchange.claim(2)  # of its questions, and the same on all ranks
        graph.exchange.answer(self.number + READ, self._answer_read)
        graph.exchange.answer(self.number + WRITE, self._answer_write)
        self.meeting.gather(0)  # nobody asks a rank that has no rows yet

    def _originals(self, part: int) -> torch.Tensor:
        """Ids in the whole graph of the nodes or edges that a part owns."""
        found, kind = self._graph.parts[part], self._type or ""
        if self._domain == "edge":
            return found.original_edges[kind]
        return found.original_nodes[kind][: found.num_own[kind]]

    def size(self) -> torch.Size:
        """Shape of one row."""
        return torch.Size(self._size)

    def count(self) -> int:
        """Number of rows, of all parts."""
        return self._count

    def read(self, ids: torch.Tensor | None = None) -> torch.Tensor:
        """Rows as they are.

        Args:
            ids: integer[n], which may repeat; None for all rows.

        Returns:
            [n, *size], a copy on the CPU.

        Raises:
            IndexError: an id is out of range.
            RankError: a rank failed, has gone, or does not answer in time.
        """
        owners, local = self.places(torch.arange(self._count) if ids is None else ids)
        asked = self._by_rank(owners)
        answers = self._graph.exchange.ask(
            self.number + READ, {rank: [owners[mine], local[mine]] for rank, mine in asked.items()}
        )
        rows = torch.empty((len(owners), *self._size), dtype=self.dtype, device="cpu")
        for rank, mine in asked.items():
            rows[torch.from_numpy(mine)] = torch.from_numpy(answers[rank][0]).view(self.dtype)
        return rows

    def update(self, value: torch.Tensor, ids: torch.Tensor | None = None) -> None:
        """Replaces rows at their owners, which have the new ones when it returns.

        Where an id repeats, or two ranks write one row at the same time, either may win.

        Args:
            value: [n, *size], of a dtype that torch casts to this one's.
            ids: integer[n]; None for all rows.

        Raises:
            TypeError: value is no tensor.
            ValueError: the shapes do not fit.
            IndexError: an id is out of range.
            RankError: a rank failed, has gone, or does not answer in time.
        """
        owners, local = self.places(torch.arange(self._count) if ids is None else ids)
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"value is a {type(value).__name__}; expected a torch.Tensor")
        if tuple(value.shape) != (len(owners), *self._size):
            raise ValueError(
                f"value has shape {tuple(value.shape)}; expected {(len(owners), *self._size)}"
            )
        bits = _bits(value.detach().cpu().to(self.dtype).contiguous())
        self._graph.exchange.ask(
            self.number + WRITE,
            {
                rank: [owners[mine], local[mine], bits[mine]]
                for rank, mine in self._by_rank(owners).items()
            },
        )

    def __getitem__(self, ids: torch.Tensor) -> torch.Tensor:
        """As `read`."""
        check_id_tensor(ids, "ids", torch.int64)
        return self.read(ids)

    def __setitem__(self, ids: torch.Tensor, value: torch.Tensor) -> None:
        """As `update`."""
        check_id_tensor(ids, "ids", torch.int64)
        self.update(value, ids)

    def places(self, ids: torch.Tensor) -> tuple[Array, Array]:
        """(int64[n] part of each id, int64[n] its row there)."""
        check_id_tensor(ids, "ids", torch.int64)
        book, ids = self._graph.book, ids.detach().cpu()
        if self._domain == "edge":
            found = book.edge_owner(ids, self._type), book.local_edge_ids(ids, self._type)
        else:
            found = book.node_owner(ids, self._type), book.local_node_ids(ids, self._type)
        return found[0].numpy(), found[1].numpy()

    def owners(self, parts: Array) -> Array:
        """int64[n]: the rank that has each part's rows; it never falls as the part rises."""
        found: Array = self._owners[parts]
        return found

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Saves all rows, a file a part; collective.

        Args:
            folder: where to; one for all ranks, or one on each machine.

        Raises:
            OSError: this rank could not write; what was saved there before is still whole.
            RankError: another rank could not write, or has gone.
        """
        save_rows(self.meeting, Path(folder), self.about(), {"rows": self._stored()})

    def load(self, folder: str | os.PathLike[str]) -> None:
        """Loads all rows, saved by any number of ranks of the same parts; collective.

        Raises:
            FileNotFoundError: nothing was saved there.
            ValueError: they are of something else, or damaged. No row has changed then.
            RankError: another rank could not read, or has gone.
        """
        stored = self._stored()
        _, found = load_rows(self.meeting, Path(folder), self.about(), {"rows": stored})
        for part, rows in found["rows"].items():
            stored[part].copy_(rows)
        self.meeting.gather(0)  # nobody reads rows of before

    def _stored(self) -> RowsByPart:
        """The rows, as files hold them, in the same memory."""
        return {p: r.view(RAW_BITS.get(self.dtype, self.dtype)) for p, r in self.rows.items()}

    def about(self) -> dict[str, Any]:
        """What rows in files belong to."""
        return {
            "partition_id": self._graph.manifest.partition_id,
            "domain": self._domain,
            "type": self._type or "",
            "size": list(self._size),
            "dtype": str(self.dtype).removeprefix("torch."),
        }

    def _depends_on(self, init: Init, scale: float, seed: int) -> dict[str, Any]:
        """What the rows and their first values depend on."""
        values = {"class": type(self).__name__, **self.about()}
        if not isinstance(init, str):
            return values | {"init": "a function"}
        drawn = {} if init == "zeros" else {"scale": scale, "seed": seed}
        return values | {"init": init} | drawn

    def _by_rank(self, owners: Array) -> dict[int, Array]:
        """Places in a question, by who is asked."""
        ranks = self._owners[owners]
        return {rank: np.flatnonzero(ranks == rank) for rank in np.unique(ranks).tolist()}

    def _asked(self, message: list[Array]) -> list[tuple[torch.Tensor, Array, torch.Tensor]]:
        """(rows of a part, places in the question, rows that are asked for), part by part."""
        owners, local = message[:2]
        asked = []
        for part in np.unique(owners).tolist():
            if part not in self.rows:
                raise ValueError(f"rows of part {part} are not here; here are {list(self.rows)}")
            places = np.flatnonzero(owners == part)
            asked.append((self.rows[part], places, torch.from_numpy(local[places])))
        return asked

    def _answer_read(self, rank: int, message: list[Array]) -> list[Array]:
        rows = torch.empty((len(message[0]), *self._size), dtype=self.dtype, device="cpu")
        for mine, places, local in self._asked(message):
            rows[torch.from_numpy(places)] = mine[local]
        return [_bits(rows)]

    def _answer_write(self, rank: int, message: list[Array]) -> list[Array]:
        for mine, places, local in self._asked(message):
            mine[local] = torch.from_numpy(message[2][places]).view(self.dtype)
        return []

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self._type!r}, {self._count} rows of {list(self._size)}, "
            f"{self.dtype})"
        )


def _checked_size(size: Any) -> tuple[int, ...]:
    if isinstance(size, int | np.integer) and not isinstance(size, bool):
        size = (size,)
    if not isinstance(size, tuple | list) or len(size) > MOST_DIMENSIONS:
        raise TypeError(f"size is {size!r:.80}; expected an int, or up to 8 of them, e.g. (4, 16)")
    checked = tuple(check_count(each, "size", 1) for each in size)
    if math.prod(checked) >= 1 << 40:
        raise ValueError(f"size is {checked}; expected fewer than 2**40 values a row")
    return checked


def _bits(rows: torch.Tensor) -> Array:
    found: Array = rows.view(RAW_BITS.get(rows.dtype, rows.dtype)).numpy()
    return found
