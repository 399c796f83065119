"""ItemSampler, DistributedItemSampler: item sets in batches, any of them computed by itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import torch
import torch.distributed as dist

from hopline.pipes.checks import check_count, check_flag
from hopline.pipes.items import HeteroItemSet, ItemSet
from hopline.pipes.kernels import cpu
from hopline.pipes.minibatch import MiniBatch
from hopline.pipes.random import Purpose, draw_seed, fold
from hopline.pipes.stage import Source

__all__ = ["DistributedItemSampler", "ItemSampler", "calculate_range", "minibatcher_default"]

Minibatcher = Callable[[Any, tuple[str, ...] | None], MiniBatch]


def count_split(total: int, parts: int, part: int, batch_size: int) -> tuple[int, int]:
    """Deals items out to parts in whole batches, as evenly as that allows.

    Returns:
        (items of the part, items of all parts before it).
    """
    rounds, rest = divmod(total, parts * batch_size)
    whole, tail = divmod(rest, batch_size)
    extra = batch_size if part < whole else tail if part == whole else 0
    return rounds * batch_size + extra, rounds * part * batch_size + min(part * batch_size, rest)


def check_part(value: int, name: str, parts: int) -> None:
    """Refuses what is no number in [0, parts).

    Raises:
        TypeError: not an int.
        ValueError: out of range.
    """
    if not 0 <= check_count(value, name, None) < parts:
        raise ValueError(f"{name} is {value}; expected a {name} in [0, {parts})")


def calculate_range(
    distributed: bool,
    total: int,
    num_replicas: int,
    rank: int,
    num_workers: int,
    worker_id: int,
    batch_size: int,
    drop_last: bool,
    drop_uneven_inputs: bool,
) -> tuple[int, int, int]:
    """Which items one worker of one rank reads, and how many of them it delivers.

    Args:
        distributed: whether ranks share the items; else num_replicas, rank and drop_uneven_inputs
            are not read, and workers share by other means.
        total: number of items.
        num_replicas: number of ranks.
        rank: this rank.
        num_workers: workers of a rank; 0 or 1 for a rank that does not split further.
        worker_id: this worker.
        batch_size: items a batch.
        drop_last: deliver whole batches only.
        drop_uneven_inputs: deliver as many batches on every rank.

    Returns:
        (first item, items assigned, items delivered); the items assigned to all workers of all
        ranks are [0, total), without overlap.

    Raises:
        TypeError: a number is no int, a flag no bool.
        ValueError: a number is out of range.

    >>> calculate_range(True, 15, 4, 3, 1, 0, 2, True, True)
    (12, 3, 2)
    """
    check_count(total, "total")
    check_count(batch_size, "batch_size", 1)
    check_flag(distributed, "distributed")
    check_flag(drop_last, "drop_last")
    check_flag(drop_uneven_inputs, "drop_uneven_inputs")
    if distributed:
        check_part(rank, "rank", check_count(num_replicas, "num_replicas", 1))
        check_part(worker_id, "worker_id", max(check_count(num_workers, "num_workers"), 1))
    if not distributed:
        return 0, total, total // batch_size * batch_size if drop_last else total
    assigned, start = count_split(total, num_replicas, rank, batch_size)
    if drop_uneven_inputs and drop_last:
        output = total // (batch_size * num_replicas) * batch_size
    elif drop_uneven_inputs:
        fewest, _ = count_split(total, num_replicas, num_replicas - 1, batch_size)
        output = min(-(-fewest // batch_size) * batch_size, assigned)
    elif drop_last:
        output = assigned // batch_size * batch_size
    else:
        output = assigned
    if num_workers > 1:
        dropped, dropped_before = count_split(assigned - output, num_workers, worker_id, 1)
        output, output_before = count_split(output, num_workers, worker_id, batch_size)
        assigned = output + dropped
        start += output_before + dropped_before
    return start, assigned, output


# What GraphBolt called seeds in earlier releases.
EARLIER_NAMES = {"seed_nodes": "seeds", "node_pairs": "seeds"}


def minibatcher_default(batch: Any, names: tuple[str, ...] | None) -> MiniBatch:
    """A mini-batch from the columns of a batch of items.

    Args:
        batch: a column, a tuple of columns, or `{type: columns}`.
        names: one name a column; "seed_nodes" and "node_pairs" become "seeds".

    Raises:
        TypeError: names are not in a tuple or list.
        ValueError: there are no names, or not one a column.
    """
    if names is None:
        raise ValueError(
            "the item set has no names, so its columns cannot be told apart; pass "
            "ItemSet(items, names=('seeds', 'labels')), or a minibatcher of your own"
        )
    if not isinstance(names, tuple | list) or not all(isinstance(n, str) for n in names):
        raise TypeError(f"names is {names!r:.80}; expected a tuple of strings")
    given, names = names, tuple(EARLIER_NAMES.get(name, name) for name in names)
    if len(set(names)) < len(names):
        raise ValueError(
            f"names are {tuple(given)}; expected a name of its own for each column, of which one "
            f"at most is seeds ({', '.join(['seeds', *EARLIER_NAMES])})"
        )
    if isinstance(batch, dict):
        typed: dict[str, dict[str, Any]] = {name: {} for name in names}
        for kind, columns in batch.items():
            columns = _columns(columns, names)
            for name, column in zip(names, columns, strict=True):
                typed[name][kind] = column
        return MiniBatch.from_columns(typed)
    columns = _columns(batch, names)
    return MiniBatch.from_columns(dict(zip(names, columns, strict=True)))


def _columns(batch: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
    columns = batch if isinstance(batch, tuple) else (batch,)
    if len(columns) != len(names):
        raise ValueError(f"got {len(columns)} columns for the names {names}; expected as many")
    return columns


@lru_cache(maxsize=64)
def _round_keys(seed: int, epoch: int, total: int) -> np.ndarray[Any, Any]:
    """Keys of the rounds that shuffle so many items in one epoch."""
    key = fold(seed, Purpose.SHUFFLE, epoch)
    rounds = 4 * total.bit_length() + 16
    keys = np.array([fold(key, r) for r in range(rounds)], np.uint64)
    keys.flags.writeable = False
    return keys


def _copied(items: Any) -> Any:
    """The same items in tensors and arrays of their own."""
    if isinstance(items, torch.Tensor):
        return items.clone()
    if isinstance(items, np.ndarray):
        return items.copy()
    if isinstance(items, dict):
        return {kind: _copied(columns) for kind, columns in items.items()}
    if type(items) in (list, tuple):
        return type(items)(_copied(item) for item in items)
    return items


MOST_RANKS = 2**31


def _flag(value: Any, name: str) -> bool:
    check_flag(value, name)
    return bool(value)


class ItemSampler(Source):
    """Batches of an item set: the head of a chain.

    Batch i of epoch e is computed from (seed, e, i): a new permutation every epoch, nothing to
    store, nothing to replay.

    Args:
        item_set: what to read.
        batch_size: items a batch, 1 or more.
        minibatcher: makes a `MiniBatch` of (batch, names); by default names fill its fields.
        drop_last: leave out the last batch if it is not full.
        shuffle: permute the items anew in each epoch.
        seed: int in [0, 2**63); None draws one, see `seed`.

    Attributes:
        seed: the seed in use.

    Raises:
        TypeError, ValueError: an argument of wrong kind or value.

    >>> sampler = ItemSampler(ItemSet(5, names="seeds"), batch_size=2)
    >>> [minibatch.seeds.tolist() for minibatch in sampler], len(sampler)
    ([[0, 1], [2, 3], [4]], 3)
    """

    computed: ClassVar[bool] = True

    def __init__(
        self,
        item_set: ItemSet | HeteroItemSet,
        batch_size: int,
        minibatcher: Minibatcher = minibatcher_default,
        drop_last: bool = False,
        shuffle: bool = False,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(item_set, ItemSet | HeteroItemSet):
            raise TypeError(
                f"item_set is a {type(item_set).__name__}; expected ItemSet or HeteroItemSet"
            )
        if isinstance(batch_size, bool) or not isinstance(batch_size, int):
            raise TypeError(f"batch_size is {batch_size!r}; expected an int")
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; expected 1 or more")
        if not callable(minibatcher):
            raise TypeError(f"minibatcher is a {type(minibatcher).__name__}; expected a function")
        if minibatcher is minibatcher_default and item_set.names is None:
            minibatcher_default((), None)
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
            raise TypeError(f"seed is {seed!r}; expected an int or None")
        if seed is not None and not 0 <= seed < 1 << 63:
            raise ValueError(f"seed is {seed}; expected an int in [0, 2**63)")
        self.item_set = item_set
        self.batch_size = batch_size
        self.minibatcher = minibatcher
        self.drop_last = _flag(drop_last, "drop_last")
        self.shuffle = _flag(shuffle, "shuffle")
        self.seed_given = seed is not None
        self.seed: int = draw_seed() if seed is None else seed
        # First item, items delivered: what this sampler reads of the epoch's order.
        self._start, _, self._output = self._range()

    def _range(self) -> tuple[int, int, int]:
        return calculate_range(
            False, len(self.item_set), 1, 0, 0, 0, self.batch_size, self.drop_last, False
        )

    def __len__(self) -> int:
        return -(-self._output // self.batch_size)

    def batch(self, epoch: int, index: int, seed: int | None = None) -> MiniBatch:
        """Mini-batch number `index` of an epoch.

        Its key holds the index among the batches of all ranks: no two ranks share a key.

        Raises:
            IndexError: index is outside [0, len(self)).
            TypeError: a number is no int.
            ValueError: epoch or seed is negative.
        """
        check_count(epoch, "epoch")
        if not 0 <= check_count(index, "index", None) < len(self):
            raise IndexError(f"mini-batch {index} of {len(self)}")
        seed = self.seed if seed is None else check_count(seed, "seed")
        low = self._start + index * self.batch_size
        high = min(low + self.batch_size, self._start + self._output)
        items: Any
        if self.shuffle:
            order = np.empty(high - low, np.int64)
            total = len(self.item_set)
            cpu.shuffled_range(_round_keys(seed, epoch, total), total, low, order)
            items = self.item_set[torch.from_numpy(order)]
        else:
            items = self.item_set[low:high]
        # A stage may change what it is given in place: the items must stay as they are.
        minibatch = self.minibatcher(_copied(items), self.item_set.names)
        if isinstance(minibatch, MiniBatch):
            minibatch.key = (seed, epoch, -(-self._start // self.batch_size) + index)
        return minibatch

    def settings(self) -> dict[str, Any]:
        """Everything but the seed that decides what a batch holds."""
        return {
            "items": len(self.item_set),
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
            "shuffle": self.shuffle,
        }

    def __repr__(self) -> str:
        values = ", ".join(f"{key}={value}" for key, value in self.settings().items())
        return f"{type(self).__name__}({values}, seed={self.seed})"


class DistributedItemSampler(ItemSampler):
    """The batches of one rank: each epoch's permutation is of all items, then dealt out.

    Ranks never share an item in an epoch, and over the epochs each meets every item. Ranks may
    have a batch more or fewer than others; see `drop_uneven_inputs`, or train under
    `torch.distributed.algorithms.Join`.

    Args:
        item_set: as in `ItemSampler`, the same on all ranks.
        batch_size: items a batch and rank.
        minibatcher: as in `ItemSampler`.
        drop_last: leave out each rank's last batch if it is not full.
        shuffle: permute the items anew in each epoch, alike on all ranks.
        drop_uneven_inputs: leave out batches until all ranks have as many.
        seed: as in `ItemSampler`; None draws one on rank 0 and sends it to the others.
        num_replicas: number of ranks; None asks `torch.distributed`.
        rank: this rank; None asks `torch.distributed`.

    Raises:
        RuntimeError: ranks are to be asked for, and no process group is initialised.
        TypeError: num_replicas or rank is no int.
        ValueError: rank is not in [0, num_replicas), there are more than 2**31 ranks, or a seed is
            missing without a process group.
    """

    def __init__(
        self,
        item_set: ItemSet | HeteroItemSet,
        batch_size: int,
        minibatcher: Minibatcher = minibatcher_default,
        drop_last: bool = False,
        shuffle: bool = False,
        drop_uneven_inputs: bool = False,
        seed: int | None = None,
        *,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        initialised = dist.is_available() and dist.is_initialized()
        if (num_replicas is None) != (rank is None):
            raise ValueError(
                f"num_replicas is {num_replicas} and rank {rank}; give both or neither"
            )
        if num_replicas is None or rank is None:
            if not initialised:
                raise RuntimeError(
                    "no process group is initialised; call torch.distributed.init_process_group "
                    "first, or pass num_replicas and rank"
                )
            num_replicas, rank = dist.get_world_size(), dist.get_rank()
        check_part(rank, "rank", check_count(num_replicas, "num_replicas", None))
        if num_replicas > MOST_RANKS:
            raise ValueError(f"num_replicas is {num_replicas}; expected {MOST_RANKS} or fewer")
        self.drop_uneven_inputs = _flag(drop_uneven_inputs, "drop_uneven_inputs")
        self.num_replicas = num_replicas
        self.rank = rank
        super().__init__(item_set, batch_size, minibatcher, drop_last, shuffle, seed)
        if seed is None and num_replicas > 1:
            if not initialised:
                raise ValueError(
                    "without a process group ranks cannot agree on a seed; pass seed=..., the same "
                    "on all ranks"
                )
            self.seed = _seed_of_first_rank(self.seed)

    def _range(self) -> tuple[int, int, int]:
        return calculate_range(
            True, len(self.item_set), self.num_replicas, self.rank, 0, 0, self.batch_size,
            self.drop_last, self.drop_uneven_inputs,
        )  # fmt: skip

    def settings(self) -> dict[str, Any]:
        """Everything but the seed that decides what a batch holds."""
        return {
            **super().settings(),
            "drop_uneven_inputs": self.drop_uneven_inputs,
            "num_replicas": self.num_replicas,
            "rank": self.rank,
        }


def _seed_of_first_rank(seed: int) -> int:
    """Rank 0's seed, by one broadcast on the default group."""
    device = "cuda" if dist.get_backend() == dist.Backend.NCCL else "cpu"
    value = torch.tensor([seed], dtype=torch.int64, device=device)
    dist.broadcast(value, src=0)
    return int(value.item())
