"""uncompiled: a method that torch.compile leaves as it is."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

__all__ = ["uncompiled"]

P = ParamSpec("P")
R = TypeVar("R")


def uncompiled(fn: Callable[P, R]) -> Callable[P, R]:
    """Fn, into which torch.compile does not look: it could not trace ranks' messages.

    As `torch.compiler.disable`, which loads the compiler, in seconds, also where nobody compiles.
    """
    made: list[Callable[P, R]] = []

    @functools.wraps(fn)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if "torch._dynamo" not in sys.modules:
            return fn(*args, **kwargs)
        if not made:
            made.append(torch.compiler.disable(fn))  # type: ignore[no-untyped-call]
        return made[0](*args, **kwargs)

    return call
