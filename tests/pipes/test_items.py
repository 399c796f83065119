"""ItemSet and HeteroItemSet."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hopline.pipes import HeteroItemSet, ItemSet

T = torch.tensor


def plain(value):
    """Tensors as lists, so that `==` compares."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {key: plain(v) for key, v in value.items()}
    return tuple(plain(v) for v in value) if isinstance(value, tuple) else value


# -------------------------------------------------------------------------------------------------
# One kind


@pytest.mark.parametrize(
    ("items", "dtype"),
    [
        (5, torch.int64),
        (np.int32(5), torch.int64),
        (T(5), torch.int64),
        (T(5, dtype=torch.int32), torch.int32),
        (T(5, dtype=torch.int8), torch.int8),
        (T(5, dtype=torch.uint8), torch.uint8),
    ],
)
def test_a_number_of_items(items, dtype):
    s = ItemSet(items, names="seeds")
    assert (len(s), s.num_items, s.names) == (5, 1, ("seeds",))
    for index, expected in (
        (3, 3),
        (-1, 4),
        (np.int64(2), 2),
        (T(2), 2),
        (slice(1, 4), [1, 2, 3]),
        (slice(None, None, 2), [0, 2, 4]),
        (slice(None, None, -2), [4, 2, 0]),
        (slice(3, 100), [3, 4]),
        (slice(4, 2), []),
        (T([4, 0, -1, 4]), [4, 0, 4, 4]),
        (T([], dtype=torch.int64), []),
        (T([1, 0], dtype=torch.uint8), [1, 0]),
    ):
        got = s[index]
        assert got.tolist() == expected
        assert got.dtype == dtype
        assert got.dim() == (0 if isinstance(expected, int) else 1)


@pytest.mark.parametrize(
    "column", [T([[1, 2], [3, 4], [5, 6]]), ["a", "b", "c"], range(3), ((1, 2), (3,), ())]
)
def test_one_column(column):
    s = ItemSet([*column] if isinstance(column, tuple) else column)
    rows = list(column)
    assert len(s) == 3
    assert s.names is None
    for i in (0, 2, -3):
        assert plain(s[i]) == plain(rows[i])
    for part in (slice(1, None), slice(None, None, -1), slice(0, 0), slice(None, None, 2)):
        assert list(map(plain, s[part])) == list(map(plain, rows[part]))
    assert list(map(plain, s[T([2, 0, -1])])) == list(map(plain, [rows[2], rows[0], rows[2]]))
    assert list(map(plain, s)) == list(map(plain, rows))


def test_several_columns():
    s = ItemSet((T([4, 5, 6]), T([[0.5], [1.5], [2.5]]), ["a", "b", "c"]), ("seeds", "w", "tag"))
    assert (len(s), s.num_items, s.names) == (3, 3, ("seeds", "w", "tag"))
    assert plain(s[1]) == (5, [1.5], "b")
    assert plain(s[1:]) == ([5, 6], [[1.5], [2.5]], ["b", "c"])
    assert plain(s[::-2]) == ([6, 4], [[2.5], [0.5]], ["c", "a"])
    assert plain(s[T([2, 2, 0])]) == ([6, 6, 4], [[2.5], [2.5], [0.5]], ["c", "c", "a"])
    assert len(list(s)) == 3


def test_a_tuple_of_one_column_gives_tuples():
    assert plain(ItemSet((T([4, 5]),))[0]) == (4,)
    assert plain(ItemSet((T([4, 5]),))[:1]) == ([4],)


def test_no_items():
    for s in (ItemSet(0), ItemSet(T([])), ItemSet([]), ItemSet((T([]), []))):
        assert len(s) == 0
        assert list(s) == []
        assert plain(s[:]) in ([], ([], []))
        with pytest.raises(IndexError, match=r"item index 0 .*0 items"):
            s[0]


@pytest.mark.parametrize(
    "s", [ItemSet(3), ItemSet(T([1, 2, 3])), ItemSet((T([1, 2, 3]), [1, 2, 3]))]
)
def test_wrong_index(s):
    for index, value in ((3, 3), (-4, -4), (T([0, 7]), 7), (T([0, -9]), -9), (T(3), 3)):
        with pytest.raises(IndexError, match=rf"{value}\b.*3 items"):
            s[index]
    for index in ([0, 1], "a", True, None, 1.0, (0,)):
        with pytest.raises(TypeError, match=type(index).__name__):
            s[index]
    for index, dtype in ((T([0.0]), "float32"), (T(0.0), "float32"), (T([True] * 3), "bool")):
        with pytest.raises(TypeError, match=dtype):
            s[index]
    with pytest.raises(ValueError, match=r"\(1, 2\)"):
        s[T([[0, 1]])]


