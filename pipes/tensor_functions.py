"""Operations on ids, rows and column pointers that stages and users' own samplers need."""

from __future__ import annotations

from typing import Any

import torch

from hopline.pipes.checks import (
    check_count,
    check_integers,
    check_values,
    too_large_for_int64,
)
from hopline.pipes.features.rows import gather
from hopline.pipes.kernels import cpu

__all__ = ["expand_indptr", "index_select", "indptr_edge_ids", "isin"]


def isin(elements: torch.Tensor, test_elements: torch.Tensor) -> torch.Tensor:
    """Which of the elements are among others.

    Args:
        elements: integer[n].
        test_elements: integer[m], of any integer dtype, on the same device.

    Returns:
        bool[n].

    Raises:
        TypeError: not tensors of integers.
        ValueError: not of one dimension, or on different devices.

    >>> isin(torch.tensor([1, 2, 3]), torch.tensor([3, 1, 9])).tolist()
    [True, False, True]
    """
    check_integers(elements, "elements")
    check_integers(test_elements, "test_elements")
    if elements.device != test_elements.device:
        raise ValueError(
            f"elements are on {elements.device}, test_elements on {test_elements.device}; "
            "expected one device: move the one to the other"
        )
    wide = _wide(elements)
    found = torch.isin(wide, _wide(test_elements))
    if (elements.dtype == torch.uint64) != (test_elements.dtype == torch.uint64):
        # Above 2**63 an unsigned word reads as a negative number, which the other side may hold.
        found &= wide >= 0
    return found


