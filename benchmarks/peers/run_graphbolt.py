"""dgl.graphbolt 2.1 for `compare.py`; see `protocol`."""

from __future__ import annotations

import os
import time
import warnings
from itertools import pairwise
from typing import Any

os.environ.setdefault("DGLBACKEND", "pytorch")
warnings.filterwarnings("ignore")

import dgl.graphbolt as gb
import numpy as np
import protocol
import torch
import torch.nn.functional as F
from dgl.nn import SAGEConv

Request = dict[str, Any]


class SAGE(torch.nn.Module):
    def __init__(self, in_size: int) -> None:
        super().__init__()
        hidden = protocol.HIDDEN_SIZE
        sizes = [in_size, hidden, hidden, protocol.NUM_CLASSES]
        self.layers = torch.nn.ModuleList(SAGEConv(a, b, "mean") for a, b in pairwise(sizes))

    def forward(self, blocks: list[Any], x: torch.Tensor) -> torch.Tensor:
        for i, (layer, block) in enumerate(zip(self.layers, blocks, strict=True)):
            x = layer(block, x)
            if i < len(self.layers) - 1:
                x = F.relu(x)
        return x


def count(minibatch: Any) -> tuple[int, int]:
    edges = sum(s.sampled_csc.indices.numel() for s in minibatch.sampled_subgraphs)
    return edges, minibatch.input_nodes.numel()


def count_typed(minibatch: Any) -> tuple[int, int]:
    edges = sum(
        part.indices.numel() for s in minibatch.sampled_subgraphs for part in s.sampled_csc.values()
    )
    return edges, sum(len(ids) for ids in minibatch.input_nodes.values())


