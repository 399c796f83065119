"""merge_hops: answers of several parts as one hop, in the order of its columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from hopline.partition.batch_kernels import copy_picks, place_picks
from hopline.pipes.hop import Hop, check_picks

__all__ = ["merge_hops"]

Array = np.ndarray[Any, Any]


def merge_hops(
    answers: list[list[Array]], order: Array, num_types: int, id_dtype: torch.dtype
) -> Hop:
    """One hop of what parts have drawn.

    Args:
        answers: of each rank, for each of its parts in turn: int64[k * T] picks of each segment,
            integer[picks] neighbours, int64[picks] edge ids.
        order: int64[n], the columns in the order of the answers.
        num_types: edge types T.
        id_dtype: of neighbours.

    Raises:
        ValueError: the answers do not fit.
    """
    if num_types == 0:  # of a graph that has no edge types, and so no edges
        return Hop(np.zeros(1, np.int64), 0, np.empty(0, np.int64), np.empty(0, np.int64))
    triples = [tuple(answer[i : i + 3]) for answer in answers for i in range(0, len(answer), 3)]
    segments = np.empty(len(order) * num_types + 1, np.int64)
    counts = np.concatenate([t[0] for t in triples]) if triples else np.empty(0, np.int64)
    if len(counts) != len(order) * num_types or (counts < 0).any():
        raise ValueError(
            f"ranks answered for {len(counts)} segments; expected {len(order) * num_types}"
        )
    place_picks(order, num_types, counts, segments)
    total = int(segments[-1])
    check_picks(total, len(order))
    kind = np.int32 if id_dtype == torch.int32 else np.int64
    neighbors, positions = np.empty(total, kind), np.empty(total, np.int64)
    low = 0
    for part_counts, part_neighbors, part_positions in triples:
        columns = order[low : low + len(part_counts) // num_types]
        picks = int(part_counts.sum())
        if not len(part_neighbors) == len(part_positions) == picks:
            raise ValueError(f"a rank answered with {len(part_neighbors)} picks; expected {picks}")
        copy_picks(
            columns, num_types, segments, 0, part_neighbors, part_positions, neighbors, positions
        )
        low += len(columns)
    return Hop(segments, num_types, neighbors, positions)
