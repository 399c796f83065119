"""What layer-wise inference fits in its memory bound: ranges of nodes, and rows of layers."""

from __future__ import annotations

import bisect
import os
from dataclasses import dataclass
from pathlib import Path

import torch

from hopline.models.row_sinks import MemoryRows, NpyRows, RowSink, ScratchRows
from hopline.pipes.graph import FusedCSCSamplingGraph

__all__ = ["PREFETCH", "LayerRows", "Ranges", "Sinks"]

PREFETCH = 2  # mini-batches a worker has in the making or done
ID_BYTES = 8
NPY_MAGIC = b"\x93NUMPY"
BLOCK_BYTES = 4 + 8 + ID_BYTES  # of an edge: its source's position, its id, room in the node list


@dataclass(frozen=True, slots=True)
class LayerRows:
    """Width and dtype of the rows between two layers."""

    width: int
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        """Of one row."""
        return self.width * self.dtype.itemsize


class Ranges:
    """Cuts the nodes in ranges whose working set fits."""

    def __init__(
        self,
        graph: FusedCSCSamplingGraph,
        batch_size: int,
        max_memory: int | None,
        num_workers: int,
        edge_bytes: int,
        device: torch.device,
    ) -> None:
        self.indptr = graph.csc_indptr.numpy()
        self.nodes = graph.total_num_nodes
        self.batch_size = batch_size
        self.max_memory = max_memory
        self.in_flight = 1 + num_workers * PREFETCH
        self.edge_bytes = edge_bytes
        self.on_device = device.type != "cpu"

    def plan(self, i: int, before: LayerRows, after: LayerRows) -> list[int]:
        """Bounds of the ranges of layer i: 0, ..., number of nodes."""
        widest = max(before.width, after.width) * after.dtype.itemsize
        # A source: its row, the row in the weights' dtype or on the device, and the row that the
        # layer makes of it before it sums.
        converted = before.dtype != after.dtype or self.on_device
        source = before.bytes + ID_BYTES + after.bytes
        source += before.width * after.dtype.itemsize if converted else 0
        # On a device the layers hold a message an edge.
        edge = BLOCK_BYTES + self.edge_bytes + (widest if self.on_device else 0)
        destination = ID_BYTES + widest + 2 * after.bytes

        def cost(first: int, last: int) -> int:
            edges = int(self.indptr[last]) - int(self.indptr[first])
            sources = min(self.nodes, last - first + edges)
            return sources * source + edges * edge + (last - first) * destination

        bounds = [0]
        while bounds[-1] < self.nodes:
            first = bounds[-1]
            last = min(first + self.batch_size, self.nodes)
            if self.max_memory is not None:
                budget = self.max_memory // 2 // self.in_flight
                last = first + bisect.bisect_right(
                    range(first + 1, last + 1), budget, key=lambda end: cost(first, end)
                )
                if last == first:
                    need = cost(first, first + 1)
                    raise ValueError(
                        f"node {first} with its in-edges takes {need} bytes in layer {i}; of "
                        f"max_memory={self.max_memory}, {budget} are for each of "
                        f"{self.in_flight} mini-batches under way; expected max_memory of "
                        f"{2 * need * self.in_flight} or more"
                        + (", or num_workers=0" if self.in_flight > 1 else "")
                    )
            bounds.append(last)
        return bounds


class Sinks:
    """Decides where the rows of each layer go."""

    def __init__(
        self,
        nodes: int,
        rows: list[LayerRows],
        max_memory: int | None,
        out: torch.Tensor | str | os.PathLike[str] | None,
        scratch_dir: str | os.PathLike[str] | None,
    ) -> None:
        self.nodes = nodes
        self.rows = rows[1:]
        self.out = out
        self.scratch_dir = scratch_dir
        shape = (nodes, rows[-1].width)
        if isinstance(out, torch.Tensor):
            if tuple(out.shape) != shape or not out.dtype.is_floating_point:
                raise ValueError(
                    f"out is {out.dtype}{list(out.shape)}; expected floating-point {list(shape)}"
                )
        elif out is not None and not isinstance(out, str | os.PathLike):
            raise TypeError(f"out is a {type(out).__name__}; expected a torch.Tensor or a path")
        elif out is not None and Path(out).exists() and not _is_npy(Path(out)):
            # The new file is renamed to the path, and would take the place of whatever is there.
            raise ValueError(
                f"out is {str(out)!r}, which is something else than an .npy file; give the path of "
                "a new file, or of one to be replaced"
            )
        sizes = [nodes * each.bytes for each in self.rows]
        room = None if max_memory is None else max_memory // 2
        result = sizes[-1] if out is None else 0
        if room is not None and result > room:
            raise ValueError(
                f"the result takes {result} bytes, more than the half of max_memory={max_memory} "
                "that is for rows; pass out=, the path of a .npy file or a tensor"
            )
        self.in_memory = []
        held = 0  # what the layer before keeps in memory
        for i, size in enumerate(sizes[:-1]):
            following = result if i == len(sizes) - 2 else 0
            fits = room is None or size + max(held, following) <= room
            fits = fits or size == 0  # nothing cannot be mapped
            self.in_memory.append(fits)
            held = size if fits else 0

    def open(self, i: int) -> RowSink:
        """Where the rows of layer i go."""
        shape, dtype = (self.nodes, self.rows[i].width), self.rows[i].dtype
        if i < len(self.rows) - 1:
            if self.in_memory[i]:
                return MemoryRows(torch.empty(shape, dtype=dtype, device="cpu"))
            return ScratchRows(shape, dtype, self.scratch_dir)
        if isinstance(self.out, torch.Tensor):
            return MemoryRows(self.out)
        if self.out is not None:
            return NpyRows(Path(self.out), shape, dtype)
        return MemoryRows(torch.empty(shape, dtype=dtype, device="cpu"))


def _is_npy(path: Path) -> bool:
    """Whether a regular file holds an array, or nothing."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(NPY_MAGIC)) in (NPY_MAGIC, b"")
