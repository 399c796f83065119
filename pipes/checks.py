"""Checks of ids as they enter: one wording, one place."""

from __future__ import annotations

import numpy as np
import torch

from hopline.pipes.kernels import cpu

__all__ = ["check_ids"]


def check_ids(ids: torch.Tensor, count: int, what: str, dtype: torch.dtype) -> torch.Tensor:
    """Ids as a contiguous 1-D CPU tensor of the wanted dtype, every one in [0, count).

    Args:
        ids: integer tensor of one dimension.
        count: number of things that may be named.
        what: what the ids name, for the message, e.g. "seeds of type 'user'".
        dtype: torch.int32 or torch.int64.

    Raises:
        TypeError: ids are not a tensor of integers.
        ValueError: ids are not 1-D.
        IndexError: an id is outside [0, count).
    """
    if not isinstance(ids, torch.Tensor):
        raise TypeError(f"{what}: got a {type(ids).__name__}; expected a torch.Tensor of integers")
    if ids.dtype.is_floating_point or ids.dtype.is_complex or ids.dtype == torch.bool:
        raise TypeError(f"{what}: got dtype {ids.dtype}; expected integers, e.g. {dtype}")
    if ids.dim() != 1:
        raise ValueError(f"{what}: got shape {tuple(ids.shape)}; expected one dimension")
    array = ids.detach().cpu().contiguous().numpy()
    if array.dtype == np.uint64 and len(array) and int(array.max()) > np.iinfo(np.int64).max:
        raise IndexError(f"{what}: id {int(array.max())} is outside [0, {count})")
    if array.dtype.kind == "u":
        array = array.astype(np.int64)
    bad = int(cpu.first_out_of_range(array, 0, count))
    if bad >= 0:
        raise IndexError(
            f"{what}: id {int(array[bad])} at position {bad} is outside [0, {count}); "
            "ids are numbered from 0 within their type"
        )
    wanted = np.int32 if dtype == torch.int32 else np.int64
    return torch.from_numpy(np.ascontiguousarray(array, dtype=wanted))
