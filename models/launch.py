"""launch: runs a function on several ranks of this machine, and says which rank failed.

One process a rank, started afresh ("spawn"), all in one process group of torch.distributed. The
ranks find each other through a file in a private temporary folder, so that no port has to be free
and none is opened to the network.

Whatever happens, no process outlives `launch`: ranks are ended when one of them fails, when the
caller is interrupted, and when the caller's process dies.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import multiprocessing
import multiprocessing.connection
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing

import hopline.partition
from hopline.models.checks import check_function
from hopline.models.rank_environment import check_is_no_rank
from hopline.partition.who_has_gone import tells_of_loss

__all__ = [
    "DEFAULT_TIMEOUT",
    "RankError",
    "check_call",
    "check_gpus",
    "default_backend",
    "launch",
    "share_cores",
    "stay_on_this_machine",
    "take_device",
]

DEFAULT_TIMEOUT = 60.0  # seconds that a rank waits for the others in a collective
GRACE = 5.0  # seconds that ranks get to end by themselves once one has failed
LAST_WORDS = 2.0  # seconds that the exit functions of a failed rank get
GLANCE = 1.0  # seconds between looks at processes whose end nothing may tell
LONGEST = 20_000  # characters of a message or a traceback that a rank tells the caller


class RankError(hopline.partition.RankError):
    """A rank failed. The message names it, and what became of the others.

    `except hopline.partition.RankError` catches it too, as the error of a rank that waits for one.

    Attributes:
        ranks: the rank that failed first, alone.
        rank: the same.
        exit_code: its exit code; negative for a signal; None if it had to be stopped.
        signal: name of the signal that killed it, e.g. "SIGKILL", or None.
        traceback: its traceback, if it raised an exception.
    """

    def __init__(
        self,
        message: str,
        rank: int,
        exit_code: int | None = None,
        signal: str | None = None,
        traceback: str | None = None,
    ) -> None:
        super().__init__(message, (rank,))
        self.rank = rank
        self.exit_code = exit_code
        self.signal = signal
        self.traceback = traceback


def launch(
    fn: Callable[..., object],
    num_ranks: int,
    *args: Any,
    gpus: Sequence[int] | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    backend: str | None = None,
) -> None:
    """Runs `fn(rank, world_size, device, *args)` on every rank, and waits for all of them.

    Each rank is a new process, also if there is only one, in an initialised process group. It uses
    its share of the CPU cores (`torch.set_num_threads`); with GPUs, its own is the current device.
    Guard the calling script with `if __name__ == "__main__":`, since ranks import it.

    Args:
        fn: a function at the top level of a module.
        num_ranks: number of ranks.
        args: further arguments for fn, the same for all; they are pickled for the new processes.
            Nothing else is: what ranks tell each other and the caller is never unpickled.
        gpus: the id of each rank's GPU, as torch counts them: among those that
            CUDA_VISIBLE_DEVICES names, from 0. None for ranks on the CPU.
        timeout: seconds that a rank waits for the others in a collective before it gives up.
        backend: of the process group; by default gloo, with NCCL for GPU tensors if there are GPUs.

    Raises:
        RankError: a rank raised, was killed, left early or did not answer. The others get 5
            seconds to end by themselves.
        RuntimeError: torchrun or mpirun has started this process as one of several ranks.
        TypeError: fn is no function, backend no string, or gpus no list of ints.
        ValueError: fn cannot be imported by other processes, num_ranks or timeout is no positive
            number, or gpus does not fit.

    Example::

        def hello(rank, world_size, device, name):
            print(f"{name} from rank {rank} of {world_size} on {device}")

        if __name__ == "__main__":
            launch(hello, 2, "hello")
    """
    check_call(fn, timeout, backend)
    if "<locals>" in getattr(fn, "__qualname__", "") or getattr(fn, "__name__", "") == "<lambda>":
        raise ValueError(
            f"fn is {fn.__qualname__}, which ranks cannot import; expected a function at the top "
            "level of a module"
        )
    if isinstance(num_ranks, bool) or not isinstance(num_ranks, int) or num_ranks < 1:
        raise ValueError(f"num_ranks is {num_ranks!r}; expected an int of 1 or more")
    check_gpus(gpus, num_ranks)
    check_is_no_rank()
    backend = backend or default_backend(gpus is not None)
    context = torch.multiprocessing.get_context("spawn")
    processes: list[Any] = []
    pipes: list[Any] = []
    with (
        tempfile.TemporaryDirectory(prefix="hopline-launch-") as folder,
        contextlib.ExitStack() as ends_of_pipes,
    ):
        try:
            for rank in range(num_ranks):
                gpu = None if gpus is None else int(gpus[rank])
                place = _Place(rank, num_ranks, gpu, float(timeout), backend, folder)
                reader, writer = context.Pipe(duplex=False)
                pipes.append(ends_of_pipes.enter_context(reader))
                with writer:
                    processes.append(
                        context.Process(target=_run_rank, args=(place, writer, fn, args))
                    )
                    processes[-1].start()
            ends, notes = _wait(processes, pipes)
        finally:
            stopped = _stop(processes)
        _raise_first_failure(ends, stopped, notes, timeout)


def check_call(fn: Any, timeout: Any, backend: Any) -> None:
    """Raises where what `launch` and `join_ranks` share does not fit."""
    check_function(fn, "fn")
    if backend is not None and not isinstance(backend, str):
        raise TypeError(f"backend is {backend!r}; expected a string such as 'gloo', or None")
    if not (isinstance(timeout, int | float) and 0 < timeout < math.inf):
        raise ValueError(f"timeout is {timeout!r}; expected a positive number of seconds")


def default_backend(on_gpus: bool) -> str:
    """gloo; with NCCL for GPU tensors if there are GPUs."""
    return "cpu:gloo,cuda:nccl" if on_gpus else "gloo"


def check_gpus(gpus: Sequence[int] | None, num_ranks: int) -> None:
    """Raises where there is not one GPU of this machine for each rank."""
    if gpus is None:
        return
    if not isinstance(gpus, Sequence) or isinstance(gpus, str):
        raise TypeError(f"gpus is {gpus!r}; expected a list of ints, one a rank")
    if any(isinstance(gpu, bool) or not isinstance(gpu, int) for gpu in gpus):
        raise TypeError(f"gpus is {list(gpus)}; expected a list of ints, one a rank")
    if len(gpus) != num_ranks or len(set(gpus)) != len(gpus):
        raise ValueError(f"gpus is {list(gpus)}; expected {num_ranks} different ids, one a rank")
    present = torch.cuda.device_count()
    if bad := [gpu for gpu in gpus if not 0 <= gpu < present]:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        where = "here" if visible is None else f"in CUDA_VISIBLE_DEVICES={visible}"
        raise ValueError(
            f"there is no GPU {bad[0]}; torch finds {present} {where}, and counts them from 0"
        )


# -------------------------------------------------------------------------------------------------
# In the rank's process


@dataclass(frozen=True)
class _Place:
    """What a rank needs to know to join the others."""

    rank: int
    world_size: int
    gpu: int | None
    timeout: float
    backend: str
    folder: str


def _run_rank(place: _Place, pipe: Any, fn: Callable[..., object], args: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends a rank wherever it waits
    code: int | None = None
    try:
        threading.Thread(target=_end_with_parent, args=(place.folder,), daemon=True).start()
        fn(place.rank, place.world_size, _join_group(place), *args)
        if dist.is_initialized():
            dist.destroy_process_group()
    except SystemExit as error:
        number = 0 if error.code is None else error.code
        text = "" if isinstance(number, int) else _text_of(number)
        # The system keeps eight bits of it; what was no success is not to become one.
        code = (number & 0xFF or int(number != 0)) if isinstance(number, int) else 1
        _tell(pipe, code=code, summary=text, early=code == 0)
    except BaseException as error:
        code = 1
        _tell(
            pipe,
            code=code,
            summary=f"{type(error).__name__}: {_text_of(error)}",
            traceback=_shortened(traceback.format_exc()),
            transport=_is_transport_error(error),
        )
    if code is None:
        _tell(pipe, code=0)
        atexit.register(_leave)
    else:
        _end_at_once(code)


def _tell(pipe: Any, **values: Any) -> None:
    """Tells the caller how this rank ended. Through memory: it may have been a full disk."""
    text = json.dumps({"time": time.monotonic(), **values}, ensure_ascii=False)
    with contextlib.suppress(OSError):  # the caller is gone
        pipe.send_bytes(text.encode("utf-8", "replace"))


def _text_of(error: object) -> str:
    try:
        return _shortened(str(error))
    except BaseException as other:
        return f"(its text is not known: str() of it raised {type(other).__name__})"


def _shortened(text: str) -> str:
    """A text's beginning and end, if it is long."""
    if len(text) <= LONGEST:
        return text
    half = LONGEST // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"


