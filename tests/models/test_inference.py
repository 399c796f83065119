"""layer_wise_inference against dense matrices, whatever the batch size, memory bound or place."""

from __future__ import annotations

import gc
import os
import tempfile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hopline.pipes as hp
from hopline.models import GAT, GCN, SAGE, inference_plan, layer_wise_inference, row_sinks

NODES = 60
WIDTH = 6


def random_graph(num_nodes, num_edges, seed=0, attributes=None):
    """Directed, with parallel edges, self-loops and isolated nodes; one node has many in-edges."""
    draw = np.random.default_rng(seed)
    ends = draw.integers(0, max(num_nodes, 1), (2, num_edges))
    ends[1, : num_edges // 4] = num_nodes // 2
    order = np.argsort(ends[1], kind="stable")
    indptr = np.concatenate([[0], np.cumsum(np.bincount(ends[1], minlength=num_nodes))])
    return hp.fused_csc_sampling_graph(
        torch.from_numpy(indptr), torch.from_numpy(ends[0][order]), edge_attributes=attributes
    )


def adjacency(graph):
    """float64[num_nodes, num_nodes], how many edges lead to the row's node from the column's."""
    destinations = torch.repeat_interleave(
        torch.arange(graph.total_num_nodes), torch.diff(graph.csc_indptr)
    )
    dense = torch.zeros(graph.total_num_nodes, graph.total_num_nodes, dtype=torch.float64)
    ones = torch.ones(len(destinations), dtype=torch.float64)
    return dense.index_put_((destinations, graph.indices.long()), ones, accumulate=True)


def dense_sage(model, graph, x):
    matrix = adjacency(graph)
    matrix = matrix / matrix.sum(1, keepdim=True).clamp(min=1)
    for i, layer in enumerate(model.layers):
        x = x @ layer.fc_self.weight.T + layer.fc_self.bias + matrix @ x @ layer.fc_neigh.weight.T
        x = torch.relu(x) if i < len(model.layers) - 1 else x
    return x


def make_sage(num_layers=3, dtype=torch.float64, in_size=WIDTH):
    torch.manual_seed(num_layers)
    return SAGE(in_size, 10, 4, num_layers).to(dtype)


def make_x(nodes=NODES, dtype=torch.float64):
    return torch.randn(nodes, WIDTH, dtype=dtype, generator=torch.Generator().manual_seed(3))


@pytest.fixture
def scratch(monkeypatch):
    """Bytes of each scratch file that was opened."""
    opened = []

    class Counted(row_sinks.ScratchRows):
        def __init__(self, shape, dtype, folder):
            super().__init__(shape, dtype, folder)
            opened.append(shape[0] * shape[1] * dtype.itemsize)

    monkeypatch.setattr(inference_plan, "ScratchRows", Counted)
    return opened


# -------------------------------------------------------------------------------------------------
# What comes out


@pytest.mark.parametrize("num_layers", [1, 2, 3])
@pytest.mark.parametrize("batch_size", [1, 7, NODES, 1000])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_equals_the_dense_computation(num_layers, batch_size, num_workers):
    graph, model, x = random_graph(NODES, 300), make_sage(num_layers), make_x()
    got = layer_wise_inference(model, graph, x, batch_size=batch_size, num_workers=num_workers)
    assert not got.requires_grad
    torch.testing.assert_close(got, dense_sage(model, graph, x), rtol=1e-10, atol=1e-10)


@given(
    nodes=st.integers(0, 12),
    edges=st.integers(0, 40),
    seed=st.integers(0, 99),
    batch_size=st.integers(1, 13),
    memory=st.none() | st.integers(9_000, 50_000),
)
def test_any_graph_and_any_bound(nodes, edges, seed, batch_size, memory):
    graph = random_graph(nodes, edges if nodes else 0, seed)
    model, x = make_sage(2), make_x(nodes)
    got = layer_wise_inference(model, graph, x, batch_size=batch_size, max_memory=memory)
    torch.testing.assert_close(got, dense_sage(model, graph, x), rtol=1e-10, atol=1e-10)


def test_equals_sampling_all_neighbours_of_every_node():
    graph, model, x = random_graph(NODES, 300), make_sage(2).eval(), make_x()
    chain = hp.ItemSampler(hp.ItemSet(NODES, names="seeds"), 16)
    chain = chain.sample_neighbor(graph, [-1, -1])
    with torch.no_grad():
        rows = [model(b.blocks, x[b.input_nodes.long()]) for b in chain]
    torch.testing.assert_close(layer_wise_inference(model, graph, x), torch.cat(rows))


def test_places_and_workers_give_the_same_bits(tmp_path, scratch, monkeypatch):
    graph, x = random_graph(NODES, 300), make_x(dtype=torch.float32)
    model = make_sage(3, torch.float32)

    def run(**options):
        return layer_wise_inference(model, graph, x, batch_size=8, **options)

    want = run()
    assert scratch == []
    feature = hp.TorchBasedFeature(x)
    assert torch.equal(layer_wise_inference(model, graph, feature, batch_size=8), want)
    for workers in (0, 1, 3):
        assert torch.equal(run(num_workers=workers), want)
    given_out = torch.empty(NODES, 4)
    assert run(out=given_out) is given_out
    assert torch.equal(given_out, want)
    strided = torch.empty(4, NODES).T
    assert torch.equal(run(out=strided), want)
    assert torch.equal(run(out=str(tmp_path / "out.npy")), want)
    assert np.array_equal(np.load(tmp_path / "out.npy"), want.numpy())
    # A hidden layer takes 2400 bytes; with room for 2399, both go to files.
    bounds = [*range(0, NODES, 8), NODES]
    monkeypatch.setattr(inference_plan.Ranges, "plan", lambda *_: bounds)
    for workers in (0, 1):
        assert torch.equal(run(max_memory=2 * 2399, num_workers=workers), want)
    assert scratch == [2400] * 4


def test_a_user_s_own_layers_get_original_ids():
    """Degrees of the whole graph and edge ids, which a range by itself does not tell."""
    edge_numbers = torch.randperm(300, generator=torch.Generator().manual_seed(1))
    graph = random_graph(NODES, 300, attributes={"_ORIGINAL_EDGE_ID": edge_numbers})
    torch.manual_seed(0)
    model = GCN(WIDTH, 8, 3).double()
    x, dense = make_x(), adjacency(graph)
    out_degrees, in_degrees = dense.sum(0).long(), dense.sum(1).long()
    seen = []

    def apply_layer(i, block, x, nodes):
        assert not model.training
        assert torch.equal(block.in_degrees()[: block.num_dst], in_degrees[nodes[: block.num_dst]])
        if i == 1 and x.any():
            seen.append(block.original_edge_ids)
        h = model.layers[i](block, x, degrees=(out_degrees[nodes], block.in_degrees()))
        return torch.relu(h) if i == 0 else h

    got = layer_wise_inference(model, graph, x, batch_size=7, apply_layer=apply_layer)
    assert torch.equal(torch.cat(seen), edge_numbers)
    torch.testing.assert_close(got, dense_gcn(model, dense, x))


def dense_gcn(model, matrix, x):
    matrix = matrix + torch.eye(NODES)
    matrix = matrix / (matrix.sum(1, keepdim=True) * matrix.sum(0)).sqrt()
    for i, layer in enumerate(model.layers):
        x = matrix @ x @ layer.weight.T + layer.bias
        x = torch.relu(x) if i < len(model.layers) - 1 else x
    return x


@pytest.mark.parametrize("batch_size", [7, NODES])
def test_gcn_takes_degrees_of_the_whole_graph(batch_size):
    """In a range, out-degrees would be those within it."""
    graph, x = random_graph(NODES, 300), make_x()
    model = GCN(WIDTH, 8, 3, num_layers=3).double()
    got = layer_wise_inference(model, graph, x, batch_size=batch_size)
    torch.testing.assert_close(got, dense_gcn(model, adjacency(graph), x))


def test_a_model_that_uses_degrees_gets_those_of_the_whole_graph():
    graph, x = random_graph(NODES, 300), make_x()
    dense = adjacency(graph)

    class Share(torch.nn.Module):
        """Each node hands out its row in equal shares."""

        uses_degrees = True

        def __init__(self):
            super().__init__()
            self.layers = [None, None]

        def apply_layer(self, i, block, x, degrees):
            out_degrees, in_degrees = degrees
            assert torch.equal(in_degrees, block.in_degrees())
            shares = x / out_degrees.clamp(min=1).unsqueeze(1)
            destinations = torch.repeat_interleave(torch.arange(block.num_dst), in_degrees)
            zeros = torch.zeros(block.num_dst, x.shape[1], dtype=x.dtype)
            return zeros.index_add(0, destinations, shares[block.indices.long()])

    matrix = dense / dense.sum(0).clamp(min=1)
    got = layer_wise_inference(Share(), graph, x, batch_size=7, num_workers=1)
    torch.testing.assert_close(got, matrix @ (matrix @ x))


def test_attention_does_not_depend_on_the_ranges():
    graph, x = random_graph(NODES, 300), make_x()
    torch.manual_seed(0)
    model = GAT(WIDTH, 4, 3).double().eval()
    chain = hp.ItemSampler(hp.ItemSet(NODES, names="seeds"), NODES)
    (whole,) = chain.sample_neighbor(graph, [-1, -1])
    want = model(whole.blocks, x[whole.input_nodes.long()])

    for memory in (None, 60_000):
        got = layer_wise_inference(model, graph, x, batch_size=9, max_memory=memory, edge_bytes=80)
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float64])
def test_stored_features_are_converted_to_the_weights_dtype(stored, tmp_path, scratch):
    graph, model = random_graph(NODES, 300), make_sage(2, torch.float32)
    x = make_x().to(stored)
    got = layer_wise_inference(model, graph, x)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, layer_wise_inference(model, graph, x.float()))
    half = layer_wise_inference(model, graph, x, out=torch.empty(NODES, 4, dtype=torch.float16))
    torch.testing.assert_close(half.float(), got, rtol=1e-2, atol=1e-2)


