"""GCNConv and GCN against dense matrices, on blocks and on the whole graph."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from torchmetrics.classification import MulticlassAccuracy

import hopline.pipes as hp
from hopline.models import GCN, GCNConv, evaluate, layer_wise_inference, train_epoch
from tests.models.test_aggregate import (
    assert_same_with_gradients,
    blocks,
    dense_matrix,
    make_block,
    normal,
)

NORMS = pytest.mark.parametrize("norm", ["both", "right", "none"])
SELF = pytest.mark.parametrize("self_loop", [True, False])


def dense_conv(conv, block, x, edge_weight=None):
    """The definition: degrees from the 0-1 matrix with self edges, messages by the weighted one."""
    own = torch.eye(block.num_dst, block.num_src, dtype=x.dtype) * conv.self_loop
    counts = dense_matrix(block) + own
    matrix = dense_matrix(block, edge_weight) + own
    into, out_of = counts.sum(1, keepdim=True), counts.sum(0, keepdim=True)
    if conv.norm == "both":
        matrix = matrix / (into.clamp(min=1) * out_of.clamp(min=1)).sqrt()
    elif conv.norm == "right":
        matrix = matrix / into.clamp(min=1)
    out = matrix @ x @ conv.weight.T
    return out if conv.bias is None else out + conv.bias


def make_conv(*sizes, **settings):
    conv = GCNConv(*sizes, **settings).double()
    torch.nn.init.normal_(conv.bias)
    return conv


@NORMS
@SELF
@pytest.mark.parametrize("sum_first", [True, False])
@given(block=blocks())
def test_conv_and_its_gradients(norm, self_loop, sum_first, block):
    conv = make_conv(3, 4, norm=norm, self_loop=self_loop)
    conv._sum_first = lambda block: sum_first
    x = normal(block.num_src, 3, requires_grad=True)
    weight = normal(block.num_edges(), requires_grad=True)
    inputs = (x, *conv.parameters())
    assert_same_with_gradients(conv(block, x), dense_conv(conv, block, x), inputs)
    got, want = conv(block, x, weight), dense_conv(conv, block, x, weight)
    assert_same_with_gradients(got, want, (weight, *inputs))


@NORMS
@SELF
def test_gradcheck_of_a_layer(norm, self_loop):
    conv = make_conv(3, 2, norm=norm, self_loop=self_loop)
    block = make_block([(0, 0), (0, 3), (0, 3), (2, 1)], 4, 3)
    x, weight = normal(4, 3, requires_grad=True), normal(4, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, w: conv(block, x, w), (x, weight))


def test_the_definition_in_figures():
    """Two edges into 0, from 1 of out-degree 2 and 2 of out-degree 1; row 2 is isolated."""
    block = make_block([(0, 1), (0, 2), (1, 1)], 3, 3)
    conv = GCNConv(1, 1, bias=False)
    torch.nn.init.ones_(conv.weight)
    x = torch.tensor([[1.0], [10.0], [100.0]])
    want = [[10 / 4**0.5 + 100 / 2**0.5], [10 / 2**0.5], [0.0]]
    torch.testing.assert_close(conv(block, x), torch.tensor(want))


def test_float32_and_half():
    block = make_block([(d, s) for d in range(9) for s in range(d, 20, 2)], 20, 10)
    conv = make_conv(6, 4, self_loop=True)
    x = normal(20, 6)
    want = dense_conv(conv, block, x)
    torch.testing.assert_close(conv.float()(block, x), want.float())
    for dtype in (torch.float16, torch.bfloat16):
        stored = x.to(dtype)
        assert conv(block, stored).dtype == torch.float32
        torch.testing.assert_close(conv(block, stored), conv(block, stored.float()))
    got = conv.bfloat16()(block, x)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.double(), want, rtol=0.05, atol=0.05)


def test_half_precision_does_not_overflow_in_the_sum():
    block = make_block([(0, s) for s in range(4000)], 4000, 1)
    conv = GCNConv(1, 1, "right").half()
    torch.nn.init.ones_(conv.weight)
    torch.testing.assert_close(conv(block, torch.full((4000, 1), 100.0)).item(), 100.0)


def whole_graph():
    """A block of all edges of an undirected graph, its degrees and features."""
    dataset = hp.planted_partition(120, 4, 6, 8, seed=3)
    chain = hp.ItemSampler(hp.ItemSet(torch.arange(120), "seeds"), 120)
    (minibatch,) = chain.sample_neighbor(dataset.graph, [-1])
    (block,) = minibatch.blocks
    x = dataset.feature.read("node", None, "feat").double()
    return dataset.graph, block, block.in_degrees(), x


@NORMS
@SELF
def test_with_degrees_all_neighbours_equal_the_whole_graph(norm, self_loop):
    graph, whole, degrees, x = whole_graph()
    matrix = dense_matrix(whole)
    torch.testing.assert_close(matrix, matrix.T, msg="the test wants an undirected graph")
    model = GCN(8, 16, 4, num_layers=3, norm=norm, self_loop=self_loop).double().eval()
    expected = model([whole] * 3, x)  # degrees in the whole graph are those of its block
    chain = hp.ItemSampler(hp.ItemSet(torch.arange(120), "seeds"), 25, shuffle=True, seed=1)
    differs = False
    for minibatch in chain.sample_neighbor(graph, [-1, -1, -1]):
        nodes = minibatch.input_nodes.long()
        got = model(minibatch.blocks, x[nodes], degrees[nodes])
        torch.testing.assert_close(got, expected[minibatch.seeds])
        plain = model(minibatch.blocks, x[nodes])
        differs |= not torch.allclose(plain, expected[minibatch.seeds])
    assert differs == (norm == "both"), "out-degrees of a block are not those of the graph"


@NORMS
@SELF
def test_inference_over_all_nodes_equals_the_whole_graph(norm, self_loop):
    graph, whole, _, x = whole_graph()
    model = GCN(8, 16, 4, num_layers=2, norm=norm, self_loop=self_loop).double().eval()
    got = layer_wise_inference(model, graph, x, batch_size=7)
    torch.testing.assert_close(got, model([whole] * 2, x).detach())


@NORMS
@SELF
def test_with_degrees_sampling_is_right_on_average(norm, self_loop):
    graph, whole, degrees, x = whole_graph()
    conv = make_conv(8, 4, norm=norm, self_loop=self_loop)
    want = conv(whole, x, degrees=(degrees, degrees))
    torch.testing.assert_close(want, dense_conv(conv, whole, x))
    samples = []
    for seed in range(60):
        sampler = hp.ItemSampler(hp.ItemSet(torch.arange(120), "seeds"), 120, seed=seed)
        (minibatch,) = sampler.sample_neighbor(graph, [2])
        (block,), nodes = minibatch.blocks, minibatch.input_nodes.long()
        ends = (degrees[nodes], degrees[minibatch.seeds])
        samples.append(conv(block, x[nodes], degrees=ends).detach())
    samples = torch.stack(samples)
    error = (samples.mean(0) - want).abs()
    assert (error < 5 * samples.std(0) / len(samples) ** 0.5 + 1e-9).all()


def test_bipartite_block_with_fewer_sources_than_destinations():
    block = make_block([(0, 0), (2, 1), (2, 1)], 2, 4)
    conv, x = make_conv(3, 2), normal(2, 3)
    torch.testing.assert_close(conv(block, x), dense_conv(conv, block, x))
    with pytest.raises(ValueError, match="fewer sources than destinations"):
        make_conv(3, 2, self_loop=True)(block, x)


def test_model_equals_its_layers():
    model = GCN(4, 8, 3, num_layers=2, dropout=0.5).double().eval()
    outer, inner = make_block([(0, 2), (1, 3), (1, 0)], 4, 2), make_block([(0, 1)], 2, 1)
    x = normal(4, 4)
    hidden = torch.relu(dense_conv(model.layers[0], outer, x))
    want = dense_conv(model.layers[1], inner, hidden)
    torch.testing.assert_close(model([outer, inner], x), want)


@pytest.mark.parametrize("edges", [[], [(0, 1)]])
def test_destinations_without_edges_are_legal(edges):
    """A graph's own self loop may be all that a node has, and exclusion may take it away."""
    conv = make_conv(3, 2)
    x = normal(4, 3, requires_grad=True)
    out = conv(make_block(edges, 4, 3), x)
    torch.testing.assert_close(out[1:], conv.bias.expand(2, 2))
    grads = torch.autograd.grad(out.square().sum(), (x, *conv.parameters()))
    assert all(grad.isfinite().all() for grad in grads)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: GCNConv(3, 2, "left"), "'left'; expected 'both'"),
        (lambda: GCNConv(0, 2), "1 or more"),
        (lambda: GCN(3, 4, 2, num_layers=0), "1 or more"),
        (lambda: GCN(3, 4, 2, dropout=1.5), "1.5"),
        (lambda: GCN(3, 4, 2)([], torch.ones(2, 3)), "0 blocks for 2 layers"),
        (lambda: GCNConv(3, 2)(make_block([], 2, 1), torch.ones(2, 4)), r"\[2, 3\]"),
        (
            lambda: GCNConv(3, 2)(make_block([], 2, 1), torch.ones(2, 3), torch.ones(5)),
            r"\(5,\); expected \[0\]",
        ),
        (
            lambda: GCNConv(3, 2)(
                make_block([], 2, 1), torch.ones(2, 3), degrees=(torch.ones(2), torch.ones(2))
            ),
            r"\[\(2,\), \(2,\)\]; expected \[\(2,\), \(1,\)\]",
        ),
    ],
)
def test_unfit_arguments(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_accuracy_on_cora(test_data, tmp_path):
    """The paper reports 0.815 with early stopping; sampled with all neighbours, fewer epochs."""
    dataset = hp.OnDiskDataset(test_data / "cora", processed_path=tmp_path / "cora").load()
    task = dataset.tasks[0]

    def loader(items, shuffle):
        chain = hp.ItemSampler(items, 140 if shuffle else 500, shuffle=shuffle, seed=1)
        chain = chain.sample_neighbor(dataset.graph, [-1, -1])
        return hp.DataLoader(chain.fetch_feature(dataset.feature, node_feature_keys=["feat"]))

    torch.manual_seed(0)
    model = GCN(1433, 16, 7, dropout=0.5)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02, weight_decay=5e-4)
    train = loader(task.train_set, True)
    degrees = torch.diff(dataset.graph.csc_indptr)

    def forward(model, minibatch):
        x = minibatch.node_features["feat"]
        x = x / x.sum(1, keepdim=True).clamp(min=1)
        return model(minibatch.blocks, x, degrees[minibatch.input_nodes.long()])

    for _ in range(60):
        train_epoch(model, train, optimizer, F.cross_entropy, forward=forward)
    metric = MulticlassAccuracy(7, average="micro")
    assert evaluate(model, loader(task.test_set, False), metric, forward=forward) >= 0.79
