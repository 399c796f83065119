"""CPU kernel of the edges with the smallest scores: weighted draws and LABOR, made fast.

Like `hopline.pipes.kernels.draws`, whose picks these are: serial, without the GIL, all helpers in
this file or `instructions`, floating-point results in one fixed order of operations.

Scores cost a logarithm and a division, so the edges are swept first: simple loops, which LLVM turns
into vector instructions, compute each edge's word and a lower bound of its score, and keep as
candidates the edges that may be below a top score. The top is guessed so that somewhat more than k
scores are likely to be below it. Where fewer are, the segment is swept again without a guess: the
top is then the k-th smallest score met so far.
"""

from __future__ import annotations

import numpy as np

from hopline.pipes.kernels.compiling import kernel
from hopline.pipes.kernels.instructions import (
    LOOKED,
    borrow,
    first_bit,
    loose_add,
    low_marks,
    prefetch,
)  # fmt: skip
from hopline.pipes.kernels.instructions import (
    bits_of as _bits,
)
from hopline.pipes.kernels.instructions import (
    float_of as _from_bits,
)
from hopline.pipes.kernels.instructions import (
    quotient as _quotient,
)

__all__ = ["NEAR", "pick_smallest"]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_A = np.uint64(0xBF58476D1CE4E5B9)
MIX_B = np.uint64(0x94D049BB133111EB)
ONE = np.uint64(1)
U11 = np.uint64(11)
U12 = np.uint64(12)
U27 = np.uint64(27)
U30 = np.uint64(30)
U31 = np.uint64(31)

AHEAD = 4  # segments between a prefetch and its use
LINE = 16  # edges of a cache line, or more
PREFETCHED = 320  # edges of a segment that are prefetched
BEHIND = 16  # segments between a pick and the reading of its source
BLOCK = 1024  # edges of a sweep whose words and bounds are in the first-level cache
FIRST_BLOCK = 256  # the same while there is no top
LANES = 32  # loops over a multiple of it have no rest that is not done by vectors
FEW = 64  # candidates up to which comparing all pairs is the fastest way to find the k-th
LN2 = np.log(2.0)
SQRT2 = np.sqrt(2.0)
TINY = 2.0**-52
SMALLEST_WEIGHT = 1e-300  # so that sums and quotients of weights stay numbers
LARGEST_WEIGHT = 1e300
ALMOST = 1.0 - 1e-9  # rounding errors of a score are far below the rest
NEAR = 1024  # edges between two entries of the index to repeats
MOST = 0.7  # share of candidates above which a guess saves nothing
FRACTION = (1 << 52) - 1
ONE_EXPONENT = 1023 << 52
ALL_WORDS = 1 << 53  # words >> 11 are below it


@kernel(inline="always")
def _mix64(word):
    word = (word ^ (word >> U30)) * MIX_A
    word = (word ^ (word >> U27)) * MIX_B
    return word ^ (word >> U31)


@kernel(inline="always")
def _fold(key, counter):
    return _mix64(key + GOLDEN * (np.uint64(counter) + ONE))


@kernel(inline="always")
def _unit(word):
    """A number in (0, 1): the middle of one of 2**52 equal steps."""
    return (np.float64(word >> U12) + 0.5) * TINY


@kernel(inline="always")
def _exponential(unit):
    """-log(unit), for unit in (0, 1): exponentially distributed when unit is uniform.

    log(m) = 2 artanh((m - 1) / (m + 1)) by its series, for m in (sqrt(1/2), sqrt(2)]: eleven
    terms leave an error below the rounding.
    """
    bits = _bits(unit)
    exponent = (bits >> 52) - 1023
    m = _from_bits((bits & FRACTION) | ONE_EXPONENT)
    if m > SQRT2:
        m = m * 0.5
        exponent += 1
    f = m - 1.0
    s = _quotient(f, 2.0 + f)
    z = s * s
    p = 1.0 / 21.0
    p = p * z + 1.0 / 19.0
    p = p * z + 1.0 / 17.0
    p = p * z + 1.0 / 15.0
    p = p * z + 1.0 / 13.0
    p = p * z + 1.0 / 11.0
    p = p * z + 1.0 / 9.0
    p = p * z + 1.0 / 7.0
    p = p * z + 1.0 / 5.0
    p = p * z + 1.0 / 3.0
    p = p * z + 1.0
    return -(np.float64(exponent) * LN2 + 2.0 * s * p)


@kernel(inline="always")
def _padded(count):
    return (count + LANES - 1) // LANES * LANES


