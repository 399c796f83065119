"""BoundarySample: a step's sample of the halo, so that fewer rows are sent and summed."""

from __future__ import annotations

import numpy as np
import torch

from hopline.models.halo_plan import HaloPlan
from hopline.models.kept_block import KeptBlock
from hopline.models.node_dropout import Key
from hopline.models.scaled_sum import picks
from hopline.pipes.random import Purpose, batch_key, fold_many
from hopline.pipes.subgraph import Block

__all__ = ["BoundarySample"]

BITS = 32  # of a draw


class BoundarySample:
    """The halo rows that a step uses, each kept with a probability, and the edges from them.

    Rank by rank a halo node is drawn by its new id and the receiver's number, so the sender knows
    without being asked. All layers of a step have the same sample. Kept rows, divided by the rate,
    give sums whose mean is the sum over all.

    Wan, Li, Li, Kim, Lin: "BNS-GCN: efficient full-graph training of graph convolutional networks
    with partition-parallelism and random boundary node sampling", MLSys 2022, algorithm 1.

    Args:
        plan: the rank's nodes and edges.
        rate: probability with which a halo node is kept, met to within 2**-32.
        key: (seed, epoch, step).

    Attributes:
        rank, group, sends, send_counts, receive_counts: as a `Route` has them.
        scale: what kept rows are multiplied by.
        remote: `KeptBlock`, in-edges from kept halo nodes to own nodes.
        remote_edges: int64[...], which edges of `plan.remote` these are.
    """

    def __init__(self, plan: HaloPlan, rate: float, key: Key) -> None:
        self.rank, self.group, self.key = plan.rank, plan.group, key
        seed, epoch, step = key
        self._word = batch_key(seed, Purpose.BOUNDARY, epoch, step)
        self._threshold = round(rate * (1 << BITS))
        self.scale = (1 << BITS) / max(self._threshold, 1)
        ranks = torch.arange(plan.world_size)
        receivers = ranks.repeat_interleave(torch.tensor(plan.send_counts))
        sent = self._kept(plan.send_rows.cpu() + plan.own.start, receivers)
        self.sends = picks(plan.send_rows[sent.to(plan.device)], len(plan.own))
        self.send_counts = receivers[sent].bincount(minlength=plan.world_size).tolist()
        kept = self._kept(plan.halo, torch.full_like(plan.halo, plan.rank))
        owners = ranks.repeat_interleave(torch.tensor(plan.receive_counts))
        self.receive_counts = owners[kept].bincount(minlength=plan.world_size).tolist()
        self._cut(plan.remote, kept.to(plan.device))

    def __deepcopy__(self, memo: object) -> BoundarySample:
        return self  # it stays as it is

    def _kept(self, ids: torch.Tensor, receivers: torch.Tensor) -> torch.Tensor:
        """bool[n]: which are in the sample of their receiver."""
        words = fold_many(np.array([self._word], np.uint64), receivers.numpy())
        draws = fold_many(words, ids.numpy()) >> np.uint64(64 - BITS)
        return torch.from_numpy(draws < self._threshold)

    def _cut(self, remote: Block, kept: torch.Tensor) -> None:
        rows = kept.cumsum(0, dtype=remote.indices.dtype) - 1
        chosen = kept[remote.indices]
        below = torch.cat([chosen.new_zeros(1, dtype=torch.int64), chosen.cumsum(0)])
        self.remote_edges = chosen.nonzero().squeeze(1)
        self.remote = KeptBlock(
            below[remote.indptr],
            rows[remote.indices[self.remote_edges]],
            sum(self.receive_counts),
            remote.num_dst_nodes(),
        )
