"""Writes parts as DistDGL does, by its documented formats; without DGL."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

CODES = {"i": 0, "u": 1, "f": 2}
COO, CSR, CSC = 1, 2, 4

Array = np.ndarray[Any, Any]
Edges = dict[str, tuple[Array, Array]]


def words(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


def array(values: Any, code: int | None = None) -> bytes:
    """An array; code 4 says that int16 are the bits of bfloat16."""
    values = np.asarray(values)
    kind = CODES[values.dtype.kind] if code is None else code
    return (
        words(0xDD5E40F096B4A13F, 0)
        + struct.pack("<iiiBBH", 1, 0, values.ndim, kind, values.dtype.itemsize * 8, 1)
        + struct.pack(f"<{values.ndim}q", *values.shape)
        + words(values.nbytes)
        + values.tobytes()
    )


def named(arrays: dict[str, Any]) -> bytes:
    content = words(len(arrays))
    for name, values in arrays.items():
        content += words(len(name.encode())) + name.encode()
        content += values if isinstance(values, bytes) else array(values)
    return content


def tensor_file(arrays: dict[str, Any]) -> bytes:
    return words(0xDD5A9FBE3FA2443F, len(arrays)) + named(arrays)


def csr(width: int, begins: Array, ends: Array, numbers: Array) -> bytes:
    content = words(0xDD6CD31205DFF127, width, max(0, len(begins) - 1))
    return content + array(begins) + array(ends) + array(numbers) + b"\0"


NONE = np.empty(0, np.int64)
META_GRAPH = words(0xDD3C5FFE20046ABF) + csr(1, np.array([0, 1]), np.array([0]), np.array([0]))


def graph_file(
    nodes: int, source: Array, column: Array, ndata: Any, edata: Any, formats: int = COO
) -> bytes:
    content = words(0xDD589FBE35224ABF) + META_GRAPH + words(1)
    content += words(0xDD2E60F0F6B4A127, formats | 1 << 32, 7 | 1 << 32)
    if formats & COO:
        content += META_GRAPH + words(0xDD61FFD305DFF127, nodes, nodes)
        content += array(source) + array(column) + array(NONE) + b"\0\0"
    for bit, rows, ends in ((CSR, source, column), (CSC, column, source)):
        if formats & bit:
            order = np.argsort(rows, kind="stable")
            begins = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=nodes))])
            content += META_GRAPH + csr(nodes, begins, ends[order], order)
    content += words(1, nodes) + words(1) + named(ndata) + words(1) + named(edata)
    content += words(1, 2) + b"_N" + words(1, 2) + b"_E"
    head = words(0xDD2E4FF046B4A13F, 2, 2, 1).ljust(4096, b"\xaa")
    return head + words(4096 + 16, 0) + content + words(8, 4112, 16)


def write_parts(
    folder: Path,
    counts: dict[str, int],
    edges: Edges,
    parts: dict[str, Array],
    num_parts: int,
    ndata: dict[str, dict[str, Any]],
    edata: dict[str, dict[str, Any]],
    formats: int = COO,
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Cuts a graph as DistDGL does; returns its mapping: ids before, by id within the type.

    Args:
        folder: for the parts and `g.json`.
        counts: nodes of each type.
        edges: (source, column) of each type, ids within the types.
        parts: each node's part.
        num_parts: number of parts.
        ndata: `{type: {name: rows}}`.
        edata: likewise.
        formats: in which parts have their graphs.
    """
    folder.mkdir(parents=True)
    owners = {kind: parts[kind.split(":")[2]][column] for kind, (_, column) in edges.items()}
    tables, mappings, fused = [], [], []
    for of_each in (parts, owners):
        table: dict[str, list[list[int]]] = {kind: [] for kind in of_each}
        at = 0
        numbers = {kind: np.full(len(of_each[kind]), -1) for kind in of_each}
        for part in range(num_parts):
            for kind, owner in of_each.items():
                mine = np.flatnonzero(owner == part)
                numbers[kind][mine] = at + np.arange(len(mine))
                table[kind].append([at, at + len(mine)])
                at += len(mine)
        tables.append(table)
        fused.append(numbers)
        mappings.append({kind: np.argsort(numbers[kind], kind="stable") for kind in of_each})
    node_ids, edge_ids = fused
    document = {
        "graph_name": "g", "num_nodes": sum(counts.values()),
        "num_edges": sum(len(s) for s, _ in edges.values()), "part_method": "random",
        "num_parts": num_parts, "halo_hops": 1, "node_map": tables[0], "edge_map": tables[1],
        "ntypes": {kind: i for i, kind in enumerate(counts)},
        "etypes": {kind: i for i, kind in enumerate(edges)},
    }  # fmt: skip
    sources = [node_ids[kind.split(":")[0]][s] for kind, (s, _) in edges.items()]
    columns = [node_ids[kind.split(":")[2]][c] for kind, (_, c) in edges.items()]
    source, column, number, owner = (
        np.concatenate(list(pieces))
        for pieces in (sources, columns, edge_ids.values(), owners.values())
    )
    for part in range(num_parts):
        own = np.concatenate([np.arange(*tables[0][kind][part]) for kind in counts])
        mine = owner == part
        halo_edges = (owner != part) & np.isin(column, source[mine]) & np.isin(source, own)
        mine = np.concatenate([np.flatnonzero(mine), np.flatnonzero(halo_edges)[:3]])
        rows = np.concatenate([own, np.setdiff1d([*source[mine], *column[mine]], own)])
        rows = rows.astype(np.int64)
        place = {int(row): i for i, row in enumerate(rows)}
        (folder / f"part{part}").mkdir()
        (folder / f"part{part}" / "graph.dgl").write_bytes(
            graph_file(
                len(rows),
                np.array([place[int(i)] for i in source[mine]], np.int64),
                np.array([place[int(i)] for i in column[mine]], np.int64),
                {"_ID": rows, "inner_node": (np.arange(len(rows)) < len(own)).astype(np.uint8)},
                {"_ID": number[mine], "inner_edge": (owner[mine] == part).astype(np.uint8)},
                formats,
            )
        )
        names = {"part_graph": f"part{part}/graph.dgl"}
        for domain, data, of_each in (("node", ndata, parts), ("edge", edata, owners)):
            found = {
                f"{kind}/{name}": rows_of_part(values, of_each[kind] == part)
                for kind, columns_of_kind in data.items()
                for name, values in columns_of_kind.items()
            }
            names[f"{domain}_feats"] = f"part{part}/{domain}_feat.dgl"
            (folder / names[f"{domain}_feats"]).write_bytes(tensor_file(found))
        document[f"part-{part}"] = names
    (folder / "g.json").write_text(json.dumps(document))
    return mappings[0], mappings[1]


def rows_of_part(values: Any, mine: Array) -> Any:
    """Rows of a part; ("bfloat16", bits) stand for such values."""
    return array(values[1][mine], code=4) if isinstance(values, tuple) else values[mine]
