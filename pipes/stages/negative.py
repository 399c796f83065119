"""NegativeSampler, UniformNegativeSampler: edges that are not there, to train against."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from hopline.pipes.checks import as_times, check_ids, holds_integers
from hopline.pipes.edges import check_edges
from hopline.pipes.etypes import etype_str_to_tuple
from hopline.pipes.graph import FusedCSCSamplingGraph
from hopline.pipes.kernels import edges as kernels
from hopline.pipes.minibatch import MiniBatch, check_minibatch
from hopline.pipes.random import Purpose, batch_key, fold
from hopline.pipes.stage import Stage
from hopline.pipes.stages.asked_negatives import draw_by_asking

__all__ = ["NegativeSampler", "UniformNegativeSampler"]

Array = np.ndarray[Any, Any]


class NegativeSampler(Stage):
    """Adds negatives to seeds that are edges; subclasses say which, by `_sample_with_etype`.

    For seeds of shape [B, 2] and a ratio r it sets, for each edge type where seeds come by type:

    - `seeds`, [B * (1 + r), 2], of the dtype they had: the B seeds, then r negatives of the first
      seed, r of the second, and so on. A negative has its seed's source.
    - `labels`, float32: 1 for the seeds, 0 for the negatives. Labels of the item set are replaced.
    - `indexes`, int64: the number of the seed that each row belongs to.
    - `timestamp` and any further column that has a row a seed, e.g. `pre_time_window` or weights:
      each row has that of its seed. Columns of other sizes stay as they are.

    Args:
        source: the chain before it.
        negative_ratio: negatives a seed, 1 or more.

    Raises:
        TypeError: negative_ratio is not an int.
        ValueError: negative_ratio is below 1, or above 2**31 - 1.

    >>> class Next(NegativeSampler):
    ...     def _sample_with_etype(self, etype, pairs, key, timestamp=None):
    ...         return (pairs[:, 1:] + torch.arange(1, self.negative_ratio + 1)) % 10
    >>> from hopline.pipes import ItemSampler, ItemSet
    >>> edges = ItemSet(torch.tensor([[0, 1], [5, 9]]), names="seeds")
    >>> [m.seeds.tolist() for m in ItemSampler(edges, batch_size=1).pipe(Next, 2)]
    [[[0, 1], [0, 2], [0, 3]], [[5, 9], [5, 0], [5, 1]]]
    """

    def __init__(self, source: Any, negative_ratio: int) -> None:
        super().__init__(source)
        if isinstance(negative_ratio, bool) or not isinstance(negative_ratio, int):
            raise TypeError(f"negative_ratio is {negative_ratio!r}; expected an int")
        if negative_ratio < 1:
            raise ValueError(f"negative_ratio is {negative_ratio}; expected 1 or more")
        if negative_ratio >= 1 << 31:
            raise ValueError(f"negative_ratio is {negative_ratio}; expected 2**31 - 1 or less")
        self.negative_ratio = negative_ratio

    def _sample_with_etype(
        self,
        etype: str | None,
        pairs: torch.Tensor,
        key: int,
        timestamp: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Destinations of the negatives of one edge type; the method to override.

        It runs on any thread, for several mini-batches at once. Random draws are to follow from
        the key alone, by `hopline.pipes.random.fold`, so that a mini-batch can be drawn again.

        Args:
            etype: "source:relation:destination", or None for seeds without types.
            pairs: integer[B, 2], the seeds of this type; B may be 0.
            key: 64-bit word, a function of the mini-batch's key and the edge type.
            timestamp: [B], the seeds' times, if the mini-batch has any.

        Returns:
            integer[B * negative_ratio] or [B, negative_ratio], ids within the destination type.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no _sample_with_etype(etype, pairs, key, timestamp)"
        )

    def __call__(self, minibatch: MiniBatch) -> MiniBatch:
        """Adds the negatives of one mini-batch.

        Raises:
            TypeError: seeds, times or the destinations drawn are not tensors of the right kind.
            ValueError: seeds are not edges, the mini-batch has no key or has been sampled already,
                or there are not as many times as seeds.
        """
        seeds = check_minibatch(minibatch, "the negative sampler").seeds
        if seeds is None:
            raise ValueError("the mini-batch has no seeds; name a column of the item set 'seeds'")
        if minibatch.key is None:
            raise ValueError("the mini-batch has no key (seed, epoch, index) to draw by")
        if minibatch.sampled_subgraphs is not None:
            raise ValueError(
                "neighbours have been sampled already, and not for the negatives; put the negative "
                "sampler before the neighbour sampler"
            )
        seed, epoch, index = minibatch.key
        key = batch_key(seed, Purpose.NEGATIVE, epoch, index)
        times = minibatch.timestamp
        if times is not None and isinstance(times, dict) != isinstance(seeds, dict):
            raise TypeError(
                f"seeds are a {type(seeds).__name__}, but timestamp is a {type(times).__name__}; "
                "expected both by edge type, or both as tensors"
            )
        if not isinstance(seeds, dict):
            minibatch.seeds, minibatch.labels, minibatch.indexes, minibatch.timestamp = (
                self._with_negatives(None, seeds, key, times)
            )
            self._repeat_columns(minibatch, {None: len(seeds)})
            return minibatch
        parts = {}
        for etype, pairs in seeds.items():
            if not isinstance(etype, str):
                raise TypeError(f"seeds name the edge type {etype!r}; expected a string")
            # By the name, so that draws depend on no numbering of types.
            typed_key = fold(key, *etype.encode())
            time = times.get(etype) if isinstance(times, dict) else None
            parts[etype] = self._with_negatives(etype, pairs, typed_key, time)
        minibatch.seeds = {etype: part[0] for etype, part in parts.items()}
        minibatch.labels = {etype: part[1] for etype, part in parts.items()}
        minibatch.indexes = {etype: part[2] for etype, part in parts.items()}
        if times is not None:
            minibatch.timestamp = {e: part[3] for e, part in parts.items() if part[3] is not None}
        self._repeat_columns(minibatch, {etype: len(pairs) for etype, pairs in seeds.items()})
        return minibatch

    def _repeat_columns(self, minibatch: MiniBatch, counts: dict[str | None, int]) -> None:
        """Gives negatives what further columns say of their positives, as they have its time.

        Args:
            minibatch: its `extra` is replaced.
            counts: number of positives by edge type, or `{None: number}`.
        """

        def repeated(kind: str | None, value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or not value.dim():
                return value
            if len(value) != counts.get(kind):
                return value
            return torch.cat((value, value.repeat_interleave(self.negative_ratio, dim=0)))

        minibatch.extra = {
            name: {kind: repeated(kind, part) for kind, part in value.items()}
            if isinstance(value, dict)
            else repeated(None, value)
            for name, value in minibatch.extra.items()
        }

    def _with_negatives(
        self, etype: str | None, pairs: Any, key: int, timestamp: Any
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Seeds, labels, indexes and times of one edge type."""
        of_type = "" if etype is None else f" of type {etype!r}"
        pairs = check_edges(pairs, f"seeds{of_type} to draw negatives for")
        count, ratio, device = len(pairs), self.negative_ratio, pairs.device
        if timestamp is not None:
            if not isinstance(timestamp, torch.Tensor):
                raise TypeError(f"timestamp{of_type} is a {type(timestamp).__name__}; expected a "
                                "torch.Tensor")  # fmt: skip
            if timestamp.shape != (count,):
                raise ValueError(
                    f"timestamp{of_type} has shape {tuple(timestamp.shape)} for {count} seeds; "
                    "expected one each"
                )
        drawn = self._sample_with_etype(etype, pairs, key, timestamp)
        destinations = self._checked(drawn, pairs, of_type)
        sources = pairs[:, 0].repeat_interleave(ratio)
        seeds = torch.cat((pairs, torch.stack((sources, destinations), dim=1)))
        labels = torch.zeros(len(seeds), dtype=torch.float32, device=device)
        labels[:count] = 1
        numbers = torch.arange(count, device=device)
        indexes = torch.cat((numbers, numbers.repeat_interleave(ratio)))
        if timestamp is not None:
            timestamp = torch.cat((timestamp, timestamp.repeat_interleave(ratio)))
        return seeds, labels, indexes, timestamp

    def _checked(self, drawn: Any, pairs: torch.Tensor, of_type: str) -> torch.Tensor:
        """Destinations as integer[B * ratio] in the dtype and on the device of the seeds."""
        what = f"{type(self).__name__}._sample_with_etype"
        if not isinstance(drawn, torch.Tensor) or not holds_integers(drawn):
            kind = drawn.dtype if isinstance(drawn, torch.Tensor) else type(drawn).__name__
            raise TypeError(f"{what} gave {kind}{of_type}; expected a torch.Tensor of integers")
        count, ratio = len(pairs), self.negative_ratio
        if tuple(drawn.shape) not in ((count * ratio,), (count, ratio)):
            raise ValueError(
                f"{what} gave shape {tuple(drawn.shape)}{of_type}; expected [{count * ratio}] or "
                f"[{count}, {ratio}]: {ratio} destinations for each of {count} seeds"
            )
        drawn = drawn.reshape(-1)
        largest = torch.iinfo(pairs.dtype).max
        low, high = torch.stack((drawn.min(), drawn.max())).tolist() if len(drawn) else (0, 0)
        if low < 0:
            raise ValueError(
                f"a negative's destination{of_type} is {low}; expected ids within the destination "
                "type, numbered from 0"
            )
        if high > largest:
            raise ValueError(
                f"a negative's destination{of_type} is {high}, which seeds of dtype {pairs.dtype} "
                "cannot hold; use int32 or int64 seeds"
            )
        checked: torch.Tensor = drawn.to(device=pairs.device, dtype=pairs.dtype)
        return checked

    def settings(self) -> dict[str, Any]:
        """How many negatives there are."""
        return {"negative_ratio": self.negative_ratio}


