"""Plain Python twins of the kernels: slow, simple, and the definition of the right answer.

They are written from the contracts in the docstrings and share no code with the package. Nodes are
pairs (node type, id in the type); only the key of a draw and a position in CSC order know the
fused numbering.
"""

from __future__ import annotations

from dataclasses import dataclass, field

WORD = 2**64
SHUFFLE, SAMPLE = 1, 2  # purposes of draws

# Names that stand for the one node type and the one edge type of a homogeneous graph.
NODE = "node"
EDGE = "node:edge:node"


# -------------------------------------------------------------------------------------------------
# Random words


def mix64(word: int) -> int:
    """Finaliser of SplitMix64, Stafford's variant 13."""
    word ^= word >> 30
    word = word * 0xBF58476D1CE4E5B9 % WORD
    word ^= word >> 27
    word = word * 0x94D049BB133111EB % WORD
    return word ^ word >> 31


def fold(key: int, *counters: int) -> int:
    for counter in counters:
        key = mix64((key + 0x9E3779B97F4A7C15 * (counter + 1)) % WORD)
    return key


def below(word: int, bound: int) -> int:
    """Floor of word / 2**64 * bound."""
    return word * bound // WORD


def swap_or_not(round_keys: list[int], total: int, position: int) -> int:
    """Where the shuffle of [0, total) by these round keys sends a position."""
    for key in round_keys:
        partner = (below(key, total) - position) % total
        if fold(key, max(position, partner)) % 2 == 1:
            position = partner
    return position


def epoch_order(seed: int, epoch: int, total: int) -> list[int]:
    """The permutation that an item sampler reads in an epoch."""
    key = fold(seed, SHUFFLE, epoch)
    keys = [fold(key, r) for r in range(4 * total.bit_length() + 16)]
    return [swap_or_not(keys, total, position) for position in range(total)]


# -------------------------------------------------------------------------------------------------
# Picks of one segment


def floyd(stream: int, degree: int, count: int) -> list[int]:
    """`count` distinct numbers below `degree`, by Floyd's draw."""
    chosen: list[int] = []
    for j, last in enumerate(range(degree - count, degree)):
        drawn = below(fold(stream, j), last + 1)
        chosen.append(last if drawn in chosen else drawn)
    return chosen


def pick(stream: int, degree: int, fanout: int, replace: bool) -> list[int]:
    """Edges of a segment that a fanout takes."""
    if fanout == -1:
        return list(range(degree))
    if replace:
        return [below(fold(stream, j), degree) for j in range(fanout)] if degree else []
    if fanout >= degree:
        return list(range(degree))
    return floyd(stream, degree, fanout)


# -------------------------------------------------------------------------------------------------
# Graphs


def coo_to_csc(
    src: list[int], dst: list[int], num_columns: int
) -> tuple[list[int], list[int], list[int]]:
    """indptr, indices and each edge's number in the input; stable by destination."""
    order = sorted(range(len(dst)), key=lambda edge: dst[edge])
    indptr = [sum(d < column for d in dst) for column in range(num_columns + 1)]
    return indptr, [src[edge] for edge in order], order


def gather(rows: list, ids: list[int]) -> list:
    return [rows[i] for i in ids]


def relabel(seeds: list, neighbors: list) -> tuple[list, list[int]]:
    """The list that begins with the seeds and holds each new neighbour once; positions in it."""
    nodes = list(seeds)
    local = []
    for node in neighbors:
        if node not in nodes:
            nodes.append(node)
        local.append(nodes.index(node))
    return nodes, local


