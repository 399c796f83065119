"""gather_rows, scatter_rows, overlay_rows: rows of any dtype by their numbers; first_out_of_range.

Rows are copied as words, as wide as the size of a row and the addresses allow: no kernel depends on
a dtype, and half-precision numbers and NaN come back bit by bit.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from hopline.pipes.kernels.cuda.launching import NONE, NOTHING, ceil_div, launch, tile

__all__ = ["first_out_of_range", "gather_rows", "overlay_rows", "scatter_rows"]

WORD = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
TILE = 1024  # words of one program
WIDTH = 128  # words of a row that one program copies at most: rows of 1 KiB take one program
CHECKED = 1024  # ids that one program checks
INTERPRETED_WORDS = 1 << 14


@triton.jit(do_not_specialize=["count", "parts"])
def _gather_rows(
    source, ids, out, count, steps, parts,
    PAIR: tl.constexpr, ROWS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """out[i] = source[ids[i]]; a row has steps * PAIR words and takes `parts` programs.

    That a row begins at a multiple of PAIR words lets one instruction copy PAIR words.
    """
    program = tl.program_id(0).to(tl.int64)
    row = program // parts * ROWS + tl.arange(0, ROWS)
    word = program % parts * WORDS + tl.arange(0, WORDS)
    there = row < count
    begin = tl.load(ids + row, mask=there, other=0).to(tl.int64) * steps * PAIR
    mask = there[:, None] & (word < steps * PAIR)[None, :]
    words = tl.load(source + (begin[:, None] + word[None, :]), mask=mask)
    tl.store(out + ((row * steps * PAIR)[:, None] + word[None, :]), words, mask=mask)


@triton.jit(do_not_specialize=["count", "parts"])
def _scatter_rows(
    target, slots, rows, count, steps, parts,
    PAIR: tl.constexpr, ROWS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """target[slots[i]] = rows[i] where slots[i] >= 0; otherwise as `_gather_rows`."""
    program = tl.program_id(0).to(tl.int64)
    row = program // parts * ROWS + tl.arange(0, ROWS)
    word = program % parts * WORDS + tl.arange(0, WORDS)
    slot = tl.load(slots + row, mask=row < count, other=-1).to(tl.int64)
    mask = (slot >= 0)[:, None] & (word < steps * PAIR)[None, :]
    words = tl.load(rows + ((row * steps * PAIR)[:, None] + word[None, :]), mask=mask)
    tl.store(target + ((slot * steps * PAIR)[:, None] + word[None, :]), words, mask=mask)


@triton.jit(do_not_specialize=["count", "parts"])
def _overlay_rows(
    source, numbers, target, count, steps, parts,
    PAIR: tl.constexpr, ROWS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """target[i] = source[numbers[i]] where numbers[i] >= 0; rows as in `_gather_rows`."""
    program = tl.program_id(0).to(tl.int64)
    row = program // parts * ROWS + tl.arange(0, ROWS)
    word = program % parts * WORDS + tl.arange(0, WORDS)
    number = tl.load(numbers + row, mask=row < count, other=-1)
    mask = (number >= 0)[:, None] & (word < steps * PAIR)[None, :]
    begin = number * steps * PAIR
    words = tl.load(source + (begin[:, None] + word[None, :]), mask=mask)
    tl.store(target + ((row * steps * PAIR)[:, None] + word[None, :]), words, mask=mask)


@triton.jit(do_not_specialize=["count", "low", "high"])
def _first_out_of_range(ids, count, low, high, bad, BLOCK: tl.constexpr):
    """Lowers bad[0] to the position of the first id outside [low, high)."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = at < count
    value = tl.load(ids + at, mask=there, other=0).to(tl.int64)
    outside = there & ((value < low) | (value >= high))
    first = tl.min(tl.where(outside, at, NONE), axis=0)
    if first < NONE:
        tl.atomic_min(bad, first, sem="relaxed")


def gather_rows(source: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Copies rows, whatever they hold.

    Args:
        source: contiguous, of one dimension or more and any dtype; on the device of ids or in
            page-locked host memory.
        ids: contiguous integer[n], each in [0, len(source)); checked by the caller.

    Returns:
        Tensor of shape [n, *source.shape[1:]] on the device of ids.
    """
    out = torch.empty((len(ids), *source.shape[1:]), dtype=source.dtype, device=ids.device)
    if out.numel():
        _copy(_gather_rows, out, (source, ids, out), len(ids))
    return out


def scatter_rows(target: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor) -> None:
    """Writes rows: target[slots[i]] = rows[i]; a slot below 0 leaves its row out.

    Args:
        target: contiguous, of one dimension or more and any dtype; on the device of slots.
        slots: contiguous integer[n], each below len(target), those from 0 on distinct; checked by
            the caller.
        rows: contiguous [n, *target.shape[1:]] of the target's dtype; on the device of slots or in
            page-locked host memory.
    """
    if rows.numel():
        _copy(_scatter_rows, slots, (target, slots, rows), len(slots))


def first_out_of_range(ids: torch.Tensor, low: int, high: int) -> torch.Tensor:
    """Position of the first id outside [low, high).

    Args:
        ids: contiguous integer[n].
        low: int64.
        high: int64.

    Returns:
        int64[1] on the device of ids; NOTHING if all are inside.
    """
    bad = torch.full((1,), NOTHING, dtype=torch.int64, device=ids.device)
    if ids.dtype == torch.uint64:
        # What int64 cannot hold reads as negative, which is outside as well.
        ids, low = ids.view(torch.int64), max(low, 0)
    block = tile(len(ids), CHECKED)
    programs = ceil_div(len(ids), block)
    launch(_first_out_of_range, programs, bad, ids, len(ids), low, high, bad, BLOCK=block)
    return bad


def overlay_rows(target: torch.Tensor, source: torch.Tensor, numbers: torch.Tensor) -> None:
    """Writes rows over others: target[i] = source[numbers[i]] where that is 0 or more.

    Args:
        target: contiguous [n, *row].
        source: contiguous [m, *row], of the same dtype and on the same device.
        numbers: contiguous int64[n], each below m.
    """
    if target.numel():
        _copy(_overlay_rows, target, (source, numbers, target), len(numbers))


def _copy(kernel: object, on: torch.Tensor, tensors: tuple[torch.Tensor, ...], count: int) -> None:
    """Starts a kernel over `count` rows: tensors[0] and [2] hold rows, [1] their numbers."""
    first, numbers, second = tensors
    row_bytes = math.prod(first.shape[1:]) * first.element_size()
    width = math.gcd(8, row_bytes, *_addresses(first), *_addresses(second))
    words = row_bytes // width
    pair = math.gcd(words, 16 // width)
    across = min(triton.next_power_of_2(words), tile(words, WIDTH))
    down = tile(count, max(1, TILE // across), limit=max(1, INTERPRETED_WORDS // across))
    parts = ceil_div(words, across)
    launch(
        kernel, ceil_div(count, down) * parts, on, _words(first, width), numbers,
        _words(second, width), count, words // pair, parts, PAIR=pair, ROWS=down, WORDS=across,
    )  # fmt: skip


def _addresses(tensor: torch.Tensor) -> tuple[int, int]:
    """What a view in wider words needs to be multiples of their width."""
    return tensor.data_ptr(), int(tensor.storage_offset()) * tensor.element_size()


def _words(tensor: torch.Tensor, width: int) -> torch.Tensor:
    # Strided anew: a tensor of one element is contiguous whatever its stride.
    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(WORD[width])
