"""CPU kernels of feature caches: a key table and the eviction policies.

Slots are places for rows. Every slot is on at most one list, kept by `next` (towards newer) and
`previous` (towards older). All functions that change a cache are called under its lock.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from hopline.pipes.kernels.compiling import kernel

__all__ = [
    "CLOCK",
    "FILLED",
    "LRU",
    "NOBODY",
    "NUM_MARKS",
    "S3_FIFO",
    "SIEVE",
    "STATIC",
    "CacheArrays",
    "admit",
    "forget",
    "forget_range",
    "plan",
    "preload",
    "settle",
    "torn",
]

Array = np.ndarray[Any, Any]

# Policies
SIEVE = 0
S3_FIFO = 1
LRU = 2
CLOCK = 3
STATIC = 4

# Owners of a slot; above 0: the call that is about to fill it
FILLED = 0
NOBODY = -1

# Entries of CacheArrays.marks; a list has three: oldest, newest, size
MAIN = 0  # the only list of SIEVE and LRU
SMALL = 3  # S3-FIFO
GHOST = 6  # S3-FIFO: keys lately evicted from the small list; nodes of their own
HAND = 9  # SIEVE, CLOCK: where the search for a victim goes on
FREE = 10  # number of entries of `free`
GHOST_FREE = 11  # number of entries of `ghost_free`
NUM_MARKS = 12

MAX_FREQUENCY = 3
AHEAD = 16  # keys between a prefetch and its use
MIX_A = np.uint64(0xBF58476D1CE4E5B9)
MIX_B = np.uint64(0x94D049BB133111EB)
U27 = np.uint64(27)
U30 = np.uint64(30)
U31 = np.uint64(31)


class CacheArrays(NamedTuple):
    """All that a policy knows: of each slot, and of each node of S3-FIFO's ghost list.

    Attributes:
        table: int64[2 * 2**b], pairs of a key and its value, in open addressing, at most half full.
            The value is a slot, or capacity + node for a key on the ghost list; -1 where empty.
        keys: int64[capacity], the key in each slot.
        owner: int64[capacity], FILLED when the row is there, NOBODY, or the call that reads it.
        ticket: int64[capacity], which row of that call's reading it is.
        filled_at: int64[capacity], number of the filling that wrote the row.
        bits: uint8[capacity], visited (SIEVE, CLOCK) or frequency (S3-FIFO).
        next: int32[capacity], towards newer.
        previous: int32[capacity], towards older.
        free: int32[capacity], a stack of slots without a key.
        ghost_keys: int64[ghosts].
        ghost_next: int32[ghosts].
        ghost_previous: int32[ghosts].
        ghost_free: int32[ghosts].
        marks: int64[NUM_MARKS].
    """

    table: Array
    keys: Array
    owner: Array
    ticket: Array
    filled_at: Array
    bits: Array
    next: Array
    previous: Array
    free: Array
    ghost_keys: Array
    ghost_next: Array
    ghost_previous: Array
    ghost_free: Array
    marks: Array


@intrinsic
def _prefetch(typingctx: Any, array: Any, position: Any) -> Any:
    """Asks for the cache line of array[position]; never faults, changes nothing."""

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


# ---------------------------------------------------------------------------------------------
# The key table: linear probing, holes closed at once


@kernel(inline="always")
def _home(key, mask):
    word = np.uint64(key)
    word = (word ^ (word >> U30)) * MIX_A
    word = (word ^ (word >> U27)) * MIX_B
    return np.int64((word ^ (word >> U31)) & np.uint64(mask))


@kernel
def _place(table, key):
    """Where the key is, or the empty place where it would be; of the pair's first word."""
    mask = len(table) // 2 - 1
    at = _home(key, mask)
    while table[2 * at + 1] >= 0 and table[2 * at] != key:
        at = (at + 1) & mask
    return 2 * at


@kernel
def _find(table, key):
    """The key's value, or -1."""
    return table[_place(table, key) + 1]


@kernel
def _assign(table, key, value):
    at = _place(table, key)
    table[at] = key
    table[at + 1] = value


@kernel
def _erase(table, key):
    """Takes out a key that is there."""
    mask = len(table) // 2 - 1
    hole = _place(table, key) // 2
    at = hole
    while True:
        at = (at + 1) & mask
        if table[2 * at + 1] < 0:
            break
        # An entry may move back to the hole unless its home lies behind the hole.
        if ((at - _home(table[2 * at], mask)) & mask) >= ((at - hole) & mask):
            table[2 * hole] = table[2 * at]
            table[2 * hole + 1] = table[2 * at + 1]
            hole = at
    table[2 * hole + 1] = -1


# ---------------------------------------------------------------------------------------------
# Lists


@kernel
def _append(next, previous, marks, which, node):
    newest = marks[which + 1]
    next[node] = -1
    previous[node] = newest
    if newest < 0:
        marks[which] = node
    else:
        next[newest] = node
    marks[which + 1] = node
    marks[which + 2] += 1


@kernel
def _unlink(next, previous, marks, which, node):
    after = next[node]
    before = previous[node]
    if before < 0:
        marks[which] = after
    else:
        next[before] = after
    if after < 0:
        marks[which + 1] = before
    else:
        previous[after] = before
    marks[which + 2] -= 1