class UniformNegativeSampler(NegativeSampler):
    """Negatives with destinations drawn evenly; `chain.sample_uniform_negative(graph, 5)`.

    Destinations are drawn from all nodes of the destination type; without `exclude_true_edges` a
    negative may be an edge of the graph. `NegativeSampler` says what is set. Draw a of negative n
    is a function of the mini-batch's key, the edge type's name, n and a alone.

    Args:
        source: the chain before it.
        graph: the graph that the edges belong to.
        negative_ratio: negatives a seed, 1 or more.
        exclude_true_edges: never draw a destination that the seed's source has an edge of this type
            to. Costs a look at the in-edges of each destination drawn; of a partitioned graph, the
            owners of the destinations are asked. After 64 draws in vain, destinations are tried in
            turn from a drawn one, with a drawn stride.
        node_timestamp_attr_name: node attribute with the time from which each node exists,
            integers; only nodes whose time is not above the seed's `timestamp` are drawn. The
            sampler keeps the nodes in the order of their times, 16 bytes a node.

    Raises:
        TypeError: graph is no graph, an option is of a wrong type, or times are not integers.
        ValueError: negative_ratio is below 1, or times are not one a node.
        KeyError: the graph has no such attribute.

    >>> from hopline.pipes import ItemSampler, ItemSet, from_coo
    >>> graph = from_coo(torch.tensor([0, 0]), torch.tensor([1, 2]), num_nodes=4)
    >>> source = ItemSampler(ItemSet(torch.tensor([[0, 1]]), "seeds"), batch_size=1, seed=1)
    >>> minibatch = next(iter(source.sample_uniform_negative(graph, 2, exclude_true_edges=True)))
    >>> bool(torch.isin(minibatch.seeds[1:, 1], torch.tensor([0, 3])).all())
    True
    >>> minibatch.labels.tolist(), minibatch.indexes.tolist()
    ([1.0, 0.0, 0.0], [0, 0, 0])
    """

    def __init__(
        self,
        source: Any,
        graph: FusedCSCSamplingGraph,
        negative_ratio: int,
        *,
        exclude_true_edges: bool = False,
        node_timestamp_attr_name: str | None = None,
    ) -> None:
        super().__init__(source, negative_ratio)
        if not hasattr(graph, "sample_one_hop"):
            raise TypeError(
                f"graph is a {type(graph).__name__}; expected a FusedCSCSamplingGraph, e.g. from "
                "from_coo(src, dst, num_nodes)"
            )
        if not isinstance(exclude_true_edges, bool):
            raise TypeError(f"exclude_true_edges is {exclude_true_edges!r}; expected True or False")
        self.graph = graph
        self.exclude_true_edges = exclude_true_edges
        self.node_timestamp_attr_name = node_timestamp_attr_name
        # The times, and what was made of them; and of that, what is on GPUs.
        self._by_time: tuple[Array, dict[str | None, tuple[Array, Array]]] | None = None
        self._order_there: dict[tuple[str | None, torch.device], tuple[Array, torch.Tensor]] = {}
        if node_timestamp_attr_name is not None:
            self._in_time(node_timestamp_attr_name)

    def _in_time(self, name: str) -> dict[str | None, tuple[Array, Array]]:
        """Of each node type, its nodes in the order of their times, and these times.

        Kept, and made anew when the graph's times are others.
        """
        times = self.graph.node_times(name)
        known = self._by_time
        if known is None or known[0] is not times:
            made: dict[str | None, tuple[Array, Array]] = {}
            for kind in self.graph.node_type_to_id or [None]:
                first, count = self._range(kind)
                mine = times[first : first + count]
                draw_order = self.graph.draw_order(kind)
                if len(draw_order):
                    mine = mine[draw_order]
                order = np.argsort(mine, kind="stable")
                made[kind] = draw_order[order] if len(draw_order) else order, mine[order]
            known = self._by_time = times, made
        return known[1]

    def _range(self, kind: str | None) -> tuple[int, int]:
        """First fused id of a node type, and its number of nodes."""
        if kind is None:
            return 0, self.graph.total_num_nodes
        assert self.graph.node_type_to_id is not None
        assert self.graph.node_type_offset is not None
        i = self.graph.node_type_to_id[kind]
        first, end = self.graph.node_type_offset[i : i + 2].tolist()
        return first, end - first

    def _kinds(self, etype: str | None) -> tuple[str | None, str | None]:
        """Node types of the ends of an edge type."""
        known = self.graph.node_type_to_id
        if (etype is None) != (known is None):
            raise TypeError(
                "seeds come by edge type, but the graph has no types; pass one tensor"
                if known is None
                else f"seeds are one tensor, but the graph has node types {list(known)}; pass "
                "{edge type: tensor}"
            )
        if etype is None or known is None:
            return None, None
        source, _, destination = etype_str_to_tuple(etype)
        if unknown := {source, destination} - set(known):
            raise ValueError(
                f"seeds of type {etype!r} name node types {sorted(unknown)}; the graph has "
                f"{list(known)}"
            )
        return source, destination

    def _sample_with_etype(
        self,
        etype: str | None,
        pairs: torch.Tensor,
        key: int,
        timestamp: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Draws destinations evenly among those allowed.

        Raises:
            TypeError: seeds come by type and the graph has none, or the reverse.
            ValueError: a type is unknown, there is no destination to draw, or the graph is damaged.
            IndexError: an end of a seed is not a node.
        """
        self.graph.check()
        kinds = self._kinds(etype)
        (first_source, num_sources), (first, num_nodes) = map(self._range, kinds)
        of_type = "" if etype is None else f" of type {etype!r}"
        device = self.graph.sampling_device(pairs)
        if device is not None:
            return self._draw_on_device(device, etype, pairs, key, timestamp)
        sources = check_ids(pairs[:, 0], num_sources, f"sources of seeds{of_type}", torch.int64)
        check_ids(pairs[:, 1], num_nodes, f"destinations of seeds{of_type}", torch.int64)
        counts, order = self._candidates(len(pairs), kinds[1], num_nodes, of_type, timestamp)
        number = self._edge_type_to_avoid(etype)
        fused = sources.numpy() + first_source
        if self.exclude_true_edges and not isinstance(self.graph, FusedCSCSamplingGraph):
            out, status = draw_by_asking(
                self.graph, key, self.negative_ratio, counts, order, fused, first, number
            )
        else:
            out = np.empty(len(pairs) * self.negative_ratio, np.int64)
            status = kernels.draw_destinations(
                np.uint64(key), self.negative_ratio, counts, order, self.exclude_true_edges, fused,
                first, *self._arrays(), number, out,
            )  # fmt: skip
        if status >= 0:
            raise _without_negative(int(sources[status]), status, int(counts[status]), of_type)
        if status < -1:
            raise ValueError(f"csc_indptr is damaged at node {-2 - status}: {self.graph}")
        return torch.from_numpy(out)

    def _checked(self, drawn: Any, pairs: torch.Tensor, of_type: str) -> torch.Tensor:
        """See `NegativeSampler._checked`; what it drew itself it does not look at again.

        The host would wait for a GPU to do so.
        """
        own = type(self)._sample_with_etype is UniformNegativeSampler._sample_with_etype
        if own and self.graph.total_num_nodes - 1 <= torch.iinfo(pairs.dtype).max:
            checked: torch.Tensor = drawn.to(device=pairs.device, dtype=pairs.dtype)
            return checked
        return super()._checked(drawn, pairs, of_type)

    def _draw_on_device(
        self,
        device: torch.device,
        etype: str | None,
        pairs: torch.Tensor,
        key: int,
        timestamp: torch.Tensor | None,
    ) -> torch.Tensor:
        """The same draws by the kernels of a GPU; the host waits for errors, and for timestamps."""
        from hopline.pipes.host_reads import HostReads
        from hopline.pipes.kernels.cuda import negatives as cuda_kernels

        graph, residence = self.graph, self.graph.residence
        kinds = self._kinds(etype)
        (first_source, num_sources), (first, num_nodes) = map(self._range, kinds)
        of_type = "" if etype is None else f" of type {etype!r}"
        reads = HostReads(device)
        sources, _ = (
            reads.check_ids(pairs[:, end], nodes, f"{what} of seeds{of_type}", torch.int64)
            for end, nodes, what in ((0, num_sources, "sources"), (1, num_nodes, "destinations"))
        )
        counts, order = self._candidates(len(pairs), kinds[1], num_nodes, of_type, timestamp)
        number = self._edge_type_to_avoid(etype)
        edge_types = graph.type_per_edge if self.exclude_true_edges else None
        there = torch.from_numpy(counts).to(device, non_blocking=True)
        out, full, damaged = cuda_kernels.draw_destinations(
            key, self.negative_ratio, there,
            self._order_on_device(kinds[1], order, device) if len(order) else None,
            self.exclude_true_edges, sources + first_source, first,
            residence.array("csc_indptr", graph.csc_indptr, device),
            residence.array("indices", graph.indices, device),
            None if edge_types is None else residence.array("type_per_edge", edge_types, device),
            number,
        )  # fmt: skip
        reads.expect_nothing(
            damaged, lambda v: ValueError(f"csc_indptr is damaged at node {v}: {graph}")
        )
        reads.expect_nothing(
            full, lambda i: _without_negative(int(sources[i]), i, int(counts[i]), of_type)
        )
        reads.read()
        return out

    def _order_on_device(
        self, kind: str | None, order: Array, device: torch.device
    ) -> torch.Tensor:
        """The nodes of a type in the order of their times; kept, once there."""
        known = self._order_there.get((kind, device))
        if known is None or known[0] is not order:
            there = torch.from_numpy(order).to(device)
            known = self._order_there[kind, device] = order, there
        return known[1]

    def _candidates(
        self, pairs: int, kind: str | None, nodes: int, of_type: str, timestamp: torch.Tensor | None
    ) -> tuple[Array, Array]:
        """How many nodes each pair may be given, and the order in which they are counted."""
        name = self.node_timestamp_attr_name
        if name is None or pairs == 0:
            return np.full(pairs, nodes, np.int64), self.graph.draw_order(kind)
        if timestamp is None:
            raise ValueError(
                f"node_timestamp_attr_name is {name!r}, but the mini-batch has no "
                f"timestamp{of_type}; name a column of the item set 'timestamp'"
            )
        if not holds_integers(timestamp):
            raise TypeError(f"timestamp{of_type} has dtype {timestamp.dtype}; expected integers")
        times = as_times(timestamp.cpu(), f"timestamp{of_type}")
        order, known = self._in_time(name)[kind]
        counts = np.searchsorted(known, times, side="right")
        if (counts == 0).any():
            bad = int((counts == 0).argmax())
            since = f"the first exists from {known[0]}" if len(known) else "there are none at all"
            raise ValueError(
                f"no node can be the destination of a negative of seed {bad}{of_type}: its time is "
                f"{times[bad]}, and {since}"
            )
        return counts, order

    def _arrays(self) -> tuple[Array, Array, Array]:
        """Pointers, sources and edge types of the graph; empty where edges are not looked at."""
        if not self.exclude_true_edges:
            return NO_POINTERS, NO_SOURCES, NO_TYPES
        graph = self.graph
        kinds = NO_TYPES if graph.type_per_edge is None else graph.type_per_edge.numpy()
        return graph.csc_indptr.numpy(), graph.indices.numpy(), kinds

    def _edge_type_to_avoid(self, etype: str | None) -> int:
        """Number of the edge type; 0 for a graph without types, or if edges are not looked at."""
        if etype is None or not self.exclude_true_edges:
            return 0
        assert self.graph.edge_type_to_id is not None
        if etype not in self.graph.edge_type_to_id:
            raise ValueError(
                f"exclude_true_edges knows no edges of type {etype!r}; the graph has "
                f"{list(self.graph.edge_type_to_id)}"
            )
        return self.graph.edge_type_to_id[etype]

    def settings(self) -> dict[str, Any]:
        """Everything that decides what is drawn."""
        return {
            **super().settings(),
            "exclude_true_edges": self.exclude_true_edges,
            "node_timestamp_attr_name": self.node_timestamp_attr_name,
            "nodes": self.graph.total_num_nodes,
            "edges": self.graph.total_num_edges,
        }


def _without_negative(source: int, seed: int, nodes: int, of_type: str) -> ValueError:
    return ValueError(
        f"source {source} of seed {seed}{of_type} has an edge to every destination it could be "
        f"given ({nodes} nodes), so it has no negative; leave it out of the seeds, or draw with "
        "exclude_true_edges=False"
    )


NO_POINTERS: Array = np.zeros(1, np.int64)
NO_SOURCES: Array = np.empty(0, np.int64)
NO_TYPES: Array = np.empty(0, np.uint8)
