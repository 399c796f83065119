"""Reading a YAML file that may be wrong or hostile; errors that name the file and the key."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

__all__ = ["MetadataError", "Place", "read_yaml", "show"]

MAX_NODES = 1_000_000  # of the document with its aliases written out


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


def show(value: object, limit: int = 80) -> str:
    """A value for a message, cut to a sensible length."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an int of thousands of digits; a list within itself
        text = f"a {type(value).__name__}"
    return text if len(text) <= limit else text[:limit] + "..."


class _Loader(yaml.SafeLoader):
    """The safe loader, which builds plain values only, less duplicate keys."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Checks keys as written, before `<<` merges others in."""
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"key {key.value!r} is given twice; keep one", key.start_mark
                    )
                seen.add(key.value)
        return node


def _expanded_size(node: yaml.Node, sizes: dict[int, int]) -> int:
    """Number of nodes with aliases written out; few aliases of aliases can make billions."""
    if id(node) in sizes:
        if sizes[id(node)] == 0:  # still being counted
            raise ValueError("a value contains itself; write it without the alias")
        return sizes[id(node)]
    sizes[id(node)] = 0
    children = []
    if isinstance(node, yaml.SequenceNode):
        children = node.value
    elif isinstance(node, yaml.MappingNode):
        children = [child for pair in node.value for child in pair]
    sizes[id(node)] = 1 + sum(_expanded_size(child, sizes) for child in children)
    return sizes[id(node)]


def read_yaml(path: Path) -> dict[str, Any]:
    """Reads a YAML file whose top level is a map of strings to plain values.

    Raises:
        MetadataError: the file is missing, unreadable, no such YAML, names a Python object, or
            gives a key twice.
    """
    place = Place(path)
    try:
        content = path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise place.error(
            f"cannot be read ({reason}); expected the YAML file that describes the data set"
        ) from error
    try:
        loader = _Loader(content)
        try:
            node = loader.get_single_node()
            if node is not None and _expanded_size(node, {}) > MAX_NODES:
                raise ValueError(f"more than {MAX_NODES} values; write it without aliases")
            document = None if node is None else loader.construct_document(node)
        finally:
            loader.dispose()
    except Exception as error:  # PyYAML's constructors raise KeyError, OverflowError and others
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise place.error(f"is not valid YAML of plain values: {reason}") from error
    if not isinstance(document, dict):
        raise place.error(
            f"holds {show(document)}; expected a map with the keys dataset_name, graph, "
            "feature_data, tasks"
        )
    return document
