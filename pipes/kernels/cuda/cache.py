"""GPU kernels of the feature cache: look-up in sets of 32 ways, and victims.

A key has one set, which the hash of the key tells. Way w of set s is entry 32 * s + w of `keys` and
`stamps`; a set has `most` ways, or one less from number `larger` on.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hopline.pipes.kernels.cuda.launching import ceil_div, launch, tile
from hopline.pipes.kernels.cuda.words import mix64

__all__ = ["WAYS", "choose", "probe"]

WAYS = 32
_WAYS = tl.constexpr(WAYS)
PROBED = 32  # keys of one program
CHOSEN = 16


@triton.jit(do_not_specialize=["count", "offset", "sets", "call"])
def _probe(ids, count, offset, sets, call, keys, stamps, out, TOUCH: tl.constexpr, B: tl.constexpr):
    """out[i] = the way of key ids[i] + offset, or -1 - its set; TOUCH stamps the way."""
    at = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    there = at < count
    key = tl.load(ids + at, mask=there, other=0) + offset
    home = (mix64(key.to(tl.uint64)) % sets.to(tl.uint64)).to(tl.int64)
    way = (home * _WAYS)[:, None] + tl.arange(0, _WAYS)[None, :]
    held = tl.load(keys + way, mask=there[:, None], other=-1)
    # No key is below 0; empty ways hold -1.
    same = (held == key[:, None]) & (key >= 0)[:, None]
    found = tl.max(tl.where(same, way, -1), axis=1)
    hit = there & (found >= 0)
    tl.store(out + at, tl.where(found >= 0, found, -1 - home), mask=there)
    if TOUCH:
        tl.store(stamps + found, tl.zeros_like(found) + call, mask=hit)


@triton.jit(do_not_specialize=["count", "sets", "call", "most", "larger"])
def _choose(homes, ranks, count, sets, call, stamps, most, larger, out, B: tl.constexpr):
    """out[i] = the way that is ranks[i]-th to go in set homes[i], or -1."""
    at = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    home = tl.load(homes + at, mask=at < count, other=0)
    rank = tl.load(ranks + at, mask=at < count, other=_WAYS)
    there = (at < count) & (home < sets)
    home = tl.where(there, home, 0)
    size = most - (home >= larger).to(tl.int64)
    ways = tl.arange(0, _WAYS)[None, :]
    stamp = tl.load(stamps + ((home * _WAYS)[:, None] + ways), mask=there[:, None], other=0)
    free = (stamp != call) & (ways < size[:, None]) & there[:, None]
    before = tl.zeros_like(stamp)
    for w in range(_WAYS):
        other = tl.load(stamps + (home * _WAYS + w), mask=there, other=0)
        goes = (other != call) & (w < size)
        sooner = (other[:, None] < stamp) | ((other[:, None] == stamp) & (w < ways))
        before += (goes[:, None] & sooner).to(tl.int64)
    mine = free & (before == rank[:, None])
    way = tl.max(tl.where(mine, (home * _WAYS)[:, None] + ways, -1), axis=1)
    tl.store(out + at, way, mask=at < count)


def probe(
    ids: torch.Tensor,
    offset: int,
    sets: int,
    keys: torch.Tensor,
    stamps: torch.Tensor,
    call: int | None = None,
) -> torch.Tensor:
    """Looks keys up.

    Args:
        ids: contiguous int64[n]; the keys are ids + offset. One below 0 is never found.
        offset: what to add.
        sets: number of sets, 1 or more.
        keys: int64[32 * sets or more], the key in each way; -1 where there is none.
        stamps: int64 of the same length; those of found ways become the call's number.
        call: the number; None to change nothing.

    Returns:
        int64[n], the way of each key, or -1 - its set.
    """
    out = torch.empty_like(ids)
    block = tile(len(ids), PROBED, limit=256)
    launch(
        _probe, ceil_div(len(ids), block), out, ids, len(ids), offset, sets, call or 0, keys,
        stamps, out, TOUCH=call is not None, B=block,
    )  # fmt: skip
    return out


def choose(
    homes: torch.Tensor,
    ranks: torch.Tensor,
    sets: int,
    stamps: torch.Tensor,
    call: int,
    most: int,
    larger: int,
) -> torch.Tensor:
    """Finds ways for new keys: those of smallest stamp, equal ones by number.

    Args:
        homes: contiguous int64[n], the set of each; `sets` or above for one that needs no way.
        ranks: contiguous int64[n], its number among the new keys of its set.
        sets: number of sets.
        stamps: int64[32 * sets or more].
        call: ways with this stamp stay.
        most: ways of a set, 32 or less.
        larger: how many sets have so many; the others have one less.

    Returns:
        int64[n], ways, all distinct, or -1 where there is none left.
    """
    out = torch.empty_like(homes)
    block = tile(len(homes), CHOSEN, limit=256)
    launch(
        _choose, ceil_div(len(homes), block), out, homes, ranks, len(homes), sets, call, stamps,
        most, larger, out, B=block,
    )  # fmt: skip
    return out
