"""Graphs in shared memory, by a name that other processes know.

A shared graph is a folder as `graph.save` writes it, on a file system in memory (/dev/shm on Linux,
the folder for temporary files elsewhere). It belongs to the user who made it and is removed when
the graph object that made it dies, or the process of it ends. A process that is killed leaves it;
the next one that takes the name finds that nobody holds it and replaces it. (What a process leaves
that is killed while it copies has a longer name, and is to be removed by hand.)
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch
from filelock import FileLock, Timeout

from hopline.pipes.graph import FusedCSCSamplingGraph
from hopline.pipes.graph_files import load_graph, save_graph

__all__ = ["copy_to_shared_memory", "load_from_shared_memory"]

MEMORY = Path("/dev/shm")
MAX_NAME = 150
OWNER = "owner.lock"  # held by the creator for as long as it lives


def copy_to_shared_memory(
    graph: FusedCSCSamplingGraph, shared_memory_name: str
) -> FusedCSCSamplingGraph:
    """Copies a graph to shared memory.

    Args:
        graph: what to copy.
        shared_memory_name: for `load_from_shared_memory`; each user has names of their own.

    Returns:
        A graph on the copy, which lasts as long as it does; those who have loaded it keep theirs.
        Writing to one of the tensors changes this process's own copy of it.

    Raises:
        TypeError: graph is none, or the name is no string.
        ValueError: the name is empty or above 150 bytes.
        FileExistsError: a living process has a graph of this name.
        OSError: there is not enough memory.

    >>> from hopline.pipes import fused_csc_sampling_graph
    >>> graph = fused_csc_sampling_graph(torch.tensor([0, 1, 2]), torch.tensor([1, 0]))
    >>> shared = copy_to_shared_memory(graph, f"doctest-{os.getpid()}")
    >>> load_from_shared_memory(f"doctest-{os.getpid()}").indices.tolist()
    [1, 0]
    """
    if not isinstance(graph, FusedCSCSamplingGraph):
        raise TypeError(f"graph is a {type(graph).__name__}; expected a FusedCSCSamplingGraph")
    folder = _folder(shared_memory_name)
    tensors = [graph.csc_indptr, graph.indices, graph.type_per_edge]
    tensors += [*(graph.node_attributes or {}).values(), *(graph.edge_attributes or {}).values()]
    needed = sum(_bytes(tensor) for tensor in tensors)
    free = shutil.disk_usage(folder.parent).free
    if needed > free:
        raise OSError(
            f"the graph takes {needed} bytes, and {folder.parent} has {free} free; free some, or "
            "save the graph to a disk and load it from there: its pages are shared as well"
        )
    # Written beside the name and renamed at the end: whoever finds the name finds all of it.
    work = Path(tempfile.mkdtemp(prefix=folder.name + ".", dir=folder.parent))  # mode 0700
    lock: FileLock | None = None
    made = work
    try:
        save_graph(graph, work)
        lock = FileLock(work / OWNER)
        lock.acquire(blocking=False)
        _publish(work, folder)
        made = folder
        shared = load_graph(folder)
        weakref.finalize(shared, _remove, folder, lock, os.getpid())
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        if lock is not None:
            lock.release(force=True)
        raise
    return shared


def load_from_shared_memory(shared_memory_name: str) -> FusedCSCSamplingGraph:
    """The graph that a process of the same user has copied to shared memory.

    Args:
        shared_memory_name: the name it was given.

    Raises:
        TypeError: the name is no string.
        ValueError: the name is empty or above 150 bytes.
        FileNotFoundError: there is no graph of this name.
        PermissionError: what has the name is another user's.
    """
    folder = _folder(shared_memory_name)
    try:
        found = folder.lstat()
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"no graph named {shared_memory_name!r} in shared memory ({folder}); expected a graph "
            "that copy_to_shared_memory returned to be alive"
        ) from error
    if hasattr(os, "geteuid") and (found.st_uid != os.geteuid() or folder.is_symlink()):
        raise PermissionError(f"{folder} is not this user's; expected a folder made by this user")
    return load_graph(folder)


def _publish(work: Path, folder: Path) -> None:
    """Gives the folder its name, in place of one that a killed process has left."""
    for _ in range(2):
        try:
            if not folder.exists():
                work.rename(folder)
                return
        except OSError:  # another process was faster
            if not folder.exists():
                raise
        stale = FileLock(folder / OWNER)
        try:
            before = (folder / OWNER).stat().st_ino
            stale.acquire(blocking=False)
        except Timeout as error:
            raise FileExistsError(
                f"shared memory has a graph of this name already ({folder}), and the process that "
                "made it is alive; use another name, or drop that graph first"
            ) from error
        except OSError as error:
            raise FileExistsError(
                f"{folder} exists and cannot be replaced ({error}); use another name"
            ) from error
        # Another process may have replaced the folder before the lock was held: not this one then.
        if _inode(folder / OWNER) == before:
            shutil.rmtree(folder, ignore_errors=True)
        stale.release(force=True)
    raise FileExistsError(f"{folder} cannot be replaced; remove it or use another name")


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def _folder(name: Any) -> Path:
    if not isinstance(name, str):
        raise TypeError(f"shared_memory_name is {name!r}; expected a string")
    file = quote(name, safe="")
    if not name or len(file) > MAX_NAME:
        raise ValueError(f"shared_memory_name has {len(file)} bytes; expected 1 to {MAX_NAME}")
    user = os.geteuid() if hasattr(os, "geteuid") else "user"
    memory = MEMORY if MEMORY.is_dir() else Path(tempfile.gettempdir())
    return memory / f"hopline-{user}-{file}"


def _bytes(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.numel() * tensor.element_size()


def _remove(folder: Path, lock: FileLock, process: int) -> None:
    # A forked child has a copy of the graph object, and ends without the right to remove.
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
        lock.release(force=True)
