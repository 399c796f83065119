"""What a user waits for: the import, the first compile of all kernels, and the cached one.

    python benchmarks/startup.py

Each figure is taken in fresh interpreters; the compile with an empty cache folder, then with the
filled one. The kernels are those of sampling (both index types, homogeneous and typed), gathering,
shuffling, building a graph, and training a layer.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile

IMPORT = "import time; t = time.perf_counter(); {}; print(time.perf_counter() - t)"

KERNELS = """
import time
import torch
import hopline.pipes as hp
from hopline.models.sage import SAGE

start = time.perf_counter()
store = hp.BasicFeatureStore({("node", None, "x"): hp.TorchBasedFeature(torch.randn(50, 4))})
ends = torch.randint(0, 50, (2, 500))
graph = hp.from_coo(ends[0], ends[1], 50)
wide = hp.FusedCSCSamplingGraph(graph.csc_indptr, graph.indices.long())
checked = hp.fused_csc_sampling_graph(graph.csc_indptr, graph.indices)
items = hp.ItemSet((torch.arange(50), torch.arange(50) % 3), names=("seeds", "labels"))
for g in (graph, wide):
    chain = hp.ItemSampler(items, 10, shuffle=True, seed=0).sample_neighbor(g, [3, 3])
    minibatch = next(iter(chain.fetch_feature(store, ["x"])))
typed = hp.from_coo({"a:r:a": (ends[0], ends[1])}, num_nodes={"a": 50})
seeds = hp.HeteroItemSet({"a": hp.ItemSet(50, "seeds")})
next(iter(hp.ItemSampler(seeds, 10, seed=0).sample_neighbor(typed, [3, 3])))
model = SAGE(4, 8, 3, num_layers=2)
model(minibatch.blocks, minibatch.node_features["x"]).sum().backward()
print(time.perf_counter() - start)
"""


def seconds(code: str, cache: str) -> float:
    """What the code prints, run in a fresh interpreter."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return float(done.stdout.split()[-1])


def main() -> None:
    with tempfile.TemporaryDirectory() as cache:
        for statement in ("import torch", "import hopline.pipes"):
            times = [seconds(IMPORT.format(statement), cache) for _ in range(6)][1:]
            print(f"{statement}: {statistics.median(times):.2f} s warm")
        print(f"all kernels, first compile: {seconds(KERNELS, cache):.1f} s")
        times = [seconds(KERNELS, cache) for _ in range(3)]
        print(f"all kernels, from the cache: {statistics.median(times):.1f} s")


if __name__ == "__main__":
    main()
