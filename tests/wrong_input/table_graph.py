"""Wrong calls: making a graph, and what a graph can do."""

# ruff: noqa: E501  one line an entry
from __future__ import annotations

import tempfile

import hopline.pipes as hp
from tests.wrong_input.things import (
    ARRAY,
    BOOLS,
    COMPLEX,
    FLOATS,
    FULL,
    GRAPH,
    HETERO,
    HUGE,
    ON_META,
    PLACE,
    TWO_D,
    ZERO_D,
    Entry,
    ids,
)  # fmt: skip

Graph = hp.FusedCSCSamplingGraph
TIME = {"node_timestamp_attr_name": "time"}
PTR, IND = ids(0, 1, 2), ids(1, 0)


def csc(indptr=PTR, indices=IND, **fields):
    return hp.fused_csc_sampling_graph(indptr, indices, **fields)


def typed(**fields):
    """A graph a -> b of one edge, with some of its tables replaced."""
    tables = {
        "node_type_offset": ids(0, 1, 2), "type_per_edge": ids(0),
        "node_type_to_id": {"a": 0, "b": 1}, "edge_type_to_id": {"a:x:b": 0},
    }  # fmt: skip
    return csc(ids(0, 0, 1), ids(0), **{**tables, **fields})


def untold(**fields):
    """Samples from a graph that was made without checks."""
    tables = {
        "node_type_offset": ids(0, 2),
        "type_per_edge": ids(0, 0),
        "node_type_to_id": {"a": 0},
        "edge_type_to_id": {"a:x:a": 0},
    }
    graph = hp.FusedCSCSamplingGraph(PTR, IND, **{**tables, **fields})
    return graph.sample_neighbors({"a": ids(0)}, [1])


def coo(src=IND, dst=IND, num_nodes=2, **fields):
    return hp.from_coo(src, dst, num_nodes, **fields)


def typed_coo(edges, num_nodes, **fields):
    return hp.from_coo(edges, num_nodes=num_nodes, **fields)


def late(seeds, times, fanouts=1, **fields):
    return GRAPH.temporal_sample_neighbors(seeds, times, fanouts, **{**TIME, **fields})


def late_layer(seeds, times, fanouts=1, **fields):
    return GRAPH.temporal_sample_layer_neighbors(seeds, times, fanouts, **{**TIME, **fields})


def negatives(*arguments, graph=GRAPH, **fields):
    return graph.sample_negative_edges_uniform(*arguments, **fields)


near, labor = GRAPH.sample_neighbors, GRAPH.sample_layer_neighbors
AB = {"a": 1, "b": 1}

