"""draw_by_asking: negatives without true edges, of a graph whose edges are elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np

from hopline.pipes.kernels import edges as kernels

__all__ = ["draw_by_asking"]

Array = np.ndarray[Any, Any]

GROWTH = 4  # most seeds take their first draw; whoever does not is given more at a time
MOST_DRAWS = 1 << 12  # of one negative at a time
MOST_PAIRS = 1 << 20  # asked for at a time


def draw_by_asking(
    graph: Any,
    key: int,
    ratio: int,
    counts: Array,
    order: Array,
    sources: Array,
    first: int,
    edge_type: int,
) -> tuple[Array, int]:
    """What `kernels.edges.draw_destinations` draws, by questions whether edges exist.

    All negatives ask together: first for one draw each, then those whose draws were all edges for
    more and more.

    Args:
        graph: with `has_edges(sources, columns, edge_type)`.
        key: of the mini-batch and the edge type, 64 bits.
        ratio: negatives a pair.
        counts: int64[pairs], number of candidates of each pair, 1 or more.
        order: integer[nodes], or empty; as of `draw_destinations`.
        sources: int64[pairs], fused ids.
        first: fused id of destination 0.
        edge_type: number of the edge type to avoid.

    Returns:
        (int64[pairs * ratio] destinations, -1 or the first pair that has none).
    """
    out = np.full(len(counts) * ratio, -1, np.int64)
    waiting = np.arange(len(out))
    cursors = np.full(len(out), -1, np.int64)
    failed = len(counts)
    draw, width = 0, 1
    while len(waiting):
        if draw < kernels.ATTEMPTS:
            width = min(width, kernels.ATTEMPTS - draw)
        width = max(1, min(width, MOST_DRAWS, MOST_PAIRS // len(waiting)))
        drawn = np.empty((len(waiting), width), np.int64)
        kernels.propose_destinations(
            np.uint64(key), ratio, counts, order, waiting, draw, cursors, drawn
        )
        there = drawn >= 0
        asked = np.repeat(sources[waiting // ratio], there.sum(1))
        free = np.zeros(drawn.shape, bool)
        free[there] = ~graph.has_edges(asked, first + drawn[there], edge_type)
        found = free.any(1)
        out[waiting[found]] = drawn[found, free[found].argmax(1)]
        over = ~found & ~there[:, -1]
        if over.any():
            failed = min(failed, int(waiting[over][0]) // ratio)
        left = ~found & ~over
        waiting, cursors = waiting[left], cursors[left]
        draw, width = draw + width, width * GROWTH
    return out, failed if failed < len(counts) else -1
