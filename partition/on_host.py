"""What `hopline launch` runs on each machine: starts torchrun, and leaves nothing when it ends.

`python -m hopline.partition.on_host` reads lines on its standard input: a `HostJob`, then `start`;
`stop` and `kill` end the ranks, and so does the input's end, or no line for a while: the launcher
has died, or the network is gone. An empty line says that the launcher is there. Ranks' output and
reports go to standard output, as `frames`.

Its exit status is torchrun's; 128 + n where a signal n ended that; 64 for a job that cannot run
here; 143 after it was told to stop, 129 after its launcher went away.
"""

from __future__ import annotations

import contextlib
import os
import platform
import queue
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any

from hopline.partition.frames import BEGIN, ERR, OUT, frame, report
from hopline.partition.host_job import HostJob, Versions, torchrun_command
from hopline.partition.parts_here import check_parts_here
from hopline.partition.processes import adopt_orphans, descendants, kill_descendants, start

__all__ = ["main"]

LONGEST_JOB = 1 << 24  # bytes
FIRST_PATIENCE = 120.0  # seconds to wait for the job
PIECE = 1 << 16
REFUSED, GONE, STOPPED = 64, 129, 143


class _Output:
    """The stream to the launcher, from several threads; tells when that is gone."""

    def __init__(self, fd: int, words: queue.SimpleQueue[bytes | None]) -> None:
        self._fd = fd
        self._words = words
        self._lock = threading.Lock()
        self._broken = False

    def write(self, content: bytes) -> None:
        with self._lock:
            view = memoryview(content)
            while view and not self._broken:
                try:
                    view = view[os.write(self._fd, view) :]
                except OSError:
                    self._broken = True
                    self._words.put(None)


def main() -> int:
    """Runs a job; returns the exit status."""
    words: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    output = _Output(os.dup(1), words)
    os.dup2(2, 1)  # what else prints must not get between frames
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: words.put(b"stop"))
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    adopt_orphans()
    threading.Thread(target=_listen, args=(words,), daemon=True).start()
    output.write(BEGIN)
    line = _next_word(words, FIRST_PATIENCE)
    if line in (None, b"stop", b"kill"):
        return GONE if line is None else STOPPED
    try:
        job = HostJob.parse(line)
        found = _check(job)
    except (OSError, ValueError) as error:
        output.write(report(kind="refused", text=str(error)))
        return REFUSED
    output.write(report(kind="ready", **found))
    word = _next_word(words, job.patience)
    if word != b"start":
        return GONE if word is None else STOPPED
    return _run(job, output, words)


def _listen(words: queue.SimpleQueue[bytes | None]) -> None:
    """Hands on the lines of standard input, None at its end."""
    rest = b""
    # Not sys.stdin: at the interpreter's end no thread may hold its lock.
    with contextlib.suppress(OSError):
        while len(rest) < LONGEST_JOB and (piece := os.read(0, PIECE)):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                words.put(line)
    words.put(None)


def _next_word(words: queue.SimpleQueue[bytes | None], patience: float) -> bytes | None:
    """The next line that says something; None when the launcher is gone."""
    while True:
        try:
            word = words.get(timeout=patience)
        except queue.Empty:
            return None
        if word != b"":
            return word


def _check(job: HostJob) -> dict[str, Any]:
    """What is to be told before the start.

    Raises:
        ValueError: the job cannot run here.
    """
    workdir = Path(job.workdir).expanduser()
    try:
        os.chdir(workdir)
    except OSError as error:
        raise ValueError(
            f"{workdir}: cannot be the working folder ({error.strerror}); make it, or name "
            "another with --workdir"
        ) from None
    if job.script[0] != "-m" and not Path(job.script[0]).is_file():
        raise ValueError(
            f"{job.script[0]}: no such file in {Path.cwd()}; copy it there, or name its folder "
            "with --workdir"
        )
    partition = None
    if job.parts is not None:
        partition = check_parts_here(_parts(job.parts), job.ranks, job.world_size)
    if job.node == 0:
        _check_port(job.master_port)
    return {"versions": Versions.here().to_dict(), "partition": partition}


def _parts(path: str) -> Path:
    return Path.cwd() / Path(path).expanduser()


def _check_port(port: int) -> None:
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("", port))
        except OSError as error:
            raise ValueError(
                f"the ranks cannot meet at port {port} of {platform.node()} ({error.strerror}); "
                "name another with --port"
            ) from None


def _run(job: HostJob, output: _Output, words: queue.SimpleQueue[bytes | None]) -> int:
    """Runs torchrun until it ends or is to stop, and reports how it ended."""
    environment = {**os.environ, **job.environment}
    if job.parts is not None:
        environment["HOPLINE_PARTS"] = str(_parts(job.parts))
    child = start(torchrun_command(sys.executable, job), environment)
    assert child.stdout is not None
    assert child.stderr is not None
    pumps = [
        threading.Thread(target=_pump, args=(stream, kind, output), daemon=True)
        for stream, kind in ((child.stdout, OUT), (child.stderr, ERR))
    ]

    def wait() -> None:
        child.wait()
        words.put(b"ended")

    for thread in (*pumps, threading.Thread(target=wait, daemon=True)):
        thread.start()
    word = _next_word(words, job.patience)
    seen: set[int] = set()
    if word != b"ended":
        seen = descendants(os.getpid())
        if word != b"kill":
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGTERM)  # torchrun passes it on to the ranks
            _wait(child, words, job.grace)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    left = kill_descendants(seen)
    for thread in pumps:
        # A process that was told to leave the group and holds the pipe is not waited for.
        thread.join(timeout=job.grace)
    code = child.returncode if child.returncode >= 0 else 128 - child.returncode
    _tell(report(kind="ended", code=code, asked=word != b"ended", left=left), output, words, job)
    return code if word == b"ended" else STOPPED if word in (b"stop", b"kill") else GONE


def _wait(child: Any, words: queue.SimpleQueue[bytes | None], grace: float) -> None:
    """Waits until torchrun has ended, for so long, or until `kill` comes."""
    limit = time.monotonic() + grace
    while child.poll() is None and (rest := limit - time.monotonic()) > 0:
        try:
            word = words.get(timeout=rest)
        except queue.Empty:
            return
        if word == b"kill":
            return


def _tell(
    content: bytes, output: _Output, words: queue.SimpleQueue[bytes | None], job: HostJob
) -> None:
    """Writes the last report; nobody may be there to read it, and the pipe to them full."""

    def write() -> None:
        output.write(content)
        words.put(b"told")

    threading.Thread(target=write, daemon=True).start()
    while (word := _next_word(words, job.patience)) is not None and word != b"told":
        pass


def _pump(stream: IO[bytes], kind: bytes, output: _Output) -> None:
    """Passes on what ranks print, as it comes."""
    with contextlib.suppress(OSError, ValueError), stream:
        while piece := os.read(stream.fileno(), PIECE):
            output.write(frame(kind, piece))


if __name__ == "__main__":
    sys.exit(main())
