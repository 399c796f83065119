"""DistEmbedding: a learnable row for each node of a type, in the memory of the parts' owners."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from hopline.partition.dist_graph import DistGraph
from hopline.partition.dist_tensor import DistTensor
from hopline.partition.first_rows import Init
from hopline.pipes.checks import check_count, check_id_tensor

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


class DistEmbedding(DistTensor):
    """A table of learnable rows, one for each node of a type; ids are new ids within the type.

    It is a DistTensor whose rows are learnt. `emb(ids)` fetches rows; gradients that
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
        ValueError: dim is below 1, init unknown, or its rows are of another shape; or ranks make
            different ones, which all of them raise.

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
        self.node_type = node_type
        self.dim = check_count(dim, "dim", 1)
        if dtype not in DTYPES:
            raise TypeError(f"dtype is {dtype!r}; expected torch.float32 or torch.float64")
        self._gradients: Kept = []
        self._calls = itertools.count()
        self._anchor = torch.zeros((), device="cpu", requires_grad=True)
        super().__init__(graph, node_type, self.dim, dtype, init=init, scale=scale, seed=seed)
        self.num_rows = self.count()

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

    def about(self) -> dict[str, Any]:
        """What rows in files belong to."""
        return {
            "partition_id": self._graph.manifest.partition_id,
            "node_type": self.node_type or "",
            "dim": self.dim,
            "dtype": str(self.dtype).removeprefix("torch."),
        }

    def __repr__(self) -> str:
        return f"DistEmbedding({self.node_type!r}, {self.num_rows} rows of {self.dim})"
