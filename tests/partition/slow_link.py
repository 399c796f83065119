"""A slow cable: passes frames on between two interfaces that it makes, late and in order.

`python slow_link.py NEAR FAR SECONDS JITTER`; says "ready" once they are there. The kernel's netem
does the same, but many kernels come without it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import select
import struct
import sys
import time
from collections import deque

TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000
FRAME = 65536  # bytes; without offloads, which it does not ask for, frames have at most 1514


def make_interface(name: str) -> int:
    """A file whose reads and writes are the frames of a new interface."""
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return file


def pass_on(files: list[int], seconds: float, jitter: float) -> None:
    waiting: dict[int, deque[tuple[float, bytes]]] = {file: deque() for file in files}
    other = dict(zip(files, reversed(files), strict=True))
    while True:
        now = time.monotonic()
        for file, frames in waiting.items():
            while frames and frames[0][0] <= now:
                # Where the interface is down, a frame is lost, as on a cable.
                with contextlib.suppress(OSError):
                    os.write(other[file], frames[0][1])
                frames.popleft()
        due = [frames[0][0] - now for frames in waiting.values() if frames]
        for file in select.select(files, [], [], max(0.0, min(due)) if due else None)[0]:
            try:
                frame = os.read(file, FRAME)
            except OSError:
                time.sleep(0.01)  # down
                continue
            late = time.monotonic() + seconds + random.uniform(0, jitter)
            before = waiting[file][-1][0] if waiting[file] else 0.0
            waiting[file].append((max(late, before), frame))


if __name__ == "__main__":
    interfaces = [make_interface(name) for name in sys.argv[1:3]]
    print("ready", flush=True)
    pass_on(interfaces, float(sys.argv[3]), float(sys.argv[4]))
