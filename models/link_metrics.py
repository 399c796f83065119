"""LinkMetrics, evaluate_links: mean reciprocal rank, Hits@k and AUC of scored links.

A module of its own that `hopline.models` imports when it is asked for: torchmetrics takes about as
long to import as torch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torchmetrics import Metric

from hopline.models.checks import check_tensor
from hopline.models.link import forward_links
from hopline.models.metrics import gather_rows
from hopline.models.training import (
    Pace,
    _alone,
    _device_of,
    _eval_mode,
    _progress,
    autocast,
    check_amp_dtype,
    check_parts,
)
from hopline.pipes.checks import holds_integers
from hopline.pipes.loader import DataLoader
from hopline.pipes.minibatch import MiniBatch
from hopline.pipes.move import check_device

__all__ = ["LinkMetrics", "evaluate_links"]

TIES = {"optimistic": 0.0, "average": 0.5, "pessimistic": 1.0}
QUERIES = ("batch", "set")


class LinkMetrics(Metric):
    """Mean reciprocal rank, Hits@k and AUC; a torchmetrics metric whose value is a dict.

    A query is a positive link and the negative ones that compete with it: seeds of one value in
    `indexes`. Its rank is 1 + the number of its negatives that score higher + a share of those that
    score the same: 0 for "optimistic", all for "pessimistic", half for "average", which is the mean
    of the two. A query with several positives counts by its best. MRR is the mean of 1 / rank over
    queries; Hits@k the share of queries of rank k or better. AUC is the share of all pairs of a
    positive and a negative, whatever their queries, in which the positive scores higher; a tie
    counts half. Scores are compared as they are, so logits do as well as probabilities.

    Hits@k and the AUC are counted in integers; reciprocal ranks are summed in float64. Over ranks
    the metric makes the same collectives on each of them, also on one that saw no mini-batch.

    Args:
        hits: each k of Hits@k.
        ties: "average", "pessimistic" or "optimistic".
        queries: "batch" if each mini-batch numbers its own queries, as those of sampled negatives
            do: a query is then whole in one mini-batch, and only its rank is kept. "set" if
            `indexes` is a column of the item set: rows of a query may lie in any mini-batch and
            on any rank, and scores are kept until the end.
        auc: whether to compute the AUC, for which all scores and labels are kept.

    Raises:
        TypeError: hits are no ints.
        ValueError: a k is below 1, or ties or queries is not one of those named.

    >>> metric = LinkMetrics(hits=(1, 2))
    >>> scores = torch.tensor([0.9, 0.1, 0.5, 0.2])
    >>> labels, indexes = torch.tensor([1, 1, 0, 0]), torch.tensor([0, 1, 0, 1])
    >>> metric.update(scores, labels, indexes)
    >>> metric.compute()
    {'mrr': 0.75, 'hits@1': 0.5, 'hits@2': 1.0, 'auc': 0.5}
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    num_queries: torch.Tensor
    reciprocals: torch.Tensor
    found: torch.Tensor
    scores: list[torch.Tensor]
    labels: list[torch.Tensor]
    indexes: list[torch.Tensor]

    def __init__(
        self,
        hits: Sequence[int] = (1, 3, 10),
        *,
        ties: str = "average",
        queries: str = "batch",
        auc: bool = True,
    ) -> None:
        if not isinstance(hits, Sequence):
            raise TypeError(f"hits is {hits!r}; expected numbers, e.g. (1, 3, 10)")
        if any(isinstance(k, bool) or not isinstance(k, int) for k in hits):
            raise TypeError(f"hits is {tuple(hits)}; expected ints")
        if any(k < 1 for k in hits):
            raise ValueError(f"hits is {tuple(hits)}; expected numbers of 1 or more")
        if ties not in TIES:
            raise ValueError(f"ties is {ties!r}; expected one of {sorted(TIES)}")
        if queries not in QUERIES:
            raise ValueError(f"queries is {queries!r}; expected one of {QUERIES}")
        # torchmetrics' own exchange lets a rank without mini-batches send another dtype.
        super().__init__(dist_sync_fn=gather_rows)
        self.hits = tuple(hits)
        self.ties = ties
        self.queries = queries
        self.auc = auc
        self.add_state("num_queries", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("reciprocals", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("found", torch.zeros(len(hits), dtype=torch.int64), dist_reduce_fx="sum")
        for name in ("scores", "labels", "indexes"):
            self.add_state(name, [], dist_reduce_fx="cat")

    def update(self, scores: torch.Tensor, labels: torch.Tensor, indexes: torch.Tensor) -> None:
        """Counts a mini-batch.

        Args:
            scores: float[n].
            labels: number or bool[n], 1 for positives and 0 for negatives.
            indexes: integer[n], the query of each.

        Raises:
            ValueError: shapes differ, a score is NaN, a label is neither 0 nor 1, or, with
                queries="batch", a query has no positive. TypeError: scores or indexes have a wrong
                dtype.
        """
        scores, positive, indexes = _checked(scores, labels, indexes)
        if self.queries == "batch":
            self._count(scores, positive, indexes)
        else:
            self.indexes.append(indexes)
        if self.auc or self.queries == "set":
            self.scores.append(scores)
            self.labels.append(positive)

    def compute(self) -> dict[str, float]:
        """The figures, over all ranks; NaN without queries, or for the AUC of one class alone.

        Returns:
            `{"mrr": ..., "hits@1": ..., ..., "auc": ...}`.

        Raises:
            ValueError: with queries="set", a query has no positive.
        """
        scores, positive, indexes = (
            _joined(part, dtype, self.device)
            for part, dtype in (
                (self.scores, torch.float32),
                (self.labels, torch.bool),
                (self.indexes, torch.int64),
            )
        )
        number, reciprocals, found = self.num_queries, self.reciprocals, self.found
        if self.queries == "set":
            number, reciprocals, found = self._ranked(scores, positive, indexes)
        count = int(number)
        values = {"mrr": float(reciprocals) / count if count else float("nan")}
        for k, hit in zip(self.hits, found.tolist(), strict=True):
            values[f"hits@{k}"] = hit / count if count else float("nan")
        if self.auc:
            values["auc"] = _auc(scores, positive)
        return values

    def _count(self, scores: torch.Tensor, positive: torch.Tensor, indexes: torch.Tensor) -> None:
        number, reciprocals, found = self._ranked(scores, positive, indexes)
        self.num_queries += number
        self.reciprocals += reciprocals
        self.found += found

    def _ranked(
        self, scores: torch.Tensor, positive: torch.Tensor, indexes: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Number of queries, sum of 1 / rank, and queries of each k or better."""
        names, query = torch.unique(indexes, return_inverse=True)
        count = len(names)
        positives = torch.bincount(query[positive], minlength=count)
        if bool((positives == 0).any()):
            bad = int((positives == 0).nonzero()[0])
            raise ValueError(
                f"query {int(names[bad])} has negatives and no positive link; if indexes is a "
                "column of the item set, whose queries may be cut over mini-batches, use "
                "LinkMetrics(queries='set')"
            )
        best = scores.new_full((count,), -torch.inf)
        best = best.scatter_reduce(0, query[positive], scores[positive], "amax")
        rival = best[query]
        higher = torch.bincount(query[~positive & (scores > rival)], minlength=count)
        same = torch.bincount(query[~positive & (scores == rival)], minlength=count)
        ranks = 1 + higher + TIES[self.ties] * same.double()
        limits = torch.tensor(self.hits, dtype=torch.float64, device=ranks.device)
        found = (ranks.unsqueeze(1) <= limits).sum(0)
        return torch.tensor(count, device=ranks.device), (1 / ranks).sum(), found


def _checked(
    scores: torch.Tensor, labels: torch.Tensor, indexes: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scores of float32 or float64, whether each is a positive, and indexes of int64."""
    for name, part in (("scores", scores), ("labels", labels), ("indexes", indexes)):
        check_tensor(part, name, "are")
    shapes = [list(part.shape) for part in (scores, labels, indexes)]
    if scores.dim() != 1 or shapes[1:] != shapes[:1] * 2:
        raise ValueError(
            f"scores, labels and indexes have shapes {shapes[0]}, {shapes[1]} and {shapes[2]}; "
            "expected [n] for each"
        )
    if not scores.dtype.is_floating_point:
        raise TypeError(f"scores have dtype {scores.dtype}; expected a floating-point dtype")
    if not holds_integers(indexes):
        raise TypeError(f"indexes have dtype {indexes.dtype}; expected integers")
    scores = scores.detach()
    if scores.dtype != torch.float64:
        scores = scores.float()
    if bool(scores.isnan().any()):
        raise ValueError(f"score {int(scores.isnan().nonzero()[0])} is NaN and has no rank")
    positive = labels == 1
    if not bool((positive | (labels == 0)).all()):
        bad = int((~(positive | (labels == 0))).nonzero()[0])
        raise ValueError(f"label {bad} is {labels[bad].item()}; expected 0 or 1")
    return scores, positive, indexes.long()


def _joined(parts: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """What a list state holds: a list before ranks have exchanged it, a tensor afterwards."""
    if isinstance(parts, torch.Tensor):
        return parts if len(parts) else parts.to(dtype)
    return torch.cat(parts) if parts else torch.empty(0, dtype=dtype, device=device)


def _auc(scores: torch.Tensor, positive: torch.Tensor) -> float:
    """Share of pairs of a positive and a negative in order, by counting in integers.

    torchmetrics' own AUROC sums in float32, and takes the sigmoid of a mini-batch's scores or does
    not, as they lie outside [0, 1] or inside.
    """
    values, place = torch.unique(scores, return_inverse=True)
    ones = torch.bincount(place[positive], minlength=len(values))
    zeros = torch.bincount(place[~positive], minlength=len(values))
    pairs = int(ones.sum()) * int(zeros.sum())
    if not pairs:
        return float("nan")
    below = torch.cumsum(zeros, 0) - zeros
    return int((ones * (2 * below + zeros)).sum()) / (2 * pairs)


def evaluate_links(
    model: nn.Module,
    loader: DataLoader,
    metric: LinkMetrics | None = None,
    *,
    device: torch.device | str | None = None,
    forward: Callable[[nn.Module, MiniBatch], Any] = forward_links,
    amp_dtype: torch.dtype | None = None,
) -> dict[str, float]:
    """Figures of a link predictor over all links of a loader and of all ranks.

    The loader is read from the beginning of its epoch 0, so that the same model gets the same
    figures, from the same negatives. Ranks may have different numbers of mini-batches, or none.
    The model is left in the mode in which it was, and the loader at its epoch 1.

    Args:
        model: a module, also in DistributedDataParallel, which is then left aside.
        loader: gives mini-batches of links with labels and indexes, as after negative sampling;
            on several ranks, each query on one of them but for `queries="set"`.
        metric: what to compute; `LinkMetrics()` by default. It is reset before and after.
        device: where the mini-batch goes; by default the device of the model's parameters.
        forward: gives the scores, one a seed, for a model and a mini-batch.
        amp_dtype: torch.bfloat16 to run the model under `torch.autocast`, as in `train_epoch`.

    Returns:
        The figures by name, the same on every rank; NaN without links.

    Raises:
        TypeError: an argument is of wrong kind.
        ValueError: a mini-batch has no labels or no indexes, or the metric refuses them; amp_dtype
            is another than bfloat16.

    A heterogeneous mini-batch counts type by type, each with its own queries, and adds up.
    """
    check_parts(model, loader, forward)
    check_amp_dtype(amp_dtype)
    if metric is not None and not isinstance(metric, LinkMetrics):
        raise TypeError(f"metric is a {type(metric).__name__}; expected a LinkMetrics")
    device = _device_of(model) if device is None else check_device(device)
    module = _alone(model)
    metric = (LinkMetrics() if metric is None else metric).to(device)
    metric.reset()
    loader.load_state_dict({**loader.state_dict(), "epoch": 0, "batch": 0, "source": None})
    try:
        pace = Pace(device)
        with _eval_mode(module), torch.no_grad(), _progress(loader, "evaluation") as bar:
            for minibatch in loader:
                minibatch = minibatch.to(device)
                with autocast(device, amp_dtype):
                    scores = forward(module, minibatch)
                _update(metric, scores, minibatch)
                pace.step()
                bar.update()
        with warnings.catch_warnings():
            # A rank without mini-batches computes from what the others gave; without any, NaN.
            warnings.filterwarnings("ignore", message=".*was called before the ``update``")
            values: dict[str, float] = metric.compute()
    finally:
        metric.reset()
    return values


def _update(metric: LinkMetrics, scores: Any, minibatch: MiniBatch) -> None:
    labels: Any = minibatch.labels
    indexes: Any = minibatch.indexes
    if labels is None or indexes is None:
        raise ValueError(
            f"the mini-batch has no {'labels' if labels is None else 'indexes'}; sample negatives "
            "in the chain, or name columns 'labels' and 'indexes' in the item set"
        )
    if not isinstance(scores, Mapping):
        metric.update(scores, labels, indexes)
        return
    if metric.queries == "set":
        raise ValueError(
            "queries='set' takes the scores of one type; the indexes of different types may mean "
            "the same query or not"
        )
    for name, part in scores.items():
        metric.update(part, labels[name], indexes[name])