@dataclass
class Graph:
    """Edges by type, in the order of the input, with ids local to each node type."""

    num_nodes: dict[str, int]
    edges: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    def fused(self, node: tuple[str, int]) -> int:
        kind, i = node
        before = 0
        for name, count in self.num_nodes.items():
            if name == kind:
                return before + i
            before += count
        raise KeyError(kind)

    def in_edges(self, node: tuple[str, int]) -> list[tuple[int, str, int]]:
        """(edge type number, source id, number of the edge in its type) in CSC order."""
        kind, i = node
        found = []
        for t, (etype, pairs) in enumerate(self.edges.items()):
            if etype.split(":")[2] == kind:
                found += [(t, s, e) for e, (s, d) in enumerate(pairs) if d == i]
        return found

    def positions(self) -> dict[tuple[int, int], int]:
        """Position in CSC order of (edge type number, number of the edge in its type)."""
        order: list[tuple[int, int]] = []
        for kind, count in self.num_nodes.items():
            for i in range(count):
                order += [(t, e) for t, _, e in self.in_edges((kind, i))]
        return {edge: position for position, edge in enumerate(order)}


@dataclass
class Sample:
    """A sampled mini-batch: nodes by type, and hops from the outermost to the seeds.

    A hop is {edge type: one list for each destination of its type: [(position of the source among
    the sources of its type, edge id), ...]}.
    """

    nodes: dict[str, list[int]]
    hops: list[dict[str, list[list[tuple[int, int]]]]]
    rows: list[dict[str, int]]  # sources of each hop
    columns: list[dict[str, int]]  # destinations of each hop


def sample(
    graph: Graph,
    seeds: list[tuple[str, int]],
    fanouts: list[list[int]],
    replace: bool,
    key: tuple[int, int, int],
    original_ids: bool = True,
) -> Sample:
    """Samples hop by hop.

    Args:
        graph: the graph.
        seeds: nodes, ordered by type.
        fanouts: a list a hop, outermost first, of one fanout or one for each edge type.
        replace: draw with replacement.
        key: (seed, epoch, index).
        original_ids: edge ids are numbers in the input of their type, else positions in CSC order.
    """
    seed, epoch, index = key
    etypes = list(graph.edges)
    positions = graph.positions()
    nodes = list(seeds)
    result = Sample({}, [], [], [])
    for hop, fanout in enumerate(reversed(fanouts)):
        hop_key = fold(seed, SAMPLE, epoch, index, hop)
        columns = list(nodes)
        picked: list[list[tuple[int, int, int]]] = []
        for column in columns:
            incoming = graph.in_edges(column)
            if len(fanout) == 1:
                stream = fold(hop_key, 0, graph.fused(column))
                picks = pick(stream, len(incoming), fanout[0], replace)
                if graph.num_nodes.keys() != {NODE}:
                    picks = sorted(picks)  # so that each type's edges lie together
                taken = gather(incoming, picks)
            else:
                taken = []
                for t in range(len(etypes)):
                    segment = [edge for edge in incoming if edge[0] == t]
                    stream = fold(hop_key, t, graph.fused(column))
                    taken += gather(segment, pick(stream, len(segment), fanout[t], replace))
            picked.append(taken)
        sources = [(etypes[t].split(":")[0], source) for taken in picked for t, source, _ in taken]
        nodes, _ = relabel(columns, sources)
        lists = {kind: [i for k, i in nodes if k == kind] for kind in graph.num_nodes}
        first = {kind: [k for k, _ in nodes].count(kind) for kind in graph.num_nodes}
        edges: dict[str, list[list[tuple[int, int]]]] = {etype: [] for etype in etypes}
        for column, taken in zip(columns, picked, strict=True):
            for t, etype in enumerate(etypes):
                if etype.split(":")[2] == column[0]:
                    source_list = lists[etype.split(":")[0]]
                    edges[etype].append(
                        [
                            (source_list.index(s), e if original_ids else positions[t, e])
                            for edge_type, s, e in taken
                            if edge_type == t
                        ]
                    )
        result.hops.insert(0, edges)
        result.rows.insert(0, first)
        result.columns.insert(0, {k: [c for c, _ in columns].count(k) for k in graph.num_nodes})
    result.nodes = {kind: [i for k, i in nodes if k == kind] for kind in graph.num_nodes}
    return result
