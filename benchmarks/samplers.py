"""Every sampler beside plain neighbour sampling, in turn on one thread and one graph.

    python benchmarks/samplers.py

For each sampler: milliseconds a mini-batch, edges drawn and looked at, input nodes, and its time
per edge over that of plain sampling: by the edges drawn, and by the edges that it must look at
(a weighted draw reads the weight of every in-edge). The typed graph is compared with plain sampling
of the same edges without types.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import hopline.pipes as hp

sys.path.insert(0, str(Path(__file__).parent))
from graphs import add_graph_options, products_graph

LATEST = 1_000_000


@dataclass
class Measured:
    """One sampler's figures, one entry a repetition."""

    name: str
    chain: Any
    looks: bool  # at every in-edge of a column, not just at those it draws
    baseline: str
    seconds: list[float] = field(default_factory=list)
    drawn: int = 0
    seen: int = 0
    nodes: int = 0

    def run(self, graph: hp.FusedCSCSamplingGraph, epoch: int, batches: int) -> None:
        """Samples so many mini-batches."""
        source, stages = self.chain.parts()
        made = [source.batch(epoch, i) for i in range(batches)]
        start = time.perf_counter()
        for i, minibatch in enumerate(made):
            for stage in stages:
                minibatch = stage(minibatch)
            made[i] = minibatch
        self.seconds.append((time.perf_counter() - start) / batches)
        degrees = torch.diff(graph.csc_indptr)
        self.drawn = self.seen = self.nodes = 0
        for minibatch in made:
            self.nodes += _count(minibatch.input_nodes) // batches
            for subgraph in minibatch.sampled_subgraphs:
                self.drawn += _count(subgraph.original_edge_ids) // batches
                for ids in _fused(graph, subgraph.original_column_node_ids):
                    self.seen += int(degrees[ids.long()].sum()) // batches


def _count(value: Any) -> int:
    return sum(map(len, value.values())) if isinstance(value, dict) else len(value)


def _fused(graph: hp.FusedCSCSamplingGraph, ids: Any) -> list[torch.Tensor]:
    if not isinstance(ids, dict):
        return [ids]
    return [v + graph.node_type_offset[graph.node_type_to_id[k]] for k, v in ids.items()]


def typed_graph(nodes: int, edges: int) -> dict[str, hp.FusedCSCSamplingGraph]:
    """Two node types and four edge types; and the same edges without types."""
    generator = torch.Generator().manual_seed(3)
    half = nodes // 2
    # Skewed sources: the cube of a uniform variate.
    src = (torch.rand(edges, generator=generator).pow(3) * nodes).long()
    dst = torch.randint(0, nodes, (edges,), generator=generator)
    lists = {}
    for s in range(2):
        for d in range(2):
            mine = (src // half).clamp(max=1).eq(s) & (dst // half).clamp(max=1).eq(d)
            lists[f"{'ab'[s]}:to_{'ab'[d]}:{'ab'[d]}"] = (
                src[mine] - s * half,
                dst[mine] - d * half,
            )
    return {
        "typed": hp.from_coo(
            lists, num_nodes={"a": half, "b": nodes - half}, include_original_edge_id=False
        ),
        "without types": hp.from_coo(src, dst, nodes, include_original_edge_id=False),
    }


def chains(options: argparse.Namespace, graph: hp.FusedCSCSamplingGraph) -> list[Measured]:
    """The samplers on the large graph."""
    generator = torch.Generator().manual_seed(1)
    train = torch.randperm(graph.total_num_nodes, generator=generator)[:196_615]
    graph.add_edge_attribute("w", torch.rand(graph.total_num_edges, generator=generator))
    graph.add_edge_attribute(
        "t", torch.randint(0, LATEST, (graph.total_num_edges,), generator=generator)
    )
    late = torch.full_like(train, LATEST // 2)

    def items(*columns: Any, names: Any = "seeds", size: int = options.batch_size) -> Any:
        made = hp.ItemSet(columns if len(columns) > 1 else columns[0], names=names)
        return hp.ItemSampler(made, size, shuffle=True, seed=1)

    nodes, fanouts = items(train), options.fanout
    timed = items(train, late, names=("seeds", "timestamp"))
    edges = torch.randint(0, graph.total_num_edges, (196_615,), generator=generator)
    pairs = torch.stack(
        [graph.indices[edges].long(), torch.searchsorted(graph.csc_indptr, edges, right=True) - 1],
        dim=1,
    )
    links = items(pairs, size=options.batch_size // 2)

    def make(name: str, chain: Any, looks: bool = True, baseline: str = "plain") -> Measured:
        return Measured(name, chain, looks, baseline)

    named: Callable[..., Any] = nodes.sample_neighbor
    return [
        make("plain", named(graph, fanouts), looks=False),
        make("with replacement", named(graph, fanouts, replace=True), looks=False),
        make("weighted", named(graph, fanouts, prob_name="w")),
        make("LABOR", nodes.sample_layer_neighbor(graph, fanouts)),
        make("LABOR, one for all hops",
             nodes.sample_layer_neighbor(graph, fanouts, layer_dependency=True)),
        make("temporal", timed.temporal_sample_neighbor(
            graph, fanouts[1:], edge_timestamp_attr_name="t")),
        make("link, 1 negative, seed edges excluded", links.sample_uniform_negative(graph, 1)
             .sample_neighbor(graph, fanouts[1:]).exclude_seed_edges(), looks=False),
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_graph_options(parser)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument(
        "--fanout", type=lambda s: [int(x) for x in s.split(",")], default=[10, 10, 10]
    )
    parser.add_argument("--batches", type=int, default=5, help="mini-batches a repetition")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--typed-nodes", type=int, default=400_000)
    parser.add_argument("--typed-edges", type=int, default=20_000_000)
    options = parser.parse_args()
    graph = products_graph(options)
    print(f"{graph}, batch {options.batch_size}, fanout {options.fanout}")
    measured = [(graph, m) for m in chains(options, graph)]
    for name, other in typed_graph(options.typed_nodes, options.typed_edges).items():
        seeds = torch.arange(0, 100_000)
        items: Any = hp.ItemSet(seeds, names="seeds")
        if other.is_heterogeneous:
            items = hp.HeteroItemSet({"a": items})
        chain = hp.ItemSampler(items, options.batch_size, shuffle=True, seed=1)
        sampled = chain.sample_neighbor(other, options.fanout[1:])
        measured.append((other, Measured(name, sampled, False, "without types")))
    for repetition in range(options.repetitions + 1):
        for other, m in measured:
            m.run(other, repetition, options.batches)
    by_name = {m.name: m for _, m in measured}
    print(
        f"{'':40} {'ms':>8} {'drawn':>10} {'looked at':>11} {'nodes':>9} {'x drawn':>8} x looked at"
    )
    for _, m in measured:
        base = by_name[m.baseline]
        # Repetition by repetition: the machine's pace changes. The first one compiles.
        ratios = [
            (a / m.drawn) / (b / base.drawn)
            for a, b in zip(m.seconds[1:], base.seconds[1:], strict=True)
        ]
        ratio = statistics.median(ratios)
        seen = f"{ratio * m.drawn / m.seen:.2f}" if m.looks else ""
        print(
            f"{m.name:40} {statistics.median(m.seconds[1:]) * 1e3:8.1f} {m.drawn:10,} "
            f"{m.seen:11,} {m.nodes:9,} {ratio:8.2f} {seen}"
        )


if __name__ == "__main__":
    main()
