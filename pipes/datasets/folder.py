"""A data set folder for node classification: its arrays and the metadata.yaml that names them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import yaml

from hopline.pipes.npy import write_npy

__all__ = ["SETS", "write_node_classification"]

SETS = ("train", "validation", "test")


def write_node_classification(
    folder: Path,
    *,
    dataset_name: str,
    num_nodes: int,
    edges: npt.NDArray[Any],
    features: npt.NDArray[Any],
    labels: npt.NDArray[np.int64],
    sets: Mapping[str, npt.NDArray[Any]],
    task: Mapping[str, Any],
    edge_attributes: Mapping[str, npt.NDArray[Any]] | None = None,
) -> None:
    """Writes a homogeneous graph with the node feature "feat" and one task to an existing folder.

    Args:
        folder: where to write.
        dataset_name: name of the data set.
        num_nodes: number of nodes.
        edges: integer[2, num_edges], sources and destinations.
        features: [num_nodes, dim].
        labels: int64[num_nodes], class of each node.
        sets: node ids under "train", "validation" and "test".
        task: what the task's metadata holds besides its name, e.g. `num_classes`.
        edge_attributes: `{name: [num_edges, ...]}`, attributes of the graph.
    """

    def entry(file: str, array: npt.NDArray[Any], **keys: str) -> dict[str, Any]:
        write_npy(folder / file, torch.from_numpy(np.ascontiguousarray(array)))
        return {**keys, "format": "numpy", "path": file}

    graph: dict[str, Any] = {"nodes": [{"num": num_nodes}], "edges": [entry("edges.npy", edges)]}
    if edge_attributes:
        graph["feature_data"] = [
            entry(f"{name}.npy", values, domain="edge", name=name)
            for name, values in edge_attributes.items()
        ]
    entries: dict[str, Any] = {"name": "node_classification", **task}
    for key in SETS:
        seeds = sets[key]
        data = [
            entry(f"{key}_seeds.npy", seeds, name="seeds"),
            entry(f"{key}_labels.npy", labels[seeds], name="labels"),
        ]
        entries[f"{key}_set"] = [{"data": data}]
    document = {
        "dataset_name": dataset_name,
        "graph": graph,
        "feature_data": [entry("feat.npy", features, domain="node", name="feat")],
        "tasks": [entries],
    }
    text = yaml.safe_dump(document, sort_keys=False)
    (folder / "metadata.yaml").write_text(text, encoding="utf-8")
