"""Small chains whose mini-batches name themselves, and stages that watch them."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

import hopline.pipes as hp


def numbers(count: int = 11, batch_size: int = 3, **kwargs) -> hp.ItemSampler:
    """Mini-batches of the items 0, 1, ... with label = item modulo 7."""
    items = torch.arange(count)
    kwargs = {"shuffle": True, "seed": 5, **kwargs}
    return hp.ItemSampler(
        hp.ItemSet((items, items % 7), names=("seeds", "labels")), batch_size, **kwargs
    )


def minibatch(number: int) -> hp.MiniBatch:
    """Mini-batch that holds a number three times."""
    return hp.MiniBatch(seeds=torch.full((3,), number))


def ring(num_nodes: int = 50) -> hp.FusedCSCSamplingGraph:
    """Node v has in-neighbours v + 1, v + 2, v + 3 and v + 7, modulo the number of nodes."""
    src = torch.cat([(torch.arange(num_nodes) + step) % num_nodes for step in (1, 2, 3, 7)])
    return hp.from_coo(
        src, torch.arange(num_nodes).repeat(4), num_nodes, include_original_edge_id=True
    )


def ring_features(num_nodes: int = 50) -> hp.BasicFeatureStore:
    """Feature of node i is i, of edge e is 100 + e, in every column."""
    nodes = torch.arange(num_nodes, dtype=torch.float32).unsqueeze(1).expand(-1, 3)
    edges = 100 + torch.arange(4 * num_nodes, dtype=torch.float32).unsqueeze(1)
    return hp.BasicFeatureStore(
        {
            ("node", None, "feat"): hp.TorchBasedFeature(nodes),
            ("edge", None, "weight"): hp.TorchBasedFeature(edges),
        }
    )


def whole_chain(count: int = 11, **kwargs) -> hp.Stage:
    """Items, two hops, node and edge features, and a device."""
    num_nodes = max(50, count)
    return (
        numbers(count, **kwargs)
        .sample_neighbor(ring(num_nodes), [3, 2])
        .fetch_feature(ring_features(num_nodes), ["feat"], ["weight"])
        .copy_to("cpu")
    )


class Call(hp.Stage):
    """Calls a function with each mini-batch, and hands the mini-batch on."""

    def __init__(self, source, function: Callable[[hp.MiniBatch], object]) -> None:
        super().__init__(source)
        self.function = function

    def __call__(self, minibatch: hp.MiniBatch) -> hp.MiniBatch:
        self.function(minibatch)
        return minibatch


class Log:
    """A list that threads write to: the keys of the mini-batches that it was called with."""

    def __init__(self) -> None:
        self.keys: list[tuple[int, int, int]] = []
        self.threads: set[str] = set()
        self._lock = threading.Lock()

    def __call__(self, minibatch: hp.MiniBatch) -> None:
        with self._lock:
            self.keys.append(minibatch.key)
            self.threads.add(threading.current_thread().name)


def seeds(loader) -> list[list[int]]:
    """The seeds of every mini-batch of one loop."""
    return [minibatch.seeds.tolist() for minibatch in loader]
