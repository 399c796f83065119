"""The machines that test_hosts runs on: their links, and that nothing is left of them."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tests.partition.namespaces import ROOT, Network, NotAllowed

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="network namespaces are Linux's")
SERVER = """
import socket
server = socket.create_server(("", 5000))
open("{ready}", "w").close()
while True:
    connection, _ = server.accept()
    while content := connection.recv(65536):
        connection.sendall(content)
"""
CLIENT = """
import socket, time
connection = socket.create_connection(("{address}", 5000), timeout={timeout})
start = time.monotonic()
connection.sendall(bytes(100_000))
left = 100_000
while left:
    left -= len(connection.recv(65536))
print(time.monotonic() - start)
"""
# A process that makes machines, starts something on one, says what runs, and waits to be killed.
OWNER = """
import sys, time
from pathlib import Path
from tests.partition.namespaces import Network
network = Network(2, {1: (0.01, 0.0)})
network.start(1, ["sleep", "600"], {"PATH": "/usr/bin:/bin"}, Path(sys.argv[1]))
print(*(child.pid for child in network._children), flush=True)
time.sleep(600)
"""


def join_machines(*args):
    try:
        return Network(*args)
    except NotAllowed as why:
        pytest.skip(f"machines of network namespaces: {why}")


def is_alive(pid):
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
        return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def wait_until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def test_links(tmp_path):
    with join_machines(3, {2: (0.05, 0.01)}) as network:
        ready, log = tmp_path / "ready", tmp_path / "log"
        program = SERVER.format(ready=ready)
        network.start(0, [sys.executable, "-c", program], os.environ, log)
        assert wait_until(ready.exists)

        def ask(machine, timeout=20):
            """Seconds that an answer took, or None."""
            program = CLIENT.format(address=network.address(0), timeout=timeout)
            place = tmp_path / f"{machine}-{time.monotonic()}"
            client = network.start(machine, [sys.executable, "-c", program], os.environ, place)
            return float(place.read_text()) if client.wait(60) == 0 else None

        assert ask(1) is not None
        assert ask(2) >= 0.1  # there and back
        network.cut(1)
        assert ask(1, timeout=0.5) is None
        assert ask(2) is not None
        network.mend(1)
        assert ask(1) is not None


def test_all_processes_end_with_it(tmp_path):
    network = join_machines(1)
    # A child of a child, in a session of its own.
    command = f"setsid sleep 600 & echo $! > {tmp_path}/pid; wait"
    with pytest.raises(KeyError):
        fail_within(network, ["sh", "-c", command], tmp_path)
    *keepers, child = network._children
    assert child.returncode == -signal.SIGKILL
    grandchild = int((tmp_path / "pid").read_text())
    assert wait_until(lambda: not is_alive(grandchild))
    assert not any(is_alive(keeper.pid) for keeper in keepers)
    network.close()  # a second time is nothing


def fail_within(network, command, folder):
    with network:
        network.start(0, command, os.environ, folder / "log")
        assert wait_until(lambda: (folder / "pid").exists() and (folder / "pid").read_text())
        assert is_alive(int((folder / "pid").read_text()))
        raise KeyError


def test_nothing_is_left_of_a_killed_owner(tmp_path):
    join_machines(1, {0: (0.0, 0.0)}).close()  # where it is allowed at all
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path / "log")], cwd=ROOT, stdout=subprocess.PIPE
    )
    with owner:
        pids = [int(word) for word in owner.stdout.readline().split()]
        assert len(pids) == 5  # three that keep a namespace, a slow link, and the one started
        assert all(map(is_alive, pids))
        owner.kill()
    assert wait_until(lambda: not any(map(is_alive, pids)))


def test_where_it_is_not_allowed(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NotAllowed, match="root"):
        Network(1)
    monkeypatch.undo()
    if os.geteuid() == 0:
        monkeypatch.setattr(shutil, "which", lambda tool: None if tool == "ip" else tool)
        with pytest.raises(NotAllowed, match="need ip"):
            Network(1)
