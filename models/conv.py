"""SAGEConv: a layer of GraphSAGE over a block."""

from __future__ import annotations

import torch
from torch import nn

from hopline.models.aggregate import mean_aggregate
from hopline.models.checks import check_source_rows, is_plain
from hopline.models.layers import check_sizes, in_dtype_of, sums_first
from hopline.models.linear import linear
from hopline.models.sums import join_mean
from hopline.pipes.subgraph import Block

__all__ = ["SAGEConv"]


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
        check_source_rows(block, x, self.in_size)
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
