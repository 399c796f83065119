"""OnDiskDataset: a data set on disk, with its graph, features and tasks."""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self, TypeAlias

import torch

from hopline.pipes.datasets.dataset import AnyItemSet, Dataset, Task
from hopline.pipes.datasets.metadata import OnDiskFeatureData
from hopline.pipes.datasets.preprocess import preprocess_ondisk_dataset
from hopline.pipes.datasets.processed import (
    Processed,
    StoredArray,
    StoredSet,
    StoredTask,
    digest_of_processed,
    load_processed,
)
from hopline.pipes.datasets.yaml_file import read_yaml
from hopline.pipes.features.store import TorchBasedFeatureStore
from hopline.pipes.graph import FusedCSCSamplingGraph
from hopline.pipes.items import HeteroItemSet, ItemSet
from hopline.pipes.npy import read_npy

__all__ = ["OnDiskDataset", "OnDiskTask"]

ItemSource: TypeAlias = AnyItemSet | Callable[[], AnyItemSet | None] | None


class OnDiskTask(Task):
    """A task; a set that is given as a function is read when it is first asked for.

    Args:
        metadata: what is known of the task.
        train_set: an item set, None, or a function that returns one.
        validation_set: likewise.
        test_set: likewise.

    Raises:
        TypeError: an argument is of another kind.
    """

    def __init__(
        self,
        metadata: dict[str, Any],
        train_set: ItemSource,
        validation_set: ItemSource,
        test_set: ItemSource,
    ) -> None:
        if not isinstance(metadata, dict):
            raise TypeError(f"metadata is a {type(metadata).__name__}; expected a dict")
        self._metadata = metadata
        self._sources: dict[str, ItemSource] = {
            "train_set": train_set,
            "validation_set": validation_set,
            "test_set": test_set,
        }
        for name, source in self._sources.items():
            if not (
                source is None or callable(source) or isinstance(source, ItemSet | HeteroItemSet)
            ):
                raise TypeError(
                    f"{name} is a {type(source).__name__}; expected an ItemSet, a HeteroItemSet, "
                    "None, or a function that returns one"
                )
        self._read: dict[str, AnyItemSet | None] = {}

    def _get(self, name: str) -> AnyItemSet | None:
        if name not in self._read:
            source = self._sources[name]
            self._read[name] = source() if callable(source) else source
        return self._read[name]

    @property
    def metadata(self) -> dict[str, Any]:
        """What is known of the task, e.g. name and num_classes."""
        return self._metadata

    @property
    def train_set(self) -> AnyItemSet | None:
        """Items to train on; None if the data set has none."""
        return self._get("train_set")

    @property
    def validation_set(self) -> AnyItemSet | None:
        """Items to choose a model by; None if the data set has none."""
        return self._get("validation_set")

    @property
    def test_set(self) -> AnyItemSet | None:
        """Items to report on; None if the data set has none."""
        return self._get("test_set")

    def __getstate__(self) -> dict[str, Any]:
        # What was read from files is read again on the other side.
        return {**self.__dict__, "_read": {}}

    def __repr__(self) -> str:
        sets = [name for name, source in self._sources.items() if source is not None]
        return f"OnDiskTask(metadata={self._metadata}, sets={sets})"


