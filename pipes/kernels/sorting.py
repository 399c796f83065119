"""Kernels of preparation: sorting edges by destination in pieces, and reading lines of text.

Ids and counts are read from files in more than one pass. Where a kernel finds an id or a place out
of range, a file was changed between them: it stops there, so nothing is written out of bounds.
"""

from __future__ import annotations

import numpy as np

from hopline.pipes.kernels.compiling import kernel

__all__ = [
    "add_up",
    "add_up_segments",
    "count_buckets",
    "count_cells",
    "parse_pairs",
    "place_by_bucket",
    "place_by_node",
    "scatter",
    "scatter_rows",
]

NEWLINE = 10
RETURN = 13
SPACE = 32
COMMA = 44
MINUS = 45
PLUS = 43
ZERO = 48
NINE = 57
LARGEST = (1 << 63) - 1
ONE = np.uint64(1)
HALF = np.uint64(32)
MIXER = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio: neighbours get unlike weights


@kernel
def add_up(words, first):
    """Sum modulo 2**64 of words, each times an odd number that its place gives.

    Args:
        words: unsigned[n].
        first: place of the first one.
    """
    total = np.uint64(0)
    place = np.uint64(first)
    for i in range(len(words)):
        place += ONE
        weight = place * MIXER
        weight = (weight ^ (weight >> HALF)) | ONE
        total += np.uint64(words[i]) * weight
    return total


@kernel
def add_up_segments(words, counts, places):
    """As `add_up`, of words that come in segments.

    Args:
        words: unsigned[n].
        counts: int64[segments], words of each; n together.
        places: int64[segments], place of the first word of each.
    """
    total = np.uint64(0)
    start = 0
    for s in range(len(counts)):
        place = np.uint64(places[s])
        for i in range(start, start + counts[s]):
            place += ONE
            weight = place * MIXER
            weight = (weight ^ (weight >> HALF)) | ONE
            total += np.uint64(words[i]) * weight
        start += counts[s]
    return total


@kernel
def count_cells(ids, low, shift, counts):
    """Adds each cell's number of ids to counts; a cell is 2**shift consecutive ids.

    Args:
        ids: integer[n], from `low` on.
        low: first id of the first cell.
        shift: see above.
        counts: int64[cells], in and out.

    Returns:
        -1, or the position of the first id without a cell.
    """
    for e in range(len(ids)):
        cell = (np.int64(ids[e]) - low) >> shift
        if cell < 0 or cell >= len(counts):
            return e
        counts[cell] += 1
    return -1


@kernel
def count_buckets(ids, low, shift, buckets, counts):
    """Adds each bucket's number of ids to counts.

    Args:
        ids: integer[n], from `low` on.
        low: first id of the first cell.
        shift: a cell is 2**shift consecutive ids.
        buckets: int32[cells], the bucket that each cell belongs to.
        counts: int64[num_buckets], in and out.

    Returns:
        -1, or the position of the first id without a cell.
    """
    for e in range(len(ids)):
        cell = (np.int64(ids[e]) - low) >> shift
        if cell < 0 or cell >= len(buckets):
            return e
        counts[buckets[cell]] += 1
    return -1


@kernel
def place_by_bucket(ids, low, shift, buckets, cursor, places):
    """Gives each id the next free place of its bucket; in order, so that equal buckets keep it.

    Args:
        ids: integer[n], as `count_buckets` has counted them.
        low: first id of the first cell.
        shift: a cell is 2**shift consecutive ids.
        buckets: int32[cells], the bucket that each cell belongs to.
        cursor: int64[num_buckets], next free place of each bucket, in and out.
        places: int32[n], out.
    """
    for e in range(len(ids)):
        bucket = buckets[(np.int64(ids[e]) - low) >> shift]
        places[e] = cursor[bucket]
        cursor[bucket] += 1


@kernel
def place_by_node(ids, low, cursor, end, places):
    """Gives each id the next free place of its node; in order, so that equal ids keep it.

    Args:
        ids: integer[n], from `low` on.
        low: id of the first node.
        cursor: int64[nodes], next free place of each node, in and out.
        end: places there are.
        places: int32[n], out.

    Returns:
        -1, or the position of the first id without a node or a place.
    """
    for e in range(len(ids)):
        node = np.int64(ids[e]) - low
        if node < 0 or node >= len(cursor) or cursor[node] >= end:
            return e
        places[e] = cursor[node]
        cursor[node] += 1
    return -1


@kernel
def scatter(values, places, out):
    """out[places] = values, for values of one word.

    Args:
        values: uint8/16/32/64[n], bits of any type.
        places: int32[n], in range.
        out: as values, [places there are].
    """
    for e in range(len(places)):
        out[places[e]] = values[e]


@kernel
def scatter_rows(values, places, out):
    """out[places] = values, for rows of bytes.

    Args:
        values: uint8[n, row_bytes].
        places: int32[n], in range.
        out: uint8[places there are, row_bytes], out.
    """
    for e in range(len(places)):
        place = places[e]
        for i in range(values.shape[1]):
            out[place, i] = values[e, i]


@kernel
def parse_pairs(text, end, pairs):
    """Reads lines `integer,integer`: blanks around each number are allowed, so are blank lines.

    Lines end with a line feed, a carriage return, or the two together.

    Args:
        text: uint8[n].
        end: where to stop: behind the end of a line, or at the end of the file.
        pairs: int64[m, 2], out; m is above the number of lines.

    Returns:
        (pairs found, lines read, start of the first line that is anything else or -1). The last
        two count up to that line.
    """
    rows = 0
    lines = 0
    at = 0
    while at < end:
        start = at
        column = 0
        blank = True
        good = True
        value = np.int64(0)
        digits = 0
        negative = False
        signed = False
        closed = False  # a blank has ended the number
        while at < end:
            c = text[at]
            if ZERO <= c <= NINE:
                digit = np.int64(c) - ZERO
                if closed or value > (LARGEST - digit) // 10:
                    good = False
                value = value * 10 + digit
                digits += 1
                blank = False
            elif c == COMMA:
                if digits == 0 or column == 1:
                    good = False
                pairs[rows, 0] = -value if negative else value
                column += 1
                value = np.int64(0)
                digits = 0
                negative = signed = closed = False
                blank = False
            elif c in (NEWLINE, RETURN):
                break
            elif c == SPACE or 9 <= c <= 13:
                closed = digits > 0 or signed
            elif c in (MINUS, PLUS) and digits == 0 and not signed:
                negative = c == MINUS
                signed = True
                blank = False
            else:
                good = False
                blank = False
            at += 1
        if not blank:
            if not good or column != 1 or digits == 0:
                return rows, lines, start
            pairs[rows, 1] = -value if negative else value
            rows += 1
        lines += 1
        if at < end:
            if text[at] == RETURN and at + 1 < end and text[at + 1] == NEWLINE:
                at += 1
            at += 1
    return rows, lines, -1
