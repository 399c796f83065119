"""What a preparation says that it needs of the disk is never below what it uses."""

import stat
from contextlib import suppress

import numpy as np
import pytest

from hopline.pipes.datasets import bucket_sort, csc, disk_space, journal, preprocess_ondisk_dataset
from hopline.pipes.datasets.npy_writer import NpyWriter
from tests.pipes.datasets.dataset_files import npy, write

MEMORY = 1 << 20
BLOCK = 4096


def used(folder):
    """Bytes of a data set's working folder on the disk."""
    total = 0
    for work in folder.glob(".*.tmp-*"):
        for path in work.rglob("*"):
            with suppress(FileNotFoundError):  # removed meanwhile, by the thread that sorts ahead
                if stat.S_ISREG((status := path.stat()).st_mode):
                    total += -(-status.st_size // BLOCK) * BLOCK
    return total


def ends(kind, edges, nodes):
    rng = np.random.default_rng(7)
    if kind == "few edges a node":  # a bucket has too many nodes
        return rng.integers(0, nodes, edges)
    if kind == "neighbours":  # a bucket has too many edges, and so has each of its cells
        return nodes // 2 + rng.integers(0, 3, edges)
    return np.where(rng.random(edges) < 0.5, 5, rng.integers(0, nodes, edges))


@pytest.mark.parametrize("kind", ["few edges a node", "neighbours", "a hub"])
def test_the_estimate_is_not_below_the_peak(tmp_path, monkeypatch, kind):
    edges, nodes = 300_000, 1_000_000
    monkeypatch.setattr(journal, "INTERVAL", 0.0)
    document = {
        "graph": {
            "nodes": [{"num": nodes}],
            "edges": [npy("edges.npy")],
            "feature_data": [npy("w.npy", domain="edge", name="w")],
        }
    }
    arrays = {
        "edges.npy": np.stack([np.arange(edges), ends(kind, edges, nodes)]),
        "w.npy": np.zeros((edges, 3), np.float32),
    }
    folder = write(tmp_path / "d", document, arrays)
    needed, peak, levels = [], 0, set()

    def checked(*arguments):
        needed.append(used(folder) + arguments[1])
        disk_space.check_space(*arguments)

    def watched(owner, name):
        plain = getattr(owner, name)

        def work(*arguments, **keys):
            nonlocal peak
            result = plain(*arguments, **keys)
            levels.update(path.name.split("-")[1] for path in folder.rglob("buckets-*"))
            peak = max(peak, used(folder))
            return result

        monkeypatch.setattr(owner, name, work)

    monkeypatch.setattr(csc, "check_space", checked)
    watched(bucket_sort, "_scattered")
    watched(bucket_sort.Sorter, "stored")
    watched(NpyWriter, "append")
    preprocess_ondisk_dataset(folder, max_memory=MEMORY)
    assert len(levels) > 1, "no bucket was distributed again"
    assert peak <= needed[-1]
    assert needed[-1] < 2 * peak, "what fits is refused"
