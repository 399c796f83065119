"""Hopline for `compare.py`; see `protocol`."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import protocol
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

import hopline.pipes as hp
from hopline.models.sage import SAGE
from hopline.pipes.npy import read_npy

Request = dict[str, Any]


def count(minibatch: hp.MiniBatch) -> tuple[int, int]:
    edges = sum(len(s.sampled_csc.indices) for s in minibatch.sampled_subgraphs)
    return edges, len(minibatch.input_nodes)


def count_typed(minibatch: hp.MiniBatch) -> tuple[int, int]:
    edges = sum(
        len(part.indices) for s in minibatch.sampled_subgraphs for part in s.sampled_csc.values()
    )
    return edges, sum(len(ids) for ids in minibatch.input_nodes.values())


class System:
    def __init__(self, data: protocol.Data) -> None:
        self.data = data
        self._graph: tuple[Any, Any] | None = None
        self._store: hp.BasicFeatureStore | None = None
        self._mapped = False

    def array(self, name: str) -> torch.Tensor:
        """In memory, as the other systems have it; or mapped, where memory is measured."""
        if self._mapped:
            return read_npy(self.data.folder / f"{name}.npy")
        return torch.from_numpy(self.data[name])

    def graph(self, request: Request, weighted: bool = False) -> Any:
        torch.set_num_threads(request["threads"])
        self._mapped = bool(request.get("memory"))
        if self._graph is None or self._graph[0] != weighted:
            self._graph = None
            weights = {"weight": self.array("weight")} if weighted else None
            graph = hp.fused_csc_sampling_graph(
                self.array("indptr"), self.array("indices"), edge_attributes=weights
            )
            self._graph = (weighted, graph)
        return self._graph[1]

    def store(self) -> hp.BasicFeatureStore:
        if self._store is None:
            feature = hp.TorchBasedFeature(self.array("feat"))
            self._store = hp.BasicFeatureStore({("node", None, "feat"): feature})
        return self._store

    def chain(self, items: Any, names: Any) -> hp.Stage:
        items = hp.ItemSet(items, names=names)
        return hp.ItemSampler(items, protocol.BATCH_SIZE, shuffle=True, seed=0)

    def nodes(self, name: str = "train") -> torch.Tensor:
        return torch.from_numpy(self.data[name])

    def timed(self, chain: hp.Stage, request: Request, counted: Any = count) -> dict[str, Any]:
        with hp.DataLoader(chain, num_workers=request["workers"]) as loader:
            return protocol.timed(loader, request, counted)

    def fanouts(self, request: Request) -> list[int]:
        return list(reversed(request["fanouts"]))

    def sample(self, request: Request) -> dict[str, Any]:
        graph = self.graph(request)
        chain = self.chain(self.nodes(), "seeds").sample_neighbor(graph, self.fanouts(request))
        return self.timed(chain, request)

    def fetch(self, request: Request) -> dict[str, Any]:
        graph = self.graph(request)
        chain = self.chain(self.nodes(), "seeds").sample_neighbor(graph, self.fanouts(request))
        return self.timed(chain.fetch_feature(self.store(), ["feat"]), request)

    def weighted(self, request: Request) -> dict[str, Any]:
        graph = self.graph(request, weighted=True)
        chain = self.chain(self.nodes(), "seeds")
        chain = chain.sample_neighbor(graph, self.fanouts(request), prob_name="weight")
        return self.timed(chain, request)

    def labor(self, request: Request) -> dict[str, Any]:
        graph = self.graph(request)
        chain = self.chain(self.nodes(), "seeds")
        return self.timed(chain.sample_layer_neighbor(graph, self.fanouts(request)), request)

    def link(self, request: Request) -> dict[str, Any]:
        graph = self.graph(request)
        chain = self.chain(self.nodes("pairs"), "seeds").sample_uniform_negative(graph, 1)
        return self.timed(chain.sample_neighbor(graph, self.fanouts(request)), request)

    def hetero(self, request: Request) -> dict[str, Any]:
        torch.set_num_threads(request["threads"])
        if self._graph is None or self._graph[0] != "hetero":
            self._graph = ("hetero", self.hetero_graph())
        graph = self._graph[1]
        num_types = len(graph.edge_type_to_id)
        fanouts = [[k] * num_types for k in self.fanouts(request)]
        items = hp.HeteroItemSet({"user": hp.ItemSet(self.nodes("users"), names="seeds")})
        chain = hp.ItemSampler(items, protocol.BATCH_SIZE, shuffle=True, seed=0)
        return self.timed(chain.sample_neighbor(graph, fanouts), request, count_typed)

    def hetero_graph(self) -> Any:
        nodes, edges = self.data.hetero()
        pairs = {}
        for name, (indptr, indices) in edges.items():
            columns = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
            pairs[":".join(name)] = (torch.from_numpy(indices), torch.from_numpy(columns))
        # As GraphBolt's graph of the same arrays: edges are known by their positions.
        return hp.from_coo(pairs, num_nodes=nodes, include_original_edge_id=False)

    def train(self, request: Request) -> dict[str, Any]:
        graph, store = self.graph(request), self.store()
        label = torch.from_numpy(self.data["label"])

        def chain(name: str) -> hp.Stage:
            ids = self.nodes(name)
            sampled = self.chain((ids, label[ids]), ("seeds", "labels"))
            sampled = sampled.sample_neighbor(graph, self.fanouts(request))
            return sampled.fetch_feature(store, ["feat"])

        torch.manual_seed(0)
        in_size = int(store.size("node", None, "feat")[0])
        model = SAGE(in_size, protocol.HIDDEN_SIZE, protocol.NUM_CLASSES, dropout=0.0)
        optimizer = torch.optim.Adam(model.parameters(), lr=protocol.LEARNING_RATE)
        workers = request["workers"]
        with hp.DataLoader(chain("train"), num_workers=workers) as loader:
            reader = protocol.endless(loader)

            def step() -> dict[str, float]:
                times = [time.perf_counter()]
                minibatch = next(reader)
                times.append(time.perf_counter())
                scores = model(minibatch.blocks, minibatch.node_features["feat"])
                loss = F.cross_entropy(scores, minibatch.labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                times.append(time.perf_counter())
                edges, nodes = count(minibatch)
                wait, compute = np.diff(times)
                return {
                    "sample_seconds": wait, "fetch_seconds": 0.0, "compute_seconds": compute,
                    "edges": edges, "nodes": nodes, "loss": loss.item(),
                }  # fmt: skip

            def accuracy() -> float:
                right = total = 0
                with torch.no_grad():
                    for minibatch in hp.DataLoader(chain("validation")):
                        scores = model(minibatch.blocks, minibatch.node_features["feat"])
                        right += int((scores.argmax(1) == minibatch.labels).sum())
                        total += len(scores)
                return right / total

            answer = protocol.trained(step, request, accuracy)
            with FlopCounterMode(display=False) as counter:
                step()
        rate = counter.get_total_flops() / answer["compute_ms"] / 1e6
        return {**answer, "gflops": rate, "matrix_gflops": matrix_rate()}


def matrix_rate() -> float:
    """GFLOP a second of a large product of matrices, the best of several."""
    a, b = torch.randn(4096, 1024), torch.randn(1024, 1024)
    best = float("inf")
    for _ in range(8):
        start = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - start)
    return 2 * 4096 * 1024 * 1024 / best / 1e9


TASKS = ("sample", "fetch", "weighted", "labor", "link", "hetero", "train")


def tasks(data: protocol.Data) -> dict[str, Any]:
    system = System(data)
    return {name: getattr(system, name) for name in TASKS}


if __name__ == "__main__":
    protocol.serve(tasks)
