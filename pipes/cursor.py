"""Cursor: where one reader stands in a chain, and what state names that place.

A cursor hands out tasks, one a mini-batch, in order. A task can run on any thread; what it gives is
a function of its place alone.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hopline.pipes.minibatch import MiniBatch
from hopline.pipes.stage import Chain, Source, Stage

__all__ = ["Cursor", "Task", "check_state", "make_state"]

STATE_VERSION = 1


class Task:
    """All that is to be done for one mini-batch.

    Args:
        make: gives the raw mini-batch.
        key: (seed, epoch, index) of a mini-batch that carries none.
        stages: what it goes through.
        after: state of a walked source after this mini-batch.
    """

    __slots__ = ("_key", "_make", "_stages", "after")

    def __init__(
        self,
        make: Callable[[], Any],
        key: tuple[int, int, int],
        stages: tuple[Stage, ...],
        after: Any = None,
    ) -> None:
        self._make = make
        self._key = key
        self._stages = stages
        self.after = after

    @property
    def item(self) -> Any:
        """What a walked source has read for it, else None."""
        return self._make.item if isinstance(self._make, _Walked) else None

    def __call__(self) -> MiniBatch:
        """Makes the mini-batch and takes it through the stages.

        Raises:
            TypeError: the source or a stage gave something else than a MiniBatch.
            RuntimeError: a stage raised StopIteration, which would have ended the epoch unseen.
        """
        minibatch = _call("the source", self._key, self._make)
        if minibatch.key is None:
            minibatch.key = self._key
        for stage in self._stages:
            minibatch = _call(type(stage).__name__, minibatch.key, stage, minibatch)
        return minibatch


def _call(name: str, key: Any, step: Callable[..., Any], *arguments: Any) -> MiniBatch:
    where = f"for the mini-batch with (seed, epoch, index) = {key}"
    try:
        result = step(*arguments)
    except StopIteration as error:
        raise RuntimeError(f"{name} raised StopIteration {where}") from error
    except BaseException as error:
        error.add_note(f"in {name}, {where}")
        raise
    if not isinstance(result, MiniBatch):
        raise TypeError(f"{name} gave a {type(result).__name__} {where}; expected a MiniBatch")
    return result


class Cursor:
    """A place in an epoch of a chain.

    Args:
        chain: the chain to read.
        epoch: epoch to read.
        batch: mini-batches of it to leave out.
        seed: seed in place of the source's own.
        source_state: what `after` was at this place.
        live: a walked source has read the epoch before and is not to be put back.

    Attributes:
        epoch: the epoch being read.
        batch: number of the next task.
        seed: seed in place of the source's own, or None.
        after: state from which a walked source goes on, else None.
        end: its state once the epoch has ended.
    """

    def __init__(
        self,
        chain: Chain,
        *,
        epoch: int = 0,
        batch: int = 0,
        seed: int | None = None,
        source_state: Any = None,
        live: bool = False,
    ) -> None:
        self._chain = chain
        self.source, self.stages = chain.parts()
        self.epoch = epoch
        self.batch = batch
        self.seed = seed
        self.after = source_state
        self.end: Any = None
        self._begun = batch > 0
        self._length = 0
        self._walk: Any = None
        if self.source.computed:
            self._length = len(self.source)
        else:
            self._walk = self.source.walk(epoch, batch, source_state, live=live)
            self.after = self._walk.after

    def next_task(self) -> Task | None:
        """The task of the next mini-batch, or None at the end of the epoch."""
        self._begun = True
        seed = self.source.seed if self.seed is None else self.seed
        make: Callable[[], Any]
        if self._walk is None:
            if self.batch >= self._length:
                return None
            make = _Computed(self.source, self.epoch, self.batch, seed)
        else:
            try:
                make = _Walked(next(self._walk))
            except StopIteration:
                self.end = self._walk.after
                return None
            self.after = self._walk.after
        task = Task(make, (seed, self.epoch, self.batch), self.stages, self.after)
        self.batch += 1
        return task

    def next_epoch(self) -> Cursor:
        """A cursor at the start of the next epoch; of this one if nothing of it was read."""
        return Cursor(
            self._chain,
            epoch=self.epoch + 1 if self._begun else self.epoch,
            seed=self.seed,
            source_state=self.end if self._begun else self.after,
            live=True,
        )

    def state(self) -> dict[str, Any]:
        """The place of the next task, as plain values; see `make_state`."""
        return make_state(self.source, self.stages, self.epoch, self.batch, self.seed, self.after)

    @classmethod
    def from_state(cls, chain: Chain, state: Mapping[str, Any]) -> Cursor:
        """A cursor at the place that a state names.

        Raises:
            TypeError: not a state at all.
            ValueError: the state is of another chain; the message names both values.
        """
        check_state(*chain.parts(), state)
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

    def __init__(self, source: Source, *arguments: int) -> None:
        self.source = source
        self.arguments = arguments

    def __call__(self) -> MiniBatch:
        return self.source.batch(*self.arguments)


class _Walked:
    """Gives a mini-batch of a walked source, as a copy that stages may fill."""

    __slots__ = ("item",)

    def __init__(self, item: Any) -> None:
        self.item = item

    def __call__(self) -> Any:
        if not isinstance(self.item, MiniBatch):
            return self.item
        minibatch = copy.copy(self.item)
        for f in dataclasses.fields(minibatch):
            setattr(minibatch, f.name, _own(getattr(minibatch, f.name)))
        return minibatch


def _own(value: Any) -> Any:
    """The same values in new dicts and lists."""
    if isinstance(value, dict):
        return {key: _own(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_own(item) for item in value]
    return value


def make_state(
    source: Source, stages: tuple[Stage, ...], epoch: int, batch: int, seed: int | None, after: Any
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
        "seed": int(source.seed if seed is None else seed),
        "source": after,
        "settings": _settings(source, stages),
    }


KEYS = frozenset({"version", "epoch", "batch", "seed", "source", "settings"})


def _settings(source: Source, stages: tuple[Stage, ...]) -> dict[str, Any]:
    settings = {}
    number = 0  # of stages that have settings: others, e.g. copies to a device, change no state
    for part in (source, *stages):
        values = part.settings()
        name = f"{number}:{type(part).__name__}" if number else type(part).__name__
        for key, value in values.items():
            settings[f"{name}.{key}"] = _plain(value, f"{name}.settings()[{key!r}]")
        number += part is source or bool(values)
    return settings


def _plain(value: Any, where: str) -> Any:
    """The value as JSON gives it back.

    Raises:
        TypeError: JSON has no such value.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    # Of subclasses, such as enums, the plain value: `torch.load` reads no others.
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return "".join(value)
    if isinstance(value, list | tuple):
        return [_plain(item, where) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"".join(key): _plain(item, where) for key, item in value.items()}
    raise TypeError(
        f"{where} is {value!r:.200}; expected None, bool, int, float, str, or lists and dicts of "
        "such"
    )


