"""launch, tile: how every GPU kernel is started; NOTHING: what it writes where no error is."""

from __future__ import annotations

import threading
from typing import Any

import torch
import triton
import triton.language as tl
from triton import knobs

__all__ = ["INTERPRETED", "NONE", "NOTHING", "ceil_div", "launch", "tile"]

# An error is the position of the first bad entry, found by an atomic minimum.
NOTHING = (1 << 63) - 1
NONE = tl.constexpr(NOTHING)  # the same, in kernels
# Triton looks at the variable when a kernel is defined, and so do we.
INTERPRETED: bool = bool(knobs.runtime.interpret)
# The interpreter keeps the place in the grid in one global object.
_interpreter = threading.Lock()
# Entries that one program of an interpreted kernel takes at most: its cost is one of programs.
INTERPRETED_TILE = 1 << 14
tiles_of_gpu = False  # whether interpreted kernels are to have the tiles of a GPU all the same


def ceil_div(count: int, size: int) -> int:
    """Programs of `size` entries that `count` entries take."""
    return -(-count // size)


def tile(count: int, on_gpu: int, limit: int | None = None) -> int:
    """Entries for one program: a power of two.

    Args:
        count: entries in all.
        on_gpu: what is best on a GPU.
        limit: at most so many in the interpreter as well.
    """
    if not INTERPRETED or tiles_of_gpu:
        return on_gpu
    most = INTERPRETED_TILE if limit is None else min(INTERPRETED_TILE, limit)
    return int(min(most, triton.next_power_of_2(max(count, 16))))


def launch(kernel: Any, programs: int, on: torch.Tensor, *args: Any, **options: Any) -> None:
    """Starts a kernel on the device and the current stream of a tensor; 0 programs do nothing.

    Args:
        kernel: a function under `triton.jit`.
        programs: size of the grid, one dimension.
        on: a tensor that the kernel writes to; its device is where the kernel runs.
        args: of the kernel; tensors may also be in page-locked host memory.
        options: constants of the kernel by name, and `num_warps`.
    """
    if programs == 0:
        return
    # Fused multiply-add rounds once where the CPU rounds twice.
    options["enable_fp_fusion"] = False
    if INTERPRETED:
        with _interpreter:
            kernel[(programs,)](*args, **options)
    elif on.device.index == torch.cuda.current_device():
        kernel[(programs,)](*args, **options)
    else:
        with torch.cuda.device(on.device):
            kernel[(programs,)](*args, **options)
