"""CPU kernels of the link decoders: Numba, serial, without the GIL."""

from __future__ import annotations

from typing import Any

from hopline.pipes.kernels.compiling import kernel

__all__ = ["first_bad_link", "link_dots", "link_products", "spread_link_grads"]


@kernel
def first_bad_link(links: Any, rows: int) -> int:
    """First link with an end outside [0, rows); -1 if there is none.

    Args:
        links: integer[n, k].
        rows: number of rows that links may name.
    """
    for i in range(links.shape[0]):
        for j in range(links.shape[1]):
            if links[i, j] < 0 or links[i, j] >= rows:
                return i
    return -1


@kernel
def link_products(h: Any, links: Any, out: Any) -> None:
    """out[i] = product over j of h[links[i, j]], element by element.

    Args:
        h: float[rows, width].
        links: integer[n, k], in range.
        out: float[n, width], of h's dtype.
    """
    for i in range(links.shape[0]):
        total, first = out[i], h[links[i, 0]]
        for c in range(total.shape[0]):
            total[c] = first[c]
        for j in range(1, links.shape[1]):
            row = h[links[i, j]]
            for c in range(total.shape[0]):
                total[c] *= row[c]


@kernel
def link_dots(h: Any, links: Any, scratch: Any, out: Any) -> None:
    """out[i] = sum over the width of the product over j of h[links[i, j]].

    Args:
        h: float[rows, width].
        links: integer[n, k], in range.
        scratch: float[width], of h's dtype.
        out: float[n], of h's dtype.
    """
    for i in range(links.shape[0]):
        first = h[links[i, 0]]
        for c in range(scratch.shape[0]):
            scratch[c] = first[c]
        for j in range(1, links.shape[1]):
            row = h[links[i, j]]
            for c in range(scratch.shape[0]):
                scratch[c] *= row[c]
        total = h.dtype.type(0)
        for c in range(scratch.shape[0]):
            total += scratch[c]
        out[i] = total


@kernel
def spread_link_grads(h: Any, links: Any, grad_out: Any, scratch: Any, grad_h: Any) -> None:
    """Adds to grad_h[links[i, j]] the gradient times the product of the link's other rows.

    Args:
        h: float[rows, width].
        links: integer[n, k], in range.
        grad_out: float[n, width]; or float[n, 1], the same for a whole row.
        scratch: float[width], of h's dtype.
        grad_h: float[rows, width], zeros.
    """
    for i in range(links.shape[0]):
        for j in range(links.shape[1]):
            if grad_out.shape[1] == 1:
                for c in range(scratch.shape[0]):
                    scratch[c] = grad_out[i, 0]
            else:
                for c in range(scratch.shape[0]):
                    scratch[c] = grad_out[i, c]
            for other in range(links.shape[1]):
                if other != j:
                    row = h[links[i, other]]
                    for c in range(scratch.shape[0]):
                        scratch[c] *= row[c]
            total = grad_h[links[i, j]]
            for c in range(scratch.shape[0]):
                total[c] += scratch[c]
