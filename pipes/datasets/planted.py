"""planted_partition: community graphs of any size, whose classes the graph gives away.

The model is the degree-corrected planted partition (Karrer and Newman, "Stochastic blockmodels and
community structure in networks", 2011) with features as in the contextual stochastic block model
(Deshpande, Montanari, Mossel and Sen, "Contextual stochastic block models", 2018), as a multigraph
with a fixed number of edges.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from hopline.pipes.coo import from_coo
from hopline.pipes.datasets.dataset import Dataset
from hopline.pipes.datasets.folder import SETS, write_node_classification
from hopline.pipes.datasets.location import locked, publish, working_folder
from hopline.pipes.datasets.ondisk import OnDiskTask
from hopline.pipes.features import BasicFeatureStore, TorchBasedFeature
from hopline.pipes.graph import FusedCSCSamplingGraph
from hopline.pipes.items import ItemSet

__all__ = ["PlantedDataset", "planted_partition"]

DATASET_NAME = "planted_partition"
CHUNK = 1 << 20  # edges, or values of features, that are drawn at a time
WEIGHT_UNIT = 1024  # smallest weight of a node; weights are integers, which add up exactly
LOCK_TIMEOUT = 60.0  # seconds to wait for another process that writes to the same path


class PlantedDataset(Dataset):
    """A planted partition, in memory; what `planted_partition` returns.

    Args:
        graph: the graph.
        feature: the node feature "feat", float32[num_nodes, feature_dim].
        task: node classification.
        labels: int64[num_nodes], the class of every node, whether in a set or not.
    """

    def __init__(
        self,
        graph: FusedCSCSamplingGraph,
        feature: BasicFeatureStore,
        task: OnDiskTask,
        labels: torch.Tensor,
    ) -> None:
        self._graph = graph
        self._feature = feature
        self._task = task
        self.labels = labels

    def load(self) -> Self:
        """The data set itself, which is in memory already."""
        return self

    @property
    def tasks(self) -> list[OnDiskTask]:
        """One task: node classification."""
        return [self._task]

    @property
    def graph(self) -> FusedCSCSamplingGraph:
        """The graph."""
        return self._graph

    @property
    def feature(self) -> BasicFeatureStore:
        """The feature store, with ("node", None, "feat")."""
        return self._feature

    @property
    def dataset_name(self) -> str:
        """The name."""
        return DATASET_NAME

    @property
    def all_nodes_set(self) -> ItemSet:
        """Every node, under the name seeds."""
        count = torch.tensor(len(self.labels), dtype=self._graph.indices.dtype, device="cpu")
        return ItemSet(count, names="seeds")

    def __repr__(self) -> str:
        return f"PlantedDataset({self._graph.num_nodes} nodes, {self._graph.num_edges} edges)"


def planted_partition(
    num_nodes: int,
    num_classes: int = 8,
    avg_degree: float = 10.0,
    feature_dim: int = 32,
    *,
    homophily: float = 0.8,
    feature_noise: float = 1.0,
    degree_exponent: float | None = None,
    directed: bool = False,
    split: Sequence[float] = (0.6, 0.2, 0.2),
    seed: int = 0,
    path: str | os.PathLike[str] | None = None,
) -> PlantedDataset:
    """A random graph in which most edges stay within a class.

    Every edge joins, with probability `homophily`, two nodes of one class, else two nodes of
    different classes. There are no self-loops; parallel edges occur, as by chance. A node's feature
    is the centre of its class plus noise: with the defaults a model without the graph gets about
    half of the nodes right, one that averages over two hops nearly all.

    The same arguments give the same graph, labels and splits on every machine; the values of
    features may differ in their last bit. Graph, features and splits are drawn independently: none
    changes with the arguments of another.

    Args:
        num_nodes: number of nodes; 0 is allowed.
        num_classes: number of classes, equal in size to within one node.
        avg_degree: in-edges a node, on average; an undirected edge counts for both of its ends.
        feature_dim: columns of the feature "feat".
        homophily: probability that an edge stays within a class; 1 / num_classes makes the
            graph tell nothing, 0 leaves only edges between classes.
        feature_noise: standard deviation of the noise in every column; centres lie about 1.4
            apart, whatever feature_dim is.
        degree_exponent: expected degrees follow a power law with this exponent, above 2; social
            networks have 2 to 3. None: all nodes are alike.
        directed: keep each edge as drawn, else in both directions.
        split: shares of the nodes in the training, validation and test set.
        seed: seed of all draws, 0 or more.
        path: also write the data set to this new or empty folder, for `OnDiskDataset(path)`.

    Returns:
        The data set, in memory.

    Raises:
        TypeError: num_nodes, num_classes, feature_dim or seed is not an integer, another argument
            no number, or split no sequence.
        ValueError: an argument is out of its range.
        FileExistsError: path holds something.

    >>> dataset = planted_partition(1000, num_classes=4, seed=7)
    >>> dataset.graph.num_nodes, dataset.graph.num_edges, len(dataset.tasks[0].train_set)
    (1000, 10000, 600)
    """
    num_nodes = _integer("num_nodes", num_nodes, 0)
    num_classes = _integer("num_classes", num_classes, 1)
    feature_dim = _integer("feature_dim", feature_dim, 1)
    seed = _integer("seed", seed, 0)
    _in_range("avg_degree", avg_degree, 0.0, float("inf"))
    _in_range("homophily", homophily, 0.0, 1.0)
    _in_range("feature_noise", feature_noise, 0.0, float("inf"))
    if degree_exponent is not None:
        _check_number("degree_exponent", degree_exponent)
    if degree_exponent is not None and not 2.0 < degree_exponent < float("inf"):
        raise ValueError(
            f"degree_exponent is {degree_exponent}; expected a number above 2, or None"
        )
    if not isinstance(split, Sequence) or isinstance(split, str):
        raise TypeError(f"split is {split!r}; expected three shares, e.g. (0.6, 0.2, 0.2)")
    if len(split) != len(SETS) or min(split) < 0 or not sum(split) <= 1 + 1e-9:
        raise ValueError(
            f"split is {split}; expected three shares, of 0 or more, that add up to at most 1"
        )
    if path is not None:
        path = Path(path).expanduser().absolute()
        _check_free(path)

    streams = [np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(4)]
    labels = streams[0].permutation(num_nodes) % num_classes
    edges = _draw_edges(
        streams[1], labels, num_classes, avg_degree, homophily, degree_exponent, directed
    )
    features = _draw_features(streams[2], labels, num_classes, feature_dim, feature_noise)
    sets = _draw_sets(streams[3], num_nodes, split)
    if path is not None:
        with locked(path, LOCK_TIMEOUT), working_folder(path) as work:
            _check_free(path)
            write_node_classification(
                work,
                dataset_name=DATASET_NAME,
                num_nodes=num_nodes,
                edges=edges,
                features=features,
                labels=labels,
                sets=sets,
                task={"num_classes": num_classes},
            )
            publish(work, path)
    return _in_memory(edges, labels, features, sets, num_classes)


def _in_memory(
    edges: npt.NDArray[Any],
    labels: npt.NDArray[np.int64],
    features: npt.NDArray[np.float32],
    sets: dict[str, npt.NDArray[Any]],
    num_classes: int,
) -> PlantedDataset:
    num_nodes = len(labels)
    items = {
        key: ItemSet(
            (torch.from_numpy(seeds), torch.from_numpy(labels[seeds])), names=("seeds", "labels")
        )
        for key, seeds in sets.items()
    }
    task = OnDiskTask(
        {"name": "node_classification", "num_classes": num_classes},
        items["train"],
        items["validation"],
        items["test"],
    )
    feature = TorchBasedFeature(torch.from_numpy(features))
    return PlantedDataset(
        from_coo(torch.from_numpy(edges[0]), torch.from_numpy(edges[1]), num_nodes),
        BasicFeatureStore({("node", None, "feat"): feature}),
        task,
        torch.from_numpy(labels),
    )


def _draw_edges(
    rng: np.random.Generator,
    labels: npt.NDArray[np.int64],
    num_classes: int,
    avg_degree: float,
    homophily: float,
    degree_exponent: float | None,
    directed: bool,
) -> npt.NDArray[Any]:
    """Sources and destinations, integer[2, num_edges].

    Nodes lie side by side on a line, class by class, each as long as its weight. A point of the
    line names a node; a point of the line less the node itself, or less its class, names another.
    """
    num_nodes = len(labels)
    weights = _draw_weights(rng, num_nodes, degree_exponent)
    order = np.argsort(labels, kind="stable").astype(_id_dtype(num_nodes))
    weights = weights[order]
    ends = np.cumsum(weights)  # node order[k] covers [ends[k] - weights[k], ends[k])
    last = np.cumsum(np.bincount(labels, minlength=num_classes))
    class_end = np.concatenate([[0], ends])[last]
    class_mass = np.diff(class_end, prepend=0)
    total = int(class_end[-1])

    pairs = round(num_nodes * avg_degree / (1 if directed else 2)) if num_nodes > 1 else 0
    edges = np.empty((2, pairs if directed else 2 * pairs), dtype=order.dtype)
    for start in range(0, pairs, CHUNK):
        size = min(CHUNK, pairs - start)
        first = _node_at(ends, _points(rng, np.full(size, total)))
        node_start = ends[first] - weights[first]
        label = labels[order[first]]
        class_start = class_end[label] - class_mass[label]
        inside = class_mass[label] - weights[first]
        outside = total - class_mass[label]
        stays = ((rng.random(size) < homophily) & (inside > 0)) | (outside == 0)
        point = _points(rng, np.where(stays, inside, outside))
        within = class_start + point
        within += np.where(within >= node_start, weights[first], 0)
        without = point + np.where(point >= class_start, class_mass[label], 0)
        second = _node_at(ends, np.where(stays, within, without))
        edges[0, start : start + size] = order[first]
        edges[1, start : start + size] = order[second]
    if not directed:
        edges[0, pairs:] = edges[1, :pairs]
        edges[1, pairs:] = edges[0, :pairs]
    return edges


def _draw_weights(
    rng: np.random.Generator, num_nodes: int, degree_exponent: float | None
) -> npt.NDArray[np.int64]:
    """int64[num_nodes], what the expected degrees are proportional to; WEIGHT_UNIT or more."""
    if degree_exponent is None:
        return np.full(num_nodes, WEIGHT_UNIT)
    rank = rng.permutation(num_nodes) + 0.5
    weights: npt.NDArray[np.float64] = (rank / num_nodes) ** (-1.0 / (degree_exponent - 1.0))
    return np.rint(WEIGHT_UNIT * weights).astype(np.int64)


def _points(rng: np.random.Generator, room: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """A uniform integer in [0, room) for each element."""
    points = (rng.random(len(room)) * room).astype(np.int64)
    return np.minimum(points, room - 1)


def _node_at(ends: npt.NDArray[np.int64], points: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Which node covers each point of the line."""
    return np.searchsorted(ends, points, side="right")


