"""join_ranks: makes this process a rank where torchrun or mpirun has started it, on any machine."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from hopline.models.bound_cores import share_bound_cores
from hopline.models.launch import (
    DEFAULT_TIMEOUT,
    check_call,
    check_gpus,
    default_backend,
    share_cores,
    stay_on_this_machine,
    take_device,
)
from hopline.models.mpirun_meeting import mpirun_meeting
from hopline.models.rank_environment import RankPlace, rank_place

__all__ = ["join_ranks"]

GLANCE = 1.0  # seconds between looks at whether mpirun still is there


def join_ranks(
    fn: Callable[..., object],
    *args: Any,
    gpus: Sequence[int] | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    backend: str | None = None,
) -> None:
    """Runs `fn(rank, world_size, device, *args)` in this process, as one rank of those started.

    What `launch` does for the ranks of one machine that it starts itself, for ranks that torchrun
    or OpenMPI's mpirun has started: the process group is initialised by what the environment says,
    the rank uses its share of its machine's cores, and its own GPU is the current device. Which one
    goes by the rank's number on its machine. Afterwards the group is gone.

    Every rank of every machine calls it. An exception of fn is raised here; torchrun and mpirun
    then end the other ranks; torchrun shows it as the first failure.

    Of torchrun, RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT are
    read; where one of the first four is missing, mpirun's OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK
    and _LOCAL_SIZE. With mpirun, ranks of one machine need no address: they meet in a folder. On
    several machines they meet where rank 0 runs, at MASTER_ADDR and MASTER_PORT (29500), which
    `mpirun -x` passes on. Neither MPI nor mpi4py is used.

    Args:
        fn: any function.
        args: further arguments for fn.
        gpus: the GPU of each rank of this machine, as torch counts them: among those that
            CUDA_VISIBLE_DEVICES names, from 0. None for ranks on the CPU.
        timeout: seconds that a rank waits for the others in a collective before it gives up.
        backend: of the process group; by default gloo, with NCCL for GPU tensors if there are GPUs.

    Raises:
        RuntimeError: neither torchrun nor mpirun has started this process, there is a process group
            already, MASTER_ADDR is needed and missing, or the ranks do not meet in time.
        TypeError: fn is no function, backend no string, or gpus no list of ints.
        ValueError: timeout is no positive number, gpus does not fit the ranks of this machine, or
            the environment is not what torchrun or mpirun sets.

    Example::

        def hello(rank, world_size, device):
            print(f"rank {rank} of {world_size} on {device}")

        if __name__ == "__main__":
            join_ranks(hello)  # torchrun --nnodes 2 --nproc-per-node 4 ... hello.py
    """
    check_call(fn, timeout, backend)
    place = rank_place()
    check_gpus(gpus, place.local_size)
    if dist.is_initialized():
        raise RuntimeError("there is a process group already; join_ranks makes and ends its own")
    gpu = None if gpus is None else int(gpus[place.local_rank])
    backend = backend or default_backend(gpus is not None)
    run = _run_under_torchrun if place.launcher == "torchrun" else _run_under_mpirun
    run(place, fn, args, gpu, float(timeout), backend)


def _run_under_torchrun(
    place: RankPlace,
    fn: Callable[..., object],
    args: tuple[Any, ...],
    gpu: int | None,
    timeout: float,
    backend: str,
) -> None:
    share_cores(place.local_size)
    device = _device(place, gpu)
    try:
        dist.init_process_group(
            backend,
            init_method="env://",
            rank=place.rank,
            world_size=place.world_size,
            timeout=timedelta(seconds=timeout),
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
    record(fn)(place.rank, place.world_size, device, *args)
    dist.destroy_process_group()


def _run_under_mpirun(
    place: RankPlace,
    fn: Callable[..., object],
    args: tuple[Any, ...],
    gpu: int | None,
    timeout: float,
    backend: str,
) -> None:
    with _ending_with_mpirun(), mpirun_meeting(place, timeout) as store:
        share_bound_cores(store, place)
        device = _device(place, gpu)
        dist.init_process_group(
            backend,
            store=store,
            rank=place.rank,
            world_size=place.world_size,
            timeout=timedelta(seconds=timeout),
        )
        fn(place.rank, place.world_size, device, *args)  # on failure as above
        dist.destroy_process_group()


def _device(place: RankPlace, gpu: int | None) -> torch.device:
    if place.local_size == place.world_size:
        stay_on_this_machine()
    return take_device(gpu)


@contextmanager
def _ending_with_mpirun() -> Iterator[None]:
    """Ends this process when the one that has started it has gone, as after SIGKILL.

    OpenMPI ends ranks itself in all other cases, and in this one those that have called MPI.
    """
    parent, over = os.getppid(), threading.Event()

    def watch() -> None:
        while not over.wait(GLANCE):
            if os.getppid() != parent:
                os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _meets_dead_ranks() -> bool:
    """Whether torchrun has restarted this rank without a new place to meet."""
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return restarts != "0" and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
