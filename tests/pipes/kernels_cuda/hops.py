"""One hop from random multigraphs, drawn by the kernels of the CPU and of the GPU."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from hopline.pipes.kernels import cpu, draws
from hopline.pipes.kernels.cuda import before, scored, segment_picks
from hopline.pipes.kernels.cuda.launching import NOTHING
from hopline.pipes.kernels.ranks import rank_parallel_edges

NO_TIMES = np.empty(0, np.int64)


@dataclass
class Hop:
    """Arguments of a hop, as NumPy has them; `None` where there is nothing."""

    indptr: np.ndarray
    indices: np.ndarray
    columns: np.ndarray
    fanouts: list[int]
    edge_types: np.ndarray | None = None
    replace: bool = False
    weights: np.ndarray | None = None
    layer: np.ndarray | None = None
    times: np.ndarray | None = None
    earliest: np.ndarray | None = None
    node_times: np.ndarray | None = None
    edge_times: np.ndarray | None = None
    parallel: bool = True
    spare: int = 0  # room beyond what is picked at most
    keys: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        keys = [0x9E3779B97F4A7C15, 3, 0xFFFFFFFFFFFFFFFF]
        self.keys = np.array([keys[t % 3] ^ t for t in range(len(self.fanouts))], np.uint64)

    def but(self, **changes: Any) -> Hop:
        return replace(self, **changes)


def _counts(hop: Hop) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    segments = len(hop.columns) * len(hop.fanouts)
    begin, degree = np.empty(segments, np.int64), np.empty(segments, np.int64)
    picked = np.empty(segments + 1, np.int64)
    types = np.empty(0, np.uint8) if hop.edge_types is None else hop.edge_types
    total = cpu.count_picks(
        hop.indptr, types, hop.columns, np.array(hop.fanouts), hop.replace, len(hop.indices),
        begin, degree, picked,
    )  # fmt: skip
    assert total >= 0
    return begin, degree, picked, total


def _or(array: np.ndarray | None, empty: np.ndarray) -> np.ndarray:
    return empty if array is None else array


def on_cpu(hop: Hop) -> tuple[np.ndarray, np.ndarray, np.ndarray] | int:
    """(segments, positions, neighbors); or the position of a bad weight."""
    begin, degree, picked, room = _counts(hop)
    segments = np.empty(len(picked), np.int64)
    positions, neighbors = np.empty(room, np.int64), np.empty(room, hop.indices.dtype)
    node_times, edge_times = _or(hop.node_times, NO_TIMES), _or(hop.edge_times, NO_TIMES)
    fanouts = np.array(hop.fanouts)
    if hop.weights is None and hop.layer is None:
        total = draws.pick_before(
            hop.indices, hop.columns, hop.keys, fanouts, hop.replace, begin, degree, hop.times,
            hop.earliest, node_times, edge_times, segments, positions, neighbors,
        )  # fmt: skip
    else:
        total = draws.pick_scored(
            hop.indices, hop.columns, hop.keys, fanouts, hop.replace, begin, degree, picked,
            _or(hop.weights, np.empty(0, np.float32)), _or(hop.layer, np.empty(0, np.uint64)),
            hop.indices, _or(hop.times, NO_TIMES), _or(hop.earliest, NO_TIMES), node_times,
            edge_times, hop.parallel, segments, positions, neighbors,
        )  # fmt: skip
    if total < 0:
        return -1 - total
    return segments, positions[:total], neighbors[:total]


def on_gpu(
    hop: Hop, device: torch.device, listed: bool | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | int:
    """`on_cpu`, by the GPU's kernels; `listed` chooses how, where both ways are open."""

    def move(array: np.ndarray | None) -> torch.Tensor | None:
        if array is None:
            return None
        return torch.from_numpy(array.view(np.int64) if array.dtype == np.uint64 else array).to(
            device
        )

    begin, degree, picked, room = _counts(hop)
    if listed is None or segment_picks.needs_expansion(hop.fanouts):
        listed = segment_picks.needs_expansion(hop.fanouts)
    room += hop.spare
    shared = (
        move(hop.indices), move(hop.columns), move(hop.keys), move(np.array(hop.fanouts)),
        max([0, *hop.fanouts]), hop.replace, move(begin), move(degree), move(picked), room,
        int(degree.sum()) if listed else None,
    )  # fmt: skip
    timed = tuple(map(move, (hop.times, hop.earliest, hop.node_times, hop.edge_times)))
    bad = NOTHING
    if hop.weights is None and hop.layer is None:
        picks = before.pick_before(*shared, *timed)
    else:
        parallel = None
        if hop.layer is not None and hop.parallel:
            types = hop.edge_types if len(hop.fanouts) > 1 else None
            parallel = rank_parallel_edges(
                torch.from_numpy(hop.indptr), torch.from_numpy(hop.indices),
                None if types is None else torch.from_numpy(types),
            ).to(device)  # fmt: skip
        *picks, first_bad = scored.pick_scored(
            *shared, move(hop.weights), move(hop.layer), *timed, parallel
        )
        assert first_bad.shape == (1,)
        assert first_bad.dtype == torch.int64
        bad = int(first_bad)
    segments, positions, neighbors = (tensor.cpu().numpy() for tensor in picks)
    assert segments.dtype == positions.dtype == np.int64
    assert neighbors.dtype == hop.indices.dtype
    assert len(segments) == len(picked)
    assert len(positions) == len(neighbors) == room
    total = segments[-1]
    assert not positions[total:].any()
    assert not neighbors[total:].any()
    if bad != NOTHING:
        return bad
    return segments, positions[:total], neighbors[:total]


