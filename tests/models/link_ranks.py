"""What the tests of link metrics run on ranks: at the top level, so that ranks find it."""

from __future__ import annotations

import math
import random

import pytest
import torch

import hopline.pipes as hp
from hopline.models import LinkMetrics, evaluate_links, gather_rows
from tests.models.ranks import Trace


def plain_figures(queries, hits=(1, 3, 10), ties="average"):
    """The figures by their definition, of [(scores of positives, scores of negatives)]."""
    ranks = []
    for positives, negatives in queries:
        best = max(positives)
        higher = sum(score > best for score in negatives)
        same = sum(score == best for score in negatives)
        first, last = 1 + higher, 1 + higher + same
        mean = (first + last) / 2
        ranks.append({"optimistic": first, "pessimistic": last, "average": mean}[ties])
    ones = [score for positives, _ in queries for score in positives]
    zeros = [score for _, negatives in queries for score in negatives]
    won = sum((a > b) + (a == b) / 2 for a in ones for b in zeros)
    count = len(queries)
    figures = {"mrr": sum(1 / r for r in ranks) / count if count else math.nan}
    for k in hits:
        figures[f"hits@{k}"] = sum(r <= k for r in ranks) / count if count else math.nan
    figures["auc"] = won / (len(ones) * len(zeros)) if ones and zeros else math.nan
    return figures


def assert_figures(got, want):
    assert list(got) == list(want)
    for name, value in want.items():
        assert got[name] == pytest.approx(value, rel=1e-12, nan_ok=True), name


def make_queries(count, seed=0, negatives=4):
    """Few distinct scores, so that many are ties; logits, also negative ones."""
    draw = random.Random(seed)

    def score():
        return draw.randrange(-6, 6) / 2

    return [([score()], [score() for _ in range(negatives)]) for _ in range(count)]


def as_batch(queries, names=None):
    """Scores, labels and indexes in the order of sampled negatives: positives first."""
    names = range(len(queries)) if names is None else names
    rows = [(s, 1.0, n) for n, (p, _) in zip(names, queries, strict=True) for s in p]
    rows += [(s, 0.0, n) for n, (_, z) in zip(names, queries, strict=True) for s in z]
    columns = list(zip(*rows, strict=True)) if rows else [(), (), ()]
    return (
        torch.tensor(columns[0], dtype=torch.float32),
        torch.tensor(columns[1], dtype=torch.float32),
        torch.tensor(columns[2], dtype=torch.int64),
    )


def score_column(model, minibatch):
    """Instead of a model: the scores travel as a column of the mini-batch."""
    return minibatch.scores


def make_loader(queries, per_batch, rank=0, world_size=1):
    """Mini-batches of whole queries, numbered from 0 in each, as after negative sampling."""

    def negatives(minibatch):
        chosen = [queries[i] for i in minibatch.seeds.tolist()]
        scores, minibatch.labels, minibatch.indexes = as_batch(chosen)
        minibatch.scores = scores
        return minibatch

    items = hp.ItemSet(torch.arange(len(queries)), "seeds")
    chain = hp.DistributedItemSampler(items, per_batch, num_replicas=world_size, rank=rank)
    return hp.DataLoader(chain.transform(negatives))


def make_row_loader(queries, per_batch, rank=0, world_size=1):
    """Mini-batches that cut queries, whose indexes are a column of the item set."""
    scores, labels, indexes = as_batch(queries, [7 * i + 2**40 for i in range(len(queries))])
    order = torch.tensor(random.Random(1).sample(range(len(scores)), len(scores))).long()
    names = ("scores", "labels", "indexes")
    items = hp.ItemSet((scores[order], labels[order], indexes[order]), names)
    chain = hp.DistributedItemSampler(items, per_batch, num_replicas=world_size, rank=rank)
    return hp.DataLoader(chain)


def evaluate_on_uneven_shares(rank, world_size, device):
    model = torch.nn.Identity()
    for count in (11, 3, 1, 0):
        queries = make_queries(count)
        want = plain_figures(queries)
        for make, scope in ((make_loader, "batch"), (make_row_loader, "set")):
            loader = make(queries, 2, rank, world_size)
            with Trace() as trace:
                got = evaluate_links(
                    model, loader, LinkMetrics(queries=scope), forward=score_column
                )
            trace.check()
            assert_figures(got, want)
    # Sums alone: no scores are kept, and none travel.
    metric = LinkMetrics(hits=(), auc=False)
    loader = make_loader(make_queries(3), 2, rank, world_size)
    got = evaluate_links(model, loader, metric, forward=score_column)
    assert list(got) == ["mrr"]
    # Shares of any length, whatever a sampler would give.
    for share in ((37, 3), (0, 5), (1, 40)):
        queries = make_queries(sum(share))
        own = queries[: share[0]] if rank == 0 else queries[share[0] :]
        got = evaluate_links(model, make_loader(own, 4), LinkMetrics(), forward=score_column)
        assert_figures(got, plain_figures(queries))
    refuse_on_all(rank, world_size)
    figures = torch.tensor([got[name] for name in sorted(got)], dtype=torch.float64)
    assert all(torch.equal(row, figures) for row in gather_rows(figures))


def refuse_on_all(rank, world_size):
    """A query without a positive that only the whole shows is refused on every rank."""
    metric = LinkMetrics(queries="set")
    label = torch.tensor([float(rank != 1)])
    metric.update(torch.zeros(1), label, torch.tensor([rank]))
    with pytest.raises(ValueError, match="query 1 has negatives and no positive"):
        metric.compute()
