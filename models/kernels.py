"""CPU kernels of the layers: Numba, serial, without the GIL."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from hopline.pipes.kernels.compiling import kernel

__all__ = [
    "divide_rows",
    "dot_rows",
    "max_rows",
    "spread_max",
    "spread_rows",
    "spread_weighted_rows",
    "sum_rows",
    "sum_scaled_rows",
    "sum_weighted_rows",
    "transpose_edges",
]

AHEAD = 8  # edges between the prefetch of a row and its use
LINES_AHEAD = 16  # cache lines of a row that are asked for; its others follow by themselves

# A row is added to the output row while that stays in the first-level cache, so each edge costs one
# read of a source row. Views of rows let LLVM use vector instructions.
#
# Kernels of a forward pass return -1; or the first column with an edge or a bound out of range, and
# nothing past it is done. Kernels of a backward pass rely on that check.


@intrinsic
def _prefetch(typingctx: Any, array: Any, position: Any) -> Any:
    """Asks for the cache line of array[position]; any position is allowed."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array_type, _ = signature.args
        data = context.make_array(array_type)(context, builder, args[0]).data
        pointer = builder.gep(data, [args[1]])
        pointer = builder.bitcast(pointer, cgutils.voidptr_t)
        word = ir.IntType(32)
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, word, word, word]),
            "llvm.prefetch.p0",
        )
        builder.call(function, [pointer, word(0), word(3), word(1)])
        return context.get_dummy_value()

    return types.void(array, types.intp), codegen


