"""save_checkpoint, load_checkpoint: model, optimiser and loader in one file, whole or not at all.

The file is written beside its target, flushed to the disk, and renamed: a killed run leaves the old
checkpoint or the new one. It is read with `weights_only=True`, so that it cannot run code.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from hopline.models.checks import check_loader, check_model, check_optimizer
from hopline.models.metrics import rank_of
from hopline.models.training import unwrap
from hopline.pipes.checks import check_mapping
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
    loader: DataLoader,
    extra: Mapping[str, Any] | None = None,
) -> Path:
    """Writes model, optimiser, the loader's place and what else is given.

    On several ranks call it on rank 0 alone: after a step, ranks have the same model.

    Args:
        folder: where the file goes; made if need be.
        model: its state dict is kept; DistributedDataParallel is left aside.
        optimizer: its state dict is kept.
        loader: its place is kept.
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
    check_loader(loader)
    check_mapping(extra, "extra", "{name: value}")
    path = checkpoint_path(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "version": VERSION,
        "model": _readable_model(unwrap(model).state_dict()),
        "optimizer": _readable(optimizer.state_dict(), "the optimizer's state"),
        "loader": _readable(loader.state_dict(), "the loader's state"),
        "extra": _readable(dict(extra or {}), "extra"),
    }
    temporary = path.with_name(f".{FILE_NAME}.tmp")
    try:
        with temporary.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    _sync_folder(path.parent)
    return path


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


def _sync_folder(folder: Path) -> None:
    """Makes a rename last through a power cut, where folders can be synced."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def load_checkpoint(
    folder: Folder,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader,
) -> dict[str, Any]:
    """Takes model, optimiser and loader to where a checkpoint stands.

    On several ranks all of them call it. The loader's state is that of rank 0; the others, which
    made as many steps, or all of theirs, take the place that follows from it.

    Args:
        folder: as given to `save_checkpoint`.
        model: a model of the same sizes, also in DistributedDataParallel.
        optimizer: of the same kind, over the model's parameters.
        loader: over the same chain; its next loop reads the rest of the epoch.

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
    check_loader(loader)
    path = checkpoint_path(folder)
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no checkpoint; was the folder given right?")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ValueError(f"{path}: not a checkpoint, or damaged: {error}") from error
    if not isinstance(content, dict) or not set(content) >= KEYS:
        raise ValueError(f"{path}: not a checkpoint; expected the keys {sorted(KEYS)}")
    if content["version"] != VERSION:
        raise ValueError(f"{path}: version {content['version']!r}; this release reads {VERSION}")
    state = content["loader"]
    if rank_of() > 0:
        place = {name: state[name] for name in ("epoch", "seed")}
        state = {**loader.state_dict(), **place, "batch": min(state["batch"], len(loader))}
    try:
        loader.load_state_dict(state)
        unwrap(model).load_state_dict(content["model"])
        optimizer.load_state_dict(content["optimizer"])
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: belongs to another run: {error}") from error
    extra: dict[str, Any] = content["extra"]
    return extra