@kernel
def _survey(weights, first, degree):
    """Sums of a segment's weights.

    Returns:
        (how many weights are bad, sum of weights, sum of their squares).
    """
    # Edges behind the segment are read and not counted.
    end = min(_padded(degree), len(weights) - first)
    bad = 0
    total = squares = np.float64(0.0)
    for j in range(end):
        w = np.float64(weights[np.uint64(first + j)])
        w = w if j < degree else np.float64(0.0)
        good = (w == 0.0) | ((w >= SMALLEST_WEIGHT) & (w <= LARGEST_WEIGHT))
        bad += 0 if good else 1
        total = loose_add(total, w)
        squares = loose_add(squares, w * w)
    return bad, total, squares


@kernel
def _first_bad(weights, first, degree):
    """Position of a segment's first bad weight."""
    for e in range(first, first + degree):
        w = np.float64(weights[e])
        if w != 0.0 and not (w >= SMALLEST_WEIGHT and w <= LARGEST_WEIGHT):
            return e
    return np.int64(-1)


@kernel
def _guess(weighted, k, degree, total, squares):
    """A top score that somewhat more than k of a segment's edges are likely to be below.

    Edges of equal weight w are below x with probability 1 - exp(-x w). With unequal ones it is
    about as if there were fewer, total**2 / squares of them (Kish's effective size).
    """
    expected = k + 2.0 * np.sqrt(np.float64(k)) + 2.0
    if not weighted:
        share = expected / degree
        return np.ceil(share * ALL_WORDS) if share < MOST else np.inf
    size = total * total / squares if squares > 0.0 else 0.0
    if not (expected < MOST * min(size, np.float64(degree))):
        return np.inf
    return _exponential(1.0 - expected / size) * size / total


@kernel
def _score_by_weight(words, weights, count, scores):
    for i in range(count):
        scores[i] = _quotient(_exponential(_unit(words[i])), weights[i])


@kernel
def _score_words(words, count, scores):
    for i in range(count):
        scores[i] = np.float64(words[i] >> U11)


@kernel
def _fold_all(stream, base, count, words):
    """words[j] = fold(stream, base + j) for j below count."""
    for j in range(count):
        words[j] = _fold(stream, base + j)


@kernel
def _variates(layer, source_names, start, count, words):
    """words[j] = LABOR's word of source source_names[start + j] for j below count."""
    key, other, switch, share = layer[0], layer[1], layer[2], layer[3]
    for j in range(count):
        source = source_names[np.uint64(start + j)]
        mine = key
        if share != 0 and _fold(switch, source) < share:
            mine = other
        words[j] = _fold(mine, source)


@kernel
def _compare(words, count, top, marks):
    """marks[j] < 0 where an edge without weight has a score below top."""
    for j in range(count):
        marks[j] = np.float64(words[j] >> U11) - top


@kernel
def _bound(words, weights, start, count, top, marks):
    """marks[j] < 0 where edge start + j may have a score below top.

    -log(u) is above 2 (1 - u) / (1 + u), and little above it for u near 1.
    """
    for j in range(count):
        rest = 1.0 - _unit(words[j])
        marks[j] = 2.0 * ALMOST * rest - top * np.float64(weights[np.uint64(start + j)]) * (
            2.0 - rest
        )


@kernel
def _keep_marked(words, marks, base, count, chosen, kept, at):
    """Appends the edges of a block whose mark is below 0; returns how many there are then."""
    j = 0
    while j < count:
        low = low_marks(marks, j)
        if count - j < LOOKED:
            low &= (ONE << np.uint64(count - j)) - ONE
        while low != 0:
            place = j + first_bit(low)
            chosen[at] = base + place
            kept[at] = words[place]
            at += 1
            low &= low - ONE
        j += LOOKED
    return at


@kernel(inline="always")
def _score(weighted, kept, heft, count, scores):
    """Scores of candidates, and infinity behind them up to a multiple of `LANES`."""
    end = _padded(count)
    if weighted:
        _score_by_weight(kept, heft, end, scores)
    else:
        _score_words(kept, end, scores)
    for i in range(count, end):
        scores[i] = np.inf


@kernel
def _best_of_few(scores, count, k, smaller, best):
    """The places of the k smallest of scores[:count], as best[:k], ascending.

    Behind count, up to a multiple of `LANES`, scores are infinite. Returns k, or more if equals
    cross the k-th place.
    """
    end = _padded(count)
    for i in range(end):
        smaller[i] = 0
    for j in range(count):
        score = scores[j]
        for i in range(end):
            smaller[i] += score < scores[i]
    n = 0
    for i in range(count):
        best[n] = i
        n += smaller[i] < k
    return n


