"""Converters: nodes, edges and attributes survive the way there and back, typed or not.

Data name themselves: attribute of edge e is 100 + e, of node i is i. The other libraries stand in
where they are missing: small classes with the part of their interface that is read or written.
"""

from __future__ import annotations

import subprocess
import sys
import types
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hopline.pipes as hp
from tests import strategies
from tests.stage_checks import assert_same
from tests.strategies import build, ends, is_homogeneous
from tests.twins import EDGE, NODE

ODD_ORDER = ([0, 1, 2, 0], [2, 0, 1, 1])  # edges that CSC puts in another order
graphs = st.one_of(strategies.homogeneous(), strategies.heterogeneous())


def named(twin, **kwargs) -> hp.FusedCSCSamplingGraph:
    """The graph of a twin, with self-naming attributes and the edges' numbers."""
    nodes = {kind: torch.arange(n) for kind, n in twin.num_nodes.items()}
    edges = {etype: 100 + torch.arange(len(e)) for etype, e in twin.edges.items()}
    if is_homogeneous(twin):
        nodes, edges = nodes[NODE], edges[EDGE]
    options = {"include_original_edge_id": True, **kwargs}
    return build(
        twin, node_attributes={"number": nodes}, edge_attributes={"edge_name": edges}, **options
    )


def assert_equal(got: hp.FusedCSCSamplingGraph, expected: hp.FusedCSCSamplingGraph) -> None:
    """Bit for bit."""
    assert got.node_type_to_id == expected.node_type_to_id
    assert got.edge_type_to_id == expected.edge_type_to_id
    assert_same(got._tensors(), expected._tensors())


def by_type(graph: hp.FusedCSCSamplingGraph) -> dict:
    """{edge type: multiset of (source, destination, name of the edge)} in ids of the type."""
    edges = hp.to_edge_list(graph)
    typed = isinstance(edges, dict)
    found = {}
    for etype, pairs in (edges if typed else {EDGE: edges}).items():
        names = graph.edge_attributes["edge_name"]
        if typed:
            names = names[graph.type_per_edge == graph.edge_type_to_id[etype]]
        # to_edge_list restores the order of the input, in which the names ascend
        names = names.sort().values
        found[etype] = Counter(zip(map(tuple, pairs.tolist()), names.tolist(), strict=True))
    return found


# -------------------------------------------------------------------------------------------------
# Edge lists


@given(graphs)
def test_edge_list_round_trip(twin):
    graph = build(twin, include_original_edge_id=True)
    edges = hp.to_edge_list(graph)
    flat = edges if isinstance(edges, dict) else {EDGE: edges}
    assert {e: [tuple(p) for p in part.tolist()] for e, part in flat.items()} == twin.edges
    num_nodes = twin.num_nodes[NODE] if is_homogeneous(twin) else twin.num_nodes
    assert_equal(hp.from_edge_list(edges, num_nodes, include_original_edge_id=True), graph)


def test_edges_come_in_csc_order_when_their_numbers_are_gone():
    graph = hp.from_edge_list(list(zip(*ODD_ORDER, strict=True)))
    assert hp.to_edge_list(graph).tolist() == [[1, 0], [2, 1], [0, 1], [0, 2]]
    # Numbers that are no order of the edges are an attribute like others.
    graph.add_edge_attribute(hp.ORIGINAL_EDGE_ID, torch.tensor([7, 5, 5, 9]))
    assert hp.to_edge_list(graph).tolist() == [[1, 0], [2, 1], [0, 1], [0, 2]]


@pytest.mark.parametrize(
    "edges",
    [
        [(0, 2), (1, 0)],
        ((0, 2), (1, 0)),
        iter([[0, 2], [1, 0]]),
        torch.tensor([[0, 2], [1, 0]], dtype=torch.int32),
        np.array([[0, 2], [1, 0]], np.uint16),
        {(0, 2): None, (1, 0): None}.keys(),
    ],
)
def test_edge_lists_of_many_kinds(edges):
    graph = hp.from_edge_list(edges)
    assert graph.num_nodes == 3
    assert hp.to_edge_list(graph).tolist() == [[1, 0], [0, 2]]


