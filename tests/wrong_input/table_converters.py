"""Wrong calls: graphs of other libraries, and data sets."""

# ruff: noqa: E501  one line an entry
from __future__ import annotations

import functools
import tempfile
from types import SimpleNamespace

import numpy as np
import torch

import hopline.pipes as hp
from tests.wrong_input.things import (
    ARRAY,
    FLOATS,
    FULL,
    GRAPH,
    HUGE,
    PLACE,
    TWO_D,
    ZERO_D,
    Entry,
    ids,
)

listed, pyg, scipy, planted = hp.from_edge_list, hp.from_pyg, hp.from_scipy, hp.planted_partition
prepare, on_disk = hp.preprocess_ondisk_dataset, hp.OnDiskDataset
EMPTY = tempfile.TemporaryDirectory()  # no data set in it


class Digraph:
    """What `from_networkx` reads of a graph, with nodes and edges as given."""

    def __init__(self, nodes=(), edges=(), directed=True):
        self._nodes, self._edges, self._directed = nodes, edges, directed

    def is_directed(self):
        return self._directed

    def nodes(self, data=False):
        return list(self._nodes)

    def edges(self, data=False):
        return list(self._edges)


class Matrix:
    """What `from_scipy` reads of a sparse matrix."""

    def __init__(self, shape=(2, 2), data=(1.0,), row=(0,), col=(1,)):
        self.shape, self.data, self.row, self.col = shape, np.array(data), row, col

    def tocoo(self):
        return self


def data(**fields):
    return SimpleNamespace(**{"edge_index": ids([0, 1], [1, 0]), "num_nodes": 2, **fields})


@functools.cache
def small() -> hp.OnDiskDataset:
    """A data set on disk, of ten nodes."""
    planted(10, num_classes=2, path=f"{PLACE.name}/small")
    return on_disk(f"{PLACE.name}/small")


PLAIN = Digraph([(0, {}), (1, {})], [(0, 1, {})])
UNDIRECTED = Digraph([(0, {"t": "a"})], [], False)
UNTYPED = Digraph([(0, {"t": "a"}), (1, {})], [])
MISTYPED = Digraph([(0, {"t": "a"}), (1, {"t": "b"})], [(0, 1, {"r": "b:x:a"})])
networkx = hp.from_networkx

