"""NodeDropout: dropout whose draws belong to nodes, so that ranks draw what one process draws."""

from __future__ import annotations

import torch
from torch import nn

from hopline.models.checks import check_probability
from hopline.pipes.random import Purpose, batch_key, fold

__all__ = ["NodeDropout"]

BITS = 24  # of a draw
GOLDEN, MIX_A, MIX_B = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB

Key = tuple[int, int, int]


class NodeDropout(nn.Module):
    """Sets values of nodes' rows to 0 with a probability, in training; scales the others.

    Whether value c of a node is kept is a function of the key, the node's id and c alone, by the
    mixing function of Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA
    2014. So it does not depend on which rank has the node, or which columns of it.

    Args:
        p: probability of a 0, met to within 2**-24.

    Raises:
        TypeError: p is no number.
        ValueError: p is not in [0, 1].
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        check_probability(p, "dropout")
        self.p = p

    def forward(
        self, x: torch.Tensor, ids: torch.Tensor, key: Key, layer: int, first_column: int = 0
    ) -> torch.Tensor:
        """Applies it.

        Args:
            x: float[n, width], rows of nodes.
            ids: int64[n], their ids in the whole graph.
            key: (seed, epoch, step).
            layer: number of the layer.
            first_column: number of x's first column, where x has a part of the columns.
        """
        if not self.training or self.p == 0.0:
            return x
        if self.p == 1.0:
            return x * 0.0
        seed, epoch, step = key
        word = fold(batch_key(seed, Purpose.DROPOUT, epoch, step), layer)
        columns = torch.arange(first_column, first_column + x.shape[1], device=x.device)
        draws = _mixed(_mixed(ids * _signed(GOLDEN) + _signed(word)).unsqueeze(1)
                       + (columns + 1) * _signed(GOLDEN))  # fmt: skip
        kept = _shifted(draws, 64 - BITS) >= round(self.p * (1 << BITS))
        return x * (kept.to(x.dtype) * (1.0 / (1.0 - self.p)))

    def extra_repr(self) -> str:
        """The probability, for print."""
        return f"p={self.p}"


def _mixed(words: torch.Tensor) -> torch.Tensor:
    """The words of 64 bits, well mixed; torch's int64 wraps around as uint64 does."""
    words = (words ^ _shifted(words, 30)) * _signed(MIX_A)
    words = (words ^ _shifted(words, 27)) * _signed(MIX_B)
    return words ^ _shifted(words, 31)


def _shifted(words: torch.Tensor, bits: int) -> torch.Tensor:
    """To the right, with zeros from the left."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    """The int64 of the same 64 bits."""
    return word - (1 << 64) if word >= 1 << 63 else word
