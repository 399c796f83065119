"""Wrong calls: layers, models, and operations over a block."""

# ruff: noqa: E501  one line an entry
from __future__ import annotations

import torch

import hopline.models as hm
import hopline.pipes as hp
from tests.wrong_input.things import BLOCK, Entry, ids

X, NARROW, SHORT, WHOLE, AWAY = torch.ones(3, 4), torch.ones(3, 2), torch.ones(2, 4), torch.ones(3, 4).long(), torch.ones(3, 4, device="meta")  # fmt: skip
TALL = hp.Block(ids(0, 1, 1), ids(0), 1, 2)  # fewer sources than destinations
BAD = hp.Block(ids(0, 1, 2), ids(0, 7), 3, 2)  # an edge from nowhere
ETYPE = "a:x:b"
BLOCKS, ROWS = {ETYPE: BLOCK}, {"a": X, "b": torch.ones(2, 4)}

total, mean, most, softmax, score = hm.sum_aggregate, hm.mean_aggregate, hm.max_aggregate, hm.edge_softmax, hm.edge_scores  # fmt: skip


def sage(**fields):
    return hm.SAGE(**{"in_size": 4, "hidden_size": 8, "out_size": 5, "num_layers": 1, **fields})


def gcn(**fields):
    return hm.GCN(**{"in_size": 4, "hidden_size": 8, "out_size": 5, "num_layers": 1, **fields})


def gat(**fields):
    return hm.GAT(**{"in_size": 4, "hidden_size": 8, "out_size": 5, "num_layers": 1, **fields})


def rgcn(in_sizes=4, etypes=(ETYPE,), **fields):
    return hm.RGCN(
        in_sizes, **{"hidden_size": 8, "out_size": 5, "etypes": etypes, "num_layers": 1, **fields}
    )


def rel(in_sizes=4, out_size=5, etypes=(ETYPE,), **fields):
    return hm.RelGraphConv(in_sizes, out_size, etypes, **fields)


mlp, dot = hm.MLPPredictor, hm.DotPredictor()
LINKS = ids([0, 1])
pair = hm.LinkPredictor(sage(), dot)
typed_pair = hm.LinkPredictor(rgcn(), dot)

