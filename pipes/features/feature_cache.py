"""FeatureCache, CPUFeatureCache: rows by key, as many as fit, chosen by a policy.

What is read never depends on the cache: every row is the one that the slower feature has. Several
threads read at once. Only the policy's look-up and the writing of new rows are done under a lock;
the slower feature is read, and rows are copied out, without it:

- A row that is copied out may be overwritten meanwhile, its key being evicted by another thread.
  Every writing has a number, and each slot that of its last writing: after the copy, rows whose
  slot was written to since are discarded, and read from the slower feature.
- A row that is read from the slower feature may be updated meanwhile. A slot is filled only by its
  owner, the last call that began to read it, and an update takes the ownership away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
import torch

from hopline.pipes.checks import check_ids, check_values
from hopline.pipes.features.buffers import empty
from hopline.pipes.features.device_index import DeviceIndex
from hopline.pipes.features.fork_safe import fork_safe_lock
from hopline.pipes.features.policies import CacheIndex, Request
from hopline.pipes.features.rows import sent
from hopline.pipes.kernels import cache_rows

__all__ = ["LAST_KEY", "CPUFeatureCache", "FeatureCache", "as_bytes", "check_offset"]

Array = np.ndarray[Any, Any]
Reader = Callable[[torch.Tensor], torch.Tensor]

LAST_KEY = 1 << 62


class FeatureCache:
    """What caches have in common; a subclass says where the rows are and how they are copied.

    Args:
        cache_shape: (number of rows, *shape of a row).
        dtype: of the rows.
        policy: "sieve" (the default), "s3-fifo", "lru", "clock" or "static".
        hot_keys: integer[k], for "static": the keys to hold, hottest first.

    Raises:
        TypeError, ValueError: an argument of wrong kind or value.
    """

    def __init__(
        self,
        cache_shape: Sequence[int],
        dtype: torch.dtype,
        policy: str | None = None,
        hot_keys: torch.Tensor | None = None,
    ) -> None:
        shape = _checked_shape(cache_shape)
        if not isinstance(dtype, torch.dtype):
            raise TypeError(f"dtype is {dtype!r}; expected a torch.dtype")
        if hot_keys is not None:
            hot_keys = check_ids(hot_keys, LAST_KEY, "hot keys", torch.int64)
        self.dtype = dtype
        self.row_shape = torch.Size(shape[1:])
        self.row_bytes = self.row_shape.numel() * dtype.itemsize
        self._lock = fork_safe_lock()
        keys = None if hot_keys is None else hot_keys.numpy()
        self._index = self._new_index(shape[0], policy, keys)

    def _new_index(
        self, capacity: int, policy: str | None, hot_keys: Array | None
    ) -> CacheIndex | DeviceIndex:
        return CacheIndex(capacity, "sieve" if policy is None else policy, hot_keys)

    @property
    def _host_index(self) -> CacheIndex:
        assert isinstance(self._index, CacheIndex)
        return self._index

    @property
    def capacity(self) -> int:
        """Number of rows that fit."""
        return self._index.capacity

    @property
    def policy(self) -> str:
        """Name of the policy."""
        return self._index.policy

    @property
    def cache_size_in_bytes(self) -> int:
        """Bytes of the rows that fit."""
        return self.capacity * self.row_bytes

    @property
    def miss_rate(self) -> float:
        """Share of the rows asked for so far that the cache did not have; 0.0 before the first."""
        with self._lock:
            return self._index.miss_rate

    def _for_rows(self, shape: Sequence[int], dtype: torch.dtype) -> Self:
        """An empty cache with the same settings for (number of rows, *shape of a row)."""
        other = object.__new__(type(self))
        other.__setstate__((shape, dtype, *self.__getstate__()[2:]))
        return other

    def __getstate__(self) -> tuple[Any, ...]:
        """The settings, (cache_shape, dtype, ...): it travels empty."""
        raise NotImplementedError

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        raise NotImplementedError

    def query(
        self, keys: torch.Tensor, offset: int = 0
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Looks keys up, one after the other; those that are missing get a place.

        Args:
            keys: integer[n], 0 or more.
            offset: what to add to them, to tell features that share the cache apart.

        Returns:
            values: [n, *row], undefined where the row is missing.
            missing_index: int64[m], positions of the missing rows.
            missing_keys: int64[m], their keys, without the offset.
            missing_offsets: int64[m], for `replace`: which query asked, so that a row that is
                updated before `replace` is called is not stored.
        """
        ids = _checked_keys(keys, offset)
        request, values = self._take(ids, offset)
        if values is None:
            values = self._allocate(len(ids))
        index = np.flatnonzero(request.source >= 0)
        calls = torch.full((len(index),), request.call, device="cpu")
        return values, torch.from_numpy(index), torch.from_numpy(ids[index]), calls

    def replace(
        self,
        keys: torch.Tensor,
        values: torch.Tensor,
        offsets: torch.Tensor | None = None,
        offset: int = 0,
    ) -> None:
        """Puts rows in.

        Args:
            keys: integer[m], 0 or more.
            values: [m, *row] of the cache's dtype; of a key given twice, the last counts.
            offsets: int64[m], the missing_offsets of `query`; None lets the keys in first.
            offset: what to add to the keys.

        Raises:
            TypeError: an argument is no tensor of the right kind.
            ValueError: the shapes or the dtype do not fit.
        """
        ids = _checked_keys(keys, offset)
        values = self._checked(values, len(ids), "values are")
        if offsets is not None and not isinstance(offsets, torch.Tensor):
            raise TypeError(f"offsets: got a {type(offsets).__name__}; expected a torch.Tensor")
        if offsets is not None and offsets.shape != (len(ids),):
            raise ValueError(
                f"offsets has shape {tuple(offsets.shape)}; expected {len(ids)}, one for each key"
            )
        calls: Array | None = None
        if offsets is not None:
            calls = check_ids(offsets, LAST_KEY, "offsets", torch.int64).numpy()
        self._put(ids, values, calls, offset)

    def _put(self, ids: Array, values: torch.Tensor, calls: Array | None, offset: int) -> None:
        """Puts rows in; calls: int64[m], which query asked for each, or None."""
        with self._lock:
            index = self._host_index
            owners = index.admit(ids, offset) if calls is None else calls
            self._store(values, ids, np.arange(len(ids)), offset, owners)

    def query_and_replace(
        self, keys: torch.Tensor, reader_fn: Reader, offset: int = 0
    ) -> torch.Tensor:
        """Rows in the order of keys; those that are missing are read, and kept for later.

        Args:
            keys: integer[n], 0 or more, which may repeat.
            reader_fn: called at most once, with the int64[m] missing keys, without the offset;
                gives their rows.
            offset: what to add to the keys.

        Returns:
            Tensor of shape [n, *row].

        Raises:
            TypeError: reader_fn is no function, or gave no tensor.
            ValueError: what reader_fn gave has another shape or dtype.
        """
        if not callable(reader_fn):
            raise TypeError(f"reader_fn is a {type(reader_fn).__name__}; expected a function")
        ids = _checked_keys(keys, offset)
        request, out = self._take(ids, offset)
        if len(request.missing) == 0 and out is not None:
            return out
        fetched = reader_fn(torch.from_numpy(ids[request.missing]))
        fetched = self._checked(fetched, len(request.missing), "was given")
        with self._lock:
            self._store(fetched, ids, request.missing, offset, request.call)
        if out is None:  # nothing was here: rows are in order as they were read
            return fetched
        return self._complete(request, fetched, out)

    def forget(self, keys: torch.Tensor, offset: int = 0) -> None:
        """Drops the rows of keys, also those being read now; they are read anew when asked for.

        Args:
            keys: integer[n], 0 or more.
            offset: what to add to them.
        """
        ids = _checked_keys(keys, offset)
        with self._lock:
            self._host_index.forget(ids, offset)

    def forget_range(self, low: int, high: int) -> None:
        """Drops the rows of all keys in [low, high); the policy keeps what it knows of them."""
        check_offset(low, "low")
        check_offset(high, "high")
        with self._lock:
            self._index.forget_range(low, high)

    def _checked(self, rows: Any, count: int, what: str) -> torch.Tensor:
        """Rows as they were asked for, where the cache keeps them."""
        if not isinstance(rows, torch.Tensor):
            raise TypeError(f"{what} a {type(rows).__name__}; expected a torch.Tensor")
        if rows.dtype != self.dtype or rows.shape != (count, *self.row_shape):
            raise ValueError(
                f"{what} {rows.dtype} of shape {tuple(rows.shape)}; expected {self.dtype}"
                f" of shape {(count, *self.row_shape)}"
            )
        check_values(rows, "rows for the cache")
        return sent(rows.detach(), self._device()).contiguous()

    def _store(
        self, rows: torch.Tensor, ids: Array, positions: Array, offset: int, calls: Array | int
    ) -> None:
        """Keeps rows that have been read, where that is still wanted; under the lock."""
        try:
            self._write(rows, *self._host_index.settle(ids, positions, offset, calls))
        except BaseException:  # Ctrl-C too: the index must not promise rows that were not written
            self._host_index.forget(ids, offset)
            raise

    def _device(self) -> torch.device:
        return torch.device("cpu")

    def _allocate(self, count: int) -> torch.Tensor:
        """Uninitialised rows for the reader."""
        raise NotImplementedError

    def _take(self, ids: Array, offset: int) -> tuple[Request, torch.Tensor | None]:
        """Looks ids up, and copies out what is there; None if nothing is."""
        raise NotImplementedError

    def _write(self, fetched: torch.Tensor, slots: Array, which: Array) -> None:
        """Writes rows of a reading to slots; under the lock."""
        raise NotImplementedError

    def _complete(self, request: Request, fetched: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Copies what was read to its places."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.capacity} rows of {tuple(self.row_shape)}, {self.dtype}, "
            f"{self.policy})"
        )


