"""Reading a YAML file that may be wrong or hostile; errors that name the file and the key."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hopline.pipes.plain_yaml import parse_plain_yaml, read_yaml_bytes, show

__all__ = ["MetadataError", "Place", "read_yaml", "read_yaml_with_bytes", "show"]


class MetadataError(ValueError):
    """A data set's description or one of its files is wrong; names the YAML file and the key."""


@dataclass(frozen=True, slots=True)
class Place:
    """An entry of a YAML file, e.g. `graph.edges[0].path`, to be named in an error."""

    file: Path
    key: str = ""

    def at(self, step: str | int) -> Place:
        """The place one step below: a key, or a position in a list."""
        if isinstance(step, int):
            return Place(self.file, f"{self.key}[{step}]")
        return Place(self.file, f"{self.key}.{step}" if self.key else step)

    def error(self, message: str) -> MetadataError:
        """The error to raise: what was got, what was expected, what to do."""
        return MetadataError(f"{self.file}: {self.key}: {message}" if self.key else
                             f"{self.file}: {message}")  # fmt: skip


def read_yaml(path: Path) -> dict[str, Any]:
    """Reads a YAML file whose top level is a map of strings to plain values.

    Raises:
        MetadataError: as `read_yaml_with_bytes`.
    """
    return read_yaml_with_bytes(path)[0]


def read_yaml_with_bytes(path: Path) -> tuple[dict[str, Any], bytes]:
    """Reads a YAML file once; gives what it says, and the bytes that say so.

    Raises:
        MetadataError: the file is missing, unreadable, too large, no such YAML, names a Python
            object, or gives a key twice.
    """
    place = Place(path)
    try:
        content = read_yaml_bytes(path)
        document = parse_plain_yaml(content)
    except ValueError as error:
        raise place.error(f"is not valid YAML of plain values: {error}") from error
    except OSError as error:
        raise place.error(
            f"cannot be read ({error.strerror or error}); expected the YAML file that describes "
            "the data set"
        ) from error
    if not isinstance(document, dict):
        raise place.error(
            f"holds {show(document)}; expected a map with the keys dataset_name, graph, "
            "feature_data, tasks"
        )
    return document, content
