"""GPUFeatureCache, GPUCachedFeature: rows of a slower feature, kept on a device.

The policy runs on the host, over the same `CacheIndex` as in a cache in host memory; rows are
gathered and scattered on the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from hopline.pipes.features.cached import (
    CachedFeature,
    merge_hot_ids,
    wrap_with_cached_feature,
)
from hopline.pipes.features.feature import Feature
from hopline.pipes.features.feature_cache import FeatureCache, as_bytes
from hopline.pipes.features.policies import Request
from hopline.pipes.move import check_device

__all__ = ["GPUCachedFeature", "GPUFeatureCache", "gpu_cached_feature"]

Array = np.ndarray[Any, Any]


class GPUFeatureCache(FeatureCache):
    """Rows on a device, chosen by a policy; safe to use from several threads and streams at once.

    Args:
        cache_shape: (number of rows, *shape of a row).
        dtype: of the rows.
        policy: "sieve" (the default), "s3-fifo", "lru", "clock", or "static", which holds hot_keys.
        device: where the rows are; None for the current GPU. "cpu" works too.
        hot_keys: integer[k], for "static": the keys to hold, hottest first.

    Raises:
        TypeError, ValueError: an argument of wrong kind or value.
        RuntimeError: there is no GPU, and no other device was named.

    >>> cache = GPUFeatureCache((2, 3), torch.float32, device="cpu")
    >>> cache.query_and_replace(torch.tensor([5]), lambda keys: torch.ones(1, 3)).tolist()
    [[1.0, 1.0, 1.0]]
    """

    def __init__(
        self,
        cache_shape: Sequence[int],
        dtype: torch.dtype,
        policy: str | None = None,
        *,
        device: torch.device | str | None = None,
        hot_keys: torch.Tensor | None = None,
    ) -> None:
        super().__init__(cache_shape, dtype, policy, hot_keys)
        if device is None:
            if not torch.cuda.is_available():
                raise RuntimeError(
                    "a cache on the GPU needs a GPU, and torch finds none here; use "
                    "cpu_cached_feature, or name a device"
                )
            device = torch.device("cuda", torch.cuda.current_device())
        device = check_device(device)
        self._rows = torch.empty(self.capacity, self.row_bytes, dtype=torch.uint8, device=device)
        # The last use of the rows: kernels of another stream wait for it on the device.
        # The first use waits for the stream that the rows were allocated on.
        self._last_use: torch.cuda.Event | None = None
        if self.device.type == "cuda":
            self._last_use = torch.cuda.current_stream(self.device).record_event()
        self._settings = (cache_shape, dtype, policy, device, hot_keys)

    @property
    def device(self) -> torch.device:
        """Where the rows are."""
        return self._rows.device

    def _device(self) -> torch.device:
        return self._rows.device

    def _allocate(self, count: int) -> torch.Tensor:
        return torch.empty((count, *self.row_shape), dtype=self.dtype, device=self.device)

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        """Orders uses of the rows on all streams as their callers hold the lock, without a wait."""
        if self.device.type != "cuda":
            yield
            return
        stream = torch.cuda.current_stream(self.device)
        assert self._last_use is not None
        stream.wait_event(self._last_use)
        self._rows.record_stream(stream)
        try:
            yield
        finally:
            self._last_use = stream.record_event()

    def _take(self, ids: Array, offset: int) -> tuple[Request, torch.Tensor | None]:
        with self._lock:
            request = self._index.request(ids, offset)
            if len(ids) and len(request.missing) == len(ids):
                return request, None
            out = self._allocate(len(ids))
            if out.numel():
                # Under the lock: on a GPU this only hands the work over.
                hits = np.flatnonzero(request.source < 0)
                places, slots = self._there(hits), self._there(-1 - request.source[hits])
                with self._in_turn():
                    as_bytes(out).index_copy_(0, places, self._rows.index_select(0, slots))
        return request, out

    def _write(self, fetched: torch.Tensor, slots: Array, which: Array) -> None:
        if len(slots) and self.row_bytes:
            places, rows = self._there(slots), as_bytes(fetched).index_select(0, self._there(which))
            with self._in_turn():
                self._rows.index_copy_(0, places, rows)

    def _complete(self, request: Request, fetched: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        if out.numel():
            places = np.flatnonzero(request.source >= 0)
            rows = as_bytes(fetched).index_select(0, self._there(request.source[places]))
            as_bytes(out).index_copy_(0, self._there(places), rows)
        return out

    def _there(self, array: Array) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device, non_blocking=True)

    def __getstate__(self) -> tuple[Any, ...]:
        return self._settings  # travels empty: another process fills its own

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        cache_shape, dtype, policy, device, hot_keys = state
        self.__init__(  # type: ignore[misc]
            cache_shape, dtype, policy, device=device, hot_keys=hot_keys
        )


class GPUCachedFeature(CachedFeature):
    """A feature whose rows are kept on a device once they have been read; `read` gives them there.

    Write to it by its own `update`: of a change behind its back it knows nothing.

    Args:
        fallback_feature: the slower feature, which has every row; also a `CPUCachedFeature`.
        cache: a `GPUFeatureCache` with rows of as many bytes.
        offset: added to ids for the cache's keys; features that share a cache have ranges
            [offset, offset + count()) that do not overlap.

    >>> from hopline.pipes import TorchBasedFeature
    >>> slow = TorchBasedFeature(torch.arange(8).view(4, 2))
    >>> cache = GPUFeatureCache((3, 2), torch.int64, device="cpu")
    >>> GPUCachedFeature(slow, cache).read(torch.tensor([1, 3])).tolist()
    [[2, 3], [6, 7]]
    """

    cache_type = GPUFeatureCache
    cache: GPUFeatureCache


def gpu_cached_feature(
    fallback_features: Feature | Mapping[Any, Feature],
    max_cache_size_in_bytes: int,
    policy: str | None = None,
    *,
    device: torch.device | str | None = None,
    hot_ids: torch.Tensor | Mapping[Any, torch.Tensor] | None = None,
) -> Any:
    """A cache on a device before one feature or several.

    Args:
        fallback_features: a feature, or `{key: feature}` whose rows have as many bytes each.
        max_cache_size_in_bytes: bytes of rows to hold, rounded up to whole rows.
        policy: "sieve" (the default), "s3-fifo", "lru", "clock", or "static", which holds hot_ids.
        device: where the rows are; None for the current GPU.
        hot_ids: for "static": integer[k] ids, hottest first; or `{key: ids}`.

    Returns:
        A `GPUCachedFeature`, or `{key: GPUCachedFeature}`, which share one cache.

    Raises:
        TypeError, ValueError: an argument of wrong kind or value.
        RuntimeError: there is no GPU, and no other device was named.
    """
    return wrap_with_cached_feature(
        GPUCachedFeature,
        fallback_features,
        max_cache_size_in_bytes,
        policy=policy,
        device=device,
        hot_keys=merge_hot_ids(fallback_features, hot_ids),
    )
