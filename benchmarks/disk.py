"""Rows a second of DiskBasedFeature and of a memory map, with nothing in the page cache.

    python benchmarks/disk.py

Writes a file of random float32 rows to a folder on the disk to measure, and deletes it at the end.
Before each measurement the file's pages are dropped from the page cache. All read the same number
of random rows: one thread through a memory map as it is opened, one thread through a map that is
advised of random access (no read-ahead), and the feature through the page cache and past it. How
much the page cache holds of the file afterwards is measured too. Figures are medians.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import mmap
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import hopline.pipes as hp
from hopline.pipes.features.rows import gather

GIGABYTE = 1 << 30


def write(path: Path, rows: int, dim: int) -> None:
    rng = np.random.default_rng(0)
    array = np.lib.format.open_memmap(path, "w+", np.float32, (rows, dim))
    step = (1 << 26) // (4 * dim)
    for low in range(0, rows, step):
        array[low : low + step] = rng.random((min(step, rows - low), dim), np.float32)
    array.flush()


def drop(path: Path) -> None:
    """Drops the file's pages from the page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def map_file(path: Path, advice: int | None = None) -> mmap.mmap:
    with path.open("rb") as file:
        pages = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    if advice is not None:
        pages.madvise(advice)
    return pages


def cached_bytes(path: Path) -> int:
    """Bytes of the file that the page cache holds."""
    pages = np.frombuffer(map_file(path), np.uint8)
    state = np.zeros(-(-len(pages) // mmap.PAGESIZE), np.uint8)
    address, length = ctypes.c_void_p(pages.ctypes.data), ctypes.c_size_t(len(pages))
    if ctypes.CDLL(None).mincore(address, length, ctypes.c_void_p(state.ctypes.data)):
        raise OSError("mincore failed")
    return int((state & 1).sum()) * mmap.PAGESIZE


def mapped(
    path: Path, shape: tuple[int, int], advice: int | None, ids: torch.Tensor
) -> torch.Tensor:
    """Reads through a map, new each time, by the kernel that gathers from memory."""
    pages = map_file(path, advice)  # what a map has used is not dropped from the page cache
    array = np.ndarray(shape, np.float32, pages, len(pages) - 4 * shape[0] * shape[1])
    return gather(torch.from_numpy(array), ids.numpy())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--path",
        type=Path,
        default=Path(tempfile.gettempdir()),
        help="folder on the disk to measure; not one in memory (tmpfs)",
    )
    parser.add_argument("--size", type=float, default=2, help="gigabytes of the file")
    parser.add_argument("--dim", type=int, default=128, help="float32 values a row")
    parser.add_argument("--rows", type=int, default=4000, help="rows a measurement")
    parser.add_argument("--threads", type=int, help="num_threads of the feature")
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args()
    count = int(options.size * GIGABYTE) // (4 * options.dim)
    with tempfile.TemporaryDirectory(prefix="hopline-disk-", dir=options.path) as folder:
        path = Path(folder) / "rows.npy"
        write(path, count, options.dim)
        drop(path)
        if left := cached_bytes(path):
            raise SystemExit(
                f"{left} bytes of {path} stay in memory when they are dropped: that is no disk; "
                "give --path"
            )
        measure(path, count, options)


def measure(path: Path, count: int, options: argparse.Namespace) -> None:
    features = {
        f"feature, {what}": hp.DiskBasedFeature(path, direct=direct, num_threads=options.threads)
        for what, direct in (("through the page cache", False), ("past the page cache", True))
    }
    readers: dict[str, Callable[..., torch.Tensor]] = {
        "map": functools.partial(mapped, path, (count, options.dim), None),
        "map, advised random": functools.partial(
            mapped, path, (count, options.dim), mmap.MADV_RANDOM
        ),
        **{name: feature.read for name, feature in features.items()},
    }
    for read in readers.values():
        read(torch.zeros(1, dtype=torch.int64))  # compiles
    print(
        f"{options.size:g} GB in {count} rows of {4 * options.dim} bytes, "
        f"{options.rows} random rows a measurement, {options.repetitions} repetitions"
    )
    rates: dict[str, list[float]] = defaultdict(list)
    cached: dict[str, list[float]] = defaultdict(list)
    generator = torch.Generator().manual_seed(time.time_ns() % 2**32)
    for _ in range(options.repetitions):
        ids = torch.randint(count, (options.rows,), generator=generator)
        results = []
        for name, read in readers.items():
            drop(path)
            start = time.perf_counter()
            results.append(read(ids))
            rates[name].append(options.rows / (time.perf_counter() - start))
            cached[name].append(cached_bytes(path) / 1e6)
        if not all(torch.equal(result, results[0]) for result in results):
            raise SystemExit("the readers disagree")
    for name in readers:
        threads = features[name].num_threads if name in features else 1
        print(
            f"{name}, {threads} threads: {statistics.median(rates[name]):,.0f} rows/s "
            f"(lowest {min(rates[name]):,.0f}, highest {max(rates[name]):,.0f}), "
            f"{statistics.median(cached[name]):,.1f} MB in the page cache"
        )
    for name in features:
        for base in ("map", "map, advised random"):
            ratios = [a / b for a, b in zip(rates[name], rates[base], strict=True)]
            print(f"{name} over {base}: {statistics.median(ratios):.1f}")


if __name__ == "__main__":
    main()
