"""Wrong calls: training, evaluation, checkpoints, ranks and inference."""

# ruff: noqa: E501  one line an entry
from __future__ import annotations

import tempfile

import torch

import hopline.models as hm
import hopline.pipes as hp
from tests.wrong_input.things import GRAPH, HETERO, STORE, Entry, batch, ids

MODEL = hm.SAGE(3, 8, 5, num_layers=1)
ADAM = torch.optim.Adam(MODEL.parameters())
LABELLED = hp.ItemSet((ids(0, 1, 2), ids(0, 1, 2)), ("seeds", "labels"))
CHAIN = (
    hp.ItemSampler(LABELLED, 2, seed=0).sample_neighbor(GRAPH, [1]).fetch_feature(STORE, ["feat"])
)
LOADER = hp.DataLoader(CHAIN)


def labelled(labels):
    items = hp.ItemSet((ids(0, 1, 2), labels), ("seeds", "labels"))
    chain = hp.ItemSampler(items, 2, seed=0).sample_neighbor(GRAPH, [1])
    return hp.DataLoader(chain.fetch_feature(STORE, ["feat"]))


BARE = hp.DataLoader(hp.ItemSampler(hp.ItemSet(3, "seeds"), 2, seed=0).sample_neighbor(GRAPH, [1]))
X = torch.eye(3)
EMPTY = tempfile.TemporaryDirectory()
METRIC = hm.LinkMetrics()

train, run, infer, reduce_, rng = hm.train_epoch, hm.TrainingRun, hm.layer_wise_inference, hm.weighted_reduce, hm.keyed_rng  # fmt: skip


SCORES, LABELS, INDEXES = torch.ones(2), ids(1, 0), ids(0, 0)


def counted(scores=SCORES, labels=LABELS, indexes=INDEXES):
    return hm.LinkMetrics().update(scores, labels, indexes)


def seeded(key, device="cpu"):
    with rng(key, device):
        pass


def score(value):
    return run(MODEL, ADAM, LOADER).end_epoch(value)


