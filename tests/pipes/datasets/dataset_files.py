"""Small data sets for tests, written to a folder."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import yaml

# Edge file of the smallest example: value 10 belongs to 0->2, 11 to 1->0, 12 to 2->1, 13 to 0->1.
TINY_EDGES = np.array([[0, 1, 2, 0], [2, 0, 1, 1]])
TINY_WEIGHTS = np.array([10.0, 11.0, 12.0, 13.0])


def write(folder: Path, document: dict[str, Any], arrays: dict[str, np.ndarray]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        np.save(folder / name, array)
    (folder / "metadata.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    return folder


def npy(path: str, **keys: Any) -> dict[str, Any]:
    return {**keys, "format": "numpy", "path": path}


def tiny() -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """3 nodes, 4 edges, an edge attribute, a feature of nodes and of edges, one task."""
    document = {
        "dataset_name": "tiny",
        "graph": {
            "nodes": [{"num": 3}],
            "edges": [npy("edges.npy")],
            "feature_data": [npy("weight.npy", domain="edge", name="weight")],
        },
        "feature_data": [
            npy("x.npy", domain="node", name="x"),
            npy("e.npy", domain="edge", name="e"),
        ],
        "tasks": [
            {
                "name": "classify",
                "num_classes": 2,
                "train_set": [
                    {"data": [npy("seeds.npy", name="seeds"), npy("labels.npy", name="labels")]}
                ],
            }
        ],
    }
    arrays = {
        "edges.npy": TINY_EDGES,
        "weight.npy": TINY_WEIGHTS,
        "x.npy": np.arange(6, dtype=np.float32).reshape(3, 2),
        "e.npy": TINY_WEIGHTS.astype(np.float32).reshape(4, 1),
        "seeds.npy": np.array([0, 2]),
        "labels.npy": np.array([1, 0]),
    }
    return document, arrays


def typed() -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Users and items; two edge types whose entries are not in the order of their names."""
    document = {
        "dataset_name": "typed",
        "graph": {
            "nodes": [{"type": "user", "num": 4}, {"type": "item", "num": 3}],
            "edges": [
                npy("likes.npy", type="user:likes:item"),
                npy("follows.npy", type="user:follows:user"),
            ],
            "feature_data": [
                npy("likes_w.npy", domain="edge", type="user:likes:item", name="weight"),
                npy("follows_w.npy", domain="edge", type="user:follows:user", name="weight"),
                npy("user_t.npy", domain="node", type="user", name="timestamp"),
                npy("item_t.npy", domain="node", type="item", name="timestamp"),
            ],
        },
        "feature_data": [
            npy("user_x.npy", domain="node", type="user", name="x"),
            npy("item_x.npy", domain="node", type="item", name="x", source="made up"),
            npy("likes_w.npy", domain="edge", type="user:likes:item", name="x"),
        ],
        "tasks": [
            {
                "name": "link",
                "train_set": [
                    {
                        "type": "user:likes:item",
                        "data": [npy("pairs.npy", name="seeds"), npy("pair_y.npy", name="labels")],
                    },
                    {
                        "type": "user:follows:user",
                        "data": [
                            npy("pairs2.npy", name="seeds"),
                            npy("pair_y2.npy", name="labels"),
                        ],
                    },
                ],
            },
            {
                "name": "node",
                "train_set": [{"type": "item", "data": [npy("items.npy", name="seeds")]}],
            },
        ],
    }
    arrays = {
        "likes.npy": np.array([[3, 0, 1, 0], [2, 0, 2, 1]]),
        "follows.npy": np.array([[1, 0, 3], [0, 1, 0]]),
        "likes_w.npy": np.array([0.5, 1.5, 2.5, 3.5]),
        "follows_w.npy": np.array([10.0, 20.0, 30.0]),
        "user_t.npy": np.arange(4),
        "item_t.npy": np.arange(100, 103),
        "user_x.npy": np.ones((4, 2), np.float32),
        "item_x.npy": np.full((3, 2), 2, np.float32),
        "pairs.npy": np.array([[3, 2], [0, 0]]),
        "pair_y.npy": np.array([1.0, 0.0]),
        "pairs2.npy": np.array([[1, 0]]),
        "pair_y2.npy": np.array([1.0]),
        "items.npy": np.array([2, 1], np.uint8),
    }
    return document, arrays


def set_key(document: dict[str, Any], path: list[Any], value: Any) -> dict[str, Any]:
    """A copy with one entry replaced; DELETE removes it."""
    document = copy.deepcopy(document)
    at: Any = document
    for step in path[:-1]:
        at = at[step]
    if value is DELETE:
        del at[path[-1]]
    elif isinstance(at, list) and path[-1] == len(at):
        at.append(value)
    else:
        at[path[-1]] = value
    return document


DELETE = object()
