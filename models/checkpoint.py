"""save_checkpoint, load_checkpoint: model, optimiser and loader in one file, whole or not at all.

The file is written beside its target, flushed to the disk, and renamed: a killed run leaves the old
checkpoint or the new one; of runs that save at once, the last one's stays. It is read with
`weights_only=True`, so that it cannot run code.
"""

from __future__ import annotations

import contextlib
import copy
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import nn

from hopline.models.checks import check_loader, check_model, check_optimizer
from hopline.models.metrics import rank_of
from hopline.models.own_file import own_file
from hopline.models.training import unwrap
from hopline.pipes.checks import check_mapping
from hopline.pipes.cursor import check_state
from hopline.pipes.loader import DataLoader

__all__ = ["checkpoint_path", "load_checkpoint", "save_checkpoint"]

FILE_NAME = "checkpoint.pt"
VERSION = 1
KEYS = {"version", "model", "optimizer", "loader", "extra"}

Folder = str | os.PathLike[str]


def checkpoint_path(folder: Folder) -> Path:
    """The checkpoint's file in a folder, there or not."""
    return Path(folder) / FILE_NAME


def save_checkpoint(
    folder: Folder,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Path:
    """Writes model, optimiser, the loader's place and what else is given.

    On several ranks call it on rank 0 alone: after a step, ranks have the same model.

    Args:
        folder: where the file goes; made if need be.
        model: its state dict is kept; DistributedDataParallel is left aside.
        optimizer: its state dict is kept.
        loader: its place is kept; None for training without mini-batches.
        extra: tensors, numbers, strings, and dicts, lists and tuples of such. NumPy's numbers
            become Python's.

    Returns:
        The file's path.

    Raises:
        TypeError: an argument is of wrong kind, or has a value that `load_checkpoint`, which runs
            no code, could not read again.
        OSError: the file cannot be written; an earlier checkpoint is still there.
    """
    check_model(model)
    check_optimizer(optimizer)
    if loader is not None:
        check_loader(loader)
    check_mapping(extra, "extra", "{name: value}")
    place = {} if loader is None else loader.state_dict()
    return write_checkpoint(folder, model, optimizer, place, extra or {})


def write_checkpoint(
    folder: Folder,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    place: Mapping[str, Any],
    extra: Mapping[str, Any],
) -> Path:
    """`save_checkpoint` for a loader's place."""
    path = checkpoint_path(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "version": VERSION,
        "model": _readable_model(unwrap(model).state_dict()),
        "optimizer": _readable(optimizer.state_dict(), "the optimizer's state"),
        "optimizer_kind": type(optimizer).__name__,
        "loader": _readable(dict(place), "the loader's state"),
        "extra": _readable(dict(extra), "extra"),
    }
    try:
        with own_file(path) as file:
            _save(content, file)
    except OSError as error:
        if error.errno is not None and error.filename is None:
            # Of a write, which does not know the name: a full disk, for one.
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    return path


class _Writer:
    """A file for `torch.save`, which hides the error of a write behind one of its own."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self._file.flush()


def _save(content: dict[str, Any], file: BinaryIO) -> None:
    """Writes a file and has it put on the disk.

    Raises:
        OSError: it could not be, e.g. since the disk is full.
    """
    writer = _Writer(file)
    try:
        torch.save(content, writer)  # type: ignore[arg-type]
    except RuntimeError as error:
        if writer.error is None:
            raise
        raise writer.error from error
    file.flush()
    os.fsync(file.fileno())


PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.Tensor, nn.Parameter)


def _readable(value: Any, where: str) -> Any:
    """The value with Python's numbers for NumPy's.

    Raises:
        TypeError: it has a part that `torch.load(weights_only=True)` does not read.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if type(value) in PLAIN:
        return value
    if type(value) is dict:
        return {_readable(k, where): _readable(v, f"{where}[{k!r}]") for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_readable(item, f"{where}[{i}]") for i, item in enumerate(value))
    file = io.BytesIO()
    try:
        torch.save(value, file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except Exception as error:
        raise TypeError(
            f"{where} is a {type(value).__name__}, which a checkpoint cannot give back; expected "
            "tensors, numbers, strings, and dicts, lists and tuples of such"
        ) from error
    return value


def _readable_model(state: dict[str, Any]) -> dict[str, Any]:
    # In place: the dict carries the versions of the modules.
    for name, value in state.items():
        state[name] = _readable(value, f"the model's state[{name!r}]")
    return state


def load_checkpoint(
    folder: Folder,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader | None = None,
) -> dict[str, Any]:
    """Takes model, optimiser and loader to where a checkpoint stands.

    On several ranks all of them call it. The loader's state is that of rank 0; the others, which
    made as many steps, or all of theirs, take the place that follows from it.

    Args:
        folder: as given to `save_checkpoint`.
        model: a model of the same sizes, also in DistributedDataParallel.
        optimizer: of the same kind, over the model's parameters.
        loader: over the same chain; its next loop reads the rest of the epoch. None where there was
            none.

    Returns:
        What was saved as `extra`, its tensors on the CPU.

    Raises:
        TypeError: an argument is of wrong kind.
        FileNotFoundError: there is no checkpoint in the folder.
        ValueError: the file is no checkpoint of this version, or belongs to another model,
            optimiser or pipeline; the message has the file's name.
    """
    check_model(model)
    check_optimizer(optimizer)
    if loader is not None:
        check_loader(loader)
    content = read_checkpoint(folder)
    take_checkpoint(folder, content, model, optimizer, loader)
    extra: dict[str, Any] = content["extra"]
    return extra


def read_checkpoint(folder: Folder) -> dict[str, Any]:
    """What a checkpoint holds; raises as `load_checkpoint` does."""
    path = checkpoint_path(folder)
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no checkpoint; was the folder given right?")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ValueError(f"{path}: not a checkpoint, or damaged: {error}") from error
    if not isinstance(content, dict) or not set(content) >= KEYS:
        raise ValueError(f"{path}: not a checkpoint; expected the keys {sorted(KEYS)}")
    if type(content["version"]) is not int or content["version"] != VERSION:
        raise ValueError(f"{path}: version {content['version']!r}; this release reads {VERSION}")
    for name in ("model", "optimizer", "loader", "extra"):
        if not isinstance(content[name], dict):
            raise ValueError(
                f"{path}: its {name} is a {type(content[name]).__name__}; expected a dict: the "
                "checkpoint is damaged"
            )
    return content


def take_checkpoint(
    folder: Folder,
    content: dict[str, Any],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader | None,
) -> None:
    """Takes model, optimiser and loader to a checkpoint's place, or leaves all as they are.

    Raises:
        ValueError: it belongs to another run; the message has the file's name.
    """
    plain = unwrap(model)
    before: dict[str, torch.Tensor] | None = None
    try:
        place = content["loader"]
        if (loader is None) != (not place):
            missing = (
                "with a loader's place, and there is" if place else "without a loader, and got"
            )
            raise ValueError(f"it was saved {missing} {'none' if place else 'one'}")
        if loader is not None:
            place = _place_of_rank(place, loader)
            check_state(*loader.chain.parts(), place)
        kind = content.get("optimizer_kind", type(optimizer).__name__)
        if kind != type(optimizer).__name__:
            raise ValueError(f"the optimizer was {kind} and is {type(optimizer).__name__}")
        before = copy.deepcopy(plain.state_dict())  # on an error torch has loaded what fitted
        plain.load_state_dict(content["model"])
        optimizer.load_state_dict(content["optimizer"])  # on an error it is as it was
    except BaseException as error:
        if before is not None:
            with contextlib.suppress(
                RuntimeError
            ):  # lazy layers, which had no weights to go back to
                plain.load_state_dict(before)
        if not isinstance(error, AttributeError | KeyError | RuntimeError | TypeError | ValueError):
            raise
        path = checkpoint_path(folder)
        raise ValueError(f"{path}: belongs to another run: {error}") from error
    if loader is not None:
        loader.load_state_dict(place)


def _place_of_rank(state: dict[str, Any], loader: DataLoader) -> dict[str, Any]:
    """The place of this rank's loader where that of rank 0 has a state.

    Raises:
        KeyError, TypeError: the state is damaged.
        ValueError: it is of another number of ranks.
    """
    if rank_of() == 0:
        return state
    own = loader.state_dict()
    for name, here in own["settings"].items():
        there = state["settings"].get(name, here)
        if name.endswith(".num_replicas") and there != here:
            raise ValueError(f"{name}: {there!r} in the state, {here!r} here")
    batch = state["batch"]
    with contextlib.suppress(TypeError):  # of a source that does not know its length
        batch = min(batch, len(loader))
    return {**own, "epoch": state["epoch"], "seed": state["seed"], "batch": batch}
