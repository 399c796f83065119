"""Every mini-batch over parts, mapped to the ids before, is that of the whole graph."""

import pytest

import hopline.pipes as hp
from hopline.models import launch
from hopline.partition import DistFeatureStore, DistGraph, load_tasks
from tests.partition.equality import (
    CHAINS,
    chain_of,
    check_chain,
    check_same,
    cut,
    expected,
    known,
)
from tests.partition.equality_data import DATA, ODD
from tests.partition.ranks_in_process import open_on_ranks

# Seeds a mini-batch, and how many mini-batches: fewer seeds than most numbers of parts; then more,
# with a last mini-batch that is short.
SIZES = ((2, 8), (25, None))
METHODS = ("metis", "ldg", "random")


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("parts", [1, 2, 3, 4, 7])
def test_one_process_over_all_parts(tmp_path, data, method, parts):
    maps = cut(known(data), tmp_path / "p", parts, part_method=method, num_hops=1 + parts % 2)
    ((graph, store),) = open_on_ranks(tmp_path / "p", 1)
    for name in CHAINS:
        for size, most in SIZES:
            assert check_chain(data, name, graph, store, maps, size, most=most) > 0


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize(
    ("ranks", "parts", "methods", "hops"),
    [(2, 2, METHODS, 1), (3, 3, ["random"], 2), (4, 4, ["metis"], 1), (7, 7, ["ldg"], 1),
     (4, 2, ["metis"], 2), (2, 4, ["ldg"], 1), (6, 3, ["random"], 1)],
)  # fmt: skip
def test_ranks_by_calls(tmp_path, data, ranks, parts, methods, hops):
    """What ranks ask each other and make of the answers; here they are in one process."""
    for method in methods:
        folder = tmp_path / method
        maps = cut(known(data), folder, parts, part_method=method, num_hops=hops)
        opened = open_on_ranks(folder, ranks)
        for name in CHAINS:
            counts = [
                check_chain(data, name, graph, store, maps, 5, (rank, ranks))
                for rank, (graph, store) in enumerate(opened)
            ]
            assert sum(counts) > 2


@pytest.mark.parametrize("data", ODD)
def test_odd_parts(tmp_path, data):
    """Empty parts, types that a part has not, nodes alone, loops, pairs that repeat, no edges."""
    case, hops = ODD[data], 1 + len(data) % 2
    maps = cut(known(data), tmp_path / "p", case.num_parts, part_method=case.given, num_hops=hops)
    for ranks in (1, case.num_parts):
        opened = open_on_ranks(tmp_path / "p", ranks)
        for rank, (graph, store) in enumerate(opened):
            for name in CHAINS:
                for size, most in ((3, 4), (1000, None)):
                    check_chain(data, name, graph, store, maps, size, (rank, ranks), most)


@pytest.mark.parametrize("data", DATA)
def test_rows_from_a_cache_before_the_owners(tmp_path, data):
    """By two policies, in caches too small for all; what is read again is found there."""
    maps = cut(known(data), tmp_path / "p", 3)
    for rank, (graph, store) in enumerate(open_on_ranks(tmp_path / "p", 3)):
        tasks = load_tasks(tmp_path / "p", graph.manifest)
        keys = store.keys()
        cached = hp.BasicFeatureStore(
            {
                key: hp.cpu_cached_feature(store[key], 40 * 8, "sieve" if rank else "s3-fifo")
                if store[key].count()
                else store[key]
                for key in keys
            }
        )
        for name in ("uniform", "negatives"):
            for _again in range(2):
                whole, _ = expected(data, name, 5, (rank, 3))
                found = chain_of(name, tasks, graph, cached, 5, (rank, 3))
                for a, b in zip(whole, found, strict=True):
                    check_same(a, b, *maps)


def _ranks(rank, world_size, device, partitions):
    """All chains over parts that other processes have; some by threads."""
    for data, folder, maps in partitions:
        with DistGraph(folder, timeout=60) as graph:
            assert set(graph.parts) == set(graph.placing.parts_of(rank))
            store = DistFeatureStore(graph)
            tasks = load_tasks(folder, graph.manifest)
            for number, name in enumerate(CHAINS):
                whole, _ = expected(data, name, 7, (rank, world_size))
                chain = chain_of(name, tasks, graph, store, 7, (rank, world_size))
                with hp.DataLoader(chain, num_workers=number % 3) as loader:
                    assert len(loader) == len(whole)  # 0 for some ranks
                    for a, b in zip(whole, loader, strict=True):
                        check_same(a, b, *maps)


@pytest.mark.parametrize(
    ("ranks", "parts", "methods"),
    [(2, 2, METHODS), (4, 4, ["metis"]), (7, 7, ["random"]), (2, 4, ["ldg"]), (4, 2, ["random"])],
)
def test_ranks_that_are_processes(tmp_path, ranks, parts, methods):
    partitions = []
    for data in DATA:
        for method in methods:
            folder = tmp_path / f"{data} {method}"
            maps = cut(known(data), folder, parts, part_method=method)
            partitions.append((data, folder, maps))
    launch(_ranks, ranks, partitions, timeout=120)
