"""SAGEConv and SAGE against plain matrix products; dropout and its key."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given

import hopline.pipes as hp
from hopline.models import SAGE, SAGEConv, keyed_rng
from hopline.models.dropout import Dropout
from tests.models.test_aggregate import blocks, dense_mean, make_block


def dense_conv(conv, block, x):
    mean = dense_mean(block, x)
    out = x[: block.num_dst] @ conv.fc_self.weight.T + mean @ conv.fc_neigh.weight.T
    return out if conv.fc_self.bias is None else out + conv.fc_self.bias


@pytest.mark.parametrize("sizes", [(3, 5), (5, 3)])
@pytest.mark.parametrize("sum_first", [True, False])
@given(block=blocks())
def test_conv_and_its_gradients(sizes, sum_first, block):
    conv = SAGEConv(*sizes).double()
    conv._sum_first = lambda block: sum_first  # both orders, whatever is cheaper
    x = torch.randn(block.num_src, sizes[0], dtype=torch.float64, requires_grad=True)
    torch.nn.init.normal_(conv.fc_self.bias)
    inputs = (x, *conv.parameters())
    got, want = conv(block, x), dense_conv(conv, block, x)
    torch.testing.assert_close(got, want)
    weight = torch.randn_like(want)
    for a, b in zip(
        torch.autograd.grad((got * weight).sum(), inputs),
        torch.autograd.grad((want * weight).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


def test_gradcheck_of_a_layer():
    conv = SAGEConv(3, 2).double()
    block = make_block([(0, 0), (0, 3), (0, 3), (2, 1)], 4, 3)
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: conv(block, x), (x,))


def test_the_cheaper_order_is_taken():
    few_sources = make_block([(d, 0) for d in range(10) for _ in range(50)], 10, 10)
    assert SAGEConv(16, 64)._sum_first(few_sources)
    assert not SAGEConv(64, 16)._sum_first(few_sources)
    # Many sources a destination: mapping all of them first would cost more than it saves.
    many_sources = make_block([(0, s) for s in range(1000)], 1000, 1)
    assert SAGEConv(64, 16)._sum_first(many_sources)


def test_no_bias():
    conv = SAGEConv(3, 2, bias=False)
    assert [name for name, _ in conv.named_parameters()] == ["fc_self.weight", "fc_neigh.weight"]
    block = make_block([(0, 1)], 2, 1)
    x = torch.randn(2, 3)
    torch.testing.assert_close(conv(block, x), dense_conv(conv, block, x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_stored_features_are_converted_to_the_weights_dtype(dtype):
    conv, block = SAGEConv(3, 2), make_block([(0, 1)], 2, 1)
    x = torch.randn(2, 3).to(dtype)
    assert conv(block, x).dtype == torch.float32
    torch.testing.assert_close(conv(block, x), dense_conv(conv, block, x.float()))


def test_sage_equals_its_layers():
    model = SAGE(4, 8, 3, num_layers=2, dropout=0.5).eval()
    outer, inner = make_block([(0, 2), (1, 3), (1, 0)], 4, 2), make_block([(0, 1)], 2, 1)
    x = torch.randn(4, 4)
    hidden = torch.relu(dense_conv(model.layers[0], outer, x))
    torch.testing.assert_close(model([outer, inner], x), dense_conv(model.layers[1], inner, hidden))


def test_sage_on_sampled_neighbours_equals_the_whole_graph():
    dataset = hp.planted_partition(120, 4, 6, 8, seed=3)
    model = SAGE(8, 16, 4, num_layers=3).double().eval()
    everything = torch.arange(120)
    chain = hp.ItemSampler(hp.ItemSet(everything, "seeds"), 120)
    (whole,) = chain.sample_neighbor(dataset.graph, [-1, -1, -1])
    x = dataset.feature.read("node", None, "feat").double()
    expected = x
    adjacency = whole.blocks[-1]
    for i, layer in enumerate(model.layers):
        expected = dense_conv(layer, adjacency, expected)
        expected = torch.relu(expected) if i < 2 else expected
    chain = hp.ItemSampler(hp.ItemSet(everything, "seeds"), 7, shuffle=True, seed=1)
    for minibatch in chain.sample_neighbor(dataset.graph, [-1, -1, -1]):
        got = model(minibatch.blocks, x[minibatch.input_nodes.long()])
        torch.testing.assert_close(got, expected[minibatch.seeds])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: SAGEConv(3, 2, "lstm"), "'lstm'; expected 'mean'"),
        (lambda: SAGEConv(0, 2), "1 or more"),
        (lambda: SAGE(3, 4, 2, num_layers=0), "1 or more"),
        (lambda: SAGE(3, 4, 2, dropout=1.5), "1.5"),
        (lambda: SAGE(3, 4, 2)([], torch.ones(2, 3)), "0 blocks for 3 layers"),
        (lambda: SAGEConv(3, 2)(make_block([], 2, 1), torch.ones(2, 4)), r"\[2, 3\]"),
    ],
)
def test_unfit_arguments(call, words):
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.parametrize("p", [0.1, 0.5, 0.75])
def test_dropout_keeps_the_mean_and_the_gradient_follows(p):
    x = torch.ones(200_003, requires_grad=True)
    with keyed_rng((1, 2, 3), "cpu"):
        out = Dropout(p)(x)
    zeros = (out == 0).double().mean().item()
    assert abs(zeros - p) < 5 * (p * (1 - p) / len(x)) ** 0.5
    kept = out[out != 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / (1 - p)))
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(grad, out)


def test_dropout_at_the_ends_and_in_eval_mode():
    x = torch.randn(50, 3)
    assert torch.equal(Dropout(0.0)(x), x)
    assert torch.equal(Dropout(1.0)(x), torch.zeros_like(x))
    assert torch.equal(Dropout(0.5).eval()(x), x)
    assert Dropout(0.5)(torch.empty(0, 4)).shape == (0, 4)


def test_keyed_rng_depends_on_the_key_alone_and_leaves_no_trace():
    before = torch.get_rng_state()
    draws = {}
    for key in ((7, 0, 3), (7, 0, 4), (7, 1, 3), (8, 0, 3), (7, 0, 3)):
        with keyed_rng(key, "cpu"):
            drawn = tuple(torch.rand(3).tolist())
        assert draws.setdefault(key, drawn) == drawn
    assert len(set(draws.values())) == 4
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(KeyError), keyed_rng((7, 0, 3), "cpu"):
        raise KeyError
    assert torch.equal(torch.get_rng_state(), before)


def test_without_a_key_torch_draws_as_always():
    torch.manual_seed(5)
    plain = torch.rand(3)
    torch.manual_seed(5)
    with keyed_rng(None, "cpu"):
        assert torch.equal(torch.rand(3), plain)
