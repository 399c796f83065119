"""BuiltinDataset: the data sets that ship with the package."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hopline.pipes.datasets.debian import NODE_NAMES_FILE, expand_debian
from hopline.pipes.datasets.location import locked, publish, user_cache, working_folder
from hopline.pipes.datasets.ondisk import OnDiskDataset

__all__ = ["BuiltinDataset", "builtin_root"]

ENVIRONMENT = "HOPLINE_DATASETS"
SIZES_FILE = "sizes.txt"
LOCK_TIMEOUT = 600.0  # seconds to wait for another process that expands the same file


@dataclass(frozen=True)
class _Source:
    """A shipped file and what turns it into a data set folder.

    Attributes:
        file: the file, beside this module.
        expand: writes the data set to an existing folder.
        layout: number of the layout of that folder, raised with every change of `expand`.
    """

    file: Path
    expand: Callable[[Path, Path], None]
    layout: int


_SOURCES = {"debian": _Source(Path(__file__).with_name("debian.npz"), expand_debian, 1)}


def builtin_root(root: str | os.PathLike[str] | None = None) -> Path:
    """The folder that built-in data sets are expanded to, absolute.

    It is `root`; or the environment variable HOPLINE_DATASETS; or `hopline/datasets` in the user's
    cache folder (XDG_CACHE_HOME, by default `~/.cache`).

    Raises:
        FileNotFoundError: none of them is given, and the user has no home folder.
    """
    if root is not None:
        return Path(root).expanduser().absolute()
    if named := os.environ.get(ENVIRONMENT):
        return Path(named).expanduser().absolute()
    cache = user_cache()
    if cache is None:
        raise FileNotFoundError(
            f"there is no home folder to expand built-in data sets to; give root, or set "
            f"{ENVIRONMENT} or XDG_CACHE_HOME"
        )
    return cache / "hopline" / "datasets"


def _known_name(name: str) -> str:
    """The name without GraphBolt's suffix "-seeds", checked."""
    if not isinstance(name, str):
        raise TypeError(f"name is a {type(name).__name__}; expected a string such as 'debian'")
    known = name.removesuffix("-seeds")
    if known not in _SOURCES:
        if os.path.isdir(name):
            raise ValueError(
                f"no built-in data set {name!r}, but there is a folder of that name; for a data "
                f"set in it use hp.OnDiskDataset({name!r})"
            )
        raise ValueError(
            f"no built-in data set {name!r}, and no such folder; available: "
            f"{sorted(_SOURCES)}. Built-in data sets come with the package, nothing is "
            "downloaded: for cora, ogbn-products and the others that GraphBolt fetches, unpack "
            "your own copy and use hp.OnDiskDataset(path)"
        )
    return known


def _expand(name: str, root: Path) -> Path:
    """The data set's folder, made if need be.

    The folder's name tells the content of the shipped file, so that another version of the file
    goes to another folder. It appears whole, by a rename; one process at a time makes it.
    """
    source = _SOURCES[name]
    digest = hashlib.sha256(source.file.read_bytes() + str(source.layout).encode()).hexdigest()
    folder = root / f"{name}-{digest[:12]}"
    if _is_whole(folder):
        return folder
    try:
        with locked(folder, LOCK_TIMEOUT):
            if not _is_whole(folder):
                with working_folder(folder) as work:
                    source.expand(source.file, work)
                    _write_sizes(work)
                    publish(work, folder)
    except TimeoutError as error:
        raise TimeoutError(
            f"{folder}: another process has been expanding the data set for more than "
            f"{LOCK_TIMEOUT:.0f} s; wait for it or end it"
        ) from error
    except OSError as error:
        raise OSError(
            f"cannot expand the data set {name!r} to {folder}: {error}. Give a folder that can be "
            f"written, as BuiltinDataset({name!r}, root=...) or in the environment variable "
            f"{ENVIRONMENT}"
        ) from error
    return folder


def _write_sizes(folder: Path) -> None:
    """Writes down which files belong to the folder, and their sizes in bytes."""
    lines = [f"{path.stat().st_size} {path.name}\n" for path in sorted(folder.iterdir())]
    (folder / SIZES_FILE).write_text("".join(lines), encoding="utf-8")


def _is_whole(folder: Path) -> bool:
    """Whether every file is there and none is cut short."""
    try:
        lines = (folder / SIZES_FILE).read_text(encoding="utf-8").splitlines()
        sizes = [line.split(" ", 1) for line in lines]
        return bool(sizes) and all(
            (folder / name).stat().st_size == int(size) for size, name in sizes
        )
    except (OSError, ValueError):
        return False


class BuiltinDataset(OnDiskDataset):
    """A data set that ships with the package; works offline.

    The first use expands the shipped file to an on-disk data set in the user's cache folder (about
    80 MB), later uses find it there.

    Args:
        name: "debian": packages of the Debian distribution and their relations, section as class
            (docs/builtin-datasets.md). GraphBolt's suffix "-seeds" is accepted and has no effect.
        root: folder to expand to; by default the environment variable HOPLINE_DATASETS, or
            `hopline/datasets` in the user's cache folder.

    Raises:
        TypeError: the name is not a string.
        ValueError: there is no built-in data set of that name; lists those there are.
        OSError: the folder cannot be written.

    >>> dataset = BuiltinDataset("debian").load()
    >>> dataset.tasks[0].metadata["num_classes"], dataset.node_names[0]
    (58, '0ad')
    """

    def __init__(self, name: str, root: str | os.PathLike[str] | None = None) -> None:
        super().__init__(_expand(_known_name(name), builtin_root(root)))

    @property
    def node_names(self) -> list[str]:
        """The name of each node, read from the data set's folder: for "debian", the package."""
        return (self.path / NODE_NAMES_FILE).read_text(encoding="utf-8").splitlines()
