"""check_same, StepNotes: notice ranks that differ in what they must have alike.

Without it ranks with other weights, or with masks of another key, train on together, and what they
print looks right; with other sizes the transport aborts them.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist

from hopline.pipes.random import fold

__all__ = ["StepNotes", "check_same", "needs_gradients"]

BITS = 52  # of a word, which float64 holds exactly
TOLERANCE = 1e-3  # of the weights' norm: other processors round otherwise
VALUES = 3  # of a rank's notes: sum and sum of squares of weights, word of keys


def check_same(rank: int, ranks: int, group: Any, name: str, value: str) -> None:
    """Raises `ValueError`, on all ranks, where a value is not the same on all; collective.

    Args:
        rank: of this process.
        ranks: number of ranks.
        group: process group; None for the default one.
        name: what it is, for the error.
        value: as text.
    """
    if ranks == 1:
        return
    digest = hashlib.blake2b(value.encode(), digest_size=8).digest()
    words = torch.zeros(ranks, dtype=torch.int64)
    words[rank] = int.from_bytes(digest, "big") >> 1
    dist.all_reduce(words, group=group)
    for other in range(ranks):
        if words[other] != words[rank]:
            raise ValueError(
                f"{name} differs between ranks: rank {rank} has {value}, rank {other} has "
                "something else; expected the same on all"
            )


def needs_gradients(x: torch.Tensor | None) -> bool:
    """Whether what is made of x now has a backward pass, in which ranks wait for each other."""
    return x is not None and x.requires_grad and torch.is_grad_enabled()


class StepNotes:
    """What a rank's forward passes since the last check were made with.

    Args:
        device: where ranks' messages are.
    """

    def __init__(self, device: torch.device) -> None:
        self._values = torch.zeros(VALUES, dtype=torch.float64, device=device)
        self._word, self._key, self._draws = 0, "", False
        self._last: tuple[int, float] | None = None
        self._warned = False

    def add(self, key: tuple[int, int, int], weights: Iterable[torch.Tensor], draws: bool) -> None:
        """Notes a forward pass.

        Args:
            key: (seed, epoch, step).
            weights: float[...] each, the same on all ranks.
            draws: whether something of the pass is drawn by the key.
        """
        with torch.no_grad(), torch.inference_mode(False):
            for weight in weights:
                values = weight.detach().float()
                self._values[0] += values.sum()
                self._values[1] += values.square().sum()
        self._word = fold(self._word, *key) >> (64 - BITS)
        self._key, self._draws = str(key), self._draws or draws

    def message(self, rank: int, ranks: int) -> torch.Tensor:
        """float64[ranks * 3]: this rank's notes among zeros; ranks' messages are added up."""
        told = self._values.new_zeros(ranks, VALUES)
        told[rank] = self._values
        told[rank, 2] = float(self._word)
        return told.view(-1)

    def check(self, told: torch.Tensor, rank: int) -> None:
        """Compares all ranks' notes, and begins anew.

        Args:
            told: float64[ranks * 3], the sum of the ranks' messages.
            rank: of this process.

        Raises:
            ValueError: a rank has another key, or other weights.

        Warns:
            UserWarning: once, a step draws with the key of the step before.
        """
        notes = told.view(-1, VALUES).tolist()
        mine = notes[rank]
        for other, (total, squares, word) in enumerate(notes):
            if word != mine[2]:
                raise ValueError(
                    f"rank {rank} has made this step with key {self._key}, rank {other} with "
                    "another, or with more or fewer passes in training mode; expected the same "
                    "(seed, epoch, step), and as many passes, on all ranks"
                )
            if abs(total - mine[0]) > TOLERANCE * max(squares, mine[1]) ** 0.5:
                raise ValueError(
                    f"rank {rank} has other weights than rank {other}; expected the same on all "
                    "ranks: call torch.manual_seed with one seed before the model is made, and "
                    "sum_gradients before each step"
                )
        again = self._last is not None and self._last[0] == self._word
        if again and self._last[1] != mine[0] and self._draws and not self._warned:  # type: ignore
            self._warned = True
            warnings.warn(
                f"this step has key {self._key}, as the step before, so it draws the same dropout "
                "and samples; give each step its own: model(x, key=(seed, epoch, step))",
                stacklevel=3,
            )
        self._last = self._word, mine[0]
        self._values.zero_()
        self._word, self._draws = 0, False
