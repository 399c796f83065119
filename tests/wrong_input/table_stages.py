"""Wrong calls: samplers, negatives and exclusion."""

# ruff: noqa: E501  one line an entry
from __future__ import annotations

import torch

import hopline.pipes as hp
from tests.wrong_input.things import (
    ARRAY,
    BOOLS,
    COMPLEX,
    FLOATS,
    GRAPH,
    HETERO,
    HUGE,
    ON_META,
    TWO_D,
    ZERO_D,
    Entry,
    batch,
    ids,
    sampled,
    source,
)  # fmt: skip

near, layer = hp.NeighborSampler, hp.LayerNeighborSampler
inward, own, negatives, uniform, excluder = hp.InSubgraphSampler, hp.SubgraphSampler, hp.NegativeSampler, hp.UniformNegativeSampler, hp.SeedEdgesExcluder  # fmt: skip
REVERSE = {"a:x:b": "b:y:a"}


class Nothing(hp.SubgraphSampler):
    def sample_subgraphs(self, seeds, seeds_timestamp, seeds_pre_time_window=None):
        return seeds, []


class Odd(hp.NegativeSampler):
    """Gives as destinations what it is told to."""

    drawn: object = None

    def _sample_with_etype(self, etype, pairs, key, timestamp=None):
        return self.drawn


def odd(drawn, seeds=None):
    stage = Odd([], 1)
    stage.drawn = drawn
    return stage(batch(ids([0, 1]) if seeds is None else seeds))


def late(*arguments, **settings):
    return hp.TemporalNeighborSampler(
        *arguments, **{"node_timestamp_attr_name": "time", **settings}
    )


def layer_late(*arguments, **settings):
    name = {"node_timestamp_attr_name": "time"}
    return hp.TemporalLayerNeighborSampler(*arguments, **{**name, **settings})


def timed(seeds, timestamp, **extra):
    return late([], GRAPH, [1])(batch(seeds, timestamp=timestamp, extra=extra))


def drawn(graph, seeds, **fields):
    return uniform([], graph, 1)(batch(seeds, **fields))


def exclude(minibatch, *args, **kwargs):
    return hp.exclude_seed_edges(minibatch, *args, **kwargs)


