"""on_device: whether the GPU kernels are to work on a tensor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["check_triton", "interpreted_device", "on_device"]

_interpreted = False


def on_device(tensor: torch.Tensor) -> bool:
    """Whether a tensor is where GPU kernels work: on a GPU; in tests, also on the CPU."""
    return tensor.is_cuda or (_interpreted and tensor.device.type == "cpu")


def check_triton() -> None:
    """Refuses work on a GPU where its kernels cannot be compiled.

    Raises:
        RuntimeError: Triton is missing.
    """
    try:
        import triton  # noqa: F401
    except ImportError as error:
        raise RuntimeError(
            "graphs, features and seeds on a GPU need Triton, which is part of torch's builds for "
            "NVIDIA GPUs on Linux; install such a build, or keep graph and features on the CPU and "
            "put copy_to(device) last"
        ) from error


@contextmanager
def interpreted_device() -> Iterator[None]:
    """Takes the CPU for a GPU, on all threads, while the block runs; for tests of the GPU's path.

    Raises:
        RuntimeError: Triton compiles kernels, and does not interpret them.
    """
    global _interpreted
    from hopline.pipes.kernels.cuda.launching import INTERPRETED

    if not INTERPRETED:
        raise RuntimeError(
            "the CPU can stand for a GPU only with TRITON_INTERPRET=1 in the environment before "
            "the first import of a GPU kernel"
        )
    before, _interpreted = _interpreted, True
    try:
        yield
    finally:
        _interpreted = before
