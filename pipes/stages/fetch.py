"""FeatureFetcher: reads the features of the sampled nodes and edges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from hopline.pipes.checks import check_flag
from hopline.pipes.features.feature import FeatureStore
from hopline.pipes.minibatch import MiniBatch, check_minibatch
from hopline.pipes.stage import Stage

__all__ = ["FeatureFetcher"]

Pairs = list[tuple[str | None, str]]
Request = tuple[tuple[str, str | None, str], torch.Tensor]
Keys = Sequence[str] | Mapping[str, Sequence[str]] | None


class FeatureFetcher(Stage):
    """Fills `node_features` and `edge_features`; `chain.fetch_feature(store, ["feat"])`.

    Args:
        source: the chain before it.
        feature_store: where to read.
        node_feature_keys: names to read for `input_nodes` (or for the seeds, when nothing has been
            sampled); `{node type: names}` when heterogeneous.
        edge_feature_keys: names to read for each hop's edges by their original ids;
            `{edge type: names}` when heterogeneous.
        overlap_fetch: accepted for GraphBolt's scripts; loader threads overlap all stages.
        cooperative: accepted if False.

    Raises:
        TypeError: keys of wrong kind.
        KeyError: the store lacks a feature.
    """

    def __init__(
        self,
        source: Any,
        feature_store: FeatureStore,
        node_feature_keys: Keys = None,
        edge_feature_keys: Keys = None,
        overlap_fetch: bool = True,
        cooperative: bool = False,
    ) -> None:
        super().__init__(source)
        if not all(hasattr(feature_store, name) for name in ("read", "keys", "__contains__")):
            raise TypeError(
                f"feature_store is a {type(feature_store).__name__}; expected a FeatureStore"
            )
        check_flag(cooperative, "cooperative")
        if cooperative:
            raise ValueError("cooperative is True; cooperative mini-batching is not supported")
        self.feature_store = feature_store
        self.node_keys = _pairs(node_feature_keys, "node_feature_keys")
        self.edge_keys = _pairs(edge_feature_keys, "edge_feature_keys")
        for domain, pairs in (("node", self.node_keys), ("edge", self.edge_keys)):
            for kind, name in pairs:
                if (domain, kind, name) not in feature_store:
                    raise KeyError(
                        f"no {domain} feature {name!r} of type {kind!r} in the store; it has "
                        f"{feature_store.keys()}"
                    )

    def __call__(self, minibatch: MiniBatch) -> MiniBatch:
        """Reads the features of one mini-batch.

        Raises:
            ValueError: it has no nodes, or no hops, to read features for.
        """
        check_minibatch(minibatch, "fetch_feature")
        requests: list[Request] = []
        if self.node_keys:
            nodes = minibatch.input_nodes if minibatch.input_nodes is not None else minibatch.seeds
            if nodes is None:
                raise ValueError("the mini-batch has neither input_nodes nor seeds to read for")
            requests += _requests("node", self.node_keys, nodes)
        hops = minibatch.sampled_subgraphs
        if self.edge_keys:
            if hops is None:
                raise ValueError(
                    "edge features need sampled hops; put fetch_feature after a sampler"
                )
            for subgraph in hops:
                requests += _requests("edge", self.edge_keys, subgraph.original_edge_ids)
        rows = iter(self._read(requests))
        if self.node_keys:
            minibatch.node_features = _named(self.node_keys, rows)
        if self.edge_keys and hops is not None:
            minibatch.edge_features = [_named(self.edge_keys, rows) for _ in hops]
        return minibatch

    def _read(self, requests: list[Request]) -> list[torch.Tensor]:
        store = self.feature_store
        if hasattr(store, "read_many"):
            return store.read_many(requests)
        return [store.read(*key, ids) for key, ids in requests]

    def settings(self) -> dict[str, Any]:
        """The features that are read."""
        return {
            "node_feature_keys": [list(pair) for pair in self.node_keys],
            "edge_feature_keys": [list(pair) for pair in self.edge_keys],
        }


def _requests(domain: str, pairs: Pairs, ids: Any) -> Iterator[Request]:
    """What to read for some ids.

    Raises:
        ValueError: keys have types and ids have not, or the other way round.
    """
    for kind, name in pairs:
        if (kind is None) == isinstance(ids, dict):
            raise ValueError(
                f"{domain} ids are {'by type' if kind is None else 'of one type'}, but the "
                f"keys are {pairs}; pass {'{type: [names]}' if kind is None else '[names]'}"
            )
        if kind is None:
            yield (domain, None, name), ids
        else:
            # A type that the mini-batch lacks has no rows.
            yield (
                (domain, kind, name),
                ids[kind] if kind in ids else torch.empty(0, dtype=torch.int64, device="cpu"),
            )


def _named(pairs: Pairs, rows: Iterator[torch.Tensor]) -> dict[Any, torch.Tensor]:
    """`{name: rows}`, or `{(type, name): rows}`, of the next rows."""
    return {name if kind is None else (kind, name): next(rows) for kind, name in pairs}


def _pairs(keys: Keys, what: str) -> list[tuple[str | None, str]]:
    """(type or None, name) of each key."""
    if keys is None:
        return []
    groups = keys.items() if isinstance(keys, Mapping) else [(None, keys)]
    pairs: list[tuple[str | None, str]] = []
    for kind, names in groups:
        listed = isinstance(names, Sequence | set | frozenset) and not isinstance(names, str)
        if not listed or not all(isinstance(name, str) for name in names):
            raise TypeError(f"{what} is {keys!r}; expected a list of names, or {{type: [names]}}")
        # Sets come in another order in another process.
        ordered = names if isinstance(names, Sequence) else sorted(names)
        pairs.extend((kind, name) for name in ordered)
    return pairs
