"""GPUFeatureCache, GPUCachedFeature: rows of a slower feature, kept on a device.

On a GPU the index of keys is there too (`device_index.py`): a call looks its keys up, copies what
is there, has the missing rows read, and keeps them, while the host waits once, for the number of
missing rows. With the policies of caches in host memory the host keeps the index, and rows are
gathered and scattered on the device.

Several threads and streams use a cache at once. Calls go through the index one after the other, on
the host under a lock, and on the device by events; the slower feature is read without the lock.
What a call has read is kept only if no row was dropped since it looked its keys up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hopline.pipes.features.cached import (
    CachedFeature,
    merge_hot_ids,
    reinterpreted,
    wrap_with_cached_feature,
)
from hopline.pipes.features.device_index import DeviceIndex, SetLRUIndex, StaticIndex, distinct
from hopline.pipes.features.feature import Feature
from hopline.pipes.features.feature_cache import LAST_KEY, FeatureCache, as_bytes, check_offset
from hopline.pipes.features.policies import POLICIES, CacheIndex, Request, check_policy
from hopline.pipes.kernels.dispatch import check_triton, on_device
from hopline.pipes.move import check_device

__all__ = ["GPUCachedFeature", "GPUFeatureCache", "gpu_cached_feature"]

Array = np.ndarray[Any, Any]
ON_GPU = ("set-lru", "static")  # policies whose index is on the GPU


@dataclass(slots=True)
class _Call:
    """A look-up on the device.

    Attributes:
        ids: int64[n], what was asked for.
        number: of the call.
        out: [n, *row], with the rows that the cache has.
        numbers: int64[n], -1 there, else which of the rows that are to be read it is.
        first: bool[n], whether it is the first that needs that row.
        missing: how many of the n are not there.
        to_read: how many rows are to be read.
    """

    ids: torch.Tensor
    number: int
    out: torch.Tensor
    numbers: torch.Tensor
    first: torch.Tensor
    missing: int
    to_read: int


class GPUFeatureCache(FeatureCache):
    """Rows on a device, chosen by a policy; safe to use from several threads and streams at once.

    Args:
        cache_shape: (number of rows, *shape of a row).
        dtype: of the rows.
        policy: "set-lru" (the default on a GPU), or "static", which holds hot_keys; both run on the
            GPU. "sieve" (the default on the CPU), "s3-fifo", "lru" and "clock" run on the host,
            which sees all keys: slower.
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
        if device is None:
            if not torch.cuda.is_available():
                raise RuntimeError(
                    "a cache on the GPU needs a GPU, and torch finds none here; use "
                    "cpu_cached_feature, or name a device"
                )
            device = torch.device("cuda", torch.cuda.current_device())
        self._place = device = check_device(device)
        super().__init__(cache_shape, dtype, policy, hot_keys)
        self._rows = torch.empty(self.capacity, self.row_bytes, dtype=torch.uint8, device=device)
        # The last use of the rows: kernels of another stream wait for it on the device.
        # The first use waits for the stream that the rows were allocated on.
        self._last_use: torch.cuda.Event | None = None
        if self.device.type == "cuda":
            self._last_use = torch.cuda.current_stream(self.device).record_event()
        self._settings = (cache_shape, dtype, policy, device, hot_keys)

    def _new_index(
        self, capacity: int, policy: str | None, hot_keys: Array | None
    ) -> CacheIndex | DeviceIndex:
        place = torch.empty(0, device=self._place).device  # with the number of the GPU
        on_gpu = on_device(torch.empty(0, device=place))
        if policy is None:
            policy = "set-lru" if on_gpu else "sieve"
        check_policy(capacity, policy, hot_keys, ["set-lru", *POLICIES])
        if not on_gpu or policy not in ON_GPU:
            if policy == "set-lru":
                raise ValueError(
                    f"policy is 'set-lru', which runs on a GPU, for a cache on {place}; expected "
                    f"one of {list(POLICIES)}"
                )
            return CacheIndex(capacity, policy, hot_keys)
        check_triton()
        if hot_keys is not None:
            return StaticIndex(capacity, hot_keys, place)
        return SetLRUIndex(capacity, place)

    @property
    def device(self) -> torch.device:
        """Where the rows are."""
        return self._rows.device

    def _device(self) -> torch.device:
        return self._rows.device

    def _allocate(self, count: int) -> torch.Tensor:
        return torch.empty((count, *self.row_shape), dtype=self.dtype, device=self.device)

    def query(
        self, keys: torch.Tensor, offset: int = 0
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """See `FeatureCache.query`; with an index on the GPU, results are there."""
        if isinstance(self._index, CacheIndex):
            return super().query(keys, offset)
        call = self._look_up(keys, LAST_KEY - check_offset(offset), "keys", offset)
        where = call.numbers >= 0
        index = _picked(torch.arange(len(where), device=self.device), where, call.missing)
        calls = torch.full((call.missing,), call.number, device=self.device)
        return call.out, index, call.ids[index], calls

    def query_and_replace(
        self, keys: torch.Tensor, reader_fn: Callable[[torch.Tensor], torch.Tensor], offset: int = 0
    ) -> torch.Tensor:
        """See `FeatureCache.query_and_replace`; with an index on the GPU, missing keys are there.

        They are distinct then, in the order in which they first occur.

        Raises:
            TypeError, ValueError: as there.
        """
        if isinstance(self._index, CacheIndex):
            return super().query_and_replace(keys, reader_fn, offset)
        if not callable(reader_fn):
            raise TypeError(f"reader_fn is a {type(reader_fn).__name__}; expected a function")
        return self._fetch(keys, LAST_KEY - check_offset(offset), "keys", offset, reader_fn)

    def forget(self, keys: torch.Tensor, offset: int = 0) -> None:
        """See `FeatureCache.forget`."""
        if isinstance(self._index, CacheIndex):
            super().forget(keys, offset)
            return
        ids = self._checked_ids(keys, LAST_KEY - check_offset(offset), "keys")
        with self._turn() as index:
            index.forget(ids, offset)

    def forget_range(self, low: int, high: int) -> None:
        """See `FeatureCache.forget_range`."""
        if isinstance(self._index, CacheIndex):
            super().forget_range(low, high)
            return
        check_offset(low, "low")
        check_offset(high, "high")
        with self._turn() as index:
            index.forget_range(low, high)

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        """Orders uses of the rows on all streams as their callers hold the lock, without a wait."""
        if self.device.type != "cuda":
            yield
            return
        stream = torch.cuda.current_stream(self.device)
        assert self._last_use is not None
        stream.wait_event(self._last_use)
        index = self._index.tensors() if isinstance(self._index, DeviceIndex) else ()
        for tensor in (self._rows, *index):
            tensor.record_stream(stream)
        try:
            yield
        finally:
            self._last_use = stream.record_event()

    @contextmanager
    def _turn(self) -> Iterator[DeviceIndex]:
        """The index on the device, for one caller at a time."""
        assert isinstance(self._index, DeviceIndex)
        with self._lock, self._in_turn():
            yield self._index

    # -------------------------------------------------------------------------------------------
    # With an index on the device

    def _checked_ids(self, ids: torch.Tensor, count: int, what: str) -> torch.Tensor:
        from hopline.pipes.host_reads import HostReads  # not before there is a GPU: needs Triton

        reads = HostReads(self.device)
        checked = reads.check_ids(ids, count, what, torch.int64)
        reads.read()
        return checked

    def _look_up(self, ids: Any, count: int, what: str, offset: int) -> _Call:
        """Looks ids up, in [0, count), and copies out what is there; the host waits once."""
        from hopline.pipes.host_reads import HostReads
        from hopline.pipes.kernels.cuda.rows import overlay_rows

        reads = HostReads(self.device)
        checked = reads.check_ids(ids, count, what, torch.int64)
        out = self._allocate(len(checked))
        with self._turn() as index:
            # Ids out of range are not known yet: they are looked up, and change no more than the
            # stamp of some key's way.
            number = index.next_call()
            slots = index.look_up(checked, offset, number)
            if out.numel():
                overlay_rows(as_bytes(out), self._rows, slots)
        numbers, first = distinct(checked, slots < 0)
        missing, to_read = reads.read((slots < 0).sum(), first.sum())
        with self._lock:
            index.requests += len(checked)
            index.misses += to_read
        return _Call(checked, number, out, numbers, first, missing, to_read)

    def _fetch(
        self,
        ids: Any,
        count: int,
        what: str,
        offset: int,
        reader: Callable[[torch.Tensor], torch.Tensor],
    ) -> torch.Tensor:
        """Rows of ids in [0, count); those that are missing are read, and kept."""
        from hopline.pipes.kernels.cuda.rows import overlay_rows

        call = self._look_up(ids, count, what, offset)
        if call.missing == 0:
            return call.out
        asked = _picked(call.ids, call.first, call.to_read)
        fetched = self._checked(reader(asked), call.to_read, "was given")
        with self._turn() as index:
            if index.is_current(call.number):
                self._keep(index, asked, fetched, offset, call.number)
        if call.to_read == len(call.ids):  # nothing was here: rows are in order as they were read
            return fetched
        if call.out.numel():
            overlay_rows(as_bytes(call.out), as_bytes(fetched), call.numbers)
        return call.out

    def _keep(
        self, index: DeviceIndex, ids: torch.Tensor, rows: torch.Tensor, offset: int, call: int
    ) -> None:
        """Lets distinct keys in, and writes their rows; in turn."""
        try:
            self._write_there(rows, index.place(ids, offset, call))
        except BaseException:  # Ctrl-C too: the index must not promise rows that were not written
            index.forget_range(0, LAST_KEY)
            raise

    def _write_there(self, rows: torch.Tensor, slots: torch.Tensor) -> None:
        from hopline.pipes.kernels.cuda.rows import scatter_rows

        if len(slots) and self.row_bytes:
            scatter_rows(self._rows, slots, as_bytes(rows))

    def _put(self, ids: Array, values: torch.Tensor, calls: Array | None, offset: int) -> None:
        if isinstance(self._index, CacheIndex):
            super()._put(ids, values, calls, offset)
            return
        # Of a key given twice, the last counts.
        _, last = np.unique(ids[::-1], return_index=True)
        rows = np.sort(len(ids) - 1 - last)
        with self._turn() as index:
            number = index.next_call()
            if calls is not None:
                current = [index.is_current(call) for call in calls[rows].tolist()]
                rows = rows[np.array(current, bool)]
                number = max(calls[rows].tolist(), default=number)
            if len(rows):
                there = self._there(ids[rows])
                values = values.index_select(0, self._there(rows))
                self._keep(index, there, values, offset, number)

    # -------------------------------------------------------------------------------------------
    # With an index on the host

    def _take(self, ids: Array, offset: int) -> tuple[Request, torch.Tensor | None]:
        with self._lock:
            request = self._host_index.request(ids, offset)
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
    _maker = "gpu_cached_feature"
    cache: GPUFeatureCache

    def read(self, ids: torch.Tensor | None = None) -> torch.Tensor:
        """Rows by id, on the cache's device, or all rows, past the cache; see `Feature.read`."""
        if ids is None or not isinstance(self.cache._index, DeviceIndex):
            return super().read(ids)
        rows = self.cache._fetch(ids, self._count, "feature ids", self.offset, self._read_slowly)
        return reinterpreted(rows, self._dtype, self._size)


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
        policy: as of `GPUFeatureCache`; "static" holds hot_ids.
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


def _picked(values: torch.Tensor, wanted: torch.Tensor, count: int) -> torch.Tensor:
    """The `count` values that are wanted, without the host waiting for their number.

    Args:
        values: [n].
        wanted: bool[n], of which `count` hold.
        count: known beforehand.
    """
    places = torch.where(wanted, torch.cumsum(wanted, 0) - 1, count)
    return values.new_empty(count + 1).scatter_(0, places, values)[:count]
