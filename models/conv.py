"""SAGEConv, a layer of GraphSAGE over a block; and what all layers share."""

from __future__ import annotations

from collections.abc import Sized

import torch
from torch import nn

from hopline.models.aggregate import HALF, check_floating, join_mean, mean_aggregate
from hopline.models.checks import (
    check_block,
    check_list,
    check_on_block,
    check_tensor,
    is_plain,
)
from hopline.models.linear import linear
from hopline.pipes.subgraph import Block

__all__ = ["SAGEConv"]

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


def check_input(block: Block, x: torch.Tensor, in_size: int) -> None:
    """Raises where x is not floating-point [num_src, in_size] on the block's device."""
    check_block(block)
    check_tensor(x, "x")
    if x.dim() != 2 or x.shape[0] != block.num_src_nodes() or x.shape[1] != in_size:
        raise ValueError(
            f"x has shape {tuple(x.shape)}; expected [{block.num_src_nodes()}, "
            f"{in_size}], one row for each source of {block}"
        )
    check_floating(x, "x")
    check_on_block(block, x, "x")


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


class SAGEConv(nn.Module):
    """GraphSAGE layer: `out = W_self h_dst + W_neigh mean(h of in-neighbours) + b`.

    Hamilton, Ying, Leskovec: "Inductive representation learning on large graphs", NeurIPS 2017.
    A destination without in-neighbours gets 0 for the mean. Sum and linear map commute, so the
    layer does whichever is cheaper first.

    Args:
        in_size: values of an input row.
        out_size: values of an output row.
        aggregator: "mean", the one there is for now.
        bias: whether to add b.

    Raises:
        ValueError: the aggregator is not known, or a size is below 1.

    >>> block = Block(torch.tensor([0, 2, 2]), torch.tensor([2, 1], dtype=torch.int32), 3, 2)
    >>> SAGEConv(4, 5)(block, torch.ones(3, 4)).shape
    torch.Size([2, 5])
    """

    def __init__(
        self, in_size: int, out_size: int, aggregator: str = "mean", bias: bool = True
    ) -> None:
        super().__init__()
        if aggregator != "mean":
            raise ValueError(f"aggregator is {aggregator!r}; expected 'mean'")
        check_sizes(in_size, out_size)
        self.in_size = in_size
        self.out_size = out_size
        self.fc_self = nn.Linear(in_size, out_size, bias=bias)
        self.fc_neigh = nn.Linear(in_size, out_size, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the weights anew: Glorot and Bengio's uniform, with the gain for ReLU."""
        gain = nn.init.calculate_gain("relu")
        nn.init.xavier_uniform_(self.fc_self.weight, gain=gain)
        nn.init.xavier_uniform_(self.fc_neigh.weight, gain=gain)
        if self.fc_self.bias is not None:
            nn.init.zeros_(self.fc_self.bias)

    def forward(self, block: Block, x: torch.Tensor) -> torch.Tensor:
        """Applies the layer.

        Args:
            block: the edges; the first `num_dst` sources are the destinations.
            x: [num_src, in_size]. Another floating-point dtype than the weights', such as the
                float16 in which features are stored, is converted.

        Returns:
            [num_dst, out_size], of the weights' dtype; of autocast's under autocast.

        Raises:
            ValueError: x has another shape.
        """
        check_input(block, x, self.in_size)
        x = in_dtype_of(x, self.fc_self.weight)
        if self._joins(block, x) and self._sum_first(block):
            weight = torch.cat([self.fc_self.weight, self.fc_neigh.weight], dim=1)
            return linear(join_mean(block, x), weight, self.fc_self.bias)
        out: torch.Tensor = self.fc_self(x[: block.num_dst_nodes()])
        return out + self._neighbors(block, x)

    def _joins(self, block: Block, x: torch.Tensor) -> bool:
        """Whether one product with both weights may take the place of two.

        Not where somebody changed the linear maps, by hooks or by other modules in their place.
        """
        maps = (self.fc_self, self.fc_neigh)
        return (
            x.device.type == "cpu"
            and x.dtype in (torch.float32, torch.float64)
            and not torch.is_autocast_enabled("cpu")
            and block.num_src_nodes() >= block.num_dst_nodes()
            and all(is_plain(each, nn.Linear) for each in maps)
            and all(
                each.weight.device == x.device and each.weight.dtype == x.dtype for each in maps
            )
        )

    def _neighbors(self, block: Block, x: torch.Tensor) -> torch.Tensor:
        if self._sum_first(block):
            mapped: torch.Tensor = self.fc_neigh(mean_aggregate(block, x))
            return mapped
        return mean_aggregate(block, self.fc_neigh(x))

    def _sum_first(self, block: Block) -> bool:
        return sums_first(block, self.in_size, self.out_size)

    def extra_repr(self) -> str:
        """Sizes, for print."""
        return f"{self.in_size}, {self.out_size}"
