"""Wrong calls: whole-graph training over ranks."""

# ruff: noqa: E501  one line an entry
from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch

import hopline.models as hm
import hopline.pipes as hp
from hopline.partition import DistGraph, partition_graph
from tests.wrong_input.things import Entry, ids

FLAT = hp.from_coo(ids(0, 1, 2), ids(1, 2, 0), num_nodes=3)
TYPED = hp.from_coo({"a:to:b": (ids(0), ids(0))}, num_nodes={"a": 1, "b": 1})
X, SHORT, WHOLE = torch.ones(3, 4), torch.ones(2, 4), torch.ones(3, 4).long()


def parts(graph):
    with tempfile.TemporaryDirectory() as folder:
        data = SimpleNamespace(graph=graph, feature=hp.BasicFeatureStore({}), tasks=[])
        partition_graph(data, "g", 1, Path(folder) / "p")
        return DistGraph(Path(folder) / "p")


@functools.cache
def plan():
    return hm.HaloPlan(parts(FLAT))


def columns(graph=FLAT):
    return hm.TensorParallelGCN(graph, 4, 8, 5)


def load_state(state):
    model = columns()
    model.load_whole_optimizer_state(torch.optim.Adam(model.parameters()), state)


def sparse():
    rows = torch.nn.Embedding(3, 2, sparse=True)
    rows(ids(1)).sum().backward()
    return rows.parameters()


NO_PLAN = "plan is a NoneType; expected a HaloPlan"