def test_bfloat16_in_scratch_files_and_npy(tmp_path, scratch):
    graph, model = random_graph(NODES, 100), make_sage(2, torch.bfloat16)
    want = layer_wise_inference(model, graph, make_x(), batch_size=8)
    got = layer_wise_inference(
        model, graph, make_x(), batch_size=8, max_memory=2**62, out=tmp_path / "a.npy"
    )
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, want)
    sink = row_sinks.ScratchRows((3, 2), torch.bfloat16, tmp_path)
    rows = torch.randn(3, 2).bfloat16()
    sink.append(rows[:1])
    sink.append(rows[1:])
    assert torch.equal(sink.finish(), rows)
    sink.close()


# -------------------------------------------------------------------------------------------------
# The memory bound


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("memory", [40_000, 200_000, 400_000])
def test_ranges_and_rows_stay_within_the_bound(memory, num_workers, monkeypatch, scratch):
    """Counted: rows in memory between layers, and what is read for a range and made of it."""
    nodes = 1000
    graph = hp.fused_csc_sampling_graph(
        torch.arange(0, 3 * nodes + 1, 3), random_graph(nodes, 3 * nodes).indices
    )
    model, x, out = make_sage(3), make_x(nodes), torch.empty(nodes, 4, dtype=torch.float64)
    ranges = []

    class Watched(hp.TorchBasedFeature):
        def read(self, ids=None):
            rows = super().read(ids)
            ranges.append(rows.numel() * rows.element_size() + ids.numel() * ids.element_size())
            return rows

    monkeypatch.setattr("hopline.models.inference.TorchBasedFeature", Watched)
    got = layer_wise_inference(model, graph, x, max_memory=memory, num_workers=num_workers, out=out)
    torch.testing.assert_close(got, dense_sage(model, graph, x))
    share = memory // 2 // (1 + 2 * num_workers)
    assert max(ranges) <= share
    assert max(ranges) >= min(share / 8, 80 * nodes)  # no shorter than that takes
    hidden = nodes * 10 * 8
    in_files = 2 if memory < 2 * hidden else 1 if memory < 4 * hidden else 0
    assert scratch == [hidden] * in_files


