"""A sampled mini-batch as one Data of PyTorch Geometric."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from hopline.pipes.converters.common import library
from hopline.pipes.minibatch import MiniBatch
from hopline.pipes.relabel import HashNodeTable
from hopline.pipes.tensor_functions import expand_indptr

__all__ = ["to_pyg_data"]


def to_pyg_data(minibatch: MiniBatch) -> Any:
    """Joins the hops of a mini-batch; see `MiniBatch.to_pyg_data`.

    Args:
        minibatch: sampled, for node classification on a homogeneous graph.

    Raises:
        ImportError: PyTorch Geometric is not installed.
        ValueError: the mini-batch is of another kind.
    """
    seeds, subgraphs = minibatch.seeds, minibatch.sampled_subgraphs
    if not subgraphs:
        raise ValueError(
            "to_pyg_data: nothing is sampled; put a sampler such as sample_neighbor into the chain"
        )
    if isinstance(subgraphs[0].sampled_csc, dict) or not isinstance(seeds, torch.Tensor):
        raise ValueError(
            "to_pyg_data: the mini-batch has types; use subgraph.to_pyg(x) for each hop"
        )
    if seeds.dim() != 1:
        raise ValueError(
            f"to_pyg_data: seeds have shape {tuple(seeds.shape)}; expected nodes. For edges use "
            "subgraph.to_pyg(x) for each hop, and compacted_seeds"
        )
    rows = subgraphs[0].original_row_node_ids
    if not isinstance(rows, torch.Tensor):
        raise ValueError(
            f"to_pyg_data: the sources of the outermost hop are a {type(rows).__name__}; expected "
            "their ids"
        )
    x = _only(minibatch.node_features, "node features")
    sources, destinations, edge_ids, edge_features = [], [], [], []
    for number in reversed(range(len(subgraphs))):  # from the seeds outwards
        csc, ids = subgraphs[number].sampled_csc, subgraphs[number].original_edge_ids
        assert not isinstance(csc, dict)
        if not isinstance(ids, torch.Tensor):
            raise ValueError(
                f"to_pyg_data: the edge ids of hop {number} are a {type(ids).__name__}; expected a "
                "tensor"
            )
        sources.append(csc.indices.to(torch.int64))
        size = len(csc.indices)
        destinations.append(expand_indptr(csc.indptr, torch.int64, output_size=size))
        edge_ids.append(ids)
        if minibatch.edge_features:
            features = _only(minibatch.edge_features[number], f"edge features of hop {number}")
            edge_features.append(features)
    src, dst, e_id = torch.cat(sources), torch.cat(destinations), torch.cat(edge_ids)
    once = _one_of_each(src, dst, e_id)
    options = {}
    if edge_features and all(rows is not None for rows in edge_features):
        options["edge_attr"] = torch.cat(edge_features)[once]
    data = library("torch_geometric.data", "to_pyg_data")
    return data.Data(
        x=x,
        edge_index=torch.stack((src[once], dst[once])),
        y=minibatch.labels,
        batch_size=len(seeds),
        n_id=rows,
        e_id=e_id[once],
        num_nodes=len(rows),
        **options,
    )


def _only(features: dict[Any, Any] | None, what: str) -> Any:
    """The one entry; None if there is none."""
    if features and len(features) > 1:
        raise ValueError(
            f"to_pyg_data: {what} are {list(features)}; a Data has room for one: fetch one, or "
            "join them in a transform"
        )
    return next(iter(features.values())) if features else None


def _one_of_each(*columns: torch.Tensor) -> torch.Tensor:
    """int64, a place of each distinct row, in the order of their first occurrence."""
    rows = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        # Two columns of 31-bit numbers make one of 62 bits, which is numbered anew.
        rows = _numbered(rows) << 31 | _numbered(column.cpu().numpy())
    numbers = _numbered(rows)
    places = np.empty(int(numbers.max()) + 1 if len(numbers) else 0, np.int64)
    places[numbers] = np.arange(len(numbers))
    return torch.from_numpy(places).to(columns[0].device)


def _numbered(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """int64, each value's number in the order of first occurrence."""
    table = HashNodeTable()
    table.start(np.empty(0, values.dtype))
    return table.relabel(np.ascontiguousarray(values)).astype(np.int64)
