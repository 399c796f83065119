"""Random graphs, seeds, weights and times for hypothesis, as twins and as the package has them."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from hypothesis import strategies as st

import hopline.pipes as hp
from tests import twins
from tests.twins import EDGE, NODE


def tensor(values, dtype=torch.int64) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


def ends(pairs) -> tuple[torch.Tensor, torch.Tensor]:
    return tensor([s for s, _ in pairs]), tensor([d for _, d in pairs])


@st.composite
def homogeneous(draw, max_nodes=7, max_edges=40) -> twins.Graph:
    """Multigraphs: isolated nodes, parallel edges, self-loops; also without edges or nodes."""
    n = draw(st.integers(0, max_nodes))
    node = st.integers(0, n - 1)
    pairs = draw(st.lists(st.tuples(node, node), max_size=max_edges)) if n else []
    return twins.Graph({NODE: n}, {EDGE: pairs})


ETYPES = ("user:buys:item", "user:likes:item", "item:in:shop", "user:knows:user", "shop:owns:user")


@st.composite
def heterogeneous(draw, max_nodes=4, max_edges=12) -> twins.Graph:
    """Up to three node types, any of them empty, and up to five edge types, any of them empty."""
    kinds = draw(st.permutations(("user", "item", "shop")))
    num_nodes = {kind: draw(st.integers(0, max_nodes)) for kind in kinds}
    edges = {}
    for etype in draw(st.lists(st.sampled_from(ETYPES), unique=True, min_size=1)):
        source, _, destination = etype.split(":")
        n, m = num_nodes[source], num_nodes[destination]
        edges[etype] = []
        if n and m:
            pair = st.tuples(st.integers(0, n - 1), st.integers(0, m - 1))
            edges[etype] = draw(st.lists(pair, max_size=max_edges))
    return twins.Graph(num_nodes, edges)


def is_homogeneous(graph: twins.Graph) -> bool:
    return set(graph.num_nodes) == {NODE}


def build(graph: twins.Graph, wide: bool = False, **kwargs) -> hp.FusedCSCSamplingGraph:
    """The package's graph of a twin; `wide` gives int64 indices, as above 2**31 nodes."""
    kwargs.setdefault("include_original_edge_id", False)
    if is_homogeneous(graph):
        made = hp.from_coo(*ends(graph.edges[EDGE]), graph.num_nodes[NODE], **kwargs)
    else:
        made = hp.from_coo(
            {etype: ends(pairs) for etype, pairs in graph.edges.items()},
            num_nodes=graph.num_nodes,
            **kwargs,
        )
    if wide:
        made.indices = made.indices.to(torch.int64)
    return made


@st.composite
def seeds_of(draw, graph: twins.Graph, max_size=8) -> list[tuple[str, int]]:
    """Seeds with repeats, ordered by type; often of some types only, or none at all."""
    seeds = []
    for kind, count in graph.num_nodes.items():
        if count:
            ids = draw(st.lists(st.integers(0, count - 1), max_size=max_size))
            seeds += [(kind, i) for i in ids]
    return seeds


def seed_tensors(graph: twins.Graph, seeds, dtype=torch.int64):
    """Seeds as a mini-batch has them; types without a seed are left out."""
    if is_homogeneous(graph):
        return tensor([i for _, i in seeds], dtype)
    return {
        kind: tensor([i for k, i in seeds if k == kind], dtype)
        for kind in graph.num_nodes
        if any(k == kind for k, _ in seeds)
    }


@st.composite
def fanout_lists(draw, graph: twins.Graph, replace: bool, max_hops=3) -> list[list[int]]:
    """Fanouts a hop: one, or one for each edge type; none, few, many, all."""
    # With replacement the fanout is the number of edges: none of the huge ones.
    fanout = st.sampled_from([0, 1, 2, 3, 5, -1, 9 if replace else 2**31 - 1])
    hops = []
    for _ in range(draw(st.integers(1, max_hops))):
        typed = draw(st.booleans())
        size = len(graph.edges) if typed else 1
        hops.append(draw(st.lists(fanout, min_size=size, max_size=size)))
    return hops


# -------------------------------------------------------------------------------------------------
# Attributes

# Of each dtype: nothing, small, large, the smallest and the largest.
WEIGHTS: dict[torch.dtype, list[Any]] = {
    torch.float64: [0.0, 1.0, 0.5, 3.25, 1e-300, 1e300, 1e-200, -0.0],
    torch.float32: [0.0, 1.0, 0.3, 7.0, 1e-45, 3e38],
    torch.float16: [0.0, 1.0, 0.1, 6e-8, 65504.0],
    torch.bfloat16: [0.0, 1.0, 0.1, 1e-38, 3e38],
    torch.int64: [0, 1, 2, 2**62 + 1],
    torch.int32: [0, 1, 5, 2**31 - 1],
    torch.uint8: [0, 1, 255],
    torch.bool: [False, True],
}
TIMES = {
    torch.int64: [0, 1, 2, 3, 4, -1, 2**63 - 1, -(2**63) + 1],
    torch.int32: [0, 1, 2, 3, -5],
    torch.uint8: [0, 1, 2, 3, 255],
}


