"""A process that is forked while threads read goes on reading."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import os, threading, warnings
import torch
import hopline.pipes as hp

warnings.simplefilter("ignore")  # Python warns of forks beside threads
slow = hp.TorchBasedFeature(torch.arange(40_000).view(20_000, 2))
feature = hp.cpu_cached_feature(slow, 40_000)
ids = torch.arange(0, 20_000, 5)
feature.read(ids)  # compiles: Numba's own lock is not ours
stop = threading.Event()

def read():
    i = 0
    while not stop.is_set():
        i += 1
        feature.read(torch.arange(i % 7, 20_000, 3))

readers = [threading.Thread(target=read) for _ in range(3)]
for reader in readers:
    reader.start()
for _ in range(40):
    child = os.fork()
    if child == 0:
        same = torch.equal(feature.read(ids)[:, 0], 2 * ids)
        os._exit(0 if same else 3)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
stop.set()
for reader in readers:
    reader.join()
print("done")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_a_forked_process_reads_while_threads_of_its_parent_did():
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=100
    )
    assert (result.stdout, result.returncode) == ("done\n", 0), result.stderr


LOOP = """
import os, warnings
import torch
import hopline.pipes as hp

warnings.simplefilter("ignore")
chain = hp.ItemSampler(hp.ItemSet(50, names="seeds"), 2, seed=1).transform()
loop = iter(hp.DataLoader(chain, num_workers=2))
next(loop)
child = os.fork()
if child == 0:
    try:
        next(loop)
    except RuntimeError as error:
        os._exit(7 if "start a new loop" in str(error) else 3)
    os._exit(4)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), len(list(loop)))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_a_forked_process_does_not_wait_for_its_parents_threads():
    result = subprocess.run(
        [sys.executable, "-c", LOOP], capture_output=True, text=True, timeout=100
    )
    assert result.stdout == "7 24\n", result.stderr