TABLE: list[Entry] = [
    ("sum_aggregate", lambda: total(BLOCK, WHOLE), TypeError, "int64; expected a floating-point"),
    ("sum_aggregate", lambda: total(BLOCK, X.bool()), TypeError, "torch.bool; expected a floating-point"),
    ("sum_aggregate", lambda: total(BLOCK, X.cfloat()), TypeError, "complex64; expected a floating-point"),
    ("sum_aggregate", lambda: total(BLOCK, SHORT), ValueError, r"\(2, 4\); expected \[3, width\]"),
    ("sum_aggregate", lambda: total(BLOCK, X[0]), ValueError, r"\(4,\); expected \[3, width\]"),
    ("sum_aggregate", lambda: total(BAD, X), IndexError, r"source outside \[0, 3\)"),
    ("sum_aggregate", lambda: total(BLOCK, X, torch.ones(3)), ValueError, r"edge_weight has shape \(3,\); expected \[2\]"),
    ("sum_aggregate", lambda: total(BLOCK, X, ids(1, 1)), TypeError, "edge_weight has dtype torch.int64; expected"),
    ("mean_aggregate", lambda: mean(BLOCK, WHOLE), TypeError, "int64; expected a floating-point"),
    ("mean_aggregate", lambda: mean(BLOCK, SHORT), ValueError, r"\(2, 4\); expected \[3, width\]"),
    ("mean_aggregate", lambda: mean(BAD, X), IndexError, r"source outside \[0, 3\)"),
    ("max_aggregate", lambda: most(BLOCK, WHOLE), TypeError, "int64; expected a floating-point"),
    ("max_aggregate", lambda: most(BLOCK, SHORT), ValueError, r"\(2, 4\); expected \[3, width\]"),
    ("max_aggregate", lambda: most(BAD, X), IndexError, r"source outside \[0, 3\)"),
    ("edge_softmax", lambda: softmax(5, torch.ones(2)), TypeError, "block is a int; expected a Block"),
    ("edge_softmax", lambda: softmax(BLOCK, [0.0, 0.0]), TypeError, "logits is a list; expected a torch.Tensor"),
    ("edge_softmax", lambda: softmax(BLOCK, ids(0, 0)), TypeError, "int64; expected a floating-point"),
    ("edge_softmax", lambda: softmax(BLOCK, torch.ones(3)), ValueError, r"\(3,\); expected \[2\]"),
    ("edge_softmax", lambda: softmax(BLOCK, torch.tensor(1.0)), ValueError, r"\(\); expected \[2\]"),
    ("edge_softmax", lambda: softmax(BLOCK, torch.ones(2, device="meta")), ValueError, "logits is on meta, .* on cpu; expected one device"),
    ("edge_scores", lambda: score(None, NARROW, NARROW[:2]), TypeError, "block is a NoneType; expected a Block"),
    ("edge_scores", lambda: score(BLOCK, None, NARROW[:2]), TypeError, "source is a NoneType; expected a torch.Tensor"),
    ("edge_scores", lambda: score(BLOCK, NARROW, [1]), TypeError, "destination is a list; expected a torch.Tensor"),
    ("edge_scores", lambda: score(BLOCK, NARROW, NARROW), ValueError, r"\(3, 2\); expected \[3, heads\] and \[2, heads\]"),
    ("edge_scores", lambda: score(BLOCK, NARROW.long(), NARROW[:2].long()), TypeError, "int64; expected a floating-point"),
    ("edge_scores", lambda: score(BLOCK, NARROW, NARROW[:2].double()), TypeError, "float32 and torch.float64; expected the same"),
    ("edge_scores", lambda: score(BLOCK, NARROW, NARROW[:2].to("meta")), ValueError, "destination is on meta, .* on cpu; expected one device"),
    ("edge_scores", lambda: score(BAD, NARROW, NARROW[:2]), IndexError, r"source outside \[0, 3\)"),
    ("add_self_edges", lambda: hm.add_self_edges(TALL), ValueError, "fewer sources than destinations"),
    ("add_self_edges", lambda: hm.add_self_edges(5), TypeError, "block is a int; expected a Block"),
    # ---------------------------------------------------------------------------------------------
    # Layers
    ("SAGEConv", lambda: hm.SAGEConv(0, 5), ValueError, "0 and 5; expected 1 or more"),
    ("SAGEConv", lambda: hm.SAGEConv(4, 5, "max"), ValueError, "'max'; expected 'mean'"),
    ("SAGEConv.forward", lambda: hm.SAGEConv(4, 5)(BLOCK, NARROW), ValueError, r"\(3, 2\); expected \[3, 4\]"),
    ("SAGEConv.forward", lambda: hm.SAGEConv(4, 5)(BLOCK, SHORT), ValueError, r"\(2, 4\); expected \[3, 4\]"),
    ("GCNConv", lambda: hm.GCNConv(4, -1), ValueError, "4 and -1; expected 1 or more"),
    ("GCNConv", lambda: hm.GCNConv(4, 5, "left"), ValueError, "'left'; expected 'both'"),
    ("GCNConv.forward", lambda: hm.GCNConv(4, 5)(BLOCK, NARROW), ValueError, r"\(3, 2\); expected \[3, 4\]"),
    ("GCNConv.forward", lambda: hm.GCNConv(4, 5)(BLOCK, X, torch.ones(3)), ValueError, r"\(3,\); expected \[2\]"),
    ("GCNConv.forward", lambda: hm.GCNConv(4, 5)(BLOCK, X, ids(1, 1)), TypeError, "int64; expected a floating"),
    ("GCNConv.forward", lambda: hm.GCNConv(4, 5)(BLOCK, X, degrees=(ids(1), ids(1))), ValueError, r"degrees have shapes .*; expected"),
    ("GCNConv.forward", lambda: hm.GCNConv(4, 5, self_loop=True)(TALL, X[:1]), ValueError, "fewer sources than destinations"),
    ("GATConv", lambda: hm.GATConv(4, 5, 0), ValueError, "num_heads is 0; expected 1"),
    ("GATConv", lambda: hm.GATConv(4, 0, 1), ValueError, "4 and 0; expected 1 or more"),
    ("GATConv", lambda: hm.GATConv(4, 5, 1, feat_drop=1.5), ValueError, "1.5; expected a probability"),
    ("GATConv", lambda: hm.GATConv(4, 5, 1, attn_drop=-0.1), ValueError, "-0.1; expected a probability"),
    ("GATConv", lambda: hm.GATConv(4, 5, 1, attn_drop="0.1"), TypeError, "'0.1'; expected a probability"),
    ("GATConv.forward", lambda: hm.GATConv(4, 5, 1)(BLOCK, SHORT), ValueError, r"\(2, 4\); expected \[3, 4\]"),
    ("GATConv.forward", lambda: hm.GATConv(4, 5, 1)(BLOCK, X, attn_drop=0.1), TypeError, "attn_drop is a float; expected a function"),
    ("GATConv.forward", lambda: hm.GATConv(4, 5, 1)(BLOCK, X, X), ValueError, r"x_dst has shape \(3, 4\); expected \[2, 4\]"),
    ("GATConv.forward", lambda: hm.GATConv(4, 5, 1)(TALL, X[:1]), ValueError, "fewer sources than destinations"),
    ("GATConv.forward", lambda: hm.GATConv(4, 5, 1, self_loop=True)(BLOCK, X, SHORT), ValueError, "use self_loop=False"),
    ("RelGraphConv", lambda: rel(0), ValueError, "0 and 0 and 5; expected 1 or more"),
    ("RelGraphConv", lambda: rel({"a": 4}), ValueError, r"\['a'\]; expected the node types of all"),
    ("RelGraphConv", lambda: rel(etypes=[]), ValueError, r"\[\]; expected at least one"),
    ("RelGraphConv", lambda: rel(etypes=[ETYPE, ETYPE]), ValueError, "and each once"),
    ("RelGraphConv", lambda: rel(etypes=["a:b"]), ValueError, "'a:b'; expected three names"),
    ("RelGraphConv", lambda: rel(num_bases=0), ValueError, "num_bases is 0; expected 1"),
    ("RelGraphConv.forward", lambda: rel()({"a:y:b": BLOCK}, ROWS), ValueError, r"blocks has \['a:y:b'\]; expected some of"),
    ("RelGraphConv.forward", lambda: rel()(BLOCKS, {"c": X}), ValueError, r"x has \['c'\]; expected some of"),
    ("RelGraphConv.forward", lambda: rel()(BLOCKS, {"a": SHORT, "b": SHORT}), ValueError, "2 rows of node type 'a'; expected 3"),
    ("RelGraphConv.forward", lambda: rel()(BLOCKS, {"a": NARROW, "b": SHORT}), ValueError, r"\(3, 2\); expected \[rows, 4\]"),
    # ---------------------------------------------------------------------------------------------
    # Models
    ("SAGE", lambda: sage(num_layers=0), ValueError, "num_layers is 0; expected 1"),
    ("SAGE", lambda: sage(num_layers=1.5), TypeError, "num_layers is 1.5; expected an int"),
    ("SAGE", lambda: sage(in_size=0), ValueError, "0 and 5; expected 1 or more"),
    ("SAGE", lambda: sage(dropout=1.5), ValueError, "dropout is 1.5; expected a probability"),
    ("SAGE", lambda: sage(dropout=None), TypeError, "dropout is None; expected a probability"),
    ("SAGE.forward", lambda: sage()([], X), ValueError, "0 blocks for 1 layers; sample with one fanout"),
    ("SAGE.forward", lambda: sage()(BLOCK, X), TypeError, "blocks .* Block; expected a list"),
    ("SAGE.forward", lambda: sage()(None, X), TypeError, "blocks .* NoneType; expected a list"),
    ("SAGE.forward", lambda: sage()([BLOCK], SHORT), ValueError, r"\(2, 4\); expected \[3, 4\]"),
    ("SAGE.apply_layer", lambda: sage().apply_layer(0, BLOCK, NARROW), ValueError, r"\(3, 2\); expected \[3, 4\]"),
    ("SAGE.apply_layer", lambda: sage().apply_layer(1, BLOCK, X), IndexError, "layer 1 of 1|index 1 is out of range"),
    ("GCN", lambda: gcn(num_layers=0), ValueError, "num_layers is 0; expected 1"),
    ("GCN", lambda: gcn(norm="x"), ValueError, "'x'; expected 'both'"),
    ("GCN", lambda: gcn(dropout=-1), ValueError, "dropout is -1; expected a probability"),
    ("GCN.forward", lambda: gcn()([BLOCK, BLOCK], X), ValueError, "2 blocks for 1 layers"),
    ("GCN.forward", lambda: gcn()([BLOCK], SHORT), ValueError, r"\(2, 4\); expected \[3, 4\]"),
    ("GCN.apply_layer", lambda: gcn().apply_layer(0, BLOCK, SHORT), ValueError, r"\(2, 4\); expected \[3, 4\]"),
    ("GAT", lambda: gat(num_layers=0), ValueError, "num_layers is 0; expected 1"),
    ("GAT", lambda: gat(num_heads=0), ValueError, "num_heads is 0; expected 1"),
    ("GAT", lambda: gat(num_out_heads=0), ValueError, "heads is 0; expected 1"),
    ("GAT", lambda: gat(feat_drop=2), ValueError, "2; expected a probability"),
    ("GAT.forward", lambda: gat()([], X), ValueError, "0 blocks for 1 layers"),
    ("GAT.forward", lambda: gat()([BLOCK], NARROW), ValueError, r"\(3, 2\); expected \[3, 4\]"),
    ("GAT.apply_layer", lambda: gat().apply_layer(0, BLOCK, SHORT), ValueError, r"\(2, 4\); expected \[3, 4\]"),
    ("RGCN", lambda: rgcn(num_layers=0), ValueError, "num_layers is 0; expected 1"),
    ("RGCN", lambda: rgcn(etypes=["a"]), ValueError, "'a'; expected three names"),
    ("RGCN", lambda: rgcn(dropout=2), ValueError, "2; expected a probability"),
    ("RGCN.forward", lambda: rgcn()([], ROWS), ValueError, "0 blocks for 1 layers"),
    ("RGCN.apply_layer", lambda: rgcn().apply_layer(0, BLOCKS, {"a": SHORT}), ValueError, "2 rows of node type 'a'; expected 3"),
    # ---------------------------------------------------------------------------------------------
    # Links
    ("DotPredictor.forward", lambda: dot([1.0], LINKS), TypeError, "h is a list; expected a torch.Tensor"),
    ("DotPredictor.forward", lambda: dot(X[0], LINKS), ValueError, r"float32\[4\]; expected floating-point rows"),
    ("DotPredictor.forward", lambda: dot(WHOLE, LINKS), ValueError, "int64.*; expected floating-point rows"),
    ("DotPredictor.forward", lambda: dot(X, [[0, 1]]), TypeError, "links are a list; expected a torch.Tensor"),
    ("DotPredictor.forward", lambda: dot(X, LINKS.float()), TypeError, "float32; expected int32 or int64"),
    ("DotPredictor.forward", lambda: dot(X, LINKS.bool()), TypeError, "torch.bool; expected int32 or int64"),
    ("DotPredictor.forward", lambda: dot(X, ids(0, 1)), ValueError, r"\[2\]; expected \[n, 2\]"),
    ("DotPredictor.forward", lambda: dot(X, ids([0])), ValueError, r"\[1, 1\]; expected \[n, 2\]"),
    ("DotPredictor.forward", lambda: dot(X, ids([0, 3])), IndexError, r"link 0 is \[0, 3\]; expected positions in \[0, 3\)"),
    ("DotPredictor.forward", lambda: dot(X, ids([-1, 0])), IndexError, r"\[-1, 0\]; expected positions"),
    ("DotPredictor.forward", lambda: dot(X.half(), ids([0, 3])), IndexError, r"\[0, 3\]; expected positions in \[0, 3\)"),
    ("DotPredictor.forward", lambda: dot(X, LINKS.to("meta")), ValueError, "h is on cpu, links on meta; expected one device"),
    ("MLPPredictor", lambda: mlp(0, 8), ValueError, "0, 8 and 2; expected 1 or more"),
    ("MLPPredictor", lambda: mlp(4, 8, 0), ValueError, "4, 8 and 0; expected 1 or more"),
    ("MLPPredictor", lambda: mlp(4, 8.0), TypeError, "8.0; expected an int"),
    ("MLPPredictor", lambda: mlp("4", 8), TypeError, "'4'; expected an int"),
    ("MLPPredictor", lambda: mlp(4, 8, dropout=2), ValueError, "2; expected a probability"),
    ("MLPPredictor.forward", lambda: mlp(4, 8)(NARROW, LINKS), ValueError, "rows of 2 values; expected 4"),
    ("MLPPredictor.forward", lambda: mlp(4, 8)(None, LINKS), TypeError, "h is a NoneType; expected a torch.Tensor"),
    ("MLPPredictor.forward", lambda: mlp(4, 8)(X, ids([0, 3])), IndexError, "expected positions"),
    ("LinkPredictor", lambda: hm.LinkPredictor(5, dot), TypeError, "encoder is a int; expected a torch.nn.Module"),
    ("LinkPredictor", lambda: hm.LinkPredictor(sage(), None), TypeError, "decoder is a NoneType; expected a torch.nn.Module"),
    ("LinkPredictor.forward", lambda: pair([BLOCK], X, None), ValueError, "compacted_seeds is None"),
    ("LinkPredictor.forward", lambda: pair([BLOCK], X, [[0, 1]]), TypeError, "links are a list; expected a torch.Tensor"),
    ("LinkPredictor.forward", lambda: pair([BLOCK], X, ids([0, 2])), IndexError, r"\[0, 2\)"),
    ("LinkPredictor.forward", lambda: pair([BLOCK], X, {ETYPE: LINKS}), TypeError, "links come by type, .* Tensor; expected"),
    ("LinkPredictor.forward", lambda: typed_pair([BLOCKS], ROWS, LINKS), TypeError, "h is a dict; expected a torch.Tensor"),
    ("LinkPredictor.forward", lambda: typed_pair([BLOCKS], ROWS, {"a:x:c": LINKS}), KeyError, "no rows of 'c'"),
    ("LinkPredictor.forward", lambda: typed_pair([BLOCKS], ROWS, {ETYPE: [1]}), TypeError, "type 'a:x:b' are a list; expected a torch.Tensor"),
    ("LinkPredictor.forward", lambda: typed_pair([BLOCKS], ROWS, {ETYPE: ids(0, 1)}), ValueError, r"\[2\]; expected \[n, 2\]"),
    ("LinkPredictor.forward", lambda: typed_pair([BLOCKS], ROWS, {ETYPE: ids([0, 9])}), IndexError, "position 9 is outside the 2 rows"),
    ("sum_aggregate", lambda: total(5, X), TypeError, "block is a int; expected a Block"),
    ("sum_aggregate", lambda: total(BLOCK, [1.0]), TypeError, "x is a list; expected a torch.Tensor"),
    ("sum_aggregate", lambda: total(BLOCK, AWAY), ValueError, "x is on meta, .* on cpu; expected one device"),
    ("sum_aggregate", lambda: total(BLOCK, X, [1, 1]), TypeError, "edge_weight is a list; expected a torch.Tensor"),
    ("sum_aggregate", lambda: total(BLOCK, X, torch.tensor(1.0)), ValueError, r"\(\); expected"),
    ("mean_aggregate", lambda: mean(None, X), TypeError, "block is a NoneType; expected a Block"),
    ("mean_aggregate", lambda: mean(BLOCK, None), TypeError, "x is a NoneType; expected a torch.Tensor"),
    ("max_aggregate", lambda: most(X, BLOCK), TypeError, "block is a Tensor; expected a Block"),
    ("SAGEConv", lambda: hm.SAGEConv(4, 5.0), TypeError, "5.0; expected ints"),
    ("SAGEConv.forward", lambda: hm.SAGEConv(4, 5)(X, BLOCK), TypeError, "block is a Tensor; expected a Block"),
    ("SAGEConv.forward", lambda: hm.SAGEConv(4, 5)(BLOCK, [1.0]), TypeError, "x is a list; expected a torch.Tensor"),
    ("SAGEConv.forward", lambda: hm.SAGEConv(4, 5)(BLOCK, AWAY), ValueError, "x is on meta, .* on cpu; expected one device"),
    ("SAGEConv.forward", lambda: hm.SAGEConv(4, 5)(BLOCK, WHOLE), TypeError, "int64; expected a floating-point"),
    ("GCNConv", lambda: hm.GCNConv("4", 5), TypeError, "'4'.*; expected ints"),
    ("GCNConv.forward", lambda: hm.GCNConv(4, 5)(5, X), TypeError, "block is a int; expected a Block"),
    ("GCNConv.forward", lambda: hm.GCNConv(4, 5)(BLOCK, WHOLE), TypeError, "int64; expected a floating-point"),
    ("GCNConv.forward", lambda: hm.GCNConv(4, 5)(BLOCK, X, [1, 1]), TypeError, "edge_weight is a list; expected"),
    ("GCNConv.forward", lambda: hm.GCNConv(4, 5)(BLOCK, X, degrees=(-torch.ones(3), torch.ones(2))), ValueError, "degrees are negative somewhere, or no numbers"),
    ("GCNConv.forward", lambda: hm.GCNConv(4, 5)(BLOCK, X, degrees=5), TypeError, "degrees .*int; expected"),
    ("GATConv", lambda: hm.GATConv(4, 5, 1.5), TypeError, "num_heads is 1.5; expected an int"),
    ("GATConv.forward", lambda: hm.GATConv(4, 5, 1)(None, X), TypeError, "block is a NoneType; expected a Block"),
    ("GATConv.forward", lambda: hm.GATConv(4, 5, 1)(BLOCK, WHOLE), TypeError, "int64; expected a floating-point"),
    ("GATConv.forward", lambda: hm.GATConv(4, 5, 1)(BLOCK, X, [1]), TypeError, "x_dst is a list; expected a torch.Tensor"),
    ("RelGraphConv", lambda: rel(4.0), TypeError, "4.0; expected an int"),
    ("RelGraphConv", lambda: rel(etypes=ETYPE), TypeError, "'a:x:b'; expected a list of edge types"),
    ("RelGraphConv", lambda: rel(num_bases=1.5), TypeError, "num_bases is 1.5; expected an int"),
    ("RelGraphConv.forward", lambda: rel()(BLOCK, ROWS), TypeError, r"blocks .* Block; expected \{edge type"),
    ("RelGraphConv.forward", lambda: rel()(BLOCKS, X), TypeError, r"x .* Tensor; expected \{node type"),
    ("RelGraphConv.forward", lambda: rel()(BLOCKS, {"a": WHOLE, "b": SHORT}), TypeError, "int64; expected a floating-point"),
    ("SAGE", lambda: sage(out_size=None), TypeError, "None; expected ints"),
    ("SAGE.forward", lambda: sage()([BLOCKS], X), TypeError, "block is a dict; expected a Block"),
    ("GCN.forward", lambda: gcn()(None, X), TypeError, "NoneType; expected a list"),
    ("RGCN.forward", lambda: rgcn()([BLOCK], ROWS), TypeError, r"Block; expected \{edge type"),
    ("RGCN.forward", lambda: rgcn()([BLOCKS], X), TypeError, r"Tensor; expected \{node type"),
]  # fmt: skip
