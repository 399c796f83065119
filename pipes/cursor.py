"""Cursor: where one reader stands in a chain, and what state names that place.

A cursor hands out tasks, one a mini-batch, in order. A task can run on any thread; what it gives is
a function of its place alone.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from hopline.pipes.iterable_source import IterableSource
from hopline.pipes.minibatch import MiniBatch
from hopline.pipes.stage import Chain, Stage

__all__ = ["Cursor", "Task"]

STATE_VERSION = 1


class Task:
    """All that is to be done for one mini-batch.

    Attributes:
        after: state of a walked source after this mini-batch.
    """

    __slots__ = ("_make", "_stages", "after")

    def __init__(self, make: Any, stages: tuple[Stage, ...], after: Any = None) -> None:
        self._make = make
        self._stages = stages
        self.after = after

    def __call__(self) -> MiniBatch:
        """Makes the mini-batch and takes it through the stages.

        Raises:
            TypeError: the source or a stage gave something else than a MiniBatch.
            RuntimeError: a stage raised StopIteration, which would have ended the epoch unseen.
        """
        minibatch = _call("source", None, self._make)
        for stage in self._stages:
            minibatch = _call(type(stage).__name__, minibatch, stage)
        return minibatch


def _call(name: str, minibatch: MiniBatch | None, step: Any) -> MiniBatch:
    key = None if minibatch is None else minibatch.key
    try:
        result = step() if minibatch is None else step(minibatch)
    except StopIteration as error:
        raise RuntimeError(f"{name} raised StopIteration for mini-batch {key}") from error
    except BaseException as error:
        if key is not None:
            error.add_note(f"in {name}, for the mini-batch with (seed, epoch, index) = {key}")
        raise
    if not isinstance(result, MiniBatch):
        raise TypeError(
            f"{name} gave a {type(result).__name__} for mini-batch {key}; expected a MiniBatch"
        )
    return result


class Cursor:
    """A place in an epoch of a chain.

    Args:
        chain: the chain to read.
        epoch: epoch to read.
        batch: mini-batches of it to leave out.
        seed: seed in place of the source's own.
        source_state: state of a walked source to start from.

    Attributes:
        epoch: the epoch being read.
        batch: number of the next task.
    """

    def __init__(
        self,
        chain: Chain,
        *,
        epoch: int = 0,
        batch: int = 0,
        seed: int | None = None,
        source_state: Any = None,
    ) -> None:
        self.source, self.stages = chain.parts()
        self.epoch = epoch
        self.batch = batch
        self.seed = seed
        self._after = source_state
        self._length = len(self.source) if self.source.computed else None
        self._walk: Iterator[tuple[Any, Any]] | None = None

    def next_task(self) -> Task | None:
        """The task of the next mini-batch, or None at the end of the epoch."""
        if self._length is not None:
            if self.batch >= self._length:
                return None
            make = _Computed(self.source, self.epoch, self.batch, self.seed)
            self.batch += 1
            return Task(make, self.stages)
        assert isinstance(self.source, IterableSource)
        if self._walk is None:
            self._walk = self.source.walk(self.epoch, self._after, self.batch)
        try:
            item, self._after = next(self._walk)
        except StopIteration:
            return None
        seed = self.source.seed if self.seed is None else self.seed
        task = Task(_Walked(item, (seed, self.epoch, self.batch)), self.stages, self._after)
        self.batch += 1
        return task

    def state(self) -> dict[str, Any]:
        """The place of the next task, as plain values; see `make_state`."""
        return make_state(self.source, self.stages, self.epoch, self.batch, self.seed, self._after)

    @classmethod
    def from_state(cls, chain: Chain, state: Mapping[str, Any]) -> Cursor:
        """A cursor at the place that a state names.

        Raises:
            ValueError: the state is of another chain; the message names both values.
        """
        source, stages = chain.parts()
        check_state(source, stages, state)
        return cls(
            chain,
            epoch=state["epoch"],
            batch=state["batch"],
            seed=state["seed"],
            source_state=state["source"],
        )


class _Computed:
    """Makes a mini-batch of a computed source."""

    __slots__ = ("arguments", "source")

    def __init__(self, source: Any, *arguments: Any) -> None:
        self.source = source
        self.arguments = arguments

    def __call__(self) -> MiniBatch:
        minibatch: MiniBatch = self.source.batch(*self.arguments)
        return minibatch


class _Walked:
    """Gives a mini-batch of a walked source, as a copy that stages may fill."""

    __slots__ = ("item", "key")

    def __init__(self, item: Any, key: tuple[int, int, int]) -> None:
        self.item = item
        self.key = key

    def __call__(self) -> Any:
        if not isinstance(self.item, MiniBatch):
            return self.item
        minibatch = copy.copy(self.item)
        minibatch.extra = dict(minibatch.extra)
        if minibatch.key is None:
            minibatch.key = self.key
        return minibatch


def make_state(
    source: Any, stages: tuple[Stage, ...], epoch: int, batch: int, seed: int | None, after: Any
) -> dict[str, Any]:
    """A place in a chain, and what it belongs to.

    Returns:
        `version`, `epoch`, `batch` (number of the next mini-batch), `seed`, `source` (state of a
        walked source, else None) and `settings` of the source and each stage, by name.
    """
    return {
        "version": STATE_VERSION,
        "epoch": epoch,
        "batch": batch,
        "seed": source.seed if seed is None else seed,
        "source": after,
        "settings": _settings(source, stages),
    }


def _settings(source: Any, stages: tuple[Stage, ...]) -> dict[str, Any]:
    settings = {f"{type(source).__name__}.{k}": v for k, v in source.settings().items()}
    for number, stage in enumerate(stages, 1):
        for key, value in stage.settings().items():
            settings[f"{number}:{type(stage).__name__}.{key}"] = value
    return settings


def check_state(source: Any, stages: tuple[Stage, ...], state: Mapping[str, Any]) -> None:
    """Refuses a state that belongs to something else.

    Raises:
        TypeError: not a state at all.
        ValueError: another version, place or setting; all differences with both values.
    """
    if not isinstance(state, Mapping) or not {"version", "epoch", "batch", "seed"} <= set(state):
        raise TypeError(f"expected the dict that state_dict() gave, got {state!r:.200}")
    if state["version"] != STATE_VERSION:
        raise ValueError(
            f"the state has version {state['version']!r}; this release reads {STATE_VERSION}"
        )
    for name in ("epoch", "batch", "seed"):
        if isinstance(state[name], bool) or not isinstance(state[name], int) or state[name] < 0:
            raise ValueError(f"the state's {name} is {state[name]!r}; expected an int of 0 or more")
    theirs, ours = dict(state.get("settings", {})), _settings(source, stages)
    differ = [
        f"{key}: {theirs.get(key, 'absent')!r} in the state, {ours.get(key, 'absent')!r} here"
        for key in sorted(theirs.keys() | ours.keys())
        if theirs.get(key, _ABSENT) != ours.get(key, _ABSENT)
    ]
    if source.computed and getattr(source, "seed_given", True) and source.seed != state["seed"]:
        differ.append(f"seed: {state['seed']} in the state, {source.seed} here")
    if differ:
        raise ValueError(
            "the state belongs to another pipeline: " + "; ".join(differ) + ". Build the pipeline "
            "with the state's settings, or start anew without it"
        )
    if source.computed and state["batch"] > len(source):
        raise ValueError(
            f"the state stands at mini-batch {state['batch']} of {len(source)}: it is damaged"
        )


_ABSENT = object()
