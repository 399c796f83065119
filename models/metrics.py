"""Figures over ranks: weighted_reduce, and the exchange of rows that metrics need.

Every call makes the same collectives on all ranks, in number, shape and dtype, whatever a rank
holds: sizes and complaints travel first, in a header of fixed size, since a gloo process aborts
when the sizes of a payload differ. A complaint of one rank is raised on all of them.

Without an initialised process group there is one rank, and no collective.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist

from hopline.models.checks import check_tensor

__all__ = ["gather_rows", "group_device", "num_ranks", "rank_of", "weighted_reduce"]

MAX_DIMS = 8
DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)
OK, BAD_WEIGHT, BAD_TENSOR = 0, 1, 2
COMPLAINTS = {
    BAD_WEIGHT: "gave a weight that is negative, infinite or NaN",
    BAD_TENSOR: f"gave a tensor of unsupported dtype or of more than {MAX_DIMS} dimensions",
}


def num_ranks(group: Any = None) -> int:
    """Ranks in the group; 1 without a process group."""
    return dist.get_world_size(group) if dist.is_available() and dist.is_initialized() else 1


def rank_of(group: Any = None) -> int:
    """This process's rank in the group; 0 without a process group."""
    return dist.get_rank(group) if dist.is_available() and dist.is_initialized() else 0


def group_device(group: Any = None) -> torch.device:
    """Where a tensor has to be for the group's collectives: the CPU if that can be, else its GPU.

    It follows from the group's backends alone, so that all ranks choose alike.
    """
    backends = dict(pair.split(":", 1) for pair in dist.get_backend_config(group).split(","))
    if "cpu" in backends:
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def _headers(header: list[int], group: Any) -> list[list[int]]:
    """Every rank's header: integers, as many on all ranks."""
    local = torch.tensor(header, dtype=torch.int64, device=group_device(group))
    gathered = [torch.empty_like(local) for _ in range(num_ranks(group))]
    dist.all_gather(gathered, local, group=group)
    return [row.tolist() for row in gathered]


def _sizes(tensor: torch.Tensor) -> list[int]:
    """Number of dimensions, and `MAX_DIMS` sizes, 0 for those that are not there."""
    shape = list(tensor.shape)[:MAX_DIMS]
    return [tensor.dim(), *shape, *[0] * (MAX_DIMS - len(shape))]


def _complain(headers: list[list[int]]) -> None:
    for rank, (code, *_) in enumerate(headers):
        if code != OK:
            raise ValueError(f"rank {rank} {COMPLAINTS[code]}")


def weighted_reduce(
    tensor: torch.Tensor | float,
    weight: torch.Tensor | float,
    dst: int | None = 0,
    *,
    group: Any = None,
) -> torch.Tensor:
    """Weighted mean over ranks: `sum(weight * tensor) / sum(weight)`, element by element.

    Sums are of float64 and there is one division, at the end. What a rank of weight 0 gives is not
    read: it may be NaN. Two collectives, whatever the ranks hold.

    Args:
        tensor: floating-point or integer, of the same shape on all ranks, on any device.
        weight: a number of 0 or more, e.g. how many items the rank's figure stands for.
        dst: the rank that gets the mean; None for all. The same on all ranks.
        group: a process group; None for the default one. Without any, the mean is of one rank.

    Returns:
        float64, of tensor's shape and on its device: the mean; NaN where all weights are 0. On
        other ranks than dst, NaN.

    Raises:
        IndexError: dst is no rank. TypeError: an argument is of wrong kind. ValueError: shapes or
            dst differ, or a rank's weight or tensor is unfit; on all ranks, with the rank's number.

    >>> weighted_reduce(torch.tensor([1, 2]), 3)
    tensor([1., 2.], dtype=torch.float64)
    """
    if not isinstance(tensor, torch.Tensor | int | float):
        raise TypeError(f"tensor is a {type(tensor).__name__}; expected a torch.Tensor or a number")
    if not isinstance(weight, torch.Tensor | int | float):
        raise TypeError(f"weight is {weight!r}; expected a number")
    if dst is not None and (isinstance(dst, bool) or not isinstance(dst, int)):
        raise TypeError(f"dst is {dst!r}; expected a rank, or None")
    if not isinstance(tensor, torch.Tensor):
        tensor = torch.tensor(tensor, dtype=torch.float64)
    value = tensor.detach()
    number = float(weight)
    code = OK
    if not (math.isfinite(number) and number >= 0):
        code = BAD_WEIGHT
    elif value.dtype not in DTYPES or value.dim() > MAX_DIMS:
        code = BAD_TENSOR
    if num_ranks(group) == 1:
        _complain([[code]])
        if dst not in (None, 0):
            raise IndexError(f"dst is {dst}; there is 1 rank")
        if number:
            return value.to(torch.float64, copy=True)
        return torch.full_like(value, math.nan, dtype=torch.float64)

    headers = _headers([code, -1 if dst is None else dst, *_sizes(value)], group)
    _complain(headers)
    if len({tuple(header) for header in headers}) > 1:
        each = [f"rank {r}: dst {h[1]}, shape {h[3 : 3 + h[2]]}" for r, h in enumerate(headers)]
        raise ValueError("ranks differ in shape or dst (-1 is None): " + "; ".join(each))
    if dst is not None and not 0 <= dst < num_ranks(group):
        raise IndexError(f"dst is {dst}; expected a rank in [0, {num_ranks(group)}) or None")

    sums = torch.zeros(value.numel() + 1, dtype=torch.float64, device=group_device(group))
    if number:
        sums[:-1] = value.reshape(-1).to(sums.device, torch.float64) * number
        sums[-1] = number
    dist.all_reduce(sums, group=group)
    mean = sums[:-1] / sums[-1]  # 0 / 0 is NaN
    if dst is not None and dst != rank_of(group):
        mean.fill_(math.nan)
    return mean.reshape(value.shape).to(value.device)


