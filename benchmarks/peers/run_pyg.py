"""PyG 2.8 with pyg-lib or torch-sparse, for `compare.py`; see `protocol`."""

from __future__ import annotations

import time
import warnings
from itertools import pairwise
from typing import Any

warnings.filterwarnings("ignore")

import numpy as np
import protocol
import torch
import torch.nn.functional as F
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import LinkNeighborLoader, NeighborLoader
from torch_geometric.nn import SAGEConv
from torch_geometric.sampler import NegativeSampling
from torch_geometric.utils import trim_to_layer

Request = dict[str, Any]


class SAGE(torch.nn.Module):
    def __init__(self, in_size: int) -> None:
        super().__init__()
        hidden = protocol.HIDDEN_SIZE
        sizes = [in_size, hidden, hidden, protocol.NUM_CLASSES]
        self.layers = torch.nn.ModuleList(SAGEConv(a, b) for a, b in pairwise(sizes))
        # The first weights of the others, for the accuracy: PyG's own are smaller.
        gain = torch.nn.init.calculate_gain("relu")
        for layer in self.layers:
            torch.nn.init.xavier_uniform_(layer.lin_l.weight, gain=gain)
            torch.nn.init.xavier_uniform_(layer.lin_r.weight, gain=gain)
            torch.nn.init.zeros_(layer.lin_l.bias)

    def forward(self, batch: Any, x: torch.Tensor) -> torch.Tensor:
        edges = batch.edge_index
        hops = batch.get("num_sampled_nodes"), batch.get("num_sampled_edges")
        if hops[0] is None:  # only pyg-lib says what each hop gave
            hops = protocol.hop_sizes(*edges.numpy(), batch.batch_size, len(self.layers))
        for i, layer in enumerate(self.layers):
            # A layer computes only what the ones behind it need.
            x, edges, _ = trim_to_layer(i, *hops, x, edges)
            x = layer(x, edges)
            if i < len(self.layers) - 1:
                x = F.relu(x)
        return x[: batch.batch_size]


def count(batch: Any) -> tuple[int, int]:
    return batch.edge_index.shape[1], batch.n_id.numel()


def count_typed(batch: Any) -> tuple[int, int]:
    edges = sum(store.edge_index.shape[1] for store in batch.edge_stores)
    return edges, sum(store.n_id.numel() for store in batch.node_stores)


def edge_index(indptr: np.ndarray, indices: np.ndarray) -> torch.Tensor:
    """[2, E], sorted by destination."""
    edges = torch.empty(2, len(indices), dtype=torch.int64)
    edges[0] = torch.from_numpy(indices)
    degree, out, step = np.diff(indptr), edges[1].numpy(), 1 << 18
    for low in range(0, len(degree), step):
        high = min(low + step, len(degree))
        out[indptr[low] : indptr[high]] = np.repeat(np.arange(low, high), degree[low:high])
    return edges


