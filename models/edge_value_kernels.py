"""CPU kernels of values on edges: attention scores and their softmax.

Kernels of a forward pass return -1; or the first column with an edge or a bound out of range, and
nothing past it is done. Kernels of a backward pass rely on that check.
"""

from __future__ import annotations

import math

from hopline.pipes.kernels.compiling import kernel

__all__ = [
    "add_by_destination",
    "add_by_source",
    "add_turned",
    "join_edge_values",
    "softmax_edges",
    "softmax_edges_gradient",
]


@kernel
def softmax_edges(indptr, logits, low, high, out):
    """out[e, h] = softmax of logits[:, h] over the edges of e's column.

    Where all logits of a column are -inf, the softmax is 0.

    Args:
        indptr: int64[num_dst + 1].
        logits: float[num_edges, heads].
        low: first column of those to do.
        high: the column behind them.
        out: float[num_edges, heads], of logits' dtype; what no column has is left alone.

    Returns:
        -1, or the first bad column.
    """
    for i in range(low, high):
        first, last = indptr[i], indptr[i + 1]
        if first < 0 or last < first or last > logits.shape[0]:
            return i
        for h in range(logits.shape[1]):
            largest = logits.dtype.type(-math.inf)
            for e in range(first, last):
                # Not max(): a NaN must stay to be seen.
                if logits[e, h] > largest or logits[e, h] != logits[e, h]:
                    largest = logits[e, h]
            if largest == -math.inf:
                for e in range(first, last):
                    out[e, h] = 0
                continue
            total = logits.dtype.type(0)
            for e in range(first, last):
                out[e, h] = math.exp(logits[e, h] - largest)
                total += out[e, h]
            for e in range(first, last):
                out[e, h] /= total
    return -1


@kernel
def softmax_edges_gradient(indptr, out, grad_out, low, high, grad_logits):
    """Gradient of `softmax_edges`: grad_logits = out * (grad_out - column's sum of out * grad_out).

    Args:
        indptr: int64[num_dst + 1].
        out: float[num_edges, heads], as `softmax_edges` gives it.
        grad_out: float[num_edges, heads].
        low: first column of those to do.
        high: the column behind them.
        grad_logits: float[num_edges, heads]; what no column has is left alone.
    """
    for i in range(low, high):
        for h in range(out.shape[1]):
            mean = out.dtype.type(0)
            for e in range(indptr[i], indptr[i + 1]):
                mean += out[e, h] * grad_out[e, h]
            for e in range(indptr[i], indptr[i + 1]):
                grad_logits[e, h] = out[e, h] * (grad_out[e, h] - mean)


@kernel
def join_edge_values(indptr, indices, source, destination, low, high, out):
    """out[e] = source[indices[e]] + destination[i] for the edges e of column i.

    Args:
        indptr: int64[num_dst + 1].
        indices: integer[num_edges].
        source: float[num_src, heads].
        destination: float[num_dst, heads].
        low: first column of those to do.
        high: the column behind them.
        out: float[num_edges, heads]; what no column has is left alone.

    Returns:
        -1, or the first bad column.
    """
    for i in range(low, high):
        first, last = indptr[i], indptr[i + 1]
        if first < 0 or last < first or last > indices.shape[0]:
            return i
        for e in range(first, last):
            if indices[e] < 0 or indices[e] >= source.shape[0]:
                return i
            for h in range(out.shape[1]):
                out[e, h] = source[indices[e], h] + destination[i, h]
    return -1


@kernel
def add_by_destination(indptr, grad_out, low, high, grad_destination):
    """Gradient of `join_edge_values` with regard to destination: each column's sum over its edges.

    Args:
        indptr: int64[num_dst + 1].
        grad_out: float[num_edges, heads].
        low: first column of those to do.
        high: the column behind them.
        grad_destination: float[num_dst, heads].
    """
    for i in range(low, high):
        for h in range(grad_out.shape[1]):
            total = grad_out.dtype.type(0)
            for e in range(indptr[i], indptr[i + 1]):
                total += grad_out[e, h]
            grad_destination[i, h] = total


@kernel
def add_by_source(indptr, indices, grad_out, grad_source):
    """Gradient of `join_edge_values` with regard to source: adds each edge's to its source's.

    Args:
        indptr: int64[num_dst + 1].
        indices: integer[num_edges], in range.
        grad_out: float[num_edges, heads].
        grad_source: float[num_src, heads], zeros.
    """
    for e in range(indptr[0], indptr[-1]):
        for h in range(grad_out.shape[1]):
            grad_source[indices[e], h] += grad_out[e, h]


@kernel
def add_turned(starts, edges, grad_out, low, high, grad_source):
    """The same for edges by source, `transpose_edges`: each source reads its own.

    Args:
        starts: int64[num_src + 1].
        edges: integer[num_edges].
        grad_out: float[num_edges, heads].
        low: first source of those to do.
        high: the source behind them.
        grad_source: float[num_src, heads].
    """
    for j in range(low, high):
        for h in range(grad_out.shape[1]):
            grad_source[j, h] = 0
        for p in range(starts[j], starts[j + 1]):
            for h in range(grad_out.shape[1]):
                grad_source[j, h] += grad_out[edges[p], h]