TABLE: list[Entry] = [
    ("HaloPlan", lambda: hm.HaloPlan(FLAT), TypeError, "FusedCSCSamplingGraph; expected a DistGraph"),
    ("HaloPlan", lambda: hm.HaloPlan(parts(TYPED)), ValueError, "has node types; expected a homogeneous"),
    ("DistSpmm", lambda: hm.DistSpmm(None), TypeError, NO_PLAN),
    ("DistSpmm", lambda: hm.DistSpmm(plan(), "left"), ValueError, "norm is 'left'; expected 'none'"),
    ("DistSpmm", lambda: hm.DistSpmm(plan(), mode="fast"), ValueError, "mode is 'fast'; expected one of halo"),
    ("DistSpmm", lambda: hm.DistSpmm(plan(), mode="columns", wire_dtype=torch.bfloat16), ValueError, "leave out wire_dtype"),
    ("DistSpmm", lambda: hm.DistSpmm(plan(), wire_dtype=torch.int16), TypeError, "wire_dtype is torch.int16; expected None or one of"),
    ("DistSpmm", lambda: hm.DistSpmm(plan(), stale=1), TypeError, "stale is 1; expected a bool"),
    ("DistSpmm", lambda: hm.DistSpmm(plan(), boundary_rate=0), ValueError, "boundary_rate is 0; expected a probability above 0"),
    ("DistSpmm", lambda: hm.DistSpmm(plan(), boundary_rate="half"), TypeError, "boundary_rate is 'half'; expected a probability"),
    ("DistSpmm", lambda: hm.DistSpmm(plan(), boundary_rate=1.5), ValueError, r"boundary_rate is 1.5; expected a probability in \[0, 1\]"),
    ("DistSpmm", lambda: hm.DistSpmm(plan(), stale=True, boundary_rate=0.5), ValueError, "choose one"),
    ("DistSpmm", lambda: hm.DistSpmm(plan(), mode="columns", stale=True), ValueError, "leave out stale"),
    ("DistSpmm", lambda: hm.DistSpmm(plan(), self_loop="no"), TypeError, "self_loop is 'no'; expected a bool"),
    ("DistSpmm.forward", lambda: hm.DistSpmm(plan())([1.0]), TypeError, "x is a list"),
    ("DistSpmm.forward", lambda: hm.DistSpmm(plan())(X, layer="a"), TypeError, "layer is 'a'"),
    ("DistSpmm.forward", lambda: hm.DistSpmm(plan())(WHOLE), TypeError, "x has dtype torch.int64"),
    ("DistSpmm.forward", lambda: hm.DistSpmm(plan())(SHORT), ValueError, r"\(2, 4\); expected \[3, width\]"),
    ("DistSpmm.forward", lambda: hm.DistSpmm(plan())(torch.ones(3)), ValueError, r"\(3,\); expected \[3, width\]"),
    ("DistSpmm.forward", lambda: hm.DistSpmm(plan())(X, torch.ones(2)), ValueError, r"edge_weight has shape \(2,\); expected \[3\]"),
    ("DistSpmm.forward", lambda: hm.DistSpmm(plan())(X, key=3), TypeError, r"key is 3; expected three ints, \(seed, epoch, step\)"),
    ("DistSpmm.forward", lambda: hm.DistSpmm(plan())(X.to("meta")), ValueError, "x is on meta, .* on cpu; expected one device"),
    ("DistGCN.forward", lambda: hm.DistGCN(plan(), 4, 8, 5)(X, (0, 0, 0), torch.ones(2)), ValueError, r"edge_weight has shape \(2,\); expected \[3\]"),
    ("DistGCN.forward", lambda: hm.DistGCN(plan(), 4, 8, 5)(X, (0, 1)), TypeError, r"key is \(0, 1\); expected three ints"),
    ("DistSAGE.forward", lambda: hm.DistSAGE(plan(), 4, 8, 5)(X, (0, 1.0, 0)), TypeError, r"key is \(0, 1.0, 0\); expected three ints"),
    ("DistGCN", lambda: hm.DistGCN(None, 4, 8, 5), TypeError, NO_PLAN),
    ("DistGCN", lambda: hm.DistGCN(plan(), 4, 8, 5, norm="left"), ValueError, "norm is 'left'"),
    ("DistGCN", lambda: hm.DistGCN(plan(), 4, 8, 5, dropout=2.0), ValueError, "dropout"),
    ("DistGCN", lambda: hm.DistGCN(plan(), 4, 8, 5, wire_dtype="int8"), TypeError, "wire_dtype is 'int8'"),
    ("DistGCN.forward", lambda: hm.DistGCN(plan(), 4, 8, 5)(SHORT), ValueError, r"\(2, 4\); expected \(3, 4\)"),
    ("DistSAGE", lambda: hm.DistSAGE(None, 4, 8, 5), TypeError, NO_PLAN),
    ("DistSAGE", lambda: hm.DistSAGE(plan(), 4, 8, 5, num_layers=0), ValueError, "num_layers"),
    ("DistSAGE.forward", lambda: hm.DistSAGE(plan(), 4, 8, 5)(WHOLE), TypeError, "x has dtype torch.int64"),
    ("DistGAT", lambda: hm.DistGAT(None, 4, 8, 5), TypeError, NO_PLAN),
    ("DistGAT", lambda: hm.DistGAT(plan(), 4, 8, 5, num_heads=0), ValueError, "num_heads"),
    ("DistGAT", lambda: hm.DistGAT(plan(), 4, 8, 5, attn_drop=1.5), ValueError, "1.5; expected a probability"),
    ("DistGAT", lambda: hm.DistGAT(plan(), 4, 8, 5, attn_drop="0.1"), TypeError, "'0.1'; expected a probability"),
    ("DistGAT", lambda: hm.DistGAT(plan(), 4, 8, 5, stale="yes"), TypeError, "stale is 'yes'; expected a bool"),
    ("DistGAT.forward", lambda: hm.DistGAT(plan(), 4, 8, 5)(None), TypeError, "x is a NoneType"),
    ("global_mean", lambda: hm.global_mean(X, None), TypeError, NO_PLAN),
    ("global_mean", lambda: hm.global_mean(1.0, plan()), TypeError, "values is a float"),
    ("sum_gradients", lambda: hm.sum_gradients([], None), TypeError, NO_PLAN),
    ("sum_gradients", lambda: hm.sum_gradients(None, plan()), TypeError, "parameters are a NoneType; expected several"),
    ("sum_gradients", lambda: hm.sum_gradients(sparse(), plan()), TypeError, "gradient is sparse; expected dense ones"),
    ("TensorParallelGCN", lambda: columns(None), TypeError, "graph is a NoneType; expected a FusedCSC"),
    ("TensorParallelGCN", lambda: columns(TYPED), ValueError, "has node types"),
    ("TensorParallelGCN.columns", lambda: columns().columns(2), IndexError, "layer 2 of 2"),
    ("TensorParallelGCN.columns", lambda: columns().columns("0"), TypeError, "layer is '0'"),
    ("TensorParallelGCN.forward", lambda: columns()(X, (0, 0, 0), [1.0]), TypeError, "edge_weight is a list"),
    ("TensorParallelGCN.forward", lambda: columns()(X, (0, 0, 0), torch.ones(2)), ValueError, r"edge_weight has shape \(2,\); expected \[3\]"),
    ("TensorParallelGCN.forward", lambda: columns()(X, (0, 0, 0), torch.ones(3, 1)), ValueError, r"edge_weight has shape \(3, 1\); expected \[3\]"),
    ("TensorParallelGCN.forward", lambda: columns()(None), TypeError, "x is a NoneType"),
    ("TensorParallelGCN.forward", lambda: columns()(X, [0, 0, 0]), TypeError, r"key is \[0, 0, 0\]; expected three ints"),
    ("TensorParallelGCN.forward", lambda: columns()(SHORT), ValueError, r"\(2, 4\); expected \(3, 4\)"),
    ("TensorParallelGCN.load_whole_state_dict", lambda: columns().load_whole_state_dict(None), TypeError, "state is"),
    ("TensorParallelGCN.load_whole_state_dict", lambda: columns().load_whole_state_dict({}), ValueError, r"layers.0.weight has nothing; expected shape \(8, 4\)"),
    ("TensorParallelGCN.load_whole_state_dict", lambda: columns().load_whole_state_dict({"layers.0.weight": 3}), TypeError, "layers.0.weight is a int; expected a torch.Tensor"),
    ("TensorParallelGCN.load_whole_state_dict", lambda: columns().load_whole_state_dict({"layers.0.weight": torch.ones(4, 8)}), ValueError, r"layers.0.weight has shape \(4, 8\); expected \(8, 4\)"),
    ("TensorParallelGCN.load_whole_state_dict", lambda: columns().load_whole_state_dict(hm.GCN(4, 8, 5).state_dict() | {"layers.2.bias": X}), ValueError, r"state has \['layers.2.bias'\], of which this model of 2 layers has nothing"),
    ("TensorParallelGCN.whole_optimizer_state", lambda: columns().whole_optimizer_state(None), TypeError, "optimizer"),
    ("TensorParallelGCN.load_whole_optimizer_state", lambda: columns().load_whole_optimizer_state(None, {}), TypeError, "optimizer"),
    ("TensorParallelGCN.load_whole_optimizer_state", lambda: load_state(None), TypeError, "state is a NoneType; expected an optimizer's"),
    ("TensorParallelGCN.load_whole_optimizer_state", lambda: load_state({"model": 1}), TypeError, r"state is a dict with \['model'\]; expected an optimizer's"),
    ("TensorParallelGCN.load_whole_optimizer_state", lambda: load_state({"state": {0: 1}, "param_groups": []}), TypeError, "expected an optimizer's state_dict"),
    ("TensorParallelGCN.load_whole_optimizer_state", lambda: load_state({"state": {}, "param_groups": [3]}), TypeError, r"'param_groups' \[3\]; expected a list of groups"),
    ("TensorParallelGCN.load_whole_optimizer_state", lambda: load_state({"state": {}, "param_groups": []}), ValueError, "state is over the parameters .*; expected those of a GCN"),
]  # fmt: skip