def check(hop: Hop, device: torch.device, listed: bool | None = None) -> int:
    """Compares both, bit for bit; returns the number of picks, or -1 for a bad weight."""
    want, got = on_cpu(hop), on_gpu(hop, device, listed)
    if isinstance(want, int) or isinstance(got, int):
        assert want == got
        return -1
    for a, b in zip(want, got, strict=True):
        np.testing.assert_array_equal(a, b)
    return int(want[0][-1])


def check_both(hop: Hop, device: torch.device) -> int:
    """`check`, with the edges in registers and listed."""
    check(hop, device, listed=True)
    return check(hop, device, listed=False)


def make(
    seed: int,
    num_nodes: int,
    num_edges: int,
    num_columns: int,
    fanouts: list[int],
    num_types: int | None = None,
    hub: int = 0,
    **options: Any,
) -> Hop:
    """A hop from a multigraph with even ends, columns repeating.

    Args:
        seed: of NumPy's generator.
        num_nodes: of the graph.
        num_edges: but for those of the hub.
        num_columns: of the hop; the first is node 0.
        fanouts: one, or one for each edge type.
        num_types: edge types of the graph; by default one for each fanout.
        hub: so many further edges end at node 0.
        options: of `Hop`.
    """
    random = np.random.default_rng(seed)
    ends = np.sort(random.integers(0, num_nodes, num_edges)) if num_nodes else np.empty(0, np.int64)
    ends = np.concatenate([np.zeros(hub, np.int64), ends])
    indptr = np.searchsorted(ends, np.arange(num_nodes + 1)).astype(np.int64)
    dtype = options.pop("dtype", np.int32)
    indices = random.integers(0, max(num_nodes, 1), len(ends)).astype(dtype)
    types = None
    num_types = len(fanouts) if num_types is None else num_types
    if num_types > 1:
        types = random.integers(0, num_types, len(ends)).astype(np.uint8)
        types = types[np.lexsort((types, ends))]
    columns = random.integers(0, max(num_nodes, 1), num_columns).astype(dtype)
    columns[:1] = 0
    return Hop(indptr, indices, columns, fanouts, types, **options)


def weights_of(seed: int, count: int, values: list[Any], dtype: Any) -> np.ndarray:
    return np.random.default_rng(seed).choice(np.array(values, dtype), count)


def with_times(
    hop: Hop, seed: int, nodes: bool = True, edges: bool = True, window: int | None = None
) -> Hop:
    """The hop with times from 0 to 9, of columns, nodes and edges."""
    random = np.random.default_rng(seed)
    times = random.integers(0, 12, len(hop.columns))
    earliest = np.full(len(times), np.iinfo(np.int64).min) if window is None else times - window
    return hop.but(
        times=times,
        earliest=earliest,
        node_times=random.integers(0, 10, len(hop.indptr) - 1) if nodes else None,
        edge_times=random.integers(0, 10, len(hop.indices)) if edges else None,
    )


LAYER = np.array([7, 1 << 63, 12345, 0], np.uint64)  # all sources have the first key's word
MIXED_LAYER = np.array([7, 1 << 63, 12345, 1 << 63], np.uint64)  # half of them the second's