def _end_at_once(code: int) -> None:
    """Ends the process whatever threads are left, so that the others notice.

    Exit functions run, which remove what lies outside the process, such as a graph in shared
    memory, but not for long. The interpreter does not wind down: the group's threads still run, and
    it may abort beside them.
    """
    with contextlib.suppress(RuntimeError):  # no thread can be started
        limit = threading.Timer(LAST_WORDS, os._exit, (code,))
        limit.daemon = True
        limit.start()
        atexit._run_exitfuncs()
    _flush()
    os._exit(code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # closed, None, a full disk, a reader that is gone
            stream.flush()


def _leave() -> None:
    """Ends the process once its threads are joined, after all other exit functions.

    The interpreter does not wind down: native threads of torch that reach for it then are unwound
    by force, and the process aborts although its work is done.
    """
    atexit.unregister(_leave)
    atexit._run_exitfuncs()
    _flush()
    os._exit(0)


def _end_with_parent(folder: str) -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        # A child that the caller has forked may keep its end of the pipe open.
        while not multiprocessing.connection.wait([parent.sentinel], timeout=GLANCE):
            if sys.platform != "win32" and os.getppid() != parent.pid:
                break
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)


def _join_group(place: _Place) -> torch.device:
    """Joins the process group; returns the rank's device."""
    share_cores(place.world_size)
    stay_on_this_machine()
    device = take_device(place.gpu)
    timeout = timedelta(seconds=place.timeout)
    store = dist.FileStore(str(Path(place.folder) / "store"), place.world_size)  # type: ignore[attr-defined]
    store.set_timeout(timeout)
    dist.init_process_group(
        place.backend,
        store=store,
        rank=place.rank,
        world_size=place.world_size,
        timeout=timeout,
    )
    return device


