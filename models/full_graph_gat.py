"""DistGAT: graph attention over the whole graph, each rank with its part."""

from __future__ import annotations

from functools import cached_property, partial

import torch
import torch.nn.functional as F

from hopline.models.edge_values import add_self_edges
from hopline.models.full_graph import FullGraph
from hopline.models.gat import GAT
from hopline.models.halo_exchange import Halos, check_halos, start_halo, wait_halo
from hopline.models.halo_plan import HaloPlan
from hopline.models.kept_block import KeptBlock
from hopline.models.node_dropout import Key, NodeDropout

__all__ = ["DistGAT"]


class DistGAT(FullGraph):
    """`GAT` over the whole graph: attention is over all in-edges.

    Args:
        plan: the rank's nodes and edges.
        in_size: values of an input row.
        hidden_size: values of a row of each head between layers.
        out_size: values of an output row, e.g. the number of classes.
        num_layers: number of layers.
        num_heads: heads of each hidden layer.
        num_out_heads: heads of the last layer.
        dropout: probability with which a value between layers is set to 0 in training.
        attn_drop: probability with which an edge's attention is set to 0 in training, drawn by
            the edge's id in the whole graph and head; of self edges by node and head.
        negative_slope: as in `GATConv`.
        self_loop: as in `GATConv`; False for a graph that has its self edges.
        wire_dtype: as of `DistSpmm`; so is stale.
        stale: whether to train with the halo rows and gradients of the step before.

    Raises:
        TypeError: as `DistSpmm`; a probability is no number.
        ValueError: as `GAT`.
    """

    def __init__(
        self,
        plan: HaloPlan,
        in_size: int,
        hidden_size: int,
        out_size: int,
        num_layers: int = 2,
        num_heads: int = 4,
        num_out_heads: int = 1,
        dropout: float = 0.5,
        *,
        attn_drop: float = 0.0,
        negative_slope: float = 0.2,
        self_loop: bool = True,
        wire_dtype: torch.dtype | None = None,
        stale: bool = False,
    ) -> None:
        check_halos(wire_dtype, stale)
        model = GAT(  # without self edges, as the block has them once for all layers and steps
            in_size, hidden_size, out_size, num_layers, num_heads, num_out_heads,
            feat_drop=0.0, negative_slope=negative_slope, self_loop=False,
        )  # fmt: skip
        super().__init__(plan, model.layers, dropout)
        self.self_loop = self_loop
        self.attn_drop = NodeDropout(attn_drop)
        self.bytes_sent = 0
        self._halos = Halos(wire_dtype, stale, self._count)

    def _layer(
        self, i: int, x: torch.Tensor, key: Key, edge_weight: torch.Tensor | None
    ) -> torch.Tensor:
        halo = self._halos.of(self.plan, key, i, self.training)
        rows = torch.cat([x, wait_halo(start_halo(x, halo), halo)])
        attn_drop = partial(self._drop_attention, i, key) if self._drops_attention else None
        out: torch.Tensor = self.layers[i](self._block, rows, attn_drop=attn_drop)
        return out.mean(1) if i == len(self.layers) - 1 else F.elu(out.flatten(1))

    def _draws(self) -> bool:
        return super()._draws() or self.attn_drop.p > 0

    @property
    def _drops_attention(self) -> bool:
        return self.attn_drop.training and self.attn_drop.p > 0.0

    def _drop_attention(self, i: int, key: Key, attention: torch.Tensor) -> torch.Tensor:
        # Layer ~i: other draws than those of values behind layer i.
        dropped: torch.Tensor = self.attn_drop(attention, self._edge_names, key, ~i)
        return dropped

    def extra_repr(self) -> str:
        """What the layers do not say, for print."""
        return f"self_loop={self.self_loop}"

    @cached_property
    def _block(self) -> KeptBlock:
        """What the layers are over."""
        with torch.inference_mode(False):  # as it is kept, and training uses it too
            block = self.plan.block
            return KeptBlock.of(add_self_edges(block) if self.self_loop else block)

    @cached_property
    def _edge_names(self) -> torch.Tensor:
        """What draws know the layers' edges by: ids from 0 up, ~v for the self edge of node v."""
        with torch.inference_mode(False):
            edges, nodes = self.plan.original_edges, self.plan.original_nodes
            if not self.self_loop:
                return edges
            # Each destination's last, see `add_self_edges`.
            last = self.plan.block.indptr[1:] + torch.arange(len(nodes), device=nodes.device)
            names = edges.new_empty(len(edges) + len(nodes))
            given = torch.ones_like(names, dtype=torch.bool).index_fill(0, last, False)
            names[last], names[given] = ~nodes, edges
            return names

    def _count(self, size: int) -> None:
        self.bytes_sent += size
