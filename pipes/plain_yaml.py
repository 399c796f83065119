"""YAML that may be wrong or hostile, read as plain values within bounds on time and memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

__all__ = [
    "MAX_BYTES",
    "MAX_VALUES",
    "parse_plain_yaml",
    "read_plain_yaml",
    "read_yaml_bytes",
    "show",
]

MAX_BYTES = 64 << 20  # of the file
MAX_VALUES = 1_000_000  # in the document, and again with its aliases written out


class _Loader(yaml.SafeLoader):
    """The safe loader, which builds plain values only, less duplicate keys."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.count = 0

    def compose_node(self, parent: Any, index: Any) -> yaml.Node | None:
        """Counts, so that a long document is refused before it takes long."""
        self.count += 1
        if self.count > MAX_VALUES:
            raise ValueError(f"more than {MAX_VALUES} values")
        node: yaml.Node | None = super().compose_node(parent, index)
        return node

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


def read_plain_yaml(path: Path) -> Any:
    """Reads a file of one YAML document; None if it is empty.

    Raises:
        OSError: as `read_yaml_bytes`.
        ValueError: as `read_yaml_bytes` and `parse_plain_yaml`.
    """
    return parse_plain_yaml(read_yaml_bytes(path))


def read_yaml_bytes(path: Path) -> bytes:
    """Reads a file that should be YAML.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: it cannot be read, or is no regular file: reading a pipe or a device may never end.
        ValueError: it is too large. The message does not name the file.
    """
    size = path.stat().st_size
    if not path.is_file():
        raise OSError(0, "it is no regular file", str(path))
    if size > MAX_BYTES:
        raise ValueError(f"{size} bytes; expected {MAX_BYTES} or less")
    return path.read_bytes()


def parse_plain_yaml(content: bytes) -> Any:
    """Parses one YAML document; None if there is none.

    Raises:
        ValueError: it is no YAML, nested too deeply, contains itself, names a Python object, or
            gives a key twice.
    """
    try:
        loader = _Loader(content)
        try:
            node = loader.get_single_node()
            if node is not None and _expanded_size(node, {}) > MAX_VALUES:
                raise ValueError(f"more than {MAX_VALUES} values; write it without aliases")
            return None if node is None else loader.construct_document(node)
        finally:
            loader.dispose()
    except Exception as error:  # PyYAML's constructors raise KeyError, OverflowError and others
        if isinstance(error, RecursionError):
            reason = "nested too deeply"
        elif isinstance(error, yaml.YAMLError | ValueError):
            reason = str(error)
        else:
            reason = f"a value is not of the form of its tag ({error})"
        raise ValueError(reason) from error


def show(value: object, limit: int = 80) -> str:
    """A value for a message, cut to a sensible length."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an int of thousands of digits; a list within itself
        text = f"a {type(value).__name__}"
    return text if len(text) <= limit else text[:limit] + "..."
