"""operator: makes a CPU kernel an operator of torch, which torch.compile calls as it is.

A compiled model is one graph of torch's operators. Numba kernels cannot be looked into, so each
becomes an operator `hopline::name` with its own gradient, and with a function that tells the shape
of its result while a graph is traced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import once_differentiable

__all__ = ["HALF", "operator"]

# Dtypes that the operators do not take: rows of these are computed with in float32.
HALF = (torch.float16, torch.bfloat16)

_library: Any = torch.library.Library("hopline", "FRAGMENT")  # type: ignore[no-untyped-call]


def operator(
    schema: str,
    run: Callable[..., Any],
    empty: Callable[..., Any],
    *,
    save: Callable[..., None] | None = None,
    backward: Callable[..., Any] | None = None,
    random: bool = False,
) -> Any:
    """Defines an operator on CPU tensors.

    Args:
        schema: "name(Tensor x, int n) -> Tensor", in torch's language of signatures. The results
            are new tensors, and no argument is written to.
        run: does the work, on tensors without history.
        empty: takes the same arguments, and gives empty tensors of the result's shape and dtype.
        save: called as `save(ctx, inputs, output)` before the gradient is needed.
        backward: called as `backward(ctx, grad_out)`; gives a gradient, or None, for each argument.
            It is made of operators, so that it can be traced as well.
        random: whether it draws from torch's generator, and so gives other values each time.

    Returns:
        The operator, to be called like `run`.
    """
    name = schema.partition("(")[0]
    tags = [torch.Tag.pt2_compliant_tag]
    if random:
        tags.append(torch.Tag.nondeterministic_seeded)
    _library.define(schema, tags=tuple(tags))
    _library.impl(name, run, "CPU")
    torch.library.register_fake(f"hopline::{name}", empty, lib=_library)
    if backward is not None:
        torch.library.register_autograd(
            f"hopline::{name}", once_differentiable(backward), setup_context=save, lib=_library
        )
    return getattr(torch.ops.hopline, name).default
