"""RemoteHost: the ssh process of one machine, and what comes from there."""

from __future__ import annotations

import contextlib
import queue
import subprocess
import threading
from dataclasses import dataclass
from typing import IO, Any, BinaryIO, cast

from hopline.partition.frames import BEGIN, ERR, OUT, FrameError, read_frames
from hopline.partition.host_job import HostJob
from hopline.partition.hosts import Host
from hopline.partition.prefixed import Prefixed
from hopline.partition.ssh import explain

__all__ = ["Event", "RemoteHost"]

REMEMBERED = 4096  # bytes of what ssh said that an error shows at most
LONGEST_GREETING = 1 << 16
PATIENCE = 10.0  # seconds for ssh to end after its output has
SSH_FAILED, NO_COMMAND = 255, (126, 127)


@dataclass(frozen=True)
class Event:
    """What a host tells its launcher.

    Attributes:
        node: number of the host; None for a signal to the launcher itself.
        kind: "ready"; "gone", with which all ends; "unheard", when output cannot be written any
            more; "signal".
        code: the exit code to pass on; the signal's number.
        text: what failed, "" where nothing has.
        values: of the report.
    """

    node: int | None
    kind: str
    code: int = 0
    text: str = ""
    values: dict[str, Any] | None = None


class RemoteHost:
    """Starts ssh at once. Whatever happens, one "gone" comes in the end.

    Args:
        node: number of the host.
        host: which.
        command: that of ssh.
        python: the interpreter there, for messages.
        job: what is to be run.
        events: where to tell.
        outputs: standard output and error output of the launcher.
        lock: for both.
    """

    def __init__(
        self,
        node: int,
        host: Host,
        command: list[str],
        python: str,
        job: HostJob,
        events: queue.SimpleQueue[Event],
        outputs: tuple[BinaryIO, BinaryIO],
        lock: threading.Lock,
    ) -> None:
        self.node = node
        self.host = host
        self.gone = False
        self._python = python
        self._job = job
        self._events = events
        self._said = b""  # the last of what ssh, or the shell there, said
        self._lock = threading.Lock()
        self._streams = {
            kind: Prefixed(host.label, stream, lock)
            for kind, stream in zip((OUT, ERR), outputs, strict=True)
        }
        self._greeting, self._shell = (Prefixed(host.label, outputs[1], lock) for _ in range(2))
        self._told = self._hung_up = False
        # In a session of its own: Ctrl-C is for the launcher, which stops the ranks first.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._listener.start()
        self._reader.start()

    def say(self, word: bytes) -> None:
        """Sends a line; nothing happens where none can be sent."""
        with self._lock, contextlib.suppress(OSError, ValueError):
            stdin = cast("IO[bytes]", self._process.stdin)
            stdin.write(word + b"\n")
            stdin.flush()

    def stop(self, *, at_once: bool = False) -> None:
        """Asks for the end of the ranks; at once kills them."""
        if at_once or not self._told:
            self._told = True
            self.say(b"kill" if at_once else b"stop")

    def hang_up(self) -> None:
        """Ends the connection, without waiting for the other side."""
        self._hung_up = True
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def close(self) -> None:
        """Ends what is still there of threads and pipes, after "gone"."""
        for thread in (self._reader, self._listener):
            thread.join(timeout=PATIENCE)
        with contextlib.suppress(OSError):
            cast("IO[bytes]", self._process.stdin).close()

    def _write(self, stream: Prefixed, content: bytes | None) -> None:
        try:
            if content is None:
                stream.finish()
            else:
                stream.write(content)
        except (OSError, ValueError) as error:
            self._events.put(Event(self.node, "unheard", text=str(error)))

    def _listen(self) -> None:
        """Passes on, and remembers, what is not in frames: what ssh and the shell there say."""
        with contextlib.suppress(OSError), cast("IO[bytes]", self._process.stderr) as stream:
            while piece := stream.read1(REMEMBERED):  # type: ignore[attr-defined]
                self._said = (self._said + piece)[-REMEMBERED:]
                self._write(self._shell, piece)
        self._write(self._shell, None)

    def _read(self) -> None:
        last: dict[str, Any] | None = None
        problem = ""
        begun = False
        with cast("IO[bytes]", self._process.stdout) as stream:
            try:
                begun = self._greet(stream)
                if begun:
                    self.say(self._job.model_dump_json().encode())
                    for kind, content in read_frames(cast("BinaryIO", stream)):
                        if kind in self._streams:
                            self._write(self._streams[kind], content)
                        elif content["kind"] == "ready":
                            self._events.put(Event(self.node, "ready", values=content))
                        else:
                            last = content
            except (FrameError, OSError) as error:
                problem = str(error)
                self.hang_up()
        try:
            status = self._process.wait(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.hang_up()
            status = self._process.wait()
        self._listener.join(timeout=PATIENCE)
        for output in (*self._streams.values(), self._greeting):
            self._write(output, None)
        code, text = _outcome(last, self._told) or (status if status > 0 else SSH_FAILED, "")
        # What comes of having been told to stop is no failure.
        if last is None and (problem or not (self._hung_up or (begun and self._told))):
            text = problem or self._failure(begun, status)
        self._events.put(Event(self.node, "gone", code, text, last))

    def _greet(self, stream: IO[bytes]) -> bool:
        """Reads up to the line after which frames come; False where there is none."""
        seen = 0
        while seen < LONGEST_GREETING and (line := stream.readline(LONGEST_GREETING)):
            if line.endswith(BEGIN):
                return True
            seen += len(line)
            self._said = (self._said + line)[-REMEMBERED:]
            self._write(self._greeting, line)
        return False

    def _failure(self, begun: bool, status: int) -> str:
        """What has happened where the host has told no end."""
        said = self._said.decode(errors="replace").strip()
        lines = "; ".join(line.strip() for line in said.splitlines()[-4:] if line.strip())
        if begun:
            return f"the connection was lost (ssh ended with {status}: {lines or 'nothing said'})"
        if status == SSH_FAILED:
            advice = explain(self.host, said)
            return f"ssh could not connect: {lines or 'nothing said'}" + (
                f". {advice[0].upper()}{advice[1:]}" if advice else ""
            )
        if status in NO_COMMAND:
            return f"there is no {self._python} ({lines}); name the Python there with --python"
        if "No module named" in said:
            return (
                f"{self._python} lacks what is needed ({lines}); install hopline for it, or name "
                "another Python with --python"
            )
        return f"{self._python} could not start hopline there (exit code {status}: {lines})"


def _outcome(report: dict[str, Any] | None, told: bool) -> tuple[int, str] | None:
    """Exit code, and what failed, of a host that told its end."""
    if report is None:
        return None
    if report["kind"] == "refused":
        return 1, str(report.get("text"))
    code, left = report.get("code"), report.get("left")
    if report["kind"] != "ended" or not isinstance(code, int) or not 0 <= code < 256:
        return 1, f"it sent the report {report}; install the same hopline on all hosts"
    text = f"torchrun ended with exit code {code}" if code and not report.get("asked") else ""
    if report.get("asked") and not told:
        code = code or 1
        text = "it stopped its ranks: it heard nothing from here for too long, or was sent a signal"
    if left:
        text = f"{text or 'all was to stop'}; processes {left} could not be killed"
    return code, text
