"""layer_wise_inference: a model's output for all nodes, layer by layer, within a memory bound."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from hopline.models.checks import check_function, check_model
from hopline.models.inference_plan import PREFETCH, LayerRows, Ranges, Sinks
from hopline.models.row_sinks import RowSink
from hopline.models.training import _device_of, _eval_mode, _progress, unwrap
from hopline.pipes.features.feature import Feature
from hopline.pipes.features.tensor import TorchBasedFeature
from hopline.pipes.graph import ORIGINAL_EDGE_ID, FusedCSCSamplingGraph
from hopline.pipes.item_sampler import ItemSampler
from hopline.pipes.items import ItemSet
from hopline.pipes.kernels import cpu
from hopline.pipes.loader import DataLoader
from hopline.pipes.minibatch import MiniBatch
from hopline.pipes.move import check_device
from hopline.pipes.subgraph import Block

__all__ = ["LayerWise", "layer_wise_inference"]

COUNTED_AT_ONCE = 1 << 22  # edges
PROBED_NODES = 1000

ApplyLayer = Callable[[int, Block, torch.Tensor, torch.Tensor], torch.Tensor]


class LayerWise(Protocol):
    """A model whose layers can be applied one by one; `SAGE` is one.

    Attributes:
        layers: the layers; only their number is read.

    A model with an attribute `uses_degrees` that is true is called with one argument more,
    `degrees=(out_degrees, in_degrees)`: int64[num_src] and int64[num_dst], those in the whole graph
    of the block's sources and destinations.
    """

    layers: Any

    def apply_layer(self, i: int, block: Block, x: torch.Tensor) -> torch.Tensor:
        """Applies layer i, and whatever stands between it and the next one.

        Args:
            i: number of the layer.
            block: all in-edges of some nodes, which are the first sources.
            x: [num_src, width].

        Returns:
            [num_dst, width of the next layer's input]. A row may depend on its in-edges alone, not
            on which other destinations are in the block.
        """


def layer_wise_inference(
    model: nn.Module,
    graph: FusedCSCSamplingGraph,
    x: torch.Tensor | Feature,
    *,
    batch_size: int = 4096,
    max_memory: int | None = None,
    device: torch.device | str | None = None,
    out: torch.Tensor | str | os.PathLike[str] | None = None,
    apply_layer: ApplyLayer | None = None,
    num_workers: int = 0,
    scratch_dir: str | os.PathLike[str] | None = None,
    edge_bytes: int = 32,
) -> torch.Tensor:
    """Output of a model for every node, from all neighbours, computing each row of a layer once.

    A layer is computed for all nodes, range by range, before the next one begins: the work is that
    of a pass over the whole graph, and memory holds one range. The model is in evaluation mode
    meanwhile, and then back in the mode in which it was.

    Rows agree with the layers on the whole graph to rounding, for any batch size, and bit for bit
    for any number of workers and either place of what is kept.

    Args:
        model: has `layers` and `apply_layer`, as `hopline.models.inference.LayerWise` says; also in
            DistributedDataParallel.
        graph: homogeneous.
        x: float[num_nodes, width], input rows of all nodes, on any device; or a feature, read by
            rows.
        batch_size: nodes of a range, at most.
        max_memory: bytes. At most half of it holds rows of layers, and what does not fit is kept in
            scratch files; at most half is for the ranges under way, which get as short as that
            takes. What is the caller's (graph, x, out, model) does not count, nor do the 4 bytes a
            node and thread with which the graph numbers nodes. None for no bound.
        device: where layers are computed; by default the device of the model's parameters.
        out: where the result goes: a tensor of its shape, in memory, mapped or on a device; or the
            path of a .npy file, written beside it and renamed. By default a new tensor.
        apply_layer: called with (i, block, x, nodes) instead of the model's own; nodes are the
            original ids of the block's sources, integer[num_src] on the CPU. Before all else it is
            called once a layer with zeros, for the shape of its output.
        num_workers: threads that prepare ranges while the layer is computed.
        scratch_dir: folder of the scratch files, on a disk with room for the rows of two layers; by
            default the system's. They never outlive the call, nor the process.
        edge_bytes: bytes that a layer works with for an edge, beside block and rows; for attention
            about 20 a head.

    Returns:
        float[num_nodes, width]: out if that is a tensor; the mapped file if it is a path.

    Raises:
        ValueError: the graph has types or is damaged; sizes do not fit each other; a node with all
            its in-edges, or the result, does not fit max_memory. TypeError: an argument has a wrong
            type, or the model cannot be applied layer by layer.

    >>> from hopline.models import SAGE
    >>> from hopline.pipes import fused_csc_sampling_graph
    >>> graph = fused_csc_sampling_graph(torch.tensor([0, 0, 1, 3]), torch.tensor([0, 0, 1]))
    >>> layer_wise_inference(SAGE(4, 8, 2), graph, torch.ones(3, 4)).shape
    torch.Size([3, 2])
    """
    check_model(model)
    module = unwrap(model)
    _check_sizes(graph, batch_size, max_memory, num_workers, edge_bytes)
    if apply_layer is not None:
        check_function(apply_layer, "apply_layer")
    graph = graph.to("cpu")  # ranges are made ready there, whatever the device of the layers
    feature = _feature(x, graph)
    if isinstance(out, torch.Tensor) and isinstance(x, torch.Tensor):
        _check_apart(out, x)
    device = _device_of(module) if device is None else check_device(device)
    with _eval_mode(module), torch.no_grad():
        apply = _applied(module, graph, device) if apply_layer is None else apply_layer
        rows = _probe(apply, _num_layers(module), graph, feature, device)
        ranges = Ranges(graph, batch_size, max_memory, num_workers, edge_bytes, device)
        plans = [ranges.plan(i, rows[i], rows[i + 1]) for i in range(len(rows) - 1)]
        sinks = Sinks(graph.total_num_nodes, rows, max_memory, out, scratch_dir)
        return _run(apply, graph, feature, plans, sinks, num_workers, device)


def _run(
    apply: ApplyLayer,
    graph: FusedCSCSamplingGraph,
    feature: Feature,
    plans: list[list[int]],
    sinks: Sinks,
    num_workers: int,
    device: torch.device,
) -> torch.Tensor:
    opened: list[RowSink] = []
    try:
        for i, bounds in enumerate(plans):
            opened.append(sinks.open(i))
            layer = _layer(i, apply, graph, feature, bounds, num_workers, device)
            with contextlib.closing(layer):
                for rows in layer:
                    opened[-1].append(rows)
            result = opened[-1].finish()
            if i < len(plans) - 1:
                feature = TorchBasedFeature(result)
            if len(opened) == 2:
                opened.pop(0).close()  # the layer's input
        return result
    finally:
        for sink in opened:
            sink.close()


def _layer(
    i: int,
    apply: ApplyLayer,
    graph: FusedCSCSamplingGraph,
    feature: Feature,
    bounds: list[int],
    num_workers: int,
    device: torch.device,
) -> Generator[torch.Tensor]:
    """Rows of a layer, range by range."""
    if len(bounds) < 2:
        return

    def prepare(minibatch: MiniBatch) -> MiniBatch:
        assert isinstance(minibatch.seeds, torch.Tensor)
        number = int(minibatch.seeds)
        block, nodes = _block(graph, bounds[number], bounds[number + 1])
        minibatch.extra.update(block=block, nodes=nodes, rows=feature.read(nodes))
        return minibatch

    chain = ItemSampler(ItemSet(len(bounds) - 1, names="seeds"), 1, seed=0).transform(prepare)
    with (
        DataLoader(chain, num_workers, prefetch_factor=PREFETCH) as loader,
        _progress(loader, f"layer {i}") as bar,
    ):
        for minibatch in loader:
            part = minibatch.extra
            out = apply(i, part["block"].to(device), part["rows"].to(device), part["nodes"])
            if len(out) != part["block"].num_dst:
                raise ValueError(
                    f"layer {i} gave {len(out)} rows for {part['block'].num_dst} destinations"
                )
            yield out
            del minibatch, part, out  # before the next is made
            bar.update()


def _block(graph: FusedCSCSamplingGraph, first: int, last: int) -> tuple[Block, torch.Tensor]:
    """All in-edges of the nodes [first, last), and the ids of its sources."""
    columns = graph.csc_indptr[first : last + 1].numpy()
    start, end = int(columns[0]), int(columns[-1])
    if start < 0 or end > graph.total_num_edges or (np.diff(columns) < 0).any():
        raise ValueError(f"csc_indptr is damaged between nodes {first} and {last - 1}: {graph}")
    neighbors = graph.indices[start:end].numpy()
    bad = cpu.first_out_of_range(neighbors, 0, graph.total_num_nodes)
    if bad >= 0:
        raise ValueError(
            f"indices[{start + bad}] is {neighbors[bad]}; expected a node in "
            f"[0, {graph.total_num_nodes}): the graph is damaged: {graph}"
        )
    with graph.node_tables.lend() as table:
        table.start(np.arange(first, last, dtype=neighbors.dtype))
        local = table.relabel(neighbors)
        nodes = table.nodes
    known = (graph.edge_attributes or {}).get(ORIGINAL_EDGE_ID)
    edge_ids = torch.from_numpy(np.arange(start, end)) if known is None else known[start:end]
    indptr = torch.from_numpy(columns - start)
    block = Block(indptr, torch.from_numpy(local), len(nodes), last - first, edge_ids)
    return block, torch.from_numpy(nodes)


# -------------------------------------------------------------------------------------------------
# What is checked and found out before anything is computed


def _check_sizes(
    graph: FusedCSCSamplingGraph,
    batch_size: int,
    max_memory: int | None,
    num_workers: int,
    edge_bytes: int,
) -> None:
    if not isinstance(graph, FusedCSCSamplingGraph):
        raise TypeError(f"graph is a {type(graph).__name__}; expected a FusedCSCSamplingGraph")
    for name, value, least in (
        ("batch_size", batch_size, 1),
        ("max_memory", 1 if max_memory is None else max_memory, 1),
        ("num_workers", num_workers, 0),
        ("edge_bytes", edge_bytes, 0),
    ):
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} is {value!r}; expected an int")
        if value < least:
            raise ValueError(f"{name} is {value}; expected {least} or more")
    if graph.is_heterogeneous:
        raise ValueError(
            f"{graph} has node and edge types; layer-wise inference takes a homogeneous graph"
        )


def _feature(x: Any, graph: FusedCSCSamplingGraph) -> Feature:
    if isinstance(x, torch.Tensor):
        if x.dim() != 2:
            raise ValueError(f"x has shape {list(x.shape)}; expected [num_nodes, width]")
        x = TorchBasedFeature(x)
    if not isinstance(x, Feature):
        raise TypeError(f"x is a {type(x).__name__}; expected a torch.Tensor or a Feature")
    if len(x.size()) != 1 or x.count() != graph.total_num_nodes:
        raise ValueError(
            f"x has {x.count()} rows of shape {list(x.size())}; expected one row of one dimension "
            f"for each of the {graph.total_num_nodes} nodes"
        )
    return x


def _check_apart(out: torch.Tensor, x: torch.Tensor) -> None:
    if out.numel() and out.untyped_storage().data_ptr() == x.untyped_storage().data_ptr():
        raise ValueError(
            "out and x share memory; the result would overwrite what is yet to be read"
        )


def _num_layers(module: nn.Module) -> int:
    layers = getattr(module, "layers", None)
    if layers is None or len(layers) == 0:
        raise TypeError(
            f"{type(module).__name__} has no layers; expected a model with an attribute 'layers', "
            "one or more"
        )
    return len(layers)


def _applied(module: nn.Module, graph: FusedCSCSamplingGraph, device: torch.device) -> ApplyLayer:
    """The model's own `apply_layer`, with degrees if it uses them."""
    own = getattr(module, "apply_layer", None)
    if not callable(own):
        raise TypeError(
            f"{type(module).__name__} has no method apply_layer(i, block, x); write one as "
            "LayerWise says, or pass apply_layer="
        )
    if not getattr(module, "uses_degrees", False):
        return lambda i, block, x, nodes: own(i, block, x)
    out_degrees = torch.from_numpy(_out_degrees(graph))

    def with_degrees(i: int, block: Block, x: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
        degrees = (out_degrees[nodes.long()].to(device), block.in_degrees())
        rows: torch.Tensor = own(i, block, x, degrees=degrees)
        return rows

    return with_degrees


def _out_degrees(graph: FusedCSCSamplingGraph) -> np.ndarray[Any, Any]:
    nodes, indices = graph.total_num_nodes, graph.indices.numpy()
    degrees = np.zeros(nodes, np.int64)
    for start in range(0, len(indices), COUNTED_AT_ONCE):
        part = indices[start : start + COUNTED_AT_ONCE]
        bad = cpu.first_out_of_range(part, 0, nodes)
        if bad >= 0:
            raise ValueError(
                f"indices[{start + bad}] is {part[bad]}; expected a node in [0, {nodes}): the "
                f"graph is damaged: {graph}"
            )
        degrees += np.bincount(part, minlength=nodes)
    return degrees


def _probe(
    apply: ApplyLayer,
    num_layers: int,
    graph: FusedCSCSamplingGraph,
    feature: Feature,
    device: torch.device,
) -> list[LayerRows]:
    """Rows between layers, from zeros and the in-edges of a node that has few."""
    dtype = feature.read(torch.empty(0, dtype=torch.int64, device="cpu")).dtype
    found = [LayerRows(feature.size()[0], dtype)]
    node = 0
    if graph.total_num_nodes:
        node = int(torch.diff(graph.csc_indptr[: PROBED_NODES + 1]).argmin())
    block, nodes = _block(graph, node, min(node + 1, graph.total_num_nodes))
    block = block.to(device)
    for i in range(num_layers):
        x = torch.zeros(block.num_src, found[-1].width, dtype=found[-1].dtype, device=device)
        out = apply(i, block, x, nodes)
        if out.dim() != 2 or len(out) != block.num_dst or not out.dtype.is_floating_point:
            raise ValueError(
                f"layer {i} gave {out.dtype}{list(out.shape)} for {block.num_dst} destinations; "
                f"expected floating-point [{block.num_dst}, width]"
            )
        found.append(LayerRows(out.shape[1], out.dtype))
    return found