def test_edge_list_without_edges():
    assert hp.from_edge_list([]).num_nodes == 0
    assert hp.from_edge_list([], 4).num_nodes == 4
    graph = hp.from_edge_list({"a:r:b": [], "b:s:a": [(2, 1)]})
    assert graph.num_nodes == {"a": 2, "b": 3}


def test_edge_list_with_attributes():
    graph = hp.from_edge_list(
        list(zip(*ODD_ORDER, strict=True)),
        edge_attributes={"weight": torch.tensor([10, 11, 12, 13])},
        node_attributes={"time": torch.arange(3)},
    )
    assert graph.edge_attributes["weight"].tolist() == [11, 12, 13, 10]
    assert graph.node_attributes["time"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("edges", "error", "message"),
    [
        ([("a", "b")], TypeError, "use from_networkx for nodes of any kind"),
        ([(0.5, 1.0)], TypeError, "dtype float64; expected pairs of ints"),
        ([(0, 1, 2)], ValueError, r"shape \(1, 3\); expected \[E, 2\]"),
        ([(0, 1), (2,)], ValueError, "expected pairs"),
        (7, ValueError, "expected pairs"),
        (torch.ones(2, 2), TypeError, "expected integers"),
        ([(0, -1)], IndexError, "-1"),
        ({"a:b": [(0, 1)]}, ValueError, "edge type is 'a:b'"),
    ],
)
def test_edge_lists_that_are_refused(edges, error, message):
    with pytest.raises(error, match=message):
        hp.from_edge_list(edges)


# -------------------------------------------------------------------------------------------------
# SciPy


@given(graphs, st.booleans())
def test_scipy_round_trip(twin, values):
    pytest.importorskip("scipy", reason="SciPy is not installed")
    graph = named(twin)
    name = "edge_name" if values else None
    matrix = hp.to_scipy(graph, name)
    back = hp.from_scipy(matrix, name, include_original_edge_id=True)
    if isinstance(matrix, dict):
        # Types are numbered as edge types name them, so compare within types.
        mentioned = {end for etype in twin.edges for end in etype.split(":")[::2]}
        assert back.num_nodes == {k: n for k, n in twin.num_nodes.items() if k in mentioned}
    else:
        assert back.num_nodes == graph.num_nodes
    if values:
        assert by_type(back) == by_type(graph)
    pairs = hp.to_edge_list(back)
    assert_same(pairs, hp.to_edge_list(graph))


def test_scipy_rows_are_sources():
    sparse = pytest.importorskip("scipy.sparse", reason="SciPy is not installed")
    dense = np.array([[0, 0, 5], [7, 0, 0], [0, 0, 0]])
    for convert in (sparse.coo_array, sparse.csr_array, sparse.csc_matrix, sparse.lil_matrix):
        graph = hp.from_scipy(convert(dense))
        assert hp.to_edge_list(graph).tolist() == [[1, 0], [0, 2]]
        assert graph.edge_attributes["weight"].tolist() == [7, 5]
    graph = hp.from_edge_list([(0, 2), (0, 2), (1, 0)])
    assert hp.to_scipy(graph).toarray().tolist() == [[0, 0, 2], [1, 0, 0], [0, 0, 0]]
    typed = hp.from_scipy({"a:r:b": sparse.coo_array(np.ones((2, 3)))}, value_name=None)
    assert typed.num_nodes == {"a": 2, "b": 3}
    assert typed.edge_attributes is None


