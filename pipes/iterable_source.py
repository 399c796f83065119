"""IterableSource: any iterable of mini-batches as the head of a chain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from torchdata.nodes import BaseNode

from hopline.pipes.minibatch import MiniBatch
from hopline.pipes.stage import Chain, Source

__all__ = ["IterableSource"]


class IterableSource(Source):
    """Walks an iterable of mini-batches.

    It is walked by one thread, in order. A mini-batch that carries no key gets
    (seed, epoch, position). To resume, a torchdata node or an iterable with `state_dict` and
    `load_state_dict` is put back in the state it was in after the last mini-batch that was
    delivered; another iterable is started again and read past what was delivered.

    Args:
        iterable: a list, a torchdata node, a torch DataLoader, or any other iterable of
            `MiniBatch`; iterated anew each epoch. An iterator, such as a generator, has one epoch.
        seed: seed of the keys of mini-batches that carry none.

    Raises:
        TypeError: not an iterable.
    """

    computed: ClassVar[bool] = False

    def __init__(self, iterable: Iterable[MiniBatch], seed: int = 0) -> None:
        super().__init__()
        if isinstance(iterable, MiniBatch | str | bytes | dict) or not hasattr(
            iterable, "__iter__"
        ):
            raise TypeError(
                f"source is a {type(iterable).__name__}; expected an iterable of MiniBatch"
            )
        if isinstance(iterable, Chain):
            raise TypeError("source is a chain already; append stages to it")
        self.iterable: Any = iterable
        self.seed = seed

    def walk(self, epoch: int, state: Any = None, skip: int = 0) -> Iterator[tuple[Any, Any]]:
        """Yields (raw mini-batch, state after it).

        Args:
            epoch: epoch to walk.
            state: state of the iterable to start from.
            skip: mini-batches to read past when the iterable keeps no state.

        Raises:
            RuntimeError: the iterable is an iterator and its only epoch is over.
        """
        source = self.iterable
        if isinstance(source, BaseNode):
            source.reset(state)
            return self._walk_node(source)
        if epoch > 0 and state is None and iter(source) is source:
            raise RuntimeError(
                f"the source is a {type(source).__name__}, an iterator, and its only epoch is "
                "over; pass a list, or an object whose __iter__ starts again"
            )
        stateful = hasattr(source, "state_dict") and hasattr(source, "load_state_dict")
        if stateful and state is not None:
            source.load_state_dict(state)
        return self._walk_iterable(source, stateful, 0 if stateful and state is not None else skip)

    @staticmethod
    def _walk_node(node: Any) -> Iterator[tuple[Any, Any]]:
        while True:
            try:
                item = next(node)
            except StopIteration:
                return
            yield item, node.state_dict()

    @staticmethod
    def _walk_iterable(source: Any, stateful: bool, skip: int) -> Iterator[tuple[Any, Any]]:
        for position, item in enumerate(source):
            if position >= skip:
                yield item, source.state_dict() if stateful else None

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
