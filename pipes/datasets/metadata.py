"""The schema of a data set's metadata.yaml."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from hopline.pipes.datasets.yaml_file import MetadataError, Place, read_yaml_with_bytes, show

__all__ = [
    "OnDiskEdge",
    "OnDiskFeatureData",
    "OnDiskFeatureDataDomain",
    "OnDiskFeatureDataFormat",
    "OnDiskFile",
    "OnDiskGraph",
    "OnDiskGraphAttribute",
    "OnDiskMetaData",
    "OnDiskNode",
    "OnDiskTVTSet",
    "OnDiskTVTSetData",
    "OnDiskTaskData",
    "build_metadata",
    "read_metadata",
]

MAX_NODES_OF_A_TYPE = 2**40

PROCESSED = "hopline-dataset"  # the `format` of a preprocessed copy's description
OTHERS = {
    "partition.yaml": "a partition: open it",
    "part.yaml": "one part of a partition: open the folder above it",
}
HINTS = {
    "graph_topology": "DGL's own preprocessing writes it; describe the raw edges under graph",
    "include_original_edge_id": "give it to OnDiskDataset(...) or on the command line instead",
}


class OnDiskFeatureDataDomain(StrEnum):
    """What the rows of an array belong to."""

    NODE = "node"
    EDGE = "edge"
    GRAPH = "graph"


class OnDiskFeatureDataFormat(StrEnum):
    """How an array is stored."""

    NUMPY = "numpy"
    TORCH = "torch"
    PARQUET = "parquet"
    NPZ = "npz"


class _Entry(BaseModel):
    """A map of the YAML file: no key but those declared, no value of another type.

    One that `collects` takes further keys as metadata, but none by which a known one is meant.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    collects: ClassVar[bool] = False

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: Any) -> Any:
        for key in data if isinstance(data, dict) else ():
            if isinstance(key, str) and key in cls.model_fields:
                continue
            why = instead = ""
            if isinstance(key, str) and cls.collects:
                if _holds_items(data[key]):
                    why = "its value is a set of items; "
                elif _mistyped(key, cls.model_fields):
                    instead = " (metadata needs a name that is less like it)"
                else:
                    continue
            near = _nearest(str(key), cls.model_fields, 0.6)
            hint = f"; did you mean {near!r}?" if near else ""
            hint = f"; {HINTS[key]}" if key in HINTS else hint
            raise PydanticCustomError(
                "unknown_key",
                "{text}",
                {
                    "key": key if isinstance(key, str) else show(key),
                    "text": f"{why}expected one of {sorted(cls.model_fields)}{hint}{instead}",
                },
            )
        return data


def _bare(key: str) -> str:
    return key.lower().replace("-", "").replace("_", "").replace(" ", "")


def _nearest(key: str, fields: Iterable[str], cutoff: float) -> str | None:
    """The known key that a key is most like, apart from case, hyphens and underscores."""
    by_bare = {_bare(field): field for field in fields}
    near = difflib.get_close_matches(_bare(key), by_bare, n=1, cutoff=cutoff)
    return by_bare[near[0]] if near else None


def _mistyped(key: str, fields: Iterable[str]) -> bool:
    """Whether a key is almost a known one; a plural (`names`) is a word of its own."""
    near = _nearest(key, fields, 0.85)
    return near is not None and key != f"{near}s"


def _holds_items(value: Any) -> bool:
    """Whether a value looks like that of `train_set`."""
    return isinstance(value, list) and any(isinstance(v, dict) and "data" in v for v in value)


def _empty_if_null(value: Any) -> Any:
    return [] if value is None else value


