"""KeptBlock: a block that is used again and again, whose edges are turned round only once."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import torch

from hopline.models.kernels import transpose_edges
from hopline.pipes.subgraph import Block

__all__ = ["KeptBlock", "Turned", "transposed", "turn", "turned_of"]

NARROW = 1 << 31


class Turned(NamedTuple):
    """A block's edges by source, in the order of the block's.

    Attributes:
        starts: int64[num_src + 1], where each source's begin.
        columns: integer[num_edges], the destination row of each.
        edges: integer[num_edges], which edge of the block each is; empty where nobody asks.
    """

    starts: torch.Tensor
    columns: torch.Tensor
    edges: torch.Tensor


class KeptBlock(Block):
    """A block that stays as it is; what its backward passes need is made once, when first needed.

    A copy of it is the block itself.
    """

    @classmethod
    def of(cls, block: Block) -> KeptBlock:
        """The block, kept.

        Args:
            block: edges whose sources are in range.
        """
        return cls(block.indptr, block.indices, block.num_src, block.num_dst)

    @cached_property
    def transposed(self) -> Block:
        """The block with every edge turned round."""
        return transposed(self)

    @cached_property
    def turned(self) -> Turned:
        """The edges by source, on the CPU; of the arrays of `transposed`, or these of its."""
        starts, columns, edges = turn(self.indptr, self.indices, self.num_src)
        across = Block(starts, columns, self.num_dst, self.num_src)
        across = self.__dict__.setdefault("transposed", across)
        return Turned(across.indptr, across.indices, edges)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Block:
        """The same block on a device, or in "pinned" memory, where it is not a kept one."""
        plain = Block(self.indptr, self.indices, self.num_src, self.num_dst)
        return plain.to(device, non_blocking)

    def __deepcopy__(self, memo: object) -> KeptBlock:
        return self


def turned_of(block: Block, x: torch.Tensor) -> Turned | tuple[None, None, None]:
    """The edges by source of a kept block on the CPU, where x is to get gradients; else Nones."""
    if not isinstance(block, KeptBlock) or block.device.type != "cpu":
        return None, None, None
    return block.turned if x.requires_grad and torch.is_grad_enabled() else (None, None, None)


def turn(
    indptr: torch.Tensor, indices: torch.Tensor, num_src: int, *, named: bool = True
) -> Turned:
    """A block's edges by source.

    Args:
        indptr: int64[num_dst + 1], on the CPU.
        indices: integer[num_edges], in range.
        num_src: number of source rows.
        named: whether to say which edge of the block each is.
    """
    count, narrow = len(indices), len(indptr) <= NARROW
    with torch.inference_mode(False):  # it may be kept: training cannot use what that mode made
        starts = torch.zeros(num_src + 2, dtype=torch.int64)
        columns = torch.empty(count, dtype=torch.int32 if narrow else torch.int64)
        kind = torch.int32 if count < NARROW else torch.int64
        edges = torch.empty(count if named else 0, dtype=kind)
    arrays = indptr.numpy(), indices.numpy()
    transpose_edges(*arrays, starts.numpy(), columns.numpy(), edges.numpy())
    return Turned(starts[:-1], columns, edges)


def transposed(block: Block) -> Block:
    """The block with every edge turned round; the edges of a row in the order of the block's.

    Args:
        block: edges whose sources are in range.
    """
    with torch.inference_mode(False):  # as in `turn`
        if block.device.type == "cpu":
            starts, columns, _ = turn(block.indptr, block.indices, block.num_src, named=False)
        else:
            starts, columns = _turned_by_torch(block)
        return Block(starts, columns, block.num_dst, block.num_src)


def _turned_by_torch(block: Block) -> tuple[torch.Tensor, torch.Tensor]:
    kind = torch.int32 if block.num_dst < NARROW else torch.int64
    rows = torch.arange(block.num_dst, dtype=kind, device=block.device)
    ends = rows.repeat_interleave(block.in_degrees(), output_size=block.num_edges())
    counts = torch.bincount(block.indices, minlength=block.num_src)
    indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    return indptr, ends[block.indices.argsort(stable=True)]
