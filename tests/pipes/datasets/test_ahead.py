"""Work done ahead on a thread of its own: its order, its errors, and its end when others fail."""

import threading
import time
from contextlib import closing

import numpy as np
import pytest

from hopline.pipes.datasets import csc, preprocess_ondisk_dataset
from hopline.pipes.datasets.ahead import ahead
from hopline.pipes.datasets.npy_writer import NpyWriter
from tests.pipes.datasets.dataset_files import npy, write


def working():
    return [t.name for t in threading.enumerate() if t.name.startswith("hopline-ahead")]


def test_pieces_come_in_order_and_one_is_made_while_another_is_used():
    made = []

    def pieces():
        for i in range(5):
            made.append((i, threading.current_thread()))
            yield i

    with closing(ahead(pieces())) as used:
        assert next(used) == 0
        limit = time.monotonic() + 10
        while len(made) < 2 and time.monotonic() < limit:
            time.sleep(0.001)
        assert len(made) == 2  # the second, and no more than that
        assert list(used) == [1, 2, 3, 4]
    assert threading.current_thread() not in {thread for _, thread in made}
    assert working() == []


def test_an_error_comes_where_its_piece_would_have_come():
    def pieces():
        yield 1
        raise ValueError("the second")

    used = ahead(pieces())
    assert next(used) == 1
    with pytest.raises(ValueError, match="the second"):
        next(used)
    assert working() == []


def test_when_a_preparation_fails_nothing_works_on_in_its_folder(tmp_path, monkeypatch):
    """The folder is unlocked then: the next process may be at work in it."""
    edges = 100_000
    document = {"graph": {"nodes": [{"num": 500_000}], "edges": [npy("edges.npy")]}}
    ends = np.random.default_rng(0).integers(0, 500_000, edges)
    folder = write(
        tmp_path / "d", document, {"edges.npy": np.stack([np.arange(edges), np.sort(ends)])}
    )
    sorting = threading.Event()
    plain_sorted, plain_append = csc._Run._sorted, NpyWriter.append

    def slowly(self, buckets):
        for piece in plain_sorted(self, buckets):
            sorting.set()
            time.sleep(0.05)
            yield piece

    def fails(self, rows):
        if sorting.is_set():
            raise OSError(28, "No space left on device")
        plain_append(self, rows)

    monkeypatch.setattr(csc._Run, "_sorted", slowly)
    monkeypatch.setattr(NpyWriter, "append", fails)
    with pytest.raises(OSError, match="No space left") as error:
        preprocess_ondisk_dataset(folder, max_memory=1 << 20)
    assert sorting.is_set(), "nothing was sorted ahead"
    assert error.value.__traceback__ is not None  # it holds the frames
    assert working() == []
