"""Small data sets with everything that a description can hold, to be damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import torch
import yaml

from hopline.pipes.datasets import preprocess_ondisk_dataset

Made = tuple[dict[str, Any], dict[str, Any]]


def npy(path: str, **keys: Any) -> dict[str, Any]:
    return {**keys, "format": "numpy", "path": path}


def column(path: str, name: str, format: str = "numpy", **keys: Any) -> dict[str, Any]:
    return {"name": name, "format": format, "path": path, **keys}


def plain() -> Made:
    """One type of nodes and of edges; every array is a .npy file."""
    r = np.random.default_rng(1)
    nodes, edges = 24, 90
    document = {
        "dataset_name": "plain",
        "graph": {
            "nodes": [{"num": nodes}],
            "edges": [npy("edges.npy")],
            "feature_data": [
                npy("weight.npy", domain="edge", name="weight"),
                npy("edge_time.npy", domain="edge", name="timestamp"),
                npy("node_time.npy", domain="node", name="timestamp"),
            ],
        },
        "feature_data": [
            npy("x.npy", domain="node", name="x"),
            npy("h.npy", domain="node", name="h", in_memory=False),
            npy("e.npy", domain="edge", name="e"),
        ],
        "tasks": [
            {
                "name": "classify",
                "num_classes": 5,
                "train_set": [
                    {
                        "data": [
                            column("seeds.npy", "seeds"),
                            column("labels.npy", "labels"),
                            column("times.npy", "timestamp"),
                        ]
                    }
                ],
                "validation_set": [{"data": [column("rest.npy", "seeds", in_memory=False)]}],
            }
        ],
    }
    files = {
        "edges.npy": np.stack([r.integers(0, nodes, edges), r.integers(0, nodes - 3, edges)]),
        "weight.npy": (r.random(edges) * (r.random(edges) < 0.8)).astype(np.float32),
        "edge_time.npy": r.integers(0, 100, edges),
        "node_time.npy": r.integers(0, 100, nodes),
        "x.npy": np.arange(nodes * 3, dtype=np.float32).reshape(nodes, 3),
        "h.npy": np.arange(nodes * 2, dtype=np.float16).reshape(nodes, 2),
        "e.npy": np.arange(edges * 2, dtype=np.float64).reshape(edges, 2),
        "seeds.npy": r.permutation(nodes)[:13],
        "labels.npy": r.integers(0, 5, 13),
        "times.npy": r.integers(0, 100, 13),
        "rest.npy": r.permutation(nodes)[:6].astype(np.int32),
    }
    return document, files


def typed() -> Made:
    """Two types of nodes, two of edges, a task on nodes and one on links."""
    r = np.random.default_rng(2)
    likes, follows = "user:likes:item", "user:follows:user"
    document = {
        "dataset_name": "typed",
        "graph": {
            "nodes": [{"type": "user", "num": 15}, {"type": "item", "num": 9}],
            "edges": [npy("likes.npy", type=likes), npy("follows.npy", type=follows)],
            "feature_data": [
                npy("likes_w.npy", domain="edge", type=likes, name="weight"),
                npy("follows_w.npy", domain="edge", type=follows, name="weight"),
                npy("user_t.npy", domain="node", type="user", name="timestamp"),
                npy("item_t.npy", domain="node", type="item", name="timestamp"),
            ],
        },
        "feature_data": [
            npy("user_x.npy", domain="node", type="user", name="x"),
            npy("item_x.npy", domain="node", type="item", name="x", in_memory=False),
            npy("likes_w.npy", domain="edge", type=likes, name="e"),
        ],
        "tasks": [
            {
                "name": "link",
                "train_set": [
                    {
                        "type": likes,
                        "data": [column("pairs.npy", "seeds"), column("pairs_y.npy", "labels")],
                    },
                    {
                        "type": follows,
                        "data": [column("pairs2.npy", "seeds"), column("pairs2_y.npy", "labels")],
                    },
                ],
            },
            {
                "name": "node",
                "num_classes": 4,
                "train_set": [
                    {
                        "type": "item",
                        "data": [
                            column("items.npy", "seeds"),
                            column("items_y.npy", "labels"),
                            column("items_t.npy", "timestamp"),
                        ],
                    }
                ],
            },
        ],
    }
    files = {
        "likes.npy": np.stack([r.integers(0, 15, 40), r.integers(0, 9, 40)]),
        "follows.npy": np.stack([r.integers(0, 15, 30), r.integers(0, 15, 30)]),
        "likes_w.npy": r.random(40),
        "follows_w.npy": r.random(30),
        "user_t.npy": r.integers(0, 50, 15),
        "item_t.npy": r.integers(0, 50, 9),
        "user_x.npy": np.arange(30, dtype=np.float32).reshape(15, 2),
        "item_x.npy": np.arange(18, dtype=np.float32).reshape(9, 2) + 100,
        "pairs.npy": np.stack([r.integers(0, 15, 7), r.integers(0, 9, 7)], axis=1),
        "pairs_y.npy": r.random(7).astype(np.float32),
        "pairs2.npy": np.stack([r.integers(0, 15, 4), r.integers(0, 15, 4)], axis=1),
        "pairs2_y.npy": r.random(4).astype(np.float32),
        "items.npy": r.permutation(9)[:7].astype(np.uint8),
        "items_y.npy": r.integers(0, 4, 7),
        "items_t.npy": r.integers(0, 50, 7),
    }
    return document, files


def formats() -> Made:
    """As `plain`, smaller, with a file of every format."""
    r = np.random.default_rng(3)
    nodes, edges = 12, 40
    ends = np.stack([r.integers(0, nodes, edges), r.integers(0, nodes, edges)])
    x = np.arange(nodes * 2, dtype=np.float64).reshape(nodes, 2)
    document = {
        "graph": {
            "nodes": [{"num": nodes}],
            "edges": [{"format": "csv", "path": "edges.csv"}],
            "feature_data": [
                column("weight.parquet", "weight", "parquet", domain="edge"),
            ],
        },
        "feature_data": [
            column("x.parquet", "x", "parquet", domain="node"),
            column("y.pt", "y", "torch", domain="node"),
            column("many.npz", "z", "npz", key="z", domain="node"),
        ],
        "tasks": [
            {
                "train_set": [
                    {
                        "data": [
                            column("seeds.parquet", "seeds", "parquet"),
                            column("many.npz", "labels", "npz", key="labels"),
                        ]
                    }
                ]
            }
        ],
    }
    files = {
        "edges.csv": "".join(f"{s},{d}\n" for s, d in ends.T.tolist()).encode(),
        "weight.parquet": pa.table({"w": r.random(edges)}),
        "x.parquet": pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), 2)}),
        "y.pt": torch.arange(nodes * 3, dtype=torch.float32).reshape(nodes, 3),
        "many.npz": {"z": r.random((nodes, 1)), "labels": r.integers(0, 3, 5)},
        "seeds.parquet": pa.table({"seeds": r.permutation(nodes)[:5]}),
    }
    return document, files


EXAMPLES: dict[str, Callable[[], Made]] = {"plain": plain, "typed": typed, "formats": formats}


def write(folder: Path, name: str, *, processed: bool = False) -> None:
    """Writes an example to a new folder."""
    document, files = EXAMPLES[name]()
    folder.mkdir(parents=True)
    for file, content in files.items():
        path = folder / file
        match content:
            case bytes():
                path.write_bytes(content)
            case dict():
                np.savez(path, **content)
            case torch.Tensor():
                torch.save(content, path)
            case pa.Table():
                parquet.write_table(content, path)
            case _:
                np.save(path, content)
    (folder / "metadata.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    if processed:
        preprocess_ondisk_dataset(folder)