def _draw_features(
    rng: np.random.Generator,
    labels: npt.NDArray[np.int64],
    num_classes: int,
    feature_dim: int,
    feature_noise: float,
) -> npt.NDArray[np.float32]:
    """float32[num_nodes, feature_dim], centre of the class plus noise."""
    centres = rng.standard_normal((num_classes, feature_dim), dtype=np.float32)
    centres /= np.float32(np.sqrt(feature_dim))
    features = np.empty((len(labels), feature_dim), dtype=np.float32)
    rows = max(1, CHUNK // feature_dim)
    for start in range(0, len(labels), rows):
        part = features[start : start + rows]
        rng.standard_normal(dtype=np.float32, out=part)
        part *= np.float32(feature_noise)
        part += centres[labels[start : start + rows]]
    return features


def _draw_sets(
    rng: np.random.Generator, num_nodes: int, split: Sequence[float]
) -> dict[str, npt.NDArray[Any]]:
    """Disjoint sets of nodes, each in ascending order."""
    nodes = rng.permutation(num_nodes).astype(_id_dtype(num_nodes))
    bounds = [min(num_nodes, round(num_nodes * sum(split[:k]))) for k in range(len(split) + 1)]
    return {key: np.sort(nodes[bounds[k] : bounds[k + 1]]) for k, key in enumerate(SETS)}


def _id_dtype(num_nodes: int) -> type[np.int32] | type[np.int64]:
    return np.int32 if num_nodes < 2**31 else np.int64


def _check_free(path: Path) -> None:
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise FileExistsError(f"{path} holds something; give a new or an empty folder")


def _integer(name: str, value: int, low: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} is a {type(value).__name__}; expected an integer")
    if value < low:
        raise ValueError(f"{name} is {value}; expected {low} or more")
    return int(value)


def _check_number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise TypeError(f"{name} is {value!r}; expected a number")


def _in_range(name: str, value: float, low: float, high: float) -> None:
    _check_number(name, value)
    if not low <= value <= high or value == float("inf"):
        limit = f"from {low:g} to {high:g}" if high < float("inf") else f"of {low:g} or more"
        raise ValueError(f"{name} is {value}; expected a number {limit}")
