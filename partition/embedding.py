"""DistEmbedding: a learnable row for each node of a type, in the memory of the parts' owners."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from hopline.partition.dist_graph import DistGraph
from hopline.partition.first_rows import Init, check_init, first_rows
from hopline.partition.meeting import Meeting
from hopline.partition.row_files import RowsByPart, load_rows, save_rows
from hopline.pipes.checks import check_count, check_id_tensor
from hopline.pipes.random import Purpose, fold

__all__ = ["DistEmbedding"]

Array = np.ndarray[Any, Any]
Kept = list[tuple[int, Array, torch.Tensor]]  # number of a call, its ids, its gradients

DTYPES = (torch.float32, torch.float64)


class _Fetched(torch.autograd.Function):
    """Rows whose gradient is kept, with the call's number and ids; by the anchor they have one."""

    @staticmethod
    def forward(
        ctx: Any, anchor: torch.Tensor, rows: torch.Tensor, kept: Kept, call: int, ids: Array
    ) -> torch.Tensor:
        ctx.kept = kept, call, ids
        return rows.view_as(rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, ...]:
        kept, call, ids = ctx.kept
        kept.append((call, ids, gradient))
        return (None,) * 5


class DistEmbedding:
    """A table of learnable rows, one for each node of a type; ids are new ids within the type.

    Of the ranks that share a part the first has its rows. `emb(ids)` fetches rows; gradients that
    `backward` leaves are kept until `SparseAdam` or `SparseAdagrad` brings them to the owners. Rows
    are those after the last step, so fetch them where you train, not in a loader that is ahead.

    At first a row depends on the seed and its node's id in the whole graph, not on the parts and
    ranks. Making an embedding is collective, as `save` and `load` are.

    Args:
        graph: the parts.
        node_type: a row for each of its nodes; None in a homogeneous graph.
        dim: values a row.
        init: "normal" (of deviation `scale`), "uniform" (from -scale to scale), "zeros", or a
            function that is given int64[n] ids in the whole graph and returns [n, dim].
        scale: see init.
        seed: of the first rows.
        dtype: float32 or float64.

    Raises:
        KeyError: there is no such node type.
        TypeError: init or dtype is of another kind.
        ValueError: dim is below 1, init unknown, or its rows are of another shape.

    Example::

        emb = DistEmbedding(graph, "user", 64)
        optimizer = SparseAdam([emb], lr=0.01)
        for minibatch in loader:
            loss = model(minibatch.blocks, emb(minibatch.input_nodes["user"]))
            loss.backward()
            optimizer.step()
    """

    def __init__(
        self,
        graph: DistGraph,
        node_type: str | None,
        dim: int,
        *,
        init: Init = "normal",
        scale: float = 1.0,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.num_rows = graph.book.num_nodes(node_type)
        self.node_type = node_type
        self.dim = check_count(dim, "dim", 1)
        check_count(seed, "seed")
        if dtype not in DTYPES:
            raise TypeError(f"dtype is {dtype!r}; expected torch.float32 or torch.float64")
        check_init(init)
        if isinstance(scale, bool) or not isinstance(scale, int | float):
            raise TypeError(f"scale is {scale!r}; expected a number")
        self.dtype = dtype
        self._graph = graph
        parts = np.arange(graph.book.num_parts)
        ranks = graph.exchange.world_size
        self._owners = parts * ranks // graph.book.num_parts  # rank that has each part's rows
        number = 0 if node_type is None else list(graph.book.node_types).index(node_type)
        key = fold(seed, Purpose.EMBEDDING, number)
        self.rows: RowsByPart = {}
        for part in parts[self._owners == graph.exchange.rank].tolist():
            found = graph.parts[part]
            kind = node_type or ""
            originals = found.original_nodes[kind][: found.num_own[kind]]
            self.rows[part] = first_rows(
                originals.to(torch.int64), self.dim, init, float(scale), key, dtype
            )
        self._gradients: Kept = []
        self._calls = itertools.count()
        self._anchor = torch.zeros((), device="cpu", requires_grad=True)
        self.meeting = Meeting(graph.exchange)
        self._kind = graph.exchange.claim(1)
        graph.exchange.answer(self._kind, self._answer_read)
        self.meeting.gather(0)  # nobody asks a rank that has no rows yet

    def __call__(self, ids: torch.Tensor, device: torch.device | str | None = None) -> torch.Tensor:
        """Rows to compute with; gradients come back to them.

        Args:
            ids: integer[n], which may repeat.
            device: where the rows are to be; None for where the ids are.

        Returns:
            [n, dim].

        Raises:
            IndexError: an id is out of range.
            RankError: a rank failed, has gone, or does not answer in time.
        """
        check_id_tensor(ids, "ids", torch.int64)
        unique, places = torch.unique(ids.detach().cpu().to(torch.int64), return_inverse=True)
        rows = self.read(unique)
        if torch.is_grad_enabled():
            kept = (self._gradients, next(self._calls), unique.numpy())
            rows = _Fetched.apply(self._anchor, rows, *kept)  # type: ignore[no-untyped-call]
        device = ids.device if device is None else torch.device(device)
        return F.embedding(places.to(device), rows.to(device))

    def read(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows as they are, apart from any gradient.

        Args:
            ids: integer[n], which may repeat.

        Returns:
            [n, dim], a copy on the CPU.

        Raises:
            IndexError: an id is out of range.
            RankError: a rank failed, has gone, or does not answer in time.
        """
        owners, local = self.places(ids)
        ranks = self._owners[owners]
        asked = {rank: np.flatnonzero(ranks == rank) for rank in np.unique(ranks).tolist()}
        answers = self._graph.exchange.ask(
            self._kind, {rank: [owners[mine], local[mine]] for rank, mine in asked.items()}
        )
        rows = torch.empty((len(owners), self.dim), dtype=self.dtype, device="cpu")
        for rank, mine in asked.items():
            rows[torch.from_numpy(mine)] = torch.from_numpy(answers[rank][0])
        return rows

    def places(self, ids: torch.Tensor) -> tuple[Array, Array]:
        """(int64[n] part of each id, int64[n] its row there)."""
        check_id_tensor(ids, "ids", torch.int64)
        book = self._graph.book
        return (
            book.node_owner(ids, self.node_type).numpy(),
            book.local_node_ids(ids.detach().cpu(), self.node_type).numpy(),
        )

    def owners(self, parts: Array) -> Array:
        """int64[n]: the rank that has each part's rows; it never falls as the part rises."""
        found: Array = self._owners[parts]
        return found

    def take_gradients(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """What all calls of `backward` since the last time have left, summed by row.

        Returns:
            (int64[n] ids, ascending; [n, dim] gradients), or None if there was no call.
        """
        taken = sorted(self._gradients, key=lambda entry: entry[0])
        self._gradients.clear()
        if not taken:
            return None
        ids = np.unique(np.concatenate([numbers for _, numbers, _ in taken]))
        total = torch.zeros((len(ids), self.dim), dtype=self.dtype, device="cpu")
        for _, numbers, gradient in taken:  # within one call no id repeats
            total[torch.from_numpy(np.searchsorted(ids, numbers))] += gradient
        return torch.from_numpy(ids), total

    def no_gradients(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Of no row, as `take_gradients`."""
        ids = torch.empty(0, dtype=torch.int64, device="cpu")
        return ids, torch.empty((0, self.dim), dtype=self.dtype, device="cpu")

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Saves all rows, a file a part; collective.

        Args:
            folder: where to; one for all ranks, or one on each machine.

        Raises:
            OSError: this rank could not write; what was saved there before is still whole.
            RankError: another rank could not write, or has gone.
        """
        save_rows(self.meeting, Path(folder), self.about(), {"rows": self.rows})

    def load(self, folder: str | os.PathLike[str]) -> None:
        """Loads all rows, saved by any number of ranks of the same parts; collective.

        Raises:
            FileNotFoundError: nothing was saved there.
            ValueError: it is of another embedding, or damaged. No row has changed then.
            RankError: another rank could not read, or has gone.
        """
        _, found = load_rows(self.meeting, Path(folder), self.about(), {"rows": self.rows})
        for part, rows in found["rows"].items():
            self.rows[part].copy_(rows)
        self.meeting.gather(0)  # nobody reads rows of before

    def about(self) -> dict[str, Any]:
        """What rows in files belong to."""
        return {
            "partition_id": self._graph.manifest.partition_id,
            "node_type": self.node_type or "",
            "dim": self.dim,
            "dtype": str(self.dtype).removeprefix("torch."),
        }

    def _answer_read(self, rank: int, message: list[Array]) -> list[Array]:
        owners, local = message
        rows = torch.empty((len(owners), self.dim), dtype=self.dtype, device="cpu")
        for part in np.unique(owners).tolist():
            if part not in self.rows:
                raise ValueError(f"rows of part {part} are not here; here are {list(self.rows)}")
            mine = np.flatnonzero(owners == part)
            rows[torch.from_numpy(mine)] = self.rows[part][torch.from_numpy(local[mine])]
        return [rows.numpy()]

    def __repr__(self) -> str:
        return f"DistEmbedding({self.node_type!r}, {self.num_rows} rows of {self.dim})"