@kernel
def _best_of_many(scores, count, k, best):
    """The places of the k smallest of scores[:count], as best[:k], ascending; the first of equals.

    By bisection: floats that are not negative have the order of their bits.
    """
    low, high = np.int64(0), _bits(np.inf)
    while low < high:
        middle = low + ((high - low) >> 1)  # their sum might be too large
        bound = _from_bits(middle)
        reached = 0
        for i in range(count):
            reached += scores[i] <= bound
        if reached >= k:
            high = middle
        else:
            low = middle + 1
    cut = _from_bits(low)
    ties = k
    for i in range(count):
        ties -= scores[i] < cut
    n = 0
    for i in range(count):
        tie = scores[i] == cut and ties > 0
        best[n] = i
        n += tie or scores[i] < cut
        ties -= tie


@kernel(inline="always")
def _select(scores, count, k, smaller, best):
    """The places of the k smallest of scores[:count], the first of equals, as best[:k]."""
    if count > FEW or _best_of_few(scores, count, k, smaller, best) > k:
        _best_of_many(scores, count, k, best)


@kernel(inline="always")
def _sweep(
    source_names, weights, first, degree, k, guess, stream, layer, repeats, times_before, repeat,
    words, marks, chosen, kept, heft, scores, smaller, best,
):  # fmt: skip
    """The k edges of a segment with the smallest scores, among those below a guess.

    first and degree say where the segment is; repeat is the number of the first repeat that is not
    before it; guess is a score, infinity for none. The rest is as in `pick_smallest`.

    Returns:
        How many edges there are, chosen[best[:n]]; -1 if fewer than k are below the guess.
    """
    weighted = len(weights) > 0
    top = guess
    n = 0
    base = 0
    while base < degree:
        count = min(BLOCK if top < np.inf else FIRST_BLOCK, degree - base)
        start = first + base
        end = min(_padded(count), len(source_names) - start)
        if len(layer) == 0:
            _fold_all(stream, base, end, words)
        else:
            _variates(layer, source_names, start, end, words)
        while repeat < len(repeats) and repeats[repeat] < start + count:
            place = repeats[repeat] - start
            words[place] = _fold(words[place], times_before[repeat])
            repeat += 1
        before = n
        if weighted:
            _bound(words, weights, start, end, top, marks)
        else:
            _compare(words, end, top, marks)
        n = _keep_marked(words, marks, base, count, chosen, kept, n)
        if weighted:
            for j in range(before, n):
                heft[j] = np.float64(weights[first + chosen[j]])
        base += count
        if n > 2 * (k + FEW) and base < degree:
            # From here on, the k-th smallest score so far is the top.
            _score(weighted, kept, heft, n, scores)
            _select(scores, n, k, smaller, best)
            cut = 0.0
            for j in range(k):
                cut = max(cut, scores[best[j]])
                chosen[j] = chosen[best[j]]
                kept[j] = kept[best[j]]
                heft[j] = heft[best[j]]
            n = k
            top = min(top, cut)
    if n < k and guess < np.inf:
        return np.int64(-1)
    if n > k or guess < np.inf:
        _score(weighted, kept, heft, n, scores)
    if guess < np.inf:
        below = 0
        for j in range(_padded(n)):
            below += scores[j] < guess
        if below < k:
            return np.int64(-1)
    if n > k:
        _select(scores, n, k, smaller, best)
        return k
    for j in range(n):
        best[j] = j
    return n


