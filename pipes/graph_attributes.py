"""Attributes of a graph's nodes and edges: found by name, and as the arrays that kernels read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hopline.pipes.checks import as_times, check_rows
from hopline.pipes.snapshot import Snapshot

if TYPE_CHECKING:
    from hopline.pipes.graph import FusedCSCSamplingGraph

__all__ = ["AttributeArrays", "find_attribute"]

Array = np.ndarray[Any, Any]


def find_attribute(
    attributes: Mapping[str, torch.Tensor] | None, name: str | None, domain: str
) -> torch.Tensor | None:
    """The attribute of that name; None for None.

    Args:
        attributes: of the nodes or edges of a graph.
        name: its name.
        domain: "node" or "edge", for the message.

    Raises:
        KeyError: there is no such attribute.
    """
    if name is None:
        return None
    if attributes is None or not isinstance(name, str) or name not in attributes:
        raise KeyError(f"no {domain} attribute {name!r}; the graph has {sorted(attributes or {})}")
    return attributes[name]


class AttributeArrays:
    """Attributes of one graph as arrays that kernels read, converted when first asked for."""

    def __init__(self) -> None:
        # By domain, name and dtype: the attribute, the address of its values, and the array.
        self._known: dict[tuple[str, str, Any], tuple[Snapshot, int, Array]] = {}

    def get(self, graph: FusedCSCSamplingGraph, domain: str, name: str, dtype: Any) -> Array:
        """See `FusedCSCSamplingGraph.attribute_array`."""
        if domain not in ("node", "edge"):
            raise ValueError(f"domain is {domain!r}; expected 'node' or 'edge'")
        attributes = graph.node_attributes if domain == "node" else graph.edge_attributes
        value = find_attribute(attributes, name, domain)
        if value is None:
            raise KeyError(f"no {domain} attribute None; the graph has {sorted(attributes or {})}")
        rows = graph.total_num_nodes if domain == "node" else graph.total_num_edges
        check_rows(value, rows, f"{domain} attribute {name!r}")
        key = (domain, name, dtype)
        known = self._known.get(key)
        # The address, too: what is sent to another process is first moved to shared memory.
        if known is None or not known[0].is_of(value) or known[1] != value.data_ptr():
            snapshot, address = Snapshot(value), value.data_ptr()
            array = _as_array(value, rows, f"{domain} attribute {name!r}", dtype)
            known = self._known[key] = snapshot, address, array
        return known[2]


def _as_array(value: torch.Tensor, rows: int, what: str, dtype: Any) -> Array:
    """An attribute of so many rows, one number each, in a dtype that kernels know."""
    flat = value.detach().reshape(-1) if value.numel() == rows else value
    if flat.dim() != 1:
        raise ValueError(f"{what} has shape {tuple(value.shape)}; expected one number a row")
    if flat.is_complex() or (
        dtype is not None and (flat.is_floating_point() or flat.dtype == torch.bool)
    ):
        raise TypeError(
            f"{what} has dtype {value.dtype}; expected "
            f"{'numbers' if dtype is None else 'integers, e.g. torch.int64'}"
        )
    if flat.dtype in (torch.float16, torch.bfloat16):
        flat = flat.float()
    flat = flat.cpu().contiguous()
    if dtype is not None:
        return as_times(flat, what)
    array: Array = flat.numpy()
    return array
