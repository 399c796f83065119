"""CPU kernels that relabel: global id -> position in the list of a mini-batch's nodes.

The list is in the order of first occurrence. A slot of a table holds base + position when its node
is in the current list. base grows by the length of each finished list, so that what a finished list
has left in the table reads as empty and nothing has to be cleared.

Like `hopline.pipes.kernels.cpu`: serial, without the GIL, all helpers in this file.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from hopline.pipes.kernels.compiling import kernel

__all__ = ["hash_insert", "hash_relabel", "insert", "relabel"]

MIX_A = np.uint64(0xBF58476D1CE4E5B9)
MIX_B = np.uint64(0x94D049BB133111EB)
ONE = np.uint64(1)
U27 = np.uint64(27)
U30 = np.uint64(30)
U31 = np.uint64(31)

AHEAD = 32  # entries between a prefetch and its use


@intrinsic
def _prefetch_far(typingctx: Any, array: Any, position: Any) -> Any:
    """Asks for the cache line of array[position]; never faults, changes nothing.

    Into the second level of the cache: many more lines can be under way there than into the first.
    """

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
        builder.call(function, [pointer, word(0), word(2), word(1)])
        return context.get_dummy_value()

    return types.void(array, types.intp), codegen


@kernel(inline="always")
def _mix64(word):
    word = (word ^ (word >> U30)) * MIX_A
    word = (word ^ (word >> U27)) * MIX_B
    return word ^ (word >> U31)


@kernel
def insert(table, base, nodes):
    """Enters a list of nodes, which may repeat; the first occurrence counts.

    Args:
        table: int32[num_nodes].
        base: int, above all earlier entries of the table.
        nodes: integer[n], positions 0..n-1.
    """
    for i in range(len(nodes)):
        node = nodes[i]
        if table[node] < base:
            table[node] = base + i


@kernel
def relabel(table, base, count, neighbors, local, new):
    """Replaces ids by positions; ids not met before are appended to the list.

    Args:
        table: int32[num_nodes].
        base: int, as in `insert`.
        count: length of the list so far.
        neighbors: integer[m].
        local: int32[m], out: positions.
        new: integer[m], out: ids not met before, in order of first occurrence; what follows them is
            undefined.

    Returns:
        How many ids were new.
    """
    m = len(neighbors)
    fresh = 0
    free = base + count
    for e in range(m):
        if e + 2 * AHEAD < m:
            _prefetch_far(table, np.int64(neighbors[e + 2 * AHEAD]))
        node = neighbors[e]
        value = np.int64(table[node])
        # Without a branch: whether a node is new cannot be foreseen.
        unseen = value < base
        value = free + fresh if unseen else value
        table[node] = value
        new[fresh] = node
        fresh += unseen
        local[e] = value - base
    return fresh


@kernel
def hash_insert(keys, values, base, start, nodes):
    """`insert` for an open-addressing table: keys int64[2**b], values int32[2**b].

    Args:
        keys: int64[capacity].
        values: int32[capacity]; capacity a power of two, at most half full.
        base: int, as in `insert`.
        start: position of nodes[0].
        nodes: integer[n].
    """
    mask = np.uint64(len(keys) - 1)
    for i in range(len(nodes)):
        node = np.int64(nodes[i])
        slot = _mix64(np.uint64(node)) & mask
        while values[slot] >= base and keys[slot] != node:
            slot = (slot + ONE) & mask
        if values[slot] < base:
            keys[slot] = node
            values[slot] = base + start + i


@kernel
def hash_relabel(keys, values, base, count, neighbors, local, new):
    """`relabel` for an open-addressing table with room for all of neighbors."""
    mask = np.uint64(len(keys) - 1)
    m = len(neighbors)
    fresh = 0
    for e in range(m):
        if e + AHEAD < m:
            ahead = np.int64(_mix64(np.uint64(neighbors[e + AHEAD])) & mask)
            _prefetch_far(keys, ahead)
            _prefetch_far(values, ahead)
        node = np.int64(neighbors[e])
        slot = _mix64(np.uint64(node)) & mask
        while values[slot] >= base and keys[slot] != node:
            slot = (slot + ONE) & mask
        if values[slot] < base:
            keys[slot] = node
            values[slot] = base + count + fresh
            new[fresh] = node
            fresh += 1
        local[e] = values[slot] - base
    return fresh
