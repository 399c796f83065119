"""exclude_seed_edges, SeedEdgesExcluder: a model must not see the edges that it is to predict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from hopline.pipes.edges import add_reverse_edges, check_edges, check_reverse_etypes
from hopline.pipes.etypes import etype_str_to_tuple
from hopline.pipes.minibatch import MiniBatch, check_minibatch
from hopline.pipes.stage import Stage

__all__ = ["SeedEdgesExcluder", "exclude_seed_edges"]


def exclude_seed_edges(
    minibatch: MiniBatch,
    include_reverse_edges: bool = False,
    reverse_etypes_mapping: Mapping[str, str] | None = None,
    exclude_negatives: bool = False,
    *,
    keep_self_loops: bool = False,
) -> MiniBatch:
    """Takes the seed edges out of every sampled hop.

    Edges are compared by their original ends, so all parallel edges of a seed go, and it makes no
    difference how often a node is in a hop's list. Node lists stay as they are; a destination may
    be left without any edge, which every layer allows.

    The seeds that go are the positive ones: where the mini-batch has both `indexes` and `labels`,
    as after negative sampling, those with a label above 0; else all.

    Args:
        minibatch: after a sampler, with seeds integer[B, 2], or `{edge type: integer[B, 2]}`.
        include_reverse_edges: also take out (v, u) for each seed (u, v).
        reverse_etypes_mapping: `{edge type: edge type of its reverse}`, for typed seeds; a type
            without an entry has no reverse edges.
        exclude_negatives: take out all seeds, whatever their labels.
        keep_self_loops: leave edges from a node to itself, also those that are seeds.

    Returns:
        The mini-batch, its `sampled_subgraphs` replaced.

    Raises:
        TypeError: seeds come by type and the hops do not, or the reverse; a mapping comes with
            seeds without types, or is not one of strings.
        ValueError: seeds are not edges, nothing has been sampled, edge features have been read
            already, labels do not fit the seeds, or the mapping is missing or wrong.
    """
    subgraphs = check_minibatch(minibatch, "exclude_seed_edges").sampled_subgraphs
    if subgraphs is None:
        raise ValueError("there are no sampled hops to exclude edges from; sample first")
    if minibatch.edge_features is not None:
        raise ValueError(
            "edge features have been read for edges that are to go; put fetch_feature after "
            "exclude_seed_edges"
        )
    edges = _seed_edges(minibatch, exclude_negatives)
    if isinstance(edges, dict):
        _check_known(edges, reverse_etypes_mapping if include_reverse_edges else None, subgraphs)
    if include_reverse_edges:
        edges = add_reverse_edges(edges, reverse_etypes_mapping)
    if keep_self_loops:
        edges = _without_self_loops(edges)
    minibatch.sampled_subgraphs = [subgraph.exclude_edges(edges) for subgraph in subgraphs]
    return minibatch


def _seed_edges(minibatch: MiniBatch, negatives: bool) -> Any:
    """The seeds to exclude, as they came: a tensor, or a dict by type."""
    seeds = minibatch.seeds
    if seeds is None:
        raise ValueError("the mini-batch has no seeds; name a column of the item set 'seeds'")
    labels = None if negatives or minibatch.indexes is None else minibatch.labels
    if not isinstance(seeds, dict):
        return _positives(check_edges(seeds, "seeds"), labels, "labels")
    if labels is not None and not isinstance(labels, dict):
        raise TypeError(
            f"seeds come by type ({list(seeds)}), but labels are a {type(labels).__name__}; "
            "expected {edge type: labels}"
        )
    return {
        etype: _positives(
            check_edges(pairs, f"seeds of type {etype!r}"),
            (labels or {}).get(etype),
            f"labels of type {etype!r}",
        )
        for etype, pairs in seeds.items()
    }


def _positives(pairs: torch.Tensor, labels: Any, what: str) -> torch.Tensor:
    if labels is None:
        return pairs
    if not isinstance(labels, torch.Tensor):
        raise TypeError(f"{what} are a {type(labels).__name__}; expected a torch.Tensor")
    if len(labels.reshape(-1)) != len(pairs):
        raise ValueError(
            f"{what} have shape {tuple(labels.shape)} for {len(pairs)} seeds; expected one each, "
            "or pass exclude_negatives=True to exclude all seeds"
        )
    return pairs[(labels.reshape(-1) > 0).to(pairs.device)]


def _check_known(
    edges: dict[str, torch.Tensor], mapping: Mapping[str, str] | None, subgraphs: list[Any]
) -> None:
    """Refuses names by which edges would stay, and leak."""
    known = {etype for s in subgraphs if isinstance(s.sampled_csc, dict) for etype in s.sampled_csc}
    reverses = check_reverse_etypes(mapping) if mapping is not None else {}
    if not known:
        return
    for etype in edges:
        if etype not in known and etype not in reverses:
            raise ValueError(
                f"seeds are of type {etype!r}, but the sampled hops have the edge types "
                f"{sorted(known)}: nothing of theirs would be excluded; check the name, or leave "
                "the stage out"
            )
        if etype not in reverses and etype in reverses.values():
            raise ValueError(
                f"seeds are of type {etype!r}, which reverse_etypes_mapping has as a reverse only; "
                "expected {type of the seeds: type of its reverse}"
            )
    for etype, reverse in reverses.items():
        if etype not in known and etype not in edges:
            raise ValueError(
                f"reverse_etypes_mapping has {etype!r}, which is no type of the seeds nor of the "
                f"sampled hops; those are {sorted(known)}"
            )
        if etype in edges and reverse not in known:
            raise ValueError(
                f"reverse_etypes_mapping gives {reverse!r} as the reverse of {etype!r}, but the "
                f"sampled hops have the edge types {sorted(known)}; leave the entry out if the "
                "graph has no reverse edges"
            )


def _without_self_loops(edges: Any) -> Any:
    if not isinstance(edges, dict):
        return edges[edges[:, 0] != edges[:, 1]]
    kept = {}
    for etype, pairs in edges.items():
        source, _, destination = etype_str_to_tuple(etype)
        kept[etype] = pairs if source != destination else _without_self_loops(pairs)
    return kept


class SeedEdgesExcluder(Stage):
    """Takes the seed edges out of every hop; `chain.exclude_seed_edges()`.

    It stands after a sampler and before `fetch_feature`. See the function `exclude_seed_edges` for
    what goes and what stays.

    Args:
        source: the chain before it.
        include_reverse_edges: also take out (v, u) for each seed (u, v).
        reverse_etypes_mapping: `{edge type: edge type of its reverse}`, for typed seeds; a type
            without an entry has no reverse edges.
        exclude_negatives: take out all seeds, whatever their labels.
        keep_self_loops: leave edges from a node to itself, also those that are seeds.
        asynchronous: accepted for GraphBolt's scripts; loader threads overlap all stages.

    Raises:
        TypeError: a flag is no bool, or the mapping is not one of strings.
        ValueError: the mapping names no edge types, or a type that does not run the other way.
    """

    def __init__(
        self,
        source: Any,
        include_reverse_edges: bool = False,
        reverse_etypes_mapping: Mapping[str, str] | None = None,
        exclude_negatives: bool = False,
        *,
        keep_self_loops: bool = False,
        asynchronous: bool = False,
    ) -> None:
        super().__init__(source)
        for name, flag in (
            ("include_reverse_edges", include_reverse_edges),
            ("exclude_negatives", exclude_negatives),
            ("keep_self_loops", keep_self_loops),
        ):
            if not isinstance(flag, bool):
                raise TypeError(f"{name} is {flag!r}; expected True or False")
        self.include_reverse_edges = include_reverse_edges
        self.reverse_etypes_mapping = (
            None if reverse_etypes_mapping is None else check_reverse_etypes(reverse_etypes_mapping)
        )
        self.exclude_negatives = exclude_negatives
        self.keep_self_loops = keep_self_loops

    def __call__(self, minibatch: MiniBatch) -> MiniBatch:
        """Takes the seed edges out of one mini-batch; see `exclude_seed_edges`."""
        return exclude_seed_edges(
            minibatch,
            self.include_reverse_edges,
            self.reverse_etypes_mapping,
            self.exclude_negatives,
            keep_self_loops=self.keep_self_loops,
        )

    def settings(self) -> dict[str, Any]:
        """Everything that decides which edges go."""
        return {
            "include_reverse_edges": self.include_reverse_edges,
            "reverse_etypes_mapping": self.reverse_etypes_mapping,
            "exclude_negatives": self.exclude_negatives,
            "keep_self_loops": self.keep_self_loops,
        }
