"""The description of a preprocessed data set: what lies where, made of what, with which options."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from hopline.pipes.datasets.yaml_file import MetadataError, read_yaml

__all__ = ["FORMAT_VERSION", "Options", "Processed", "StoredArray", "StoredFeature", "StoredSet",
           "StoredTask", "digest_of_processed", "load_processed"]  # fmt: skip

FORMAT_VERSION = 1
FILE = "metadata.yaml"


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Options(_Model):
    """The options that change the result."""

    include_original_edge_id: bool
    auto_cast_to_optimal_dtype: bool


class StoredArray(_Model):
    """A .npy file.

    Attributes:
        root: "preprocessed", or "dataset" for a raw file that is used where it is.
        path: relative to that root, or absolute.
        dtype: NumPy's name, or "bfloat16" for raw bits.
        shape: of the array.
        in_memory: read it; else map it.
    """

    root: Literal["preprocessed", "dataset"]
    path: str
    dtype: str
    shape: tuple[int, ...]
    in_memory: bool = True

    def file(self, processed: Path, dataset: Path) -> Path:
        """The file, given the two folders."""
        return (processed if self.root == "preprocessed" else dataset) / self.path


class StoredFeature(_Model):
    """A feature of the feature store."""

    domain: Literal["node", "edge", "graph"]
    type: str | None
    name: str
    array: StoredArray
    extra_fields: dict[Any, Any] = {}


class StoredColumn(_Model):
    """A column of an item set."""

    name: str | None
    array: StoredArray


class StoredSet(_Model):
    """The items of one type."""

    type: str | None
    columns: list[StoredColumn]


class StoredTask(_Model):
    """A task; a split that the description lacks is empty."""

    metadata: dict[Any, Any]
    train_set: list[StoredSet] = []
    validation_set: list[StoredSet] = []
    test_set: list[StoredSet] = []


class Processed(_Model):
    """All of it; `inputs` are the fingerprints by path, `files` the sizes of the written files."""

    format: Literal["hopline-dataset"] = "hopline-dataset"
    format_version: int = FORMAT_VERSION
    dataset_name: str | None
    options: Options
    inputs: dict[str, dict[str, int | str]]
    files: dict[str, int]
    graph: str
    feature_data: list[StoredFeature]
    tasks: list[StoredTask]

    def save(self, folder: Path) -> None:
        """Writes metadata.yaml, which marks the folder as ours, and as whole."""
        new = folder / f"{FILE}.new"
        with new.open("w", encoding="utf-8") as file:
            yaml.safe_dump(self.model_dump(), file, sort_keys=False, allow_unicode=True)
            file.flush()
            os.fsync(file.fileno())
        new.replace(folder / FILE)

    def missing_file(self, folder: Path) -> str | None:
        """A written file that is gone or has another size, if any."""
        for name, size in self.files.items():
            try:
                if (folder / name).stat().st_size != size:
                    return name
            except OSError:
                return name
        return None


def load_processed(folder: Path) -> Processed | str:
    """Reads the description in a folder; a reason in words if it cannot be used."""
    if not (folder / FILE).is_file():
        return "there is no preprocessed copy"
    try:
        document = read_yaml(folder / FILE)
    except MetadataError:
        return "the preprocessed copy is damaged"
    if document.get("format_version") != FORMAT_VERSION:
        return (
            f"the preprocessed copy has format version {document.get('format_version')!r}, and "
            f"this is {FORMAT_VERSION}"
        )
    try:
        return Processed.model_validate(document)
    except ValidationError:
        return "the preprocessed copy is damaged"


def digest_of_processed(folder: Path) -> str | None:
    """By which the description in a folder is known again; None if it is gone."""
    try:
        return hashlib.blake2b((folder / FILE).read_bytes(), digest_size=16).hexdigest()
    except OSError:
        return None