TABLE: list[Entry] = [
    ("from_edge_list", lambda: listed(5), ValueError, "edges: 'int' object is not iterable; expected pairs"),
    ("from_edge_list", lambda: listed(None), ValueError, "not iterable; expected pairs"),
    ("from_edge_list", lambda: listed([(0, 1), (2,)]), ValueError, "expected pairs"),
    ("from_edge_list", lambda: listed([(0, 1, 2)]), ValueError, r"\(1, 3\); expected \[E, 2\]"),
    ("from_edge_list", lambda: listed([0, 1]), ValueError, r"\(2,\); expected \[E, 2\]"),
    ("from_edge_list", lambda: listed([(0.5, 1)]), TypeError, "float64; expected pairs of ints"),
    ("from_edge_list", lambda: listed([("a", "b")]), TypeError, "expected pairs of ints"),
    ("from_edge_list", lambda: listed([(True, False)]), TypeError, "bool; expected pairs of ints"),
    ("from_edge_list", lambda: listed([(None, 1)]), TypeError, "expected pairs of ints"),
    ("from_edge_list", lambda: listed(TWO_D.float()), TypeError, "float32; expected"),
    ("from_edge_list", lambda: listed(TWO_D.bool()), TypeError, "torch.bool; expected"),
    ("from_edge_list", lambda: listed(ZERO_D), ValueError, r"\(\); expected \[E, 2\]"),
    ("from_edge_list", lambda: listed(ARRAY), ValueError, r"\(2,\); expected \[E, 2\]"),
    ("from_edge_list", lambda: listed([(-1, 0)]), IndexError, "id -1"),
    ("from_edge_list", lambda: listed([(0, 2)], 2), IndexError, r"id 2 .*\[0, 2\)"),
    ("from_edge_list", lambda: listed([(0, 1)], 2.0), TypeError, "num_nodes 2.0; expected"),
    ("from_edge_list", lambda: listed(np.ma.array([[0, 1]], mask=[[0, 1]])), TypeError, "masked array; fill in"),
    ("from_edge_list", lambda: listed([(0, 1)], -2), ValueError, "num_nodes is -2; expected 0"),
    ("from_edge_list", lambda: listed(HUGE[:, None].repeat(1, 2)), IndexError, "is outside"),
    ("from_edge_list", lambda: listed(TWO_D.to("meta")), ValueError, "on the device meta"),
    ("from_edge_list", lambda: listed({"a": [(0, 1)]}), ValueError, "'a'; expected three names"),
    ("from_edge_list", lambda: listed({5: [(0, 1)]}), TypeError, "int; expected a string"),
    ("from_edge_list", lambda: listed([(0, 1)], edge_attributes={"x": ids(1, 2)}), ValueError, "expected 1 rows"),
    ("from_dglgraph", lambda: hp.from_dglgraph(5), TypeError, "int without .*expected a DGLGraph"),
    ("from_dglgraph", lambda: hp.from_dglgraph(None), TypeError, "expected a DGLGraph"),
    ("from_dglgraph", lambda: hp.from_dglgraph(GRAPH), TypeError, "expected a DGLGraph"),
    ("from_networkx", lambda: networkx(5), TypeError, "int; expected a graph of NetworkX"),
    ("from_networkx", lambda: networkx([(0, 1)]), TypeError, "list; expected a graph of NetworkX"),
    ("from_networkx", lambda: networkx(PLAIN, node_type="t"), ValueError, "expected both or neither"),
    ("from_networkx", lambda: networkx(UNDIRECTED, node_type="t", edge_type="r"), ValueError, "expected a directed graph"),
    ("from_networkx", lambda: networkx(UNTYPED, node_type="t", edge_type="r"), ValueError, "t None; expected the name of its type"),
    ("from_networkx", lambda: networkx(MISTYPED, node_type="t", edge_type="r"), ValueError, "its ends are of types 'a' and 'b'"),
    ("from_networkx", lambda: networkx(PLAIN, node_attributes="x"), TypeError, "is 'x'; expected a list of names"),
    ("from_networkx", lambda: networkx(PLAIN, node_attributes=["x"]), ValueError, "'x' is missing; there are"),
    ("from_networkx", lambda: networkx(PLAIN, edge_attributes=5), TypeError, "is 5; expected a list of names"),
    ("from_networkx", lambda: networkx(PLAIN, edge_attributes=[5]), TypeError, "expected a list of names"),
    ("from_pyg", lambda: pyg(5), TypeError, "int; expected a PyG Data or HeteroData"),
    ("from_pyg", lambda: pyg(None), TypeError, "NoneType; expected a PyG Data"),
    ("from_pyg", lambda: pyg(data(edge_index=[[0], [1]])), ValueError, r"expected an integer tensor of shape \[2"),
    ("from_pyg", lambda: pyg(data(edge_index=ids(0, 1))), ValueError, r"\(2,\); expected an integer tensor"),
    ("from_pyg", lambda: pyg(data(edge_index=torch.rand(2, 2))), TypeError, "float32; expected integers"),
    ("from_pyg", lambda: pyg(data(edge_index=ids([0], [2]))), IndexError, r"id 2 .*\[0, 2\)"),
    ("from_pyg", lambda: pyg(data(num_nodes=None)), ValueError, "num_nodes of 'data' is unknown; set it"),
    ("from_pyg", lambda: pyg(data(num_nodes="two")), TypeError, "num_nodes of 'data' is 'two'; expected an int"),
    ("from_pyg", lambda: pyg(data(num_nodes=torch.tensor(2.5))), TypeError, "num_nodes of 'data' is 2.5; expected an int"),
    ("from_pyg", lambda: pyg(data(num_nodes=ids(2, 3))), TypeError, r"is tensor\(\[2, 3\]\); expected an int"),
    ("from_pyg", lambda: pyg(data(num_nodes=-1)), ValueError, "num_nodes of 'data' is -1; expected 0"),
    ("from_pyg", lambda: pyg(data(edge_index=torch.eye(2).to_sparse())), TypeError, "is sparse; expected a dense"),
    ("from_pyg", lambda: pyg(data(edge_index=TWO_D.T.to("meta"))), ValueError, "on the device meta"),
    ("from_pyg", lambda: pyg(data(), node_attributes="x"), TypeError, "is 'x'; expected a list of names"),
    ("from_pyg", lambda: pyg(data(), node_attributes=["z"]), ValueError, "'z' is missing; there are"),
    ("from_scipy", lambda: scipy(5), TypeError, "int; expected a sparse matrix"),
    ("from_scipy", lambda: scipy(np.eye(2)), TypeError, "ndarray; expected a sparse matrix"),
    ("from_scipy", lambda: scipy(Matrix((2, 3))), ValueError, r"\(2, 3\); expected as many rows as columns"),
    ("from_scipy", lambda: scipy(Matrix((2,))), ValueError, r"\(2,\); expected two dimensions"),
    ("from_scipy", lambda: scipy(Matrix(data=["a"])), TypeError, "which torch lacks"),
    ("from_scipy", lambda: scipy({"a": Matrix()}), ValueError, "'a'; expected three names"),
    ("from_scipy", lambda: scipy({"a:x:b": 5}), TypeError, "int; expected a sparse matrix"),
    ("from_scipy", lambda: scipy(Matrix(), 5), TypeError, "value_name is 5; expected a string"),
    ("to_dglgraph", lambda: hp.to_dglgraph(5), TypeError, "int; expected a FusedCSCSamplingGraph"),
    ("to_edge_list", lambda: hp.to_edge_list(None), TypeError, "NoneType; expected a FusedCSC"),
    ("to_networkx", lambda: hp.to_networkx([0]), TypeError, "list; expected a FusedCSC"),
    ("to_pyg", lambda: hp.to_pyg("graph"), TypeError, "str; expected a FusedCSC"),
    ("to_scipy", lambda: hp.to_scipy(5), TypeError, "int; expected a FusedCSC"),
    ("to_scipy", lambda: hp.to_scipy(GRAPH, "x"), KeyError, "no edge attribute 'x'; the graph has"),
    ("to_scipy", lambda: hp.to_scipy(GRAPH, ARRAY), TypeError, "value_name is .*expected a string"),
    # ---------------------------------------------------------------------------------------------
    # Data sets
    ("planted_partition", lambda: planted(-1), ValueError, "num_nodes is -1; expected 0"),
    ("planted_partition", lambda: planted(10.0), TypeError, "num_nodes is a float; expected an integer"),
    ("planted_partition", lambda: planted(True), TypeError, "bool; expected an integer"),
    ("planted_partition", lambda: planted(10, 0), ValueError, "num_classes is 0; expected 1"),
    ("planted_partition", lambda: planted(10, avg_degree=-1), ValueError, "avg_degree is -1; expected a number"),
    ("planted_partition", lambda: planted(10, avg_degree="5"), TypeError, "avg_degree is '5'; expected a number"),
    ("planted_partition", lambda: planted(10, feature_dim=0), ValueError, "feature_dim is 0; expected 1"),
    ("planted_partition", lambda: planted(10, homophily=1.5), ValueError, "homophily is 1.5; expected a number from 0 to 1"),
    ("planted_partition", lambda: planted(10, homophily=None), TypeError, "homophily is None; expected a number"),
    ("planted_partition", lambda: planted(10, feature_noise=float("nan")), ValueError, "feature_noise is nan; expected"),
    ("planted_partition", lambda: planted(10, degree_exponent=2), ValueError, "degree_exponent is 2; expected a number above 2"),
    ("planted_partition", lambda: planted(10, degree_exponent="3"), TypeError, "degree_exponent is '3'; expected a number"),
    ("planted_partition", lambda: planted(10, split=(0.5, 0.5)), ValueError, "split is .*; expected three shares"),
    ("planted_partition", lambda: planted(10, split=(0.9, 0.9, 0.9)), ValueError, "expected three shares"),
    ("planted_partition", lambda: planted(10, split=(1, -1, 0)), ValueError, "expected three shares"),
    ("planted_partition", lambda: planted(10, split=0.5), TypeError, "split is 0.5; expected three shares"),
    ("planted_partition", lambda: planted(10, seed=-1), ValueError, "seed is -1; expected 0"),
    ("planted_partition", lambda: planted(10, seed=1.5), TypeError, "seed is a float; expected an integer"),
    ("planted_partition", lambda: planted(10, path=FULL), FileExistsError, "holds something; give a new"),
    ("BuiltinDataset", lambda: hp.BuiltinDataset("cora"), ValueError, "no built-in data set 'cora', and no such folder; available"),
    ("BuiltinDataset", lambda: hp.BuiltinDataset(5), TypeError, "name is a int; expected a string"),
    ("OnDiskDataset", lambda: on_disk(5), TypeError, "int"),
    ("OnDiskDataset", lambda: on_disk("/nowhere"), NotADirectoryError, "/nowhere is not a folder; expected"),
    ("OnDiskDataset", lambda: on_disk(EMPTY.name), hp.MetadataError, "metadata.yaml"),
    ("OnDiskDataset.load", lambda: small().load(5), TypeError, "tasks is 5; expected the name of a task"),
    ("OnDiskDataset.load", lambda: small().load([5]), TypeError, r"tasks is \[5\]; expected the name of a task"),
    ("OnDiskDataset.load", lambda: small().load("other"), ValueError, "no task 'other'"),
    ("preprocess_ondisk_dataset", lambda: prepare(None), TypeError, "NoneType"),
    ("preprocess_ondisk_dataset", lambda: prepare("/nowhere"), NotADirectoryError, "expected the folder of a data set"),
    ("preprocess_ondisk_dataset", lambda: prepare(EMPTY.name, max_memory=5), ValueError, "max_memory is 5; expected"),
    ("preprocess_ondisk_dataset", lambda: prepare(EMPTY.name, max_memory="1G"), TypeError, "max_memory is '1G'; expected an int"),
    ("preprocess_ondisk_dataset", lambda: prepare(EMPTY.name, "yes"), TypeError, "include_original_edge_id is 'yes'; expected True"),
    ("preprocess_ondisk_dataset", lambda: prepare(EMPTY.name, None, 1), TypeError, "force_preprocess is 1; expected True"),
    ("preprocess_ondisk_dataset", lambda: prepare(EMPTY.name, progress="yes"), TypeError, "progress is 'yes'; expected True"),
    ("preprocess_ondisk_dataset", lambda: prepare(EMPTY.name), hp.MetadataError, "metadata.yaml"),
    ("OnDiskTask", lambda: hp.OnDiskTask({}, 5, None, None).train_set, TypeError, "train_set is a int; expected an ItemSet"),
    ("OnDiskTask", lambda: hp.OnDiskTask({}, None, None, FLOATS), TypeError, "test_set is a Tensor; expected an ItemSet"),
    ("OnDiskTask", lambda: hp.OnDiskTask([], None, None, None), TypeError, "metadata is a list; expected a dict"),
]  # fmt: skip
