"""CPU kernels of the layers: Numba, serial, without the GIL."""

from __future__ import annotations

from hopline.pipes.kernels.compiling import kernel

__all__ = ["mean_rows", "spread_rows"]

# A row is added to the output row while that stays in the first-level cache, so each edge costs one
# read of a source row. Views of rows let LLVM use vector instructions.


@kernel
def mean_rows(indptr, indices, x, out):
    """out[i] = mean of x[indices[e]] over the edges e of column i; 0 where there are none.

    Args:
        indptr: int64[num_dst + 1].
        indices: integer[num_edges].
        x: float[num_src, width].
        out: float[num_dst, width], of x's dtype.

    Returns:
        -1; or the first column with an edge or a bound out of range, and nothing past it is done.
    """
    for i in range(out.shape[0]):
        first, last = indptr[i], indptr[i + 1]
        if first < 0 or last < first or last > indices.shape[0]:
            return i
        total = out[i]
        for k in range(total.shape[0]):
            total[k] = 0
        for e in range(first, last):
            if indices[e] < 0 or indices[e] >= x.shape[0]:
                return i
            row = x[indices[e]]
            for k in range(total.shape[0]):
                total[k] += row[k]
        if last - first > 1:
            count = x.dtype.type(last - first)
            for k in range(total.shape[0]):
                total[k] /= count
    return -1


@kernel
def spread_rows(indptr, indices, grad_out, grad_x):
    """Transpose of `mean_rows`: adds grad_out[i] / degree to grad_x[indices[e]].

    Args:
        indptr: int64[num_dst + 1].
        indices: integer[num_edges], in range: the forward pass has looked.
        grad_out: float[num_dst, width].
        grad_x: float[num_src, width], of grad_out's dtype, zeros.
    """
    for i in range(grad_out.shape[0]):
        first, last = indptr[i], indptr[i + 1]
        if first == last:
            continue
        count = grad_out.dtype.type(last - first)
        row = grad_out[i]
        for e in range(first, last):
            total = grad_x[indices[e]]
            for k in range(row.shape[0]):
                total[k] += row[k] / count