def test_arrays_of_any_byte_order():
    sparse = pytest.importorskip("scipy.sparse", reason="SciPy is not installed")
    for kind in (">f4", "<f4", ">i8", ">u2", "?", np.ulonglong, np.longlong):
        matrix = sparse.coo_matrix(np.eye(2)[::-1])
        matrix.data = np.array([1, 0]).astype(kind)
        graph = hp.from_scipy(matrix)
        assert graph.edge_attributes["weight"].tolist() == [0, 1]
    for kind in (">i4", ">u8", np.ulonglong, np.longlong):
        assert hp.to_edge_list(hp.from_edge_list(np.array([[1, 0]], kind))).tolist() == [[1, 0]]


def test_scipy_matrices_that_are_dicts():
    sparse = pytest.importorskip("scipy.sparse", reason="SciPy is not installed")
    for convert in (sparse.dok_matrix, sparse.dok_array):
        graph = hp.from_scipy(convert(np.array([[0, 3.0], [0, 0]])))
        assert hp.to_edge_list(graph).tolist() == [[0, 1]]
        assert graph.edge_attributes["weight"].tolist() == [3]


def test_scipy_refuses():
    sparse = pytest.importorskip("scipy.sparse", reason="SciPy is not installed")
    ones = sparse.coo_array(np.ones((2, 3)))
    with pytest.raises(TypeError, match="matrix is a ndarray"):
        hp.from_scipy(np.ones((2, 2)))
    with pytest.raises(ValueError, match=r"shape \(2, 3\); expected as many rows as columns"):
        hp.from_scipy(ones)
    with pytest.raises(ValueError, match=r"matrix of 'b:s:a' has shape .* 3 nodes of type 'b'"):
        hp.from_scipy({"a:r:b": ones, "b:s:a": ones})
    with pytest.raises(ValueError, match=r"dtypes .*; expected one"):
        hp.from_scipy({"a:r:b": ones, "a:s:b": ones.astype(np.float32)})
    with pytest.raises(TypeError, match=r"float128|longdouble|which torch lacks"):
        hp.from_scipy(sparse.coo_array(np.ones((2, 2), np.longdouble)))
    graph = hp.from_edge_list([(0, 1)], edge_attributes={"vector": torch.ones(1, 4)})
    assert hp.to_scipy(graph).toarray().tolist() == [[0, 1], [0, 0]]  # no weights: ones
    with pytest.raises(KeyError, match="no edge attribute 'value'"):
        hp.to_scipy(graph, "value")
    with pytest.raises(ValueError, match=r"'vector' has shape \(1, 4\); expected one value"):
        hp.to_scipy(graph, "vector")


# -------------------------------------------------------------------------------------------------
# NetworkX


@given(graphs)
def test_networkx_round_trip(twin):
    pytest.importorskip("networkx", reason="NetworkX is not installed")
    graph = named(twin)
    g = hp.to_networkx(graph)
    assert g.number_of_edges() == graph.total_num_edges
    options = {} if is_homogeneous(twin) else {"node_type": "type", "edge_type": "type"}
    back = hp.from_networkx(g, **options)
    alive = {k: n for k, n in twin.num_nodes.items() if n}
    if is_homogeneous(twin):
        assert back.num_nodes == graph.num_nodes
        if graph.total_num_nodes:
            assert torch.equal(back.node_attributes["number"], graph.node_attributes["number"])
    else:
        assert back.num_nodes == alive
        for kind in alive:  # node i of a type is node i of it again
            i = back.node_type_to_id[kind]
            low, high = back.node_type_offset[i : i + 2].tolist()
            assert back.node_attributes["number"][low:high].tolist() == list(range(alive[kind]))
    # NetworkX has no order of all edges; each keeps its ends and its name.
    got, expected = edges_with_names(back), edges_with_names(graph)
    assert got == {etype: edges for etype, edges in expected.items() if edges or etype == EDGE}


