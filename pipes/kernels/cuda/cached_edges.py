"""CachedEdges: edges that kernels read from a cache on the GPU in place of the graph."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from hopline.pipes.kernels.cuda.launching import NOTHING

__all__ = ["AWAY", "NOT_CACHED", "CachedEdges", "read_edge"]

NOT_CACHED = -NOTHING  # no shift: positions and places in a cache are at least 0 and far below
AWAY = tl.constexpr(NOT_CACHED)  # the same, in kernels


class CachedEdges(NamedTuple):
    """Edges of some columns that need not be read from the graph.

    Attributes:
        shift: int64[n], what leads from the position of a column's edge to its place in the
            arrays; NOT_CACHED for columns whose edges are not in them.
        indices: of the dtype of the graph's indices, sources.
        edge_types: of the dtype of the graph's edge types; None without them.
    """

    shift: torch.Tensor
    indices: torch.Tensor
    edge_types: torch.Tensor | None


@triton.jit
def read_edge(array, near, position, shift, there, CACHED: tl.constexpr):
    """array[position], or its copy in a cache."""
    if CACHED:
        hit = there & (shift != AWAY)
        copy = tl.load(near + (position + shift), mask=hit, other=0)
        value = tl.load(array + position, mask=there & (shift == AWAY), other=0)
        value = tl.where(hit, copy, value)
    else:
        value = tl.load(array + position, mask=there, other=0)
    return value
