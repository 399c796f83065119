"""CopyTo: moves mini-batches to a device."""

from __future__ import annotations

from typing import Any

import torch

from hopline.pipes.minibatch import MiniBatch, check_minibatch
from hopline.pipes.stage import Stage

__all__ = ["CopyTo"]


class CopyTo(Stage):
    """Moves every tensor of a mini-batch to a device; `chain.copy_to(device)`.

    Copies to a GPU are queued on the current stream and go through page-locked memory, so that they
    run beside other work. Whatever follows on that stream finds them done; a `DataLoader` takes
    care of its threads' streams. Copies to other devices are done when the stage returns.

    Args:
        source: the chain before it.
        device: torch device, number of a GPU, or "pinned" for page-locked host memory. "cuda" is
            the current GPU of who reads the loader.
        non_blocking: accepted for GraphBolt's scripts; copies to a GPU never wait.

    Raises:
        ValueError: there is no such device, or it is not usable here.
    """

    def __init__(
        self, source: Any, device: torch.device | str | int, non_blocking: bool = False
    ) -> None:
        super().__init__(source)
        if not (isinstance(device, str) and device == "pinned"):
            try:
                if isinstance(device, int) and not isinstance(device, bool):
                    device = torch.device("cuda", device)
                device = torch.device(device)
            except (RuntimeError, TypeError, ValueError) as error:
                raise ValueError(f"copy_to got {device!r}; expected a torch device") from error
        gpu = device if isinstance(device, torch.device) and device.type == "cuda" else None
        if (gpu or device == "pinned") and not torch.cuda.is_available():
            raise ValueError(
                f"copy_to got {str(device)!r}, but torch finds no GPU here; use copy_to('cpu'), or "
                "a torch build and driver for your GPU"
            )
        if gpu and gpu.index is not None and gpu.index >= torch.cuda.device_count():
            raise ValueError(
                f"copy_to got {str(gpu)!r}, but torch finds {torch.cuda.device_count()} GPUs here"
            )
        self.device = device

    def __call__(self, minibatch: MiniBatch) -> MiniBatch:
        """Moves one mini-batch."""
        device = self.device
        # Copies from a GPU must be over before the host reads them.
        to_gpu = isinstance(device, torch.device) and device.type == "cuda"
        return check_minibatch(minibatch, "copy_to").to(device, non_blocking=to_gpu)
