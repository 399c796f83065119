"""SharedCopies: how arrays get to another process while threads of this one read them.

torch moves a tensor that is sent to shared memory: its old memory is freed at once, also under a
kernel that reads it without the GIL. So what is sent is a copy that is there already, which torch
leaves where it is, and the old memory lives as long as a reader refers to its tensor.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["SharedCopies", "shared_copy"]


class SharedCopies:
    """Copies of tensors in shared memory, each tensor once."""

    def __init__(self) -> None:
        self.moved = False  # whether any was not there yet
        self._copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `shared_copy`."""
        known = self._copies.get(id(tensor))
        if known is None:
            known = self._copies[id(tensor)] = tensor, shared_copy(tensor)
            self.moved |= known[1] is not tensor
        return known[1]

    def all_of(self, tensors: dict[str, torch.Tensor] | None) -> dict[str, torch.Tensor] | None:
        """A new dict of copies."""
        return tensors and {name: self(tensor) for name, tensor in tensors.items()}


def shared_copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor in shared memory; the tensor itself if it is there, or not on the CPU.

    Args:
        tensor: of any shape and dtype. One that takes gradients is given back as it is: others
            refer to it, and would go on with the old one.
    """
    moves = (
        type(tensor) is torch.Tensor
        and tensor.layout == torch.strided
        and tensor.device.type == "cpu"
        and not tensor.requires_grad
        and tensor.numel() > 0
    )
    storage: Any = tensor.untyped_storage() if moves else None
    if storage is None or storage.is_shared():
        return tensor
    with torch.inference_mode(False):
        there = storage._new_shared(tensor.numel() * tensor.element_size())
        copy = torch.empty(0, dtype=tensor.dtype).set_(there).view(tensor.shape)
        result: torch.Tensor = copy.copy_(tensor)
    return result
