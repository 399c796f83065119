"""The graph that benchmarks read: the size and skew of ogbn-products, made from a seed."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch

import hopline.pipes as hp

NODES = 2_449_029
EDGES = 123_718_280


def add_graph_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--edges", type=int, default=EDGES)
    parser.add_argument(
        "--data",
        type=Path,
        default=Path(tempfile.gettempdir()) / "hopline-benchmarks",
        help="folder that keeps the graph for later runs",
    )


def power_law_graph(nodes: int, edges: int, seed: int = 0) -> hp.FusedCSCSamplingGraph:
    """In-degrees follow a power law; a source is drawn in proportion to its in-degree."""
    rng = np.random.default_rng(seed)
    weight = rng.pareto(1.8, nodes) + 0.3
    degree = np.minimum(np.maximum(1, weight / weight.sum() * edges), 20_000).astype(np.int64)
    indptr = np.concatenate([[0], np.cumsum(degree)])
    owner = np.repeat(np.arange(nodes, dtype=np.int32), degree)
    indices = np.empty(len(owner), np.int32)
    for low in range(0, len(owner), 1 << 24):
        part = indices[low : low + (1 << 24)]
        part[:] = owner[rng.integers(0, len(owner), len(part))]
    return hp.fused_csc_sampling_graph(torch.from_numpy(indptr), torch.from_numpy(indices))


def products_graph(options: argparse.Namespace) -> hp.FusedCSCSamplingGraph:
    """The graph of these options, made once and kept, in memory."""
    folder = options.data / f"power-law-{options.nodes}-{options.edges}"
    if not (folder / "graph.yaml").exists():
        print(f"making a graph of {options.nodes} nodes in {folder}", flush=True)
        power_law_graph(options.nodes, options.edges).save(folder)
    return hp.FusedCSCSamplingGraph.load(folder, in_memory=True)


def power_law_on(
    device: torch.device, nodes: int, edges: int, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """A graph of the same kind, made on a device: indptr int64[nodes + 1], indices int32[edges]."""
    generator = torch.Generator(device).manual_seed(seed)
    drawn = torch.rand(nodes, generator=generator, device=device, dtype=torch.float64)
    weight = (1 - drawn).pow(-1 / 1.8) - 0.7  # Pareto of 1.8, and 0.3
    degree = (weight / weight.sum() * edges).clamp(1, 20_000).long()
    indptr = torch.cat([degree.new_zeros(1), degree.cumsum(0)])
    total = int(indptr[-1])
    owner = torch.arange(nodes, dtype=torch.int32, device=device)
    owner = torch.repeat_interleave(owner, degree, output_size=total)
    indices = torch.empty_like(owner)
    for low in range(0, total, 1 << 24):
        part = indices[low : low + (1 << 24)]
        picked = torch.randint(total, (len(part),), generator=generator, device=device)
        torch.index_select(owner, 0, picked, out=part)
    return indptr, indices
