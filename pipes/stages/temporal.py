"""TemporalNeighborSampler, TemporalLayerNeighborSampler: no edge as late as its seed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from hopline.pipes.checks import as_times, check_values, holds_integers
from hopline.pipes.fused_ids import FusedSeeds
from hopline.pipes.graph import FusedCSCSamplingGraph
from hopline.pipes.hop import ANY_TIME, HopRule
from hopline.pipes.minibatch import MiniBatch
from hopline.pipes.stages.hops import HopSampler
from hopline.pipes.stages.layer import SharedVariates

__all__ = ["TemporalLayerNeighborSampler", "TemporalNeighborSampler"]

Array = np.ndarray[Any, Any]


class TemporalNeighborSampler(HopSampler):
    """Samples what each seed may know; `chain.temporal_sample_neighbor(graph, [10, 10], ...)`.

    An edge is drawn only if its time, and the time of its source, is before the time of the seed
    that it is sampled for, at every hop. With a window it must also be after the seed's time minus
    the window: both bounds are exclusive. Seeds and nodes are never merged: a node that two seeds
    meet is two rows, each with what its own seed may know.

    The mini-batch's `timestamp` holds the seeds' times: one for each seed, or, with negatives, one
    for each positive seed. A column `pre_time_window` gives each seed a window of its own.

    Args:
        source: the chain before it.
        graph: the graph to sample.
        fanouts: as in `NeighborSampler`.
        replace: draw with replacement.
        prob_name: edge attribute of weights, as in `NeighborSampler`.
        node_timestamp_attr_name: node attribute of integers: when each node comes to be.
        edge_timestamp_attr_name: edge attribute of integers: when each edge comes to be.
        pre_time_window: length of the window of all seeds, in the unit of the times; None: no
            bound.

    Raises:
        TypeError, ValueError: an argument of wrong kind, number or value.
        KeyError: the graph has no attribute of that name.
    """

    def __init__(
        self,
        source: Any,
        graph: FusedCSCSamplingGraph,
        fanouts: Sequence[Any],
        replace: bool = False,
        prob_name: str | None = None,
        node_timestamp_attr_name: str | None = None,
        edge_timestamp_attr_name: str | None = None,
        pre_time_window: int | None = None,
    ) -> None:
        super().__init__(source, graph, fanouts, replace, prob_name)
        window = pre_time_window
        if window is not None and (isinstance(window, bool) or not isinstance(window, int)):
            raise TypeError(f"pre_time_window is {window!r}; expected an int, or None")
        if window is not None and not 0 <= window < 1 << 63:
            raise ValueError(f"pre_time_window is {window}; expected 0 or more, below 2**63")
        if node_timestamp_attr_name is None and edge_timestamp_attr_name is None:
            raise ValueError(
                "neither node_timestamp_attr_name nor edge_timestamp_attr_name is given, so edges "
                "later than their seeds would be drawn; name an attribute, or use sample_neighbor"
            )
        for domain, name in (
            ("node", node_timestamp_attr_name),
            ("edge", edge_timestamp_attr_name),
        ):
            if name is not None:
                graph.attribute_array(domain, name, np.int64)
        self.node_time_name = node_timestamp_attr_name
        self.edge_time_name = edge_timestamp_attr_name
        self.pre_time_window = window

    def rule(self, key: tuple[int, int, int], hop: int, fanouts: Array) -> HopRule:
        """How a hop draws: see `HopSampler.rule`."""
        return dataclasses.replace(
            super().rule(key, hop, fanouts),
            node_time_name=self.node_time_name,
            edge_time_name=self.edge_time_name,
        )

    def times(
        self, minibatch: MiniBatch, seeds: FusedSeeds
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Time and first time of the window of each seed node, where the seeds' nodes are.

        Raises:
            ValueError: the mini-batch has no timestamp, or not one for each seed.
        """
        if minibatch.timestamp is None:
            raise ValueError(
                "the mini-batch has no timestamp; name a column of the item set 'timestamp'"
            )
        times = _of_nodes(minibatch, minibatch.timestamp, seeds, "timestamp")
        windows: Any = minibatch.extra.get("pre_time_window")
        if windows is not None:
            windows = _of_nodes(minibatch, windows, seeds, "pre_time_window")
            if len(windows) and int(windows.min()) < 0:
                raise ValueError(f"pre_time_window is {int(windows.min())}; expected 0 or more")
        elif self.pre_time_window is not None:
            windows = torch.full_like(times, self.pre_time_window)
        else:
            return times, None
        # The first time after times - windows, which may lie below all int64.
        before = times - windows
        earliest = torch.where(before > times, int(ANY_TIME), before + 1)
        # Without a host read: a mask would be one on a GPU.
        last = torch.iinfo(torch.int64).max
        return times, torch.where(windows == 0, last, earliest)

    def settings(self) -> dict[str, Any]:
        """Everything that decides what is sampled."""
        return {
            **super().settings(),
            "node_timestamp_attr_name": self.node_time_name,
            "edge_timestamp_attr_name": self.edge_time_name,
            "pre_time_window": self.pre_time_window,
        }


