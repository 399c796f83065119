import numpy as np
import pytest
import torch

from hopline.partition import PartitionBook

BOOK = PartitionBook(
    4,
    {"a": [0, 3, 3, 8, 8], "b": [0, 0, 0, 0, 0]},
    {"a:r:a": [0, 1, 5, 5, 9], "a:s:b": [0, 0, 0, 0, 2]},
)


def test_owners_are_those_whose_range_holds_the_id():
    for kind in ("a", "b"):
        for part in range(4):
            for i in BOOK.node_range(part, kind):
                ids = torch.tensor([i], dtype=torch.int32)
                assert BOOK.node_owner(ids, kind).tolist() == [part]
                local = BOOK.local_node_ids(ids, kind)
                assert local.dtype == torch.int64
                assert local.tolist() == [i - BOOK.node_range(part, kind).start]
    assert BOOK.node_owner(torch.tensor([7, 0, 3, 2]), "a").tolist() == [2, 0, 2, 0]
    assert BOOK.edge_owner(torch.arange(9), "a:r:a").tolist() == [0, 1, 1, 1, 1, 3, 3, 3, 3]
    assert BOOK.local_edge_ids(torch.arange(9), "a:r:a").tolist() == [0, 0, 1, 2, 3, 0, 1, 2, 3]
    assert BOOK.node_owner(torch.empty(0, dtype=torch.int64), "b").tolist() == []


def test_counts():
    assert [BOOK.num_nodes("a", part) for part in range(4)] == [3, 0, 5, 0]
    assert (BOOK.num_nodes("a"), BOOK.num_nodes("b"), BOOK.num_edges("a:s:b")) == (8, 0, 2)
    assert BOOK.node_types == ["a", "b"]
    assert BOOK.edge_types == ["a:r:a", "a:s:b"]
    assert not BOOK.is_homogeneous
    assert PartitionBook(1, {"": [0, 5]}, {"": [0, 0]}).is_homogeneous


def test_a_book_comes_back_from_plain_values():
    assert PartitionBook(**BOOK.to_dict()) == BOOK
    assert PartitionBook(1, {"": [0, 5]}, {"": [0, 0]}) != PartitionBook(
        1, {"": [0, 6]}, {"": [0, 0]}
    )


def test_owners_by_random_ranges():
    rng = np.random.default_rng(0)
    for _ in range(50):
        parts = int(rng.integers(1, 9))
        counts = rng.integers(0, 4, parts)
        book = PartitionBook(parts, {"": [0, *np.cumsum(counts).tolist()]}, {"": [0] * (parts + 1)})
        ids = torch.arange(int(counts.sum()))
        assert book.node_owner(ids).tolist() == np.repeat(np.arange(parts), counts).tolist()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: PartitionBook(0, {}, {}), ValueError, "num_parts is 0"),
        (lambda: PartitionBook(2, {"": [0, 5]}, {}), ValueError, "2 bounds; expected one more"),
        (lambda: PartitionBook(1, {"": [1, 5]}, {}), ValueError, "bounds from 0"),
        (lambda: PartitionBook(2, {"": [0, 5, 4]}, {}), ValueError, "never descend"),
        (lambda: PartitionBook(1, {"": [0, 5.0]}, {}), TypeError, "list of ints"),
        (lambda: PartitionBook(1, {}, {"x": (0, 5)}), TypeError, "ranges of edge type 'x'"),
        (lambda: BOOK.node_owner(torch.tensor([8]), "a"), IndexError, r"node id 8 at 0 .*\[0, 8\)"),
        (lambda: BOOK.node_owner(torch.tensor([3, -1]), "a"), IndexError, "node id -1 at 1"),
        (lambda: BOOK.edge_owner(torch.tensor([2]), "a:s:b"), IndexError, "edge id 2"),
        (lambda: BOOK.node_owner(torch.tensor([0]), "c"), KeyError, "no node type 'c'"),
        (lambda: BOOK.node_owner(torch.tensor([0])), KeyError, "no node type None"),
        (lambda: BOOK.node_owner(torch.tensor([0.5]), "a"), TypeError, "expected integers"),
        (lambda: BOOK.node_owner([0], "a"), TypeError, "list"),
        (lambda: BOOK.node_range(4, "a"), ValueError, "part is 4; expected 0 to 3"),
    ],
)
def test_wrong_input(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_ids_on_another_device_have_answers_on_the_cpu(monkeypatch):
    """A stand-in for a GPU: a tensor that mixes with no other until it is copied."""

    class Elsewhere(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, arguments=(), options=None):
            if "sub" in function.__name__:
                raise RuntimeError("expected all tensors to be on the same device")
            found = super().__torch_function__(function, types, arguments, options or {})
            return found.as_subclass(torch.Tensor) if function is torch.Tensor.cpu else found

    ids = torch.tensor([7, 2]).as_subclass(Elsewhere)
    assert BOOK.local_node_ids(ids, "a").tolist() == [4, 2]
