"""GATConv and GAT against dense attention."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import hopline.pipes as hp
from hopline.models import GAT, GATConv, keyed_rng, layer_wise_inference
from tests.models.test_aggregate import (
    assert_same_with_gradients,
    blocks,
    edges_of,
    make_block,
    normal,
)


def dense_conv(conv, block, x, x_dst=None):
    """The paper's definition, edge by edge: all W h first, then scores, softmax, sum."""
    x_dst = x[: block.num_dst] if x_dst is None else x_dst
    h, h_dst = (torch.einsum("ni,hoi->nho", each, conv.weight) for each in (x, x_dst))
    edges = edges_of(block) + [(i, i) for i in range(block.num_dst) if conv.self_loop]
    out = []
    for i in range(block.num_dst):
        sources = [j for d, j in edges if d == i]
        if not sources:
            out.append(torch.zeros_like(conv.bias))
            continue
        scores = (h[sources] * conv.attn_src).sum(-1) + (h_dst[i] * conv.attn_dst).sum(-1)
        attention = F.leaky_relu(scores, conv.negative_slope).softmax(0)
        out.append((attention.unsqueeze(-1) * h[sources]).sum(0))
    empty = x.new_zeros((0, *conv.bias.shape))
    return (torch.stack(out) if out else empty) + conv.bias


def make_conv(*sizes, **settings):
    conv = GATConv(*sizes, **settings).double()
    torch.nn.init.normal_(conv.bias)
    return conv


@pytest.mark.parametrize("self_loop", [True, False])
@pytest.mark.parametrize("sum_first", [True, False])
@given(block=blocks(), heads=st.integers(1, 3))
def test_conv_and_its_gradients(self_loop, sum_first, block, heads):
    conv = make_conv(3, 4, heads, self_loop=self_loop)
    conv._sum_first = lambda block: sum_first  # both orders, whatever is cheaper
    x = normal(block.num_src, 3, requires_grad=True)
    got = conv(block, x)
    assert got.shape == (block.num_dst, heads, 4)
    assert_same_with_gradients(got, dense_conv(conv, block, x), (x, *conv.parameters()))


@pytest.mark.parametrize("sum_first", [True, False])
def test_gradcheck_of_a_layer(sum_first):
    conv = make_conv(3, 2, 2, self_loop=True)
    conv._sum_first = lambda block: sum_first
    block = make_block([(0, 0), (0, 3), (0, 3), (2, 1)], 4, 3)
    x = normal(4, 3, requires_grad=True)
    names = [name for name, _ in conv.named_parameters()]

    def call(x, *values):
        return torch.func.functional_call(
            conv, dict(zip(names, values, strict=True)), (block, x), strict=True
        )

    assert torch.autograd.gradcheck(call, (x, *conv.parameters()))


def test_bipartite_block_with_rows_of_its_own_for_destinations():
    block = make_block([(0, 0), (2, 1), (2, 1), (2, 0)], 2, 4)
    conv = make_conv(3, 2, 2)
    x, x_dst = normal(2, 3, requires_grad=True), normal(4, 3).flip(0).requires_grad_()
    want = dense_conv(conv, block, x, x_dst)
    assert_same_with_gradients(conv(block, x, x_dst), want, (x, x_dst, *conv.parameters()))


def test_the_cheaper_order_is_taken():
    # Many sources a destination: mapping all of them would cost more than it saves.
    many_sources = make_block([(d, 10 * d + k) for d in range(100) for k in range(10)], 1000, 100)
    assert GATConv(100, 64, 4)._sum_first(many_sources)
    few_sources = make_block([(d, 0) for d in range(10) for _ in range(50)], 10, 10)
    assert not GATConv(100, 16, 4)._sum_first(few_sources)


@pytest.mark.parametrize("edges", [[], [(0, 1)]])
def test_destinations_without_edges_get_the_bias(edges):
    """A graph's own self loop may be all that a node has, and exclusion may take it away."""
    conv = make_conv(3, 2, 2)
    x = normal(4, 3, requires_grad=True)
    out = conv(make_block(edges, 4, 3), x)
    torch.testing.assert_close(out[1:], conv.bias.expand(2, 2, 2))
    grads = torch.autograd.grad(out.square().sum(), (x, *conv.parameters()))
    assert all(grad.isfinite().all() for grad in grads)