def edges_with_names(graph):
    bare = hp.FusedCSCSamplingGraph(
        graph.csc_indptr, graph.indices, graph.node_type_offset, graph.type_per_edge,
        graph.node_type_to_id, graph.edge_type_to_id,
    )  # fmt: skip
    pairs = hp.to_edge_list(bare)
    names = (graph.edge_attributes or {}).get("edge_name", torch.empty(0))
    if not isinstance(pairs, dict):
        return {EDGE: Counter(zip(map(tuple, pairs.tolist()), names.tolist(), strict=True))}
    return {
        etype: Counter(
            zip(
                map(tuple, part.tolist()),
                names[graph.type_per_edge == graph.edge_type_to_id[etype]].tolist(),
                strict=True,
            )
        )
        for etype, part in pairs.items()
    }


def test_networkx_graphs_of_all_kinds():
    networkx = pytest.importorskip("networkx", reason="NetworkX is not installed")
    edges = [("b", "a", {"w": 1.5}), ("a", "c", {"w": 2.5}), ("c", "c", {"w": 3.5})]
    directed = networkx.DiGraph(edges)  # nodes in the order b, a, c
    graph = hp.from_networkx(directed, include_original_edge_id=True)
    assert hp.to_edge_list(graph).tolist() == [[0, 1], [1, 2], [2, 2]]
    assert graph.edge_attributes["w"].tolist() == [1.5, 2.5, 3.5]
    assert graph.edge_attributes["w"].dtype == torch.float64
    both = hp.from_networkx(networkx.Graph(edges), include_original_edge_id=True)
    assert hp.to_edge_list(both).tolist() == [[0, 1], [1, 0], [1, 2], [2, 1], [2, 2]]
    assert both.edge_attributes["w"].tolist() == [1.5, 1.5, 2.5, 2.5, 3.5]
    parallel = hp.from_networkx(networkx.MultiDiGraph([(0, 1), (0, 1)]))
    assert hp.to_edge_list(parallel).tolist() == [[0, 1], [0, 1]]
    assert hp.from_networkx(networkx.MultiGraph([(0, 1), (0, 1)])).num_edges == 4


def test_networkx_attributes():
    networkx = pytest.importorskip("networkx", reason="NetworkX is not installed")
    g = networkx.DiGraph()
    g.add_node("x", flag=True, position=[1.0, 2.0], name="first", size=1)
    g.add_node("y", flag=False, position=[3.0, 4.0], name="second")
    with pytest.warns(UserWarning, match="'name' is a str.*'size' "):
        graph = hp.from_networkx(g)
    assert graph.node_attributes["flag"].tolist() == [True, False]
    assert graph.node_attributes["position"].shape == (2, 2)
    assert set(graph.node_attributes) == {"flag", "position"}
    assert hp.from_networkx(g, node_attributes=[]).node_attributes is None
    with pytest.raises(ValueError, match="node attribute 'size' "):
        hp.from_networkx(g, node_attributes=["size"])
    with pytest.raises(ValueError, match="node attribute 'colour' is missing; there are"):
        hp.from_networkx(g, node_attributes=["colour"])


def test_networkx_refuses():
    networkx = pytest.importorskip("networkx", reason="NetworkX is not installed")
    with pytest.raises(TypeError, match="g is a list"):
        hp.from_networkx([(0, 1)])
    with pytest.raises(ValueError, match="node_type is 'type', edge_type None; expected both"):
        hp.from_networkx(networkx.DiGraph(), node_type="type")
    with pytest.raises(ValueError, match="undirected"):
        hp.from_networkx(networkx.Graph(), node_type="type", edge_type="type")
    g = networkx.DiGraph()
    g.add_node(0, type="user")
    g.add_node(1)
    with pytest.raises(ValueError, match="node 1 has type None"):
        hp.from_networkx(g, node_type="type", edge_type="type")
    g.add_node(1, type="item")
    g.add_edge(0, 1, type="item:in:user")
    with pytest.raises(ValueError, match="its ends are of types 'user' and 'item'"):
        hp.from_networkx(g, node_type="type", edge_type="type")


# -------------------------------------------------------------------------------------------------
# DGL


