"""What all tests share: time limits of hypothesis, left-over threads, data sets of the machine."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

# Without a GPU, GPU kernels are tested on the CPU, by Triton's interpreter. Triton looks at the
# variable when a kernel is defined.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Kernels compile at the first call, so the time of one example means nothing.
settings.register_profile(
    "default",
    deadline=None,
    max_examples=30,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    database=None,
)
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
# More examples for a hunt: HYPOTHESIS_PROFILE=long pytest tests/pipes
settings.register_profile("long", settings.get_profile("default"), max_examples=1000)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE", "ci" if "CI" in os.environ else "default")
)

PATIENCE = 10.0  # seconds that threads get to end by themselves


def _threads() -> set[threading.Thread]:
    """Living threads, but for tqdm's monitor, which lives as long as the process by design."""
    return {t for t in threading.enumerate() if type(t).__name__ != "TMonitor"}


@pytest.fixture(autouse=True)
def no_thread_is_left():
    """Fails a test that leaves threads behind."""
    before = _threads()
    yield
    limit = time.monotonic() + PATIENCE
    while (left := _threads() - before) and time.monotonic() < limit:
        time.sleep(0.01)
    if left:
        pytest.fail(f"threads left behind: {sorted(t.name for t in left)}", pytrace=False)


@pytest.fixture
def gpu():
    """The device of the GPU's path: a GPU, or else the CPU with interpreted kernels."""
    if torch.cuda.is_available():
        yield torch.device("cuda", torch.cuda.current_device())
        return
    pytest.importorskip("triton", reason="GPU kernels are interpreted by Triton, which is missing")
    from hopline.pipes.kernels.dispatch import interpreted_device

    with interpreted_device():
        yield torch.device("cpu")


@pytest.fixture(scope="session")
def test_data() -> Path:
    """Folder with data sets that are too big for the repository."""
    folder = os.environ.get("HOPLINE_TEST_DATA")
    if not folder:
        pytest.skip("HOPLINE_TEST_DATA names no folder with data sets (cora, tolokers, ...)")
    path = Path(folder)
    if not path.is_dir():
        pytest.fail(f"HOPLINE_TEST_DATA is {folder}, which is no folder")
    return path
