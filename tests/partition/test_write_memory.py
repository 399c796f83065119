import tracemalloc

import numpy as np
import pytest
import torch

import hopline.pipes as hp
from hopline.partition import part_graph
from hopline.partition.part_memory import part_memory
from tests.partition.graphs import homogeneous
from tests.partition.test_write import cut


def graph_for_memory(kind, edges, nodes):
    """Random edges; with types, ids before and weights where kind says so."""
    rng = np.random.default_rng(0)
    ends = [torch.from_numpy(rng.integers(0, nodes, edges)) for _ in range(2)]
    if kind == "plain":
        return hp.from_coo(*ends, num_nodes=nodes)
    half = edges // 2
    pairs = {"a:x:a": (ends[0][:half], ends[1][:half]), "a:y:a": (ends[0][half:], ends[1][half:])}
    weights = {name: torch.rand(half) for name in pairs}
    return hp.from_coo(
        pairs, num_nodes={"a": nodes}, edge_attributes={"weight": weights},
        include_original_edge_id=True,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["plain", "typed"])
@pytest.mark.parametrize("hops", [1, 2])
def test_writing_keeps_to_max_memory(tmp_path, kind, hops):
    """The estimate is an upper bound of NumPy's part; below it nothing is written."""
    graph = graph_for_memory(kind, 1_000_000, 40_000)
    options = {"part_method": "random", "num_hops": hops}
    cut(homogeneous().graph, tmp_path / "warm", 3, **options)
    estimates = []
    note = part_graph.part_memory

    def noted(*args):
        estimates.append(note(*args))
        return estimates[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(part_graph, "part_memory", noted)
        tracemalloc.start()
        cut(graph, tmp_path / "out", 3, **options)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert most <= max(estimates)
    cut(graph, tmp_path / "just", 3, max_memory=max(estimates), **options)
    with pytest.raises(MemoryError, match=r"part \d, of [\d,]+ edges, would take up to .* MB to w"):
        cut(graph, tmp_path / "over", 3, max_memory=max(estimates) - 1, **options)
    least = part_memory(graph, 0, 333_333, 333_333)
    with pytest.raises(MemoryError, match="more parts, or fewer hops of halo, take less"):
        cut(graph, tmp_path / "over", 3, max_memory=least - 1, **options)
    assert not [path for path in tmp_path.iterdir() if "over" in path.name and path.is_dir()]


def test_memory_is_for_one_part_at_a_time(tmp_path):
    """Numpy's arrays; with two parts in memory, or copies of all edges, it takes more."""
    edges, parts = 2_000_000, 4
    rng = np.random.default_rng(0)
    indptr = np.arange(0, edges + 1, 1000)
    nodes = len(indptr) - 1
    sources = rng.integers(0, nodes, edges, dtype=np.int32)
    graph = hp.fused_csc_sampling_graph(torch.from_numpy(indptr), torch.from_numpy(sources))
    cut(homogeneous().graph, tmp_path / "warm", parts, part_method="random")
    tracemalloc.start()
    cut(graph, tmp_path / "out", parts, part_method="random")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 32 * edges / parts