@kernel(inline="always")
def _first_repeat(near, repeats, first):
    """Number of the first repeat that is not before a position."""
    left = near[first // NEAR]
    right = near[first // NEAR + 1]
    while left < right:
        middle = (left + right) >> 1
        if repeats[middle] < first:
            left = middle + 1
        else:
            right = middle
    return left


@kernel
def _pick(
    indices, node_ids, keys, fanouts, begin, degree, room, weights, layer, source_names, near,
    repeats, times_before, chosen, kept, heft, scores, words, marks, smaller, best, segments,
    positions, neighbors,
):  # fmt: skip
    """`pick_smallest`, with scratch arrays that its caller owns."""
    indices, weights, layer = borrow(indices), borrow(weights), borrow(layer)
    source_names = borrow(source_names)
    repeats, times_before = borrow(repeats), borrow(times_before)
    chosen, kept, heft = borrow(chosen), borrow(kept), borrow(heft)
    scores, words, marks = borrow(scores), borrow(words), borrow(marks)
    smaller, best = borrow(smaller), borrow(best)
    weighted = len(weights) > 0
    at = np.int64(0)
    read = np.int64(0)
    segments[0] = 0
    for s in range(len(begin)):
        if s + AHEAD < len(begin):
            ahead = begin[s + AHEAD]
            if len(near) > 0:
                prefetch(near, ahead // NEAR)
            for e in range(ahead, ahead + min(degree[s + AHEAD], PREFETCHED), LINE):
                if weighted:
                    prefetch(weights, e)
                if len(layer) > 0:
                    prefetch(source_names, e)
        while read < segments[max(0, s - BEHIND)]:
            neighbors[read] = indices[positions[read]]
            read += 1
        fanout = fanouts[s % len(fanouts)]
        segments[s + 1] = at
        if fanout == 0 or degree[s] == 0:
            continue
        first = begin[s]
        total = squares = np.float64(degree[s])
        if weighted:
            bad, total, squares = _survey(weights, first, degree[s])
            if bad > 0:
                return -1 - _first_bad(weights, first, degree[s])
        k = room[s + 1] - room[s]
        if k == degree[s]:
            for e in range(first, first + k):
                positions[at] = e
                prefetch(indices, e)
                at += 1 if not weighted or weights[e] != 0.0 else 0
            segments[s + 1] = at
            continue
        stream = _fold(keys[s % len(fanouts)], node_ids[s // len(fanouts)])
        repeat = _first_repeat(near, repeats, first) if len(repeats) > 0 else np.int64(0)
        guess = _guess(weighted, k, degree[s], total, squares)
        n = np.int64(-1)
        while n < 0:
            n = _sweep(
                source_names, weights, first, degree[s], k, guess, stream, layer, repeats,
                times_before, repeat, words, marks, chosen, kept, heft, scores, smaller, best,
            )  # fmt: skip
            guess = np.inf
        for j in range(n):
            positions[at] = first + chosen[best[j]]
            prefetch(indices, positions[at])
            at += 1
        segments[s + 1] = at
    while read < at:
        neighbors[read] = indices[positions[read]]
        read += 1
    return at


@kernel
def pick_smallest(
    indices, node_ids, keys, fanouts, begin, degree, room, weights, layer, source_names, near,
    repeats, times_before, segments, positions, neighbors,
):  # fmt: skip
    """Draws the edges with the smallest scores, without restriction in time.

    The picks, and the bad weight that is found first, are those of `draws.pick_scored` without
    replacement and without times.

    Args:
        indices: integer[num_edges], sources, in range.
        node_ids: integer[n], the columns' original ids.
        keys: uint64[T].
        fanouts: int64[T].
        begin: int64[n * T], from `cpu.count_picks`.
        degree: int64[n * T], from `cpu.count_picks`.
        room: int64[n * T + 1], from `cpu.count_picks`.
        weights: number[num_edges], or empty: all 1.
        layer: uint64[4], or empty: no LABOR. As in `draws.pick_scored`.
        source_names: integer[num_edges], likewise.
        near: int64[num_edges // NEAR + 2], how many repeats are before each NEAR-th edge; or empty.
        repeats: int64[r], positions of the edges that have a parallel one before them in their
            segment, ascending; empty without LABOR.
        times_before: int32[r], how many.
        segments: int64[n * T + 1], out: running sum of picks.
        positions: int64[room[-1] + 1], out.
        neighbors: integer[room[-1]], out.

    Returns:
        Number of picks; -1 - e if the weight of edge e is neither 0 nor from 1e-300 to 1e300.
    """
    largest = np.int64(0)
    for s in range(len(degree)):
        if room[s + 1] - room[s] < degree[s]:
            largest = max(largest, room[s + 1] - room[s])
    candidates = _padded(2 * (largest + FEW) + BLOCK + 1)
    chosen = np.zeros(candidates, np.int64)
    kept = np.zeros(candidates, np.uint64)
    heft = np.ones(candidates, np.float64)
    scores = np.zeros(candidates, np.float64)
    words = np.zeros(BLOCK, np.uint64)
    marks = np.zeros(BLOCK, np.float64)
    smaller = np.zeros(FEW, np.int64)
    best = np.zeros(candidates, np.int64)
    return _pick(
        indices, node_ids, keys, fanouts, begin, degree, room, weights, layer, source_names, near,
        repeats, times_before, chosen, kept, heft, scores, words, marks, smaller, best, segments,
        positions, neighbors,
    )  # fmt: skip