def test_a_node_that_does_not_fit_is_named_before_anything_is_computed(tmp_path):
    graph, model = random_graph(NODES, 300), make_sage(2)
    calls = []

    def apply_layer(i, block, x, nodes):
        calls.append(block.num_dst)
        return model.apply_layer(i, block, x)

    def run(memory):
        return layer_wise_inference(
            model, graph, make_x(), max_memory=memory, apply_layer=apply_layer, num_workers=1,
            out=tmp_path / "out.npy",
        )  # fmt: skip

    with pytest.raises(
        ValueError, match=r"node 30 with its in-edges takes .* num_workers=0"
    ) as told:
        run(20_000)
    assert calls == [1, 1]  # with zeros, for shapes
    assert not list(tmp_path.iterdir())
    wanted = int(str(told.value).split("expected max_memory of ")[1].split(" ")[0])
    with pytest.raises(ValueError, match="node 30"):
        run(wanted - 6)
    assert run(wanted) is not None


def test_a_result_that_does_not_fit():
    graph, model = random_graph(NODES, 0), make_sage(1)
    with pytest.raises(ValueError, match=r"result takes 1920 bytes.*pass out="):
        layer_wise_inference(model, graph, make_x(), max_memory=3000)
    out = torch.empty(NODES, 4, dtype=torch.float64)
    assert layer_wise_inference(model, graph, make_x(), max_memory=3000, out=out) is out


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_a_result_takes_the_place_of_arrays_only(tmp_path):
    graph, model = random_graph(NODES, 0), make_sage(1)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "notes.txt").write_text("not an array")
    for name in ("pipe", "folder", "notes.txt"):
        with pytest.raises(ValueError, match=f"{name}', which is something else than an .npy"):
            layer_wise_inference(model, graph, make_x(), out=tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "notes.txt", "pipe"]
    assert (tmp_path / "notes.txt").read_text() == "not an array"


