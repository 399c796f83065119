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


NO_PLAN = "plan is a NoneType; expected a HaloPlan"

TABLE: list[Entry] = [
    ("HaloPlan", lambda: hm.HaloPlan(FLAT), TypeError, "FusedCSCSamplingGraph; expected a DistGraph"),
    ("HaloPlan", lambda: hm.HaloPlan(parts(TYPED)), ValueError, "has node types; expected a homogeneous"),
    ("DistSpmm", lambda: hm.DistSpmm(None), TypeError, NO_PLAN),
    ("DistSpmm", lambda: hm.DistSpmm(plan(), "left"), ValueError, "norm is 'left'; expected 'none'"),
    ("DistSpmm", lambda: hm.DistSpmm(plan(), mode="fast"), ValueError, "mode is 'fast'; expected one of halo"),
    ("DistSpmm", lambda: hm.DistSpmm(plan(), mode="columns", wire_dtype=torch.bfloat16), ValueError, "leave out wire_dtype"),
    ("DistSpmm.forward", lambda: hm.DistSpmm(plan())([1.0]), TypeError, "x is a list"),
    ("DistSpmm.forward", lambda: hm.DistSpmm(plan())(WHOLE), TypeError, "x has dtype torch.int64"),
    ("DistSpmm.forward", lambda: hm.DistSpmm(plan())(SHORT), ValueError, r"\(2, 4\); expected 3 rows"),
    ("DistSpmm.forward", lambda: hm.DistSpmm(plan())(X, torch.ones(2)), ValueError, r"edge_weight has shape \(2,\); expected 3"),
    ("DistGCN", lambda: hm.DistGCN(None, 4, 8, 5), TypeError, NO_PLAN),
    ("DistGCN", lambda: hm.DistGCN(plan(), 4, 8, 5, norm="left"), ValueError, "norm is 'left'"),
    ("DistGCN", lambda: hm.DistGCN(plan(), 4, 8, 5, dropout=2.0), ValueError, "dropout"),
    ("DistGCN.forward", lambda: hm.DistGCN(plan(), 4, 8, 5)(SHORT), ValueError, r"\(2, 4\); expected \(3, 4\)"),
    ("DistSAGE", lambda: hm.DistSAGE(None, 4, 8, 5), TypeError, NO_PLAN),
    ("DistSAGE", lambda: hm.DistSAGE(plan(), 4, 8, 5, num_layers=0), ValueError, "num_layers"),
    ("DistSAGE.forward", lambda: hm.DistSAGE(plan(), 4, 8, 5)(WHOLE), TypeError, "x has dtype torch.int64"),
    ("DistGAT", lambda: hm.DistGAT(None, 4, 8, 5), TypeError, NO_PLAN),
    ("DistGAT", lambda: hm.DistGAT(plan(), 4, 8, 5, num_heads=0), ValueError, "num_heads"),
    ("DistGAT.forward", lambda: hm.DistGAT(plan(), 4, 8, 5)(None), TypeError, "x is a NoneType"),
    ("global_mean", lambda: hm.global_mean(X, None), TypeError, NO_PLAN),
    ("global_mean", lambda: hm.global_mean(1.0, plan()), TypeError, "values is a float"),
    ("sum_gradients", lambda: hm.sum_gradients([], None), TypeError, NO_PLAN),
    ("TensorParallelGCN", lambda: columns(None), TypeError, "graph is a NoneType; expected a FusedCSC"),
    ("TensorParallelGCN", lambda: columns(TYPED), ValueError, "has node types"),
    ("TensorParallelGCN.columns", lambda: columns().columns(2), IndexError, "layer 2 of 2"),
    ("TensorParallelGCN.columns", lambda: columns().columns("0"), TypeError, "layer is '0'"),
    ("TensorParallelGCN.forward", lambda: columns()(None), TypeError, "x is a NoneType"),
    ("TensorParallelGCN.forward", lambda: columns()(SHORT), ValueError, r"\(2, 4\); expected \(3, 4\)"),
    ("TensorParallelGCN.load_whole_state_dict", lambda: columns().load_whole_state_dict(None), TypeError, "state is"),
    ("TensorParallelGCN.load_whole_state_dict", lambda: columns().load_whole_state_dict({}), ValueError, r"layers.0.weight has nothing; expected shape \(8, 4\)"),
]  # fmt: skip