class TemporalLayerNeighborSampler(SharedVariates, TemporalNeighborSampler):
    """LABOR on what each seed may know; `chain.temporal_sample_layer_neighbor(...)`.

    As `TemporalNeighborSampler`, with the variates of `LayerNeighborSampler`.

    Args:
        source: the chain before it.
        graph: the graph to sample.
        fanouts: as in `NeighborSampler`.
        replace: draw with replacement.
        prob_name: edge attribute of weights, as in `NeighborSampler`.
        node_timestamp_attr_name: node attribute of integers: when each node comes to be.
        edge_timestamp_attr_name: edge attribute of integers: when each edge comes to be.
        pre_time_window: length of the window of all seeds.
        layer_dependency: as in `LayerNeighborSampler`.
        batch_dependency: as in `LayerNeighborSampler`.

    Raises:
        TypeError, ValueError: an argument of wrong kind, number or value.
        KeyError: the graph has no attribute of that name.
    """

    def __init__(
        self,
        source: Any,
        graph: FusedCSCSamplingGraph,
        fanouts: Sequence[Any],
        replace: bool = False,
        prob_name: str | None = None,
        node_timestamp_attr_name: str | None = None,
        edge_timestamp_attr_name: str | None = None,
        pre_time_window: int | None = None,
        layer_dependency: bool = False,
        batch_dependency: int = 1,
    ) -> None:
        self.share_variates(layer_dependency, batch_dependency)
        TemporalNeighborSampler.__init__(
            self, source, graph, fanouts, replace, prob_name, node_timestamp_attr_name,
            edge_timestamp_attr_name, pre_time_window,
        )  # fmt: skip


def _of_nodes(minibatch: MiniBatch, column: Any, seeds: FusedSeeds, what: str) -> torch.Tensor:
    """int64[n]: a column of the mini-batch, one value for each seed, spread to the seed nodes.

    Raises:
        TypeError: not integers, or by type where the seeds are not.
        ValueError: the number of values fits neither the seeds nor the positive ones.
    """
    if isinstance(column, dict) != isinstance(minibatch.seeds, dict):
        raise TypeError(f"{what} and seeds must both come by type, or both as one tensor")
    device = seeds.nodes.device
    parts = [torch.empty(0, dtype=torch.int64, device=device)]
    for kind, count, ends in seeds.parts:
        values = column if kind is None else column.get(kind)
        # Of edge seeds some may be negatives, which have the time of their positive.
        times = _times(values, count, what, kind, seeds.two_dimensional).to(device)
        parts.append(times.repeat_interleave(ends))
    return torch.cat(parts)


def _times(values: Any, count: int, what: str, kind: str | None, negatives: bool) -> torch.Tensor:
    """int64[count]; with negatives, values may be those of the positive seeds alone."""
    of = "" if kind is None else f" of type {kind!r}"
    if not isinstance(values, torch.Tensor) or values.dim() != 1 or not holds_integers(values):
        shown: Any = type(values).__name__
        if isinstance(values, torch.Tensor):
            shown = f"{values.dtype} of shape {tuple(values.shape)}"
        raise TypeError(f"{what}{of} is {shown}; expected a tensor of integers, one for each seed")
    check_values(values, f"{what}{of}")
    values = values.detach()
    if values.dtype == torch.uint64:
        values = torch.from_numpy(as_times(values.cpu(), f"{what}{of}"))
    times: torch.Tensor = values.to(torch.int64)
    if len(times) == count:
        return times
    if not negatives or len(times) == 0 or count == 0 or count % len(times):
        raise ValueError(
            f"{what}{of} has {len(times)} values for {count} seeds; expected one for each seed"
            + (", or one for each positive seed" if negatives else "")
        )
    return torch.cat((times, times.repeat_interleave(count // len(times) - 1)))