def index_select(tensor: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Rows of a tensor; on the CPU by the kernel that reads features, without the GIL.

    Args:
        tensor: any dtype, one dimension or more; in memory, mapped, or on a device.
        index: integer[n], each in [-len(tensor), len(tensor)); a negative one counts from the end.

    Returns:
        Tensor of shape [n, *tensor.shape[1:]]: on the tensor's device, or on the index's if the
        tensor is on the CPU.

    Raises:
        TypeError: tensor is no tensor, or index not one of integers.
        ValueError: tensor has no rows to speak of, or index is not of one dimension.
        IndexError: there is no such row.

    >>> index_select(torch.tensor([[1, 2], [3, 4]]), torch.tensor([-1, 0, 1])).tolist()
    [[3, 4], [1, 2], [3, 4]]
    """
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
        raise TypeError(f"tensor is a {type(tensor).__name__}; expected a dense torch.Tensor")
    if tensor.dim() == 0:
        raise ValueError("tensor has no dimension; expected one row or more along the first")
    check_integers(index, "index")
    check_values(index, "index")
    rows = len(tensor)
    if too_large_for_int64(index) is not None:
        raise IndexError(f"index has values above 2**63; the tensor has {rows} rows")
    ids = index if index.dtype in (torch.int32, torch.int64) else index.to(torch.int64)
    if ids.device.type == "cpu":
        bad = int(cpu.first_out_of_range(ids.contiguous().numpy(), -rows, rows))
    else:
        wrong = ((ids < -rows) | (ids >= rows)).nonzero()
        bad = int(wrong[0]) if len(wrong) else -1
    if bad >= 0:
        raise IndexError(
            f"index {int(ids[bad])} at position {bad} is outside [{-rows}, {rows}): the tensor has "
            f"{rows} rows"
        )
    ids = torch.where(ids < 0, ids + rows, ids)
    if tensor.device.type != "cpu":
        return tensor[ids.to(tensor.device)]
    # The kernel copies bytes: it knows no gradients, strides, or views that negate what they show.
    plain = not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg())
    if plain and tensor.is_contiguous():
        return gather(tensor, ids.cpu().numpy()).to(index.device)
    return tensor[ids.cpu()].to(index.device)


def expand_indptr(
    indptr: torch.Tensor,
    dtype: torch.dtype | None = None,
    node_ids: torch.Tensor | None = None,
    output_size: int | None = None,
) -> torch.Tensor:
    """The column of each edge, from the pointers of compressed columns.

    Args:
        indptr: integer[n + 1], never descending.
        dtype: of the result; None takes that of node_ids, or else of indptr.
        node_ids: [n], what to write for each column; None writes 0, 1, ...
        output_size: number of edges, if known; spares a wait for the device.

    Returns:
        Tensor of length indptr[-1] - indptr[0].

    Raises:
        TypeError: indptr is not a tensor of integers.
        ValueError: indptr descends or is empty, or node_ids or output_size do not fit it.

    >>> expand_indptr(torch.tensor([0, 2, 2, 5])).tolist()
    [0, 0, 2, 2, 2]
    >>> expand_indptr(torch.tensor([0, 2, 2, 5]), node_ids=torch.tensor([7, 8, 9])).tolist()
    [7, 7, 9, 9, 9]
    """
    degrees = _degrees(indptr, output_size)
    _check_dtype(dtype)
    if node_ids is None:
        node_ids = torch.arange(len(degrees), dtype=dtype or indptr.dtype, device=indptr.device)
    elif not isinstance(node_ids, torch.Tensor) or node_ids.shape != degrees.shape:
        shape = tuple(node_ids.shape) if isinstance(node_ids, torch.Tensor) else node_ids
        raise ValueError(f"node_ids are {shape!r}; expected one for each of {len(degrees)} columns")
    _check_device(indptr, node_ids, "node_ids")
    if dtype is not None:
        node_ids = node_ids.to(dtype)
    kind = node_ids.dtype
    if kind not in (torch.uint16, torch.uint32, torch.uint64):  # which torch does not repeat
        return torch.repeat_interleave(node_ids, degrees, output_size=output_size)
    spread = torch.repeat_interleave(_wide(node_ids), degrees, output_size=output_size)
    return spread.view(kind) if kind == torch.uint64 else spread.to(kind)


def indptr_edge_ids(
    indptr: torch.Tensor,
    dtype: torch.dtype | None = None,
    offset: torch.Tensor | None = None,
    output_size: int | None = None,
) -> torch.Tensor:
    """Numbers the edges of each column: 0, 1, ..., or from the column's own offset on.

    Args:
        indptr: integer[n + 1], never descending.
        dtype: of the result; None takes that of offset, or else of indptr.
        offset: integer[n], number of each column's first edge; None is 0 for all.
        output_size: number of edges, if known; spares a wait for the device.

    Returns:
        Integer tensor of length indptr[-1] - indptr[0].

    Raises:
        TypeError: indptr or offset is not a tensor of integers.
        ValueError: indptr descends or is empty, or offset or output_size do not fit it.

    >>> indptr_edge_ids(torch.tensor([0, 2, 2, 5])).tolist()
    [0, 1, 0, 1, 2]
    >>> indptr_edge_ids(torch.tensor([0, 2, 2, 5]), offset=torch.tensor([10, 20, 30])).tolist()
    [10, 11, 30, 31, 32]
    """
    degrees = _degrees(indptr, output_size)
    _check_dtype(dtype)
    starts = indptr[:-1].to(torch.int64)
    if offset is not None:
        check_integers(offset, "offset")
        if offset.shape != degrees.shape:
            raise ValueError(
                f"offset has {len(offset)} entries; expected one for each of {len(degrees)} columns"
            )
        _check_device(indptr, offset, "offset")
        starts = starts - offset.to(torch.int64)
        dtype = dtype or offset.dtype
    starts = torch.repeat_interleave(starts, degrees, output_size=output_size)
    first = int(indptr[0]) if indptr.device.type == "cpu" else indptr[0].to(torch.int64)
    numbers = torch.arange(len(starts), device=indptr.device) + first - starts
    return numbers.to(dtype or indptr.dtype)


def _degrees(indptr: torch.Tensor, output_size: int | None) -> torch.Tensor:
    """int64[n], edges of each column."""
    check_integers(indptr, "indptr")
    if output_size is not None:
        check_count(output_size, "output_size")
    if len(indptr) == 0:
        raise ValueError("indptr is empty; expected one entry more than there are columns")
    degrees = torch.diff(_wide(indptr))
    if indptr.device.type != "cpu" or torch.compiler.is_compiling():
        return degrees  # unread: a look would wait for the device, or break a compiled graph
    if len(degrees) and int(degrees.min()) < 0:
        column = int((degrees < 0).nonzero()[0])
        raise ValueError(
            f"indptr descends at column {column}, from {int(indptr[column])} to "
            f"{int(indptr[column + 1])}; expected pointers that never descend"
        )
    total = int(degrees.sum())
    if output_size is not None and output_size != total:
        raise ValueError(f"output_size is {output_size}; indptr counts {total} edges")
    return degrees


def _check_dtype(dtype: Any) -> None:
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype is {dtype!r}; expected a torch.dtype, or None")


def _check_device(indptr: torch.Tensor, value: torch.Tensor, name: str) -> None:
    if value.device != indptr.device:
        raise ValueError(
            f"indptr is on {indptr.device}, {name} on {value.device}; expected one device: move "
            "the one to the other"
        )


def _wide(value: torch.Tensor) -> torch.Tensor:
    """int64, the same bits for uint64."""
    return value.view(torch.int64) if value.dtype == torch.uint64 else value.to(torch.int64)
