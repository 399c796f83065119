"""Instructions of the processor that Numba has no words for, to be used by kernels.

Numba's cache of a kernel does not see edits in another file; those of this one are looked at by
`hopline.pipes.kernels.compiling`.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = [
    "LOOKED",
    "bits_of",
    "borrow",
    "first_bit",
    "float_of",
    "loose_add",
    "low_marks",
    "prefetch",
    "quotient",
]

LOOKED = 64  # words or marks that are compared at a time


@intrinsic
def prefetch(typingctx: Any, array: Any, position: Any) -> Any:
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
def bits_of(typingctx: Any, number: Any) -> Any:
    """The 64 bits of a float64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(64))

    return types.int64(types.float64), codegen


@intrinsic
def float_of(typingctx: Any, bits: Any) -> Any:
    """The float64 of 64 bits."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.int64), codegen


@intrinsic
def loose_add(typingctx: Any, a: Any, b: Any) -> Any:
    """A + b; a sum of many may be taken in any order. Only for what no result depends on."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fadd(args[0], args[1], flags=("reassoc",))

    return types.float64(types.float64, types.float64), codegen


@intrinsic
def borrow(typingctx: Any, array: Any) -> Any:
    """The array without its owner, so that handing it on counts no references.

    The owner is to outlive the result: a function borrows what its caller owns.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        borrowed = context.make_array(signature.return_type)(context, builder, args[0])
        borrowed.meminfo = ir.Constant(borrowed.meminfo.type, None)
        borrowed.parent = ir.Constant(borrowed.parent.type, None)
        return borrowed._getvalue()

    return array(array), codegen


@intrinsic
def first_bit(typingctx: Any, word: Any) -> Any:
    """Number of the lowest bit of a word that is not 0."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.IntType(1)(1))

    return types.int64(types.uint64), codegen


@intrinsic
def low_marks(typingctx: Any, marks: Any, position: Any) -> Any:
    """Bit i of the result: whether marks[position + i] is below 0; i below `LOOKED`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        vector = ir.VectorType(data.type.pointee, LOOKED)
        pointer = builder.bitcast(builder.gep(data, [args[1]]), vector.as_pointer())
        low = builder.fcmp_ordered(
            "<", builder.load(pointer, align=8), ir.Constant(vector, [0.0] * LOOKED)
        )
        return builder.bitcast(low, ir.IntType(LOOKED))

    return types.uint64(marks, types.intp), codegen


@intrinsic
def quotient(typingctx: Any, a: Any, b: Any) -> Any:
    """A / b, b not being 0; a check of that would keep a loop from being done by vectors."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fdiv(args[0], args[1])

    return types.float64(types.float64, types.float64), codegen
