"""A rank of whole-graph training dies or hangs: it is named; a resumed run ends as any other."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch

import hopline.pipes as hp
from hopline.models import GCN, load_checkpoint
from hopline.partition import partition_graph

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds ranks in Linux's /proc")
ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "full_graph" / "gcn.py"
CLASSES, WIDTH, HIDDEN = 4, 32, 8
TIMEOUT = 8  # seconds that ranks wait for each other
PATIENCE = 60  # seconds for a run to end; those of a failed one are to be TIMEOUT and a few
EPOCHS = 20  # more than rank 0 can print ahead of who reads it
OPTIONS = ["--hidden", str(HIDDEN), "--print-every", "1", "--epochs", str(EPOCHS),
           "--timeout", str(TIMEOUT)]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small data set on disk, and its parts."""
    folder = tmp_path_factory.mktemp("faults")
    data = hp.planted_partition(600, CLASSES, seed=3, path=folder / "planted")
    for ranks in (2, 3):  # of two machines, and of one
        partition_graph(data, "planted", ranks, folder / f"parts-{ranks}")
    return folder


class Training:
    """The example, in a session of its own, whose output holds it up until it is read."""

    def __init__(self, command, *options):
        environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        self.output, output = socket.socketpair()  # holds a few lines, where a pipe has 4 KiB
        output.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        self.output.settimeout(PATIENCE)
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115  closed by __exit__
        with output:
            self.process = subprocess.Popen(
                [sys.executable, *command, str(SCRIPT), *OPTIONS, *options],
                stdout=output, stderr=self.errors, env=environment, start_new_session=True,
            )  # fmt: skip
        self.lines = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)
        self.output.close()
        self.errors.close()

    def wait_for_epoch(self, epoch):
        """Until it is printed."""
        while not self.lines or not self.lines[-1].startswith(f"epoch {epoch:03d}"):
            line = self._line()
            assert line, self.said()
            self.lines.append(line.rstrip())

    def _line(self):
        """The next line, byte by byte, so that nothing beyond it is taken."""
        line = b""
        while not line.endswith(b"\n") and (byte := self.output.recv(1)):
            line += byte
        return line.decode()

    def said(self):
        """On stderr."""
        self.errors.seek(0)
        return self.errors.read().decode()

    def ranks(self):
        """Process ids of the ranks that `launch` has started, rank by rank."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        ranks = [pid for pid in map(int, children.split()) if b"spawn_main" in command_of(pid)]
        return sorted(ranks, key=lambda pid: (int(stat_of(pid)[19]), pid))  # by their start

    def end(self):
        """Waits for its end; what it said on stderr."""
        while line := self._line():
            self.lines.append(line.rstrip())
        self.process.wait(PATIENCE)
        return self.said()

    def left_over(self):
        """Processes of its session that still run; what notices its end by itself gets a moment."""
        deadline = time.monotonic() + 5
        while (found := self._processes()) and time.monotonic() < deadline:
            time.sleep(0.02)
        return [(pid, command_of(pid)) for pid in found]

    def _processes(self):
        found = []
        for name in filter(str.isdecimal, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                stat = stat_of(int(name))
                if int(stat[3]) == self.process.pid and stat[0] != "Z":
                    found.append(int(name))
        return found

    def told(self):
        """What it printed, without what goes by the clock."""
        return [re.sub(r" \| [\d.]+ s an epoch", "", line) for line in self.lines]


def stat_of(pid):
    """Fields of /proc/PID/stat, from the third, the state, on."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()


