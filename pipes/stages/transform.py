"""MiniBatchTransformer: a function of the user's, applied to each mini-batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hopline.pipes.minibatch import MiniBatch
from hopline.pipes.stage import Stage

__all__ = ["MiniBatchTransformer"]


class MiniBatchTransformer(Stage):
    """Applies a function to each mini-batch; `chain.transform(function)`.

    Args:
        source: the chain before it.
        transformer: MiniBatch to MiniBatch, pure and safe on any thread; None changes nothing.

    Raises:
        TypeError: transformer is not callable.
    """

    def __init__(
        self, source: Any, transformer: Callable[[MiniBatch], MiniBatch] | None = None
    ) -> None:
        super().__init__(source)
        if transformer is not None and not callable(transformer):
            raise TypeError(f"transformer is a {type(transformer).__name__}; expected a function")
        self.transformer = transformer

    def __call__(self, minibatch: MiniBatch) -> MiniBatch:
        """Transforms one mini-batch."""
        return minibatch if self.transformer is None else self.transformer(minibatch)

    def settings(self) -> dict[str, Any]:
        """The function's name."""
        function = self.transformer
        return {"transformer": getattr(function, "__qualname__", type(function).__name__)}
