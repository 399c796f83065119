"""GCNConv and GCN: graph convolution over blocks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from hopline.models.activation import relu_dropout
from hopline.models.aggregate import sum_aggregate
from hopline.models.block_edges import count_out_degrees
from hopline.models.checks import check_floating, check_source_rows, check_tensor
from hopline.models.dropout import Dropout
from hopline.models.layers import check_blocks, check_sizes, in_dtype_of, sums_first
from hopline.models.scaled_sum import scaled_rows
from hopline.pipes.checks import check_count
from hopline.pipes.subgraph import Block

__all__ = ["GCN", "GCNConv"]

NORMS = ("both", "right", "none")

Degrees = tuple[torch.Tensor, torch.Tensor]


class GCNConv(nn.Module):
    """Graph convolution: `out_i = sum over edges (j, i) of w_ij c_ij W h_j, plus b`.

    Kipf, Welling: "Semi-supervised classification with graph convolutional networks", ICLR 2017.
    w is the weight of the edge, 1 by default, and c is by `norm`:

    - "both": `1 / sqrt(out-degree of j * in-degree of i)`;
    - "right": `1 / in-degree of i`, a mean;
    - "none": 1.

    Degrees count edges of the block, whatever their weights. An in-degree in a block is at most the
    fanout, and an out-degree counts just the edges to this block's destinations. With `degrees` the
    layer estimates what it would give on the whole graph instead: the sum over in-neighbours is
    taken as whole in-degree times mean over the sampled ones, and c uses the whole degrees. With
    all neighbours sampled that equals the layer on the whole graph.

    With `self_loop` each destination has one more edge, from itself, of weight 1, which counts in
    the degrees of its two ends. A destination without any edge gets b. Sum and linear map commute,
    so the layer does whichever is cheaper first.

    Args:
        in_size: values of an input row.
        out_size: values of an output row.
        norm: "both", "right" or "none".
        self_loop: whether to add self edges; only where the destinations are the first sources.
        bias: whether to add b.

    Raises:
        ValueError: the norm is not known, or a size is below 1.

    >>> block = Block(torch.tensor([0, 2, 2]), torch.tensor([2, 1], dtype=torch.int32), 3, 2)
    >>> GCNConv(4, 5)(block, torch.ones(3, 4)).shape
    torch.Size([2, 5])
    """

    def __init__(
        self,
        in_size: int,
        out_size: int,
        norm: str = "both",
        *,
        self_loop: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if norm not in NORMS:
            raise ValueError(f"norm is {norm!r}; expected 'both', 'right' or 'none'")
        check_sizes(in_size, out_size)
        self.in_size = in_size
        self.out_size = out_size
        self.norm = norm
        self.self_loop = self_loop
        self.weight = nn.Parameter(torch.empty(out_size, in_size))
        self.bias = nn.Parameter(torch.empty(out_size)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the weights anew: Glorot and Bengio's uniform, and 0 for b."""
        nn.init.xavier_uniform_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(
        self,
        block: Block,
        x: torch.Tensor,
        edge_weight: torch.Tensor | None = None,
        degrees: Degrees | None = None,
    ) -> torch.Tensor:
        """Applies the layer.

        Args:
            block: the edges.
            x: [num_src, in_size]. Another floating-point dtype than the weights', such as the
                float16 in which features are stored, is converted.
            edge_weight: [num_edges], factors of the messages; gradients reach it.
            degrees: in the whole graph, without the self edges that the layer adds: the out-degrees
                of the sources, [num_src], and the in-degrees of the destinations, [num_dst]. In an
                undirected graph, `(d, d[:num_dst])`.

        Returns:
            [num_dst, out_size], of the weights' dtype; of autocast's under autocast.

        Raises:
            TypeError: edge_weight is not a floating-point tensor.
            ValueError: x, edge_weight or degrees has another shape; there are fewer sources than
                destinations, which have no self edges then.
        """
        check_source_rows(block, x, self.in_size)
        if self.self_loop and block.num_src_nodes() < block.num_dst_nodes():
            raise ValueError(
                f"{block} has fewer sources than destinations, so these are of another type; "
                "expected destinations that are the first sources; use self_loop=False here"
            )
        if edge_weight is not None:
            _check_edge_weight(block, edge_weight)
        if degrees is not None:
            _check_degrees(block, degrees)
        x = in_dtype_of(x, self.weight)
        if self._sum_first(block):
            out = self._sum(block, x, edge_weight, degrees) @ self.weight.T
        else:
            out = self._sum(block, x @ self.weight.T, edge_weight, degrees)
        return out if self.bias is None else out + self.bias.to(out.dtype)

    def _sum(
        self,
        block: Block,
        h: torch.Tensor,
        edge_weight: torch.Tensor | None,
        degrees: Degrees | None,
    ) -> torch.Tensor:
        """Sum of c_ij w_ij h_j, where c_ij = source_factor[j] * factor[i]."""
        dtype, h = h.dtype, h.to(torch.promote_types(h.dtype, torch.float32))
        in_degrees = block.in_degrees()
        source_factor = self._source_factor(block, h.dtype, degrees)
        if edge_weight is None and degrees is None and h.device.type == "cpu":
            target = self._target_factor(in_degrees + int(self.self_loop), h.dtype)
            return scaled_rows(block, h, source_factor, target, self.self_loop).to(dtype)
        if source_factor is not None:
            factors = source_factor.index_select(0, block.indices)
            edge_weight = factors if edge_weight is None else edge_weight.to(h.dtype) * factors
        total = sum_aggregate(block, h, edge_weight)
        if degrees is not None:
            scale = degrees[1].to(h.dtype) / in_degrees.clamp(min=1).to(h.dtype)
            total = total * scale.unsqueeze(1)
            in_degrees = degrees[1]
        if self.self_loop:
            own = h[: block.num_dst_nodes()]
            if source_factor is not None:
                own = own * source_factor[: len(own)].unsqueeze(1)
            total = total + own
            in_degrees = in_degrees + 1
        target = self._target_factor(in_degrees, h.dtype)
        return (total if target is None else total * target.unsqueeze(1)).to(dtype)

    def _target_factor(self, in_degrees: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
        """[num_dst], or None for ones."""
        if self.norm == "none":
            return None
        power = -0.5 if self.norm == "both" else -1.0
        return in_degrees.clamp(min=1).to(dtype).pow(power)

    def _source_factor(
        self, block: Block, dtype: torch.dtype, degrees: Degrees | None
    ) -> torch.Tensor | None:
        """[num_src], or None for ones."""
        if self.norm != "both":
            return None
        if degrees is not None:
            out_degrees = degrees[0] + int(self.self_loop)
        else:
            out_degrees = count_out_degrees(block)
            if self.self_loop:
                out_degrees[: block.num_dst_nodes()] += 1
        return out_degrees.clamp(min=1).to(dtype).pow(-0.5)

    def _sum_first(self, block: Block) -> bool:
        return sums_first(block, self.in_size, self.out_size)

    def extra_repr(self) -> str:
        """Sizes and norm, for print."""
        return f"{self.in_size}, {self.out_size}, norm={self.norm!r}, self_loop={self.self_loop}"


def _check_edge_weight(block: Block, edge_weight: torch.Tensor) -> None:
    check_tensor(edge_weight, "edge_weight")
    check_floating(edge_weight, "edge_weight")
    if edge_weight.shape != (block.num_edges(),):
        raise ValueError(
            f"edge_weight has shape {tuple(edge_weight.shape)}; expected [{block.num_edges()}], "
            f"one for each edge of {block}"
        )


def _check_degrees(block: Block, degrees: Degrees) -> None:
    if not isinstance(degrees, tuple) or not all(isinstance(d, torch.Tensor) for d in degrees):
        raise TypeError(
            f"degrees are a {type(degrees).__name__}; expected two tensors, of the sources and "
            "of the destinations"
        )
    want = [(block.num_src_nodes(),), (block.num_dst_nodes(),)]
    got = [tuple(each.shape) for each in degrees]
    if got != want:
        raise ValueError(
            f"degrees have shapes {got}; expected {want}, those of the sources and of the "
            f"destinations of {block}"
        )
    if torch.compiler.is_compiling():
        return
    for each in degrees:  # a GPU is not waited for
        if each.device.type == "cpu" and not bool((each >= 0).all()):
            raise ValueError("degrees are negative somewhere, or no numbers; expected 0 or more")


class GCN(nn.Module):
    """A stack of `GCNConv` with self edges, with ReLU and dropout between layers.

    Args:
        in_size: values of an input row.
        hidden_size: values of a row between layers.
        out_size: values of an output row, e.g. the number of classes.
        num_layers: number of layers, and of blocks that a call takes.
        dropout: probability with which an input value of a layer, but for the first, is set to 0
            in training.
        norm: as in `GCNConv`.
        self_loop: as in `GCNConv`; False for a graph that has its self edges.

    Raises:
        ValueError: num_layers is below 1, dropout is not in [0, 1], the norm is not known, or a
            size is below 1.

    >>> block = Block(torch.tensor([0, 2, 2]), torch.tensor([2, 1], dtype=torch.int32), 3, 2)
    >>> GCN(4, 8, 5, num_layers=1)([block], torch.ones(3, 4)).shape
    torch.Size([2, 5])
    """

    uses_degrees = True  # of the whole graph, where layers are applied to ranges of its nodes

    def __init__(
        self,
        in_size: int,
        hidden_size: int,
        out_size: int,
        num_layers: int = 2,
        dropout: float = 0.5,
        *,
        norm: str = "both",
        self_loop: bool = True,
    ) -> None:
        super().__init__()
        check_count(num_layers, "num_layers", 1)
        sizes = [in_size, *[hidden_size] * (num_layers - 1), out_size]
        self.layers = nn.ModuleList(
            GCNConv(sizes[i], sizes[i + 1], norm, self_loop=self_loop) for i in range(num_layers)
        )
        self.dropout = Dropout(dropout)

    def forward(
        self, blocks: Sequence[Block], x: torch.Tensor, degrees: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Applies the layers.

        Args:
            blocks: one a layer, outermost hop first, as `MiniBatch.blocks` gives them.
            x: [num_src of the first block, in_size].
            degrees: [num_src of the first block], degrees in the whole undirected graph, for an
                estimate of the layers on it as `GCNConv` says; by default those in the blocks.

        Returns:
            [num_dst of the last block, out_size].

        Raises:
            ValueError: there is not one block a layer.
        """
        check_blocks(blocks, len(self.layers))
        for i, block in enumerate(blocks):
            if degrees is not None and i > 0:
                degrees = degrees[: block.num_src_nodes()]
            x = self.apply_layer(i, block, x, degrees)
        return x

    def apply_layer(
        self, i: int, block: Block, x: torch.Tensor, degrees: torch.Tensor | Degrees | None = None
    ) -> torch.Tensor:
        """Applies layer i, and what stands between it and the next one.

        Args:
            i: number of the layer.
            block: its edges.
            x: [num_src of the block, width of layer i's input].
            degrees: [num_src of the block], degrees in the whole undirected graph; or both kinds,
                as `GCNConv` takes them.

        Returns:
            [num_dst of the block, width of layer i's output].
        """
        if isinstance(degrees, torch.Tensor):
            degrees = (degrees, degrees[: block.num_dst_nodes()])
        x = self.layers[i](block, x, degrees=degrees)
        if i < len(self.layers) - 1:
            x = relu_dropout(x, self.dropout)
        return x
