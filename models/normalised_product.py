"""normalised_product: the product with a normalised adjacency, own rows and halo rows at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable

from hopline.models.halo_exchange import Halo
from hopline.models.kept_block import KeptBlock
from hopline.models.scaled_sum import gathered, scaled_sum

__all__ = ["Factors", "Remote", "factors_of", "normalised_product", "scaled"]


class Factors(NamedTuple):
    """What rows are multiplied by, float[n] each; None for ones."""

    source: torch.Tensor | None
    target: torch.Tensor | None


class Remote(NamedTuple):
    """The halo's part of a product.

    Attributes:
        block: from halo rows to own nodes.
        halo: brings the rows.
        scale: what they are multiplied by.
    """

    block: KeptBlock
    halo: Halo
    scale: float = 1.0


def factors_of(
    in_degrees: torch.Tensor,
    out_degrees: torch.Tensor,
    norm: str,
    self_loop: bool,
    dtype: torch.dtype,
) -> Factors:
    """The factors of a norm: "none", "right" or "both".

    Args:
        in_degrees: int64[n], in the whole graph.
        out_degrees: int64[n], in the whole graph.
        norm: as of `DistSpmm`.
        self_loop: whether there is one more edge, from each node to itself.
        dtype: of rows. Half precision would not hold the degrees: factors are of float32 then.
    """
    dtype = _wide(dtype)

    def power(degrees: torch.Tensor, exponent: float) -> torch.Tensor:
        return (degrees + int(self_loop)).clamp(min=1).to(dtype).pow(exponent)

    if norm == "none":
        return Factors(None, None)
    if norm == "right":
        return Factors(None, power(in_degrees, -1.0))
    return Factors(power(out_degrees, -0.5), power(in_degrees, -0.5))


def normalised_product(
    x: torch.Tensor,
    local: KeptBlock,
    factors: Factors,
    self_loop: bool,
    remote: Remote | None = None,
) -> torch.Tensor:
    """`target * (sum over in-neighbours j of source_j * x_j)`, of each own node.

    Halo rows are under way while own rows are summed, and backward, gradients of halo rows are
    while those of own rows are. Collective with a remote part, as its backward pass is. Half
    precision is computed in float32, and sent as it is.

    Args:
        x: float[own, width].
        local: from own rows to own nodes.
        factors: of own nodes.
        self_loop: whether each node has one more edge, from itself.
        remote: from halo rows; None where there are none on any rank.

    Returns:
        float[own, width].
    """
    out: torch.Tensor = _Product.apply(  # type: ignore[no-untyped-call]
        x, local, factors, self_loop, remote
    )
    return out


def scaled(
    x: torch.Tensor,
    sum_rows: Callable[[torch.Tensor], torch.Tensor],
    factors: Factors,
    self_loop: bool,
) -> torch.Tensor:
    """The same for sums of any kind, by operations that torch differentiates.

    Args:
        x: float[n, width].
        sum_rows: sums the rows of in-neighbours.
        factors: of the nodes.
        self_loop: whether each node has one more edge, from itself.
    """
    source, target = factors
    dtype = x.dtype
    if source is not None:
        x = (x * source.unsqueeze(1)).to(dtype)
    out = sum_rows(x)
    if self_loop:
        out = out + x
    return out if target is None else (out * target.unsqueeze(1)).to(dtype)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        local: KeptBlock,
        factors: Factors,
        self_loop: bool,
        remote: Remote | None,
    ) -> torch.Tensor:
        ctx.rest = local, factors, self_loop, remote
        source, target = factors
        dtype, wide = x.dtype, _wide(x.dtype)
        x = x.to(wide)
        if remote is None:
            return scaled_sum(local, x, source, target, self_loop=self_loop).to(dtype)
        halo = remote.halo
        halo.start(gathered(halo.route.sends, x, source).to(dtype), back=False)
        out = scaled_sum(local, x, source, self_loop=self_loop)
        rows = _scaled(halo.wait(back=False).to(wide), remote.scale)
        return scaled_sum(remote.block, rows, None, target, out=out).to(dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        local, factors, self_loop, remote = ctx.rest
        source, target = factors
        dtype, wide = grads[0].dtype, _wide(grads[0].dtype)
        grad_out, rest = grads[0].to(wide), (None, None, None, None)
        if remote is None:
            grad = scaled_sum(local.transposed, grad_out, target, source, self_loop=self_loop)
            return grad.to(dtype), *rest
        halo = remote.halo
        rows = scaled_sum(remote.block.transposed, grad_out, target)
        halo.start(_scaled(rows, remote.scale).to(dtype), back=True)
        grad = scaled_sum(local.transposed, grad_out, target, self_loop=self_loop)
        back = halo.wait(back=True).to(wide)
        grad = scaled_sum(halo.route.sends.transposed, back, None, source, out=grad)
        return grad.to(dtype), *rest


def _scaled(rows: torch.Tensor, scale: float) -> torch.Tensor:
    return rows if scale == 1 else rows * scale


def _wide(dtype: torch.dtype) -> torch.dtype:
    """In which sums of rows are computed."""
    return torch.promote_types(dtype, torch.float32)