class OnDiskDataset(Dataset):
    """A data set that metadata.yaml describes, preprocessed at construction if need be.

    Graph and features are mapped or read by `load()`, item sets when a task is asked for them. A
    pickle holds paths and options alone, so that other processes map the same pages.

    Args:
        path: folder with metadata.yaml.
        include_original_edge_id: see `preprocess_ondisk_dataset`.
        force_preprocess: see `preprocess_ondisk_dataset`.
        auto_cast_to_optimal_dtype: see `preprocess_ondisk_dataset`.
        processed_path: see `preprocess_ondisk_dataset`.
        max_memory: see `preprocess_ondisk_dataset`.

    Raises:
        MetadataError: the data set is described wrongly; names the YAML file and the key.
        NotADirectoryError: there is no such folder.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        include_original_edge_id: bool | None = None,
        force_preprocess: bool | None = None,
        auto_cast_to_optimal_dtype: bool = True,
        *,
        processed_path: str | os.PathLike[str] | None = None,
        max_memory: int = 4 << 30,
    ) -> None:
        self._path = Path(path).expanduser().resolve()
        result = preprocess_ondisk_dataset(
            self._path,
            include_original_edge_id,
            force_preprocess,
            auto_cast_to_optimal_dtype,
            processed_path=processed_path,
            max_memory=max_memory,
        )
        self._selected: list[int] | None = None
        self._yaml: dict[str, Any] | None = None
        self._open(result.parent, digest_of_processed(result.parent))

    def _open(self, folder: Path, digest: str | None) -> None:
        self._processed_folder = folder
        self._digest = digest
        found = load_processed(folder)
        if isinstance(found, str):
            raise RuntimeError(f"{folder} cannot be used: {found}; preprocess {self._path} again")
        self._check_unchanged()
        self._processed: Processed = found
        self._tasks: list[OnDiskTask] = []
        self._graph: FusedCSCSamplingGraph | None = None
        self._feature: TorchBasedFeatureStore | None = None

    def load(self, tasks: str | list[str] | None = None) -> Self:
        """Maps the graph, opens the features, and makes the tasks, whose sets are read when used.

        Args:
            tasks: names of the tasks wanted, in that order; None for all.

        Returns:
            The data set itself.

        Raises:
            TypeError: tasks is neither a name nor a list of names.
            ValueError: there is no task of that name.
            RuntimeError: the data set was preprocessed anew, from other inputs or with other
                options, since it was opened.
        """
        self._load(self._choose(tasks))
        return self

    def _load(self, selected: list[int]) -> None:
        self._check_unchanged()
        self._graph = FusedCSCSamplingGraph.load(self._processed_folder / self._processed.graph)
        self._feature = TorchBasedFeatureStore(self._features())
        self._check_unchanged()  # once all is open: what comes in its place later does no harm
        self._tasks = [self._make_task(self._processed.tasks[i]) for i in selected]
        self._selected = selected

    def _check_unchanged(self) -> None:
        _check_digest(self._digest, self._processed_folder, self._path)

    def _choose(self, tasks: str | list[str] | None) -> list[int]:
        if tasks is None:
            return list(range(len(self._processed.tasks)))
        wanted = [tasks] if isinstance(tasks, str) else tasks
        if not isinstance(wanted, list) or not all(isinstance(name, str) for name in wanted):
            raise TypeError(f"tasks is {tasks!r}; expected the name of a task, or a list of names")
        names = [task.metadata.get("name") for task in self._processed.tasks]
        for name in wanted:
            if name not in names:
                raise ValueError(f"there is no task {name!r}; {self._path} has {names}")
        return [names.index(name) for name in wanted]

    def _features(self) -> Iterable[OnDiskFeatureData]:
        wanted = self._wanted_in_memory()
        for feature in self._processed.feature_data:
            array = feature.array
            file = array.file(self._processed_folder, self._path)
            if array.root == "dataset":  # a raw file, which may have been replaced since
                self._check(file, array)
            raw = {"dtype": array.dtype} if array.dtype == "bfloat16" else {}
            yield OnDiskFeatureData.model_validate(
                {
                    **feature.extra_fields,
                    **raw,
                    "domain": feature.domain,
                    "type": feature.type,
                    "name": feature.name,
                    "format": "numpy",
                    "in_memory": wanted.get(
                        (feature.domain, feature.type, feature.name), array.in_memory
                    ),
                    "path": str(file),
                }
            )

    def _wanted_in_memory(self) -> dict[tuple[str, str | None, str], bool]:
        """What `yaml_data` says of each feature, if the user has it."""
        wanted = {}
        for entry in (self._yaml or {}).get("feature_data") or []:
            in_memory = entry.get("in_memory", True)
            if not isinstance(in_memory, bool):
                raise TypeError(
                    f"yaml_data: in_memory of feature {entry.get('name')!r} is {in_memory!r}; "
                    "expected True or False"
                )
            wanted[entry.get("domain"), entry.get("type"), entry.get("name")] = in_memory
        return wanted

    def _check(self, file: Path, array: StoredArray) -> None:
        raw = array.dtype if array.dtype == "bfloat16" else None
        found = read_npy(file, dtype=raw)
        name = str(found.dtype).removeprefix("torch.")
        if (tuple(found.shape), name) != (array.shape, array.dtype):
            raise ValueError(
                f"{file} has {name}{list(found.shape)}; expected {array.dtype}{list(array.shape)}, "
                "as when it was preprocessed: pass force_preprocess=True"
            )

    def _make_task(self, task: StoredTask) -> OnDiskTask:
        sources = [
            functools.partial(_read_sets, sets, self._processed_folder, self._path, self._digest)
            if sets
            else None
            for sets in (task.train_set, task.validation_set, task.test_set)
        ]
        return OnDiskTask(copy.deepcopy(task.metadata), *sources)

    # -----------------------------------------------------------------------------------------

    @property
    def yaml_data(self) -> dict[str, Any]:
        """The user's metadata.yaml, as plain values.

        Changes of `in_memory` of its `feature_data` count for the next `load()`; the file stays as
        it is, and other changes have no effect.
        """
        if self._yaml is None:
            self._yaml = read_yaml(self._path / "metadata.yaml")
        return self._yaml

    @property
    def path(self) -> Path:
        """The data set's folder, absolute."""
        return self._path

    @property
    def processed_path(self) -> Path:
        """The folder of the preprocessed copy."""
        return self._processed_folder

    @property
    def tasks(self) -> list[OnDiskTask]:
        """The chosen tasks."""
        self._loaded("tasks")
        return self._tasks

    @property
    def graph(self) -> FusedCSCSamplingGraph:
        """The graph, mapped."""
        self._loaded("graph")
        assert self._graph is not None
        return self._graph

    @property
    def feature(self) -> TorchBasedFeatureStore:
        """The feature store; edge features are in input order, found by original edge ids."""
        self._loaded("feature")
        assert self._feature is not None
        return self._feature

    @property
    def dataset_name(self) -> str | None:
        """The name that metadata.yaml gives."""
        self._loaded("dataset_name")
        return self._processed.dataset_name

    @property
    def all_nodes_set(self) -> AnyItemSet:
        """Every node as a seed, by type if the graph has types."""
        graph = self.graph

        def nodes(count: int) -> ItemSet:
            return ItemSet(
                torch.tensor(count, dtype=graph.indices.dtype, device="cpu"), names="seeds"
            )

        numbers = graph.num_nodes
        if isinstance(numbers, int):
            return nodes(numbers)
        return HeteroItemSet({name: nodes(count) for name, count in numbers.items()})

    def _loaded(self, name: str) -> None:
        if self._selected is None:
            raise RuntimeError(
                f"{name} is not there yet; call load() first: dataset = OnDiskDataset(path).load()"
            )

    # -----------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        # Paths and options only: arrays are mapped again on the other side.
        opened = {"_processed", "_graph", "_feature", "_tasks"}
        return {name: value for name, value in self.__dict__.items() if name not in opened}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open(self._processed_folder, self._digest)
        if self._selected is not None:
            self._load(self._selected)

    def __repr__(self) -> str:
        state = "not loaded" if self._selected is None else f"{len(self._tasks)} tasks"
        return f"{type(self).__name__}({str(self._path)!r}, {state})"


def _check_digest(digest: str | None, processed: Path, dataset: Path) -> None:
    now = digest_of_processed(processed)
    if now is None or now != digest:
        what = "is gone" if now is None else "has changed"
        raise RuntimeError(
            f"{processed} {what} since the data set was loaded, and would not go with its graph; "
            f"load it anew: OnDiskDataset({str(dataset)!r}).load()"
        )


def _read_sets(
    sets: list[StoredSet], processed: Path, dataset: Path, digest: str | None
) -> AnyItemSet:
    _check_digest(digest, processed, dataset)
    read: dict[str | None, ItemSet] = {}
    for item_set in sets:
        columns = []
        names = [column.name for column in item_set.columns if column.name is not None]
        for column in item_set.columns:
            array = column.array
            raw = array.dtype if array.dtype == "bfloat16" else None
            file = array.file(processed, dataset)
            columns.append(read_npy(file, in_memory=array.in_memory, dtype=raw))
        read[item_set.type] = ItemSet(tuple(columns), names=tuple(names) or None)
    _check_digest(digest, processed, dataset)  # again: it may have come in the way of reading
    if None in read:
        return read[None]
    return HeteroItemSet({str(name): item_set for name, item_set in read.items()})
