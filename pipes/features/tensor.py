"""TorchBasedFeature: rows of a tensor, in host memory, mapped, or on a device."""

from __future__ import annotations

import copy
from typing import Any

import torch

from hopline.pipes.checks import check_ids, check_mapping, check_values
from hopline.pipes.features.feature import Feature
from hopline.pipes.features.rows import gather
from hopline.pipes.move import check_device, move

__all__ = ["TorchBasedFeature"]


class TorchBasedFeature(Feature):
    """Rows of a tensor of any dtype.

    Args:
        torch_feature: tensor of two dimensions or more, one row a node or edge.
        metadata: what else is known of it.

    Raises:
        TypeError: not a dense tensor, or metadata is no dict.
        ValueError: fewer than two dimensions.

    >>> feature = TorchBasedFeature(torch.arange(6).view(3, 2))
    >>> feature.read(torch.tensor([2, 0])).tolist(), feature.size(), feature.count()
    ([[4, 5], [0, 1]], torch.Size([2]), 3)
    """

    def __init__(self, torch_feature: torch.Tensor, metadata: dict[str, Any] | None = None) -> None:
        if not isinstance(torch_feature, torch.Tensor):
            raise TypeError(
                f"torch_feature is a {type(torch_feature).__name__}; expected a torch.Tensor"
            )
        if torch_feature.layout != torch.strided:
            raise TypeError(
                f"torch_feature has layout {torch_feature.layout}; expected a dense tensor: use "
                "tensor.to_dense()"
            )
        check_mapping(metadata, "metadata", "a dict")
        if torch_feature.dim() < 2:
            raise ValueError(
                f"torch_feature has shape {tuple(torch_feature.shape)}; expected two dimensions or "
                "more: use tensor.unsqueeze(1) for one value a row"
            )
        self._tensor = torch_feature.detach().contiguous()
        self._metadata = dict(metadata or {})

    def read(self, ids: torch.Tensor | None = None) -> torch.Tensor:
        """Rows by id; see `Feature.read`. On the tensor's device, else on the CPU."""
        if ids is None:
            return self._tensor.clone()
        if self._tensor.device.type == "cpu":
            rows = gather(self._tensor, self._checked(ids).numpy())
            return rows if ids.device.type == "cpu" else rows.to(ids.device)
        return self._tensor[self._checked(ids).to(self._tensor.device)]

    def _checked(self, ids: torch.Tensor) -> torch.Tensor:
        wide = isinstance(ids, torch.Tensor) and ids.dtype == torch.int64
        return check_ids(ids, self.count(), "feature ids", torch.int64 if wide else torch.int32)

    def size(self) -> torch.Size:
        """Shape of one row."""
        return self._tensor.shape[1:]

    def count(self) -> int:
        """Number of rows."""
        return len(self._tensor)

    def update(self, value: torch.Tensor, ids: torch.Tensor | None = None) -> None:
        """Replaces rows, or the whole tensor; see `Feature.update`.

        Raises:
            TypeError: value or ids are no tensors of the right kind.
            ValueError: the shapes do not fit, or the feature's dtype cannot hold the value's.
            IndexError: an id is out of range.
        """
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"value is a {type(value).__name__}; expected a torch.Tensor")
        check_values(value, "value")
        if value.dim() < 1 or value.shape[1:] != self.size():
            raise ValueError(
                f"value has rows of shape {tuple(value.shape[1:])}; the feature has "
                f"{tuple(self.size())}"
            )
        if not torch.can_cast(value.dtype, self._tensor.dtype):
            raise ValueError(
                f"value has dtype {value.dtype}, which {self._tensor.dtype}, the feature's, cannot "
                "hold; convert it first"
            )
        if ids is None:
            if len(value) != self.count():
                raise ValueError(f"value has {len(value)} rows; the feature has {self.count()}")
            device, dtype = self._tensor.device, self._tensor.dtype
            self._tensor = value.detach().to(device, dtype, copy=True).contiguous()
            return
        ids = self._checked(ids)
        if len(ids) != len(value):
            raise ValueError(f"got {len(ids)} ids for {len(value)} rows; expected as many of each")
        device = self._tensor.device
        self._tensor[ids.long().to(device)] = value.detach().to(device, self._tensor.dtype)

    def metadata(self) -> dict[str, Any]:
        """What was given as metadata."""
        return dict(self._metadata)

    def to(self, device: torch.device | str) -> TorchBasedFeature:
        """The same rows on a device, or in "pinned" memory, as a new feature.

        Raises:
            RuntimeError: torch finds no GPU to pin memory for.
            ValueError: there is no such device.
        """
        device = check_device(device, pinned=True)
        other = copy.copy(self)
        other._tensor = move(self._tensor, device)
        return other

    def pin_memory_(self) -> TorchBasedFeature:
        """Moves the rows to page-locked memory.

        Raises:
            RuntimeError: torch finds no GPU, so there is nothing to pin for.
        """
        self._tensor = move(self._tensor, "pinned")
        return self

    def is_pinned(self) -> bool:
        """Whether the rows are in page-locked memory."""
        return self._tensor.is_pinned() if torch.cuda.is_available() else False

    def __repr__(self) -> str:
        return (
            f"TorchBasedFeature({self.count()} rows of {tuple(self.size())}, "
            f"{self._tensor.dtype}, {self._tensor.device})"
        )
