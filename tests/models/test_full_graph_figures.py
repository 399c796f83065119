"""Figures of whole-graph training: accuracy on cora, bytes on the wire, what a rank has to keep."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import hopline.pipes as hp
from hopline.models import DistSpmm, HaloPlan, launch
from hopline.models.dist_modes import rows_sent
from hopline.partition import DistDataset, DistGraph, partition_graph
from tests.partition.namespaces import Network, NotAllowed

ROOT = Path(__file__).parents[2]
SEEDS = range(5)
CORA = ["--normalize-features", "--hidden", "16", "--epochs", "200"]
WIDTH, PRODUCTS = 256, 8


# -------------------------------------------------------------------------------------------------
# cora


@pytest.fixture(scope="module")
def cora(test_data, tmp_path_factory):
    """Folder with cora's parts for 1, 2 and 4 ranks."""
    folder = tmp_path_factory.mktemp("cora")
    shutil.copytree(test_data / "cora", folder / "cora")  # opening it writes beside it
    data = hp.OnDiskDataset(folder / "cora").load()
    for ranks in (1, 2, 4):
        partition_graph(data, "cora", ranks, folder / f"parts-{ranks}")
    return folder


@functools.cache
def example():
    """The script, as a module."""
    place = ROOT / "examples" / "full_graph" / "gcn.py"
    spec = importlib.util.spec_from_file_location("full_graph_example", place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def train_cora(rank, world_size, device, folder, seeds):
    """Writes accuracies of all seeds, and what is predicted for nodes, by ids before the cut."""
    torch.set_num_threads(1)
    parts = str(folder / f"parts-{world_size}")
    accuracies, predictions = [], []
    with DistDataset(parts) as dataset:
        for seed in seeds:
            args = example().parser().parse_args([*CORA, "--parts", parts, "--seed", str(seed)])
            share, accuracy = example().train(rank, dataset, args)
            accuracies.append(accuracy)
            with torch.no_grad():
                own = share.model(share.x).argmax(1)
            found = torch.zeros(share.plan.num_nodes, dtype=torch.int64)
            found[share.plan.original_nodes] = own
            if world_size > 1:
                dist.all_reduce(found)
            predictions.append(found)
    if rank == 0:
        torch.save((accuracies, torch.stack(predictions)), folder / f"told-{world_size}.pt")


def told(folder, ranks):
    return torch.load(folder / f"told-{ranks}.pt", weights_only=True)


@pytest.mark.timeout(300)
def test_cora(cora):
    launch(train_cora, 2, cora, [*SEEDS], timeout=60)
    accuracies, predictions = told(cora, 2)
    assert sum(accuracies) / len(SEEDS) >= 0.805, accuracies
    assert predictions.shape == (len(SEEDS), 2708)
    train_cora(0, 1, "cpu", cora, [0])
    alone = told(cora, 1)
    assert torch.equal(alone[1], predictions[:1])
    assert alone[0] == pytest.approx(accuracies[:1])
    launch(train_cora, 4, cora, [0], timeout=60)
    assert torch.equal(told(cora, 4)[1][0], predictions[0])


# -------------------------------------------------------------------------------------------------
# Bytes, and what is kept


@pytest.fixture(scope="module")
def debian(tmp_path_factory):
    """Folder with debian's parts, cut by METIS, for 1, 2 and 4 ranks."""
    folder = tmp_path_factory.mktemp("debian")
    data = hp.BuiltinDataset("debian").load()
    for ranks in (1, 2, 4):
        partition_graph(data, "debian", ranks, folder / f"parts-{ranks}")
    return folder


def measure(rank, world_size, device, folder):
    """Writes the bytes that all ranks send for one product, and the most that a rank keeps."""
    torch.set_num_threads(1)
    with DistGraph(folder / f"parts-{world_size}", timeout=60) as graph:
        plan = HaloPlan(graph)
        rows, sent = rows_sent(plan), {}
        for mode in ("halo", "broadcast") if world_size > 1 else ():
            spmm = DistSpmm(plan, "both", mode=mode)
            spmm(torch.ones(len(plan.own), WIDTH))
            total = torch.tensor([spmm.bytes_sent])
            dist.all_reduce(total)
            sent[mode] = total.item()
        own, halo = len(plan.own), len(plan.halo)
        kept = [own, plan.block.num_edges(), own + halo]
        kept.append(sum(t.numel() * t.element_size() for t in tensors_of(plan)))
        most = torch.tensor(kept)
        if world_size > 1:
            dist.all_reduce(most, op=dist.ReduceOp.MAX)
        if rank == 0:
            told = {"rows": rows, "sent": sent, "most": most.tolist()}
            (folder / f"measured-{world_size}.json").write_text(json.dumps(told))
    if world_size > 1:
        resumed_at_different_epochs(rank, world_size)


def resumed_at_different_epochs(rank, world_size):
    """As from a folder that is another one on each machine."""
    with pytest.raises(ValueError, match=f"at epoch {rank}, others are at 0 to {world_size - 1}"):
        example().check_epoch(rank, "run")


def tensors_of(plan):
    found = [value for value in vars(plan).values() if isinstance(value, torch.Tensor)]
    blocks = [value for value in vars(plan).values() if isinstance(value, hp.Block)]
    return found + [tensor for block in blocks for tensor in (block.indptr, block.indices)]


@pytest.mark.timeout(300)
def test_what_is_sent_and_kept(debian):
    measure(0, 1, "cpu", debian)
    for ranks in (2, 4):
        launch(measure, ranks, debian, timeout=60)
    one, two, four = [json.loads((debian / f"measured-{n}.json").read_text()) for n in (1, 2, 4)]
    row = WIDTH * 4
    for told, ranks in ((two, 2), (four, 4)):
        # A row for each halo node.
        assert 0 < told["sent"]["halo"] == told["rows"]["halo"] * row
        assert told["sent"]["broadcast"] == one["most"][0] * (ranks - 1) * row
    assert four["sent"]["halo"] * 3 <= four["sent"]["broadcast"]
    # Nodes, in-edges, rows of a product's input, and the plan's bytes, of the rank with most.
    for whole, half, quarter in zip(one["most"], two["most"], four["most"], strict=True):
        assert whole > half > quarter
        assert half < 0.7 * whole
        assert quarter < 0.55 * whole


# -------------------------------------------------------------------------------------------------
# On the wire


def bytes_on_the_wire():
    """That this machine has sent to itself so far, with all headers."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == "lo":
            return int(counts.split()[0])
    raise LookupError("lo")


def send(rank, world_size, device, folder):
    """Writes bytes on the wire for a number of products, and for twice as many, and the plan's."""
    torch.set_num_threads(1)
    with DistGraph(folder / "parts-2", timeout=60) as graph:
        plan = HaloPlan(graph)
        planned = rows_sent(plan)["halo"] * WIDTH * 4
        spmm = DistSpmm(plan, "both")
        x = torch.ones(len(plan.own), WIDTH, requires_grad=True)
        found = []
        for count in (1, PRODUCTS, 2 * PRODUCTS):  # the first one connects
            dist.barrier()
            before = bytes_on_the_wire()
            dist.barrier()
            for _ in range(count):
                spmm(x).sum().backward()
            dist.barrier()
            found.append(bytes_on_the_wire() - before)
            dist.barrier()
        if rank == 0:
            told = {"planned": planned, "found": found}
            (folder / "wire.json").write_text(json.dumps(told))


@pytest.mark.timeout(120)
def test_bytes_on_the_wire(debian, tmp_path):
    """Forward and backward, two ranks on a machine of their own, where nothing else is sent."""
    try:
        network = Network(1)
    except NotAllowed as why:
        pytest.skip(f"a network of its own: {why}")
    with network:
        command = [sys.executable, "-m", "tests.models.test_full_graph_figures", str(debian)]
        process = network.start(0, command, os.environ, tmp_path / "log")
        assert process.wait(100) == 0, (tmp_path / "log").read_text()
    told = json.loads((debian / "wire.json").read_text())
    _, some, more = told["found"]
    assert (more - some) / PRODUCTS == pytest.approx(2 * told["planned"], rel=0.05)


if __name__ == "__main__":
    launch(send, 2, Path(sys.argv[1]), timeout=60)