class CPUFeatureCache(FeatureCache):
    """Rows in host memory, chosen by a policy; safe to use from several threads at once.

    The policy takes the keys of a call one after the other, as if each were a request of its own.
    A call may ask for more rows than the cache holds.

    Args:
        cache_shape: (number of rows, *shape of a row).
        dtype: of the rows.
        policy: "sieve" (the default), "s3-fifo", "lru", "clock", or "static", which holds hot_keys.
        num_parts: accepted for GraphBolt's scripts; here the cache is one part, and its policy
            exact.
        pin_memory: keep the rows in page-locked memory.
        hot_keys: integer[k], for "static": the keys to hold, hottest first; those that do not fit
            are left out. Rows are read when they are first asked for.

    Raises:
        TypeError, ValueError: an argument of wrong kind or value.
        RuntimeError: memory is to be pinned, and torch finds no GPU.

    >>> cache = CPUFeatureCache((2, 3), torch.float32)
    >>> table = torch.arange(12.0).view(4, 3)
    >>> cache.query_and_replace(torch.tensor([3, 0, 3]), lambda keys: table[keys])[:, 0].tolist()
    [9.0, 0.0, 9.0]
    >>> cache.miss_rate
    0.6666666666666666
    """

    def __init__(
        self,
        cache_shape: Sequence[int],
        dtype: torch.dtype,
        policy: str | None = None,
        num_parts: int | None = None,
        pin_memory: bool = False,
        *,
        hot_keys: torch.Tensor | None = None,
    ) -> None:
        super().__init__(cache_shape, dtype, policy, hot_keys)
        if num_parts is not None and (
            isinstance(num_parts, bool) or not isinstance(num_parts, int)
        ):
            raise TypeError(f"num_parts is {num_parts!r}; expected an int or None")
        if num_parts is not None and num_parts < 1:
            raise ValueError(f"num_parts is {num_parts}; expected 1 or more, or None")
        if pin_memory and not torch.cuda.is_available():
            raise RuntimeError("pinning memory needs a GPU, and torch finds none here")
        self._settings = (cache_shape, dtype, policy, num_parts, pin_memory, hot_keys)
        self._rows = torch.empty(
            self.capacity * self.row_bytes,
            dtype=torch.uint8,
            device="cpu",
            pin_memory=pin_memory,
        )
        self._flat = self._rows.numpy()

    def is_pinned(self) -> bool:
        """Whether the rows are in page-locked memory."""
        return self._rows.is_pinned() if torch.cuda.is_available() else False

    def _allocate(self, count: int) -> torch.Tensor:
        return empty((count, *self.row_shape), self.dtype)

    def _take(self, ids: Array, offset: int) -> tuple[Request, torch.Tensor | None]:
        with self._lock:
            request = self._host_index.request(ids, offset)
        if len(ids) and len(request.missing) == len(ids):
            return request, None
        out = self._allocate(len(ids))
        if out.numel():
            cache_rows.copy_hits(self._flat, self.row_bytes, request.source, _flat(out))
        with self._lock:
            self._host_index.recheck(request)
        return request, out

    def _write(self, fetched: torch.Tensor, slots: Array, which: Array) -> None:
        if len(slots) and self.row_bytes:
            cache_rows.store_rows(_flat(fetched), self.row_bytes, which, slots, self._flat)

    def _complete(self, request: Request, fetched: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        if out.numel():
            cache_rows.copy_fetched(_flat(fetched), self.row_bytes, request.source, _flat(out))
        return out

    def __getstate__(self) -> tuple[Any, ...]:
        return self._settings  # travels empty: another process fills its own

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        *positional, hot_keys = state
        self.__init__(*positional, hot_keys=hot_keys)  # type: ignore[misc]


def as_bytes(rows: torch.Tensor) -> torch.Tensor:
    """uint8[n, row_bytes], the memory of contiguous rows that have bytes."""
    flat = rows.reshape(-1)
    if flat.stride(0) != 1:  # one element: torch calls it contiguous whatever its stride
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8).view(len(rows), -1)


