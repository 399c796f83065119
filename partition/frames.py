"""Frames: what `on_host` writes to its launcher: the ranks' output, and reports, in one stream."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any, BinaryIO

__all__ = ["BEGIN", "ERR", "OUT", "REPORT", "FrameError", "frame", "read_frames", "report"]

# A line, after which the frames begin; what a login shell prints before it is not ours.
BEGIN = b"hopline-on-host 1\n"
OUT, ERR, REPORT = b"o", b"e", b"r"  # the kinds: output, error output, a JSON object
HEADER = struct.Struct("!cI")  # kind, bytes that follow
LARGEST = 1 << 20


class FrameError(ValueError):
    """The stream holds something else than frames."""


def frame(kind: bytes, content: bytes) -> bytes:
    """A frame, as bytes to write in one go."""
    return HEADER.pack(kind, len(content)) + content


def report(**values: Any) -> bytes:
    """A frame with a report; `kind` says which.

    >>> import io
    >>> next(read_frames(io.BytesIO(report(kind="ended", code=1))))
    (b'r', {'kind': 'ended', 'code': 1})
    """
    return frame(REPORT, json.dumps(values).encode())


def read_frames(stream: BinaryIO) -> Iterator[tuple[bytes, Any]]:
    """(kind, content) of each frame; of a report, the dictionary that it holds.

    A report that the stream's end cuts short is left out; of output, what has come is passed on.

    Raises:
        FrameError: the stream holds something else.
    """
    while len(head := stream.read(HEADER.size)) == HEADER.size:
        kind, size = HEADER.unpack(head)
        if kind not in (OUT, ERR, REPORT) or size > LARGEST:
            raise FrameError(
                f"the host sent {head!r} where a frame begins; expected what hopline's "
                "on_host of this release writes"
            )
        content = stream.read(size)
        if kind != REPORT:
            yield kind, content
        elif len(content) == size:
            try:
                values = json.loads(content)
            except (ValueError, RecursionError) as error:
                raise FrameError(f"the host sent a report that is no JSON: {error}") from error
            if not isinstance(values, dict) or not isinstance(values.get("kind"), str):
                raise FrameError(f"the host sent the report {content[:80]!r}; expected an object")
            yield kind, values
