"""Training over four machines: links that are cut, put back or slow, ranks that die or stop."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import sys
import time
import warnings

import pytest
import torch

import hopline.pipes as hp
from hopline.models.rng import keyed_rng
from hopline.partition import DistDataset, partition_graph
from tests.partition.host_ranks import RANKS, digest, make_loader, make_model
from tests.partition.namespaces import Network, NotAllowed

pytestmark = pytest.mark.timeout(400)
MACHINES, BAD = RANKS, 2
TIMEOUT = 6  # seconds that ranks wait for each other, where one is to be missed
LIMIT = 150  # seconds for ranks to end by themselves; what torch alone would wait for is 30 minutes
PORT = "29500"
ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("TORCHELASTIC", "TORCH_", "GLOO_", "SLURM_", "PET_"))
} | {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With the data set, and its four parts."""
    folder = tmp_path_factory.mktemp("hosts")
    hp.planted_partition(400, 4, 8, 16, seed=1, path=folder / "data")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # small parts cannot always be balanced
        dataset = hp.OnDiskDataset(folder / "data").load()
        partition_graph(dataset, "planted", MACHINES, folder / "parts", part_method="metis")
    with DistDataset(folder / "parts") as parts, make_loader(parts, 0, 1) as loader:
        next(iter(loader))  # ranks find kernels compiled, and wait for each other the shorter
    return folder


@pytest.fixture(scope="module")
def expected(folder):
    return trained_alone(hp.OnDiskDataset(folder / "data").load(), epochs=2)


def trained_alone(dataset, epochs):
    """What one process trains with the mini-batches of all ranks, over the whole graph."""
    model, optimizer = make_model()
    model.train()
    loaders = [make_loader(dataset, rank, MACHINES) for rank in range(MACHINES)]
    losses, seen = [], [[] for _ in loaders]
    for _ in range(epochs):
        loss_sum, items = 0.0, 0
        for minibatches in itertools.zip_longest(*loaders):
            present = [minibatch for minibatch in minibatches if minibatch is not None]
            optimizer.zero_grad()
            for rank, minibatch in enumerate(minibatches):
                if minibatch is None:
                    continue
                seen[rank].append(digest(minibatch))
                with keyed_rng(minibatch.key, torch.device("cpu")):
                    output = model(minibatch.blocks, minibatch.node_features["feat"])
                loss = torch.nn.functional.cross_entropy(output, minibatch.labels)
                (loss / len(present)).backward()
                loss_sum += loss.item() * len(minibatch.labels)
                items += len(minibatch.labels)
            optimizer.step()
        losses.append(loss_sum / items)
    for loader in loaders:
        loader.close()
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    return {"losses": losses, "seen": seen, "weights": weights}


def join_machines(delays=None):
    try:
        return Network(MACHINES, delays)
    except NotAllowed as why:
        pytest.skip(f"machines of network namespaces: {why}")


@pytest.fixture
def network():
    with join_machines() as network:
        yield network


class Run:
    """Ranks of `host_ranks`, one a machine; each tells in a file what has become of it."""

    def __init__(self, network, parts, folder, *options, each=lambda rank: [sys.executable]):
        self.folder, self.network = folder, network
        (folder / "parts").symlink_to(parts / "parts")
        script = ["-m", "tests.partition.host_ranks", str(folder), *map(str, options)]
        self.processes = [
            network.start(
                rank,
                [*each(rank), *script],
                ENVIRONMENT | self.place(rank),
                folder / f"{rank}.log",
            )
            for rank in range(MACHINES)
        ]

    def place(self, rank):
        """What torchrun tells a rank."""
        return {
            "MASTER_ADDR": self.network.address(0), "MASTER_PORT": PORT, "RANK": str(rank),
            "WORLD_SIZE": str(MACHINES), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
        }  # fmt: skip

    def wait_for(self, pattern):
        """Waits until all ranks have made such a file."""
        deadline = time.monotonic() + LIMIT
        while len(list(self.folder.glob(pattern))) < MACHINES:
            failed = [r for r, process in enumerate(self.processes) if process.poll() is not None]
            assert not failed, self.log(failed[0])
            assert time.monotonic() < deadline, f"no {pattern} of all ranks"
            time.sleep(0.02)

    def wait(self, ranks=range(MACHINES)):
        """Waits for the ranks to end by themselves; their exit codes."""
        deadline = time.monotonic() + LIMIT
        ranks = list(ranks)
        while left := [rank for rank in ranks if self.processes[rank].poll() is None]:
            assert time.monotonic() < deadline, f"ranks {left} still run; {self.log(left[0])}"
            time.sleep(0.02)
        return [self.processes[rank].returncode for rank in ranks]

    def told(self, rank):
        place = self.folder / f"{rank}.json"
        assert place.exists(), self.log(rank)
        return json.loads(place.read_text())

    def log(self, rank):
        return f"rank {rank}: {(self.folder / f'{rank}.log').read_text()[-5000:]}"

    def check_error(self, rank, *named):
        """The rank has ended with an error of such ranks, as a user sees it."""
        assert self.processes[rank].returncode == 1, self.log(rank)
        told = self.told(rank)
        assert told["kind"] == "RankError", told
        assert told["ranks"] == list(named), told
        assert told["error"] in (self.folder / f"{rank}.log").read_text()
        for other in named:
            assert re.search(rf"\brank {other}\b", told["error"]), told

    def check_trained(self, expected, epochs=2):
        """All ranks have trained what one process does."""
        assert self.wait() == [0] * MACHINES, "".join(self.log(rank) for rank in range(MACHINES))
        for rank in range(MACHINES):
            told = self.told(rank)
            assert told["losses"] == pytest.approx(expected["losses"][:epochs], abs=1e-5)
            count = len(told["seen"])
            assert count * 2 == len(expected["seen"][rank]) * epochs
            assert told["seen"] == expected["seen"][rank][:count]
        if epochs == 2:
            torch.testing.assert_close(self.weights(), expected["weights"], rtol=0, atol=1e-5)

    def weights(self):
        """Of all ranks, which are the same."""
        first, *others = (torch.tensor(self.told(rank)["weights"]) for rank in range(MACHINES))
        for other in others:
            assert torch.equal(first, other)
        return first


