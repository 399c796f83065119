"""What the edges of a block tell of its nodes: how many leave each source, and where each ends."""

from __future__ import annotations

import torch

from hopline.models.operators import operator
from hopline.pipes.subgraph import Block

__all__ = ["count_on_device", "count_out_degrees", "destinations_of_edges"]


def _count_run(indices: torch.Tensor, num_src: int) -> torch.Tensor:
    counts = torch.bincount(indices, minlength=num_src)
    if len(counts) > num_src:
        raise IndexError(
            f"the block has a source {len(counts) - 1} outside [0, {num_src}); was the block "
            "changed by hand?"
        )
    return counts


_count_on_cpu = operator(
    "count_rows(Tensor indices, SymInt num_src) -> Tensor",
    _count_run,
    lambda indices, num_src: indices.new_empty((num_src,), dtype=torch.int64),
)


def count_out_degrees(block: Block) -> torch.Tensor:
    """int64[num_src], edges that leave each source row."""
    if block.device.type == "cpu":
        counts: torch.Tensor = _count_on_cpu(block.indices, block.num_src_nodes())
        return counts
    return count_on_device(block.indices, block.num_src_nodes())


def count_on_device(indices: torch.Tensor, num_src: int) -> torch.Tensor:
    """`count_out_degrees` by torch's own operations; indices are not checked."""
    # Not bincount, which makes the host wait for the largest value.
    counts = torch.zeros(num_src, dtype=torch.int64, device=indices.device)
    return counts.index_add(0, indices, torch.ones_like(indices, dtype=torch.int64))


def destinations_of_edges(indptr: torch.Tensor, num_edges: int) -> torch.Tensor:
    """int64[num_edges], the destination row of each edge."""
    rows = torch.arange(len(indptr) - 1, device=indptr.device)
    return torch.repeat_interleave(rows, torch.diff(indptr), output_size=num_edges)
