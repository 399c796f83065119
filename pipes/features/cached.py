"""CachedFeature, CPUCachedFeature: a slower feature with a cache before it.

What is read never depends on the cache: every row is the one that the slower feature has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch

from hopline.pipes.checks import check_ids
from hopline.pipes.features.feature import Feature
from hopline.pipes.features.feature_cache import (
    CPUFeatureCache,
    FeatureCache,
    as_bytes,
    check_offset,
)
from hopline.pipes.features.rows import outputs_for, sent

__all__ = [
    "CPUCachedFeature",
    "CachedFeature",
    "bytes_to_number_of_items",
    "cpu_cached_feature",
    "merge_hot_ids",
    "reinterpreted",
    "wrap_with_cached_feature",
]


class CachedFeature(Feature):
    """A feature with a cache before it; what `CPUCachedFeature` and `GPUCachedFeature` share.

    Args:
        fallback_feature: the slower feature, which has every row.
        cache: holds some of them.
        offset: added to ids for the cache's keys; features that share a cache have ranges
            [offset, offset + count()) that do not overlap.

    Raises:
        TypeError, ValueError: an argument of wrong kind, or rows of other sizes.
    """

    cache_type: ClassVar[type[FeatureCache]] = FeatureCache
    _maker: ClassVar[str] = "wrap_with_cached_feature"

    def __init__(self, fallback_feature: Feature, cache: FeatureCache, offset: int = 0) -> None:
        if not isinstance(fallback_feature, Feature):
            raise TypeError(
                f"fallback_feature is a {type(fallback_feature).__name__}; expected a Feature"
            )
        if not isinstance(cache, self.cache_type):
            size = "" if not isinstance(cache, int) else (
                f"; for a size in bytes use {self._maker}(feature, {cache})"
            )  # fmt: skip
            raise TypeError(
                f"cache is a {type(cache).__name__}; expected a {self.cache_type.__name__}{size}"
            )
        check_offset(offset)
        row = _one_row(fallback_feature)
        if row.nbytes != cache.row_bytes:
            raise ValueError(
                f"{fallback_feature!r} has rows of {row.nbytes} bytes; the cache has rows of "
                f"{cache.row_bytes}"
            )
        self.fallback_feature = fallback_feature
        self.cache = cache
        self.offset = offset
        self._dtype = row.dtype
        self._size = row.shape[1:]
        self._count = fallback_feature.count()

    def read(self, ids: torch.Tensor | None = None) -> torch.Tensor:
        """Rows by id, or all rows, past the cache; see `Feature.read`."""
        if ids is None:
            return self.fallback_feature.read()
        checked = check_ids(ids, self._count, "feature ids", torch.int64)
        with outputs_for(ids.device):
            rows = self.cache.query_and_replace(checked, self._read_slowly, self.offset)
        rows = reinterpreted(rows, self._dtype, self._size)
        return rows if rows.is_cuda else sent(rows, ids.device)

    def _read_slowly(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows of the slower feature, as the cache has them."""
        rows = self.fallback_feature.read(ids)
        if rows.dtype != self._dtype or rows.shape != (len(ids), *self._size):
            raise ValueError(
                f"{self.fallback_feature!r} gave {rows.dtype} of shape {tuple(rows.shape)} for "
                f"{len(ids)} ids; expected {self._dtype} of shape {(len(ids), *self._size)}"
            )
        return reinterpreted(rows, self.cache.dtype, self.cache.row_shape)

    def size(self) -> torch.Size:
        """Shape of one row."""
        return self._size

    def count(self) -> int:
        """Number of rows."""
        return self._count

    def update(self, value: torch.Tensor, ids: torch.Tensor | None = None) -> None:
        """Replaces rows of the slower feature, and drops them from the cache; see `Feature.update`.

        The policy, the statistics, and other features in the cache stay as they are. A read that
        begins when this has returned gives the new rows.

        Where the whole feature is replaced by one with rows of another shape or dtype, it gets a
        new, empty cache of its own, of as many bytes; no read may be under way meanwhile.

        Raises:
            TypeError: the slower feature cannot be written to.
            ValueError: the shapes do not fit.
            IndexError: an id is out of range.
        """
        if ids is None:
            if isinstance(value, torch.Tensor) and value.dim() and len(value) != self._count:
                raise ValueError(f"value has {len(value)} rows; the feature has {self._count}")
            try:
                self.fallback_feature.update(value)
            finally:  # also when it failed half-way
                self.cache.forget_range(self.offset, self.offset + self._count)
                self._follow_rows()
            return
        checked = check_ids(ids, self._count, "feature ids", torch.int64)
        try:
            self.fallback_feature.update(value, checked)
        finally:
            self.cache.forget(checked, self.offset)

    def _follow_rows(self) -> None:
        """Takes a new cache if the slower feature has rows of another shape or dtype now."""
        row = _one_row(self.fallback_feature)
        if (row.dtype, row.shape[1:]) == (self._dtype, self._size):
            return
        capacity = min(bytes_to_number_of_items(self.cache.cache_size_in_bytes, row), self._count)
        self.cache = self.cache._for_rows((capacity, *row.shape[1:]), row.dtype)
        self._dtype, self._size = row.dtype, row.shape[1:]

    def metadata(self) -> dict[str, Any]:
        """What the slower feature says."""
        return self.fallback_feature.metadata()

    @property
    def miss_rate(self) -> float:
        """Share of the rows asked of the cache, by all its features, that it did not have."""
        return self.cache.miss_rate

    @property
    def cache_size_in_bytes(self) -> int:
        """Bytes of the rows that fit in the cache."""
        return self.cache.cache_size_in_bytes

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.fallback_feature!r}, {self.cache!r}, {self.offset})"


