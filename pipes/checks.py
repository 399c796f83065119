"""Checks of ids, times, rows, numbers and flags as they enter: one wording, one place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hopline.pipes.kernels import cpu

if TYPE_CHECKING:
    from hopline.pipes.graph import FusedCSCSamplingGraph

__all__ = [
    "MASK_HINT",
    "as_times",
    "check_array",
    "check_count",
    "check_flag",
    "check_graph_arrays",
    "check_id_tensor",
    "check_ids",
    "check_integers",
    "check_mapping",
    "check_name",
    "check_rows",
    "check_values",
    "holds_integers",
    "id_out_of_range",
    "too_large_for_int64",
]

MASK_HINT = "; the ids of a mask are mask.nonzero().view(-1)"
INTEGERS = (
    torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.uint64,
    torch.int64,
)  # fmt: skip


def check_count(value: Any, name: str, least: int | None = 0) -> int:
    """An int that is no bool, of so much or more.

    Args:
        value: to be checked.
        name: what it is, for the message.
        least: the smallest that will do; None for any.

    Raises:
        TypeError: not an int.
        ValueError: too small.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} is {value!r}; expected an int")
    if least is not None and value < least:
        raise ValueError(f"{name} is {value}; expected {least} or more")
    return int(value)


def check_flag(value: Any, name: str, *, optional: bool = False) -> None:
    """Refuses what is neither True nor False, nor None where that is one of the choices.

    Raises:
        TypeError: it is something else.
    """
    if not isinstance(value, bool) and not (optional and value is None):
        choices = "True, False or None" if optional else "True or False"
        raise TypeError(f"{name} is {value!r}; expected {choices}")


def check_mapping(value: Any, name: str, entries: str) -> None:
    """Refuses what is neither a dict nor None.

    Args:
        value: to be checked.
        name: what it is, for the message.
        entries: what the dict holds, e.g. "{name: tensor}".

    Raises:
        TypeError: it is something else.
    """
    if value is not None and not isinstance(value, Mapping):
        raise TypeError(f"{name} is a {type(value).__name__}; expected {entries}")


def check_name(value: Any, name: str) -> None:
    """Refuses what is no string.

    Raises:
        TypeError: it is something else.
    """
    if not isinstance(value, str):
        raise TypeError(f"{name} is {value!r}; expected a string")


def check_array(value: Any, what: str, dtypes: tuple[torch.dtype, ...], least: int) -> None:
    """Refuses what is no tensor of one dimension and of one of the dtypes, and so long.

    Raises:
        TypeError: not a tensor, or of another dtype.
        ValueError: of other dimensions, or too short.
    """
    wanted = " or ".join(str(dtype) for dtype in dtypes)
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{what} is a {type(value).__name__}; expected a torch.Tensor of {wanted}")
    if value.dtype not in dtypes:
        raise TypeError(f"{what} has dtype {value.dtype}; expected {wanted}")
    if value.dim() != 1 or len(value) < least:
        raise ValueError(
            f"{what} has shape {tuple(value.shape)}; expected one dimension, {least} or more long"
        )


def check_graph_arrays(graph: FusedCSCSamplingGraph) -> None:
    """Refuses arrays that no kernel may be given, be it that a graph's attributes have been set.

    Looks at dtypes and lengths, and at the few numbers where node types begin; kernels look at the
    rest as they come to it.

    Raises:
        TypeError: an array is no tensor, or of a wrong dtype.
        ValueError: an array is of a wrong length, or node types do not share out the nodes.
    """
    check_array(graph.csc_indptr, "csc_indptr", (torch.int64,), 1)
    check_array(graph.indices, "indices", (torch.int32, torch.int64), 0)
    if graph.type_per_edge is not None:
        check_array(graph.type_per_edge, "type_per_edge", INTEGERS, 0)
        check_rows(graph.type_per_edge, graph.total_num_edges, "type_per_edge")
    for name in ("csc_indptr", "indices", "type_per_edge"):
        value = getattr(graph, name)
        if value is not None:
            check_values(value, name)
    if graph.node_type_to_id is None:
        return
    _check_type_ids(graph.node_type_to_id, "node_type_to_id")
    _check_type_ids(graph.edge_type_to_id, "edge_type_to_id")
    check_array(graph.node_type_offset, "node_type_offset", INTEGERS, 1)
    assert graph.node_type_offset is not None
    check_values(graph.node_type_offset, "node_type_offset")
    offsets = graph.node_type_offset.tolist()
    ends = (offsets[0], offsets[-1]) == (0, graph.total_num_nodes)
    if not ends or len(offsets) != len(graph.node_type_to_id) + 1 or offsets != sorted(offsets):
        raise ValueError(
            f"node_type_offset is {offsets}; expected {len(graph.node_type_to_id) + 1} entries "
            f"that never descend, from 0 to {graph.total_num_nodes} nodes: the graph is damaged: "
            f"{graph}"
        )


