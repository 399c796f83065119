"""SubgraphSampler: the base of samplers, your own included."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from hopline.pipes.etypes import seed_type_str_to_ntypes
from hopline.pipes.minibatch import MiniBatch, check_minibatch
from hopline.pipes.stage import Stage
from hopline.pipes.subgraph import SampledSubgraph

__all__ = ["SubgraphSampler", "seeds_of"]


class SubgraphSampler(Stage):
    """Base of a sampler of your own: implement `sample_subgraphs`.

    Edge seeds are replaced by their ends before the call, each node once, and
    `minibatch.compacted_seeds` then holds their places in what the last layer computes.

    Args:
        source: the chain before it.

    >>> class Nothing(SubgraphSampler):
    ...     def sample_subgraphs(self, seeds, seeds_timestamp, seeds_pre_time_window=None):
    ...         return seeds, []
    >>> from hopline.pipes import ItemSampler, ItemSet
    >>> edges = torch.tensor([[5, 3], [3, 7]])
    >>> minibatch = next(iter(Nothing(ItemSampler(ItemSet(edges, names="seeds"), 2))))
    >>> minibatch.input_nodes.tolist(), minibatch.compacted_seeds.tolist()
    ([5, 3, 7], [[0, 1], [1, 2]])
    """

    def __init__(self, source: Any) -> None:
        super().__init__(source)
        parameters = inspect.signature(self.sample_subgraphs).parameters.values()
        self._takes_key = any(p.name == "key" or p.kind is p.VAR_KEYWORD for p in parameters)
        plain = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        self._takes_windows = len([p for p in plain if p.name != "key"]) > 2 or any(
            p.kind is p.VAR_POSITIONAL for p in parameters
        )

    def sample_subgraphs(
        self,
        seeds: Any,
        seeds_timestamp: Any,
        seeds_pre_time_window: Any = None,
    ) -> tuple[Any, list[SampledSubgraph]]:
        """Samples the hops of one mini-batch.

        A sampler without time windows may leave the last argument out.

        A sampler that draws takes a further argument `key`, the mini-batch's (seed, epoch, index),
        and derives every draw from it; so the same mini-batch is drawn on any thread, and after a
        resume.

        Args:
            seeds: integer[n] nodes, or `{node type: nodes}`.
            seeds_timestamp: int64[n], or `{node type: times}`, or None if the item set has none.
            seeds_pre_time_window: int64[n] or None: the column `pre_time_window` of the item set.

        Returns:
            The nodes whose features the first layer reads, and the hops, outermost first.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no sample_subgraphs(seeds, seeds_timestamp, "
            "seeds_pre_time_window)"
        )

    def __call__(self, minibatch: MiniBatch) -> MiniBatch:
        """Samples one mini-batch.

        Raises:
            TypeError: it is no mini-batch, or seeds or times are no tensors.
            ValueError: it has no seeds, seeds of mixed dimensions, or not one time for each.
        """
        seeds = seeds_of(minibatch)
        times, windows = minibatch.timestamp, minibatch.extra.get("pre_time_window")
        nodes, compacted, origin = _unique_ends(seeds)
        if origin is not None:
            times = _of_ends(times, origin, seeds, "timestamp")
            windows = _of_ends(windows, origin, seeds, "pre_time_window")
        columns = (nodes, times, windows) if self._takes_windows else (nodes, times)
        further = {"key": minibatch.key} if self._takes_key else {}
        found = self.sample_subgraphs(*columns, **further)
        if not isinstance(found, tuple | list) or len(found) != 2:
            got = (
                f"{len(found)} values" if isinstance(found, tuple | list) else type(found).__name__
            )
            raise TypeError(
                f"{type(self).__name__}.sample_subgraphs gave {got}; expected two values: the "
                "nodes whose features the first layer reads, and the hops"
            )
        minibatch.input_nodes, minibatch.sampled_subgraphs = found
        if compacted is not None:
            minibatch.compacted_seeds = compacted
        return minibatch


def seeds_of(minibatch: MiniBatch) -> Any:
    """The mini-batch's seeds.

    Raises:
        TypeError: it is no mini-batch.
        ValueError: it has none.
    """
    check_minibatch(minibatch, "the sampler")
    if minibatch.seeds is None:
        raise ValueError("the mini-batch has no seeds; name a column of the item set 'seeds'")
    return minibatch.seeds


def _unique_ends(seeds: Any) -> tuple[Any, Any, Any]:
    """Nodes, compacted seeds and, for each node, the seed that names it first; None if 1-D."""
    values = seeds.values() if isinstance(seeds, dict) else [seeds]
    for value in values:
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"seeds are a {type(value).__name__}; expected a torch.Tensor")
    dimensions = {value.dim() for value in values}
    if dimensions <= {1}:
        return seeds, None, None
    if dimensions != {2}:
        raise ValueError(
            f"seeds have shapes {[tuple(value.shape) for value in values]}; expected nodes [n], or "
            "edges [n, 2], for all types alike"
        )
    if not isinstance(seeds, dict):
        nodes, places, first = _first_occurrences(seeds.reshape(-1))
        return nodes, places.view(seeds.shape), {None: [(None, first // seeds.shape[1])]}
    columns: dict[str, list[tuple[str, int]]] = {}
    for kind in seeds:
        for end, ntype in enumerate(seed_type_str_to_ntypes(kind, seeds[kind].shape[1])):
            columns.setdefault(ntype, []).append((kind, end))
    compacted = {
        kind: torch.empty(value.shape, dtype=torch.int64, device=value.device)
        for kind, value in seeds.items()
    }
    all_nodes, origin = {}, {}
    for ntype, found in columns.items():
        flat = torch.cat([seeds[kind][:, end] for kind, end in found])
        all_nodes[ntype], places, first = _first_occurrences(flat)
        owners = []
        at = 0
        for kind, end in found:
            count = len(seeds[kind])
            compacted[kind][:, end] = places[at : at + count]
            owners.append((kind, first[(first >= at) & (first < at + count)] - at))
            at += count
        origin[ntype] = owners
    return all_nodes, compacted, origin


def _first_occurrences(flat: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Distinct values in order of first occurrence, the place of each, where each is first."""
    _, inverse = torch.unique(flat, return_inverse=True)
    count = int(inverse.max()) + 1 if len(flat) else 0
    numbers = torch.arange(len(flat), device=flat.device)
    first = torch.full((count,), len(flat), device=flat.device)
    first = first.scatter_reduce(0, inverse, numbers, "amin")
    order = torch.argsort(first)
    rank = torch.empty_like(order)
    rank[order] = numbers[:count]
    return flat[first[order]], rank[inverse], first[order]


def _of_ends(values: Any, origin: Any, seeds: Any, what: str) -> Any:
    """One row of a column of the mini-batch for each node: that of the seed which names it."""
    if values is None:
        return None
    if isinstance(values, dict) != isinstance(seeds, dict):
        raise TypeError(f"{what} and seeds must both come by type, or both as one tensor")
    for kind, value in seeds.items() if isinstance(seeds, dict) else [(None, seeds)]:
        column = values if kind is None else values.get(kind)
        if not isinstance(column, torch.Tensor):
            raise TypeError(f"{what} is a {type(column).__name__}; expected a torch.Tensor")
        if column.shape[:1] != value.shape[:1]:
            raise ValueError(
                f"{what} has shape {tuple(column.shape)} for {len(value)} seeds; expected one row "
                "for each"
            )
    if None in origin:
        return values[origin[None][0][1]]
    return {
        ntype: torch.cat([values[kind][rows] for kind, rows in owners])
        for ntype, owners in origin.items()
    }
