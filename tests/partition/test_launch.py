"""`hopline launch` with a real ssh client, and servers on this machine as its hosts."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import hopline.pipes as hp
from hopline.partition import partition_graph
from hopline.partition.frames import BEGIN, read_frames
from hopline.partition.hosts import Host, read_hosts
from hopline.partition.launch_plan import Plan
from hopline.partition.launcher import launch_hosts
from hopline.partition.ssh import SshOptions

asyncssh = pytest.importorskip("asyncssh", reason="the servers are asyncssh's, which is missing")
from tests.partition.ssh_hosts import SshHosts  # noqa: E402

pytestmark = [
    pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh client in PATH"),
    pytest.mark.skipif(sys.platform == "win32", reason="needs signals of POSIX"),
]
PATIENCE = 60.0  # seconds for what must happen at last


@pytest.fixture
def hosts(tmp_path):
    servers = SshHosts(tmp_path, 2)
    yield servers
    servers.close()


@pytest.fixture
def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def wait_for(condition):
    limit = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < limit, "it has not come to pass"
        time.sleep(0.05)
    return found


def lives(pid):
    with contextlib.suppress(OSError):
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    if not Path("/proc/self").exists():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 0)
            return True
    return False


# What each rank leaves is a file with its process, and that of one that it has started, which has a
# session of its own and is deaf to SIGTERM.
SLEEPER = """
import os, signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", '''
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("here", flush=True)
time.sleep(300)
'''], start_new_session=True, stdout=subprocess.PIPE)
child.stdout.readline()
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
rank = os.environ["RANK"]
with open(f"new-{rank}", "w") as file:
    file.write(f"{os.getpid()} {child.pid} {os.getppid()} {os.environ['HOPLINE_RESTART_COUNT']}")
os.rename(f"new-{rank}", f"rank-{rank}-{os.environ['HOPLINE_RESTART_COUNT']}")
if "fail" in sys.argv and rank == "1":
    while not os.path.exists(f"rank-0-{os.environ['HOPLINE_RESTART_COUNT']}"):
        time.sleep(0.05)
    print("rank 1 gives up", file=sys.stderr, flush=True)
    sys.exit(7)
time.sleep(300)
"""


def ranks_of(folder, count, restart=0):
    """Processes of so many ranks, when all are there."""

    def look():
        files = [folder / f"rank-{rank}-{restart}" for rank in range(count)]
        return all(file.exists() for file in files) and files

    return [int(pid) for file in wait_for(look) for pid in file.read_text().split()[:3]]


TRAINING = r"""
import json, os, sys, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
x = torch.randn(16 * size, 4).chunk(size)[rank]
losses = []
for _ in range(20):
    loss = model(x).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    losses.append(loss.item())
assert losses[-1] < losses[0]
said = [sys.argv[1:], rank, size, os.environ["LOCAL_RANK"], os.environ["HOPLINE_PARTS"],
        os.environ["GIVEN"], os.getcwd(), model.module.weight.sum().item()]
with open(f"said-{rank}.json", "w") as file:
    json.dump(said, file)
if rank == 0:
    os.write(1, b"x" * 200_000 + b"\n\xff\xfe\n10%\r20%\r")
    os.write(2, b"to stderr\nthe last, without an end")
dist.barrier()
dist.destroy_process_group()
os._exit(0)  # DDP still has the group, whose threads may abort the process where Python ends
"""


@pytest.fixture
def parts(tmp_path):
    dataset = hp.planted_partition(60, 2, 4, 4, seed=1)
    partition_graph(dataset, "planted", 3, tmp_path / "my parts", part_method="random", eps=9.0)
    return tmp_path / "my parts"


def test_ranks_of_two_hosts_train_together(hosts, port, parts, tmp_path):
    (tmp_path / "a script.py").write_text(TRAINING)
    arguments = ["--", "a b", "$(touch made)", "`touch made`", "${local_rank} $$ $HOME", "it's",
                 '"', "\\", "", "--nnodes", "*", "ä\n~", "--"]  # fmt: skip
    code, out, err = hosts.run(
        "a script.py", *arguments, port=port, hosts=hosts.host_file(1, 2),
        options=("--parts", "my parts", "--env", "GIVEN=a = b"),
    )  # fmt: skip
    assert code == 0, err
    said = [json.loads((tmp_path / f"said-{rank}.json").read_text()) for rank in range(3)]
    weight = said[0][-1]
    assert said == [
        [arguments, rank, 3, local, str(tmp_path / "my parts"), "a = b", str(tmp_path), weight]
        for rank, local in enumerate(["0", "0", "1"])
    ]
    assert not (tmp_path / "made").exists()
    first = hosts.labels()[0].encode()
    line = b"[" + first + b"] "
    assert line + b"x" * 200_000 + b"\n" in out
    assert line + b"\xff\xfe\n" in out
    assert line + b"10%\r" in out
    assert line + b"20%\r" in out
    assert line + b"to stderr\n" in err
    assert line + b"the last, without an end\n" in err
    labels = {label.encode() for label in hosts.labels()}
    marks = re.findall(rb"^\[([0-9.:]+)\] ", err, re.MULTILINE)
    assert marks
    assert set(marks) <= labels
    assert all(
        mark.startswith((b"[127.", b"hopline launch: ")) for mark in err.splitlines() if mark
    )


def test_a_failure_stops_all_and_all_start_again(hosts, port, tmp_path):
    (tmp_path / "script.py").write_text(SLEEPER)
    code, _, err = hosts.run(
        "script.py", "fail", port=port, hosts=hosts.host_file(1, 1),
        options=("--max-restarts", "1", "--grace", "2"),
    )  # fmt: skip
    text = err.decode()
    first, second = hosts.labels()
    assert code == 1, text
    ending = f"{second} failed first, all others were stopped: torchrun ended with exit code 1"
    assert text.count(ending) == 2
    assert f"{first} failed" not in text
    assert text.count("starts all again, restart 1 of 1") == 1
    assert text.count(f"[{second}] rank 1 gives up") == 2
    assert "exitcode  : 7" in text  # as torchrun tells it
    pids = ranks_of(tmp_path, 2) + ranks_of(tmp_path, 2, restart=1)
    assert len(set(pids)) == 12
    assert not [pid for pid in pids if lives(pid)]


def test_nothing_is_left_when_the_launcher_is_killed(hosts, port, tmp_path):
    (tmp_path / "script.py").write_text(SLEEPER)
    process = hosts.start(
        "script.py", "deaf", port=port, hosts=hosts.host_file(1, 1), options=("--grace", "1")
    )
    pids = ranks_of(tmp_path, 2)
    assert all(lives(pid) for pid in pids)
    process.kill()
    process.communicate()
    wait_for(lambda: not [pid for pid in pids if lives(pid)])


@pytest.mark.parametrize(
    ("signals", "grace", "expected"),
    [
        pytest.param([signal.SIGINT], 1, 130, id="Ctrl-C"),
        pytest.param([signal.SIGTERM, signal.SIGINT], 200, 143, id="SIGTERM, then Ctrl-C"),
    ],
)
def test_signals_stop_all(hosts, port, tmp_path, signals, grace, expected):
    (tmp_path / "script.py").write_text(SLEEPER)
    process = hosts.start(
        "script.py", "deaf", port=port, hosts=hosts.host_file(1, 1),
        options=("--grace", str(grace)),
    )  # fmt: skip
    pids = ranks_of(tmp_path, 2)
    for number in signals:
        process.send_signal(number)
        time.sleep(0.5)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == expected, err
    wait_for(lambda: not [pid for pid in pids if lives(pid)])
    assert f"{signal.Signals(signals[0]).name}: stops all ranks" in err.decode()
    assert ("again: kills all ranks" in err.decode()) == (len(signals) == 2)
    assert b"closing signal SIGTERM" in err  # torchrun was asked first
    assert b"Traceback" not in err


def test_hosts_that_cannot_be_reached(hosts, port, tmp_path):
    """Each of them is named, with what ssh said and what to do."""

    def refused(*options):
        code, out, err = hosts.run("none.py", port=port, hosts=file, options=options)
        assert b"no rank was started" in err
        assert out == b""
        return code, err.decode()

    file = hosts.host_file(1, 1)
    second = hosts.labels()[1]
    known = hosts.known_hosts.read_text().splitlines(keepends=True)
    hosts.known_hosts.write_text(known[0])
    # "StrictHostKeyChecking no" is in the configuration, too.
    code, text = refused("--ssh-option", "StrictHostKeyChecking=no")
    assert code == 255
    assert f"{second}: ssh could not connect: " in text
    assert f"ssh-keyscan -p {hosts.ports[1]} 127.0.0.1" in text
    assert hosts.labels()[0] + ":" not in text
    # Another key than the known one.
    other = known[0].replace(str(hosts.ports[0]), str(hosts.ports[1]))
    hosts.known_hosts.write_text(known[0] + other)
    code, text = refused()
    assert code == 255
    assert f"ssh-keygen -R [127.0.0.1]:{hosts.ports[1]}" in text
    hosts.known_hosts.write_text("".join(known))
    code, text = refused("--ssh-option", "PubkeyAuthentication=no")
    assert code == 255
    assert "No key was accepted" in text
    assert "ssh-agent" in text
    file.write_text(f"127.0.0.1 {port}\n")
    code, text = refused()
    assert code == 255
    assert f"Nothing listens at port {port}" in text
    assert "DGL's ip_config.txt" in text


def test_hosts_that_lack_something(hosts, port, parts, tmp_path):
    """No rank is started before all hosts have what they need."""
    (tmp_path / "script.py").write_text("open('started', 'w')")
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "$@"\n')
    bare.chmod(0o755)
    shutil.rmtree(parts / "part-2")
    taken = socket.create_server(("", port))
    file = hosts.host_file(1, 2)
    first, second = hosts.labels()
    cases = [
        (("--python", "/nowhere/python"), f"{second}: there is no /nowhere/python"),
        (("--python", str(bare)), f"{second}: {bare} lacks what is needed"),
        (("--parts", "my parts"),
         f"{second}: {parts / 'part-2'}: no such folder; ranks 1 to 2 need part-1, part-2"),
        ((), f"{first}: the ranks cannot meet at port {port}"),
    ]  # fmt: skip
    with taken:
        for options, expected in cases:
            code, _, err = hosts.run("script.py", port=port, hosts=file, options=options)
            assert expected in err.decode()
            assert code == (127 if "/nowhere/python" in options else 1)
    assert not (tmp_path / "started").exists()


def test_a_run_outlasts_the_patience_of_its_hosts(hosts, port, tmp_path):
    (tmp_path / "module.py").write_text("import time; time.sleep(8)")
    plan = Plan(
        read_hosts(hosts.host_file(1, 1)), ["-m", "module"], {"PYTHONPATH": str(tmp_path)},
        str(tmp_path), sys.executable, port=port, patience=4.0, ssh=SshOptions(str(hosts.config)),
    )  # fmt: skip
    assert launch_hosts(plan) == 0


def test_output_that_no_one_reads_ends_all(hosts, port, tmp_path):
    (tmp_path / "script.py").write_text(SLEEPER + "\n")
    (tmp_path / "loud.py").write_text(
        "import runpy, threading, time\n"
        "def talk():\n    while True:\n        print('word', flush=True); time.sleep(0.1)\n"
        "threading.Thread(target=talk, daemon=True).start()\n"
        "runpy.run_path('script.py', run_name='__main__')\n"
    )
    file = hosts.host_file(1, 1)
    process = hosts.start("loud.py", port=port, hosts=file, options=("--grace", "2"))
    pids = ranks_of(tmp_path, 2)
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=PATIENCE) == 128 + signal.SIGPIPE, err
    assert b"Exception ignored" not in err
    wait_for(lambda: not [pid for pid in pids if lives(pid)])


def on_host(folder, port, script, *, patience=60.0, grace=1.0):
    """The program on a host, with its job, without ssh."""
    host = Host("127.0.0.1", 1, None, None, "here", 1)
    plan = Plan([host], script, {}, str(folder), sys.executable, port=port, grace=grace)
    job = plan.jobs(0)[0].model_copy(update={"patience": patience})
    process = subprocess.Popen(
        [sys.executable, "-m", "hopline.partition.on_host"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    process.stdin.write(b"\n" + job.model_dump_json().encode() + b"\nstart\n")
    process.stdin.flush()
    return process


def test_a_host_that_hears_nothing_stops_its_ranks(port, tmp_path):
    (tmp_path / "script.py").write_text(SLEEPER)
    with on_host(tmp_path, port, ["script.py"], patience=10.0) as process:
        pids = ranks_of(tmp_path, 1)
        assert process.stdout.readline() == BEGIN
        kinds = [content["kind"] for kind, content in read_frames(process.stdout) if kind == b"r"]
        assert kinds == ["ready", "ended"]
        assert process.wait(timeout=PATIENCE) == 129
    assert not [pid for pid in pids if lives(pid)]


@pytest.mark.parametrize("says", ["", "import sys; sys.exit(3)"])
def test_a_host_whose_words_no_one_takes_ends(port, tmp_path, says):
    """As where the network has gone, and the pipe to it is full."""
    (tmp_path / "script.py").write_text(
        "import os\nos.write(1, bytes(100_000))\n"  # above what a pipe holds
        + (says or "while True:\n    os.write(1, bytes(10_000))\n")
    )
    # On a busy machine the script may not have ended before the patience has.
    expected = (1, 129) if says else (129,)
    with on_host(tmp_path, port, ["script.py"], patience=5.0) as process:
        try:
            assert process.wait(timeout=2 * PATIENCE) in expected
        finally:
            process.kill()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells of parents' end")
def test_ranks_end_when_the_program_on_their_host_is_killed(port, tmp_path):
    (tmp_path / "script.py").write_text("import os, time\n" + SLEEPER)
    with on_host(tmp_path, port, ["script.py"]) as process:
        rank, other, torchrun = ranks_of(tmp_path, 1)
        process.kill()
        wait_for(lambda: not lives(rank) and not lives(torchrun))
    os.kill(other, signal.SIGKILL)  # it hides on purpose, and no one is left to look for it
