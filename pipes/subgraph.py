"""SampledSubgraph and Block: one hop of message passing, in compressed sparse columns."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from hopline.pipes.checks import check_count, check_integers
from hopline.pipes.edges import Edges, check_edges, unlisted_edges
from hopline.pipes.etypes import etype_str_to_tuple
from hopline.pipes.features.rows import gather
from hopline.pipes.kernels.dispatch import on_device
from hopline.pipes.move import move_fields
from hopline.pipes.pinning import is_pinned
from hopline.pipes.tensor_functions import expand_indptr

__all__ = [
    "Block",
    "CSCFormatBase",
    "PyGLayerData",
    "SampledSubgraph",
    "SampledSubgraphImpl",
    "trusted_csc",
]

Ids = torch.Tensor | dict[str, torch.Tensor]


def _check_arrays(indptr: Any, indices: Any) -> None:
    if not isinstance(indptr, torch.Tensor) or not isinstance(indices, torch.Tensor):
        raise TypeError(
            f"indptr is a {type(indptr).__name__}, indices a {type(indices).__name__}; expected "
            "two torch.Tensors"
        )
    for name, value in (("indptr", indptr), ("indices", indices)):
        check_integers(value, name)


@dataclass(slots=True)
class CSCFormatBase:
    """Edges of one type: the sources of column i are `indices[indptr[i]:indptr[i + 1]]`.

    Attributes:
        indptr: int64[num_columns + 1].
        indices: integer[num_edges]. Positions in the source list once relabelled.

    Raises:
        TypeError: not two tensors of integers.
        ValueError: not of one dimension, or the last pointer is not the number of edges (looked at
            on the CPU only).
    """

    indptr: torch.Tensor
    indices: torch.Tensor

    def __post_init__(self) -> None:
        _check_arrays(self.indptr, self.indices)
        if self.indptr.device.type != "cpu" or on_device(self.indptr):
            return  # a look would wait for the device
        if len(self.indptr) == 0 or int(self.indptr[-1]) != len(self.indices):
            last = int(self.indptr[-1]) if len(self.indptr) else "missing"
            raise ValueError(
                f"the last entry of indptr is {last}, but there are {len(self.indices)} indices; "
                "expected their number"
            )

    def to(self, device: torch.device | str, non_blocking: bool = False) -> CSCFormatBase:
        """The same edges on a device, or in "pinned" memory."""
        moved: CSCFormatBase = move_fields(self, device, non_blocking)
        return moved

    def pin_memory(self) -> CSCFormatBase:
        """The same edges in page-locked memory; RuntimeError where there is no GPU."""
        return self.to("pinned")

    def is_pinned(self) -> bool:
        """Whether the tensors are in page-locked memory."""
        return is_pinned([self.indptr, self.indices])

    def __repr__(self) -> str:
        return f"CSCFormatBase(columns={len(self.indptr) - 1}, edges={len(self.indices)})"


def trusted_csc(indptr: torch.Tensor, indices: torch.Tensor) -> CSCFormatBase:
    """A `CSCFormatBase` of arrays that a kernel has written, without a look at them."""
    csc = object.__new__(CSCFormatBase)
    csc.indptr, csc.indices = indptr, indices
    return csc


class PyGLayerData(NamedTuple):
    """What a bipartite layer of PyTorch Geometric takes: `conv(x, edge_index, size=size)`.

    Attributes:
        x: [num_src, ...] and [num_dst, ...], features of sources and of destinations; by type,
            `{node type: features}` twice.
        edge_index: int64[2, num_edges], rows source and destination; or `{edge type: edge_index}`.
        size: (num_src, num_dst); or `{edge type: size}`.
    """

    x: tuple[Any, Any]
    edge_index: torch.Tensor | dict[str, torch.Tensor]
    size: tuple[int, int] | dict[str, tuple[int, int]]


@dataclass(slots=True)
class SampledSubgraph:
    """What one hop of sampling found; a dict by type throughout when the graph is heterogeneous.

    Destinations are a prefix of the sources (of their type): sources are numbered destinations
    first, then by first occurrence.

    Attributes:
        sampled_csc: the edges, `indices` being positions in the source list of the edge type's
            source type; or `{edge type: edges}` for every edge type, in the order of their ids.
        original_column_node_ids: integer[num_columns], destinations; or `{node type: ids}`.
        original_row_node_ids: integer[num_rows], sources; or `{node type: ids}`. None before
            relabelling: indices are original ids then.
        original_edge_ids: int64[num_edges], each edge's number in the input if the graph keeps it,
            else its position in CSC order; or `{edge type: ids}`; or None.
    """

    sampled_csc: CSCFormatBase | dict[str, CSCFormatBase]
    original_column_node_ids: Ids | None = None
    original_row_node_ids: Ids | None = None
    original_edge_ids: Ids | None = None

    def to(self, device: torch.device | str, non_blocking: bool = False) -> SampledSubgraph:
        """The same subgraph on a device, or in "pinned" memory."""
        moved: SampledSubgraph = move_fields(self, device, non_blocking)
        return moved

    def pin_memory(self) -> SampledSubgraph:
        """The same subgraph in page-locked memory; RuntimeError where there is no GPU."""
        return self.to("pinned")

    def is_pinned(self) -> bool:
        """Whether the tensors are in page-locked memory."""
        return is_pinned([getattr(self, f.name) for f in dataclasses.fields(self)])

    def block(self) -> Block | dict[str, Block]:
        """What a layer takes: one block, or one for each edge type."""
        if isinstance(self.sampled_csc, dict):
            blocks = {}
            for name, csc in self.sampled_csc.items():
                source, _, destination = etype_str_to_tuple(name)
                blocks[name] = self._block(csc, source, destination, name)
            return blocks
        return self._block(self.sampled_csc, None, None, None)

    def _block(
        self, csc: CSCFormatBase, source: str | None, destination: str | None, name: str | None
    ) -> Block:
        if self.original_row_node_ids is None or self.original_column_node_ids is None:
            raise ValueError(
                "the subgraph's indices are original ids, not rows; number them first, e.g. by "
                "unique_and_compact_csc_formats"
            )
        return Block(
            csc.indptr,
            csc.indices,
            len(_of(self.original_row_node_ids, source)),
            len(_of(self.original_column_node_ids, destination)),
            _of(self.original_edge_ids, name),
        )

    def exclude_edges(
        self, edges: Edges, assume_num_node_within_int32: bool = True
    ) -> SampledSubgraph:
        """The same hop without some edges; the node lists stay as they are.

        Parallel edges of a pair all go. A destination may be left without any edge.

        Args:
            edges: integer[N, 2], rows (source, destination) of original ids; or
                `{edge type: integer[N, 2]}`, types without an entry keep all edges, and types that
                the subgraph lacks have none to lose.
            assume_num_node_within_int32: accepted for GraphBolt's scripts; ids of any size work.

        Raises:
            TypeError: edges come by type and the subgraph's do not, or the reverse; not integers.
            ValueError: edges are not of shape [N, 2], or the subgraph is damaged.
        """
        if isinstance(self.sampled_csc, dict) != isinstance(edges, dict):
            raise TypeError(
                "the edges to exclude come by type, but the subgraph has no types; pass one tensor"
                if isinstance(edges, dict)
                else "the edges to exclude are not by type, but the subgraph's are; pass {edge "
                "type: tensor}"
            )
        if isinstance(edges, dict):
            assert isinstance(self.sampled_csc, dict)
            cscs, edge_ids = dict(self.sampled_csc), self.original_edge_ids
            if edge_ids is not None:
                edge_ids = dict(edge_ids)
            for name, pairs in edges.items():
                listed = check_edges(pairs, f"edges of type {name!r} to exclude")
                if name in cscs:
                    cscs[name], ids = self._without(listed, name)
                    if edge_ids is not None:
                        edge_ids[name] = ids
            return dataclasses.replace(self, sampled_csc=cscs, original_edge_ids=edge_ids)
        csc, ids = self._without(check_edges(edges, "edges to exclude"), None)
        return dataclasses.replace(self, sampled_csc=csc, original_edge_ids=ids)

    def _without(self, listed: torch.Tensor, name: str | None) -> tuple[CSCFormatBase, Any]:
        """Edges of one type that are not listed, and their ids."""
        source, _, destination = (None,) * 3 if name is None else etype_str_to_tuple(name)
        csc: Any = _of(self.sampled_csc, name)
        edge_ids = _of(self.original_edge_ids, name)
        found = unlisted_edges(
            csc.indptr,
            csc.indices,
            _of(self.original_row_node_ids, source),
            _of(self.original_column_node_ids, destination),
            listed,
        )
        if found is None:
            return csc, edge_ids
        indptr, kept = found
        csc = CSCFormatBase(indptr.to(csc.indptr.device), _pick(csc.indices, kept))
        return csc, None if edge_ids is None else _pick(edge_ids, kept)

    def to_pyg(self, x: Any) -> PyGLayerData:
        """The hop as a layer of PyTorch Geometric takes it; edges keep their order.

        Args:
            x: tensor of num_src rows; or `{node type: tensor}`, a row for each source of the type.

        Raises:
            TypeError: x comes by type and the subgraph does not, or the reverse.
            ValueError: x lacks a node type, or has another number of rows than there are sources.

        >>> csc = CSCFormatBase(torch.tensor([0, 1, 2]), torch.tensor([2, 0]))
        >>> ids = torch.tensor([4, 5, 6])
        >>> hop = SampledSubgraph(csc, ids[:2], ids, torch.tensor([0, 1]))
        >>> x, edge_index, size = hop.to_pyg(torch.ones(3, 8))
        >>> [part.shape[0] for part in x], edge_index.tolist(), size
        ([3, 2], [[2, 0], [0, 1]], (3, 2))
        """
        if isinstance(self.sampled_csc, dict) != isinstance(x, dict):
            raise TypeError(
                f"x is a {type(x).__name__}, the subgraph's edges a "
                f"{type(self.sampled_csc).__name__}; expected both by type or neither"
            )
        if not isinstance(self.sampled_csc, dict):
            _check_rows(x, self.original_row_node_ids, None)
            size = len(x), len(self.sampled_csc.indptr) - 1
            return PyGLayerData((x, x[: size[1]]), _edge_index(self.sampled_csc), size)
        edge_index, sizes, destinations = {}, {}, {}
        for name, csc in self.sampled_csc.items():
            source, _, destination = etype_str_to_tuple(name)
            for kind in (source, destination):
                _check_rows(x.get(kind), self.original_row_node_ids, kind)
            sizes[name] = len(x[source]), len(csc.indptr) - 1
            edge_index[name] = _edge_index(csc)
            destinations[destination] = x[destination][: sizes[name][1]]
        return PyGLayerData((x, destinations), edge_index, sizes)

    def __repr__(self) -> str:
        return f"SampledSubgraph({self.sampled_csc})"


SampledSubgraphImpl = SampledSubgraph  # GraphBolt's name for the class of these objects


def _edge_index(csc: CSCFormatBase) -> torch.Tensor:
    """int64[2, num_edges], source and destination of each edge."""
    destinations = expand_indptr(csc.indptr, torch.int64, output_size=len(csc.indices))
    return torch.stack((csc.indices.to(torch.int64), destinations))


def _check_rows(x: Any, rows: Any, kind: str | None) -> None:
    where = "" if kind is None else f" of type {kind!r}"
    if not isinstance(x, torch.Tensor):
        raise ValueError(f"x{where} is a {type(x).__name__}; expected one row for each source")
    if x.dim() == 0:
        raise ValueError(f"x{where} has shape (); expected one row for each source")
    if rows is not None and len(x) != len(_of(rows, kind)):
        raise ValueError(f"x{where} has {len(x)} rows for {len(_of(rows, kind))} sources")


def _of(ids: Any, key: str | None) -> torch.Tensor:
    tensor: torch.Tensor = ids if key is None or ids is None else ids[key]
    return tensor


def _pick(values: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    if values.device.type == "cpu":
        return gather(values.contiguous(), kept.numpy())
    return values[kept.to(values.device)]


@dataclass(slots=True)
class Block:
    """The bipartite graph of one layer: messages go from source rows to destination rows.

    With one node type, the first `num_dst_nodes()` source rows are the destination rows.

    Attributes:
        indptr: int64[num_dst + 1].
        indices: int32[num_edges], source row of each edge.
        num_src: number of source rows.
        num_dst: number of destination rows.
        original_edge_ids: int64[num_edges], as in `SampledSubgraph`.

    Raises:
        TypeError: not two tensors of integers, or a number of rows is no int.
        ValueError: not of one dimension, a number of rows is negative, or there is not one pointer
            more than destinations.
    """

    indptr: torch.Tensor
    indices: torch.Tensor
    num_src: int
    num_dst: int
    original_edge_ids: torch.Tensor | None = None

    def __post_init__(self) -> None:
        _check_arrays(self.indptr, self.indices)
        check_count(self.num_src, "num_src")
        if len(self.indptr) != check_count(self.num_dst, "num_dst") + 1:
            raise ValueError(
                f"indptr has shape {tuple(self.indptr.shape)} for {self.num_dst} destinations; "
                "expected one entry more"
            )

    def num_src_nodes(self) -> int:
        """Number of source rows."""
        return self.num_src

    def num_dst_nodes(self) -> int:
        """Number of destination rows."""
        # Not num_dst: torch.compile follows sizes of tensors better than numbers beside them.
        return len(self.indptr) - 1

    def num_edges(self) -> int:
        """Number of edges."""
        return len(self.indices)

    @property
    def device(self) -> torch.device:
        """Where the block's tensors are."""
        return self.indices.device

    def in_degrees(self) -> torch.Tensor:
        """int64[num_dst], edges that end in each destination row."""
        return torch.diff(self.indptr)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Block:
        """The same block on a device, or in "pinned" memory."""
        moved: Block = move_fields(self, device, non_blocking)
        return moved

    def pin_memory(self) -> Block:
        """The same block in page-locked memory; RuntimeError where there is no GPU."""
        return self.to("pinned")

    def is_pinned(self) -> bool:
        """Whether the tensors are in page-locked memory."""
        return is_pinned([self.indptr, self.indices, self.original_edge_ids])

    def __repr__(self) -> str:
        return f"Block(src={self.num_src}, dst={self.num_dst}, edges={len(self.indices)})"
