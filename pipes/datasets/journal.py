"""The journal of a run: what it has finished, so that the next run goes on after a kill.

A file of JSON in the working folder, replaced whole at each entry. Its key says what the work is
made of; the work of another key is of no use.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from hopline.pipes.datasets.npy_writer import sync_folder, sync_names

__all__ = ["Journal"]

FILE = "journal.json"
INTERVAL = 10.0  # seconds between two entries of one phase
LARGE = 1 << 20  # bytes of a file that is worth an entry


class Journal:
    """What a run has finished.

    Args:
        folder: the working folder.
        key: what the work is made of; plain values as JSON has them.
    """

    def __init__(self, folder: Path, key: dict[str, Any]) -> None:
        self._folder = folder
        self._key = key
        self._entries: dict[str, Any] = _read(folder, key) or {}
        self._last = time.monotonic()

    @staticmethod
    def continues(folder: Path, key: dict[str, Any]) -> bool:
        """Whether a folder holds work that is made of the same."""
        return _read(folder, key) is not None

    def get(self, name: str) -> Any:
        """What has been noted under a name; None if nothing was."""
        return self._entries.get(name)

    def put(self, name: str, value: Any) -> None:
        """Notes something that is on the disk; it is so itself when the call returns."""
        self._entries[name] = value
        new = self._folder / f"{FILE}.new"
        with new.open("w", encoding="utf-8") as file:
            check = _digest(self._entries)
            json.dump({"key": self._key, "entries": self._entries, "check": check}, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._folder / FILE)
        sync_folder(self._folder)
        self._last = time.monotonic()

    def put_large(self, name: str, value: Callable[[], Any], file: BinaryIO) -> None:
        """Notes that a file is finished, after it is on the disk; a small one is soon made anew.

        Args:
            name: of the entry.
            value: gives what to note.
            file: in the folder or below.
        """
        if os.fstat(file.fileno()).st_size >= LARGE:
            noted = value()
            os.fsync(file.fileno())
            sync_names(Path(file.name), self._folder)
            self.put(name, noted)

    def due(self) -> bool:
        """Whether the last entry is long enough ago for another one of the same phase."""
        return time.monotonic() - self._last >= INTERVAL

    def close(self) -> None:
        """Removes the file: the work is done."""
        for name in (FILE, f"{FILE}.new"):
            (self._folder / name).unlink(missing_ok=True)


def _digest(entries: Any) -> str:
    """Tells a damaged file."""
    text = json.dumps(entries, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _read(folder: Path, key: dict[str, Any]) -> dict[str, Any] | None:
    try:
        document = json.loads((folder / FILE).read_text(encoding="utf-8"))
        entries = document["entries"]
        whole = document["key"] == key and document["check"] == _digest(entries)
        return entries if whole and isinstance(entries, dict) else None
    except (OSError, ValueError, LookupError, TypeError):
        return None