TABLE: list[Entry] = [
    ("forward_features", lambda: hm.forward_features(MODEL, 5), TypeError, "got a int; expected a MiniBatch"),
    ("forward_features", lambda: hm.forward_features(MODEL, batch(ids(0))), ValueError, "no node features.*fetch_feature"),
    ("forward_features", lambda: hm.forward_features(MODEL, batch(node_features={"x": X})), KeyError, r"no node feature 'feat'.*\['x'\]"),
    ("forward_links", lambda: hm.forward_links(MODEL, None), TypeError, "got a NoneType; expected a MiniBatch"),
    ("forward_links", lambda: hm.forward_links(MODEL, batch(ids(0))), ValueError, "no node features.*fetch_feature"),
    ("forward_links", lambda: hm.forward_links(MODEL, batch(node_features={"x": X})), KeyError, "no node feature 'feat'"),
    ("train_epoch", lambda: train(5, LOADER, ADAM), TypeError, "model is a int; expected a torch.nn.Module"),
    ("train_epoch", lambda: train(MODEL, 5, ADAM), TypeError, "loader is a int; expected a DataLoader"),
    ("train_epoch", lambda: train(MODEL, CHAIN, ADAM), TypeError, "expected a DataLoader"),
    ("train_epoch", lambda: train(MODEL, LOADER, torch.optim.LBFGS(MODEL.parameters())), TypeError, "LBFGS, whose step.. calls the model itself; expected one that steps"),
    ("train_epoch", lambda: train(MODEL, LOADER, ADAM, lambda a, b: 1.0), TypeError, "loss_fn gave a float; expected a torch.Tensor"),
    ("train_epoch", lambda: train(MODEL, LOADER, ADAM, torch.nn.CrossEntropyLoss(reduction="none")), ValueError, r"loss of shape \(2,\); expected one value"),
    ("train_epoch", lambda: train(MODEL, LOADER, ADAM, forward=lambda m, b: m(b.blocks, b.node_features["feat"])[:, 0]), ValueError, "one score a label, .*; expected another loss, such as .*binary_cross_entropy_with_logits"),
    ("train_epoch", lambda: train(MODEL, labelled(torch.rand(3)), ADAM), ValueError, "labels are of torch.float32, .* cross_entropy; expected integers"),
    ("train_epoch", lambda: train(MODEL, labelled(torch.ones(3, 1).long()), ADAM), ValueError, r"labels have shape \(2, 1\) .* expected \(2,\), a class each: store labels.squeeze"),
    ("train_epoch", lambda: train(MODEL, labelled(ids(0, -1, 7)), ADAM), ValueError, r"labels are from -?\d to \d, .* expected classes from 0 up"),
    ("train_epoch", lambda: train(MODEL, LOADER, None), TypeError, "optimizer is a NoneType; expected a torch.optim.Optimizer"),
    ("train_epoch", lambda: train(MODEL, LOADER, ADAM, 5), TypeError, "loss_fn is a int; expected a function"),
    ("train_epoch", lambda: train(MODEL, LOADER, ADAM, forward=5), TypeError, "forward is a int; expected a function"),
    ("train_epoch", lambda: train(MODEL, LOADER, ADAM, device="nowhere"), ValueError, "'nowhere'; expected a torch device"),
    ("train_epoch", lambda: train(MODEL, BARE, ADAM), ValueError, "no tensor of labels"),
    ("train_epoch", lambda: train(MODEL, LOADER, ADAM, forward=lambda m, b: X[:1]), ValueError, "1 rows for 2 labels"),
    ("train_epoch", lambda: train(MODEL, LOADER, ADAM, forward=lambda m, b: None), TypeError, "forward gave a NoneType; expected a torch.Tensor"),
    ("train_epoch", lambda: train(MODEL, LOADER, ADAM, amp_dtype=torch.float16), ValueError, "float16; expected torch.bfloat16, or None"),
    ("train_epoch", lambda: train(MODEL, LOADER, ADAM, amp_dtype="bf16"), TypeError, "'bf16'; expected torch.bfloat16"),
    ("evaluate", lambda: hm.evaluate(MODEL, LOADER, METRIC, amp_dtype=torch.int8), ValueError, "int8; expected torch.bfloat16"),
    ("evaluate_links", lambda: hm.evaluate_links(MODEL, LOADER, amp_dtype=16), TypeError, "16; expected torch.bfloat16"),
    ("EpochTotal.add", lambda: hm.EpochTotal().add(0.5, 2), TypeError, "loss is a float; expected a torch.Tensor"),
    ("evaluate", lambda: hm.evaluate(5, LOADER, METRIC), TypeError, "model is a int; expected a torch.nn.Module"),
    ("evaluate", lambda: hm.evaluate(MODEL, None, METRIC), TypeError, "loader is a NoneType; expected a DataLoader"),
    ("evaluate", lambda: hm.evaluate(MODEL, LOADER, "accuracy"), TypeError, "metric is a str; expected a torchmetrics"),
    ("evaluate", lambda: hm.evaluate(MODEL, LOADER, METRIC, device="nowhere"), ValueError, "'nowhere'; expected a torch device"),
    ("evaluate", lambda: hm.evaluate(MODEL, BARE, METRIC), ValueError, "no tensor of labels"),
    ("evaluate_links", lambda: hm.evaluate_links(None, LOADER), TypeError, "NoneType; expected a torch.nn.Module"),
    ("evaluate_links", lambda: hm.evaluate_links(MODEL, [1]), TypeError, "loader is a list; expected a DataLoader"),
    ("evaluate_links", lambda: hm.evaluate_links(MODEL, LOADER, 5), TypeError, "metric is a int; expected a LinkMetrics"),
    ("evaluate_links", lambda: hm.evaluate_links(MODEL, LOADER, forward=lambda m, b: X[0]), ValueError, "no indexes; sample negatives"),
    ("LinkMetrics", lambda: hm.LinkMetrics((0,)), ValueError, r"\(0,\); expected numbers of 1 or more"),
    ("LinkMetrics", lambda: hm.LinkMetrics(5), TypeError, "hits is 5; expected"),
    ("LinkMetrics", lambda: hm.LinkMetrics((1.5,)), TypeError, r"\(1.5,\); expected"),
    ("LinkMetrics", lambda: hm.LinkMetrics(ties="best"), ValueError, "'best'; expected one of"),
    ("LinkMetrics", lambda: hm.LinkMetrics(queries="all"), ValueError, "'all'; expected one of"),
    ("LinkMetrics.update", lambda: counted([1.0, 0.0]), TypeError, "scores are a list; expected a torch.Tensor"),
    ("LinkMetrics.update", lambda: counted(labels=None), TypeError, "labels are a NoneType; expected a torch.Tensor"),
    ("LinkMetrics.update", lambda: counted(ids(1, 2)), TypeError, "int64; expected a floating-point"),
    ("LinkMetrics.update", lambda: counted(torch.ones(3)), ValueError, r"\[3\], \[2\] and \[2\]; expected \[n\]"),
    ("LinkMetrics.update", lambda: counted(torch.ones(2, 1)), ValueError, r"expected \[n\] for each"),
    ("LinkMetrics.update", lambda: counted(torch.tensor([1.0, torch.nan])), ValueError, "score 1 is NaN"),
    ("LinkMetrics.update", lambda: counted(labels=ids(1, 2)), ValueError, "label 1 is 2; expected 0 or 1"),
    ("LinkMetrics.update", lambda: counted(indexes=torch.ones(2)), TypeError, "float32; expected integers"),
    ("LinkMetrics.update", lambda: counted(indexes=torch.ones(2).cdouble()), TypeError, "complex128; expected integers"),
    ("LinkMetrics.update", lambda: counted(labels=ids(0, 0)), ValueError, "query 0 has negatives and no positive"),
    # ---------------------------------------------------------------------------------------------
    # Checkpoints and runs
    ("checkpoint_path", lambda: hm.checkpoint_path(5), TypeError, "int"),
    ("save_checkpoint", lambda: hm.save_checkpoint(None, MODEL, ADAM, LOADER), TypeError, "NoneType"),
    ("save_checkpoint", lambda: hm.save_checkpoint(EMPTY.name, 5, ADAM, LOADER), TypeError, "model is a int; expected a torch.nn.Module"),
    ("save_checkpoint", lambda: hm.save_checkpoint(EMPTY.name, MODEL, 5, LOADER), TypeError, "optimizer is a int; expected"),
    ("save_checkpoint", lambda: hm.save_checkpoint(EMPTY.name, MODEL, ADAM, 5), TypeError, "loader is a int; expected a DataLoader"),
    ("save_checkpoint", lambda: hm.save_checkpoint(EMPTY.name, MODEL, ADAM, LOADER, 5), TypeError, "extra is a int; expected"),
    ("load_checkpoint", lambda: hm.load_checkpoint(EMPTY.name, MODEL, ADAM, LOADER), FileNotFoundError, "no checkpoint"),
    ("load_checkpoint", lambda: hm.load_checkpoint(EMPTY.name, 5, ADAM, LOADER), TypeError, "model is a int; expected"),
    ("load_checkpoint", lambda: hm.load_checkpoint(5, MODEL, ADAM, LOADER), TypeError, "int"),
    ("TrainingRun", lambda: run(5, ADAM, LOADER), TypeError, "model is a int; expected a torch.nn.Module"),
    ("TrainingRun", lambda: run(MODEL, None, LOADER), TypeError, "optimizer is a NoneType; expected"),
    ("TrainingRun", lambda: run(MODEL, ADAM, CHAIN), TypeError, "expected a DataLoader"),
    ("TrainingRun", lambda: run(MODEL, ADAM, LOADER, every=-1), ValueError, "every is -1; expected 0"),
    ("TrainingRun", lambda: run(MODEL, ADAM, LOADER, every=1.5), TypeError, "every is 1.5; expected an int"),
    ("TrainingRun", lambda: run(MODEL, ADAM, LOADER, settings=[1]), TypeError, "settings is a list; expected"),
    ("TrainingRun.end_epoch", lambda: score("good"), TypeError, "value is 'good'; expected a number"),
    ("TrainingRun.end_epoch", lambda: score(None), TypeError, "value is None; expected a number"),
    ("keyed_rng", lambda: seeded(5), TypeError, r"key is 5; expected \(seed, epoch, index\)"),
    ("keyed_rng", lambda: seeded((1, 2)), TypeError, r"key is \(1, 2\); expected"),
    ("keyed_rng", lambda: seeded((1, 2, 0.5)), TypeError, r"0.5\); expected \(seed"),
    ("keyed_rng", lambda: seeded((1, 2, 3), "nowhere"), ValueError, "'nowhere'; expected a torch device"),
    # ---------------------------------------------------------------------------------------------
    # Ranks
    ("weighted_reduce", lambda: reduce_(X, -1), ValueError, "weight that is negative"),
    ("weighted_reduce", lambda: reduce_(X, float("nan")), ValueError, "weight that is negative, infinite or NaN"),
    ("weighted_reduce", lambda: reduce_(X, "one"), TypeError, "weight is 'one'; expected a number"),
    ("weighted_reduce", lambda: reduce_("x", 1), TypeError, "tensor is a str; expected a torch.Tensor"),
    ("weighted_reduce", lambda: reduce_(None, 1), TypeError, "tensor is a NoneType; expected a torch.Tensor"),
    ("weighted_reduce", lambda: reduce_(X.cfloat(), 1), ValueError, "unsupported dtype"),
    ("weighted_reduce", lambda: reduce_(X, 1, dst=1), IndexError, "dst is 1; there is 1 rank"),
    ("weighted_reduce", lambda: reduce_(X, 1, dst=0.5), TypeError, "dst is 0.5; expected a rank"),
    ("gather_rows", lambda: hm.gather_rows([1]), TypeError, "tensor is a list; expected a torch.Tensor"),
    ("gather_rows", lambda: hm.gather_rows(None), TypeError, "tensor is a NoneType; expected a torch.Tensor"),
    ("gather_rows", lambda: hm.gather_rows(X.cfloat()), ValueError, "unsupported dtype"),
    ("broadcast_optimizer_state", lambda: hm.broadcast_optimizer_state(5, 0), TypeError, "optimizer is a int; expected"),
    ("broadcast_optimizer_state", lambda: hm.broadcast_optimizer_state(ADAM, 1), ValueError, "process group has not been initialized"),
    ("broadcast_optimizer_state", lambda: hm.broadcast_optimizer_state(ADAM, "0"), TypeError, "src is '0'; expected a rank"),
    ("launch", lambda: hm.launch(5, 1), TypeError, "fn is a int; expected a function"),
    ("launch", lambda: hm.launch(print, 0), ValueError, "num_ranks is 0; expected an int of 1"),
    ("launch", lambda: hm.launch(print, 1.5), ValueError, "num_ranks is 1.5; expected an int"),
    ("launch", lambda: hm.launch(print, True), ValueError, "num_ranks is True; expected an int"),
    ("launch", lambda: hm.launch(print, 1, timeout=0), ValueError, "timeout is 0; expected a positive"),
    ("launch", lambda: hm.launch(print, 1, timeout="60"), ValueError, "timeout is '60'; expected a positive"),
    ("launch", lambda: hm.launch(print, 2, gpus=[0]), ValueError, r"\[0\]; expected 2 different ids"),
    ("launch", lambda: hm.launch(print, 1, gpus=0), TypeError, "gpus is 0; expected a list"),
    ("launch", lambda: hm.launch(print, 1, gpus=[99]), ValueError, "no GPU 99; torch finds"),
    ("launch", lambda: hm.launch(print, 1, gpus=[0.5]), TypeError, r"\[0.5\]; expected a list of ints"),
    ("launch", lambda: hm.launch(print, 1, backend=5), TypeError, "backend is 5; expected a string"),
    ("launch", lambda: hm.launch(lambda *ranks: None, 1), ValueError, "<lambda>, which ranks cannot import; expected"),
    ("launch", lambda: hm.launch(counted, 1, gpus="0"), TypeError, "gpus is '0'; expected a list"),
    ("join_ranks", lambda: hm.join_ranks(5), TypeError, "fn is a int; expected a function"),
    ("join_ranks", lambda: hm.join_ranks(print, timeout=0), ValueError, "timeout is 0; expected a positive"),
    ("join_ranks", lambda: hm.join_ranks(print, backend=5), TypeError, "backend is 5; expected a string"),
    ("join_ranks", lambda: hm.join_ranks(print), RuntimeError, "the environment lacks .*torchrun or OpenMPI's mpirun"),
    # ---------------------------------------------------------------------------------------------
    # Inference
    ("layer_wise_inference", lambda: infer(5, GRAPH, X), TypeError, "model is a int; expected a torch.nn.Module"),
    ("layer_wise_inference", lambda: infer(torch.nn.Linear(3, 3), GRAPH, X), TypeError, "no method apply_layer|no layers"),
    ("layer_wise_inference", lambda: infer(MODEL, 5, X), TypeError, "graph is a int; expected a FusedCSC"),
    ("layer_wise_inference", lambda: infer(MODEL, HETERO, X), ValueError, "takes a homogeneous graph"),
    ("layer_wise_inference", lambda: infer(MODEL, GRAPH, [1.0]), TypeError, "x is a list; expected a torch.Tensor"),
    ("layer_wise_inference", lambda: infer(MODEL, GRAPH, X[:2]), ValueError, r"x has 2 rows .*expected one row"),
    ("layer_wise_inference", lambda: infer(MODEL, GRAPH, X[0]), ValueError, r"\[3\]; expected \[num_nodes, width\]"),
    ("layer_wise_inference", lambda: infer(MODEL, GRAPH, torch.ones(3, 5)), ValueError, r"expected \[\d, 3\]"),
    ("layer_wise_inference", lambda: infer(MODEL, GRAPH, X, batch_size=0), ValueError, "batch_size is 0; expected 1"),
    ("layer_wise_inference", lambda: infer(MODEL, GRAPH, X, batch_size=1.5), TypeError, "batch_size is 1.5; expected an int"),
    ("layer_wise_inference", lambda: infer(MODEL, GRAPH, X, max_memory=0), ValueError, "max_memory is 0; expected 1"),
    ("layer_wise_inference", lambda: infer(MODEL, GRAPH, X, max_memory=8), ValueError, "max_memory=8"),
    ("layer_wise_inference", lambda: infer(MODEL, GRAPH, X, num_workers=-1), ValueError, "num_workers is -1; expected 0"),
    ("layer_wise_inference", lambda: infer(MODEL, GRAPH, X, edge_bytes=-1), ValueError, "edge_bytes is -1; expected 0"),
    ("layer_wise_inference", lambda: infer(MODEL, GRAPH, X, edge_bytes=0.5), TypeError, "edge_bytes is 0.5; expected an int"),
    ("layer_wise_inference", lambda: infer(MODEL, GRAPH, X, device="nowhere"), ValueError, "'nowhere'; expected a torch device"),
    ("layer_wise_inference", lambda: infer(MODEL, GRAPH, X, out=5), TypeError, "out is a int; expected a torch.Tensor or a path"),
    ("layer_wise_inference", lambda: infer(MODEL, GRAPH, X, out=torch.ones(3, 4)), ValueError, r"expected floating-point \[3, 5\]"),
    ("layer_wise_inference", lambda: infer(MODEL, GRAPH, X, apply_layer=5), TypeError, "apply_layer is a int; expected a function"),
]  # fmt: skip
