"""Dataset, Task: what every data set offers, wherever it comes from."""

from __future__ import annotations

from typing import Any, TypeAlias

from hopline.pipes.features.feature import FeatureStore
from hopline.pipes.graph import FusedCSCSamplingGraph
from hopline.pipes.items import HeteroItemSet, ItemSet

__all__ = ["AnyItemSet", "Dataset", "Task"]

AnyItemSet: TypeAlias = ItemSet | HeteroItemSet


class Task:
    """Something to be learnt: three item sets, and what else is known of it."""

    @property
    def metadata(self) -> dict[str, Any]:
        """What is known of the task, e.g. name and num_classes."""
        raise NotImplementedError

    @property
    def train_set(self) -> AnyItemSet | None:
        """Items to train on."""
        raise NotImplementedError

    @property
    def validation_set(self) -> AnyItemSet | None:
        """Items to choose a model by."""
        raise NotImplementedError

    @property
    def test_set(self) -> AnyItemSet | None:
        """Items to report on."""
        raise NotImplementedError


class Dataset:
    """A graph, features and tasks."""

    @property
    def tasks(self) -> list[Any]:
        """The tasks."""
        raise NotImplementedError

    @property
    def graph(self) -> FusedCSCSamplingGraph:
        """The graph."""
        raise NotImplementedError

    @property
    def feature(self) -> FeatureStore:
        """The feature store."""
        raise NotImplementedError

    @property
    def dataset_name(self) -> str | None:
        """The name."""
        raise NotImplementedError

    @property
    def all_nodes_set(self) -> AnyItemSet:
        """Every node, for inference."""
        raise NotImplementedError
