"""Plain Python twins of the draws that look at every edge: weighted, LABOR, temporal; and of links.

Like `tests.twins`: from the docstrings, with Python's integers and floats. Scores are compared bit
for bit, so the additions, multiplications and divisions come in the order that the docstrings give.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass
from itertools import accumulate

from tests.twins import NODE, SAMPLE, Graph, Sample, fold, pick

LAYER = 4  # purpose of LABOR's variates
NO_EDGE_IS_OLDER = -(2**63) - 1

Edge = tuple[int, int]  # number of the edge type, number of the edge in its type
Node = tuple[str, int]


# -------------------------------------------------------------------------------------------------
# Floats


def unit(word: int) -> float:
    """Middle of one of 2**52 equal steps of (0, 1)."""
    return ((word >> 12) + 0.5) * 2.0**-52


def exponential(u: float) -> float:
    """-log(u), as m * 2**n with m between sqrt(1/2) and sqrt(2), by the series of artanh."""
    m, n = math.frexp(u)
    if 2 * m <= math.sqrt(2.0):
        m, n = 2 * m, n - 1
    s = (m - 1) / (m + 1)
    z = s * s
    series = 0.0
    for odd in range(21, 0, -2):
        series = series * z + 1 / odd
    return -(n * math.log(2.0) + 2 * s * series)


# -------------------------------------------------------------------------------------------------
# Rules


@dataclass
class Rule:
    """How to draw.

    Attributes:
        fanouts: a list a hop, outermost first, of one fanout or one for each edge type.
        replace: with replacement.
        weights: of each edge, or None.
        layer: (layer_dependency, batch_dependency) of LABOR, or None.
        node_times: of each node, or None.
        edge_times: of each edge, or None.
        deduplicate: number each node once.
    """

    fanouts: list[list[int]]
    replace: bool = False
    weights: dict[Edge, float] | None = None
    layer: tuple[bool, int] | None = None
    node_times: dict[Node, int] | None = None
    edge_times: dict[Edge, int] | None = None
    deduplicate: bool = True

    def sees(self, edge: Edge, source: Node, time: int | None, earliest: int) -> bool:
        """Whether a column of that time may know of an edge."""
        if time is None:
            return True
        seen = [table[what] for table, what in
                ((self.edge_times, edge), (self.node_times, source)) if table]  # fmt: skip
        return all(earliest < when < time for when in seen)

    def looks(self, time: int | None) -> bool:
        """Whether the edges themselves matter, and not just their number."""
        timed = time is not None and (self.node_times is not None or self.edge_times is not None)
        return self.weights is not None or self.layer is not None or timed


def variate(key: tuple[int, int, int], hop: int, layer: tuple[bool, int], source: int) -> int:
    """The word of a source in a hop.

    In period p of k mini-batches, step s, a source has the word of period p + 1 if its word of the
    period's switch is below s / k, and that of period p otherwise.
    """
    seed, epoch, index = key
    shared, k = layer
    hop = 0 if shared else hop
    if k < 1:
        return fold(seed, LAYER, hop, source)
    period, step = index // k, index % k
    switch = fold(seed, LAYER, epoch, -1, hop, source)
    if step and switch < step * 2**64 // k:
        period += 1
    return fold(seed, LAYER, epoch, period, hop, source)


def draw_by_weight(stream: int, weights: list[float], count: int) -> list[int]:
    """`count` draws with replacement, each in proportion to the weights."""
    sums = list(accumulate(weights))
    points = [unit(fold(stream, j)) * sums[-1] for j in range(count)]
    return [min(bisect.bisect_right(sums, x), len(sums) - 1) for x in points]


def smallest(scores: list[tuple[float, int]], count: int) -> list[int]:
    return [edge for _, edge in sorted(scores)[:count]]


def pick_looking(
    rule: Rule,
    fanout: int,
    stream: int,
    segment: list[tuple[int, float, int]],
) -> list[int]:
    """Places in a column's segment that a fanout takes, in ascending order.

    Args:
        rule: how to draw.
        fanout: how many.
        stream: of the column, its time included.
        segment: (place, weight, word of the source) of what the column may see and has a weight.
    """
    if fanout == 0 or not segment:
        return []
    if fanout == -1:
        return [place for place, _, _ in segment]
    if rule.layer is None and rule.weights is None:
        if rule.replace or fanout < len(segment):
            draws = pick(stream, len(segment), fanout, rule.replace)
        else:
            draws = range(len(segment))
        return sorted(segment[i][0] for i in draws)
    if rule.layer is None and rule.replace:
        drawn = draw_by_weight(stream, [w for _, w, _ in segment], fanout)
        return sorted(segment[i][0] for i in drawn)
    if rule.replace:
        arrivals = []
        for place, weight, word in segment:
            at = 0.0
            for j in range(fanout):
                at += exponential(unit(fold(word, j))) / weight
                arrivals.append((at, place))
        return sorted(smallest(arrivals, fanout))
    scores = []
    for place, weight, word in segment:
        word = fold(stream, place) if rule.layer is None else word
        score = word >> 11 if rule.weights is None else exponential(unit(word)) / weight
        scores.append((score, place))
    return sorted(smallest(scores, fanout))


def unique(nodes: list[Node]) -> list[Node]:
    return list(dict.fromkeys(nodes))


def sample(
    graph: Graph,
    seeds: list[Node],
    rule: Rule,
    key: tuple[int, int, int],
    *,
    times: list[int] | None = None,
    earliest: list[int] | None = None,
    links: bool = False,
    original_ids: bool = True,
) -> tuple[Sample, list[int]]:
    """Samples hop by hop.

    Args:
        graph: the graph.
        seeds: nodes in the order of the mini-batch; of links, their ends, row by row.
        rule: how to draw.
        key: (seed, epoch, index).
        times: of each of the seeds, for temporal sampling.
        earliest: start of the window of each.
        links: seeds are ends of links: each is numbered once.
        original_ids: edge ids are numbers in the input of their type, else positions in CSC order.

    Returns:
        The sample, and where each of the seeds is among the nodes of its type.
    """
    seed, epoch, index = key
    etypes, positions = list(graph.edges), graph.positions()
    once = rule.deduplicate and times is None
    rows = unique(seeds) if links and once else list(seeds)
    starts = [rows.index(node) for node in seeds] if links and once else list(range(len(seeds)))
    if times is not None and earliest is None:
        earliest = [NO_EDGE_IS_OLDER] * len(times)
    flat = set(graph.num_nodes) == {NODE}
    hops: list[tuple[int, list[list[tuple[int, int, int]]]]] = []  # columns, (type, row, edge)
    for hop, fanout in enumerate(reversed(rule.fanouts)):
        hop_key = fold(seed, SAMPLE, epoch, index, hop)
        columns = len(rows)
        places = {node: i for i, node in reversed(list(enumerate(rows)))}
        picked: list[list[tuple[int, int, int]]] = []
        for c in range(columns):
            incoming = graph.in_edges(rows[c])
            time, since = (None, 0) if times is None else (times[c], earliest[c])
            taken = []
            for t, count in enumerate(fanout):
                segment = [e for e in incoming if len(fanout) == 1 or e[0] == t]
                stream = fold(hop_key, t, graph.fused(rows[c]))
                if not rule.looks(time):
                    picks = pick(stream, len(segment), count, rule.replace)
                    picks = picks if flat or len(fanout) > 1 else sorted(picks)
                else:
                    stream = stream if time is None else fold(stream, time)
                    visible = []
                    for place, (kind, source, e) in enumerate(segment):
                        node = (etypes[kind].split(":")[0], source)
                        weight = 1.0 if rule.weights is None else rule.weights[kind, e]
                        if weight > 0 and rule.sees((kind, e), node, time, since):
                            word = 0
                            if rule.layer is not None:
                                word = variate(key, hop, rule.layer, graph.fused(node))
                                before = [
                                    (etypes[k].split(":")[0], s) for k, s, _ in segment[:place]
                                ].count(node)
                                word = fold(word, before) if before else word
                            visible.append((place, weight, word))
                    picks = pick_looking(rule, count, stream, visible)
                taken += [segment[i] for i in picks]
            column = []
            for kind, source, e in taken:
                node = (etypes[kind].split(":")[0], source)
                if not once or node not in places:
                    places[node] = len(rows)
                    rows.append(node)
                    if times is not None:
                        times = [*times, times[c]]
                        earliest = [*earliest, earliest[c]]
                column.append((kind, places[node], e))
            picked.append(column)
        hops.append((columns, picked))
    ranks = [[k for k, _ in rows[:r]].count(rows[r][0]) for r in range(len(rows))]
    ends = [columns for columns, _ in hops[1:]] + [len(rows)]
    result = Sample({}, [], [], [])
    for (columns, picked), end in zip(hops, ends, strict=True):
        edges: dict[str, list[list[tuple[int, int]]]] = {}
        for t, etype in enumerate(etypes):
            edges[etype] = [
                [(ranks[r], e if original_ids else positions[t, e]) for k, r, e in column if k == t]
                for node, column in zip(rows, picked, strict=False)
                if node[0] == etype.split(":")[2]
            ]
        result.hops.insert(0, edges)
        for lists, stop in ((result.rows, end), (result.columns, columns)):
            kinds = [k for k, _ in rows[:stop]]
            lists.insert(0, {kind: kinds.count(kind) for kind in graph.num_nodes})
    result.nodes = {kind: [i for k, i in rows if k == kind] for kind in graph.num_nodes}
    return result, [ranks[r] for r in starts]
