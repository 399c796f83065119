"""GPUGraphCache: what it holds and counts is that of a simulation, and no draw depends on it."""

from __future__ import annotations

import pickle
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hopline.pipes.gpu_graph_cache import GPUGraphCache
from hopline.pipes.random import fold
from tests.pipes.kernels_cuda.test_picks import Graph, key_bits, there

pytest.importorskip("triton", reason="GPU kernels are interpreted by Triton, which is missing")

from hopline.pipes.kernels.cuda import cached_edges, graph_cache, launching, picks, segments
from hopline.pipes.kernels.dispatch import interpreted_device


class Simulation:
    """The cache's policy over plain lists."""

    def __init__(self, graph: Graph, num_edges: int, threshold: int, most: int) -> None:
        self.degrees = np.diff(graph.indptr).tolist()
        self.num_edges, self.threshold, self.most = num_edges, threshold, most
        self.seen = [0] * graph.num_nodes
        self.places: dict[int, int] = {}
        self.filled = self.misses = self.looked_up = 0

    def look_up(self, columns: list[int]) -> None:
        self.looked_up += len(columns)
        self.misses += sum(column not in self.places for column in columns)

    def admit(self, columns: list[int]) -> None:
        for column in columns:
            self.seen[column] += 1
        free, copied = self.num_edges - self.filled, 0
        for column in dict.fromkeys(columns):
            degree = self.degrees[column]
            if column in self.places or self.seen[column] < self.threshold or degree > free:
                continue
            if copied + degree > free or copied >= self.most:
                break
            self.places[column] = self.filled + copied
            copied += degree
        self.filled += copied


def make(graph: Graph, num_edges: int, threshold: int, typed: bool) -> GPUGraphCache:
    dtypes = there(graph.indices).dtype, there(graph.types).dtype if typed else None
    return GPUGraphCache(graph.num_nodes, num_edges, threshold, *dtypes, None if GPU else "cpu")


GPU = torch.cuda.is_available()


@pytest.fixture(autouse=True)
def _device(request):
    # One for the module's tests, not the fixture `gpu`: hypothesis refuses one for each example.
    if GPU:
        yield
        return
    with interpreted_device():
        yield


def counted(graph: Graph, columns, num_types: int, fanout=-1):
    limits = there(np.full(num_types, fanout))
    begin, degree, picked, _ = segments.count_picks(
        there(graph.indptr), there(graph.types), there(columns), limits, False, len(graph.indices)
    )
    return limits, begin, degree, picked


def admit(cache: GPUGraphCache, graph: Graph, columns, num_types=1, typed=False) -> None:
    _, begin, degree, _ = counted(graph, columns, num_types)
    types = there(graph.types) if typed else None
    cache.admit(there(columns), begin, degree, there(graph.indices), types)


@st.composite
def histories(draw):
    """A graph, and the columns of one call after another."""
    degree = st.sampled_from([0, 1, 2, 3, 5, 20, 40])
    degrees = draw(st.lists(degree, min_size=1, max_size=9))
    num_types = draw(st.integers(1, 3))
    dtype = draw(st.sampled_from([np.int32, np.int64]))
    graph = Graph(degrees, num_types, dtype, seed=draw(st.integers(0, 9)))
    node = st.integers(0, graph.num_nodes - 1)
    calls = draw(st.lists(st.lists(node, max_size=20), min_size=1, max_size=5))
    return graph, num_types, [np.array(columns, dtype) for columns in calls]


@pytest.mark.parametrize("tile", [16, launching.INTERPRETED_TILE])
@settings(max_examples=12)
@given(
    histories(), st.sampled_from([0, 1, 4, 30, 200]), st.integers(1, 3),
    st.sampled_from([1, 6, 1 << 20]), st.booleans(), st.sampled_from([-1, 2, 70]),
)  # fmt: skip
def test_contents_and_statistics_equal_a_simulation(
    tile, history, num_edges, threshold, most, typed, fanout
):
    graph, num_types, calls = history
    simulation = Simulation(graph, num_edges, threshold, most)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launching, "INTERPRETED_TILE", tile)
        patch.setattr(graph_cache, "EDGES_PER_CALL", most)
        patch.setattr(graph_cache, "COPY_PROGRAMS", 2)
        cache = make(graph, num_edges, threshold, typed)
        for number, columns in enumerate(calls):
            # Hops differ in whether each edge type has a fanout.
            parts = num_types if number % 2 else 1
            limits, begin, degree, picked = counted(graph, columns, parts, fanout)
            cached = cache.look_up(there(columns), begin)
            simulation.look_up(columns.tolist())
            shifts = [
                simulation.places[c] - int(graph.indptr[c]) if c in simulation.places
                else cached_edges.NOT_CACHED
                for c in columns.tolist()
            ]  # fmt: skip
            assert cached.shift.tolist() == shifts
            if tile > 16:  # else it takes too long
                same_picks(graph, columns, limits, begin, degree, picked, cached, typed)
            types = there(graph.types) if typed else None
            cache.admit(there(columns), begin, degree, there(graph.indices), types)
            simulation.admit(columns.tolist())
            assert cache.num_cached_edges == simulation.filled <= num_edges
            assert cache.miss_rate == simulation.misses / max(1, simulation.looked_up)
            for column, place in simulation.places.items():
                edges = slice(graph.indptr[column], graph.indptr[column + 1])
                here = slice(place, place + simulation.degrees[column])
                assert cached.indices[here].tolist() == graph.indices[edges].tolist()
                if typed:
                    assert cached.edge_types[here].tolist() == graph.types[edges].tolist()


