import numpy as np
import pytest
import torch

import hopline.pipes as hp
from hopline.models import launch
from hopline.partition import (
    DistDataset,
    DistGraph,
    DistTensor,
    RankError,
)  # fmt: skip
from tests.partition.graphs import EDGES, NODES, heterogeneous, homogeneous
from tests.partition.test_write import cut

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.bool, torch.uint8, torch.int64]
FOLLOWS = "user:follows:user"


def names(ids):
    """Rows that name their ids in the whole graph."""
    return torch.stack((ids, ids * 2), 1)


@pytest.mark.parametrize("parts", [1, 3])
def test_one_process_reads_what_it_wrote(tmp_path, parts):
    nodes, edges = cut(heterogeneous(), tmp_path / "p", parts, return_mapping=True)
    with DistGraph(tmp_path / "p") as graph:
        for dtype in DTYPES:
            table = DistTensor(graph, "user", (2, 3), dtype)
            assert (table.count(), table.size(), table.dtype) == (90, torch.Size([2, 3]), dtype)
            assert torch.equal(table.read(), torch.zeros(90, 2, 3, dtype=dtype))
            values = (torch.arange(90 * 6).view(90, 2, 3) % 2).to(dtype)
            some = torch.tensor([89, 0, 17])
            table[some] = values[some]
            assert torch.equal(table[some], values[some])
            again = table[torch.tensor([1, 17, 17])]
            assert not again[0].any()  # not written
            assert torch.equal(again[1:], values[[17, 17]])
            table.update(values)
            assert torch.equal(table.read(), values)
            assert table[torch.empty(0, dtype=torch.int64)].shape == (0, 2, 3)
        # Rows follow ids in the whole graph, of nodes and of edges.
        table = DistTensor(graph, "item", 2, torch.int64, init=names)
        assert torch.equal(table.read()[:, 0], nodes["item"])
        table = DistTensor(graph, FOLLOWS, 2, torch.int64, domain="edge", init=names)
        assert torch.equal(table.read()[:, 0], edges[FOLLOWS])
        assert DistTensor(graph, "nobody").read().shape == (0,)


def test_first_rows_depend_on_no_parts(tmp_path):
    found = {}
    for parts in (1, 4):
        (nodes, edges) = cut(homogeneous(), tmp_path / f"p{parts}", parts, return_mapping=True)
        with DistGraph(tmp_path / f"p{parts}") as graph:
            for domain, ids in (("node", nodes), ("edge", edges)):
                table = DistTensor(
                    graph, None, (2, 2), torch.float64, domain=domain, init="normal", seed=5
                )
                rows = torch.empty(len(ids), 2, 2, dtype=torch.float64)
                rows[ids] = table.read()
                found.setdefault(domain, []).append(rows)
    for first, second in found.values():
        assert torch.equal(first, second)
        assert abs(float(first.mean())) < 0.2
    assert not torch.equal(found["node"][0], found["edge"][0][:120])


def test_it_is_a_feature_of_the_data_set(tmp_path):
    cut(homogeneous(), tmp_path / "p", 2)
    with DistDataset(tmp_path / "p") as dataset:
        table = DistTensor(dataset.graph, None, 3)
        dataset.feature["node", None, "hidden"] = table
        ids = torch.arange(120)
        table[ids] = ids[:, None].expand(120, 3)  # cast to float32
        chain = (
            hp.ItemSampler(dataset.tasks[0].train_set, batch_size=20)
            .sample_neighbor(dataset.graph, fanouts=[3, 3])
            .fetch_feature(dataset.feature, node_feature_keys=["hidden", "id"])
        )
        for minibatch in hp.DataLoader(chain):
            assert torch.equal(minibatch.node_features["hidden"][:, 0].long(),
                               minibatch.input_nodes.long())  # fmt: skip


