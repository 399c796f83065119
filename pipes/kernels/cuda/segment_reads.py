"""What kernels read of a segment: its column, its edges, its key, its times, and what it sees.

A segment is a column's edges, or those of one edge type; `begin` and `degree` are those of
`segments.count_picks`. All functions are called inside kernels, for a block of segments.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hopline.pipes.kernels.cuda.words import fold

__all__ = ["column_of", "edges_of", "seen", "stream_of", "times_of"]


@triton.jit
def column_of(s, num_types):
    """(column, edge type) of segments."""
    return s // num_types, s % num_types


@triton.jit
def edges_of(s, live, fanout, begin, degree):
    """(first edge, number of edges) of segments; none where nothing is to be drawn."""
    first = tl.load(begin + s, mask=live, other=0)
    count = tl.load(degree + s, mask=live & (fanout != 0), other=0)
    return first, count


@triton.jit
def stream_of(i, t, live, keys, node_ids, times):
    """The words' key of segments: of the edge type, the column's id and time."""
    key = tl.load(keys + t, mask=live, other=0).to(tl.uint64)
    stream = fold(key, tl.load(node_ids + i, mask=live, other=0).to(tl.int64))
    if times is not None:
        stream = fold(stream, tl.load(times + i, mask=live, other=0).to(tl.int64))
    return stream


@triton.jit
def times_of(i, live, times, earliest):
    """(earliest, end) of the times that columns see."""
    if times is not None:
        low = tl.load(earliest + i, mask=live, other=0).to(tl.int64)
        high = tl.load(times + i, mask=live, other=0).to(tl.int64)
    else:
        low = tl.zeros_like(i)
        high = low
    return low, high


@triton.jit
def seen(position, ok, low, high, indices, node_times, edge_times, num_nodes):
    """Whether edges, and their sources, are older than their column and not too old.

    A source that is no node is not followed, and seen: who checks the picks finds it.
    """
    if edge_times is not None:
        time = tl.load(edge_times + position, mask=ok, other=0).to(tl.int64)
        ok = ok & (low <= time) & (time < high)
    if node_times is not None:
        source = tl.load(indices + position, mask=ok, other=0).to(tl.int64)
        inside = (source >= 0) & (source < num_nodes)
        time = tl.load(node_times + source, mask=ok & inside, other=0).to(tl.int64)
        ok = ok & (((low <= time) & (time < high)) | (source < 0) | (source >= num_nodes))
    return ok
