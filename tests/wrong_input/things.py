"""What the tables of wrong calls share: small graphs, mini-batches, features, and wrong tensors."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hopline.pipes as hp

# A name as in `__all__`, or "Class.method"; the call; what it raises; what the message matches.
Entry = tuple[str, Callable[[], object], type[Exception], str]

META = torch.device("meta")  # a device that every machine has, and no data
ARRAY = np.array([0, 1])
PLACE = tempfile.TemporaryDirectory()
FULL = f"{PLACE.name}/full"  # a folder that holds something
Path(FULL, "part").mkdir(parents=True)


def ids(*values: Any, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor(list(values), dtype=dtype)


FLOATS = ids(0.0, dtype=torch.float32)
BOOLS = ids(True, dtype=torch.bool)
COMPLEX = ids(0j, dtype=torch.complex64)
HUGE = torch.from_numpy(np.array([2**64 - 1], np.uint64))
ZERO_D, TWO_D = torch.tensor(0), ids([0, 1])
ON_META = torch.zeros(2, dtype=torch.int64, device=META)

GRAPH = hp.from_coo(
    ids(0, 1, 2), ids(1, 2, 0), 3,
    node_attributes={"time": ids(0, 0, 0), "wide": torch.ones(3, 2)},
    edge_attributes={"time": ids(0, 0, 0), "weight": torch.ones(3), "loss": -torch.ones(3)},
)  # fmt: skip
HETERO = hp.from_coo(
    {"a:x:b": (ids(0), ids(0)), "b:y:a": (ids(1), ids(0))}, num_nodes={"a": 1, "b": 2}
)
NODES = hp.ItemSet(ids(0, 1, 2), "seeds")
EDGES = hp.ItemSet(ids([0, 1], [1, 2]), "seeds")
TABLE = hp.TorchBasedFeature(torch.eye(3))
STORE = hp.BasicFeatureStore({("node", None, "feat"): TABLE, ("edge", None, "feat"): TABLE})
BLOCK = hp.Block(ids(0, 2, 2), ids(2, 1, dtype=torch.int32), 3, 2)
CSC = hp.CSCFormatBase(ids(0, 2, 2), ids(2, 1))
HOP = hp.SampledSubgraph(CSC, ids(0, 1), ids(0, 1, 2), ids(0, 1))


def source() -> hp.ItemSampler:
    return hp.ItemSampler(NODES, 2, seed=0)


def batch(seeds: Any = None, **fields: Any) -> hp.MiniBatch:
    return hp.MiniBatch(seeds=seeds, **{"key": (0, 0, 0), **fields})


def sampled(seeds: Any = None, **fields: Any) -> hp.MiniBatch:
    return batch(ids([0, 1]) if seeds is None else seeds, sampled_subgraphs=[HOP], **fields)