TABLE: list[Entry] = [
    ("NeighborSampler", lambda: near(5, GRAPH, [1]), TypeError, "source is a int; expected an iterable"),
    ("NeighborSampler", lambda: near(source(), None, [1]), TypeError, "NoneType; expected a FusedCSC"),
    ("NeighborSampler", lambda: near(source(), [1], GRAPH), TypeError, "list; expected a FusedCSC"),
    ("NeighborSampler", lambda: near(source(), GRAPH, None), TypeError, "fanouts is None; expected a list"),
    ("NeighborSampler", lambda: near(source(), GRAPH, 5), TypeError, "fanouts is 5; expected a list"),
    ("NeighborSampler", lambda: near(source(), GRAPH, "5"), TypeError, "fanouts is '5'; expected a list"),
    ("NeighborSampler", lambda: near(source(), GRAPH, ZERO_D), TypeError, "fanouts is 0; expected a list"),
    ("NeighborSampler", lambda: near(source(), GRAPH, []), ValueError, "fanouts is empty; expected"),
    ("NeighborSampler", lambda: near(source(), GRAPH, torch.ones(2, dtype=torch.int64).to_sparse()), TypeError, "sparse_coo; expected a dense one"),
    ("NeighborSampler", lambda: near(source(), GRAPH, torch.ones(2, dtype=torch.int64, device="meta")), ValueError, "fanouts: got a tensor on the device meta"),
    ("NeighborSampler", lambda: near(source(), GRAPH, [1.5]), TypeError, r"fanouts\[0\] is 1.5; expected an int"),
    ("NeighborSampler", lambda: near(source(), GRAPH, [True]), TypeError, r"fanouts\[0\] is True; expected an int"),
    ("NeighborSampler", lambda: near(source(), GRAPH, [None]), TypeError, r"fanouts\[0\] is None; expected an int"),
    ("NeighborSampler", lambda: near(source(), GRAPH, [1, -2]), ValueError, r"fanouts\[1\] is -2; expected -1"),
    ("NeighborSampler", lambda: near(source(), GRAPH, [2**31]), ValueError, "expected -1 for all edges, or 0 to"),
    ("NeighborSampler", lambda: near(source(), GRAPH, [[1, 2]]), ValueError, "2 entries; the graph has 1"),
    ("NeighborSampler", lambda: near(source(), HETERO, [[1, 2, 3]]), ValueError, "3 entries; the graph has 2"),
    ("NeighborSampler", lambda: near(source(), GRAPH, [1], replace=1), TypeError, "replace is 1; expected True"),
    ("NeighborSampler", lambda: near(source(), GRAPH, [1], num_gpu_cached_edges=-1), ValueError, "num_gpu_cached_edges is -1; expected 0"),
    ("NeighborSampler", lambda: near(source(), GRAPH, [1], num_gpu_cached_edges=1.5), TypeError, "num_gpu_cached_edges is 1.5; expected an int"),
    ("NeighborSampler", lambda: near(source(), GRAPH, [1], gpu_cache_threshold=0), ValueError, "gpu_cache_threshold is 0; expected 1"),
    ("NeighborSampler", lambda: near(source(), GRAPH, [1], deduplicate=None), TypeError, "deduplicate is None; expected True"),
    ("NeighborSampler", lambda: near(source(), GRAPH, [1], prob_name="p"), KeyError, "no edge attribute 'p'; the graph has"),
    ("NeighborSampler", lambda: near(source(), GRAPH, [1], prob_name=5), KeyError, "no edge attribute 5; the graph has"),
    ("NeighborSampler", lambda: near(source(), GRAPH, [1], cooperative=True), ValueError, "cooperative is True"),
    ("NeighborSampler", lambda: near(source(), GRAPH, [1], cooperative=ARRAY), TypeError, "cooperative is .*expected True"),
    ("NeighborSampler.__call__", lambda: near([], GRAPH, [1])(5), TypeError, "got a int; expected a MiniBatch"),
    ("NeighborSampler.__call__", lambda: near([], GRAPH, [1])(ids(0)), TypeError, "got a Tensor; expected a MiniBatch"),
    ("NeighborSampler.__call__", lambda: near([], GRAPH, [1])(batch()), ValueError, "no seeds; name a column"),
    ("NeighborSampler.__call__", lambda: near([], GRAPH, [1])(batch([0])), TypeError, "seeds are a list; expected a torch.Tensor"),
    ("NeighborSampler.__call__", lambda: near([], GRAPH, [1])(batch(ARRAY)), TypeError, "seeds are a ndarray; expected a torch.Tensor"),
    ("NeighborSampler.__call__", lambda: near([], GRAPH, [1])(batch(FLOATS)), TypeError, "float32; expected integers"),
    ("NeighborSampler.__call__", lambda: near([], GRAPH, [1])(batch(BOOLS)), TypeError, "torch.bool; expected integers"),
    ("NeighborSampler.__call__", lambda: near([], GRAPH, [1])(batch(COMPLEX)), TypeError, "complex64; expected integers"),
    ("NeighborSampler.__call__", lambda: near([], GRAPH, [1])(batch(HUGE)), IndexError, rf"id {2**64 - 1} is outside \[0, 3\)"),
    ("NeighborSampler.__call__", lambda: near([], GRAPH, [1])(batch(ids(0, 3))), IndexError, r"id 3 at position 1 is outside \[0, 3\)"),
    ("NeighborSampler.__call__", lambda: near([], GRAPH, [1])(batch(ids(-1))), IndexError, r"id -1 at position 0 is outside \[0, 3\)"),
    ("NeighborSampler.__call__", lambda: near([], GRAPH, [1])(batch(ZERO_D)), ValueError, r"shapes \[\(\)\]; expected nodes \[n\]"),
    ("NeighborSampler.__call__", lambda: near([], GRAPH, [1])(batch(TWO_D[None])), ValueError, r"\(1, 1, 2\)\]; expected nodes"),
    ("NeighborSampler.__call__", lambda: near([], GRAPH, [1])(batch(ON_META)), ValueError, "on the device meta.* expected"),
    ("NeighborSampler.__call__", lambda: near([], GRAPH, [1])(batch({"a": ids(0)})), TypeError, "no types; pass one tensor"),
    ("NeighborSampler.__call__", lambda: near([], GRAPH, [1])(batch(ids(0), key=None)), ValueError, "no key"),
    ("NeighborSampler.__call__", lambda: near([], GRAPH, [1], prob_name="loss")(batch(ids(0))), ValueError, "loss"),
    ("NeighborSampler.__call__", lambda: near([], HETERO, [1])(batch(ids(0))), TypeError, "node types .*; pass {type: tensor}"),
    ("NeighborSampler.__call__", lambda: near([], HETERO, [1])(batch({"c": ids(0)})), ValueError, r"\['c'\]; the graph has"),
    ("NeighborSampler.__call__", lambda: near([], HETERO, [1])(batch({"a": ids(1)})), IndexError, r"type 'a': id 1 .*\[0, 1\)"),
    ("NeighborSampler.__call__", lambda: near([], HETERO, [1])(batch({"a:x:b": ids([0, 2])})), IndexError, r"'a:x:b': id 2 .*\[0, 2\)"),
    ("NeighborSampler.__call__", lambda: near([], HETERO, [1])(batch({5: ids([0, 1])})), TypeError, "5; expected a string"),
    ("LayerNeighborSampler", lambda: layer(source(), GRAPH, [1], layer_dependency=1), TypeError, "layer_dependency is 1; expected True"),
    ("LayerNeighborSampler", lambda: layer(source(), GRAPH, [1], batch_dependency=1.5), TypeError, "batch_dependency is 1.5; expected an int"),
    ("LayerNeighborSampler", lambda: layer(source(), GRAPH, [1], batch_dependency=True), TypeError, "is True; expected an int"),
    ("LayerNeighborSampler", lambda: layer(source(), GRAPH, [1], cooperative=True), ValueError, "cooperative is True"),
    ("LayerNeighborSampler", lambda: layer(source(), GRAPH, [1], cooperative=ARRAY), TypeError, "cooperative is .*expected True"),
    ("NegativeSampler", lambda: negatives([], 2**31), ValueError, r"negative_ratio is 2147483648; expected"),
    ("LayerNeighborSampler", lambda: layer(source(), GRAPH, [-3]), ValueError, "is -3; expected -1"),
    ("LayerNeighborSampler", lambda: layer([], GRAPH, [1])(batch(ids(3))), IndexError, r"id 3 .*\[0, 3\)"),
    ("TemporalNeighborSampler", lambda: late(source(), GRAPH, [1], pre_time_window=-1), ValueError, "pre_time_window is -1; expected 0"),
    ("TemporalNeighborSampler", lambda: late(source(), GRAPH, [1], pre_time_window=1.5), TypeError, "is 1.5; expected an int"),
    ("TemporalNeighborSampler", lambda: late(source(), GRAPH, [1], pre_time_window=True), TypeError, "is True; expected an int"),
    ("TemporalNeighborSampler", lambda: late(source(), GRAPH, [1], node_timestamp_attr_name="t"), KeyError, "no node attribute 't'; the graph has"),
    ("TemporalNeighborSampler", lambda: late(source(), GRAPH, [1], edge_timestamp_attr_name="t"), KeyError, "no edge attribute 't'; the graph has"),
    ("TemporalNeighborSampler", lambda: late(source(), GRAPH, [1], edge_timestamp_attr_name="weight"), TypeError, "float32; expected integers"),
    ("TemporalNeighborSampler", lambda: late(source(), GRAPH, [1], node_timestamp_attr_name="wide"), ValueError, r"\(3, 2\); expected one number"),
    ("TemporalNeighborSampler", lambda: late(source(), GRAPH, [1], node_timestamp_attr_name=None), ValueError, "neither .* is given.*; name an attribute"),
    ("TemporalNeighborSampler", lambda: late(source(), GRAPH, 5), TypeError, "fanouts is 5; expected a list"),
    ("TemporalNeighborSampler", lambda: timed(ids(0), None), ValueError, "no timestamp; name a column"),
    ("TemporalNeighborSampler", lambda: timed(ids(0), [0]), TypeError, "timestamp is list; expected a tensor of integers"),
    ("TemporalNeighborSampler", lambda: timed(ids(0), ARRAY), TypeError, "timestamp is ndarray; expected a tensor"),
    ("TemporalNeighborSampler", lambda: timed(ids(0), FLOATS), TypeError, "float32 .*expected a tensor of integers"),
    ("TemporalNeighborSampler", lambda: timed(ids(0), BOOLS), TypeError, "torch.bool .*expected a tensor of integers"),
    ("TemporalNeighborSampler", lambda: timed(ids(0), COMPLEX), TypeError, "complex64 .*expected a tensor of integers"),
    ("TemporalNeighborSampler", lambda: timed(ids(0), ZERO_D), TypeError, r"shape \(\).*expected a tensor of integers, one for each seed"),
    ("TemporalNeighborSampler", lambda: timed(ids(0), ids([0])), TypeError, r"shape \(1, 1\).*expected a tensor of integers, one for each seed"),
    ("TemporalNeighborSampler", lambda: timed(ids(0, 1, 2), ids(0, 1)), ValueError, "2 values for 3 seeds; expected one for each"),
    ("TemporalNeighborSampler", lambda: timed(ids(0), ON_META[:1]), ValueError, "on the device meta.* expected"),
    ("TemporalNeighborSampler", lambda: timed(ids(0), {"a": ids(0)}), TypeError, "must both come by type"),
    ("TemporalNeighborSampler", lambda: timed(ids(0), ids(0), pre_time_window=FLOATS), TypeError, "pre_time_window is torch.float32 .*expected"),
    ("TemporalNeighborSampler", lambda: timed(ids(3), ids(0)), IndexError, r"id 3 .*\[0, 3\)"),
    ("TemporalNeighborSampler.times", lambda: late([], GRAPH, [1])(batch(ids(0))), ValueError, "no timestamp"),
    ("TemporalLayerNeighborSampler", lambda: layer_late(source(), GRAPH, [1], layer_dependency=None), TypeError, "is None; expected True"),
    ("TemporalLayerNeighborSampler", lambda: layer_late(source(), GRAPH, [1], batch_dependency="1"), TypeError, "is '1'; expected an int"),
    ("TemporalLayerNeighborSampler", lambda: layer_late(source(), GRAPH, [1], pre_time_window=-1), ValueError, "is -1; expected 0 or more"),
    ("TemporalLayerNeighborSampler", lambda: layer_late([], GRAPH, [1])(batch(ids(0))), ValueError, "no timestamp"),
    ("InSubgraphSampler", lambda: inward(source(), 5), TypeError, "graph is a int; expected a FusedCSC"),
    ("InSubgraphSampler", lambda: inward([], GRAPH)(batch(ids(3))), IndexError, r"id 3 .*\[0, 3\)"),
    ("InSubgraphSampler", lambda: inward([], GRAPH)(batch(FLOATS)), TypeError, "float32; expected integers"),
    ("SubgraphSampler", lambda: own(5), TypeError, "source is a int; expected an iterable"),
    ("SubgraphSampler.__call__", lambda: Nothing([])(5), TypeError, "got a int; expected a MiniBatch"),
    ("SubgraphSampler.__call__", lambda: Nothing([])(batch()), ValueError, "no seeds; name a column"),
    ("SubgraphSampler.__call__", lambda: Nothing([])(batch([0])), TypeError, "seeds are a list; expected a torch.Tensor"),
    ("SubgraphSampler.__call__", lambda: Nothing([])(batch({"a": [0]})), TypeError, "seeds are a list; expected a torch.Tensor"),
    ("SubgraphSampler.__call__", lambda: Nothing([])(batch(TWO_D[None])), ValueError, "expected nodes"),
    ("SubgraphSampler.__call__", lambda: Nothing([])(batch({"a:x:b": TWO_D, "a": ids(0)})), ValueError, "expected nodes .* for all types alike"),
    ("SubgraphSampler.__call__", lambda: Nothing([])(batch({"a": TWO_D})), ValueError, "'a' does not name the node types of 2 ends"),
    ("SubgraphSampler.__call__", lambda: Nothing([])(batch(TWO_D, timestamp=[5])), TypeError, "timestamp is a list; expected a torch.Tensor"),
    ("SubgraphSampler.__call__", lambda: Nothing([])(batch(ids([0, 1], [1, 2]), timestamp=ids(0))), ValueError, r"timestamp has shape \(1,\) for 2 seeds; expected one row"),
    # ---------------------------------------------------------------------------------------------
    # Negatives
    ("NegativeSampler", lambda: negatives(5, 1), TypeError, "source is a int; expected"),
    ("NegativeSampler", lambda: negatives(source(), 0), ValueError, "negative_ratio is 0; expected 1"),
    ("NegativeSampler", lambda: negatives(source(), -2), ValueError, "negative_ratio is -2; expected 1"),
    ("NegativeSampler", lambda: negatives(source(), 1.0), TypeError, "is 1.0; expected an int"),
    ("NegativeSampler", lambda: negatives(source(), True), TypeError, "is True; expected an int"),
    ("NegativeSampler", lambda: negatives(source(), None), TypeError, "is None; expected an int"),
    ("NegativeSampler.__call__", lambda: odd([0]), TypeError, "gave list; expected a torch.Tensor of integers"),
    ("NegativeSampler.__call__", lambda: odd(FLOATS), TypeError, "float32; expected a torch.Tensor of integers"),
    ("NegativeSampler.__call__", lambda: odd(BOOLS), TypeError, "torch.bool; expected a torch.Tensor of integers"),
    ("NegativeSampler.__call__", lambda: odd(ids(0, 1)), ValueError, r"gave shape \(2,\); expected \[1\]"),
    ("NegativeSampler.__call__", lambda: odd(ids(-1)), ValueError, "-1; expected"),
    ("NegativeSampler.__call__", lambda: odd(ids(300), ids([0, 1], dtype=torch.uint8)), ValueError, "300, which seeds of dtype torch.uint8 cannot hold"),
    ("NegativeSampler.__call__", lambda: Odd([], 1)(5), TypeError, "got a int; expected a MiniBatch"),
    ("UniformNegativeSampler", lambda: uniform(source(), 5, 1), TypeError, "graph is a int; expected a FusedCSC"),
    ("UniformNegativeSampler", lambda: uniform(source(), GRAPH, 0), ValueError, "is 0; expected 1 or more"),
    ("UniformNegativeSampler", lambda: uniform(source(), GRAPH, 1, exclude_true_edges=1), TypeError, "is 1; expected True"),
    ("UniformNegativeSampler", lambda: uniform(source(), GRAPH, 1, node_timestamp_attr_name="t"), KeyError, "no node attribute 't'"),
    ("UniformNegativeSampler", lambda: uniform(source(), GRAPH, 1, node_timestamp_attr_name="wide"), ValueError, "expected one number"),
    ("UniformNegativeSampler", lambda: drawn(GRAPH, None), ValueError, "no seeds; name a column"),
    ("UniformNegativeSampler", lambda: drawn(GRAPH, [[0, 1]]), TypeError, r"list; expected an integer tensor of shape \[N, 2\]"),
    ("UniformNegativeSampler", lambda: drawn(GRAPH, ids(0, 1)), ValueError, r"\(2,\); expected \[N, 2\]"),
    ("UniformNegativeSampler", lambda: drawn(GRAPH, ids([0, 1, 2])), ValueError, r"\(1, 3\); expected \[N, 2\]"),
    ("UniformNegativeSampler", lambda: drawn(GRAPH, TWO_D.float()), TypeError, "float32; expected integers"),
    ("UniformNegativeSampler", lambda: drawn(GRAPH, TWO_D.bool()), TypeError, "torch.bool; expected integers"),
    ("UniformNegativeSampler", lambda: drawn(GRAPH, ids([0, 3])), IndexError, r"destinations of seeds: id 3 .*\[0, 3\)"),
    ("UniformNegativeSampler", lambda: drawn(GRAPH, ids([-1, 0])), IndexError, r"sources of seeds: id -1 .*\[0, 3\)"),
    ("UniformNegativeSampler", lambda: drawn(GRAPH, ON_META[None]), ValueError, "on the device meta.* expected"),
    ("UniformNegativeSampler", lambda: drawn(GRAPH, {"a:x:b": TWO_D}), TypeError, "no types; pass one tensor"),
    ("UniformNegativeSampler", lambda: drawn(HETERO, TWO_D), TypeError, "pass {edge type: tensor}"),
    ("UniformNegativeSampler", lambda: drawn(HETERO, {"a:x:c": TWO_D}), ValueError, r"\['c'\]; the graph has"),
    ("UniformNegativeSampler", lambda: drawn(HETERO, {"a": TWO_D}), ValueError, "'a'; expected three names"),
    ("UniformNegativeSampler", lambda: drawn(HETERO, {5: TWO_D}), TypeError, "5.*expected a string"),
    ("UniformNegativeSampler", lambda: drawn(GRAPH, TWO_D, key=None), ValueError, "no key"),
    ("UniformNegativeSampler", lambda: uniform([], GRAPH, 1)(sampled()), ValueError, "sampled already"),
    ("UniformNegativeSampler", lambda: drawn(GRAPH, TWO_D, timestamp=[5]), TypeError, "list; expected a torch.Tensor"),
    ("UniformNegativeSampler", lambda: drawn(GRAPH, TWO_D, timestamp=ids(1, 2)), ValueError, r"\(2,\) for 1 seeds; expected one each"),
    ("UniformNegativeSampler", lambda: drawn(GRAPH, TWO_D, timestamp={"a": ids(1)}), TypeError, "expected both by edge type"),
    # ---------------------------------------------------------------------------------------------
    # Exclusion
    ("SeedEdgesExcluder", lambda: excluder(5), TypeError, "source is a int; expected"),
    ("SeedEdgesExcluder", lambda: excluder(source(), include_reverse_edges="no"), TypeError, "is 'no'; expected True"),
    ("SeedEdgesExcluder", lambda: excluder(source(), exclude_negatives=1), TypeError, "is 1; expected True"),
    ("SeedEdgesExcluder", lambda: excluder(source(), keep_self_loops=None), TypeError, "is None; expected True"),
    ("SeedEdgesExcluder", lambda: excluder(source(), True, ["a:x:b"]), TypeError, "list; expected {edge type"),
    ("SeedEdgesExcluder", lambda: excluder(source(), True, {"a:x:b": 5}), TypeError, "has 5, a int; expected names"),
    ("SeedEdgesExcluder", lambda: excluder(source(), True, {"a": "b"}), ValueError, "'a'; expected three names"),
    ("SeedEdgesExcluder", lambda: excluder(source(), True, {"a:x:b": "a:x:b"}), ValueError, "runs from 'b' to 'a'"),
    ("SeedEdgesExcluder.__call__", lambda: excluder([])(5), TypeError, "got a int; expected a MiniBatch"),
    ("SeedEdgesExcluder.__call__", lambda: excluder([])(batch(TWO_D)), ValueError, "sample first"),
    ("exclude_seed_edges", lambda: exclude(5), TypeError, "got a int; expected a MiniBatch"),
    ("exclude_seed_edges", lambda: exclude(batch(TWO_D)), ValueError, "no sampled hops"),
    ("exclude_seed_edges", lambda: exclude(sampled(edge_features=[{}])), ValueError, "put fetch_feature after"),
    ("exclude_seed_edges", lambda: exclude(sampled(ids(0, 1))), ValueError, r"\(2,\); expected \[N, 2\]"),
    ("exclude_seed_edges", lambda: exclude(sampled([[0, 1]])), TypeError, "list; expected an integer tensor"),
    ("exclude_seed_edges", lambda: exclude(sampled(TWO_D.float())), TypeError, "float32; expected integers"),
    ("exclude_seed_edges", lambda: exclude(sampled({"a:x:b": TWO_D})), TypeError, "no types; pass one tensor"),
    ("exclude_seed_edges", lambda: exclude(sampled(ON_META[None])), ValueError, "on the device meta.* expected"),
    ("exclude_seed_edges", lambda: exclude(sampled(), True, REVERSE), TypeError, "for edges by type; these are one tensor"),
    ("exclude_seed_edges", lambda: exclude(sampled(labels=[1], indexes=ids(0))), TypeError, "list; expected a torch.Tensor"),
    ("exclude_seed_edges", lambda: exclude(sampled(labels=ids(1, 0), indexes=ids(0))), ValueError, "for 1 seeds; expected one each"),
]  # fmt: skip
