"""check_part_memory: refuses a part that memory has no room for while it is cut and written."""

from __future__ import annotations

from hopline.pipes.datasets.disk_space import show_bytes
from hopline.pipes.graph import ORIGINAL_EDGE_ID, FusedCSCSamplingGraph

__all__ = ["check_part_memory", "mapping_memory", "part_memory"]

NODE_BYTES = 33  # a node of the graph: its part, its new id and the way back, its level and place
ROW_BYTES = 48  # a row of the part: ids, degrees, bounds
EDGE_BYTES = 20  # its position, its new id, and its source of 4 bytes
OWN_BYTES = 25  # with halo edges beside them: positions and new ids (twice) of the own alone
TYPED_BYTES = 10  # type, and the ids before by type
ORIGINAL_BYTES = 12  # the id before, as the graph has it and as int64
MAPPING_BYTES = 16  # an edge of all parts, for return_mapping: parts' and joined


def part_memory(graph: FusedCSCSamplingGraph, rows: int, own_edges: int, edges: int) -> int:
    """Bytes that cutting and writing a part takes at most, by what is allocated.

    Beside the graph, and some blocks of 16 MiB, by which features and arrays are written.

    Args:
        graph: the whole graph.
        rows: of the part.
        own_edges: in-edges of its own nodes.
        edges: these, and those of halo nodes.
    """
    attributes = graph.edge_attributes or {}
    an_edge = EDGE_BYTES + (graph.type_per_edge is not None)
    an_own = (TYPED_BYTES if graph.type_per_edge is not None else 0) + (
        ORIGINAL_BYTES if ORIGINAL_EDGE_ID in attributes else 0
    )
    for name, values in attributes.items():
        if name != ORIGINAL_EDGE_ID:
            an_edge += values[:1].nbytes
    if edges > own_edges:
        an_own += OWN_BYTES
    a_row = ROW_BYTES + sum(values[:1].nbytes for values in (graph.node_attributes or {}).values())
    return NODE_BYTES * graph.total_num_nodes + a_row * rows + an_own * own_edges + an_edge * edges


def mapping_memory(graph: FusedCSCSamplingGraph) -> int:
    """Bytes of the original edge ids of all parts, and of all of them joined."""
    return MAPPING_BYTES * graph.total_num_edges


def check_part_memory(part: str, edges: int, needed: int, bound: int | None) -> None:
    """Refuses a part that would take more than there is.

    Args:
        part: which part, for the message.
        edges: its edges, for the message.
        needed: bytes.
        bound: bytes that may be used; None for any number.

    Raises:
        MemoryError: the part would take more.
    """
    if bound is not None and needed > bound:
        raise MemoryError(
            f"{part}, of {edges:,} edges, would take up to {show_bytes(needed)} to write, above "
            f"the {show_bytes(bound)} of max_memory; more parts, or fewer hops of halo, take less"
        )
