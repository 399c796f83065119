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
stop = threading.Event()

def read():
    i = 0
    while not stop.is_set():
        i += 1
        feature.read(torch.arange(i % 7, 20_000, 3))

readers = [threading.Thread(target=read) for _ in range(3)]
for reader in readers:
    reader.start()
ids = torch.arange(0, 20_000, 5)
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