def gather_rows(tensor: torch.Tensor, group: Any = None) -> list[torch.Tensor]:
    """Every rank's tensor. Numbers of rows may differ; a rank without any follows the others.

    Two collectives, whatever the ranks hold. Fit for `torchmetrics.Metric(dist_sync_fn=...)`, whose
    own function lets a rank that saw no batch send another dtype than the others.

    Args:
        tensor: any dtype in `DTYPES`; all ranks that have elements agree in dtype, number of
            dimensions and size of a row.
        group: a process group; None for the default one.

    Returns:
        One tensor a rank, in order, on the device of `tensor`.

    Raises:
        TypeError: tensor is no tensor.
        ValueError: dtype or row size differ, or a dtype is not supported; on all ranks.
    """
    check_tensor(tensor, "tensor")
    fits = tensor.dtype in DTYPES and tensor.dim() <= MAX_DIMS
    if num_ranks(group) == 1:
        _complain([[OK if fits else BAD_TENSOR]])
        return [tensor]
    kind = DTYPES.index(tensor.dtype) if fits else -1
    headers = _headers([OK if fits else BAD_TENSOR, kind, *_sizes(tensor)], group)
    _complain(headers)
    shapes = [tuple(header[3 : 3 + header[2]]) for header in headers]
    full = [rank for rank, shape in enumerate(shapes) if math.prod(shape)]
    kinds = {(headers[rank][1], headers[rank][2], shapes[rank][1:]) for rank in full}
    if len(kinds) > 1:
        each = [f"rank {r}: {DTYPES[h[1]]}{list(shapes[r])}" for r, h in enumerate(headers)]
        raise ValueError("ranks differ in dtype or row size: " + "; ".join(each))
    if not full:
        return [tensor.new_empty(shape) for shape in shapes]

    example = full[0]
    dtype = DTYPES[headers[example][1]]
    counts = [math.prod(shape) for shape in shapes]
    device = group_device(group)
    # Bytes, since no backend refuses them.
    padded = torch.zeros(max(counts), dtype=dtype, device=device)
    if tensor.numel():
        padded[: tensor.numel()] = tensor.detach().reshape(-1).to(device)
    gathered = [torch.empty_like(padded).view(torch.uint8) for _ in shapes]
    dist.all_gather(gathered, padded.view(torch.uint8), group=group)
    rows = []
    for rank, block in enumerate(gathered):
        shape = shapes[rank] if counts[rank] else (0, *shapes[example][1:])
        rows.append(block.view(dtype)[: counts[rank]].reshape(shape).to(tensor.device))
    return rows
