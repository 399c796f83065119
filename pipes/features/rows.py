"""gather: rows of a tensor in host memory, whatever they hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from hopline.pipes.features.buffers import empty
from hopline.pipes.kernels import cpu

__all__ = ["gather"]


def gather(source: torch.Tensor, ids: np.ndarray[Any, Any]) -> torch.Tensor:
    """Copies rows by the row kernel, which holds no GIL.

    Args:
        source: contiguous CPU tensor of any dtype; in memory or mapped.
        ids: integer[n], each in [0, len(source)); checked by the caller.

    Returns:
        Tensor of shape [n, *source.shape[1:]], from the buffer pool.
    """
    out = empty((len(ids), *source.shape[1:]), source.dtype)
    row_bytes = source[0].numel() * source.element_size() if len(source) else 0
    if row_bytes and len(ids):
        cpu.gather_rows(_bytes(source), row_bytes, ids, _bytes(out))
    return out


def _bytes(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """uint8[...], the tensor's memory."""
    flat = tensor.reshape(-1)
    if flat.stride(0) != 1:  # one element: torch calls it contiguous whatever its stride
        flat = flat.clone(memory_format=torch.contiguous_format)
    array: np.ndarray[Any, Any] = flat.view(torch.uint8).numpy()
    return array
