import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopline.partition.messages import (
    DTYPES,
    MessageError,
    join,
    pack,
    packed_size,
    split,
    to_bytes,
    unpack,
)

ARRAYS = st.lists(
    st.builds(
        lambda dtype, shape, seed: np.random.default_rng(seed).integers(0, 2, shape).astype(dtype),
        st.sampled_from(DTYPES),
        st.lists(st.integers(0, 4), max_size=3).map(tuple),
        st.integers(0, 99),
    ),
    max_size=5,
)


def packed(arrays):
    out = np.full(packed_size(arrays), 255, np.uint8)
    pack(arrays, out)
    return out


@given(ARRAYS)
def test_arrays_come_back(arrays):
    back = unpack(packed(arrays))
    assert len(back) == len(arrays)
    for a, b in zip(arrays, back, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert np.array_equal(a, b)


@given(ARRAYS, st.integers(0, 2**32), st.integers(0, 255))
def test_damaged_bytes_are_an_error_or_arrays(arrays, at, value):
    data = packed(arrays)
    data[at % len(data)] = value
    try:
        back = unpack(data)
    except MessageError:
        return
    for array in back:
        array.sum()  # within the bytes


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "0 bytes"),
        ([-1], "-1 arrays"),
        ([1 << 40], "arrays"),
        ([1], "ends within its table"),
        ([1, 99, 0], "type 99"),
        ([1, 0, 9], "9 dimensions"),
        ([1, 0, 2, 5], "ends within its table"),
        ([1, 0, 1, -5], "shape"),
        ([1, 0, 1, 5], "no room"),
        ([1, 0, 2, 1 << 40, 1 << 40], "no room"),
        ([0, 7], "came with"),
        ([1, 6, 1, 1, 2], "neither 0 nor 1"),
    ],
)
def test_what_is_no_message(words, message):
    with pytest.raises(MessageError, match=message):
        unpack(np.array(words, np.int64).view(np.uint8))


def test_a_wrong_length():
    with pytest.raises(MessageError, match="9 bytes; expected a multiple of 8"):
        unpack(np.zeros(9, np.uint8))


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), ARRAYS), max_size=4), st.booleans())
def test_joined_messages_come_back(messages, shifted):
    data = join([(number, to_bytes(arrays)) for number, arrays in messages])
    if shifted:
        data = np.concatenate((np.zeros(1, np.uint8), data))[1:]
    back = split(data)
    assert [number for number, _ in back] == [number for number, _ in messages]
    for (_, content), (_, arrays) in zip(back, messages, strict=True):
        for a, b in zip(arrays, unpack(content), strict=True):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            assert np.array_equal(a, b)


@given(st.lists(st.integers(-3, 40), max_size=8), st.integers(0, 7))
def test_any_bytes_are_joined_messages_or_an_error(words, more):
    data = np.concatenate((np.array(words, np.int64).view(np.uint8), np.zeros(more, np.uint8)))
    try:
        parts = split(data)
    except MessageError:
        return
    assert sum(16 + len(content) for _, content in parts) == len(data)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([1], "end within"),
        ([1, -8], "has -8 bytes"),
        ([1, 4, 0], "has 4 bytes"),
        ([1, 16, 0], "has 16 bytes; left are 8"),
        ([1, 2**63 - 8, 0], "left are 8"),
        ([1, 0, 1], "end within"),
    ],
)
def test_what_are_no_joined_messages(words, message):
    with pytest.raises(MessageError, match=message):
        split(np.array(words, np.int64).view(np.uint8))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.array([None]), "a object"),
        (np.array([1], ">i4"), ">i4"),
        (np.array(["a"]), "a <U1"),
        ([1], "a list"),
    ],
)
def test_what_cannot_be_sent(value, message):
    with pytest.raises(TypeError, match=message):
        to_bytes([np.arange(2), value])
