"""CPU kernels of mini-batches over parts: who is asked for what, and answers put together."""

from __future__ import annotations

import numpy as np

from hopline.pipes.kernels.compiling import kernel

__all__ = [
    "copy_picks",
    "find_hot",
    "find_parts",
    "hot_places",
    "localise",
    "mark_hot",
    "own_rows",
    "place_picks",
    "sort_parts",
    "take",
]


@kernel
def find_parts(ids, starts, num_parts, parts):
    """The part that owns each node or edge.

    Args:
        ids: integer[n].
        starts: int64[T * num_parts + 1], where the ids of each part begin, type by type, and the
            end; ascending. Empty parts begin where the next one does.
        num_parts: P.
        parts: integer[n], out.

    Returns:
        Position of the first id outside [starts[0], starts[-1]), or -1.
    """
    runs = len(starts) - 1
    for i in range(len(ids)):
        at = np.int64(ids[i])
        if at < starts[0] or at >= starts[runs]:
            return i
        low, high = 0, runs  # the last run that begins at or below the id
        while high - low > 1:
            middle = (low + high) >> 1
            if starts[middle] <= at:
                low = middle
            else:
                high = middle
        parts[i] = low % num_parts
    return -1


@kernel
def sort_parts(parts, order, bounds):
    """Puts nodes or edges in the order of their parts, those of one part in their own order.

    Args:
        parts: integer[n], each in [0, P).
        order: int64[n], out.
        bounds: int64[P + 1], out: where those of each part begin in that order.
    """
    bounds[:] = 0
    for i in range(len(parts)):
        bounds[parts[i] + 1] += 1
    for p in range(1, len(bounds)):
        bounds[p] += bounds[p - 1]
    # The bounds of the part before are moved along, and then back.
    for i in range(len(parts)):
        order[bounds[parts[i]]] = i
        bounds[parts[i]] += 1
    for p in range(len(bounds) - 1, 0, -1):
        bounds[p] = bounds[p - 1]
    bounds[0] = 0


@kernel
def localise(ids, order, bounds, starts, local):
    """Ids within their parts, in the order of the parts.

    Args:
        ids: integer[n].
        order: int64[n], of `sort_parts`.
        bounds: int64[P + 1], of `sort_parts`.
        starts: int64[P + 1], where the ids of each part begin.
        local: integer[n], out.
    """
    for p in range(len(bounds) - 1):
        for i in range(bounds[p], bounds[p + 1]):
            local[i] = np.int64(ids[order[i]]) - starts[p]


@kernel(inline="always")
def _count_ones(word):
    """Of 64 bits. Warren, "Hacker's Delight", 5-1."""
    word = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
    pairs = np.uint64(0x3333333333333333)
    word = (word & pairs) + ((word >> np.uint64(2)) & pairs)
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@kernel
def mark_hot(ids, bits, before):
    """Sets the bits of ids, and counts those before each word.

    Args:
        ids: int64[n], each in [0, 64 * words).
        bits: uint64[words], zeros, out.
        before: int64[words], out.
    """
    for at in ids:
        bits[at >> 6] |= np.uint64(1) << np.uint64(at & 63)
    count = np.int64(0)
    for w in range(len(bits)):
        before[w] = count
        count += _count_ones(bits[w])


@kernel
def find_hot(ids, bits, part, here, parts):
    """Gives hot ids that another part owns to a part of their own.

    Args:
        ids: integer[n], of nodes.
        bits: uint64[words], of `mark_hot`.
        part: that hot ids get.
        here: bool[num_parts], whether a part's rows are here anyway.
        parts: integer[n], in and out.
    """
    for i in range(len(ids)):
        at = np.int64(ids[i])
        if bits[at >> 6] >> np.uint64(at & 63) & np.uint64(1) and not here[parts[i]]:
            parts[i] = part


@kernel
def hot_places(ids, order, low, bits, before, local):
    """Where the rows of hot ids lie: how many hot ids are below each.

    Args:
        ids: integer[n], of nodes.
        order: int64[n], of `sort_parts`.
        low: from which place in that order on ids are hot.
        bits: uint64[words], of `mark_hot`.
        before: int64[words], of `mark_hot`.
        local: integer[n], out, from low on.
    """
    for i in range(low, len(order)):
        at = np.int64(ids[order[i]])
        below = (np.uint64(1) << np.uint64(at & 63)) - np.uint64(1)
        local[i] = before[at >> 6] + _count_ones(bits[at >> 6] & below)


@kernel
def own_rows(columns, offsets, first, own, row_starts, rows):
    """The rows of a part's own nodes.

    Args:
        columns: integer[n], fused ids.
        offsets: int64[T + 1], first fused id of each type.
        first: int64[T], first fused id of the own nodes of each type.
        own: int64[T], how many.
        row_starts: int64[T], the row of the first.
        rows: int64[n], out; -1 for nodes that are not the part's own.

    Returns:
        How many are not.
    """
    others = 0
    kinds = len(first)
    for i in range(len(columns)):
        at = np.int64(columns[i])
        rows[i] = -1
        if offsets[0] <= at < offsets[kinds]:
            t = 0
            while at >= offsets[t + 1]:
                t += 1
            local = at - first[t]
            if 0 <= local < own[t]:
                rows[i] = row_starts[t] + local
                continue
        others += 1
    return others


@kernel
def take(source, places, out):
    """Values at places.

    Args:
        source: any[m].
        places: integer[n], each in [0, m).
        out: any[n], out.
    """
    for i in range(len(places)):
        out[i] = source[places[i]]


@kernel
def place_picks(order, num_types, counts, segments):
    """Running sum of picks in the columns' own order.

    Args:
        order: int64[n], column of each entry of the answers.
        num_types: edge types T.
        counts: int64[n * T], picks, in the order of the answers.
        segments: int64[n * T + 1], out.
    """
    segments[0] = 0
    for i in range(len(order)):
        for t in range(num_types):
            segments[order[i] * num_types + t + 1] = counts[i * num_types + t]
    for s in range(1, len(segments)):
        segments[s] += segments[s - 1]


@kernel
def copy_picks(
    order, num_types, segments, first, neighbors, positions, out_neighbors, out_positions
):
    """Copies the picks of some columns to their places.

    Args:
        order: int64[k], the columns, in the order of the answer.
        num_types: edge types T.
        segments: int64[n * T + 1], of all columns.
        first: pick of the answer at which they begin.
        neighbors: integer[picks], of the answer.
        positions: int64[picks], of the answer.
        out_neighbors: integer[total], out.
        out_positions: int64[total], out.

    Returns:
        The pick of the answer behind the last one.
    """
    at = first
    for i in order:
        low = segments[i * num_types]
        count = segments[(i + 1) * num_types] - low
        for j in range(count):
            out_neighbors[low + j] = neighbors[at + j]
            out_positions[low + j] = positions[at + j]
        at += count
    return at
