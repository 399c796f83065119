"""gather_rows: rows by ids, at the speed of memory.

Like `hopline.pipes.kernels.cpu`: serial, without the GIL, all helpers in this file.

A random row is as many cache misses as it has lines. Lines are asked for into the second-level
cache, some KiB before they are copied: that cache takes in more of them at once than the first
level, which is for few. What is written goes through the caches too: stores past them were slower.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from hopline.pipes.kernels.compiling import kernel

__all__ = ["gather_rows", "gather_rows_to", "scatter_rows"]

LINE = 64  # bytes; where lines are longer, some are asked for twice
IN_FLIGHT = 8192  # bytes of rows between a prefetch and its use
NEAREST, FARTHEST = 8, 64  # the same in rows: least and most
LONGEST = 1024  # bytes of a row that are asked for; the processor sees by itself that it goes on


@intrinsic
def _address(typingctx: Any, array: Any) -> Any:
    """The address of array[0]."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.ptrtoint(data, ir.IntType(64))

    return types.int64(array), codegen


@intrinsic
def _prefetch_far(typingctx: Any, array: Any, position: Any) -> Any:
    """Asks for the line of array[position], into the second-level cache; never faults."""

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
def gather_rows(source, row_bytes, ids, out):
    """Copies rows, whatever they hold.

    Args:
        source: uint8[num_rows * row_bytes], at any address.
        row_bytes: bytes a row, above 0.
        ids: integer[n], all in range.
        out: uint8[n * row_bytes], out; at any address, apart from source.
    """
    n = len(ids)
    address = _address(source)
    ahead = min(max(IN_FLIGHT // row_bytes, NEAREST), FARTHEST)
    asked = min(row_bytes, LONGEST)
    for i in range(n):
        if i + ahead < n:
            position = np.int64(ids[i + ahead]) * row_bytes
            end = position + asked
            # From the beginning of its line, so that the line of the row's end is not left out.
            position -= (address + position) & (LINE - 1)
            while position < end:
                _prefetch_far(source, position)
                position += LINE
        _copy_bytes(out, i * row_bytes, source, np.int64(ids[i]) * row_bytes, row_bytes)


@kernel
def gather_rows_to(source, row_bytes, ids, places, out):
    """Copies rows to places of their own.

    Args:
        source: uint8[num_rows * row_bytes], at any address.
        row_bytes: bytes a row, above 0.
        ids: integer[n], all in range.
        places: int64[n], rows of out, all in range.
        out: uint8[m * row_bytes], out; at any address, apart from source.
    """
    n = len(ids)
    address = _address(source)
    ahead = min(max(IN_FLIGHT // row_bytes, NEAREST), FARTHEST)
    asked = min(row_bytes, LONGEST)
    for i in range(n):
        if i + ahead < n:
            position = np.int64(ids[i + ahead]) * row_bytes
            end = position + asked
            position -= (address + position) & (LINE - 1)
            while position < end:
                _prefetch_far(source, position)
                position += LINE
        _copy_bytes(out, places[i] * row_bytes, source, np.int64(ids[i]) * row_bytes, row_bytes)


@kernel
def scatter_rows(source, row_bytes, places, out):
    """Copies rows that lie one after another to places of their own.

    Args:
        source: uint8[n * row_bytes], at any address.
        row_bytes: bytes a row, above 0.
        places: int64[n], rows of out, all in range.
        out: uint8[m * row_bytes], out; at any address, apart from source.
    """
    for i in range(len(places)):
        _copy_bytes(out, places[i] * row_bytes, source, i * row_bytes, row_bytes)