# -------------------------------------------------------------------------------------------------
# What is left behind


def open_files(folder):
    """Files that this process has open there, also those without a name."""
    found = []
    for entry in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{entry}")
        except OSError:
            continue
        if target.startswith(str(folder)):
            found.append(target)
    with open("/proc/self/maps") as maps:
        found += [line for line in maps if str(folder) in line]
    return found


class Stops(SAGE):
    """Fails, or is interrupted, in its last layer."""

    error: type[BaseException] | None = None

    def apply_layer(self, i, block, x):
        if i == 2 and self.error is not None and block.num_dst > 1:
            assert open_files(self.folder), "the test looks for scratch files in the wrong place"
            raise self.error("stop")
        return super().apply_layer(i, block, x)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="reads Linux's list of open files")
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("error", [None, KeyError, KeyboardInterrupt])
def test_scratch_files_are_gone_however_it_ends(error, num_workers, tmp_path, scratch):
    nodes = 400
    graph = hp.fused_csc_sampling_graph(
        torch.arange(0, 3 * nodes + 1, 3), torch.arange(3 * nodes) % nodes
    )
    model = Stops(WIDTH, 10, 4, 3)
    model.error, model.folder = error, tmp_path / "scratch"
    model.folder.mkdir()
    model.layers[1].eval()
    modes = [part.training for part in model.modules()]
    out = tmp_path / "out.npy"
    np.save(out, np.arange(3))
    before = out.read_bytes()

    def run():
        return layer_wise_inference(
            model, graph, make_x(nodes, torch.float32), max_memory=16_000, num_workers=num_workers,
            out=out, scratch_dir=model.folder,
        )  # fmt: skip

    if error is None:
        assert run().shape == (nodes, 4)
        assert np.load(out).shape == (nodes, 4)
    else:
        with pytest.raises(error):
            run()
        assert out.read_bytes() == before
    assert scratch == [16_000, 16_000]
    gc.collect()
    assert open_files(tmp_path / "scratch") == []
    assert list((tmp_path / "scratch").iterdir()) == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.npy", "scratch"]
    assert [part.training for part in model.modules()] == modes
    assert torch.is_grad_enabled()