TABLE: list[Entry] = [
    ("fused_csc_sampling_graph", lambda: csc([0, 1, 2]), TypeError, "csc_indptr is a list; expected a torch.Tensor"),
    ("FusedCSCSamplingGraph", lambda: hp.FusedCSCSamplingGraph(PTR, IND, node_type_to_id=5), TypeError, "node_type_to_id is a int; expected"),
    ("FusedCSCSamplingGraph", lambda: hp.FusedCSCSamplingGraph(PTR, IND, edge_type_to_id="a:x:a"), TypeError, "edge_type_to_id is a str; expected"),
    ("FusedCSCSamplingGraph.sample_neighbors", lambda: untold(node_type_to_id={"a": 1}), ValueError, r"node_type_to_id is \{'a': 1\}; expected"),
    ("FusedCSCSamplingGraph.sample_neighbors", lambda: untold(edge_type_to_id=None), ValueError, "edge_type_to_id is None; expected"),
    ("FusedCSCSamplingGraph.sample_neighbors", lambda: untold(edge_type_to_id={"a:x:a": "0"}), ValueError, "edge_type_to_id is .*expected"),
    ("FusedCSCSamplingGraph.sample_neighbors", lambda: untold(node_type_offset=ON_META), ValueError, "node_type_offset: .*meta"),
    ("from_coo", lambda: hp.from_coo(ids(0), ids(0), 2**63), ValueError, "num_nodes is 9223372036854775808; expected"),
    ("from_coo", lambda: hp.from_coo({"a:x:b": (ids(0), ids(0))}, num_nodes={"a": 2**62, "b": 2**62}), ValueError, "num_nodes is .*expected"),
    ("from_coo", lambda: hp.from_coo({}, num_nodes={"a": 2}, edge_attributes={"x": {}}), ValueError, "there are no types"),
    ("from_coo", lambda: hp.from_coo(ids(0), ids(0), 2**47), MemoryError, "csc_indptr of 140737488355328 nodes takes"),
    ("FusedCSCSamplingGraph.save", lambda: hp.fused_csc_sampling_graph(PTR, IND, node_attributes={5: IND}).save(tempfile.mkdtemp(dir=PLACE.name)), TypeError, "name of a node attribute is 5; expected a string"),
    ("fused_csc_sampling_graph", lambda: csc(ARRAY), TypeError, "csc_indptr is a ndarray; expected"),
    ("fused_csc_sampling_graph", lambda: csc(None), TypeError, "csc_indptr is a NoneType; expected"),
    ("fused_csc_sampling_graph", lambda: csc(PTR.float()), TypeError, "csc_indptr has dtype torch.float32; expected integers"),
    ("fused_csc_sampling_graph", lambda: csc(BOOLS), TypeError, "csc_indptr has dtype torch.bool; expected"),
    ("fused_csc_sampling_graph", lambda: csc(ZERO_D), ValueError, r"csc_indptr has shape \(\); expected one"),
    ("fused_csc_sampling_graph", lambda: csc(TWO_D), ValueError, r"\(1, 2\); expected one dimension"),
    ("fused_csc_sampling_graph", lambda: csc(ON_META), ValueError, "csc_indptr is on meta; build the graph on the CPU"),
    ("fused_csc_sampling_graph", lambda: csc(ids()), ValueError, "csc_indptr is empty; expected num_nodes"),
    ("fused_csc_sampling_graph", lambda: csc(ids(1, 2)), ValueError, "csc_indptr is 1 at 0; expected entries"),
    ("fused_csc_sampling_graph", lambda: csc(ids(0, 3, 2)), ValueError, "csc_indptr is .*; expected entries that never descend"),
    ("fused_csc_sampling_graph", lambda: csc(ids(0, 1, 3)), ValueError, "3 at 2; expected .* 0 to 2, the length"),
    ("fused_csc_sampling_graph", lambda: csc(ids(0, -1, 2)), ValueError, "-1 at 1; expected entries"),
    ("fused_csc_sampling_graph", lambda: csc(HUGE, ids()), ValueError, "csc_indptr is .* at 0; expected"),
    ("fused_csc_sampling_graph", lambda: csc(indices=[1, 0]), TypeError, "indices is a list; expected"),
    ("fused_csc_sampling_graph", lambda: csc(indices=IND.double()), TypeError, "indices has dtype torch.float64; expected"),
    ("fused_csc_sampling_graph", lambda: csc(indices=ids(0, 2)), ValueError, r"indices\[1\] is 2; expected a node in \[0, 2\)"),
    ("fused_csc_sampling_graph", lambda: csc(indices=ids(-1, 0)), ValueError, r"indices\[0\] is -1; expected a node"),
    ("fused_csc_sampling_graph", lambda: csc(ids(0, 1), HUGE), ValueError, rf"indices\[0\] is {2**64 - 1}; expected a node"),
    ("fused_csc_sampling_graph", lambda: csc(indices=ON_META), ValueError, "indices is on meta; build"),
    ("fused_csc_sampling_graph", lambda: csc(node_type_offset=ids(0, 2)), ValueError, "together; a homogeneous one none"),
    ("fused_csc_sampling_graph", lambda: csc(node_attributes={"x": ids(1)}), ValueError, r"'x' has shape \(1,\); expected 2 rows"),
    ("fused_csc_sampling_graph", lambda: csc(node_attributes={"x": [1, 2]}), TypeError, "'x' is a list; expected a torch.Tensor"),
    ("fused_csc_sampling_graph", lambda: csc(node_attributes=[1]), TypeError, "node_attributes is a list; expected"),
    ("fused_csc_sampling_graph", lambda: csc(edge_attributes={"x": ZERO_D}), ValueError, r"'x' has shape \(\); expected 2 rows"),
    ("fused_csc_sampling_graph", lambda: csc(edge_attributes=5), TypeError, "edge_attributes is a int; expected"),
    ("fused_csc_sampling_graph", lambda: typed(node_type_offset=[0, 1, 2]), TypeError, "node_type_offset is a list; expected"),
    ("fused_csc_sampling_graph", lambda: typed(node_type_offset=ids(0, 2)), ValueError, r"node_type_offset is \[0, 2\]; expected 3"),
    ("fused_csc_sampling_graph", lambda: typed(node_type_offset=ids(0, 2, 1)), ValueError, "expected 3 entries that never descend"),
    ("fused_csc_sampling_graph", lambda: typed(type_per_edge=[0]), TypeError, "type_per_edge is a list; expected"),
    ("fused_csc_sampling_graph", lambda: typed(type_per_edge=FLOATS), TypeError, "float32; expected integers"),
    ("fused_csc_sampling_graph", lambda: typed(type_per_edge=ids(0, 0)), ValueError, "2 entries for 1 edges"),
    ("fused_csc_sampling_graph", lambda: typed(type_per_edge=ids(1)), ValueError, "edge 0 .* has type 1: expected"),
    ("fused_csc_sampling_graph", lambda: typed(type_per_edge=ids(-1)), ValueError, "has type -1: expected"),
    ("fused_csc_sampling_graph", lambda: typed(node_type_to_id=["a", "b"]), TypeError, r"node_type_to_id is a list; expected \{type: id\}"),
    ("fused_csc_sampling_graph", lambda: typed(node_type_to_id={"a": 0, "b": 2}), ValueError, r"expected the ids 0\.\.1"),
    ("fused_csc_sampling_graph", lambda: typed(node_type_to_id={"a": 0, "b": True}), TypeError, "'b': True; expected a string and an int"),
    ("fused_csc_sampling_graph", lambda: typed(edge_type_to_id={"a:x": 0}), ValueError, "'a:x'; expected three names"),
    ("fused_csc_sampling_graph", lambda: typed(edge_type_to_id={"a:x:c": 0}), ValueError, r"node type 'c'; there are \['a', 'b'\]"),
    ("fused_csc_sampling_graph", lambda: typed(edge_type_to_id={"b:x:a": 0}), ValueError, "edge 0 .* expected types"),
    ("fused_csc_sampling_graph", lambda: typed(edge_type_to_id={("a", "x", "b"): 0}), TypeError, "expected a string and an int"),
    ("FusedCSCSamplingGraph.to", lambda: GRAPH.to("cuda:99"), ValueError, "device is 'cuda:99', but torch finds"),
    ("FusedCSCSamplingGraph", lambda: Graph([0, 1], ids(0)), TypeError, "csc_indptr is a list; expected a torch.Tensor"),
    ("FusedCSCSamplingGraph", lambda: Graph(None, None), TypeError, "csc_indptr is a NoneType; expected a torch.Tensor"),
    ("FusedCSCSamplingGraph", lambda: Graph(PTR, ARRAY), TypeError, "indices is a ndarray; expected a torch.Tensor"),
    ("FusedCSCSamplingGraph", lambda: Graph(ids(), ids()), ValueError, r"csc_indptr has shape \(0,\); expected"),
    ("FusedCSCSamplingGraph", lambda: Graph(ZERO_D, ids()), ValueError, r"csc_indptr has shape \(\); expected"),
    ("FusedCSCSamplingGraph", lambda: Graph(PTR.float(), IND), TypeError, "csc_indptr has dtype torch.float32; expected"),
    ("FusedCSCSamplingGraph", lambda: Graph(PTR, IND.float()), TypeError, "indices has dtype torch.float32; expected"),
    ("FusedCSCSamplingGraph", lambda: Graph(PTR, IND.short()), TypeError, "indices has dtype torch.int16; expected"),
    ("FusedCSCSamplingGraph", lambda: Graph(PTR, IND, node_attributes=[1]), TypeError, "node_attributes is a list; expected"),
    ("FusedCSCSamplingGraph.node_attribute", lambda: GRAPH.node_attribute("x"), KeyError, "no node attribute 'x'; the graph has"),
    ("FusedCSCSamplingGraph.node_attribute", lambda: GRAPH.node_attribute(5), KeyError, "no node attribute 5"),
    ("FusedCSCSamplingGraph.edge_attribute", lambda: GRAPH.edge_attribute("x"), KeyError, "no edge attribute 'x'; the graph has"),
    ("FusedCSCSamplingGraph.edge_attribute", lambda: GRAPH.edge_attribute(["x"]), KeyError, r"no edge attribute \['x'\]; the graph has"),
    ("FusedCSCSamplingGraph.add_node_attribute", lambda: GRAPH.add_node_attribute("x", [1, 2, 3]), TypeError, "'x' is a list; expected a torch.Tensor"),
    ("FusedCSCSamplingGraph.add_node_attribute", lambda: GRAPH.add_node_attribute("x", ids(1)), ValueError, r"\(1,\); expected 3 rows"),
    ("FusedCSCSamplingGraph.add_node_attribute", lambda: GRAPH.add_node_attribute("x", ZERO_D), ValueError, r"\(\); expected 3 rows"),
    ("FusedCSCSamplingGraph.add_node_attribute", lambda: GRAPH.add_node_attribute(5, ids(1, 2, 3)), TypeError, "name is 5; expected a string"),
    ("FusedCSCSamplingGraph.add_edge_attribute", lambda: GRAPH.add_edge_attribute("x", None), TypeError, "NoneType; expected a torch.Tensor"),
    ("FusedCSCSamplingGraph.add_edge_attribute", lambda: GRAPH.add_edge_attribute("x", ids(1, 2)), ValueError, r"\(2,\); expected 3 rows"),
    ("FusedCSCSamplingGraph.add_edge_attribute", lambda: GRAPH.add_edge_attribute(None, ids(1, 2, 3)), TypeError, "name is None; expected a string"),
    ("FusedCSCSamplingGraph.attribute_array", lambda: GRAPH.attribute_array("graph", "time"), ValueError, "domain is 'graph'; expected 'node' or 'edge'"),
    ("FusedCSCSamplingGraph.attribute_array", lambda: GRAPH.attribute_array("node", "x"), KeyError, "no node attribute 'x'"),
    ("FusedCSCSamplingGraph.attribute_array", lambda: GRAPH.attribute_array("node", "wide"), ValueError, r"\(3, 2\); expected one number"),
    ("FusedCSCSamplingGraph.attribute_array", lambda: GRAPH.attribute_array("node", None), KeyError, "no node attribute None"),
    ("FusedCSCSamplingGraph.sample_neighbors", lambda: near(None, 1), ValueError, "no seeds"),
    ("FusedCSCSamplingGraph.sample_neighbors", lambda: near([0], 1), TypeError, "seeds are a list; expected a torch.Tensor"),
    ("FusedCSCSamplingGraph.sample_neighbors", lambda: near(ARRAY, 1), TypeError, "seeds are a ndarray; expected"),
    ("FusedCSCSamplingGraph.sample_neighbors", lambda: near(FLOATS, 1), TypeError, "float32; expected integers"),
    ("FusedCSCSamplingGraph.sample_neighbors", lambda: near(ZERO_D, 1), ValueError, r"\(\); expected one dimension"),
    ("FusedCSCSamplingGraph.sample_neighbors", lambda: near(TWO_D, 1), ValueError, r"\(1, 2\); expected one dimension"),
    ("FusedCSCSamplingGraph.sample_neighbors", lambda: near(ids(3), 1), IndexError, r"id 3 .*\[0, 3\)"),
    ("FusedCSCSamplingGraph.sample_neighbors", lambda: near(ON_META, 1), ValueError, "on the device meta"),
    ("FusedCSCSamplingGraph.sample_neighbors", lambda: near({"a": ids(0)}, 1), TypeError, "no types; pass one tensor"),
    ("FusedCSCSamplingGraph.sample_neighbors", lambda: HETERO.sample_neighbors(ids(0), 1), TypeError, "node types .*; pass {type"),
    ("FusedCSCSamplingGraph.sample_neighbors", lambda: near(ids(0), -2), ValueError, "is -2; expected -1"),
    ("FusedCSCSamplingGraph.sample_neighbors", lambda: near(ids(0), 1.5), TypeError, "is 1.5; expected an int"),
    ("FusedCSCSamplingGraph.sample_neighbors", lambda: near(ids(0), None), TypeError, "is None; expected an int"),
    ("FusedCSCSamplingGraph.sample_neighbors", lambda: near(ids(0), [1, 2]), ValueError, "2 entries; the graph has 1"),
    ("FusedCSCSamplingGraph.sample_neighbors", lambda: near(ids(0), 1, replace=1), TypeError, "replace is 1; expected True"),
    ("FusedCSCSamplingGraph.sample_neighbors", lambda: near(ids(0), 1, probs_name="p"), KeyError, "no edge attribute 'p'"),
    ("FusedCSCSamplingGraph.sample_neighbors", lambda: near(ids(0), 1, random_seed=1.5), TypeError, "random_seed is 1.5; expected an int"),
    ("FusedCSCSamplingGraph.sample_layer_neighbors", lambda: labor([0], 1), TypeError, "seeds are a list; expected"),
    ("FusedCSCSamplingGraph.sample_layer_neighbors", lambda: labor(ids(-1), 1), IndexError, "id -1"),
    ("FusedCSCSamplingGraph.sample_layer_neighbors", lambda: labor(ids(0), "1"), TypeError, "is '1'; expected an int"),
    ("FusedCSCSamplingGraph.sample_layer_neighbors", lambda: labor(ids(0), 1, random_seed=True), TypeError, "random_seed is True; expected an int"),
    ("FusedCSCSamplingGraph.temporal_sample_neighbors", lambda: late(ids(0), None), ValueError, "no timestamp"),
    ("FusedCSCSamplingGraph.temporal_sample_neighbors", lambda: late(ids(0), [5]), TypeError, "timestamp is list; expected a tensor"),
    ("FusedCSCSamplingGraph.temporal_sample_neighbors", lambda: late(ids(0), FLOATS), TypeError, "float32 .*expected a tensor of integers"),
    ("FusedCSCSamplingGraph.temporal_sample_neighbors", lambda: late(ids(0, 1, 2), ids(0, 1)), ValueError, "2 values for 3 seeds"),
    ("FusedCSCSamplingGraph.temporal_sample_neighbors", lambda: late(ids(0), ids(0), seeds_pre_time_window=[1]), TypeError, "pre_time_window is list; expected"),
    ("FusedCSCSamplingGraph.temporal_sample_neighbors", lambda: late(ids(0), ids(0), edge_timestamp_attr_name="weight"), TypeError, "float32; expected integers"),
    ("FusedCSCSamplingGraph.temporal_sample_neighbors", lambda: late(ids(3), ids(0)), IndexError, r"id 3 .*\[0, 3\)"),
    ("FusedCSCSamplingGraph.temporal_sample_layer_neighbors", lambda: late_layer(ids(0), ARRAY), TypeError, "timestamp is ndarray; expected"),
    ("FusedCSCSamplingGraph.temporal_sample_layer_neighbors", lambda: late_layer(ids(0), ids(0), -5), ValueError, "is -5; expected -1"),
    ("FusedCSCSamplingGraph.temporal_sample_layer_neighbors", lambda: late_layer(ids(0), ids(0), node_timestamp_attr_name="t"), KeyError, "no node attribute 't'"),
    ("FusedCSCSamplingGraph.in_subgraph", lambda: GRAPH.in_subgraph([0]), TypeError, "list; expected a torch.Tensor"),
    ("FusedCSCSamplingGraph.in_subgraph", lambda: GRAPH.in_subgraph(None), ValueError, "no seeds"),
    ("FusedCSCSamplingGraph.in_subgraph", lambda: GRAPH.in_subgraph(BOOLS), TypeError, "torch.bool; expected integers.*; the ids of a mask are"),
    ("FusedCSCSamplingGraph.in_subgraph", lambda: GRAPH.in_subgraph(ids(3)), IndexError, r"id 3 .*\[0, 3\)"),
    ("FusedCSCSamplingGraph.in_subgraph", lambda: HETERO.in_subgraph({"a": ids(1)}), IndexError, r"'a': id 1 .*\[0, 1\)"),
    ("FusedCSCSamplingGraph.sample_negative_edges_uniform", lambda: negatives(None, [[0, 1]], 1), TypeError, "list; expected an integer tensor"),
    ("FusedCSCSamplingGraph.sample_negative_edges_uniform", lambda: negatives(None, ids(0, 1), 1), ValueError, r"\(2,\); expected \[N, 2\]"),
    ("FusedCSCSamplingGraph.sample_negative_edges_uniform", lambda: negatives(None, TWO_D.float(), 1), TypeError, "float32; expected"),
    ("FusedCSCSamplingGraph.sample_negative_edges_uniform", lambda: negatives(None, ids([0, 3]), 1), IndexError, r"id 3 .*\[0, 3\)"),
    ("FusedCSCSamplingGraph.sample_negative_edges_uniform", lambda: negatives(None, TWO_D, 0), ValueError, "negative_ratio is 0; expected 1"),
    ("FusedCSCSamplingGraph.sample_negative_edges_uniform", lambda: negatives(None, TWO_D, 1.0), TypeError, "negative_ratio is 1.0; expected an int"),
    ("FusedCSCSamplingGraph.sample_negative_edges_uniform", lambda: negatives("a:x:b", TWO_D, 1), TypeError, "the graph has no types"),
    ("FusedCSCSamplingGraph.sample_negative_edges_uniform", lambda: negatives(5, TWO_D, 1, graph=HETERO), TypeError, "5.*expected a string"),
    ("FusedCSCSamplingGraph.sample_negative_edges_uniform", lambda: negatives("a:x:c", TWO_D, 1, graph=HETERO), ValueError, r"\['c'\]; the graph has"),
    ("FusedCSCSamplingGraph.sample_negative_edges_uniform", lambda: negatives(None, TWO_D, 1, random_seed=0.5), TypeError, "random_seed is 0.5; expected an int"),
    ("FusedCSCSamplingGraph.copy_to_shared_memory", lambda: GRAPH.copy_to_shared_memory(5), TypeError, "shared_memory_name is 5; expected a string"),
    ("FusedCSCSamplingGraph.copy_to_shared_memory", lambda: GRAPH.copy_to_shared_memory(""), ValueError, "0 bytes; expected 1 to 150"),
    ("FusedCSCSamplingGraph.save", lambda: GRAPH.save(5), TypeError, "int"),
    ("FusedCSCSamplingGraph.save", lambda: GRAPH.save(FULL), FileExistsError, "is not empty; give a new folder"),
    ("FusedCSCSamplingGraph.sampling_device", lambda: GRAPH.sampling_device([1]), TypeError, "seeds are a list; expected a torch.Tensor"),
    ("FusedCSCSamplingGraph.draw_order", lambda: GRAPH.draw_order("user"), KeyError, "no node type 'user'; the graph has no types"),
    ("FusedCSCSamplingGraph.draw_order", lambda: HETERO.draw_order("users"), KeyError, "no node type 'users'"),
    ("FusedCSCSamplingGraph.load", lambda: Graph.load(5), TypeError, "int"),
    ("FusedCSCSamplingGraph.load", lambda: Graph.load("/nowhere"), FileNotFoundError, "no such file; expected a folder"),
    ("copy_to_shared_memory", lambda: hp.copy_to_shared_memory(5, "x"), TypeError, "graph is a int; expected a FusedCSC"),
    ("copy_to_shared_memory", lambda: hp.copy_to_shared_memory(GRAPH, None), TypeError, "is None; expected a string"),
    ("copy_to_shared_memory", lambda: hp.copy_to_shared_memory(GRAPH, "x" * 151), ValueError, "151 bytes; expected 1 to 150"),
    ("load_from_shared_memory", lambda: hp.load_from_shared_memory(5), TypeError, "is 5; expected a string"),
    ("load_from_shared_memory", lambda: hp.load_from_shared_memory(""), ValueError, "0 bytes; expected"),
    ("load_from_shared_memory", lambda: hp.load_from_shared_memory("none of this name"), FileNotFoundError, "no graph named"),
    # ---------------------------------------------------------------------------------------------
    # From pairs
    ("from_coo", lambda: coo([0, 1]), TypeError, "sources: got a list; expected a torch.Tensor"),
    ("from_coo", lambda: coo(ARRAY), TypeError, "sources: got a ndarray; expected a torch.Tensor"),
    ("from_coo", lambda: coo(None), TypeError, "sources: got a NoneType; expected"),
    ("from_coo", lambda: coo(dst=[0, 1]), TypeError, "destinations: got a list; expected"),
    ("from_coo", lambda: coo(dst=None), TypeError, "got dst NoneType.*expected from_coo"),
    ("from_coo", lambda: coo(IND.float()), TypeError, "sources: got dtype torch.float32; expected"),
    ("from_coo", lambda: coo(BOOLS, ids(0)), TypeError, "sources: got dtype torch.bool; expected.*of a mask"),
    ("from_coo", lambda: coo(COMPLEX, ids(0)), TypeError, "complex64; expected integers"),
    ("from_coo", lambda: coo(HUGE, ids(0)), IndexError, r"is outside \[0, 2\)"),
    ("from_coo", lambda: coo(TWO_D, ids(0)), ValueError, r"\(1, 2\); expected one dimension"),
    ("from_coo", lambda: coo(ZERO_D, ids(0)), ValueError, r"\(\); expected one dimension"),
    ("from_coo", lambda: coo(ids(0)), ValueError, "1 sources and 2 destinations; expected as many"),
    ("from_coo", lambda: coo(ids(0, 2)), IndexError, r"sources: id 2 at position 1 is outside \[0, 2\)"),
    ("from_coo", lambda: coo(dst=ids(0, -1)), IndexError, "destinations: id -1 at position 1"),
    ("from_coo", lambda: coo(ON_META, IND), ValueError, "on the device meta"),
    ("from_coo", lambda: coo(num_nodes=None), TypeError, "num_nodes None; expected"),
    ("from_coo", lambda: coo(num_nodes=2.0), TypeError, "num_nodes 2.0; expected"),
    ("from_coo", lambda: coo(num_nodes=True), TypeError, "num_nodes True; expected"),
    ("from_coo", lambda: coo(ids(), ids(), -1), ValueError, "num_nodes is -1; expected 0 or more"),
    ("from_coo", lambda: coo(edge_attributes={"x": ids(1)}), ValueError, r"'x' has shape \(1,\); expected 2 rows"),
    ("from_coo", lambda: coo(edge_attributes={"x": [1, 2]}), TypeError, "'x' is a list; expected"),
    ("from_coo", lambda: coo(edge_attributes=[1]), TypeError, "edge_attributes is a list; expected"),
    ("from_coo", lambda: coo(node_attributes={"x": ids(1)}), ValueError, "expected 2 rows"),
    ("from_coo", lambda: coo(node_attributes=ids(1, 2)), TypeError, "node_attributes is a Tensor; expected"),
    ("from_coo", lambda: coo(include_original_edge_id=1), TypeError, "include_original_edge_id is 1; expected True"),
    ("from_coo", lambda: typed_coo({"a:x:b": (ids(0), ids(0))}, 2), TypeError, "for edges by type, pass from_coo"),
    ("from_coo", lambda: typed_coo({"a:x": (ids(0), ids(0))}, AB), ValueError, "'a:x'; expected three names"),
    ("from_coo", lambda: typed_coo({5: (ids(0), ids(0))}, AB), TypeError, "edge type is 5; expected a string"),
    ("from_coo", lambda: typed_coo({"a:x:c": (ids(0), ids(0))}, AB), ValueError, "node type 'c'; num_nodes has"),
    ("from_coo", lambda: typed_coo({"a:x:b": ids(0)}, AB), ValueError, r"expected \(src, dst\)"),
    ("from_coo", lambda: typed_coo({"a:x:b": (ids(0), None)}, AB), TypeError, "destinations of type 'a:x:b': got a NoneType"),
    ("from_coo", lambda: typed_coo({"a:x:b": (ids(1), ids(0))}, AB), IndexError, r"sources of type 'a:x:b': id 1 .*\[0, 1\)"),
    ("from_coo", lambda: typed_coo({}, {"a": -1}), ValueError, r"num_nodes\['a'\] is -1; expected 0"),
    ("from_coo", lambda: typed_coo({}, {"a": 1.0}), TypeError, "'a': 1.0; expected a string and an int"),
    ("from_coo", lambda: typed_coo({}, {"a": 1}, node_attributes={"x": ids(1)}), ValueError, "got Tensor; expected a tensor for each"),
    ("from_coo", lambda: typed_coo({}, {"a": 1}, node_attributes={"x": {"b": ids(1)}}), ValueError, r"got \['b'\]; expected a tensor for each of \['a'\]"),
]  # fmt: skip
