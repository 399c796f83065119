"""Prefixed: output of many machines, line by line, each line marked with where it comes from."""

from __future__ import annotations

import threading
from typing import BinaryIO

__all__ = ["Prefixed"]

LONGEST = 1 << 16  # bytes of a line that are kept back until its end comes


class Prefixed:
    """One machine's output stream.

    Lines end with LF, CR or CR LF, which stays as it is: progress bars move. Bytes that are no
    UTF-8 are passed on. A line above 64 KiB comes in pieces, of which the first has the prefix;
    only then can lines of other machines get between.

    Args:
        label: the prefix, without brackets.
        stream: where it goes.
        lock: held while a line is written; the same for all that share the stream.
    """

    def __init__(self, label: str, stream: BinaryIO, lock: threading.Lock) -> None:
        self._prefix = f"[{label}] ".encode()
        self._stream = stream
        self._lock = lock
        self._rest = b""
        self._inside = False  # the beginning of the line has been written

    def write(self, content: bytes) -> None:
        """Passes on the lines that are complete."""
        lines = (self._rest + content).splitlines(keepends=True)
        self._rest = b""
        # A CR may be followed by LF.
        if lines and not lines[-1].endswith(b"\n") and len(lines[-1]) < LONGEST:
            self._rest = lines.pop()
        self._pass_on(lines)

    def finish(self) -> None:
        """Passes on what is left, and ends the line that is open."""
        if self._rest:
            self._pass_on([self._rest])
            self._rest = b""
        if self._inside:
            with self._lock:
                self._stream.write(b"\n")
                self._stream.flush()
            self._inside = False

    def _pass_on(self, lines: list[bytes]) -> None:
        if not lines:
            return
        with self._lock:
            for line in lines:
                self._stream.write(line if self._inside else self._prefix + line)
                self._inside = not line.endswith((b"\n", b"\r"))
            self._stream.flush()
