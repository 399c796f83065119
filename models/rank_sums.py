"""global_mean, sum_gradients: a loss over all ranks' nodes, and its gradients on all ranks."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn

from hopline.models.checks import check_tensor
from hopline.models.halo_plan import HaloPlan, check_plan
from hopline.models.rank_agreement import check_same

__all__ = ["global_mean", "sum_gradients"]


def global_mean(values: torch.Tensor, plan: HaloPlan) -> torch.Tensor:
    """This rank's share of a mean over all ranks: the shares, and their gradients, add up to it.

    Args:
        values: float[n] or [n, width], such as losses of the rank's training nodes, each for
            itself; n may be 0.
        plan: of the ranks.

    Returns:
        Sum of values over the number of all ranks' values, for `backward`; float32 where values
        are of half precision, which holds neither.

    Raises:
        TypeError: plan is no HaloPlan, or values no tensor.
        ValueError: values are one number, as if they were averaged already; or a rank's model has
            other weights, or another key, in the step.

    Warns:
        UserWarning: once, where a step has the key of the step before, and so the same dropout.
    """
    check_plan(plan)
    check_tensor(values, "values")
    if values.dim() == 0:
        raise ValueError("values are one number; expected one a node: use reduction='none'")
    count = torch.tensor([float(values.numel())], dtype=torch.float64, device=values.device)
    told = torch.cat([count, plan.notes.message(plan.rank, plan.world_size).to(count.device)])
    if plan.group is not None:
        dist.all_reduce(told, group=plan.group)
    plan.notes.check(told[1:], plan.rank)
    count = told[:1]
    total = values.sum(dtype=torch.promote_types(values.dtype, torch.float32))
    return total / count.clamp(min=1).to(total.dtype).squeeze(0)


def sum_gradients(parameters: Iterable[nn.Parameter], plan: HaloPlan) -> None:
    """Adds up what all ranks have as gradients, in one message; after `backward`, before a step.

    Args:
        parameters: the same on all ranks; those without a gradient count as zeros.
        plan: of the ranks.

    Raises:
        TypeError: plan is no HaloPlan, parameters are none, or a gradient is sparse.
        ValueError: at the first call, another rank has parameters of other shapes or dtypes.
    """
    check_plan(plan)
    if isinstance(parameters, torch.Tensor | nn.Module) or not isinstance(parameters, Iterable):
        kind = type(parameters).__name__
        raise TypeError(f"parameters are a {kind}; expected several, as model.parameters()")
    parameters = list(parameters)
    for p in parameters:
        check_tensor(p, "a parameter")
    wanted = [p for p in parameters if p.requires_grad]
    for p in wanted:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        if p.grad.layout != torch.strided:
            raise TypeError(
                "a parameter's gradient is sparse; expected dense ones, as of an nn.Embedding with "
                "sparse=False"
            )
    if plan.group is None:
        return
    shapes = [(tuple(p.shape), str(p.dtype)) for p in wanted]
    if shapes not in plan.summed:
        check_same(plan.rank, plan.world_size, plan.group, "what gradients are of", str(shapes))
        plan.summed.append(shapes)
    for dtype in dict.fromkeys(p.dtype for p in wanted):
        mine = [p.grad for p in wanted if p.dtype == dtype and p.grad is not None]
        flat = torch.cat([gradient.reshape(-1) for gradient in mine])
        dist.all_reduce(flat, group=plan.group)
        low = 0
        for gradient in mine:
            gradient.copy_(flat[low : low + gradient.numel()].view_as(gradient))
            low += gradient.numel()