def share_cores(ranks: int) -> None:
    """Gives this process its share of the machine's cores, of which so many ranks run."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    # No more than the rank would take by itself, e.g. because of OMP_NUM_THREADS.
    share = max(1, (cores or 1) // ranks)
    torch.set_num_threads(min(share, torch.get_num_threads()))


def stay_on_this_machine() -> None:
    """All ranks are here: gloo need not listen to the network, nor resolve the machine's name."""
    if any(name == "lo" for _, name in socket.if_nameindex()):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def take_device(gpu: int | None) -> torch.device:
    """The rank's device, which becomes the current one."""
    if gpu is None:
        return torch.device("cpu")
    torch.cuda.set_device(gpu)
    return torch.device("cuda", gpu)


def _is_transport_error(error: BaseException | None) -> bool:
    """Whether an exception, or what it was raised from, tells of another rank's end."""
    seen: set[int] = set()  # exceptions raised from each other form a circle
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if tells_of_loss(error):
            return True
        error = error.__cause__ or error.__context__
    return False


# -------------------------------------------------------------------------------------------------
# In the caller's process


@dataclass(frozen=True)
class _End:
    """How a process ended: when it was noticed, and with which exit code (negative: a signal)."""

    time: float
    exit_code: int


def _wait(
    processes: Sequence[Any], pipes: Sequence[Any]
) -> tuple[dict[int, _End], list[dict[str, Any] | None]]:
    """Waits for all ranks; once one has failed, for `GRACE` seconds more.

    Returns:
        How each rank that is gone ended, and what each rank has told, in order.
    """
    running = set(range(len(processes)))
    unread = set(running)
    ends: dict[int, _End] = {}
    notes: list[dict[str, Any] | None] = [None for _ in processes]
    deadline = math.inf
    while running and time.monotonic() < deadline:
        waited_for = [processes[rank].sentinel for rank in running]
        waited_for += [pipes[rank] for rank in unread]  # a pipe holds no more than a few pages
        left = max(0.0, min(GLANCE, deadline - time.monotonic()))
        multiprocessing.connection.wait(waited_for, timeout=left)
        for rank in sorted(unread):
            if pipes[rank].poll():
                unread.remove(rank)
                notes[rank] = _read(pipes[rank])
        # Not by sentinels, which a child that a rank has forked keeps quiet.
        for rank in sorted(running):
            if processes[rank].is_alive():
                continue
            running.remove(rank)
            code = processes[rank].exitcode
            ends[rank] = _End(time.monotonic(), code)
            if rank in unread and pipes[rank].poll():
                notes[rank] = _read(pipes[rank])
            unread.discard(rank)
            if code != 0 or notes[rank] is None:
                deadline = min(deadline, time.monotonic() + GRACE)
    return ends, notes