class DGLStandIn:
    """What the converters use of a DGLGraph."""

    def __init__(self, edges, num_nodes):
        self.ntypes = list(num_nodes)
        self.canonical_etypes = list(edges)
        self._num_nodes = dict(num_nodes)
        self._ends = dict(edges)
        self.nodes = {kind: types.SimpleNamespace(data={}) for kind in num_nodes}
        self._data = {etype: types.SimpleNamespace(data={}) for etype in edges}

    def num_nodes(self, ntype):
        return self._num_nodes[ntype]

    @property
    def edges(self):
        graph = self

        class View:
            def __call__(self, form, order, etype):
                assert (form, order) == ("uv", "eid")
                return graph._ends[etype]

            def __getitem__(self, etype):
                return graph._data[etype]

        return View()


def dgl_graph(twin) -> DGLStandIn:
    """A twin as DGL would have it, with self-naming data."""
    if is_homogeneous(twin):
        twin = type(twin)({"_N": twin.num_nodes[NODE]}, {"_N:_E:_N": twin.edges[EDGE]})
    g = DGLStandIn({tuple(e.split(":")): ends(p) for e, p in twin.edges.items()}, twin.num_nodes)
    for kind, count in twin.num_nodes.items():
        g.nodes[kind].data["number"] = torch.arange(count)
    for etype, pairs in twin.edges.items():
        g.edges[tuple(etype.split(":"))].data["edge_name"] = 100 + torch.arange(len(pairs))
    return g


@given(graphs, st.booleans())
def test_dgl_graphs(twin, keep):
    got = hp.from_dglgraph(dgl_graph(twin), is_homogeneous(twin), keep)
    assert_equal(got, named(twin, include_original_edge_id=keep))


def test_d1_edge_data_follow_their_edges():
    """Edge data are permuted into CSC order along with the edges."""
    src, dst = map(torch.tensor, ODD_ORDER)
    g = DGLStandIn({("_N", "_E", "_N"): (src, dst)}, {"_N": 3})
    g.edges["_N", "_E", "_N"].data["weight"] = torch.tensor([10, 11, 12, 13])
    for homogeneous in (True, False):
        graph = hp.from_dglgraph(g, homogeneous, include_original_edge_id=True)
        assert graph.indices.tolist() == [1, 2, 0, 0]
        assert graph.edge_attributes["weight"].tolist() == [11, 12, 13, 10]
        assert graph.edge_attributes[hp.ORIGINAL_EDGE_ID].tolist() == [1, 2, 3, 0]
        assert graph.is_heterogeneous is not homogeneous
    assert graph.edge_type_to_id == {"_N:_E:_N": 0}


def test_dgl_types_can_be_merged():
    edges = {("a", "r", "b"): ends([(1, 0)]), ("b", "s", "a"): ends([(0, 1), (2, 0)])}
    g = DGLStandIn(edges, {"a": 2, "b": 3})
    g.edges["a", "r", "b"].data["w"] = torch.tensor([10])
    g.edges["b", "s", "a"].data["w"] = torch.tensor([20, 21])
    graph = hp.from_dglgraph(g, is_homogeneous=True)
    assert not graph.is_heterogeneous
    assert hp.to_edge_list(graph).tolist() == [[4, 0], [2, 1], [1, 2]]
    assert graph.edge_attributes["w"].tolist() == [21, 20, 10]
    graph = hp.from_dglgraph(g, is_homogeneous=True, include_original_edge_id=True)
    assert graph.edge_attributes[hp.ORIGINAL_EDGE_ID].tolist() == [2, 1, 0]


def test_dgl_data_of_some_types_only():
    g = DGLStandIn({("a", "r", "b"): ends([(0, 0)])}, {"a": 1, "b": 1})
    g.nodes["a"].data["feat"] = torch.ones(1, 2)
    with pytest.warns(UserWarning, match="'feat' is missing of type 'b'.*feature store"):
        graph = hp.from_dglgraph(g)
    assert graph.node_attributes is None
    with pytest.raises(ValueError, match="node attribute 'feat' is missing of type 'b'"):
        hp.from_dglgraph(g, node_attributes=["feat"])
    assert hp.from_dglgraph(g, node_attributes=()).node_attributes is None  # and no warning
    g.nodes["b"].data["feat"] = torch.ones(1, 3)
    with pytest.warns(UserWarning, match="'feat' differs between types"):
        hp.from_dglgraph(g)