class System:
    def __init__(self, data: protocol.Data) -> None:
        self.data = data
        self._graph: tuple[Any, Any] | None = None
        self._store: tuple[Any, Any] | None = None

    def graph(self, request: Request, weighted: bool = False) -> Any:
        key = (request["index"], weighted)
        if self._graph is None or self._graph[0] != key:
            self._graph = None
            indptr = torch.from_numpy(self.data["indptr"])
            indices = torch.from_numpy(self.data["indices"])
            if request["index"] == 32:
                indptr = indptr.int()
            else:
                indices = indices.long()
            weights = {"weight": torch.from_numpy(self.data["weight"])} if weighted else None
            graph = gb.fused_csc_sampling_graph(indptr, indices, edge_attributes=weights)
            self._graph = (key, graph)
        torch.set_num_threads(request["threads"])
        return self._graph[1]

    def store(self) -> tuple[Any, Any]:
        if self._store is None:
            feature = torch.from_numpy(self.data["feat"])
            store = gb.BasicFeatureStore({("node", None, "feat"): gb.TorchBasedFeature(feature)})
            self._store = (store, feature)
        return self._store

    def items(self, request: Request, name: str = "train") -> torch.Tensor:
        dtype = torch.int32 if request["index"] == 32 else torch.int64
        return torch.from_numpy(self.data[name]).to(dtype)

    def loader(self, chain: Any, request: Request, fetched: bool = False) -> Any:
        if request["workers"] and not fetched:
            # Its loader puts the workers before the fetcher, so there must be one.
            chain = chain.fetch_feature(gb.BasicFeatureStore({}))
        return gb.DataLoader(chain, num_workers=request["workers"])

    def chain(self, items: Any, names: Any) -> Any:
        items = gb.ItemSet(items, names=names)
        return gb.ItemSampler(items, batch_size=protocol.BATCH_SIZE, shuffle=True)

    def fanouts(self, request: Request) -> list[torch.Tensor]:
        return [torch.LongTensor([k]) for k in reversed(request["fanouts"])]

    def sample(self, request: Request) -> dict[str, Any]:
        graph = self.graph(request)
        chain = self.chain(self.items(request), "seed_nodes")
        chain = chain.sample_neighbor(graph, self.fanouts(request))
        return protocol.timed(self.loader(chain, request), request, count)

    def fetch(self, request: Request) -> dict[str, Any]:
        graph = self.graph(request)
        chain = self.chain(self.items(request), "seed_nodes")
        chain = chain.sample_neighbor(graph, self.fanouts(request))
        chain = chain.fetch_feature(self.store()[0], node_feature_keys=["feat"])
        return protocol.timed(self.loader(chain, request, fetched=True), request, count)

    def weighted(self, request: Request) -> dict[str, Any]:
        graph = self.graph(request, weighted=True)
        chain = self.chain(self.items(request), "seed_nodes")
        chain = chain.sample_neighbor(graph, self.fanouts(request), prob_name="weight")
        return protocol.timed(self.loader(chain, request), request, count)

    def labor(self, request: Request) -> dict[str, Any]:
        graph = self.graph(request)
        chain = self.chain(self.items(request), "seed_nodes")
        chain = chain.sample_layer_neighbor(graph, self.fanouts(request))
        return protocol.timed(self.loader(chain, request), request, count)

    def link(self, request: Request) -> dict[str, Any]:
        graph = self.graph(request)
        chain = self.chain(self.items(request, "pairs"), "node_pairs")
        chain = chain.sample_uniform_negative(graph, 1)
        chain = chain.sample_neighbor(graph, self.fanouts(request))
        return protocol.timed(self.loader(chain, request), request, count)

    def hetero(self, request: Request) -> dict[str, Any]:
        if self._graph is None or self._graph[0] != ("hetero", request["index"]):
            self._graph = (("hetero", request["index"]), self.hetero_graph(request))
        torch.set_num_threads(request["threads"])
        graph = self._graph[1]
        num_types = len(graph.edge_type_to_id)
        fanouts = [torch.LongTensor([k] * num_types) for k in reversed(request["fanouts"])]
        items = gb.ItemSet(self.items(request, "users"), names="seed_nodes")
        chain = gb.ItemSampler(
            gb.ItemSetDict({"user": items}), batch_size=protocol.BATCH_SIZE, shuffle=True
        )
        chain = chain.sample_neighbor(graph, fanouts)
        return protocol.timed(self.loader(chain, request), request, count_typed)

    def hetero_graph(self, request: Request) -> Any:
        nodes, edges = self.data.hetero()
        dtype = torch.int32 if request["index"] == 32 else torch.int64
        offsets = dict(zip(nodes, np.cumsum([0, *nodes.values()]), strict=False))
        sources, destinations, types = [], [], []
        for i, ((source, _, destination), (indptr, indices)) in enumerate(edges.items()):
            sources.append(indices + offsets[source])
            columns = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
            destinations.append(columns + offsets[destination])
            types.append(np.full(len(indices), i))
        source, destination, kind = map(np.concatenate, (sources, destinations, types))
        order = np.lexsort((kind, destination))
        counts = np.bincount(destination, minlength=sum(nodes.values()))
        return gb.fused_csc_sampling_graph(
            torch.from_numpy(np.concatenate([[0], np.cumsum(counts)])).to(dtype),
            torch.from_numpy(source[order]).to(dtype),
            node_type_offset=torch.tensor([*offsets.values(), sum(nodes.values())]).to(dtype),
            type_per_edge=torch.from_numpy(kind[order]).to(torch.uint8),
            node_type_to_id={name: i for i, name in enumerate(nodes)},
            edge_type_to_id={":".join(name): i for i, name in enumerate(edges)},
        )

    def train(self, request: Request) -> dict[str, Any]:
        graph = self.graph(request)
        store, feature = self.store()
        label = torch.from_numpy(self.data["label"])

        def chain(name: str) -> Any:
            ids = self.items(request, name)
            sampled = self.chain((ids, label[ids.long()]), ("seed_nodes", "labels"))
            sampled = sampled.sample_neighbor(graph, self.fanouts(request))
            if request["workers"]:
                sampled = sampled.fetch_feature(store, node_feature_keys=["feat"])
            return self.loader(sampled, request, fetched=True)

        def features(minibatch: Any) -> torch.Tensor:
            if request["workers"]:
                return minibatch.node_features["feat"]
            return store.read("node", None, "feat", minibatch.input_nodes)

        torch.manual_seed(0)
        model = SAGE(feature.shape[1])
        optimizer = torch.optim.Adam(model.parameters(), lr=protocol.LEARNING_RATE)
        reader = protocol.endless(chain("train"))

        def step() -> dict[str, float]:
            times = [time.perf_counter()]
            minibatch = next(reader)
            times.append(time.perf_counter())
            x = features(minibatch)
            times.append(time.perf_counter())
            loss = F.cross_entropy(model(minibatch.blocks, x), minibatch.labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            times.append(time.perf_counter())
            edges, nodes = count(minibatch)
            sample, fetch, compute = np.diff(times)
            return {
                "sample_seconds": sample, "fetch_seconds": fetch, "compute_seconds": compute,
                "edges": edges, "nodes": nodes, "loss": loss.item(),
            }  # fmt: skip

        def accuracy() -> float:
            right = total = 0
            with torch.no_grad():
                for minibatch in chain("validation"):
                    guess = model(minibatch.blocks, features(minibatch)).argmax(1)
                    right += int((guess == minibatch.labels).sum())
                    total += len(guess)
            return right / total

        return protocol.trained(step, request, accuracy)


TASKS = ("sample", "fetch", "weighted", "labor", "link", "hetero", "train")


def tasks(data: protocol.Data) -> dict[str, Any]:
    system = System(data)
    return {name: getattr(system, name) for name in TASKS}


if __name__ == "__main__":
    protocol.serve(tasks)
