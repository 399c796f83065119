"""insert, relabel: node ids to positions in the list of a mini-batch's nodes, on the GPU.

A table maps ids to int32 positions. It is dense, a slot for each node of the graph, or a hash table
with open addressing: keys int64[2**b], -1 where empty, beside the values. A fresh table's values
are EMPTY. Of the entries of one call that have the same new id, an atomic minimum of their numbers
settles which is the first, whatever the order in which the GPU comes to them; a running sum over
the first ones gives their final positions. So the list is the CPU's.

Ids outside [0, limit) are not entered and get position -1: a damaged graph cannot fill a table.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hopline.pipes.kernels.cuda.launching import ceil_div, launch, tile
from hopline.pipes.kernels.cuda.words import mix64

__all__ = ["EMPTY", "insert", "relabel"]

EMPTY = (1 << 31) - 1
VACANT = tl.constexpr(-1)
NEVER = tl.constexpr(-2)  # no key
# One warp a program: a program probes until the last of its ids is placed.
PROBED = 64
BLOCK = 1024


@triton.jit(do_not_specialize=["room", "first", "limit", "capacity"])
def _enter(
    keys, values, ids, total, slots, room, first, limit, capacity,
    DENSE: tl.constexpr, KEEP: tl.constexpr, COUNTED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Lowers the value of ids[i] to first + i, for i below total[0]; slots[i] is where it is.

    The slot of an id that is not entered is -1.
    """
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = at < room
    if COUNTED:
        there = there & (at < tl.load(total))
    node = tl.load(ids + at, mask=there, other=-1).to(tl.int64)
    there = there & (node >= 0) & (node < limit)
    if DENSE:
        slot = node
    else:
        last = capacity.to(tl.int64) - 1
        slot = (mix64(node.to(tl.uint64)) & last.to(tl.uint64)).to(tl.int64)
        searching = there
        while tl.max(searching.to(tl.int32), axis=0) > 0:
            # An idle lane compares with what no slot holds, so it changes nothing.
            expected = tl.where(searching, tl.full((BLOCK,), VACANT, tl.int64), NEVER)
            found = tl.atomic_cas(keys + slot, expected, node, sem="relaxed")
            searching = searching & (found != VACANT) & (found != node)
            slot = tl.where(searching, (slot + 1) & last, slot)
    tl.atomic_min(values + slot, (first + at).to(tl.int32), mask=there, sem="relaxed")
    if KEEP:
        tl.store(slots + at, tl.where(there, slot, -1).to(tl.int32), mask=at < room)


@triton.jit(do_not_specialize=["room", "first"])
def _mark_first(values, slots, local, marks, room, first, BLOCK: tl.constexpr):
    """local[i] = the value of entry i, or -1; marks[i] = 1 if the entry is the first of a new id.

    A value from `first` on is first + the number of the id's first entry; others are final.
    """
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    slot = tl.load(slots + at, mask=at < room, other=-1).to(tl.int64)
    value = tl.load(values + slot, mask=slot >= 0, other=-1)
    tl.store(local + at, value, mask=at < room)
    tl.store(marks + at, (value == first + at).to(tl.int32), mask=at < room)


@triton.jit(do_not_specialize=["room", "first"])
def _place(values, ids, slots, local, sums, nodes, room, first, BLOCK: tl.constexpr):
    """Makes new values final, in the table and in local; writes new ids to the list.

    No value is read here: other programs may have made it final already.
    """
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = at < room
    value = tl.load(local + at, mask=there, other=-1).to(tl.int64)
    new = there & (value >= first)
    begin = tl.where(new, value - first, 0)
    position = first + tl.load(sums + begin, mask=new, other=1).to(tl.int64) - 1
    tl.store(local + at, position.to(tl.int32), mask=new)
    mine = new & (begin == at)
    node = tl.load(ids + at, mask=mine, other=0)
    tl.store(nodes + position, node, mask=mine)
    slot = tl.load(slots + at, mask=mine, other=0).to(tl.int64)
    tl.store(values + slot, position.to(tl.int32), mask=mine)


def insert(
    keys: torch.Tensor | None, values: torch.Tensor, nodes: torch.Tensor, limit: int
) -> None:
    """Enters a list of nodes, which may repeat; the first occurrence counts.

    Args:
        keys: int64[capacity], a power of two above the number of different ids in the table; None
            if the table is dense.
        values: int32[capacity], or int32[limit] if the table is dense.
        nodes: contiguous integer[n], at most 2**31 - 1, positions 0..n-1.
        limit: ids from here on are not entered.
    """
    _insert(keys, values, nodes, None, None, 0, limit)


def relabel(
    keys: torch.Tensor | None,
    values: torch.Tensor,
    nodes: torch.Tensor,
    count: int,
    neighbors: torch.Tensor,
    total: torch.Tensor,
    limit: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Replaces ids by positions; ids not met before are appended to the list.

    Args:
        keys: as in `insert`, with room for all of neighbors.
        values: as in `insert`.
        nodes: integer[>= count + number of ids not met before], the list, in and out.
        count: its length so far; count + room is at most 2**31 - 1.
        neighbors: contiguous integer[room].
        total: int64[1], how many of them are real.
        limit: as in `insert`.

    Returns:
        int32[room]: positions, -1 for what is not entered; int64[1]: how many ids were new.
    """
    room = len(neighbors)
    # Each by itself: local outlives the others, and all are aligned alike whatever `room` is.
    slots = torch.empty(room, dtype=torch.int32, device=values.device)
    local, marks = torch.empty_like(slots), torch.empty_like(slots)
    _insert(keys, values, neighbors, total, slots, count, limit)
    block = tile(room, BLOCK)
    programs = ceil_div(room, block)
    launch(
        _mark_first, programs, local, values, slots, local, marks, room, count, BLOCK=block
    )  # fmt: skip
    sums = torch.cumsum(marks, 0, dtype=torch.int32)
    launch(
        _place, programs, local, values, neighbors, slots, local, sums, nodes, room, count,
        BLOCK=block,
    )  # fmt: skip
    if room:
        return local, sums[-1:].to(torch.int64)
    return local, torch.zeros(1, dtype=torch.int64, device=values.device)


def _insert(
    keys: torch.Tensor | None,
    values: torch.Tensor,
    ids: torch.Tensor,
    total: torch.Tensor | None,
    slots: torch.Tensor | None,
    first: int,
    limit: int,
) -> None:
    block = tile(len(ids), BLOCK if keys is None else PROBED)
    launch(
        _enter, ceil_div(len(ids), block), values, values if keys is None else keys, values, ids,
        ids if total is None else total, values if slots is None else slots, len(ids), first, limit,
        len(values), DENSE=keys is None, KEEP=slots is not None, COUNTED=total is not None,
        BLOCK=block, num_warps=4 if keys is None else 1,
    )  # fmt: skip
