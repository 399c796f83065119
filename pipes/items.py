"""ItemSet, HeteroItemSet: what is trained on (seeds, labels, timestamps, any named column)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from hopline.pipes.checks import check_values

__all__ = ["HeteroItemSet", "ItemSet"]

INTEGER_DTYPES = frozenset({torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8})
MOST = 2**62  # items: room for the sums of int64 that places in an epoch are made of


def _length(column: Any) -> int:
    return int(column.shape[0]) if isinstance(column, torch.Tensor) else len(column)


def _check_column(column: Any, where: str) -> Any:
    if isinstance(column, np.ndarray):
        raise TypeError(
            f"{where} is a numpy array; pass torch.from_numpy(array), or a list for other items"
        )
    if isinstance(column, torch.Tensor):
        if column.layout != torch.strided or column.is_nested:
            raise TypeError(f"{where} is a sparse or nested tensor; expected a dense one")
        check_values(column, where)
        if column.dim() == 0:
            raise ValueError(f"{where} is a 0-d tensor; a column of several needs at least 1 dim")
    elif not isinstance(column, Sequence) or isinstance(column, str | bytes):
        raise TypeError(
            f"{where} is a {type(column).__name__}; expected a torch.Tensor or a sequence"
        )
    return column


def _check_index(index: torch.Tensor, length: int) -> torch.Tensor:
    """A 1-D index of int64 in [0, length), negative entries wrapped as torch does."""
    if index.dtype not in INTEGER_DTYPES:
        raise TypeError(f"item index has dtype {index.dtype}; expected integers")
    if index.dim() != 1:
        raise ValueError(f"item index has shape {tuple(index.shape)}; expected one dimension")
    check_values(index, "item index")
    index = index.to(device="cpu", dtype=torch.int64)
    if index.numel():
        low, high = (int(x) for x in torch.aminmax(index))
        if low < -length or high >= length:
            bad = high if high >= length else low
            raise IndexError(f"item index {bad} is out of range for {length} items")
        if low < 0:
            index = torch.where(index < 0, index + length, index)
    return index


def _unwrap(index: Any) -> Any:
    """A 0-d tensor as an int; anything else as it is."""
    if not isinstance(index, torch.Tensor) or index.dim():
        return index
    if index.dtype not in INTEGER_DTYPES:
        raise TypeError(f"item index has dtype {index.dtype}; expected integers")
    check_values(index, "item index")
    return int(index)


def _positions(part: slice, length: int) -> torch.Tensor:
    """int64 positions that a slice of so many items takes; `torch.arange` refuses empty slices."""
    return torch.from_numpy(np.arange(*part.indices(length), dtype=np.int64))


def _wrap(i: int, length: int) -> int:
    """Position of item i; IndexError as a sequence gives, which also ends iteration."""
    if not -length <= i < length:
        raise IndexError(f"item index {i} is out of range for {length} items")
    return i + length if i < 0 else i


class ItemSet:
    """Indexable items of one kind, in one or more columns of equal length.

    Args:
        items: an int n or 0-d integer tensor (items 0..n-1, of int64 or the tensor's dtype); a
            tensor (its rows); a tuple of tensors and sequences (one column each); or any other
            sequence.
        names: one name per column, as a string or a tuple of strings. Mini-batches carry a column
            under its name: "seeds", "labels", "indexes", "timestamp", or any other.

    Raises:
        TypeError: items are of no such kind, or a name is not a string.
        ValueError: columns differ in length, a name is missing or given twice.

    >>> s = ItemSet((torch.tensor([4, 5, 6]), torch.tensor([0, 1, 0])), names=("seeds", "labels"))
    >>> len(s), s[1]
    (3, (tensor(5), tensor(1)))
    """

    def __init__(self, items: Any, names: str | Sequence[str] | None = None) -> None:
        self._dtype = torch.int64
        if isinstance(items, torch.Tensor) and items.dim() == 0:
            if items.dtype not in INTEGER_DTYPES:
                raise TypeError(f"a 0-d tensor of items has dtype {items.dtype}; expected integers")
            check_values(items, "items")
            self._dtype = items.dtype
            items = int(items)
        if isinstance(items, bool):
            raise TypeError("items is a bool; expected an int, a tensor, a tuple or a sequence")
        self._count: int | None = None
        self._items: tuple[Any, ...] = ()
        if isinstance(items, int | np.integer):
            if items < 0:
                raise ValueError(f"number of items is {items}; expected 0 or more")
            if items > MOST:
                raise ValueError(f"number of items is {items}; expected {MOST} or fewer")
            self._count = int(items)
        elif isinstance(items, tuple):
            if not items:
                raise ValueError("items is an empty tuple; expected one column or more")
            self._items = tuple(_check_column(c, f"items[{k}]") for k, c in enumerate(items))
        else:
            self._items = (_check_column(items, "items"),)
        self._single = not isinstance(items, tuple)
        lengths = [_length(column) for column in self._items]
        if len(set(lengths)) > 1:
            raise ValueError(f"columns have lengths {lengths}; expected one length for all")
        self._len = self._count if self._count is not None else lengths[0]
        self._names = self._check_names(names)

    def _check_names(self, names: str | Sequence[str] | None) -> tuple[str, ...] | None:
        if names is None:
            return None
        names = (names,) if isinstance(names, str) else names
        if not isinstance(names, Sequence):
            raise TypeError(f"names is {names!r}; expected a string, or a tuple of strings")
        names = tuple(names)
        for name in names:
            if not isinstance(name, str):
                raise TypeError(f"a column name is {name!r}; expected a string")
        if len(names) != self.num_items:
            raise ValueError(f"got {len(names)} names {names} for {self.num_items} columns")
        if len(set(names)) != len(names):
            raise ValueError(f"names {names} repeat; expected each once")
        return names

    @property
    def names(self) -> tuple[str, ...] | None:
        """Name of each column, or None."""
        return self._names

    @property
    def num_items(self) -> int:
        """Number of columns."""
        return 1 if self._count is not None else len(self._items)

    def __len__(self) -> int:
        return self._len

    def __getitem__(self, index: int | slice | torch.Tensor) -> Any:
        """One item (int), or the columns of several (slice or 1-D integer tensor).

        Raises:
            IndexError: an index is out of range.
            TypeError: the index is of another kind.
        """
        if isinstance(index, bool) or not isinstance(
            index, int | np.integer | slice | torch.Tensor
        ):
            raise TypeError(
                f"item index is a {type(index).__name__}; expected int, slice or torch.Tensor"
            )
        index = _unwrap(index)
        if isinstance(index, torch.Tensor):
            index = _check_index(index, self._len)
        if isinstance(index, int | np.integer):
            index = _wrap(int(index), self._len)
        if self._count is not None:
            return self._numbers(index)
        picked = tuple(self._pick(column, index) for column in self._items)
        return picked[0] if self._single else picked

    def _numbers(self, index: int | slice | torch.Tensor) -> torch.Tensor:
        if isinstance(index, slice):
            return _positions(index, self._len).to(self._dtype)
        if isinstance(index, int):
            return torch.tensor(index, dtype=self._dtype, device="cpu")
        return index.to(self._dtype)

    @staticmethod
    def _pick(column: Any, index: int | slice | torch.Tensor) -> Any:
        if isinstance(index, torch.Tensor) and not isinstance(column, torch.Tensor):
            return [column[i] for i in index.tolist()]
        if isinstance(column, torch.Tensor) and isinstance(index, slice) and (index.step or 1) < 0:
            return column[_positions(index, len(column))]
        return column[index]

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(self._len))

    def __repr__(self) -> str:
        return f"ItemSet({self._len} items, names={self._names})"


class HeteroItemSet:
    """Items of several types, one `ItemSet` each, numbered one type after another.

    Args:
        itemsets: `{type: ItemSet}`; all item sets carry the same names.

    Raises:
        TypeError: a key is not a string or a value not an ItemSet.
        ValueError: no item set is given, or their names or numbers of columns differ.

    >>> h = HeteroItemSet({"user": ItemSet(2, "seeds"), "item": ItemSet(3, "seeds")})
    >>> len(h), h[1:4]
    (5, {'user': tensor([1]), 'item': tensor([0, 1])})
    """

    def __init__(self, itemsets: Mapping[str, ItemSet]) -> None:
        if not isinstance(itemsets, Mapping):
            raise TypeError(f"itemsets is a {type(itemsets).__name__}; expected a dict of ItemSets")
        if not itemsets:
            raise ValueError("itemsets is empty; expected one item set or more")
        for key, value in itemsets.items():
            if not isinstance(key, str) or not isinstance(value, ItemSet):
                raise TypeError(
                    f"itemsets[{key!r}] is a {type(value).__name__}; expected a string for the "
                    "type and an ItemSet"
                )
        names = {key: value.names for key, value in itemsets.items()}
        if len(set(names.values())) > 1:
            raise ValueError(f"item sets are named {names}; expected the same names for all")
        columns = {key: value.num_items for key, value in itemsets.items()}
        if len(set(columns.values())) > 1:
            raise ValueError(f"item sets have columns {columns}; expected as many in all")
        if (total := sum(len(s) for s in itemsets.values())) > MOST:
            raise ValueError(f"number of items is {total} of all types; expected {MOST} or fewer")
        self._itemsets = dict(itemsets)
        self._keys = list(itemsets)
        self._offsets = np.cumsum([0] + [len(s) for s in itemsets.values()])
        self._names = next(iter(names.values()))

    @property
    def names(self) -> tuple[str, ...] | None:
        """Name of each column, or None."""
        return self._names

    @property
    def num_items(self) -> int:
        """Number of columns."""
        return next(iter(self._itemsets.values())).num_items

    @property
    def itemsets(self) -> dict[str, ItemSet]:
        """The item set of each type."""
        return dict(self._itemsets)

    def __len__(self) -> int:
        return int(self._offsets[-1])

    def __getitem__(self, index: int | slice | torch.Tensor | Sequence[int]) -> dict[str, Any]:
        """`{type: item}` for an int, else `{type: columns}` with the types met, in their order.

        Raises:
            IndexError: an index is out of range.
            TypeError: the index is of another kind.
        """
        if isinstance(index, bool):
            raise TypeError("item index is a bool; expected int, slice or torch.Tensor")
        index = _unwrap(index)
        if isinstance(index, int | np.integer):
            i = _wrap(int(index), len(self))
            k = int(np.searchsorted(self._offsets, i, side="right")) - 1
            return {self._keys[k]: self._itemsets[self._keys[k]][i - int(self._offsets[k])]}
        if isinstance(index, slice):
            index = _positions(index, len(self))
        elif isinstance(index, torch.Tensor):
            index = _check_index(index, len(self))
        elif (
            isinstance(index, Sequence)
            and not isinstance(index, str | bytes)
            and all(type(i) is int for i in index)
        ):
            wrapped = [_wrap(i, len(self)) for i in index]  # ints of any size
            index = torch.tensor(wrapped, dtype=torch.int64, device="cpu")
        else:
            raise TypeError(
                f"item index is a {type(index).__name__}; expected int, slice, sequence of ints or "
                "torch.Tensor"
            )
        if len(self._keys) == 1:
            return {self._keys[0]: self._itemsets[self._keys[0]][index]} if len(index) else {}
        numbers = index.numpy()
        kinds = np.searchsorted(self._offsets, numbers, side="right") - 1
        out: dict[str, Any] = {}
        for k, key in enumerate(self._keys):
            local = numbers[kinds == k] - self._offsets[k]
            if len(local):
                out[key] = self._itemsets[key][torch.from_numpy(local)]
        return out

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"HeteroItemSet({self._itemsets})"