def check_state(source: Source, stages: tuple[Stage, ...], state: Mapping[str, Any]) -> None:
    """Refuses a state that belongs to something else.

    Raises:
        TypeError: not a state at all.
        ValueError: another version, place or setting; all differences with both values.
    """
    if not isinstance(state, Mapping) or "version" not in state:
        raise TypeError(f"expected the dict that state_dict() gave, got {state!r:.200}")
    if type(state["version"]) is not int or state["version"] != STATE_VERSION:
        raise ValueError(
            f"the state has version {state['version']!r}; this release reads {STATE_VERSION}"
        )
    if set(state) != KEYS:
        raise ValueError(
            f"the state has the keys {sorted(map(str, state))}; expected {sorted(KEYS)}: it is "
            "damaged"
        )
    for name in ("epoch", "batch", "seed"):
        if isinstance(state[name], bool) or not isinstance(state[name], int) or state[name] < 0:
            raise ValueError(f"the state's {name} is {state[name]!r}; expected an int of 0 or more")
        # Larger ones would be cut to 64 bits in a key: the mini-batches of another epoch or seed.
        # A walked source may have a seed of its own that is larger; it is compared below.
        if state[name] >= 1 << 63 and (source.computed or name != "seed"):
            raise ValueError(f"the state's {name} is {state[name]}; expected an int below 2**63")
    if source.computed and state["source"] is not None:
        raise ValueError(
            f"the state's source is {state['source']!r:.200}; expected None of a "
            f"{type(source).__name__}, which keeps no state: it is damaged"
        )
    theirs, ours = state["settings"], _settings(source, stages)
    if not isinstance(theirs, Mapping) or not all(isinstance(key, str) for key in theirs):
        raise ValueError(
            f"the state's settings are {theirs!r:.200}; expected a dict with strings for keys"
        )
    differ = [
        f"{key}: {theirs.get(key, 'absent')!r} in the state, {ours.get(key, 'absent')!r} here"
        for key in sorted(theirs.keys() | ours.keys())
        if not _same(theirs.get(key, _ABSENT), ours.get(key, _ABSENT))
    ]
    if getattr(source, "seed_given", True) and source.seed != state["seed"]:
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


def _same(theirs: Any, ours: Any) -> bool:
    try:
        return bool(theirs == ours) or repr(theirs) == repr(ours)  # NaN is the same as NaN
    except (RuntimeError, TypeError, ValueError):  # of tensors and arrays, which no setting is
        return False


_ABSENT = object()
