"""Graphs sent to another process, under threads that sample: no memory is freed under a reader."""

from __future__ import annotations

import pickle
import threading
from multiprocessing import resource_sharer
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import torch

import hopline.pipes as hp
from hopline.pipes.sending import shared_copy
from tests.number_chains import ring
from tests.stage_checks import assert_same


@pytest.fixture(autouse=True)
def no_sharer_left():
    yield
    resource_sharer.stop()  # its thread would wait for the processes that nothing was sent to


def arrays(graph: hp.FusedCSCSamplingGraph) -> dict[str, torch.Tensor]:
    return {
        "csc_indptr": graph.csc_indptr,
        "indices": graph.indices,
        **{f"edge {name}": value for name, value in (graph.edge_attributes or {}).items()},
        **{f"node {name}": value for name, value in (graph.node_attributes or {}).items()},
    }


def test_a_reader_keeps_the_memory_that_it_reads():
    graph = ring(2000)
    graph.add_node_attribute("time", torch.arange(2000))
    before = arrays(graph)
    places = {name: tensor.data_ptr() for name, tensor in before.items()}
    values = {name: tensor.clone() for name, tensor in before.items()}
    weights = graph.attribute_array("node", "time", np.int64)
    ForkingPickler.dumps(hp.ItemSampler(hp.ItemSet(5, "seeds"), 2).sample_neighbor(graph, [3]))
    for name, tensor in before.items():
        assert tensor.data_ptr() == places[name], "the memory under a reader was let go of"
        assert not tensor.is_shared()
        assert torch.equal(tensor, values[name])
    assert weights.tolist() == list(range(2000))
    now = arrays(graph)
    assert all(tensor.is_shared() for tensor in now.values())
    assert {name: tensor.tolist() for name, tensor in now.items()} == {
        name: tensor.tolist() for name, tensor in values.items()
    }
    # Again: what is shared is sent as it is.
    ForkingPickler.dumps(graph)
    assert all(tensor is arrays(graph)[name] for name, tensor in now.items())


def test_threads_sample_the_same_while_the_graph_is_sent_again_and_again():
    graph, ids = ring(20_000), torch.arange(0, 20_000, 7)
    want = graph.sample_neighbors(ids, [3], random_seed=1)
    wrong, stop, begun = [], threading.Event(), threading.Barrier(4)

    def sample() -> None:
        begun.wait()
        while not stop.is_set():
            got = graph.sample_neighbors(ids, [3], random_seed=1)
            if not torch.equal(got.sampled_csc.indices, want.sampled_csc.indices):
                wrong.append(got)

    threads = [threading.Thread(target=sample) for _ in range(3)]
    for thread in threads:
        thread.start()
    begun.wait()
    try:
        for _ in range(40):
            ForkingPickler.dumps(graph)
            # As if it had never been sent.
            graph.indices, graph.csc_indptr = graph.indices.clone(), graph.csc_indptr.clone()
            _ = [torch.full_like(graph.indices, -1) for _ in range(4)]  # takes what was freed
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not wrong


def test_plain_pickle_moves_nothing():
    graph = ring(100)
    there = pickle.loads(pickle.dumps(graph))  # noqa: S301, our own
    assert not any(tensor.is_shared() for tensor in arrays(graph).values())
    assert_same(arrays(there), arrays(graph))


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.int64, torch.complex64])
def test_shared_copies(dtype):
    tensor = torch.arange(24).view(4, 6).to(dtype)[:, ::2]
    copy = shared_copy(tensor)
    assert copy.is_shared()
    assert not tensor.is_shared()
    assert torch.equal(copy, tensor)
    assert (copy.dtype, copy.shape) == (tensor.dtype, tensor.shape)
    assert shared_copy(copy) is copy


def test_what_others_refer_to_or_has_no_memory_stays():
    parameter = torch.nn.Parameter(torch.ones(3))
    trained = torch.ones(3, requires_grad=True)
    for tensor in (parameter, trained, torch.empty(0, 3), torch.ones(2, device="meta")):
        assert shared_copy(tensor) is tensor
