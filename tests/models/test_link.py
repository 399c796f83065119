"""Link decoders against plain products in float64, with their gradients; LinkPredictor."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hopline.pipes as hp
from hopline.models import (
    SAGE,
    DotPredictor,
    LinkMetrics,
    LinkPredictor,
    MLPPredictor,
    evaluate_links,
    forward_links,
    train_epoch,
)
from tests.models.test_aggregate import make_block


@st.composite
def rows_and_links(draw, dtype=torch.float64):
    """Rows, and links of 2 to 4 ends among them; ends repeat, also within a link."""
    rows = draw(st.integers(1, 6))
    ends = draw(st.integers(2, 4))
    end = st.integers(0, rows - 1)
    link = st.tuples(*[end] * ends)
    links = draw(st.lists(link, max_size=12))
    kind = draw(st.sampled_from([torch.int32, torch.int64]))
    width = draw(st.integers(1, 9))
    h = torch.randn(rows, width, dtype=dtype, requires_grad=True)
    return h, torch.tensor(links, dtype=kind).view(-1, ends)


def dense_products(h, links):
    """By one-hot matrices, so that gradients come from matrix products."""
    product = torch.ones(len(links), h.shape[1], dtype=h.dtype)
    for column in links.long().T:
        product = product * (torch.eye(len(h), dtype=h.dtype)[column] @ h)
    return product


def compare(got, want, inputs):
    torch.testing.assert_close(got, want)
    weight = torch.randn_like(want)
    for a, b in zip(
        torch.autograd.grad((got * weight).sum(), inputs),
        torch.autograd.grad((want * weight).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


@given(example=rows_and_links())
def test_dot_and_its_gradient(example):
    h, links = example
    got = DotPredictor()(h, links)
    assert got.shape == (len(links),)
    compare(got, dense_products(h, links).sum(1), (h,))


@pytest.mark.parametrize("num_layers", [1, 3])
@given(example=rows_and_links())
def test_mlp_and_its_gradients(num_layers, example):
    h, links = example
    decoder = MLPPredictor(h.shape[1], 5, num_layers).double()
    want = dense_products(h, links)
    for i, layer in enumerate(decoder.layers):
        want = (torch.relu(want) if i else want) @ layer.weight.T + layer.bias
    compare(decoder(h, links), want.squeeze(1), (h, *decoder.parameters()))


def test_gradcheck_with_repeated_rows():
    h = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    links = torch.tensor([[0, 0], [0, 1], [1, 0], [3, 0], [3, 0]])
    assert torch.autograd.gradcheck(lambda h: DotPredictor()(h, links), (h,))
    decoder = MLPPredictor(3, 4).double()
    assert torch.autograd.gradcheck(lambda h: decoder(h, links), (h,))


def test_nothing_of_the_size_of_links_times_width_is_kept_for_the_gradient():
    h, links = torch.randn(10, 64, requires_grad=True), torch.randint(0, 10, (1000, 2))
    kept = []

    def keep(tensor):
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        DotPredictor()(h, links).sum()
    assert kept
    assert max(kept) <= 2000


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_takes_torchs_own_operations(dtype):
    h = torch.randn(5, 8).to(dtype).requires_grad_()
    links = torch.tensor([[0, 1], [4, 4], [1, 0]], dtype=torch.int32)
    got, want = DotPredictor()(h, links), dense_products(h.float(), links).sum(1)
    assert got.dtype == dtype
    torch.testing.assert_close(got.float(), want, rtol=0.05, atol=0.05)
    (grad,) = torch.autograd.grad(got.sum(), h)
    (dense,) = torch.autograd.grad(want.sum(), h)
    torch.testing.assert_close(grad, dense, rtol=0.05, atol=0.05)
    assert MLPPredictor(8, 4)(h, links).dtype == torch.float32


def test_rows_that_are_not_contiguous_and_no_rows():
    h = torch.randn(4, 6).T
    links = torch.tensor([[5, 0], [1, 2]]).T.contiguous().T
    torch.testing.assert_close(DotPredictor()(h, links), (h[links[:, 0]] * h[links[:, 1]]).sum(1))
    none = torch.empty(0, 2, dtype=torch.int64)
    for rows in (h, torch.empty(0, 4)):
        assert DotPredictor()(rows, none).shape == (0,)
        assert MLPPredictor(4, 3)(rows, none).shape == (0,)


def test_dropout_is_between_layers_and_in_training_alone():
    h, links = torch.randn(3, 4), torch.tensor([[0, 1]] * 50)
    decoder = MLPPredictor(4, 16, dropout=0.5)
    assert len(decoder(h, links).unique()) > 1
    scores = decoder.eval()(h, links)
    torch.testing.assert_close(scores, scores[0].expand(50))  # a product may round rows unlike


@pytest.mark.parametrize("make", [DotPredictor, lambda: MLPPredictor(3, 4)])
@pytest.mark.parametrize(
    ("h", "links", "kind", "words"),
    [
        (torch.ones(2, 3), torch.tensor([[0, 1], [0, 2]]), IndexError, r"link 1 is \[0, 2\].*2\)"),
        (torch.ones(2, 3), torch.tensor([[-1, 0]]), IndexError, "compacted_seeds"),
        (torch.ones(0, 3), torch.tensor([[0, 0]]), IndexError, "link 0"),
        (torch.ones(2, 3), torch.tensor([[0.0, 1.0]]), TypeError, "float32; expected int32"),
        (torch.ones(2, 3), torch.tensor([0, 1]), ValueError, r"\[2\]; expected \[n, 2\]"),
        (torch.ones(2, 3), torch.tensor([[0], [1]]), ValueError, r"\[2, 1\]"),
        (torch.ones(2, 3).long(), torch.tensor([[0, 1]]), ValueError, "floating-point rows"),
        (torch.ones(3), torch.tensor([[0, 1]]), ValueError, r"\[3\]"),
    ],
)
def test_unfit_rows_and_links(make, h, links, kind, words):
    with pytest.raises(kind, match=words):
        make()(h, links)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: MLPPredictor(0, 3), "0, 3 and 2"),
        (lambda: MLPPredictor(3, 3, 0), "3, 3 and 0"),
        (lambda: MLPPredictor(3, 3, dropout=2.0), "dropout is 2"),
        (lambda: MLPPredictor(3, 3)(torch.ones(1, 2), torch.tensor([[0, 0]])), "2 values"),
    ],
)
def test_unfit_sizes(call, words):
    with pytest.raises(ValueError, match=words):
        call()


# -------------------------------------------------------------------------------------------------
# Encoder and decoder


def test_predictor_is_encoder_and_decoder():
    block = make_block([(0, 2), (1, 0), (1, 2)], 3, 2)
    x, links = torch.randn(3, 4), torch.tensor([[0, 1], [1, 1]])
    encoder, decoder = SAGE(4, 8, 6, num_layers=1), MLPPredictor(6, 5)
    model = LinkPredictor(encoder, decoder)
    want = decoder(encoder([block], x), links)
    assert torch.equal(model([block], x, links), want)
    want.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    minibatch = hp.MiniBatch(node_features={"feat": x}, compacted_seeds=links)
    minibatch.sampled_subgraphs = [
        hp.SampledSubgraph(
            hp.CSCFormatBase(block.indptr, block.indices), torch.arange(2), torch.arange(3), None
        )
    ]
    minibatch.sampled_subgraphs[0].original_edge_ids = torch.arange(3)
    assert torch.equal(forward_links(model, minibatch), want)
    with pytest.raises(ValueError, match="compacted_seeds is None"):
        model([block], x, None)


class Rows(torch.nn.Module):
    """An encoder that gives what it gets."""

    def forward(self, blocks, x):
        return x


def test_types_share_a_decoder_and_each_column_is_of_its_own_type():
    h = {"user": torch.randn(3, 4, requires_grad=True), "item": torch.randn(2, 4)}
    links = {
        "user:buys:item": torch.tensor([[2, 0], [0, 1]], dtype=torch.int32),
        "item:like:item": torch.tensor([[0, 1]]),
        "user:knows:user": torch.empty(0, 2, dtype=torch.int64),
    }
    scores = LinkPredictor(Rows(), DotPredictor())(None, h, links)
    assert list(scores) == list(links)
    user, item = h["user"], h["item"]
    want = torch.stack([user[2] @ item[0], user[0] @ item[1]])
    torch.testing.assert_close(scores["user:buys:item"], want)
    torch.testing.assert_close(scores["item:like:item"], (item[0] @ item[1]).view(1))
    assert scores["user:knows:user"].shape == (0,)
    compare(scores["user:buys:item"], want, (user,))
    assert LinkPredictor(Rows(), DotPredictor())(None, h, {}) == {}


def test_hyperlinks_by_type():
    h = {"a": torch.randn(2, 3), "b": torch.randn(2, 3), "c": torch.randn(2, 3)}
    links = {"c:a:b": torch.tensor([[1, 0, 1]])}
    (scores,) = LinkPredictor(Rows(), DotPredictor())(None, h, links).values()
    torch.testing.assert_close(scores, (h["c"][1] * h["a"][0] * h["b"][1]).sum().view(1))


def test_links_of_unfit_types():
    h = {"user": torch.ones(3, 4), "item": torch.ones(2, 4)}
    model = LinkPredictor(Rows(), DotPredictor())
    with pytest.raises(KeyError, match="no rows of 'shop'"):
        model(None, h, {"user:at:shop": torch.tensor([[0, 0]])})
    with pytest.raises(IndexError, match="position 2 is outside the 2 rows of 'item'"):
        model(None, h, {"user:buys:item": torch.tensor([[2, 2]])})
    with pytest.raises(IndexError, match="position -1"):
        model(None, h, {"item:of:user": torch.tensor([[-1, 0]])})


# -------------------------------------------------------------------------------------------------
# In a chain


@pytest.mark.parametrize("make", [DotPredictor, lambda: MLPPredictor(16, 16)])
def test_learns_links_of_a_planted_graph(make):
    dataset = hp.planted_partition(200, 4, 8, 12, homophily=1.0, feature_noise=0.3, seed=5)
    graph = dataset.graph
    ends = torch.arange(200).repeat_interleave(graph.csc_indptr.diff())
    links = torch.stack((graph.indices.long(), ends), dim=1)

    def loader(rows, ratio):
        chain = hp.ItemSampler(hp.ItemSet(rows, names="seeds"), 128, shuffle=True, seed=2)
        chain = chain.sample_uniform_negative(graph, ratio).sample_neighbor(graph, [5, 5])
        chain = chain.exclude_seed_edges(include_reverse_edges=True)
        return hp.DataLoader(chain.fetch_feature(dataset.feature, ["feat"]))

    torch.manual_seed(0)
    model = LinkPredictor(SAGE(12, 16, 16, num_layers=2, dropout=0.0), make())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    training, held_out = loader(links[::2], 1), loader(links[1::2], 4)
    loss_fn = torch.nn.functional.binary_cross_entropy_with_logits
    for _ in range(6):
        train_epoch(model, training, optimizer, loss_fn, forward=forward_links)
    figures = evaluate_links(model, held_out, LinkMetrics(hits=(1, 5)))
    assert figures["auc"] > 0.7
    assert figures["hits@5"] == 1  # 4 negatives each
    assert 0.2 < figures["hits@1"] < figures["mrr"] < 1
    assert evaluate_links(model, held_out, LinkMetrics(hits=(1, 5))) == figures