def test_what_does_not_fit_is_refused(tmp_path):
    cut(heterogeneous(), tmp_path / "p", 2)
    with DistGraph(tmp_path / "p") as graph:
        for call, error, message in (
            (lambda: DistTensor("p", "user"), TypeError, "graph is 'p'; expected a DistGraph"),
            (lambda: DistTensor(graph, "users"), KeyError, "users"),
            (lambda: DistTensor(graph, FOLLOWS), KeyError, "follows"),
            (lambda: DistTensor(graph, "user", domain="edge"), KeyError, "user"),
            (lambda: DistTensor(graph, "user", domain="graph"), ValueError, "'node' or 'edge'"),
            (lambda: DistTensor(graph, "user", "4"), TypeError, "size is '4'; expected an int"),
            (lambda: DistTensor(graph, "user", 0), ValueError, "size is 0"),
            (lambda: DistTensor(graph, "user", (2,) * 9), TypeError, "up to 8"),
            (lambda: DistTensor(graph, "user", (1 << 20,) * 2), ValueError, "fewer than"),
            (lambda: DistTensor(graph, "user", 2, torch.complex64), TypeError, "complex64"),
            (lambda: DistTensor(graph, "user", 2, "float32"), TypeError, "dtype is 'float32'"),
            (lambda: DistTensor(graph, "user", 2, torch.int64, init="normal"), TypeError, "float"),
            (lambda: DistTensor(graph, "user", 2, init="ones"), ValueError, "init is 'ones'"),
            (lambda: DistTensor(graph, "user", 2, init=torch.zeros_like), ValueError, "of shape"),
            (lambda: DistTensor(graph, "user", 2, scale="1"), TypeError, "scale is '1'"),
        ):  # fmt: skip
            with pytest.raises(error, match=message):
                call()
        table = DistTensor(graph, "user", 2)
        ids = torch.arange(3)
        for call, error, message in (
            (lambda: table.update([1], ids), TypeError, "value is a list"),
            (lambda: table.update(torch.zeros(3), ids), ValueError, r"expected \(3, 2\)"),
            (lambda: table.update(torch.zeros(3, 2)), ValueError, r"expected \(90, 2\)"),
            (lambda: table.read(torch.tensor([90])), IndexError, "90"),
            (lambda: table.read(torch.tensor([-1])), IndexError, "-1"),
            (lambda: table[3], TypeError, "ids: got a int"),
            (lambda: table[torch.tensor([0.5])], TypeError, "expected integers"),
            (lambda: table.__setitem__(None, torch.zeros(90, 2)), TypeError, "ids: got a None"),
        ):  # fmt: skip
            with pytest.raises(error, match=message):
                call()
        assert not table.read().any()
        with pytest.raises(FileNotFoundError):
            table.load(tmp_path / "rows")
        table.save(tmp_path / "rows")
        with pytest.raises(ValueError, match="dtype is 'float32'; expected 'bfloat16'"):
            DistTensor(graph, "user", 2, torch.bfloat16).load(tmp_path / "rows")
        with pytest.raises(ValueError, match=r"size is \[2\]; expected \[1, 2\]"):
            DistTensor(graph, "user", (1, 2)).load(tmp_path / "rows")


def _write_on_ranks(rank, world_size, device, folder, rows, originals):
    users = torch.arange(NODES["user"])
    with DistGraph(folder, timeout=60) as graph:
        table = DistTensor(graph, "user", 2, torch.bfloat16, init=names)
        weights = DistTensor(graph, FOLLOWS, (), domain="edge")
        assert sorted(table.rows) == ([0, 1] if rank == 0 else [2, 3])
        assert torch.equal(table.read()[:, 0], originals.bfloat16())
        torch.distributed.barrier()  # before the other rank writes
        # Each rank writes the rows that are its by their ids, wherever they are.
        mine = users[rank::world_size]
        table[mine] = names(mine + 1).bfloat16()
        edges = torch.arange(EDGES[FOLLOWS])
        weights[edges[rank::world_size]] = edges[rank::world_size].float()
        torch.distributed.barrier()
        assert torch.equal(table.read(), names(users + 1).bfloat16())
        assert torch.equal(weights.read(), edges.float())
        table.save(rows / "table")
        weights.save(rows / "weights")
        table.update(torch.zeros(90, 2))
        torch.distributed.barrier()
        table.load(rows / "table")
        assert torch.equal(table.read(), names(users + 1).bfloat16())
        # An error on an owner comes back, and it goes on.
        if rank == 0:
            with pytest.raises(RankError, match="rows of part 0 are not here"):
                graph.exchange.ask(table.number, {1: [np.array([0]), np.array([0])]})
        assert torch.equal(table[users[:3]], names(users[:3] + 1).bfloat16())


def test_two_ranks_see_what_either_wrote_and_one_process_goes_on(tmp_path):
    originals = cut(heterogeneous(), tmp_path / "p", 4, return_mapping=True)[0]["user"]
    launch(_write_on_ranks, 2, tmp_path / "p", tmp_path / "rows", originals, timeout=60)
    with DistGraph(tmp_path / "p") as graph:
        table = DistTensor(graph, "user", 2, torch.bfloat16)
        table.load(tmp_path / "rows" / "table")
        assert torch.equal(table.read(), names(torch.arange(90) + 1).bfloat16())
        weights = DistTensor(graph, FOLLOWS, (), domain="edge")
        weights.load(tmp_path / "rows" / "weights")
        assert torch.equal(weights.read(), torch.arange(300.0))