def same_picks(graph, columns, limits, begin, degree, picked, cached, typed) -> None:
    """Draws with and without the cache, and with one that is read: the graph's arrays are wrong."""
    total = int(picked[-1])
    keys = key_bits([fold(5, t) for t in range(len(limits))])
    largest = max(0, *limits.tolist())
    wrong = there(np.where(_held(graph, columns, cached), 0, graph.indices))

    def pick(indices, cache):
        found = picks.pick_neighbors(
            indices, there(graph.types), there(columns), keys, limits, largest, False, True, begin,
            degree, picked, total, graph.num_nodes, typed, cache,
        )  # fmt: skip
        return [None if array is None else array.tolist() for array in found]

    expected = pick(there(graph.indices), None)
    assert pick(there(graph.indices), cached) == expected
    assert pick(wrong.to(cached.indices.dtype), cached) == expected


def _held(graph, columns, cached) -> np.ndarray:
    """Which edges the cache has, of these columns."""
    held = np.zeros(len(graph.indices), bool)
    for column, shift in zip(columns.tolist(), cached.shift.tolist(), strict=True):
        if shift != cached_edges.NOT_CACHED:
            held[graph.indptr[column] : graph.indptr[column + 1]] = True
    return held


def test_a_node_enters_when_it_was_a_column_often_enough():
    graph = Graph([3, 4, 5])
    cache = make(graph, 100, 3, False)
    for columns, held in (([0, 1], 0), ([0, 0, 2], 3), ([1, 2], 3), ([2, 1], 12)):
        admit(cache, graph, np.array(columns, np.int32))
        assert cache.num_cached_edges == held
    # In the order of the call's columns.
    _, begin, _, _ = counted(graph, np.array([0, 1, 2], np.int32), 1)
    cached = cache.look_up(there(np.array([0, 1, 2], np.int32)), begin)
    assert (cached.shift + begin).tolist() == [0, 8, 3]
    assert cache.miss_rate == 0.0


def test_a_node_enters_with_its_edges_of_all_types():
    graph = Graph([30, 0, 20], num_types=3)
    cache = make(graph, 100, 1, True)
    columns = np.array([2, 1, 0], np.int32)
    admit(cache, graph, columns, num_types=3, typed=True)
    limits, begin, degree, picked = counted(graph, columns, 3)
    cached = cache.look_up(there(columns), begin)
    assert cached.shift.tolist() == [-30, 20 - 30, 20]
    assert cache.num_cached_edges == 50
    same_picks(graph, columns, limits, begin, degree, picked, cached, True)


def test_columns_that_are_no_nodes_are_neither_found_nor_counted():
    graph = Graph([3, 4])
    cache = make(graph, 100, 1, False)
    columns = np.array([-1, 2, 1, 2**31 - 1], np.int32)
    for _ in range(2):
        _, begin, _, _ = counted(graph, columns, 1)
        shift = cache.look_up(there(columns), begin).shift
        admit(cache, graph, columns)
    assert shift.tolist() == [cached_edges.NOT_CACHED] * 2 + [-3] + [cached_edges.NOT_CACHED]
    assert cache.num_cached_edges == 4
    assert cache.miss_rate == 7 / 8


def test_no_columns_no_edge_types():
    graph = Graph([3, 4])
    cache = make(graph, 100, 1, False)
    nothing, some = there(np.empty(0, np.int64)), there(np.array([0, 1]))
    assert cache.look_up(nothing, nothing).shift.tolist() == []
    cache.admit(nothing, nothing, nothing, there(graph.indices))
    assert cache.look_up(some, nothing).shift.tolist() == [cached_edges.NOT_CACHED] * 2
    cache.admit(some, nothing, nothing, there(graph.indices))
    assert cache.num_cached_edges == 0


