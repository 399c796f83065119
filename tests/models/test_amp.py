"""Mixed precision: what is in bfloat16 and what stays, and that it learns."""

from __future__ import annotations

import pytest
import torch

import hopline.pipes as hp
from hopline.models import (
    GAT,
    GCN,
    RGCN,
    SAGE,
    DotPredictor,
    LinkMetrics,
    LinkPredictor,
    evaluate,
    evaluate_links,
    forward_links,
    train_epoch,
)
from tests.models import ranks

BF16 = torch.bfloat16


def test_learns_and_parameters_stay_float32():
    model, optimizer = ranks.make_model()
    loader = ranks.make_loader(200)
    seen = []

    def loss_fn(output, labels):
        seen.append(output.dtype)
        return torch.nn.functional.cross_entropy(output, labels)

    losses = [train_epoch(model, loader, optimizer, loss_fn, amp_dtype=BF16) for _ in range(30)]
    assert losses[-1] < losses[0] / 2
    assert set(seen) == {torch.float32}
    tensors = [*model.parameters(), *(p.grad for p in model.parameters())]
    tensors += [v for state in optimizer.state.values() for v in state.values()]
    assert {tensor.dtype for tensor in tensors} == {torch.float32}
    figure = evaluate(model, loader, ranks.accuracy(), amp_dtype=BF16)
    assert abs(figure - evaluate(model, loader, ranks.accuracy())) < 0.05


def test_is_not_what_it_is_without():
    """Else nothing would be in bfloat16."""
    (plain, first), (mixed, second) = ranks.make_model(), ranks.make_model()
    want = train_epoch(plain, ranks.make_loader(100), first)
    got = train_epoch(mixed, ranks.make_loader(100), second, amp_dtype=BF16)
    assert want != got
    assert got == pytest.approx(want, rel=0.02)


MODELS = {
    "SAGE": lambda: SAGE(16, 32, 4, 2, dropout=0.0),
    "GCN": lambda: GCN(16, 32, 4, 2, dropout=0.0),
    "GAT": lambda: GAT(16, 8, 4, 2, feat_drop=0.0),
}


def minibatch():
    dataset = ranks.planted()
    chain = hp.ItemSampler(hp.ItemSet(torch.arange(60), "seeds"), 60, seed=1)
    chain = chain.sample_neighbor(dataset.graph, [5, 5])
    return next(iter(chain.fetch_feature(dataset.feature, node_feature_keys=["feat"])))


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16])
def test_models_under_autocast(make, stored):
    batch = minibatch()
    x = batch.node_features["feat"]
    x = torch.randn(len(x), 16, generator=torch.Generator().manual_seed(0)).to(stored)
    torch.manual_seed(0)
    model = make()
    want = model(batch.blocks, x)
    with torch.autocast("cpu", BF16):
        got = model(batch.blocks, x)
    assert (want.dtype, got.dtype) == (torch.float32, BF16)
    torch.testing.assert_close(got.float(), want, rtol=0.1, atol=0.1)
    got.float().square().sum().backward()
    grads = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    want.square().sum().backward()
    for parameter, grad in zip(model.parameters(), grads, strict=True):
        assert (grad - parameter.grad).norm() <= 0.2 * parameter.grad.norm()


def test_types_under_autocast():
    block = hp.Block(torch.tensor([0, 2, 2]), torch.tensor([2, 1], dtype=torch.int32), 3, 2)
    for bases in (None, 2):
        model = RGCN({"user": 4, "item": 3}, 8, 5, ["user:buys:item"], 1, num_bases=bases)
        x = {"user": torch.randn(3, 4), "item": torch.randn(2, 3)}
        want = model([{"user:buys:item": block}], x)["item"]
        with torch.autocast("cpu", BF16):
            got = model([{"user:buys:item": block}], x)["item"]
        assert got.dtype == BF16
        torch.testing.assert_close(got.float(), want, rtol=0.1, atol=0.1)
        got.float().sum().backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_links():
    dataset = ranks.planted()
    graph = dataset.graph
    destinations = hp.expand_indptr(graph.csc_indptr, torch.int64)
    pairs = torch.stack([graph.indices.long(), destinations], 1)[:200]
    chain = hp.ItemSampler(hp.ItemSet(pairs, "seeds"), 50, shuffle=True, seed=1)
    chain = chain.sample_uniform_negative(graph, 2).sample_neighbor(graph, [4])
    loader = hp.DataLoader(chain.fetch_feature(dataset.feature, node_feature_keys=["feat"]))
    width = dataset.feature.size("node", None, "feat")[0]
    torch.manual_seed(0)
    model = LinkPredictor(SAGE(width, 8, 8, 1), DotPredictor())
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    loss_fn = torch.nn.functional.binary_cross_entropy_with_logits
    settings = {"forward": forward_links, "amp_dtype": BF16}
    losses = [train_epoch(model, loader, optimizer, loss_fn, **settings) for _ in range(6)]
    assert losses[-1] < losses[0]
    mixed = evaluate_links(model, loader, LinkMetrics(), amp_dtype=BF16)
    assert mixed["auc"] == pytest.approx(evaluate_links(model, loader, LinkMetrics())["auc"], 0.1)


def test_other_dtypes_are_refused():
    model, optimizer = ranks.make_model()
    loader = ranks.make_loader(40)
    with pytest.raises(ValueError, match=r"float16; expected torch.bfloat16, or None: small grad"):
        train_epoch(model, loader, optimizer, amp_dtype=torch.float16)
    with pytest.raises(ValueError, match=r"float32; expected torch.bfloat16, or None$"):
        evaluate(model, loader, ranks.accuracy(), amp_dtype=torch.float32)
    with pytest.raises(TypeError, match=r"'bf16'; expected torch.bfloat16"):
        evaluate_links(model, loader, LinkMetrics(), amp_dtype="bf16")