def holds_integers(tensor: torch.Tensor) -> bool:
    """Whether a tensor's dtype is one of integers, signed or not; that of booleans is none."""
    dtype = tensor.dtype
    return not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)


def check_integers(value: Any, what: str) -> None:
    """Refuses what is no tensor of integers of one dimension.

    Raises:
        TypeError: not a tensor, or not of integers.
        ValueError: of other dimensions.
    """
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{what} is a {type(value).__name__}; expected a torch.Tensor of integers")
    if not holds_integers(value):
        raise TypeError(f"{what} has dtype {value.dtype}; expected integers")
    if value.dim() != 1:
        raise ValueError(f"{what} has shape {tuple(value.shape)}; expected one dimension")


def too_large_for_int64(integers: torch.Tensor) -> int | None:
    """The largest value of a tensor if that is above all int64; None if there is none."""
    # From 2**63 on, a word of uint64 reads as a negative number.
    if integers.dtype != torch.uint64 or not bool((integers.view(torch.int64) < 0).any()):
        return None
    return int(integers.detach().cpu().numpy().max())


def _check_type_ids(table: Mapping[str, int] | None, what: str) -> None:
    """Refuses a table of types whose ids are not 0, 1, ...: they are places in lists."""
    ids = None if table is None else list(table.values())
    if ids is None or not all(isinstance(i, int) for i in ids) or sorted(ids) != [*range(len(ids))]:
        raise ValueError(f"{what} is {table!r:.200}; expected {{type: id}} with ids 0, 1, ...")


def check_values(tensor: torch.Tensor, what: str) -> None:
    """Refuses a tensor that has a shape and no values, where these are to be read.

    Raises:
        ValueError: the tensor is on the device meta.
    """
    if tensor.is_meta:
        raise ValueError(
            f"{what}: got a tensor on the device meta, which holds no values; expected one on the "
            "CPU or a GPU"
        )


def check_ids(ids: torch.Tensor, count: int, what: str, dtype: torch.dtype) -> torch.Tensor:
    """Ids as a contiguous 1-D CPU tensor of the wanted dtype, every one in [0, count).

    Args:
        ids: integer tensor of one dimension.
        count: number of things that may be named.
        what: what the ids name, for the message, e.g. "seeds of type 'user'".
        dtype: torch.int32 or torch.int64.

    Raises:
        TypeError: ids are not a tensor of integers.
        ValueError: ids are not 1-D, or have no values.
        IndexError: an id is outside [0, count).
    """
    check_id_tensor(ids, what, dtype)
    too_large = too_large_for_int64(ids)
    if too_large is not None:
        raise IndexError(f"{what}: id {too_large} is outside [0, {count})")
    array = ids.detach().cpu().contiguous().numpy()
    if array.dtype.kind == "u":
        array = array.astype(np.int64)
    bad = int(cpu.first_out_of_range(array, 0, count))
    if bad >= 0:
        raise id_out_of_range(int(array[bad]), bad, count, what)
    wanted = np.int32 if dtype == torch.int32 else np.int64
    return torch.from_numpy(np.ascontiguousarray(array, dtype=wanted))


def check_id_tensor(ids: Any, what: str, dtype: torch.dtype) -> None:
    """Refuses what cannot be ids, whatever its values.

    Raises:
        TypeError: ids are not a tensor of integers.
        ValueError: ids are not 1-D, or have no values.
    """
    if not isinstance(ids, torch.Tensor):
        raise TypeError(f"{what}: got a {type(ids).__name__}; expected a torch.Tensor of integers")
    if not holds_integers(ids):
        hint = MASK_HINT if ids.dtype == torch.bool else ""
        raise TypeError(f"{what}: got dtype {ids.dtype}; expected integers, e.g. {dtype}{hint}")
    if ids.dim() != 1:
        raise ValueError(f"{what}: got shape {tuple(ids.shape)}; expected one dimension")
    check_values(ids, what)


def id_out_of_range(value: int, position: int, count: int, what: str) -> IndexError:
    """The error of an id outside [0, count)."""
    return IndexError(
        f"{what}: id {value} at position {position} is outside [0, {count}); ids are numbered from "
        "0 within their type"
    )


def as_times(values: torch.Tensor, what: str) -> np.ndarray[Any, Any]:
    """int64[n], of integers on the CPU.

    Raises:
        ValueError: a value is above all int64.
    """
    too_large = too_large_for_int64(values)
    if too_large is not None:
        raise ValueError(f"{what} has {too_large}; expected times below 2**63")
    array: np.ndarray[Any, Any] = values.numpy()
    return array.astype(np.int64, copy=False)


def check_rows(value: Any, rows: int, what: str) -> None:
    """Refuses what is no tensor of so many rows.

    Raises:
        TypeError: not a tensor.
        ValueError: another number of rows.
    """
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{what} is a {type(value).__name__}; expected a torch.Tensor")
    if value.dim() == 0 or len(value) != rows:
        raise ValueError(f"{what} has shape {tuple(value.shape)}; expected {rows} rows")
