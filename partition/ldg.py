"""Linear deterministic greedy: nodes one after another to the part with most of their neighbours.

Stanton, Kliot: "Streaming graph partitioning for large distributed graphs", KDD 2012; with several
passes, each over the assignment of the one before (Nishimura, Ugander: "Restreaming graph
partitioning", KDD 2013). It keeps a few bytes a node, whatever the number of edges, and needs no
library; on sparse graphs its cut is well above that of METIS.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hopline.partition.kernels import stream_nodes
from hopline.pipes.kernels import cpu
from hopline.pipes.random import fold_range

__all__ = ["ldg_parts", "random_parts", "shuffled"]

Array = np.ndarray[Any, Any]

PASSES = 5
SLACK = 0.03  # how far above the mean a part may grow


def ldg_parts(
    indptr: Array, indices: Array, num_parts: int, key: int, passes: int = PASSES
) -> Array:
    """Assigns nodes by restreaming LDG.

    Args:
        indptr: int64[num_nodes + 1], checked.
        indices: integer[num_edges], sources, checked; an edge is looked at from its destination.
        num_parts: number of parts.
        key: 64-bit word; decides the order of the nodes.
        passes: how often all nodes are gone through.

    Returns:
        int32[num_nodes].
    """
    num_nodes = len(indptr) - 1
    mean = -(-num_nodes // num_parts)
    capacity = max(mean, int((1 + SLACK) * num_nodes / num_parts))
    parts = np.full(num_nodes, -1, np.int32)
    sizes = np.zeros(num_parts, np.int64)
    order = shuffled(num_nodes, key)
    for _ in range(passes):
        stream_nodes(indptr, indices, order, capacity, parts, sizes, np.zeros_like(sizes))
    return parts


def random_parts(num_nodes: int, num_parts: int, key: int) -> Array:
    """int32[num_nodes]: nodes dealt out in a random order, so parts differ by one node at most."""
    parts = np.empty(num_nodes, np.int32)
    parts[shuffled(num_nodes, key)] = np.arange(num_nodes) % num_parts
    return parts


def shuffled(count: int, key: int) -> Array:
    """int64[count]: 0, 1, ... in an order that the key decides."""
    order = np.empty(count, np.int64)
    cpu.shuffled_range(fold_range(key, 4 * count.bit_length() + 16), count, 0, order)
    return order