ENDLESS = ("--timeout", TIMEOUT, "--epochs", 10**6, "--pause", 0.02)


def test_undisturbed(network, folder, tmp_path, expected):
    assert expected["losses"][1] < expected["losses"][0]
    Run(network, folder, tmp_path).check_trained(expected)


@pytest.mark.parametrize("bad", [BAD, 0])
def test_a_link_is_cut(network, folder, tmp_path, bad):
    run = Run(network, folder, tmp_path, *ENDLESS)
    run.wait_for("*.training")
    network.cut(bad)
    run.wait()
    for rank in range(MACHINES):
        if rank != bad:
            run.check_error(rank, bad)
    # Cut off, a rank cannot know more than that it hears nothing.
    run.check_error(bad, *((0,) if bad else (1, 2, 3)))


def test_a_link_is_cut_before_the_parts_are_opened(network, folder, tmp_path):
    run = Run(network, folder, tmp_path, *ENDLESS, "--hold")
    run.wait_for("*.joined")
    network.cut(BAD)
    (tmp_path / "go").touch()
    run.wait()
    for rank in range(MACHINES):
        run.check_error(rank, 0 if rank == BAD else BAD)  # rank 0 keeps the store
    assert "made no exchange" in run.told(0)["error"]


def test_a_slow_link_and_one_that_is_put_back(folder, tmp_path, expected):
    """Nothing is lost: what was sent into a cut link is sent again."""
    with join_machines({1: (0.01, 0.02)}) as network:
        run = Run(network, folder, tmp_path, "--timeout", 40, "--epochs", 1, "--pause", 0.1)
        run.wait_for("*.training")
        network.cut(BAD)
        time.sleep(2)
        assert all(process.poll() is None for process in run.processes)
        network.mend(BAD)
        run.check_trained(expected, epochs=1)


@pytest.mark.parametrize("bad", [BAD, 0])
def test_a_rank_is_killed(network, folder, tmp_path, bad):
    run = Run(network, folder, tmp_path, *ENDLESS)
    run.wait_for("*.training")
    run.processes[bad].kill()
    assert run.wait()[bad] == -signal.SIGKILL
    for rank in range(MACHINES):
        if rank != bad:
            run.check_error(rank, bad)


@pytest.mark.parametrize("bad", [BAD, 0])
def test_a_rank_is_stopped(network, folder, tmp_path, bad):
    run = Run(network, folder, tmp_path, *ENDLESS)
    run.wait_for("*.training")
    os.kill(run.processes[bad].pid, signal.SIGSTOP)
    survivors = [rank for rank in range(MACHINES) if rank != bad]
    run.wait(survivors)
    assert run.processes[bad].poll() is None
    for rank in survivors:
        run.check_error(rank, bad)


def test_a_rank_that_hangs(network, folder, tmp_path):
    """It still answers others, on threads of its own, but its gradients do not come."""
    run = Run(network, folder, tmp_path, *ENDLESS, "--hang-at", 5)
    survivors = [rank for rank in range(MACHINES) if rank != BAD]
    run.wait(survivors)
    assert run.processes[BAD].poll() is None
    for rank in survivors:
        run.check_error(rank, BAD)


def test_torchrun_goes_on_from_the_checkpoint(network, folder, tmp_path, expected):
    """A rank kills itself in mid-epoch; the end is that of a run in which nothing happened."""

    def torchrun(rank):
        return [
            sys.executable, "-m", "torch.distributed.run", "--nnodes", str(MACHINES),
            "--nproc-per-node", "1", "--max-restarts", "2", "--rdzv-backend", "c10d",
            "--rdzv-id", "hosts", "--rdzv-endpoint", f"{network.address(0)}:{PORT}",
            # All namespaces have one host name, by which torchrun would tell machines.
            "--local-addr", network.address(rank), "--rdzv-conf", f"is_host={int(rank == 0)}",
        ]  # fmt: skip

    options = ("--timeout", 30, "--kill-at", 22, "--checkpoint", tmp_path / "checkpoint")
    run = Run(network, folder, tmp_path, *options, each=torchrun)
    assert run.wait() == [0] * MACHINES, "".join(run.log(rank) for rank in range(MACHINES))
    assert [run.told(rank)["resumed"] for rank in range(MACHINES)] == [[1, 6]] * MACHINES
    torch.testing.assert_close(run.weights(), expected["weights"], rtol=0, atol=1e-6)
