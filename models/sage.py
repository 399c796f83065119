"""SAGE: GraphSAGE for node classification and for node representations."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from hopline.models.activation import relu_dropout
from hopline.models.conv import SAGEConv
from hopline.models.dropout import Dropout
from hopline.models.layers import check_blocks
from hopline.pipes.checks import check_count
from hopline.pipes.subgraph import Block

__all__ = ["SAGE"]


class SAGE(nn.Module):
    """A stack of `SAGEConv`, with ReLU and dropout between layers.

    Args:
        in_size: values of an input row.
        hidden_size: values of a row between layers.
        out_size: values of an output row, e.g. the number of classes.
        num_layers: number of layers, and of blocks that a call takes.
        dropout: probability with which a value between layers is set to 0 in training.

    Raises:
        TypeError: num_layers is no int, or dropout no number.
        ValueError: num_layers is below 1, dropout is not in [0, 1], or a size is below 1.

    >>> block = Block(torch.tensor([0, 2, 2]), torch.tensor([2, 1], dtype=torch.int32), 3, 2)
    >>> SAGE(4, 8, 5, num_layers=1)([block], torch.ones(3, 4)).shape
    torch.Size([2, 5])
    """

    def __init__(
        self,
        in_size: int,
        hidden_size: int,
        out_size: int,
        num_layers: int = 3,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        check_count(num_layers, "num_layers", 1)
        sizes = [in_size, *[hidden_size] * (num_layers - 1), out_size]
        self.layers = nn.ModuleList(
            SAGEConv(sizes[i], sizes[i + 1], "mean") for i in range(num_layers)
        )
        self.dropout = Dropout(dropout)

    def forward(self, blocks: Sequence[Block], x: torch.Tensor) -> torch.Tensor:
        """Applies the layers.

        Args:
            blocks: one a layer, outermost hop first, as `MiniBatch.blocks` gives them.
            x: [num_src of the first block, in_size].

        Returns:
            [num_dst of the last block, out_size].

        Raises:
            TypeError: blocks are not in a list.
            ValueError: there is not one block a layer.
        """
        check_blocks(blocks, len(self.layers))
        for i, block in enumerate(blocks):
            x = self.apply_layer(i, block, x)
        return x

    def apply_layer(self, i: int, block: Block, x: torch.Tensor) -> torch.Tensor:
        """Applies layer i, and what stands between it and the next one.

        Args:
            i: number of the layer.
            block: its edges.
            x: [num_src of the block, width of layer i's input].

        Returns:
            [num_dst of the block, width of layer i's output].

        Raises:
            IndexError: there is no such layer.
        """
        if not 0 <= check_count(i, "layer", None) < len(self.layers):
            raise IndexError(f"layer {i} of {len(self.layers)}")
        x = self.layers[i](block, x)
        if i < len(self.layers) - 1:
            x = relu_dropout(x, self.dropout)
        return x
