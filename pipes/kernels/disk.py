"""CPU kernels that read rows of a file: whole loops of system calls without the GIL."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numba import types

from hopline.pipes.kernels.compiling import kernel

__all__ = ["BLOCK", "HAS_ADVICE", "HAS_PREAD", "plan_requests", "read_requests"]

# Bytes: the page of the page cache, and what reads past it are aligned to.
BLOCK = 4096


def _in_libc(name: str) -> bool:
    """Whether the C library that this process runs with has the function."""
    try:
        return hasattr(ctypes.CDLL(None), name)
    except (OSError, TypeError):  # there is no library of that kind here
        return False


HAS_PREAD = _in_libc("pread")
HAS_ADVICE = _in_libc("posix_fadvise")

# Pointers and sizes are intp, and offsets 64 bits, wherever torch has wheels.
_pread = types.ExternalFunction(
    "pread", types.intp(types.int32, types.intp, types.intp, types.int64)
)

_advise: Any
if HAS_ADVICE:
    _advise = types.ExternalFunction(
        "posix_fadvise", types.int32(types.int32, types.int64, types.int64, types.int32)
    )
else:

    @kernel
    def _advise(descriptor, start, length, advice):
        return 0


@kernel
def plan_requests(ids, row_bytes, offset, limit, requests):
    """Cuts sorted rows into requests: rows in the same or in neighbouring blocks go together.

    Args:
        ids: int64[n], sorted, may repeat; n > 0.
        row_bytes: bytes a row.
        offset: first byte of row 0 in the file.
        limit: bytes, whole blocks, that a request of several rows may span.
        requests: int64[n + 1], out: request k is of the rows in [requests[k], requests[k + 1]).

    Returns:
        The number of requests.
    """
    count = np.int64(0)
    requests[0] = 0
    start = offset + ids[0] * row_bytes
    first = start // BLOCK * BLOCK
    last = (start + row_bytes + BLOCK - 1) // BLOCK * BLOCK
    for i in range(1, len(ids)):
        if ids[i] == ids[i - 1]:
            continue
        start = offset + ids[i] * row_bytes
        block = start // BLOCK * BLOCK
        until = (start + row_bytes + BLOCK - 1) // BLOCK * BLOCK
        if block > last or until - first > limit:
            count += 1
            requests[count] = i
            first = block
        last = until
    requests[count + 1] = len(ids)
    return count + 1


@kernel
def read_requests(
    descriptor,
    offset,
    row_bytes,
    ids,
    order,
    requests,
    low,
    high,
    end,
    align,
    ahead,
    advice,
    scratch,
    out,
):
    """Reads the requests in [low, high), and copies their rows to where they belong.

    Args:
        descriptor: of the open file.
        offset: first byte of row 0 in the file.
        row_bytes: bytes a row.
        ids: int64[n], sorted, may repeat.
        order: int64[n], the row of `out` that each id is for.
        requests: int64[m + 1], from `plan_requests`.
        low: the first request to read.
        high: the request after the last.
        end: the first request that this thread will not read later; at least high.
        align: reads start and end at multiples of it; a power of two.
        ahead: number of requests that the system is told of in advance; 0 for none.
        advice: number of the advice "will need" of `posix_fadvise`.
        scratch: uint8[s], s a multiple of BLOCK, aligned; of this thread alone.
        out: uint8[n * row_bytes], out.

    Returns:
        -1, or the request that could not be read; those before it were.
    """
    address = scratch.ctypes.data
    advised = low if ahead > 0 else end
    for k in range(low, high):
        while advised < min(k + ahead, end):
            start = offset + ids[requests[advised]] * row_bytes
            stop = offset + (ids[requests[advised + 1] - 1] + 1) * row_bytes
            _advise(descriptor, start, stop - start, advice)
            advised += 1
        i, j = requests[k], requests[k + 1]
        start = offset + ids[i] * row_bytes
        stop = offset + (ids[j - 1] + 1) * row_bytes
        until = (stop + align - 1) // align * align
        at = start // align * align
        if until - at <= len(scratch):
            got = np.int64(0)
            while at + got < stop:
                n = _pread(descriptor, address + got, until - at - got, at + got)
                if n <= 0:
                    return k
                got += n
            for e in range(i, j):
                _copy(
                    scratch, offset + ids[e] * row_bytes - at, out, order[e] * row_bytes, row_bytes
                )
            continue
        # One row, larger than the scratch: piece by piece.
        target = order[i] * row_bytes
        done = np.int64(0)
        while done < row_bytes:
            at = (start + done) // align * align
            n = _pread(descriptor, address, min(len(scratch), until - at), at)
            skip = start + done - at
            if n <= skip:
                return k
            take = min(n - skip, row_bytes - done)
            _copy(scratch, skip, out, target + done, take)
            done += take
        for e in range(i + 1, j):
            _copy(out, target, out, order[e] * row_bytes, row_bytes)
    return np.int64(-1)


@kernel
def _copy(source, start, out, to, count):
    """out[to : to + count] = source[start : start + count], bytes that do not overlap."""
    for b in range(count):
        out[to + b] = source[start + b]
