"""Rows of parts in files: saved by their owners, loaded by whoever owns them then.

A file a part and array, with the number of the save in its name, and `rows.yaml`, which tells the
number. It is renamed to its place when all files are there, and only then files of an earlier save
go; so a run that is killed leaves the earlier save or the new one.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import yaml

from hopline.partition.meeting import Meeting
from hopline.pipes.datasets.npy_writer import NpyWriter, sync_folder
from hopline.pipes.npy import read_npy
from hopline.pipes.plain_yaml import read_plain_yaml, show

__all__ = ["RowsByPart", "load_rows", "save_rows"]

FILE = "rows.yaml"
FORMAT_VERSION = 1
BLOCK = 1 << 16  # rows written at once

RowsByPart = dict[int, torch.Tensor]


def save_rows(
    meeting: Meeting,
    folder: Path,
    about: Mapping[str, Any],
    arrays: Mapping[str, RowsByPart],
) -> None:
    """Saves the parts' rows that this rank has; collective.

    Args:
        meeting: of the ranks.
        folder: where to; one for all ranks, or one a machine.
        about: what the rows belong to, plain values, the same on all ranks.
        arrays: `{name: {part: rows}}`.

    Raises:
        OSError: this rank could not write; an earlier save is still there.
        RankError: another one could not, or has gone.
    """
    number = meeting.gather(secrets.randbits(48))[0]
    written: list[Path] = []

    def write_all() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, parts in arrays.items():
            for part, rows in parts.items():
                written.append(_path(folder, name, part, number))
                values = rows.numpy()
                with NpyWriter(written[-1], values.dtype, values.shape) as file:
                    for low in range(0, len(values), BLOCK):
                        file.append(values[low : low + BLOCK])
        sync_folder(folder)

    def finish() -> None:
        # Every rank writes the same: they may be on machines with folders of their own.
        new = folder / f".{FILE}.{meeting.rank}"
        with new.open("w", encoding="utf-8") as file:
            document = {"format_version": FORMAT_VERSION, **about, "save": number}
            yaml.safe_dump(document, file, sort_keys=False, allow_unicode=True)
            file.flush()
            os.fsync(file.fileno())
        new.replace(folder / FILE)
        sync_folder(folder)

    try:
        meeting.together(write_all)
    except Exception:
        for path in written:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        raise
    meeting.together(finish)
    for name, parts in arrays.items():
        for part in parts:
            for path in folder.glob(f"{name}-{part}-*.npy"):
                if path != _path(folder, name, part, number):
                    path.unlink(missing_ok=True)


def load_rows(
    meeting: Meeting,
    folder: Path,
    about: Mapping[str, Any],
    arrays: Mapping[str, RowsByPart],
    free: Iterable[str] = (),
) -> tuple[dict[str, Any], dict[str, RowsByPart]]:
    """Reads the rows of this rank's parts; collective. It changes nothing.

    Args:
        meeting: of the ranks.
        folder: where they were saved.
        about: what they must belong to.
        arrays: `{name: {part: rows}}`, of the shapes and dtypes expected.
        free: further names, of ints of any value.

    Returns:
        (the description, the rows by name and part).

    Raises:
        FileNotFoundError: nothing was saved there.
        ValueError: it belongs to something else, is damaged, or ranks see different saves.
        RankError: another rank could not read, or has gone.
    """
    path = folder / FILE
    document = meeting.together(lambda: _described(path, about, free))
    saves = meeting.gather(document["save"])
    if len(set(saves)) > 1:
        raise ValueError(
            f"{path}: ranks read saves {saves}; copy those of one save to all machines"
        )

    def read_all() -> dict[str, RowsByPart]:
        return {
            name: {
                part: _read(_path(folder, name, part, document["save"]), rows)
                for part, rows in parts.items()
            }
            for name, parts in arrays.items()
        }

    return document, meeting.together(read_all)


def _path(folder: Path, name: str, part: int, number: int) -> Path:
    return folder / f"{name}-{part}-{number:012x}.npy"


def _described(path: Path, about: Mapping[str, Any], free: Iterable[str]) -> dict[str, Any]:
    if not path.exists():
        raise FileNotFoundError(f"{path} is not there; expected a folder that save() wrote")
    document = read_plain_yaml(path)
    if not isinstance(document, dict):
        raise ValueError(f"{path}: holds {show(document)}; expected names and values")
    for name, value in {"format_version": FORMAT_VERSION, **about}.items():
        if type(document.get(name)) is not type(value) or document[name] != value:
            raise ValueError(f"{path}: {name} is {show(document.get(name))}; expected {value!r}")
    for name in ("save", *free):
        number = document.get(name)
        if type(number) is not int or not 0 <= number < 1 << 48:
            raise ValueError(f"{path}: {name} is {show(number)}; expected an int of 0 or more")
    return document


def _read(path: Path, like: torch.Tensor) -> torch.Tensor:
    rows = read_npy(path, in_memory=True)
    if rows.shape != like.shape or rows.dtype != like.dtype:
        raise ValueError(
            f"{path}: holds {rows.dtype} of shape {tuple(rows.shape)}; expected {like.dtype} of "
            f"shape {tuple(like.shape)}"
        )
    return rows
