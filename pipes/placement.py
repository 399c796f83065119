"""Where a graph is: on the CPU, on a GPU, or page-locked; and which device samples from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hopline.pipes.kernels.dispatch import check_triton, on_device
from hopline.pipes.move import check_device
from hopline.pipes.residence import Residence

if TYPE_CHECKING:
    from hopline.pipes.graph import FusedCSCSamplingGraph

__all__ = ["host_array", "move_graph", "pin_graph", "sampling_device"]


def host_array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """An array of a graph, for the kernels of the CPU."""
    array: np.ndarray[Any, Any] = tensor.cpu().numpy()
    return array


def sampling_device(graph: FusedCSCSamplingGraph, seeds: Any) -> torch.device | None:
    """The GPU that samples for some seeds; None for the CPU.

    A graph in a GPU's memory is sampled there, wherever the seeds are; a pinned one by the GPU that
    has the seeds; any other on the CPU.

    Args:
        graph: the graph.
        seeds: a tensor or a dict of tensors; anything else is for others to refuse.
    """
    if on_device(graph.indices):
        return graph.indices.device
    if graph.is_pinned():
        for tensor in seeds.values() if isinstance(seeds, dict) else (seeds,):
            if isinstance(tensor, torch.Tensor) and on_device(tensor):
                return tensor.device
    return None


def move_graph(
    graph: FusedCSCSamplingGraph, device: torch.device | str | int
) -> FusedCSCSamplingGraph:
    """See `FusedCSCSamplingGraph.to`."""
    target = check_device(device, pinned=True)
    if target == "pinned":
        return _copy(graph, torch.device("cpu")).pin_memory_()
    assert isinstance(target, torch.device)
    if target.type == "cuda":
        check_triton()
        if target.index is None:
            target = torch.device("cuda", torch.cuda.current_device())
    elif target.type != "cpu":
        raise ValueError(
            f"graph.to({str(device)!r}): graphs are sampled on the CPU and on NVIDIA GPUs; "
            "expected 'cpu', 'cuda' or 'pinned'"
        )
    if graph.indices.device == target and not graph.is_pinned():
        return graph
    copy: FusedCSCSamplingGraph = _copy(graph, target)
    return copy


def pin_graph(graph: FusedCSCSamplingGraph) -> None:
    """See `FusedCSCSamplingGraph.pin_memory_`."""
    if graph.indices.device.type != "cpu":
        raise ValueError(f"{graph} is on {graph.indices.device}; expected a graph on the CPU")
    residence = Residence(pinned=True)
    for name, tensor in (
        ("csc_indptr", graph.csc_indptr),
        ("indices", graph.indices),
        ("type_per_edge", graph.type_per_edge),
    ):
        if tensor is not None:
            residence.array(name, tensor, tensor.device)
    graph.residence = residence


def _copy(graph: FusedCSCSamplingGraph, device: torch.device) -> FusedCSCSamplingGraph:
    """A graph of the same arrays, each on the device; those that are there already are shared."""
    from hopline.pipes.graph import FusedCSCSamplingGraph

    def there(tensor: torch.Tensor | None) -> Any:
        return None if tensor is None else tensor.to(device)

    def all_there(attributes: dict[str, torch.Tensor] | None) -> Any:
        return None if attributes is None else {k: there(v) for k, v in attributes.items()}

    return FusedCSCSamplingGraph(
        there(graph.csc_indptr),
        there(graph.indices),
        graph.node_type_offset,  # a few numbers that the host reads
        there(graph.type_per_edge),
        graph.node_type_to_id,
        graph.edge_type_to_id,
        all_there(graph.node_attributes),
        all_there(graph.edge_attributes),
        path=graph.path if device.type == "cpu" else None,
    )
