"""Messages: what is sent comes back, and whatever else comes is an error."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopline.partition.messages import APART, DTYPES, HEAD_BYTES, Incoming, MessageError, encode

ARRAYS = st.lists(
    st.builds(
        lambda dtype, shape, seed: np.random.default_rng(seed).integers(0, 2, shape).astype(dtype),
        st.sampled_from(DTYPES),
        st.lists(st.sampled_from([0, 1, 2, 3, 4, 70]), max_size=3).map(tuple),
        st.integers(0, 99),
    ),
    max_size=12,
)


def received(parts):
    """Parts as they come in, into memory that held other things."""
    head = np.full(HEAD_BYTES, 255, np.uint8)
    assert len(parts[0]) <= HEAD_BYTES
    head[: len(parts[0])] = parts[0]
    message = Incoming(head)
    rest = list(parts[1:])
    following = message.following
    while following:
        for part in following:
            sent = rest.pop(0)
            assert len(part) == len(sent)
            part[:] = sent
        following = message.more()
    assert rest == []
    return message


def equal(arrays, back):
    assert len(back) == len(arrays)
    for a, b in zip(arrays, back, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert np.array_equal(a, b)


@given(st.integers(-(2**63), 2**63 - 1), ARRAYS)
def test_arrays_come_back(number, arrays):
    message = received(encode(number, arrays))
    assert message.number == number
    equal(arrays, message.arrays())


@pytest.mark.parametrize("size", [0, 1, 4096, 4097, 32000, 100_000])
@pytest.mark.parametrize("count", [1, 7, 12, 1000, 1400, 5000])
def test_many_and_long_arrays_come_back(count, size):
    size = min(size, 10**7 // count)
    arrays = [np.arange(i, i + size).astype(np.int8) for i in range(count)]
    parts = encode(5, arrays)
    message = received(parts)
    assert (message.number, parts[0].view(np.int64)[1] == APART) == (5, 8 * 3 * count > HEAD_BYTES)
    equal(arrays, message.arrays())


def test_a_long_array_is_sent_from_where_it_lies():
    rows = np.arange(10_000.0).reshape(100, 100)
    _, following = encode(0, [np.arange(3), rows, np.arange(3)])
    assert np.shares_memory(following, rows)
    step = encode(0, [rows[:, ::2]])
    equal([rows[:, ::2]], received(step).arrays())


@given(ARRAYS, st.integers(0, 2**32), st.integers(0, 255))
def test_a_damaged_head_is_an_error_or_arrays(arrays, at, value):
    head = np.zeros(HEAD_BYTES, np.uint8)
    sent = encode(1, arrays)[0]
    head[: len(sent)] = sent
    head[at % len(sent)] = value
    try:
        message = Incoming(head)
        back = message.arrays()
    except (MessageError, MemoryError):
        return
    for array in back:
        if array.nbytes < HEAD_BYTES:
            array.sum()  # within the bytes


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([0, -2], "-2 arrays"),
        ([0, 1 << 40], "arrays"),
        ([0, 1, 99, 0], "type 99"),
        ([0, 1, -1, 0], "type -1"),
        ([0, 1, 0, 9], "9 dimensions"),
        ([0, 1, 0, 1, -1], "of shape"),
        ([0, 1, 0, 2, 1 << 40, 1 << 40], "of shape"),
        ([0, 1, 6, 1, 1, 7], "truth value"),
        ([0, APART, 8], "words have 8 bytes"),
        ([0, APART, 1 << 50], "words have"),
        ([0, APART, HEAD_BYTES + 4], "words have"),
        ([0, 60_000], "ends within its table"),
    ],
)
def test_what_is_no_message(words, message):
    head = np.zeros(HEAD_BYTES, np.uint8)
    if words[1] == 60_000:
        head.view(np.int64)[2::2] = 0
    head.view(np.int64)[: len(words)] = words
    with pytest.raises(MessageError, match=message):
        Incoming(head).arrays()


def test_words_that_follow_and_are_none():
    head = np.zeros(HEAD_BYTES, np.uint8)
    head.view(np.int64)[:3] = [0, APART, HEAD_BYTES + 8]
    message = Incoming(head)
    (words,) = message.following
    words[:] = 255
    with pytest.raises(MessageError, match="-1 arrays"):
        message.more()


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
        encode(0, [np.arange(2), value])
