import sys
import tracemalloc
import warnings

import numpy as np
import pytest
import torch

import hopline.pipes as hp
from hopline.partition import assign_nodes, estimate_memory
from hopline.partition.adjacency import undirected
from hopline.partition.quality import measure_quality
from tests.partition.graphs import homogeneous


def planted(groups=8, size=100, inside=900, between=60, seed=0):
    """Groups of nodes with most edges inside, ids shuffled."""
    rng = np.random.default_rng(seed)
    names = rng.permutation(groups * size)
    low = np.repeat(np.arange(groups) * size, inside)
    source = np.concatenate(
        [low + rng.integers(0, size, len(low)), rng.integers(0, groups * size, between)]
    )
    column = np.concatenate(
        [low + rng.integers(0, size, len(low)), rng.integers(0, groups * size, between)]
    )
    return hp.from_coo(
        torch.from_numpy(names[source]), torch.from_numpy(names[column]), num_nodes=groups * size
    )


def quietly(*arguments, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return assign_nodes(*arguments, **options)


def test_the_adjacency_has_both_directions_once():
    graph = homogeneous().graph
    adjacency = undirected(graph.csc_indptr, graph.indices)
    pairs = set()
    for v in range(graph.total_num_nodes):
        for u in graph.indices[graph.csc_indptr[v] : graph.csc_indptr[v + 1]].tolist():
            if u != v:
                pairs |= {(u, v), (v, u)}
    for v in range(graph.total_num_nodes):
        mine = adjacency.neighbors[adjacency.starts[v] : adjacency.starts[v + 1]].tolist()
        assert mine == sorted(u for u, w in pairs if w == v)


def test_quality_is_what_it_says():
    graph = homogeneous().graph
    parts = np.random.default_rng(0).integers(0, 5, graph.total_num_nodes).astype(np.int32)
    marked = np.arange(graph.total_num_nodes) % 3 == 0
    quality = measure_quality(
        graph.csc_indptr.numpy(),
        graph.indices.numpy(),
        parts,
        6,
        marked.astype(np.int32) - 1,
        ["marked"],
    )
    columns = np.repeat(np.arange(graph.total_num_nodes), np.diff(graph.csc_indptr.numpy()))
    sources = graph.indices.numpy()
    assert quality.nodes == [int((parts == p).sum()) for p in range(6)]
    assert quality.edges == [int((parts[columns] == p).sum()) for p in range(6)]
    assert quality.cut_edges == int((parts[columns] != parts[sources]).sum())
    assert quality.halo_nodes == [
        len({int(u) for u in sources[parts[columns] == p]} - set(np.flatnonzero(parts == p)))
        for p in range(6)
    ]
    assert quality.groups == {"marked": [int((parts[marked] == p).sum()) for p in range(6)]}
    assert quality.imbalance()["nodes"] == max(quality.nodes) * 6 / graph.total_num_nodes
    assert "largest over mean" in str(quality)


@pytest.mark.skipif(sys.platform == "win32", reason="pymetis has no build for Windows on PyPI")
@pytest.mark.parametrize("options", [{}, {"recursive": True}, {"objective": "vol"}])
def test_metis_finds_planted_groups(options):
    found = assign_nodes(planted(), 4, "metis", **options)
    assert found.quality.cut_fraction < 0.02
    assert found.quality.imbalance()["nodes"] < 1.1
    assert not torch.equal(found.parts, assign_nodes(planted(), 4, "random").parts)


def test_ldg_finds_planted_groups_in_several_passes():
    found = assign_nodes(planted(between=0), 8, "ldg")
    assert found.quality.cut_fraction < 0.25
    assert found.quality.imbalance()["nodes"] < 1.1
    assert assign_nodes(planted(), 8, "random").quality.cut_fraction > 0.8


def test_kaminpar_finds_planted_groups():
    pytest.importorskip("kaminpar", reason="an optional package")
    found = assign_nodes(planted(), 4, "kaminpar")
    assert found.quality.cut_fraction < 0.02
    assert found.quality.imbalance()["nodes"] < 1.1
    assert torch.equal(found.parts, assign_nodes(planted(), 4, "kaminpar").parts)


def test_without_its_package_a_method_names_it(monkeypatch):
    for name in ("pymetis", "kaminpar"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(RuntimeError, match="method='metis' needs pymetis"):
        assign_nodes(planted(), 2, "metis")
    with pytest.raises(RuntimeError, match=r"pip install 'hopline\[kaminpar\]'"):
        assign_nodes(planted(), 2, "kaminpar")


@pytest.mark.parametrize("method", ["metis", "ldg", "random"])
def test_what_is_balanced_is_within_its_limit(method):
    graph = planted()
    rng = np.random.default_rng(1)
    groups = torch.from_numpy((rng.random(graph.total_num_nodes) ** 3 * 4).astype(np.int64))
    # One planted group holds all nodes of the last kind.
    parts = assign_nodes(graph, 8, "metis").parts
    groups[parts == 3] = 9
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = assign_nodes(graph, 8, method, balance_ntypes=groups, balance_edges=True, eps=0.3)
    for name, counts in {
        "nodes": found.quality.nodes, "edges": found.quality.edges, **found.quality.groups
    }.items():  # fmt: skip
        assert max(counts) <= max(-(-sum(counts) // 8), 1.3 * sum(counts) / 8), name
    assert sorted(found.quality.groups) == [f"group {n}" for n in (0, 1, 2, 3, 9)]
    assert sum(found.quality.nodes) == graph.total_num_nodes


def test_damaged_graphs_are_refused_before_native_code():
    graph = homogeneous().graph
    graph.indices[3] = 1 << 20
    with pytest.raises(ValueError, match=r"indices\[3\] is 1048576"):
        quietly(graph, 2)
    graph = homogeneous().graph
    graph.csc_indptr[5] = 10_000
    with pytest.raises(ValueError, match="csc_indptr is damaged at node"):
        quietly(graph, 2)


def test_estimates_grow_with_the_graph_and_bind():
    graph = planted()
    sizes = [estimate_memory(graph, method) for method in ("random", "ldg", "kaminpar", "metis")]
    assert sizes == sorted(sizes)
    assert sizes[0] > 0
    with pytest.raises(MemoryError, match="method='ldg' takes less"):
        assign_nodes(graph, 2, "kaminpar", max_memory=sizes[2] - 1)
    with pytest.raises(MemoryError, match=r"above the .* kB of max_memory$"):
        assign_nodes(graph, 2, "ldg", max_memory=sizes[1] - 1)
    assert quietly(graph, 2, "ldg", max_memory=sizes[1]).num_parts == 2


@pytest.mark.parametrize("method", ["metis", "ldg", "random"])
@pytest.mark.parametrize("nodes", [0, 1, 2, 5])
@pytest.mark.parametrize("parts", [1, 2, 7])
def test_small_graphs(method, nodes, parts):
    ends = torch.arange(max(nodes - 1, 0))
    graph = hp.from_coo(ends, ends + 1, num_nodes=nodes)
    found = quietly(graph, parts, method)
    assert found.parts.shape == (nodes,)
    assert found.parts.dtype == torch.int32
    assert all(0 <= p < parts for p in found.parts.tolist())
    assert sum(found.quality.nodes) == nodes
    assert max(found.quality.nodes) <= max(1, -(-nodes // parts))


@pytest.mark.skipif(sys.platform == "win32", reason="pymetis has no build for Windows on PyPI")
@pytest.mark.parametrize("nodes", [2, 5])
def test_more_parts_than_nodes_is_nothing_for_metis(capfd, nodes):
    """It writes complaints about empty parts to the standard output, for each bisection."""
    ends = torch.arange(nodes - 1)
    graph = hp.from_coo(ends, ends + 1, num_nodes=nodes)
    for parts in (nodes, 100):
        found = quietly(graph, parts, "metis")
        assert sorted(found.quality.nodes) == [0] * (parts - nodes) + [1] * nodes
    assert capfd.readouterr() == ("", "")


def test_many_limits_that_cannot_be_kept_are_few_warnings():
    stars = torch.arange(20).repeat_interleave(30)
    graph = hp.from_coo(torch.arange(600), stars, num_nodes=600)
    with pytest.warns(UserWarning, match="limit") as told:
        assign_nodes(graph, 100, "random", balance_edges=True, eps=0)
    assert "limits could not be kept; these 5" in str(told[0].message)
    assert len(told) == 6


def test_bisection_knows_one_objective():
    with pytest.raises(ValueError, match="objective is 'vol' with recursive=True"):
        assign_nodes(planted(), 2, "metis", recursive=True, objective="vol")


def test_a_build_of_short_ids_is_refused(monkeypatch):
    pymetis = pytest.importorskip("pymetis", reason="has no build for Windows on PyPI")
    graph = hp.from_coo(torch.arange(100), (torch.arange(100) + 1) % 100, num_nodes=100)
    monkeypatch.setattr(pymetis, "zero_copy_dtype", lambda: np.int8)  # 200 entries are too many
    with pytest.raises(RuntimeError, match="8-bit ids, too few for an adjacency of 200 entries"):
        assign_nodes(graph, 2, "metis")


@pytest.mark.parametrize("method", ["metis", "kaminpar", "ldg", "random"])
def test_no_slack_at_all(method):
    pytest.importorskip({"metis": "pymetis"}.get(method, "kaminpar"), reason="not everywhere")
    found = quietly(homogeneous().graph, 7, method, eps=0)
    assert max(found.quality.nodes) == 18  # 120 / 7, rounded up


def test_stars_and_cliques_are_balanced():
    leaves = torch.arange(1, 300)
    star = hp.from_coo(leaves, torch.zeros_like(leaves), num_nodes=300)
    nodes = torch.arange(60)
    ends = torch.meshgrid(nodes, nodes, indexing="ij")
    clique = hp.from_coo(*(end.reshape(-1) for end in ends), num_nodes=60)
    for graph in (star, clique):
        for method in ("metis", "ldg", "random"):
            found = quietly(graph, 5, method)
            assert found.quality.imbalance()["nodes"] <= 1.1


def test_groups_are_counted_one_at_a_time():
    """64 groups cost no 64 marks a node: the estimate is 64 bytes, all of it."""
    nodes = 1 << 17
    graph = hp.from_coo(torch.arange(9), torch.arange(9), num_nodes=nodes)
    groups = torch.arange(nodes) % 64
    assign_nodes(graph, 2, "random", balance_ntypes=groups)
    tracemalloc.start()
    assign_nodes(graph, 2, "random", balance_ntypes=groups)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < estimate_memory(graph, "random")


def test_a_graph_on_a_device_is_refused():
    graph = homogeneous().graph
    graph.indices = graph.indices.to("meta")
    with pytest.raises(ValueError, match=r"graph is on meta; expected one on the CPU"):
        assign_nodes(graph, 2)
