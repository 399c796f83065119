"""METIS by way of pymetis, and KaMinPar: multilevel partitioners of other hands."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from hopline.partition.adjacency import Adjacency

__all__ = ["KAMINPAR_BYTES", "METIS_BYTES", "kaminpar_parts", "metis_parts"]

Array = np.ndarray[Any, Any]

# Bytes of working memory an entry of the adjacency (two an edge), measured; beside the adjacency.
METIS_BYTES = 120
KAMINPAR_BYTES = 35
SLACK = 0.03  # how far above the mean KaMinPar lets a part grow
PARHIP_VERSION = 3  # no weights, 64-bit words


def metis_parts(
    adjacency: Adjacency, num_parts: int, seed: int, *, recursive: bool, objective: str
) -> Array:
    """Assigns nodes by METIS (Karypis, Kumar: "A fast and high quality multilevel scheme", 1998).

    Args:
        adjacency: the undirected graph.
        num_parts: number of parts, 2 or more.
        seed: int in [0, 2**31).
        recursive: bisect over and over, instead of k-way.
        objective: "cut", fewest edges between parts; or "vol", fewest halo rows.

    Returns:
        int32[num_nodes].

    Raises:
        RuntimeError: pymetis is not installed, or its ids are too short for the graph.
    """
    try:
        import pymetis
    except ImportError as error:
        raise RuntimeError(
            "method='metis' needs pymetis, which has no build for this system; install it "
            "(conda-forge has one for Windows), or use method='ldg' or 'kaminpar'"
        ) from error
    options = pymetis.Options(seed=seed)
    if not recursive:  # bisection knows one objective
        options.objtype = {"cut": pymetis.ObjType.CUT, "vol": pymetis.ObjType.VOL}[objective]
    kind = np.dtype(pymetis.zero_copy_dtype())
    if len(adjacency.neighbors) > np.iinfo(kind).max:
        raise RuntimeError(
            f"this build of pymetis has {8 * kind.itemsize}-bit ids, too few for an adjacency of "
            f"{len(adjacency.neighbors):,} entries; install one with 64 bits, or use "
            "method='kaminpar' or 'ldg'"
        )
    graph = pymetis.CSRAdjacency(
        adjacency.starts.astype(kind, copy=False), adjacency.neighbors.astype(kind, copy=False)
    )
    _, parts = pymetis.part_graph(num_parts, adjacency=graph, recursive=recursive, options=options)
    return np.asarray(parts, np.int32)


def kaminpar_parts(adjacency: Adjacency, num_parts: int, seed: int) -> Array:
    """Assigns nodes by KaMinPar (Gottesbüren and others: "Deep multilevel graph partitioning").

    Its Python binding reads graphs from files only: the adjacency goes through a temporary file of
    8 bytes an entry.

    Args:
        adjacency: the undirected graph.
        num_parts: number of parts, 2 or more.
        seed: int in [0, 2**31).

    Returns:
        int32[num_nodes].

    Raises:
        RuntimeError: kaminpar is not installed.
    """
    try:
        import kaminpar
    except ImportError as error:
        raise RuntimeError(
            "method='kaminpar' needs kaminpar; pip install 'hopline[kaminpar]'"
        ) from error
    with tempfile.TemporaryDirectory(prefix="hopline-") as folder:
        path = Path(folder) / "graph.parhip"
        _write_parhip(adjacency, path)
        graph = kaminpar.load_graph(str(path), kaminpar.GraphFileFormat.PARHIP)
        kaminpar.reseed(seed)
        # One thread: the result is then the same in every run.
        partitioner = kaminpar.KaMinPar(1, kaminpar.default_context())
        return np.asarray(partitioner.compute_partition(graph, num_parts, SLACK), np.int32)


def _write_parhip(adjacency: Adjacency, path: Path) -> None:
    """The binary format of ParHIP: version, nodes, entries; byte offsets; neighbours."""
    entries = len(adjacency.neighbors)
    header = np.array([PARHIP_VERSION, adjacency.num_nodes, entries], np.uint64)
    first = 8 * (len(header) + len(adjacency.starts))
    with path.open("wb") as file:
        header.tofile(file)
        (adjacency.starts * 8 + first).astype(np.uint64).tofile(file)
        adjacency.neighbors.astype(np.uint64, copy=False).tofile(file)
