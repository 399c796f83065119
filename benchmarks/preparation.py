"""Preparation of edge lists of several sizes: time, memory, bytes, and the line through the times.

    python benchmarks/preparation.py
    python benchmarks/preparation.py --edges 1e6 1e7 1e8 1e9 --max-memory 8GB --folder /data
    python benchmarks/preparation.py --format csv

Each size has 50 edges a node, uniform sources and heavy-tailed destinations: node floor(N u**3) for
u uniform in [0, 1). The edge list is written to a folder, copied (`cp`, and fsync), and prepared by
`hopline preprocess` in a process of its own, where everything is compiled already. A file is in the
page cache if it fits; with --cold it is dropped from it before the copy and before preparation.
Peak memory is sampled every 20 ms from /proc: anonymous (what the process holds itself) and in all
(with the pages of mapped files). Bytes are what the process read and wrote by system calls, and
what of it went to the disk; pages that are read by mapping count with the latter only. Files are
removed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import yaml

from hopline.pipes.cli import parse_memory

STEP = 1 << 22  # edges generated at a time
HEAD = (
    f"{'edges':>14} {'nodes':>12} {'s':>8} {'M edges/s':>10} {'less start':>10} {'anon MB':>8} "
    f"{'RSS MB':>8} {'read MB':>8} {'written MB':>10} {'disk r/w MB':>15} {'cp s':>7} {'ratio':>6}"
)
COMMAND = "import sys; from hopline.pipes.cli import main; sys.exit(main())"


def chunks(edges: int, nodes: int):
    """Sources and destinations, int32[n] each; the same for every format."""
    for i, low in enumerate(range(0, edges, STEP)):
        rng = np.random.default_rng((1, i))
        n = min(STEP, edges - low)
        yield (
            rng.integers(0, nodes, n, dtype=np.int32),
            (nodes * rng.random(n) ** 3).astype(np.int32),
        )


def write_edges(folder: Path, edges: int, nodes: int, form: str) -> Path:
    path = folder / f"edges.{form}"
    if form == "npy":
        array = np.lib.format.open_memmap(path, "w+", np.int32, (2, edges))
        for i, (src, dst) in enumerate(chunks(edges, nodes)):
            array[0, i * STEP : i * STEP + len(src)] = src
            array[1, i * STEP : i * STEP + len(dst)] = dst
        array.flush()
    elif form == "csv":
        import pyarrow as pa
        import pyarrow.csv

        schema = pa.schema([("src", pa.int32()), ("dst", pa.int32())])
        options = pyarrow.csv.WriteOptions(include_header=False)
        with pyarrow.csv.CSVWriter(path, schema, write_options=options) as writer:
            for src, dst in chunks(edges, nodes):
                writer.write(pa.table([src, dst], schema=schema))
    else:
        import pyarrow as pa
        import pyarrow.parquet

        schema = pa.schema([("src", pa.int32()), ("dst", pa.int32())])
        with pyarrow.parquet.ParquetWriter(path, schema) as writer:
            for src, dst in chunks(edges, nodes):
                writer.write(pa.table([src, dst], schema=schema))
    form = "numpy" if form == "npy" else form
    document = {
        "graph": {"nodes": [{"num": nodes}], "edges": [{"format": form, "path": path.name}]}
    }
    (folder / "metadata.yaml").write_text(yaml.safe_dump(document))
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return path


def drop(path: Path) -> None:
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def copy(path: Path) -> float:
    """Seconds of a plain copy that is on the disk at the end."""
    target = path.with_name("copy")
    started = time.perf_counter()
    subprocess.run(["cp", str(path), str(target)], check=True)
    with target.open("rb") as file:
        os.fsync(file.fileno())
    seconds = time.perf_counter() - started
    target.unlink()
    return seconds


def figures(pid: int) -> dict[str, int]:
    """What /proc tells of a process; bytes."""
    found: dict[str, int] = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key in ("VmRSS", "RssAnon"):
            found[key] = int(value.split()[0]) << 10
    for line in Path(f"/proc/{pid}/io").read_text().splitlines():
        key, _, value = line.partition(":")
        found[key] = int(value)
    return found


def prepare(folder: Path, memory: str) -> tuple[float, dict[str, int]]:
    """Seconds, and the highest figures seen."""
    command = [sys.executable, "-c", COMMAND, "preprocess", str(folder), "--max-memory", memory]
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    peak: dict[str, int] = {}
    while process.poll() is None:
        try:
            for key, value in figures(process.pid).items():
                peak[key] = max(peak.get(key, 0), value)
        except (OSError, ValueError):  # it has just ended
            continue
        time.sleep(0.02)
    seconds = time.perf_counter() - started
    if process.returncode:
        raise SystemExit(f"preparation failed with status {process.returncode}")
    return seconds, peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--edges", type=float, nargs="+", default=[1e6, 1e7, 1e8])
    parser.add_argument("--format", choices=["npy", "csv", "parquet"], default="npy")
    parser.add_argument("--max-memory", default="4GiB", help="as of `hopline preprocess`")
    parser.add_argument("--folder", help="where files are made (default: the temporary folder)")
    parser.add_argument("--cold", action="store_true", help="start with inputs on the disk only")
    options = parser.parse_args()
    memory = parse_memory(options.max_memory)
    where = tempfile.mkdtemp(prefix="preparation-", dir=options.folder)
    root = Path(where)
    print(f"{options.format} edge lists, --max-memory {memory / 1e9:.2f} GB, in {root}")
    times = []
    try:
        warm = root / "warm"
        warm.mkdir()
        write_edges(warm, 1000, 20, options.format)
        for bound in ("1MiB", options.max_memory, options.max_memory):
            start, _ = prepare(warm, bound)
            shutil.rmtree(warm / "preprocessed")
        print(f"start of the process, and 1,000 edges: {start:.2f} s (in the times below)")
        print(HEAD)
        for edges in map(int, options.edges):
            nodes = max(1, edges // 50)
            folder = root / str(edges)
            folder.mkdir()
            path = write_edges(folder, edges, nodes, options.format)
            if options.cold:
                drop(path)
            copied = copy(path)
            if options.cold:
                drop(path)
            seconds, peak = prepare(folder, options.max_memory)
            times.append((edges, seconds))
            # The difference of two times says something only where it is not small.
            rest = seconds - start
            beyond = f"{edges / rest / 1e6:.2f}" if rest > start / 2 else "-"
            mega = {key: value / 1e6 for key, value in peak.items()}
            disk = f"{mega['read_bytes']:,.0f}/{mega['write_bytes']:,.0f}"
            print(f"{edges:>14,} {nodes:>12,} {seconds:>8.2f} {edges / seconds / 1e6:>10.2f} "
                  f"{beyond:>10} {mega['RssAnon']:>8,.0f} "
                  f"{mega['VmRSS']:>8,.0f} {mega['rchar']:>8,.0f} "
                  f"{mega['wchar']:>10,.0f} {disk:>15} {copied:>7.2f} {seconds / copied:>6.1f}",
                  flush=True)  # fmt: skip
            shutil.rmtree(folder)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    if len(times) > 1:
        slope, start = np.polyfit(*np.array(times).T, 1)
        print(f"seconds = {start:.2f} + {slope * 1e9:.1f} * (edges / 1e9)")


if __name__ == "__main__":
    main()