def _stop(processes: Sequence[Any]) -> list[int]:
    """Ends every process that still runs; returns their ranks."""
    alive = [rank for rank, process in enumerate(processes) if process.is_alive()]
    for rank in alive:
        processes[rank].terminate()
        if hasattr(signal, "SIGCONT"):  # a stopped process acts on nothing else
            with contextlib.suppress(ProcessLookupError):
                os.kill(processes[rank].pid, signal.SIGCONT)
    try:
        deadline = time.monotonic() + GRACE
        for rank in alive:
            processes[rank].join(max(0.0, deadline - time.monotonic()))
    finally:
        for rank in alive:
            # A process that handles SIGTERM, and is deep in native code, does not act on it.
            with contextlib.suppress(ValueError):
                processes[rank].kill()
            processes[rank].join()
    return alive


@dataclass(frozen=True)
class _Failure:
    """A rank that did not do its work to the end."""

    rank: int
    time: float
    transport: bool
    text: str
    exit_code: int | None = None
    signal: str | None = None
    traceback: str | None = None


def _failure(rank: int, end: _End, note: dict[str, Any] | None) -> _Failure | None:
    if end.exit_code < 0:
        try:
            name = signal.Signals(-end.exit_code).name
        except ValueError:
            name = f"signal {-end.exit_code}"
        return _Failure(rank, end.time, False, f"was killed by {name}", end.exit_code, name)
    if note is None:
        text = f"left before its function returned, with exit code {end.exit_code}"
        if end.exit_code == 1:
            text += (
                "; if its error above is of the script's own start, put what calls launch under "
                "`if __name__ == '__main__':`, as each rank imports the script"
            )
        return _Failure(rank, end.time, False, text, end.exit_code)
    if note["code"] == 0 and end.exit_code == 0:
        return None
    when, trace = note["time"], note.get("traceback")
    if trace is not None:
        text = f"raised {note['summary']:.300}"
        return _Failure(rank, when, note["transport"], text, end.exit_code, None, trace)
    text = f"ended with exit code {end.exit_code}"
    if note.get("summary"):
        text += f": {note['summary']}"
    return _Failure(rank, when, False, text, end.exit_code)


def _read(pipe: Any) -> dict[str, Any] | None:
    """What a rank has told; None if it was killed before."""
    try:
        note: dict[str, Any] = json.loads(pipe.recv_bytes())
    except (EOFError, OSError):
        return None
    return note


def _raise_first_failure(
    ends: dict[int, _End],
    stopped: list[int],
    notes: Sequence[dict[str, Any] | None],
    timeout: float,
) -> None:
    """Raises for the rank that failed of itself first; the others' errors follow from that."""
    failures: list[_Failure] = []
    # Ranks that made the others fail without failing themselves: they hang, or are gone.
    absent = [_Failure(rank, 0.0, False, "did not answer and was stopped") for rank in stopped]
    for rank, end in sorted(ends.items()):
        note = notes[rank]
        failure = _failure(rank, end, note)
        if failure is not None:
            failures.append(failure)
        elif note is not None and note.get("early"):
            text = "left before its function returned, by sys.exit(0)"
            absent.append(_Failure(rank, note["time"], False, text, 0))
    if not failures:
        return
    own = [failure for failure in failures if not failure.transport]
    first = min(own or absent or failures, key=lambda failure: failure.time)
    others = [f"rank {f.rank} {f.text}" for f in failures + absent if f.rank != first.rank]
    message = f"rank {first.rank} of {len(notes)} {first.text}"
    if first.traceback:
        message += f"\n\n{first.traceback.rstrip()}\n"
    if others:
        message += f"\nother ranks (they wait {timeout:g} s for each other): " + "; ".join(others)
    raise RankError(message, first.rank, first.exit_code, first.signal, first.traceback)
