"""What layers and models over blocks share: which of sum and map comes first, dtypes, sizes."""

from __future__ import annotations

from collections.abc import Sized

import torch

from hopline.models.checks import check_list
from hopline.models.operators import HALF
from hopline.pipes.subgraph import Block

__all__ = ["check_blocks", "check_sizes", "in_dtype_of", "sums_first"]

# Reading and adding one value of a row costs about as much as this many multiply-adds of a matrix
# product: the first is bound by memory, the second by arithmetic.
READ_COST = 8


def sums_first(block: Block, in_size: int, out_size: int, heads: int = 1) -> bool:
    """Whether summing before a linear map is cheaper than after it.

    It depends on sizes alone, so it is reproducible.

    Args:
        block: the edges.
        in_size: values of a row before the map.
        out_size: values of a row after it, of one head.
        heads: number of weighted sums, each with a map of its own.
    """
    product = in_size * out_size * heads
    reads = READ_COST * block.num_edges() * heads
    first = reads * in_size + product * block.num_dst_nodes()
    second = reads * out_size + product * block.num_src_nodes()
    return first <= second


def check_sizes(*sizes: int) -> None:
    """Raises TypeError where a size of a layer is no int, ValueError where it is below 1."""
    if any(isinstance(size, bool) or not isinstance(size, int) for size in sizes):
        raise TypeError(f"sizes are {' and '.join(map(repr, sizes))}; expected ints")
    if any(size < 1 for size in sizes):
        raise ValueError(f"sizes are {' and '.join(map(str, sizes))}; expected 1 or more")


def check_blocks(blocks: Sized, num_layers: int) -> None:
    """Raises where there is not a list of one block a layer."""
    check_list(blocks)
    if len(blocks) != num_layers:
        raise ValueError(
            f"got {len(blocks)} blocks for {num_layers} layers; sample with one fanout a layer"
        )


def in_dtype_of(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """X in the dtype of a layer's weights; under autocast, in the dtype of autocast if it is that.

    Autocast keeps float32 weights and hands rows of its own dtype from layer to layer; to widen
    them would cost a copy of all rows.
    """
    if x.dtype == weight.dtype:
        return x
    place = x.device.type
    if x.dtype in HALF and weight.dtype == torch.float32 and torch.is_autocast_enabled(place):
        return x if x.dtype == torch.get_autocast_dtype(place) else x.to(weight.dtype)
    return x.to(weight.dtype)
