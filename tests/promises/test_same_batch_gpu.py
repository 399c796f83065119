"""Promise 1 on a GPU: the mini-batches of the CPU, bit for bit.

Without a GPU the kernels of its path are interpreted on the CPU.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import hopline.pipes as hp
from hopline.pipes import page_lock
from hopline.pipes.host_reads import HostReads
from tests.fake_driver import FakeDriver
from tests.promises import test_same_batch as on_cpu
from tests.promises.test_same_batch import SAMPLERS, features, heterogeneous, homogeneous
from tests.stage_checks import assert_same
from tests.strategies import build
from tests.twins import NODE


@pytest.fixture
def pinning(monkeypatch):
    """Lets memory be page-locked, without a GPU by a fake of the driver."""
    if not torch.cuda.is_available():
        monkeypatch.setattr(page_lock, "_driver", FakeDriver())
        monkeypatch.setattr(page_lock, "_registry", page_lock._Registry())


TWINS = pytest.mark.parametrize("twin", [homogeneous(), heterogeneous()], ids=["one type", "types"])
HOPS = [name for name in SAMPLERS if name != "a user's own"]


def to_cpu(minibatches) -> list[hp.MiniBatch]:
    return [minibatch.to("cpu") for minibatch in minibatches]


def keys(twin) -> list[str] | dict[str, list[str]]:
    return ["x"] if NODE in twin.num_nodes else {kind: ["x"] for kind in twin.num_nodes}


def sampler_chain(twin, name, linked, device) -> hp.Stage:
    """`test_same_batch.sampler_chain` with the graph and the features on a device."""
    items = on_cpu.links(twin) if linked else on_cpu.timed(twin)
    graph = build(twin, include_original_edge_id=True, **on_cpu.attributes(twin)).to(device)
    source = hp.ItemSampler(items, 16, shuffle=True, seed=9).copy_to(device)
    if linked:
        source = source.sample_uniform_negative(graph, 1)
    sampled = SAMPLERS[name](source, graph, [3, 2])
    return sampled.fetch_feature(features(twin).to(device), keys(twin))


@TWINS
@pytest.mark.parametrize("replace", [False, True])
def test_neighbors(twin, replace, gpu):
    device = gpu
    homogeneous = NODE in twin.num_nodes
    source = hp.ItemSampler(on_cpu.items(twin), 8, shuffle=True, seed=11).copy_to(device)
    graph = build(twin, include_original_edge_id=True).to(device)
    fanouts = [torch.tensor(f) for f in on_cpu.FANOUTS[homogeneous]]
    chain = source.sample_neighbor(graph, fanouts, replace)
    chain = chain.fetch_feature(features(twin).to(device), keys(twin))
    assert_same(to_cpu(chain), without_gpu(lambda: list(on_cpu.chain(twin, replace=replace))))


@TWINS
@pytest.mark.parametrize("name", HOPS)
@pytest.mark.parametrize("linked", [False, True], ids=["nodes", "links"])
def test_samplers(twin, name, linked, gpu):
    expected = without_gpu(lambda: list(on_cpu.sampler_chain(twin, name, linked)))
    assert_same(to_cpu(sampler_chain(twin, name, linked, gpu)), expected)


@TWINS
@pytest.mark.parametrize("cached", [0, 7, 1000])
def test_a_pinned_graph_with_hot_neighbourhoods_on_the_gpu(twin, cached, gpu, pinning):
    def chain(device=None):
        graph, store = build(twin, include_original_edge_id=True), features(twin)
        source = hp.ItemSampler(on_cpu.items(twin), 8, shuffle=True, seed=2)
        if device is not None:
            source, graph, store = source.copy_to(device), graph.pin_memory_(), store.pin_memory_()
            assert graph.is_pinned()
        sampled = source.sample_neighbor(
            graph, [3, -1], num_gpu_cached_edges=cached, gpu_cache_threshold=2
        )
        return sampled.fetch_feature(store, keys(twin))

    there, here = chain(gpu), chain()
    for _ in range(2):  # epochs: the second one finds the cache filled
        assert_same(to_cpu(there), without_gpu(lambda: list(here)))
    graph = there.source.graph
    caches = [cache for _, cache in graph.residence._caches.values()]
    assert [0 < cache.num_cached_edges <= cached for cache in caches] == [True] * bool(cached)


@TWINS
@pytest.mark.parametrize("workers", [1, 4])
def test_any_number_of_workers(twin, workers, gpu):
    expected = without_gpu(lambda: list(on_cpu.sampler_chain(twin, "layer", True)))
    with hp.DataLoader(sampler_chain(twin, "layer", True, gpu), workers) as loader:
        assert_same(to_cpu(loader), expected)


@TWINS
def test_exclusion_of_seed_edges(twin, gpu):
    def chain(device=None):
        graph = build(twin, include_original_edge_id=True)
        source = hp.ItemSampler(on_cpu.links(twin), 16, seed=3)
        if device is not None:
            graph, source = graph.to(device), source.copy_to(device)
        return source.sample_neighbor(graph, [4, 4]).exclude_seed_edges()

    assert_same(to_cpu(chain(gpu)), without_gpu(lambda: list(chain())))


@pytest.mark.parametrize(
    ("name", "fanouts", "hop_reads"),
    [("weighted", [3, 2], 2), ("layer", [3, 2], 2), ("layer", [3, -1], 3)],
)
def test_the_host_waits_for_sizes_alone(name, fanouts, hop_reads, gpu, monkeypatch):
    """Once a hop, and once more where a fanout of -1 leaves the size of an output open."""
    reads = itertools.count()
    fetch = HostReads._fetch

    def counted(values):
        next(reads)
        return fetch(values)

    monkeypatch.setattr(HostReads, "_fetch", staticmethod(counted))
    twin = homogeneous()
    graph = build(twin, **on_cpu.attributes(twin)).to(gpu)
    source = hp.ItemSampler(on_cpu.items(twin), 50, seed=1).copy_to(gpu)
    (minibatch,) = SAMPLERS[name](source, graph, fanouts)
    assert next(reads) == hop_reads
    assert len(minibatch.sampled_subgraphs) == 2


class Waits(TorchDispatchMode):
    """Notes operations for which the host would wait for a GPU."""

    OPERATIONS = (
        "_local_scalar_dense", "nonzero", "masked_select", "_unique", "unique", "isin", "bincount",
    )  # fmt: skip

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        open_size = name == "repeat_interleave" and not (kwargs or {}).get("output_size")
        indices = args[1] if name in ("index", "index_put", "index_put_") else ()
        masks = [index for index in indices if index is not None and index.dtype == torch.bool]
        if name.startswith(self.OPERATIONS) or (open_size and len(args[0])) or masks:
            self.seen.append(name)
        return function(*args, **(kwargs or {}))


@TWINS
@pytest.mark.parametrize("name", HOPS)
def test_no_operation_waits_unseen(twin, name, gpu, monkeypatch):
    # The reads that are counted above are not seen here.
    monkeypatch.setattr(
        HostReads, "_fetch", staticmethod(lambda values: values.cpu().numpy().tolist())
    )
    chain = sampler_chain(twin, name, False, gpu).source  # features check their ids
    (*_, warm) = chain  # what is made once for a graph may wait
    source, stage = chain.source, chain
    minibatch = next(iter(source))
    with Waits() as waits:
        stage(minibatch)
    assert waits.seen == []
    assert warm.sampled_subgraphs


@pytest.mark.parametrize("avoid", [False, True])
def test_the_host_waits_once_for_negatives(avoid, gpu, monkeypatch):
    twin = homogeneous()
    graph = build(twin).to(gpu)
    chain = hp.ItemSampler(on_cpu.links(twin), 16, seed=3).copy_to(gpu)
    stage = chain.sample_uniform_negative(graph, 2, exclude_true_edges=avoid)
    minibatch = next(iter(chain))
    waits = []
    to_list = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda t: waits.append(len(t)) or to_list(t))
    assert len(stage(minibatch).seeds) == 48
    assert len(waits) == 1


def test_what_would_wait_is_noted():
    with Waits() as waits:
        tensor = torch.arange(3)
        tensor[tensor > 1]
        int(tensor[0])
        torch.repeat_interleave(tensor)
    assert waits.seen == ["index", "_local_scalar_dense", "repeat_interleave"]


def without_gpu(make):
    """What the CPU's own path makes, also where the CPU stands for a GPU."""
    from hopline.pipes.kernels import dispatch

    before, dispatch._interpreted = dispatch._interpreted, False
    try:
        return make()
    finally:
        dispatch._interpreted = before


