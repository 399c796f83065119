"""Compaction: against plain Python, by type, with repeats, with types that are absent."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hopline.pipes as hp
from tests import twins

ids = st.lists(st.integers(0, 15) | st.sampled_from([2**31 - 1, 7_000_000]), max_size=12)
dtypes = st.sampled_from([torch.int32, torch.int64])


def tensor(values, dtype=torch.int64) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


# -------------------------------------------------------------------------------------------------
# unique_and_compact


@given(st.lists(ids, max_size=4), dtypes)
def test_unique_and_compact(lists, dtype):
    unique, compacted, offsets = hp.unique_and_compact([tensor(part, dtype) for part in lists])
    expected = list(dict.fromkeys(i for part in lists for i in part))
    assert unique.tolist() == expected  # in the order of first occurrence
    assert [part.tolist() for part in compacted] == [[expected.index(i) for i in p] for p in lists]
    assert offsets is None
    if lists:
        assert {unique.dtype, *(part.dtype for part in compacted)} == {dtype}


def test_unique_and_compact_by_type():
    nodes = {"user": [tensor([5, 5]), tensor([2])], "item": [], "shop": [tensor([])]}
    unique, compacted, _ = hp.unique_and_compact(nodes)
    assert {k: v.tolist() for k, v in unique.items()} == {"user": [5, 2], "item": [], "shop": []}
    assert list(unique) == list(compacted) == ["user", "item", "shop"]
    assert [part.tolist() for part in compacted["user"]] == [[0, 0], [1]]
    assert compacted["item"] == []
    assert [part.shape for part in compacted["shop"]] == [(0,)]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.uint16, torch.uint32])
def test_small_integers_become_int64(dtype):
    unique, (local,), _ = hp.unique_and_compact([tensor([200, 7, 200]).to(dtype)])
    wide = tensor([200, 7, 200]).to(dtype).to(torch.int64)
    assert unique.tolist() == wide[:2].tolist()
    assert local.tolist() == [0, 1, 0]
    assert unique.dtype == local.dtype == torch.int64


def test_mixed_widths_and_large_ids():
    big = 2**62
    unique, local, _ = hp.unique_and_compact([tensor([3], torch.int32), tensor([big, 3])])
    assert unique.tolist() == [3, big]
    assert [part.tolist() for part in local] == [[0], [1, 0]]


def test_a_result_that_is_waited_for():
    nodes = [tensor([4, 4])]
    assert hp.unique_and_compact(nodes, async_op=True).wait()[0].tolist() == [4]
    csc = hp.CSCFormatBase(tensor([0, 1]), tensor([4]))
    rows, _, _ = hp.unique_and_compact_csc_formats(csc, tensor([9]), async_op=True).wait()
    assert rows.tolist() == [9, 4]


@pytest.mark.parametrize(
    ("nodes", "error", "message"),
    [
        (torch.tensor([1]), TypeError, "nodes are a Tensor; expected a list"),
        ({"user": torch.tensor([1])}, TypeError, "nodes of type 'user' are a Tensor"),
        ([[1]], TypeError, "nodes: got a list"),
        ([torch.ones(2)], TypeError, "nodes: got dtype torch.float32"),
        ([torch.ones(2, 2).long()], ValueError, r"nodes: got shape \(2, 2\)"),
    ],
)
def test_unique_and_compact_refuses(nodes, error, message):
    with pytest.raises(error, match=message):
        hp.unique_and_compact(nodes)


@pytest.mark.parametrize("ranks", [(0, 2), (1, 1), (1, 2)])
def test_several_ranks_are_refused(ranks):
    csc = hp.CSCFormatBase(tensor([0, 1]), tensor([4]))
    with pytest.raises(ValueError, match=r"cooperative mini-batches.*is not supported"):
        hp.unique_and_compact([tensor([1])], *ranks)
    with pytest.raises(ValueError, match=r"cooperative mini-batches.*is not supported"):
        hp.unique_and_compact_csc_formats(csc, tensor([9]), *ranks)


# -------------------------------------------------------------------------------------------------
# A hop


@st.composite
def hops(draw):
    """Destinations, and the sources of each."""
    columns = draw(ids)
    return columns, [draw(ids) for _ in columns]


def csc_of(neighbors, dtype=torch.int64) -> hp.CSCFormatBase:
    indptr = [0, *np.cumsum([len(n) for n in neighbors]).tolist()]
    return hp.CSCFormatBase(tensor(indptr), tensor([i for n in neighbors for i in n], dtype))


@given(hops(), dtypes, dtypes)
def test_unique_and_compact_csc_formats(hop, dtype, dst_dtype):
    columns, neighbors = hop
    csc = csc_of(neighbors, dtype)
    rows, compacted, offsets = hp.unique_and_compact_csc_formats(csc, tensor(columns, dst_dtype))
    expected, local = twins.relabel(columns, [i for n in neighbors for i in n])
    assert rows.tolist() == expected
    assert compacted.indices.tolist() == local
    assert compacted.indices.dtype == torch.int32
    assert compacted.indptr is csc.indptr
    assert offsets is None
    assert rows.dtype == (torch.int32 if dtype == dst_dtype == torch.int32 else torch.int64)


@given(hops(), dtypes)
def test_compact_csc_format(hop, dtype):
    columns, neighbors = hop
    csc = csc_of(neighbors, dtype)
    times = [100 * i for i in range(len(columns))]
    rows, compacted, row_times = hp.compact_csc_format(csc, tensor(columns, dtype), tensor(times))
    flat = [i for n in neighbors for i in n]
    assert rows.tolist() == columns + flat
    assert compacted.indices.tolist() == list(range(len(columns), len(columns) + len(flat)))
    assert row_times.tolist() == times + [
        t for t, n in zip(times, neighbors, strict=True) for _ in n
    ]
    rows_only, _ = hp.compact_csc_format(csc, tensor(columns, dtype))
    assert torch.equal(rows_only, rows)


def test_destinations_that_repeat_keep_their_rows():
    # B05: merging them would leave fewer rows than labels.
    rows, compacted, _ = hp.unique_and_compact_csc_formats(
        csc_of([[1], [1], [0, 2]]), tensor([0, 0, 2])
    )
    assert rows.tolist() == [0, 0, 2, 1]
    assert compacted.indices.tolist() == [3, 3, 0, 2]


TYPED = {
    "user:buys:item": csc_of([[7, 8], [7]]),
    "user:knows:user": csc_of([[9]]),
    "item:in:shop": csc_of([]),
    "bot:sells:item": csc_of([[], [3]]),
}
DESTINATIONS = {"item": tensor([10, 11]), "user": tensor([8])}


def test_by_type():
    rows, compacted, _ = hp.unique_and_compact_csc_formats(TYPED, DESTINATIONS)
    assert {kind: part.tolist() for kind, part in rows.items()} == {
        "item": [10, 11], "user": [8, 7, 9], "shop": [], "bot": [3],
    }  # fmt: skip
    assert {name: csc.indices.tolist() for name, csc in compacted.items()} == {
        "user:buys:item": [1, 0, 1], "user:knows:user": [2], "item:in:shop": [],
        "bot:sells:item": [0],
    }  # fmt: skip


def test_d23_types_keep_their_order_and_none_is_lost():
    """Order does not hang on hashing, and types that are never a source have rows too."""
    rows, compacted, _ = hp.unique_and_compact_csc_formats(TYPED, DESTINATIONS)
    assert list(rows) == ["item", "user", "shop", "bot"]
    assert list(compacted) == list(TYPED)
    assert list(hp.compact_csc_format(TYPED, DESTINATIONS)[0]) == list(rows)


def test_by_type_with_times():
    times = {"item": tensor([100, 200]), "user": tensor([300])}
    rows, compacted, row_times = hp.compact_csc_format(TYPED, DESTINATIONS, times)
    assert {kind: part.tolist() for kind, part in rows.items()} == {
        "item": [10, 11], "user": [8, 7, 8, 7, 9], "shop": [], "bot": [3],
    }  # fmt: skip
    assert {kind: part.tolist() for kind, part in row_times.items()} == {
        "item": [100, 200], "user": [300, 100, 100, 200, 300], "shop": [], "bot": [200],
    }  # fmt: skip
    assert compacted["user:knows:user"].indices.tolist() == [4]


CSC = csc_of([[1], [2]])


@pytest.mark.parametrize("function", [hp.unique_and_compact_csc_formats, hp.compact_csc_format])
@pytest.mark.parametrize(
    ("formats", "nodes", "error", "message"),
    [
        (CSC, {"user": tensor([1])}, TypeError, "both by type or neither"),
        ({"a:b:c": CSC}, tensor([1, 2]), TypeError, "both by type or neither"),
        (CSC, tensor([1]), ValueError, "1 destinations for 2 columns of indptr"),
        ({"a:b:c": CSC}, {"c": tensor([1])}, ValueError, "edges of type 'a:b:c': 1 destinations"),
        ({"a:b:c": CSC}, {}, ValueError, "0 destinations for 2 columns"),
        ({"a:b": CSC}, {}, ValueError, "edge type is 'a:b'"),
        ({"a:b:c": 1}, {}, TypeError, "edges of type 'a:b:c' are a int"),
        (CSC, torch.ones(2), TypeError, "destinations: got dtype torch.float32"),
    ],
)
def test_hops_that_are_refused(function, formats, nodes, error, message):
    with pytest.raises(error, match=message):
        function(formats, nodes)


def test_times_that_do_not_fit():
    with pytest.raises(ValueError, match=r"have shape \(3,\); expected one for each of 2"):
        hp.compact_csc_format(CSC, tensor([1, 2]), tensor([1, 2, 3]))
    with pytest.raises(TypeError, match="both by type or neither"):
        hp.compact_csc_format(CSC, tensor([1, 2]), {"a": tensor([1, 2])})
    with pytest.raises(ValueError, match="of type 'user' have shape"):
        hp.compact_csc_format(TYPED, DESTINATIONS, {"item": tensor([1, 2])})
