"""keyed_rng: makes the random draws of a training step a function of its mini-batch's key.

Mini-batches are pure functions of (seed, epoch, index). Dropout is not: it reads torch's default
generator, whose state depends on all that came before, so a resumed run would draw other masks.
Inside `keyed_rng` the generator is seeded by the key, and outside it is as if nothing had been
drawn.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from hopline.pipes.random import Purpose, batch_key

__all__ = ["keyed_rng"]


@contextlib.contextmanager
def keyed_rng(key: tuple[int, int, int] | None, device: torch.device | str) -> Iterator[None]:
    """Seeds torch's default generators of the CPU and of a device for the time of a `with` block.

    Args:
        key: (seed, epoch, index) of a mini-batch, or None to leave the generators alone.
        device: where the model is.

    >>> with keyed_rng((7, 0, 3), "cpu"):
    ...     first = torch.rand(2)
    >>> with keyed_rng((7, 0, 3), "cpu"):
    ...     bool((torch.rand(2) == first).all())
    True
    """
    if key is None:
        yield
        return
    seed, epoch, index = key
    word = batch_key(seed, Purpose.DROPOUT, epoch, index)
    generators = [torch.default_generator]
    device = torch.device(device)
    if device.type == "cuda":
        number = torch.cuda.current_device() if device.index is None else device.index
        generators.append(torch.cuda.default_generators[number])
    states = [generator.get_state() for generator in generators]
    try:
        for generator in generators:
            generator.manual_seed(word)
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