def test_an_end_of_a_wrong_type_gets_the_same_error(gpu):
    graph = hp.from_coo(
        {"a:x:b": (torch.tensor([0]),) * 2, "b:y:a": (torch.tensor([1]), torch.tensor([0]))},
        num_nodes={"a": 1, "b": 2},
    )
    graph.indices[0] = 0  # of the edge from b to a, whose source becomes an a
    words = r"edge 0 is of type 'b:y:a', but its source is not of type 'b': the graph is damaged"

    def sample(device):
        there = graph.to(device)
        seeds = {"a": torch.tensor([0], device=device)}
        with pytest.raises(ValueError, match=words):
            hp.NeighborSampler([], there, [1])(hp.MiniBatch(seeds=seeds, key=(0, 0, 0)))

    without_gpu(lambda: sample("cpu"))
    sample(gpu)


def damaged(**arrays) -> hp.FusedCSCSamplingGraph:
    """A graph of two types of nodes and edges, two of each, whose arrays have been replaced."""
    ends = torch.arange(2), torch.arange(2)
    graph = hp.from_coo({"a:x:b": ends, "b:y:a": ends}, num_nodes={"a": 2, "b": 2})
    for name, array in arrays.items():
        setattr(graph, name, array)
    return graph


@pytest.mark.parametrize(
    ("arrays", "error", "words"),
    [
        ({"type_per_edge": torch.ones(3).byte()}, ValueError, r"\(3,\); expected 4 rows"),
        ({"type_per_edge": torch.zeros(4)}, TypeError, "type_per_edge has dtype torch.float32"),
        ({"indices": torch.zeros(4)}, TypeError, "indices has dtype torch.float32"),
        ({"indices": torch.zeros(4, 1).int()}, ValueError, "indices has shape"),
        ({"csc_indptr": torch.arange(5).int()}, TypeError, "csc_indptr has dtype torch.int32"),
        ({"csc_indptr": torch.arange(6)}, ValueError, r"\[0, 2, 4\]; expected 3 .* 0 to 5 nodes"),
        ({"node_type_offset": torch.tensor([0, 5, 4])}, ValueError, "that never descend"),
        ({"node_type_offset": torch.tensor([0, 4])}, ValueError, "node_type_offset is"),
        ({"node_type_offset": torch.tensor([1, 2, 4])}, ValueError, "node_type_offset is"),
    ],
)
def test_arrays_of_wrong_kind_get_the_same_error(arrays, error, words, gpu):
    def sample(device):
        graph = damaged(**arrays).to(device)
        seeds = {"a": torch.tensor([0], device=device)}
        pairs = {"a:x:b": torch.tensor([[0, 0]], device=device)}
        with pytest.raises(error, match=words):
            hp.NeighborSampler([], graph, [[1, 1]])(hp.MiniBatch(seeds=seeds, key=(0, 0, 0)))
        with pytest.raises(error, match=words):
            hp.UniformNegativeSampler([], graph, 1, exclude_true_edges=True)(
                hp.MiniBatch(seeds=pairs, key=(0, 0, 0))
            )

    without_gpu(lambda: sample("cpu"))
    sample(gpu)