class System:
    def __init__(self, data: protocol.Data) -> None:
        self.data = data
        self._graph: Any = None
        self._hetero: Any = None
        self._loaders: dict[Any, Any] = {}

    def graph(self, **columns: str) -> Any:
        if self._graph is None:
            self._graph = Data(
                edge_index=edge_index(self.data["indptr"], self.data["indices"]),
                num_nodes=len(self.data["indptr"]) - 1,
            )
        for name, array in columns.items():
            if name not in self._graph:
                self._graph[name] = torch.from_numpy(self.data[array])
        return self._graph

    def loader(self, request: Request, name: str, make: Any, **arguments: Any) -> Any:
        """A loader, kept: making one converts the graph to columns."""
        torch.set_num_threads(request["threads"])
        key = (name, request["workers"], tuple(request["fanouts"]))
        if key not in self._loaders:
            self._loaders[key] = make(
                num_neighbors=list(request["fanouts"]),
                batch_size=protocol.BATCH_SIZE,
                shuffle=True,
                is_sorted=True,
                num_workers=request["workers"],
                **arguments,
            )
        return self._loaders[key]

    def nodes(self, name: str = "train") -> torch.Tensor:
        return torch.from_numpy(self.data[name])

    def sample(self, request: Request) -> dict[str, Any]:
        loader = self.loader(
            request, "sample", NeighborLoader, data=self.graph(), input_nodes=self.nodes()
        )
        return protocol.timed(loader, request, count)

    def fetch(self, request: Request) -> dict[str, Any]:
        graph = self.graph(x="feat")
        loader = self.loader(request, "fetch", NeighborLoader, data=graph, input_nodes=self.nodes())
        return protocol.timed(loader, request, count)

    def weighted(self, request: Request) -> dict[str, Any]:
        graph = self.graph(weight="weight")
        loader = self.loader(
            request, "weighted", NeighborLoader, data=graph, input_nodes=self.nodes(),
            weight_attr="weight",
        )  # fmt: skip
        return protocol.timed(loader, request, count)

    def labor(self, request: Request) -> dict[str, Any]:
        raise NotImplementedError("PyG has no layer-neighbor sampling")

    def link(self, request: Request) -> dict[str, Any]:
        loader = self.loader(
            request, "link", LinkNeighborLoader, data=self.graph(),
            edge_label_index=self.nodes("pairs").T.contiguous(),
            neg_sampling=NegativeSampling("triplet", 1),
        )  # fmt: skip
        return protocol.timed(loader, request, count)

    def hetero(self, request: Request) -> dict[str, Any]:
        if self._hetero is None:
            nodes, edges = self.data.hetero()
            self._hetero = HeteroData()
            for name, number in nodes.items():
                self._hetero[name].num_nodes = number
            for name, (indptr, indices) in edges.items():
                self._hetero[name].edge_index = edge_index(indptr, indices)
        loader = self.loader(
            request, "hetero", NeighborLoader, data=self._hetero,
            input_nodes=("user", self.nodes("users")),
        )  # fmt: skip
        return protocol.timed(loader, request, count_typed)

    def train(self, request: Request) -> dict[str, Any]:
        feature = torch.from_numpy(self.data["feat"])
        label = torch.from_numpy(self.data["label"])
        graph = self.graph(x="feat") if request["workers"] else self.graph()
        training = self.loader(
            request, "train", NeighborLoader, data=graph, input_nodes=self.nodes()
        )
        validation = self.loader(
            request, "validation", NeighborLoader, data=graph, input_nodes=self.nodes("validation")
        )

        def features(batch: Any) -> torch.Tensor:
            return batch.x if request["workers"] else feature[batch.n_id]

        def labels(batch: Any) -> torch.Tensor:
            return label[batch.n_id[: batch.batch_size]]

        torch.manual_seed(0)
        model = SAGE(feature.shape[1])
        optimizer = torch.optim.Adam(model.parameters(), lr=protocol.LEARNING_RATE)
        reader = protocol.endless(training)

        def step() -> dict[str, float]:
            times = [time.perf_counter()]
            batch = next(reader)
            times.append(time.perf_counter())
            x = features(batch)
            times.append(time.perf_counter())
            loss = F.cross_entropy(model(batch, x), labels(batch))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            times.append(time.perf_counter())
            edges, nodes = count(batch)
            sample, fetch, compute = np.diff(times)
            return {
                "sample_seconds": sample, "fetch_seconds": fetch, "compute_seconds": compute,
                "edges": edges, "nodes": nodes, "loss": loss.item(),
            }  # fmt: skip

        def accuracy() -> float:
            right = total = 0
            with torch.no_grad():
                for batch in validation:
                    guess = model(batch, features(batch)).argmax(1)
                    right += int((guess == labels(batch)).sum())
                    total += len(guess)
            return right / total

        return protocol.trained(step, request, accuracy)


TASKS = ("sample", "fetch", "weighted", "labor", "link", "hetero", "train")


def tasks(data: protocol.Data) -> dict[str, Any]:
    system = System(data)
    return {name: getattr(system, name) for name in TASKS}


if __name__ == "__main__":
    protocol.serve(tasks)
