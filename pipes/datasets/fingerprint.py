"""Has an input changed? A short record of each file's content, cheap to take again.

Files up to 64 MiB are hashed whole. Of larger ones: size, time of change, and a hash of 64 blocks
spread evenly over the file; a moved file keeps its time of change, a copy may not.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from hopline.pipes.datasets.metadata import OnDiskMetaData
from hopline.pipes.datasets.yaml_file import Place

__all__ = ["difference", "fingerprint", "fingerprint_of_bytes", "resolve_inputs"]

WHOLE = 64 << 20
BLOCK = 64 << 10
BLOCKS = 64
PIECE = 256 << 10


def resolve_inputs(metadata: OnDiskMetaData, root: Path, place: Place) -> dict[str, Path]:
    """Finds every input file.

    A path is relative to the data set's folder or absolute. A relative one that leads out of the
    folder by `..` is refused: it would point elsewhere once the folder is moved.

    Args:
        metadata: the description.
        root: the data set's folder.
        place: the YAML file.

    Returns:
        `{path as written: file}`.

    Raises:
        MetadataError: a file is missing, unreadable, or outside the folder by a relative path.
    """
    files: dict[str, Path] = {}
    for entry_place, entry in metadata.files(place):
        at = entry_place.at("path")
        outside = os.path.normpath(entry.path).split(os.sep)[0] == os.pardir
        if outside:
            raise at.error(
                f"{entry.path!r} leads out of the data set's folder {root}; move the file into the "
                "folder or give its absolute path"
            )
        path = root / entry.path
        try:
            found = path.is_file()
            if found:
                with path.open("rb"):
                    pass
        except (OSError, ValueError) as error:  # no permission; a path that cannot be
            raise at.error(f"{entry.path!r} cannot be opened ({error})") from error
        if not found:
            what = "is no regular file" if path.exists() else "does not exist"
            what = "is a folder" if path.is_dir() else what
            raise at.error(
                f"file {entry.path!r} {what}; expected the array at {path}: correct the path (it "
                "is relative to the YAML file's folder) or put the file there"
            )
        files[entry.path] = path
    return files


def fingerprint(path: Path) -> dict[str, int | str]:
    """Size and hash of a file; of a large one a hash of samples, and the time of change.

    Raises:
        OSError: it cannot be read; names it.
    """
    try:
        return _fingerprint(path)
    except OSError as error:  # of a read, which does not know the name
        raise OSError(error.errno, error.strerror, str(path)) from error


def fingerprint_of_bytes(content: bytes) -> dict[str, int | str]:
    """What `fingerprint` gives for a file of this content, of `WHOLE` bytes or less."""
    digest = hashlib.blake2b(content, digest_size=16)
    return {"size": len(content), "blake2b": digest.hexdigest()}


def _fingerprint(path: Path) -> dict[str, int | str]:
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        if status.st_size <= WHOLE:
            while piece := file.read(PIECE):
                digest.update(piece)
            return {"size": status.st_size, "blake2b": digest.hexdigest()}
        for i in range(BLOCKS):
            file.seek((status.st_size - BLOCK) * i // (BLOCKS - 1))
            digest.update(file.read(BLOCK))
    return {
        "size": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "sampled_blake2b": digest.hexdigest(),
    }


def difference(
    old: Mapping[str, Mapping[str, int | str]], new: Mapping[str, Mapping[str, int | str]]
) -> str | None:
    """The first difference between two records, in words; None if there is none."""
    for name, value in new.items():
        if name not in old:
            return f"{name} is new"
        if dict(old[name]) != dict(value):
            return f"{name} has changed"
    for name in old:
        if name not in new:
            return f"{name} is no longer used"
    return None