def test_threads_share_a_cache():
    graph = Graph([3, 4, 5, 6, 7, 8])
    cache = make(graph, 20, 2, False)
    columns = np.arange(6, dtype=np.int32)
    failures = []

    def work(order):
        try:
            stream = torch.cuda.Stream() if GPU else None
            with torch.cuda.stream(stream):
                for _ in range(4):
                    limits, begin, degree, picked = counted(graph, columns[order], 1, 2)
                    cached = cache.look_up(there(columns[order]), begin)
                    same_picks(graph, columns[order], limits, begin, degree, picked, cached, False)
                    admit(cache, graph, columns[order])
        except BaseException as error:
            failures.append(error)

    orders = [[0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0], [3, 0, 3, 1]]
    threads = [threading.Thread(target=work, args=(order,)) for order in orders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert 13 <= cache.num_cached_edges <= 20
    assert 0 < cache.miss_rate < 1


def test_a_pickled_cache_travels_empty():
    graph = Graph([3, 4])
    cache = make(graph, 10, 1, True)
    admit(cache, graph, np.array([0, 1], np.int32), typed=True)
    copy = pickle.loads(pickle.dumps(cache))  # noqa: S301, our own
    assert cache.num_cached_edges == 7
    assert copy.num_cached_edges == 0
    assert repr(copy) == repr(cache) == f"GPUGraphCache(10 edges, threshold=1, {cache.device})"
    admit(copy, graph, np.array([1], np.int32), typed=True)
    assert copy.num_cached_edges == 4


# -------------------------------------------------------------------------------------------------
# Wrong input

NAMED = {
    "num_nodes": 5, "num_edges": 10, "threshold": 1, "indices_dtype": torch.int32,
    "types_dtype": torch.uint8, "device": "cuda" if GPU else "cpu",
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"num_nodes": -1}, ValueError, "num_nodes is -1; expected 0 or more"),
        ({"num_edges": 2.0}, TypeError, "num_edges is 2.0; expected an int"),
        ({"num_edges": -3}, ValueError, "num_edges is -3; expected 0 or more"),
        ({"threshold": 0}, ValueError, "threshold is 0; expected 1 or more"),
        ({"threshold": True}, TypeError, "threshold is True; expected an int"),
        ({"indices_dtype": "int32"}, TypeError, "indices_dtype is 'int32'"),
        ({"indices_dtype": torch.int16}, ValueError, "expected torch.int32 or torch.int64"),
        ({"types_dtype": torch.float32}, ValueError, "expected a dtype of integers"),
        ({"device": "meta"}, ValueError, "device is 'meta'; expected a GPU"),
        ({"device": "nowhere"}, ValueError, "device is 'nowhere'"),
    ],
)
def test_wrong_settings_are_refused(change, error, text):
    with pytest.raises(error, match=text):
        GPUGraphCache(**NAMED | change)


def test_a_wrong_place_is_refused():
    if not GPU:
        with pytest.raises(RuntimeError, match="needs a GPU"):
            GPUGraphCache(**NAMED | {"device": None})
    from hopline.pipes.kernels import dispatch

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "_interpreted", False)
        with pytest.raises(ValueError, match="device is 'cpu'; expected a GPU"):
            GPUGraphCache(**NAMED | {"device": "cpu"})


def test_wrong_arrays_are_refused():
    cache = GPUGraphCache(**NAMED)
    columns, two, types = (
        there(np.zeros(2, dtype)) for dtype in (np.int32, np.int64, np.uint8)
    )  # fmt: skip
    for arguments, error, text in (
        ((columns.double(), two, two, columns, types), TypeError, "columns has dtype"),
        ((columns, [0, 0], two, columns, types), TypeError, "begin is a list"),
        ((columns, two, columns, columns, types), TypeError, "degree has dtype"),
        ((columns, two, two[:1], columns, types), ValueError, "degree has 1 entries"),
        ((columns, two[:1], two[:1], columns, types), ValueError, "of the 2 columns"),
        ((columns, two.to("meta"), two, columns, types), ValueError, "begin on meta"),
        ((columns, two, two, two, types), TypeError, "indices has dtype"),
        ((columns, two, two, columns, None), TypeError, "edge_types is None, but the cache"),
        ((columns, two, two, columns, columns), TypeError, "edge_types has dtype"),
        ((columns, two, two, columns, types[:1]), ValueError, "edge_types has shape"),
    ):
        with pytest.raises(error, match=text):
            cache.admit(*arguments)
    for arguments in ((columns.double(), two), (columns, columns)):
        with pytest.raises(TypeError, match="has dtype"):
            cache.look_up(*arguments)
    settings_only = GPUGraphCache(**NAMED | {"types_dtype": None})
    with pytest.raises(TypeError, match="edge_types is given, but the cache was made without"):
        settings_only.admit(columns, two, two, columns, types)
