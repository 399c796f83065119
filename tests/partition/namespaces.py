"""Machines for tests: network namespaces at a switch, whose links can be cut, put back or be slow.

They have no names, and nothing outside them is touched: each namespace is kept by a process that
the kernel ends with this one, and goes with the last process in it. Needs root, iproute2 and
util-linux.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["Network", "NotAllowed"]

ROOT = Path(__file__).parents[2]
TOOLS = ("ip", "nsenter", "setpriv", "unshare")
PATIENCE = 10.0  # seconds for a namespace, a link or the end of a killed process
SUBNET = "10.77.0"  # of each network alone


class NotAllowed(RuntimeError):
    """This process may not make network namespaces, or lacks the tools; the message says which."""


class Network:
    """Machines at one switch, which is a namespace as well: a bridge with a veth pair a machine.

    As a context manager it ends with all processes that were started on its machines.

    Args:
        machines: how many.
        delays: `{machine: (seconds, jitter)}` of links that are slow: frames are passed on late, in
            order, each way.

    Raises:
        NotAllowed: this process may not do that.
    """

    def __init__(
        self, machines: int, delays: Mapping[int, tuple[float, float]] | None = None
    ) -> None:
        delays = delays or {}
        if sys.platform != "linux":
            raise NotAllowed("network namespaces are Linux's")
        if os.geteuid() != 0:
            raise NotAllowed("network namespaces need root")
        if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
            raise NotAllowed(f"network namespaces need {', '.join(missing)}")
        if delays and not os.access("/dev/net/tun", os.R_OK | os.W_OK):
            raise NotAllowed("a slow link needs /dev/net/tun")
        self._children: list[subprocess.Popen[bytes]] = []
        self._spaces: set[str] = set()
        try:
            self._switch = self._make_space()
            self._ip(self._switch, "link add switch type bridge forward_delay 0")
            self._ip(self._switch, "link set switch up")
            self._machines = [self._make_space() for _ in range(machines)]
            for number in range(machines):
                self._connect(number, delays.get(number))
        except BaseException:
            self.close()
            raise

    def address(self, machine: int) -> str:
        """A machine's address, which its interface `eth0` has."""
        return f"{SUBNET}.{machine + 1}"

    def start(
        self, machine: int, command: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> subprocess.Popen[bytes]:
        """Starts a process on a machine; what it prints goes to a file."""
        with log.open("ab") as output:
            return self._start(
                ["nsenter", f"--net=/proc/{self._machines[machine]}/ns/net", *command],
                env={**environment, "GLOO_SOCKET_IFNAME": "eth0"},
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def cut(self, machine: int) -> None:
        """Takes a machine's link down, at the switch: frames are lost, no one is told."""
        self._ip(self._switch, f"link set port{machine} down")

    def mend(self, machine: int) -> None:
        """Puts a link back."""
        self._ip(self._switch, f"link set port{machine} up")

    def close(self) -> None:
        """Ends all processes on the machines, however they were started, and the machines."""
        spaces, self._spaces = self._spaces - {_space_of(os.getpid())}, set()
        deadline = time.monotonic() + PATIENCE
        while (left := _processes_in(spaces)) and time.monotonic() < deadline:
            for pid in left:
                _kill(pid)
            for child in self._children:
                child.poll()
            time.sleep(0.01)
        for child in self._children:
            child.kill()
            child.wait(PATIENCE)
        if left:
            raise RuntimeError(f"processes {left} do not end when they are killed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _start(self, command: Sequence[str], **options: object) -> subprocess.Popen[bytes]:
        """A process that ends with this one, also if this one is killed."""
        child = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *command],
            stdin=subprocess.DEVNULL,
            cwd=ROOT,
            **options,  # type: ignore[call-overload]
        )
        self._children.append(child)
        return child

    def _make_space(self) -> int:
        keeper = self._start(
            ["unshare", "--net", "sleep", "infinity"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        deadline = time.monotonic() + PATIENCE
        while (space := _space_of(keeper.pid)) in (None, _space_of(os.getpid())):
            if keeper.poll() is not None or time.monotonic() > deadline:
                keeper.kill()
                said = keeper.communicate()[1].decode(errors="replace").strip()
                raise NotAllowed(f"no network namespace can be made: {said}")
            time.sleep(0.005)
        assert keeper.stderr is not None
        keeper.stderr.close()
        assert space is not None
        self._spaces.add(space)
        self._ip(keeper.pid, "link set lo up")
        return keeper.pid

    def _connect(self, number: int, delay: tuple[float, float] | None) -> None:
        switch, machine, port = self._switch, self._machines[number], f"port{number}"
        if delay is None:
            self._ip(switch, f"link add {port} type veth peer name eth0 netns {machine}")
        else:
            self._start_relay(port, f"far{number}", delay)
            self._ip(switch, f"link set far{number} netns {machine} name eth0")
        # Without addresses of IPv6: gloo takes the first that an interface has.
        self._ip(switch, f"link set {port} master switch")
        self._ip(switch, f"link set {port} up")
        self._ip(machine, "link set eth0 addrgenmode none")
        self._ip(machine, "link set eth0 up")
        self._ip(machine, f"addr add {self.address(number)}/24 dev eth0")

    def _start_relay(self, near: str, far: str, delay: tuple[float, float]) -> None:
        relay = self._start(
            [
                "nsenter", f"--net=/proc/{self._switch}/ns/net",
                sys.executable, str(Path(__file__).with_name("slow_link.py")),
                near, far, *map(str, delay),
            ],
            stdout=subprocess.PIPE,
        )  # fmt: skip
        assert relay.stdout is not None
        with relay.stdout:
            if relay.stdout.readline() != b"ready\n":
                raise NotAllowed("a slow link's interfaces cannot be made")

    def _ip(self, space: int, arguments: str) -> None:
        command = ["nsenter", f"--net=/proc/{space}/ns/net", "ip", *arguments.split()]
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        if result.returncode:
            # A kernel may lack bridges or veth pairs, or not allow them; the rest is to work.
            kind = NotAllowed if arguments.startswith("link add") else RuntimeError
            raise kind(f"ip {arguments}: {result.stderr.strip()}")


def _space_of(pid: int) -> str | None:
    """The network namespace of a process; None once it has ended."""
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return None


def _processes_in(spaces: Set[str | None]) -> list[int]:
    pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()] if spaces else []
    return [pid for pid in pids if _space_of(pid) in spaces]


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
