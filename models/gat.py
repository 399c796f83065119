"""GATConv and GAT: graph attention over blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import nn

from hopline.models.aggregate import sum_aggregate
from hopline.models.checks import check_function, check_source_rows, check_tensor
from hopline.models.dropout import Dropout
from hopline.models.edge_values import add_self_edges, edge_scores, edge_softmax
from hopline.models.layers import check_blocks, check_sizes, in_dtype_of, sums_first
from hopline.models.operators import HALF
from hopline.pipes.checks import check_count
from hopline.pipes.subgraph import Block

__all__ = ["GAT", "GATConv"]


class GATConv(nn.Module):
    """Graph attention: `out_i = sum over edges (j, i) of a_ij W h_j, plus b`, in several heads.

    Velickovic, Cucurull, Casanova, Romero, Lio, Bengio: "Graph attention networks", ICLR 2018.
    `a_ij` is the softmax, over the in-edges of i, of `LeakyReLU(u W h_j + v W h_i)`, with W, u and
    v for each head. A destination without in-edges gets b. Sum and linear map commute, so the layer
    does whichever is cheaper first.

    Args:
        in_size: values of an input row.
        out_size: values of an output row, of each head.
        num_heads: number of heads.
        feat_drop: probability with which an input value is set to 0 in training.
        attn_drop: probability with which an `a_ij` is set to 0 in training.
        negative_slope: slope of LeakyReLU below 0.
        self_loop: whether each destination gets one more edge, from itself; only where the
            destinations are the first sources.
        bias: whether to add b.

    Raises:
        ValueError: a size or the number of heads is below 1, or a probability not in [0, 1].

    >>> block = Block(torch.tensor([0, 2, 2]), torch.tensor([2, 1], dtype=torch.int32), 3, 2)
    >>> GATConv(4, 5, num_heads=3)(block, torch.ones(3, 4)).shape
    torch.Size([2, 3, 5])
    """

    def __init__(
        self,
        in_size: int,
        out_size: int,
        num_heads: int,
        *,
        feat_drop: float = 0.0,
        attn_drop: float = 0.0,
        negative_slope: float = 0.2,
        self_loop: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__()
        check_sizes(in_size, out_size)
        check_count(num_heads, "num_heads", 1)
        self.in_size = in_size
        self.out_size = out_size
        self.num_heads = num_heads
        self.negative_slope = negative_slope
        self.self_loop = self_loop
        self.feat_drop = Dropout(feat_drop)
        self.attn_drop = Dropout(attn_drop)
        self.weight = nn.Parameter(torch.empty(num_heads, out_size, in_size))
        self.attn_src = nn.Parameter(torch.empty(num_heads, out_size))
        self.attn_dst = nn.Parameter(torch.empty(num_heads, out_size))
        self.bias = nn.Parameter(torch.empty(num_heads, out_size)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the weights anew: Glorot and Bengio's normal, with the gain for ReLU; 0 for b."""
        gain = nn.init.calculate_gain("relu")
        nn.init.xavier_normal_(self.weight.view(-1, self.in_size), gain=gain)
        nn.init.xavier_normal_(self.attn_src, gain=gain)
        nn.init.xavier_normal_(self.attn_dst, gain=gain)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(
        self,
        block: Block,
        x: torch.Tensor,
        x_dst: torch.Tensor | None = None,
        *,
        attn_drop: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """Applies the layer.

        Args:
            block: the edges.
            x: [num_src, in_size]. Another floating-point dtype than the weights', such as the
                float16 in which features are stored, is converted.
            x_dst: [num_dst, in_size], rows of the destinations where they are of another type than
                the sources; by default the first rows of x.
            attn_drop: takes and gives the `a_ij`, [num_edges, num_heads], in place of the layer's
                dropout of them, e.g. to draw by edge. Self edges are the last of each destination.

        Returns:
            [num_dst, num_heads, out_size], of the weights' dtype; of autocast's under autocast.

        Raises:
            TypeError: attn_drop is no function.
            ValueError: x or x_dst has another shape; the destinations are not the first sources,
                and there is no x_dst, or there are to be self edges.
        """
        check_source_rows(block, x, self.in_size)
        if attn_drop is not None:
            check_function(attn_drop, "attn_drop")
        if self.self_loop:
            if x_dst is not None:
                raise ValueError("got x_dst for a layer with self edges; use self_loop=False here")
            block = add_self_edges(block)
        x = self.feat_drop(in_dtype_of(x, self.weight))
        x_dst = self._destinations(block, x, x_dst)
        drop = self.attn_drop if attn_drop is None else attn_drop
        attention = drop(self._attention(block, x, x_dst))
        if self._sum_first(block):
            summed = sum_aggregate(block, x.unsqueeze(1), attention)
            out = torch.einsum("nhi,hoi->nho", summed, self.weight)
        else:
            mapped = F.linear(x, self.weight.flatten(0, 1))
            mapped = mapped.view(len(x), self.num_heads, self.out_size)
            out = sum_aggregate(block, mapped, attention)
        return out if self.bias is None else out + self.bias.to(out.dtype)

    def _destinations(
        self, block: Block, x: torch.Tensor, x_dst: torch.Tensor | None
    ) -> torch.Tensor:
        num_dst = block.num_dst_nodes()
        if x_dst is not None:
            check_tensor(x_dst, "x_dst")
            if x_dst.shape != (num_dst, self.in_size):
                raise ValueError(
                    f"x_dst has shape {tuple(x_dst.shape)}; expected [{num_dst}, {self.in_size}], "
                    f"one row for each destination of {block}"
                )
            return self.feat_drop(in_dtype_of(x_dst, self.weight))  # type: ignore[no-any-return]
        if len(x) < num_dst:
            raise ValueError(
                f"{block} has fewer sources than destinations, so these are of another type; give "
                "their rows as x_dst"
            )
        return x[:num_dst]

    def _attention(self, block: Block, x: torch.Tensor, x_dst: torch.Tensor) -> torch.Tensor:
        """[num_edges, num_heads], without a row W h where u W h is enough."""
        u = torch.einsum("ho,hoi->hi", self.attn_src, self.weight)
        v = torch.einsum("ho,hoi->hi", self.attn_dst, self.weight)
        source, destination = F.linear(x, u), F.linear(x_dst, v)
        if source.dtype in HALF:  # few values, and a softmax of rounded ones would be far off
            source, destination = source.float(), destination.float()
        logits = edge_scores(block, source, destination)
        return edge_softmax(block, F.leaky_relu(logits, self.negative_slope))

    def _sum_first(self, block: Block) -> bool:
        return sums_first(block, self.in_size, self.out_size, self.num_heads)

    def extra_repr(self) -> str:
        """Sizes, for print."""
        return (
            f"{self.in_size}, {self.out_size}, num_heads={self.num_heads}, "
            f"self_loop={self.self_loop}"
        )


class GAT(nn.Module):
    """A stack of `GATConv` with self edges, with ELU between layers.

    Heads of a hidden layer stand side by side; those of the last layer are averaged.

    Args:
        in_size: values of an input row.
        hidden_size: values of a row of each head between layers.
        out_size: values of an output row, e.g. the number of classes.
        num_layers: number of layers, and of blocks that a call takes.
        num_heads: heads of each hidden layer.
        num_out_heads: heads of the last layer.
        feat_drop: probability with which an input value of a layer is set to 0 in training.
        attn_drop: probability with which an edge's attention is set to 0 in training.
        negative_slope: as in `GATConv`.
        self_loop: as in `GATConv`; False for a graph that has its self edges.

    Raises:
        ValueError: num_layers, a size or a number of heads is below 1, or a probability is not in
            [0, 1].

    >>> block = Block(torch.tensor([0, 2, 2]), torch.tensor([2, 1], dtype=torch.int32), 3, 2)
    >>> GAT(4, 8, 5, num_layers=1)([block], torch.ones(3, 4)).shape
    torch.Size([2, 5])
    """

    def __init__(
        self,
        in_size: int,
        hidden_size: int,
        out_size: int,
        num_layers: int = 2,
        num_heads: int = 4,
        num_out_heads: int = 1,
        *,
        feat_drop: float = 0.5,
        attn_drop: float = 0.0,
        negative_slope: float = 0.2,
        self_loop: bool = True,
    ) -> None:
        super().__init__()
        check_count(num_layers, "num_layers", 1)
        check_count(num_heads, "num_heads", 1)
        sizes = [in_size, *[hidden_size * num_heads] * (num_layers - 1)]
        self.layers = nn.ModuleList(
            GATConv(
                size,
                hidden_size if i < num_layers - 1 else out_size,
                num_heads if i < num_layers - 1 else num_out_heads,
                feat_drop=feat_drop,
                attn_drop=attn_drop,
                negative_slope=negative_slope,
                self_loop=self_loop,
            )
            for i, size in enumerate(sizes)
        )

    def forward(self, blocks: Sequence[Block], x: torch.Tensor) -> torch.Tensor:
        """Applies the layers.

        Args:
            blocks: one a layer, outermost hop first, as `MiniBatch.blocks` gives them.
            x: [num_src of the first block, in_size].

        Returns:
            [num_dst of the last block, out_size].

        Raises:
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
            [num_dst of the block, width of layer i's output], heads side by side, or averaged for
            the last layer.
        """
        out: torch.Tensor = self.layers[i](block, x)
        return out.mean(1) if i == len(self.layers) - 1 else F.elu(out.flatten(1))