def _path_text(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


Name = Annotated[str, Field(min_length=1)]
PathText = Annotated[str, Field(min_length=1), BeforeValidator(_path_text)]
Format = Annotated[OnDiskFeatureDataFormat, Field(strict=False)]
RawType = Literal["bfloat16"]


class OnDiskFile(_Entry):
    """An array in a file; `key` names the array inside an npz file."""

    format: Format
    path: PathText
    key: str | None = None

    @model_validator(mode="after")
    def _key_goes_with_npz(self) -> Self:
        if (self.format == "npz") != (self.key is not None):
            raise PydanticCustomError(
                "key_of_npz",
                "format is {format}, key is {key}; an npz file needs `key`, the name of the array "
                "in it, and no other format has one",
                {"format": str(self.format), "key": show(self.key)},
            )
        return self


class OnDiskNode(_Entry):
    """Nodes of one type: how many there are."""

    type: Name | None = None
    num: Annotated[int, Field(ge=0, le=MAX_NODES_OF_A_TYPE)]


class OnDiskEdge(OnDiskFile):
    """Edges of one type, as pairs of source and destination."""

    type: Name | None = None
    format: Literal["numpy", "csv", "torch", "parquet", "npz"]  # type: ignore[assignment]


class OnDiskGraphAttribute(OnDiskFile):
    """A node or edge attribute of the graph: weight, mask, timestamp."""

    domain: Annotated[OnDiskFeatureDataDomain, Field(strict=False)]
    type: Name | None = None
    name: Name
    in_memory: bool = True
    dtype: RawType | None = None


class OnDiskFeatureData(OnDiskFile):
    """A feature of the feature store; further keys are its metadata."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    collects: ClassVar[bool] = True

    domain: Annotated[OnDiskFeatureDataDomain, Field(strict=False)]
    type: Name | None = None
    name: Name
    in_memory: bool = True
    dtype: RawType | None = None

    @property
    def extra_fields(self) -> dict[str, Any]:
        """What `Feature.metadata()` gives: the further keys, and `dtype` where it is set."""
        dtype = {} if self.dtype is None else {"dtype": self.dtype}
        return {**(self.model_extra or {}), **dtype}


class OnDiskTVTSetData(OnDiskFile):
    """One column of an item set."""

    name: Name | None = None
    in_memory: bool = True
    dtype: RawType | None = None


class OnDiskTVTSet(_Entry):
    """The items of one type in a training, validation or test set."""

    type: Name | None = None
    data: Annotated[list[OnDiskTVTSetData], Field(min_length=1)]


SetList = Annotated[list[OnDiskTVTSet], BeforeValidator(_empty_if_null)]


class OnDiskTaskData(_Entry):
    """A task: its three sets; further keys are its metadata."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    collects: ClassVar[bool] = True

    train_set: SetList = []
    validation_set: SetList = []
    test_set: SetList = []

    @property
    def extra_fields(self) -> dict[str, Any]:
        """The further keys: the task's metadata."""
        return dict(self.model_extra or {})


class OnDiskGraph(_Entry):
    """The graph: numbers of nodes, edges, attributes."""

    nodes: Annotated[list[OnDiskNode], Field(min_length=1)]
    edges: Annotated[list[OnDiskEdge], Field(min_length=1)]
    feature_data: Annotated[list[OnDiskGraphAttribute], BeforeValidator(_empty_if_null)] = []


class OnDiskMetaData(_Entry):
    """A data set: graph, features, tasks."""

    dataset_name: str | None = None
    graph: OnDiskGraph
    feature_data: Annotated[list[OnDiskFeatureData], BeforeValidator(_empty_if_null)] = []
    tasks: Annotated[list[OnDiskTaskData], BeforeValidator(_empty_if_null)] = []

    def files(self, root: Place) -> Iterator[tuple[Place, OnDiskFile]]:
        """Every entry that names a file, and its place."""
        graph = root.at("graph")
        for i, edge in enumerate(self.graph.edges):
            yield graph.at("edges").at(i), edge
        for i, attribute in enumerate(self.graph.feature_data):
            yield graph.at("feature_data").at(i), attribute
        for i, feature in enumerate(self.feature_data):
            yield root.at("feature_data").at(i), feature
        for i, task in enumerate(self.tasks):
            for split in ("train_set", "validation_set", "test_set"):
                sets = root.at("tasks").at(i).at(split)
                for j, item_set in enumerate(getattr(task, split)):
                    for k, column in enumerate(item_set.data):
                        yield sets.at(j).at("data").at(k), column


def read_metadata(path: Path) -> tuple[OnDiskMetaData, bytes]:
    """Reads a metadata.yaml.

    Args:
        path: the YAML file.

    Returns:
        The checked description, and the file's bytes that it was made of.

    Raises:
        MetadataError: the file is missing, is of something else, or does not follow the schema.
    """
    folder = path.parent
    for name, what in OTHERS.items():
        if (folder / name).is_file() and not path.exists():
            raise MetadataError(
                f"{folder} is {what} with hopline.partition.DistDataset, or look at it by "
                "`hopline inspect`; expected the folder of a data set, with metadata.yaml"
            )
    document, content = read_yaml_with_bytes(path)
    if document.get("format") == PROCESSED:
        above = (folder.parent / path.name).is_file()
        which = f"the one above: {folder.parent}" if above else "whose metadata.yaml it was made of"
        raise MetadataError(
            f"{folder} is the preprocessed copy of a data set; give the folder of the data set "
            f"itself, {which}"
        )
    return build_metadata(document, path), content


def build_metadata(document: dict[str, Any], path: Path) -> OnDiskMetaData:
    """Checks a document against the schema.

    Raises:
        MetadataError: it does not follow the schema; names `path` and the first wrong key.
    """
    try:
        return OnDiskMetaData.model_validate(document)
    except ValidationError as error:
        raise _first_error(error, Place(path)) from error


def _first_error(error: ValidationError, place: Place) -> MetadataError:
    first = error.errors(include_url=False)[0]
    for step in first["loc"]:
        place = place.at(step)
    message = first["msg"][:1].lower() + first["msg"][1:]
    if first["type"] == "unknown_key":
        return place.at(first["ctx"]["key"]).error(f"unknown key; {message}")
    if first["type"] == "missing":
        return place.error("is missing; add it")
    if first["type"] == "key_of_npz":
        return place.at("key").error(message)
    return place.error(f"got {show(first['input'])}; {message}")
