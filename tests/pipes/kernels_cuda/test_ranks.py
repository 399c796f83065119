"""rank_parallel_edges: which of several parallel edges each edge is."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("triton", reason="GPU kernels are interpreted by Triton, which is missing")

from hopline.pipes.kernels.ranks import rank_parallel_edges
from tests.pipes.kernels_cuda.hops import make


def twin(indptr, indices, types) -> list[int]:
    ranks = []
    for low, high in itertools.pairwise(indptr):
        seen = [(s, t) for s, t in zip(indices[low:high], types[low:high], strict=True)]
        ranks += [seen[:j].count(edge) for j, edge in enumerate(seen)]
    return ranks


@given(st.integers(0, 2**32), st.integers(0, 5), st.integers(0, 60), st.integers(1, 3))
def test_ranks(seed, nodes, edges, types):
    hop = make(seed, nodes, edges if nodes else 0, 0, [1], types, dtype=np.int64)
    arrays = [torch.from_numpy(hop.indptr), torch.from_numpy(hop.indices)]
    kinds = np.zeros(len(hop.indices), np.uint8) if hop.edge_types is None else hop.edge_types
    lists = [hop.indptr.tolist(), hop.indices.tolist()]
    ranks = rank_parallel_edges(*arrays, None)
    assert ranks.dtype == torch.int32
    assert ranks.tolist() == twin(*lists, [0] * len(kinds))
    assert rank_parallel_edges(*arrays, torch.from_numpy(kinds)).tolist() == twin(
        *lists, kinds.tolist()
    )


def test_damaged_graphs_are_refused():
    indptr, indices = torch.tensor([0, 1, 3]), torch.tensor([0, 1, 1], dtype=torch.int32)
    assert rank_parallel_edges(indptr, indices, None).tolist() == [0, 0, 1]
    for pointers in ([0, 2, 1], [0, 1, 4], [-1, 1, 3]):
        with pytest.raises(ValueError, match="indptr is damaged at node"):
            rank_parallel_edges(torch.tensor(pointers), indices, None)
    for bad in (-1, 2):
        with pytest.raises(
            ValueError, match=rf"indices\[1\] is {bad}; expected a node in \[0, 2\)"
        ):
            rank_parallel_edges(indptr, torch.tensor([0, bad, 1]), None)
    with pytest.raises(
        ValueError, match="edge_types has 2 entries; expected one for each of the 3"
    ):
        rank_parallel_edges(indptr, indices, torch.tensor([0, 0]))
