"""Parts that a machine needs for its ranks: are they there, and of the right partition?"""

from __future__ import annotations

import os
from pathlib import Path

from hopline.partition.book import PartitionBook
from hopline.partition.manifest import PartitionError, part_folder
from hopline.partition.part import load_part_manifest, load_partition
from hopline.partition.placing import Placing

__all__ = ["check_parts_here", "parts_of_ranks"]


def parts_of_ranks(ranks: range, world_size: int, book: PartitionBook) -> list[int]:
    """The parts that some ranks open, ascending.

    Raises:
        ValueError: of the numbers of ranks and of parts, neither is a multiple of the other.
    """
    placing = Placing(book, ranks.start, world_size)
    return sorted({part for rank in ranks for part in placing.parts_of(rank)})


def check_parts_here(path: str | os.PathLike[str], ranks: range, world_size: int) -> str:
    """Checks that what some ranks open is there, by names and sizes of files.

    Args:
        path: the folder that `partition_graph` wrote, or a copy with some of its parts.
        ranks: those of this machine.
        world_size: number of ranks in all.

    Returns:
        The id of the partition.

    Raises:
        PartitionError: a file is missing, cut short or of another partition; names it.
        ValueError: of the numbers of ranks and of parts, neither is a multiple of the other.
    """
    manifest = load_partition(path)
    parts = parts_of_ranks(ranks, world_size, manifest.book())
    folder = Path(path)
    manifest.check_files(folder, content=False)
    for number in parts:
        where = folder / part_folder(number)
        if not where.is_dir():
            raise PartitionError(
                f"{where}: no such folder; ranks {ranks.start} to {ranks.stop - 1} need "
                f"{', '.join(part_folder(part) for part in parts)}: copy them here"
            )
        load_part_manifest(path, manifest, number).check_files(where, content=False)
    return manifest.partition_id