@pytest.mark.parametrize(
    ("items", "names", "error", "message"),
    [
        (-1, None, ValueError, "-1"),
        (True, None, TypeError, "bool"),
        (1.5, None, TypeError, "float"),
        (T(1.5), None, TypeError, "float32"),
        ("abc", None, TypeError, "str"),
        ({1, 2}, None, TypeError, "set"),
        (iter([1]), None, TypeError, "list_iterator"),
        (np.arange(3), None, TypeError, "torch.from_numpy"),
        ((), None, ValueError, "empty tuple"),
        ((T([1, 2]), T([1])), None, ValueError, r"\[2, 1\]"),
        ((T([1]), T(1)), None, ValueError, r"items\[1\] is a 0-d tensor"),
        ((T([1]), 5), None, TypeError, r"items\[1\] is a int"),
        (3, ("seeds", "labels"), ValueError, "2 names.*1 col"),
        ((T([1]), T([1])), "seeds", ValueError, "1 names.*2 col"),
        ((T([1]), T([1])), ("seeds", "seeds"), ValueError, "repeat"),
        (3, (5,), TypeError, "5"),
    ],
)
def test_wrong_items(items, names, error, message):
    with pytest.raises(error, match=message):
        ItemSet(items, names)


# -------------------------------------------------------------------------------------------------
# Several kinds


def hetero():
    return HeteroItemSet(
        {
            "user": ItemSet((T([10, 11, 12]), T([0, 1, 2])), ("seeds", "labels")),
            "none": ItemSet((T([], dtype=torch.int64), T([])), ("seeds", "labels")),
            "item": ItemSet((T([20, 21]), T([3, 4])), ("seeds", "labels")),
        }
    )


def test_hetero():
    h = hetero()
    assert (len(h), h.num_items, h.names) == (5, 2, ("seeds", "labels"))
    assert plain(h[0]) == {"user": (10, 0)}
    assert plain(h[3]) == {"item": (20, 3)}
    assert plain(h[-1]) == plain(h[T(4)]) == {"item": (21, 4)}
    assert plain(h[2:4]) == {"user": ([12], [2]), "item": ([20], [3])}
    assert plain(h[:2]) == {"user": ([10, 11], [0, 1])}
    assert plain(h[::-2]) == {"user": ([12, 10], [2, 0]), "item": ([21], [4])}
    assert plain(h[3:3]) == {}
    expected = {"user": ([11, 10, 11], [1, 0, 1]), "item": ([21, 20], [4, 3])}
    assert plain(h[T([4, 1, 3, 0, -4])]) == expected
    assert plain(h[[4, 1, 3, 0, -4]]) == expected
    assert list(h[T([4, 1])]) == ["user", "item"]  # the order of the types, not of the index
    assert [plain(item) for item in h] == [plain(h[i]) for i in range(5)]


def test_hetero_wrong_index():
    h = hetero()
    for index, value in ((5, 5), (-6, -6), (T([0, 5]), 5), ([0, -6], -6)):
        with pytest.raises(IndexError, match=rf"{value}\b.*5 items"):
            h[index]
    for index in ("a", None, True, 1.0, [0.5], [True]):
        with pytest.raises(TypeError, match=type(index).__name__):
            h[index]
    for index, dtype in ((T([True] * 5), "bool"), (T(True), "bool"), (T(1.0), "float32")):
        with pytest.raises(TypeError, match=dtype):
            h[index]


@pytest.mark.parametrize(
    ("itemsets", "error", "message"),
    [
        ({}, ValueError, "empty"),
        ([ItemSet(3)], TypeError, "list"),
        ({"user": T([1])}, TypeError, "Tensor"),
        ({1: ItemSet(3)}, TypeError, "1"),
        ({"a": ItemSet(3, "seeds"), "b": ItemSet(3, "nodes")}, ValueError, "nodes"),
        ({"a": ItemSet(3, "seeds"), "b": ItemSet(3)}, ValueError, "None"),
    ],
)
def test_wrong_itemsets(itemsets, error, message):
    with pytest.raises(error, match=message):
        HeteroItemSet(itemsets)


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=5),
    st.data(),
)
def test_hetero_index_keeps_each_item_once_for_each_mention(sizes, data):
    h = HeteroItemSet({f"t{k}": ItemSet(n) for k, n in enumerate(sizes)})
    flat = [(f"t{k}", i) for k, n in enumerate(sizes) for i in range(n)]
    assert len(h) == len(flat)
    index = data.draw(st.lists(st.integers(-len(flat), len(flat) - 1))) if flat else []
    expected: dict = {}
    for kind, i in sorted((flat[i] for i in index), key=lambda item: item[0]):
        expected.setdefault(kind, []).append(i)
    assert plain(h[T(index, dtype=torch.int64)]) == expected
    part = slice(*(data.draw(st.none() | st.integers(-8, 8)) for _ in range(2)), 2)
    picked = [item for kind in h[part] for item in [(kind, i) for i in h[part][kind].tolist()]]
    assert picked == flat[part]
