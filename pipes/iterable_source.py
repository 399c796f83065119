"""IterableSource: any iterable of mini-batches as the head of a chain."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, NoReturn

import numpy as np
import torch
from torchdata.nodes import BaseNode, Loader

from hopline.pipes.minibatch import MiniBatch
from hopline.pipes.stage import Chain, Source

__all__ = ["IterableSource", "Walk"]


class IterableSource(Source):
    """Walks an iterable of mini-batches.

    It is walked by one thread, in order. A mini-batch that carries no key gets
    (seed, epoch, position). To resume, a torchdata node or an iterable with `state_dict` and
    `load_state_dict` is put back in the state it was in after the last mini-batch that was
    delivered; another iterable is started again and read past what was delivered.

    A node, and an iterable that keeps a state, hold one place: they serve one loop at a time.

    Args:
        iterable: a list, a torchdata node, a torch DataLoader, or any other iterable of
            `MiniBatch`; iterated anew each epoch, also after a loop was left in the middle. An
            iterator, such as a generator, has one epoch.
        seed: seed of the keys of mini-batches that carry none.

    Raises:
        TypeError: not an iterable, or the seed is no int.
        ValueError: the seed is negative.
    """

    computed: ClassVar[bool] = False

    def __init__(self, iterable: Iterable[MiniBatch], seed: int = 0) -> None:
        super().__init__()
        given = iterable
        if isinstance(iterable, Loader):
            iterable = iterable.root  # a node tells its place exactly, also at an epoch's end
        rows = isinstance(iterable, torch.Tensor | np.ndarray)
        one = isinstance(iterable, MiniBatch | str | bytes | dict)
        if rows or one or not hasattr(iterable, "__iter__"):
            raise TypeError(
                f"source is a {type(iterable).__name__}; expected an iterable of MiniBatch"
            )
        if isinstance(iterable, Chain):
            if isinstance(given, Loader):
                raise TypeError(
                    "source is a chain already, in a torchdata Loader; give the chain itself, to "
                    "which stages can be appended and which a DataLoader reads"
                )
            raise TypeError("source is a chain already; append stages to it")
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise TypeError(f"seed is {seed!r}; expected an int")
        if seed < 0:
            raise ValueError(f"seed is {seed}; expected 0 or more")
        self.iterable: Any = iterable
        self.seed = seed
        self._walks = 0  # walks begun: the latest one may read
        self._spent = False  # an iterator that has been read from

    def walk(self, epoch: int, batch: int = 0, state: Any = None, *, live: bool = False) -> Walk:
        """Begins to read an epoch; see `Source.walk`.

        Raises:
            RuntimeError: the iterable is an iterator and its only epoch is over.
        """
        if self.one_shot and (self._spent or epoch > 0):
            raise RuntimeError(
                f"the source is a {type(self.iterable).__name__}, an iterator, and its only epoch "
                "has been read from; pass a list, or an object whose __iter__ starts again"
            )
        self._walks += 1
        return Walk(self, epoch, batch, state, live)

    @property
    def one_shot(self) -> bool:
        """Whether the iterable is an iterator that cannot be started again, e.g. a generator."""
        kind = type(self.iterable)
        return hasattr(kind, "__next__") and not inspect.isfunction(kind.__iter__)

    def settings(self) -> dict[str, Any]:
        """The kind of the iterable."""
        return {"iterable": type(self.iterable).__name__}

    def __len__(self) -> int:
        try:
            return len(self.iterable)
        except TypeError:
            raise TypeError(
                f"the source, a {type(self.iterable).__name__}, has no length"
            ) from None

    def __repr__(self) -> str:
        return f"IterableSource({type(self.iterable).__name__})"


class Walk(Iterator[Any]):
    """One reading of an iterable, for one epoch.

    Args:
        source: what is read.
        epoch: the epoch.
        batch: mini-batches of it that were delivered before.
        state: what `after` was then.
        live: the iterable itself has read the epoch before, so it is started again, not put back.

    Attributes:
        after: state of the iterable from which reading goes on behind the last item; None if it
            keeps none. With batch 0, the state at the end of the epoch before.
    """

    def __init__(
        self, source: IterableSource, epoch: int, batch: int, state: Any, live: bool
    ) -> None:
        self._source = source
        self._number = source._walks
        self._iterable = iterable = source.iterable
        self._is_node = isinstance(iterable, BaseNode)
        self._stateful = self._is_node or (
            hasattr(iterable, "state_dict") and hasattr(iterable, "load_state_dict")
        )
        self.after = state if self._stateful else None
        # Whether what is read first may be the end of the epoch before.
        self._fresh = batch == 0 and epoch > 0 and not (self._is_node and live)
        self._over = False
        self._skip = 0  # items to read past: not by islice, which would call __iter__ once more
        if self._stateful and state is not None and not live:
            # Behind the last item some iterables would go on with the next epoch.
            self._over = not self._is_node and batch > 0 and batch == _length(iterable)
            self._items = self._start(copy.deepcopy(state), read=not self._over)
        else:
            self._items, self._skip = self._start(None), batch
            if self._is_node:
                self.after = self._save()

    def _start(self, state: Any, read: bool = True) -> Iterator[Any]:
        if self._is_node:
            self._iterable.reset(state)
            return _node_items(self._iterable)
        if state is not None:
            self._iterable.load_state_dict(state)
        return iter(self._iterable) if read else iter(())

    def _save(self) -> Any:
        # A copy: some give the object that they go on to change.
        return copy.deepcopy(self._iterable.state_dict())

    def __next__(self) -> Any:
        source = self._source
        if self._stateful and self._number != source._walks:
            raise RuntimeError(
                f"another loop has begun to read the source, a {type(self._iterable).__name__}; it "
                "holds one place: give each loop a source of its own"
            )
        source._spent = True
        fresh, self._fresh = self._fresh, False
        try:
            while self._skip:
                next(self._items)
                self._skip -= 1
            item = next(self._items)
        except StopIteration:
            if not fresh:
                self._end()
            # What was put back stood at the end of the epoch before.
            self._items = self._start(None)
            try:
                item = next(self._items)
            except StopIteration:
                self._end(empty=True)
        if self._stateful:
            self.after = self._save()
        return item

    def _end(self, empty: bool = False) -> NoReturn:
        if empty and hasattr(self._iterable, "__next__") and not self._is_node:
            raise RuntimeError(
                f"the source, a {type(self._iterable).__name__}, gave nothing in a later epoch; "
                "expected an object whose __iter__ starts again"
            )
        if self._stateful and not self._over:
            self.after = self._save()
        raise StopIteration


def _node_items(node: Any) -> Iterator[Any]:
    # Not iter(node): a node is its own iterator, and a chain would start another epoch.
    while True:
        try:
            item = next(node)
        except StopIteration:
            return
        yield item


def _length(iterable: Any) -> int | None:
    try:
        return len(iterable)
    except TypeError:
        return None
