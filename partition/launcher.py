"""Launcher: ranks on many machines over ssh, started together and ended together."""

from __future__ import annotations

import contextlib
import queue
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType

from hopline.partition.agreement import check_meeting_place, compare
from hopline.partition.launch_plan import Plan
from hopline.partition.remote_host import Event, RemoteHost
from hopline.partition.ssh import find_ssh, remote_command, ssh_command

__all__ = ["launch_hosts"]

LAST_WAIT = 15.0  # seconds for a host to tell that all has stopped, after the grace
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")


@dataclass
class _Attempt:
    """What has happened in one attempt."""

    ready: dict[int, Event] = field(default_factory=dict)
    failures: list[tuple[str, Event]] = field(default_factory=list)
    started: bool = False
    signal: int | None = None
    limit: float | None = None  # when what has not stopped is hung up on
    stuck: bool = False  # something may still run


def launch_hosts(plan: Plan) -> int:
    """Runs a script on all ranks of all hosts, and passes on what they print.

    The first failure stops all; after a failure of ranks all are started again, up to
    `max_restarts` times, with the environment's HOPLINE_RESTART_COUNT one higher.

    Returns:
        The exit code: that of the first host that failed; 255 where ssh failed; 128 + n after a
        signal n to this process.

    Raises:
        RuntimeError: there is no ssh.
        ValueError: the other hosts cannot reach the first.
    """
    ssh = find_ssh()
    check_meeting_place(plan.hosts, plan.master_addr)
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    with _signals(events):
        for number in range(plan.max_restarts + 1):
            attempt = _run(plan, ssh, number, events)
            if attempt.signal is not None:
                return 128 + attempt.signal
            if not attempt.failures:
                return 0
            _tell_failures(attempt)
            first = attempt.failures[0][1]
            of_ranks = (first.values or {}).get("kind") == "ended"
            if not attempt.started or attempt.stuck or not of_ranks:
                break
            if number < plan.max_restarts:
                _tell(f"starts all again, restart {number + 1} of {plan.max_restarts}")
    return first.code or 1


@contextlib.contextmanager
def _signals(events: queue.SimpleQueue[Event]) -> Iterator[None]:
    """Signals become events, but for those that are ignored, as under nohup."""

    def handle(number: int, frame: FrameType | None) -> None:
        events.put(Event(None, "signal", number))

    numbers = [getattr(signal, name) for name in SIGNALS]
    before = {n: signal.getsignal(n) for n in numbers if signal.getsignal(n) != signal.SIG_IGN}
    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tell(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(f"hopline launch: {text}", file=sys.stderr, flush=True)


def _tell_failures(attempt: _Attempt) -> None:
    """Names all hosts that failed by themselves, in order."""
    for i, (label, event) in enumerate(attempt.failures):
        place = "failed then" if i else "failed first, all others were stopped"
        _tell(f"{label} {place}: {event.text}" if attempt.started else f"{label}: {event.text}")
    if not attempt.started:
        _tell("no rank was started")


def _run(plan: Plan, ssh: str, number: int, events: queue.SimpleQueue[Event]) -> _Attempt:
    """One attempt, until nothing of it runs any more."""
    sys.stdout.flush()
    sys.stderr.flush()
    outputs, lock = (sys.stdout.buffer, sys.stderr.buffer), threading.Lock()
    command = remote_command(plan.python)
    hosts: list[RemoteHost] = []
    over = threading.Event()
    heart = threading.Thread(target=_beat, args=(hosts, over, plan.patience / 6), daemon=True)
    try:
        for node, (host, job) in enumerate(zip(plan.hosts, plan.jobs(number), strict=True)):
            words = ssh_command(ssh, host, plan.ssh, command)
            hosts.append(RemoteHost(node, host, words, plan.python, job, events, outputs, lock))
        heart.start()
        attempt = _Attempt()
        _follow(plan, hosts, attempt, events)
        return attempt
    finally:
        over.set()
        for each in hosts:
            if not each.gone:
                each.hang_up()
        for each in hosts:
            each.close()
        if heart.ident is not None:
            heart.join()


def _beat(hosts: list[RemoteHost], over: threading.Event, pause: float) -> None:
    """Tells the hosts that this process lives."""
    while not over.wait(pause):
        for host in hosts:
            host.say(b"")


def _follow(
    plan: Plan, hosts: list[RemoteHost], attempt: _Attempt, events: queue.SimpleQueue[Event]
) -> None:
    """Starts the ranks when all hosts are ready, and stops them when one fails."""
    ready_limit = time.monotonic() + plan.timeout
    while not all(host.gone for host in hosts):
        limit = attempt.limit if attempt.limit is not None else ready_limit
        waits = attempt.limit is not None or not attempt.started
        try:
            event = events.get(timeout=max(0.0, limit - time.monotonic()) if waits else None)
        except queue.Empty:
            if attempt.limit is None:
                late = [host.host.label for host in hosts if host.node not in attempt.ready]
                text = f"it was not ready within {plan.timeout:g} s (--timeout)"
                attempt.failures += [(label, Event(None, "gone", 1, text)) for label in late]
                _stop(plan, hosts, attempt)
                continue
            if attempt.stuck:
                return
            for host in hosts:
                if not host.gone:
                    host.hang_up()
                    if attempt.started:
                        _tell(f"{host.host.label} does not tell that its ranks have stopped")
            attempt.limit, attempt.stuck = time.monotonic() + LAST_WAIT, True
            continue
        _take(event, plan, hosts, attempt)


def _take(event: Event, plan: Plan, hosts: list[RemoteHost], attempt: _Attempt) -> None:
    """Does what an event asks for."""
    if event.kind == "signal":
        first = attempt.signal is None
        attempt.signal = attempt.signal or event.code
        _stop(plan, hosts, attempt, at_once=not first)
        name = signal.Signals(event.code).name
        _tell(f"{name}: stops all ranks" if first else f"{name} again: kills all ranks")
    elif event.kind == "unheard":
        attempt.signal = attempt.signal or signal.SIGPIPE
        _stop(plan, hosts, attempt)
    elif event.kind == "gone":
        host = hosts[event.node or 0]
        host.gone = True
        if event.text:
            attempt.failures.append((host.host.label, event))
            _stop(plan, hosts, attempt)
    elif event.kind == "ready" and event.node is not None:
        attempt.ready[event.node] = event
        if len(attempt.ready) == len(hosts) and attempt.limit is None:
            labels = [host.host.label for host in hosts]
            reports = [attempt.ready[host.node].values or {} for host in hosts]
            problem, warnings = compare(labels, reports)
            for warning in warnings:
                _tell(f"warning: {warning}")
            if problem is not None:
                node, text = problem
                attempt.failures.append((labels[node], Event(node, "gone", 1, text)))
                _stop(plan, hosts, attempt)
                return
            attempt.started = True
            for host in hosts:
                host.say(b"start")


def _stop(plan: Plan, hosts: list[RemoteHost], attempt: _Attempt, *, at_once: bool = False) -> None:
    for host in hosts:
        if not host.gone:
            host.stop(at_once=at_once)
    if at_once:
        attempt.limit = time.monotonic() + 3.0
    elif attempt.limit is None:
        # Before its start a host has nothing to stop, and one without an answer nothing to tell.
        wait = plan.grace + LAST_WAIT if attempt.started else 3.0
        attempt.limit = time.monotonic() + wait