# ---------------------------------------------------------------------------------------------
# Policies


@kernel
def _free_slot(s, slot):
    s.owner[slot] = NOBODY
    s.free[s.marks[FREE]] = slot
    s.marks[FREE] += 1


@kernel
def _drop(s, slot):
    """Frees a slot whose key nobody remembers."""
    _erase(s.table, s.keys[slot])
    _free_slot(s, slot)


@kernel
def _look_ahead(table, keys, next, bits, node):
    """Asks for what the next two victims need; node is the next one, or -1."""
    if node < 0:
        return
    _prefetch(table, 2 * _home(keys[node], len(table) // 2 - 1))
    after = np.int64(next[node])
    if after >= 0:
        _prefetch(keys, after)
        _prefetch(next, after)
        _prefetch(bits, after)


@kernel
def _evict_lru(s):
    slot = s.marks[MAIN]
    _unlink(s.next, s.previous, s.marks, MAIN, slot)
    _drop(s, slot)
    _look_ahead(s.table, s.keys, s.next, s.bits, s.marks[MAIN])


@kernel
def _evict_sieve(s):
    slot = s.marks[HAND] if s.marks[HAND] >= 0 else s.marks[MAIN]
    while s.bits[slot]:
        s.bits[slot] = 0
        slot = np.int64(s.next[slot])
        if slot < 0:
            slot = s.marks[MAIN]
    s.marks[HAND] = s.next[slot]
    _unlink(s.next, s.previous, s.marks, MAIN, slot)
    _drop(s, slot)
    _look_ahead(s.table, s.keys, s.next, s.bits, s.marks[HAND])


@kernel
def _evict_clock(s):
    # The slot freed here is the next one given out, so slot numbers are the order of the ring.
    slot = s.marks[HAND]
    while s.bits[slot]:
        s.bits[slot] = 0
        slot = (slot + 1) % len(s.keys)
    s.marks[HAND] = (slot + 1) % len(s.keys)
    _drop(s, slot)
    if slot + 4 < len(s.keys):
        _prefetch(s.table, 2 * _home(s.keys[slot + 4], len(s.table) // 2 - 1))


@kernel
def _remember(s, key):
    """Puts a key that loses its slot on the ghost list."""
    if len(s.ghost_keys) == 0:
        _erase(s.table, key)
        return
    if s.marks[GHOST_FREE] == 0:
        oldest = s.marks[GHOST]
        _erase(s.table, s.ghost_keys[oldest])
        _forget_ghost(s, oldest)
        _look_ahead(s.table, s.ghost_keys, s.ghost_next, s.ghost_previous, s.marks[GHOST])
    s.marks[GHOST_FREE] -= 1
    node = np.int64(s.ghost_free[s.marks[GHOST_FREE]])
    s.ghost_keys[node] = key
    _append(s.ghost_next, s.ghost_previous, s.marks, GHOST, node)
    _assign(s.table, key, len(s.keys) + node)


@kernel
def _forget_ghost(s, node):
    _unlink(s.ghost_next, s.ghost_previous, s.marks, GHOST, node)
    s.ghost_free[s.marks[GHOST_FREE]] = node
    s.marks[GHOST_FREE] += 1


@kernel
def _evict_main(s):
    while s.marks[MAIN + 2] > 0:
        slot = s.marks[MAIN]
        _unlink(s.next, s.previous, s.marks, MAIN, slot)
        if s.bits[slot] == 0:
            _drop(s, slot)
            _look_ahead(s.table, s.keys, s.next, s.bits, s.marks[MAIN])
            return
        s.bits[slot] -= 1
        _append(s.next, s.previous, s.marks, MAIN, slot)


@kernel
def _evict_s3(s):
    small = max(1, len(s.keys) // 10)
    if s.marks[SMALL + 2] < small:
        _evict_main(s)
        return
    while s.marks[SMALL + 2] > 0:
        slot = s.marks[SMALL]
        _unlink(s.next, s.previous, s.marks, SMALL, slot)
        if s.bits[slot] <= 1:
            _remember(s, s.keys[slot])
            _free_slot(s, slot)
            _look_ahead(s.table, s.keys, s.next, s.bits, s.marks[SMALL])
            return
        if s.marks[MAIN + 2] >= len(s.keys) - small:
            _evict_main(s)
        s.bits[slot] = 0
        _append(s.next, s.previous, s.marks, MAIN, slot)


@kernel
def _touch(policy, s, slot):
    if policy == LRU:
        _unlink(s.next, s.previous, s.marks, MAIN, slot)
        _append(s.next, s.previous, s.marks, MAIN, slot)
    elif policy == S3_FIFO:
        s.bits[slot] = min(s.bits[slot] + 1, MAX_FREQUENCY)
    else:
        s.bits[slot] = 1


@kernel
def _take(policy, s, key):
    """The slot for a new key, or -1 if it is not let in."""
    if len(s.keys) == 0 or policy == STATIC:
        return np.int64(-1)
    while s.marks[FREE] == 0:
        if policy == SIEVE:
            _evict_sieve(s)
        elif policy == S3_FIFO:
            _evict_s3(s)
        elif policy == LRU:
            _evict_lru(s)
        else:
            _evict_clock(s)
    s.marks[FREE] -= 1
    slot = np.int64(s.free[s.marks[FREE]])
    s.keys[slot] = key
    s.bits[slot] = 0
    which = MAIN
    if policy == S3_FIFO:
        ghost = _find(s.table, key) - len(s.keys)
        if ghost >= 0:
            _forget_ghost(s, ghost)
        else:
            which = SMALL
    _assign(s.table, key, slot)
    if policy != CLOCK:
        _append(s.next, s.previous, s.marks, which, slot)
    return slot


# ---------------------------------------------------------------------------------------------
# What a cache calls


@kernel
def _slot(s, key):
    """The key's slot, or -1."""
    value = _find(s.table, key)
    return value if value < len(s.keys) else np.int64(-1)


@kernel
def plan(policy, s, call, ids, offset, source, missing):
    """Looks every key up in order, as one request after the other, and lets in what is missing.

    Args:
        policy: which policy.
        s: CacheArrays.
        call: number of this call, above 0, never used before.
        ids: int64[n]; the key is offset + id.
        offset: what to add.
        source: int64[n], out: -1 - slot where the row is in the cache, else which of the rows that
            are to be read it is.
        missing: int64[n], out: positions in ids of what is to be read.

    Returns:
        How many rows are to be read.
    """
    count = np.int64(0)
    mask = len(s.table) // 2 - 1
    for i in range(len(ids)):
        if i + AHEAD < len(ids):
            _prefetch(s.table, 2 * _home(ids[i + AHEAD] + offset, mask))
        key = ids[i] + offset
        slot = _slot(s, key)
        if slot >= 0:
            _touch(policy, s, slot)
            if s.owner[slot] == FILLED:
                source[i] = -1 - slot
                continue
            if s.owner[slot] == call:
                source[i] = s.ticket[slot]
                continue
            # Another call reads it, or its row was forgotten: whoever began last fills the slot.
        else:
            slot = _take(policy, s, key)
        if slot >= 0:
            s.owner[slot] = call
            s.ticket[slot] = count
        source[i] = count
        missing[count] = i
        count += 1
    return count


@kernel
def admit(policy, s, call, ids, offset):
    """Lets keys in without a request for them, and makes the call the owner of their slots."""
    for i in range(len(ids)):
        key = ids[i] + offset
        slot = _slot(s, key)
        if slot < 0:
            slot = _take(policy, s, key)
        if slot >= 0:
            s.owner[slot] = call


@kernel
def settle(s, calls, ids, positions, offset, filling, slots, rows):
    """Finds the slots that the rows read by a call are to be written to, and marks them filled.

    A slot is written to only by its owner: neither when the key has been evicted since, nor when
    its row has been forgotten, nor when a later call reads it.

    Args:
        s: CacheArrays.
        calls: int64[m], which call read each row.
        ids: int64[n].
        positions: int64[m], position in ids of each row read.
        offset: key = offset + id.
        filling: number of this filling.
        slots: int64[m], out.
        rows: int64[m], out: the row of the reading that goes there.

    Returns:
        How many rows are to be written. Each slot occurs once, with the last of its rows.
    """
    count = np.int64(0)
    for j in range(len(positions) - 1, -1, -1):
        slot = _slot(s, ids[positions[j]] + offset)
        if slot >= 0 and calls[j] > 0 and s.owner[slot] == calls[j]:
            s.owner[slot] = FILLED
            s.filled_at[slot] = filling
            slots[count] = slot
            rows[count] = j
            count += 1
    return count


@kernel
def torn(s, since, source, missing, count):
    """Finds rows that were overwritten while they were copied, and adds them to what is missing.

    Args:
        s: CacheArrays.
        since: number of the last filling before the copy.
        source: int64[n], as in `plan`, in and out.
        missing: int64[n], in and out.
        count: entries of missing.

    Returns:
        Entries of missing.
    """
    for i in range(len(source)):
        if source[i] < 0 and s.filled_at[-1 - source[i]] > since:
            source[i] = count
            missing[count] = i
            count += 1
    return count


@kernel
def forget(s, ids, offset):
    """Drops the rows of keys; the policy keeps what it knows of them."""
    for i in range(len(ids)):
        slot = _slot(s, ids[i] + offset)
        if slot >= 0:
            s.owner[slot] = NOBODY


@kernel
def forget_range(s, low, high):
    """Drops the rows of all keys in [low, high)."""
    for slot in range(len(s.keys)):
        if low <= s.keys[slot] < high:
            s.owner[slot] = NOBODY


@kernel
def preload(s, keys):
    """Gives keys their slots, in order, as long as there are any; for STATIC."""
    for i in range(len(keys)):
        if s.marks[FREE] == 0:
            return
        if _slot(s, keys[i]) < 0:
            s.marks[FREE] -= 1
            slot = s.free[s.marks[FREE]]
            s.keys[slot] = keys[i]
            _assign(s.table, keys[i], slot)