def command_of(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def content(folder):
    """(tensors, last epoch) of a checkpoint: weights, moments, and the best weights so far."""
    model = GCN(WIDTH, HIDDEN, CLASSES)
    optimizer = torch.optim.Adam(model.parameters())
    run = load_checkpoint(folder, model, optimizer)
    moments = [value for entry in optimizer.state_dict()["state"].values()
               for value in entry.values()]  # fmt: skip
    weights = [p.detach() for p in model.parameters()]
    return [*weights, *moments, *run["weights"].values()], run["epoch"]


def share(folder, kind, ranks=3):
    return {
        "parts": ("--parts", str(folder / f"parts-{ranks}")),
        "columns": ("--dataset", str(folder / "planted"), "--tensor-parallel"),
    }[kind]


@pytest.fixture(scope="module")
def undisturbed(folder, tmp_path_factory):
    """By kind: what an undisturbed run on 3 ranks prints, and the tensors of its checkpoint."""
    done = {}

    def find(kind):
        if kind not in done:
            place = tmp_path_factory.mktemp("undisturbed")
            told = trained(*share(folder, kind), "--num-ranks", "3", "--checkpoint", str(place))
            tensors, epoch = content(place)
            assert epoch == EPOCHS
            done[kind] = told, tensors
        return done[kind]

    return find


def trained(*options):
    with Training([], *options) as training:
        said = training.end()
        assert training.process.returncode == 0, said
        return training.told()


def check_resumed(told, place, undisturbed, epoch, ranks):
    """That a run ended as the undisturbed one, up to rounding on other numbers of ranks."""
    lines, tensors = undisturbed
    tolerance = 0.0 if ranks == 3 else 1e-5
    assert told[0] == f"resumed at epoch {epoch}"
    got, last = content(place)
    assert last == EPOCHS
    for a, b in zip(got, tensors, strict=True):
        assert a.shape == b.shape
        assert (a - b).abs().max() <= tolerance
    if not tolerance:
        assert told[1:] == lines[epoch:]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("kind", "signal_name", "bad", "ranks_after"),
    [
        ("parts", "SIGKILL", 1, 3),
        ("parts", "SIGSTOP", 2, 3),
        ("columns", "SIGKILL", 0, 3),
        ("columns", "SIGSTOP", 1, 2),
    ],
)
def test_a_rank_dies(folder, tmp_path, undisturbed, kind, signal_name, bad, ranks_after):
    checkpoint = ("--checkpoint", str(tmp_path / "run"))
    with Training([], *share(folder, kind), "--num-ranks", "3", *checkpoint) as training:
        training.wait_for_epoch(3)
        ranks = training.ranks()
        assert len(ranks) == 3
        os.kill(ranks[bad], getattr(signal, signal_name))
        said = training.end()
        assert training.process.returncode == 1
        assert training.left_over() == []
    became = "was killed by SIGKILL" if signal_name == "SIGKILL" else "did not answer"
    assert f"RankError: rank {bad} of 3 {became}" in said
    epoch = content(tmp_path / "run")[1]
    assert 3 <= epoch < EPOCHS
    told = trained(*share(folder, kind, ranks_after), "--num-ranks", str(ranks_after),
                   *checkpoint, "--resume")  # fmt: skip
    check_resumed(told, tmp_path / "run", undisturbed(kind), epoch, ranks_after)


@pytest.mark.timeout(300)
def test_a_rank_dies_under_torchrun(folder, tmp_path, undisturbed):
    """As on two machines: the rank that is left names the other."""
    checkpoint = ("--checkpoint", str(tmp_path / "run"))
    with contextlib.ExitStack() as stack:
        agents = [
            stack.enter_context(Training(command, *share(folder, "parts", 2), *checkpoint))
            for command in machines(2)
        ]
        agents[0].wait_for_epoch(3)
        [rank] = children(agents[1].process.pid)
        os.kill(rank, signal.SIGKILL)
        said = [agent.end() for agent in agents]
        assert [agent.process.returncode for agent in agents] == [1, 1]
        assert [agent.left_over() for agent in agents] == [[], []]
    assert re.search(r"RankError: rank 1\b", said[0]), said[0]
    assert "SIGKILL" in said[1]
    epoch = content(tmp_path / "run")[1]
    with contextlib.ExitStack() as stack:
        agents = [
            stack.enter_context(
                Training(command, *share(folder, "parts", 2), *checkpoint, "--resume")
            )
            for command in machines(2)
        ]
        said = [agent.end() for agent in agents]
        assert [agent.process.returncode for agent in agents] == [0, 0], said
        told = agents[0].told()
    check_resumed(told, tmp_path / "run", undisturbed("parts"), epoch, 2)


def children(pid):
    return [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


def machines(count):
    """A command of torchrun for each of several machines, which are all this one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["-m", "torch.distributed.run", "--nnodes", str(count), "--nproc-per-node", "1",
               "--master-addr", "127.0.0.1", "--master-port", str(port)]  # fmt: skip
    return [[*options, "--node-rank", str(number)] for number in range(count)]
