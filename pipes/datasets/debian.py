"""The data set "debian": expands the file that ships with the package to a data set folder.

Arrays of the file (`n` packages sorted by name, `R` relations, `W` words):

    format_version   int         FORMAT_VERSION
    release          uint8       text: the release of Debian that the index belongs to
    names            uint8[...]  text: package names, one a line
    class_names      uint8[...]  text: sections, one a line
    relation_names   uint8[...]  text: relation fields, one a line
    labels           [n]         section of each package
    splits           [n]         0 train, 1 validation, 2 test
    edge_counts      [n, R]      how many packages a package names in a field
    edge_targets     [sum]       which ones, by package, relation, target
    sizes            [n, 2]      installed and archive size, logarithms, scaled
    word_columns     int         columns that words are hashed to
    word_column      [W]         column, sign and weight of each word of the descriptions
    word_sign        [W]
    word_idf         [W]
    word_counts      [n]         how many words describe a package
    word_ids         [sum]       which ones
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hopline.pipes.datasets.folder import SETS, write_node_classification

__all__ = ["FORMAT_VERSION", "NODE_NAMES_FILE", "expand_debian", "read_archive"]

FORMAT_VERSION = 1
NUM_SIZES = 2
NODE_NAMES_FILE = "node_names.txt"

Arrays = dict[str, npt.NDArray[Any]]


def read_archive(path: Path) -> Arrays:
    """Reads the file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it has another format version, or is no such file.
    """
    with np.load(path, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    version = arrays.get("format_version")
    if version is None or int(version) != FORMAT_VERSION:
        found = None if version is None else int(version)
        raise ValueError(
            f"{path}: format_version is {found}; this version reads {FORMAT_VERSION}. "
            "Rebuild the file with `python -m hopline.pipes.datasets.build_debian`"
        )
    return arrays


def text_lines(text: npt.NDArray[np.uint8]) -> list[str]:
    """The lines of a text that is kept as bytes."""
    return text.tobytes().decode().splitlines()


def expand_edges(arrays: Arrays) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int8]]:
    """Edges in both directions.

    Returns:
        edges: int32[2, 2 * E]; first from each package to those it names, then back.
        relation: int8[2 * E]; r for the first half, r + R for the second.
    """
    counts = arrays["edge_counts"]
    n, num_relations = counts.shape
    field = np.repeat(np.arange(n * num_relations, dtype=np.int64), counts.reshape(-1))
    package = (field // num_relations).astype(np.int32)
    relation = (field % num_relations).astype(np.int8)
    target = arrays["edge_targets"].astype(np.int32)
    edges = np.stack([np.concatenate([package, target]), np.concatenate([target, package])])
    return edges, np.concatenate([relation, relation + np.int8(num_relations)])


def expand_features(arrays: Arrays) -> npt.NDArray[np.float32]:
    """float32[n, word_columns + 2]: words, then sizes.

    The words of a package are the signed sum of their weights, scaled to length 1; zeros if the
    package has none.
    """
    n, dim = len(arrays["labels"]), int(arrays["word_columns"])
    words = arrays["word_ids"]
    weight = arrays["word_sign"].astype(np.float64) * arrays["word_idf"]
    column = arrays["word_column"].astype(np.int64)
    counts = arrays["word_counts"].astype(np.int64)
    first = np.concatenate([[0], np.cumsum(counts)])
    features = np.empty((n, dim + NUM_SIZES), dtype=np.float32)
    features[:, dim:] = arrays["sizes"]
    rows = 8192  # bounds the float64 sums to 8192 * dim values at a time
    for start in range(0, n, rows):
        stop = min(start + rows, n)
        ids = words[first[start] : first[stop]]
        row = np.repeat(np.arange(stop - start, dtype=np.int64), counts[start:stop])
        sums = np.bincount(row * dim + column[ids], weight[ids], (stop - start) * dim)
        sums = sums.reshape(-1, dim)
        length = np.sqrt((sums * sums).sum(axis=1, keepdims=True))
        features[start:stop, :dim] = sums / np.where(length > 0, length, 1.0)
    return features


def expand_debian(archive: Path, folder: Path) -> None:
    """Writes metadata.yaml, the arrays and node_names.txt to an existing folder."""
    arrays = read_archive(archive)
    class_names = text_lines(arrays["class_names"])
    relations = text_lines(arrays["relation_names"])
    edges, relation = expand_edges(arrays)
    write_node_classification(
        folder,
        dataset_name="debian",
        num_nodes=len(arrays["labels"]),
        edges=edges,
        features=expand_features(arrays),
        labels=arrays["labels"].astype(np.int64),
        sets={key: np.flatnonzero(arrays["splits"] == k) for k, key in enumerate(SETS)},
        task={
            "num_classes": len(class_names),
            "class_names": class_names,
            "relation_names": relations + [f"reverse {name}" for name in relations],
        },
        edge_attributes={"relation": relation},
    )
    (folder / NODE_NAMES_FILE).write_bytes(arrays["names"].tobytes())