def _flat(rows: torch.Tensor) -> Array:
    array: Array = as_bytes(rows).view(-1).numpy()
    return array


def _checked_shape(shape: Any) -> tuple[int, ...]:
    if isinstance(shape, str) or not isinstance(shape, Sequence):
        raise TypeError(f"cache_shape is {shape!r}; expected (rows, *shape of a row)")
    for entry in shape:
        if isinstance(entry, bool) or not isinstance(entry, int):
            raise TypeError(f"cache_shape is {shape!r}; expected ints")
    if not shape or min(shape) < 0:
        raise ValueError(f"cache_shape is {shape!r}; expected (rows, *shape of a row)")
    return tuple(shape)


def check_offset(offset: Any, what: str = "offset") -> int:
    """What is added to ids for a cache's keys.

    Raises:
        TypeError: not an int.
        ValueError: negative.
    """
    if isinstance(offset, bool) or not isinstance(offset, int):
        raise TypeError(f"{what} is {offset!r}; expected an int")
    if not 0 <= offset <= LAST_KEY:
        raise ValueError(f"{what} is {offset}; expected 0 or more")
    return offset


def _checked_keys(keys: Any, offset: Any) -> Array:
    limit = LAST_KEY - check_offset(offset)
    return check_ids(keys, limit, "keys", torch.int64).numpy()
