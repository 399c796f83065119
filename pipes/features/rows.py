"""gather: rows of a tensor in host memory, whatever they hold; and how they get to a device."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch

from hopline.pipes.features.buffers import empty, page_locked_outputs
from hopline.pipes.kernels.rows import gather_rows, gather_rows_to, scatter_rows
from hopline.pipes.streams import upload

__all__ = ["gather", "gather_to", "outputs_for", "scatter", "sent"]


def gather(source: torch.Tensor, ids: np.ndarray[Any, Any]) -> torch.Tensor:
    """Copies rows by the row kernel, which holds no GIL.

    Args:
        source: contiguous CPU tensor of any dtype; in memory or mapped.
        ids: integer[n], each in [0, len(source)); checked by the caller.

    Returns:
        Tensor of shape [n, *source.shape[1:]], from the buffer pool.
    """
    out = empty((len(ids), *source.shape[1:]), source.dtype)
    row_bytes = _row_bytes(source)
    if row_bytes and len(ids):
        gather_rows(_bytes(source), row_bytes, ids, _bytes(out))
    return out


def gather_to(
    source: torch.Tensor, ids: np.ndarray[Any, Any], places: np.ndarray[Any, Any], out: torch.Tensor
) -> None:
    """Copies rows to places of their own.

    Args:
        source: contiguous CPU tensor; in memory or mapped.
        ids: integer[n], each in [0, len(source)); checked by the caller.
        places: int64[n], each in [0, len(out)); checked by the caller.
        out: contiguous CPU tensor with rows of the same bytes.
    """
    row_bytes = _row_bytes(out)
    if row_bytes and len(ids):
        gather_rows_to(_bytes(source), row_bytes, ids, places, _bytes(out))


def scatter(rows: torch.Tensor, places: np.ndarray[Any, Any], out: torch.Tensor) -> None:
    """Copies rows that lie one after another to places of their own.

    Args:
        rows: contiguous CPU tensor of n rows.
        places: int64[n], each in [0, len(out)); checked by the caller.
        out: contiguous CPU tensor with rows of the same bytes.
    """
    row_bytes = _row_bytes(out)
    if row_bytes and len(places):
        scatter_rows(_bytes(rows), row_bytes, places, _bytes(out))


def _row_bytes(rows: torch.Tensor) -> int:
    return rows[0].numel() * rows.element_size() if len(rows) else 0


def outputs_for(device: torch.device) -> AbstractContextManager[None]:
    """A block whose big outputs are to be copied to a device: in page-locked memory for a GPU."""
    return page_locked_outputs() if device.type == "cuda" else nullcontext()


def sent(rows: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Rows on a device. A copy to a GPU is queued on the current stream; the host does not wait.

    Args:
        rows: of the caller's own: nobody writes to them any more.
        device: where they are to be.
    """
    if rows.device.type == "cpu" and device.type == "cuda":
        return upload(rows, device)
    return rows.to(device)


def _bytes(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """uint8[...], the tensor's memory."""
    flat = tensor.reshape(-1)
    if flat.stride(0) != 1:  # one element: torch calls it contiguous whatever its stride
        flat = flat.clone(memory_format=torch.contiguous_format)
    array: np.ndarray[Any, Any] = flat.view(torch.uint8).numpy()
    return array
