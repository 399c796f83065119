"""FusedCSCSamplingGraph: the graph that samplers read, in compressed sparse columns.

A column is a destination: `indices[csc_indptr[v]:csc_indptr[v + 1]]` are the sources of v's
in-edges. A heterogeneous graph is one graph too: nodes of type i have the fused ids
`[node_type_offset[i], node_type_offset[i + 1])`, and the edges of a column are sorted by type.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hopline.pipes.checks import (
    check_array,
    check_graph_arrays,
    check_mapping,
    check_name,
    check_rows,
)
from hopline.pipes.edges import has_edges
from hopline.pipes.graph_attributes import AttributeArrays, find_attribute
from hopline.pipes.hop import Hop, HopRule, sample_hop
from hopline.pipes.kernels import cpu, typed
from hopline.pipes.parallel_edges import ParallelEdges
from hopline.pipes.placement import host_array, sampling_device
from hopline.pipes.relabel import NodeTablePool
from hopline.pipes.residence import Residence
from hopline.pipes.sending import SharedCopies
from hopline.pipes.snapshot import Snapshot

if TYPE_CHECKING:
    from hopline.pipes.device_table import DeviceTablePool
    from hopline.pipes.subgraph import SampledSubgraph

__all__ = ["ORIGINAL_EDGE_ID", "FusedCSCSamplingGraph"]

ORIGINAL_EDGE_ID = "_ORIGINAL_EDGE_ID"
NO_ORDER = np.empty(0, np.int64)
HUGE = 1 << 31  # nodes or edges that are not all looked at for a single question

Array = np.ndarray[Any, Any]


class FusedCSCSamplingGraph:
    """A graph for sampling; made by `fused_csc_sampling_graph`, `from_coo` or `load`.

    Attributes:
        csc_indptr: int64[num_nodes + 1], where each column begins in indices.
        indices: int32[num_edges], or int64 above 2**31 - 1 nodes.
        node_type_offset: int64[num_node_types + 1], or None for a homogeneous graph.
        type_per_edge: integer[num_edges], or None.
        node_type_to_id: `{node type: id}`, ids 0, 1, ..., or None.
        edge_type_to_id: `{"source:relation:destination": id}`, or None.
        node_attributes: `{name: tensor of num_nodes rows}`, or None.
        edge_attributes: `{name: tensor of num_edges rows in CSC order}`, or None.

    Raises:
        TypeError: an array is no tensor of its dtype, or types or attributes are not in a dict.
        ValueError: an array is not of one dimension, or csc_indptr is empty.
    """

    def __init__(
        self,
        csc_indptr: torch.Tensor,
        indices: torch.Tensor,
        node_type_offset: torch.Tensor | None = None,
        type_per_edge: torch.Tensor | None = None,
        node_type_to_id: Mapping[str, int] | None = None,
        edge_type_to_id: Mapping[str, int] | None = None,
        node_attributes: Mapping[str, torch.Tensor] | None = None,
        edge_attributes: Mapping[str, torch.Tensor] | None = None,
        *,
        path: Path | None = None,
    ) -> None:
        # What is in the arrays is the makers' matter.
        check_array(csc_indptr, "csc_indptr", (torch.int64,), 1)
        check_array(indices, "indices", (torch.int32, torch.int64), 0)
        check_mapping(node_type_to_id, "node_type_to_id", "{type: id}")
        check_mapping(edge_type_to_id, "edge_type_to_id", "{type: id}")
        check_mapping(node_attributes, "node_attributes", "{name: tensor}")
        check_mapping(edge_attributes, "edge_attributes", "{name: tensor}")
        self.csc_indptr = csc_indptr
        self.indices = indices
        self.node_type_offset = node_type_offset
        self.type_per_edge = type_per_edge
        self.node_type_to_id = dict(node_type_to_id) if node_type_to_id is not None else None
        self.edge_type_to_id = dict(edge_type_to_id) if edge_type_to_id is not None else None
        self.node_attributes = dict(node_attributes) if node_attributes is not None else None
        self.edge_attributes = dict(edge_attributes) if edge_attributes is not None else None
        # Where the kernels of GPUs read the arrays.
        self.residence = Residence()
        self._path = path
        self._loaded = self._tensors()
        # What kernels read in place of attributes.
        self._arrays = AttributeArrays()
        self._checked: tuple[Snapshot, int] | None = None  # indices, and the nodes they are among
        self._checked_types: Snapshot | None = None  # csc_indptr and type_per_edge
        self.parallel_edges = ParallelEdges()

    @property
    def csc_indptr(self) -> torch.Tensor:
        """Where each column begins in `indices`."""
        return self._csc_indptr

    @csc_indptr.setter
    def csc_indptr(self, value: torch.Tensor) -> None:
        self._csc_indptr = value
        # Tables have a slot for each node: another number of nodes needs other tables.
        self.node_tables = NodeTablePool(len(value) - 1)
        self._device_tables: DeviceTablePool | None = None

    @property
    def device_tables(self) -> DeviceTablePool:
        """As `node_tables`, for GPUs."""
        pool = self._device_tables
        if pool is None:
            from hopline.pipes.device_table import DeviceTablePool

            pool = self._device_tables = DeviceTablePool(self.total_num_nodes)
        return pool

    # -----------------------------------------------------------------------------------------
    # Sizes

    @property
    def total_num_nodes(self) -> int:
        """Number of nodes of all types."""
        return len(self.csc_indptr) - 1

    @property
    def total_num_edges(self) -> int:
        """Number of edges of all types."""
        return len(self.indices)

    @property
    def is_heterogeneous(self) -> bool:
        """Whether nodes and edges have types."""
        return self.node_type_to_id is not None

    @property
    def num_nodes(self) -> int | dict[str, int]:
        """Number of nodes; `{type: number}` when heterogeneous."""
        if self.node_type_to_id is None:
            return self.total_num_nodes
        assert self.node_type_offset is not None
        sizes = torch.diff(self.node_type_offset).tolist()
        return {name: int(sizes[i]) for name, i in self.node_type_to_id.items()}

    @property
    def num_edges(self) -> int | dict[str, int]:
        """Number of edges; `{type: number}` when heterogeneous."""
        if self.edge_type_to_id is None:
            return self.total_num_edges
        assert self.type_per_edge is not None
        counts = np.bincount(host_array(self.type_per_edge), minlength=len(self.edge_type_to_id))
        return {name: int(counts[i]) for name, i in self.edge_type_to_id.items()}

    # -----------------------------------------------------------------------------------------
    # Attributes

    def node_attribute(self, name: str | None) -> torch.Tensor | None:
        """The node attribute of that name; None for None.

        Raises:
            KeyError: there is no such attribute.
        """
        return find_attribute(self.node_attributes, name, "node")

    def edge_attribute(self, name: str | None) -> torch.Tensor | None:
        """The edge attribute of that name, in CSC order; None for None.

        Raises:
            KeyError: there is no such attribute.
        """
        return find_attribute(self.edge_attributes, name, "edge")

    def add_node_attribute(self, name: str, value: torch.Tensor) -> None:
        """Adds or replaces a node attribute.

        Args:
            name: its name.
            value: tensor of num_nodes rows, in fused order.

        Raises:
            TypeError: the name is no string, or the value no tensor.
            ValueError: wrong number of rows.
        """
        check_name(name, "the attribute's name")
        check_rows(value, self.total_num_nodes, f"node attribute {name!r}")
        self.node_attributes = {**(self.node_attributes or {}), name: value}

    def add_edge_attribute(self, name: str, value: torch.Tensor) -> None:
        """Adds or replaces an edge attribute.

        Args:
            name: its name.
            value: tensor of num_edges rows, in CSC order.

        Raises:
            TypeError: the name is no string, or the value no tensor.
            ValueError: wrong number of rows.
        """
        check_name(name, "the attribute's name")
        check_rows(value, self.total_num_edges, f"edge attribute {name!r}")
        self.edge_attributes = {**(self.edge_attributes or {}), name: value}

    # -----------------------------------------------------------------------------------------
    # Sampling

    @property
    def num_edge_types(self) -> int:
        """Number of edge types; 1 when homogeneous."""
        return 1 if self.edge_type_to_id is None else len(self.edge_type_to_id)

    def sample_one_hop(
        self,
        columns: Array,
        node_ids: Array,
        rule: HopRule,
        times: Array | None = None,
        earliest: Array | None = None,
    ) -> Hop:
        """Draws in-edges of each column; see `hopline.pipes.hop.sample_hop`."""
        return sample_hop(self, columns, node_ids, rule, times, earliest)

    def has_edges(self, sources: Array, columns: Array, edge_type: int = 0) -> Array:
        """bool[n]: whether each source has an edge to its column; see `pipes.edges.has_edges`."""
        return has_edges(self, sources, columns, edge_type)

    def sample_neighbors(
        self,
        seeds: torch.Tensor | dict[str, torch.Tensor],
        fanouts: Any,
        replace: bool = False,
        probs_name: str | None = None,
        *,
        random_seed: int | None = None,
    ) -> SampledSubgraph:
        """One hop by `NeighborSampler`, for nodes; see `hopline.pipes.graph_sampling`."""
        from hopline.pipes.graph_sampling import sample_once
        from hopline.pipes.stages.neighbor import NeighborSampler

        return sample_once(
            NeighborSampler, self, seeds, fanouts, random_seed, replace=replace,
            prob_name=probs_name,
        )  # fmt: skip

    def sample_layer_neighbors(
        self,
        seeds: torch.Tensor | dict[str, torch.Tensor],
        fanouts: Any,
        replace: bool = False,
        probs_name: str | None = None,
        *,
        random_seed: int | None = None,
    ) -> SampledSubgraph:
        """One hop by `LayerNeighborSampler`, for nodes; see `hopline.pipes.graph_sampling`."""
        from hopline.pipes.graph_sampling import sample_once
        from hopline.pipes.stages.layer import LayerNeighborSampler

        return sample_once(
            LayerNeighborSampler, self, seeds, fanouts, random_seed, replace=replace,
            prob_name=probs_name,
        )  # fmt: skip

    def temporal_sample_neighbors(
        self,
        seeds: torch.Tensor | dict[str, torch.Tensor],
        seeds_timestamp: torch.Tensor | dict[str, torch.Tensor],
        fanouts: Any,
        replace: bool = False,
        seeds_pre_time_window: torch.Tensor | dict[str, torch.Tensor] | None = None,
        probs_name: str | None = None,
        node_timestamp_attr_name: str | None = None,
        edge_timestamp_attr_name: str | None = None,
        *,
        random_seed: int | None = None,
    ) -> SampledSubgraph:
        """One hop by `TemporalNeighborSampler`; see `hopline.pipes.graph_sampling`."""
        from hopline.pipes.graph_sampling import sample_once
        from hopline.pipes.stages.temporal import TemporalNeighborSampler

        return sample_once(
            TemporalNeighborSampler, self, seeds, fanouts, random_seed, seeds_timestamp,
            seeds_pre_time_window, replace=replace, prob_name=probs_name,
            node_timestamp_attr_name=node_timestamp_attr_name,
            edge_timestamp_attr_name=edge_timestamp_attr_name,
        )  # fmt: skip

    def temporal_sample_layer_neighbors(
        self,
        seeds: torch.Tensor | dict[str, torch.Tensor],
        seeds_timestamp: torch.Tensor | dict[str, torch.Tensor],
        fanouts: Any,
        replace: bool = False,
        seeds_pre_time_window: torch.Tensor | dict[str, torch.Tensor] | None = None,
        probs_name: str | None = None,
        node_timestamp_attr_name: str | None = None,
        edge_timestamp_attr_name: str | None = None,
        *,
        random_seed: int | None = None,
    ) -> SampledSubgraph:
        """One hop by `TemporalLayerNeighborSampler`; see `hopline.pipes.graph_sampling`."""
        from hopline.pipes.graph_sampling import sample_once
        from hopline.pipes.stages.temporal import TemporalLayerNeighborSampler

        return sample_once(
            TemporalLayerNeighborSampler, self, seeds, fanouts, random_seed, seeds_timestamp,
            seeds_pre_time_window, replace=replace, prob_name=probs_name,
            node_timestamp_attr_name=node_timestamp_attr_name,
            edge_timestamp_attr_name=edge_timestamp_attr_name,
        )  # fmt: skip

    def in_subgraph(self, nodes: torch.Tensor | dict[str, torch.Tensor]) -> SampledSubgraph:
        """All in-edges of some nodes, in their order; see `hopline.pipes.graph_sampling`."""
        return self.sample_neighbors(nodes, -1, random_seed=0)

    def sample_negative_edges_uniform(
        self,
        edge_type: str | None,
        node_pairs: torch.Tensor,
        negative_ratio: int,
        *,
        random_seed: int | None = None,
    ) -> torch.Tensor:
        """The pairs, then as many negatives of each; see `hopline.pipes.graph_sampling`."""
        from hopline.pipes.graph_sampling import sample_negative_pairs

        return sample_negative_pairs(self, edge_type, node_pairs, negative_ratio, random_seed)

    def attribute_array(self, domain: str, name: str, dtype: Any = None) -> Array:
        """An attribute of one number a row, as an array that kernels read.

        Args:
            domain: "node" or "edge".
            name: its name.
            dtype: np.int64 for times; None for weights of any dtype that kernels know, which
                float16 and bfloat16 are converted to.

        Raises:
            KeyError: there is no such attribute.
            TypeError: its dtype is complex, or not of integers where dtype asks for them.
            ValueError: it has more than one number a row, or another number of rows; or the
                domain is neither.
        """
        return self._arrays.get(self, domain, name, dtype)

    @property
    def id_dtype(self) -> torch.dtype:
        """Of node ids, fused or within a type: int32 or int64."""
        return self.indices.dtype

    def node_times(self, name: str) -> Array:
        """int64[num_nodes]: an attribute of integers, by fused id; raises as `attribute_array`."""
        return self.attribute_array("node", name, np.int64)

    def check(self) -> None:
        """Refuses arrays that no kernel may be given; samplers call it for each mini-batch.

        Raises:
            TypeError: an array is no tensor, or of a wrong dtype.
            ValueError: an array is of a wrong length, or types do not fit.
        """
        check_graph_arrays(self)
        if not self.is_huge():  # of a huge graph, not all types are looked at for a mini-batch
            self.check_edge_types()

    def sampling_device(self, seeds: Any) -> torch.device | None:
        """The GPU that samples for some seeds; None for the CPU.

        Args:
            seeds: a tensor, or `{type: tensor}`.

        Raises:
            TypeError: seeds are neither.
        """
        if not isinstance(seeds, torch.Tensor | dict):
            raise TypeError(f"seeds are a {type(seeds).__name__}; expected a torch.Tensor")
        return sampling_device(self, seeds)

    def draw_order(self, node_type: str | None) -> np.ndarray[Any, Any]:
        """Ids of a type's nodes in the order in which random draws count them; empty: 0, 1, ...

        Raises:
            KeyError: there is no such type.
        """
        if node_type is not None and node_type not in (self.node_type_to_id or {}):
            raise KeyError(
                f"there is no node type {node_type!r}; the graph has "
                f"{list(self.node_type_to_id or {}) or 'no types'}"
            )
        return NO_ORDER

    def check_indices(self) -> None:
        """Looks once whether all indices name nodes, before a kernel follows them.

        Raises:
            ValueError: one does not: the graph is damaged.
        """
        nodes = self.total_num_nodes
        known = self._checked
        if known is not None and known[0].is_of(self.indices) and known[1] == nodes:
            return
        snapshot = Snapshot(self.indices)
        bad = cpu.first_out_of_range(host_array(self.indices), 0, nodes)
        if bad >= 0:
            raise ValueError(
                f"indices[{bad}] is {int(self.indices[bad])}; expected a node in "
                f"[0, {nodes}): the graph is damaged: {self}"
            )
        self._checked = snapshot, nodes

    def check_edge_types(self) -> None:
        """Looks once whether edge types ascend within each column, before a kernel bisects them.

        Raises:
            ValueError: they do not: the graph is damaged.
        """
        if self.type_per_edge is None or self.num_edge_types < 2:
            return
        arrays = self.csc_indptr, self.type_per_edge
        if self._checked_types is not None and self._checked_types.is_of(*arrays):
            return
        snapshot = Snapshot(*arrays)
        indptr, types = host_array(self.csc_indptr), host_array(self.type_per_edge)
        bad = cpu.first_bad_column(indptr, self.total_num_edges)
        if bad >= 0:
            return  # whoever reads that column refuses it
        bad = typed.first_in_disorder(indptr, types, self.num_edge_types)
        if bad >= 0:
            raise ValueError(
                f"type_per_edge[{bad}] is {int(types[bad])}; expected types below "
                f"{self.num_edge_types} that ascend within a column: the graph is damaged: {self}"
            )
        self._checked_types = snapshot

    def is_huge(self) -> bool:
        """Whether the graph has too many nodes or edges to look at all for a single question."""
        return self.total_num_nodes > HUGE or self.total_num_edges > HUGE

    def has_parallel_edges(self) -> bool:
        """Whether two edges have the same ends; looked at once. Taken for granted of huge graphs.

        Raises:
            ValueError: an index is no node, csc_indptr descends, or types do not ascend within a
                column: the graph is damaged.
        """
        if self.is_huge():
            return True
        self.check_indices()
        return self.parallel_edges.exist(self)

    # -----------------------------------------------------------------------------------------
    # Copies and files

    def to(self, device: torch.device | str | int) -> FusedCSCSamplingGraph:
        """The graph in another place.

        Args:
            device: a GPU, whose kernels then sample; "cpu"; or "pinned": see `pin_memory_`.

        Returns:
            A new graph, which shares the arrays that are there already; this one if it is on the
            device, and not pinned.

        Raises:
            ValueError: there is no such device.
            RuntimeError: Triton is missing, or memory cannot be page-locked.
        """
        from hopline.pipes.placement import move_graph

        return move_graph(self, device)

    def pin_memory_(self) -> FusedCSCSamplingGraph:
        """Page-locks the arrays: a GPU samples for the seeds that are on it.

        Its kernels read host memory, so that the graph takes no memory of the GPU. Big arrays are
        locked where they are, small ones copied, mapped files shared by all processes: see
        `hopline.pipes.page_lock.page_lock`. The locks end with the graph. Attributes of edges and
        nodes are locked when a sampler first reads them.

        Returns:
            This graph.

        Raises:
            ValueError: the graph is on a GPU.
            RuntimeError: torch finds no GPU, or the system does not let as much memory be locked.
        """
        from hopline.pipes.placement import pin_graph

        pin_graph(self)
        return self

    def is_pinned(self) -> bool:
        """Whether the arrays are in page-locked memory."""
        return self.residence.pinned

    def copy_to_shared_memory(self, shared_memory_name: str) -> FusedCSCSamplingGraph:
        """A copy that other processes attach to; see `hopline.pipes.shared_memory`."""
        from hopline.pipes.shared_memory import copy_to_shared_memory

        return copy_to_shared_memory(self, shared_memory_name)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the graph as a folder of .npy files; see `hopline.pipes.graph_files`."""
        from hopline.pipes.graph_files import save_graph

        save_graph(self, path)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, in_memory: bool = False
    ) -> FusedCSCSamplingGraph:
        """Maps the graph of a folder that `save` wrote, or reads it into memory."""
        from hopline.pipes.graph_files import load_graph

        return load_graph(path, in_memory=in_memory)

    @property
    def path(self) -> Path | None:
        """Folder whose files are mapped as this graph; None if it has other arrays as well."""
        now = self._tensors()
        same = now.keys() == self._loaded.keys() and all(
            now[name] is tensor for name, tensor in self._loaded.items()
        )
        return self._path if same else None

    def _tensors(self) -> dict[tuple[str, str], torch.Tensor | None]:
        arrays = ("csc_indptr", "indices", "node_type_offset", "type_per_edge")
        return {
            **{("graph", name): getattr(self, name) for name in arrays},
            **{("node", name): value for name, value in (self.node_attributes or {}).items()},
            **{("edge", name): value for name, value in (self.edge_attributes or {}).items()},
        }

    def __reduce__(self) -> tuple[Any, ...]:
        # A mapped graph travels as its path, so that ranks share the file's pages.
        if self.path is not None:
            return FusedCSCSamplingGraph.load, (self.path,)
        state = (
            self.csc_indptr,
            self.indices,
            self.node_type_offset,
            self.type_per_edge,
            self.node_type_to_id,
            self.edge_type_to_id,
            self.node_attributes,
            self.edge_attributes,
        )
        return FusedCSCSamplingGraph, state

    def _use_shared_memory(self) -> None:
        """Puts copies in shared memory in the place of the arrays; readers keep the old ones."""
        move = SharedCopies()
        # Not by the property: the number of nodes stays, and with it the tables.
        self._csc_indptr, self.indices = move(self._csc_indptr), move(self.indices)
        if self.type_per_edge is not None:
            self.type_per_edge = move(self.type_per_edge)
        if self.node_type_offset is not None:
            self.node_type_offset = move(self.node_type_offset)
        self.node_attributes = move.all_of(self.node_attributes)
        self.edge_attributes = move.all_of(self.edge_attributes)
        if move.moved:  # these refer to the old memory
            self._arrays, self.parallel_edges = AttributeArrays(), ParallelEdges()
            self._checked = None

    def __repr__(self) -> str:
        kind = ""
        if self.node_type_to_id is not None:
            kind = f", node_types={list(self.node_type_to_id)}, edge_types={self.num_edge_types}"
        where = f", path={str(self.path)!r}" if self.path else ""
        if self.is_pinned() or self.indices.device.type != "cpu":
            where += f", {'pinned' if self.is_pinned() else self.indices.device}"
        return (
            f"FusedCSCSamplingGraph(num_nodes={self.total_num_nodes}, "
            f"num_edges={self.total_num_edges}{kind}{where})"
        )


def _reduce_for_process(graph: FusedCSCSamplingGraph) -> tuple[Any, ...]:
    """As `__reduce__`, for a process of this machine."""
    if graph.path is None:
        graph._use_shared_memory()
    return graph.__reduce__()


# What multiprocessing sends by; plain pickle copies the arrays itself.
ForkingPickler.register(FusedCSCSamplingGraph, _reduce_for_process)