def test_dgl_refuses():
    with pytest.raises(TypeError, match=r"g is a list without \['ntypes'"):
        hp.from_dglgraph([])
    for count, error in ((1.5, TypeError), ("1", TypeError), (None, TypeError), (-1, ValueError)):
        wrong = DGLStandIn({("a", "r", "b"): ends([(0, 0)])}, {"a": 1, "b": count})
        with pytest.raises(error, match=f"num_nodes of 'b' is {count!r}; expected"):
            hp.from_dglgraph(wrong)
    g = DGLStandIn({("a", "r:r", "b"): ends([(0, 0)])}, {"a": 1, "b": 1})
    with pytest.raises(ValueError, match="delimiter"):
        hp.from_dglgraph(g)
    with pytest.raises(TypeError, match="edge_attributes is 'w'; expected a list of names"):
        hp.from_dglgraph(dgl_graph(TWIN), edge_attributes="w")


TWIN = strategies.twins.Graph({NODE: 3}, {EDGE: list(zip(*ODD_ORDER, strict=True))})


@given(graphs)
def test_to_dgl_and_back(twin):
    module = types.ModuleType("dgl")
    module.heterograph = DGLStandIn
    graph = named(twin)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "dgl", module)
        g = hp.to_dglgraph(graph)
    assert_equal(hp.from_dglgraph(g, is_homogeneous(twin), True), graph)


# -------------------------------------------------------------------------------------------------
# PyG


class Store:
    """A Data, or one type's part of a HeteroData."""

    def __init__(self, **values):
        self.__dict__.update(values)

    def node_attrs(self):
        return [name for name in vars(self) if name.startswith(("number", "x"))]

    def edge_attrs(self):
        return [name for name in vars(self) if name.startswith(("edge", "e_id"))]


class HeteroStore:
    """A HeteroData."""

    def __init__(self):
        self._stores = {}

    def __getitem__(self, kind):
        return self._stores.setdefault(kind, Store())

    @property
    def node_types(self):
        return [kind for kind in self._stores if isinstance(kind, str)]

    @property
    def edge_types(self):
        return [kind for kind in self._stores if isinstance(kind, tuple)]


def pyg_modules() -> dict[str, types.ModuleType]:
    """PyTorch Geometric, or what stands in for it."""
    try:
        import torch_geometric.data as data

        package = sys.modules["torch_geometric"]
    except ImportError:
        data = types.ModuleType("torch_geometric.data")
        data.Data, data.HeteroData = Store, HeteroStore
        package = types.ModuleType("torch_geometric")
        package.data = data
    return {"torch_geometric": package, "torch_geometric.data": data}


@pytest.fixture
def pyg(monkeypatch):
    for name, module in pyg_modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    return sys.modules["torch_geometric.data"]


@given(graphs)
def test_pyg_round_trip(twin):
    graph = named(twin)
    with pytest.MonkeyPatch.context() as patch:
        for name, module in pyg_modules().items():
            patch.setitem(sys.modules, name, module)
        data = hp.to_pyg(graph)
    # With as many edges as nodes, a Data tells one from the other by the word "edge" in the name.
    back = hp.from_pyg(data, include_original_edge_id=True)
    assert_equal(back, graph)


