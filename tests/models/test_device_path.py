"""What layers do on a GPU, without one: tensors that have no data tell who asks for it.

On the device "meta" layers take the path of GPUs. An operation whose result's size depends on data,
or that copies data to the host, fails there; on a GPU it would make the host wait.
"""

from __future__ import annotations

import pytest
import torch

import hopline.pipes as hp
from hopline.models import (
    GAT,
    GCN,
    RGCN,
    SAGE,
    DotPredictor,
    LinkPredictor,
    MLPPredictor,
    add_self_edges,
    max_aggregate,
)
from hopline.models.block_edges import count_on_device

SIZES = (16, 8, 4)
ETYPES = ["a:x:a", "a:y:b", "b:z:a"]


def block(num_src, num_dst, edges):
    indptr = torch.empty(num_dst + 1, dtype=torch.int64, device="meta")
    return hp.Block(indptr, torch.empty(edges, dtype=torch.int32, device="meta"), num_src, num_dst)


def rows(count, size=16):
    return torch.empty(count, size, device="meta", requires_grad=True)


def blocks():
    return [block(9, 5, 20), block(5, 3, 8)]


def typed_blocks():
    return [{"a:x:a": block(9, 5, 20), "b:z:a": block(7, 5, 3)}]


def links():
    return torch.empty(6, 2, dtype=torch.int64, device="meta")


def rgcn():
    return RGCN({"a": 16, "b": 4}, *SIZES[1:], ETYPES, num_layers=1, num_bases=2).to("meta")


def scored(encoder, decoder, blocks, x, links):
    return LinkPredictor(encoder, decoder).to("meta")(blocks, x, links)


CASES = {
    "SAGE": lambda: SAGE(*SIZES, num_layers=2).to("meta")(blocks(), rows(9)),
    "GCN": lambda: GCN(*SIZES).to("meta")(blocks(), rows(9)),
    "GAT": lambda: GAT(*SIZES, attn_drop=0.1).to("meta")(blocks(), rows(9)),
    "RGCN": lambda: rgcn()(typed_blocks(), {"a": rows(9), "b": rows(7, 4)})["a"],
    "max": lambda: max_aggregate(block(9, 5, 20), rows(9)),
    "max, half": lambda: max_aggregate(block(9, 5, 20), rows(9).bfloat16()),
    "dot": lambda: scored(SAGE(*SIZES, num_layers=2), DotPredictor(), blocks(), rows(9), links()),
    "MLP": lambda: scored(
        SAGE(*SIZES, num_layers=2), MLPPredictor(4, 8), blocks(), rows(9), links()
    ),
    "typed links": lambda: scored(
        rgcn(),
        DotPredictor(),
        typed_blocks(),
        {"a": rows(9), "b": rows(7, 4)},
        {"a:x:a": links()},
    )["a:x:a"],
}


@pytest.mark.parametrize("output", CASES.values(), ids=CASES)
def test_no_layer_reads_data(output):
    out = output()
    out.sum().backward()


@pytest.mark.parametrize(
    "read", [lambda x: x[x[:, 0] > 0], lambda x: x * x.sum().item(), lambda x: torch.bincount(x[0])]
)
def test_reading_data_would_be_seen(read):
    with pytest.raises((NotImplementedError, RuntimeError)):
        read(rows(9))


def test_self_edges_are_added_without_a_mask():
    """A mask in an assignment is the one read that "meta" does not see."""
    seen = []

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func.name())
            return func(*args, **(kwargs or {}))

    with Mode():
        assert add_self_edges(block(9, 5, 20)).num_edges() == 25
    assert "aten::index_copy" in seen
    assert not any("index_put" in name or "nonzero" in name for name in seen)


def test_counts_of_out_edges():
    indices = torch.tensor([2, 0, 2, 2], dtype=torch.int32)
    assert count_on_device(indices, 5).tolist() == [1, 0, 3, 0, 0]
    assert count_on_device(indices[:0], 2).tolist() == [0, 0]