@st.composite
def attribute(draw, sizes: dict[str, int], values: dict[torch.dtype, list[Any]]):
    """A tensor for each type, all of one dtype."""
    dtype = draw(st.sampled_from(list(values)))
    # Mostly different ones; sometimes all alike, which are all 0 where 0 is drawn.
    value = st.sampled_from(draw(st.sampled_from([values[dtype], values[dtype][:1]])))
    return {
        kind: tensor(draw(st.lists(value, min_size=size, max_size=size)), dtype)
        for kind, size in sizes.items()
    }


def edge_values(graph: twins.Graph, values: dict[str, torch.Tensor]) -> dict:
    """{(number of the edge type, number of the edge): value}."""
    return {
        (t, e): value
        for t, etype in enumerate(graph.edges)
        for e, value in enumerate(values[etype].tolist())
    }


def edge_weights(graph: twins.Graph, values: dict[str, torch.Tensor]) -> dict:
    return {edge: float(value) for edge, value in edge_values(graph, values).items()}


def node_values(values: dict[str, torch.Tensor]) -> dict:
    """{(node type, id): value}."""
    return {(k, i): value for k, v in values.items() for i, value in enumerate(v.tolist())}


def as_given(graph: twins.Graph, values: dict[str, torch.Tensor]):
    """By type, or the only tensor where there are no types."""
    return next(iter(values.values())) if is_homogeneous(graph) else values


# -------------------------------------------------------------------------------------------------
# Links


@st.composite
def links_of(draw, graph: twins.Graph, max_size=6) -> dict[str, tuple[list[str], list[list[int]]]]:
    """{seed type: (node type of each end, rows)} in the order in which they are sampled.

    Edge types of the graph, and hyperlinks of any node types; some absent, some without rows.
    """
    if is_homogeneous(graph):
        kinds = [(EDGE, [NODE] * draw(st.integers(1, 4)))]
    else:
        kinds = [(etype, etype.split(":")[::2]) for etype in graph.edges if draw(st.booleans())]
        names = st.lists(st.sampled_from(list(graph.num_nodes)), min_size=1, max_size=4)
        others = draw(st.lists(names, max_size=2, unique_by=tuple))
        kinds += sorted((":".join(ends), ends) for ends in others)
    links = {}
    for kind, ends in kinds:
        links[kind] = ends, []
        if all(graph.num_nodes[end] for end in ends):
            row = st.tuples(*(st.integers(0, graph.num_nodes[end] - 1) for end in ends))
            links[kind][1].extend(map(list, draw(st.lists(row, max_size=max_size))))
    return links


def link_tensors(graph: twins.Graph, links, dtype=torch.int64):
    """Links as a mini-batch has them."""
    found = {
        kind: tensor(rows, dtype).reshape(len(rows), len(ends))
        for kind, (ends, rows) in links.items()
    }
    return found[EDGE] if is_homogeneous(graph) else dict(reversed(found.items()))


def ends_of(links) -> list[tuple[str, int]]:
    """The ends of all links, row by row."""
    return [
        node
        for ends, rows in links.values()
        for row in rows
        for node in zip(ends, row, strict=True)
    ]


def compacted(links, places: list[int]) -> dict[str, list[list[int]]]:
    """Rows of places in the shape of the links."""
    rest = iter(places)
    return {
        kind: [[next(rest) for _ in ends] for _ in rows] for kind, (ends, rows) in links.items()
    }


def sampled(minibatch: hp.MiniBatch, graph: twins.Graph) -> twins.Sample:
    """A sampled mini-batch in the twin's form."""
    flat = is_homogeneous(graph)
    etypes = list(graph.edges)

    def by_type(value, name):
        return {name: value} if flat else value

    sample = twins.Sample({}, [], [], [])
    sample.nodes = {k: v.tolist() for k, v in by_type(minibatch.input_nodes, NODE).items()}
    for subgraph in minibatch.sampled_subgraphs:
        csc = by_type(subgraph.sampled_csc, EDGE)
        ids = by_type(subgraph.original_edge_ids, EDGE)
        assert list(csc) == list(ids) == etypes
        edges = {}
        for etype in etypes:
            indptr, indices = csc[etype].indptr.tolist(), csc[etype].indices.tolist()
            assert csc[etype].indptr.dtype == torch.int64
            assert csc[etype].indices.dtype == torch.int32
            assert ids[etype].dtype == torch.int64
            assert indptr[0] == 0
            assert indptr[-1] == len(indices) == len(ids[etype])
            both = list(zip(indices, ids[etype].tolist(), strict=True))
            edges[etype] = [both[a:b] for a, b in itertools.pairwise(indptr)]
        sample.hops.append(edges)
        rows = by_type(subgraph.original_row_node_ids, NODE)
        columns = by_type(subgraph.original_column_node_ids, NODE)
        sample.rows.append({k: len(v) for k, v in rows.items()})
        sample.columns.append({k: len(v) for k, v in columns.items()})
        for kind, nodes in sample.nodes.items():
            assert rows[kind].tolist() == nodes[: len(rows[kind])]
            assert columns[kind].tolist() == nodes[: len(columns[kind])]
    return sample
