"""Is there room on the disk? Found out before the work, not in the middle of it."""

from __future__ import annotations

import shutil
from pathlib import Path

from hopline.pipes.datasets.progress import Progress

__all__ = ["check_space", "show_bytes"]


def show_bytes(number: int) -> str:
    """A number of bytes for people, in powers of 1000 as disks are sold."""
    amount = float(number)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:,.4g} TB"


def check_space(
    folder: Path, needed: int, what: str, progress: Progress, there: list[Path] | None = None
) -> None:
    """Refuses to start what the disk has no room for.

    Args:
        folder: where it will be written.
        needed: bytes.
        what: will be written, for the message.
        progress: is told.
        there: files that a former run has written, which count as free.

    Raises:
        OSError: says what is needed and what is free.
    """
    free = shutil.disk_usage(folder).free
    have = sum(path.stat().st_size for path in there or () if path.exists())
    if needed > free + have:
        raise OSError(
            f"the disk of {folder.parent} has no room for {what}: {show_bytes(needed)} are needed, "
            f"{show_bytes(free + have)} are free; free some, or give a processed_path (--out) on "
            "another disk"
        )
    progress.note(f"{what}: {show_bytes(needed)} of disk needed, {show_bytes(free + have)} free")