def test_a_full_disk_is_an_error(monkeypatch, tmp_path, scratch):
    class Full:
        def __init__(self, file):
            self.file = file

        def write(self, data):
            raise OSError(28, "No space left on device")

        def __getattr__(self, name):
            return getattr(self.file, name)

    plain = tempfile.TemporaryFile
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **options: Full(plain(**options)))
    graph, model = random_graph(NODES, 0), make_sage(2)
    with pytest.raises(OSError, match="No space left"):
        layer_wise_inference(model, graph, make_x(), max_memory=4000, scratch_dir=tmp_path)
    assert scratch == [4800]
    assert list(tmp_path.iterdir()) == []


# -------------------------------------------------------------------------------------------------
# Unfit arguments


class Plain(torch.nn.Module):
    layers = (1,)


def typed_graph():
    return hp.fused_csc_sampling_graph(
        torch.tensor([0, 0, 1]), torch.tensor([0]), torch.tensor([0, 1, 2]), torch.tensor([0]),
        {"a": 0, "b": 1}, {"a:to:b": 0},
    )  # fmt: skip


def call(model=None, graph=None, x=None, **options):
    model = make_sage(1) if model is None else model
    graph = random_graph(NODES, 9) if graph is None else graph
    return layer_wise_inference(model, graph, make_x() if x is None else x, **options)


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"batch_size": 0}, ValueError, "batch_size is 0"),
        ({"batch_size": 1.5}, TypeError, "batch_size is 1.5"),
        ({"max_memory": 0}, ValueError, "max_memory is 0"),
        ({"num_workers": -1}, ValueError, "num_workers is -1"),
        ({"graph": typed_graph()}, ValueError, "takes a homogeneous graph"),
        ({"x": torch.ones(NODES)}, ValueError, r"x has shape \[60\]"),
        ({"x": torch.ones(5, WIDTH)}, ValueError, "x has 5 rows.*60 nodes"),
        ({"x": hp.TorchBasedFeature(torch.ones(NODES, 2, 3))}, ValueError, r"shape \[2, 3\]"),
        ({"x": [1]}, TypeError, "x is a list"),
        ({"x": torch.ones(NODES, 5)}, ValueError, r"x has shape \(1, 5\)"),
        ({"model": Plain()}, TypeError, r"no method apply_layer\(i, block, x\)"),
        ({"model": torch.nn.Linear(2, 2)}, TypeError, "Linear has no method apply_layer"),
        ({"out": torch.empty(NODES, 5)}, ValueError, r"float32\[60, 5\]; expected.*\[60, 4\]"),
        ({"out": torch.empty(NODES, 4).long()}, ValueError, "int64"),
        ({"out": 3}, TypeError, "out is a int"),
        ({"apply_layer": lambda i, block, x, nodes: x[:, 0]}, ValueError, r"layer 0 gave .*\[1\]"),
        ({"apply_layer": lambda *_: torch.ones(1, 4), "batch_size": 7}, ValueError, "1 rows for 7"),
    ],
)
def test_unfit_arguments(options, kind, words):
    with pytest.raises(kind, match=words):
        call(**options)


def test_out_over_x_is_refused():
    x = torch.ones(NODES, 4)
    with pytest.raises(ValueError, match="share memory"):
        call(make_sage(1, torch.float32, 4), x=x, out=x)


def test_a_damaged_graph_is_refused():
    graph = random_graph(NODES, 9)
    graph.indices[4] = NODES
    with pytest.raises(ValueError, match=r"indices\[4\] is 60; .*damaged"):
        call(graph=graph)
    model = make_sage(1)
    model.uses_degrees = True
    with pytest.raises(ValueError, match=r"indices\[4\] is 60; .*damaged"):
        call(model, graph)
    graph = random_graph(NODES, 9)
    graph.csc_indptr[3] = -5
    with pytest.raises(ValueError, match="csc_indptr is damaged between nodes"):
        call(graph=graph)
