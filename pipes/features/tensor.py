"""TorchBasedFeature: rows of a tensor, in host memory, page-locked, mapped, or on a device."""

from __future__ import annotations

import copy
from typing import Any

import torch

from hopline.pipes.checks import check_ids, check_mapping, check_values
from hopline.pipes.features.feature import Feature
from hopline.pipes.features.rows import gather, outputs_for, sent
from hopline.pipes.kernels.dispatch import check_triton, on_device
from hopline.pipes.large_pages import LargePages
from hopline.pipes.move import check_device, move
from hopline.pipes.page_lock import PageLock, page_lock, page_locked_copy
from hopline.pipes.pinning import is_pinned

__all__ = ["TorchBasedFeature"]

SIGNED = {
    torch.uint16: torch.int16,
    torch.uint32: torch.int32,
    torch.uint64: torch.int64,
}


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
        # Of the tensor, where this feature has pinned it. What is read then is the lock's tensor,
        # which may be a copy, or a file's pages.
        self._lock: PageLock | None = None
        self._large_pages: LargePages | None = None  # for reads by the CPU
        self._metadata = dict(metadata or {})

    def read(self, ids: torch.Tensor | None = None) -> torch.Tensor:
        """Rows by id; see `Feature.read`.

        Ids on a GPU give rows there: from its own memory, by its own reads of page-locked memory,
        or by the CPU and a copy. Ids on the CPU give rows where the feature is: on its GPU, or in
        ordinary memory. The host waits for the GPU once, to know that ids there are in range.
        """
        lock = self._locked()  # held until kernels are started
        tensor = self._tensor if lock is None else lock.tensor
        if ids is None:
            return tensor.clone()
        if isinstance(ids, torch.Tensor) and on_device(ids):
            if lock is not None or on_device(tensor):
                return _gather_on_device(tensor, ids)
        elif tensor.is_cuda:
            return _gather_on_device(tensor, self._checked(ids).to(tensor.device))
        checked = self._checked(ids)
        if tensor.device.type != "cpu":
            return tensor[checked.to(tensor.device)]
        with outputs_for(ids.device):
            rows = gather(tensor, checked.numpy())
        if lock is None:
            self._use_large_pages(tensor, rows.nbytes)
        return sent(rows, ids.device)

    def _use_large_pages(self, tensor: torch.Tensor, used: int) -> None:
        """Moves some of the rows to large pages, for what was read."""
        pages = self._large_pages
        if pages is None or not pages.is_of(tensor):
            pages = self._large_pages = LargePages(tensor)
        pages.advance(used)

    def _locked(self) -> PageLock | None:
        """The lock of rows in page-locked memory, also if somebody else has pinned them."""
        lock = self._lock
        stale = lock is not None and not lock.is_current(self._tensor)  # changed in place
        if stale or (lock is None and is_pinned(self._tensor)):
            lock = self._lock = page_lock(self._tensor)
        return lock

    def _checked(self, ids: torch.Tensor) -> torch.Tensor:
        return check_ids(ids, self.count(), "feature ids", _width(ids))

    def size(self) -> torch.Size:
        """Shape of one row."""
        return self._tensor.shape[1:]

    def count(self) -> int:
        """Number of rows."""
        return len(self._tensor)

    def update(self, value: torch.Tensor, ids: torch.Tensor | None = None) -> None:
        """Replaces rows, or the whole tensor; see `Feature.update`.

        The whole tensor may be replaced by one with rows of another shape, e.g. by what a layer
        made of it; its dtype counts then. Rows of the same shape take the feature's dtype.

        Raises:
            TypeError: value or ids are no tensors of the right kind.
            ValueError: the shapes do not fit, or the feature's dtype cannot hold the value's.
            IndexError: an id is out of range.
        """
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"value is a {type(value).__name__}; expected a torch.Tensor")
        check_values(value, "value")
        reshaped = value.shape[1:] != self.size()
        if value.dim() < 2 or (reshaped and ids is not None):
            raise ValueError(
                f"value has rows of shape {tuple(value.shape[1:])}; the feature has "
                f"{tuple(self.size())}"
            )
        kept = value.dtype if reshaped else self._tensor.dtype
        if not torch.can_cast(value.dtype, kept):
            raise ValueError(
                f"value has dtype {value.dtype}, which {kept}, the feature's, cannot "
                "hold; convert it first"
            )
        _check_range(value, kept)
        if ids is None:
            if len(value) != self.count():
                raise ValueError(f"value has {len(value)} rows; the feature has {self.count()}")
            device = self._tensor.device
            lock = None
            if self._locked() is not None:
                lock = page_locked_copy(value.detach().to(device, kept))
                new = lock.tensor
            else:
                new = value.detach().to(device, kept, copy=True).contiguous()
            self._wait()
            self._tensor, self._lock = new, lock
            return
        ids = self._checked(ids)
        if len(ids) != len(value):
            raise ValueError(f"got {len(ids)} ids for {len(value)} rows; expected as many of each")
        device = self._tensor.device
        there = value.detach().to(device, self._tensor.dtype)
        self._wait()  # what was read before may still be under way on a GPU
        places = ids.long().to(device)
        lock = self._lock
        _put(self._tensor, places, there)
        if lock is not None and lock.tensor is not self._tensor:
            if lock.writable:
                _put(lock.tensor, places, there)
            else:  # a file's pages stay as they are
                lock = self._lock = page_locked_copy(self._tensor)
            lock.stands_for(self._tensor)
        self._wait()  # other streams may read from now on

    def _wait(self) -> None:
        """Waits until GPUs have done what they were given, if they can be at the rows."""
        if self._tensor.is_cuda:
            torch.cuda.synchronize(self._tensor.device)
        elif (lock := self._locked()) is not None:
            lock.wait()

    def metadata(self) -> dict[str, Any]:
        """What was given as metadata."""
        return dict(self._metadata)

    def to(self, device: torch.device | str) -> TorchBasedFeature:
        """The same rows on a device, or in "pinned" memory, as a new feature.

        Rows that are there already are shared; "pinned" copies rows that are not: use `pin_memory_`
        to pin them where they are.

        Raises:
            RuntimeError: torch finds no GPU to pin memory for, or it cannot be pinned.
            ValueError: there is no such device.
        """
        device = check_device(device, pinned=True)
        other = copy.copy(self)
        lock = self._locked()
        if device != "pinned":
            rows = self._tensor
            if lock is not None and torch.device(device).type != "cpu":
                rows = lock.tensor
            other._tensor, other._lock = move(rows, device), None
        elif lock is None:
            other._lock = page_locked_copy(self._tensor.cpu())
            other._tensor = other._lock.tensor
        return other

    def pin_memory_(self) -> TorchBasedFeature:
        """Page-locks the rows where they are, so that GPUs read them in place.

        Small arrays, which share pages with others, are copied, and mapped files that CUDA refuses.
        Changes of the tensor in place are seen all the same. Memory is unlocked with the last
        feature or graph that has pinned it, be it by other views of the same tensor. Rows on a GPU
        stay there. See `hopline.pipes.page_lock.page_lock`.

        Raises:
            RuntimeError: torch finds no GPU, so there is nothing to pin for; or CUDA cannot lock so
                much memory.
        """
        if self._tensor.device.type == "cpu" and self._locked() is None:
            self._lock = page_lock(self._tensor)
        return self

    def is_pinned(self) -> bool:
        """Whether the rows are in page-locked memory."""
        return self._lock is not None or is_pinned(self._tensor)

    def __getstate__(self) -> dict[str, Any]:
        # Travels unpinned. Sharing memory with another process would move it from under the lock.
        state = dict(self.__dict__, _lock=None, _large_pages=None)
        storage: Any = self._tensor.untyped_storage()
        if is_pinned(self._tensor) and not storage.is_shared():
            state["_tensor"] = self._tensor.clone()
        return state

    def __copy__(self) -> TorchBasedFeature:
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def __repr__(self) -> str:
        return (
            f"TorchBasedFeature({self.count()} rows of {tuple(self.size())}, "
            f"{self._tensor.dtype}, {self._tensor.device})"
        )


