"""The sampling methods of a graph: one hop for some nodes, outside of a chain."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import torch

from hopline.pipes.checks import check_count
from hopline.pipes.etypes import etype_str_to_tuple
from hopline.pipes.minibatch import MiniBatch
from hopline.pipes.subgraph import CSCFormatBase, SampledSubgraph

if TYPE_CHECKING:
    from hopline.pipes.graph import FusedCSCSamplingGraph
    from hopline.pipes.stages.hops import HopSampler

__all__ = ["sample_negative_pairs", "sample_once"]


def sample_once(
    sampler: type[HopSampler],
    graph: FusedCSCSamplingGraph,
    seeds: Any,
    fanouts: Any,
    random_seed: int | None,
    timestamp: Any = None,
    pre_time_window: Any = None,
    **options: Any,
) -> SampledSubgraph:
    """One hop by a sampler of the chain, with original ids in place of positions.

    Args:
        sampler: class of the sampler.
        graph: the graph.
        seeds: integer[n], or `{node type: integer[n]}`.
        fanouts: int, or one for each edge type.
        random_seed: from which all draws follow; None for a fresh one. A chain with this seed draws
            the same in the first hop of its first mini-batch.
        timestamp: the seeds' times, for samplers that need them.
        pre_time_window: the seeds' windows, likewise.
        options: further arguments of the sampler.

    Returns:
        The edges, `indices` being original ids of the source type; `original_row_node_ids` is None.

    Raises:
        TypeError, ValueError, IndexError: as the sampler does.
    """
    for name, value in seeds.items() if isinstance(seeds, dict) else [("", seeds)]:
        if isinstance(value, torch.Tensor) and value.dim() != 1:
            of = f" of type {name!r}" if name else ""
            raise ValueError(f"seeds{of} have shape {tuple(value.shape)}; expected one dimension")
    if isinstance(fanouts, torch.Tensor):
        fanouts = fanouts.tolist()
    if random_seed is None:
        random_seed = secrets.randbits(63)
    random_seed = check_count(random_seed, "random_seed", None)
    stage = sampler([], graph, [fanouts], **options)
    stage.deduplicate = False
    extra = {} if pre_time_window is None else {"pre_time_window": pre_time_window}
    minibatch = stage(
        MiniBatch(seeds=seeds, timestamp=timestamp, key=(random_seed, 0, 0), extra=extra)
    )
    assert minibatch.sampled_subgraphs is not None
    return _with_original_ids(minibatch.sampled_subgraphs[0])


def _with_original_ids(subgraph: SampledSubgraph) -> SampledSubgraph:
    rows: Any = subgraph.original_row_node_ids
    csc = subgraph.sampled_csc
    if isinstance(csc, CSCFormatBase):
        named: Any = CSCFormatBase(csc.indptr, rows[csc.indices])
    else:
        named = {
            etype: CSCFormatBase(part.indptr, rows[etype_str_to_tuple(etype)[0]][part.indices])
            for etype, part in csc.items()
        }
    return SampledSubgraph(
        named, subgraph.original_column_node_ids, None, subgraph.original_edge_ids
    )


def sample_negative_pairs(
    graph: FusedCSCSamplingGraph,
    edge_type: str | None,
    node_pairs: torch.Tensor,
    negative_ratio: int,
    random_seed: int | None,
) -> torch.Tensor:
    """The pairs, then their sources with other destinations; see `UniformNegativeSampler`.

    Args:
        graph: the graph.
        edge_type: of the pairs; None when homogeneous.
        node_pairs: integer[n, 2].
        negative_ratio: negatives for each pair.
        random_seed: from which all draws follow; None for a fresh one.

    Returns:
        Integer[n * (1 + negative_ratio), 2].

    Raises:
        TypeError, ValueError, IndexError: as the sampler does.
    """
    from hopline.pipes.stages.negative import UniformNegativeSampler

    stage = UniformNegativeSampler([], graph, negative_ratio)
    seeds: Any = {edge_type: node_pairs} if edge_type else node_pairs
    seed = secrets.randbits(63) if random_seed is None else random_seed
    seed = check_count(seed, "random_seed", None)
    found: Any = stage(MiniBatch(seeds=seeds, key=(seed, 0, 0))).seeds
    pairs: torch.Tensor = found[edge_type] if edge_type else found
    return pairs