def test_large_features_do_not_overflow():
    conv = GATConv(3, 2, 2)
    block = make_block([(0, 0), (0, 1), (1, 1)], 2, 2)
    out = conv(block, 1e20 * torch.randn(2, 3, generator=torch.Generator().manual_seed(1)))
    assert out.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_lower_precision(dtype):
    block = make_block([(d, s) for d in range(9) for s in range(d, 20, 2)], 20, 10)
    conv, x = make_conv(6, 4, 2, self_loop=True), normal(20, 6)
    want = dense_conv(conv, block, x)
    torch.testing.assert_close(conv.float()(block, x), want.float())
    stored = x.to(dtype)
    assert conv(block, stored).dtype == torch.float32
    torch.testing.assert_close(conv(block, stored), conv(block, stored.float()))
    got = conv.to(dtype)(block, x)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), want, rtol=0.1, atol=0.1)


def test_dropout_of_attention_and_features():
    block = make_block([(d, s) for d in range(50) for s in range(50)], 50, 50)
    conv = GATConv(3, 2, 1, attn_drop=0.5)
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(1))
    with keyed_rng((1, 2, 3), "cpu"):
        first = conv(block, x)
    with keyed_rng((1, 2, 3), "cpu"):
        assert torch.equal(conv(block, x), first)
    plain = conv.eval()(block, x)
    assert not torch.allclose(first, plain, rtol=1e-3)
    torch.testing.assert_close(
        plain.double(), dense_conv(conv.double(), block, x.double()), atol=1e-5, rtol=1e-4
    )
    everything = GATConv(3, 2, 1, feat_drop=1.0)
    assert torch.equal(everything(block, x), torch.zeros(50, 1, 2))


def test_model_equals_its_layers():
    model = GAT(4, 8, 3, num_layers=2, num_heads=2, num_out_heads=3).double().eval()
    outer, inner = make_block([(0, 2), (1, 3), (1, 0)], 4, 2), make_block([(0, 1)], 2, 1)
    x = normal(4, 4)
    hidden = F.elu(dense_conv(model.layers[0], outer, x).flatten(1))
    want = dense_conv(model.layers[1], inner, hidden).mean(1)
    torch.testing.assert_close(model([outer, inner], x), want)


def test_on_all_neighbours_it_equals_the_whole_graph():
    dataset = hp.planted_partition(60, 4, 6, 8, seed=3)
    model = GAT(8, 4, 4, num_layers=2).double().eval()
    chain = hp.ItemSampler(hp.ItemSet(torch.arange(60), "seeds"), 60)
    (whole,) = chain.sample_neighbor(dataset.graph, [-1])
    x = dataset.feature.read("node", None, "feat").double()
    expected = model([whole.blocks[0]] * 2, x)
    chain = hp.ItemSampler(hp.ItemSet(torch.arange(60), "seeds"), 7, shuffle=True, seed=1)
    for minibatch in chain.sample_neighbor(dataset.graph, [-1, -1]):
        got = model(minibatch.blocks, x[minibatch.input_nodes.long()])
        torch.testing.assert_close(got, expected[minibatch.seeds])
    got = layer_wise_inference(model, dataset.graph, x, batch_size=7)
    torch.testing.assert_close(got, expected.detach())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: GATConv(0, 2, 1), "1 or more"),
        (lambda: GATConv(3, 2, 0), "num_heads is 0"),
        (lambda: GATConv(3, 2, 1, attn_drop=-0.1), "-0.1"),
        (lambda: GAT(3, 4, 2, num_layers=0), "1 or more"),
        (lambda: GAT(3, 4, 2, num_heads=0), "num_heads is 0"),
        (lambda: GAT(3, 4, 2)([], torch.ones(2, 3)), "0 blocks for 2 layers"),
        (lambda: GATConv(3, 2, 1)(make_block([], 2, 1), torch.ones(2, 4)), r"\[2, 3\]"),
        (
            lambda: GATConv(3, 2, 1)(make_block([], 2, 3), torch.ones(2, 3)),
            "give their rows as x_dst",
        ),
        (
            lambda: GATConv(3, 2, 1)(make_block([], 2, 3), torch.ones(2, 3), torch.ones(2, 3)),
            r"x_dst has shape \(2, 3\); expected \[3, 3\]",
        ),
        (
            lambda: GATConv(3, 2, 1, self_loop=True)(
                make_block([], 2, 1), torch.ones(2, 3), torch.ones(1, 3)
            ),
            "use self_loop=False",
        ),
        (
            lambda: GATConv(3, 2, 1, self_loop=True)(make_block([], 2, 3), torch.ones(2, 3)),
            "fewer sources than destinations",
        ),
    ],
)
def test_unfit_arguments(call, words):
    with pytest.raises(ValueError, match=words):
        call()