def test_pyg_data(pyg):
    src, dst = map(torch.tensor, ODD_ORDER)
    data = pyg.Data(
        edge_index=torch.stack((src, dst)), num_nodes=3, edge_attr=torch.tensor([10, 11, 12, 13])
    )
    graph = hp.from_pyg(data, include_original_edge_id=True)
    assert graph.indices.tolist() == [1, 2, 0, 0]
    assert graph.edge_attributes["edge_attr"].tolist() == [11, 12, 13, 10]
    assert hp.from_pyg(data, edge_attributes=()).edge_attributes is None
    again = hp.to_pyg(graph)
    assert again.edge_index.tolist() == list(ODD_ORDER)
    assert again.edge_attr.tolist() == [10, 11, 12, 13]


def test_pyg_data_of_any_class():
    data = types.SimpleNamespace(
        edge_index=torch.tensor(ODD_ORDER), num_nodes=3, edge_weight=torch.arange(4), x=torch.eye(3)
    )
    graph = hp.from_pyg(data)
    assert graph.edge_attributes["edge_weight"].tolist() == [1, 2, 3, 0]
    assert graph.node_attributes["x"].shape == (3, 3)
    data.time = torch.arange(4)
    graph = hp.from_pyg(data, edge_attributes=["time"])
    assert graph.edge_attributes["time"].tolist() == [1, 2, 3, 0]


def test_pyg_numbers_that_are_no_order_become_e_id(pyg):
    graph = hp.from_edge_list([(0, 1), (1, 0)])
    graph.add_edge_attribute(hp.ORIGINAL_EDGE_ID, torch.tensor([40, 30]))
    data = hp.to_pyg(graph)
    assert data.e_id.tolist() == [40, 30]
    assert data.edge_index.tolist() == [[1, 0], [0, 1]]


def test_pyg_refuses(pyg):
    with pytest.raises(TypeError, match="data is a list; expected a PyG Data or HeteroData"):
        hp.from_pyg([])
    with pytest.raises(ValueError, match="num_nodes of 'data' is unknown"):
        hp.from_pyg(types.SimpleNamespace(edge_index=torch.ones(2, 1).long(), num_nodes=None))
    for edge_index in (None, torch.ones(3, 2).long()):
        with pytest.raises(ValueError, match="edge_index of 'data' is"):
            hp.from_pyg(types.SimpleNamespace(edge_index=edge_index, num_nodes=2))
    graph = hp.from_edge_list(
        [(0, 1)],
        node_attributes={"time": torch.ones(2)},
        edge_attributes={"time": torch.ones(1)},
    )
    with pytest.raises(ValueError, match=r"nodes and edges both have attributes \['time'\]"):
        hp.to_pyg(graph)


# -------------------------------------------------------------------------------------------------
# All of them


@pytest.mark.parametrize(
    "convert", [hp.to_dglgraph, hp.to_edge_list, hp.to_networkx, hp.to_pyg, hp.to_scipy]
)
def test_what_is_no_graph(convert):
    with pytest.raises(TypeError, match="graph is a int; expected a FusedCSCSamplingGraph"):
        convert(3)


def test_no_library_is_imported_unless_called():
    """Without any of them the package works, and each converter says what it lacks."""
    script = """
import sys, types
for name in ("dgl", "torch_geometric", "networkx", "scipy"):
    sys.modules[name] = None  # importing it fails
import torch
import hopline.pipes as hp
graph = hp.from_edge_list([(0, 1), (1, 0)])
data = types.SimpleNamespace(edge_index=torch.tensor([[0], [1]]), num_nodes=2)
assert hp.from_pyg(data).num_edges == 1
batch = next(iter(hp.ItemSampler(hp.ItemSet(2, "seeds"), 2).sample_neighbor(graph, [1])))
for call, name in (
    (lambda: hp.to_dglgraph(graph), "dgl"),
    (lambda: hp.to_pyg(graph), "torch_geometric"),
    (lambda: batch.to_pyg_data(), "torch_geometric"),
    (lambda: hp.to_networkx(graph), "networkx"),
    (lambda: hp.to_scipy(graph), "scipy"),
):
    try:
        call()
    except ImportError as error:
        assert f"needs {name}, which cannot be imported" in str(error), error
    else:
        raise AssertionError(name)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