def test_types_in_disorder_get_the_same_error_from_labor(gpu):
    def sample(device):
        zeros = torch.zeros(2, dtype=torch.int64)
        graph = hp.from_coo({"a:x:a": (zeros, zeros), "a:y:a": (zeros, zeros)}, num_nodes={"a": 1})
        stage = hp.LayerNeighborSampler([], graph.to(device), [[1, 1]])
        seeds = {"a": torch.zeros(1, dtype=torch.int64, device=device)}
        stage(hp.MiniBatch(seeds=seeds, key=(0, 0, 0)))
        stage.graph.type_per_edge[3] = 0
        with pytest.raises(ValueError, match=r"type_per_edge\[3\] is 0; expected types below 2"):
            stage(hp.MiniBatch(seeds=seeds, key=(0, 0, 0)))

    without_gpu(lambda: sample("cpu"))
    sample(gpu)


def test_ids_above_all_int64_get_the_same_error(gpu):
    seeds = torch.tensor([0, -3]).view(torch.uint64)
    graph = hp.from_coo(torch.tensor([0]), torch.tensor([0]), 1)
    rows = hp.TorchBasedFeature(torch.ones(1, 1))

    def sample(device):
        there = seeds.to(device)
        with pytest.raises(IndexError, match=f"id {2**64 - 3} "):
            hp.NeighborSampler([], graph.to(device), [1])(hp.MiniBatch(seeds=there, key=(0, 0, 0)))
        with pytest.raises(IndexError, match=f"id {2**64 - 3} "):
            rows.to(device).read(there)

    without_gpu(lambda: sample("cpu"))
    sample(gpu)


@pytest.mark.parametrize("pinned", [False, True], ids=["on the GPU", "pinned"])
def test_what_is_kept_survives_the_inference_mode_in_which_it_is_made(pinned, gpu, pinning):
    src, dst = torch.tensor([[0, 0, 1, 2, 2], [1, 1, 1, 0, 0]])
    weights = {"w": torch.ones(5, dtype=torch.float16)}
    plain = hp.from_coo(src, dst, 3, edge_attributes=weights)
    graph = hp.from_coo(src, dst, 3, edge_attributes=weights)
    graph = graph.pin_memory_() if pinned else graph.to(gpu)

    def sample(graph, device):
        stages = (
            hp.NeighborSampler([], graph, [2, 1], num_gpu_cached_edges=4),
            hp.LayerNeighborSampler([], graph, [1, 1], prob_name="w"),
        )
        seeds = torch.arange(3, device=device)
        return to_cpu(stage(hp.MiniBatch(seeds=seeds, key=(0, 0, 0))) for stage in stages)

    expected = without_gpu(lambda: sample(plain, "cpu"))
    with torch.inference_mode():
        assert_same(sample(graph, gpu), expected)
    assert_same(sample(graph, gpu), expected)
