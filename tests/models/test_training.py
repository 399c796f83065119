"""train_epoch and evaluate, in one process and on ranks with uneven shares."""

from __future__ import annotations

import math

import pytest
import torch

import hopline.pipes as hp
from hopline.models import EpochTotal, evaluate, launch, train_epoch
from tests.models import ranks


def test_ranks_with_uneven_shares_and_with_none(tmp_path):
    launch(ranks.train_on_uneven_shares, 2, tmp_path, timeout=15)


def test_one_epoch_is_what_it_says():
    model, optimizer = ranks.make_model()
    other, other_optimizer = ranks.make_model()
    loader, other_loader = ranks.make_loader(100), ranks.make_loader(100)
    for _ in range(2):
        want = ranks.train_on_one(other, other_loader, other_optimizer)
        assert train_epoch(model, loader, optimizer) == pytest.approx(want, rel=1e-12)
    ranks.assert_same_state(
        ranks.state_of(model, optimizer), ranks.state_of(other, other_optimizer)
    )


def test_training_does_not_touch_the_global_generator():
    model, optimizer = ranks.make_model()
    before = torch.get_rng_state()
    train_epoch(model, ranks.make_loader(100), optimizer)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_weights_do_not_depend_on_the_workers(num_workers):
    model, optimizer = ranks.make_model()
    train_epoch(model, ranks.make_loader(200, num_workers=num_workers), optimizer)
    other, other_optimizer = ranks.make_model()
    train_epoch(other, ranks.make_loader(200), other_optimizer)
    ranks.assert_same_state(
        ranks.state_of(model, optimizer), ranks.state_of(other, other_optimizer)
    )


def test_learns_the_planted_classes():
    model, optimizer = ranks.make_model()
    loader = ranks.make_loader(200)
    losses = [train_epoch(model, loader, optimizer) for _ in range(30)]
    assert losses[-1] < losses[0] / 2
    held_out = hp.ItemSet(
        (torch.arange(200, 300), ranks.planted().labels[200:]), ("seeds", "labels")
    )
    chain = hp.ItemSampler(held_out, 50).sample_neighbor(ranks.planted().graph, [-1, -1])
    chain = chain.fetch_feature(ranks.planted().feature, node_feature_keys=["feat"])
    assert evaluate(model, hp.DataLoader(chain), ranks.accuracy()) > 0.8


@pytest.mark.parametrize("make_metric", [ranks.accuracy, ranks.auroc])
def test_the_same_model_gets_the_same_figure(make_metric):
    model, _ = ranks.make_model()
    loader = ranks.make_loader(100)
    metric = make_metric()
    figures = {evaluate(model, loader, metric, forward=ranks.probabilities) for _ in range(3)}
    assert len(figures) == 1
    model.eval()
    output, labels = [], []
    with torch.no_grad():
        for minibatch in ranks.make_loader(100):
            output.append(ranks.probabilities(model, minibatch))
            labels.append(minibatch.labels)
    want = make_metric()(torch.cat(output), torch.cat(labels)).item()
    assert figures.pop() == pytest.approx(want, rel=1e-6)


def test_evaluation_leaves_every_part_in_its_mode():
    model, _ = ranks.make_model()
    model.layers[0].eval()
    modes = [part.training for part in model.modules()]
    seen = []

    def forward(module, minibatch):
        seen.append([part.training for part in module.modules()])
        assert not torch.is_grad_enabled()
        return ranks.probabilities(module, minibatch)

    evaluate(model, ranks.make_loader(40), ranks.accuracy(), forward=forward)
    assert not any(any(row) for row in seen)
    assert [part.training for part in model.modules()] == modes

    def broken(module, minibatch):
        raise KeyError

    with pytest.raises(KeyError):
        evaluate(model, ranks.make_loader(40), ranks.accuracy(), forward=broken)
    assert [part.training for part in model.modules()] == modes


def test_without_items():
    model, optimizer = ranks.make_model()
    before = ranks.state_of(model, optimizer)
    assert math.isnan(train_epoch(model, ranks.make_loader(0), optimizer))
    assert math.isnan(evaluate(model, ranks.make_loader(0), ranks.auroc()))
    ranks.assert_same_state(ranks.state_of(model, optimizer), before)


def test_small_integer_labels_are_read_as_numbers():
    dataset = ranks.planted()
    labels = dataset.labels[:40].to(torch.uint8)
    chain = hp.ItemSampler(hp.ItemSet((torch.arange(40), labels), ("seeds", "labels")), 20)
    chain = chain.sample_neighbor(dataset.graph, [2, 2])
    chain = chain.fetch_feature(dataset.feature, node_feature_keys=["feat"])
    model, optimizer = ranks.make_model()
    assert train_epoch(model, hp.DataLoader(chain), optimizer) > 0


def test_callbacks_and_totals():
    model, optimizer = ranks.make_model()
    loader = ranks.make_loader(100)
    total = EpochTotal(loss=50.0, items=10)
    places = []
    loss = train_epoch(
        model,
        loader,
        optimizer,
        total=total,
        after_batch=lambda: places.append((loader.state_dict()["batch"], total.items)),
    )
    assert places == [(1, 42), (2, 74), (3, 106), (4, 110)]
    assert loss == pytest.approx(total.loss / 110)


def without_labels():
    chain = hp.ItemSampler(hp.ItemSet(torch.arange(10), "seeds"), 5)
    chain = chain.sample_neighbor(ranks.planted().graph, [2, 2])
    return chain.fetch_feature(ranks.planted().feature, node_feature_keys=["feat"])


def test_unfit_batches():
    model, optimizer = ranks.make_model()
    with pytest.raises(ValueError, match="name a column of the item set 'labels'"):
        train_epoch(model, hp.DataLoader(without_labels()), optimizer)
    with pytest.raises(ValueError, match="0 rows for 20 labels"):
        train_epoch(model, ranks.make_loader(20), optimizer, forward=lambda *_: torch.ones(0, 4))