class CPUCachedFeature(CachedFeature):
    """A feature whose rows are kept in host memory once they have been read.

    Write to it by its own `update`: of a change behind its back it knows nothing.

    Args:
        fallback_feature: the slower feature, which has every row.
        cache: a `CPUFeatureCache` with rows of as many bytes.
        offset: added to ids for the cache's keys; features that share a cache have ranges
            [offset, offset + count()) that do not overlap.

    >>> from hopline.pipes import TorchBasedFeature
    >>> slow = TorchBasedFeature(torch.arange(8).view(4, 2))
    >>> feature = CPUCachedFeature(slow, CPUFeatureCache((3, 2), torch.int64, "lru"))
    >>> feature.read(torch.tensor([1, 3])).tolist(), feature.miss_rate
    ([[2, 3], [6, 7]], 1.0)
    """

    cache_type = CPUFeatureCache
    _maker = "cpu_cached_feature"
    cache: CPUFeatureCache

    def is_pinned(self) -> bool:
        """Whether the cached rows are in page-locked memory."""
        return self.cache.is_pinned()


def bytes_to_number_of_items(cache_capacity_in_bytes: int, single_item: torch.Tensor) -> int:
    """How many items take up that many bytes, rounded up; 0 for items without bytes.

    Raises:
        TypeError: the capacity is no int, or the item no tensor.
        ValueError: it is negative.

    >>> bytes_to_number_of_items(1001, torch.zeros(1, 25))
    11
    """
    size = cache_capacity_in_bytes
    if isinstance(size, bool) or not isinstance(size, int):
        raise TypeError(f"cache size in bytes is {size!r}; expected an int")
    if size < 0:
        raise ValueError(f"cache size in bytes is {size}; expected 0 or more")
    if not isinstance(single_item, torch.Tensor):
        raise TypeError(f"single_item is a {type(single_item).__name__}; expected a torch.Tensor")
    if single_item.layout != torch.strided or single_item.is_nested:
        raise TypeError("single_item is a sparse or nested tensor; expected a dense one")
    return -(-size // single_item.nbytes) if single_item.nbytes else 0


def wrap_with_cached_feature(
    cached_feature_type: type[CachedFeature],
    fallback_features: Feature | Mapping[Any, Feature],
    max_cache_size_in_bytes: int,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """One cache before one feature or several.

    Args:
        cached_feature_type: `CPUCachedFeature` or `GPUCachedFeature`.
        fallback_features: a feature, or `{key: feature}` whose rows have as many bytes each.
        max_cache_size_in_bytes: bytes of rows to hold, rounded up to whole rows; never more than
            the features have.
        *args: for the cache, after shape and dtype.
        **kwargs: for the cache.

    Returns:
        The cached feature, or `{key: cached feature}`, which share one cache.

    Raises:
        TypeError: an argument of wrong kind.
        ValueError: no features, or rows of different sizes.
    """
    if not (
        isinstance(cached_feature_type, type) and issubclass(cached_feature_type, CachedFeature)
    ):
        raise TypeError(
            f"cached_feature_type is {cached_feature_type!r}; expected CPUCachedFeature or "
            "GPUCachedFeature"
        )
    features = _by_key(fallback_features)
    rows = {key: _one_row(feature) for key, feature in features.items()}
    first, row = next(iter(rows.items()))
    for key, other in rows.items():
        if other.nbytes != row.nbytes:
            raise ValueError(
                f"features that share a cache need rows of one size: {key!r} has {other.nbytes} "
                f"bytes a row ({other.dtype} of {tuple(other.shape[1:])}), {first!r} has "
                f"{row.nbytes} ({row.dtype} of {tuple(row.shape[1:])}); give each its own cache"
            )
    total = sum(feature.count() for feature in features.values())
    capacity = min(bytes_to_number_of_items(max_cache_size_in_bytes, row), total)
    cache = cached_feature_type.cache_type((capacity, *row.shape[1:]), row.dtype, *args, **kwargs)
    wrapped, offset = {}, 0
    for key, feature in features.items():
        wrapped[key] = cached_feature_type(feature, cache, offset)
        offset += feature.count()
    return wrapped if isinstance(fallback_features, Mapping) else wrapped[None]


def cpu_cached_feature(
    fallback_features: Feature | Mapping[Any, Feature],
    max_cache_size_in_bytes: int,
    policy: str | None = None,
    pin_memory: bool = False,
    *,
    hot_ids: torch.Tensor | Mapping[Any, torch.Tensor] | None = None,
) -> Any:
    """A cache in host memory before one feature or several.

    Args:
        fallback_features: a feature, or `{key: feature}` whose rows have as many bytes each.
        max_cache_size_in_bytes: bytes of rows to hold, rounded up to whole rows.
        policy: "sieve" (the default), "s3-fifo", "lru", "clock", or "static", which holds hot_ids.
        pin_memory: keep the rows in page-locked memory.
        hot_ids: for "static": integer[k] ids, hottest first, e.g. of `hot_set_by_degree`; or
            `{key: ids}`, of which the hottest of each come first. Those that do not fit are left
            out.

    Returns:
        A `CPUCachedFeature`, or `{key: CPUCachedFeature}`, which share one cache.

    Raises:
        TypeError, ValueError: an argument of wrong kind or value.

    >>> from hopline.pipes import TorchBasedFeature
    >>> feature = cpu_cached_feature(TorchBasedFeature(torch.eye(5)), 40)
    >>> feature.read(torch.tensor([4])).tolist(), feature.cache.capacity
    ([[0.0, 0.0, 0.0, 0.0, 1.0]], 2)
    """
    hot_keys = merge_hot_ids(fallback_features, hot_ids)
    return wrap_with_cached_feature(
        CPUCachedFeature,
        fallback_features,
        max_cache_size_in_bytes,
        policy=policy,
        pin_memory=pin_memory,
        hot_keys=hot_keys,
    )


def merge_hot_ids(
    fallback_features: Feature | Mapping[Any, Feature],
    hot_ids: torch.Tensor | Mapping[Any, torch.Tensor] | None,
) -> torch.Tensor | None:
    """The keys of hot ids in a shared cache: the hottest of each feature, then the second of each.

    Raises:
        TypeError, ValueError: ids that do not go with the features.
    """
    if hot_ids is None:
        return None
    features = _by_key(fallback_features)
    if isinstance(fallback_features, Mapping) != isinstance(hot_ids, Mapping):
        raise TypeError(
            f"hot_ids is a {type(hot_ids).__name__} for features given as a "
            f"{type(fallback_features).__name__}; expected a tensor for one feature, "
            "{key: tensor} for several"
        )
    listed = dict(hot_ids) if isinstance(hot_ids, Mapping) else {None: hot_ids}
    if unknown := [key for key in listed if key not in features]:
        raise ValueError(f"hot_ids has {unknown}; the features are {list(features)}")
    keys, ranks, offset = [np.empty(0, np.int64)], [np.empty(0, np.int64)], 0
    for key, feature in features.items():
        if key in listed:
            ids = check_ids(listed[key], feature.count(), f"hot_ids[{key!r}]", torch.int64)
            keys.append(ids.numpy() + offset)
            ranks.append(np.arange(len(ids)))
        offset += feature.count()
    order = np.argsort(np.concatenate(ranks), kind="stable")
    return torch.from_numpy(np.concatenate(keys)[order])


def _by_key(features: Feature | Mapping[Any, Feature]) -> dict[Any, Feature]:
    listed = dict(features) if isinstance(features, Mapping) else {None: features}
    for key, feature in listed.items():
        if not isinstance(feature, Feature):
            where = "" if key is None else f"[{key!r}]"
            raise TypeError(
                f"fallback_features{where} is a {type(feature).__name__}; expected a Feature"
            )
    if not listed:
        raise ValueError("fallback_features is empty; expected one feature or more")
    return listed


def reinterpreted(rows: torch.Tensor, dtype: torch.dtype, row_shape: torch.Size) -> torch.Tensor:
    """The same bytes as rows of another dtype and shape: features of both may share a cache."""
    if rows.dtype == dtype and rows.shape[1:] == row_shape:
        return rows
    if rows.numel() == 0:
        return rows.new_empty((len(rows), *row_shape), dtype=dtype)
    if rows.storage_offset() or not rows.is_contiguous():  # it may not be a multiple of the dtype's
        rows = rows.clone(memory_format=torch.contiguous_format)
    return as_bytes(rows).view(-1).view(dtype).view(len(rows), *row_shape)


def _one_row(feature: Feature) -> torch.Tensor:
    """A row of the feature's dtype and shape, and of any values."""
    none = feature.read(torch.empty(0, dtype=torch.int64, device="cpu"))
    return torch.empty((1, *none.shape[1:]), dtype=none.dtype, device="cpu")