@kernel
def sum_rows(indptr, indices, x, mean, low, high, out):
    """out[i] = sum or mean of x[indices[e]] over the edges e of column i; 0 where there are none.

    Args:
        indptr: int64[num_dst + 1].
        indices: integer[num_edges].
        x: float[num_src, width].
        mean: whether to divide by the number of edges.
        low: first column of those to do.
        high: the column behind them.
        out: float[num_dst, parts, width], of x's dtype. The sum is the last part; with two, the
            first is a copy of x[i], and there are as many sources as destinations at least.

    Returns:
        -1, or the first bad column.
    """
    parts, width, count = out.shape[1], x.shape[1], indices.shape[0]
    flat = x.reshape(-1)
    line = max(64 // x.itemsize, 1)
    asked = min(width, LINES_AHEAD * line)
    for i in range(low, high):
        first, last = indptr[i], indptr[i + 1]
        if first < 0 or last < first or last > count:
            return i
        if parts > 1:
            total, row = out[i, 0], x[i]
            for k in range(total.shape[0]):
                total[k] = row[k]
        total = out[i, parts - 1]
        for k in range(total.shape[0]):
            total[k] = 0
        for e in range(first, last):
            if e + AHEAD < count:
                start = np.int64(indices[e + AHEAD]) * width
                for k in range(0, asked, line):
                    _prefetch(flat, start + k)
            if indices[e] < 0 or indices[e] >= x.shape[0]:
                return i
            row = x[indices[e]]
            for k in range(total.shape[0]):
                total[k] += row[k]
        if mean and last - first > 1:
            degree = x.dtype.type(last - first)
            for k in range(total.shape[0]):
                total[k] /= degree
    return -1


@kernel
def sum_scaled_rows(indptr, indices, x, source, target, own, add, low, high, out):
    """out[i] = target[i] * (out[i] + source[i] * x[i] + sum of source[j] * x[j]).

    The sum is over the edges from j to column i.

    Args:
        indptr: int64[num_dst + 1].
        indices: integer[num_edges].
        x: float[num_src, width].
        source: float[num_src], of x's dtype; or of length 0, for ones.
        target: float[num_dst], of x's dtype; or of length 0, for ones.
        own: whether source[i] * x[i] is part of it, of the columns that are sources too.
        add: whether what out has is part of it.
        low: first column of those to do.
        high: the column behind them.
        out: float[num_dst, width], of x's dtype.

    Returns:
        -1, or the first bad column.
    """
    width, count = x.shape[1], indices.shape[0]
    flat = x.reshape(-1)
    line = max(64 // x.itemsize, 1)
    asked = min(width, LINES_AHEAD * line)
    for i in range(low, high):
        first, last = indptr[i], indptr[i + 1]
        if first < 0 or last < first or last > count:
            return i
        total = out[i]
        if not add:
            for k in range(total.shape[0]):
                total[k] = 0
        if own and i < x.shape[0]:
            row = x[i]
            factor = source[i] if source.shape[0] > 0 else x.dtype.type(1)
            for k in range(total.shape[0]):
                total[k] += factor * row[k]
        for e in range(first, last):
            if e + AHEAD < count:
                start = np.int64(indices[e + AHEAD]) * width
                for k in range(0, asked, line):
                    _prefetch(flat, start + k)
            j = indices[e]
            if j < 0 or j >= x.shape[0]:
                return i
            row = x[j]
            if source.shape[0] > 0:
                factor = source[j]
                for k in range(total.shape[0]):
                    total[k] += factor * row[k]
            else:
                for k in range(total.shape[0]):
                    total[k] += row[k]
        if target.shape[0] > 0:
            factor = target[i]
            for k in range(total.shape[0]):
                total[k] *= factor
    return -1


@kernel
def transpose_edges(indptr, indices, starts, columns, edges):
    """The edges by source: those of source j are in columns[starts[j]:starts[j + 1]].

    Args:
        indptr: int64[num_dst + 1].
        indices: integer[num_edges], in range.
        starts: int64[num_src + 2], zeros; its last entry is of no use afterwards.
        columns: integer[num_edges], the column of each edge, rising for one source.
        edges: integer[num_edges], the edge; or of length 0, for those who need none.
    """
    named = edges.shape[0] > 0
    for e in range(indptr[0], indptr[-1]):
        starts[indices[e] + 2] += 1
    for j in range(2, starts.shape[0]):
        starts[j] += starts[j - 1]
    for i in range(indptr.shape[0] - 1):
        for e in range(indptr[i], indptr[i + 1]):
            position = starts[indices[e] + 1]
            columns[position] = i
            if named:
                edges[position] = e
            starts[indices[e] + 1] = position + 1


@kernel
def divide_rows(indptr, grad_out, low, high, out):
    """out[i] = grad_out[i] / degree of column i, of the last part.

    Args:
        indptr: int64[num_dst + 1].
        grad_out: float[num_dst, parts, width], of `sum_rows`' out.
        low: first column of those to do.
        high: the column behind them.
        out: float[num_dst, width], of grad_out's dtype.
    """
    last = grad_out.shape[1] - 1
    for i in range(low, high):
        row, quotient = grad_out[i, last], out[i]
        divisor = grad_out.dtype.type(max(indptr[i + 1] - indptr[i], 1))
        for k in range(quotient.shape[0]):
            quotient[k] = row[k] / divisor


@kernel
def spread_rows(starts, columns, rows, grad_out, low, high, grad_x):
    """Transpose of `sum_rows`: sums rows[i] over the edges of a source.

    Args:
        starts: int64[num_src + 1], as `transpose_edges` gives it.
        columns: integer[num_edges], as `transpose_edges` gives it.
        rows: float[num_dst, width], the last part of grad_out, or what `divide_rows` made of it.
        grad_out: float[num_dst, parts, width], of `sum_rows`' out.
        low: first source of those to do.
        high: the source behind them.
        grad_x: float[num_src, width], of grad_out's dtype.
    """
    width, count = rows.shape[1], columns.shape[0]
    flat = rows.reshape(-1)
    line = max(64 // rows.itemsize, 1)
    asked = min(width, LINES_AHEAD * line)
    for j in range(low, high):
        total = grad_x[j]
        for k in range(total.shape[0]):
            total[k] = 0
        for p in range(starts[j], starts[j + 1]):
            if p + AHEAD < count:
                start = np.int64(columns[p + AHEAD]) * width
                for k in range(0, asked, line):
                    _prefetch(flat, start + k)
            row = rows[columns[p]]
            for k in range(total.shape[0]):
                total[k] += row[k]
        if grad_out.shape[1] > 1 and j < grad_out.shape[0]:
            row = grad_out[j, 0]
            for k in range(total.shape[0]):
                total[k] += row[k]


@kernel
def sum_weighted_rows(indptr, indices, weight, x, low, high, out):
    """out[i, h] = sum of weight[e, h] * x[indices[e], h] over the edges e of column i.

    Args:
        indptr: int64[num_dst + 1].
        indices: integer[num_edges].
        weight: float[num_edges, heads].
        x: float[num_src, heads, width]; or [num_src, 1, width], rows that all heads share.
        low: first column of those to do.
        high: the column behind them.
        out: float[num_dst, heads, width], of x's dtype.

    Returns:
        -1, or the first bad column.
    """
    shared, count = x.shape[1] == 1, indices.shape[0]
    flat, length = x.reshape(-1), x.shape[1] * x.shape[2]
    line = max(64 // x.itemsize, 1)
    asked = min(length, LINES_AHEAD * line)
    for i in range(low, high):
        first, last = indptr[i], indptr[i + 1]
        if first < 0 or last < first or last > count:
            return i
        for h in range(out.shape[1]):
            total = out[i, h]
            for k in range(total.shape[0]):
                total[k] = 0
        for e in range(first, last):
            if e + AHEAD < count:
                start = np.int64(indices[e + AHEAD]) * length
                for k in range(0, asked, line):
                    _prefetch(flat, start + k)
            if indices[e] < 0 or indices[e] >= x.shape[0]:
                return i
            for h in range(out.shape[1]):
                total = out[i, h]
                row = x[indices[e], 0 if shared else h]
                factor = weight[e, h]
                for k in range(total.shape[0]):
                    total[k] += factor * row[k]
    return -1


@kernel
def spread_weighted_rows(starts, columns, edges, weight, grad_out, low, high, grad_x):
    """Gradient of `sum_weighted_rows` with regard to x.

    Args:
        starts: int64[num_src + 1], as `transpose_edges` gives it.
        columns: integer[num_edges], as `transpose_edges` gives it.
        edges: integer[num_edges], as `transpose_edges` gives it.
        weight: float[num_edges, heads].
        grad_out: float[num_dst, heads, width].
        low: first source of those to do.
        high: the source behind them.
        grad_x: float[num_src, heads or 1, width], of grad_out's dtype.
    """
    shared, count, heads = grad_x.shape[1] == 1, columns.shape[0], weight.shape[1]
    flat, length = grad_out.reshape(-1), grad_out.shape[1] * grad_out.shape[2]
    weights = weight.reshape(-1)
    line = max(64 // grad_out.itemsize, 1)
    asked = min(length, LINES_AHEAD * line)
    for j in range(low, high):
        for h in range(grad_x.shape[1]):
            total = grad_x[j, h]
            for k in range(total.shape[0]):
                total[k] = 0
        for p in range(starts[j], starts[j + 1]):
            if p + AHEAD < count:
                _prefetch(weights, np.int64(edges[p + AHEAD]) * heads)
                start = np.int64(columns[p + AHEAD]) * length
                for k in range(0, asked, line):
                    _prefetch(flat, start + k)
            i, e = columns[p], edges[p]
            for h in range(heads):
                total = grad_x[j, 0 if shared else h]
                row = grad_out[i, h]
                factor = weight[e, h]
                for k in range(row.shape[0]):
                    total[k] += factor * row[k]


# Free to add in another order than the loop's, which is what vector instructions need; compiled
# once, so the order is one. It has no cache of its own: it is part of its caller's machine code.
@njit(nogil=True, fastmath={"reassoc", "nsz"})
def _dot(row, other):
    total = row.dtype.type(0)
    for k in range(row.shape[0]):
        total += row[k] * other[k]
    return total


@kernel
def dot_rows(indptr, indices, x, grad_out, low, high, grad_weight):
    """Gradient of `sum_weighted_rows` with regard to weight: products of x and grad_out rows.

    Args:
        indptr: int64[num_dst + 1].
        indices: integer[num_edges], in range.
        x: float[num_src, heads or 1, width].
        grad_out: float[num_dst, heads, width].
        low: first column of those to do.
        high: the column behind them.
        grad_weight: float[num_edges, heads], of x's dtype; what no column has is left alone.
    """
    shared, count = x.shape[1] == 1, indices.shape[0]
    flat, length = x.reshape(-1), x.shape[1] * x.shape[2]
    line = max(64 // x.itemsize, 1)
    asked = min(length, LINES_AHEAD * line)
    for i in range(low, high):
        for e in range(indptr[i], indptr[i + 1]):
            if e + AHEAD < count:
                start = np.int64(indices[e + AHEAD]) * length
                for k in range(0, asked, line):
                    _prefetch(flat, start + k)
            for h in range(grad_out.shape[1]):
                grad_weight[e, h] = _dot(x[indices[e], 0 if shared else h], grad_out[i, h])


@kernel
def max_rows(indptr, indices, x, out, winner):
    """out[i] = elementwise maximum of x[indices[e]] over the edges e of column i.

    The first of equal values wins, and a NaN wins over numbers. A column without edges gets 0.

    Args:
        indptr: int64[num_dst + 1].
        indices: integer[num_edges].
        x: float[num_src, width].
        out: float[num_dst, width], of x's dtype.
        winner: indices' dtype[num_dst, width], the source row of each value; -1 without edges.

    Returns:
        -1, or the first bad column.
    """
    for i in range(out.shape[0]):
        first, last = indptr[i], indptr[i + 1]
        if first < 0 or last < first or last > indices.shape[0]:
            return i
        best, source = out[i], winner[i]
        for k in range(best.shape[0]):
            best[k] = 0
            source[k] = -1
        for e in range(first, last):
            j = indices[e]
            if j < 0 or j >= x.shape[0]:
                return i
            row = x[j]
            if e == first:
                for k in range(best.shape[0]):
                    best[k] = row[k]
                    source[k] = j
                continue
            for k in range(best.shape[0]):
                value, old = row[k], best[k]
                better = (value > old) | ((value != value) & (old == old))
                best[k] = value if better else old
                source[k] = j if better else source[k]
    return -1


@kernel
def spread_max(winner, grad_out, grad_x):
    """Gradient of `max_rows` with regard to x, added to grad_x.

    Args:
        winner: integer[num_dst, width], as `max_rows` gives it.
        grad_out: float[num_dst, width].
        grad_x: float[num_src, width], of grad_out's dtype, zeros.
    """
    for i in range(winner.shape[0]):
        for k in range(winner.shape[1]):
            if winner[i, k] >= 0:
                grad_x[winner[i, k], k] += grad_out[i, k]
