"""CPU kernels that copy rows into and out of feature caches; rows are bytes, one after the other.

`source` is what `hopline.pipes.kernels.cache.plan` gives: -1 - slot where the cache has the row,
else which of the fetched rows it is.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from hopline.pipes.kernels.compiling import kernel

__all__ = ["copy_fetched", "copy_hits", "store_rows"]

AHEAD = 8  # rows between a prefetch and its use
LINES = 8  # cache lines of a row that are asked for


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


@intrinsic
def _copy_bytes(typingctx: Any, out: Any, to: Any, source: Any, start: Any, count: Any) -> Any:
    """memcpy(out + to, source + start, count) over arrays of bytes."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        out_type, _, source_type, _, _ = signature.args
        out_data = context.make_array(out_type)(context, builder, args[0]).data
        source_data = context.make_array(source_type)(context, builder, args[2]).data
        cgutils.raw_memcpy(
            builder,
            builder.gep(out_data, [args[1]]),
            builder.gep(source_data, [args[3]]),
            args[4],
            1,
        )
        return context.get_dummy_value()

    return types.void(out, types.intp, source, types.intp, types.intp), codegen


@kernel
def copy_hits(rows, row_bytes, source, out):
    """Copies what the cache has.

    Args:
        rows: uint8[capacity * row_bytes], the cache.
        row_bytes: bytes a row, above 0.
        source: int64[n].
        out: uint8[n * row_bytes], out.
    """
    n = len(source)
    lines = min((row_bytes + 63) // 64, LINES)
    for i in range(n):
        if i + AHEAD < n and source[i + AHEAD] < 0:
            start = (-1 - source[i + AHEAD]) * row_bytes
            for line in range(lines):
                _prefetch(rows, start + 64 * line)
        if source[i] < 0:
            _copy_bytes(out, i * row_bytes, rows, (-1 - source[i]) * row_bytes, row_bytes)


@kernel
def copy_fetched(fetched, row_bytes, source, out):
    """Copies what has been read.

    Args:
        fetched: uint8[m * row_bytes], nearly in the order of use.
        row_bytes: bytes a row, above 0.
        source: int64[n].
        out: uint8[n * row_bytes], out.
    """
    for i in range(len(source)):
        if source[i] >= 0:
            _copy_bytes(out, i * row_bytes, fetched, source[i] * row_bytes, row_bytes)


@kernel
def store_rows(fetched, row_bytes, which, slots, rows):
    """Writes rows of a reading to their slots.

    Args:
        fetched: uint8[m * row_bytes].
        row_bytes: bytes a row, above 0.
        which: int64[k], rows of the reading.
        slots: int64[k].
        rows: uint8[capacity * row_bytes], the cache, out.
    """
    for i in range(len(slots)):
        _copy_bytes(rows, slots[i] * row_bytes, fetched, which[i] * row_bytes, row_bytes)
