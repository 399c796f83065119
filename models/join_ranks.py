"""join_ranks: makes this process a rank where torchrun has started it, on any of the machines."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from hopline.models.launch import (
    DEFAULT_TIMEOUT,
    check_call,
    check_gpus,
    default_backend,
    share_cores,
    stay_on_this_machine,
    take_device,
)

__all__ = ["join_ranks"]

NUMBERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def join_ranks(
    fn: Callable[..., object],
    *args: Any,
    gpus: Sequence[int] | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    backend: str | None = None,
) -> None:
    """Runs `fn(rank, world_size, device, *args)` in this process, as one rank of those of torchrun.

    What `launch` does for the ranks of one machine that it starts itself, for ranks that are
    started already: the process group is initialised by what the environment says, the rank uses
    its share of its machine's cores, and its own GPU is the current device. Which one goes by the
    rank's number on its machine, LOCAL_RANK. Afterwards the group is gone.

    Every rank of every machine calls it. An exception of fn is raised here; torchrun then ends the
    other ranks, and shows it as the first failure.

    Args:
        fn: any function.
        args: further arguments for fn.
        gpus: the GPU of each rank of this machine, as torch counts them: among those that
            CUDA_VISIBLE_DEVICES names, from 0. None for ranks on the CPU.
        timeout: seconds that a rank waits for the others in a collective before it gives up.
        backend: of the process group; by default gloo, with NCCL for GPU tensors if there are GPUs.

    Raises:
        RuntimeError: torchrun has not started this process, there is a process group already, or
            the ranks do not meet in time.
        TypeError: fn is no function, backend no string, or gpus no list of ints.
        ValueError: timeout is no positive number, gpus does not fit the ranks of this machine, or
            the environment is not what torchrun sets.

    Example::

        def hello(rank, world_size, device):
            print(f"rank {rank} of {world_size} on {device}")

        if __name__ == "__main__":
            join_ranks(hello)  # torchrun --nnodes 2 --nproc-per-node 4 ... hello.py
    """
    check_call(fn, timeout, backend)
    rank, world_size, local_rank, local_size = _place()
    check_gpus(gpus, local_size)
    if dist.is_initialized():
        raise RuntimeError("there is a process group already; join_ranks makes and ends its own")
    share_cores(local_size)
    if local_size == world_size:
        stay_on_this_machine()
    device = take_device(None if gpus is None else int(gpus[local_rank]))
    try:
        dist.init_process_group(
            backend or default_backend(gpus is not None),
            init_method="env://",
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=float(timeout)),
        )
    except RuntimeError as error:
        if not _meets_dead_ranks():
            raise
        raise RuntimeError(
            "the ranks did not meet after a restart, since torchrun goes on using the store in "
            "which the ranks before have left their addresses; set "
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for torchrun, and, on several machines, let them "
            f"meet by --rdzv-backend c10d instead of --master-addr ({_first_line(error)})"
        ) from error
    from torch.distributed.elastic.multiprocessing.errors import record

    # Not ended on failure: the other ranks would wait for this one to end it with them.
    record(fn)(rank, world_size, device, *args)
    dist.destroy_process_group()


def _meets_dead_ranks() -> bool:
    """Whether torchrun has restarted this rank without a new place to meet."""
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return restarts != "0" and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


def _place() -> tuple[int, int, int, int]:
    """Rank, number of ranks, and both of this machine, from the environment."""
    missing = [name for name in (*NUMBERS, "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise RuntimeError(
            f"the environment lacks {', '.join(missing)}, which torchrun sets; start the script "
            "with torchrun, or use launch(fn, num_ranks)"
        )
    texts = [os.environ[name] for name in NUMBERS]
    given = ", ".join(f"{name}={text}" for name, text in zip(NUMBERS, texts, strict=True))
    try:
        rank, world_size, local_rank, local_size = (int(text) for text in texts)
    except ValueError as error:
        raise ValueError(f"the environment has {given}; expected numbers") from error
    fits = 0 <= local_rank < local_size <= world_size
    if not (fits and local_rank <= rank < world_size):
        raise ValueError(
            f"the environment has {given}; expected ranks below their numbers, and no more ranks "
            "on a machine than in all"
        )
    return rank, world_size, local_rank, local_size
