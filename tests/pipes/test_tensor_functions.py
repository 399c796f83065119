"""isin, index_select, expand_indptr, indptr_edge_ids: against plain Python."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hopline.pipes as hp

INTEGERS = [
    torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64,
    torch.uint64,
]  # fmt: skip
ANY = [
    torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32,
    torch.complex64,
]  # fmt: skip
small = st.lists(st.integers(0, 12), max_size=20)
degree_lists = st.lists(st.integers(0, 4), max_size=8)


def integers(values, dtype=torch.int64) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64).to(dtype)


# -------------------------------------------------------------------------------------------------
# isin


@given(small, small, st.sampled_from(INTEGERS), st.sampled_from(INTEGERS))
def test_isin(elements, others, dtype, other_dtype):
    got = hp.isin(integers(elements, dtype), integers(others, other_dtype))
    assert got.dtype == torch.bool
    assert got.tolist() == [e in others for e in elements]


def test_isin_at_the_ends_of_64_bits():
    big = torch.from_numpy(np.array([2**64 - 1, 5, 2**63], np.uint64))
    signed = torch.tensor([-1, 5, -(2**63)])
    assert hp.isin(big, signed).tolist() == [False, True, False]
    assert hp.isin(signed, big).tolist() == [False, True, False]
    assert hp.isin(big, big[:1]).tolist() == [True, False, False]
    assert hp.isin(signed, signed[:1]).tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("elements", "others", "error", "message"),
    [
        ([1], torch.tensor([1]), TypeError, "elements is a list"),
        (torch.ones(2), torch.tensor([1]), TypeError, "elements has dtype torch.float32"),
        (torch.tensor([1]), torch.tensor([True]), TypeError, "test_elements has dtype torch.bool"),
        (torch.ones(2, 2).long(), torch.tensor([1]), ValueError, r"elements has shape \(2, 2\)"),
        (torch.tensor([1]), torch.tensor(1), ValueError, r"test_elements has shape \(\)"),
        (torch.tensor([1]), torch.ones(1, device="meta").long(), ValueError, "on meta"),
    ],
)
def test_isin_refuses(elements, others, error, message):
    with pytest.raises(error, match=message):
        hp.isin(elements, others)


# -------------------------------------------------------------------------------------------------
# index_select


@given(
    st.integers(1, 6),
    st.lists(st.integers(-6, 5), max_size=12),
    st.sampled_from([(), (3,), (2, 3), (0,)]),
    st.sampled_from(ANY),
    st.sampled_from([torch.int8, torch.int16, torch.int32, torch.int64]),
)
def test_index_select(rows, index, shape, dtype, index_dtype):
    index = [i for i in index if -rows <= i < rows]
    tensor = torch.arange(rows * max(1, int(np.prod(shape)))).view(rows, -1).to(dtype)
    tensor = tensor.reshape(rows, *shape) if 0 not in shape else tensor[:, :0]
    got = hp.index_select(tensor, integers(index, index_dtype))
    expected = tensor[torch.tensor(index, dtype=torch.int64)]
    assert got.dtype == dtype
    assert got.shape == expected.shape
    assert torch.equal(got, expected)


def test_index_select_of_unusual_tensors():
    index = torch.tensor([2, 0, -1])
    strided = torch.arange(24.0).view(4, 6)[:, ::2]
    assert torch.equal(hp.index_select(strided, index), strided[index])
    conjugate = torch.tensor([1 + 2j, 3 - 1j, 2j]).conj()
    assert torch.equal(hp.index_select(conjugate, index), conjugate[index])
    weight = torch.ones(3, 2, requires_grad=True)
    hp.index_select(weight, index).sum().backward()
    assert weight.grad.tolist() == [[1, 1], [0, 0], [2, 2]]


def test_a_small_integer_index_is_no_mask():
    tensor = torch.arange(4)
    assert hp.index_select(tensor, integers([0, 1, 1, 0], torch.uint8)).tolist() == [0, 1, 1, 0]


def test_index_select_of_nothing():
    none = torch.empty(0, dtype=torch.int64)
    assert hp.index_select(torch.ones(0, 3), none).shape == (0, 3)
    assert hp.index_select(torch.ones(2, 3), none).shape == (0, 3)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64])
@pytest.mark.parametrize("bad", [3, -4, 127])
def test_index_select_out_of_range(bad, dtype):
    with pytest.raises(IndexError, match=rf"index {bad} at position 1 is outside \[-3, 3\)"):
        hp.index_select(torch.ones(3), integers([0, bad], dtype))


@pytest.mark.parametrize(
    ("tensor", "index", "error", "message"),
    [
        ([1], torch.tensor([0]), TypeError, "tensor is a list"),
        (torch.eye(2).to_sparse(), torch.tensor([0]), TypeError, "dense"),
        (torch.tensor(1), torch.tensor([0]), ValueError, "no dimension"),
        (torch.ones(2), torch.tensor([True]), TypeError, "index has dtype torch.bool"),
        (torch.ones(2), torch.tensor([[0]]), ValueError, "index has shape"),
        (torch.ones(0), torch.tensor([0]), IndexError, "index 0 at position 0"),
        (
            torch.ones(2),
            torch.from_numpy(np.array([2**64 - 1], np.uint64)),
            IndexError,
            r"above 2\*\*63",
        ),
    ],
)
def test_index_select_refuses(tensor, index, error, message):
    with pytest.raises(error, match=message):
        hp.index_select(tensor, index)


# -------------------------------------------------------------------------------------------------
# Pointers of columns


def pointers(degrees, first=0, dtype=torch.int64) -> torch.Tensor:
    return integers([first, *(first + s for s in np.cumsum(degrees).tolist())], dtype)


@given(degree_lists, st.integers(0, 5), st.sampled_from([torch.int32, torch.int64]), st.booleans())
def test_expand_indptr(degrees, first, dtype, sized):
    indptr = pointers(degrees, first, dtype)
    size = sum(degrees) if sized else None
    expected = [i for i, d in enumerate(degrees) for _ in range(d)]
    got = hp.expand_indptr(indptr, output_size=size)
    assert got.tolist() == expected
    assert got.dtype == dtype
    names = torch.arange(len(degrees), dtype=torch.int16) * 10
    got = hp.expand_indptr(indptr, node_ids=names, output_size=size)
    assert got.tolist() == [10 * i for i in expected]
    assert got.dtype == torch.int16
    assert hp.expand_indptr(indptr, torch.int32, names).dtype == torch.int32


@given(degree_lists, st.integers(0, 5), st.sampled_from([torch.int32, torch.int64]), st.booleans())
def test_indptr_edge_ids(degrees, first, dtype, sized):
    indptr = pointers(degrees, first, dtype)
    size = sum(degrees) if sized else None
    got = hp.indptr_edge_ids(indptr, output_size=size)
    assert got.tolist() == [j for d in degrees for j in range(d)]
    assert got.dtype == dtype
    offset = torch.arange(len(degrees), dtype=torch.int16) * 10
    got = hp.indptr_edge_ids(indptr, offset=offset)
    assert got.tolist() == [10 * i + j for i, d in enumerate(degrees) for j in range(d)]
    assert got.dtype == torch.int16
    assert hp.indptr_edge_ids(indptr, torch.int64, offset).dtype == torch.int64


@pytest.mark.parametrize("function", [hp.expand_indptr, hp.indptr_edge_ids])
@pytest.mark.parametrize(
    ("indptr", "options", "error", "message"),
    [
        ([0, 1], {}, TypeError, "indptr is a list"),
        (torch.ones(2), {}, TypeError, "indptr has dtype torch.float32"),
        (torch.zeros(1, 1).long(), {}, ValueError, "indptr has shape"),
        (torch.empty(0).long(), {}, ValueError, "indptr is empty"),
        (torch.tensor([0, 3, 2]), {}, ValueError, "descends at column 1, from 3 to 2"),
        (torch.tensor([0, 3]), {"output_size": 4}, ValueError, "output_size is 4; indptr counts 3"),
    ],
)
def test_pointers_that_are_refused(function, indptr, options, error, message):
    with pytest.raises(error, match=message):
        function(indptr, **options)


def test_ids_that_do_not_fit_the_pointers():
    indptr = torch.tensor([0, 1, 3])
    with pytest.raises(ValueError, match=r"node_ids are \(3,\); expected one for each of 2"):
        hp.expand_indptr(indptr, node_ids=torch.arange(3))
    with pytest.raises(ValueError, match="offset has 1 entries; expected one for each of 2"):
        hp.indptr_edge_ids(indptr, offset=torch.arange(1))
    with pytest.raises(TypeError, match=r"offset has dtype torch.float32"):
        hp.indptr_edge_ids(indptr, offset=torch.ones(2))


def test_pointers_on_a_device_that_cannot_be_looked_at():
    # Shapes follow from output_size, without reading the pointers.
    indptr = torch.zeros(4, dtype=torch.int64, device="meta")
    assert hp.expand_indptr(indptr, torch.int32, output_size=7).shape == (7,)
    assert hp.indptr_edge_ids(indptr, torch.int32, output_size=7).shape == (7,)


def test_columns_of_edges_are_one_graph_under_compile():
    def columns(indptr, total):
        return hp.expand_indptr(indptr, output_size=total)

    torch._dynamo.reset()
    compiled = torch.compile(columns, fullgraph=True, backend="eager")
    indptr = torch.tensor([0, 2, 2, 5])
    assert torch.equal(compiled(indptr, 5), columns(indptr, 5))


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.uint64])
def test_wide_unsigned_node_ids(dtype):
    nodes = torch.from_numpy(np.array([0, 7, np.iinfo(dtype).max], dtype))
    spread = hp.expand_indptr(torch.tensor([0, 2, 2, 3]), node_ids=nodes)
    assert spread.dtype == nodes.dtype
    assert spread.numpy().tolist() == [0, 0, np.iinfo(dtype).max]
