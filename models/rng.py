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

from hopline.pipes.move import check_device
from hopline.pipes.random import Purpose, batch_key

__all__ = ["keyed_rng"]


@contextlib.contextmanager
def keyed_rng(key: tuple[int, int, int] | None, device: torch.device | str) -> Iterator[None]:
    """Seeds torch's default generators of the CPU and of a device for the time of a `with` block.

    Args:
        key: (seed, epoch, index) of a mini-batch, or None to leave the generators alone.
        device: where the model is.

    Raises:
        TypeError: the key is not of three ints.
        ValueError: there is no such device.

    >>> with keyed_rng((7, 0, 3), "cpu"):
    ...     first = torch.rand(2)
    >>> with keyed_rng((7, 0, 3), "cpu"):
    ...     bool((torch.rand(2) == first).all())
    True
    """
    if key is None:
        yield
        return
    if (
        not isinstance(key, tuple)
        or len(key) != 3
        or any(isinstance(word, bool) or not isinstance(word, int) for word in key)
    ):
        raise TypeError(f"key is {key!r}; expected (seed, epoch, index), three ints, or None")
    seed, epoch, index = key
    word = batch_key(seed, Purpose.DROPOUT, epoch, index)
    generators = [torch.default_generator]
    place: torch.device = check_device(device)
    if place.type == "cuda":
        number = torch.cuda.current_device() if place.index is None else place.index
        generators.append(torch.cuda.default_generators[number])
    states = [generator.get_state() for generator in generators]
    try:
        for generator in generators:
            generator.manual_seed(word)
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
