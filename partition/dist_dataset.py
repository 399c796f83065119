"""DistDataset: a partitioned data set, with the attributes of one that is here whole."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Self

from hopline.partition.dist_feature import DistFeatureStore
from hopline.partition.dist_graph import DistGraph
from hopline.partition.part import load_tasks
from hopline.pipes.datasets.dataset import AnyItemSet
from hopline.pipes.datasets.ondisk import OnDiskTask
from hopline.pipes.items import HeteroItemSet, ItemSet

__all__ = ["DistDataset"]


class DistDataset:
    """Graph, features and tasks of a data set that `partition_graph` has cut.

    Each rank opens its own parts and maps the item sets, which are in the order of the data set;
    ids are new ids. Making one is collective. As a context manager it ends by `close`, or, after an
    exception, without waiting for the other ranks. Of an error by which a connection is lost, as
    of DistributedDataParallel when another rank dies, it makes a RankError that names the rank.

    Args:
        path: the folder that `partition_graph` wrote.
        timeout: seconds to wait for another rank.
        check: see `load_part`.

    Raises:
        PartitionError: a part is missing, damaged or of another partition.
        ValueError: of the numbers of ranks and of parts, neither is a multiple of the other.

    Attributes:
        graph: for the samplers.
        feature: for `fetch_feature`.
        tasks: with `train_set`, `validation_set`, `test_set` and `metadata`.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, timeout: float = 60.0, check: str = "content"
    ) -> None:
        self.graph = DistGraph(path, timeout=timeout, check=check)
        self.feature = DistFeatureStore(self.graph)
        # The graph has compared all files, as check says.
        self.tasks: list[OnDiskTask] = load_tasks(path, self.graph.manifest, check="size")

    @property
    def dataset_name(self) -> str:
        """The name that it was partitioned under."""
        return self.graph.manifest.graph_name

    @property
    def all_nodes_set(self) -> AnyItemSet:
        """Every node as a seed, by type if the graph has types."""
        counts = self.graph.num_nodes
        if isinstance(counts, int):
            return ItemSet(counts, names="seeds")
        return HeteroItemSet({kind: ItemSet(n, names="seeds") for kind, n in counts.items()})

    def close(self) -> None:
        """Goes on answering other ranks until all have called this.

        Raises:
            RankError: a rank has gone, or does not answer in time.
        """
        self.graph.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.graph.__exit__(kind, error, trace)

    def __repr__(self) -> str:
        return f"DistDataset({self.dataset_name!r}, {self.graph!r})"
