"""LinkMetrics and evaluate_links against a plain computation, with ties, and on uneven ranks."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchmetrics.functional.classification import binary_auroc
from torchmetrics.retrieval import RetrievalHitRate, RetrievalMRR

import hopline.pipes as hp
from hopline.models import DotPredictor, LinkMetrics, LinkPredictor, evaluate_links, launch
from tests.models import link_ranks
from tests.models.link_ranks import as_batch, assert_figures, make_queries, plain_figures

SCORES = st.sampled_from([-math.inf, -40.0, -1.5, -1.0, 0.0, 0.25, 1.0, 30.0, 31.0, math.inf])
QUERIES = st.lists(
    st.tuples(st.lists(SCORES, min_size=1, max_size=3), st.lists(SCORES, max_size=6)), max_size=6
)


@pytest.mark.filterwarnings("ignore:The ``compute`` method:UserWarning")
@pytest.mark.parametrize("ties", ["average", "pessimistic", "optimistic"])
@given(queries=QUERIES, cut=st.integers(1, 4), data=st.data())
def test_figures_are_those_of_the_definition(ties, queries, cut, data):
    hits = (1, 2, 5)
    want = plain_figures(queries, hits, ties)
    whole = LinkMetrics(hits, ties=ties, queries="batch")
    for start in range(0, len(queries), cut):
        whole.update(*as_batch(queries[start : start + cut]))
    assert_figures(whole.compute(), want)
    # The same rows in any order, cut anywhere.
    scores, labels, indexes = as_batch(queries)
    order = torch.tensor(data.draw(st.permutations(range(len(scores))))).long()
    rows = LinkMetrics(hits, ties=ties, queries="set")
    for part in order.split(cut):
        rows.update(scores[part], labels[part], indexes[part])
    assert_figures(rows.compute(), want)


def test_figures_without_ties_are_torchmetrics_own():
    generator = torch.Generator().manual_seed(1)
    scores = torch.rand(200, generator=generator)
    indexes = torch.arange(40).repeat(5)
    labels = (torch.arange(200) < 40).float()
    metric = LinkMetrics((1, 3), queries="set")
    metric.update(scores, labels, indexes)
    got = metric.compute()
    truth = labels.bool()
    want = RetrievalMRR()(scores, truth, indexes=indexes).item()
    assert got["mrr"] == pytest.approx(want, rel=1e-5)
    want = RetrievalHitRate(top_k=3)(scores, truth, indexes=indexes).item()
    assert got["hits@3"] == pytest.approx(want, rel=1e-5)
    assert got["auc"] == pytest.approx(binary_auroc(scores, labels.long()).item(), rel=1e-5)


def test_logits_are_ranked_as_they_are():
    """Where a common metric takes a positive that scores below 0 for irrelevant."""
    scores, labels, indexes = as_batch([([-1.0], [-2.0, -3.0]), ([-5.0], [-9.0])])
    metric = LinkMetrics((1,))
    metric.update(scores, labels, indexes)
    got = metric.compute()
    assert (got["mrr"], got["hits@1"]) == (1.0, 1.0)


def test_auc_does_not_depend_on_the_mini_batches_range():
    """Scores above 1 in one mini-batch and below in the other, and large ones that saturate."""
    metric = LinkMetrics()
    metric.update(*as_batch([([0.9], [0.8])]))
    metric.update(*as_batch([([101.0], [100.0])]))
    assert metric.compute()["auc"] == 3 / 4  # 0.9 alone loses, to 100


def test_sums_are_of_float64():
    """Queries of rank 3: float32 sums would be off."""
    count = 20_011
    scores = torch.tensor([0.0, 1.0, 1.0]).repeat_interleave(count)
    labels = torch.tensor([1, 0, 0]).repeat_interleave(count)
    metric = LinkMetrics((), auc=False)
    for _ in range(2):
        metric.update(scores, labels, torch.arange(count).repeat(3))
    assert metric.compute()["mrr"] == pytest.approx(1 / 3, rel=1e-14)


def test_only_what_is_needed_is_kept():
    batch = as_batch(make_queries(20))
    for options, kept in (
        ({}, ["labels", "scores"]),
        ({"auc": False}, []),
        ({"auc": False, "queries": "set"}, ["indexes", "labels", "scores"]),
    ):
        metric = LinkMetrics(**options)
        metric.update(*batch)
        state = metric.metric_state
        assert sorted(name for name in ("indexes", "labels", "scores") if state[name]) == kept
        metric.reset()
        assert not any(metric.metric_state[name] for name in ("indexes", "labels", "scores"))


@pytest.mark.parametrize("labels", [torch.bool, torch.uint8, torch.int64, torch.float64])
@pytest.mark.parametrize("scores", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes(labels, scores):
    queries = make_queries(10)
    batch = as_batch(queries)
    metric = LinkMetrics()
    metric.update(batch[0].to(scores), batch[1].to(labels), batch[2].int())
    assert_figures(metric.compute(), plain_figures(queries))


def zeros(*sizes):
    return [torch.zeros(size, dtype=kind) for size, kind in zip(sizes, KINDS, strict=True)]


KINDS = (torch.float32, torch.float32, torch.int64)


@pytest.mark.parametrize(
    ("batch", "kind", "words"),
    [
        (zeros(3, 2, 3), ValueError, r"\[3\], \[2\] and \[3\]"),
        (zeros((3, 1), (3, 1), (3, 1)), ValueError, r"expected \[n\] for each"),
        (zeros(2, 2, 2), ValueError, r"query 0 has negatives.*queries='set'"),
        ([torch.zeros(1).long(), *zeros(1, 1, 1)[1:]], TypeError, "int64; expected a floating"),
        ([*zeros(1, 1, 1)[:2], torch.zeros(1)], TypeError, "indexes have dtype torch.float32"),
        ([torch.tensor([0, math.nan]), *zeros(2, 2, 2)[1:]], ValueError, "score 1 is NaN"),
        (
            [torch.zeros(1), torch.tensor([0.5]), torch.zeros(1).long()],
            ValueError,
            "label 0 is 0.5",
        ),
    ],
)
def test_unfit_batches(batch, kind, words):
    with pytest.raises(kind, match=words):
        LinkMetrics().update(*batch)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"hits": (0,)}, r"\(0,\); expected numbers of 1 or more"),
        ({"ties": "none"}, "'none'; expected one of"),
        ({"queries": "all"}, "'all'; expected one of"),
    ],
)
def test_unfit_options(options, words):
    with pytest.raises(ValueError, match=words):
        LinkMetrics(**options)


# -------------------------------------------------------------------------------------------------
# Over a loader


@pytest.mark.parametrize("count", [0, 1, 23])
@pytest.mark.parametrize("make", [link_ranks.make_loader, link_ranks.make_row_loader])
def test_over_a_loader_every_time_the_same(count, make):
    queries = make_queries(count)
    loader = make(queries, 4)
    metric = LinkMetrics(queries="batch" if make is link_ranks.make_loader else "set")
    for _ in range(2):
        got = evaluate_links(torch.nn.Identity(), loader, metric, forward=link_ranks.score_column)
        assert_figures(got, plain_figures(queries))
        assert metric.metric_state["num_queries"] == 0


def test_queries_cut_over_mini_batches_are_not_taken_for_whole_ones():
    loader = link_ranks.make_row_loader(make_queries(10), 4)
    with pytest.raises(ValueError, match="queries='set'"):
        evaluate_links(torch.nn.Identity(), loader, forward=link_ranks.score_column)


def test_ranks_with_uneven_shares_and_with_none():
    """B43: lists of different lengths over ranks, and a rank without any."""
    launch(link_ranks.evaluate_on_uneven_shares, 2)


class Typed(torch.nn.Module):
    def forward(self, blocks, x):
        return x


def test_types_have_queries_of_their_own():
    h = {"a": torch.randn(4, 3), "b": torch.randn(5, 3)}
    model = LinkPredictor(Typed(), DotPredictor())
    links = {
        "a:to:b": torch.tensor([[0, 1], [1, 2], [0, 3], [0, 4], [1, 0], [1, 1]]),
        "b:to:a": torch.tensor([[4, 0], [4, 1], [4, 2]]),
    }
    labels = {"a:to:b": torch.tensor([1, 1, 0, 0, 0, 0]), "b:to:a": torch.tensor([1, 0, 0])}
    indexes = {"a:to:b": torch.tensor([0, 1, 0, 0, 1, 1]), "b:to:a": torch.tensor([0, 0, 0])}

    def forward(model, minibatch):
        assert not torch.is_grad_enabled()
        assert not model.training
        return model(None, h, minibatch.compacted_seeds)

    def fill(minibatch):
        minibatch.compacted_seeds, minibatch.labels = dict(links), dict(labels)
        minibatch.indexes = dict(indexes)
        return minibatch

    loader = hp.DataLoader(hp.ItemSampler(hp.ItemSet(1, names="seeds"), 1).transform(fill))
    got = evaluate_links(model, loader, forward=forward)
    assert model.training
    s = {name: (h[name[0]][e[:, 0]] * h[name[5]][e[:, 1]]).sum(1) for name, e in links.items()}
    first, second = s["a:to:b"].tolist(), s["b:to:a"].tolist()
    queries = [
        ([first[0]], first[2:4]),
        ([first[1]], first[4:6]),
        ([second[0]], second[1:]),
    ]
    assert_figures(got, plain_figures(queries))
    with pytest.raises(ValueError, match="scores of one type"):
        evaluate_links(model, loader, LinkMetrics(queries="set"), forward=forward)


@pytest.mark.parametrize("missing", ["labels", "indexes"])
def test_batches_without_a_column(missing):
    def drop(minibatch):
        setattr(minibatch, missing, None)
        return minibatch

    chain = link_ranks.make_loader(make_queries(2), 2).chain.transform(drop)
    with pytest.raises(ValueError, match=f"no {missing}; sample negatives"):
        evaluate_links(torch.nn.Identity(), hp.DataLoader(chain), forward=link_ranks.score_column)


def test_torchmetrics_is_imported_when_it_is_asked_for():
    code = (
        "import sys, hopline.models as m; assert 'torchmetrics' not in sys.modules; "
        "m.LinkMetrics; assert 'torchmetrics' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    import hopline.models

    with pytest.raises(AttributeError, match="no attribute 'LinkMetric'"):
        _ = hopline.models.LinkMetric
