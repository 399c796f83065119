"""Files that DGL writes: named tensors, and graphs with their data; read without DGL or pickle.

Each structure lies behind a number of its own, as in DGL's `src/graph/serialize`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hopline.partition.dgl_reader import Reader, StoredArray

__all__ = ["GraphFile", "read_graph_file", "read_tensor_file"]

Array = np.ndarray[Any, Any]

TENSORS = 0xDD5A9FBE3FA2443F
GRAPHS = 0xDD2E4FF046B4A13F
TYPED_GRAPH = 0xDD589FBE35224ABF
RELATION = 0xDD2E60F0F6B4A127
COO = 0xDD61FFD305DFF127

HEAD = 4096  # bytes before the place of the graphs
VERSION, TYPED = 2, 2  # of a file of graphs, and its kind
MARKED = 1 << 32  # marks a set of formats; older files have the number of one
FORMATS = {1: 1, 2: 2, 3: 4}  # of older files
COO_BIT, CSR_BIT, CSC_BIT = 1, 2, 4


@dataclass(frozen=True)
class GraphFile:
    """A graph of one node type and one edge type.

    Attributes:
        num_nodes: number of nodes.
        sources: integer[num_edges], in the order of the edges' numbers.
        columns: integer[num_edges], where they end.
        node_data: `{name: array of num_nodes rows}`.
        edge_data: `{name: array of num_edges rows}`.
    """

    num_nodes: int
    sources: Array
    columns: Array
    node_data: dict[str, StoredArray]
    edge_data: dict[str, StoredArray]


def read_tensor_file(path: Path) -> dict[str, StoredArray]:
    """Reads what `dgl.data.utils.save_tensors` has written, e.g. `node_feat.dgl`.

    Args:
        path: the file, which stays mapped while an array is in use.

    Raises:
        ValueError: it is missing, damaged, or another file; names it and the place.
    """
    reader = Reader(path, "tensors as DGL's save_tensors writes them")
    reader.number(TENSORS, "a file of tensors")
    entries = reader.word()
    found = reader.named_arrays()
    if len(found) != entries:
        raise reader.error(f"announces {entries} tensors and has {len(found)}")
    return found


def read_graph_file(path: Path) -> GraphFile:
    """Reads what `dgl.save_graphs` has written for a graph without types, e.g. `graph.dgl`.

    Args:
        path: the file, which stays mapped while an array is in use.

    Raises:
        ValueError: it is missing, damaged, or another file; names it and the place.
    """
    reader = Reader(path, "one graph of one type, as DGL's save_graphs writes it")
    reader.number(GRAPHS, "a file of graphs")
    version, kind, graphs = reader.word(), reader.word(), reader.word()
    if (version, kind, graphs) != (VERSION, TYPED, 1):
        raise reader.error(f"has {graphs} graphs of kind {kind}, version {version},")
    reader.go_to(HEAD)
    reader.go_to(reader.word())
    reader.number(TYPED_GRAPH, "a graph")
    reader.meta_graph()
    if (relations := reader.word()) != 1:
        raise reader.error(f"has {relations} relations")
    sources, columns = _relation(reader)
    num_nodes = [reader.word() for _ in range(reader.count(8))]
    if len(num_nodes) != 1:
        raise reader.error(f"has {len(num_nodes)} node types")
    data = []
    for rows in (num_nodes[0], len(sources)):
        if (tables := reader.count(8)) != 1:
            raise reader.error(f"has data of {tables} types")
        data.append(reader.named_arrays())
        for name, array in data[-1].items():
            if array.values.shape[:1] != (rows,):
                raise reader.error(
                    f"has {name!r} of shape {array.values.shape} for {rows} nodes or edges"
                )
    for ends in (sources, columns):
        if len(ends) and not (ends.min() >= 0 and ends.max() < num_nodes[0]):
            raise reader.error(f"has edges of nodes {ends.min()} to {ends.max()} of {num_nodes[0]}")
    return GraphFile(num_nodes[0], sources, columns, *data)


def _relation(reader: Reader) -> tuple[Array, Array]:
    """(sources, columns) of the edges, in the order of their numbers."""
    reader.number(RELATION, "a relation")
    formats = reader.word()
    reader.word()  # formats that may be made of it
    formats = formats % MARKED if formats >> 32 else FORMATS.get(formats, 0)
    if formats & COO_BIT:
        reader.meta_graph()
        pair = _from_coo(reader)
    if formats & CSR_BIT:
        reader.meta_graph()
        by_source = reader.csr()
    if formats & CSC_BIT:
        reader.meta_graph()
        by_column = reader.csr()
    # What is there last is read all the same, to come to the data behind it.
    if formats & COO_BIT:
        return pair
    if formats & CSC_BIT:
        columns, sources = _unfolded(reader, by_column)
        return sources, columns
    if formats & CSR_BIT:
        return _unfolded(reader, by_source)
    raise reader.error(f"has a relation in formats {formats}")


def _from_coo(reader: Reader) -> tuple[Array, Array]:
    reader.number(COO, "a COO matrix")
    reader.take(16)  # its shape
    sources, columns, numbers = reader.ids(), reader.ids(), reader.ids()
    reader.take(2)  # whether it is sorted
    if len(sources) != len(columns) or len(numbers) not in (0, len(sources)):
        raise reader.error("has a COO matrix that does not fit together")
    if len(numbers):
        return _in_order(reader, numbers, sources, columns)
    return sources, columns


def _unfolded(reader: Reader, csr: tuple[int, Array, Array, Array]) -> tuple[Array, Array]:
    """(rows, columns) of a CSR matrix."""
    _, begins, ends, numbers = csr
    rows = np.repeat(np.arange(max(0, len(begins) - 1)), np.diff(begins))
    return _in_order(reader, numbers, rows, ends) if len(numbers) else (rows, ends)


def _in_order(reader: Reader, numbers: Array, *arrays: Array) -> tuple[Array, Array]:
    """Two arrays by the numbers of their entries."""
    count = len(numbers)
    if not (numbers.min() >= 0 and numbers.max() < count):
        raise reader.error(f"has edges with numbers {numbers.min()} to {numbers.max()} of {count}")
    seen = np.zeros(count, bool)
    seen[numbers] = True
    if not seen.all():
        raise reader.error("has two edges of one number")
    first, second = (np.empty_like(array) for array in arrays)
    first[numbers], second[numbers] = arrays
    return first, second
