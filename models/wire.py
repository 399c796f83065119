"""encode, decode: rows as they are sent between ranks: as they are, rounded, or as small integers.

Integers: Wan, Zhao, Wu: "Adaptive message quantization and parallelization for distributed
full-graph GNN training", MLSys 2023, section 3, with one width for all rows.
"""

from __future__ import annotations

import torch

from hopline.pipes.random import MASK

__all__ = ["WIRE_DTYPES", "check_wire_dtype", "decode", "encode"]

WIRE_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int8)
LEVELS = 255  # steps between the least and the greatest value of a row
EXTRA = 8  # bytes of a row's two float32, least value and step


def check_wire_dtype(dtype: object) -> None:
    """Raises `TypeError` unless rows can be sent in it; None is for rows as they are."""
    if dtype is not None and dtype not in WIRE_DTYPES:
        names = ", ".join(map(str, WIRE_DTYPES))
        raise TypeError(f"wire_dtype is {dtype!r}; expected None or one of {names}")


def encode(rows: torch.Tensor, dtype: torch.dtype | None, word: int) -> torch.Tensor:
    """What is sent for rows.

    As torch.int8 a value is a number of steps, 255 of which go from the row's least value to its
    greatest; it is rounded up with the probability of what is left of it, so that its mean is the
    value, and off by less than a step, and by what float32 rounds. Values that are not finite spoil
    their row, as does a range of values that float32 does not hold.

    Args:
        rows: float[n, width].
        dtype: of `WIRE_DTYPES`, or None.
        word: 64 bits, the key of the draws of rounding.

    Returns:
        [n, width] of the dtype; uint8[n, width + 8] for torch.int8, or [n, 0] where width is 0.
    """
    if dtype != torch.int8:
        return rows.to(dtype or rows.dtype).contiguous()
    n, width = rows.shape
    if not (n and width):
        return rows.new_empty((n, width + EXTRA if width else 0), dtype=torch.uint8)
    values = rows.float()
    least, greatest = values.aminmax(dim=1, keepdim=True)
    step = (greatest - least) / LEVELS
    draws = torch.Generator(rows.device).manual_seed((word & MASK) - (1 << 63))
    steps = (values - least) / torch.where(step == 0, 1, step)
    steps += torch.rand(n, width, generator=draws, device=rows.device)
    numbers = steps.floor_().clamp_(0, LEVELS).to(torch.uint8)
    return torch.cat([numbers, torch.cat([least, step], 1).view(torch.uint8)], 1)


def decode(sent: torch.Tensor, dtype: torch.dtype, wire: torch.dtype | None) -> torch.Tensor:
    """The rows of what was sent.

    Args:
        sent: of `encode`, for dtype wire.
        dtype: of the rows.
        wire: of `WIRE_DTYPES`, or None.

    Returns:
        dtype[n, width].
    """
    if wire != torch.int8 or sent.shape[1] == 0:
        return sent.to(dtype)
    scale = (
        sent[:, -EXTRA:].clone(memory_format=torch.contiguous_format).view(torch.float32).to(dtype)
    )
    return torch.addcmul(scale[:, :1], sent[:, :-EXTRA].to(dtype), scale[:, 1:])
