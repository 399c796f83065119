"""Rows of parts in files: saved by their owners, loaded by whoever owns them then.

A file a part and array, with the number of the save in its name, and a description, `rows.yaml` or
another, which tells the number and a sum of each file's rows. It is renamed to its place when all
files are there, and only then files of an earlier save go; so a run that is killed leaves the
earlier save or the new one.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from hopline.partition.manifest import MARK, last_line
from hopline.partition.meeting import Meeting
from hopline.pipes.datasets.checksum import add_rows
from hopline.pipes.datasets.npy_writer import NpyWriter, sync_folder
from hopline.pipes.npy import read_npy
from hopline.pipes.plain_yaml import parse_plain_yaml, read_yaml_bytes, show

__all__ = ["ROWS_FILE", "RowsByPart", "load_rows", "save_rows"]

ROWS_FILE = "rows.yaml"
FORMAT_VERSION = 1
BLOCK = 1 << 16  # rows written at once

RowsByPart = dict[int, torch.Tensor]


def save_rows(
    meeting: Meeting,
    folder: Path,
    about: Mapping[str, Any],
    arrays: Mapping[str, RowsByPart],
    file: str = ROWS_FILE,
) -> None:
    """Saves the parts' rows that this rank has; collective.

    Args:
        meeting: of the ranks.
        folder: where to; one for all ranks, or one a machine.
        about: what the rows belong to, plain values, the same on all ranks.
        arrays: `{name: {part: rows}}`, the same names on all ranks.
        file: name of the description.

    Raises:
        OSError: this rank could not write; an earlier save is still there.
        RankError: another one could not, or has gone.
    """
    number = meeting.gather(secrets.randbits(48))[0]
    written: list[Path] = []
    sums: list[tuple[int, int, int]] = []  # place of the name, part, sum of the rows

    def write_all() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for place, (name, parts) in enumerate(arrays.items()):
            for part, rows in parts.items():
                written.append(_path(folder, name, part, number))
                values = rows.numpy()
                with NpyWriter(written[-1], values.dtype, values.shape) as writer:
                    for low in range(0, len(values), BLOCK):
                        writer.append(values[low : low + BLOCK])
                sums.append((place, part, writer.total))
        sync_folder(folder)

    def finish() -> None:
        # Every rank writes the same: they may be on machines with folders of their own.
        document = {"format_version": FORMAT_VERSION, **about, "save": number, "sums": everyones}
        content = yaml.safe_dump(document, sort_keys=False, allow_unicode=True).encode()
        new = folder / f".{file}.{meeting.rank}"
        with new.open("wb") as stream:
            stream.write(content + last_line(content))
            stream.flush()
            os.fsync(stream.fileno())
        new.replace(folder / file)
        sync_folder(folder)

    try:
        meeting.together(write_all)
    except Exception:
        for path in written:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        raise
    everyones = _of_all_ranks(meeting, list(arrays), sums)
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
    file: str = ROWS_FILE,
) -> tuple[dict[str, Any], dict[str, RowsByPart]]:
    """Reads the rows of this rank's parts; collective. It changes nothing.

    Args:
        meeting: of the ranks.
        folder: where they were saved.
        about: what they must belong to.
        arrays: `{name: {part: rows}}`, of the shapes and dtypes expected.
        free: further names, of ints of any value.
        file: name of the description.

    Returns:
        (the description, the rows by name and part).

    Raises:
        FileNotFoundError: nothing was saved there.
        ValueError: it belongs to something else, is damaged, or ranks see different saves.
        RankError: another rank could not read, or has gone.
    """
    path = folder / file
    document = meeting.together(lambda: _described(path, about, free))
    saves = meeting.gather(document["save"])
    if len(set(saves)) > 1:
        raise ValueError(
            f"{path}: ranks read saves {saves}; copy those of one save to all machines"
        )

    def read_all() -> dict[str, RowsByPart]:
        return {
            name: {
                part: _read(
                    _path(folder, name, part, document["save"]), rows,
                    _stored_sum(path, document, name, part),
                )
                for part, rows in parts.items()
            }
            for name, parts in arrays.items()
        }  # fmt: skip

    return document, meeting.together(read_all)


def _path(folder: Path, name: str, part: int, number: int) -> Path:
    return folder / f"{name}-{part}-{number:012x}.npy"


def _of_all_ranks(
    meeting: Meeting, names: list[str], sums: list[tuple[int, int, int]]
) -> dict[str, dict[int, int]]:
    """`{name: {part: sum of its rows}}` of the parts of all ranks."""
    mine = np.array(sums, np.uint64).reshape(-1, 3)
    found: dict[str, dict[int, int]] = {name: {} for name in names}
    for message in meeting.swap([[mine]] * meeting.world_size):
        for place, part, total in message[0].tolist():
            found[names[place]][part] = total
    return found


def _stored_sum(path: Path, document: dict[str, Any], name: str, part: int) -> int | None:
    """Sum of a part's rows as they were written; None in a save that has none."""
    if "sums" not in document:
        return None
    try:
        found = document["sums"][name][part]
    except (LookupError, TypeError):
        found = None
    if type(found) is not int:
        raise ValueError(
            f"{path}: the sum of {name!r} of part {part} is {show(found)}; expected an int: the "
            "file is damaged, copy the save again"
        )
    return found


def _described(path: Path, about: Mapping[str, Any], free: Iterable[str]) -> dict[str, Any]:
    if not path.exists():
        raise FileNotFoundError(f"{path} is not there; expected a folder that save() wrote")
    try:
        content = read_yaml_bytes(path)
        document = parse_plain_yaml(content)
    except ValueError as error:
        raise ValueError(f"{path}: cannot be read ({error}); copy the save again") from error
    body, mark, _ = content.rpartition(MARK)  # which early saves have not
    if mark and content != body + last_line(body):
        raise ValueError(
            f"{path}: has another CRC-32 than its last line says: it was changed after it was "
            "written, copy the save again"
        )
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


def _read(path: Path, like: torch.Tensor, expected: int | None) -> torch.Tensor:
    rows = read_npy(path, in_memory=True)
    if rows.shape != like.shape or rows.dtype != like.dtype:
        raise ValueError(
            f"{path}: holds {rows.dtype} of shape {tuple(rows.shape)}; expected {like.dtype} of "
            f"shape {tuple(like.shape)}"
        )
    total = add_rows(0, rows.numpy(), 0) if rows.numel() else 0
    if expected is not None and total != expected:
        raise ValueError(
            f"{path}: its rows have the sum {total:016x}; expected {expected:016x}, as when they "
            "were written: the file is damaged, copy the save again"
        )
    return rows
