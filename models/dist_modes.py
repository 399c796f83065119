"""Two other ways to a product over ranks: every row to every rank, and columns instead of rows."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from hopline.models.aggregate import sum_aggregate
from hopline.models.halo_plan import HaloPlan
from hopline.models.kept_block import KeptBlock
from hopline.models.normalised_product import Factors, normalised_product
from hopline.models.tensor_columns import columns_of_rank

__all__ = ["BroadcastSum", "ColumnSum", "rows_sent"]

Count = Callable[[int], None]


def rows_sent(plan: HaloPlan) -> dict[str, float]:
    """Rows of full width that all ranks together send for one product, by each way; collective.

    Args:
        plan: of the ranks.

    Returns:
        "halo": a row for each rank that needs it; "broadcast": every row to every other rank;
        "columns": all rows but the own columns, there and back.
    """
    halo = torch.tensor([len(plan.halo)], dtype=torch.int64, device=plan.device)
    if plan.group is not None:
        dist.all_reduce(halo, group=plan.group)
    others = plan.world_size - 1
    return {
        "halo": float(halo.item()),
        "broadcast": float(plan.num_nodes * others),
        "columns": 2.0 * plan.num_nodes * others / plan.world_size,
    }


class _AllRows(torch.autograd.Function):
    """Rows of all ranks; backward, each rank gets the sum of what all have for its rows."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, starts: list[int], plan: HaloPlan, count: Count
    ) -> torch.Tensor:
        ctx.own = slice(starts[plan.rank], starts[plan.rank + 1])
        ctx.plan, ctx.count = plan, count
        if plan.group is None:
            return x.clone()
        sizes = [b - a for a, b in pairwise(starts)]
        padded = x.new_zeros((max(sizes), *x.shape[1:]))
        padded[: len(x)] = x
        found = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(found, padded, group=plan.group)
        count(x.numel() * x.element_size() * (plan.world_size - 1))
        return torch.cat([rows[:size] for rows, size in zip(found, sizes, strict=True)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        plan, total = ctx.plan, grads[0].contiguous().clone()
        own = total[ctx.own]
        if plan.group is not None:
            dist.all_reduce(total, group=plan.group)
            ctx.count((total.numel() - own.numel()) * total.element_size())
        return own, None, None, None


def kept_sum(block: KeptBlock, x: torch.Tensor) -> torch.Tensor:
    """Sums of in-neighbours' rows, with gradients."""
    return normalised_product(x, block, Factors(None, None), False)


class BroadcastSum:
    """Sums in-neighbours' rows after every rank has got every row.

    Args:
        plan: the rank's nodes and edges.
        count: told how many bytes go to other ranks, each time.
    """

    def __init__(self, plan: HaloPlan, count: Count) -> None:
        self.plan, self.count = plan, count
        known = torch.cat([torch.arange(plan.own.start, plan.own.stop), plan.halo])
        sources = known.to(plan.device)[plan.block.indices.long()].to(plan.block.indices.dtype)
        self.block = KeptBlock(plan.block.indptr, sources, plan.num_nodes, len(plan.own))

    def __call__(self, rows: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        """float[own, width] of the ranks' float[own, width], and of own edges' weights."""
        plan = self.plan
        every = _AllRows.apply(  # type: ignore[no-untyped-call]
            rows, plan.rank_starts, plan, self.count
        )
        return (
            kept_sum(self.block, every)
            if weight is None
            else sum_aggregate(self.block, every, weight)
        )


class _Swap(torch.autograd.Function):
    """Own rows of all columns to all rows of own columns, or back; each is the other's gradient."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, width: int, to_columns: bool, plan: HaloPlan, count: Count
    ) -> torch.Tensor:
        ctx.rest = width, not to_columns, plan, count
        return _swapped(x, width, to_columns, plan, count)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None, None, None]:
        return _swapped(grads[0], *ctx.rest), None, None, None, None


def _swapped(
    x: torch.Tensor, width: int, to_columns: bool, plan: HaloPlan, count: Count
) -> torch.Tensor:
    ranks = range(plan.world_size)
    columns = [columns_of_rank(width, rank, plan.world_size) for rank in ranks]
    rows = [slice(plan.rank_starts[rank], plan.rank_starts[rank + 1]) for rank in ranks]
    mine, own = columns[plan.rank], len(plan.own)
    if plan.group is None:
        return x.clone()
    if to_columns:
        outgoing = [x[:, part] for part in columns]
        shapes = [(part.stop - part.start, mine.stop - mine.start) for part in rows]
    else:
        outgoing = [x[part] for part in rows]
        shapes = [(own, part.stop - part.start) for part in columns]
    sent = torch.cat([part.reshape(-1) for part in outgoing])
    sizes = [a * b for a, b in shapes]
    received = sent.new_empty(sum(sizes))
    lengths = [part.numel() for part in outgoing]
    dist.all_to_all_single(received, sent, sizes, lengths, group=plan.group)
    count((sent.numel() - lengths[plan.rank]) * sent.element_size())
    bounds = [0, *accumulate(sizes)]
    pieces = [
        received[low : low + a * b].view(a, b) for low, (a, b) in zip(bounds, shapes, strict=False)
    ]
    return torch.cat(pieces, 0 if to_columns else 1)


class ColumnSum:
    """Sums in-neighbours' rows in a rank's own columns, over all nodes; making one is collective.

    Every rank gets the whole structure, so the work is the same on all.

    Args:
        plan: the rank's nodes and edges.
        count: told how many bytes go to other ranks, each time.
    """

    def __init__(self, plan: HaloPlan, count: Count) -> None:
        self.plan, self.count = plan, count
        sources = BroadcastSum(plan, count).block.indices
        degrees, edges = plan.in_degrees, [sources]
        if plan.group is not None:
            degrees = _gathered(degrees, plan)
            edges = [_gathered(sources, plan)]
        indptr = torch.cat([degrees.new_zeros(1), degrees.cumsum(0)])
        self.block = KeptBlock(indptr, edges[0], plan.num_nodes, plan.num_nodes)
        self._edge_starts = indptr[plan.rank_starts].tolist()

    def __call__(self, rows: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        """float[own, width] of the ranks' float[own, width], and of own edges' weights."""
        width = rows.shape[1]
        mine = _Swap.apply(rows, width, True, self.plan, self.count)  # type: ignore[no-untyped-call]
        if weight is None:
            total = kept_sum(self.block, mine)
        else:
            every = _AllRows.apply(  # type: ignore[no-untyped-call]
                weight, self._edge_starts, self.plan, self.count
            )
            total = sum_aggregate(self.block, mine, every)
        back: torch.Tensor = _Swap.apply(  # type: ignore[no-untyped-call]
            total, width, False, self.plan, self.count
        )
        return back


def _gathered(values: torch.Tensor, plan: HaloPlan) -> torch.Tensor:
    """Values of all ranks, of any length each, one rank after another."""
    length = torch.tensor([len(values)], device=values.device)
    lengths = [torch.empty_like(length) for _ in range(plan.world_size)]
    dist.all_gather(lengths, length, group=plan.group)
    sizes = [int(each) for each in lengths]
    padded = values.new_zeros(max(sizes))
    padded[: len(values)] = values
    found = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(found, padded, group=plan.group)
    return torch.cat([part[:size] for part, size in zip(found, sizes, strict=True)])