def _width(ids: Any) -> torch.dtype:
    """The dtype that ids are checked and used in."""
    narrow = (torch.uint8, torch.int8, torch.int16, torch.int32)
    return torch.int32 if isinstance(ids, torch.Tensor) and ids.dtype in narrow else torch.int64


def _check_range(value: torch.Tensor, dtype: torch.dtype) -> None:
    """ValueError where a value is beyond what a dtype holds; rounding is no matter."""
    if torch.bool in (value.dtype, dtype) or value.is_complex():
        return
    there, here = _limits(value.dtype), _limits(dtype)
    if here.min <= there.min and there.max <= here.max:
        return
    finite = value[value.isfinite()] if value.is_floating_point() else value.long()
    if finite.numel() == 0:
        return
    low, high = finite.min().item(), finite.max().item()
    if value.dtype == torch.uint64 and low < 0:  # its upper half, as long has it
        low, high = high, low + 2**64
    if low < here.min or high > here.max:
        raise ValueError(
            f"value is {high if high > here.max else low} somewhere, which {dtype}, the feature's, "
            f"cannot hold: it is for values from {here.min} to {here.max}"
        )


def _limits(dtype: torch.dtype) -> torch.finfo | torch.iinfo:
    is_float = dtype.is_floating_point or dtype.is_complex
    return torch.finfo(dtype) if is_float else torch.iinfo(dtype)


def _put(rows: torch.Tensor, places: torch.Tensor, values: torch.Tensor) -> None:
    """rows[places] = values, also in the unsigned dtypes that torch does not index by."""
    narrow = SIGNED.get(rows.dtype)
    if narrow is not None:
        rows, values = rows.view(narrow), values.view(narrow)
    rows[places] = values


def _gather_on_device(tensor: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Rows on the device of ids: of a tensor on a GPU, or in page-locked memory."""
    check_triton()
    # Only here: without a GPU nothing needs Triton.
    from hopline.pipes.host_reads import HostReads
    from hopline.pipes.kernels.cuda.rows import gather_rows

    device = tensor.device if tensor.is_cuda else ids.device
    reads = HostReads(device)
    checked = reads.check_ids(ids, len(tensor), "feature ids", _width(ids))
    reads.read()
    rows = gather_rows(tensor, checked)
    if tensor.is_cuda:
        # Its memory is not for others before this stream is through.
        tensor.record_stream(torch.cuda.current_stream(device))
    return rows.to(ids.device)
